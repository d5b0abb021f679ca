r"""Call-time layout of a fused kernel: strides in elements, the order of loops, and collapsed dimensions.

.. math::  \mathrm{address} = \sum_a x_a\, k_{a,T}, \qquad
           k_{a,T} = n_b\, k_{b,T} \text{ for all } T \;\Rightarrow\; (a, b) \mapsto \text{one axis of } n_a n_b

The text of a kernel depends on the remaining axes only; extents and strides are arguments, except strides of 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from einnet_explore.analysis.flattening import are_neighbours
from einnet_explore.codegen.fusion.operations import read_name
from einnet_explore.codegen.fusion.plan import FusedKernel, constant_argument
from einnet_explore.codegen.fusion.sizes import Shapes
from einnet_explore.ir import Iterator, accesses

Strides = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class FusedLayout:
    """*fused* with sizes and strides: *order* holds the remaining axes, the innermost last.

    A collapsed axis counts as 0; the axis that stands for both runs over the product.
    """

    fused: FusedKernel
    shapes: Shapes
    sizes: Mapping[Iterator, int]
    """The extent of each axis by itself."""
    extents: Mapping[Iterator, int]
    strides: Strides
    order: tuple[Iterator, ...]

    @property
    def lanes(self) -> Iterator | None:
        """The axis of the grid that runs along memory, or None; its points are computed together."""
        last = self.order[-1] if self.order else None
        return last if last in self.fused.grid else None

    @property
    def grid(self) -> tuple[Iterator, ...]:
        """The remaining axes of the grid."""
        return tuple(x for x in self.order if x in self.fused.grid)

    @property
    def points(self) -> int:
        """Points of the grid."""
        return prod(self.extents[x] for x in self.grid)

    @cached_property
    def numbers(self) -> Mapping[str, float]:
        """The scalar arguments of a kernel by name: sizes, strides, constants, slots' sizes."""
        sizes = {size_name(x): n for x, n in self.extents.items()}
        steps = {step_name(t, d): k for t, own in self.strides.items() for d, k in enumerate(own)}
        constants = {constant_argument(n).name: value for n, value in enumerate(self.fused.constants)}
        return sizes | steps | constants | {f"{slot_name(n)} size": k for n, k in enumerate(slot_sizes(self))}

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """The properties of a call on which the text of a CPU kernel depends."""
        memory = [n for n in self.strides if self.fused.spaces[n].slot is None]
        units = tuple((name, d) for name in memory for d, k in enumerate(self.strides[name]) if k == 1)
        return self.order, units


def size_name(x: Iterator) -> str:
    """Return the name of the size of *x* in a kernel."""
    return f":n {x.name}"


def step_name(tensor: str, d: int) -> str:
    """Return the name of the stride of *tensor* along dimension *d* in a kernel."""
    return f":{tensor} step {d}"


def slot_name(n: int) -> str:
    """Return the name of slot *n* in a kernel."""
    return f":slot {n}"


def lay_out(fused: FusedKernel, shapes: Shapes, strides: Strides) -> FusedLayout:
    """Return *fused* for inputs of *shapes* and tensors (inputs and outputs) of *strides*, in elements."""
    sizes = {x: fused.sizes.extent(x, shapes) for x in fused.sizes.axes}
    own = dict(strides)
    for space in fused.spaces.values():
        if space.slot is not None:
            inner = [sizes[x] for x in space.axes]
            own[space.name] = tuple(prod(inner[d + 1 :]) for d in range(len(inner)))
    order = _order_axes(fused, sizes, own)
    return FusedLayout(fused, shapes, sizes, *_collapse_axes(fused, sizes, own, order))


def uncollapsed_layout(fused: FusedKernel, shapes: Shapes) -> FusedLayout:
    """Return *fused* for inputs of *shapes* with all its axes and without strides."""
    sizes = {x: fused.sizes.extent(x, shapes) for x in fused.sizes.axes}
    return FusedLayout(fused, shapes, sizes, sizes, {}, tuple(sizes))


