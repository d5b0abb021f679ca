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

WRAPS = frozenset(["+", "*"])
"""Operations that commute with remainders: under a cast they are computed modulo a power of two."""


def other_types(before: Program, after: Program) -> str | None:
    """Why an output of *after* has another type than in *before*, or a result may leave its type; None if not."""
    types = [{e.name: scope_type(e.scope) for e in p.equations} for p in (before, after)]
    for name in after.outputs:
        if name in types[0] and types[1].get(name) != types[0][name]:
            return f"output {name} is {types[1].get(name)}, expected {types[0][name]}"
    for equation in after.equations:
        if equation not in before.equations and (why := overflow(equation.scope)):
            return f"{equation.name}: {why}"
    return None


def overflow(scope: Scope) -> str | None:
    """Why an integer in *scope* may leave its type; None if none does."""
    try:
        inside(Read(scope, ()))
        return None
    except OverflowError as error:
        return str(error)


def inside(e: Expr) -> None:
    """Raise OverflowError for an integer in *e* that may leave its type."""
    match e:
        case _ if expression_type(e) in INTEGERS:
            span(e)
        case Read(Scope(body=body)):
            inside(body)
        case (str(op), *args):
            for arg in args[op == "where" :]:
                inside(arg)


def within(found: Range, name: str, free: bool) -> None:
    low, high = INTEGERS.get(name, found)
    if not free and not low <= found[0] <= found[1] <= high:
        raise OverflowError(f"integers from {found[0]} to {found[1]}, expected {name}")


def span(e: Expr, free: bool = False) -> Range:
    """The smallest and the largest value of the integer *e*; *free*: it is needed modulo a power of two only."""
    match e:
        case Fraction():
            return int(e), int(e)
        case Read(Tensor(dtype=name)):
            return INTEGERS[name]
        case Read(Table(entries=entries)):
            return int(min(entries)), int(max(entries))
        case Read(Scope() as scope):
            return scope_span(scope, free)
        case (str(op), arg) if op in INTEGERS:
            if expression_type(arg) in SIGNIFICANDS:
                inside(arg)
                return INTEGERS[op]
            found, (low, high) = span(arg, op != "bool"), INTEGERS[op]
            return found if low <= found[0] and found[1] <= high else (low, high)
        case ("where" | "select" as op, condition, yes, no):
            if op == "select":
                inside(condition)
            return hull([*span(yes, free), *span(no, free)])
        case (str(op), *args) if op in COMPARISONS:
            for arg in args:
                inside(arg)
            return 0, 1
    if not isinstance(e, tuple):
        raise OverflowError(f"{e!r} is no number")
    op, *args = e
    free = free and op in WRAPS
    ends = [span(a, free) for a in (args[:1] if op == "pow" else args)]
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


def scope_span(scope: Scope, free: bool) -> Range:
    low, high = span(scope.body, free and scope.reduce in ("sum", "prod"))
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
