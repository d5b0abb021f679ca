"""Domains of a model's inputs: the numbers that the elements of random inputs are drawn from.

A mask of floating-point numbers has zeros and ones, an index the rows of a table, a probability the numbers from 0 to
1.  An input without a domain has normal numbers if it is of floating point, any bytes, or integers 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Domains: TypeAlias = "Mapping[str, str | Sequence[float]]"
"""Domains by input: ``"0..1"`` for all numbers from 0 to 1, ``"0,1"`` or ``[0, 1]`` for these two."""


@dataclass(frozen=True, slots=True)
class InputDomain:
    """The numbers from *low* to *high*, both included; only *values*, if there are any."""

    low: float
    high: float
    values: tuple[float, ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{v:g}" for v in self.values) if self.values else f"{self.low:g}..{self.high:g}"

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return random elements: of a range, integers if *dtype* is one of integers."""
        if self.values:
            return np.asarray(rng.choice(np.asarray(self.values), shape), dtype)
        if dtype.kind == "f":
            return np.asarray(rng.uniform(self.low, self.high, shape), dtype)
        return np.asarray(rng.integers(int(self.low), int(self.high), shape, endpoint=True), dtype)


def parse_domain(name: str, given: str | Sequence[float]) -> InputDomain:
    """Return the domain *given* for the input *name*; raises ValueError for another form, and for an empty range."""
    parts = given.split("..") if isinstance(given, str) and ".." in given else []
    try:
        if parts:
            low, high = map(float, parts)
            values: tuple[float, ...] = ()
        else:
            values = tuple(map(float, given.split(",") if isinstance(given, str) else given))
            low, high = min(values), max(values)
    except (TypeError, ValueError):
        raise ValueError(
            f"domain of {name}: found {given!r}, expected a range of numbers, such as 0..1, or numbers, such as 0,1"
        ) from None
    if not np.isfinite([low, high]).all() or low > high:
        raise ValueError(f"domain of {name}: found {given}, expected finite numbers, the smaller one first")
    return InputDomain(low, high, values)


def describe_random_inputs(domains: Mapping[str, InputDomain]) -> str:
    """Describe random inputs in reports: ``random inputs with mask in 0,1``."""
    return " with ".join(("random inputs", *filter(None, [" and ".join(f"{n} in {d}" for n, d in domains.items())])))
