r"""Kernels of chains in blocks; stages without products are vectors of unrolled sums.

.. math::  y_p = \sum_i U[p, i]\, x_i \quad \text{for every } p

is computed for a vector of neighbours at a time: the `x_i` are loaded once for all `p`, entries of `U` are immediates,
and zero entries cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from einnet_explore.analysis.indices import substitute
from einnet_explore.codegen.fused_tiling.block_sizes import (
    RESULT_MEMORY,
    BlockStage,
    ChainPart,
    block_stages,
    collapse_loops,
    match_product,
)
from einnet_explore.codegen.fused_tiling.writer import BlockWriter, match_transpose, write_product, write_transposed
from einnet_explore.codegen.machine import Machine
from einnet_explore.codegen.preparation import expand_table
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment
from einnet_explore.ir import (
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Remainder,
    Scalar,
    Table,
    accesses,
    add,
    as_index,
    map_accesses,
)

MAX_CASES = 64
"""Cases of a vector that are unrolled, at most."""

MAX_UNROLLED_TERMS = 64
"""Terms of a sum that are unrolled, at most."""


def split_cases(stage: BlockStage) -> tuple[BlockStage, tuple[Iterator, ...]]:
    """Split *stage* so that every traversal whose value, or remainder, indexes a table has a loop of its own.

    Return the stage and those loops, which must be unrolled.
    """
    cases: list[Iterator] = []
    for x, period in _table_periods(stage):
        if prod(c.extent for c in cases) * period > MAX_CASES or x in stage.guards:
            continue
        if period == x.extent:
            cases.append(x)
            continue
        if x.extent % period or x.lo:
            continue
        outer, case = Iterator(f"{x.name}o", 0, x.extent // period), Iterator(f"{x.name}i", 0, period)
        to = {x: as_index(outer) * period + case}
        n = stage.traversals.index(x)
        stage = replace(
            stage,
            traversals=(*stage.traversals[:n], outer, case, *stage.traversals[n + 1 :]),
            body=substitute(stage.body, to),
            place=stage.place.substitute(lambda y, to=to: to.get(y, y)),  # type: ignore[misc]
        )
        cases.append(case)
    return stage, tuple(cases)


def _table_periods(stage: BlockStage) -> Iterable[tuple[Iterator, int]]:
    found: dict[Iterator, int] = {}
    for access in accesses(stage.body):
        if isinstance(access.source, Table):
            for index in access.index:
                match index.terms:
                    case ((Iterator() as x, 1),) if x in stage.traversals[:-1]:
                        found[x] = x.extent
                    case ((Remainder(numerator, d), 1),) if numerator.single in stage.traversals[:-1]:
                        assert numerator.single is not None
                        found.setdefault(numerator.single, d)
    return found.items()


def unrolled_body(stage: BlockStage, case: Mapping[Iterator, int]) -> Scalar | None:
    """Return the body for one *case* of the unrolled iterators with its sums unrolled; None for too many terms."""
    if prod(y.extent for y in stage.sums) > MAX_UNROLLED_TERMS:
        return None
    fixed: Mapping[Iterator, Index] = {x: as_index(n) for x, n in case.items()}
    values = product(*(range(y.lo, y.hi) for y in stage.sums))
    bodies = []
    for at in values:
        to = {**fixed, **{y: as_index(n) for y, n in zip(stage.sums, at, strict=True)}}
        bodies.append(simplify_products(map_accesses(substitute(stage.body, to), expand_table)))
    return add(*bodies) if stage.sums else bodies[0]


def simplify_products(body: Scalar) -> Scalar:
    """Fold products with 0 and 1 in *body*."""
    match body:
        case Apply("*", args):
            args = tuple(map(simplify_products, args))
            scale = prod(a.value for a in args if isinstance(a, Const))
            rest = tuple(a for a in args if not isinstance(a, Const))
            if scale == 0 or not rest:
                return Const(scale)
            kept = rest if scale == 1 else (Const(scale), *rest)
            return kept[0] if len(kept) == 1 else Apply("*", kept)
        case Apply(op, args):
            return Apply(op, tuple(a if isinstance(a, Compare) else simplify_products(a) for a in args))
    return body


def chain_function(parts: Sequence[ChainPart], inputs: Mapping[str, int], threads: int, machine: Machine) -> TvmObject:
    """Return the PrimFunc that computes *parts* in order from *inputs*: flat arrays, their sizes by name.

    Each of the *threads* computes its own blocks of every part.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        memory: dict[str, TvmObject] = {
            name: T.match_buffer(T.arg(f"t{n}", T.handle()), (max(1, size),), "float32")
            for n, (name, size) in enumerate(inputs.items())
        }
        memory[RESULT_MEMORY] = T.match_buffer(T.arg("y", T.handle()), (parts[-1].size,), "float32")
        T.func_attr({"tir.noalias": True})
        for part in parts[:-1]:
            memory[part.memory] = T.alloc_buffer((part.size + machine.lanes,))
        for part in parts:
            _write_part(part, {**memory, RESULT_MEMORY: memory[part.memory]}, threads, machine)
    return builder.get()


