r"""Tensor-algebra expressions (EinNet §3).

A scope is the paper's general single-scope form, with a reduction monoid, a domain and padding:

.. math::  \Big\{ \mathop{L}_{\vec x}^{X} \sum_{\vec y}^{Y} f(T[\tau(\vec x, \vec y)]) \Big\}

* *traversals* are ordered: their order is the layout of the result, whose box is the product of their ranges;
* *summations* are reduced by the monoid *reduce* (``sum``, ``max``, ``min`` or ``prod``);
* *domain* restricts where the result is computed: at a point of the box that violates a bound it is *value*;
* *padding* says how far outside its box the result may be read; there it is *value* too (0 unless said otherwise).

A read further out than the padding is illegal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import isfinite, prod
from typing import Any, TypeAlias

from einnet_explore.ir.index import Index, IndexLike, Iterator, as_index
from einnet_explore.ir.node import Node, Shared, node

Padding: TypeAlias = "tuple[tuple[int, int], ...]"
Box: TypeAlias = "tuple[tuple[int, int], ...]"

REDUCTIONS: dict[str, float] = {"sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf")}
"""The monoids and their neutral elements."""

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
"""The operators of ``Compare``, as functions of numbers, arrays (elementwise) and other languages' expressions."""

JOINS: dict[str, str] = {"sum": "+", "prod": "*", "max": "maximum", "min": "minimum"}
"""The monoids, and the scalar operation that joins two values of each."""


class _Source(Node):
    """The source of an access: a tensor, a table or a scope."""

    __slots__ = ()

    def __getitem__(self, index: tuple[IndexLike, ...]) -> Access:
        return Access(self, tuple(as_index(i) for i in index))  # type: ignore[arg-type]


@node
class Tensor(_Source):
    """A named tensor of *shape*; reads up to *padding* outside it give *value*.

    *weight* marks a tensor that is known at compile time.  An empty *padding* means none.  *origin* is the index of
    the first stored element (empty: all zero); only results of equations whose ranges start elsewhere have one.
    *dtype* is the type of the elements (``ir.element_types``).
    """

    name: str
    shape: tuple[int, ...]
    padding: Padding = ()
    value: float = 0
    weight: bool = False
    origin: tuple[int, ...] = ()
    dtype: str = "float32"

    @property
    def box(self) -> Box:
        """The half-open range of each dimension that holds stored elements."""
        if not self.origin:
            return tuple((0, n) for n in self.shape)
        return tuple((lo, lo + n) for lo, n in zip(self.origin, self.shape, strict=True))

    @property
    def reach(self) -> Box:
        """The half-open range of each dimension that may be read: the box and its padding."""
        return _reach(self.box, self.padding)

    def __repr__(self) -> str:
        return self.name


@node
class Table(_Source):
    """Known rational numbers of *shape*, row by row: the coefficients of an algorithm.  No read may leave it."""

    shape: tuple[int, ...]
    entries: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if len(self.entries) != prod(self.shape):
            raise ValueError(f"a table of shape {list(self.shape)} has {len(self.entries)} entries")

    @property
    def box(self) -> Box:
        """The half-open range of each dimension."""
        return tuple((0, n) for n in self.shape)

    @property
    def reach(self) -> Box:
        """The half-open range of each dimension that may be read: the box."""
        return self.box

    @property
    def padding(self) -> Padding:
        """None."""
        return ()

    @property
    def value(self) -> float:
        """The padding's value; a table has no padding."""
        return 0

    def __repr__(self) -> str:
        return f"[{', '.join(map(str, self.entries))}]"


@node
class Bound(Node, metaclass=Shared):
    """One condition of a domain: ``lo <= index < hi``."""

    index: Index
    lo: int
    hi: int

    def __repr__(self) -> str:
        return f"{self.lo} <= {self.index} < {self.hi}"


@node
class Access(Node):
    """source[index]: one element of a tensor, or of a scope's instantiated result."""

    source: Tensor | Table | Scope
    index: tuple[Index, ...]

    def __repr__(self) -> str:
        return f"{self.source!r}[{', '.join(map(repr, self.index))}]"


@node
class Const(Node):
    """A number."""

    value: float

    def __repr__(self) -> str:
        return f"{self.value:g}"


@node
class Compare(Node):
    """A comparison of two indices, the condition of ``where``; *op* is one of ``COMPARISONS``."""

    op: str
    left: Index
    right: Index

    def __repr__(self) -> str:
        return f"{self.left!r} {self.op} {self.right!r}"


