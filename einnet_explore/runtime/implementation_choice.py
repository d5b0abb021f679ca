r"""Autotuning: implementations of an equation are measured once, and the times are stored.

Library contractions and the elementwise work on their results are one kernel where that is faster:

.. math::  T[\vec x] = \sum_{\vec y} A\,B, \quad Y[\vec x] = g(T[\vec x], \dots)
           \;\mapsto\; Y[\vec x] = g\Big(\sum_{\vec y} A\,B, \dots\Big)

The sum is still in registers when `g` is applied to it.  Nothing is derived here: as with views, an operand's
expression replaces its access, which leaves the value unchanged.

Rates of this machine for the cost model are measured with two small kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from math import inf, prod

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from einnet_explore.analysis.counts import bytes_moved
from einnet_explore.analysis.equations import constant_tensors, is_typed, resolve_access
from einnet_explore.analysis.flattening import row_major_strides, stays_inside, view_strides
from einnet_explore.analysis.indices import fresh_name, substitute, substitute_index
from einnet_explore.analysis.products import match_integer_product
from einnet_explore.codegen.register_tiles import this_machine
from einnet_explore.codegen.wide_values import with_wide_values
from einnet_explore.equivalence.sample_inputs import within_type
from einnet_explore.ir import (
    ELEMENT_TYPES,
    EOPERATOR,
    VIEW,
    Access,
    Const,
    Equation,
    IndexLike,
    Instance,
    Iterator,
    Program,
    Scope,
    Tensor,
    accesses,
    add,
    map_accesses,
    mul,
    scopes,
    tensors,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.runtime import measurement
from einnet_explore.runtime.arrays import Array, aligned, aligned_empty
from einnet_explore.runtime.compiled import kernel_file
from einnet_explore.runtime.implementations import (
    BoundEquation,
    Call,
    Implementation,
    ImplementationChooser,
    InterpretedCall,
    KernelCall,
    NativeCall,
    TiledCall,
    first_implementation,
    implementations_of,
    load_implementation,
    loop_nests,
    single_threaded_variant,
    tiled_contraction,
)
from einnet_explore.runtime.integer_products import integer_product
from einnet_explore.runtime.measurement import stop_after, time_calls
from einnet_explore.runtime.onnx_fragment import IR_VERSION, OPSET, FragmentWriter, bind_session, onnx_session
from einnet_explore.runtime.profile_store import (
    C_ENGINE,
    INTEGER_ENGINE,
    ONE_THREAD_SUFFIX,
    UNFUSED_PAIR,
    StoredTime,
    TimeStore,
    profile_key,
)
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.support.errors import BackendError, NoKernel
from einnet_explore.support.limits import available_cores

SAMPLING_STAGES = ((3, 2.5), (3, 1.4), (15, 1.0))
"""Stages of measurement: the number of samples, and the ratio to the least time up to which an engine enters the next
stage.  Without stages the slowest engines would take most of the time."""

MIN_FAR_PART = 4
"""Constants that take at least one in so many bytes of the second-level cache are displaced between two calls."""

MAX_DISPLACING_BYTES = 1 << 25
"""Bytes that are read for that, at most: a last cache may have hundreds of megabytes, and every sample reads them."""

MAX_STAGE_SECONDS, MIN_SAMPLES = 0.5, 2
"""Seconds of a stage after which slow calls are sampled ``MIN_SAMPLES`` times only."""

MIN_SPEEDUP = 1.05
"""The speedup over the first implementation that another one needs: in a session of many nodes the first one is faster
than alone, since ONNX Runtime keeps its own layouts between its own nodes."""


NEGLIGIBLE_SECONDS = 3e-6
"""Seconds of a kernel from which on compiling another one to compare it with pays."""

MAX_BYTES_PER_SECOND = 8e10
"""Bytes a second and thread, more than any kernel moves even in a cache: they bound its time from below."""

NEAR_BOUND_RATIO = 1.25
"""The ratio to that bound up to which a kernel has nothing to gain."""

SHORT_KERNEL_SECONDS = 3e-4
"""Seconds of a kernel by several threads from which on the cost of waking them is negligible."""

UNUSABLE_SECONDS = 1e9
"""Seconds that are stored for an implementation that does not exist or has other results."""

MAX_RELATIVE_DIFFERENCE = 1e-5
"""The largest difference allowed between two engines' results, relative to the largest value."""


