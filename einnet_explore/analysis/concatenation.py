r"""Align how sibling expressions read one tensor, and concatenate their own operands.

**Alignment.**  Two expressions read a tensor alike if a matching of their iterators makes the index maps agree:

.. math::  \tau(\vec x)\big|_{\vec u = \vec u_0} = \tau'(\vec x' \mapsto \vec x + \vec\delta)

Iterators of one role (both traversals, or both summations) with one coefficient are matched, up to a shift.  A
summation of only one of the two is fixed to one value for the other: a window of one tap lies somewhere in the larger.
Source: EinNet §4.2, expression merging (:math:`X_1 \cup X_2 \subseteq X`), and Fig. 3.

**Concatenation.**  The siblings' own operands become zero-padded parts of one tensor, which are added up:

.. math::  K[\vec y, o_i + f] = K_i[\vec y, f], \qquad K[\vec y, o_i + f] = 0 \text{ for } \vec y \notin Y_i

It has a dimension for each index at which own operands are read, and one, n, for all traversals that the shared operand
lacks.

**Stacking.**  Tensors of one box along a new dimension in front: :math:`B[b, \vec z] = A_b[\vec z]`.  The stack
re-indexes one tensor where they are parts of it at equal distances; otherwise it is the sum of the tensors, each padded
with zeros in place of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from einnet_explore.analysis.equations import resolve_access
from einnet_explore.analysis.indices import IndexTerms, fresh_name, iterators_of, map_indices, read_indices
from einnet_explore.ir import (
    Access,
    Apply,
    Atom,
    Compare,
    Const,
    Equation,
    Index,
    IndexLike,
    Iterator,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    add,
    as_index,
    factors,
    mul,
    padded,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

Pairs: TypeAlias = "dict[Iterator, Iterator]"
"""Iterators of the second reading with their partners in the first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An index vector and its summed iterators; iterators of one value are replaced by that value."""

    index: tuple[Index, ...]
    summed: frozenset[Iterator]

    @staticmethod
    def of(scope: Scope, index: tuple[Index, ...]) -> Reading:
        """Return how *scope* reads at *index*."""
        return Reading(tuple(map(inline_unit_iterators, index)), frozenset(scope.summations))


@dataclass(frozen=True, slots=True)
class Alignment:
    """Map the iterators of *second* to those of *first*.

    *shift*: each matched iterator of the second as ``(iterator of the first, δ)``: it is that iterator plus δ.  *held*:
    summations of the first alone and their values for the second.  *extra*: summations of the second alone and their
    values for the first.
    """

    shift: Mapping[Iterator, tuple[Iterator, int]] = field(default_factory=dict)
    held: Mapping[Iterator, int] = field(default_factory=dict)
    extra: Mapping[Iterator, int] = field(default_factory=dict)


def align_readings(first: Reading, second: Reading) -> Alignment:
    """Match iterators so that both index vectors agree; raises ValueError with the first indices that differ."""
    if len(first.index) != len(second.index):
        raise ValueError(f"one reads {len(first.index)} dimensions, the other {len(second.index)}")
    for pairs in _matchings(first, second, 0, {}):
        if (found := _solve_shifts(first, second, pairs)) is not None:
            return found
    raise ValueError(_explain_mismatch(first, second))


def inline_unit_iterators(index: Index) -> Index:
    """Replace iterators of one value by that value."""
    if all(x.extent != 1 for x in index.iterators):
        return index
    return index.substitute(lambda x: x.lo if x.extent == 1 else x)


def _matchings(first: Reading, second: Reading, d: int, pairs: Pairs) -> Iterable[Pairs]:
    """Yield every consistent matching of the second's iterators with the first's, from dimension *d* on."""
    if d == len(first.index):
        yield pairs
        return
    for more in _terms(first.index[d].terms, second.index[d].terms, first, second, pairs):
        yield from _matchings(first, second, d + 1, more)


def _terms(ours: IndexTerms, theirs: IndexTerms, first: Reading, second: Reading, pairs: Pairs) -> Iterable[Pairs]:
    if not theirs:
        if all(isinstance(a, Iterator) and a in first.summed and a not in pairs.values() for a, _ in ours):
            yield pairs
        return
    (atom, k), rest = theirs[0], theirs[1:]
    for term in sorted(ours, key=lambda t: _size(t[0]) != _size(atom)):  # equal extents first
        if term[1] == k and (more := _pair_iterators(term[0], atom, first, second, pairs)) is not None:
            yield from _terms(tuple(t for t in ours if t != term), rest, first, second, more)
    if isinstance(atom, Iterator) and atom in second.summed and atom not in pairs:
        yield from _terms(ours, rest, first, second, pairs)


def _pair_iterators(a: Atom, b: Atom, first: Reading, second: Reading, pairs: Pairs) -> Pairs | None:
    """Extend *pairs* by the iterators of two atoms in order; None if they are inconsistent."""
    ours, theirs = _iterators(a), _iterators(b)
    if a.__class__ is not b.__class__ or len(ours) != len(theirs):
        return None
    out = dict(pairs)
    for x, y in zip(ours, theirs, strict=True):
        if (x in first.summed) != (y in second.summed) or out.get(y, x) != x or (y not in out and x in out.values()):
            return None
        out[y] = x
    return out


def _solve_shifts(first: Reading, second: Reading, pairs: Pairs) -> Alignment | None:
    """Solve for shifts and values that make the constants agree as well; None if there are none."""
    shift = {y: y.lo - x.lo for y, x in pairs.items()}
    held: dict[Iterator, int] = {}
    extra = {y: y.lo for j in second.index for y in j.iterators if y not in pairs}
    moved: set[Iterator] = set()
    for i, j in zip(first.index, second.index, strict=True):
        gap = _gap(i, j, Alignment({y: (x, shift[y]) for y, x in pairs.items()}, held, extra))
        alone = [x for x in i.iterators if x not in pairs.values()]
        if alone:
            value, left = divmod(-gap, i.coefficient(alone[0]))
            if left or any(
                held.setdefault(x, v) != v for x, v in zip(alone, (value, *(0 for _ in alone[1:])), strict=True)
            ):
                return None
        elif gap and (mine := [y for y in j.iterators if y in extra and j.coefficient(y)]):
            extra[mine[0]] += gap // j.coefficient(mine[0])
        elif gap:
            free = [y for y in j.iterators if y in pairs and y not in moved and j.coefficient(y)]
            y = min(free, key=lambda y: y not in second.summed, default=None)  # a summation rather than a traversal
            if y is None or gap % j.coefficient(y):
                return None
            shift[y] += gap // j.coefficient(y)
            moved.add(y)
    found = Alignment({y: (x, shift[y]) for y, x in pairs.items()}, held, extra)
    return found if all(_agree(i, j, found) for i, j in zip(first.index, second.index, strict=True)) else None


def _gap(i: Index, j: Index, found: Alignment) -> int:
    """Return the constant by which *i* exceeds *j*; iterators that only the first sums count as 0 until fixed."""
    partners = {x for x, _ in found.shift.values()}
    return i.substitute(lambda x: x if x in partners else found.held.get(x, 0)).const - _to_first(j, found).const


def _agree(i: Index, j: Index, found: Alignment) -> bool:
    return i.substitute(lambda x: found.held.get(x, x)) == _to_first(j, found)


def _to_first(j: Index, found: Alignment) -> Index:
    """Return *j*, of the second, as a function of the first's iterators."""

    def to(y: Iterator) -> IndexLike:
        if y in found.extra:
            return found.extra[y]
        x, by = found.shift[y]
        return x + by

    return j.substitute(to)


