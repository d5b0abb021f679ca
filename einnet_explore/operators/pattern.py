"""Canonical expressions with free attributes, and their parser.  An example:

``Y[n, f, h] = sum[c, r] X[n, c, sh*h + dh*r - ph : H] * K[f, c, r]``

* an index is Σ coefficient·iterator + constant, where coefficients and constants are polynomials of attributes;
  ``|r|`` is the extent of iterator ``r``;
* ``: H`` names the extent of a dimension whose index is composite (an iterator's own dimension has its extent);
* ``b?`` is an optional iterator;
* ``A[m, k] or ta[k, m]`` is an operand in either memory order, selected by the attribute ``ta``;
* ``where |w| == 2*W + 1`` relates attributes.

Reads of composite dimensions may lie outside: there they yield the neutral element of the reduction.
Source: EinNet §5.1; the operands of a canonical expression are the operator's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from einnet_explore.ir import REDUCTIONS


@dataclass(frozen=True)
class Polynomial:
    """Σ coefficient·(product of attributes), sorted by product."""

    terms: tuple[tuple[tuple[str, ...], int], ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every attribute that occurs, once."""
        return tuple(dict.fromkeys(name for product, _ in self.terms for name in product))

    def value(self, at: Mapping[str, int]) -> int:
        """Return the value if all attributes are known; raises KeyError with the name of an unknown one."""
        return sum(_product(k, (at[name] for name in product)) for product, k in self.terms)

    def solve(self, value: int, at: Mapping[str, int]) -> tuple[str, int] | None:
        """Solve for the only unknown attribute so that this equals *value*; None if that is undetermined.

        Raises ValueError if the solution is no integer.
        """
        unknown = [name for name in self.names if name not in at]
        if len(unknown) != 1:
            return None
        slope = rest = 0
        for product, k in self.terms:
            known = _product(k, (at[name] for name in product if name in at))
            match product.count(unknown[0]):
                case 0:
                    rest += known
                case 1:
                    slope += known
                case _:
                    return None
        if slope == 0:
            return None
        if (value - rest) % slope:
            raise ValueError(
                f"{self!r} = {value} has no integer solution for {unknown[0]} (slope {slope}, rest {rest})"
            )
        return unknown[0], (value - rest) // slope

    def __add__(self, other: Polynomial) -> Polynomial:
        return make_polynomial((*self.terms, *other.terms))

    def __mul__(self, other: Polynomial) -> Polynomial:
        return make_polynomial(((*p, *q), a * b) for p, a in self.terms for q, b in other.terms)

    def __repr__(self) -> str:
        text = "".join(
            f" {'-' if k < 0 else '+'} {'*'.join((*((str(abs(k)),) if abs(k) != 1 or not p else ()), *p))}"
            for p, k in self.terms
        )
        return text.removeprefix(" + ").strip() or "0"


ONE = Polynomial((((), 1),))
MINUS = Polynomial((((), -1),))


@dataclass(frozen=True)
class Dimension:
    """An index of an operand: Σ coefficient·iterator + *const*; *extent* is given if the index is composite."""

    terms: tuple[tuple[str, Polynomial], ...]
    const: Polynomial = Polynomial()
    extent: Polynomial | None = None

    @cached_property
    def single(self) -> str | None:
        """The iterator that this index is, or None if it is composite."""
        if len(self.terms) == 1 and self.terms[0][1] == ONE and not self.const.terms and self.extent is None:
            return self.terms[0][0]
        return None

    @property
    def iterators(self) -> tuple[str, ...]:
        """The iterators of the index."""
        return tuple(name for name, _ in self.terms)

    def coefficient(self, iterator: str) -> Polynomial:
        """Return the factor of *iterator*."""
        return next((k for name, k in self.terms if name == iterator), Polynomial())

    def __repr__(self) -> str:
        parts = [name if k == ONE else f"({k!r})*{name}" for name, k in self.terms]
        return " + ".join((*parts, *((repr(self.const),) if self.const.terms else ())))


