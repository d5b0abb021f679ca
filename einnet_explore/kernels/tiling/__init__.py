"""Contractions cut into tiles for devices with shared memory or caches: PlaidML's way from a table to a kernel."""

from einnet_explore.kernels.tiling.contraction import Contraction, contraction
from einnet_explore.kernels.tiling.cost import Problem, Tile, TileCost, tile_cost
from einnet_explore.kernels.tiling.hardware import Hardware, processor
from einnet_explore.kernels.tiling.layout import Group, LocalLayout, Member, local_layout, merged
from einnet_explore.kernels.tiling.search import TileSearch, best_first, exhaustive
from einnet_explore.kernels.tiling.skeleton import Tiled, tiled
from einnet_explore.kernels.tiling.threads import ThreadLayout, thread_layout

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
