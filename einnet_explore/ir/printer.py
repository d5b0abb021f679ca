"""The text form (`.ein`) of the parts of a program: scopes, scalars, iterators, names, declarations.

One precedence table and one ``match``.  Products and sums are left-associative and flattened in the IR, so only their
first operand may stand without parentheses at its own level.  ``str`` of an equation or a program is its text form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from einnet_explore.ir.element_types import ELEMENT_TYPES, FLOAT32
from einnet_explore.ir.expression import Access, Apply, Bound, Compare, Const, Padding, Scalar, Scope, Table, Tensor
from einnet_explore.ir.index import Index, Iterator

SUM, PRODUCT, UNARY = range(3)
"""How tightly the operators bind, loosest first."""

RESERVED = ELEMENT_TYPES.keys() | frozenset(
    ["tensor", "output", "weight", "pad", "value", "via", "where", "table", "inf", "sum", "max", "min", "prod"]
)
"""Words that name no tensor or equation unless they stand in double quotes."""

_NAME = re.compile(r"[^\W\d]\w*")


def scalar_text(body: Scalar, level: int = SUM) -> str:
    """Print *body*, parenthesised if it binds more loosely than *level*."""
    match body:
        case Access(source, index):
            return f"{_source(source)}[{_list(index)}]"
        case Const(value):
            return number_text(value)
        case Compare(op, left, right):
            return f"{left!r} {op} {right!r}"
        case Apply("+", args):
            return _infix("+", args, SUM, level)
        case Apply("-", args):
            return _infix("-", args, SUM, level)
        case Apply("*", args):
            return _infix("*", args, PRODUCT, level)
        case Apply("/", args):
            return _infix("/", args, PRODUCT, level)
        case Apply("neg", (inner,)):
            return f"-{scalar_text(inner, UNARY)}"
        case Apply(op, args):
            return f"{op}({', '.join(scalar_text(a) for a in args)})"


def number_text(value: float) -> str:
    """Print *value* so that it parses to exactly the same number; whole numbers have no point."""
    if isinstance(value, int):
        return str(int(value))
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


def ranges_text(iterators: Iterable[Iterator]) -> str:
    """Print ``r:3, t:-1..8``."""
    return ", ".join(
        f"{_iterator(x.name)}:{x.hi}" if x.lo == 0 else f"{_iterator(x.name)}:{x.lo}..{x.hi}" for x in iterators
    )


def declaration_text(tensor: Tensor) -> str:
    """Print the line that declares an input."""
    dtype = "" if tensor.dtype == FLOAT32 else f" {tensor.dtype}"
    weight = " weight" if tensor.weight else ""
    shape = ", ".join(map(str, tensor.shape))
    return f"tensor {name_text(tensor.name)}[{shape}]{dtype}{weight}{_clauses(tensor.padding, tensor.value)}"


def equation_text(name: str, scope: Scope) -> str:
    """Print ``NAME[TRAVERSALS] = EXPRESSION``."""
    return f"{name_text(name)}{_head(scope)} = {value_text(scope)}{_clauses(scope.padding, scope.value)}"


def scope_text(scope: Scope) -> str:
    """Print ``{[TRAVERSALS] EXPRESSION}``."""
    return f"{{{_head(scope)} {value_text(scope)}}}{_clauses(scope.padding, scope.value)}"


def value_text(scope: Scope) -> str:
    """Print what *scope* computes at a point: the reduction and the body.

    A sum that is reduced has parentheses, which the grammar does not need: ``sum[k:4] A[k] + B[]`` is one reduction
    over all of it, and reads as a sum of two values.
    """
    if not scope.summations and scope.reduce == "sum":
        return scalar_text(scope.body)
    return f"{scope.reduce}[{ranges_text(scope.summations)}] {scalar_text(scope.body, PRODUCT)}"


def call_text(operator: str, attributes: Iterable[tuple[str, int | str | tuple[int, ...]]]) -> str:
    """Print ``OPERATOR(NAME=VALUE, …)``, as it stands after ``via``."""
    return f"{name_text(operator)}({', '.join(f'{name_text(name)}={_value(value)}' for name, value in attributes)})"


def name_text(name: str) -> str:
    """Print a name; one that is no word, or reserved, stands in double quotes."""
    return name if is_word(name) and name not in RESERVED else json.dumps(name, ensure_ascii=False)


def is_word(name: str) -> bool:
    """Whether *name* is a word of letters, digits and underscores that does not start with a digit."""
    return _NAME.fullmatch(name) is not None


def _source(source: Tensor | Table | Scope) -> str:
    match source:
        case Tensor(name):
            return name_text(name)
        case Table(shape, entries):
            return f"table[{', '.join(map(str, shape))}]({', '.join(map(str, entries))})"
        case Scope():
            return scope_text(source)


def _head(scope: Scope) -> str:
    domain = f" | {', '.join(map(_bound, scope.domain))}" if scope.domain else ""
    return f"[{ranges_text(scope.traversals)}{domain}]"


def _bound(bound: Bound) -> str:
    return f"{bound.lo} <= {bound.index!r} < {bound.hi}"


def _clauses(padding: Padding, value: float) -> str:
    edges = ", ".join(str(lo) if lo == hi else f"({lo}, {hi})" for lo, hi in padding)
    return (f" pad [{edges}]" if padding else "") + (f" value {number_text(value)}" if value else "")


def _value(value: int | str | tuple[int, ...]) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return str(int(value))
        case _:
            return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"


def _infix(op: str, args: tuple[Scalar, ...], own: int, level: int) -> str:
    first, *rest = args
    out = f" {op} ".join((scalar_text(first, own), *(scalar_text(a, own + 1) for a in rest)))
    return f"({out})" if level > own else out


def _iterator(name: str) -> str:
    if not is_word(name):
        raise ValueError(f"iterator {name!r}: expected a word of letters, digits and underscores")
    return name


def _list(index: tuple[Index, ...]) -> str:
    return ", ".join(map(repr, index))
