r"""Coverage of the pieces of piecewise functions: a sample is evidence only for the pieces that it reaches.

``relu``, ``abs``, ``maximum``, ``minimum`` and powers of zero are piecewise: analytic on each side of a *kink*, where
an argument (or the difference of two) changes its sign.  Two expressions that agree on random inputs agree on the
pieces that these inputs reach.  A side that no sample reached is a gap, unless interval arithmetic shows that no input
reaches it: :math:`relu(e^x)` has one side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import inf, isnan
from typing import TypeAlias

import numpy as np

from einnet_explore.equivalence.value_bounds import value_range
from einnet_explore.interpreter.evaluation import DerivedNumbers, NumberDomain
from einnet_explore.interpreter.exact_arrays import Array, Value
from einnet_explore.ir import Apply, Const, Scalar, Scope, scopes, walk_scalar
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

Kink: TypeAlias = "tuple[str, tuple[Scalar, ...]]"
"""A piecewise function and its arguments."""


Side: TypeAlias = "tuple[int, int]"
"""The number of a kink, and a sign: of the argument, of the difference of the arguments, or of a power's exponent."""

Sides: TypeAlias = "set[Side]"

SampledSides: TypeAlias = "dict[Side, Array]"
"""Which samples reach a side."""


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


class BranchCoverage:
    """The sides of the kinks of a scope that inputs may reach, to be compared with those that samples reached."""

    def __init__(self, scope: Scope) -> None:
        self.kinks = kinks(scope)
        self._possible = [(n, sign) for n, kink in enumerate(self.kinks) for sign in _possible_sides(*kink)]

    def recorder(self, numbers: NumberDomain, scope: Scope, reached: SampledSides, count: int) -> NumberDomain:
        """Return *numbers*, adding to *reached* which sides an evaluation of *scope* reaches.

        *count* samples are the first dimension of all values; one sample has no dimension.  *scope* has the kinks of
        this coverage in the same order: it is a slice, or has functions replaced.
        """
        own = kinks(scope)
        if len(own) != len(self.kinks):
            return numbers
        return _Recorder(numbers, reached, count, {kink: n for n, kink in enumerate(own)})

    def gap(self, reached: Sides) -> str:
        """Return a side that is not *reached*, in words; '' if there is none."""
        for n, sign in self._possible:
            if (n, sign) not in reached:
                op, args = self.kinks[n]
                of = f"{args[0]!r} - {args[1]!r}" if op in ("maximum", "minimum") else f"{args[-1]!r}"
                return f"no sample reached {of} {'<=>'[sign + 1]} 0 in {op}"
        return ""


@dataclass(frozen=True, slots=True)
class _Recorder(DerivedNumbers):
    """A number domain that computes as *numbers* does, and records the sides of the kinks."""

    reached: SampledSides
    count: int
    place: dict[Kink, int]

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        if (place := self.place.get((op, args))) is not None:
            for sign, where in _reached_sides(op, values):
                samples = where.reshape(where.shape[0] if self.count > 1 else 1, -1).any(axis=1)
                self.reached[place, sign] = self.reached.get((place, sign), False) | np.broadcast_to(
                    samples, self.count
                )
        return self.numbers.apply(op, values, args)


def _reached_sides(op: str, values: Sequence[Value]) -> Iterable[tuple[int, Array]]:
    """Yield the signs, and where they occur beyond the error bounds of *values*, if they have any."""
    chosen = values if op in ("maximum", "minimum") else values[-1:]
    first, *rest = (value[0].array for value in chosen)
    difference = np.subtract(first, rest[0]) if rest else first
    error = reduce(np.add, [value[1].array if len(value) > 1 else np.zeros(()) for value in chosen])
    yield 1, np.asarray(difference > error)
    yield -1, np.asarray(-difference > error)
    if op == "pow":
        yield 0, np.asarray((difference == 0) & (error == 0))


def _possible_sides(op: str, args: tuple[Scalar, ...]) -> Iterable[int]:
    """Yield the signs that interval arithmetic does not exclude."""
    low, high = value_range(args[-1])
    if op in ("maximum", "minimum"):
        (a, b), (c, d) = value_range(args[0]), (low, high)
        low, high = _unless_nan(a - d, -inf), _unless_nan(b - c, inf)
    if high > 0:
        yield 1
    if op == "pow":
        yield from (0,) if low <= 0 <= high else ()  # no negative power of zero has a value
    elif low < 0:
        yield -1


def _unless_nan(value: float, otherwise: float) -> float:
    return otherwise if isnan(value) else value