def _explain_mismatch(first: Reading, second: Reading) -> str:
    """Describe the first dimension that cannot agree by itself, or else that they cannot agree together."""
    for d, (i, j) in enumerate(zip(first.index, second.index, strict=True)):
        ours, theirs = Reading((i,), first.summed), Reading((j,), second.summed)
        if all(_solve_shifts(ours, theirs, pairs) is None for pairs in _matchings(ours, theirs, 0, {})):
            return f"dimension {d} is read at {_describe_index(i, first)} and at {_describe_index(j, second)}"
    both = [", ".join(map(repr, reading.index)) for reading in (first, second)]
    return f"no matching of iterators makes [{both[0]}] and [{both[1]}] one"


def _describe_index(index: Index, reading: Reading) -> str:
    ranges = (f"{x.name} ∈ [{x.lo}, {x.hi}){' summed' if x in reading.summed else ''}" for x in index.iterators)
    told = ", ".join(ranges)
    return f"{index} ({told})" if told else f"{index}"


def _iterators(atom: Atom) -> tuple[Iterator, ...]:
    return (atom,) if isinstance(atom, Iterator) else atom.numerator.iterators


def _size(atom: Atom) -> int:
    return sum(x.extent for x in _iterators(atom))


SHARED, OWN = (Tensor(name, ())[()] for name in ("shared", "own"))
"""The places of both operands in the outline of an expression."""


