"""Measured times by key, in one SQLite file that several processes may use at once.

A key has the operator, its attributes, its shapes, the device and the versions of libraries.  A file of another machine
also has that device's rates: a cost model of it needs no run there.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sqlite3
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass, field, fields, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import TypeVar

from einnet_explore.codegen import versions
from einnet_explore.codegen.versions import scope_identity
from einnet_explore.cost import CostModel, Device, cpu_default
from einnet_explore.ir import EOPERATOR, Equation, Program, tensors
from einnet_explore.runtime.compiled import cpu_name
from einnet_explore.support.errors import BackendError
from einnet_explore.support.storage import cache_directory
from einnet_explore.support.wording import count_noun

C_ENGINE = "c"
"""The engine of kernels of our own in C."""

INTEGER_ENGINE, BFLOAT16_ENGINE = "integers", "bfloat16"
"""The engines of products of bytes and of bfloat16."""

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
WITHOUT_WAITING = "PRAGMA synchronous = OFF"
"""Transactions do not wait for the disk, 20 ms each: a killed process leaves the file whole, a power cut may not."""

_KEY_NAMES = tuple(f.name for f in fields(ProfileKey))
_KEY_COLUMNS = ", ".join(_KEY_NAMES)
_WHERE = " AND ".join(f"{name} = ?" for name in _KEY_NAMES)


@dataclass(frozen=True, slots=True)
class StoredTime:
    """A measured time in seconds, and how it was taken."""

    seconds: float
    how: str


class TimeStore:
    """Times by key, in *path* (default: ``profiles.sqlite`` in the cache directory).

    Every record is one transaction, so a killed process leaves the file whole (``WITHOUT_WAITING``).  A file that is
    damaged or cannot be written is replaced by a store in memory, with a warning, which has the readable times of the
    file.
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
                connection.execute(WITHOUT_WAITING)
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
    rows = file.execute(
        f"SELECT {_KEY_COLUMNS}, seconds, how FROM engine_profile WHERE device = ? AND library = ?",
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
    if engine in (INTEGER_ENGINE, BFLOAT16_ENGINE):
        by.append(f"of bytes by {versions.INTEGER_PRODUCT_VERSION}")
    if engine == C_ENGINE or chosen:
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


PROFILE_PREFIX = "profile:"
"""Prefix of a device's name that is a file: ``profile:h100.sqlite``, ``all.sqlite#H100``, ``gpu.json``."""

RATES = ("peak_flops", "memory_bandwidth", "cache_bandwidth", "cache_bytes", "call_seconds")
"""The rates of a device that a roofline needs; a recording may have more numbers."""

_RATES_TABLE = """CREATE TABLE IF NOT EXISTS device_rates (
    device TEXT, library TEXT, threads INTEGER, rates TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (device, library, threads))"""


@dataclass(frozen=True)
class RecordedProfile:
    """Measurements on one *device* with one set of libraries; *rates* is empty if only times were recorded."""

    path: Path
    device: str
    library: str
    threads: int
    rates: Mapping[str, float]
    times: Mapping[ProfileKey, float] = field(repr=False)

    def lookup(self) -> Callable[[Equation], float | None]:
        """A function for cost models: the recorded seconds of an equation, or None."""
        return lambda equation: self.times.get(recorded_key(equation, self.device, self.library, self.threads))


def recorded_key(equation: Equation, device: str, library: str, threads: int = 1, engine: str = "") -> ProfileKey:
    """The key under which *equation*'s time on another *device* is stored."""
    return replace(profile_key(equation, threads), device=device, library=library, engine=engine)


def record_rates(path: Path, device: str, library: str, rates: Mapping[str, float], threads: int = 1) -> None:
    """Store a device's rates with its times in *path*; they replace older ones.

    Raises ValueError where one of ``RATES`` is missing or is no positive number.
    """
    _check_rates(str(path), rates)
    with closing(sqlite3.connect(path, timeout=20)) as connection, connection:
        connection.execute(_RATES_TABLE)
        row = (device, library, threads, json.dumps(dict(rates)), time.time())
        connection.execute("INSERT OR REPLACE INTO device_rates VALUES (?, ?, ?, ?, ?)", row)


def load_recorded_profile(name: str, threads: int | None = None) -> RecordedProfile:
    """The recording with *name* ``FILE.sqlite``, ``FILE.sqlite#DEVICE`` or ``FILE.json``; the file is only read.

    ``FILE.json`` has the results of ``python -m benchmarks.gpu`` on a GPU.  *DEVICE* is a part of the device's or the
    libraries' names.  Raises BackendError, with what was found, for a file that is missing, no SQLite file, no profile
    store or empty; where several recordings fit or none does; and for rates that are not numbers.
    """
    text, _, wanted = name.partition("#")
    path = Path(text)
    if not path.is_file():
        expected = f"{PROFILE_PREFIX}FILE.sqlite or {PROFILE_PREFIX}FILE.json"
        raise BackendError(f"profile {text or '(no name)'}: found no such file, expected {expected}")
    if path.suffix == ".json":
        return _gpu_results(path)
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=20)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "engine_profile" not in tables:
                held = ", ".join(sorted(tables)) or "none"
                raise BackendError(f"profile {path}: no profile store: its tables are {held}, expected engine_profile")
            rows = connection.execute(f"SELECT {_KEY_COLUMNS}, seconds FROM engine_profile").fetchall()
            rates = _rates(path, connection) if "device_rates" in tables else {}
    except sqlite3.Error as error:
        raise BackendError(f"profile {path}: it cannot be read as a profile store: {error}") from None
    times = [(ProfileKey(*key), seconds) for *key, seconds in rows]
    there = sorted({(key.device, key.library, key.threads) for key, _ in times} | set(rates))
    chosen = _select_recording(path, there, wanted, threads)
    mine = [(key, seconds) for key, seconds in times if (key.device, key.library, key.threads) == chosen]
    for key, seconds in mine:
        if not isinstance(seconds, float) or not seconds > 0:
            found = f"{key.operator} {key.shapes} takes {seconds!r} seconds"
            raise BackendError(f"profile {path}: {found}, expected a positive number")
    return RecordedProfile(path, *chosen, rates.get(chosen, {}), _least(mine))


