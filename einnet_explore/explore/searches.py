"""The searches behind the paper's figures, by our engine: Fig. 17 (``e4``), Fig. 18 (``e5``), Fig. 19 (``e6``).

The strategy is ``paper``, on one thread.  Counts are what they are; times are of this machine, so what is set beside
the published ones is how they grow.  Every search has a limit, and what it did not get done is said (``complete``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from einnet_explore.explore.cases import CASES
from einnet_explore.explore.depths import Depth, apart, search_case

Variant: TypeAlias = "tuple[str, bool, bool]"

WITH, UNPRUNED, UNGUIDED = (True, True), (False, True), (True, False)
"""Fingerprint and converging derivation: both, without the first, without the second."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far to go: MaxDepth, seconds for each search, whether the cheapest candidates are run and timed as well."""

    max_depth: int = 6
    limit: float = 60.0
    measure: bool = True


QUICK = Effort(3, 3.0, False)


@dataclass(slots=True)
class Lab:
    """Searches that several figures share; each is run once, in a process of its own.  *note* hears of each."""

    effort: Effort
    note: Callable[[str], object] = lambda _: None
    results: dict[Variant, tuple[Depth, ...]] = field(default_factory=dict)

    def run(self, variants: Iterable[Variant]) -> None:
        """Fill ``results``; what is there already is kept, also when this is interrupted."""
        for variant in variants:
            if variant not in self.results:
                name, fingerprint, converging = variant
                off = [w for w, on in (("no fingerprint", fingerprint), ("no converging", converging)) if not on]
                self.note(" ".join([name, *off]))
                self.results[variant] = apart(
                    search_case, name, self.effort.max_depth, self.effort.limit, fingerprint, converging
                )


def needed(experiment: str) -> tuple[Variant, ...]:
    """The searches that *experiment* is made of."""
    match experiment:
        case "e4":
            return tuple((name, *WITH) for name, case in CASES.items() if case.milliseconds)
        case "e5":
            return tuple((name, *flags) for name in CASES for flags in (WITH, UNGUIDED))
        case "e6":
            return tuple((name, *flags) for name in CASES for flags in (WITH, UNPRUNED))
        case _:
            raise ValueError(f"experiment {experiment!r}: expected one of e4, e5, e6")
