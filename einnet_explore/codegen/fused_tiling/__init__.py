"""Kernels of chains: transforms, products and what follows them, block by block of a traversal that they share."""
