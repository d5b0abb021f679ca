"""Schemas in the text form and in LaTeX, the parameters as names: the printers' own, fed with numbers that print so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from einnet_explore import render
from einnet_explore.family.parameters import Ground
from einnet_explore.family.schema import Schema, mapped
from einnet_explore.family.whole import Poly, Whole, shown
from einnet_explore.ir import Attribute, Index, Instance, Iterator, Program, Quotient, Remainder
from einnet_explore.render.latex import Dialect


class Shown(int):
    """A polynomial as a printer meets it: an integer for its sign and for being neither 0 nor 1, and its text."""

    held: Poly
    style: tuple[str, str]
    role: str

    def __new__(cls, held: Poly, style: tuple[str, str], role: str = "") -> Shown:
        made = super().__new__(cls, -2 if held.terms[0][1] < 0 else 2)
        made.held, made.style, made.role = held, style, role
        return made

    def __str__(self) -> str:
        text = shown(self.held, *self.style)
        loose = len(self.held.terms) > 1 if self.role == "factor" else not text.isidentifier()
        return f"({text})" if self.role and loose else text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return ("" if self < 0 or spec != "+d" else "+") + str(self)

    def __abs__(self) -> Any:
        return self._made(-self.held) if self < 0 else self

    def __sub__(self, other: int) -> Any:
        return self._made(self.held - (other.held if isinstance(other, Shown) else other))

    def __add__(self, other: int) -> Any:
        return self._made(self.held + (other.held if isinstance(other, Shown) else other))

    def __rsub__(self, other: int) -> Any:
        return self._made(-self.held + other)

    __radd__ = __add__

    def _made(self, n: Whole) -> int:
        return Shown(n, self.style, self.role) if isinstance(n, Poly) else n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shown) and other.held == self.held

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.held)


PLAIN, FORMULA = ("*", "//"), (r"\,", "/")


def text(ground: Ground, schema: Schema) -> str:
    """*schema* in the text form, its ``param`` line first; ``ee.family`` reads it."""
    printed = _printed(schema, PLAIN)
    # Declarations and outputs are printed around equations that say nothing of how they are run.
    bare = replace(printed, equations=tuple(replace(e, via=None) for e in printed.equations))
    lines = render.text(bare).splitlines()
    first = len(bare.inputs)
    for n, equation in enumerate(printed.equations):
        if equation.via is not None:
            lines[first + n] += f" via {_run(equation.via)}"
    guards = ", ".join(ground.guards)
    return "\n".join([*([f"param {guards}"] if guards else []), *lines, ""])


def latex(schema: Schema, dialect: Dialect = "amsmath") -> str:
    """*schema* in LaTeX."""
    return render.latex(_printed(schema, FORMULA), dialect, ranges="full")


def align(schemas: Sequence[Schema], reasons: Sequence[str]) -> str:
    """An ``align*`` block for the steps between *schemas*."""
    return render.align([_printed(schema, FORMULA) for schema in schemas], reasons)


def _run(via: Instance) -> str:
    return f"{via.operator}({', '.join(f'{name}={_attribute(value)}' for name, value in via.attributes)})"


def _attribute(value: Attribute) -> str:
    match value:
        case str():
            return f'"{value}"'
        case tuple():
            return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return str(value)


def _printed(schema: Schema, style: tuple[str, str]) -> Program:
    def change(n: Whole) -> int:
        return Shown(n, style) if isinstance(n, Poly) else n

    def part(n: Whole, role: str) -> int:
        return Shown(n, style, role) if isinstance(n, Poly) else n

    def index(it: Index) -> Index:
        return Index(tuple((_atom(a), part(k, "factor")) for a, k in it.terms), change(it.const))

    def _atom(it: Iterator | Quotient | Remainder) -> Iterator | Quotient | Remainder:
        match it:
            case Iterator(name, lo, hi):
                return Iterator(name, change(lo), change(hi))
            case Quotient(numerator, d):
                return Quotient(index(numerator), part(d, "divisor"))
            case Remainder(numerator, d):
                return Remainder(index(numerator), part(d, "divisor"))

    return mapped(schema, change, index)
