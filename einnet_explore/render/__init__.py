"""Printers: the text form and LaTeX."""

from einnet_explore.render.text import text

__all__ = ["text"]