@dataclass(frozen=True)
class Operand:
    """An input: its dimensions in memory order, and other orders by the attribute that selects them."""

    name: str
    dimensions: tuple[Dimension, ...]
    variants: tuple[tuple[str, tuple[Dimension, ...]], ...] = ()

    @cached_property
    def iterators(self) -> frozenset[str]:
        """The iterators that occur."""
        return frozenset(self.names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The iterators that occur, in order of appearance."""
        return tuple(dict.fromkeys(name for d in self.dimensions for name in d.iterators))


@dataclass(frozen=True)
class Pattern:
    """A canonical expression.  *op* combines the operands (empty for one alone); *divisor* divides the result."""

    output: str
    traversals: tuple[str, ...]
    reduce: str
    summations: tuple[str, ...]
    op: str
    operands: tuple[Operand, ...]
    divisor: Polynomial
    optional: frozenset[str]
    conditions: tuple[tuple[Polynomial, Polynomial], ...]

    @cached_property
    def iterators(self) -> tuple[str, ...]:
        """Traversals, then summations."""
        return (*self.traversals, *self.summations)

    @cached_property
    def windows(self) -> tuple[tuple[int, int], ...]:
        """(operand, dimension) of every composite index."""
        return tuple(
            (p, d)
            for p, operand in enumerate(self.operands)
            for d, dimension in enumerate(operand.dimensions)
            if dimension.single is None
        )

    @cached_property
    def zeros(self) -> tuple[Polynomial, ...]:
        """The difference of the sides of each condition."""
        return tuple(left + MINUS * right for left, right in self.conditions)

    @cached_property
    def composite(self) -> str:
        """The composite indices as text."""
        return ", ".join(repr(self.operands[p].dimensions[d]) for p, d in self.windows)

    @cached_property
    def merged(self) -> frozenset[str]:
        """The iterators that are dimensions by themselves: several of a scope's iterators can be merged into one."""
        fixed = {name for p, d in self.windows for name in self.operands[p].dimensions[d].iterators}
        return frozenset(self.iterators) - fixed

    @cached_property
    def attributes(self) -> dict[str, int]:
        """Every free attribute and its least value: 1 for factors of iterators and extents, 0 for offsets."""
        least: dict[str, int] = {}
        for operand in self.operands:
            for dimension in operand.dimensions:
                for _, k in dimension.terms:
                    least.update((name, 1) for name in k.names)
                least.update((name, 1) for name in (dimension.extent or ONE).names)
                least.update((name, 0) for name in dimension.const.names if name not in least)
        return {name: lo for name, lo in least.items() if not name.startswith("|")}


def _product(start: int, values: Iterable[int]) -> int:
    for value in values:
        start *= value
    return start


def make_polynomial(terms: Iterable[tuple[tuple[str, ...], int]]) -> Polynomial:
    total: dict[tuple[str, ...], int] = {}
    for product, k in terms:
        key = tuple(sorted(product))
        total[key] = total.get(key, 0) + k
    return Polynomial(tuple(sorted((p, k) for p, k in total.items() if k)))


_TOKEN = re.compile(r"\s*(\d+|\|\w+\||[A-Za-z_]\w*|==|[\[\],=+*/():?-])")


@lru_cache(maxsize=256)
def parse_pattern(text: str) -> Pattern:
    """Parse a canonical expression; raises ValueError with the place and the expected text."""
    return _Reader(text).pattern()


class _Reader:
    """A recursive-descent parser of one pattern."""

    def __init__(self, text: str) -> None:
        self.text, self.tokens, at = text, list[str](), 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if not found:
                raise ValueError(f"pattern {text!r}: unexpected {text[at:].strip()[0]!r}")
            self.tokens.append(found.group(1))
            at = found.end()
        self.tokens.append("")
        self.at = 0
        self.optional: set[str] = set()

    def pattern(self) -> Pattern:
        output, traversals = self.name(), self.names()
        self.expect("=")
        reduce, summations = "sum", tuple[str, ...]()
        if self.tokens[self.at] in REDUCTIONS and self.tokens[self.at + 1] == "[":
            reduce, summations = self.name(), self.names()
        iterators = {*traversals, *summations}
        op, operands, divisor = "", [self.operand(iterators)], ONE
        while self.tokens[self.at] in ("+", "-", "*", "/"):
            sign = self.take()
            if sign == "/" and self.tokens[self.at] == "(":
                divisor = self.sum()
                break
            if op not in ("", sign) or (op == sign and op in "-/"):
                raise ValueError(
                    f"pattern {self.text!r}: found {sign!r} after {op!r}, expected operands under one operation: "
                    "all + or all *, or two of - or /"
                )
            op = sign
            operands.append(self.operand(iterators))
        conditions = []
        if self.tokens[self.at] == "where":
            self.take()
            conditions.append(self.condition())
            while self.tokens[self.at] == ",":
                self.take()
                conditions.append(self.condition())
        self.expect("")
        unread = iterators - {name for operand in operands for name in operand.iterators}
        if unread:
            raise ValueError(f"pattern {self.text!r}: no operand reads {', '.join(sorted(unread))}")
        optional = frozenset(self.optional)
        return Pattern(
            output, traversals, reduce, summations, op, tuple(operands), divisor, optional, tuple(conditions)
        )

    def operand(self, iterators: set[str]) -> Operand:
        name, dimensions = self.name(), self.dimensions(iterators)
        variants = []
        while self.tokens[self.at] == "or":
            self.take()
            flag, other = self.name(), self.dimensions(iterators)
            if sorted(map(repr, other)) != sorted(map(repr, dimensions)):
                raise ValueError(f"pattern {self.text!r}: {flag}{list(other)} is no other order of {list(dimensions)}")
            variants.append((flag, other))
        return Operand(name, dimensions, tuple(variants))

    def names(self) -> tuple[str, ...]:
        self.expect("[")
        out = []
        while self.tokens[self.at] != "]":
            out.append(self.name())
            self.question(out[-1])
            if self.tokens[self.at] == ",":
                self.take()
        self.expect("]")
        if len(set(out)) != len(out):
            raise ValueError(f"pattern {self.text!r}: an iterator stands twice in [{', '.join(out)}]")
        return tuple(out)

    def dimensions(self, iterators: set[str]) -> tuple[Dimension, ...]:
        self.expect("[")
        out = [self.dimension(iterators)]
        while self.tokens[self.at] == ",":
            self.take()
            out.append(self.dimension(iterators))
        self.expect("]")
        return tuple(out)

    def dimension(self, iterators: set[str]) -> Dimension:
        index, extent = self.sum(), None
        for name in index.names:
            self.question(name)
        if self.tokens[self.at] == ":":
            self.take()
            extent = self.sum()
        terms: dict[str, Polynomial] = {}
        const = Polynomial()
        for product, k in index.terms:
            own = [name for name in product if name in iterators]
            rest = make_polynomial([(tuple(name for name in product if name not in iterators), k)])
            match own:
                case []:
                    const = const + rest
                case [name]:
                    terms[name] = terms.get(name, Polynomial()) + rest
                case _:
                    raise ValueError(f"pattern {self.text!r}: {index!r} multiplies iterators {' and '.join(own)}")
        made = Dimension(tuple(terms.items()), const, extent)
        if made.single is None and extent is None:
            if unknown := [name for name in index.names if name.isidentifier() and name not in iterators]:
                raise ValueError(
                    f"pattern {self.text!r}: found {unknown[0]} in the index {index!r}, expected one of "
                    f"{', '.join(sorted(iterators))}, the iterators that are declared, or an extent: {index!r} : H"
                )
            raise ValueError(f"pattern {self.text!r}: composite index {index!r} needs an extent, such as {index!r} : H")
        return made

    def condition(self) -> tuple[Polynomial, Polynomial]:
        left = self.sum()
        self.expect("==")
        return left, self.sum()

    def sum(self) -> Polynomial:
        total = self.product()
        while self.tokens[self.at] in ("+", "-"):
            sign = self.take()
            term = self.product()
            total = total + (term if sign == "+" else MINUS * term)
        return total

    def product(self) -> Polynomial:
        total = self.atom()
        while self.tokens[self.at] == "*":
            self.take()
            total = total * self.atom()
        return total

    def atom(self) -> Polynomial:
        token = self.take()
        if token == "(":
            inner = self.sum()
            self.expect(")")
            return inner
        if token == "-":
            return MINUS * self.product()
        if token.isdigit():
            return make_polynomial([((), int(token))])
        if re.fullmatch(r"\|?\w+\|?", token):
            return make_polynomial([((token,), 1)])
        raise ValueError(f"pattern {self.text!r}: found {token or 'the end'!r}, expected a name or a number")

    def question(self, name: str) -> None:
        if self.tokens[self.at] == "?":
            self.take()
            self.optional.add(name)

    def name(self) -> str:
        token = self.take()
        if not token.isidentifier():
            raise ValueError(f"pattern {self.text!r}: found {token or 'the end'!r}, expected a name")
        return token

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, token: str) -> None:
        found = self.take()
        if found != token:
            raise ValueError(f"pattern {self.text!r}: found {found or 'the end'!r}, expected {token or 'the end'!r}")
