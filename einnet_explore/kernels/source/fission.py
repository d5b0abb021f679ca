"""A block of threads as loops, for a CPU: fission at barriers.

A kernel without barriers is one loop over its threads.  A barrier ends that loop, and another begins; a loop or a
condition around a barrier, on which all threads agree (``check`` sees to it), goes outside of the loops over threads.
What a thread keeps from one such loop to the next becomes an array with one element a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.kernels.source.arrays import Array, Load
from einnet_explore.kernels.source.check import check, uniform
from einnet_explore.kernels.source.kernel import Kernel
from einnet_explore.kernels.source.spread import Spread, spread_out
from einnet_explore.kernels.source.statements import (
    Assign,
    Barrier,
    Declare,
    For,
    If,
    LoadPair,
    Local,
    Note,
    Statement,
    has_barrier,
    nested,
)
from einnet_explore.kernels.source.types import I32
from einnet_explore.kernels.source.values import Id, Literal, Var
from einnet_explore.kernels.source.walk import assigned, change_expressions, declared, ids, used


def fissioned(kernel: Kernel) -> tuple[Statement, ...]:
    """The body of *kernel* for a whole block, without barriers and without ids of threads; ids of blocks stay.

    Raises KernelError for a kernel that breaks a rule of the language.
    """
    check(kernel)
    if kernel.threads == 1:
        return tuple(_alone(kernel.body))
    params = frozenset(p.name for p in kernel.params if isinstance(p, Var))
    lists = _Block(kernel, assigned(kernel.body))
    return tuple(lists.split(kernel.body, params))


def _alone(body: Iterable[Statement]) -> Iterable[Statement]:
    """One thread is a block: barriers go, and its place is 0."""
    for s in body:
        here = change_expressions(s, lambda e: Literal(0, I32) if isinstance(e, Id) and e.of == "thread" else None)
        match here:
            case Barrier():
                pass
            case For(body=inner):
                yield replace(here, body=tuple(_alone(inner)))
            case If(condition, then, orelse):
                yield If(condition, tuple(_alone(then)), tuple(_alone(orelse)))
            case _:
                yield here


@dataclass(frozen=True)
class _Block:
    kernel: Kernel
    changing: frozenset[str]

    def split(self, body: tuple[Statement, ...], alike: frozenset[str]) -> Iterable[Statement]:
        """*body* as loops over threads, one from barrier to barrier; *alike*: names with one value a block."""
        first, spread, rest = self._declarations(body, alike)
        alike |= {s.var.name for s in first if isinstance(s, Declare)}
        yield from first
        yield from (Local(one.array) for one in spread)
        run: list[Statement] = []
        for as_written in rest:
            s = as_written
            for one in spread:
                s = one.of(self.kernel, s)
            if not has_barrier(s):
                run.append(s)
                continue
            yield from self._threads(run)
            run = []
            match s:
                case For(var, body=inner):
                    yield replace(s, body=tuple(self.split(inner, alike | {var.name})))
                case If(condition, then, orelse):
                    yield If(condition, tuple(self.split(then, alike)), tuple(self.split(orelse, alike)))
        yield from self._threads(run)

    def _declarations(
        self, body: tuple[Statement, ...], alike: frozenset[str]
    ) -> tuple[list[Statement], list[Spread], list[Statement]]:
        """(what is declared once a block, what has one element a thread, the other statements)."""
        first: list[Statement] = []
        rest: list[Statement] = []
        for s in body:
            match s:
                case Local(Array(space="shared")):
                    first.append(s)
                case Declare(var, value) if value and var.name not in self.changing and uniform(value, alike):
                    first.append(s)
                    alike |= {var.name}
                case _:
                    rest.append(s)
        far = _far(rest)
        spread: list[Var | Array] = []
        kept: list[Statement] = []
        for s in rest:
            match s:
                case Declare(var, value) if var.name in far:
                    spread.append(var)
                    kept += [Assign(var, value)] if value is not None else []
                case Local(array) if array.name in far:
                    spread.append(array)
                case LoadPair(left, right, array, index) if {left.name, right.name} & far:
                    spread += [left, right]
                    kept += [Assign(var, Load(array, index + n)) for n, var in enumerate((left, right))]
                case _:
                    kept.append(s)
        return first, [spread_out(old, kept, self.kernel.threads) for old in spread], kept

    def _threads(self, run: list[Statement]) -> Iterable[Statement]:
        """*run* for every thread; nothing where it does nothing."""
        if all(isinstance(s, Note) for s in run):
            yield from run
            return
        body: tuple[Statement, ...] = tuple(
            change_expressions(s, lambda e: _thread(e.dim) if isinstance(e, Id) and e.of == "thread" else None)
            for s in run
        )
        # The first dimension runs fastest, as it does on a GPU; a barrier's promise is that threads are independent.
        dims = [d for d in range(3) if self.kernel.block[d] > 1]
        for d in dims:
            body = (_loop(d, self.kernel.block[d], body, simd=d == dims[0] and not _inner(run)),)
        lone = {d for d in range(3) if self.kernel.block[d] == 1 and Id("thread", d) in ids(run)}
        yield from (
            change_expressions(s, lambda e: Literal(0, I32) if e in {_thread(d) for d in lone} else None) for s in body
        )


def _inner(run: Iterable[Statement]) -> bool:
    return any(isinstance(s, For) or any(_inner(b) for b in nested(s)) for s in run)


def _loop(d: int, extent: int, body: tuple[Statement, ...], simd: bool) -> For:
    return For(_thread(d), Literal(0, I32), Literal(extent, I32), Literal(1, I32), body, simd=simd)


def _thread(d: int) -> Var:
    return Var(f"thread {'xyz'[d]}", I32)


def _far(body: list[Statement]) -> frozenset[str]:
    """The names declared in *body* that are used on the other side of a barrier."""
    home: dict[str, int] = {}
    far: set[str] = set()
    part = 0
    for s in body:
        inside = has_barrier(s)
        part += inside
        far |= {name for name in used(s) if name in home and (inside or home[name] != part)}
        home |= dict.fromkeys(declared(s), part)
        part += inside
    return frozenset(far)
