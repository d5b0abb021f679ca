"""Parsers of the text form: ``parse`` for programs, ``parse_scope`` and ``parse_index`` for parts of one.

Syntax trees become programs: declarations, equations and outputs, in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from os import PathLike
from pathlib import Path

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from einnet_explore.ir import (
    Attribute,
    Equation,
    Index,
    Instance,
    IntegerRanges,
    Iterator,
    Program,
    Scope,
    Tensor,
    tensors,
)
from einnet_explore.syntax.expressions import Names, index_from_tree, parse_clauses, scope_from_clauses, scope_from_tree
from einnet_explore.syntax.printer import describe_overflow
from einnet_explore.syntax.trees import (
    TextError,
    error_at,
    integer_literal,
    locate_errors,
    name_from_tree,
    signed_integer,
    string_literal,
)


@dataclass(slots=True)
class _Definitions:
    """The definitions of the statements read so far."""

    inputs: dict[str, Tensor] = field(default_factory=dict)
    equations: dict[str, Equation] = field(default_factory=dict)
    outputs: dict[str, Tree[Token] | Token] = field(default_factory=dict)
    readable: dict[str, Tensor] = field(default_factory=dict)
    """Sources that an equation may read: inputs, and the results of earlier equations."""
    ranges: IntegerRanges = field(default_factory=IntegerRanges)


def program_from_tree(tree: Tree[Token]) -> Program:
    """Return the program of a list of statements; by default, outputs are the results that nothing reads."""
    known = _Definitions()
    for statement in tree.children:
        match statement:
            case Tree(data="declaration"):
                tensor = _tensor_from_tree(statement)
                _refuse_redefinition(statement, tensor.name, known)
                known.inputs[tensor.name] = known.readable[tensor.name] = tensor
            case Tree(data="equation"):
                equation = _equation(statement, known)
                _refuse_redefinition(statement, equation.name, known)
                known.equations[equation.name], known.readable[equation.name] = equation, equation.tensor
            case Tree(data="output", children=names):
                for node in names:
                    if (name := name_from_tree(node)) in known.outputs:
                        raise error_at(node, f"found output {name} twice, expected it once")
                    known.outputs[name] = node
    if not known.equations:
        raise error_at(tree, "found no equation, expected at least one")
    for name, node in known.outputs.items():
        if name not in known.equations and name not in known.inputs:
            raise error_at(node, f"found unknown output {name}, expected one of {', '.join(known.readable)}")
    equations = tuple(known.equations.values())
    return Program(tuple(known.inputs.values()), equations, tuple(known.outputs) or unread_equations(equations))


def unread_equations(equations: tuple[Equation, ...]) -> tuple[str, ...]:
    """Return the results that no equation reads: the default outputs."""
    read = {tensor.name for e in equations for tensor in tensors(e.scope)}
    return tuple(e.name for e in equations if e.name not in read)


def _tensor_from_tree(tree: Tree[Token]) -> Tensor:
    name, sizes, *clauses = (child for child in tree.children if isinstance(child, Tree))
    shape = tuple(integer_literal(size) for size in sizes.children)
    if 0 in shape:
        raise error_at(sizes, f"found shape {list(shape)} of {name_from_tree(name)}, expected sizes of at least 1")
    padding, value, weight, dtype = parse_clauses(clauses, len(shape), name_from_tree(name))
    return Tensor(name_from_tree(name), shape, padding, value, weight, dtype=dtype)


def _equation(tree: Tree[Token], known: _Definitions) -> Equation:
    name, head, body, clauses, *via = tree.children
    assert isinstance(head, Tree) and isinstance(clauses, Tree)
    scope = scope_from_clauses(head, body, clauses, Names(known.readable))
    if (found := known.ranges.equation(name_from_tree(name), scope)) is not None:
        raise error_at(name, describe_overflow(name_from_tree(name), found))
    return Equation(name_from_tree(name), scope, _instance(via[0]) if via else None)


def _refuse_redefinition(tree: Tree[Token], name: str, known: _Definitions) -> None:
    if name in known.inputs or name in known.equations:
        raise error_at(tree.children[0], f"found a second definition of {name}, expected another name")


def _instance(tree: Tree[Token] | Token) -> Instance:
    match tree:
        case Tree(children=[name, *attributes]):
            made = tuple(_attribute(a) for a in attributes)
            if twice := [a for n, a in enumerate(attributes) if made[n][0] in dict(made[:n])]:
                raise error_at(twice[0], f"found {_attribute(twice[0])[0]} twice, expected it once")
            return Instance(name_from_tree(name), made)
    raise error_at(tree, f"found {tree}, expected an operator")


def _attribute(tree: Tree[Token] | Token) -> tuple[str, Attribute]:
    match tree:
        case Tree(children=[name, Tree(data="signed") as value]):
            return name_from_tree(name), signed_integer(value)
        case Tree(children=[name, Tree(data="string", children=[text])]):
            return name_from_tree(name), string_literal(text)
        case Tree(children=[name, Tree(data="tuple", children=values)]):
            return name_from_tree(name), tuple(signed_integer(v) for v in values)
    raise error_at(tree, f"found {tree}, expected an attribute")


_PARAMETERS = re.compile(r"^[ \t]*(param)(?=\s+[^\W\d])", re.MULTILINE)


def parse(text: str, source: str = "<text>") -> Program:
    """Parse a program in the text form; *source* is its name in errors.

    ``parse(text(p)) == p`` for every program *p* in normal form. Raises TextError, with line and column, for syntax
    errors, names that are unknown or defined twice, empty ranges and shapes, and indices that leave their source.
    """
    with locate_errors(source, text):
        try:
            return program_from_tree(grammar().parse(text, start="program"))
        except UnexpectedInput:
            if (line := _PARAMETERS.search(text)) is not None:
                at = Token("NAME", "param", line=text.count("\n", 0, line.start(1)) + 1, column=len(line[0]) - 4)
                raise error_at(
                    at,
                    "found param, expected sizes that are numbers: this is a family of programs, which family and "
                    "equal read",
                ) from None
            raise


def load_text(path: str | PathLike[str]) -> Program:
    """Parse the program in the file at *path*; raises OSError if it cannot be read, TextError if it is wrong."""
    return parse(text_of(path), str(path))


def text_of(path: str | PathLike[str]) -> str:
    """Read the file at *path*; raises OSError if it cannot be read, TextError if it is no UTF-8."""
    if Path(path).suffix == ".onnx" and Path(path).is_file():
        # Its first strange byte would say nothing of where it does belong.
        raise ValueError(f"{path}: found an ONNX model, expected text; optimize, equal, path and bench take models")
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        column = error.start - error.object.rfind(b"\n", 0, error.start)
        raise TextError(
            str(path), line, column, f"found byte {error.object[error.start]:#04x}, expected UTF-8"
        ) from None


def parse_scope(text: str, tensors: Mapping[str, Tensor]) -> Scope:
    """Parse ``{[h:7] sum[c:3] A[h, c]}``, with an optional ``pad [...]`` after it; it reads *tensors*.

    Raises TextError as ``parse`` does.
    """
    with locate_errors("<text>", text):
        return scope_from_tree(grammar().parse(text, start="scope"), Names(dict(tensors)))


def parse_index(text: str, iterators: Mapping[str, Iterator]) -> Index:
    """Parse an index over *iterators* into normal form.  Raises TextError as ``parse`` does."""
    with locate_errors("<text>", text):
        return index_from_tree(grammar().parse(text, start="index"), Names({}, dict(iterators)))


@lru_cache(maxsize=2)
def grammar(sizes: str = "fixed") -> Lark:
    """Return the parser of programs whose sizes are ``fixed`` or ``parametric``."""
    folder = files("einnet_explore.syntax")
    return Lark(
        "".join(folder.joinpath(f"{part}.lark").read_text(encoding="utf-8") for part in ("grammar", sizes)),
        parser="lalr",
        start=["program", "scope", "index"],
        propagate_positions=True,
        maybe_placeholders=False,
    )
