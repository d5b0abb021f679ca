"""Scalar types, expressions and arrays of the kernel language: frozen values, typed when they are built.

Arithmetic needs operands of one type; a Python number takes the other operand's type, and the narrower of two integers
is widened.  ``/`` of integers truncates, as in C.  Half precision and bfloat16 are storage formats: a load of them is
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from einnet_explore.ir.element_types import ELEMENT_TYPES
from einnet_explore.ir.node import Node, node
from einnet_explore.ir.scalar_functions import FUNCTIONS, REAL_FUNCTIONS
from einnet_explore.support.errors import Refused


@node
class Type(Node):
    """A scalar type: *kind* is ``bool``, ``int``, ``uint``, ``float`` or ``bfloat``."""

    kind: str
    bits: int

    @property
    def size(self) -> int:
        """Bytes of an element in memory."""
        return max(1, self.bits // 8)

    @property
    def integer(self) -> bool:
        """True for signed and unsigned integers; truth values are not integers."""
        return self.kind in ("int", "uint")

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest number of an integer type."""
        low = -(1 << self.bits - 1) if self.kind == "int" else 0
        return low, low + (1 << self.bits) - 1

    @property
    def computed(self) -> Type:
        """The type of a loaded value: float32 for half precision and bfloat16, which are storage formats only."""
        return F32 if self in (F16, BF16) else self

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The NumPy dtype."""
        if self == BF16:
            kind: np.dtype[np.generic] = np.dtype(ml_dtypes.bfloat16)
            return kind
        return np.dtype(np.bool_ if self == BOOL else f"{self.kind}{self.bits}")

    def __repr__(self) -> str:
        return str(self.dtype)


BOOL = Type("bool", 1)
I8, I16, I32, I64 = (Type("int", n) for n in (8, 16, 32, 64))
U8, U16, U32, U64 = (Type("uint", n) for n in (8, 16, 32, 64))
F16, F32, F64 = (Type("float", n) for n in (16, 32, 64))
BF16 = Type("bfloat", 16)
TYPES = (BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64)

_NAMED = {t.dtype: t for t in TYPES}


def type_of(dtype: npt.DTypeLike) -> Type:
    """Return the type of a NumPy dtype; raises Refused for a dtype that no kernel computes with."""
    try:
        return _NAMED[np.dtype(dtype).newbyteorder("=")] if np.dtype(dtype).isnative else _NAMED[np.dtype("void")]
    except (KeyError, TypeError):
        raise Refused(f"dtype {dtype}: expected one of {', '.join(map(repr, TYPES))}, in native order") from None


COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
ARITHMETIC = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")
LOGIC = ("&&", "||")


def _operation(op: str) -> Callable[[Expr, ExprLike], Expr]:
    return lambda left, right: binary_operation(op, left, right)


def _reversed_operation(op: str) -> Callable[[Expr, ExprLike], Expr]:
    return lambda right, left: binary_operation(op, left, right)


class Expr(Node):
    """Base of all expressions; arithmetic operators and the comparison methods build new ones."""

    __slots__ = ()

    @property
    def type(self) -> Type:
        """The type of the value."""
        raise NotImplementedError

    __add__, __radd__ = _operation("+"), _reversed_operation("+")
    __sub__, __rsub__ = _operation("-"), _reversed_operation("-")
    __mul__, __rmul__ = _operation("*"), _reversed_operation("*")
    __truediv__, __rtruediv__ = _operation("/"), _reversed_operation("/")
    __floordiv__ = _operation("/")
    """C's division of integers: it truncates, so it rounds down only for nonnegative operands."""
    __mod__ = _operation("%")
    lt, le, ge, gt, eq, ne = map(_operation, ("<", "<=", ">=", ">", "==", "!="))

    def __neg__(self) -> Expr:
        return Unary("-", self)


ExprLike: TypeAlias = "Expr | int | float"


@node
class Literal(Expr):
    """A constant of type *kind*; only floating types have infinities and NaN."""

    value: float | int | bool
    kind: Type

    def __post_init__(self) -> None:
        if self.kind.kind != "float" and not isfinite(self.value):
            raise Refused(f"{self.value} is no number of type {self.kind!r}")
        if self.kind.integer:
            least, most = self.kind.bounds
            if int(self.value) != self.value or not least <= self.value <= most:
                raise Refused(f"{self.value} is no number of type {self.kind!r}")

    @property
    def type(self) -> Type:
        return self.kind


