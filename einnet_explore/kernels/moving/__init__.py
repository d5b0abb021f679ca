"""Kernels for GPUs that move memory: each element of the result by one thread, straight or through shared memory."""

from einnet_explore.kernels.moving.kernel import PRODUCTS, TERMS, Moved, moving

__all__ = ["PRODUCTS", "TERMS", "Moved", "moving"]
