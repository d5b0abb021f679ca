"""Contractions as register-tiled kernels, built as TVM statements: sums in registers, operands in vectors.

Every sum is a buffer of one vector on the stack, which LLVM keeps in a register (TVM 0.27 allocates a buffer of 1 KB
and more, or one in the "local" scope, on the heap in every call).
"""

from einnet_explore.backends.tiled.loops import function
from einnet_explore.backends.tiled.plan import Plan, plan

__all__ = ["Plan", "function", "plan"]