@node
class Var(Expr):
    """A scalar: a parameter, a declared variable or a loop counter."""

    name: str
    kind: Type = I32

    def __post_init__(self) -> None:
        if self.kind != self.kind.computed:
            raise Refused(f"variable {self.name}: {self.kind!r} is a type of memory, not of variables")

    @property
    def type(self) -> Type:
        return self.kind


@node
class LaunchIndex(Expr):
    """A launch coordinate: ``thread`` in its block, ``block`` in the grid, or the ``grid``'s size in blocks."""

    of: str
    dim: int = 0

    def __post_init__(self) -> None:
        if self.of not in ("thread", "block", "grid") or not 0 <= self.dim < 3:
            raise Refused(f"id {self.of}[{self.dim}]: expected thread, block or grid, and a dimension below 3")

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
    """left op right, of one type; built by ``binary_operation``."""

    op: str
    left: Expr
    right: Expr

    @property
    def type(self) -> Type:
        return BOOL if self.op in COMPARISONS or self.op in LOGIC else self.left.type


@node
class Cast(Expr):
    """*arg* as a value of type *kind*; fractions are truncated."""

    kind: Type
    arg: Expr

    @property
    def type(self) -> Type:
        return self.kind


def literal(value: float | int | bool, kind: Type | None = None) -> Literal:
    """Return *value* as a constant of *kind*; by default ``int32`` for an int and ``float32`` for a float."""
    if kind is None:
        kind = BOOL if isinstance(value, bool) else I32 if isinstance(value, int) else F32
    return Literal(float(value) if kind.kind == "float" else _exact_number(value), kind)


def _exact_number(value: float | int | bool) -> float | int | bool:
    return int(value) if isfinite(value) and int(value) == value and not isinstance(value, bool) else value


def binary_operation(op: str, left: ExprLike, right: ExprLike) -> Expr:
    """Return left op right with both of one type; integer zeros, ones and constants are folded.

    Raises Refused for an unknown operator and for types without a common one.
    """
    a, b = unify_types(op, left, right)
    of = a.type
    if op in LOGIC:
        good = of == BOOL
    elif op in ARITHMETIC:
        good = of.integer or (of.kind == "float" and op in "+-*/")
    else:
        good = op in COMPARISONS
    if not good:
        raise Refused(f"{op} of {of!r}: no such operation")
    return _fold_integers(op, a, b) if of.integer else Binary(op, a, b)


def unify_types(op: str, left: ExprLike, right: ExprLike) -> tuple[Expr, Expr]:
    """Return both operands with one type; raises Refused, naming *op*, if they have none."""
    a, b = (
        x if isinstance(x, Expr) else literal(x, y.type if isinstance(y, Expr) else None)
        for x, y in ((left, right), (right, left))
    )
    if a.type == b.type:
        return a, b
    if a.type.integer and b.type.kind == a.type.kind:
        wide = max(a.type, b.type, key=lambda t: t.bits)
        return cast(wide, a), cast(wide, b)
    raise Refused(f"{op} joins {a.type!r} and {b.type!r}: one of them must be cast")


def _fold_integers(op: str, a: Expr, b: Expr) -> Expr:
    match op, a, b:
        case "+" | "-" | "*", Literal(x, kind), Literal(y):
            value = {"+": x + y, "-": x - y, "*": x * y}[op]
            try:
                return Literal(value, kind)
            except Refused:
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
    """Return the conjunction of *conditions*, or None if there are none."""
    made: Expr | None = None
    for c in conditions:
        made = c if made is None else binary_operation("&&", made, c)
    return made


def cast(kind: Type, arg: ExprLike) -> Expr:
    """Return *arg* as *kind*, unchanged if it has that type.  Raises Refused for storage-only types."""
    made = arg if isinstance(arg, Expr) else literal(arg)
    if kind != kind.computed:
        raise Refused(f"a value cannot be cast to {kind!r}, which is a type of memory")
    if made.type == kind:
        return made
    is_small = kind.integer and kind.bits <= 16
    if isinstance(made, Cast) and is_small and made.arg.type == kind and made.type in (F32, F64):
        return made.arg  # all its values are numbers of the type in between
    if isinstance(made, Literal) and kind.kind == "float":
        return literal(made.value, kind)
    if isinstance(made, Literal) and kind.integer and int(made.value) == made.value:
        low, _ = kind.bounds
        return literal((int(made.value) - low) % (1 << kind.bits) + low, kind)
    return Cast(kind, made)


