r"""Library contractions and the elementwise work on their results, as one kernel where that is faster.

.. math::  T[\vec x] = \sum_{\vec y} A\,B, \quad Y[\vec x] = g(T[\vec x], \dots)
           \;\mapsto\; Y[\vec x] = g\Big(\sum_{\vec y} A\,B, \dots\Big)

The sum is still in registers when `g` is applied to it.  Nothing is derived here: as with views, an operand's
expression replaces its access, which leaves the value unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.equations import resolve_access
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.indices import fresh_name, substitute
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import (
    EOPERATOR,
    VIEW,
    Access,
    Bound,
    Equation,
    IndexLike,
    Instance,
    Iterator,
    Program,
    Scope,
    Tensor,
    accesses,
    map_accesses,
    scopes,
    tensors,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.runtime import implementation_choice
from einnet_explore.runtime.arrays import Array, aligned_empty
from einnet_explore.runtime.implementations import BoundEquation, TiledCall, implementations_of, tiled_contraction
from einnet_explore.runtime.profile_store import UNFUSED_PAIR, TimeStore, profile_key
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.support.errors import BackendError


@dataclass(frozen=True)
class EpiloguePair:
    """Two equations, packed *views* between them, and the fused equation *both*."""

    first: Equation
    views: tuple[Equation, ...]
    second: Equation
    both: Equation


def compile_measured(
    program: Program,
    threads: int,
    constants: Mapping[str, npt.ArrayLike],
    store: TimeStore,
    operators: Sequence[Operator] = OPERATORS,
) -> CompiledProgram:
    """*program* with the engines and the fused epilogues that are fastest by measurement."""
    joined = fuse_epilogues(program, constants, threads, store, operators)
    return compile_program(
        joined, threads, constants=constants, operators=operators, choose=implementation_choice.chooser(store)
    )


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
        if pair.first.name in known or not _is_faster(pair, known, threads, store, operators):
            continue
        gone = (pair.first, *pair.views)
        rest = tuple(pair.both if e == pair.second else e for e in program.equations if e not in gone)
        return fuse_epilogues(replace(program, equations=rest), constants, threads, store, operators)
    return program


def epilogue_pairs(program: Program) -> Iterable[EpiloguePair]:
    """Library contractions whose one reader is an elementwise equation that reads each element once, or views."""
    moved = _unpacked_views(program)
    readers: dict[str, list[Equation]] = {}
    for e in program.equations:
        for name in {t.name for t in tensors(e.scope)}:
            readers.setdefault(name, []).append(e)
    for first in program.equations:
        if first.via is None or not first.via.is_library_call:
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
    return None if tiled_contraction(made) is None else Equation(second.name, made, Instance(EOPERATOR))


def _reads_each_once(read: Access, scope: Scope) -> bool:
    """Return whether *read* is a bijection from *scope* to its source, which has as many elements."""
    if not all(always_holds(Bound(i, lo, hi)) for i, (lo, hi) in zip(read.index, read.source.box, strict=True)):
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


def _is_faster(
    pair: EpiloguePair, constant: Collection[str], threads: int, store: TimeStore, operators: Sequence[Operator]
) -> bool:
    key = profile_key(pair.both, threads, constant)
    stored = [store.get(replace(key, engine=engine)) for engine in ("tiled", UNFUSED_PAIR)]
    if any(known is None for known in stored):
        try:
            times = _times(pair, constant, threads, store, operators)
        except (BackendError, MemoryError):
            return False
        for engine, seconds in times.items():
            store.record(replace(key, engine=engine), seconds, "measured")
        return times["tiled"] < times[UNFUSED_PAIR]
    one, apart = (known.seconds for known in stored if known is not None)
    return one < apart


def _times(
    pair: EpiloguePair, constant: Collection[str], threads: int, store: TimeStore, operators: Sequence[Operator]
) -> dict[str, float]:
    """Seconds of the fused kernel, and of both equations with the best engine each."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for t in (*tensors(pair.both.scope), *tensors(pair.second.scope), pair.first.tensor):
        arrays[t.name] = aligned_empty(t.shape)
        arrays[t.name][...] = rng.standard_normal(t.shape)
    constants = {name: array for name, array in arrays.items() if name in constant}
    first = BoundEquation(pair.first, arrays, arrays[pair.first.name], threads, constants, {}, operators)
    second = replace(first, equation=pair.second, out=aligned_empty(pair.second.scope.shape))
    calls: list[Callable[[], object]] = []
    seconds: list[float] = []
    for bound in (first, second):
        implementation = implementation_choice.fastest_implementation(bound, implementations_of(bound), store)
        calls.append(bound.bind(implementation))
        seconds.append(_known_seconds(store, bound.equation, threads, constant, implementation.engine))
    tiled_seconds = _known_seconds(store, pair.first, threads, constant, "tiled")
    if all(seconds) and tiled_seconds > sum(seconds):  # slower even without the epilogue: not compiled
        return {"tiled": tiled_seconds, UNFUSED_PAIR: sum(seconds)}
    made = tiled_contraction(pair.both.scope, constants, threads)
    if made is None:
        raise BackendError(f"{pair.both.name} is no contraction")

    def run_unfused() -> None:
        for call in calls:
            call()

    one = replace(second, equation=pair.both).bind(TiledCall(made, constants))
    times = implementation_choice.time_implementations({"tiled": one, UNFUSED_PAIR: run_unfused}, threads)
    if threads > 1:  # two sessions where a plan has one
        times[UNFUSED_PAIR] = max(
            times[UNFUSED_PAIR] - implementation_choice.session_overhead(), times[UNFUSED_PAIR] / 8
        )
    return times


def _known_seconds(store: TimeStore, e: Equation, threads: int, constant: Collection[str], engine: str) -> float:
    """Return the stored time of *e* by *engine*; 0 where there is none."""
    known = store.get(replace(profile_key(e, threads, constant), engine=engine))
    return known.seconds if known is not None else 0.0
