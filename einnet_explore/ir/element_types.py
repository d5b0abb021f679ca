r"""Element types of tensors and of results, and the ranges of integer arithmetic.

An expression denotes a number.  An element type says which numbers a tensor holds: ``int8`` the integers from -128 to
127, ``float32`` those of single precision.  The type of a result follows from its expression:

* reads, ``where``, ``relu``, ``maximum``, ``minimum`` and reductions by ``max`` and ``min`` keep a type that all
  operands have; whole constants take it if it has them;
* ``+ - * abs`` and reductions by ``sum`` and ``prod`` compute in ``int64`` if all operands are integers and one is
  ``int64`` or ``uint32``, in ``int32`` if all are integers, in ``float64`` if one operand is, else in ``float32``;
* the other functions and the other constants give ``float32``, or ``float64`` if an operand is ``float64``;
* ``less``, ``less_equal`` and ``equal`` give ``bool``; ``select`` keeps the type of its last two operands;
* a cast, ``int8(x)``, has its own type.

Integer arithmetic is exact.  ``IntegerRanges`` finds the first result that may be beyond its type, by interval
arithmetic over the types of the inputs: :math:`\sum_{k=1}^{n} x_k \in [n \min(l, 0), n \max(u, 0)]` in any order of
the sum for :math:`x_k \in [l, u]`.  A cast to integers of `b` bits wraps modulo :math:`2^b`; sums and products under it
are those modulo :math:`2^b`, so they have no overflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from itertools import product
from math import inf, isfinite, prod

from einnet_explore.ir.expression import Access, Apply, Compare, Const, Scalar, Scope, Table, Tensor

Range = tuple[int, int]
"""The smallest and the largest value of an integer."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """The numbers that an element can have: integers from *low* to *high*, or floating point of *digits* bits.

    A floating-point number is :math:`m 2^e` with :math:`|m| < 2^{digits}`, :math:`e \\ge` *exponent*; the largest is
    *high*.
    """

    name: str
    bits: int
    low: int = 0
    high: int = 0
    digits: int = 0
    exponent: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether all elements are integers; truth values are 0 and 1."""
        return not self.digits


def _integer_type(name: str, bits: int) -> ElementType:
    low = 0 if name[0] in "ub" else -(1 << bits - 1)
    return ElementType(name, bits, low, low + (1 << bits) - 1)


def _float_type(name: str, bits: int, digits: int) -> ElementType:
    last = 1 << (bits - digits - 1)  # 2^last is the smallest power of two beyond the largest number
    high = ((1 << digits) - 1) << (last - digits)
    return ElementType(name, bits, -high, high, digits, 3 - last - digits)


ELEMENT_TYPES: dict[str, ElementType] = {
    t.name: t
    for t in (
        _integer_type("bool", 1),
        *(_integer_type(f"int{n}", n) for n in (8, 16, 32, 64)),
        *(_integer_type(f"uint{n}", n) for n in (8, 16, 32)),
        _float_type("float16", 16, 11),
        _float_type("bfloat16", 16, 8),
        _float_type("float32", 32, 24),
        _float_type("float64", 64, 53),
    )
}
"""The element types by name; a cast has the name of its type."""

FLOAT32 = "float32"

_WHOLE, _REAL = "whole", "real"
"""The types of constants, which take the type of other operands."""

_COMPARISONS = frozenset(("less", "less_equal", "equal"))
_SELECTIONS = frozenset(("where", "select", "relu", "maximum", "minimum", "round"))
_ARITHMETIC = frozenset(("+", "-", "*", "neg", "abs"))
_MODULAR = frozenset(("+", "-", "*", "neg"))
"""Operations that commute with remainders."""


