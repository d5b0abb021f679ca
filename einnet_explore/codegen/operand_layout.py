r"""The layout of an operand in memory: in place, in a padded copy, or in a packed array of constants.

A *copy* contains all elements that are read, zeros around the tensor included, with the dimension of the vector
iterator last.  If the vector iterator moves in steps of `k`, that dimension is split into
:math:`(i \bmod k, \lfloor i/k \rfloor)`, so that neighbouring lanes are neighbours in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.codegen.sum_of_products import SumOfProducts, affine_terms
from einnet_explore.ir import Index, Iterator, Tensor

FlatAddress = tuple[int, dict[Iterator, int]]
"""A flat position: a constant, and the coefficient of each remaining iterator."""


@dataclass(frozen=True, slots=True)
class LayoutAxis:
    """``i // modulus`` (*high*) or ``i % modulus`` of dimension *dim*, for i counted from *lo*."""

    dim: int
    modulus: int
    high: bool
    lo: int
    extent: int


@dataclass(frozen=True)
class OperandLayout:
    """The axes of an operand in memory order; *copied*: a copy instead of the tensor itself."""

    tensor: Tensor
    axes: tuple[LayoutAxis, ...]
    copied: bool

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours of each axis."""
        return tuple(prod(a.extent for a in self.axes[n + 1 :]) for n in range(len(self.axes)))

    @property
    def size(self) -> int:
        """Elements of all axes together."""
        return prod(a.extent for a in self.axes)

    def address(self, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> FlatAddress | None:
        """Return the flat position of *where* for the iterator values *known*, or None if it is not affine."""
        const, rest = 0, dict[Iterator, int]()
        fixed = [_known(i, known) for i in where]
        for axis, stride in zip(self.axes, self.strides, strict=True):
            at, moving = fixed[axis.dim]
            at -= axis.lo
            if any(k % axis.modulus for k in moving.values()):
                return None
            const += (at // axis.modulus if axis.high else at % axis.modulus) * stride
            for x, k in moving.items() if axis.high else ():
                rest[x] = rest.get(x, 0) + k // axis.modulus * stride
        return const, rest

    def outside(self, where: tuple[Index, ...], known: Mapping[Iterator, int]) -> bool:
        """True if *where* is outside the tensor's box for all values of the other iterators."""
        for i, (lo, hi) in zip(where, self.tensor.box, strict=True):
            at, moving = _known(i, known)
            ends = [(k * x.lo, k * (x.hi - 1)) for x, k in moving.items()]
            if at + sum(map(max, ends)) < lo or at + sum(map(min, ends)) >= hi:
                return True
        return False


def _known(index: Index, known: Mapping[Iterator, int]) -> FlatAddress:
    const, terms = affine_terms(index)
    return const + sum(k * known[x] for x, k in terms.items() if x in known), {
        x: k for x, k in terms.items() if x not in known
    }


def in_place_layout(form: SumOfProducts, operand: int, vector: Iterator | None) -> OperandLayout | None:
    """Return the layout of the tensor itself, or None if reads leave it or *vector* does not run along memory."""
    tensor = form.operands[operand]
    axes = tuple(LayoutAxis(d, 1, True, lo, hi - lo) for d, (lo, hi) in enumerate(tensor.box))
    layout = OperandLayout(tensor, axes, copied=False)
    for where in _reads(form, operand):
        if not is_inside_box(where, tensor.box):
            return None
        found = layout.address(where, {})
        if found is None or (vector is not None and found[1].get(vector) != 1):
            return None
    return layout


def padded_copy_layout(form: SumOfProducts, operand: int, vector: Iterator | None) -> OperandLayout | None:
    """Return a copy of all elements that are read, or None if *vector* moves in several dimensions, or backwards."""
    tensor = form.operands[operand]
    dims = {d for where in _reads(form, operand) for d, i in enumerate(where) if vector in i.iterators}
    if vector is not None and len(dims) != 1:
        return None
    along = next(iter(dims), -1)
    axes: list[LayoutAxis] = []
    last: list[LayoutAxis] = []
    for d in range(len(tensor.shape)):
        bounds = [where[d].bounds for where in _reads(form, operand)]
        lo = min(b[0] for b in bounds)
        extent = max(b[1] for b in bounds) + 1 - lo
        steps = {where[d].coefficient(vector) for where in _reads(form, operand)} if vector and d == along else {1}
        if len(steps) != 1 or (step := steps.pop()) < 1:
            return None
        if step > 1:
            axes.append(LayoutAxis(d, step, False, lo, step))
        (last if d == along else axes).append(LayoutAxis(d, step, True, lo, -(-extent // step)))
    return OperandLayout(tensor, (*axes, *last), copied=True)


def _reads(form: SumOfProducts, operand: int) -> Iterable[tuple[Index, ...]]:
    return (both[operand] for both in form.reads.values())
