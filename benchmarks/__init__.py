"""Benchmarks that report counts and ratios, which other machines can compare; absolute times are not compared."""
