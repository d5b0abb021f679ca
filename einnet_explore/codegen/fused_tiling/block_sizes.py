"""Blocks of a chain: its stages in the coordinates of one block, and block sizes by estimated cycles.

In a block, iterators are counted from its start and tensors are flat memory.  Cycles count the products, the data
between stages, and the weights.

A cut of the whole chain along the result's columns (the channels of a convolution) would recompute the stages before a
product for every block; a cut along the other traversals makes every block read all weights of the product.  In two
parts, one after the other with a barrier between them, each part is cut by what its blocks share: first the transformed
input, then the columns of the product and the stages after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

from einnet_explore.analysis.counts import ELEMENT_BYTES
from einnet_explore.analysis.fused_chain import Chain, Cut, Region, Stage, find_chain, range_inside
from einnet_explore.analysis.indices import substitute
from einnet_explore.codegen.language.lowering import flat_index, tensor_name
from einnet_explore.codegen.language.statements import TILE_SIDES
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.tvm.emission import VectorTile
from einnet_explore.ir import (
    Access,
    Bound,
    Index,
    IndexLike,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Slide:
    """A region moves *step* along *traversal* from one block to the next, less than its extent."""

    traversal: Iterator
    step: int

    @property
    def kept(self) -> int:
        """The number of values of the traversal that two neighbouring blocks have in common."""
        return self.traversal.extent - self.step


@dataclass(frozen=True, slots=True)
class BorderBox:
    """Padding of a stage in its memory: the *place* of each element over *traversals*."""

    traversals: tuple[Iterator, ...]
    place: Index


@dataclass(frozen=True)
class BlockStage:
    """A stage: for all *traversals*, *memory* at *place* is the sum of *body* over *sums*.

    Every access of *body* except those to tables has one index, a position in flat memory. *border* are boxes of
    positions with the padding *value*; *guards* restrict the values of a traversal for which the stage is computed.
    The *epilogue*, if there is one, is what is stored in place of the sum, which it reads as ``STAGE_SUM``. Of a stage
    that slides, the block before has computed what lies *slide* steps further on.
    """

    memory: str
    traversals: tuple[Iterator, ...]
    sums: tuple[Iterator, ...]
    body: Scalar
    place: Index
    size: int
    value: float
    guards: Mapping[Iterator, Bound]
    border: tuple[BorderBox, ...]
    epilogue: Scalar | None = None
    origin: Mapping[Iterator, Index] = field(default_factory=dict)
    """Where the traversals that move with the block begin."""
    slide: Slide | None = None

    @property
    def single(self) -> frozenset[Iterator]:
        """The traversals that have a loop of their own: guarded ones, and that along which it slides."""
        return frozenset((*self.guards, *(() if self.slide is None else (self.slide.traversal,))))

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """The reads without those of tables, each once."""
        found = (*accesses(self.body), *(() if self.epilogue is None else accesses(self.epilogue)))
        return tuple(dict.fromkeys(a for a in found if not isinstance(a.source, Table) and a != STAGE_SUM))

    @property
    def last(self) -> Iterator:
        """The innermost traversal."""
        return self.traversals[-1]

    def over(self, traversals: tuple[Iterator, ...], to: Mapping[Iterator, IndexLike]) -> BlockStage:
        """Return the stage in loops over *traversals*, with other iterators replaced by *to*."""
        place = self.place.substitute(lambda x: to.get(x, x))
        epilogue = None if self.epilogue is None else substitute(self.epilogue, to)
        return replace(self, traversals=traversals, body=substitute(self.body, to), place=place, epilogue=epilogue)


STAGE_SUM = Tensor("#sum", ())[()]
"""The sum of a stage, as its epilogue reads it."""

RESULT_MEMORY = "#result"
"""The memory that the last stage writes."""


def block_stages(
    chain: Chain, cuts: tuple[Cut, ...], memory: Callable[[Tensor], str], threads: int
) -> tuple[BlockStage, ...]:
    """Return the stages of *chain* for one block of *cuts*; *memory* names the flat memory of a tensor.

    If one thread computes all blocks, stages slide.
    """
    regions = chain.regions(cuts)
    stages = merge_epilogues(block_stage(chain, stage, regions, memory) for stage in chain.stages)
    return stages if threads > 1 else _with_slides(stages, cuts)


def _with_slides(stages: tuple[BlockStage, ...], cuts: tuple[Cut, ...]) -> tuple[BlockStage, ...]:
    """Return *stages* where those slide of which blocks of one cut have elements in common."""
    if len(cuts) != 1 or cuts[0].periods % cuts[0].size:
        return stages
    return tuple(replace(stage, slide=_find_slide(stage, cuts[0])) for stage in stages)


def _find_slide(stage: BlockStage, cut: Cut) -> Slide | None:
    if stage.memory == RESULT_MEMORY:
        return None
    outer = next((x for x in stage.traversals if x.extent > 1), None)
    match tuple(stage.origin.items()):
        case ((x, index),) if x == outer and (index - cut.at * index.coefficient(cut.at)).terms == ():
            step = index.coefficient(cut.at) * cut.size
            return Slide(x, step) if 0 < step < x.extent else None
    return None


def merge_epilogues(stages: Iterable[BlockStage]) -> tuple[BlockStage, ...]:
    """Merge each sum of products with its only reader, if that reads every element where it is written."""
    merged: list[BlockStage] = []
    stages = tuple(stages)
    reads = [{tensor_name(a.source) for a in stage.reads} for stage in stages]
    for stage, names in zip(stages, reads, strict=True):
        alone = (s for s in merged if s.memory in names and sum(s.memory in other for other in reads) == 1)
        pairs = ((source, both) for source in alone if (both := _with_epilogue(source, stage)) is not None)
        source, both = next(pairs, (None, stage))
        merged = [*(s for s in merged if s is not source), both]
    return tuple(merged)


def _with_epilogue(source: BlockStage, reader: BlockStage) -> BlockStage | None:
    """Return *reader* as the epilogue of *source*, or None if it does not read each element of it once, in order."""
    ours, theirs = (tuple(x for x in each.traversals if x.extent > 1) for each in (source, reader))
    own = tuple(x.extent for x in ours) == tuple(x.extent for x in theirs)
    tensors_only = not any(isinstance(a.source, Table) for b in (source, reader) for a in accesses(b.body))
    if not (own and tensors_only and source.sums and len(factors(source.body)) == 2) or reader.sums or source.border:
        return None
    pairs = tuple(zip(ours, theirs, strict=True))
    to: dict[Iterator, IndexLike] = {x: y + (x.lo - y.lo) for x, y in pairs}
    to |= {x: x.lo for x in source.traversals if x.extent == 1}
    guards = {y: bound for x, y in pairs if (bound := source.guards.get(x)) is not None}
    implied = source.guards.keys() <= to.keys() - {x for x in source.traversals if x.extent == 1} and all(
        _implies(reader.guards.get(y), bound, to) for y, bound in guards.items()
    )
    # The sums have names of their own, which no traversal of the reader has.
    sums = tuple(Iterator(f"{y.name}#sum", y.lo, y.hi) for y in source.sums)
    to |= dict(zip(source.sums, sums, strict=True))
    moved = source.over(reader.traversals, to)
    at = {a.index[0] for a in reader.reads if tensor_name(a.source) == source.memory}
    if not implied or at != {moved.place}:
        return None
    made = STAGE_SUM if moved.epilogue is None else moved.epilogue
    epilogue = map_accesses(reader.body, lambda a: made if tensor_name(a.source) == source.memory else a)
    return replace(reader, sums=sums, body=moved.body, epilogue=epilogue)


def _implies(inner: Bound | None, outer: Bound, to: Mapping[Iterator, IndexLike]) -> bool:
    """Whether *inner* holds only where *outer*, of the iterators that *to* replaces, does."""
    if inner is None:
        return False
    apart = outer.index.substitute(lambda x: to.get(x, x)) - inner.index
    return not apart.terms and inner.lo + apart.const >= outer.lo and inner.hi + apart.const <= outer.hi


def block_stage(
    chain: Chain, stage: Stage, regions: Mapping[str, Region], memory: Callable[[Tensor], str]
) -> BlockStage:
    """Return *stage* of *chain* for one block, which needs *regions*."""
    scope, region = stage.scope, regions[stage.name]
    last = stage is chain.result
    own, guards, boxes = _block_loops(chain, stage, region)
    border = tuple(BorderBox(box, flat_index(tuple(map(as_index, box)), region.extent)) for box in boxes)
    at = [as_index(y) if y.extent > 1 else as_index(y.lo) for y in own]
    to = {x: origin + y for x, origin, y in zip(scope.traversals, region.origin, at, strict=True)}
    sums = tuple(y for y in scope.summations if y.extent > 1) or scope.summations
    fixed: dict[Iterator, IndexLike] = {y: y.lo for y in scope.summations if y not in sums}

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

    body = map_accesses(substitute(scope.body, {**to, **fixed}), flat)
    if last:
        name, shape = RESULT_MEMORY, scope.shape
        place = flat_index(tuple(to[x] - x.lo for x in scope.traversals), shape)
    else:
        name, shape = stage.name, region.extent
        place = flat_index(tuple(at), shape)
    moving = {y: origin for y, origin in zip(own, region.origin, strict=True) if origin.terms}
    return BlockStage(name, tuple(own), sums, body, place, prod(shape), scope.value, guards, border, None, moving)


def _block_loops(
    chain: Chain, stage: Stage, region: Region
) -> tuple[list[Iterator], dict[Iterator, Bound], list[tuple[Iterator, ...]]]:
    """Return the traversals of a block of *region*, their guards, and the boxes of padding around them."""
    scope = stage.scope
    own: list[Iterator] = []
    guards: dict[Iterator, Bound] = {}
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
            lo, hi = range_inside(x, origin, extent)
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
            if (least < x.lo or most >= x.hi) and (stage is chain.result or x in outside or any(padding[d])):
                guards[y] = Bound(where, x.lo, x.hi)
        own.append(y)
    return own, guards, border


def _flat_access(name: str, index: tuple[Index, ...], origin: tuple[Index, ...], shape: tuple[int, ...]) -> Access:
    place = flat_index(tuple(i - o for i, o in zip(index, origin, strict=True)), shape)
    return Access(Tensor(name, (prod(shape),)), (place,))


def collapse_loops(stage: BlockStage) -> BlockStage:
    """Collapse neighbouring traversals of *stage* whose positions are consecutive in every tensor."""
    n = 0
    while n + 1 < len(stage.traversals):
        outer, inner = stage.traversals[n : n + 2]
        parts = (stage.body, *(() if stage.epilogue is None else (stage.epilogue,)))
        places = (stage.place, *(i for part in parts for a in accesses(part) for i in a.index))
        plain = stage.single.isdisjoint((outer, inner)) and not (outer.lo or inner.lo) and not stage.border
        if plain and all(_is_consecutive(i, outer, inner) for i in places):
            both = Iterator(f"{outer.name}.{inner.name}", 0, outer.extent * inner.extent)
            to = {outer: both // inner.extent, inner: both % inner.extent}
            stage = stage.over((*stage.traversals[:n], both, *stage.traversals[n + 2 :]), to)
        else:
            n += 1
    return stage


def _is_consecutive(index: Index, outer: Iterator, inner: Iterator) -> bool:
    k = index.coefficient(inner)
    rest = index - as_index(inner) * k - as_index(outer) * (k * inner.extent)
    return outer not in rest.iterators and inner not in rest.iterators


LOAD_COST = 1.2
"""Cost of a load relative to its issue, on average over first-level cache misses."""


@dataclass(frozen=True, slots=True)
class StageProduct:
    """*left* moves with *rows*, *right* with *columns*, the last of which runs along memory, both with *batch*."""

    left: Access
    right: Access
    batch: tuple[Iterator, ...]
    rows: tuple[Iterator, ...]
    columns: tuple[Iterator, ...]

    @property
    def count(self) -> int:
        """Number of rows."""
        return prod(x.extent for x in self.rows)


def match_product(stage: BlockStage, lanes: int) -> StageProduct | None:
    """Return *stage* as a product vectorised along its last traversal, or None."""
    parts = factors(stage.body)
    last = stage.last
    if len(parts) != 2 or not stage.sums or last in stage.guards or not _fits_vectors(last, lanes):
        return None
    for left, right in (parts, parts[::-1]):
        if _is_tensor_read(left) and _is_tensor_read(right):
            assert isinstance(left, Access) and isinstance(right, Access)
            mine, other = ({x for i in a.index for x in i.iterators} for a in (left, right))
            if stage.last in mine or not _is_vector_aligned(right.index[0], stage.last, lanes):
                continue
            if not _is_vector_aligned(stage.place, stage.last, lanes):
                continue
            rows = tuple(x for x in stage.traversals if x not in other and x not in stage.single and x.extent > 1)
            columns = tuple(x for x in stage.traversals if x not in mine and x in other)
            batch = tuple(x for x in stage.traversals if x not in rows and x not in columns)
            return StageProduct(left, right, batch, rows, columns)
    return None


MAX_UNEVEN_VECTORS = 4
"""Vectors of a row of a product whose last one is narrower, at most: a row is not cut then."""


def _fits_vectors(last: Iterator, lanes: int) -> bool:
    """Whether *last* is whole vectors, or a few of them and half a one."""
    whole, rest = divmod(last.extent, lanes)
    return not last.lo and (not rest or (0 < whole < MAX_UNEVEN_VECTORS and rest == lanes // 2))


def is_vector_sum(stage: BlockStage, lanes: int) -> bool:
    """Whether *stage* sums few products of vectors along its last traversal, whose neighbours are neighbours."""
    parts = factors(stage.body)
    if len(parts) != 2 or not 1 < sum_length(stage) <= MAX_UNROLLED_TERMS or stage.last in stage.guards:
        return False
    return all(
        isinstance(a, Access) and _is_tensor_read(a) and _is_vector_aligned(a.index[0], stage.last, lanes)
        for a in parts
    )


MAX_UNROLLED_TERMS = 64
"""Terms of a sum that are unrolled, at most."""


def _is_tensor_read(factor: Scalar) -> bool:
    return isinstance(factor, Access) and isinstance(factor.source, Tensor)


def _is_vector_aligned(index: Index, x: Iterator, lanes: int) -> bool:
    """True if aligned groups of *lanes* neighbours along *x* are neighbours at *index*; of uneven ones, if all are."""
    if x.extent % lanes:
        return index.coefficient(x) == 1 and x not in (index - x).iterators
    chunk, lane = Iterator("@chunk", 0, x.extent // lanes), Iterator("@lane", 0, lanes)
    at = index.substitute(lambda y: as_index(chunk) * lanes + lane if y == x else y)
    return at.coefficient(lane) == 1 and lane not in (at - lane).iterators


def address_steps(body: Scalar | Index, x: Iterator) -> frozenset[int | None]:
    """Return the steps of the addresses of *body* along *x*; None stands for uneven steps."""
    places = (body,) if isinstance(body, Index) else tuple(i for a in accesses(body) for i in a.index)
    steps = ((i, i.coefficient(x)) for i in places)
    return frozenset(None if x in (i - x * k).iterators else k for i, k in steps)


@dataclass(frozen=True, slots=True)
class TileTranspose:
    """*reads* run along *across* where the stage runs along its last traversal; tiles have *side* rows and lanes."""

    reads: tuple[Access, ...]
    across: Iterator
    side: int


def match_transpose(stage: BlockStage, lanes: int) -> TileTranspose | None:
    """Return the transposition of the reads of *stage*, or None if there is none or no tile fits."""
    last = stage.last
    if stage.sums or address_steps(stage.place, last) != {1} or last in stage.guards:
        return None
    turned = tuple(a for a in stage.reads if not address_steps(a, last) <= {0, 1})
    across = [x for x in stage.traversals[:-1] if turned and all(address_steps(a, x) == {1} for a in turned)]
    if len(across) != 1 or across[0] in stage.guards:
        return None
    (x,) = across
    side = next((s for s in TILE_SIDES if s <= lanes and s <= x.extent and s <= last.extent), None)
    return None if side is None else TileTranspose(turned, x, side)


def far_vectors(stage: BlockStage, turn: TileTranspose) -> list[Access]:
    """Return what *stage* reads from inputs along its last traversal, next to what is transposed."""
    others = (a for a in stage.reads if a not in turn.reads and not is_stage_result(a))
    return [a for a in others if address_steps(a, stage.last) == {1}]


MIN_PAIRED_ITERATIONS = 8
"""Iterations of the innermost sum from which on narrower vectors are paired.