def chooser(store: TimeStore) -> ImplementationChooser:
    """``fastest_implementation`` by *store*, as ``compile_program`` takes it."""
    return lambda bound, implementations: fastest_implementation(bound, implementations, store)


def fastest_implementation(
    bound: BoundEquation, implementations: Iterable[Implementation], store: TimeStore
) -> Implementation:
    """The fastest one of *implementations*, by the times in *store*; unknown times are measured now.

    Arrays that are not constants are filled with numbers for that.  An implementation that its engine refuses
    (BackendError), now or though its time is known, is passed over.  Our own C kernel comes last: it is timed where it
    is alone, and compared where the best of the others leaves something to gain, again when another version writes such
    kernels.  Where a short kernel by several threads is the best, the same by one thread is compared with it.  The
    result is compiled.  Raises BackendError where no implementation is left.
    """
    if bound.is_constant:  # it is run once: measurement would take longer
        return first_implementation(bound, implementations)
    return _Choice(bound, store).take(implementations)


@dataclass(frozen=True)
class _Candidate:
    """An implementation, its place among all of an equation, and its time, once it is known."""

    implementation: Implementation
    place: int
    seconds: float = inf


class _Choice:
    """The choice of an implementation of one equation: ``timed`` are candidates whose times are known."""

    def __init__(self, bound: BoundEquation, store: TimeStore) -> None:
        self.bound, self.store, self.key = bound, store, bound.profile_key
        self.timed: list[_Candidate] = []
        self.interpreter: Implementation | None = None
        self.refusals: list[str] = []

    def take(self, implementations: Iterable[Implementation]) -> Implementation:
        """The fastest one of *implementations*."""
        untimed, c_kernel = self._look_up(implementations)
        if c_kernel is None and not self.timed and len(untimed) == 1:
            return untimed[0][0].implementation  # nothing to choose between
        if untimed:
            self._measure(untimed)
        if c_kernel is not None:
            self._compare_c_kernel(c_kernel)
        try:
            best = self._fastest_that_loads()
        except BackendError:
            if self.interpreter is None:
                raise
            return self.interpreter
        if self.bound.threads > 1 and NEGLIGIBLE_SECONDS < best.seconds < SHORT_KERNEL_SECONDS:
            return self._with_best_threads(best)
        return best.implementation

    def _look_up(
        self, implementations: Iterable[Implementation]
    ) -> tuple[list[tuple[_Candidate, Call]], _Candidate | None]:
        """The candidates without a stored time, with their calls, and our own C kernel if its time is not stored."""
        untimed: list[tuple[_Candidate, Call]] = []
        c_kernel: _Candidate | None = None
        for place, implementation in enumerate(implementations):
            candidate = _Candidate(implementation, place)
            if implementation.engine == InterpretedCall.engine:
                self.interpreter = implementation  # it is only taken where nothing else is left
                continue
            stored = self.store.get(replace(self.key, engine=implementation.engine))
            if stored is not None:
                self.timed.append(replace(candidate, seconds=stored.seconds))
            elif implementation.engine == C_ENGINE:
                c_kernel = candidate
            else:
                try:
                    untimed.append((candidate, self.bound.bind(implementation)))
                except BackendError as error:
                    self.refusals.append(str(error))
                    continue
            if implementation.engine == "tiled":
                break  # plain kernels come after it where they win nowhere, and take long to make
        return untimed, c_kernel

    def _measure(self, untimed: list[tuple[_Candidate, Call]]) -> None:
        self._fill_inputs()
        calls = {candidate.implementation.engine: call for candidate, call in untimed}
        times = _times(calls, self.bound.threads, self._displacer)
        for candidate, _ in untimed:
            self._record(replace(candidate, seconds=times[candidate.implementation.engine]))

    def _compare_c_kernel(self, c_kernel: _Candidate) -> None:
        """Add the time of our own C kernel, where it is alone or the best of the others leaves something to gain."""
        if not self.timed:
            try:
                self._measure([(c_kernel, self.bound.bind(c_kernel.implementation))])
            except BackendError as error:
                self.refusals.append(str(error))
            return
        best = min(self.timed, key=lambda candidate: candidate.seconds)
        seconds_at_bound = bytes_moved(self.bound.equation.scope) / (MAX_BYTES_PER_SECOND * self.bound.threads)
        if best.seconds <= max(NEGLIGIBLE_SECONDS, NEAR_BOUND_RATIO * seconds_at_bound):
            return
        try:
            ratio = self._time_ratio(best.implementation, c_kernel.implementation)
        except NoKernel:
            ratio = inf
        except BackendError:
            return  # it is not taken here: nothing to remember
        self._record(replace(c_kernel, seconds=min(best.seconds * ratio, UNUSABLE_SECONDS)))

    def _fastest_that_loads(self) -> _Candidate:
        """The candidate to take; engines that refuse are added to ``refusals``."""
        while self.timed:
            first = min(self.timed, key=lambda candidate: candidate.place)
            fastest = min(self.timed, key=lambda candidate: candidate.seconds)
            best = fastest if fastest.seconds * MIN_SPEEDUP < first.seconds else first
            try:
                load_implementation(best.implementation)
                return best
            except BackendError as error:  # its time was stored where it could be compiled
                self.refusals.append(str(error))
                self.timed.remove(best)
        raise BackendError("; ".join(self.refusals) or "no engine takes it")

    def _with_best_threads(self, best: _Candidate) -> Implementation:
        """*best*, or its kernel by one thread where that is faster.

        It must be faster by ``MIN_SPEEDUP``, as any implementation: other threads of the session may share the core.
        """
        stored = self.store.get(replace(self.key, engine=best.implementation.engine + ONE_THREAD_SUFFIX))
        if stored is not None and stored.seconds * MIN_SPEEDUP >= best.seconds:
            return best.implementation
        try:
            alone = single_threaded_variant(best.implementation)
            if alone is None:
                return best.implementation
            if stored is not None:
                seconds = stored.seconds
            else:
                seconds = min(best.seconds * self._time_ratio(best.implementation, alone), UNUSABLE_SECONDS)
                self._record(_Candidate(alone, best.place, seconds))
            return load_implementation(alone) if seconds * MIN_SPEEDUP < best.seconds else best.implementation
        except BackendError:
            return best.implementation

    def _record(self, candidate: _Candidate) -> None:
        """Store the time of *candidate*."""
        self.store.record(replace(self.key, engine=candidate.implementation.engine), candidate.seconds, "measured")
        self.timed.append(candidate)

    def _time_ratio(self, best: Implementation, other: Implementation) -> float:
        self._fill_inputs()
        calls = self.bound.bind(best), self.bound.bind(other)
        return _time_ratio(*calls, self.bound.out, self.bound.threads, self._displacer)

    @cached_property
    def _displacer(self) -> Call | None:
        return constants_displacer(self.bound)

    def _fill_inputs(self) -> None:
        """Fill arrays with numbers of an ordinary size: zeros are quicker, infinities slower."""
        given = {t.name: t for t in tensors(self.bound.equation.scope)}
        for name, array in self.bound.operands.items():
            if name not in self.bound.constants and array.flags.writeable:
                array[...] = _random_array(given[name])


