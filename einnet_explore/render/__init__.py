"""Printers: the text form and LaTeX.  The names ``text`` and ``latex`` are the functions, not their modules."""

from einnet_explore.render.latex import align, latex
from einnet_explore.render.text import text

__all__ = ["align", "latex", "text"]
