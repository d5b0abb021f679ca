"""Autotuning of one equation: its implementations are measured once, and the times are stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from einnet_explore.analysis.counts import bytes_moved
from einnet_explore.ir import Equation, Program, tensors
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.runtime import measurement, onnx_fragment
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.implementations import (
    Implementation,
    SingleThreaded,
    bind_in_session,
    load_implementation,
    single_threaded_variant,
)
from einnet_explore.runtime.measurement import stop_after, time_calls
from einnet_explore.runtime.profile_store import (
    C_ENGINE,
    ONE_THREAD_SUFFIX,
    ProfileKey,
    StoredTime,
    TimeStore,
    profile_key,
)
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import BackendError, NoKernel

SAMPLING_STAGES = ((2, 2.5), (3, 1.4), (15, 1.0))
"""So many samples of each way, and again as many as the next stage says of those whose least is within so many times
the least of all: the slowest engines would take most of the time of measuring."""

MAX_STAGE_SECONDS, MIN_SAMPLES = 0.5, 2
"""Seconds of a stage after which slow calls are sampled no more than so few times."""

MIN_SPEEDUP = 1.05
"""So many times faster than the first way another one has to be: in a session of many nodes the first one does better
than alone, since ONNX Runtime keeps its own layouts between its own nodes."""


NEGLIGIBLE_SECONDS = 3e-6
"""Seconds of a kernel from which on it is worth while to compile another one to compare it with."""

MAX_BYTES_PER_SECOND = 8e10
"""Bytes a second and thread that no kernel moves, out of a cache: a lower bound of its time."""

NEAR_BOUND_RATIO = 1.25
"""A kernel that takes less than so many times that bound has nothing to gain."""

SHORT_KERNEL_SECONDS = 3e-4
"""Seconds of a kernel by several threads from which on waking them is nothing."""

UNUSABLE_SECONDS = 1e9
"""Seconds that stand for a way that is not to be taken: none is written, or it comes to something else."""

MAX_RELATIVE_DIFFERENCE = 1e-5
"""How far two engines' results may lie apart, relative to the largest value."""

W = TypeVar("W", bound=Implementation)


def chooser(threads: int, store: TimeStore) -> Callable[..., Any]:
    """``fastest`` for *threads* by *store*, as ``compile_program`` takes it."""

    def choose(
        equation: Equation, ways: Iterable[W], arrays: Mapping[str, Array], out: Array, constants: Collection[str]
    ) -> W | SingleThreaded:
        return fastest_implementation(equation, ways, arrays, out, constants, threads, store)

    return choose


