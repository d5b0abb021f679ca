"""Indices and conditions as values of an ONNX model: tables of one iterator, arithmetic where there are several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einnet_explore.graph.writing.body import Body
from einnet_explore.ir import COMPARISONS, Compare, Index, Iterator, Quotient, Remainder


@dataclass(frozen=True, slots=True)
class Held:
    """A value with one dimension for each iterator of *over*, in this order."""

    name: str
    over: tuple[Iterator, ...]


def values(index: Index, over: Sequence[Iterator]) -> np.typing.NDArray[np.int64]:
    """The values of *index* over a grid with an axis for each of *over*."""

    def at(x: Iterator) -> int:
        return np.arange(x.lo, x.hi).reshape([-1 if y == x else 1 for y in over])  # type: ignore[return-value]

    found = np.asarray(index.evaluate(at), np.int64)
    return found if found.ndim else found.reshape((1,) * len(over))


def terms(body: Body, index: Index, over: tuple[Iterator, ...]) -> str:
    """An index of several iterators: tables of its atoms, added up where the model runs."""
    parts = [Index(((atom, k),)) for atom, k in index.terms]
    parts[0] = parts[0] + index.const
    return added(body, [_atom(body, part, over) for part in parts])


def _atom(body: Body, part: Index, over: tuple[Iterator, ...]) -> str:
    if len(part.iterators) <= 1:
        return body.constant(values(part, over))
    (atom, k), const = part.terms[0], part.const
    match atom:
        case Quotient(numerator, d):
            op = "Div"
        case Remainder(numerator, d):
            op = "Mod"
        case Iterator():
            raise AssertionError(f"{part!r} names one iterator only")
    # ONNX divides towards zero: the numerator is lifted above it by a multiple of the divisor.
    lift = numerator.lift(d)
    name = body.emit(op, terms(body, numerator + lift * d, over), body.constant(d))
    name = body.emit("Mul", name, body.constant(k)) if k != 1 else name
    rest = const - (k * lift if op == "Div" else 0)
    return body.emit("Add", name, body.constant(rest)) if rest else name


def added(body: Body, names: list[str]) -> str:
    """The sum of the values *names*."""
    total = names[0]
    for name in names[1:]:
        total = body.emit("Add", total, name)
    return total


_ONNX = {"<": "Less", "<=": "LessOrEqual", ">": "Greater", ">=": "GreaterOrEqual", "==": "Equal", "!=": "Equal"}


def mask(body: Body, condition: Compare) -> Held:
    """The truth of *condition* over its iterators."""
    index = condition.left - condition.right
    over = index.iterators
    if len(over) <= 1:
        return Held(body.constant(COMPARISONS[condition.op](values(index, over), 0), np.bool_), over)
    name = body.emit(_ONNX[condition.op], terms(body, index, over), body.constant(0))
    return Held(body.emit("Not", name) if condition.op == "!=" else name, over)