CALLS: dict[str, int] = {
    **{n: count for n, count in FUNCTIONS.items() if n not in ("relu", "where", *ELEMENT_TYPES)},
    "float16": 1, "bfloat16": 1, "floor": 1, "fma": 3, "rounded_sum": 7,
}  # fmt: skip
"""The functions and their numbers of arguments; ``select``, ``floor`` and ``fma`` take integers too.

``rounded_sum`` is that of ``codegen/language/rounding.py``.
"""


@node
class Call(Expr):
    """A function of ``CALLS``, of arguments of one type; built by ``call``."""

    name: str
    args: tuple[Expr, ...]

    @property
    def type(self) -> Type:
        return self.args[0].type


@node
class Select(Expr):
    """*yes* if *condition* holds, else *no*; only the chosen one is evaluated, or both where *eager*."""

    condition: Expr
    yes: Expr
    no: Expr
    eager: bool = False

    @property
    def type(self) -> Type:
        return self.yes.type


def call(name: str, *args: ExprLike) -> Expr:
    """Return name(args); raises Refused for an unknown function, a wrong number of arguments, or wrong types."""
    if CALLS.get(name) != len(args):
        raise Refused(f"{name} of {len(args)} arguments is no function; known are {', '.join(sorted(CALLS))}")
    first = next((a for a in args if isinstance(a, Expr)), None)
    made = tuple(a if isinstance(a, Expr) else literal(a, first.type if first else None) for a in args)
    of = made[0].type
    if any(a.type != of for a in made) or not (
        of in (F32, F64) or (of.integer and name in FUNCTIONS and name not in REAL_FUNCTIONS)
    ):
        raise Refused(f"{name} of {', '.join(repr(a.type) for a in made)}: expected floats of one type")
    return Call(name, made)


def select(condition: Expr, yes: ExprLike, no: ExprLike) -> Expr:
    """Return *yes* if *condition* holds, else *no*, both of one type."""
    if condition.type != BOOL:
        raise Refused(f"a condition of type {condition.type!r}, expected bool")
    a, b = unify_types("a choice", yes, no)
    return a if a == b else Select(condition, a, b)


def minimum(a: Expr, b: ExprLike) -> Expr:
    """The smaller of *a* and *b*, as a choice: compilers make one instruction of it."""
    return select(a.lt(b), a, b)


@node
class Array(Node):
    """Elements of *kind*: a parameter (``global``), a block's (``shared``) or a thread's own (``private``).

    *size* counts elements; 0 is unknown, for parameters only. *const*: read only. *noalias*: no other array overlaps
    it. *align*: bytes of alignment at the declaration.
    """

    name: str
    kind: Type
    size: int = 0
    space: str = "global"
    const: bool = False
    noalias: bool = True
    align: int = 0

    def __post_init__(self) -> None:
        if self.space not in ("global", "shared", "private"):
            raise Refused(f"array {self.name} in {self.space}: expected global, shared or private")
        if self.size < 0 or (self.space != "global" and self.size == 0):
            raise Refused(f"{self.space} array {self.name} has {self.size} elements, expected at least 1")
        if self.align & (self.align - 1) or self.align < 0:
            raise Refused(f"array {self.name}: an alignment of {self.align} bytes is no power of two")

    def __getitem__(self, index: ExprLike) -> Load:
        return Load(self, index_expression(index))


@node
class Load(Expr):
    """array[index]."""

    array: Array
    index: Expr

    @property
    def type(self) -> Type:
        return self.array.kind.computed


def index_expression(index: ExprLike) -> Expr:
    """Return *index* as an expression; raises Refused if it is not an integer."""
    made = literal(index) if isinstance(index, int) else index
    if not isinstance(made, Expr) or not made.type.integer:
        raise Refused(f"an index of type {made.type if isinstance(made, Expr) else type(made).__name__}")
    return made