def element_type(scope: Scope) -> str:
    """Return the type of the elements of *scope*; ``float32`` without any read of another type."""
    try:
        return scope._own  # type: ignore[attr-defined, no-any-return]
    except AttributeError:
        found = scalar_type(scope.body)
        if found != FLOAT32:
            if scope.summations and scope.reduce in ("sum", "prod"):
                found = _arithmetic([found])
            if scope.domain or scope.padding:
                found = _selection((found, _constant_type((scope.value,))), (scope.value,))
            found = FLOAT32 if found in (_WHOLE, _REAL) else found
        object.__setattr__(scope, "_own", found)
        return found


def scalar_type(body: Scalar) -> str:
    """Return the type of *body*: an element type, ``whole`` for an integer constant, or ``real`` for another one."""
    match body:
        case Const(value):
            return _constant_type((value,))
        case Access(Tensor() as tensor):
            return tensor.dtype
        case Access(Scope() as scope):
            return element_type(scope)
        case Access(Table(entries=entries)):
            return _constant_type(entries)
        case Apply(op, args) if op not in ELEMENT_TYPES:
            if op in _COMPARISONS:
                return "bool"
            operands = args[1:] if op in ("where", "select") else args
            kinds = [scalar_type(a) for a in operands]
            if set(kinds) == {FLOAT32}:
                return FLOAT32
            if op in _SELECTIONS:
                return _selection(kinds, [value for a in operands for value in _constants(a)])
            if op == "pow" and _is_whole_power(args):
                return _arithmetic(kinds[:1])
            return _arithmetic(kinds) if op in _ARITHMETIC else _floating(kinds)
        case Apply(op, _):
            return op
    return _REAL  # a comparison is no number


def _constants(body: Scalar) -> tuple[float | Fraction, ...]:
    match body:
        case Const(value):
            return (value,)
        case Access(Table(entries=entries)):
            return entries
    return ()


def _constant_type(values: Iterable[float | Fraction]) -> str:
    return _WHOLE if all(not isfinite(x) or x == int(x) for x in values) else _REAL


def _is_whole_power(args: tuple[Scalar, ...]) -> bool:
    match args[-1]:
        case Const(value):
            return 0 <= value < inf and value == int(value)
    return False


def _selection(kinds: Iterable[str], constants: Iterable[float | Fraction]) -> str:
    """Return the type of one of several operands, of *kinds*, some of which are *constants*."""
    names, values = set(kinds) - {_WHOLE}, tuple(constants)
    if len(names) == 1 and _REAL not in names:
        (name,) = names
        kind = ELEMENT_TYPES[name]
        if all(_holds(kind, float(value)) for value in values):
            return name
        if not all(map(isfinite, values)):
            return _floating(names)
    return _arithmetic((*names, *(_WHOLE for _ in values)))


def _holds(kind: ElementType, value: float) -> bool:
    if kind.is_integer:
        return kind.low <= value <= kind.high
    return not isfinite(value) or abs(value) <= 1 << kind.digits


def _arithmetic(kinds: Iterable[str]) -> str:
    names = set(kinds)
    known = names - {_WHOLE, _REAL}
    if not known:
        return _REAL if _REAL in names else _WHOLE
    if _REAL in names or any(not ELEMENT_TYPES[name].is_integer for name in known):
        return _floating(names)
    return "int64" if known & {"int64", "uint32"} else "int32"


def _floating(kinds: Iterable[str]) -> str:
    return "float64" if "float64" in kinds else FLOAT32


@dataclass(frozen=True, slots=True)
class Overflow:
    """An integer result that may be beyond its type: the expression, its range, and the type."""

    place: Scalar | Scope
    range: Range
    type: str


