"""Reverse-mode differentiation, and common subexpressions of both passes with a stash between them."""
