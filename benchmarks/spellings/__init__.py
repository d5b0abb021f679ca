"""Spellings of one computation, and traps that look like it: ``python -m benchmarks.spellings``.

A family is a computation of models: attention, a normalisation, a convolution block, a rotary embedding, a gated layer.
Exporters write each in many ways.  ``families`` has the ways as options, any combination of which is the same function,
and traps: one change after which it is another.
"""
