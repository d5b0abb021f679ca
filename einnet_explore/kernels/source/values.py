r"""Scalar expressions of the kernel language: frozen values, typed as they are built.

Arithmetic joins operands of one type; a Python number takes the other's type, and integers of different width are
widened.  ``/`` of integers is C's: it truncates.  Half precision is a format of memory: a load of it gives single.
"""

from __future__ import annotations

from math import isfinite
from typing import TypeAlias

from einnet_explore.ir.node import Node, node
from einnet_explore.kernels.source.types import BOOL, F32, I32, KernelError, Type

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
ARITHMETIC = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")
LOGIC = ("&&", "||")


class Expr(Node):
    """Base of all expressions; ``+ - * / // %`` and the comparisons' methods build new ones."""

    __slots__ = ()

    @property
    def type(self) -> Type:
        """The type of its value."""
        raise NotImplementedError

    def __add__(self, other: ExprLike) -> Expr:
        return binary("+", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("+", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("-", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("-", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("*", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("*", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("/", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("/", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        """C's division of integers: it truncates, so it rounds down only what is not negative."""
        return binary("/", self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("%", self, other)

    def __neg__(self) -> Expr:
        return Unary("-", self)

    def lt(self, other: ExprLike) -> Expr:
        """self < other."""
        return binary("<", self, other)

    def le(self, other: ExprLike) -> Expr:
        """self <= other."""
        return binary("<=", self, other)

    def ge(self, other: ExprLike) -> Expr:
        """self >= other."""
        return binary(">=", self, other)

    def gt(self, other: ExprLike) -> Expr:
        """self > other."""
        return binary(">", self, other)

    def eq(self, other: ExprLike) -> Expr:
        """self == other."""
        return binary("==", self, other)

    def ne(self, other: ExprLike) -> Expr:
        """self != other."""
        return binary("!=", self, other)


ExprLike: TypeAlias = "Expr | int | float"


@node
class Literal(Expr):
    """A number of type *kind*; infinities and NaN are of floating types only."""

    value: float | int | bool
    kind: Type

    def __post_init__(self) -> None:
        if self.kind.kind != "float" and not isfinite(self.value):
            raise KernelError(f"{self.value} is no number of type {self.kind!r}")
        if self.kind.integer:
            lo = -(1 << self.kind.bits - 1) if self.kind.kind == "int" else 0
            if int(self.value) != self.value or not lo <= self.value < lo + (1 << self.kind.bits):
                raise KernelError(f"{self.value} is no number of type {self.kind!r}")

    @property
    def type(self) -> Type:
        return self.kind


@node
class Var(Expr):
    """A scalar: a parameter, a declared variable or a loop's counter."""

    name: str
    kind: Type = I32

    def __post_init__(self) -> None:
        if self.kind != self.kind.computed:
            raise KernelError(f"variable {self.name}: {self.kind!r} is a type of memory, not of variables")

    @property
    def type(self) -> Type:
        return self.kind


@node
class Id(Expr):
    """``thread`` or ``block``: this thread's place in its block, the block's in the grid; ``grid``: how many blocks."""

    of: str
    dim: int = 0

    def __post_init__(self) -> None:
        if self.of not in ("thread", "block", "grid") or not 0 <= self.dim < 3:
            raise KernelError(f"id {self.of}[{self.dim}]: expected thread, block or grid, and a dimension below 3")

    @property
    def type(self) -> Type:
        return I32


@node
class Unary(Expr):
    """``-`` or ``!``."""

    op: str
    arg: Expr

    @property
    def type(self) -> Type:
        return self.arg.type


@node
class Binary(Expr):
    """left op right; made by ``binary``, which gives both sides one type."""

    op: str
    left: Expr
    right: Expr

    @property
    def type(self) -> Type:
        return BOOL if self.op in COMPARISONS or self.op in LOGIC else self.left.type


@node
class Cast(Expr):
    """*arg* as a value of type *kind*; numbers with a fraction become integers by truncation."""

    kind: Type
    arg: Expr

    @property
    def type(self) -> Type:
        return self.kind


def literal(value: float | int | bool, kind: Type | None = None) -> Literal:
    """*value* as a constant: of *kind*, or an int's ``int32``, a float's ``float32``."""
    if kind is None:
        kind = BOOL if isinstance(value, bool) else I32 if isinstance(value, int) else F32
    return Literal(float(value) if kind.kind == "float" else _exactly(value), kind)


def _exactly(value: float | int | bool) -> float | int | bool:
    return int(value) if isfinite(value) and int(value) == value and not isinstance(value, bool) else value


def binary(op: str, left: ExprLike, right: ExprLike) -> Expr:
    """left op right with both of one type; zeros and ones of integers, and constants, are folded.

    Raises KernelError for an unknown operator, or where the types cannot be joined.
    """
    a, b = joined(op, left, right)
    of = a.type
    if op in LOGIC:
        good = of == BOOL
    elif op in ARITHMETIC:
        good = of.integer or (of.kind == "float" and op in "+-*/")
    else:
        good = op in COMPARISONS
    if not good:
        raise KernelError(f"{op} of {of!r}: no such operation")
    return _folded(op, a, b) if of.integer else Binary(op, a, b)


def joined(op: str, left: ExprLike, right: ExprLike) -> tuple[Expr, Expr]:
    """Both with one type; raises KernelError, in which *op* is named, where they have none."""
    match left, right:
        case Expr(), Expr():
            a, b = left, right
        case Expr(), (int() | float()):
            a, b = left, literal(right, left.type)
        case ((int() | float()), Expr()):
            a, b = literal(left, right.type), right
        case _:
            a, b = literal(left), literal(right)  # type: ignore[arg-type]
    if a.type == b.type:
        return a, b
    if a.type.integer and b.type.kind == a.type.kind:
        wide = max(a.type, b.type, key=lambda t: t.bits)
        return cast(wide, a), cast(wide, b)
    raise KernelError(f"{op} joins {a.type!r} and {b.type!r}: one of them must be cast")


def _folded(op: str, a: Expr, b: Expr) -> Expr:
    match op, a, b:
        case "+" | "-" | "*", Literal(x, kind), Literal(y):
            value = {"+": x + y, "-": x - y, "*": x * y}[op]
            try:
                return Literal(value, kind)
            except KernelError:
                return Binary(op, a, b)
        case "+", Literal(0), _:
            return b
        case (("+" | "-" | "<<" | ">>" | "|" | "^"), _, Literal(0)):
            return a
        case "*", Literal(1), _:
            return b
        case (("*" | "/"), _, Literal(1)):
            return a
        case "*", Literal(0, kind), _:
            return Literal(0, kind)
        case ("*", _, Literal(0, kind)) | ("%", _, Literal(1, kind)):
            return Literal(0, kind)
    return Binary(op, a, b)


def conjunction(*conditions: Expr) -> Expr | None:
    """All of *conditions*; None where there is none."""
    made: Expr | None = None
    for c in conditions:
        made = c if made is None else binary("&&", made, c)
    return made


def cast(kind: Type, arg: ExprLike) -> Expr:
    """*arg* as *kind*; what has that type already stays as it is.  Raises KernelError for types of memory only."""
    made = arg if isinstance(arg, Expr) else literal(arg)
    if kind != kind.computed:
        raise KernelError(f"a value cannot be cast to {kind!r}, which is a type of memory")
    if made.type == kind:
        return made
    if isinstance(made, Literal) and (kind.kind == "float" or (kind.integer and int(made.value) == made.value)):
        return literal(made.value, kind)
    return Cast(kind, made)