@dataclass(slots=True)
class IntegerRanges:
    """Ranges of integer expressions: those of *tensors* by name, where known, and the *overflows* found on the way."""

    tensors: dict[str, Range] = field(default_factory=dict)
    overflows: list[Overflow] = field(default_factory=list)
    _known: dict[tuple[Scope, bool], Range] = field(default_factory=dict)

    def equation(self, name: str, scope: Scope) -> Overflow | None:
        """Return the first integer result in *scope* that may be beyond its type; later ranges use that of *name*."""
        if ELEMENT_TYPES[element_type(scope)].is_integer:
            self.tensors[name] = self.scope(scope)
        else:
            self.inside(scope.body)
        return self.overflows[0] if self.overflows else None

    def scope(self, scope: Scope, wraps: bool = False) -> Range:
        """Return the range of a *scope* of integers; *wraps*: it is needed modulo a power of two only."""
        key = scope, wraps
        if key not in self._known:
            found = self._reduced(scope, wraps)
            if scope.domain or scope.padding:
                found = _hull([found, (int(scope.value), int(scope.value))])
            self._known[key] = found
        return self._known[key]

    def _reduced(self, scope: Scope, wraps: bool) -> Range:
        low, high = self.scalar(scope.body, wraps and scope.reduce in ("sum", "prod"))
        points = prod(y.extent for y in scope.summations)
        if scope.reduce not in ("sum", "prod") or not scope.summations:
            return low, high
        if scope.reduce == "sum":
            self._check(scope, (points * min(low, 0), points * max(high, 0)), element_type(scope), wraps)
            return points * low, points * high
        if points > 64 and max(abs(low), abs(high)) > 1:
            points = 65  # beyond every type
        most = max(abs(low), abs(high), 1) ** points
        self._check(scope, (0 if low >= 0 else -most, most), element_type(scope), wraps)
        return 0 if low >= 0 else -most, most

    def _check(self, place: Scalar | Scope, found: Range, name: str, wraps: bool) -> None:
        kind = ELEMENT_TYPES.get(name)
        if kind is not None and not wraps and not (kind.low <= found[0] and found[1] <= kind.high):
            self.overflows.append(Overflow(place, found, name))

    def inside(self, body: Scalar) -> None:
        """Find overflows of the integer expressions in *body*, which is no integer itself."""
        kind = ELEMENT_TYPES.get(scalar_type(body)) if not isinstance(body, Compare) else None
        match body:
            case _ if kind is not None and kind.is_integer:
                self.scalar(body)
            case Access(Scope(body=inner)):
                self.inside(inner)
            case Apply(args=args):
                for arg in args:
                    self.inside(arg)

    def scalar(self, body: Scalar, wraps: bool = False) -> Range:
        """Return the range of an integer expression."""
        match body:
            case Const(value):
                return int(value), int(value)
            case Access(Tensor() as tensor):
                kind = ELEMENT_TYPES[tensor.dtype]
                own = self.tensors.get(tensor.name, (kind.low, kind.high))
                return _hull([own, (int(tensor.value), int(tensor.value))]) if tensor.padding else own
            case Access(Table(entries=entries)):
                return int(min(entries)), int(max(entries))
            case Access(Scope() as scope):
                return self.scope(scope, wraps)
            case Apply(op, (arg,)) if op in ELEMENT_TYPES:
                return self._cast(ELEMENT_TYPES[op], arg)
            case Apply("where" | "select" as op, (condition, yes, no)):
                if op == "select":
                    self.inside(condition)
                return _hull([self.scalar(yes, wraps), self.scalar(no, wraps)])
            case Apply(op, args) if op in _COMPARISONS:
                for arg in args:
                    self.inside(arg)
                return 0, 1
            case Apply(op, args):
                found = [self.scalar(a, wraps and op in _MODULAR) for a in args[: 1 if op == "pow" else None]]
                result, partial = _applied(op, args, found)
                self._check(body, partial, scalar_type(body), wraps and op in _MODULAR)
                return result
        raise ValueError(f"{body!r} is no integer")

    def _cast(self, kind: ElementType, arg: Scalar) -> Range:
        operand = ELEMENT_TYPES.get(scalar_type(arg))
        if operand is not None and not operand.is_integer:
            self.inside(arg)
            return kind.low, kind.high
        found = self.scalar(arg, wraps=kind.bits > 1)
        return found if kind.low <= found[0] and found[1] <= kind.high else (kind.low, kind.high)


