"""What is wrong with a text, and where: ``FILE:LINE:COLUMN: what was found, what was expected``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from lark import Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedInput, UnexpectedToken


class TextError(ValueError):
    """The text is not a legal program; ``str()`` is one line with the place, what was found and what was expected."""

    def __init__(self, source: str, line: int, column: int, message: str) -> None:
        super().__init__(source, line, column, message)
        self.source, self.line, self.column, self.message = source, line, column, message

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.message}"


def error_at(node: Tree[Token] | Token, message: str) -> TextError:
    """Return the error at *node* of a syntax tree; ``located`` adds the name of the source."""
    return TextError("", *_locate(node), message)


@contextmanager
def locate_errors(source: str, text: str) -> Generator[None, None, None]:
    """Turn every mistake that is found inside into a ``TextError`` of *source*."""
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
    """Lark's error in words."""
    match error:
        case UnexpectedToken(token=Token(type="$END")) | UnexpectedEOF():
            lines = text.splitlines() or [""]
            found, line, column = "the end of the text", len(lines), len(lines[-1]) + 1
        case UnexpectedToken(token=Token() as token):
            found, line, column = repr(str(token)), error.line, error.column
        case _:
            found, line, column = repr(text[error.pos_in_stream or 0]), error.line, error.column
    expected = _describe_expected(error)
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


_WORDS = {
    "$END": "the end",
    "NAME": "a name",
    "STRING": "a name",
    "INT": "an integer",
    "FLOAT": "a number",
    "INF": "a number",
    "REDUCTION": "a reduction",
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
