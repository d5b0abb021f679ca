r"""Interval arithmetic: the range of values, the pieces of functions that they reach, and errors of rounded constants.

A proof that rounds constants shows that two programs have a common form, whose coefficients differ from theirs by a
relative change of at most :math:`\rho`, the largest that occurred.  For inputs in [-1, 1], a polynomial
:math:`\sum_i k_i \prod_j x_{ij}` of values with :math:`|x_{ij}| \le M_{ij}` and errors :math:`e_{ij}` differs from that
form by at most

.. math::  \sum_i |k_i| \Big((1 + \rho) \prod_j (M_{ij} + e_{ij}) - \prod_j M_{ij}\Big),

and a function by its largest slope over the argument's range times the argument's error.  Where a slope or a range is
unbounded, as next to the pole of a reciprocal, there is no bound.

``relu``, ``abs``, ``maximum``, ``minimum``, comparisons, ``select`` and powers of zero are piecewise: analytic on each
side of a *kink*, where an argument (or the difference of two) changes its sign; a function with a step has a value of
its own there.  Ranges show which sides no input reaches: :math:`relu(e^x)` has one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from math import inf, isfinite, isnan, nextafter, prod
from typing import NamedTuple, TypeAlias, TypeVar

from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Apply,
    Const,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    scopes,
    tensors,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

Interval: TypeAlias = "tuple[float, float]"

V = TypeVar("V")

_ALL: Interval = (-inf, inf)

Kink: TypeAlias = "tuple[str, tuple[Scalar, ...]]"
"""A piecewise function and its arguments."""


class ValueBound(NamedTuple):
    """Values in *range*; as a polynomial, with *norm* :math:`\\sum |k_i| \\prod M_{ij}` and *error*."""

    range: Interval
    norm: float = inf
    error: float = 0.0


def value_range(body: Scalar) -> Interval:
    """Return an interval that holds every finite value of *body*, for all inputs."""
    return _Bounds().scalar(body).range


def scope_range(scope: Scope, elements: Interval) -> Interval:
    """Return an interval that holds every finite value of *scope*, for tensors with *elements* in that interval."""
    bound = ValueBound(elements)
    return _Bounds({t.name: bound for t in tensors(scope)}).scope(scope).range


def is_positive(body: Scalar) -> bool:
    """Return whether no finite value of *body* is 0 or less; False if that is not known."""
    match body:
        case Access(Scope(reduce="sum" | "prod" | "max" | "min") as scope):
            return not scope.domain and not any(map(any, scope.padding)) and is_positive(scope.body)
        case Apply("+", args):
            return any(map(is_positive, args)) and all(value_range(arg)[0] >= 0 for arg in args)
        case Apply("*" | "/" | "maximum" | "minimum", args):
            return all(map(is_positive, args))
        case Apply(op, _) if SCALAR_FUNCTIONS[op].is_positive:
            return True
    return value_range(body)[0] > 0


def rounding_error(program: Program, change: float) -> float:
    """Bound the error of every output, for inputs in [-1, 1] and coefficients rounded by a relative *change*.

    Inputs of integers have the values of their type.  Infinity if there is no bound.
    """
    floats = [t.name for t in program.inputs if not ELEMENT_TYPES[t.dtype].is_integer]
    bounds = _Bounds({name: ValueBound((-1.0, 1.0), 1.0) for name in floats}, change)
    for equation in program.equations:
        bounds.tensors[equation.name] = bounds.scope(equation.scope)
    error = max((bounds.tensors[name].error for name in program.outputs), default=0.0)
    return inf if isnan(error) else error * (1 + 1e-6)  # the roundings of these sums


@dataclass(slots=True)
class _Bounds:
    """Bounds of the *tensors* by name (others may have all values), and the relative *change* of coefficients."""

    tensors: dict[str, ValueBound] = field(default_factory=dict)
    change: float = 0.0
    _scopes: dict[Scope, ValueBound] = field(default_factory=dict)

    def scope(self, scope: Scope) -> ValueBound:
        """ValueBound the values of *scope*, inside its domain and outside."""
        if scope not in self._scopes:
            found = self._reduced(scope)
            if scope.domain or scope.padding:
                found = _union([found, _constant(scope.value)])
            self._scopes[scope] = self._rounded(found)
        return self._scopes[scope]

    def _reduced(self, scope: Scope) -> ValueBound:
        body = self.scalar(scope.body)
        points = prod(y.extent for y in scope.summations)
        if scope.reduce == "sum" or points == 1:
            return ValueBound(
                _interval(_product(x, points) for x in body.range), body.norm * points, body.error * points
            )
        one = self._rounded(body)
        if scope.reduce in ("max", "min"):
            return one._replace(norm=_magnitude(one.range))
        most = _power(_magnitude(one.range) + one.error, points)
        error = _product(points * _power(_magnitude(one.range) + one.error, points - 1), one.error)
        return ValueBound((0.0 if one.range[0] >= 0 else -most, most), most, error)

    def _rounded(self, bound: ValueBound) -> ValueBound:
        """Add the error of rounding the coefficients of a polynomial."""
        return bound._replace(error=bound.error + _product(self.change, bound.norm + bound.error))

    def scalar(self, body: Scalar) -> ValueBound:
        """ValueBound the values of *body*."""
        match body:
            case Const(value):
                return _constant(value)
            case Access(Tensor(name) as tensor):
                inside = self.tensors.get(name) or _elements(tensor)
                return _union([inside, _constant(tensor.value)]) if tensor.padding else inside
            case Access(Table(entries=entries)):
                return _union(
                    [ValueBound((0.0, 0.0), 0.0), *(_constant(float(x)) for x in (min(entries), max(entries)))]
                )
            case Access(Scope() as scope):
                return self.scope(scope)
            case Apply("where", (_, yes, no)):
                return _union([self.scalar(yes), self.scalar(no)])
            case Apply("+", args):
                return reduce(_sum, map(self.scalar, args))
            case Apply("-", (a, b)):
                return _sum(self.scalar(a), _scaled(self.scalar(b), -1))
            case Apply("neg", (a,)):
                return _scaled(self.scalar(a), -1)
            case Apply("*", args):
                found = reduce(_times, map(self.scalar, args))
                even = len(args) == 2 and args[0] == args[1]
                return found._replace(range=(max(0.0, found.range[0]), found.range[1])) if even else found
            case Apply("/", (a, Const(value))) if value and isfinite(value):
                return _scaled(self.scalar(a), 1 / value)
            case Apply("/", (a, b)):
                return _times(self.scalar(a), _reciprocal(self._rounded(self.scalar(b))))
            case Apply(op, args):
                return _apply(op, args, [self._rounded(self.scalar(arg)) for arg in args])
        return ValueBound(_ALL)


def _elements(tensor: Tensor) -> ValueBound:
    """Return the bounds of a type's integers; floating-point numbers have none, for they may be infinite."""
    kind = ELEMENT_TYPES[tensor.dtype]
    return (
        ValueBound((float(kind.low), float(kind.high)), float(max(-kind.low, kind.high)))
        if kind.is_integer
        else (ValueBound(_ALL))
    )


