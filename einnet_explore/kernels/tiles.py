"""The register tiles of a contraction: what fits registers and code size, and which of these costs least."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from math import prod

from einnet_explore.kernels.cycles import loads_of, scored
from einnet_explore.kernels.form import Form
from einnet_explore.kernels.layout import Layout, in_place, padded_copy
from einnet_explore.kernels.machine import Machine
from einnet_explore.kernels.tile import Cut, Tile, taps

UNROLLED = 400
"""At most so many multiply-adds of code: a compiler needs some 0.3 ms for each."""

SPARE = 3
"""Registers for operands, at least."""


def best_tile(form: Form, machine: Machine) -> Tile | None:
    """The tile of fewest estimated cycles; None where the innermost traversal moves no operand along memory."""
    return min(tiles(form, machine), key=lambda tile: tile.cycles, default=None)


def tiles(form: Form, machine: Machine, only: Cut | None = None) -> Iterable[Tile]:
    """The tiles that fit registers and code size, with their cycles; of these *only* the one that is cut so."""
    last = form.traversals[-1]
    for vector in _among((0, 1), only, lambda cut: cut.vector):
        if last not in form.moves(vector):
            continue
        for layout in (in_place(form, vector, last), padded_copy(form, vector, last)):
            if layout is not None and (only is None or only.copied == layout.copied):
                yield from _with_layout(form, machine, vector, layout, only)


def _among(values: Iterable[int], only: Cut | None, of: Callable[[Cut], int]) -> Iterable[int]:
    return (n for n in values if only is None or n == of(only))


def _with_layout(form: Form, machine: Machine, vector: int, layout: Layout, only: Cut | None) -> Iterable[Tile]:
    last = form.traversals[-1]
    mine, other = form.moves(vector), form.moves(1 - vector)
    row = next((x for x in reversed(form.traversals[:-1]) if x in mine and x not in other and x.extent > 1), None)
    slot = max((x for x in form.traversals if x not in mine and x in other), key=lambda x: x.extent, default=None)
    widths = {machine.lanes} if last.extent >= machine.lanes else {1 << last.extent.bit_length() - 1}
    if layout.copied:
        widths.add(machine.lanes)  # beyond the end of a row there are other rows, or spare elements
    by_extent = sorted(form.summations, key=lambda y: y.extent)
    phases, wide = sorted(form.reads), form.periods[-1]
    for count in _among(range(len(by_extent) + 1), only, lambda cut: cut.unrolled):
        unrolled = tuple(y for y in form.summations if y in by_extent[:count])
        if prod(y.extent for y in unrolled) > UNROLLED:
            break
        try:
            every = taps(form, vector, layout, phases, unrolled)
        except ValueError:
            continue
        for together in _among(range(wide, len(phases) + 1, wide), only, lambda cut: cut.together):
            if len(phases) % together:
                continue
            groups = tuple(tuple(phases[n : n + together]) for n in range(0, len(phases), together))
            steps = [[tap for tap in every if tap.phase in group] for group in groups]
            for rows, lanes in product(
                _among(range(1, min(8, row.extent if row else 1) + 1), only, lambda cut: cut.rows),
                _among(widths, only, lambda cut: cut.lanes),
            ):
                draft = Tile(vector, layout, lanes, 1, row, rows, slot, 1, groups, unrolled, True)
                loads = [loads_of(form, draft, group) for group in steps]
                for vectors, slots in product(
                    _among(range(1, min(8, -(-last.extent // lanes)) + 1), only, lambda cut: cut.vectors),
                    _among(
                        range(1, min(machine.registers, slot.extent if slot else 1) + 1), only, lambda cut: cut.slots
                    ),
                ):
                    size = vectors * rows * slots
                    if size * together <= machine.registers - SPARE and len(every) * size <= UNROLLED:
                        tile = replace(draft, vectors=vectors, slots=slots)
                        yield scored(form, machine, tile, steps, loads)