def _write_part(part: ChainPart, memory: Mapping[str, TvmObject], threads: int, machine: Machine) -> None:
    """Write all blocks of *part*, which computes the result in *memory*."""
    cuts, blocks = part.cuts, part.blocks
    stages = tuple(map(collapse_loops, block_stages(part.chain, cuts, lambda tensor: tensor.name)))
    with T.parallel(blocks) if threads > 1 and blocks > 1 else T.serial(blocks) as number:
        block: dict[Iterator, TvmObject] = {}
        for n, cut in enumerate(cuts):
            # The number counts the blocks of the last cut first.
            turn = number // prod(c.blocks for c in cuts[n + 1 :]) % cut.blocks * cut.size
            whole = cut.periods % cut.size == 0
            block[cut.at] = T.bind(turn if whole else tirx.min(turn, cut.periods - cut.size))
        own = {s.memory: T.alloc_buffer((s.size + machine.lanes,)) for s in stages if s.memory != RESULT_MEMORY}
        writer = BlockWriter({**memory, **own}, machine, block)
        for stage in stages:
            _write_stage(writer, stage)


def _write_stage(writer: BlockWriter, stage: BlockStage) -> None:
    if stage.memory != RESULT_MEMORY:
        _write_padding(writer, stage)
    if (product_ := match_product(stage, writer.machine.lanes)) is not None:
        write_product(writer, stage, product_)
    elif (turn := match_transpose(stage, writer.machine.lanes)) is not None:
        write_transposed(writer, stage, turn)
    else:
        _write_vectors(writer, stage)


def _write_padding(writer: BlockWriter, stage: BlockStage) -> None:
    """Fill the border around the stage's box, and the whole box if a guard excludes some of it."""
    for box in stage.border:
        to = dict(zip(stage.traversals, box, strict=True))
        place = stage.place.substitute(lambda x, to=to: to.get(x, x))  # type: ignore[misc]
        writer.fill(stage.memory, box, place, stage.value)
    for x, guard in stage.guards.items():
        ends = ({x: tirx.const(n, "int32")} for n in (0, x.extent - 1))
        with T.If(tirx.any(*(tirx.Not(writer.holds(guard, end)) for end in ends))), T.Then():
            writer.fill(stage.memory, stage.traversals, stage.place, stage.value)


def _write_vectors(writer: BlockWriter, stage: BlockStage) -> None:
    """Write vectors along the last traversal, with all cases of the coefficients together."""
    stage, cases = split_cases(stage)
    last, lanes = stage.last, writer.machine.lanes
    outer = tuple(x for x in stage.traversals[:-1] if x not in cases)
    if last in stage.guards:  # a vector might lie across the border: one by one
        with ExitStack() as inside:
            _write_cases(writer, stage, cases, writer.loops((*outer, last), stage.guards, inside), 1)
        return
    for first, count, width in _vector_chunks(last, lanes):
        # Written with the chunk's number, an index tells where its neighbours are neighbours in memory.
        chunk = Iterator("@chunk", 0, count)
        to = {last: as_index(chunk) * width + lane_iterator(width) + (last.lo + first)}
        place = stage.place.substitute(lambda x, to=to: to.get(x, x))  # type: ignore[misc]
        vector = replace(stage, body=substitute(stage.body, to), place=place)
        with ExitStack() as inside:
            _write_cases(writer, vector, cases, writer.loops((*outer, chunk), stage.guards, inside), width)


def lane_iterator(width: int) -> Iterator:
    """Return the iterator of the elements of a vector of *width*."""
    return Iterator("@lane", 0, width)


def _write_cases(
    writer: BlockWriter, stage: BlockStage, cases: tuple[Iterator, ...], env: Environment, width: int
) -> None:
    for values in product(*(range(x.lo, x.hi) for x in cases)):
        case = dict(zip(cases, values, strict=True))
        here = {**env, **{x: tirx.const(n, "int32") for x, n in case.items()}}
        _write_vector(writer, stage, case, here, width)


def _vector_chunks(last: Iterator, lanes: int) -> list[tuple[int, int, int]]:
    """Return (first, count, width) of the vectors along *last*: whole vectors, then the rest."""
    whole, rest = divmod(last.extent, lanes)
    return [(first, n, width) for first, n, width in ((0, whole, lanes), (whole * lanes, 1, rest)) if n * width]


def _write_vector(
    writer: BlockWriter, stage: BlockStage, case: Mapping[Iterator, int], env: dict[Iterator, TvmObject], width: int
) -> None:
    memory = writer.memory[stage.memory]
    body = unrolled_body(stage, case)
    if body is not None:
        with T.vectorized(width) as lane:
            here = {**env, lane_iterator(width): lane}
            T.buffer_store(memory, writer.value(body, here), [writer.at(stage.place, here)])
        return
    total = T.alloc_buffer((width,))
    with T.vectorized(width) as lane:
        T.buffer_store(total, tirx.const(0.0, "float32"), [lane])
    with ExitStack() as inside:
        sums = writer.loops(stage.sums, {}, inside)
        with T.vectorized(width) as lane:
            here = {**env, **sums, lane_iterator(width): lane}
            T.buffer_store(total, total[lane] + writer.value(stage.body, here), [lane])
    with T.vectorized(width) as lane:
        T.buffer_store(memory, total[lane], [writer.at(stage.place, {**env, lane_iterator(width): lane})])
