"""``text``, which prints programs and their parts so that ``parse(text(p)) == p``, and messages in the text form."""

from __future__ import annotations

from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Index,
    Overflow,
    Program,
    Scalar,
    Scope,
    Tensor,
    tensors,
)
from einnet_explore.ir.printer import scalar_text, scope_text, value_text


def text(it: Program | Equation | Scope | Scalar | Index) -> str:
    """Print *it* in the text form; a program ends with a line break.

    Raises ValueError for a program that the text form cannot hold: one that reads a tensor which differs from its
    declaration or from the equation of its name, or that has an iterator whose name is not a word.  Raises TypeError
    for any other value.
    """
    match it:
        case Program():
            _require_declarations(it)
            return f"{it}\n"
        case Equation():
            return str(it)
        case Scope():
            return scope_text(it)
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
    place = value_text(found.place) if isinstance(found.place, Scope) else scalar_text(found.place)
    low, high = found.range
    return (
        f"{equation}: found integers from {low} to {high} in {place}, expected a result within {found.type}: "
        f"cast an operand to int64, or the result to {found.type} to let it wrap"
    )


def _require_declarations(it: Program) -> None:
    """Raise ValueError for a tensor that an equation reads and that differs from the input or result of its name."""
    known = {t.name: t for t in it.inputs}
    for equation in it.equations:
        for tensor in tensors(equation.scope):
            if known.get(tensor.name) != tensor:
                raise ValueError(_describe_mismatch(equation.name, tensor, known.get(tensor.name)))
        known[equation.name] = equation.tensor


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
