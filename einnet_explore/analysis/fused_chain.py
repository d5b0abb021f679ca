r"""Chains: nested scopes that share a traversal, cut into blocks of it.

A scope that reads scopes is a chain of *stages*.  If a traversal of the result is cut into blocks,

.. math::  y = p\,s + y', \qquad 0 \le y' < p\,b,

every index at which a stage is read splits into a part that depends only on the block `s`, and a rest, whose bounds
give the region of that stage that a block of the result needs: a box of fixed extent that moves with `s`.  The chain
can then be computed block by block, with memory for one block.  If no two blocks need the same part of a stage, no work
is repeated.

Source: the bounds inference of J. Ragan-Kelley et al., Halide, PLDI 2013, on quasi-affine indices in normal form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from einnet_explore.analysis.indices import is_inside_box, substitute_index
from einnet_explore.analysis.products import TensorContraction
from einnet_explore.ir import Access, Equation, Index, Iterator, Scope, Tensor, accesses, as_index, map_accesses
from einnet_explore.support.errors import Refused

PERIODS = range(1, 17)
"""How many steps of a traversal belong together, at most."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One scope of a chain; it reads other stages as tensors called #0, #1, …"""

    name: str
    scope: Scope

    @property
    def tensor(self) -> Tensor:
        """The tensor that other stages read."""
        return Equation(self.name, self.scope).tensor

    @property
    def product(self) -> bool:
        """Whether the stage sums products of two tensors."""
        try:
            product = TensorContraction.of(self.scope)
        except Refused:
            return False
        return isinstance(product.left.source, Tensor) and isinstance(product.right.source, Tensor)


