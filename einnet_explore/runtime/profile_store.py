"""Measured times by key, in one SQLite file that several processes may use at once.

A key has the operator, its attributes, its shapes, the device and the versions of libraries.
"""

from __future__ import annotations

import hashlib
import platform
import sqlite3
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import TypeVar

from einnet_explore.codegen import versions
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.ir import EOPERATOR, Equation, Program, tensors
from einnet_explore.runtime.compiled import cpu_name
from einnet_explore.support.storage import cache_directory

C_ENGINE = "c"
"""The engine of kernels of our own in C."""

UNFUSED_PAIR = "apart"
"""The engine under which the time of two equations is stored, one after the other with the best engine each."""

ONE_THREAD_SUFFIX = " by one thread"
"""Suffix of an engine's name if its kernel runs on one thread of several."""


@dataclass(frozen=True, slots=True)
class ProfileKey:
    """Key of a measured time; *engine* is the engine that ran it, empty for the chosen one."""

    operator: str
    attributes: str
    shapes: str
    dtype: str
    threads: int
    device: str
    library: str
    engine: str = ""


def profile_key(
    what: Equation | Program,
    threads: int = 1,
    constant: Collection[str] = (),
    strided: Mapping[str, tuple[int, ...]] | None = None,
) -> ProfileKey:
    """The key of an equation or of a whole program on this device.

    Operands of an equation that never change, weights and those named in *constant*, make another key: engines pack
    them beforehand.  So do those that are not packed, whose strides in bytes *strided* gives: engines gather them at
    every call.  Versions of kernel generators are stored with the time.
    """
    match what:
        case Equation(_, scope, via):
            operator = via.operator if via else EOPERATOR
            attributes = repr(via) if via else ""
            shapes = " ".join(f"{list(t.shape)}" for t in tensors(scope)) + f" -> {list(scope.shape)}"
            # Two scopes with one operator and equal shapes may still differ: generated kernels, views of operands.
            reads = dict.fromkeys(tensors(scope))
            fixed = [n for n, t in enumerate(reads) if t.weight or t.name in constant]
            views = [(n, strided[t.name]) for n, t in enumerate(reads) if t.name in strided] if strided else ""
            digest = _digest(f"{scope_identity(scope)} {fixed}{views}")
        case Program(equations=equations):
            operator, attributes = "program", ", ".join(e.via.operator if e.via else EOPERATOR for e in equations)
            shapes = " ".join(f"{list(t.shape)}" for t in what.inputs)
            digest = _digest(_program_text(what))
    if EOPERATOR in f"{operator} {attributes}":
        attributes += f" kernels {versions.SCHEDULE_VERSION}"
    return ProfileKey(
        operator, f"{attributes} {digest}".strip(), shapes, "float32", threads, device_name(), library_versions()
    )


@lru_cache(maxsize=1)
def device_name() -> str:
    """The name of this machine's processor."""
    return f"{platform.system()} {platform.machine()} {cpu_name()}"


@lru_cache(maxsize=1)
def library_versions() -> str:
    """The versions of the libraries that run operators."""
    return " ".join(f"{name} {package_version(name)}" for name in ("apache-tvm", "onnxruntime", "numpy"))


