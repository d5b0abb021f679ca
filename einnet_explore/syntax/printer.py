"""The text form (`.ein`) of programs and their parts: ``parse(text(p)) == p``.

One precedence table and one ``match``.  Products and sums are left-associative and flattened in the IR, so only their
first operand may stand without parentheses at its own level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from einnet_explore.ir import (
    ELEMENT_TYPES,
    FLOAT32,
    Access,
    Apply,
    Attribute,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Instance,
    Iterator,
    Overflow,
    Padding,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    tensors,
)

SUM, PRODUCT, UNARY = range(3)
"""How tightly the operators bind, loosest first."""

RESERVED = ELEMENT_TYPES.keys() | frozenset(
    ["tensor", "output", "weight", "pad", "value", "via", "where", "table", "inf", "sum", "max", "min", "prod"]
)
"""Words that name no tensor or equation unless they stand in double quotes."""

_NAME = re.compile(r"[^\W\d]\w*")


def text(it: Program | Equation | Scope | Scalar | Index) -> str:
    """Print *it* in the text form; a program ends with a line break.

    Raises ValueError for a program that the text form cannot hold: one that reads a tensor which differs from its
    declaration or from the equation of its name, or that has an iterator whose name is not a word.  Raises TypeError
    for any other value.
    """
    match it:
        case Program():
            return _program(it)
        case Equation(name, scope, via):
            run = f" via {_instance(via)}" if via else ""
            return f"{_name(name)}{_head(scope)} = {_right(scope)}{_clauses(scope.padding, scope.value)}{run}"
        case Scope():
            return _scope(it)
        case Index():
            return repr(it)
        case Access() | Apply() | Compare() | Const():
            return scalar_text(it)
        case _:
            raise TypeError(
                f"found {type(it).__name__}, expected a program, an equation, a scope, a scalar or an index"
            )


def describe_overflow(equation: str, found: Overflow) -> str:
    """Say which integer result in *equation* may be beyond its type."""
    place = _right(found.place) if isinstance(found.place, Scope) else scalar_text(found.place)
    low, high = found.range
    return (
        f"{equation}: found integers from {low} to {high} in {place}, expected a result within {found.type}: "
        f"cast an operand to int64, or the result to {found.type} to let it wrap"
    )


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


def _program(it: Program) -> str:
    known = {t.name: t for t in it.inputs}
    for equation in it.equations:
        for tensor in tensors(equation.scope):
            if known.get(tensor.name) != tensor:
                raise ValueError(_describe_mismatch(equation.name, tensor, known.get(tensor.name)))
        known[equation.name] = equation.tensor
    lines = [_declaration(t) for t in it.inputs]
    lines += [text(e) for e in it.equations]
    read = {tensor.name for e in it.equations for tensor in tensors(e.scope)}
    if it.outputs != tuple(e.name for e in it.equations if e.name not in read):
        lines.append(f"output {', '.join(map(_name, it.outputs))}")
    return "".join(f"{line}\n" for line in lines)


def _describe_mismatch(reader: str, tensor: Tensor, known: Tensor | None) -> str:
    if known is None:
        return f"{reader} reads {tensor.name}, which is neither an input nor an earlier equation"
    fields = ("shape", "padding", "value", "weight", "origin", "dtype")
    differ = [
        f"{f} {getattr(tensor, f)}, defined with {getattr(known, f)}"
        for f in fields
        if getattr(tensor, f) != getattr(known, f)
    ]
    return f"{reader} reads {tensor.name} with {'; '.join(differ)}"


def _declaration(tensor: Tensor) -> str:
    dtype = "" if tensor.dtype == FLOAT32 else f" {tensor.dtype}"
    weight = " weight" if tensor.weight else ""
    shape = ", ".join(map(str, tensor.shape))
    return f"tensor {_name(tensor.name)}[{shape}]{dtype}{weight}{_clauses(tensor.padding, tensor.value)}"


def _source(source: Tensor | Table | Scope) -> str:
    match source:
        case Tensor(name):
            return _name(name)
        case Table(shape, entries):
            return f"table[{', '.join(map(str, shape))}]({', '.join(map(str, entries))})"
        case Scope():
            return _scope(source)


def _scope(scope: Scope) -> str:
    return f"{{{_head(scope)} {_right(scope)}}}{_clauses(scope.padding, scope.value)}"


def _head(scope: Scope) -> str:
    domain = f" | {', '.join(map(_bound, scope.domain))}" if scope.domain else ""
    return f"[{ranges_text(scope.traversals)}{domain}]"


def _right(scope: Scope) -> str:
    plain = not scope.summations and scope.reduce == "sum"
    return (
        scalar_text(scope.body)
        if plain
        else f"{scope.reduce}[{ranges_text(scope.summations)}] {scalar_text(scope.body)}"
    )


def _bound(bound: Bound) -> str:
    return f"{bound.lo} <= {bound.index!r} < {bound.hi}"


def _clauses(padding: Padding, value: float) -> str:
    edges = ", ".join(str(lo) if lo == hi else f"({lo}, {hi})" for lo, hi in padding)
    return (f" pad [{edges}]" if padding else "") + (f" value {number_text(value)}" if value else "")


def _infix(op: str, args: tuple[Scalar, ...], own: int, level: int) -> str:
    first, *rest = args
    out = f" {op} ".join((scalar_text(first, own), *(scalar_text(a, own + 1) for a in rest)))
    return f"({out})" if level > own else out


def _instance(via: Instance) -> str:
    return f"{_name(via.operator)}({', '.join(f'{_name(k)}={_attribute(v)}' for k, v in via.attributes)})"


def _attribute(value: Attribute) -> str:
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False)
        case int():
            return str(int(value))
        case _:
            return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"


def is_word(name: str) -> bool:
    """Whether *name* is a word of letters, digits and underscores that does not start with a digit."""
    return _NAME.fullmatch(name) is not None


def _name(name: str) -> str:
    return name if is_word(name) and name not in RESERVED else json.dumps(name, ensure_ascii=False)


def _iterator(name: str) -> str:
    if not is_word(name):
        raise ValueError(f"iterator {name!r}: expected a word of letters, digits and underscores")
    return name


def _list(index: tuple[Index, ...]) -> str:
    return ", ".join(map(repr, index))