def _gpu_results(path: Path) -> RecordedProfile:
    """The rates, and the times of equations, in the results of ``python -m benchmarks.gpu``."""
    try:
        held = json.loads(path.read_text())
        rates, told, profiles = held["ceilings"]["all"]["rates"], held["device"], held["profiles"]
        device, library = (
            f"CUDA {told['name']}",
            f"driver {told['driver']} runtime {told['runtime']} {told['libraries']}",
        )
        _check_rates(str(path), rates)
        times: dict[ProfileKey, float] = {}
        for one in profiles.values():
            if "seconds" in one:
                operator, attributes, shapes, dtype = one["key"]
                key = ProfileKey(operator, attributes, shapes, dtype, 1, device, library)
                times[key] = float(one["seconds"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackendError(f"profile {path}: found no complete results of a GPU ({error!r})") from None
    return RecordedProfile(path, device, library, 1, rates, times)


def _select_recording(
    path: Path, there: list[tuple[str, str, int]], wanted: str, threads: int | None
) -> tuple[str, str, int]:
    """The recording among *there* that *wanted* and *threads* select."""
    listed = "; ".join(f"{d} ({lib}, {count_noun(n, 'thread')})" for d, lib, n in there[:6]) or "nothing"
    fit = [r for r in there if wanted.lower() in f"{r[0]} {r[1]}".lower()]
    if len(fit) > 1 and threads is not None:
        fit = [r for r in fit if r[2] == threads]
    if len(fit) == 1:
        return fit[0]
    asked = f" for {wanted!r}" if wanted else ""
    how = f"name one: {PROFILE_PREFIX}{path.name}#DEVICE, or threads= (--threads)" if len(there) > 1 else "expected one"
    raise BackendError(f"profile {path}: {len(fit)} recordings{asked} ({how}); it holds {listed}")


def _rates(path: Path, connection: sqlite3.Connection) -> dict[tuple[str, str, int], dict[str, float]]:
    found = {}
    for device, library, threads, told in connection.execute(
        "SELECT device, library, threads, rates FROM device_rates"
    ):
        try:
            rates = json.loads(told)
            _check_rates(str(path), rates)
        except ValueError as error:
            raise BackendError(f"profile {path}: the rates of {device}: {error}") from None
        found[str(device), str(library), int(threads)] = {k: float(v) for k, v in rates.items()}
    return found


def _check_rates(where: str, rates: object) -> None:
    held = rates if isinstance(rates, Mapping) else {}
    numbers = {k: v for k, v in held.items() if isinstance(v, int | float) and 0 < v < float("inf")}
    if wrong := [k for k in (*RATES, *held) if k not in numbers]:
        shown = ", ".join(f"{k} = {held.get(k, 'missing')}" for k in dict.fromkeys(wrong))
        raise ValueError(f"{where}: {shown}: expected positive numbers")


def device_cost(device: str, threads: int | None = None) -> CostModel:
    """Return the cost model of *device*, which is the cost function of a search.

    Raises ValueError for an unknown device or an unusable profile.
    """
    if not device.startswith(PROFILE_PREFIX):
        if device != "cpu":
            raise ValueError(f"device {device!r}: found no such cost, expected cpu or {PROFILE_PREFIX}FILE.sqlite")
        return CostModel()
    try:
        held = load_recorded_profile(device.removeprefix(PROFILE_PREFIX), threads)
    except BackendError as error:
        raise ValueError(str(error)) from None
    return CostModel(_recorded_device(held), held.lookup())


def _recorded_device(held: RecordedProfile) -> Device:
    """Return the roofline of a recording; one without rates is of a CPU with the usual figures."""
    usual = cpu_default(max(1, held.threads))
    if not held.rates:
        if held.device.startswith("CUDA"):
            raise ValueError(f"profile {held.path}: no rates of {held.device}, expected {', '.join(RATES)}")
        return usual
    own = {
        name: held.rates.get(name, getattr(usual, name))
        for name in (
            "peak_flops",
            "memory_bandwidth",
            "cache_bandwidth",
            "call_seconds",
            "library",
            "tiled",
            "generated",
        )
    }
    whole = {name: int(held.rates.get(name, getattr(usual, name))) for name in ("cache_bytes", "lanes")}
    return Device(name=held.device, threads=held.threads, **own, **whole)