def package_version(package: str) -> str:
    """The installed version of *package*."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _program_text(program: Program) -> str:
    numbers = {t.name: f"x{n}" for n, t in enumerate(program.inputs)}
    numbers |= {e.name: f"e{n}" for n, e in enumerate(program.equations)}
    lines = [f"{t.shape}{t.weight}" for t in program.inputs]
    for e in program.equations:
        reads = ",".join(numbers.get(t.name, "?") for t in tensors(e.scope))
        lines.append(f"{e.via!r} {scope_identity(e.scope)} of {reads}")
    return "\n".join((*lines, *(numbers[name] for name in program.outputs)))


T = TypeVar("T")

_VERSIONS_SEPARATOR = ", kernels "
"""Separates the method of measurement from the versions of the kernel generators for which the time is valid."""

_TABLE = """CREATE TABLE IF NOT EXISTS engine_profile (
    operator TEXT, attributes TEXT, shapes TEXT, dtype TEXT, threads INTEGER, device TEXT, library TEXT,
    engine TEXT,
    seconds REAL NOT NULL, how TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (operator, attributes, shapes, dtype, threads, device, library, engine))"""
_WHERE = " AND ".join(
    f"{name} = ?" for name in ("operator", "attributes", "shapes", "dtype", "threads", "device", "library", "engine")
)


@dataclass(frozen=True, slots=True)
class StoredTime:
    """A measured time in seconds, and how it was taken."""

    seconds: float
    how: str


class TimeStore:
    """Times by key, in *path* (default: ``profiles.sqlite`` in the cache directory).

    Every record is one transaction, so a killed process leaves the file whole.  A file that is damaged or cannot be
    written is replaced by a store in memory, with a warning, which has the readable times of the file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_directory() / "profiles.sqlite"
        self._memory: dict[ProfileKey, StoredTime] | None = None

    def get(self, key: ProfileKey) -> StoredTime | None:
        """The time stored for *key*; None if there is none, or one of outdated kernels."""
        if self._memory is not None:
            return self._memory.get(key)

        def read_row(connection: sqlite3.Connection) -> StoredTime | None:
            row = connection.execute(f"SELECT seconds, how FROM engine_profile WHERE {_WHERE}", astuple(key)).fetchone()
            return _valid_time(key, float(row[0]), str(row[1])) if row else None

        return self._do(read_row, lambda memory: memory.get(key))

    def record(self, key: ProfileKey, seconds: float, how: str) -> None:
        """Store a time; it replaces the one that was there.  Raises ValueError for a time that is not positive."""
        if not seconds > 0:
            raise ValueError(f"a time of {seconds} seconds cannot be stored: expected a positive number")
        profile = StoredTime(seconds, how)
        if self._memory is not None:
            self._memory[key] = profile
            return
        row = (*astuple(key), seconds, how + _kernel_versions(key), time.time())

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(f"INSERT OR REPLACE INTO engine_profile VALUES ({', '.join('?' * len(row))})", row)

        self._do(write, lambda memory: memory.__setitem__(key, profile))

    def lookup(self, threads: int = 1) -> Callable[[Equation], float | None]:
        """A function for cost models: the stored seconds of an equation by its best engine, or None.

        It measures nothing and reads the file once, since a search calls it many thousand times.
        """
        known: dict[ProfileKey, float] | None = None

        def find(equation: Equation) -> float | None:
            nonlocal known
            if known is None:
                known = self.known(threads)
            return known.get(profile_key(equation, threads))

        return find

    def known(self, threads: int = 1) -> dict[ProfileKey, float]:
        """The stored times: each key's least seconds by any engine; the chosen engine's time has precedence."""

        def least(found: Mapping[ProfileKey, StoredTime]) -> dict[ProfileKey, float]:
            return _least((key, profile.seconds) for key, profile in found.items() if key.threads == threads)

        return least(self._memory) if self._memory is not None else self._do(lambda file: least(_times(file)), least)

    def _do(self, act: Callable[[sqlite3.Connection], T], instead: Callable[[dict[ProfileKey, StoredTime]], T]) -> T:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A connection of its own for every act: forks and threads share none.
            with closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
                connection.execute(_TABLE)
                return act(connection)
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:  # the last two: what is no time, or no text
            warnings.warn(f"profiles are kept in memory only: {self.path}: {error}", RuntimeWarning, stacklevel=3)
            self._memory = self._readable_times()
            return instead(self._memory)

    def _readable_times(self) -> dict[ProfileKey, StoredTime]:
        """The times of a file that can only be read: another user may own the cache."""
        try:
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=1)) as file:
                return _times(file)
        except (sqlite3.Error, OSError, ValueError, TypeError):
            return {}


def _times(file: sqlite3.Connection) -> dict[ProfileKey, StoredTime]:
    """The times of this device and these libraries, without those of outdated kernels."""
    names = ", ".join(f.name for f in fields(ProfileKey))
    rows = file.execute(
        f"SELECT {names}, seconds, how FROM engine_profile WHERE device = ? AND library = ?",
        (device_name(), library_versions()),
    )
    found: dict[ProfileKey, StoredTime] = {}
    for *key, seconds, said in rows:
        own = ProfileKey(*key)
        if (time := _valid_time(own, float(seconds), str(said))) is not None:
            found[own] = time
    return found


def _kernel_versions(key: ProfileKey) -> str:
    """The versions of the kernels that a time of *key* may include: one kernel, the chosen one, or a program's."""
    if key.device != device_name():
        return ""
    engine, chosen = key.engine.removesuffix(ONE_THREAD_SUFFIX), key.engine in ("", UNFUSED_PAIR)
    generates = EOPERATOR in f"{key.operator} {key.attributes}"
    by = []
    if engine == "tiled" or chosen:
        by.append(f"in tiles by {versions.TILED_KERNEL_VERSION}")
    if (engine == "tvm" or chosen) and not generates:  # an eOperator's key itself says by what
        by.append(f"in TVM by {versions.SCHEDULE_VERSION}")
    if engine == C_ENGINE or (chosen and generates):
        by.append(f"in C by {versions.C_KERNEL_VERSION}")
    return _VERSIONS_SEPARATOR + ", ".join(by) if by else ""


def _valid_time(key: ProfileKey, seconds: float, said: str) -> StoredTime | None:
    """The time of *key* in a row; None if it is not positive, or of outdated kernels."""
    how, *_ = said.partition(_VERSIONS_SEPARATOR)
    return StoredTime(seconds, how) if 0 < seconds < inf and said == how + _kernel_versions(key) else None


def _least(times: Iterable[tuple[ProfileKey, float]]) -> dict[ProfileKey, float]:
    found: dict[ProfileKey, float] = {}
    chosen: dict[ProfileKey, float] = {}
    for key, seconds in times:
        target = found if key.engine else chosen
        own = replace(key, engine="")
        target[own] = min(seconds, target.get(own, seconds))
    return found | chosen