LLVM unrolls shorter loops; then more pairs are live than there are registers.
"""


def choose_vector_tile(
    rows: int, vectors: int, depth: int, machine: Machine, rest: int = 0, paired: bool = False
) -> VectorTile:
    """Return the tile of fewest cycles for so many rows and vectors (and *rest* columns), summed over *depth*.

    Ties prefer a tile that divides the rows, has more sums, and more rows: it reads columns less often.
    """
    fitting = (
        VectorTile(r, v, machine.lanes, rest, paired)
        for v in ((vectors,) if rest else range(1, 5))
        if vectors % v == 0
        for r in range(1, min(rows, machine.registers) + 1)
    )
    fitting = (t for t in fitting if t.sums + len(t.columns) + 1 <= machine.registers)

    def key(tile: VectorTile) -> tuple[float, bool, int, int]:
        count = tile.rows * tile.vectors
        return (
            product_cycles(tile, rows, vectors, depth, machine),
            bool(rows % tile.rows),
            -count,
            -tile.rows,
        )

    return min(fitting, key=key)


def product_tile(stage: BlockStage, product: StageProduct, machine: Machine) -> VectorTile:
    """Return the tile in which *product*, which *stage* is, is computed."""
    whole, rest = divmod(stage.last.extent, machine.lanes)
    paired = 2 * rest == machine.lanes and stage.sums[-1].extent >= MIN_PAIRED_ITERATIONS
    return choose_vector_tile(product.count, whole, sum_length(stage), machine, rest, paired)


def product_cycles(tile: VectorTile, rows: int, vectors: int, depth: int, machine: Machine) -> float:
    """Return the cycles of a product of *rows* by *vectors*, for each of *depth*.

    They count multiply-adds, loads, the latency of sums, and columns that each tile reads from the second-level cache.
    """
    line = ELEMENT_BYTES * tile.width
    columns = line / machine.l2_bytes if depth * line > machine.l1 // 2 else 0

    def one(r: int) -> float:
        work = replace(tile, rows=r).sums / machine.fma_per_cycle
        loads = (r + len(tile.columns)) / machine.loads_per_cycle
        return max(work, LOAD_COST * loads, LOAD_COST * columns, machine.latency) if r else 0

    return vectors / tile.vectors * (rows // tile.rows * one(tile.rows) + one(rows % tile.rows))


def sum_blocks(stage: BlockStage, product: StageProduct, tile: VectorTile, machine: Machine) -> int:
    """Return in how many blocks of the outermost loop of the sum the tiles of *product* are computed.

    More than one if the columns that tiles share exceed half of the first-level cache, and tiles have so few rows that
    fetching them again takes more than half the time of the arithmetic.
    """
    outermost, line = stage.sums[0], ELEMENT_BYTES * tile.width
    least = -(-line * sum_length(stage) // (machine.l1 // 2))
    is_bound_by_loads = 2 * line / machine.l2_bytes >= tile.sums / machine.fma_per_cycle
    if least <= 1 or product.count <= tile.rows or not is_bound_by_loads:
        return 1
    return next((n for n in range(least, 2 * least + 1) if outermost.extent % n == 0), 1)


def panel_width(stage: BlockStage, right: Access, tile: VectorTile) -> int | None:
    """Return the width of the panels that hold the columns of *tile*, or None if they are not consecutive in memory."""
    steps = address_steps(right.index[0], stage.sums[-1])
    width = next(iter(steps))
    if len(steps) != 1 or not width or width < 0 or tile.width % width:
        return None
    expected = width
    for y in reversed(stage.sums):
        if address_steps(right.index[0], y) != {expected}:
            return None
        expected *= y.extent
    return width


def sum_length(stage: BlockStage) -> int:
    """Return the number of products in a sum of *stage*."""
    return prod(y.extent for y in stage.sums)


def is_far(product: StageProduct, machine: Machine) -> bool:
    """True if the columns of all blocks read an input of more than half of the second-level cache."""
    return not is_stage_result(product.right) and _source_bytes(product.right) > machine.l2 // 2


def is_stage_result(access: Access) -> bool:
    """True if *access* reads the result of a stage, of this part or of the one before."""
    return tensor_name(access.source).startswith("#") or is_earlier_result(access)


def is_earlier_result(access: Access) -> bool:
    """True if *access* reads the result of the part before."""
    return tensor_name(access.source).startswith("@#")


def _source_bytes(access: Access) -> int:
    """Return the bytes of what *access* reads from, in all blocks."""
    return ELEMENT_BYTES * prod(access.source.shape)


def _read_bytes(stage: BlockStage, access: Access) -> int:
    """Return the bytes that *access* reads in a block of *stage*."""
    moving = {x for i in access.index for x in i.iterators}
    return ELEMENT_BYTES * prod(x.extent for x in (*stage.traversals, *stage.sums) if x in moving)


@dataclass(frozen=True, slots=True)
class ChainPart:
    """A *chain* in blocks of *cuts*, whose result is stored as *memory*."""

    chain: Chain
    cuts: tuple[Cut, ...] = ()
    memory: str = RESULT_MEMORY

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return prod(cut.blocks for cut in self.cuts)

    @property
    def size(self) -> int:
        """Elements of the result."""
        return prod(self.chain.result.scope.shape)


def split_chain(chain: Chain) -> Iterable[tuple[ChainPart, ChainPart]]:
    """Split *chain* in two parts: the stages that compute the input of a product, and the product with later stages.

    The second part reads only the last stage of the first, which must compute something.
    """
    for n, stage in enumerate(chain.stages[:-1]):
        before, after = chain.stages[: n + 1], chain.stages[n + 1 :]
        earlier = {s.name for s in before} - {stage.name}
        readers = [s for s in after if stage.name in _read_names(s)]
        alone = not any(earlier & _read_names(s) for s in after)
        if stage.scope.padding or not alone or not any(s.product for s in readers):
            continue
        kept = replace(stage.tensor, name=f"@{stage.name}")
        yield (
            ChainPart(Chain(before), (), kept.name),
            ChainPart(Chain(tuple(_with_read(s, stage.name, kept) for s in after))),
        )


def _read_names(stage: Stage) -> set[str]:
    return {a.source.name for a in accesses(stage.scope.body) if isinstance(a.source, Tensor)}


def _with_read(stage: Stage, name: str, kept: Tensor) -> Stage:
    def redirect(access: Access) -> Scalar:
        match access.source:
            case Tensor(own) if own == name:
                return Access(kept, access.index)
        return access

    return replace(stage, scope=replace(stage.scope, body=map_accesses(stage.scope.body, redirect)))


MAX_REPEATED_WORK = 1.4
"""Factor by which neighbouring blocks may increase the work of all stages by computing the same elements."""

BLOCK_PERIODS = (*range(1, 17), 24, 32, 48, 64, 128, 256)
"""Periods of a block."""

BLOCKS_PER_THREAD = (1, 2, 3, 4, 6, 8, 12, 16)
"""Blocks of each of several threads."""

CACHE_SHARE = 0.75
"""Fraction of the second-level cache that two neighbouring stages may fill."""

WAKE_CYCLES = 10_000.0
"""Cycles to wake threads for a part and to synchronise them."""

L3_SLOWDOWN, MEMORY_SLOWDOWN = 2, 4
"""Slowdown of reads from the last cache and from memory, relative to the second-level cache."""


@lru_cache(256)
def tileable_chain(scope: Scope, machine: Machine) -> Chain | None:
    """Return *scope* as a chain with vector products and other stages around them, or None."""
    try:
        found = find_chain(scope)
    except Refused:
        return None
    if len(found.stages) == 1 or not any(s.product for s in found.stages):
        return None
    regions = found.regions(())
    stages = [(s, block_stage(found, s, regions, lambda tensor: tensor.name)) for s in found.stages]
    runs = (at.traversals and (not s.product or _is_vectorised(at, machine)) for s, at in stages)
    return found if all(runs) else None  # a stage of rank 0 has no traversal for vectors to run along


def _is_vectorised(stage: BlockStage, machine: Machine) -> bool:
    return match_product(stage, machine.lanes) is not None or is_vector_sum(stage, machine.lanes)


@lru_cache(256)
def choose_parts(chain: Chain, threads: int, machine: Machine) -> tuple[ChainPart, ...]:
    """Return *chain* in one part or in two, each by the cuts with the fewest cycles."""
    ways: list[tuple[ChainPart, ...]] = [(ChainPart(chain),)]
    if threads > 1:
        ways += split_chain(chain)
    found = [tuple(replace(p, cuts=choose_cuts(p.chain, threads, machine)) for p in way) for way in ways]
    return min(found, key=lambda way: parts_cycles(way, threads, machine))


def parts_cycles(parts: tuple[ChainPart, ...], threads: int, machine: Machine) -> float:
    """Return the estimated cycles of the *parts* of a chain, one after the other."""
    between = sum(_displaced_cycles(part.size, machine) for part in parts[:-1])
    return between + sum(_chain_cycles(part.chain, part.cuts, threads, machine) for part in parts)


def _displaced_cycles(elements: int, machine: Machine) -> float:
    """Return the cycles to fetch memory of so many *elements*, which the rest of a model has displaced from caches.

    What fits the first-level cache counts nothing.
    """
    return max(0, ELEMENT_BYTES * elements - machine.l1) / (machine.l2_bytes / L3_SLOWDOWN)


@lru_cache(256)
def choose_cuts(chain: Chain, threads: int, machine: Machine) -> tuple[Cut, ...]:
    """Return the cuts with the fewest cycles: traversals in order, the last cut in blocks of any size.

    With several threads the vector dimension of products may be cut first, in at most one block a thread.
    """
    own = chain.cuts()
    fit = tuple(cut for cut in own if _keeps_vectors(chain, (cut,), machine))
    columns = (c for cut in own if threads > 1 and cut not in fit for c in _column_cuts(chain, cut, threads, machine))
    found = (c for first in ((), *columns) for c in _candidate_cuts(chain, first, fit, threads))
    return min(
        found,
        key=lambda cuts: (_chain_cycles(chain, cuts, threads, machine), -_tile_sums(chain, cuts, threads, machine)),
    )


def _tile_sums(chain: Chain, cuts: tuple[Cut, ...], threads: int, machine: Machine) -> int:
    """Return the number of sums in the tiles of products: at equal cost, wide tiles read longer runs of memory."""
    stages = block_stages(chain, cuts, lambda tensor: tensor.name, threads)
    found = ((s, product) for s in stages if (product := match_product(s, machine.lanes)) is not None)
    return sum(tile.rows * tile.vectors for tile in (product_tile(*each, machine) for each in found))


def _column_cuts(chain: Chain, cut: Cut, threads: int, machine: Machine) -> Iterable[tuple[Cut, ...]]:
    """Yield cuts of the traversal of *cut* into at most *threads* blocks that keep products vectorised."""
    x, period = cut.traversal, machine.lanes
    while 2 * period <= x.extent and not _keeps_vectors(chain, (chain.make_cut(x, period, 1),), machine):
        period *= 2
    periods = x.extent // period
    if x.extent % period == 0:
        for size in (n for n in range(1, periods) if periods % n == 0 and periods // n <= threads):
            if _keeps_vectors(chain, cuts := (chain.make_cut(x, period, size),), machine):
                yield cuts


def _keeps_vectors(chain: Chain, cuts: tuple[Cut, ...], machine: Machine) -> bool:
    """True if every product stays a vector product for a block of *cuts*."""
    regions = chain.regions(cuts)
    at = (block_stage(chain, s, regions, lambda tensor: tensor.name) for s in chain.stages if s.product)
    return all(_is_vectorised(stage, machine) for stage in at)


def _candidate_cuts(
    chain: Chain, first: tuple[Cut, ...], own: tuple[Cut, ...], threads: int
) -> Iterable[tuple[Cut, ...]]:
    """Yield *first*, followed by cuts of the traversals that *own* cuts, in their order."""
    yield first
    whole = _computed_points(chain, (), threads)
    outer = first
    for cut in own:
        x = cut.traversal
        if x == chain.result.scope.traversals[-1] and x.extent % cut.period:
            continue  # vectors would lie across the result's border
        # What blocks of one period do again, larger ones may not; one thread has no use for these.
        least = (*outer, cut)
        often = _computed_points(chain, least, threads) > MAX_REPEATED_WORK * whole
        if often and threads == 1:
            continue
        for size in _block_periods(cut.periods, threads):
            # Of the parts that an index counts in, a block may be one; one of several periods lies across them.
            shapes = ((cut.period, size), (cut.period * size, 1))
            for period, count in shapes if often and cut.periods % size == 0 else shapes[:1]:
                cuts = (*outer, chain.make_cut(x, period, count))
                if not often or _computed_points(chain, cuts, threads) <= MAX_REPEATED_WORK * whole:
                    yield cuts
                    break
        outer = outer if often else least


def _block_periods(periods: int, threads: int) -> Iterable[int]:
    """Return periods of a block: fixed ones, or those that give every thread equally many blocks."""
    sizes = BLOCK_PERIODS if threads == 1 else {-(-periods // (n * threads)) for n in BLOCKS_PER_THREAD}
    return sorted(n for n in sizes if n < periods)


def _computed_points(chain: Chain, cuts: tuple[Cut, ...], threads: int) -> int:
    """Return the elements of all stages that all blocks of *cuts* compute."""
    stages = block_stages(chain, cuts, lambda tensor: tensor.name, threads)
    return prod(c.blocks for c in cuts) * sum(map(_points, stages))


def _points(stage: BlockStage) -> int:
    """Return the elements of *stage* that a block computes, which are not all it holds if it slides."""
    points = prod(x.extent for x in stage.traversals)
    return points if stage.slide is None else points // stage.slide.traversal.extent * stage.slide.step


def _chain_cycles(chain: Chain, cuts: tuple[Cut, ...], threads: int, machine: Machine) -> float:
    stages = tuple(map(collapse_loops, block_stages(chain, cuts, lambda tensor: tensor.name, threads)))
    blocks = prod(c.blocks for c in cuts)
    rounds = -(-blocks // threads)
    sizes = {s.memory: ELEMENT_BYTES * s.size for s in stages[:-1]}
    total, before = WAKE_CYCLES if threads > 1 and blocks > 1 else 0.0, 0
    total += _displaced_cycles(sum(s.size for s in stages[:-1]), machine)
    for stage in stages:
        made = sizes.get(stage.memory, 0)
        total += _stage_cycles(stage, rounds, machine)
        if stage.slide is not None:
            total += rounds * 2 * made / stage.slide.traversal.extent * stage.slide.kept / (machine.l2_bytes / 2)
        if made + before > CACHE_SHARE * machine.l2:
            total += rounds * 2 * made / (machine.l2_bytes / 2)
        before = made
    return total


TRANSPOSED_VECTOR_CYCLES = 6
"""Cycles of a vector that is transposed from, or to, rows of other memory."""

FAR_VECTOR_CYCLES = 4
"""Cycles of a vector that a transposed stage reads from an input as well, such as the one of a residual sum."""

SINGLE_ELEMENT_CYCLES = 3
"""Cycles of an element that is computed without vectors."""


def element_cycles(stage: BlockStage, machine: Machine) -> float:
    """Return the cycles of an element of a *stage* that is no product."""
    if is_vector_sum(stage, machine.lanes):
        return max(2, sum_length(stage)) / machine.lanes
    if (turn := match_transpose(stage, machine.lanes)) is not None:
        # The last tiles overlap their predecessors.
        vectors = prod(-(-x.extent // turn.side) for x in (stage.last, turn.across)) * turn.side
        each = TRANSPOSED_VECTOR_CYCLES + FAR_VECTOR_CYCLES * len(far_vectors(stage, turn))
        return vectors * each / (stage.last.extent * turn.across.extent)
    last = next((x for x in reversed(stage.traversals) if x.extent > 1), stage.last)
    parts = (stage.place, *(i for a in stage.reads for i in a.index))
    steps = frozenset[int | None]().union(*(address_steps(part, last) for part in parts))
    is_vector = steps <= {0, 1} and last not in stage.guards
    return sum_length(stage) * (2 / machine.lanes if is_vector else SINGLE_ELEMENT_CYCLES)


def _stage_cycles(stage: BlockStage, rounds: int, machine: Machine) -> float:
    """Return the cycles of a stage for so many blocks: a product's tiles and loads, or the stage's vectors."""
    found = match_product(stage, machine.lanes)
    points = _points(stage)
    if found is None:
        return rounds * points * element_cycles(stage, machine)
    vectors, depth = stage.last.extent // machine.lanes, sum_length(stage)
    tile = product_tile(stage, found, machine)
    count = depth * points // (found.count * stage.last.extent)
    work = count * product_cycles(tile, found.count, vectors, depth, machine)
    if is_earlier_result(found.left):  # by other threads
        work += _read_bytes(stage, found.left) / (machine.l2_bytes / L3_SLOWDOWN)
    if not is_far(found, machine):
        return rounds * work
    # The other layers of a model have used the last cache since: each element is read from memory once.
    size = _read_bytes(stage, found.right)
    first = size / (machine.l2_bytes / MEMORY_SLOWDOWN)
    again = L3_SLOWDOWN if 2 * size <= machine.l3 else MEMORY_SLOWDOWN
    others = size / (machine.l2_bytes / again) if size > machine.l2 // 2 else 0
    new = min(rounds, -(-_source_bytes(found.right) // size))
    return new * max(work, first) + (rounds - new) * max(work, others)
