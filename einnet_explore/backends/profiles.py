"""Measured times, kept in one SQLite file that several processes may use at once."""

from __future__ import annotations

import hashlib
import platform
import sqlite3
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import numpy as np

from einnet_explore.backends.compiled import cpu_name
from einnet_explore.backends.identity import identity
from einnet_explore.backends.measure import compare
from einnet_explore.backends.program import compile_program
from einnet_explore.ir import EOPERATOR, Equation, Program, tensors
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.storage import cache_directory

T = TypeVar("T")

_TABLE = """CREATE TABLE IF NOT EXISTS profile (
    operator TEXT, attributes TEXT, shapes TEXT, dtype TEXT, threads INTEGER, device TEXT, library TEXT,
    seconds REAL NOT NULL, how TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (operator, attributes, shapes, dtype, threads, device, library))"""
_WHERE = "operator = ? AND attributes = ? AND shapes = ? AND dtype = ? AND threads = ? AND device = ? AND library = ?"


@dataclass(frozen=True, slots=True)
class Key:
    """What a measured time belongs to."""

    operator: str
    attributes: str
    shapes: str
    dtype: str
    threads: int
    device: str
    library: str


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured time in seconds, and how it was taken."""

    seconds: float
    how: str


class ProfileStore:
    """Times by key, in *path* (default: ``profiles.sqlite`` in the cache directory).

    Every put is one transaction, so a killed process leaves the file whole.  A file that is damaged or cannot be
    written is replaced by a store in memory, with a warning.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_directory() / "profiles.sqlite"
        self._memory: dict[Key, Profile] | None = None

    def get(self, key: Key) -> Profile | None:
        """The time stored for *key*, or None."""
        if self._memory is not None:
            return self._memory.get(key)

        def read(connection: sqlite3.Connection) -> Profile | None:
            row = connection.execute(f"SELECT seconds, how FROM profile WHERE {_WHERE}", astuple(key)).fetchone()
            return Profile(float(row[0]), str(row[1])) if row else None

        return self._do(read, lambda memory: memory.get(key))

    def put(self, key: Key, seconds: float, how: str) -> None:
        """Store a time; it replaces the one that was there.  Raises ValueError for a time that is not positive."""
        if not seconds > 0:
            raise ValueError(f"a time of {seconds} seconds cannot be stored: expected a positive number")
        profile = Profile(seconds, how)
        if self._memory is not None:
            self._memory[key] = profile
            return
        row = (*astuple(key), seconds, how, time.time())

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(f"INSERT OR REPLACE INTO profile VALUES ({', '.join('?' * len(row))})", row)

        self._do(write, lambda memory: memory.__setitem__(key, profile))

    def measured(
        self,
        what: Equation | Program,
        threads: int = 1,
        operators: Sequence[Operator] = OPERATORS,
        min_seconds: float = 0.02,
    ) -> Profile:
        """The time of *what* on this device: as stored, else measured now and stored.

        Raises BackendError where it cannot be compiled.
        """
        key = key_of(what, threads)
        if (known := self.get(key)) is not None:
            return known
        seconds = _time(what, threads, operators, min_seconds)
        self.put(key, seconds, "measured")
        return Profile(seconds, "measured")

    def lookup(self, threads: int = 1) -> Callable[[Equation], float | None]:
        """A function for cost models: the stored seconds of an equation, or None.  It measures nothing."""

        def find(equation: Equation) -> float | None:
            known = self.get(key_of(equation, threads))
            return known.seconds if known else None

        return find

    def _do(self, act: Callable[[sqlite3.Connection], T], instead: Callable[[dict[Key, Profile]], T]) -> T:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A connection of its own for every act: forks and threads share none.
            with closing(sqlite3.connect(self.path, timeout=20)) as connection, connection:
                connection.execute(_TABLE)
                return act(connection)
        except (sqlite3.Error, OSError) as error:
            warnings.warn(f"profiles are kept in memory only: {self.path}: {error}", RuntimeWarning, stacklevel=3)
            self._memory = {}
            return instead(self._memory)


def key_of(what: Equation | Program, threads: int = 1) -> Key:
    """The key of an equation or of a whole program on this device."""
    match what:
        case Equation(_, scope, via):
            operator = via.operator if via else EOPERATOR
            attributes = repr(via) if via else ""
            shapes = " ".join(f"{list(t.shape)}" for t in tensors(scope)) + f" -> {list(scope.shape)}"
            # Two scopes with one operator and equal shapes may still differ: generated kernels, views of operands.
            digest = _digest(identity(scope))
        case Program(equations=equations):
            operator, attributes = "program", ", ".join(e.via.operator if e.via else EOPERATOR for e in equations)
            shapes = " ".join(f"{list(t.shape)}" for t in what.inputs)
            digest = _digest(_program_text(what))
    return Key(operator, f"{attributes} {digest}".strip(), shapes, "float32", threads, device(), libraries())


@cache
def device() -> str:
    """The name of this machine's processor."""
    return f"{platform.system()} {platform.machine()} {cpu_name()}"


@cache
def libraries() -> str:
    """The versions of what runs operators."""
    return " ".join(f"{name} {_version(name)}" for name in ("apache-tvm", "onnxruntime", "numpy"))


def _version(package: str) -> str:
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
        lines.append(f"{e.via!r} {identity(e.scope)} of {reads}")
    return "\n".join((*lines, *(numbers[name] for name in program.outputs)))


def _time(what: Equation | Program, threads: int, operators: Sequence[Operator], min_seconds: float) -> float:
    match what:
        case Equation(name, scope):
            inputs = {t.name: t for t in tensors(scope)}
            whole = Program(tuple(inputs.values()), (what,), (name,))
            constants = {}
        case Program():
            whole = what
            constants = {t.name: _numbers(t.shape) for t in what.inputs if t.weight}
    compiled = compile_program(whole, threads, constants=constants, operators=operators)
    for array in compiled.inputs.values():
        array[...] = _numbers(array.shape)
    if not compiled.calls:
        return 1e-9  # views and constants only: nothing is done when it runs
    return compare({"it": compiled.execute}, rounds=5, min_seconds=min_seconds)["it"].median


def _numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
