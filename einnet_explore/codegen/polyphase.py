r"""Polyphase kernels for a CPU: traversals are split into ranges and phases, so that no condition is left inside loops.

.. math::
   x + c = P u + q \;\Rightarrow\; \lfloor (x + c) / P \rfloor = u, \quad (x + c) \bmod P = q,
   \qquad 0 \le q < P

Ranges end where reads enter or leave their tensors. Phases are counted from the windows (`x + c`, not `x`), so that an
overlap-add reads whole pieces of each window. Inside a range a read is always inside or always outside its tensor; the
sums of contiguous reads that remain are vectorised by compilers. Each element is gathered, so each read of the scope
is one load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise, product
from math import lcm, prod

from einnet_explore.analysis.flattening import flat_address
from einnet_explore.analysis.indices import guard, read_indices, substitute
from einnet_explore.codegen.language import (
    F32,
    I64,
    Array,
    Copy,
    Declare,
    Expr,
    For,
    If,
    Kernel,
    LaunchIndex,
    Literal,
    LocalArray,
    Prefetch,
    Statement,
    Store,
    Var,
    cast,
    conjunction,
    counted_loop,
)
from einnet_explore.codegen.language.lowering import (
    FIRST_BLOCK,
    add_offset,
    element_address,
    lower_flat,
    lower_index,
    tensor_name,
)
from einnet_explore.codegen.language.statements import TILE_SIDES
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    Tensor,
    accesses,
    add,
    as_index,
    map_accesses,
    tensors,
    walk_scalar,
)
from einnet_explore.support.errors import Refused

MAX_POLYPHASE = 8
"""Phases that are written out, at most."""

VECTOR_LANES = 16
"""Elements of the longest vector."""


@dataclass(frozen=True)
class PolyphaseCut:
    """A traversal as `x = period·u + q - shift`; *ranges* of `u` between two cuts exclude their ends."""

    x: Iterator
    period: int
    shift: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def first(self) -> int:
        """The least `u`."""
        return self.ranges[0][0]

    @property
    def extent(self) -> int:
        """Number of values of `u`."""
        return self.ranges[-1][1] - self.ranges[0][0]

    def phases(self, at: tuple[int, int]) -> Iterable[tuple[Iterator, Index]]:
        """Yield (u between two cuts, the value of the traversal) for every phase within its range."""
        u = Iterator(f"{self.x.name}'", *at)
        for q in range(self.period):
            value = as_index(u) * self.period + (q - self.shift)
            if self.x.lo <= value.bounds[0] and value.bounds[1] < self.x.hi:
                yield u, value


def order_traversals(scope: Scope) -> tuple[tuple[Iterator, ...], tuple[Iterator, ...]]:
    """Return the traversals with loops, outermost first, and those whose few values are unrolled innermost.

    If the result's neighbours are k elements apart in the source, and a traversal of k values fills the gaps, that
    traversal goes innermost: each cache line is then read once.
    """
    reads = [flat for a in accesses(scope.body) if (flat := flat_address(a)).terms]
    *outer, last = scope.traversals
    apart = {abs(flat.coefficient(last)) for flat in reads}
    if len(reads) != 1 or len(apart) != 1 or not 1 < (k := apart.pop()) <= MAX_POLYPHASE or last.extent < VECTOR_LANES:
        return scope.traversals, ()
    between = tuple(x for x in outer if x.extent == k and reads[0].coefficient(x) == 1)
    if not between:
        return scope.traversals, ()
    rest = sorted((x for x in outer if x not in between), key=lambda x: -abs(reads[0].coefficient(x)))
    return (*rest, last), between


def cut_traversal(x: Iterator, body: Scalar) -> PolyphaseCut:
    found = {
        (atom.divisor, atom.numerator)
        for i in read_indices(body)
        for atom in i.divisions
        if x in atom.numerator.iterators
    }
    shift = 0
    for divisor, numerator in sorted(found, key=repr):
        rest = numerator - x
        if rest.terms or divisor > MAX_POLYPHASE:
            raise Refused(f"{numerator} is divided by {divisor}: expected one traversal, and at most {MAX_POLYPHASE}")
        shift = rest.const
    period = lcm(*(divisor for divisor, _ in found))
    if period > MAX_POLYPHASE:
        raise Refused(f"{x.name} has {period} phases, expected at most {MAX_POLYPHASE}")
    whole = Iterator(f"{x.name}'", (x.lo + shift) // period, (x.hi - 1 + shift) // period + 1)
    at = {whole.lo, whole.hi}
    for q in range(period):
        value = as_index(whole) * period + (q - shift)
        placed = substitute(body, {x: value})
        tests = [Compare(">=", value, as_index(x.lo)), Compare("<", value, as_index(x.hi)), *conditions_in(placed)]
        at.update(turn for t in tests if (turn := _threshold(t, whole)) is not None)
    return PolyphaseCut(x, period, shift, tuple(pairwise(sorted(at))))


def conditions_in(body: Scalar) -> Iterable[Compare]:
    """Yield the conditions in *body*."""
    return (part for part in walk_scalar(body) if isinstance(part, Compare))


def _threshold(test: Compare, u: Iterator) -> int | None:
    """Return the `u` at which the outcome of *test* changes, if it depends on nothing else."""
    rest = test.left - test.right
    k = rest.coefficient(u)
    if k == 0 or rest != as_index(u) * k + rest.const:
        return None
    # k·u + c ⋛ 0 changes at -c/k, for < and >= of a growing side there, else one further.
    turn = -(rest.const // k) if (test.op in (">=", "<")) == (k > 0) else -rest.const // k + 1
    return turn if u.lo < turn < u.hi else None


def fold_decided(body: Scalar) -> Scalar:
    """Return *body* without the conditions that always or never hold over the ranges of its iterators."""
    match body:
        case Apply("where", (Compare() as test, yes, no)):
            known = _constant_outcome(test)
            return (
                Apply("where", (test, fold_decided(yes), fold_decided(no)))
                if known is None
                else fold_decided(yes if known else no)
            )
        case Apply("+", args):
            return add(*map(fold_decided, args))
        case Apply(op, args):
            return Apply(op, tuple(map(fold_decided, args)))
        case Access() | Const() | Compare():
            return body


def _constant_outcome(test: Compare) -> bool | None:
    least, most = (test.left - test.right).bounds
    match test.op:
        case ">=":
            return True if least >= 0 else False if most < 0 else None
        case ">":
            return True if least > 0 else False if most <= 0 else None
        case "<":
            return True if most < 0 else False if least >= 0 else None
        case "<=":
            return True if most <= 0 else False if least > 0 else None
        case "==":
            return True if least == most == 0 else False if least > 0 or most < 0 else None
    return None


MAX_ADDRESSES = 1 << 62
"""More elements than any tensor has."""

MAX_PIECE_READS = 400
"""Reads in all pieces of a kernel, at most."""


def regions_kernel(scope: Scope, result: str) -> tuple[Kernel, int]:
    """Return (the kernel that computes *scope* into *result*, its blocks): tensors, the result, ``FIRST_BLOCK``.

    Raises Refused for reductions, reads of scopes and tables, phases of several traversals, and if there is nothing to
    cut or too much.
    """
    if scope.summations or scope.domain or any(not isinstance(a.source, Tensor) for a in accesses(scope.body)):
        raise Refused("the scope reduces, or reads other scopes: expected reads of tensors only")
    if not scope.traversals or prod(scope.shape) == 0:
        raise Refused("the scope has no traversals or no elements")
    body = map_accesses(scope.body, _guard_read)
    order, turned = order_traversals(scope)
    cuts = tuple(cut_traversal(x, body) for x in order)
    pieces = prod(sum(len(tuple(c.phases(r))) for r in c.ranges) for c in cuts)
    reads = sum(1 for _ in accesses(body))
    pieces *= prod(x.extent for x in turned)
    if pieces == 1 or pieces * reads > MAX_PIECE_READS:
        raise Refused(f"{pieces} pieces of {reads} reads: expected 2 and more, {MAX_PIECE_READS} reads in all")
    read = {t.name: Array(t.name, F32, const=True, noalias=True) for t in tensors(scope)}
    writer = _Writer(scope, cuts, turned, read, Array(result, F32))
    first, block = Var(FIRST_BLOCK, I64), Var(":block", I64)
    inside = (Declare(block, cast(I64, LaunchIndex("block")) + first), *writer.block(body, block))
    return Kernel("regions", (*read.values(), writer.result, first), inside), writer.blocks


def _guard_read(access: Access) -> Scalar:
    """Return a read with explicit conditions."""
    return guard(access.index, access.source.box, access, access.source.value)


@dataclass(frozen=True)
class _Writer:
    scope: Scope
    cuts: tuple[PolyphaseCut, ...]
    turned: tuple[Iterator, ...]
    read: Mapping[str, Array]
    result: Array
    rows: count[int] = field(default_factory=count)
    """Numbers for short rows: several may stand in one block."""

    @property
    def blocks(self) -> int:
        """One for every `u` of the outermost traversal, or one if the innermost is the only one."""
        return self.cuts[0].extent if len(self.cuts) > 1 else 1

    def block(self, body: Scalar, block: Var) -> Iterable[Statement]:
        """Yield the statements of a block."""
        if len(self.cuts) == 1:
            yield from self._loops(body, 0, {}, {})
            return
        outermost = self.cuts[0]
        u = Var(":u 0", I64)
        yield Declare(u, add_offset(block, outermost.first))
        for at in outermost.ranges:
            lo, hi = at
            inside = self._phases(body, 0, at, u, {}, {})
            later = [u.ge(lo)] if at != outermost.ranges[0] else []
            sooner = [u.lt(hi)] if at != outermost.ranges[-1] else []
            test = conjunction(*later, *sooner)
            yield from inside if test is None else (If(test, tuple(inside)),)

    def _loops(
        self, body: Scalar, depth: int, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]
    ) -> list[Statement]:
        """Return the loops from traversal number *depth* on; *where* holds the values of the outer ones."""
        if depth == len(self.cuts):
            values = product(*(range(x.lo, x.hi) for x in self.turned))
            each = (dict(zip(self.turned, map(as_index, v), strict=True)) for v in values)
            return [self._store(fold_decided(substitute(body, to)), at, {**where, **to}) for to in each]
        body = fold_decided(body)
        here, out = self.cuts[depth], list[Statement]()
        for lo, hi in here.ranges:
            u = Var(f":u {depth}", I64)
            inside = self._phases(body, depth, (lo, hi), u, at, where)
            if inside:
                last = depth + 1 == len(self.cuts)
                for begin, end in _vector_ranges(lo, hi) if last else ((lo, hi),):
                    bounds = (Literal(begin, I64), Literal(end, I64), Literal(1, I64))
                    out.append(For(u, *bounds, tuple(inside), simd=last))
        return out

    def _phases(
        self,
        body: Scalar,
        depth: int,
        between: tuple[int, int],
        u: Expr,
        at: Mapping[Iterator, Expr],
        where: Mapping[Iterator, Index],
    ) -> list[Statement]:
        """Return the body of the loop over traversal number *depth* for `u` *between* two cuts."""
        x = self.cuts[depth].x
        phases = tuple(self.cuts[depth].phases(between))
        if self._short and depth + 2 == len(self.cuts):
            return list(self._rows(body, x, phases, {**at, **{iterator: u for iterator, _ in phases}}, where))
        return [
            s
            for iterator, value in phases
            for s in self._loops(substitute(body, {x: value}), depth + 1, {**at, iterator: u}, {**where, x: value})
        ]

    @property
    def _short(self) -> bool:
        """True if the innermost traversal, in one piece, fills no vector."""
        last = self.cuts[-1]
        return not self.turned and last.period == len(last.ranges) == 1 and last.x.extent < VECTOR_LANES

    def _rows(
        self,
        body: Scalar,
        x: Iterator,
        phases: Sequence[tuple[Iterator, Index]],
        at: Mapping[Iterator, Expr],
        where: Mapping[Iterator, Index],
    ) -> Iterable[Statement]:
        """Yield short rows, one for each of the *phases* of *x*; rows consecutive in all tensors are joined."""
        last = self.cuts[-1].x
        todo = [(value, fold_decided(substitute(body, {x: value}))) for _, value in phases]
        while todo:
            value, first = todo[0]
            here = [
                v == value + n
                and _with_addresses(b) == _with_addresses(substitute(first, {last: last + n * last.extent}))
                for n, (v, b) in enumerate(todo)
            ]
            joined = next((n for n, continued in enumerate(here) if not continued), len(todo))
            todo = todo[joined:]
            yield from self._row(first, joined * last.extent, at, {**where, x: value})

    def _row(
        self, body: Scalar, width: int, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]
    ) -> Iterable[Statement]:
        """Yield *width* neighbours as one vector, which may read and compute more elements than it stores."""
        last = self.cuts[-1].x
        lanes = next((n for n in sorted(TILE_SIDES) if n >= width), 0)
        v = Var(":v", I64)
        longer = Iterator(f"{last.name}'", last.lo, last.lo + max(lanes, width))
        body = substitute(body, {last: longer})
        inside = all(
            lo >= 0 and hi < prod(a.source.shape) for a in accesses(body) for lo, hi in (flat_address(a).bounds,)
        )
        if not lanes or not inside or any(conditions_in(body)):
            bounds = (Literal(last.lo, I64), Literal(last.lo + width, I64), Literal(1, I64))
            yield For(v, *bounds, (self._store(body, {**at, longer: v}, {**where, last: as_index(longer)}),), simd=True)
            return
        yield from self._prefetch_next_row(body, {**at, longer: Literal(last.lo, I64)})
        row = Array(f":row {next(self.rows)}", F32, lanes, "private", align=lanes * F32.size)
        yield LocalArray(row)
        yield counted_loop(
            v, lanes, Store(row, v, lower_flat(body, {**at, longer: add_offset(v, last.lo)}, self.read)), hint="vector"
        )
        index = tuple(where.get(x, as_index(x.lo)) - x.lo for x in self.scope.traversals)
        yield Copy(self.result, element_address(self.scope.shape, index, at), row, Literal(0, I64), width)

    def _prefetch_next_row(self, body: Scalar, at: Mapping[Iterator, Expr]) -> Iterable[Statement]:
        """Prefetch the reads of the next row of rows: hardware does not predict short rows that lie apart."""
        if len(self.cuts) < 3:
            return
        rows = f"{self.cuts[-3].x.name}'"
        for access in dict.fromkeys(accesses(body)):
            place = flat_address(access)
            step = sum(k for y, k in place.terms if isinstance(y, Iterator) and y.name == rows)
            if step:
                yield Prefetch(self.read[tensor_name(access.source)], lower_index(place + step, at, I64))

    def _store(self, body: Scalar, at: Mapping[Iterator, Expr], where: Mapping[Iterator, Index]) -> Statement:
        index = tuple(where[x] - x.lo for x in self.scope.traversals)
        return Store(self.result, element_address(self.scope.shape, index, at), lower_flat(body, at, self.read))


def _with_addresses(body: Scalar) -> Scalar:
    """Return *body* with flat positions for indices."""
    return map_accesses(body, lambda a: Access(Tensor(tensor_name(a.source), (MAX_ADDRESSES,)), (flat_address(a),)))


def _vector_ranges(lo: int, hi: int) -> tuple[tuple[int, int], ...]:
    """Split the range into whole vectors: the last one overlaps its predecessor if needed."""
    rest = (hi - lo) % VECTOR_LANES
    return ((lo, hi),) if hi - lo <= VECTOR_LANES or not rest else ((lo, hi - rest), (hi - VECTOR_LANES, hi))