def constants_displacer(bound: BoundEquation, *written: Array) -> Call | None:
    """Return a call that displaces the constants of *bound* from all caches, as other equations do between two calls.

    It reads the other arrays, and those *written* in place of ``bound.out``, last: equations before have just written
    or read them.  None if the constants are small: they may stay there.
    """
    machine = this_machine()
    far = sum(a.nbytes for name, a in bound.operands.items() if name in bound.constants)
    if far < machine.l2 // MIN_FAR_PART:
        return None
    displace = measurement.displacing_read(min(machine.l3, MAX_DISPLACING_BYTES))
    near = [a for name, a in bound.operands.items() if name not in bound.constants]
    return lambda: [displace(), *(array.max(initial=0) for array in (bound.out, *written, *near))]


def _time_ratio(best: Call, other: Call, out: Array, threads: int, displace: Call | None = None) -> float:
    """The time of *other* over that of *best*, both writing *out*; infinity if their results differ."""
    best()
    want = out.copy()
    np.invert(out.view(np.uint8), out=out.view(np.uint8))  # other elements than those wanted
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
    times = _times({"best": best, C_ENGINE: other}, threads, displace)
    return times[C_ENGINE] / times["best"]


def _times(calls: Mapping[str, Call], threads: int, displace: Call | None) -> dict[str, float]:
    """Seconds of each call, after *displace*, without the overhead of calls from Python."""
    # With threads everything is measured in a session.
    return {
        engine: without_overhead(seconds, session_overhead() if engine == "onnxruntime" or threads > 1 else 0)
        for engine, seconds in time_implementations(calls, threads, displace).items()
    }


