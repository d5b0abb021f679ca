"""Kernels decided: what a contraction is made of, where its operands lie, and how it is cut into register tiles."""
