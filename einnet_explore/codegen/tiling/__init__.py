"""Tiled contractions for devices with shared memory or caches, after PlaidML: from a flattened table to a kernel."""

from einnet_explore.codegen.tiling.contraction import EpilogueContraction, as_contraction
from einnet_explore.codegen.tiling.cost import (
    Hardware,
    TileCost,
    TileSearch,
    TileSizes,
    TilingProblem,
    cpu_hardware,
    search_best_first,
    search_exhaustively,
    tile_cost,
)
from einnet_explore.codegen.tiling.kernel import TiledKernel, tile_contraction
from einnet_explore.codegen.tiling.shared_layout import (
    GroupedIterator,
    IteratorGroup,
    LocalLayout,
    ThreadLayout,
    local_layout,
    merge_iterators,
    thread_layout,
)

__all__ = [
    "EpilogueContraction",
    "GroupedIterator",
    "Hardware",
    "IteratorGroup",
    "LocalLayout",
    "ThreadLayout",
    "TileCost",
    "TileSearch",
    "TileSizes",
    "TiledKernel",
    "TilingProblem",
    "as_contraction",
    "cpu_hardware",
    "local_layout",
    "merge_iterators",
    "search_best_first",
    "search_exhaustively",
    "thread_layout",
    "tile_contraction",
    "tile_cost",
]
