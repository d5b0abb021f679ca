r"""What a register tile costs (as PlaidML chooses tile sizes, with a core's limits in place of a GPU's).

A tile holds `rows` × `vectors` × `slots` × `together` sums in registers: rows and vectors move the vector operand,
slots the one that is broadcast, phases stand side by side.  A step of the reduction costs

.. math::  \max\left(\frac{F}{f}, \frac{L_v + L_s}{l}, \frac{F + L_v + L_s}{i}, \frac{F \cdot t}{S}\right)

cycles for `F` multiply-adds, :math:`L_v` vector loads (twice where they cross a cache line), :math:`L_s` broadcasts,
`S` sums, each `t` cycles after the last one; what has to come from the second-level cache comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil, prod

from einnet_explore.kernels.form import Form, Phase, linear
from einnet_explore.kernels.machine import Machine
from einnet_explore.kernels.tile import Tap, Tile

LOOP, TILE = 0.5, 20
"""Cycles that a step of a loop and a tile cost beside their arithmetic."""

SPILLED = 0.13
"""How much longer a step takes for every register that is missing."""

ELEMENT = 4


@dataclass(frozen=True, slots=True)
class Loads:
    """The vectors that one step reads in all rows: how many, how many times the first-level cache is asked for each,
    how many one tap needs beside those that are kept for later ones, at most, and how many are kept."""

    count: int
    accesses: int
    live: int
    kept: int


def loads_of(form: Form, tile: Tile, group: Sequence[Tap]) -> Loads:
    """What one step of *group* reads in vectors."""
    along = _row_stride(form, tile)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    offsets = sorted({tap.offset for tap in group})
    for n, offset in enumerate(offsets):
        for row in range(tile.rows):
            first.setdefault(offset + along * row, n)
            last[offset + along * row] = n
    live, kept = ([0] * (len(offsets) + 1) for _ in range(2))
    for place, n in first.items():
        live[n] += 1
        live[last[place] + 1] -= 1
        kept[n] += 1
        kept[last[place]] -= 1
    aligned = along % tile.lanes == 0 and all(p % tile.lanes == 0 for p in offsets)
    return Loads(len(first), 1 if aligned else 2, max(accumulate(live)), max(accumulate(kept)))


def scored(form: Form, machine: Machine, tile: Tile, steps: Sequence[Sequence[Tap]], found: Sequence[Loads]) -> Tile:
    """*tile* with its cycles, for the *steps* of its groups and what these load, and with its loops ordered."""
    last = form.traversals[-1]
    blocked = {last: -(-last.extent // (tile.lanes * tile.vectors))}
    for x, n in ((tile.row, tile.rows), (tile.slot, tile.slots)):
        if x is not None:
            blocked[x] = -(-x.extent // n)
    count = prod(blocked.get(x, x.extent) for x in form.traversals)
    length = prod(y.extent for y in form.summations if y not in tile.unrolled)
    both = last in form.moves(1 - tile.vector)
    cycles, vector_bytes, slot_bytes = 0.0, 0, 0
    for group, load in zip(steps, found, strict=True):
        size = tile.rows * tile.vectors * tile.slots
        phases = len({tap.phase for tap in group}) or 1
        adds = len(group) * size
        loads = load.count * tile.vectors
        others = len(group) * tile.slots * (tile.vectors if both else 1)
        # Beside the sums: a tap's vectors and one other value, or its other values and one vector, and what is kept.
        if tile.rows * tile.vectors <= tile.slots:
            beside = load.live * tile.vectors + 1
        else:
            beside = load.kept * tile.vectors + 1 + tile.slots
        spilled = max(0, size * phases + beside - machine.registers)
        cycle = max(
            adds / machine.fma_per_cycle,
            (loads * load.accesses + others) / machine.loads_per_cycle,
            (adds + loads + others) / machine.issue,
            adds * machine.latency / (size * phases),
        ) * (1 + SPILLED * spilled)
        cycles += (cycle + LOOP) * length + 3 * size * phases + TILE
        vector_bytes = max(vector_bytes, _touched(form, tile, group[0].phase) * ELEMENT if group else 0)
        slot_bytes += others * ELEMENT * length * (tile.lanes if both else 1)
    # One of the two loops is inside: its operand streams past the other one, which stays in the first cache if it fits.
    half = machine.l1 // 2
    traffic = {
        outside: (streamed if streamed > half else 0) + (kept if kept > half else 0)
        for outside, kept, streamed in ((True, slot_bytes, vector_bytes), (False, vector_bytes, slot_bytes))
    }
    outside = traffic[True] <= traffic[False]
    far = min(traffic.values()) / machine.l2_bytes
    total = count * (max(cycles, far) + min(cycles, far) / 4)
    if tile.layout.copied:
        # Rows are copied in vectors where they are rows of the tensor, else one by one, from lines far apart.
        along = tile.layout.axes[-1]
        rows = along.dim == len(tile.layout.tensor.shape) - 1
        total += tile.layout.size * (1 / 4 if rows and along.modulus == 1 else 1 if rows else 3) + 200
    return replace(tile, slots_outside=outside, cycles=ceil(total))


def _touched(form: Form, tile: Tile, phase: Phase) -> int:
    """Elements of the vector operand that one tile reads."""
    spans = {tile.row: tile.rows, form.traversals[-1]: tile.lanes * tile.vectors} | {
        y: y.extent for y in form.summations
    }
    return prod(
        1 + sum(abs(k) * (spans.get(x, 1) - 1) for x, k in linear(i)[1].items()) for i in form.reads[phase][tile.vector]
    )


def _row_stride(form: Form, tile: Tile) -> int:
    where = next(iter(form.reads.values()))[tile.vector]
    found = tile.layout.address(where, dict.fromkeys(form.summations, 0))
    return found[1].get(tile.row, 0) if found is not None and tile.row is not None else 0