def fastest_implementation(
    equation: Equation,
    ways: Iterable[W],
    arrays: Mapping[str, Array],
    out: Array,
    constants: Collection[str],
    threads: int,
    store: TimeStore,
) -> W | SingleThreaded:
    """The way of *ways* that takes the least time, by *store*; what it does not know is measured on *arrays* now.

    Arrays that are not named in *constants* are filled with numbers for that.  A way that its engine refuses
    (BackendError), now or though its time is known, is passed over.  Our own C kernel comes last: it is compiled and
    compared where the best of the others leaves something to gain, and again when another version writes such kernels.
    Where a short kernel by several threads is the best, the same by one thread is compared with it.  What is returned
    is compiled.  Raises BackendError where none is left.
    """
    operands = {t.name: arrays[t.name] for t in tensors(equation.scope)}
    strided = {name: array.strides for name, array in operands.items() if not array.flags.c_contiguous}
    key = profile_key(equation, threads, constants, strided)
    found: list[tuple[float, int, W]] = []
    unknown: dict[str, tuple[int, W, Callable[[], object]]] = {}
    refusals: list[str] = []
    second: tuple[int, W] | None = None

    def call_of(way: W | SingleThreaded) -> Callable[[], object]:
        # With threads it is the session's threads that count, as in a plan.
        call = bind_in_session(way, arrays, out, constants, threads) if threads > 1 else None
        return call or way.bind(arrays, out)

    for n, way in enumerate(ways):
        known = store.get(replace(key, engine=way.engine))
        if known is not None:
            found.append((known.seconds, n, way))
        elif way.engine == C_ENGINE:
            second = n, way
        else:
            try:
                unknown[way.engine] = n, way, call_of(way)
            except BackendError as error:
                refusals.append(str(error))
                continue
        if way.engine == "tiled":
            break  # plain kernels come after it where they win nowhere, and take long to make
    if not found and not unknown and second is not None:
        found.append((UNUSABLE_SECONDS, *second))  # nothing to compare it with
        second = None
    if len(unknown) + len(found) == 1 and unknown and second is None:
        return next(way for _, way, _ in unknown.values())  # nothing to choose between
    free = [array for name, array in operands.items() if name not in constants]
    if unknown:
        _fill_random(free)
        times = _times({engine: call for engine, (_, _, call) in unknown.items()}, threads)
        for engine, seconds in times.items():
            store.record(replace(key, engine=engine), seconds, "measured")
            n, way, _ = unknown[engine]
            found.append((seconds, n, way))
    if second is not None:
        least, _, best_way = min(found, key=lambda item: item[0])
        if least > max(
            NEGLIGIBLE_SECONDS, NEAR_BOUND_RATIO * bytes_moved(equation.scope) / (MAX_BYTES_PER_SECOND * threads)
        ):
            _fill_random(free)
            try:
                ratio = _time_ratio(call_of(best_way), call_of(second[1]), out, threads)
            except NoKernel:
                ratio = inf
            except BackendError:
                ratio = None  # it is not taken here: nothing to remember
            if ratio is not None:
                seconds = min(least * ratio, UNUSABLE_SECONDS)
                store.record(replace(key, engine=C_ENGINE), seconds, "measured")
                found.append((seconds, *second))
    seconds, way = _take_fastest(found, refusals)
    if threads == 1 or not NEGLIGIBLE_SECONDS < seconds < SHORT_KERNEL_SECONDS:
        return way

    def ratio_to(alone: SingleThreaded) -> float:
        _fill_random(free)
        return _time_ratio(call_of(way), call_of(alone), out, threads)

    return _with_best_threads(way, seconds, replace(key, engine=way.engine + ONE_THREAD_SUFFIX), store, ratio_to)


def _take_fastest(found: list[tuple[float, int, W]], refusals: list[str]) -> tuple[float, W]:
    """The time and the way to take of *found* (times, places and ways); what is refused is added to *refusals*."""
    while found:
        first = min(found, key=lambda item: item[1])
        best = min(found, key=lambda item: item[0])
        taken = best if best[0] * MIN_SPEEDUP < first[0] else first
        seconds, _, way = taken
        try:
            return seconds, load_implementation(way)
        except BackendError as error:  # its time was stored where it could be compiled
            refusals.append(str(error))
            found.remove(taken)
    raise BackendError("; ".join(refusals) or "no engine takes it")


def _with_best_threads(
    way: W, seconds: float, key: ProfileKey, store: TimeStore, ratio_to: Callable[[SingleThreaded], float]
) -> W | SingleThreaded:
    """*way*, which takes so many *seconds*, or the same by one thread, whose time has this *key*, where it is faster.

    Clearly faster, as of any way: with several threads others of the session have less of the core.
    """
    known = store.get(key)
    if known is not None and known.seconds * MIN_SPEEDUP >= seconds:
        return way
    try:
        alone = single_threaded_variant(way)
        if alone is None:
            return way
        if known is None:
            ratio = ratio_to(alone)
            store.record(key, min(seconds * ratio, UNUSABLE_SECONDS), "measured")
        else:
            ratio = known.seconds / seconds
        return load_implementation(alone) if ratio * MIN_SPEEDUP < 1 else way
    except BackendError:
        return way


def _time_ratio(best: Callable[[], object], other: Callable[[], object], out: Array, threads: int) -> float:
    """The time of *other* over that of *best*, both writing *out*; infinity where it comes to something else."""
    best()
    want = out.copy()
    out[...] = np.nan
    other()
    # Random numbers under a root, or a divisor near 0: what is no number has to be none in both.
    finite = np.isfinite(want)
    largest = float(np.max(np.abs(want), where=finite, initial=0))
    if not np.allclose(out, want, rtol=MAX_RELATIVE_DIFFERENCE, atol=MAX_RELATIVE_DIFFERENCE * largest, equal_nan=True):
        apart = float(np.max(np.abs(out - want), where=finite & np.isfinite(out), initial=0))
        warnings.warn(
            f"a C kernel differs by {apart:.1e} where values are up to {largest:.1e}: it is not used",
            RuntimeWarning,
            stacklevel=2,
        )
        return float("inf")
    times = _times({"best": best, C_ENGINE: other}, threads)
    return times[C_ENGINE] / times["best"]


