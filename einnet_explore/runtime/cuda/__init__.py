"""NVIDIA GPUs: run-time compilation, plans of steps, execution through CuPy."""
