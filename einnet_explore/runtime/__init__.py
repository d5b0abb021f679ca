"""Compiling, loading, running and timing kernels and whole programs on this machine."""
