r"""Flattened tensors: an access as one affine address, :math:`\sum_x s_x\,x + o` (EinNet §5.1, Fig. 8 c–d).

Dimensions read as two digits: what makes a dilated or strided window a plain one (EinNet §7.3).

.. math::  B[g\,e(\vec x) + p(\vec x) + o] = \big\{ L_{i, q}\, B[g\,i + q + o] \big\}[e(\vec x), p(\vec x)],
           \qquad 0 \le p(\vec x) < g

A composite index such as ``2*m + 2*j + r`` with r in [0, 2) is no window of an operator, since these take two
iterators; its high digit ``m + j`` is one, and its low digit is a dimension of its own.  Outside the box of the high
digit every element of the row lies outside the source's box, so both give the source's value there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.analysis.padding import fit_padding
from einnet_explore.ir import Access, Index, Iterator, Scope, Tensor, as_index, padded
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class FlatAccess:
    """The address of an access in strides of its source: (dimension, coefficient) pairs for each iterator.

    ``Y[u-1, u, i, w]`` is ``(l_Y0 + l_Y1)*u + l_Y2*i + l_Y3*w - l_Y0``.
    """

    name: str
    strides: tuple[tuple[Iterator, tuple[tuple[int, int], ...]], ...]
    offset: tuple[tuple[int, int], ...]

    def stride(self, x: Iterator) -> str:
        """The stride of *x*, written with the source's strides ``l_``."""
        return _show(self.name, dict(self.strides).get(x, ()))

    @property
    def offset_text(self) -> str:
        """The constant offset, written with the source's strides."""
        return _show(self.name, self.offset)


def flatten(access: Access, name: str = "") -> FlatAccess | None:
    """*access* by the strides of its source, or None where its index is not affine."""
    source = access.source
    name = name or (source.name if isinstance(source, Tensor) else "S")
    if not all(i.affine for i in access.index):
        return None
    iterators = dict.fromkeys(x for i in access.index for x in i.iterators)
    return FlatAccess(
        name,
        tuple((x, tuple((d, k) for d, i in enumerate(access.index) if (k := i.coefficient(x)))) for x in iterators),
        tuple((d, i.const) for d, i in enumerate(access.index) if i.const),
    )


def strides_of(scope: Scope) -> tuple[int, ...]:
    """Return the strides of *scope* as a view of the tensor that it reads; raises Refused if it is no view."""
    match scope:
        case Scope(summations=(), body=Access(source=Tensor()) as access, domain=()):
            pass
        case Scope(summations=()):
            raise Refused("a view reads one tensor and nothing else")
        case _:
            raise Refused(f"a view has no summations, found {len(scope.summations)}")
    for d, (i, (lo, hi)) in enumerate(zip(access.index, access.source.box, strict=True)):
        first, last = i.bounds
        if first < lo or last >= hi:
            where = f"dimension {d} is read in [{first}, {last}], the elements lie in [{lo}, {hi})"
            raise Refused(f"a view stays inside its source: {where}")
    at = flat_address(access)
    if not at.affine:
        raise Refused(f"the flat address {at!r} is not affine")
    return tuple(at.coefficient(x) for x in scope.traversals)


def is_packed(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether the elements lie one after another in row-major order (extents of 1 have any stride)."""
    return all(n == 1 or s == want for n, s, want in zip(shape, strides, row_major_strides(shape), strict=True))


def is_leading(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether each row is packed and rows do not overlap: what an operator with leading dimensions takes."""
    rows = [s for n, s in zip(shape[:-1], strides[:-1], strict=True) if n > 1]
    return (shape[-1] == 1 or strides[-1] == 1) and all(s >= shape[-1] for s in rows[-1:]) and all(s >= 0 for s in rows)


def _show(name: str, parts: tuple[tuple[int, int], ...]) -> str:
    text = "".join(f" {'-' if k < 0 else '+'} {'' if abs(k) == 1 else f'{abs(k)}*'}l_{name}{d}" for d, k in parts)
    return text.removeprefix(" + ").replace(" - ", "-", 1 if text.startswith(" -") else 0) or "0"


Digits: TypeAlias = "tuple[tuple[Index, ...], tuple[tuple[int, int], ...], Callable[[tuple[Iterator, ...]], Index]]"


def split_digits(read: Access) -> Access:
    """*read* with every dimension that mixes overlapping iterators with a low digit made two dimensions of a view."""
    parts = [_digits(index, box) for index, box in zip(read.index, read.source.box, strict=True)]
    if all(len(outer) == 1 for outer, _, _ in parts):
        return read
    outer = tuple(i for found, _, _ in parts for i in found)
    spans = [span for _, found, _ in parts for span in found]
    own = iter(tuple(Iterator(f"z{n}", *span) for n, span in enumerate(spans)))
    names = [tuple(next(own) for _ in found) for _, found, _ in parts]
    inner = tuple(make(found) for found, (_, _, make) in zip(names, parts, strict=True))
    value = read.source.value
    view = Scope(tuple(x for found in names for x in found), (), read.source[inner], value=value)
    padding = tuple(map(_padding_beyond, outer, view.box))
    return Access(padded(fit_padding(view, value), padding), outer)


def overlaps(index: Index) -> bool:
    """Whether two points of the iterators may give one value: such an index is more than a layout."""
    reach = 0
    for atom, k in sorted(index.terms, key=lambda t: abs(t[1])):
        if isinstance(atom, Iterator):
            if abs(k) <= reach:
                return True
            reach += abs(k) * (atom.extent - 1)
    return False


def _radix(index: Index) -> int | None:
    """The g of ``g*e + p + o`` where one digit still overlaps and 0 <= p < g; None if *index* has no such digits."""
    if len(index.terms) < 3 or not index.affine:
        return None
    factors = [abs(k) for _, k in index.terms]
    for g in sorted({gcd(a, b) for a in factors for b in factors} - {1}):
        high, low = _parts(index, g)
        first, last = low.bounds
        if low.terms and last - first < g and (overlaps(high) or overlaps(low)):
            return g
    return None


def _parts(index: Index, g: int) -> tuple[Index, Index]:
    """The terms that *g* divides, divided, and the others; no constants."""
    high = Index(tuple((a, k // g) for a, k in index.terms if k % g == 0))
    return high, Index(tuple((a, k) for a, k in index.terms if k % g))


def _digits(index: Index, box: tuple[int, int]) -> Digits:
    """*index* into a dimension with the box *box* by its digits, each with a box, and how a number is made of them."""
    alone: Digits = (index,), (box,), lambda own: as_index(own[0])
    g = _radix(index)
    if g is None:
        return alone
    high, low = _parts(index, g)
    first, last = low.bounds
    span, (whole, offset) = last - first, divmod(index.const + first, g)
    rows = -((offset + span - box[0]) // g), (box[1] - 1 - offset) // g + 1
    if rows[1] <= rows[0]:
        return alone
    above, above_boxes, above_of = _digits(high + whole, rows)
    below, below_boxes, below_of = _digits(low - first, (0, span + 1))
    n = len(above)
    return (
        (*above, *below),
        (*above_boxes, *below_boxes),
        lambda own: above_of(own[:n]) * g + below_of(own[n:]) + offset,
    )


def _padding_beyond(index: Index, box: tuple[int, int]) -> tuple[int, int]:
    (lo, hi), (first, last) = box, index.bounds
    return max(0, lo - first), max(0, last + 1 - hi)