def outline_around(shared: Access, body: Scalar) -> tuple[Scalar, Scalar]:
    """Split *body* into an outline and the one operand that joins *shared* in it.

    A sum or product keeps everything without *shared* together: ``a*b*c`` around *b* has the operand ``a*c``.  Raises
    ValueError if there is no other operand, if several places have different ones, or if it is a condition.
    """
    own: dict[Scalar, None] = {}
    outline = _outline(shared, body, own)
    if not own:
        raise ValueError(f"{body!r} has no operand that joins {shared!r}")
    first, *others = own
    if others:
        raise ValueError(f"{shared!r} is joined by {first!r} and, at another place, by {others[0]!r}")
    if isinstance(first, Compare):
        raise ValueError(f"{first!r} decides where {shared!r} counts")
    return outline, first


def _outline(shared: Access, body: Scalar, own: dict[Scalar, None]) -> Scalar:
    if body == shared:
        return SHARED
    if shared not in accesses(body):
        if isinstance(body, Const):
            return body
        own[body] = None
        return OWN
    assert isinstance(body, Apply)
    args = body.args
    if SCALAR_FUNCTIONS[body.op].is_commutative:
        args = tuple(sorted(args, key=lambda arg: shared not in accesses(arg)))
    if body.op not in "+*":
        return Apply(body.op, tuple(_outline(shared, arg, own) for arg in args))
    join = add if body.op == "+" else mul
    around = tuple(_outline(shared, arg, own) for arg in args if shared in accesses(arg))
    rest = args[len(around) :]
    return join(*around, *([_outline(shared, join(*rest), own)] if rest else ()))


Span: TypeAlias = "tuple[int, int]"
Spans: TypeAlias = "dict[str, Span]"


@dataclass(frozen=True, slots=True)
class Sibling:
    """An expression of a *shared* operand and its *own* one: *outline* with ``SHARED`` and ``OWN`` in their places.

    *read* is the access to which *shared* resolves.
    """

    name: str
    scope: Scope
    shared: Access
    read: Access
    own: Scalar
    outline: Scalar

    @property
    def tied_indices(self) -> tuple[Index, ...]:
        """The indices of own factors that move along with the shared one, such as a window."""
        return tuple(
            i for i in map(inline_unit_iterators, read_indices(self.own)) if len(i.iterators) > 1 and self._follows(i)
        )

    @property
    def free(self) -> tuple[Iterator, ...]:
        """The traversals that need no partner: those of several values, or else the last of the others."""
        bound = self._bound()
        held = iterators_of(self.own)
        found = tuple(x for x in self.scope.traversals if x not in bound)
        return tuple(x for x in found if x.extent > 1) or tuple(x for x in found if x in held)[-1:]

    @property
    def reading(self) -> Reading:
        """The indices that must agree with those of other siblings."""
        return Reading.of(self.scope, (*self.read.index, *self.tied_indices))

    def _follows(self, i: Index) -> bool:
        return not self._bound().isdisjoint(i.iterators)

    def _bound(self) -> frozenset[Iterator]:
        """Return the iterators of the shared factor, and all that occur in one index with one of them."""
        bound = {x for i in self.read.index for x in i.iterators}
        for _ in self.scope.traversals:
            for i in map(inline_unit_iterators, read_indices(self.own)):
                if not bound.isdisjoint(i.iterators):
                    bound.update(i.iterators)
        return frozenset(bound)


