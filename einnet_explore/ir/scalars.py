"""Bodies of scopes as they are built and taken apart: sums and products are flat, with one constant in front."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from einnet_explore.ir.expression import JOINS, Apply, Const, Scalar


def mul(*args: Scalar) -> Scalar:
    """The product of *args*, flattened; constants are collected in front, 1 is dropped."""
    return _flat("*", args, 1)


def add(*args: Scalar) -> Scalar:
    """The sum of *args*, flattened; constants are collected in front, 0 is dropped."""
    return _flat("+", args, 0)


def sub(a: Scalar, b: Scalar) -> Scalar:
    """a - b."""
    return Apply("-", (a, b))


def is_zero(u: Scalar) -> Scalar:
    """1 where *u*, which must not be negative, is 0, and 0 elsewhere: 0 to the *u*."""
    return Apply("pow", (Const(0), u))


def combined(monoid: str, parts: Iterable[Scalar]) -> Scalar:
    """*parts* (one at least) reduced by *monoid*, written out."""
    match JOINS[monoid]:
        case "+":
            return add(*parts)
        case "*":
            return mul(*parts)
        case op:
            return reduce(lambda a, b: Apply(op, (a, b)), parts)


def factors(body: Scalar) -> tuple[Scalar, ...]:
    """The factors of a product; a body that is no product is its own only factor."""
    return body.args if isinstance(body, Apply) and body.op == "*" else (body,)


def terms(body: Scalar) -> tuple[Scalar, ...]:
    """The terms of a sum; a body that is no sum is its own only term."""
    return body.args if isinstance(body, Apply) and body.op == "+" else (body,)


def _flat(op: str, args: tuple[Scalar, ...], neutral: float) -> Scalar:
    flat: list[Scalar] = []
    const = neutral
    for arg in args:
        for part in arg.args if isinstance(arg, Apply) and arg.op == op else (arg,):
            if isinstance(part, Const):
                const = const + part.value if op == "+" else const * part.value
            else:
                flat.append(part)
    if const != neutral or not flat:
        flat.insert(0, Const(const))
    return flat[0] if len(flat) == 1 else Apply(op, tuple(flat))
