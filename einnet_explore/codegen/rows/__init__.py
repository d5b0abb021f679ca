"""Kernels that compute blocks of rows: band products, row reductions, and softmax-weighted sums in one pass."""
