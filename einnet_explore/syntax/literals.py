"""Names, numbers and strings: the leaves of the syntax tree.

Which names the text form takes as they are.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from math import isinf, isnan
from typing import TypeAlias

from lark import Token, Tree

from einnet_explore.syntax.errors import error_at

Node: TypeAlias = "Tree[Token] | Token"


def name_from_tree(tree: Node) -> str:
    """A name, or any text in double quotes."""
    match tree:
        case Tree(children=[Token(type="STRING") as token]):
            return string_literal(token)
        case Tree(children=[token]):
            return str(token)
    raise error_at(tree, f"found {tree}, expected a name")


def string_literal(token: Node) -> str:
    """The text between double quotes, with JSON's escapes; half a surrogate pair is no text that a file could hold."""
    try:
        said = str(json.loads(str(token), strict=False))
        said.encode()
        return said
    except json.JSONDecodeError as error:
        raise error_at(token, f"found {token}, expected a string: {error.msg}") from None
    except UnicodeEncodeError as error:
        raise error_at(token, f"found {said[error.start]!a} in a string, expected characters of UTF-8") from None


def integer_literal(token: Node) -> int:
    """Digits as an integer."""
    try:
        return int(str(token))
    except ValueError:
        raise error_at(token, f"found {len(str(token))} digits, expected fewer") from None


def signed_integer(tree: Node) -> int:
    """Digits with an optional sign."""
    match tree:
        case Tree(children=[digits]):
            return integer_literal(digits)
        case Tree(children=[_, digits]):
            return -integer_literal(digits)
    raise error_at(tree, f"found {tree}, expected an integer")


def number_from_tree(tree: Tree[Token]) -> float:
    """An integer, a decimal number or ``inf``; integers stay exact.  No number becomes 0, or infinite, by rounding."""
    token = tree.children[0]
    if isinstance(token, Token) and token.type == "INT":
        if not representable(whole := integer_literal(token)):
            raise error_at(token, f"found {len(token)} digits, expected a number that floating point can hold")
        return whole
    value = float(str(token))
    if str(token) != "inf" and (isinf(value) or (not value and Decimal(str(token)))):
        raise error_at(token, f"found {token}, expected a number that floating point can hold")
    return value


def representable(value: float) -> bool:
    """Whether *value* is a number, and none that floating point has no number for."""
    try:
        return not isnan(float(value))
    except OverflowError:
        return False


def child_trees(tree: Tree[Token]) -> list[Tree[Token]]:
    """The subtrees of *tree*, without its tokens."""
    return [child for child in tree.children if isinstance(child, Tree)]


RESERVED = frozenset(
    ["tensor", "output", "weight", "pad", "value", "via", "where", "table", "inf", "sum", "max", "min", "prod"]
)
"""Words that name no tensor or equation unless they stand in double quotes."""

_NAME = re.compile(r"[^\W\d]\w*")


def is_word(name: str) -> bool:
    """Whether *name* is a word of letters, digits and underscores that does not start with a digit."""
    return _NAME.fullmatch(name) is not None