@dataclass(slots=True)
class Member:
    """A sibling in the merged iterators: its iterators as functions of them, and the part of each that it needs."""

    sibling: Sibling
    to: dict[Iterator, Index]
    span: Spans
    first: int = 0

    @property
    def count(self) -> int:
        """The number of values of the merged free traversal that belong to this sibling."""
        return prod(x.extent for x in self.sibling.free)


class Slots:
    """The dimensions of the concatenated operand: one for each index of own factors, and one for free traversals."""

    def __init__(
        self, members: list[Member], now: Mapping[Iterator, Iterator], n: Iterator, windows: tuple[Iterator, ...]
    ) -> None:
        self.members, self.now, self.n = members, now, n
        self.offset: dict[Index | None, int] = {}
        for member in members:
            for i in read_indices(member.sibling.own):
                form, const = self._form(member, i)
                if form is None or form.terms:
                    self.offset.setdefault(form, const if form is not None and form.single is None else 0)
        for form in (*map(as_index, windows), None):  # a window of one, and no free traversal at all
            self.offset.setdefault(form, 0)
        taken = {n.name, *(x.name for x in now.values())}
        self.names: dict[Index | None, str] = {}
        for form in self.offset:
            single = n if form is None else form.single
            self.names[form] = single.name if single else fresh_name("z", {*taken, *self.names.values()})

    def operand(self, name: str) -> tuple[Equation, tuple[Index, ...]]:
        """Return the operand (the sum of all own factors, zero-padded to its box) and the index at which it is read."""
        index = tuple(as_index(self.n) if form is None else form + c for form, c in self.offset.items())
        own = [self._box(member) for member in self.members]
        box = {
            form: Iterator(name, min(o[form].lo for o in own), max(o[form].hi for o in own))
            for form, name in self.names.items()
        }
        box[None] = self.n
        parts = []
        for member, here in zip(self.members, own, strict=True):
            first = {form: member.first if form is None else 0 for form in self.names}
            padding = tuple((here[f].lo + first[f] - box[f].lo, box[f].hi - here[f].hi - first[f]) for f in self.names)
            part = Scope(tuple(here.values()), (), self._own(member, here))
            parts.append(Access(padded(part, padding), tuple(box[form] - first[form] for form in self.names)))
        read = ((z, i.bounds) for z, i in zip(box.values(), index, strict=True))
        beyond = tuple((max(0, z.lo - lo), max(0, hi + 1 - z.hi)) for z, (lo, hi) in read)
        whole = padded(Scope(tuple(box.values()), (), add(*parts)), beyond)
        assert isinstance(whole, Scope)
        return Equation(name, whole), index

    def _box(self, member: Member) -> dict[Index | None, Iterator]:
        """Return the box of one member's part: only what it reads, without zeros that are padding."""
        out: dict[Index | None, Iterator] = {}
        stored: dict[Index | None, Span] = {}
        for access in factors(member.sibling.own):
            if isinstance(access, Access) and access.source.value == 0:
                for i, (lo, hi) in zip(access.index, access.source.box, strict=True):
                    form, const = self._form(member, i)
                    stored.setdefault(form, (lo - const, hi - const))
        for form, name in self.names.items():
            if form is None:
                out[form] = Iterator(name, 0, member.count)
                continue
            lo, hi = form.substitute(lambda x: Iterator(x.name, *member.span[x.name])).bounds
            if form.single is None and form in stored:
                lo, hi = max(lo, stored[form][0]), min(hi, stored[form][1] - 1)
            out[form] = Iterator(name, lo + self.offset[form], hi + 1 + self.offset[form])
        return {form: out[form] for form in self.names}

    def _form(self, member: Member, i: Index) -> tuple[Index | None, int]:
        """Return an index without its offset, and the offset; the index is None if a free traversal reads it."""
        free = member.sibling.free
        if any(x in free for x in i.iterators) and all(x in free for x in inline_unit_iterators(i).iterators):
            return None, 0
        moved = self._to_merged(member, i)
        if len(moved.iterators) == 1 and moved.affine:
            return as_index(moved.iterators[0]), moved.const
        return moved - moved.const, moved.const

    def _to_merged(self, member: Member, i: Index) -> Index:
        """Return *i* in the merged iterators; free traversals in indices with others have one value."""
        to = {x: as_index(x.lo) for x in member.sibling.free} | member.to
        return i.substitute(lambda x: to[x].substitute(lambda z: self.now[z]))

    def _own(self, member: Member, own: Mapping[Index | None, Iterator]) -> Scalar:
        """Return the member's own factors over the dimensions of its part."""
        n = own[None]
        digit = {x: (n // stride) % x.extent + x.lo for x, stride in digit_strides(member.sibling.free)}

        def change(i: Index) -> Index:
            form, const = self._form(member, i)
            if form is None:
                return inline_unit_iterators(i.substitute(lambda x: digit.get(x, x)))
            if not form.terms:
                return as_index(const)
            if form.single is None:
                return own[form] + (const - self.offset[form])
            return self._to_merged(member, i).substitute(lambda _: own[form])

        return map_indices(member.sibling.own, change)


def digit_strides(free: tuple[Iterator, ...]) -> Iterable[tuple[Iterator, int]]:
    """Yield the free traversals as digits of one number, with the stride of each."""
    for n, x in enumerate(free):
        yield x, prod(y.extent for y in free[n + 1 :])


Source: TypeAlias = "Tensor | Table | Scope"


def stack_tensors(program: Program, row: tuple[Source, ...], b: Iterator) -> Scope:
    """Stack the tensors of *row* along the new first dimension *b*; their padding is the first's."""
    box = row[0].box
    z = tuple(Iterator(f"z{d + 1}", lo, hi) for d, (lo, hi) in enumerate(box))
    padding = ((0, 0), *row[0].padding) if row[0].padding else ()
    index = strided_index([resolve_access(program, source[z]) for source in row], b)
    if index is not None:
        body: Access = Access(resolve_access(program, row[0][z]).source, index)
        return Scope((b, *z), (), body, padding=padding, value=row[0].value)
    parts = []
    for n, source in enumerate(row):
        one = Scope((Iterator(b.name, 0, 1), *z), (), source[z])
        around = ((n, b.extent - n - 1), *((0, 0) for _ in z))
        parts.append(Access(padded(one, around), (b - n, *map(as_index, z))))
    return Scope((b, *z), (), add(*parts), padding=padding, value=row[0].value)


def strided_index(reads: list[Access], b: Iterator) -> tuple[Index, ...] | None:
    """Return the index of one read that is the n-th of *reads* at b = n; None if there is none."""
    first, second = reads[:2]
    if any(read.source != first.source for read in reads):
        return None
    steps = [j - i for i, j in zip(first.index, second.index, strict=True)]
    for n, read in enumerate(reads):
        if any(step.terms for step in steps):
            return None
        if any(j - i != as_index(step.const * n) for i, j, step in zip(first.index, read.index, steps, strict=True)):
            return None
    return tuple(i + b * step.const for i, step in zip(first.index, steps, strict=True))
