"""Register tiles as values: how a contraction is cut up, and the products of one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from einnet_explore.ir import Iterator
from einnet_explore.kernels.form import Form, Phase
from einnet_explore.kernels.layout import Layout


@dataclass(frozen=True)
class Tap:
    """One product of a step: the *phase* it belongs to, the values of the unrolled iterators, the vector's offset."""

    phase: Phase
    known: Mapping[Iterator, int]
    offset: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What a search chooses of a tile, in numbers: which of the tiles of a form it is."""

    vector: int
    copied: bool
    unrolled: int
    """How many summations, the shortest ones."""
    together: int
    rows: int
    lanes: int
    vectors: int
    slots: int


@dataclass(frozen=True)
class Tile:
    """How a contraction is cut up; see the module."""

    vector: int
    """The operand that is read in vectors, along the innermost traversal."""
    layout: Layout
    """Where it lies."""
    lanes: int
    vectors: int
    row: Iterator | None
    rows: int
    slot: Iterator | None
    slots: int
    groups: tuple[tuple[Phase, ...], ...]
    unrolled: tuple[Iterator, ...]
    slots_outside: bool
    """Whether the loop over slots is outside the one over rows and vectors."""
    cycles: float = 0

    @property
    def cut(self) -> Cut:
        """Which of the tiles of its form this is."""
        counts = (len(self.unrolled), len(self.groups[0]), self.rows, self.lanes, self.vectors, self.slots)
        return Cut(self.vector, self.layout.copied, *counts)

    @property
    def sums(self) -> int:
        """Accumulators of the largest group."""
        return self.rows * self.vectors * self.slots * max(map(len, self.groups))


def taps(form: Form, vector: int, layout: Layout, phases: Iterable[Phase], unrolled: tuple[Iterator, ...]) -> list[Tap]:
    """The products of one step that are not zero anyway, those with one vector offset next to each other.

    Raises ValueError where an offset is not known at compile time, or iterators move phases differently.
    """
    boxes = tuple(in_box(form, n) for n in (0, 1))
    found: list[Tap] = []
    moving: dict[Iterator, int] | None = None
    phases = tuple(phases)
    for values in product(*(range(y.extent) for y in unrolled)):
        known = dict(zip(unrolled, values, strict=True))
        for phase in phases:
            both = form.reads[phase]
            if any(box.outside(where, known) for box, where in zip(boxes, both, strict=True)):
                continue
            at = layout.address(both[vector], known)
            if at is None:
                raise ValueError(f"{both[vector]} is not affine in memory")
            moving = at[1] if moving is None else moving
            if at[1] != moving:
                raise ValueError(f"{both[vector]} moves unlike other phases")
            found.append(Tap(phase, known, at[0]))
    return sorted(found, key=lambda tap: tap.offset)


def in_box(form: Form, operand: int) -> Layout:
    """The tensor of *operand* as it is, for asking what is outside it."""
    return Layout(form.operands[operand], (), copied=False)
