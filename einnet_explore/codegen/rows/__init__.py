"""Kernels that work through rows: band products, what is done with their rows (a softmax), and products with bands."""
