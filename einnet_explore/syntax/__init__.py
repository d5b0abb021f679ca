"""The text form of programs (`.ein`): a grammar, a parser with precise errors, and printers of text and LaTeX.

The names ``text`` and ``latex`` are the functions, not their modules.
"""

from einnet_explore.ir.printer import RESERVED, is_word
from einnet_explore.syntax.latex_printer import align, latex
from einnet_explore.syntax.parser import load_text, parse, parse_index, parse_scope
from einnet_explore.syntax.printer import text
from einnet_explore.syntax.trees import TextError

__all__ = [
    "RESERVED",
    "TextError",
    "align",
    "is_word",
    "latex",
    "load_text",
    "parse",
    "parse_index",
    "parse_scope",
    "text",
]