def _constant(value: float) -> ValueBound:
    """Infinite constants are never rounded."""
    return ValueBound((value, value), abs(value) if isfinite(value) else 0.0)


def _union(bounds: Sequence[ValueBound]) -> ValueBound:
    ranges = [b.range for b in bounds]
    hull = min(low for low, _ in ranges), max(high for _, high in ranges)
    return ValueBound(hull, max(b.norm for b in bounds), max(b.error for b in bounds))


def _scaled(a: ValueBound, k: float) -> ValueBound:
    return ValueBound(_interval(_product(k, x) for x in a.range), _product(abs(k), a.norm), _product(abs(k), a.error))


def _sum(a: ValueBound, b: ValueBound) -> ValueBound:
    low, high = a.range[0] + b.range[0], a.range[1] + b.range[1]
    return ValueBound((-inf if isnan(low) else low, inf if isnan(high) else high), a.norm + b.norm, a.error + b.error)


def _times(a: ValueBound, b: ValueBound) -> ValueBound:
    """Multiply; the errors are those of one factor times the other, without cancellation."""
    error = _product(a.error, b.norm) + _product(a.norm, b.error) + _product(a.error, b.error)
    return ValueBound(_interval(_product(x, y) for x in a.range for y in b.range), _product(a.norm, b.norm), error)


def _reciprocal(b: ValueBound) -> ValueBound:
    low, high = b.range[0] - b.error, b.range[1] + b.error
    if low < 0 < high or low == high == 0:
        return ValueBound(_ALL, inf, b.error and inf)
    ends = 1 / low if low else inf, 1 / high if high else -inf
    steepest = _magnitude(ends)
    return ValueBound(_interval(ends), steepest, _product(b.error, _product(steepest, steepest)))


def _apply(op: str, args: tuple[Scalar, ...], operands: list[ValueBound]) -> ValueBound:
    """ValueBound a function: its range over the arguments with their errors, and its slopes times these errors."""
    if not all(isfinite(b.error) for b in operands):
        return ValueBound(_ALL, inf, inf)
    wide = [(b.range[0] - b.error, b.range[1] + b.error) for b in operands]
    found = _function_range(op, args, wide)
    error = 0.0
    if any(b.error for b in operands):
        slopes = _slopes(op, args, wide, found)
        error = sum(_product(slope, b.error) for slope, b in zip(slopes, operands, strict=True))
    return ValueBound(found, _magnitude(found), error)


