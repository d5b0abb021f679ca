"""Kernels of chains: every block of a shared traversal goes through all stages while what it needs is in the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from einnet_explore.algebra.substitute import substitute
from einnet_explore.backends.blocks import product as products
from einnet_explore.backends.blocks import turning
from einnet_explore.backends.blocks.cases import phased, terms
from einnet_explore.backends.blocks.local import RESULT, Local, joined, locals_of
from einnet_explore.backends.blocks.parts import Part
from einnet_explore.backends.blocks.writer import Expr, Writer
from einnet_explore.ir import Iterator, as_index
from einnet_explore.kernels.machine import Machine


def function(parts: Sequence[Part], inputs: Mapping[str, int], threads: int, machine: Machine) -> Any:
    """The PrimFunc that computes *parts* one after the other from *inputs*: flat arrays, their sizes by name.

    Each of the *threads* has blocks of its own of every part.
    """
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        memory: dict[str, Any] = {
            name: T.match_buffer(T.arg(f"t{n}", T.handle()), (max(1, size),), "float32")
            for n, (name, size) in enumerate(inputs.items())
        }
        memory[RESULT] = T.match_buffer(T.arg("y", T.handle()), (parts[-1].size,), "float32")
        T.func_attr({"tir.noalias": True})
        for part in parts[:-1]:
            memory[part.memory] = T.alloc_buffer((part.size + machine.lanes,))
        for part in parts:
            _part(part, {**memory, RESULT: memory[part.memory]}, threads, machine)
    return builder.get()


def _part(part: Part, memory: Mapping[str, Any], threads: int, machine: Machine) -> None:
    """All blocks of *part*, which writes the result of *memory*."""
    cuts, blocks = part.cuts, part.blocks
    stages = tuple(map(joined, locals_of(part.chain, cuts, lambda tensor: tensor.name)))
    with T.parallel(blocks) if threads > 1 and blocks > 1 else T.serial(blocks) as number:
        block: dict[Iterator, Expr] = {}
        for n, cut in enumerate(cuts):
            # The number counts the blocks of the last cut first.
            turn = number // prod(c.blocks for c in cuts[n + 1 :]) % cut.blocks * cut.size
            whole = cut.periods % cut.size == 0
            block[cut.at] = T.bind(turn if whole else tirx.min(turn, cut.periods - cut.size))
        own = {s.memory: T.alloc_buffer((s.size + machine.lanes,)) for s in stages if s.memory != RESULT}
        writer = Writer({**memory, **own}, machine, block)
        for stage in stages:
            _write(writer, stage)


def _write(writer: Writer, stage: Local) -> None:
    if stage.memory != RESULT:
        _surroundings(writer, stage)
    if (product_ := products.product_of(stage, writer.machine.lanes)) is not None:
        products.write(writer, stage, product_)
    elif (turn := turning.turn_of(stage, writer.machine.lanes)) is not None:
        turning.write(writer, stage, turn)
    else:
        _vectors(writer, stage)


def _surroundings(writer: Writer, stage: Local) -> None:
    """What is read around the stage's box, and the whole box where a guard leaves some of it out."""
    for box in stage.border:
        to = dict(zip(stage.traversals, box, strict=True))
        place = stage.place.substitute(lambda x, to=to: to.get(x, x))  # type: ignore[misc]
        writer.fill(stage.memory, box, place, stage.value)
    for x, guard in stage.guards.items():
        ends = ({x: tirx.const(n, "int32")} for n in (0, x.extent - 1))
        with T.If(tirx.any(*(tirx.Not(writer.holds(guard, end)) for end in ends))), T.Then():
            writer.fill(stage.memory, stage.traversals, stage.place, stage.value)


def _vectors(writer: Writer, stage: Local) -> None:
    """Vectors along the last traversal, every case of the coefficients beside the others."""
    stage, cases = phased(stage)
    last, lanes = stage.last, writer.machine.lanes
    outer = tuple(x for x in stage.traversals[:-1] if x not in cases)
    if last in stage.guards:  # a vector might lie across the border: one by one
        with ExitStack() as inside:
            _cases(writer, stage, cases, writer.loops((*outer, last), stage.guards, inside), 1)
        return
    for first, count, width in _chunks(last, lanes):
        # Written with the chunk's number, an index tells where its neighbours are neighbours in memory.
        chunk = Iterator("@chunk", 0, count)
        to = {last: as_index(chunk) * width + lane_of(width) + (last.lo + first)}
        place = stage.place.substitute(lambda x, to=to: to.get(x, x))  # type: ignore[misc]
        vector = replace(stage, body=substitute(stage.body, to), place=place)
        with ExitStack() as inside:
            _cases(writer, vector, cases, writer.loops((*outer, chunk), stage.guards, inside), width)


def lane_of(width: int) -> Iterator:
    """Where in a vector of *width* an element is."""
    return Iterator("@lane", 0, width)


def _cases(writer: Writer, stage: Local, cases: tuple[Iterator, ...], env: Mapping[Iterator, Expr], width: int) -> None:
    for values in product(*(range(x.lo, x.hi) for x in cases)):
        case = dict(zip(cases, values, strict=True))
        here = {**env, **{x: tirx.const(n, "int32") for x, n in case.items()}}
        _vector(writer, stage, case, here, width)


def _chunks(last: Iterator, lanes: int) -> list[tuple[int, int, int]]:
    """(first, how many, width) of the vectors along *last*: whole ones, then what is left."""
    whole, rest = divmod(last.extent, lanes)
    return [(first, n, width) for first, n, width in ((0, whole, lanes), (whole * lanes, 1, rest)) if n * width]


def _vector(writer: Writer, stage: Local, case: Mapping[Iterator, int], env: dict[Iterator, Expr], width: int) -> None:
    memory = writer.memory[stage.memory]
    body = terms(stage, case)
    if body is not None:
        with T.vectorized(width) as lane:
            here = {**env, lane_of(width): lane}
            T.buffer_store(memory, writer.value(body, here), [writer.at(stage.place, here)])
        return
    total = T.alloc_buffer((width,))
    with T.vectorized(width) as lane:
        T.buffer_store(total, tirx.const(0.0, "float32"), [lane])
    with ExitStack() as inside:
        sums = writer.loops(stage.sums, {}, inside)
        with T.vectorized(width) as lane:
            here = {**env, **sums, lane_of(width): lane}
            T.buffer_store(total, total[lane] + writer.value(stage.body, here), [lane])
    with T.vectorized(width) as lane:
        T.buffer_store(memory, total[lane], [writer.at(stage.place, {**env, lane_of(width): lane})])
