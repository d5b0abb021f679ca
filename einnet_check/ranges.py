"""Ranges of integer arithmetic: no result leaves its type (docs/text-form.md), and outputs keep theirs."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import product
from math import prod
from typing import TypeAlias

from einnet_check.text import (
    COMPARISONS,
    INTEGERS,
    SIGNIFICANDS,
    Expr,
    Program,
    Read,
    Scope,
    Table,
    Tensor,
    expression_type,
    scope_type,
)

Range: TypeAlias = "tuple[int, int]"
Known: TypeAlias = "dict[str, Range]"
"""The ranges of earlier equations."""

WRAPS = frozenset(["+", "*"])
"""Operations that commute with remainders: under a cast they are computed modulo a power of two."""


def other_types(before: Program, after: Program) -> str | None:
    """Why an output of *after* has another type than in *before*, or a result may leave its type; None if not."""
    types = [{e.name: scope_type(e.scope) for e in p.equations} for p in (before, after)]
    for name in after.outputs:
        if name in types[0] and types[1].get(name) != types[0][name]:
            return f"output {name} is {types[1].get(name)}, expected {types[0][name]}"
    known: Known = {}
    for name, scope, *_ in after.equations:
        try:
            if scope_type(scope) in INTEGERS:
                known[name] = scope_span(scope, False, known)
            else:
                inside(scope.body, known)
        except OverflowError as error:
            return f"{name}: {error}"
    return None


def inside(e: Expr, known: Known) -> None:
    """Raise OverflowError for an integer in *e* that may leave its type."""
    match e:
        case _ if expression_type(e) in INTEGERS:
            span(e, False, known)
        case Read(Scope(body=body)):
            inside(body, known)
        case (str(op), *args):
            for arg in args[op == "where" :]:
                inside(arg, known)


def within(found: Range, name: str, free: bool) -> None:
    low, high = INTEGERS.get(name, found)
    if not free and not low <= found[0] <= found[1] <= high:
        raise OverflowError(f"integers from {found[0]} to {found[1]}, expected {name}")


def span(e: Expr, free: bool, known: Known) -> Range:
    """The smallest and the largest value of the integer *e*; *free*: it is needed modulo a power of two only."""
    match e:
        case Fraction():
            return int(e), int(e)
        case Read(Tensor(name, box, reach, outside, dtype=dtype)):
            own = known.get(name, INTEGERS[dtype])
            return own if reach == box else hull([*own, int(outside)])
        case Read(Table(entries=entries)):
            return int(min(entries)), int(max(entries))
        case Read(Scope() as scope):
            return scope_span(scope, free, known)
        case (str(op), arg) if op in INTEGERS:
            if expression_type(arg) in SIGNIFICANDS:
                inside(arg, known)
                return INTEGERS[op]
            found, (low, high) = span(arg, op != "bool", known), INTEGERS[op]
            return found if low <= found[0] and found[1] <= high else (low, high)
        case ("where" | "select" as op, condition, yes, no):
            if op == "select":
                inside(condition, known)
            return hull([*span(yes, free, known), *span(no, free, known)])
        case (str(op), *args) if op in COMPARISONS:
            for arg in args:
                inside(arg, known)
            return 0, 1
    if not isinstance(e, tuple):
        raise OverflowError(f"{e!r} is no number")
    op, *args = e
    free = free and op in WRAPS
    ends = [span(a, free, known) for a in (args[:1] if op == "pow" else args)]
    match op, ends:
        case "+", [(a, b), (c, d)]:
            within((min(a, 0) + min(c, 0), max(b, 0) + max(d, 0)), expression_type(e), free)
            return a + c, b + d
        case "*", [x, y]:
            value = hull([p * q for p, q in product(x, y)])
        case ("maximum" | "minimum") as best, [x, y]:
            pick = max if best == "maximum" else min
            value = pick(x[0], y[0]), pick(x[1], y[1])
        case "relu", [(a, b)]:
            value = max(a, 0), max(b, 0)
        case "round", [x]:
            value = x
        case (("abs" | "pow"), [(a, b)]):
            n = 1 if op == "abs" else min(int(args[1]), 66)
            most = max(abs(a), abs(b)) ** n
            value = (0 if a >= 0 or op == "abs" else -most), most
        case _:
            raise OverflowError(f"{op} gives no integers")
    within(value, expression_type(e), free)
    return value


def scope_span(scope: Scope, free: bool, known: Known) -> Range:
    low, high = span(scope.body, free and scope.reduce in ("sum", "prod"), known)
    points = prod(hi - lo for _, lo, hi in scope.sums)
    if scope.reduce == "sum":
        within((points * min(low, 0), points * max(high, 0)), scope_type(scope) if scope.sums else "", free)
        low, high = points * low, points * high
    elif scope.reduce == "prod" and scope.sums:
        most = max(abs(low), abs(high), 1) ** min(points, 66)
        low, high = (0 if low >= 0 else -most), most
        within((low, high), scope_type(scope), free)
    outside = [int(scope.value)] if scope.domain or scope.reach != scope.box else []
    return hull([low, high, *outside])


def hull(values: Iterable[int]) -> Range:
    return min(values), max(values)