def time_implementations(calls: Mapping[str, Call], threads: int, displace: Call | None = None) -> dict[str, float]:
    """Seconds of each call on *threads* threads: the least of many short samples, taken in turn.

    Other work on the machine only adds time, and a choice is stored: only undisturbed samples count.  A call that is
    slower in a few samples is not sampled again, and a long one that is several times slower in its first run neither.
    """
    once = {engine: measurement.own_seconds(call, 1) for engine, call in calls.items()}
    hopeful = max(measurement.LONG_CALL_SECONDS, measurement.MAX_FIRST_RUN_RATIO * min(once.values()))
    near = {engine: call for engine, call in calls.items() if once[engine] <= hopeful}
    slow = {engine: seconds for engine, seconds in once.items() if engine not in near}
    least: dict[str, float] = {}
    for samples, within in SAMPLING_STAGES:
        most = max(MIN_SAMPLES, int(MAX_STAGE_SECONDS / sum(least[engine] for engine in near))) if least else samples
        rounds = min(samples, most)
        seconds = 0.0 if displace else rounds * measurement.SAMPLE_SECONDS  # a displaced call is a sample
        times = measurement.time_calls(
            near, rounds, seconds, measurement.settle_seconds(threads), least, displace=displace
        )
        least |= {engine: min(*timing.samples, least.get(engine, inf)) for engine, timing in times.items()}
        near = {engine: call for engine, call in near.items() if least[engine] <= within * min(least.values())}
        if len(near) == 1:
            break
    return slow | least


def without_overhead(seconds: float, overhead: float) -> float:
    """Return *seconds* less *overhead*, but an eighth of them at least: both are measured, and vary."""
    return max(seconds - overhead, seconds / 8)


@lru_cache(maxsize=16)
def session_overhead(displacing_bytes: int = 0) -> float:
    """Seconds that a session takes to run a node that does nothing, after *displacing_bytes* of reads."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", info[:1], info[1:])
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    session = onnx_session(model, 1)
    call = bind_session(session, {"x": np.zeros(1, np.float32)}, {"y": np.zeros(1, np.float32)})
    displace = measurement.displacing_read(displacing_bytes) if displacing_bytes else None
    return measurement.time_calls({"it": call}, rounds=5, min_seconds=0.01, displace=displace)["it"].low


@lru_cache(maxsize=16)
def stream_bandwidth(threads: int = 1, nbytes: int = 1 << 26) -> float:
    """Bytes a second of the triad a = b + 2·c, reads and writes counted, over arrays of *nbytes* together."""
    lane = 1024
    rows = max(1, nbytes // (3 * 4 * lane))
    i, j = Iterator("i", 0, rows), Iterator("j", 0, lane)
    b, c = (Tensor(name, (rows, lane))[i, j] for name in "bc")
    arrays = {name: aligned(np.ones((rows, lane), np.float32)) for name in "bc"}
    kernel = loop_nests(Scope((i, j), (), add(b, mul(Const(2), c))), threads)
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


@lru_cache(maxsize=1)
def clock_rate() -> float:
    """Cycles a second of one core: those in which it computes the products of ``peak_flops``."""
    return peak_flops() / this_machine().flops_per_cycle


class ProfileStore(TimeStore):
    """A store of times that measures unknown ones."""

    def measured(
        self,
        what: Equation | Program,
        threads: int = 1,
        operators: Sequence[Operator] = OPERATORS,
        min_seconds: float = 0.02,
    ) -> StoredTime:
        """The time of *what* by its best engines on this device; measured now if it is not stored.

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
            constants = {t.name: _random_array(t) for t in whole.inputs if t.weight}
        case Program():
            whole = what
            constants = {t.name: _random_array(t) for t in what.inputs if t.weight}
    compiled = compile_program(whole, threads, constants=constants, operators=operators, choose=chooser(store))
    given = {t.name: t for t in whole.inputs}
    for name, array in compiled.inputs.items():
        array[...] = _random_array(given[name])
    if not compiled.calls:
        return 1e-9  # views and constants only: nothing is done when it runs
    times = time_calls({"it": compiled.execute}, rounds=9, min_seconds=min_seconds, enough=stop_after(3, 0.1))["it"]
    return min(times.samples)  # what else runs on the machine only ever adds time


