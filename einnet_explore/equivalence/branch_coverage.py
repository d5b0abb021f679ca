r"""Coverage of the pieces of piecewise functions: a sample is evidence only for the pieces that it reaches.

``relu``, ``abs``, ``maximum``, ``minimum`` and powers of zero are piecewise: analytic on each side of a *kink*, where
an argument (or the difference of two) changes its sign.  Two expressions that agree on random inputs agree on the
pieces that these inputs reach.  A side that no sample reached is a gap, unless interval arithmetic shows that no input
reaches it: :math:`relu(e^x)` has one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import inf, isnan, prod
from typing import TypeAlias

import numpy as np

from einnet_explore.interpreter.evaluation import NumberDomain
from einnet_explore.interpreter.exact_arrays import Value
from einnet_explore.ir import SCALAR_FUNCTIONS, Access, Apply, Const, Scalar, Scope, Table

Kink: TypeAlias = "tuple[str, tuple[Scalar, ...]]"
"""A piecewise function and its arguments."""

Interval: TypeAlias = "tuple[float, float]"

_ALL: Interval = (-inf, inf)


def _has_kink(op: str, args: tuple[Scalar, ...]) -> bool:
    match op, args:
        case (("relu" | "abs"), (_,)):
            return True
        case (("maximum" | "minimum"), (a, b)):
            return a != b
        case "pow", (Const(0), _):
            return True
    return False


def kinks(scope: Scope) -> tuple[Kink, ...]:
    """Return the distinct kinks of *scope* and its nested scopes, in order of occurrence."""
    found: dict[Kink, None] = {}

    def visit(body: Scalar) -> None:
        match body:
            case Access(Scope(body=inner)):
                visit(inner)
            case Apply(op, args):
                if _has_kink(op, args):
                    found.setdefault((op, args))
                for arg in args:
                    visit(arg)

    visit(scope.body)
    return tuple(found)


@dataclass(slots=True)
class BranchCoverage:
    """The sides of each kink of some scopes, and those that samples reached."""

    kinks: tuple[Kink, ...]
    reached: set[tuple[int, int]] = field(default_factory=set)
    """Number of a kink and a sign: of its argument, of the difference of its arguments, or of the power's exponent."""

    def recorder(self, numbers: NumberDomain, scope: Scope) -> NumberDomain:
        """Return *numbers*, recording which sides an evaluation of *scope* reaches.

        *scope* has the kinks of this coverage in the same order: it is a slice, or has functions replaced.
        """
        own = kinks(scope)
        return (
            _Recorder(numbers, self, {kink: n for n, kink in enumerate(own)})
            if len(own) == len(self.kinks)
            else numbers
        )

    def gap(self, others: Sequence[BranchCoverage] = ()) -> str:
        """Return a side of a kink that neither these samples nor *others* reached, in words; '' if there is none."""
        reached = self.reached.union(*(other.reached for other in others))
        for n, (op, args) in enumerate(self.kinks):
            for sign in _possible_sides(op, args):
                if (n, sign) not in reached:
                    of = f"{args[0]!r} - {args[1]!r}" if op in ("maximum", "minimum") else f"{args[-1]!r}"
                    return f"no sample reached {of} {'<=>'[sign + 1]} 0 in {op}"
        return ""


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A number domain that computes as *numbers* does, and records the sides of the kinks."""

    numbers: NumberDomain
    coverage: BranchCoverage
    place: dict[Kink, int]

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        place = self.place.get((op, args)) if op in _PIECEWISE else None
        if place is not None:
            self.coverage.reached.update((place, sign) for sign in _reached_sides(op, values))
        return self.numbers.apply(op, values, args)

    def constant(self, value: float) -> Value:
        return self.numbers.constant(value)

    def table(self, table: Table) -> Value:
        return self.numbers.table(table)

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        return self.numbers.reduce(monoid, value, axes, extents)

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        return self.numbers.contract(factors, axes, extents)

    def add(self, a: Value, b: Value) -> Value:
        return self.numbers.add(a, b)

    def negate(self, a: Value) -> Value:
        return self.numbers.negate(a)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return self.numbers.finish(scope, reduced)


_PIECEWISE = ("relu", "abs", "maximum", "minimum", "pow")


def _reached_sides(op: str, values: Sequence[Value]) -> Iterable[int]:
    """Yield the signs that occur beyond the error bounds of *values*, if they have any."""
    chosen = values if op in ("maximum", "minimum") else values[-1:]
    first, *rest = (value[0].array for value in chosen)
    difference = np.subtract(first, rest[0]) if rest else first
    error = reduce(np.add, [value[1].array if len(value) > 1 else np.zeros(()) for value in chosen])
    if np.any(difference > error):
        yield 1
    if np.any(-difference > error):
        yield -1
    if op == "pow" and np.any((difference == 0) & (error == 0)):
        yield 0


def _possible_sides(op: str, args: tuple[Scalar, ...]) -> Iterable[int]:
    """Yield the signs that interval arithmetic does not exclude."""
    low, high = value_range(args[-1])
    if op in ("maximum", "minimum"):
        (a, b), (c, d) = value_range(args[0]), (low, high)
        low, high = _number(a - d, -inf), _number(b - c, inf)
    if high > 0:
        yield 1
    if op == "pow":
        yield from (0,) if low <= 0 <= high else ()  # no negative power of zero has a value
    elif low < 0:
        yield -1


def value_range(body: Scalar) -> Interval:
    """Return an interval that holds every finite value of *body*, for all inputs."""
    match body:
        case Const(value):
            return value, value
        case Access(Table(entries=entries)):
            return _union([(float(min(entries)), float(max(entries))), (0.0, 0.0)])
        case Access(Scope() as scope):
            outside = [(scope.value, scope.value)] if scope.padding or scope.domain else []
            return _union([_reduced_range(scope), *outside])
        case Apply("where", (_, yes, no)):
            return _union([value_range(yes), value_range(no)])
        case Apply("*", args) if len(args) == 2 and args[0] == args[1]:
            low, high = map(abs, value_range(args[0]))
            return 0.0, _number(max(low, high) ** 2, inf)
        case Apply(op, args):
            return _function_range(op, args, [value_range(arg) for arg in args])
    return _ALL


def _reduced_range(scope: Scope) -> Interval:
    low, high = value_range(scope.body)
    points = prod(y.extent for y in scope.summations)
    match scope.reduce:
        case "sum":
            return (low * points if low else 0.0), (high * points if high else 0.0)
        case "prod" if scope.summations:
            return (0.0, inf) if low >= 0 else _ALL
    return low, high


def _function_range(op: str, args: tuple[Scalar, ...], ranges: list[Interval]) -> Interval:
    function = SCALAR_FUNCTIONS.get(op)
    match op, ranges:
        case "+", _:
            return _number(sum(r[0] for r in ranges), -inf), _number(sum(r[1] for r in ranges), inf)
        case "-", [(a, b), (c, d)]:
            return _number(a - d, -inf), _number(b - c, inf)
        case "neg", [(a, b)]:
            return -b, -a
        case (("*" | "/"), _) if all(low >= 0 for low, _ in ranges):
            return 0.0, inf
        case "abs", [(a, b)]:
            return max(a, -b, 0.0), max(-a, b)
        case "maximum", [(a, b), (c, d)]:
            return max(a, c), max(b, d)
        case "minimum", [(a, b), (c, d)]:
            return min(a, c), min(b, d)
        case "relu", [(a, b)]:
            return max(a, 0.0), max(b, 0.0)
        case (("exp" | "sqrt" | "rsqrt" | "sigmoid"), _):
            return 0.0, 1.0 if op == "sigmoid" else inf
        case "pow", [(a, _), _]:
            even = isinstance(args[1], Const) and args[1].value % 2 == 0
            return (0.0, inf) if a >= 0 or even else _ALL
    return (-1.0, 1.0) if function is not None and function.is_bounded else _ALL


def _union(ranges: Sequence[Interval]) -> Interval:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _number(value: float, otherwise: float) -> float:
    return otherwise if isnan(value) else value
