"""The text form of programs (`.ein`): a grammar and a parser that refuses what has no meaning."""

from einnet_explore.text.errors import TextError
from einnet_explore.text.parser import load_text, parse, parse_index, parse_scope
from einnet_explore.text.words import RESERVED, is_word

__all__ = ["RESERVED", "TextError", "is_word", "load_text", "parse", "parse_index", "parse_scope"]