DRAWN_ELEMENTS = 65521
"""Random numbers that are drawn for arrays: larger ones repeat them, with a period that divides no extent."""


@lru_cache(maxsize=1)
def _drawn() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(DRAWN_ELEMENTS)


def _random_array(tensor: Tensor) -> np.ndarray:
    """Random elements of *tensor*: of ordinary size, or integers of its type."""
    drawn = within_type(tensor, 16 * _drawn() if ELEMENT_TYPES[tensor.dtype].is_integer else _drawn())
    return np.resize(drawn.astype(tensor.dtype), tensor.shape)


@dataclass(frozen=True)
class EpiloguePair:
    """Two equations, packed *views* between them, and the fused equation *both*."""

    first: Equation
    views: tuple[Equation, ...]
    second: Equation
    both: Equation


def fuse_epilogues(
    program: Program,
    constants: Collection[str],
    threads: int,
    store: TimeStore,
    operators: Sequence[Operator] = OPERATORS,
) -> Program:
    """*program* with each of its ``epilogue_pairs`` fused if that is faster; *store* keeps the times."""
    known = _constant_names(program, constants)
    for pair in epilogue_pairs(program):
        if pair.first.name in known or not _is_fusion_faster(pair, known, threads, store, operators):
            continue
        gone = (pair.first, *pair.views)
        rest = tuple(pair.both if e == pair.second else e for e in program.equations if e not in gone)
        return fuse_epilogues(replace(program, equations=rest), constants, threads, store, operators)
    return program


def epilogue_pairs(program: Program) -> Iterable[EpiloguePair]:
    """Contractions whose one reader is an elementwise equation that reads each element once, or views.

    They are calls of libraries, or products of bytes.
    """
    moved = _unpacked_views(program)
    readers: dict[str, list[Equation]] = {}
    for e in program.equations:
        for name in {t.name for t in tensors(e.scope)}:
            readers.setdefault(name, []).append(e)
    for first in program.equations:
        if (first.via is None or not first.via.is_library_call) and match_integer_product(first.scope) is None:
            continue
        chain = [first]
        while chain[-1].name not in program.outputs and len(found := readers.get(chain[-1].name, [])) == 1:
            chain += found
            if not _is_view(found[0]) or found[0].name in moved:
                break
        *views, second = chain[1:] or chain
        both = _fuse_pair(program, first, second)
        if both is not None and moved.isdisjoint(t.name for t in tensors(both.scope)):
            yield EpiloguePair(first, tuple(views), second, both)


def _is_view(equation: Equation) -> bool:
    return equation.via is not None and equation.via.operator == VIEW


def _unpacked_views(program: Program) -> set[str]:
    """The views whose elements are not packed in their own order, which no tiled kernel reads."""
    moved: set[str] = set()
    for e in program.equations:
        if _is_view(e):
            packed = view_strides(e.scope) == (0, row_major_strides(e.scope.shape))
            if not packed or any(t.name in moved for t in tensors(e.scope)):
                moved.add(e.name)
    return moved


