"""From text to IR: ``parse`` for programs, ``parse_scope`` and ``parse_index`` for parts of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path

from lark import Lark, Token
from lark.exceptions import UnexpectedInput

from einnet_explore.ir import Index, Iterator, Program, Scope, Tensor
from einnet_explore.text.errors import Fault, TextError, located
from einnet_explore.text.expressions import scope_of
from einnet_explore.text.indices import Names, index_of
from einnet_explore.text.statements import program_of

_PARAMETERS = re.compile(r"^[ \t]*(param)(?=\s+[^\W\d])", re.MULTILINE)


def parse(text: str, source: str = "<text>") -> Program:
    """The program that *text* writes down; *source* is its name in errors.

    ``parse(render.text(p)) == p`` for every program *p* in normal form.  Raises TextError, with line and column, on
    syntax errors, on names that are unknown or defined twice, on ranges and shapes without elements, and on indices
    that leave what they read.
    """
    with located(source, text):
        try:
            return program_of(grammar().parse(text, start="program"))
        except UnexpectedInput:
            if (line := _PARAMETERS.search(text)) is not None:
                at = Token("NAME", "param", line=text.count("\n", 0, line.start(1)) + 1, column=len(line[0]) - 4)
                raise Fault(at, "found param, expected sizes that are numbers: this is a family of programs") from None
            raise


def load_text(path: str | PathLike[str]) -> Program:
    """The program in the file at *path*; raises OSError where it cannot be read, TextError where it is wrong."""
    return parse(text_of(path), str(path))


def text_of(path: str | PathLike[str]) -> str:
    """The text in the file at *path*; raises OSError where it cannot be read, TextError where it is no UTF-8."""
    if Path(path).suffix == ".onnx" and Path(path).is_file():
        # Its first strange byte would say nothing of where it does belong.
        raise ValueError(f"{path}: found an ONNX model, expected text; optimize and bench take models")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        raise TextError(
            str(path), line, column, f"found byte {error.object[error.start]:#04x}, expected UTF-8"
        ) from None


def parse_scope(text: str, tensors: Mapping[str, Tensor]) -> Scope:
    """The scope ``{[h:7] sum[c:3] A[h, c]}``, with an optional ``pad [...]`` after it; it reads *tensors*.

    Raises TextError as ``parse`` does.
    """
    with located("<text>", text):
        return scope_of(grammar().parse(text, start="scope"), Names(dict(tensors)))


def parse_index(text: str, iterators: Mapping[str, Iterator]) -> Index:
    """The index that *text* writes down over *iterators*, in normal form.  Raises TextError as ``parse`` does."""
    with located("<text>", text):
        return index_of(grammar().parse(text, start="index"), Names({}, dict(iterators)))


@cache
def grammar(sizes: str = "fixed") -> Lark:
    """The parser of programs whose sizes are ``fixed`` or ``parametric``."""
    folder = files("einnet_explore.text")
    return Lark(
        "".join(folder.joinpath(f"{part}.lark").read_text(encoding="utf-8") for part in ("grammar", sizes)),
        parser="lalr",
        start=["program", "scope", "index"],
        propagate_positions=True,
        maybe_placeholders=False,
    )
