"""Syntax trees: names, numbers and strings as values, and errors at their place in the text.

An error reads ``FILE:LINE:COLUMN: found A, expected B``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from decimal import Decimal
from math import isinf, isnan
from typing import TypeAlias

from lark import Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken

from einnet_explore.ir.printer import RESERVED


class TextError(ValueError):
    """The text is no legal program; ``str()`` is one line with the place, the text found and the text expected."""

    def __init__(self, source: str, line: int, column: int, message: str) -> None:
        super().__init__(source, line, column, message)
        self.source, self.line, self.column, self.message = source, line, column, message

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.message}"


def error_at(node: Tree[Token] | Token, message: str) -> TextError:
    """Return the error at *node* of a syntax tree; ``locate_errors`` adds the name of the source."""
    return TextError("", *_locate(node), message)


@contextmanager
def locate_errors(source: str, text: str) -> Generator[None, None, None]:
    """Convert every error raised inside into a ``TextError`` of *source*."""
    try:
        yield
    except TextError as error:
        raise TextError(error.source or source, error.line, error.column, error.message) from None
    except UnexpectedInput as error:
        raise _translate_error(source, text, error) from None
    except RecursionError:
        raise TextError(source, 1, 1, "the expressions nest too deeply, expected fewer levels") from None


def _locate(node: Tree[Token] | Token) -> tuple[int, int]:
    match node:
        case Token(line=int(line), column=int(column)):
            return line, column
        case Tree() if not node.meta.empty:
            return node.meta.line, node.meta.column
        case _:
            return 1, 1


def _translate_error(source: str, text: str, error: UnexpectedInput) -> TextError:
    """Describe a lark error."""
    match error:
        case UnexpectedToken(token=Token(type="$END")) | UnexpectedEOF():
            lines = text.splitlines() or [""]
            found, line, column = "the end of the text", len(lines), len(lines[-1]) + 1
        case UnexpectedToken(token=Token() as token):
            found, line, column = repr(str(token)), error.line, error.column
        case _:
            found, line, column = repr(text[error.pos_in_stream or 0]), error.line, error.column
    if (
        named := _RESERVED_NAME.search(text, 0, error.pos_in_stream or 0)
    ) is not None:  # lark's error is where it is read
        begin = named.start(named.lastgroup or 0)
        place = text.count("\n", 0, begin) + 1, begin - text.rfind("\n", 0, begin)
        return TextError(source, *place, _describe_reserved(named[named.lastgroup or 0]))
    expected = _describe_expected(error)
    before = text[: error.pos_in_stream or 0].rpartition("\n")[2]
    if expected == "'['" and (word := _FIRST_WORD.fullmatch(before)):
        expected = "'tensor', 'output' or an equation: NAME[…] = …"
        return TextError(source, line, word.start(1) + 1, f"found {word[1]!r} before {found}, expected {expected}")
    if found == "'('" and (word := _REDUCTION_OF_NO_RANGE.search(before)):
        of_two = f", or {word[1]}imum(a, b) of two values" if word[1] in ("max", "min") else ""
        expected = f"{word[1]}[i:8] … over the values of an iterator{of_two}"
        return TextError(source, line, word.start(1) + 1, f"found {word[1]}(, expected {expected}")
    if expected == "':'" and (word := _LAST_WORD.search(before)):
        expected = f"':' and the number of values of {word[1]}, as in {word[1]}:8"
    if expected == "'(' or '['" and (word := _LAST_WORD.search(before)):
        expected = f"'[' and the indices of an element, as in {word[1]}[i]"
    if found.strip("'").isdigit() and (word := _SIZES.fullmatch(before)):
        size = found.strip("'")
        expected = f"'tensor' in front of {word[1]} for an input, or an iterator with its size, as in i:{size}"
    return TextError(source, line, column, f"found {found}, expected {expected}")


def _describe_expected(error: UnexpectedInput) -> str:
    match error:
        case UnexpectedToken(accepts=set(names)) if names:
            pass
        case UnexpectedToken(expected=names) | UnexpectedEOF(expected=names):
            pass
        case UnexpectedCharacters(allowed=names):
            pass
        case _:
            names = set()
    found = {_WORDS.get(name, name.strip("_").lower()) for name in names or ()}
    words = sorted(found - {"an integer"} if "a number" in found else found)
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def _describe_reserved(word: str) -> str:
    return f'found the reserved word {word}, expected another name, or "{word}" in double quotes'


_WORD = "|".join(sorted(RESERVED, key=len, reverse=True))
_RESERVED_NAME = re.compile(
    rf"^\s*(?:tensor\s+(?P<input>{_WORD})\s*\[|(?P<result>{_WORD})\s*\[[^\]\n]*\]\s*=(?!=))", re.MULTILINE
)
"""The definition of a tensor or equation whose name would need double quotes."""

_FIRST_WORD = re.compile(r"\s*(\w+)\s+")
_LAST_WORD = re.compile(r"(\w+)\s*$")
_SIZES = re.compile(r"\s*(\w+)\s*\[\s*")
_REDUCTION_OF_NO_RANGE = re.compile(r"\b(sum|max|min|prod)\s*$")

_WORDS = {
    "$END": "the end",
    "NAME": "a name",
    "STRING": "a name",
    "INT": "an integer",
    "FLOAT": "a number",
    "INF": "a number",
    "REDUCTION": "a reduction",
    "TYPE": "a type",
    "_TENSOR": "'tensor'",
    "_PARAM": "'param'",
    "_OUTPUT": "'output'",
    "_WEIGHT": "'weight'",
    "_PAD": "'pad'",
    "_VALUE": "'value'",
    "_VIA": "'via'",
    "_WHERE": "a function",
    "LSQB": "'['",
    "RSQB": "']'",
    "LPAR": "'('",
    "RPAR": "')'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "COMMA": "','",
    "COLON": "':'",
    "VBAR": "'|'",
    "EQUAL": "'='",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "STAR": "'*'",
    "SLASH": "'/'",
    "PERCENT": "'%'",
    "LT": "'<'",
    "LE": "'<='",
    "GT": "'>'",
    "GE": "'>='",
    "EQ": "'=='",
    "NE": "'!='",
    "LESSTHAN": "'<'",
    "__ANON_0": "'..'",
    "__ANON_1": "'<='",
    "__ANON_2": "'//'",
}


SyntaxNode: TypeAlias = "Tree[Token] | Token"


def name_from_tree(tree: SyntaxNode) -> str:
    """Return a name: a word that is not reserved, or any text in double quotes."""
    match tree:
        case Tree(children=[Token(type="STRING") as token]):
            return string_literal(token)
        case Tree(children=[Token(value=word) as token]) if word in RESERVED:
            raise error_at(token, _describe_reserved(word))
        case Tree(children=[token]):
            return str(token)
    raise error_at(tree, f"found {tree}, expected a name")


def string_literal(token: SyntaxNode) -> str:
    """Return the text between double quotes, with JSON's escapes; unpaired surrogates are refused."""
    try:
        said = str(json.loads(str(token), strict=False))
        said.encode()
        return said
    except json.JSONDecodeError as error:
        raise error_at(token, f"found {token}, expected a string: {error.msg}") from None
    except UnicodeEncodeError as error:
        raise error_at(token, f"found {said[error.start]!a} in a string, expected characters of UTF-8") from None


def integer_literal(token: SyntaxNode) -> int:
    """Return digits as an integer."""
    try:
        return int(str(token))
    except ValueError:
        raise error_at(token, f"found {len(str(token))} digits, expected fewer") from None


def signed_integer(tree: SyntaxNode) -> int:
    """Return digits with an optional sign as an integer."""
    match tree:
        case Tree(children=[digits]):
            return integer_literal(digits)
        case Tree(children=[_, digits]):
            return -integer_literal(digits)
    raise error_at(tree, f"found {tree}, expected an integer")


def number_from_tree(tree: Tree[Token]) -> float:
    """Return an integer (exact), a decimal number or ``inf``; numbers that would round to 0 or ``inf`` are refused."""
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
    """Whether *value* is a number within the range of floating point."""
    try:
        return not isnan(float(value))
    except OverflowError:
        return False


def child_trees(tree: Tree[Token]) -> list[Tree[Token]]:
    """Return the subtrees of *tree*, without its tokens."""
    return [child for child in tree.children if isinstance(child, Tree)]