@node
class Apply(Node):
    """op(args), elementwise.

    *op* is ``+ - * /`` (``+`` and ``*`` take two or more arguments, flattened; ``-`` and ``/`` two), ``neg`` or a
    function of ``FUNCTIONS`` (``ir.scalar_functions``).  ``where`` takes a ``Compare`` first.
    """

    op: str
    args: tuple[Scalar, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The accesses of the arguments, left to right."""
        try:
            return self._own  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            found = tuple([access for arg in self.args for access in accesses(arg)])
            object.__setattr__(self, "_own", found)
            return found

    def __repr__(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.args))})"


Scalar: TypeAlias = Access | Const | Apply | Compare


@node
class Scope(_Source):
    """{ L_traversals Σ_summations body }: an expression whose result is instantiated."""

    traversals: tuple[Iterator, ...]
    summations: tuple[Iterator, ...]
    body: Scalar
    reduce: str = "sum"
    domain: tuple[Bound, ...] = ()
    padding: Padding = ()
    value: float = 0

    @property
    def box(self) -> Box:
        """The half-open range of each traversal."""
        return tuple((x.lo, x.hi) for x in self.traversals)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each traversal: the shape of the instantiated array."""
        return tuple(x.extent for x in self.traversals)

    @property
    def reach(self) -> Box:
        """The half-open range of each traversal that may be read: the box and its padding."""
        return _reach(self.box, self.padding)

    def __repr__(self) -> str:
        heads = ", ".join(f"{x.name}:{x.lo}..{x.hi}" for x in self.traversals)
        sums = ", ".join(f"{x.name}:{x.lo}..{x.hi}" for x in self.summations)
        return f"{{[{heads}] {self.reduce}[{sums}] {self.body!r}}}"


def padded(source: Tensor | Scope, padding: Padding) -> Tensor | Scope:
    """Return *source* with *padding*; an all-zero padding is normalised to the empty one."""
    return replace(source, padding=padding if any(any(p) for p in padding) else ())


def _reach(box: Box, padding: Padding) -> Box:
    if not padding:
        return box
    return tuple((lo - before, hi + after) for (lo, hi), (before, after) in zip(box, padding, strict=True))


def mul(*args: Scalar) -> Scalar:
    """Return the product of *args*, flattened; constants are collected in front, 1 is dropped.

    Constants are multiplied if that has no rounding error, so that the value stays the same.
    """
    return _flat("*", args, 1)


def add(*args: Scalar) -> Scalar:
    """Return the sum of *args*, flattened; constants are collected in front, 0 is dropped.

    Constants are added as ``mul`` multiplies them.
    """
    return _flat("+", args, 0)


def sub(a: Scalar, b: Scalar) -> Scalar:
    """Return a - b."""
    return Apply("-", (a, b))


def is_zero(u: Scalar) -> Scalar:
    """Return 1 where *u*, which must not be negative, is 0, and 0 elsewhere: 0 to the power *u*."""
    return Apply("pow", (Const(0), u))


def combined(monoid: str, parts: Iterable[Scalar]) -> Scalar:
    """Return *parts* (at least one) combined by *monoid*."""
    match JOINS[monoid]:
        case "+":
            return add(*parts)
        case "*":
            return mul(*parts)
        case op:
            return reduce(lambda a, b: Apply(op, (a, b)), parts)


def factors(body: Scalar) -> tuple[Scalar, ...]:
    """Return the factors of a product; any other body is its only factor."""
    return body.args if isinstance(body, Apply) and body.op == "*" else (body,)


def split_constants(parts: Iterable[Scalar]) -> tuple[tuple[float, ...], tuple[Scalar, ...]]:
    """Return the values of the constants among *parts*, and the other parts."""
    every = tuple(parts)
    return tuple(p.value for p in every if isinstance(p, Const)), tuple(p for p in every if not isinstance(p, Const))


def terms(body: Scalar) -> tuple[Scalar, ...]:
    """Return the terms of a sum; any other body is its only term."""
    return body.args if isinstance(body, Apply) and body.op == "+" else (body,)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "*": operator.mul}


def _flat(op: str, args: tuple[Scalar, ...], neutral: float) -> Scalar:
    flat: list[Scalar] = []
    constants: list[float] = []
    for arg in args:
        for part in arg.args if isinstance(arg, Apply) and arg.op == op else (arg,):
            if isinstance(part, Const):
                constants.append(part.value)
            else:
                flat.append(part)
    if len(constants) > 1:
        constants = _fold(op, constants)
    flat[:0] = [Const(value) for value in constants if value != neutral]
    if not flat:
        return Const(neutral)
    return flat[0] if len(flat) == 1 else Apply(op, tuple(flat))


def _fold(op: str, constants: Iterable[float]) -> list[float]:
    """Combine *constants* by *op* where that has no rounding error, or is infinite; return them in ascending order."""
    left: list[float] = []
    for constant in sorted(constants):
        together = ((n, _exactly(op, constant, other)) for n, other in enumerate(left))
        match next(((n, value) for n, value in together if value is not None), None):
            case n, value:
                left[n] = value
            case None:
                left.append(constant)
    return sorted(left)


def _exactly(op: str, a: float, b: float) -> float | None:
    """Return *a* and *b* combined by *op*; None if that has a rounding error."""
    found: float = _OPERATIONS[op](a, b)
    is_exact = not isfinite(found) or _OPERATIONS[op](Fraction(a), Fraction(b)) == Fraction(found)
    return found if is_exact else None


def walk_scalar(body: Scalar) -> Iterable[Scalar]:
    """Yield *body* and its arguments, each function before its arguments; scopes that it reads are not entered."""
    yield body
    if isinstance(body, Apply):
        for arg in body.args:
            yield from walk_scalar(arg)


def accesses(body: Scalar) -> tuple[Access, ...]:
    """Return the accesses of *body*, left to right; scopes that it reads are not entered."""
    match body:
        case Access():
            return (body,)
        case Apply():
            return body.accesses
        case Const() | Compare():
            return ()


def map_accesses(body: Scalar, change: Callable[[Access], Scalar]) -> Scalar:
    """Replace every access *a* of *body* by ``change(a)``, left to right; products and sums stay flat."""
    match body:
        case Access():
            return change(body)
        case Apply(op, args):
            new = tuple(map_accesses(a, change) for a in args)
            if new == args:
                return body
            return mul(*new) if op == "*" else add(*new) if op == "+" else Apply(op, new)
        case Const() | Compare():
            return body
