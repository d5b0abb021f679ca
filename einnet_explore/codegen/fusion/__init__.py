"""Fused reductions: a program of element-wise operations and reductions as one kernel.

Source: D. Nishino and Z. Xu, "CuPy kernel fusion, extended" (2019): operations in order, abstract sizes with recorded
equalities, store-to-load forwarding, few synchronisations, shared temporaries, dimensions collapsed at call time.
"""

from einnet_explore.codegen.fusion.operations import (
    AbstractSize,
    AbstractSizes,
    FusedOperation,
    abstract_sizes,
    program_operations,
    resize_program,
)
from einnet_explore.codegen.fusion.plan import (
    FusedKernel,
    FusedNest,
    FusedStage,
    FusedStep,
    ValueSpace,
    check_served,
    fuse_program,
)
from einnet_explore.support.errors import Refused

__all__ = [
    "AbstractSize",
    "AbstractSizes",
    "FusedKernel",
    "FusedNest",
    "FusedOperation",
    "FusedStage",
    "FusedStep",
    "Refused",
    "ValueSpace",
    "abstract_sizes",
    "check_served",
    "fuse_program",
    "program_operations",
    "resize_program",
]