def _slopes(op: str, args: tuple[Scalar, ...], wide: list[Interval], value: Interval) -> list[float]:
    """ValueBound the slopes of *op* over the ranges *wide*, by the ranges of its derivatives."""
    function = SCALAR_FUNCTIONS[op]
    natural = isinstance(args[-1], Const) and args[-1].value >= 0 and args[-1].value == int(args[-1].value)
    if function.derivative is None or (op == "pow" and wide[0][0] <= 0 and not natural):
        return [inf] * len(args)
    names = ["y", *(f"x{n}" for n in range(len(args)))]
    ranges = dict(zip(names, [value, *wide], strict=True))
    bounds = _Bounds({name: ValueBound(ends, _magnitude(ends)) for name, ends in ranges.items()})
    y, *inner = (Access(Tensor(name, ()), ()) for name in names)
    known = [arg if isinstance(arg, Const) else x for arg, x in zip(args, inner, strict=True)]
    return [_magnitude(bounds.scalar(slope).range) for slope in function.derivative(y, *known)]


def _function_range(op: str, args: tuple[Scalar, ...], ranges: list[Interval]) -> Interval:
    match op, ranges:
        case "abs", [(a, b)]:
            return max(a, -b, 0.0), max(-a, b)
        case "maximum", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case "minimum", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "pow", [(a, b), _]:
            return _power_range(args, a, b)
    function = SCALAR_FUNCTIONS.get(op)
    if function is None:
        return _ALL
    if function.is_monotone:
        try:
            low, high = sorted(function.of_numbers(x) for x in ranges[0])
        except (ArithmeticError, ValueError):
            return function.image
        if function.is_integral:
            return low, high
        margin = 1e-15
        return (
            max(function.image[0], low - margin * abs(low) if isfinite(low) else low),
            min(function.image[1], high + margin * abs(high) if isfinite(high) else high),
        )
    return function.image


def _power_range(args: tuple[Scalar, ...], a: float, b: float) -> Interval:
    match args:
        case (Const(0), _):
            return 0.0, 1.0
        case (_, Const(n)) if n >= 0 and n == int(n):
            ends = [_power(x, int(n)) for x in (a, b)]
            low = 0.0 if n % 2 == 0 and a <= 0 <= b else min(ends)
            return nextafter(low, -inf) if low else low, nextafter(max(ends), inf)
        case (_, Const(n)) if n % 2 == 0:
            return 0.0, inf
    return (0.0, inf) if a >= 0 else _ALL


def _power(x: float, n: int) -> float:
    try:
        return float(x**n)
    except OverflowError:
        return inf if x > 0 or n % 2 == 0 else -inf


def _product(a: float, b: float) -> float:
    """Multiply; zero times infinity is 0: an interval's end is a limit, and an infinite norm stands for no bound."""
    return a * b if a and b else 0.0


def _interval(ends: Iterable[float]) -> Interval:
    """Return the hull of *ends*."""
    every = list(ends)
    return min(every), max(every)


def _magnitude(ends: Interval) -> float:
    return max(abs(ends[0]), abs(ends[1]))


def _has_kink(part: Apply) -> bool:
    match part.op, part.args:
        case "pow", (Const(0), _):
            return True
        case op, (a, *rest):
            function = SCALAR_FUNCTIONS.get(op)
            return function is not None and function.has_kink and rest != [a]
    return False


@lru_cache(1 << 12)
def kinks(scope: Scope) -> tuple[Kink, ...]:
    """Return the distinct kinks of *scope* and its nested scopes, in order of occurrence."""
    parts = (part for _, each in scopes(scope) for part in walk_scalar(each.body))
    return tuple(dict.fromkeys((part.op, part.args) for part in parts if isinstance(part, Apply) and _has_kink(part)))


def possible_sides(op: str, args: tuple[Scalar, ...]) -> Iterable[int]:
    """Yield the signs that interval arithmetic does not exclude."""
    compared = kink_operands(op, args)
    low, high = value_range(compared[0])
    if len(compared) == 2:
        (a, b), (c, d) = (low, high), value_range(compared[1])
        low, high = _unless_nan(a - d, -inf), _unless_nan(b - c, inf)
    if high > 0:
        yield 1
    if (op == "pow" or SCALAR_FUNCTIONS[op].has_step) and low <= 0 <= high:
        yield 0
    if op != "pow" and low < 0:  # no negative power of zero has a value
        yield -1


def kink_operands(op: str, operands: Sequence[V]) -> Sequence[V]:
    """Return the operand, or the two whose difference, is 0 at the kink of *op*."""
    return operands[1:] if op == "pow" else operands[:1] if len(operands) == 3 else operands


def _unless_nan(value: float, otherwise: float) -> float:
    return otherwise if isnan(value) else value


def may_be_undefined(scalar: Apply) -> bool:
    """Whether ranges do not exclude that the arguments of *scalar* are outside its domain."""
    match scalar:
        case Apply("/", (_, b)):
            return not isinstance(b, Const) and value_range(b)[1] >= 0 and not is_positive(b)
        case Apply("pow", (a, b)):
            whole = isinstance(b, Const) and b.value == int(b.value)
            return (value_range(b)[0] < 0 and not is_positive(a)) or (not whole and value_range(a)[0] < 0)
        case Apply("sqrt", (a,)):
            return value_range(a)[0] < 0
        case Apply(op, (a, *_)):
            return SCALAR_FUNCTIONS[op].has_pole and not is_positive(a)
    return False
