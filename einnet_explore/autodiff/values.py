r"""Value numbering: every subexpression of several programs as a function of parameters, each function once.

.. math::  v = \mathop{L}_{\vec p} f\big(v_1[\tau_1(\vec p)], \dots\big)

Two subexpressions are one value exactly if they agree up to the names and the order of iterators, commutativity,
associativity (sums and products are flat, differences and quotients are signed terms and inverted factors) and what
index they are read at: an index whose iterators occur in no other one is a parameter, so
:math:`\exp(X[2h+r])` and :math:`\exp(X[i])` are one function read in two places.  Scopes without summations are read
through (the inliner of the CSE document).  Source: the tensor expression tree of the CSE document; keys are those of
``analysis.canonical_keys``.

A use reads a value at indices, with a sign.  The canonical form of a definition determines its parameters, their order,
and the key:

.. math::  f(T_1[\tau_1(\vec x)], \dots) = \big(\mathop{L}_{\vec p} f(T_1[\pi_1(\vec p)], \dots)\big)[\sigma(\vec x)]
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod
from typing import Literal, TypeAlias

from einnet_explore.analysis.canonical_keys import canonical_key, numbering
from einnet_explore.analysis.indices import compared_iterators, substitute, substitute_index, with_iterators
from einnet_explore.analysis.regions import index_reach
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
    mul,
)

ValueKind: TypeAlias = Literal["leaf", "function", "sum", "product", "reduction", "guard"]
SumForm: TypeAlias = Literal["written", "factored"]
SUM_FORMS: tuple[SumForm, ...] = ("written", "factored")
Term: TypeAlias = "Const | Use"
Entries: TypeAlias = "tuple[tuple[int, Term], ...]"
"""The terms of a sum with their signs, or the factors of a product, where -1 means divided by."""

Called: TypeAlias = "Mapping[Iterator, str]"
"""Names of iterators, in written order."""
GROUPS = ("sum", "product")
"""The kinds of flat values."""


@dataclass(frozen=True, eq=False)
class Value:
    """One function, defined by *scope*: its traversals are the parameters, it reads values named ``#number``.

    *names*, *summed* and *order* are the parameters' names, the summations' names and the written order at the first
    occurrence.
    """

    number: int
    kind: ValueKind
    scope: Scope
    names: tuple[str, ...]
    order: tuple[int, ...]
    summed: tuple[str, ...] = ()

    @property
    def tensor(self) -> Tensor:
        """The tensor that definitions of other values read."""
        return Tensor(f"#{self.number}", (1,) * len(self.scope.traversals))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.number}>"


@dataclass(frozen=True)
class Use:
    """*sign* · *value*[*at*]."""

    sign: int
    value: Value
    at: tuple[Index, ...]

    def substitute(self, to: dict[Iterator, Index]) -> Use:
        """Replace iterators of the use."""
        return replace(self, at=tuple(substitute_index(i, to) for i in self.at))


def lone_index(x: Iterator) -> Index:
    """Return *x* as an index; a constant for extent 1."""
    return as_index(x.lo if x.extent == 1 else x)


def index_span(index: Index, domain: tuple[Bound, ...] = ()) -> tuple[int, int]:
    """Return the exact half-open range of *index* inside *domain*.

    Digits of one iterator are combined; a larger range would lead to illegal reads.
    """
    lo, hi = index_reach(index, domain)
    return (lo, hi + 1) if lo <= hi else (index.bounds[0], index.bounds[1] + 1)  # a domain that holds nowhere


def parameter_names(value: Value) -> Called:
    """Return the names of the parameters of *value*."""
    return {value.scope.traversals[n]: value.names[n] for n in value.order}


def substitute_iterators(term: Term, to: dict[Iterator, Index]) -> Term:
    """Replace iterators of *term*."""
    return term.substitute(to) if isinstance(term, Use) else term


def definition_scalar(term: Term) -> Scalar:
    """Return *term* as the body of a definition reads it."""
    if isinstance(term, Const):
        return term
    read = Access(term.value.tensor, term.at)
    return read if term.sign > 0 else Apply("neg", (read,))


FREE_EXTENT = 1 << 40
"""Parameters that stand for whole indices range over [-FREE_EXTENT, FREE_EXTENT); the readers bound them."""


@dataclass(frozen=True)
class Canonical:
    """A definition with its *key*; the indices *at* that its parameters stand for, and its summations as written."""

    key: Hashable
    scope: Scope
    at: tuple[Index, ...]
    summed: tuple[str, ...]


def canonical(body: Scalar, summations: tuple[Iterator, ...] = (), reduce: str = "sum") -> Canonical:
    """Return the canonical form of *body*, reduced over *summations*, as a function of its other indices."""
    args, sums, read = _parameters(body, summations)
    # Bounds tell parameters from summations of the same range; they are in no definition.
    marks = tuple(Bound(as_index(p), 0, 0) for p in args)
    number = numbering(Scope((), (*args, *sums), read, reduce, marks))
    params = tuple(sorted(args, key=lambda p: number[p]))
    ordered = tuple(sorted(sums, key=lambda y: number[y]))
    plain = Scope(params, ordered, read, reduce)
    scope = with_iterators(plain, {**numbered_iterators(params, "p"), **numbered_iterators(ordered, "y")})
    return Canonical(canonical_key(scope), scope, tuple(args[p] for p in params), tuple(sums[y].name for y in ordered))


def numbered_iterators(iterators: Sequence[Iterator], stem: str) -> dict[Iterator, Iterator]:
    """Return iterators of the same ranges, named *stem* and a number."""
    return {x: Iterator(f"{stem}{n}", x.lo, x.hi) for n, x in enumerate(iterators)}


def _parameters(
    body: Scalar, summations: tuple[Iterator, ...]
) -> tuple[dict[Iterator, Index], dict[Iterator, Iterator], Scalar]:
    """Return the parameters with their indices, the summations with their originals, and the body over both.

    An index is one parameter if its iterators occur in no other index, summation or comparison; otherwise its iterators
    are parameters.
    """
    indices = tuple(dict.fromkeys(i for a in accesses(body) for i in a.index))
    fixed = {*compared_iterators(body), *summations}
    whole: dict[Index, Iterator] = {}
    for i in indices:
        mine = set(i.iterators)
        if not mine & fixed and not any(mine & set(j.iterators) for j in indices if j != i):
            whole[i] = Iterator(f"a{len(whole)}", -FREE_EXTENT, FREE_EXTENT)
    rest = dict.fromkeys(x for i in indices if i not in whole for x in i.iterators)
    rest |= dict.fromkeys(compared_iterators(body))
    number = count()
    kept = {x: Iterator(f"b{next(number)}", x.lo, x.hi) for x in rest if x not in summations}
    sums = {y: Iterator(f"s{n}", y.lo, y.hi) for n, y in enumerate(summations)}
    to: dict[Iterator, Iterator] = {**kept, **sums}

    def rename_index(access: Access) -> Access:
        return Access(access.source, tuple(as_index(whole[i]) if i in whole else i for i in access.index))

    args = {p: i for i, p in whole.items()} | {p: as_index(x) for x, p in kept.items()}
    return args, {p: y for y, p in sums.items()}, substitute(map_accesses(body, rename_index), to)


class Values:
    """Hash-consed table of values: building a known value returns its number.

    *form*: ``factored`` moves factors that are independent of a sum out of it, by distributivity.
    """

    def __init__(self, form: SumForm = "written") -> None:
        self.form = form
        self.known: list[Value] = []
        self._by_key: dict[Hashable, Value] = {}

    def leaf(self, source: Tensor | Table, index: tuple[Index, ...]) -> Use:
        """Return an element of an input or a table."""
        match source:
            case Tensor(name, shape, padding, value):
                found: Hashable = ("leaf", name, shape, source.origin, value if padding else 0)
            case Table():
                found = ("leaf", source)
        if found not in self._by_key:
            own = tuple(Iterator(f"p{n}", -FREE_EXTENT, FREE_EXTENT) for n in range(len(index)))
            scope = Scope(own, (), Access(source, tuple(map(as_index, own))))
            names = tuple(x.name for x in own)
            self._add(found, Value(len(self.known), "leaf", scope, names, tuple(range(len(own)))))
        return Use(1, self._by_key[found], index)

    def function(self, op: str, args: Iterable[Term | Compare], own: Called) -> Use:
        """Return op(args); *args* may contain a comparison."""
        body = Apply(op, tuple(a if isinstance(a, Compare) else definition_scalar(a) for a in args))
        return self._intern("function", canonical(body), own)

    def total(self, entries: Iterable[tuple[int, Term]], own: Called) -> Term:
        """Return the flat sum of signed terms; a sum and its negative are one value."""
        const: float = 0
        uses: list[tuple[int, Use]] = []
        for sign, term in self._flatten(entries, "sum"):
            if isinstance(term, Const):
                const = const + sign * term.value
            else:
                uses.append((sign * term.sign, replace(term, sign=1)))
        if not uses:
            return Const(const)
        if len(uses) == 1 and not const:
            return replace(uses[0][1], sign=uses[0][0])
        ways = {}
        for turn in (1, -1):
            terms = tuple(definition_scalar(replace(use, sign=turn * sign)) for sign, use in uses)
            ways[turn] = canonical(Apply("+", (Const(turn * const), *terms) if const else terms))
        written = 1 if sum(sign for sign, _ in uses) + (const > 0) - (const < 0) >= 0 else -1
        known = (turn for turn in (written, -written) if ("sum", ways[turn].key) in self._by_key)
        turn = next(known, written)
        return replace(self._intern("sum", ways[turn], own), sign=turn)

    def product(self, entries: Iterable[tuple[int, Term]], own: Called) -> Term:
        """Return the flat product of factors and inverted factors; signs go outside."""
        sign = 1
        consts: dict[int, list[Scalar]] = {1: [], -1: []}
        uses: list[tuple[int, Use]] = []
        for mark, term in self._flatten(entries, "product"):
            if isinstance(term, Const):
                sign *= -1 if term.value < 0 else 1
                consts[mark].append(Const(abs(term.value)))
            else:
                sign *= term.sign
                uses.append((mark, replace(term, sign=1)))
        folded = {mark: factors(mul(*found)) for mark, found in consts.items()}  # as far as that is exact
        numbers = [_factor_of(mark, k) for mark, found in folded.items() for k in found if k != Const(1)]
        if not uses and folded[-1] == (Const(1),):
            return Const(sign * prod(k.value for k in folded[1] if isinstance(k, Const)))
        if len(uses) == 1 and uses[0][0] == 1 and not numbers:
            return replace(uses[0][1], sign=sign)
        args = (*numbers, *(_factor_of(mark, definition_scalar(use)) for mark, use in uses))
        body = Apply("*", args) if len(args) > 1 else args[0]
        return replace(self._intern("product", canonical(body), own), sign=sign)

    def reduction(self, term: Term, summations: tuple[Iterator, ...], reduce: str, own: Called) -> Term:
        """Return *term* reduced over *summations*; *term* itself if there are none."""
        summations = tuple(y for y in summations if y.extent != 1)
        if not summations:
            return term
        if self.form == "factored" and reduce == "sum" and isinstance(term, Use) and term.value.kind == "product":
            entries = self.entries(term)
            moves = [isinstance(t, Use) and any(y in i.iterators for i in t.at for y in summations) for _, t in entries]
            if any(moves) and not all(moves):
                inside = self.product((e for e, m in zip(entries, moves, strict=True) if m), own)
                outside = [e for e, m in zip(entries, moves, strict=True) if not m]
                whole = self.reduction(inside, summations, reduce, own)
                return self.product([(1, Const(term.sign)), *outside, (1, whole)], own)
        sign = term.sign if reduce == "sum" and isinstance(term, Use) else 1
        plain = replace(term, sign=term.sign * sign) if isinstance(term, Use) else term
        made = canonical(definition_scalar(plain), summations, reduce)
        return replace(self._intern("reduction", made, own), sign=sign)

    def guard(self, scope: Scope, term: Term) -> Use:
        """Return *term* inside the box and domain of *scope*, and the scope's value elsewhere."""
        plain = Scope((), scope.traversals, definition_scalar(term), "sum", scope.domain, (), scope.value)
        number = numbering(plain)
        order = sorted(range(len(scope.traversals)), key=lambda n: number[scope.traversals[n]])
        own = tuple(scope.traversals[n] for n in order)
        turned = with_iterators(replace(plain, traversals=own, summations=()), numbered_iterators(own, "p"))
        found = ("guard", canonical_key(turned))
        if found not in self._by_key:
            back = tuple(sorted(range(len(own)), key=lambda n: order[n]))
            names = tuple(x.name for x in own)
            self._add(found, Value(len(self.known), "guard", turned, names, back))
        return Use(1, self._by_key[found], tuple(map(as_index, own)))

    def entries(self, use: Use) -> Entries:
        """Return the entries of the sum or product that *use* reads, without the sign of *use*."""
        match use.value.scope.body:
            case Apply("+" | "*" as op, args):
                pass
            case Apply("/") as inverse:
                op, args = "*", (inverse,)
            case body:
                raise ValueError(f"{use.value} is no sum and no product: {body!r}")
        to = dict(zip(use.value.scope.traversals, use.at, strict=True))
        return tuple((mark, substitute_iterators(term, to)) for mark, term in (self._signed_entry(op, a) for a in args))

    def reads(self, value: Value) -> tuple[Use, ...]:
        """Return the reads of the definition of *value*; none for a leaf."""
        if value.kind == "leaf":
            return ()
        return tuple(self._use_of(a) for a in accesses(value.scope.body))

    def _use_of(self, access: Access) -> Use:
        assert isinstance(access.source, Tensor)
        return Use(1, self.known[int(access.source.name[1:])], access.index)

    def term(self, body: Scalar) -> Term:
        """Return the term that ``definition_scalar`` wrote."""
        match body:
            case Const():
                return body
            case Access():
                return self._use_of(body)
            case Apply("neg", (Access() as access,)):
                return replace(self._use_of(access), sign=-1)
        raise ValueError(f"{body!r} is no term of a definition")

    def _signed_entry(self, op: str, arg: Scalar) -> tuple[int, Term]:
        match arg:
            case Apply("/", (_, below)):
                return -1, self.term(below)
            case Apply("neg", (inner,)) if op == "+":
                return -1, self.term(inner)
        return 1, self.term(arg)

    def _flatten(self, entries: Iterable[tuple[int, Term]], kind: ValueKind) -> Iterable[tuple[int, Term]]:
        for mark, term in entries:
            if isinstance(term, Use) and term.value.kind == kind:
                if kind == "product" and term.sign < 0:
                    yield 1, Const(-1)
                outer = mark * (term.sign if kind == "sum" else 1)
                yield from ((outer * inner, t) for inner, t in self.entries(term))
            else:
                yield mark, term

    def _intern(self, kind: ValueKind, made: Canonical, own: Called) -> Use:
        found = (kind, made.key)
        if found not in self._by_key:
            place = {x: n for n, x in enumerate(own)}
            first = [min((place.get(x, len(place)) for x in i.iterators), default=-1) for i in made.at]
            names = tuple(next((own.get(x, x.name) for x in i.iterators), "i") for i in made.at)
            order = tuple(sorted(range(len(made.at)), key=lambda n: (first[n], n)))
            self._add(found, Value(len(self.known), kind, made.scope, names, order, made.summed))
        return Use(1, self._by_key[found], made.at)

    def _add(self, found: Hashable, value: Value) -> None:
        self._by_key[found] = value
        self.known.append(value)


def _factor_of(mark: int, body: Scalar) -> Scalar:
    return body if mark > 0 else Apply("/", (Const(1), body))
