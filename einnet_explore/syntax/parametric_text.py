"""Programs of all sizes: texts with ``param`` lines, read at given sizes.

The syntax tree holds polynomials where sizes stand; ``Template.at`` puts numbers in their place and hands the tree to
the builder of ordinary programs, so that both forms mean the same and errors have the right position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lark import Token, Tree

from einnet_explore.ir import Program
from einnet_explore.syntax.parser import grammar, program_from_tree
from einnet_explore.syntax.trees import SyntaxNode, TextError, child_trees, error_at, integer_literal, locate_errors

_SIZED = ("sizes", "edge", "signed")
_ARITHMETIC = ("index_plus", "index_minus", "index_times", "index_over", "index_modulo", "index_negative")


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption: *name* ``>=`` or ``<=`` *number*, or equal to it modulo *modulus*; none if *op* is empty.

    Without a *name* it relates several parameters: *left* *op* *right*, or *left* is a multiple of *right* (``%``).
    *text* is its text, *names* are the parameters in it.
    """

    name: str
    op: str
    number: int
    modulus: int
    line: int
    column: int
    text: str
    names: tuple[str, ...]
    left: SyntaxNode | None = None
    right: SyntaxNode | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A text with ``param`` lines."""

    text: str
    source: str
    tree: Tree[Token]
    assumptions: tuple[Assumption, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in order."""
        return tuple(dict.fromkeys(name for a in self.assumptions for name in a.names))

    def at(self, sizes: Mapping[str, int]) -> Program:
        """Return the program at *sizes*; raises TextError, which names them, if there is none."""
        try:
            with locate_errors(self.source, self.text):
                return program_from_tree(_insert_sizes(self.tree, sizes))
        except TextError as error:
            at = ", ".join(f"{name} = {n}" for name, n in sizes.items())
            raise TextError(error.source, error.line, error.column, f"{error.message} (at {at})") from None

    def refuse(self, assumption: Assumption, message: str) -> TextError:
        """Return the error at the place of *assumption*."""
        return TextError(self.source, assumption.line, assumption.column, message)


def parse_template(text: str, source: str = "<text>") -> Template:
    """Parse a template; raises TextError, with line and column, on any other text."""
    with locate_errors(source, text):
        tree = grammar("parametric").parse(text, start="program")
        lines = [child for child in tree.children if isinstance(child, Tree) and child.data == "parameter"]
        found = tuple(_assumption(node, text) for line in lines for node in child_trees(line))
        if not found:
            raise error_at(tree, "found no parameter, expected a line such as: param H >= 3")
        statements = [child for child in tree.children if child not in lines]
        return Template(text, source, Tree("program", list(statements), tree.meta), found)


def _assumption(node: Tree[Token], text: str) -> Assumption:
    names, meta = _parameters(node), node.meta
    written = " ".join(text[meta.start_pos : meta.end_pos].split())

    def make(name: str, op: str, number: int = 1, modulus: int = 1, *sides: SyntaxNode) -> Assumption:
        return Assumption(name, op, number, modulus, meta.line, meta.column, written, names, *sides)

    match node.children:
        case [Tree(data="iterator", children=[Token() as name])]:
            return make(str(name), "")
        case [
            Tree(data="iterator", children=[Token() as name]),
            Token(value=">=" | "<=" as op),
            Tree(data="integer", children=[Token() as n]),
        ]:
            return make(str(name), op, integer_literal(n))
        case [
            Tree(
                data="index_modulo",
                children=[
                    Tree(data="iterator", children=[Token() as name]),
                    Tree(data="integer", children=[Token() as digits]),
                ],
            ),
            Token(value="=="),
            Tree(data="integer", children=[Token() as n]),
        ]:
            return make(str(name), "%", *_remainder(n, digits))
        case [
            Tree(data="index_modulo", children=[left, right]),
            Token(value="=="),
            Tree(data="integer", children=[Token() as n]),
        ]:
            if number := integer_literal(n):
                raise error_at(n, f"found the remainder {number} by several parameters, expected 0")
            return make("", "%", 0, 1, left, right)
        case [Tree() as left, Token(value=op), Tree() as right]:
            return make("", str(op), 0, 1, left, right)
    raise error_at(node, f"found {written}, expected an assumption such as H >= 3, C % 4 == 0 or W >= K")


