"""Fission of a block of threads into loops, for a CPU.

A kernel without barriers is one loop over its threads.  A barrier ends that loop and begins another.  A loop or a
condition around a barrier, on which all threads agree (``check_kernel`` verifies it), goes outside the loops over
threads.  A variable or an array that is live across a barrier becomes an array with one part a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from einnet_explore.codegen.language.statements import (
    PACK_BYTES,
    Assign,
    Barrier,
    Comment,
    Copy,
    Declare,
    For,
    Kernel,
    LoadPair,
    LocalArray,
    PairOperation,
    Statement,
    Store,
    StorePair,
    StoreTransposed,
    accessed_arrays,
    all_statements,
    assigned_names,
    check_kernel,
    declared_names,
    has_barrier,
    is_uniform,
    launch_indices,
    map_bodies,
    replace_expressions,
    rewrite_statement,
    used_names,
)
from einnet_explore.codegen.language.values import I32, Array, Expr, LaunchIndex, Literal, Load, Var, cast
from einnet_explore.support.errors import Refused

CACHE_LINE_BYTES = 64
"""Vectors of every CPU are aligned in arrays that begin at a multiple of this."""


@dataclass(frozen=True)
class PerThreadArray:
    """An expansion of *old*, private to a thread: its element i is element ``i·scale + place·stride`` of *array*."""

    old: Var | Array
    array: Array
    scale: int = 1
    stride: int = 1

    def of(self, kernel: Kernel, statement: Statement) -> Statement:
        """Return *statement* with *array* in the place of *old*."""
        place: Expr = Literal(0, I32)
        for d in range(3):
            if kernel.block[d] > 1:
                place = place + LaunchIndex("thread", d) * prod(kernel.block[:d])
        match self.old:
            case Var() as var:
                return _replace_variable(statement, var, Load(self.array, place))
            case Array():
                return self._replace_elements(statement, place * self.stride)

    def _at(self, index: Expr, place: Expr) -> Expr:
        return index * self.scale + cast(index.type, place)

    def _replace_elements(self, s: Statement, place: Expr) -> Statement:
        def expand_load(e: Expr) -> Expr | None:
            match e:
                case Load(array, index) if array == self.old:
                    return Load(self.array, self._at(replace_expressions(index, expand_load), place))
            return None

        s = rewrite_statement(s, expand_load)
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
                raise Refused(f"array {self.array.name} is kept over a barrier, and a pair of it computed at once")
            case StoreTransposed(tile=tile) if self.old == tile:
                raise Refused(f"array {self.array.name} is kept over a barrier, and transposed")
        return map_bodies(s, lambda body: (self._replace_elements(b, place) for b in body))


def expand_per_thread(old: Var | Array, body: list[Statement], threads: int) -> PerThreadArray:
    """Expand *old* to an array of the block.

    Neighbouring threads are neighbours in memory, unless several elements are moved at once.
    """
    name = f"{old.name} of each"
    match old:
        case Var(_, kind):
            return PerThreadArray(old, Array(name, kind, threads, "private", align=CACHE_LINE_BYTES))
        case Array(_, kind, size):
            if not any(_is_moved_whole(s, old) for s in body):
                return PerThreadArray(
                    old, Array(name, kind, size * threads, "private", align=CACHE_LINE_BYTES), threads, 1
                )
            each = -(-size * kind.size // PACK_BYTES) * PACK_BYTES // kind.size
            return PerThreadArray(old, Array(name, kind, each * threads, "private", align=CACHE_LINE_BYTES), 1, each)


def _is_moved_whole(s: Statement, array: Array) -> bool:
    several = (Copy, StorePair, LoadPair, PairOperation, StoreTransposed)
    return any(isinstance(b, several) and array in accessed_arrays(b) for b in all_statements((s,)))


def _replace_variable(s: Statement, old: Var, new: Load) -> Statement:
    s = rewrite_statement(s, lambda e: new if e == old else None)
    match s:
        case Assign(var, value) if var == old:
            return Store(new.array, new.index, value)
    return map_bodies(s, lambda body: (_replace_variable(b, old, new) for b in body))


def fission_at_barriers(kernel: Kernel) -> tuple[Statement, ...]:
    """Return the body of *kernel* for a whole block, without barriers and thread indices; block indices stay.

    Raises Refused for a kernel that breaks a rule of the language.
    """
    check_kernel(kernel)
    if kernel.threads == 1:
        return tuple(_without_threads(kernel.body))
    params = frozenset(p.name for p in kernel.params if isinstance(p, Var))
    lists = _Block(kernel, assigned_names(kernel.body))
    return tuple(lists.split(kernel.body, params))


def _without_threads(body: Iterable[Statement]) -> Iterable[Statement]:
    """Return the body of a block of one thread: no barriers, thread index 0."""
    zero = Literal(0, I32)
    for s in body:
        if not isinstance(s, Barrier):
            here = rewrite_statement(s, lambda e: zero if isinstance(e, LaunchIndex) and e.of == "thread" else None)
            yield map_bodies(here, _without_threads)


@dataclass(frozen=True)
class _Block:
    kernel: Kernel
    changing: frozenset[str]

    def split(self, body: tuple[Statement, ...], alike: frozenset[str]) -> Iterable[Statement]:
        """Split *body* into loops over threads, one from barrier to barrier; *alike*: names with one value a block."""
        first, spread, rest = self._split_declarations(body, alike)
        alike |= {s.var.name for s in first if isinstance(s, Declare)}
        yield from first
        yield from (LocalArray(one.array) for one in spread)
        run: list[Statement] = []
        for as_written in rest:
            s = as_written
            for one in spread:
                s = one.of(self.kernel, s)
            if not has_barrier(s):
                run.append(s)
                continue
            yield from self._loop_over_threads(run)
            run = []
            if not isinstance(s, Barrier):
                inside = alike | {s.var.name} if isinstance(s, For) else alike
                yield map_bodies(s, partial(self.split, alike=inside))
        yield from self._loop_over_threads(run)

    def _split_declarations(
        self, body: tuple[Statement, ...], alike: frozenset[str]
    ) -> tuple[list[Statement], list[PerThreadArray], list[Statement]]:
        """Return (declarations once a block, arrays with one element a thread, the other statements)."""
        first: list[Statement] = []
        rest: list[Statement] = []
        for s in body:
            match s:
                case LocalArray(Array(space="shared")):
                    first.append(s)
                case Declare(var, value) if value and var.name not in self.changing and is_uniform(value, alike):
                    first.append(s)
                    alike |= {var.name}
                case _:
                    rest.append(s)
        far = _live_across_barriers(rest)
        spread: list[Var | Array] = []
        kept: list[Statement] = []
        for s in rest:
            match s:
                case Declare(var, value) if var.name in far:
                    spread.append(var)
                    kept += [Assign(var, value)] if value is not None else []
                case LocalArray(array) if array.name in far:
                    spread.append(array)
                case LoadPair(left, right, array, index) if {left.name, right.name} & far:
                    spread += [left, right]
                    kept += [Assign(var, Load(array, index + n)) for n, var in enumerate((left, right))]
                case _:
                    kept.append(s)
        return first, [expand_per_thread(old, kept, self.kernel.threads) for old in spread], kept

    def _loop_over_threads(self, run: list[Statement]) -> Iterable[Statement]:
        """Run *run* for every thread; comments alone need no loop."""
        if all(isinstance(s, Comment) for s in run):
            yield from run
            return
        body: tuple[Statement, ...] = tuple(
            rewrite_statement(s, lambda e: _thread(e.dim) if isinstance(e, LaunchIndex) and e.of == "thread" else None)
            for s in run
        )
        # The first dimension runs fastest, as it does on a GPU; a barrier's promise is that threads are independent.
        dims = [d for d in range(3) if self.kernel.block[d] > 1]
        for d in dims:
            body = (
                replace(
                    _loop(d, self.kernel.block[d], body),
                    simd=d == dims[0] and not any(isinstance(s, For) for s in all_statements(run)),
                ),
            )
        lone = {d for d in range(3) if self.kernel.block[d] == 1 and LaunchIndex("thread", d) in launch_indices(run)}
        yield from (
            rewrite_statement(s, lambda e: Literal(0, I32) if e in {_thread(d) for d in lone} else None) for s in body
        )


def _loop(d: int, extent: int, body: tuple[Statement, ...]) -> For:
    return For(_thread(d), Literal(0, I32), Literal(extent, I32), Literal(1, I32), body)


def _thread(d: int) -> Var:
    return Var(f"thread {'xyz'[d]}", I32)


def _live_across_barriers(body: list[Statement]) -> frozenset[str]:
    """Return the names declared in *body* that are used on the other side of a barrier."""
    home: dict[str, int] = {}
    far: set[str] = set()
    part = 0
    for s in body:
        inside = has_barrier(s)
        part += inside
        far |= {name for name in used_names(s) if name in home and (inside or home[name] != part)}
        home |= dict.fromkeys(declared_names(s), part)
        part += inside
    return frozenset(far)
