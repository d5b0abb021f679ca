"""Stages of a chain in the coordinates of one block: iterators counted from its start, tensors as flat memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from einnet_explore.analysis.fused_chain import Chain, Cut, Region, Stage
from einnet_explore.analysis.indices import substitute
from einnet_explore.codegen.memory_access import flat_index
from einnet_explore.ir import Access, Index, Iterator, Scalar, Table, Tensor, accesses, as_index, map_accesses


@dataclass(frozen=True, slots=True)
class LoopGuard:
    """The loop values lo <= index < hi for which a stage is computed; elsewhere it is its padding."""

    index: Index
    lo: int
    hi: int


@dataclass(frozen=True)
class BlockStage:
    """A stage: for all *traversals*, *memory* at *place* is the sum of *body* over *sums*.

    Every access of *body* except those to tables has one index, a position in flat memory. *border* are boxes of
    positions with the padding *value*; *guards* restrict the values of a traversal for which the stage is computed.
    """

    memory: str
    traversals: tuple[Iterator, ...]
    sums: tuple[Iterator, ...]
    body: Scalar
    place: Index
    size: int
    value: float
    guards: Mapping[Iterator, LoopGuard]
    border: tuple[tuple[Iterator, ...], ...]

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """The reads without those of tables, each once."""
        return tuple(dict.fromkeys(a for a in accesses(self.body) if not isinstance(a.source, Table)))

    @property
    def last(self) -> Iterator:
        """The innermost traversal."""
        return self.traversals[-1]


RESULT_MEMORY = "#result"
"""The memory that the last stage writes."""


def block_stages(chain: Chain, cuts: tuple[Cut, ...], memory: Callable[[Tensor], str]) -> tuple[BlockStage, ...]:
    """Return the stages of *chain* for one block of *cuts*; *memory* names the flat memory of a tensor."""
    regions = chain.regions(cuts)
    return tuple(block_stage(chain, stage, regions, memory) for stage in chain.stages)


def block_stage(
    chain: Chain, stage: Stage, regions: Mapping[str, Region], memory: Callable[[Tensor], str]
) -> BlockStage:
    """Return *stage* of *chain* for one block, which needs *regions*."""
    scope, region = stage.scope, regions[stage.name]
    last = stage is chain.result
    own: list[Iterator] = []
    guards: dict[Iterator, LoopGuard] = {}
    border: list[tuple[Iterator, ...]] = []
    outside = {
        x
        for a in accesses(scope.body)
        if isinstance(a.source, Tensor) and not a.source.name.startswith("#")
        for i in a.index
        for x in i.iterators
    }
    padding = scope.padding or ((0, 0),) * len(scope.traversals)
    for d, (x, origin, extent) in enumerate(zip(scope.traversals, region.origin, region.extent, strict=True)):
        if not origin.terms:
            lo, hi = max(x.lo - origin.const, 0), min(x.hi - origin.const, extent)
            y = Iterator(x.name, lo, max(lo, hi))
            for a, b in ((0, lo), (max(lo, hi), extent)):
                if a < b:
                    full = [Iterator(z.name, 0, n) for z, n in zip(scope.traversals, region.extent, strict=True)]
                    full[d] = Iterator(x.name, a, b)
                    border.append(tuple(full))
        else:
            y = Iterator(x.name, 0, extent)
            where = origin + y
            least, most = where.bounds
            if (least < x.lo or most >= x.hi) and (last or x in outside or any(padding[d])):
                guards[y] = LoopGuard(where, x.lo, x.hi)
        own.append(y)
    to = {x: origin + y for x, origin, y in zip(scope.traversals, region.origin, own, strict=True)}

    def flat(access: Access) -> Access:
        match access.source:
            case Table():
                return access
            case Tensor(name) as t if name.startswith("#"):
                r = regions[name]
                return _flat_access(name, access.index, r.origin, r.extent)
            case Tensor() as t:
                return _flat_access(memory(t), access.index, tuple(as_index(lo) for lo, _ in t.box), t.shape)
        raise TypeError(f"{access!r} reads a scope")

    body = map_accesses(substitute(scope.body, to), flat)
    if last:
        name, at, shape = RESULT_MEMORY, tuple(to[x] - x.lo for x in scope.traversals), scope.shape
    else:
        name, at, shape = stage.name, tuple(map(as_index, own)), region.extent
    place = flat_index(at, shape)
    return BlockStage(name, tuple(own), scope.summations, body, place, prod(shape), scope.value, guards, tuple(border))


def _flat_access(name: str, index: tuple[Index, ...], origin: tuple[Index, ...], shape: tuple[int, ...]) -> Access:
    place = flat_index(tuple(i - o for i, o in zip(index, origin, strict=True)), shape)
    return Access(Tensor(name, (prod(shape),)), (place,))


def collapse_loops(stage: BlockStage) -> BlockStage:
    """Collapse neighbouring traversals of *stage* whose positions are consecutive in every tensor."""
    n = 0
    while n + 1 < len(stage.traversals):
        outer, inner = stage.traversals[n : n + 2]
        places = (stage.place, *(i for a in accesses(stage.body) for i in a.index))
        plain = {outer, inner}.isdisjoint(stage.guards) and not (outer.lo or inner.lo) and not stage.border
        if plain and all(_is_consecutive(i, outer, inner) for i in places):
            both = Iterator(f"{outer.name}.{inner.name}", 0, outer.extent * inner.extent)
            to = {outer: both // inner.extent, inner: both % inner.extent}
            stage = replace(
                stage,
                traversals=(*stage.traversals[:n], both, *stage.traversals[n + 2 :]),
                body=substitute(stage.body, to),
                place=stage.place.substitute(lambda x, to=to: to.get(x, x)),  # type: ignore[misc]
            )
        else:
            n += 1
    return stage


def _is_consecutive(index: Index, outer: Iterator, inner: Iterator) -> bool:
    k = index.coefficient(inner)
    rest = index - as_index(inner) * k - as_index(outer) * (k * inner.extent)
    return outer not in rest.iterators and inner not in rest.iterators
