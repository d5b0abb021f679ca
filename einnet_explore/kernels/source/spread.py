"""A thread's own variable or array as an array with a part for every thread of the block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from einnet_explore.kernels.source.arrays import Array, Load
from einnet_explore.kernels.source.kernel import Kernel
from einnet_explore.kernels.source.statements import (
    PACK_BYTES,
    Assign,
    Copy,
    For,
    If,
    LoadPair,
    PairOperation,
    Statement,
    Store,
    StorePair,
    Turn,
    nested,
)
from einnet_explore.kernels.source.types import I32, KernelError
from einnet_explore.kernels.source.values import Expr, Id, Literal, Var, cast
from einnet_explore.kernels.source.walk import arrays, change, change_expressions

LINE = 64
"""Bytes: vectors of every CPU are aligned in arrays that begin at a multiple of this."""


@dataclass(frozen=True)
class Spread:
    """Element i of *old*, a thread's own, is element ``i·scale + place·stride`` of *array*."""

    old: Var | Array
    array: Array
    scale: int = 1
    stride: int = 1

    def of(self, kernel: Kernel, statement: Statement) -> Statement:
        """*statement* with *array* in the place of *old*."""
        place: Expr = Literal(0, I32)
        for d in range(3):
            if kernel.block[d] > 1:
                place = place + Id("thread", d) * prod(kernel.block[:d])
        match self.old:
            case Var() as var:
                return _assignments(statement, var, Load(self.array, place))
            case Array():
                return self._elements(statement, place * self.stride)

    def _at(self, index: Expr, place: Expr) -> Expr:
        return index * self.scale + cast(index.type, place)

    def _elements(self, s: Statement, place: Expr) -> Statement:
        def read(e: Expr) -> Expr | None:
            match e:
                case Load(array, index) if array == self.old:
                    return Load(self.array, self._at(change(index, read), place))
            return None

        s = change_expressions(s, read)
        match s:
            case Store(array, index, value) if array == self.old:
                return Store(self.array, self._at(index, place), value)
            case StorePair(array=array, index=index) | LoadPair(array=array, index=index) if array == self.old:
                return replace(s, array=self.array, index=self._at(index, place))
            case Copy(target, write, source, at):
                if target == self.old:
                    target, write = self.array, self._at(write, place)
                if source == self.old:
                    source, at = self.array, self._at(at, place)
                return replace(s, target=target, write=write, source=source, read=at)
            case PairOperation(target=target, left=left, right=right) if self.old in (target, left, right):
                # All three have one index: they are loaded and stored one after the other instead.
                raise KernelError(f"array {self.array.name} is kept over a barrier, and a pair of it computed at once")
            case Turn(tile=tile) if self.old == tile:
                raise KernelError(f"array {self.array.name} is kept over a barrier, and turned")
            case For(body=body):
                return replace(s, body=tuple(self._elements(b, place) for b in body))
            case If(condition, then, orelse):
                return If(
                    condition,
                    tuple(self._elements(b, place) for b in then),
                    tuple(self._elements(b, place) for b in orelse),
                )
        return s


def spread_out(old: Var | Array, body: list[Statement], threads: int) -> Spread:
    """Neighbouring threads are neighbours in memory, unless several elements are moved at once."""
    name = f"{old.name} of each"
    match old:
        case Var(_, kind):
            return Spread(old, Array(name, kind, threads, "private", align=LINE))
        case Array(_, kind, size):
            if not any(_moved(s, old) for s in body):
                return Spread(old, Array(name, kind, size * threads, "private", align=LINE), threads, 1)
            each = -(-size * kind.size // PACK_BYTES) * PACK_BYTES // kind.size
            return Spread(old, Array(name, kind, each * threads, "private", align=LINE), 1, each)


def _moved(s: Statement, array: Array) -> bool:
    match s:
        case Copy() | StorePair() | LoadPair() | PairOperation() | Turn():
            return array in arrays(s)
        case _:
            return any(_moved(b, array) for body in nested(s) for b in body)


def _assignments(s: Statement, old: Var, new: Load) -> Statement:
    s = change_expressions(s, lambda e: new if e == old else None)
    match s:
        case Assign(var, value) if var == old:
            return Store(new.array, new.index, value)
        case For(body=body):
            return replace(s, body=tuple(_assignments(b, old, new) for b in body))
        case If(condition, then, orelse):
            return If(
                condition,
                tuple(_assignments(b, old, new) for b in then),
                tuple(_assignments(b, old, new) for b in orelse),
            )
    return s