def _fill_random(arrays: Iterable[Array]) -> None:
    """Numbers of an ordinary size: zeros are quicker, infinities slower."""
    for array in arrays:
        if array.flags.writeable:
            array[...] = np.random.default_rng(0).standard_normal(array.shape)


def _times(calls: Mapping[str, Callable[[], object]], threads: int) -> dict[str, float]:
    """Seconds of each call, without what it costs to be called from Python."""
    # With threads everything is measured in a session.
    return {
        engine: max(seconds - (session_overhead() if engine == "onnxruntime" or threads > 1 else 0), seconds / 8)
        for engine, seconds in time_implementations(calls, threads).items()
    }


def time_implementations(calls: Mapping[str, Callable[[], object]], threads: int) -> dict[str, float]:
    """Seconds of each call, which takes *threads* threads: the least of many short samples, taken in turn.

    What else runs on the machine only ever adds time, and a choice is kept for good: a sample that nothing disturbed is
    what counts.  What a few samples show to be slower is not sampled again.
    """
    least: dict[str, float] = {}
    near = dict(calls)
    for samples, within in SAMPLING_STAGES:
        most = max(MIN_SAMPLES, int(MAX_STAGE_SECONDS / sum(least[engine] for engine in near))) if least else samples
        rounds = min(samples, most)
        times = measurement.time_calls(
            near, rounds, rounds * measurement.SAMPLE_SECONDS, measurement.settle_seconds(threads), least
        )
        least |= {engine: min(*timing.samples, least.get(engine, inf)) for engine, timing in times.items()}
        near = {engine: call for engine, call in near.items() if least[engine] <= within * min(least.values())}
        if len(near) == 1:
            break
    return least


@lru_cache(maxsize=1)
def session_overhead() -> float:
    """What it costs to run a session of a node that does nothing."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", info[:1], info[1:])
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", onnx_fragment.OPSET)], ir_version=onnx_fragment.IR_VERSION
    )
    session = onnx_fragment.onnx_session(model, 1)
    binding = session.io_binding()
    x, y = np.zeros(1, np.float32), np.zeros(1, np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, [1], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [1], y.ctypes.data)
    timing = measurement.time_calls({"it": lambda: session.run_with_iobinding(binding)}, rounds=5, min_seconds=0.01)[
        "it"
    ]
    return timing.low


class ProfileStore(TimeStore):
    """The store, which measures what it does not know."""

    def measured(
        self,
        what: Equation | Program,
        threads: int = 1,
        operators: Sequence[Operator] = OPERATORS,
        min_seconds: float = 0.02,
    ) -> StoredTime:
        """The time of *what* by its best engines on this device: as stored, else measured now and stored.

        Raises BackendError where it cannot be compiled.
        """
        key = profile_key(what, threads)
        if (known := self.get(key)) is not None:
            return known
        seconds = _measure(what, threads, operators, min_seconds, self)
        self.record(key, seconds, "measured")
        return StoredTime(seconds, "measured")


def _measure(
    what: Equation | Program, threads: int, operators: Sequence[Operator], min_seconds: float, store: TimeStore
) -> float:
    match what:
        case Equation(name, scope):
            inputs = {t.name: t for t in tensors(scope)}
            whole = Program(tuple(inputs.values()), (what,), (name,))
            constants = {t.name: _random_array(t.shape) for t in whole.inputs if t.weight}
        case Program():
            whole = what
            constants = {t.name: _random_array(t.shape) for t in what.inputs if t.weight}
    compiled = compile_program(whole, threads, constants=constants, operators=operators, choose=chooser(threads, store))
    for array in compiled.inputs.values():
        array[...] = _random_array(array.shape)
    if not compiled.calls:
        return 1e-9  # views and constants only: nothing is done when it runs
    times = time_calls({"it": compiled.execute}, rounds=9, min_seconds=min_seconds, enough=stop_after(3, 0.1))["it"]
    return min(times.samples)  # what else runs on the machine only ever adds time


def _random_array(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
