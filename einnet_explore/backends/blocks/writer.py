"""Loops and scalars of a block: what its stages are written with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx.script.builder import ir as T

from einnet_explore.backends.blocks.local import Guard
from einnet_explore.backends.emit import constant, expression, position
from einnet_explore.ir import Access, Const, Index, Iterator, Scalar, Scope, Table, Tensor, map_accesses
from einnet_explore.kernels.machine import Machine

Expr = Any
Env = Mapping[Iterator, Expr]


@dataclass(frozen=True)
class Writer:
    """What stages read and write: flat *memory* by name, on *machine*; *block* are the numbers of the block."""

    memory: Mapping[str, Any]
    machine: Machine
    block: Env

    def at(self, index: Index, env: Env) -> Expr:
        """*index* where iterators stand for *env*, or for the block's numbers."""
        return position(index, {**self.block, **env})

    def value(self, body: Scalar, env: Env, given: Mapping[Access, Expr] | None = None) -> Expr:
        """*body* where iterators stand for *env*; *given* accesses stand for what they are given."""
        read: dict[str, Expr] = {}

        def put(access: Access) -> Access:
            name = f"@{len(read)}"
            if given and access in given:
                read[name] = given[access]
            else:
                assert isinstance(access.source, Tensor)
                read[name] = self.memory[access.source.name][self.at(access.index[0], env)]
            return Tensor(name, ())[()]

        def element(source: Tensor | Table | Scope) -> Callable[..., Expr]:
            assert isinstance(source, Tensor)
            return lambda: read[source.name]

        return expression(map_accesses(body, put), {**self.block, **env}, element, "float32")

    def holds(self, guard: Guard, env: Env) -> Expr:
        """Whether *guard* lets its loop's value through."""
        at = self.at(guard.index, env)
        return tirx.all(at >= guard.lo, at < guard.hi)

    def loops(
        self, over: Iterable[Iterator], guards: Mapping[Iterator, Guard], inside: ExitStack
    ) -> dict[Iterator, Expr]:
        """Loops over *over*, entered into *inside*, each around what its guard lets through."""
        env: dict[Iterator, Expr] = {}
        for x in over:
            if x.extent == 1:
                env[x] = tirx.const(x.lo, "int32")
            else:
                count = inside.enter_context(T.serial(x.extent))
                env[x] = count + x.lo if x.lo else count
            if x in guards:
                inside.enter_context(T.If(self.holds(guards[x], env)))
                inside.enter_context(T.Then())
        return env

    def fill(self, memory: str, over: tuple[Iterator, ...], place: Index, value: float) -> None:
        """*value* at every *place*, which counts on along the last of *over*."""
        *outer, last = over
        lanes = self.machine.lanes
        short = last.extent < lanes
        if short or not (last.extent % lanes or last.lo):
            width = min(last.extent, lanes)
            chunk = Iterator(last.name, 0, last.extent // width)
        else:
            chunk, width = replace(last, lo=0, hi=last.extent), 1
        with ExitStack() as inside:
            env = self._one_loop(outer, inside) if short else self.loops(outer, {}, inside)
            env |= self.loops((chunk,), {}, inside)
            first = env[chunk] * width + last.lo
            with T.vectorized(width) as lane:
                at = self.at(place, {**env, last: first + lane})
                T.buffer_store(self.memory[memory], constant(value, "float32"), [at])

    @staticmethod
    def _one_loop(over: Sequence[Iterator], inside: ExitStack) -> dict[Iterator, Expr]:
        """One loop over *over*, entered into *inside*.

        Of several with a few elements in them LLVM writes every turn out, which takes it minutes.
        """
        turns = prod(x.extent for x in over)
        left = inside.enter_context(T.serial(turns)) if turns > 1 else tirx.const(0, "int32")
        env: dict[Iterator, Expr] = {}
        for x in reversed(over):
            env[x] = left % x.extent + x.lo
            left = left // x.extent
        return env


def along(body: Scalar | Index, x: Iterator) -> frozenset[int | None]:
    """How far the places of *body* move with *x*: None where they do not move evenly."""
    if isinstance(body, Index):
        k = body.coefficient(x)
        return frozenset({None if x in (body - x * k).iterators else k})
    out: set[int | None] = set()

    def see(access: Access) -> Scalar:
        for i in access.index:
            out.update(along(i, x))
        return Const(0)

    map_accesses(body, see)
    return frozenset(out)