def is_exact_cast(body: Apply) -> bool:
    """Whether *body* is a rounding or a cast of numbers that its type has, so that it is its argument."""
    kind, (arg, *_) = ELEMENT_TYPES.get(body.op), body.args
    own = ELEMENT_TYPES.get(scalar_type(arg))
    if own is None or (kind is None and body.op != "round"):
        return False
    if kind is None:
        return own.is_integer
    if not own.is_integer:
        low, high = _limits(arg)
        return kind.is_integer and kind.low <= low and high <= kind.high and _is_whole(arg)
    low, high = IntegerRanges().scalar(arg)
    most = 1 << kind.digits
    return kind.low <= low and high <= kind.high if kind.is_integer else -most <= low and high <= most


def _is_whole(body: Scalar) -> bool:
    """Return whether all values of *body*, in floating point, are integers."""
    match body:
        case Const(value):
            return isfinite(value) and value == int(value)
        case Apply("round", _):
            return True
        case Apply(op, args) if op in (*_MODULAR, "abs", "relu", "maximum", "minimum"):
            return all(map(_is_whole, args))
    kind = ELEMENT_TYPES.get(scalar_type(body))
    return kind is not None and kind.is_integer


def _limits(body: Scalar) -> tuple[float, float]:
    """Return bounds of *body*, in floating point: those that constants in its maxima and minima are."""
    match body:
        case Const(value):
            return float(value), float(value)
        case Apply("maximum" | "minimum" | "relu" as op, args):
            lows, highs = zip(*map(_limits, args if op != "relu" else (*args, Const(0))), strict=True)
            choose = min if op == "minimum" else max
            return choose(lows), choose(highs)
    return -inf, inf


def computing_type(scope: Scope, wraps: bool = False) -> str:
    """Return the type in which a kernel of *scope* computes: ``int32``, ``int64``, ``float32`` or ``float64``.

    It is ``holding_type``, or ``float64`` for arithmetic that is rounded to integers: next to a tie, the rounding error
    of ``float32`` decides otherwise.
    """
    found = holding_type(scope, wraps)
    return "float64" if found == FLOAT32 and rounds_arithmetic(scope) else found


def holding_type(scope: Scope, wraps: bool = False) -> str:
    """Return the narrowest of ``int32``, ``int64``, ``float32`` and ``float64`` in which all integers are exact.

    That is ``float32`` where none of the integer results exceeds 2²⁴, else ``float64``.  Only sums and products under a
    cast may leave their type; *wraps*: a cast reads the scope.
    """
    kinds, most = _kinds(scope.body, wraps), 1 << ELEMENT_TYPES[FLOAT32].digits
    if (kind := ELEMENT_TYPES[element_type(scope)]).is_integer and scope.summations:
        size = max(map(abs, IntegerRanges().scope(scope)))
        kinds.add((kind.name, size if wraps else min(size, kind.high)))
    if all(ELEMENT_TYPES[kind].is_integer for kind, _ in kinds):
        narrow = element_type(scope) != "int64" and all(
            kind not in ("int64", "uint32") and size <= ELEMENT_TYPES["int32"].high for kind, size in kinds
        )
        return "int32" if narrow and element_type(scope) != "uint32" else "int64"
    return "float64" if any(kind == "float64" or size > most for kind, size in kinds) else FLOAT32


def rounds_arithmetic(scope: Scope) -> bool:
    """Whether the elements of *scope* are integers that arithmetic in floating point is rounded to."""
    return ELEMENT_TYPES[element_type(scope)].is_integer and any(map(_is_rounded_arithmetic, _functions(scope.body)))


def rounds_numbers(scope: Scope) -> bool:
    """Whether the elements of *scope* are integers that numbers in floating point are rounded to."""
    return ELEMENT_TYPES[element_type(scope)].is_integer and any(map(_is_rounding, _functions(scope.body)))