def _fuse_pair(program: Program, first: Equation, second: Equation) -> Equation | None:
    scope = second.scope
    nested = [inner for path, inner in scopes(scope) if path]
    if scope.summations or scope.domain or nested or second.via is None or not second.via.is_eoperator:
        return None

    places = {a: resolve_access(program, a) for a in accesses(scope.body)}
    found = {a: r for a, r in places.items() if isinstance(r.source, Tensor) and r.source.name == first.name}
    if len(found) != 1 or first.scope.domain or prod(first.scope.shape) != prod(scope.shape):
        return None
    ((read, place),) = found.items()
    if not _reads_each_once(read, scope):
        return None
    used = {x.name for x in scope.traversals}
    to: dict[Iterator, IndexLike] = dict(zip(first.scope.traversals, place.index, strict=True))
    sums = []
    for y in first.scope.summations:
        sums.append(Iterator(fresh_name(y.name, used) if y.name in used else y.name, y.lo, y.hi))
        used.add(sums[-1].name)
        to[y] = sums[-1]
    body = substitute(first.scope.body, to)
    inner = replace(first.scope, traversals=scope.traversals, summations=tuple(sums), body=body, padding=())
    made = replace(scope, body=map_accesses(scope.body, lambda a: inner[scope.traversals] if a == read else a))
    if is_typed(made) or is_typed(first.scope):
        known = constant_tensors(program)
        return None if integer_product(made, known, {}) is None else Equation(second.name, made, Instance(EOPERATOR))
    return None if tiled_contraction(made) is None else Equation(second.name, made, Instance(EOPERATOR))


def _reads_each_once(read: Access, scope: Scope) -> bool:
    """Return whether *read* is a bijection from *scope* to its source, which has as many elements."""
    fixed = {x: x.lo for x in scope.traversals if x.extent == 1}
    read = replace(read, index=tuple(substitute_index(i, fixed) for i in read.index))
    if not stays_inside(read):
        return False
    moves = [i.single for i, (lo, hi) in zip(read.index, read.source.box, strict=True) if hi - lo > 1]
    return len(set(moves)) == len(moves) and {*moves} == {x for x in scope.traversals if x.extent > 1}


def _constant_names(program: Program, constants: Collection[str]) -> set[str]:
    """The names of constants, and of tensors that only depend on them."""
    known = set(constants)
    for e in program.equations:
        if all(t.name in known for t in tensors(e.scope)):
            known.add(e.name)
    return known


def _is_fusion_faster(
    pair: EpiloguePair, constant: Collection[str], threads: int, store: TimeStore, operators: Sequence[Operator]
) -> bool:
    key, fused = profile_key(pair.both, threads, constant), _fused_engine(pair)
    stored = [store.get(replace(key, engine=engine)) for engine in (fused, UNFUSED_PAIR)]
    if any(known is None for known in stored):
        try:
            times = _pair_times(pair, constant, threads, store, operators)
        except (BackendError, MemoryError):
            return False
        for engine, seconds in times.items():
            store.record(replace(key, engine=engine), seconds, "measured")
        return times[fused] < times[UNFUSED_PAIR]
    one, apart = (known.seconds for known in stored if known is not None)
    return one < apart


def _pair_times(
    pair: EpiloguePair, constant: Collection[str], threads: int, store: TimeStore, operators: Sequence[Operator]
) -> dict[str, float]:
    """Seconds of the fused kernel, and of both equations with the best engine each."""
    fused = _fused_engine(pair)
    arrays: dict[str, Array] = {}
    for t in (*tensors(pair.both.scope), *tensors(pair.second.scope), pair.first.tensor):
        arrays[t.name] = aligned_empty(t.shape, np.dtype(t.dtype))
        arrays[t.name][...] = _random_array(t)
    constants = {name: array for name, array in arrays.items() if name in constant}
    first = BoundEquation(pair.first, arrays, arrays[pair.first.name], threads, constants, {}, operators)
    second = replace(
        first, equation=pair.second, out=aligned_empty(pair.second.scope.shape, np.dtype(pair.second.tensor.dtype))
    )
    calls: list[Callable[[], object]] = []
    seconds: list[float] = []
    for bound in (first, second):
        implementation = fastest_implementation(bound, implementations_of(bound), store)
        calls.append(bound.bind(implementation))
        seconds.append(_known_seconds(store, bound.equation, threads, constant, implementation.engine))
    fused_seconds = _known_seconds(store, pair.first, threads, constant, fused)
    if all(seconds) and fused_seconds > sum(seconds):  # slower even without the epilogue: not compiled
        return {fused: fused_seconds, UNFUSED_PAIR: sum(seconds)}
    both = replace(second, equation=pair.both)
    made = next((found for found in implementations_of(both) if found.engine == fused), None)
    if made is None:
        raise BackendError(f"{pair.both.name} is no contraction")

    def run_unfused() -> None:
        for call in calls:
            call()

    engines = {fused: both.bind(made), UNFUSED_PAIR: run_unfused}
    # A node before has written the product's operands; a residual of the epilogue is older, and stays displaced.
    times = time_implementations(engines, threads, constants_displacer(first, second.out))
    if threads > 1:  # two sessions where a plan has one
        times[UNFUSED_PAIR] = without_overhead(times[UNFUSED_PAIR], session_overhead())
    return times