def _parameters(node: Tree[Token]) -> tuple[str, ...]:
    """Return the parameters in *node*, in order."""
    named = [name for it in node.find_data("iterator") for name in it.children if isinstance(name, Token)]
    for name in named:
        if not str(name).isascii():
            raise error_at(name, f"found the parameter {name}, expected letters from a to z, digits and underscores")
    if not named:
        raise error_at(node, "found an assumption without a parameter, expected one such as H >= 3")
    return tuple(dict.fromkeys(map(str, sorted(named, key=lambda t: t.start_pos or 0))))


def _remainder(written: Token, digits: Token) -> tuple[int, int]:
    """Return (remainder, modulus)."""
    number, modulus = integer_literal(written), integer_literal(digits)
    if not modulus:
        raise error_at(digits, "found the modulus 0, expected a positive integer")
    if number >= modulus:
        raise error_at(written, f"found the remainder {number} modulo {modulus}, expected one below {modulus}")
    return number, modulus


def _insert_sizes(tree: Tree[Token], sizes: Mapping[str, int]) -> Tree[Token]:
    """Replace polynomials in *tree* by their values."""
    match tree:
        case Tree(data=data, children=children) if data in _SIZED:
            values = [(child, _value(child, sizes)) for child in children]
            for child, value in values:
                if value < 0 and data != "signed":
                    raise error_at(child, f"found {value}, expected a number that is not negative")
            return Tree(data, [token for child, value in values for token in _number(child, value)], tree.meta)
        case Tree(data="range", children=[Token() as name, *_]) if str(name) in sizes:
            raise error_at(name, f"found the iterator {name}, which is a parameter, expected another name")
        case Tree(data="iterator" | "integer" as kind) if kind == "integer" or str(tree.children[0]) in sizes:
            return _integer(tree, _value(tree, sizes))
        case Tree(data=data) if data in _ARITHMETIC and not _iterators(tree, sizes):
            return _integer(tree, _value(tree, sizes))
    children = [_insert_sizes(child, sizes) if isinstance(child, Tree) else child for child in tree.children]
    return Tree(tree.data, list(children), tree.meta)


def _iterators(tree: Tree[Token], sizes: Mapping[str, int]) -> bool:
    return any(str(node.children[0]) not in sizes for node in tree.find_data("iterator"))


def _integer(tree: Tree[Token], value: int) -> Tree[Token]:
    """Return *value* as an index in place of *tree*."""
    digits = Tree[Token]("integer", [_token("INT", abs(value), tree)], tree.meta)
    return digits if value >= 0 else Tree("index_negative", [digits], tree.meta)


def _number(node: SyntaxNode, value: int) -> list[Token]:
    """Return *value* as the tokens of a number in place of *node*."""
    digits = _token("INT", abs(value), node)
    return [digits] if value >= 0 else [_token("MINUS", "-", node), digits]


def _token(kind: str, value: object, at: SyntaxNode) -> Token:
    line, column = (at.line, at.column) if isinstance(at, Token) else (at.meta.line, at.meta.column)
    return Token(kind, str(value), line=line, column=column)


def _value(node: SyntaxNode, sizes: Mapping[str, int]) -> int:
    """Evaluate a polynomial of parameters at *sizes*; quotients must be whole."""
    match node:
        case Tree(data="integer", children=[digits]):
            return integer_literal(digits)
        case Tree(data="iterator", children=[Token() as name]):
            if str(name) not in sizes:
                raise error_at(name, f"found unknown parameter {name}, expected one of {', '.join(sizes)}")
            return sizes[str(name)]
        case Tree(data="index_plus", children=[a, b]):
            return _value(a, sizes) + _value(b, sizes)
        case Tree(data="index_minus", children=[a, b]):
            return _value(a, sizes) - _value(b, sizes)
        case Tree(data="index_times", children=[a, b]):
            return _value(a, sizes) * _value(b, sizes)
        case Tree(data="index_negative", children=[a]):
            return -_value(a, sizes)
        case Tree(data="index_over", children=[a, b]):
            above, below = _value(a, sizes), _value(b, sizes)
            if below <= 0 or above % below:
                raise error_at(node, f"found {above} / {below}, expected a whole number: assume a remainder with param")
            return above // below
        case Tree(data="index_modulo"):
            raise error_at(node, "found a remainder of parameters, expected a polynomial of them")
    raise error_at(node, f"found {node}, expected a number or a polynomial of parameters")