def _is_rounding(part: Apply) -> bool:
    return part.op == "round" and not _is_whole(part.args[0])


def is_arithmetic(body: Scalar) -> bool:
    """Whether *body* adds, multiplies, divides or selects only: ``float64`` makes it more exact, at little cost."""
    return all(part.op in _RATIONAL or part.op in ELEMENT_TYPES for part in _functions(body))


_RATIONAL = _SELECTIONS | _ARITHMETIC | _COMPARISONS | {"/"}


def _is_rounded_arithmetic(part: Apply) -> bool:
    if part.op != "round" or isinstance(part.args[0], Const):
        return False
    (arg,) = part.args
    computed = isinstance(arg, Apply) or (isinstance(arg, Access) and isinstance(arg.source, Scope))
    return computed and scalar_type(arg) == FLOAT32 and is_arithmetic(arg)


def _functions(body: Scalar) -> Iterable[Apply]:
    """Yield the functions in *body*, those of nested scopes too."""
    match body:
        case Access(Scope(body=inner)):
            yield from _functions(inner)
        case Apply(args=args):
            yield body
            for arg in args:
                yield from _functions(arg)


def _kinds(body: Scalar, wraps: bool = False) -> set[tuple[str, int]]:
    """Return the types of *body* and its parts, with the magnitudes of what is computed in integers.

    *wraps*: sums and products may leave their type.
    """
    kind = ELEMENT_TYPES.get(scalar_type(body))
    found: set[tuple[str, int]] = set()
    match body:
        case Access(Scope(body=inner, reduce=reduced)):
            found |= _kinds(inner, wraps and reduced in ("sum", "prod"))
        case Apply(op, args):
            under = op in ELEMENT_TYPES or (wraps and op in (*_MODULAR, "where", "select"))
            found |= {pair for arg in args for pair in _kinds(arg, under)}
    if kind is not None:
        computed = kind.is_integer and (
            isinstance(body, Apply) or (isinstance(body, Access) and isinstance(body.source, Scope))
        )
        size = max(map(abs, IntegerRanges().scalar(body))) if computed else 0
        found.add((kind.name, size if wraps else min(size, kind.high)))
    return found


def _hull(ranges: list[Range]) -> Range:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _applied(op: str, args: tuple[Scalar, ...], ranges: list[Range]) -> tuple[Range, Range]:
    """Return the range of ``op(args)``, and that of every partial result, in any order of a sum."""
    match op, ranges:
        case "+", _:
            value = sum(low for low, _ in ranges), sum(high for _, high in ranges)
            return value, (sum(min(low, 0) for low, _ in ranges), sum(max(high, 0) for _, high in ranges))
        case "-", [(a, b), (c, d)]:
            value = a - d, b - c
        case "neg", [(a, b)]:
            value = -b, -a
        case "*", _:
            value = reduce(lambda x, y: _hull([(p * q, p * q) for p, q in product(x, y)]), ranges)
        case "abs", [(a, b)]:
            value = max(a, -b, 0), max(-a, b)
        case "relu", [(a, b)]:
            value = max(a, 0), max(b, 0)
        case "maximum", [(a, b), (c, d)]:
            value = max(a, c), max(b, d)
        case "minimum", [(a, b), (c, d)]:
            value = min(a, c), min(b, d)
        case "round", [(a, b)]:
            value = a, b
        case "pow", [(a, b)]:
            value = _power(a, b, int(_constants(args[1])[0]))
        case _:
            raise ValueError(f"{op} gives no integers")
    return value, value


def _power(low: int, high: int, n: int) -> Range:
    """Return the range of the power *n*; beyond every type it is not exact."""
    even = n % 2 == 0
    if n > 64 and max(abs(low), abs(high)) > 1:
        n = 66 if even else 65
    ends = sorted((int(low**n), int(high**n)))
    return (0 if even and low <= 0 <= high else ends[0]), ends[1]
