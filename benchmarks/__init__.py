"""Measurements: counts and ratios, never compared with absolute times of another machine."""
