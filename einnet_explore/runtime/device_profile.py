"""Rates of a device: the host's by measurement, another machine's with its times from an SQLite file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from time import time

import numpy as np

from einnet_explore.cost import CostModel, Device, cpu_default
from einnet_explore.ir import Const, Equation, Iterator, Program, Scope, Tensor, add, mul
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.measurement import time_calls
from einnet_explore.runtime.profile_store import ProfileKey, profile_key
from einnet_explore.runtime.tvm_cpu import compile_scope, tiled_contraction
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError
from einnet_explore.support.wording import count_noun


@lru_cache(maxsize=16)
def stream_bandwidth(threads: int = 1, nbytes: int = 1 << 26) -> float:
    """Bytes a second of the triad a = b + 2·c, reads and writes counted, over arrays of *nbytes* together."""
    lane = 1024
    rows = max(1, nbytes // (3 * 4 * lane))
    i, j = Iterator("i", 0, rows), Iterator("j", 0, lane)
    b, c = (Tensor(name, (rows, lane))[i, j] for name in "bc")
    kernel = compile_scope(Scope((i, j), (), add(b, mul(Const(2), c))), threads=threads)
    arrays = [aligned(np.ones((rows, lane), np.float32)) for _ in range(2)]
    call = kernel.bind(arrays, aligned_empty((rows, lane)))
    return 3 * 4 * rows * lane / time_calls({"triad": call}, rounds=5, min_seconds=0.05)["triad"].median


@lru_cache(maxsize=16)
def peak_flops(threads: int = 1) -> float:
    """Multiplications and additions a second of a product that stays in the first-level caches."""
    rows, depth, columns = 16 * threads, 256, 64
    m, n, k = Iterator("m", 0, rows), Iterator("n", 0, columns), Iterator("k", 0, depth)
    scope = Scope((m, n), (k,), mul(Tensor("A", (rows, depth))[m, k], Tensor("B", (depth, columns))[k, n]))
    arrays = {name: aligned(np.ones(s, np.float32)) for name, s in (("A", (rows, depth)), ("B", (depth, columns)))}
    made = tiled_contraction(scope, {"A"}, 1)
    assert made is not None
    call = made.bind(arrays, aligned_empty((rows, columns)))
    samples = time_calls({"product": call}, rounds=15, min_seconds=0.02)["product"].samples
    return threads * 2 * rows * depth * columns / min(samples)


PROFILE_PREFIX = "profile:"
"""Prefix of a device's name that is a file: ``profile:h100.sqlite``, or ``profile:all.sqlite#H100``."""

RATES = ("peak_flops", "memory_bandwidth", "cache_bandwidth", "cache_bytes", "call_seconds")
"""The rates of a device that a roofline needs; a recording may have more numbers."""

_TABLE = """CREATE TABLE IF NOT EXISTS device_rates (
    device TEXT, library TEXT, threads INTEGER, rates TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (device, library, threads))"""
_COLUMNS = ("operator", "attributes", "shapes", "dtype", "threads", "device", "library", "engine", "seconds")


@dataclass(frozen=True)
class RecordedProfile:
    """Measurements on one *device* with one set of libraries; *rates* is empty if only times were recorded."""

    path: Path
    device: str
    library: str
    threads: int
    rates: Mapping[str, float]
    times: Mapping[tuple[str, str, str, str], float] = field(repr=False)

    def lookup(self) -> Callable[[Equation], float | None]:
        """A function for cost models: the recorded seconds of an equation, or None."""

        def find(equation: Equation) -> float | None:
            key = profile_key(equation, self.threads)
            return self.times.get((key.operator, key.attributes, key.shapes, key.dtype))

        return find


def recorded_key(equation: Equation, device: str, library: str, threads: int = 1, engine: str = "") -> ProfileKey:
    """The key under which *equation*'s time on another *device* is stored."""
    return replace(profile_key(equation, threads), device=device, library=library, engine=engine)


def record_rates(path: Path, device: str, library: str, rates: Mapping[str, float], threads: int = 1) -> None:
    """Store a device's rates with its times in *path*; they replace older ones.

    Raises ValueError where one of ``RATES`` is missing or is no positive number.
    """
    _check_rates(str(path), rates)
    with closing(sqlite3.connect(path, timeout=20)) as connection, connection:
        connection.execute(_TABLE)
        row = (device, library, threads, json.dumps(dict(rates)), time())
        connection.execute("INSERT OR REPLACE INTO device_rates VALUES (?, ?, ?, ?, ?)", row)


def load_recorded_profile(name: str, threads: int | None = None) -> RecordedProfile:
    """The recording with *name* ``FILE.sqlite`` or ``FILE.sqlite#DEVICE``; the file is only read.

    *DEVICE* is a part of the device's or the libraries' names.  Raises BackendError, with what was found, for a file
    that is missing, no SQLite file, no profile store or empty; where several recordings fit or none does; and for rates
    that are not numbers.
    """
    text, _, wanted = name.partition("#")
    path = Path(text)
    if not path.is_file():
        raise BackendError(f"profile {text or '(no name)'}: found no such file, expected {PROFILE_PREFIX}FILE.sqlite")
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=20)) as connection:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "engine_profile" not in tables:
                held = ", ".join(sorted(tables)) or "none"
                raise BackendError(f"profile {path}: no profile store: its tables are {held}, expected engine_profile")
            rows = connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM engine_profile").fetchall()
            rates = _rates(path, connection) if "device_rates" in tables else {}
    except sqlite3.Error as error:
        raise BackendError(f"profile {path}: it cannot be read as a profile store: {error}") from None
    there = sorted({(str(r[5]), str(r[6]), int(r[4])) for r in rows} | set(rates))
    chosen = _select_recording(path, there, wanted, threads)
    mine = [r for r in rows if (r[5], r[6], r[4]) == chosen]
    return RecordedProfile(path, *chosen, rates.get(chosen, {}), _least(path, mine))


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
    how = f"name one: {PROFILE_PREFIX}{path.name}#DEVICE, or --threads" if len(there) > 1 else "expected one"
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


def _least(path: Path, rows: list[tuple[str, ...]]) -> dict[tuple[str, str, str, str], float]:
    """The least time of each key by any engine; the chosen engine's time has precedence."""
    any_engine: dict[tuple[str, str, str, str], float] = {}
    chosen: dict[tuple[str, str, str, str], float] = {}
    for row in rows:
        target, place, seconds = chosen if not row[7] else any_engine, row[:4], row[8]
        if not isinstance(seconds, float) or not seconds > 0:
            raise BackendError(
                f"profile {path}: {row[0]} {row[2]} takes {seconds!r} seconds, expected a positive number"
            )
        target[place] = min(seconds, target.get(place, seconds))
    return any_engine | chosen


def device_cost(device: str, threads: int | None = None) -> Cost:
    """Return the cost function of a search for *device*: seconds, and how they were found.

    Raises ValueError for an unknown device or an unusable profile.
    """
    model = device_cost_model(device, threads)

    def seconds(program: Program) -> tuple[float, str]:
        found = model.program_cost(program)
        return found.seconds, found.how

    return seconds


def device_cost_model(device: str, threads: int | None = None) -> CostModel:
    """Return the cost model of *device*; raises as ``device_cost`` does."""
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
