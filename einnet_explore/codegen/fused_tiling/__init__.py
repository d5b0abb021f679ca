"""Fused tiling of chains: blocks of a shared traversal go through all stages while their data are in the cache."""
