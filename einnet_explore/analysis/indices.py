r"""The indices in a body: visit, substitute and parse them; fresh names for iterators.

Scopes are closed: the indices of a body are those of its accesses and comparisons, not those of the scopes that it
reads.  Substitution :math:`\tau[\Phi(\vec x) / \vec z]` is simultaneous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import gcd, lcm
from typing import TypeAlias

from einnet_explore.ir import (
    Access,
    Apply,
    Atom,
    Bound,
    Box,
    Compare,
    Const,
    Index,
    IndexLike,
    Iterator,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    add,
    as_index,
    mul,
    walk_scalar,
)
from einnet_explore.syntax import parse_index

IndexTerms: TypeAlias = "tuple[tuple[Atom, int], ...]"
"""Atoms with their coefficients."""


def read_indices(body: Scalar) -> Iterable[Index]:
    """Yield every index of *body*, left to right."""
    match body:
        case Access(index=index):
            yield from index
        case Apply(args=args):
            for arg in args:
                yield from read_indices(arg)
        case Compare(left=left, right=right):
            yield from (left, right)
        case Const():
            pass


def map_indices(body: Scalar, change: Callable[[Index], Index]) -> Scalar:
    """Replace every index *i* of *body* by ``change(i)``."""
    match body:
        case Access(source, index):
            return Access(source, tuple(map(change, index)))
        case Apply(op, args):
            return Apply(op, tuple(map_indices(a, change) for a in args))
        case Compare(op, left, right):
            return Compare(op, change(left), change(right))
        case Const():
            return body


def iterators_of(body: Scalar) -> frozenset[Iterator]:
    """Return the iterators that *body* depends on; those of nested scopes are their own."""
    try:
        return body._memo  # type: ignore[union-attr, no-any-return]
    except AttributeError:
        found = frozenset([x for i in read_indices(body) for x in i.iterators])
        object.__setattr__(body, "_memo", found)
        return found


def compared_iterators(body: Scalar) -> tuple[Iterator, ...]:
    """Return the iterators of the comparisons in *body*, each once, left to right."""
    match body:
        case Compare(left=left, right=right):
            return tuple(dict.fromkeys((*left.iterators, *right.iterators)))
        case Apply(args=args):
            return tuple(dict.fromkeys(x for arg in args for x in compared_iterators(arg)))
        case Access() | Const():
            return ()


def period(indices: Iterable[Index], x: Iterator) -> int:
    """Return the number of steps of *x* after which every quotient and remainder of *indices* repeats."""
    return lcm(*(d // gcd(d, k) for index in indices for d, k in _divided(index, x)), 1)


def _divided(index: Index, x: Iterator) -> Iterable[tuple[int, int]]:
    """Yield (divisor, coefficient of *x*) of every quotient and remainder that depends on *x*."""
    for atom, _ in index.terms:
        match atom:
            case Quotient(numerator, d) | Remainder(numerator, d):
                if x in numerator.iterators:
                    yield d, numerator.coefficient(x) or 1
                    yield from _divided(numerator, x)


def is_inside_box(index: Iterable[Index], box: Box) -> bool:
    """True if *index* never leaves *box*, as far as intervals can tell."""
    return all(lo <= i.bounds[0] and i.bounds[1] < hi for i, (lo, hi) in zip(index, box, strict=True))


def open_views(read: Access) -> Access:
    """Follow *read* through scopes that only re-index, as long as it stays inside their boxes."""
    match read.source:
        case Scope(traversals, (), Access(source, index), domain=()) if is_inside_box(read.index, read.source.box):
            to = dict(zip(traversals, read.index, strict=True))
            return open_views(Access(source, tuple(i.substitute(lambda x: to[x]) for i in index)))
    return read


def join_names(iterators: Iterable[Iterator]) -> str:
    """Return ``{r, s}``."""
    return "{" + ", ".join(x.name for x in iterators) + "}"


def iterator_by_name(iterators: Iterable[Iterator], name: str) -> Iterator:
    """Return the iterator called *name*; raises ValueError with the names that there are."""
    known = {x.name: x for x in iterators}
    if name not in known:
        others = join_names(known.values()) if known else "none"
        raise ValueError(f"no iterator is called {name!r} here: there are {others}")
    return known[name]


def parse_index_over(text: object, iterators: Iterable[Iterator]) -> Index:
    """Parse an index in terms of *iterators*; raises ValueError on any other text."""
    return parse_index(str(text), {x.name: x for x in iterators})


def guard(index: tuple[Index, ...], box: Box, inside: Scalar, outside: float) -> Scalar:
    """Return *inside* where *index* lies in *box*, else *outside*; conditions that always hold are dropped."""
    tests = box_tests(index, box)
    if tests is None:
        return Const(outside)
    for test in reversed(tests):
        inside = Apply("where", (test, inside, Const(outside)))
    return inside


def box_tests(index: Iterable[Index], box: Box) -> tuple[Compare, ...] | None:
    """Return the conditions under which *index* lies in *box*, without those that always hold; None: it never does."""
    tests = list[Compare]()
    for i, (lo, hi) in zip(index, box, strict=True):
        least, most = i.bounds
        if most < lo or least >= hi:
            return None
        tests += [Compare(">=", i, as_index(lo))] if least < lo else []
        tests += [Compare("<", i, as_index(hi))] if most >= hi else []
    return tuple(tests)


def common_divisor(x: Iterator, body: Scalar) -> int:
    """Return the least number by which *x* is divided, if it divides the others and the extent; else 1."""
    divisors: set[int] = set()
    for atom in (atom for index in read_indices(body) for atom in index.divisions if x in atom.numerator.iterators):
        if atom.numerator.single == x:
            divisors.add(atom.divisor)
        elif not any(within.numerator.single == x for within in atom.numerator.divisions):
            return 1
    least = min(divisors, default=1)
    exact = not x.lo and least < x.extent and not any(n % least for n in (x.extent, *divisors))
    return least if exact else 1


def split_traversal(scope: Scope, n: int, d: int) -> Scope:
    """Substitute :math:`x = d u + v` for traversal *n* of *scope*: elements keep their order; padding is dropped."""
    x = scope.traversals[n]
    u = Iterator(fresh_name(x.name, {y.name for y in (*scope.traversals, *scope.summations)}), 0, x.extent // d)
    v = Iterator(x.name, 0, d)
    body = substitute(scope.body, {x: as_index(u) * d + v})
    split = (*scope.traversals[:n], u, v, *scope.traversals[n + 1 :])
    return replace(scope, traversals=split, body=body, padding=())


def split_divided_traversals(scope: Scope) -> Scope:
    """Split each traversal of *scope* that is divided, as where heads are merged: elements keep their order."""
    for n, x in enumerate(scope.traversals):
        if not scope.domain and (d := common_divisor(x, scope.body)) > 1:
            return split_divided_traversals(split_traversal(scope, n, d))
    return scope


def replace_part(body: Scalar, number: int, new: Scalar) -> Scalar:
    """Return *body* with part *number* of ``walk_scalar`` replaced; sums and products stay flat."""
    if number == 0:
        return new
    assert isinstance(body, Apply)
    number -= 1
    args = list(body.args)
    for n, arg in enumerate(args):
        size = sum(1 for _ in walk_scalar(arg))
        if number < size:
            args[n] = replace_part(arg, number, new)
            break
        number -= size
    return mul(*args) if body.op == "*" else add(*args) if body.op == "+" else Apply(body.op, tuple(args))


def substitute(body: Scalar, to: Mapping[Iterator, IndexLike]) -> Scalar:
    """Replace iterators in *body*.  Scopes are closed (their iterators are their own), so only indices change."""
    if not to:
        return body
    match body:
        case Access(source, index):
            new = tuple([substitute_index(i, to) for i in index])
            return Access(source, new) if new != index else body
        case Apply(op, args):
            return Apply(op, tuple(substitute(a, to) for a in args))
        case Compare(op, left, right):
            return Compare(op, substitute_index(left, to), substitute_index(right, to))
        case Const():
            return body


def substitute_index(index: Index, to: Mapping[Iterator, IndexLike]) -> Index:
    """Replace iterators in *index*; returns *index* itself if none of them occurs."""
    return index if to.keys().isdisjoint(index.iterators) else index.substitute(lambda x: to.get(x, x))


def substitute_domain(domain: tuple[Bound, ...], to: Mapping[Iterator, IndexLike]) -> tuple[Bound, ...]:
    """Replace iterators in bounds; bounds that always hold afterwards are dropped."""
    out = (Bound(substitute_index(b.index, to), b.lo, b.hi) for b in domain)
    return tuple(dict.fromkeys(b for b in out if not holds_everywhere(b)))


def condition_slack(condition: Compare) -> Index | None:
    """Return the index that is at least 0 where *condition* holds, and nowhere else."""
    left, right = condition.left, condition.right
    match condition.op:
        case "<=" | "<":
            return right - left - (condition.op == "<")
        case ">=" | ">":
            return left - right - (condition.op == ">")
    return None


def holds_everywhere(bound: Bound) -> bool:
    """True if *bound* holds over the whole ranges of its iterators."""
    x = bound.index.single
    if x is not None and (x.lo, x.hi) == (bound.lo, bound.hi):  # sizes may be parameters, which have no order
        return True
    lo, hi = bound.index.bounds
    return bound.lo <= lo and hi < bound.hi


def rename_iterators(scope: Scope, used: Iterable[str]) -> Scope:
    """Rename the own iterators of *scope* so that none has a name in *used*; nested scopes keep theirs."""
    taken = set(used)
    own = {x.name for x in (*scope.traversals, *scope.summations)}
    to: dict[Iterator, Iterator] = {}
    for x in (*scope.traversals, *scope.summations):
        if x.name in taken:
            name = fresh_name(x.name, taken | own)
            taken.add(name)
            to[x] = Iterator(name, x.lo, x.hi)
    return with_iterators(scope, to) if to else scope


def with_iterators(scope: Scope, to: Mapping[Iterator, Iterator]) -> Scope:
    """Exchange iterators of *scope* one for one, in ranges, domain and body."""
    return replace(
        scope,
        traversals=tuple(to.get(x, x) for x in scope.traversals),
        summations=tuple(to.get(x, x) for x in scope.summations),
        body=substitute(scope.body, to),
        domain=tuple(Bound(substitute_index(b.index, to), b.lo, b.hi) for b in scope.domain),
    )


def fresh_name(stem: str, used: Iterable[str]) -> str:
    """Return *stem* with the smallest number that makes a name not in *used*."""
    stem = stem.rstrip("0123456789") or "x"
    taken = set(used)
    return next(name for n in range(1, len(taken) + 2) if (name := f"{stem}{n}") not in taken)
