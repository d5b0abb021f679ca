"""The sides of the kinks of a scope: those that inputs may reach, and those that samples reached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import numpy as np

from einnet_explore.equivalence.value_bounds import Kink, kink_operands, kinks, possible_sides
from einnet_explore.interpreter.evaluation import DerivedNumbers, NumberDomain
from einnet_explore.interpreter.exact_arrays import Array, Value
from einnet_explore.ir import Scalar, Scope
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

Side: TypeAlias = "tuple[int, int]"
"""The number of a kink, and a sign: of the argument, of the difference of the arguments, or of a power's exponent."""

Sides: TypeAlias = "set[Side]"

SampledSides: TypeAlias = "dict[Side, Array]"
"""Which samples reach a side."""


class BranchCoverage:
    """The sides of the kinks of a scope that inputs may reach, to be compared with those that samples reached."""

    def __init__(self, scope: Scope) -> None:
        self.kinks = kinks(scope)
        self._possible = [(n, sign) for n, kink in enumerate(self.kinks) for sign in possible_sides(*kink)]

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
                of = " - ".join(map(repr, kink_operands(op, args)))
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
    chosen = kink_operands(op, values)
    first, *rest = (value[0].array for value in chosen)
    difference = np.subtract(first, rest[0]) if rest else first
    error = reduce(np.add, [value[1].array if len(value) > 1 else np.zeros(()) for value in chosen])
    yield 1, np.asarray(difference > error)
    yield -1, np.asarray(-difference > error)
    if op == "pow" or SCALAR_FUNCTIONS[op].has_step:
        yield 0, np.asarray((difference == 0) & (error == 0))
