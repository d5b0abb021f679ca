r"""Scopes read as one operation over accesses, and their expression distance to operators (EinNet §6.1).

Dimensions whose index mixes two digits are read as two dimensions, which makes a dilated or strided window a plain one
(EinNet §7.3):

.. math::  B[g\,e(\vec x) + p(\vec x) + o] = \big\{ L_{i, q}\, B[g\,i + q + o] \big\}[e(\vec x), p(\vec x)],
           \qquad 0 \le p(\vec x) < g

A composite index such as ``2*m + 2*j + r`` with r in [0, 2) is no window of an operator, since these take two
iterators; its high digit ``m + j`` is one, and its low digit is a dimension of its own.  Outside the box of the high
digit every element of the row lies outside the source's box, so both give the source's value there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import permutations
from math import gcd, prod
from typing import TypeAlias

from einnet_explore.analysis.indices import open_views, substitute_index
from einnet_explore.analysis.padding import fit_padding
from einnet_explore.ir import (
    Access,
    Apply,
    Const,
    Index,
    IndexLike,
    Iterator,
    Quotient,
    Remainder,
    Scope,
    as_index,
    mul,
    padded,
    split_constants,
)
from einnet_explore.operators.operator import Operator
from einnet_explore.operators.pattern import Pattern
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import MEMO_ENTRIES


@dataclass(frozen=True, slots=True)
class GroupDistance:
    """A row of an expression distance: a group, the operator's iterators in it, the scope's, and the mismatch."""

    group: str
    expected: tuple[str, ...]
    found: tuple[Iterator, ...]
    mismatch: int


@dataclass(frozen=True, slots=True)
class ExpressionDistance:
    """The number of mismatched iterators under the best tensor map *operands*."""

    total: int
    operands: tuple[int, ...]
    groups: tuple[GroupDistance, ...]


@dataclass(frozen=True)
class ScopeForm:
    """A scope as ``scale · op(accesses) / divisor``.

    Iterators of extent 1 are replaced by their value. An iterator that occurs divided (``f // 4``) becomes two, ``f/4``
    and ``f%4``: *back* expresses them by the scope's own.
    """

    scope: Scope
    op: str
    reads: tuple[Access, ...]
    scale: float
    divisor: float
    traversals: tuple[Iterator, ...]
    summations: tuple[Iterator, ...]
    back: tuple[tuple[Iterator, Index], ...]

    @cached_property
    def iterators(self) -> tuple[Iterator, ...]:
        """Traversals, then summations."""
        return (*self.traversals, *self.summations)

    def group(self, x: Iterator, operands: tuple[int, ...]) -> str:
        """Return the occurrence of *x* as ``"YNY"``: in the operands in the order given, then in the output."""
        if (known := self._groupings.get(operands)) is None:
            known = self._groupings[operands] = {
                y: "".join("Y" if y in self.occurring[a] else "N" for a in operands)
                + ("Y" if y in self.traversals else "N")
                for y in self.iterators
            }
        return known[x]

    @cached_property
    def _groupings(self) -> dict[tuple[int, ...], dict[Iterator, str]]:
        return {}

    @cached_property
    def ranks(self) -> tuple[dict[Iterator, tuple[int, int]], ...]:
        """For each access, (dimension, minus the stride) of its iterators, to sort them by falling stride."""
        found = []
        for read in self.reads:
            rank: dict[Iterator, tuple[int, int]] = {}
            for d, index in enumerate(read.index):
                for atom, k in index.terms:
                    for x in as_index(atom).iterators:
                        rank[x] = (d, -abs(k) if isinstance(atom, Iterator) else 0)
            found.append(rank)
        return tuple(found)

    @cached_property
    def occurring(self) -> tuple[frozenset[Iterator], ...]:
        """The iterators of each access."""
        return tuple(frozenset(x for i in read.index for x in i.iterators) for read in self.reads)

    def groups(self, operands: tuple[int, ...]) -> dict[str, list[Iterator]]:
        """Group the iterators by occurrence."""
        out: dict[str, list[Iterator]] = {}
        for x in self.iterators:
            out.setdefault(self.group(x, operands), []).append(x)
        return out


@dataclass(frozen=True, slots=True)
class BodyForm:
    """The body of a scope read as ``scale · op(accesses) / divisor``."""

    op: str
    reads: tuple[Access, ...]
    scale: float
    divisor: float


def read_body(scope: Scope) -> BodyForm:
    """Return the body of *scope* as one operation over accesses; raises Refused if it is none."""
    if scope.domain:
        raise Refused(f"the scope is restricted to a domain: {', '.join(map(repr, scope.domain))}")
    body, scale, divisor = scope.body, 1.0, 1.0
    match body:
        case Apply("/", (Access() as read, Const(value))):
            body, divisor = read, value
        case Apply("*", args) if scope.reduce == "sum" and isinstance(args[0], Const):
            constants, rest = split_constants(args)
            body, scale = mul(*rest), prod(constants)
    match body:
        case Access() as read:
            return BodyForm("", (read,), scale, divisor)
        case Apply(op, args) if all(isinstance(a, Access) for a in args):
            return BodyForm(op, tuple(a for a in args if isinstance(a, Access)), scale, divisor)
    raise Refused(f"the body is no single operation over accesses: {body!r}")


@lru_cache(MEMO_ENTRIES)
def read_form(scope: Scope) -> ScopeForm:
    """Return *scope* as a reduction of one operation over accesses; raises Refused if it is none."""
    body = read_body(scope)
    one: dict[Iterator, IndexLike] = {x: x.lo for x in (*scope.traversals, *scope.summations) if x.extent == 1}
    reads = [open_views(Access(r.source, tuple([substitute_index(i, one) for i in r.index]))) for r in body.reads]
    traversals, back = _without_units(scope.traversals), dict[Iterator, Index]()
    summations = _without_units(scope.summations)
    while (found := _find_divided(reads, (*traversals, *summations))) is not None:
        x, d = found
        high, low = Iterator(f"{x.name}/{d}", 0, x.extent // d), Iterator(f"{x.name}%{d}", 0, d)
        reads = [_split_iterator(read, x, high * d + low) for read in reads]
        was = back.pop(x, as_index(x))
        back |= {high: was // d, low: was % d}
        traversals = tuple(y for x_ in traversals for y in ((high, low) if x_ == x else (x_,)))
        summations = tuple(y for x_ in summations for y in ((high, low) if x_ == x else (x_,)))
    return ScopeForm(
        scope, body.op, tuple(reads), body.scale, body.divisor, traversals, summations, tuple(back.items())
    )


@lru_cache(MEMO_ENTRIES)
def windowed_form(scope: Scope) -> ScopeForm:
    """Return ``read_form`` with two-digit dimensions split in two, for operators with composite indices."""
    form = read_form(scope)
    return replace(form, reads=tuple(map(split_digits, form.reads)))


def _without_units(iterators: tuple[Iterator, ...]) -> tuple[Iterator, ...]:
    return tuple(x for x in iterators if x.extent != 1)


def _split_iterator(read: Access, x: Iterator, halves: Index) -> Access:
    return Access(read.source, tuple(i.substitute(lambda y: halves if y == x else y) for i in read.index))


def _find_divided(reads: list[Access], own: tuple[Iterator, ...]) -> tuple[Iterator, int] | None:
    """Return an iterator that occurs divided by a divisor of its extent: it is two iterators in one."""
    for read in reads:
        for index in read.index:
            for atom, _ in index.terms:
                match atom:
                    case Quotient(numerator, d) | Remainder(numerator, d):
                        x = numerator.single
                        if x is not None and x.lo == 0 and x.extent % d == 0 and x in own:
                            return x, d
    return None


def own_iterators(scope: Scope) -> tuple[Iterator, ...]:
    """Return the iterators of an iterator map of *scope*: those of extent other than 1, divided ones as two."""
    try:
        return read_form(scope).iterators
    except Refused:
        return _without_units((*scope.traversals, *scope.summations))


def comparable_form(scope: Scope, operator: Operator) -> ScopeForm:
    """Return the form of *scope*; raises Refused unless it differs from *operator* in iterators only."""
    check_body(scope, operator)
    return windowed_form(scope) if operator.pattern.windows else read_form(scope)


def check_body(scope: Scope, operator: Operator) -> None:
    """Raise Refused if the body or the reduction of *scope* differ from those of *operator*.

    The bodies of nested scopes are not read.
    """
    pattern, body = operator.pattern, read_body(scope)
    if len(body.reads) != len(pattern.operands):
        raise Refused(f"{operator.name} has {len(pattern.operands)} operands, the body reads {len(body.reads)}")
    if body.op != pattern.op:
        raise Refused(
            f"{operator.name} combines operands by {pattern.op or 'nothing'}, the body by {body.op or 'nothing'}"
        )
    if pattern.summations and all(y.extent == 1 for y in scope.summations):
        raise Refused(f"{operator.name} reduces over {', '.join(pattern.summations)}, the scope over nothing")
    if pattern.summations and scope.reduce != pattern.reduce:
        raise Refused(f"{operator.name} reduces by {pattern.reduce}, the scope by {scope.reduce}")


def tensor_maps(form: ScopeForm, pattern: Pattern) -> Iterable[tuple[int, ...]]:
    """Yield orders of the operands; operands that the pattern reads alike are not exchanged."""
    n = len(form.reads)
    if pattern.op not in ("*", "+", "maximum", "minimum"):
        yield tuple(range(n))
        return
    shapes = [operand.dimensions for operand in pattern.operands]
    for order in permutations(range(n)):
        if all(order[i] < order[j] for i in range(n) for j in range(i + 1, n) if shapes[i] == shapes[j]):
            yield order


def expression_distance(scope: Scope, operator: Operator) -> ExpressionDistance:
    """Return the distance from *scope* to *operator*; raises Refused if changing iterators cannot help."""
    form = comparable_form(scope, operator)
    return min((_distance(form, operator, p) for p in tensor_maps(form, operator.pattern)), key=lambda d: d.total)


def _distance(form: ScopeForm, operator: Operator, operands: tuple[int, ...]) -> ExpressionDistance:
    """Count the iterators of each group that the table has no place for, or lacks.

    Both parts of a divided iterator (``f/4``, ``f%4``) in one group are one iterator or two, as the table needs.
    """
    found = form.groups(operands)
    origins = dict(form.back)
    rows = []
    for key in dict.fromkeys((*dict(operator.table.groups), *found)):
        names = operator.table.group(key)
        needed = sum(name not in operator.pattern.optional for name in names)
        parts = tuple(found.get(key, ()))
        whole = tuple(dict.fromkeys(x for part in parts for x in origins.get(part, as_index(part)).iterators))
        mismatch = max(0, len(whole) - len(names), needed - len(parts))
        rows.append(GroupDistance(key, names, whole if len(parts) > len(names) else parts, mismatch))
    return ExpressionDistance(sum(row.mismatch for row in rows), operands, tuple(rows))


DigitSplit: TypeAlias = "tuple[tuple[Index, ...], tuple[tuple[int, int], ...], Callable[[tuple[Iterator, ...]], Index]]"


def split_digits(read: Access) -> Access:
    """Split dimensions of *read* that mix overlapping iterators with a low digit into two dimensions of a view."""
    parts = [_digits(index, box) for index, box in zip(read.index, read.source.box, strict=True)]
    if all(len(outer) == 1 for outer, _, _ in parts):
        return read
    outer = tuple(i for found, _, _ in parts for i in found)
    spans = [span for _, found, _ in parts for span in found]
    own = iter(tuple(Iterator(f"z{n}", *span) for n, span in enumerate(spans)))
    names = [tuple(next(own) for _ in found) for _, found, _ in parts]
    inner = tuple(make(found) for found, (_, _, make) in zip(names, parts, strict=True))
    value = read.source.value
    view = Scope(tuple(x for found in names for x in found), (), read.source[inner], value=value)
    padding = tuple(map(_padding_beyond, outer, view.box))
    return Access(padded(fit_padding(view, value), padding), outer)


def overlaps(index: Index) -> bool:
    """Whether two points of the iterators may have the same index: then it is more than a layout."""
    reach = 0
    for atom, k in sorted(index.terms, key=lambda t: abs(t[1])):
        if isinstance(atom, Iterator):
            if abs(k) <= reach:
                return True
            reach += abs(k) * (atom.extent - 1)
    return False


def _radix(index: Index) -> int | None:
    """Return the g of ``g*e + p + o`` where a digit overlaps and 0 <= p < g; None if there are no such digits."""
    if len(index.terms) < 3 or not index.affine:
        return None
    factors = [abs(k) for _, k in index.terms]
    for g in sorted({gcd(a, b) for a in factors for b in factors} - {1}):
        high, low = _parts(index, g)
        first, last = low.bounds
        if low.terms and last - first < g and (overlaps(high) or overlaps(low)):
            return g
    return None


def _parts(index: Index, g: int) -> tuple[Index, Index]:
    """Return (the terms that *g* divides, divided by it; the others), without constants."""
    high = Index(tuple((a, k // g) for a, k in index.terms if k % g == 0))
    return high, Index(tuple((a, k) for a, k in index.terms if k % g))


def _digits(index: Index, box: tuple[int, int]) -> DigitSplit:
    """Split *index* into a dimension with the box *box* into digits with boxes, and a function that joins them."""
    alone: DigitSplit = (index,), (box,), lambda own: as_index(own[0])
    g = _radix(index)
    if g is None:
        return alone
    high, low = _parts(index, g)
    first, last = low.bounds
    span, (whole, offset) = last - first, divmod(index.const + first, g)
    rows = -((offset + span - box[0]) // g), (box[1] - 1 - offset) // g + 1
    if rows[1] <= rows[0]:
        return alone
    above, above_boxes, above_of = _digits(high + whole, rows)
    below, below_boxes, below_of = _digits(low - first, (0, span + 1))
    n = len(above)
    return (
        (*above, *below),
        (*above_boxes, *below_boxes),
        lambda own: above_of(own[:n]) * g + below_of(own[n:]) + offset,
    )


def _padding_beyond(index: Index, box: tuple[int, int]) -> tuple[int, int]:
    (lo, hi), (first, last) = box, index.bounds
    return max(0, lo - first), max(0, last + 1 - hi)
