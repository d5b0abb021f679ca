r"""Layouts for all tensors at once: a small assignment problem, solved exactly (SciPy's ``milp``, which is HiGHS).

Every operator runs in one of its modes; a mode reads and makes its tensors in certain layouts at a cost.  A tensor that
is made in layout *a* and read in layout *b* is transformed once, however many read it there:

.. math::
   \min \sum_{o,m} c_{om} z_{om} + \sum_{T,a,b} t_{Tab} w_{Tab},\quad
   \sum_m z_{om} = 1,\quad w_{Tab} \ge p_{Ta} + \sum_{m \text{ reads } T \text{ in } b} z_{om} - 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

Transform: TypeAlias = "tuple[str, int, int]"
"""A tensor, the layout that it is made in, and one that it is read in."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to run an operator: its *seconds*, and the layouts that tensors are read and made in, by name."""

    seconds: float
    reads: Mapping[str, int] = field(default_factory=dict)
    makes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The number of each operator's mode, the transforms that are left, and the seconds of all together."""

    modes: tuple[int, ...]
    transforms: frozenset[Transform]
    seconds: float


def transforms(modes: Iterable[Mode]) -> frozenset[Transform]:
    """The transforms that operators in *modes* need; what none of them makes comes in layout 0."""
    held = tuple(modes)
    made = {name: layout for mode in held for name, layout in mode.makes.items()}
    return frozenset(
        (name, made.get(name, 0), layout)
        for mode in held
        for name, layout in mode.reads.items()
        if made.get(name, 0) != layout
    )


def total(modes: Iterable[Mode], seconds: Callable[[Transform], float]) -> float:
    """The seconds of operators in *modes*, with the transforms between them."""
    held = tuple(modes)
    return sum(mode.seconds for mode in held) + sum(map(seconds, transforms(held)))


def assign(operators: Sequence[Sequence[Mode]], seconds: Callable[[Transform], float]) -> Assigned:
    """The cheapest mode for every operator; *seconds* is the cost of a transform.

    Raises ValueError for an operator without modes, and where the solver finds nothing.
    """
    if empty := [n for n, modes in enumerate(operators) if not modes]:
        raise ValueError(f"operator {empty[0]} has no mode, expected at least one")
    if not operators:
        return Assigned((), frozenset(), 0.0)
    places = [(o, m) for o, modes in enumerate(operators) for m in range(len(modes))]
    column = {place: n for n, place in enumerate(places)}
    possible = sorted(_possible(operators))
    width = len(places) + len(possible)
    rows: list[np.ndarray] = []
    least: list[float] = []
    most: list[float] = []

    def row(entries: Iterable[tuple[int, float]], lo: float, hi: float) -> None:
        made = np.zeros(width)
        for n, factor in entries:
            made[n] += factor
        rows.append(made)
        least.append(lo)
        most.append(hi)

    for o, modes in enumerate(operators):
        row(((column[o, m], 1) for m in range(len(modes))), 1, 1)
    for n, (name, made_in, read_in) in enumerate(possible, len(places)):
        makers = [column[o, m] for o, m in places if operators[o][m].makes.get(name) == made_in]
        fixed = not any(name in operators[o][m].makes for o, m in places)
        for o, modes in enumerate(operators):
            reading = [column[o, m] for m, mode in enumerate(modes) if mode.reads.get(name) == read_in]
            if reading:
                entries = [(n, 1.0), *((c, -1.0) for c in makers), *((c, -1.0) for c in reading)]
                row(entries, (1 if fixed else 0) - 1, np.inf)
    costs = [operators[o][m].seconds for o, m in places] + [seconds(t) for t in possible]
    scale = max(*map(abs, costs), 1e-30)  # microseconds are below the solver's tolerances
    solved = milp(
        np.asarray(costs) / scale,
        constraints=LinearConstraint(np.array(rows), np.array(least), np.array(most)),
        integrality=np.array([1] * len(places) + [0] * len(possible)),
        bounds=Bounds(0, 1),
    )
    if solved.x is None:
        raise ValueError(f"no assignment of {len(places)} modes was found: {solved.message}")
    chosen = tuple(
        max(range(len(modes)), key=lambda m, o=o: solved.x[column[o, m]])  # type: ignore[misc]
        for o, modes in enumerate(operators)
    )
    taken = [operators[o][m] for o, m in enumerate(chosen)]
    return Assigned(chosen, transforms(taken), total(taken, seconds))


def _possible(operators: Sequence[Sequence[Mode]]) -> set[Transform]:
    made: dict[str, set[int]] = {}
    read: dict[str, set[int]] = {}
    for modes in operators:
        for mode in modes:
            for held, layouts in ((made, mode.makes), (read, mode.reads)):
                for name, layout in layouts.items():
                    held.setdefault(name, set()).add(layout)
    return {(name, a, b) for name, layouts in read.items() for a in made.get(name, {0}) for b in layouts if a != b}
