"""Fused reductions: a whole program of element-wise work and reductions as one kernel.

Source: D. Nishino and Z. Xu, "CuPy kernel fusion, extended" (2019): operations in order, abstract sizes with recorded
equalities, store-to-load forwarding, few synchronisations, shared temporaries, dimensions squashed at call time.
"""

from einnet_explore.codegen.fusion.operations import Operation, operations
from einnet_explore.codegen.fusion.plan import Fused, Space, fuse, served
from einnet_explore.codegen.fusion.sizes import Size, Sizes, resized, sizes_of
from einnet_explore.codegen.fusion.stages import Nest, Stage, Step
from einnet_explore.support.errors import Refused

__all__ = [
    "Fused",
    "Nest",
    "Operation",
    "Refused",
    "Size",
    "Sizes",
    "Space",
    "Stage",
    "Step",
    "fuse",
    "operations",
    "resized",
    "served",
    "sizes_of",
]
