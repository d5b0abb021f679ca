"""Figures, tables and pages of programs, derivations and searches."""
