r"""Values: every subexpression of several programs as a function of parameters, each function once.

.. math::  v = \mathop{L}_{\vec p} f\big(v_1[\tau_1(\vec p)], \dots\big)

Two subexpressions are one value exactly if they agree up to the names and the order of iterators, commutativity,
associativity (sums and products are flat, differences and quotients are signed terms and inverted factors) and what
index they are read at: an index whose iterators occur in no other one is a parameter, so
:math:`\exp(X[2h+r])` and :math:`\exp(X[i])` are one function read in two places.  Scopes without summations are read
through (the inliner of the CSE document).  Source: the tensor expression tree of the CSE document; keys are those of
``algebra.keys``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from einnet_explore.algebra.keys import key, numbering
from einnet_explore.algebra.substitute import with_iterators
from einnet_explore.ir import (
    Access,
    Apply,
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
)
from einnet_explore.stash.canonical import FREE, Canonical, canonical, numbered
from einnet_explore.stash.uses import Called, Entries, Kind, Term, Use, Value, moved, scalar


class Values:
    """The values found so far, by number; building one that is known gives the known one.

    *factored*: factors that a sum does not move stand outside it, by distributivity.
    """

    def __init__(self, factored: bool = False) -> None:
        self.factored = factored
        self.known: list[Value] = []
        self._by_key: dict[Hashable, Value] = {}

    def leaf(self, source: Tensor | Table, index: tuple[Index, ...]) -> Use:
        """An element of an input or a table."""
        match source:
            case Tensor(name, shape, padding, value):
                found: Hashable = ("leaf", name, shape, source.origin, value if padding else 0)
            case Table():
                found = ("leaf", source)
        if found not in self._by_key:
            own = tuple(Iterator(f"p{n}", -FREE, FREE) for n in range(len(index)))
            scope = Scope(own, (), Access(source, tuple(map(as_index, own))))
            names = tuple(x.name for x in own)
            self._add(found, Value(len(self.known), "leaf", scope, names, tuple(range(len(own)))))
        return Use(1, self._by_key[found], index)

    def function(self, op: str, args: Iterable[Term | Compare], own: Called) -> Use:
        """op(args); a comparison may be among them."""
        body = Apply(op, tuple(a if isinstance(a, Compare) else scalar(a) for a in args))
        return self._made("function", canonical(body), own)

    def total(self, entries: Iterable[tuple[int, Term]], own: Called) -> Term:
        """The sum of signed terms, flat; a sum and its negative are one value."""
        const: float = 0
        uses: list[tuple[int, Use]] = []
        for sign, term in self._flat(entries, "sum"):
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
            terms = tuple(scalar(replace(use, sign=turn * sign)) for sign, use in uses)
            ways[turn] = canonical(Apply("+", (Const(turn * const), *terms) if const else terms))
        written = 1 if sum(sign for sign, _ in uses) + (const > 0) - (const < 0) >= 0 else -1
        known = (turn for turn in (written, -written) if ("sum", ways[turn].key) in self._by_key)
        turn = next(known, written)
        return replace(self._made("sum", ways[turn], own), sign=turn)

    def product(self, entries: Iterable[tuple[int, Term]], own: Called) -> Term:
        """The product of factors and inverted factors, flat; signs go outside."""
        sign = 1
        consts: dict[int, float] = {1: 1, -1: 1}
        uses: list[tuple[int, Use]] = []
        for mark, term in self._flat(entries, "product"):
            if isinstance(term, Const):
                consts[mark] = consts[mark] * term.value
            else:
                sign *= term.sign
                uses.append((mark, replace(term, sign=1)))
        for mark, value in consts.items():
            if value < 0:
                sign, consts[mark] = -sign, -value
        numbers = [_factor(mark, Const(value)) for mark, value in consts.items() if value != 1]
        if not uses and consts[-1] == 1:
            return Const(sign * consts[1])
        if len(uses) == 1 and uses[0][0] == 1 and not numbers:
            return replace(uses[0][1], sign=sign)
        args = (*numbers, *(_factor(mark, scalar(use)) for mark, use in uses))
        body = Apply("*", args) if len(args) > 1 else args[0]
        return replace(self._made("product", canonical(body), own), sign=sign)

    def reduction(self, term: Term, summations: tuple[Iterator, ...], reduce: str, own: Called) -> Term:
        """*term* reduced over *summations*; over none it is itself."""
        summations = tuple(y for y in summations if y.extent != 1)
        if not summations:
            return term
        if self.factored and reduce == "sum" and isinstance(term, Use) and term.value.kind == "product":
            entries = self.entries(term)
            moves = [isinstance(t, Use) and any(y in i.iterators for i in t.at for y in summations) for _, t in entries]
            if any(moves) and not all(moves):
                inside = self.product((e for e, m in zip(entries, moves, strict=True) if m), own)
                outside = [e for e, m in zip(entries, moves, strict=True) if not m]
                whole = self.reduction(inside, summations, reduce, own)
                return self.product([(1, Const(term.sign)), *outside, (1, whole)], own)
        sign = term.sign if reduce == "sum" and isinstance(term, Use) else 1
        plain = replace(term, sign=term.sign * sign) if isinstance(term, Use) else term
        made = canonical(scalar(plain), summations, reduce)
        return replace(self._made("reduction", made, own), sign=sign)

    def guard(self, scope: Scope, term: Term) -> Use:
        """*term* in the box of *scope* where its domain holds, and its value elsewhere."""
        plain = Scope((), scope.traversals, scalar(term), "sum", scope.domain, (), scope.value)
        number = numbering(plain)
        order = sorted(range(len(scope.traversals)), key=lambda n: number[scope.traversals[n]])
        own = tuple(scope.traversals[n] for n in order)
        turned = with_iterators(replace(plain, traversals=own, summations=()), numbered(own, "p"))
        found = ("guard", key(turned))
        if found not in self._by_key:
            back = tuple(sorted(range(len(own)), key=lambda n: order[n]))
            names = tuple(x.name for x in own)
            self._add(found, Value(len(self.known), "guard", turned, names, back))
        return Use(1, self._by_key[found], tuple(map(as_index, own)))

    def entries(self, use: Use) -> Entries:
        """The entries of the sum or product that *use* reads, its sign aside."""
        match use.value.scope.body:
            case Apply("+" | "*" as op, args):
                pass
            case Apply("/") as inverse:
                op, args = "*", (inverse,)
            case body:
                raise ValueError(f"{use.value} is no sum and no product: {body!r}")
        to = dict(zip(use.value.scope.traversals, use.at, strict=True))
        return tuple((mark, moved(term, to)) for mark, term in (self._entry(op, a) for a in args))

    def reads(self, value: Value) -> tuple[Use, ...]:
        """What the definition of *value* reads; nothing for a leaf."""
        if value.kind == "leaf":
            return ()
        return tuple(self._read(a) for a in accesses(value.scope.body))

    def _read(self, access: Access) -> Use:
        assert isinstance(access.source, Tensor)
        return Use(1, self.known[int(access.source.name[1:])], access.index)

    def term(self, body: Scalar) -> Term:
        """What ``scalar`` wrote into a definition."""
        match body:
            case Const():
                return body
            case Access():
                return self._read(body)
            case Apply("neg", (Access() as access,)):
                return replace(self._read(access), sign=-1)
        raise ValueError(f"{body!r} is no term of a definition")

    def _entry(self, op: str, arg: Scalar) -> tuple[int, Term]:
        match arg:
            case Apply("/", (_, below)):
                return -1, self.term(below)
            case Apply("neg", (inner,)) if op == "+":
                return -1, self.term(inner)
        return 1, self.term(arg)

    def _flat(self, entries: Iterable[tuple[int, Term]], kind: Kind) -> Iterable[tuple[int, Term]]:
        for mark, term in entries:
            if isinstance(term, Use) and term.value.kind == kind:
                if kind == "product" and term.sign < 0:
                    yield 1, Const(-1)
                outer = mark * (term.sign if kind == "sum" else 1)
                yield from ((outer * inner, t) for inner, t in self.entries(term))
            else:
                yield mark, term

    def _made(self, kind: Kind, made: Canonical, own: Called) -> Use:
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


def _factor(mark: int, body: Scalar) -> Scalar:
    return body if mark > 0 else Apply("/", (Const(1), body))
