r"""Costs of a pass: the demanded box, operations and bytes of every value.

.. math::  \text{operations}(v) = |\text{box}(v)| \cdot \text{operations of its definition}

A value's box is the hull of its reads, propagated from the outputs; operations are counted as in ``analysis.counts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from einnet_explore.analysis.indices import substitute_domain, substitute_index
from einnet_explore.autodiff.common_parts import EntryGroups, Reads, grouped_entries, reachable_values
from einnet_explore.autodiff.program_values import ProgramValues
from einnet_explore.autodiff.values import Use, Value, Values, index_span
from einnet_explore.ir import Bound, Box, Index, Iterator

ITEM_BYTES = 4
"""Bytes of an element (float32)."""


@dataclass(frozen=True)
class Demand:
    """The half-open range of each parameter over which a value is read."""

    value: Value
    box: Box

    @property
    def points(self) -> int:
        """The number of elements."""
        return prod(hi - lo for lo, hi in self.box)

    def holds(self, other: Demand) -> bool:
        """Whether this contains *other*."""
        return all(a <= c and d <= b for (a, b), (c, d) in zip(self.box, other.box, strict=True))


def demands(read: ProgramValues, reads: Reads) -> Mapping[int, Demand]:
    """Return the demand for every value of *read*, propagated from the outputs by *reads*, by value number."""
    boxes: dict[int, Box] = {}
    roots = [(equation.scope.domain, term) for equation, term in read.roots if isinstance(term, Use)]
    for domain, use in roots:
        _widen(boxes, use.value, use.at, domain)
    order = reachable_values((use.value for _, use in roots), reads)
    for value in order:
        box = boxes[value.number]
        if value.kind == "guard":
            box = _intersect(box, value.scope.box)
        to = {x: Iterator(x.name, a, b) for x, (a, b) in zip(value.scope.traversals, box, strict=True)}
        domain = substitute_domain(value.scope.domain, to)
        for use in reads(value):
            _widen(boxes, use.value, tuple(substitute_index(i, to) for i in use.at), domain)
    return {value.number: Demand(value, boxes[value.number]) for value in order}


def demand_operations(values: Values, demand: Demand, parts: EntryGroups) -> int:
    """Return the operations to compute *demand*, without those of its reads."""
    value = demand.value
    match value.kind:
        case "leaf" | "guard":
            return 0
        case "function":
            return demand.points
        case "reduction":
            return demand.points * prod(y.extent for y in value.scope.summations)
        case "sum" | "product":
            marks = [mark for mark, _ in grouped_entries(values, value, parts.get(value.number, ()))]
            return demand.points * (len(marks) - (1 if 1 in marks else 0))


def _intersect(box: Box, other: Box) -> Box:
    """Intersect the demand of a guarded value with its box; the whole box if that is empty."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True))
    return other if any(a >= b for a, b in both) else both


def _widen(boxes: dict[int, Box], value: Value, index: tuple[Index, ...], domain: tuple[Bound, ...]) -> None:
    read = tuple(index_span(i, domain) for i in index)
    held = boxes.get(value.number, read)
    boxes[value.number] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(held, read, strict=True))
