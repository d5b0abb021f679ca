r"""Tensors of one box along a new dimension in front: :math:`B[b, \vec z] = A_b[\vec z]`.

Where they are parts of one tensor at equal distances the stack re-indexes it; otherwise it is the sum of the tensors,
each padded with zeros in place of the others.
"""

from __future__ import annotations

from typing import TypeAlias

from einnet_explore.algebra.equations import resolved
from einnet_explore.ir import Access, Index, Iterator, Program, Scope, Table, Tensor, add, as_index, padded

Source: TypeAlias = "Tensor | Table | Scope"


def stacked(program: Program, row: tuple[Source, ...], b: Iterator) -> Scope:
    """The tensors of *row* along *b*, in front of their own dimensions; their padding is the first's."""
    box = row[0].box
    z = tuple(Iterator(f"z{d + 1}", lo, hi) for d, (lo, hi) in enumerate(box))
    padding = ((0, 0), *row[0].padding) if row[0].padding else ()
    index = _evenly_spaced([resolved(program, source[z]) for source in row], b)
    if index is not None:
        body: Access = Access(resolved(program, row[0][z]).source, index)
        return Scope((b, *z), (), body, padding=padding, value=row[0].value)
    parts = []
    for n, source in enumerate(row):
        one = Scope((Iterator(b.name, 0, 1), *z), (), source[z])
        around = ((n, b.extent - n - 1), *((0, 0) for _ in z))
        parts.append(Access(padded(one, around), (b - n, *map(as_index, z))))
    return Scope((b, *z), (), add(*parts), padding=padding, value=row[0].value)


def _evenly_spaced(reads: list[Access], b: Iterator) -> tuple[Index, ...] | None:
    """The index of one read that is the n-th of *reads* at b = n; None where there is none."""
    first, second = reads[:2]
    steps = [j - i for i, j in zip(first.index, second.index, strict=False)]
    for n, read in enumerate(reads):
        if read.source != first.source or any(step.terms for step in steps):
            return None
        if any(j - i != as_index(step.const * n) for i, j, step in zip(first.index, read.index, steps, strict=True)):
            return None
    return tuple(i + b * step.const for i, step in zip(first.index, steps, strict=True))