@dataclass(frozen=True, slots=True)
class Cut:
    """A traversal of the result in blocks of *size* times *period*; *at* is the number of a block's first period.

    The last block overlaps the one before if the blocks do not divide the traversal.
    """

    traversal: Iterator
    period: int
    size: int
    at: Iterator

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.periods // self.size)

    @property
    def periods(self) -> int:
        """The number of periods."""
        return -(-self.traversal.extent // self.period)


@dataclass(frozen=True, slots=True)
class Region:
    """The part of a stage that a block needs: a box of *extent* at *origin*, which moves with the block."""

    origin: tuple[Index, ...]
    extent: tuple[int, ...]

    @property
    def points(self) -> int:
        """The number of elements."""
        return prod(self.extent)


@dataclass(frozen=True, slots=True)
class Chain:
    """The *stages* of a scope in the order of their reads; the last one is the scope itself."""

    stages: tuple[Stage, ...]

    @property
    def result(self) -> Stage:
        """The last stage."""
        return self.stages[-1]

    def regions(self, cuts: Iterable[Cut]) -> Mapping[str, Region]:
        """Return the region of every stage that a block needs, by name."""
        held = {c.traversal: c for c in cuts}
        blocks = frozenset(c.at for c in held.values())
        found: dict[str, Region] = {self.result.name: _result_region(self.result.scope, held)}
        for stage in reversed(self.stages):
            scope, region = stage.scope, found[stage.name]
            to = _local_indices(scope, region)
            for access in accesses(scope.body):
                match access.source:
                    case Tensor(name) as source if name.startswith("#"):
                        asked = _needed_region(source, tuple(substitute_index(i, to) for i in access.index), blocks)
                        found[name] = _union(found[name], asked, source) if name in found else asked
        return found

    def multiplications(self, cuts: tuple[Cut, ...] = ()) -> int:
        """Count the products of all blocks, in stages that sum products.

        Blocks of one cut that are computed in order keep the elements that they have in common.
        """
        regions = self.regions(cuts)
        return sum(
            _computed_points(s, regions[s.name], cuts) * prod(y.extent for y in s.scope.summations)
            for s in self.stages
            if s.product
        )

    def make_cut(self, x: Iterator, period: int, size: int) -> Cut:
        """Cut *x* into blocks of *size* periods."""
        last = -(-x.extent // period) - size
        return Cut(x, period, size, Iterator(f"@{x.name}", 0, last + 1))

    def cuts(self) -> tuple[Cut, ...]:
        """Return the smallest cut of every traversal that, with the earlier ones, repeats no product."""
        whole = self.multiplications()
        out: list[Cut] = []
        for x in self.result.scope.traversals:
            for period in PERIODS:
                if period >= x.extent:
                    break
                cuts = (*out, self.make_cut(x, period, 1))
                if self.multiplications(cuts) <= whole * prod(
                    Fraction(c.periods * c.period, c.traversal.extent) for c in cuts
                ):
                    out.append(cuts[-1])
                    break
        return tuple(out)


def find_chain(scope: Scope) -> Chain:
    """Return *scope* as a chain; raises Refused with the stage that prevents it."""
    stages: list[Stage] = []
    done: dict[Scope, Tensor] = {}

    def visit(scope: Scope) -> Tensor:
        match scope.body:  # a copy with more padding: the padding is all that it adds
            case Access(Scope(domain=()) as inner, index) if (
                not scope.domain and index == tuple(map(as_index, scope.traversals)) and inner.box == scope.box
            ):
                return visit(replace(inner, padding=scope.padding, value=scope.value))
        if scope not in done:
            if scope.domain:
                raise Refused(f"a stage has the domain {', '.join(map(repr, scope.domain))}")
            if scope.summations and scope.reduce != "sum":
                raise Refused(f"a stage is reduced by {scope.reduce}, expected sum")
            body = map_accesses(scope.body, replace_source)
            stages.append(Stage(f"#{len(stages)}", replace(scope, body=body)))
            done[scope] = stages[-1].tensor
        return done[scope]

    def replace_source(access: Access) -> Access:
        match access.source:
            case Scope() as inner:
                return Access(visit(inner), access.index)
            case Tensor() as tensor if not is_inside_box(access.index, tensor.box):
                return Access(visit(_copy(tensor)), access.index)
        return access

    visit(scope)
    return Chain(tuple(stages))


def _computed_points(stage: Stage, region: Region, cuts: tuple[Cut, ...]) -> int:
    """Return the elements of *stage* that all blocks compute, each of which needs *region*."""
    again = prod(c.blocks for c in cuts) * region.points
    if len(cuts) != 1 or cuts[0].periods % cuts[0].size:
        return again
    (cut,) = cuts
    steps = [origin.coefficient(cut.at) * cut.size for origin in region.origin]
    match [(d, step) for d, step in enumerate(steps) if step]:
        case [(d, step)] if 0 < step < region.extent[d]:
            rows = min(region.extent[d] + (cut.blocks - 1) * step, stage.scope.shape[d])
            return min(again, region.points // region.extent[d] * rows)
    return again


def range_inside(x: Iterator, origin: Index, extent: int) -> tuple[int, int]:
    """Return the part of `[0, extent)` that lies in the range of *x* if counted from the constant *origin*."""
    return max(x.lo - origin.const, 0), min(x.hi - origin.const, extent)


def _local_indices(scope: Scope, region: Region) -> Mapping[Iterator, Index]:
    """Map the traversals of *scope* to indices counted from the start of *region*, of the same names.

    Where the region has a constant origin, they leave out its padding, whose elements read nothing.
    """
    found: dict[Iterator, Index] = {}
    for x, origin, extent in zip(scope.traversals, region.origin, region.extent, strict=True):
        lo, hi = (0, extent) if origin.terms else range_inside(x, origin, extent)
        found[x] = origin + (Iterator(x.name, lo, hi) if lo < hi else Iterator(x.name, 0, extent))
    return found


def _copy(tensor: Tensor) -> Scope:
    over = tuple(Iterator(f"z{d + 1}", lo, hi) for d, (lo, hi) in enumerate(tensor.box))
    return Scope(over, (), Access(replace(tensor, padding=(), value=0), tuple(map(as_index, over))),
                 padding=tensor.padding, value=tensor.value)  # fmt: skip


def _result_region(scope: Scope, cuts: Mapping[Iterator, Cut]) -> Region:
    origin, extent = [], []
    for x in scope.traversals:
        cut = cuts.get(x)
        origin.append(as_index(x.lo) if cut is None else cut.at * cut.period + x.lo)
        extent.append(x.extent if cut is None else cut.period * cut.size)
    return Region(tuple(origin), tuple(extent))


def _needed_region(source: Tensor, index: tuple[Index, ...], blocks: frozenset[Iterator]) -> Region:
    split = [_split_index(i, blocks) or _whole_reach(reach) for i, reach in zip(index, source.reach, strict=True)]
    return Region(tuple(o + lo for o, lo, _ in split), tuple(hi - lo + 1 for _, lo, hi in split))


def _whole_reach(reach: tuple[int, int]) -> tuple[Index, int, int]:
    return as_index(0), reach[0], reach[1] - 1


def _split_index(index: Index, blocks: frozenset[Iterator]) -> tuple[Index, int, int] | None:
    """Split *index* into (part moving with the block, least and largest of the rest); None if an atom mixes them."""
    moving, rest = [], []
    for atom, k in index.terms:
        own = frozenset(as_index(atom).iterators)
        if own <= blocks:
            moving.append((atom, k))
        elif own & blocks:
            return None
        else:
            rest.append((atom, k))
    lo, hi = Index(tuple(rest), index.const).bounds
    return Index(tuple(moving)), lo, hi


def _union(a: Region, b: Region, source: Tensor) -> Region:
    origin, extent = [], []
    for (p, n), (q, m), reach in zip(
        zip(a.origin, a.extent, strict=True), zip(b.origin, b.extent, strict=True), source.reach, strict=True
    ):
        apart = q - p
        if apart.terms:
            origin.append(as_index(reach[0]))
            extent.append(reach[1] - reach[0])
        else:
            lo, hi = min(0, apart.const), max(n, apart.const + m)
            origin.append(p + lo)
            extent.append(hi - lo)
    return Region(tuple(origin), tuple(extent))
