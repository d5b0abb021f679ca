r"""Library contractions and the elementwise work on their results, as one kernel where that is faster.

.. math::  T[\vec x] = \sum_{\vec y} A\,B, \quad Y[\vec x] = g(T[\vec x], \dots)
           \;\mapsto\; Y[\vec x] = g\Big(\sum_{\vec y} A\,B, \dots\Big)

The sum is still in registers when `g` is applied to it.  Nothing is derived here: as with views, a kernel's scope has
what it reads put in where it is read, and means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.ir import (
    EOPERATOR,
    VIEW,
    Access,
    Equation,
    Instance,
    Program,
    Tensor,
    accesses,
    map_accesses,
    scopes,
    tensors,
)
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.runtime import generated, implementation_choice, library_calls
from einnet_explore.runtime.arrays import aligned_empty
from einnet_explore.runtime.implementations import TiledCall, Way, in_session
from einnet_explore.runtime.keys import APART, key_of
from einnet_explore.runtime.profile_store import Store
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.support.errors import BackendError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Pair:
    """Two neighbouring equations, and the one that does both."""

    first: Equation
    second: Equation
    both: Equation


def compile_measured(
    program: Program,
    threads: int,
    constants: Mapping[str, npt.ArrayLike],
    store: Store,
    operators: Sequence[Operator] = OPERATORS,
) -> CompiledProgram:
    """*program* with every engine chosen by measured time, and epilogues fused where that is faster by measurement."""
    joined = fused(program, constants, threads, store, operators)
    return compile_program(
        joined, threads, constants=constants, operators=operators, choose=implementation_choice.chooser(threads, store)
    )


def fused(
    program: Program, constants: Collection[str], threads: int, store: Store, operators: Sequence[Operator] = OPERATORS
) -> Program:
    """*program* with those of its ``pairs`` as one equation that are faster so; their times are kept in *store*."""
    known = _fixed(program, constants)
    for pair in pairs(program):
        if pair.first.name in known or not _pays(pair, known, threads, store, operators):
            continue
        rest = tuple(pair.both if e == pair.second else e for e in program.equations if e != pair.first)
        return fused(replace(program, equations=rest), constants, threads, store, operators)
    return program


def pairs(program: Program) -> Iterable[Pair]:
    """Library contractions that one elementwise equation alone reads, each element where it stands."""
    made = {e.name: e for e in program.equations}
    readers: dict[str, list[Equation]] = {}
    for e in program.equations:
        for name in {t.name for t in tensors(e.scope)}:
            readers.setdefault(name, []).append(e)
    for name, first in made.items():
        library_call = first.via is not None and first.via.operator not in (VIEW, EOPERATOR)
        found = readers.get(name, [])
        if not library_call or name in program.outputs or len(found) != 1:
            continue
        both = _both(first, found[0])
        if both is not None:
            yield Pair(first, found[0], both)


def _both(first: Equation, second: Equation) -> Equation | None:
    scope = second.scope
    nested = [inner for path, inner in scopes(scope) if path]
    if scope.summations or scope.domain or nested or second.via != Instance(EOPERATOR):
        return None

    def put(access: Access) -> Access:
        match access.source:
            case Tensor(name) if name == first.name:
                return Access(first.scope, access.index)
        return access

    made = replace(scope, body=map_accesses(scope.body, put))
    whole = generated.contraction(made)
    reads = {a for a in accesses(made.body) if a.source == first.scope}
    return Equation(second.name, made, Instance(EOPERATOR)) if whole is not None and len(reads) == 1 else None


def _fixed(program: Program, constants: Collection[str]) -> set[str]:
    """The names of what never changes: constants, and what only depends on them."""
    known = set(constants)
    for e in program.equations:
        if all(t.name in known for t in tensors(e.scope)):
            known.add(e.name)
    return known


def _pays(pair: Pair, constant: Collection[str], threads: int, store: Store, operators: Sequence[Operator]) -> bool:
    key = key_of(pair.both, threads, constant)
    stored = [store.get(replace(key, engine=engine)) for engine in ("tiled", APART)]
    if any(known is None for known in stored):
        try:
            times = _times(pair, constant, threads, store, operators)
        except (BackendError, MemoryError):
            return False
        for engine, seconds in times.items():
            store.put(replace(key, engine=engine), seconds, "measured")
        return times["tiled"] < times[APART]
    one, apart = (known.seconds for known in stored if known is not None)
    return one < apart


def _times(
    pair: Pair, constant: Collection[str], threads: int, store: Store, operators: Sequence[Operator]
) -> dict[str, float]:
    """Seconds of the kernel for both, and of the two with the best engine each."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for t in (*tensors(pair.both.scope), pair.first.tensor):
        arrays[t.name] = aligned_empty(t.shape)
        arrays[t.name][...] = rng.standard_normal(t.shape)
    out = aligned_empty(pair.second.scope.shape)
    constants = {name: array for name, array in arrays.items() if name in constant}
    calls: list[Callable[[], object]] = []
    for e, target in ((pair.first, arrays[pair.first.name]), (pair.second, out)):
        ways = library_calls.engines(e, arrays, target, {}, operators, threads, False, constants)
        way = implementation_choice.fastest(e, ways, arrays, target, constants, threads, store)
        calls.append(_call(way, arrays, target, constants, threads))
    first, second = calls
    made = generated.contraction(pair.both.scope, constants, threads)
    if made is None:
        raise BackendError(f"{pair.both.name} is no contraction")

    def apart() -> None:
        first()
        second()

    one = _call(TiledCall(made, constants), arrays, out, constants, threads)
    times = implementation_choice.compared({"tiled": one, APART: apart}, threads)
    if threads > 1:  # two sessions where a plan has one
        times[APART] = max(times[APART] - implementation_choice.session_overhead(), times[APART] / 8)
    return times


def _call(
    way: Way, arrays: Mapping[str, Array], out: Array, constants: Mapping[str, Array], threads: int
) -> Callable[[], object]:
    """*way* with threads of a session, as a plan has it, where there are several."""
    call = in_session(way, arrays, out, constants, threads) if threads > 1 else None
    return call or way.bind(arrays, out)