def slot_sizes(flat: FusedLayout) -> tuple[int, ...]:
    """Return the elements of each slot for one point of the grid: the largest of its temporaries."""
    fused = flat.fused
    sizes = [1] * fused.slots
    for space in fused.spaces.values():
        if space.slot is not None:
            sizes[space.slot] = max(sizes[space.slot], prod(flat.extents[x] for x in space.axes))
    return tuple(sizes)


_MemoryUse = tuple[str, tuple["Iterator | None", ...]]


def _memory_uses(fused: FusedKernel) -> tuple[_MemoryUse, ...]:
    """Return (memory, the axis of each index or None) for every access to memory and every store."""
    out: dict[_MemoryUse, None] = {}
    for stage in fused.stages:
        for step in stage.steps:
            found: list[_MemoryUse] = [(read_name(a), tuple(i.single for i in a.index)) for a in accesses(step.body)]
            if step.stores:
                found.append((step.name, fused.known[step.name].scope.traversals))
            for name, axes in found:
                space = fused.spaces.get(name)
                if space is not None and space.kind != "register":
                    memory, dims = fused.memory(name)
                    out[memory, tuple(axes[d] for d in dims)] = None
    return tuple(out)


def _order_axes(fused: FusedKernel, extents: Mapping[Iterator, int], strides: Strides) -> tuple[Iterator, ...]:
    """Return all axes, those with the largest steps in the largest tensor outermost."""
    steps: dict[Iterator, tuple[int, int]] = {}
    for memory, axes in _memory_uses(fused):
        if fused.spaces[memory].slot is None:
            size = prod(extents[x] for x in axes if x is not None)
            for x, step in zip(axes, strides[memory], strict=True):
                if x is not None and extents[x] > 1 and size > steps.get(x, (0, 0))[0]:
                    steps[x] = (size, abs(step))
    whole = max((size for size, _ in steps.values()), default=0)

    def rank(x: Iterator) -> tuple[bool, int]:
        size, step = steps.get(x, (0, 0))
        # What occurs in small tensors only goes outside, and so does what takes no step at all.
        return size == whole and step > 0, -step

    return tuple(sorted(dict.fromkeys(x for o in fused.operations for x in o.axes), key=rank))


def _collapse_axes(
    fused: FusedKernel, extents: Mapping[Iterator, int], strides: Strides, order: tuple[Iterator, ...]
) -> tuple[Mapping[Iterator, int], Strides, tuple[Iterator, ...]]:
    """Collapse neighbouring axes that are neighbours in every tensor, repeatedly."""
    left, sizes = list(order), dict(extents)
    uses = _memory_uses(fused)
    n = 0
    while n + 1 < len(left):
        a, b = left[n], left[n + 1]
        if _have_same_loops(fused, a, b) and all(_are_neighbours(u, sizes, strides, a, b) for u in uses):
            gone, kept = (b, a) if sizes[b] == 1 else (a, b)
            sizes[kept], sizes[gone] = sizes[a] * sizes[b], 1
            left.remove(gone)
            n = max(0, n - 1)
        else:
            n += 1
    return sizes, strides, tuple(left)


def _have_same_loops(fused: FusedKernel, a: Iterator, b: Iterator) -> bool:
    """True if both are free, and loops of the same kind in every nest."""
    if fused.sizes.axes[a].fixed or fused.sizes.axes[b].fixed or (a in fused.grid) != (b in fused.grid):
        return False
    parts = (part for stage in fused.stages for n in stage.nests for part in (n.traversals, n.summations))
    return all((a in part) == (b in part) for part in parts)


def _are_neighbours(
    use: _MemoryUse, extents: Mapping[Iterator, int], strides: Strides, a: Iterator, b: Iterator
) -> bool:
    """True if *use* has *a* and *b* as one axis, or neither of them."""
    memory, axes = use
    if 1 in (extents[a], extents[b]):
        return True
    if a not in axes or b not in axes:
        return (a in axes) == (b in axes)
    steps = dict(zip(axes, strides[memory], strict=True))
    return are_neighbours([(steps[a], steps[b])], extents[b])