def _fused_engine(pair: EpiloguePair) -> str:
    """The engine of the kernel of both equations."""
    return INTEGER_ENGINE if is_typed(pair.first.scope) else TiledCall.engine


def _known_seconds(store: TimeStore, e: Equation, threads: int, constant: Collection[str], engine: str) -> float:
    """Return the stored time of *e* by *engine*; 0 where there is none."""
    known = store.get(replace(profile_key(e, threads, constant), engine=engine))
    return known.seconds if known is not None else 0.0


def compile_measured(
    program: Program,
    threads: int,
    constants: Mapping[str, npt.ArrayLike],
    store: TimeStore,
    operators: Sequence[Operator] = OPERATORS,
) -> CompiledProgram:
    """*program* with the engines and the fused epilogues that are fastest by measurement."""
    joined = fuse_epilogues(with_wide_values(program), constants, threads, store, operators)
    return compile_program(joined, threads, constants=constants, operators=operators, choose=chooser(store))


def compile_ahead(
    programs: Iterable[Program],
    threads: int,
    constants: Mapping[str, npt.ArrayLike],
    store: TimeStore,
    operators: Sequence[Operator] = OPERATORS,
) -> int:
    """Compile the kernels that ``compile_measured`` of *programs* times first, one on each core; return their number.

    They are found in the cache directory later.  What an engine refuses here it refuses there too.  Nothing is done
    on one core, or for one kernel.
    """
    cores = available_cores()
    if cores == 1:
        return 0
    found: dict[str, KernelCall | NativeCall | TiledCall] = {}

    def note(bound: BoundEquation, implementations: Iterable[Implementation]) -> Implementation:
        taken = islice(implementations, 1) if bound.is_constant else implementations
        found.update((kernel.key, kernel) for kernel in _untimed_kernels(bound, taken, store))
        return _Uncompiled(tuple(bound.operands))

    for program in programs:
        with suppress(BackendError, MemoryError):
            compile_program(program, threads, constants, operators, note)
    kernels = [kernel for key, kernel in found.items() if kernel_file(key) is None]
    if len(kernels) > 1:
        _load_all(kernels, cores)
    return len(kernels)


@dataclass(frozen=True)
class _Uncompiled:
    """The place of an implementation that is compiled later: it writes nothing."""

    reads: tuple[str, ...]
    engine = "none"

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Call:
        return lambda: None

    def write(self, writer: FragmentWriter, makes: str) -> bool:
        return False


def _untimed_kernels(
    bound: BoundEquation, implementations: Iterable[Implementation], store: TimeStore
) -> Iterable[KernelCall | NativeCall | TiledCall]:
    """Yield the kernels among *implementations* that ``fastest_implementation`` compiles in any case, to time them."""
    for place, implementation in enumerate(implementations):
        untimed = store.get(replace(bound.profile_key, engine=implementation.engine)) is None
        match implementation:
            case KernelCall() | TiledCall() if untimed:
                yield implementation
            case NativeCall() if untimed and place == 0:
                yield implementation
        if implementation.engine == "tiled":
            return


def _load_all(kernels: Iterable[Implementation], cores: int) -> None:
    """Load *kernels* by *cores* threads: TVM, LLVM and the linker work without Python's lock."""
    with ThreadPoolExecutor(cores) as pool:
        loads = [pool.submit(load_implementation, kernel) for kernel in kernels]
        try:
            for load in loads:
                load.exception()
        finally:  # after an interrupt
            for load in loads:
                load.cancel()
