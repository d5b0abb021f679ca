"""Contractions cut into tiles for devices with shared memory or caches: PlaidML's way from a table to a kernel."""

from einnet_explore.codegen.tiling.contraction import Contraction, contraction
from einnet_explore.codegen.tiling.cost import (
    Hardware,
    Problem,
    Tile,
    TileCost,
    TileSearch,
    best_first,
    exhaustive,
    processor,
    tile_cost,
)
from einnet_explore.codegen.tiling.kernel import Tiled, tiled
from einnet_explore.codegen.tiling.shared_layout import (
    Group,
    LocalLayout,
    Member,
    ThreadLayout,
    local_layout,
    merged,
    thread_layout,
)

__all__ = [
    "Contraction",
    "Group",
    "Hardware",
    "LocalLayout",
    "Member",
    "Problem",
    "ThreadLayout",
    "Tile",
    "TileCost",
    "TileSearch",
    "Tiled",
    "best_first",
    "contraction",
    "exhaustive",
    "local_layout",
    "merged",
    "processor",
    "thread_layout",
    "tile_cost",
    "tiled",
]
