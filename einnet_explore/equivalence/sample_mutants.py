"""Small changes of a scope that samples have to tell: what no sample tells has no evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isfinite
from typing import TypeAlias

from einnet_explore.equivalence.value_bounds import may_be_undefined, value_range
from einnet_explore.ir import Access, Apply, Const, Scalar, Scope, Tensor, scopes, walk_scalar
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

RELATIVE_CHANGE, READ_CHANGE = 1e-7, 2.0**-10
"""The changes of a constant, and of an element that is read, that samples must tell."""

Mutant: TypeAlias = "tuple[str, tuple[Scope, ...]]"
"""A part in words, and the scope with each of the possible changes of this part; samples have to tell one of them."""

Changes: TypeAlias = "Iterable[tuple[str, tuple[Scalar, ...]]]"
"""Parts in words, and the possible changes of each."""

Change: TypeAlias = "Callable[[Scalar], Changes]"


def mutants(scope: Scope, change: Change) -> Iterable[Mutant]:
    """Yield *scope* with one *change* at one place of it or of a nested scope."""
    for text, bodies in _scalar_mutants(scope.body, change):
        yield text, tuple(replace(scope, body=body) for body in bodies)


def _scalar_mutants(body: Scalar, change: Change) -> Changes:
    yield from change(body)
    match body:
        case Access(Scope() as source, index):
            for text, inner in mutants(source, change):
                yield text, tuple(Access(scope, index) for scope in inner)
        case Apply(op, args):
            for n, arg in enumerate(args):
                for text, changed in _scalar_mutants(arg, change):
                    yield text, tuple(Apply(op, (*args[:n], new, *args[n + 1 :])) for new in changed)


def drop_operands(scalar: Scalar) -> Changes:
    """Yield a sum or difference without each of its operands."""
    match scalar:
        case Apply("+" | "-" as op, args) if len(args) > 1:
            for n, arg in enumerate(args):
                if value_range(arg) != (0, 0):
                    yield f"the operand {arg!r}", (_without(op, args[:n], args[n + 1 :]),)


def _without(op: str, before: tuple[Scalar, ...], after: tuple[Scalar, ...]) -> Scalar:
    """Return a sum or difference without the operand between *before* and *after*."""
    rest = (*before, *after)
    if op == "-" and not before:
        return Apply("neg", rest)
    return rest[0] if len(rest) == 1 else Apply(op, rest)


def change_constant(scalar: Scalar) -> Changes:
    """Yield a constant with other digits."""
    match scalar:
        case Const(value) if value and isfinite(value):
            yield f"the digits of {value:g}", (Const(value * (1 + RELATIVE_CHANGE)),)


def add_to_read(scalar: Scalar) -> Changes:
    """Yield an element of a tensor plus and minus 1."""
    match scalar:
        case Access(Tensor()):
            yield f"the read {scalar!r}", tuple(Apply("+", (scalar, Const(change))) for change in (1, -1))


def scale_read(scalar: Scalar) -> Changes:
    """Yield an element of a tensor times numbers next to 1."""
    match scalar:
        case Access(Tensor()):
            yield (
                f"the read {scalar!r}",
                tuple(Apply("*", (Const(1 + change), scalar)) for change in (READ_CHANGE, -READ_CHANGE)),
            )


def drop_functions(scalar: Scalar) -> Changes:
    """Yield the argument of a function that has no kink."""
    match scalar:
        case Apply(op, (arg,)) if op != "neg" and not SCALAR_FUNCTIONS[op].has_kink:
            yield f"the function in {scalar!r}", (arg,)


def partial_functions(scope: Scope) -> set[Scalar]:
    """Return the functions of *scope* and its nested scopes that some arguments leave undefined."""
    parts = (part for _, each in scopes(scope) for part in walk_scalar(each.body))
    return {part for part in parts if isinstance(part, Apply) and may_be_undefined(part)}


def drop_poles(scalar: Scalar) -> Changes:
    """Yield numbers in place of a function, which are defined only where the function is not but its arguments are.

    If the whole is defined with one of them, nothing but this function makes it undefined.
    """
    if not isinstance(scalar, Apply) or not may_be_undefined(scalar):
        return
    only_there: Scalar
    match scalar.op, scalar.args:
        case "/", (a, b):
            only_there = Apply("+", (_root(Apply("neg", (Apply("abs", (b,)),))), Apply("*", (Const(0), a))))
        case "sqrt", (a,):
            only_there = Apply("*", (Const(0), Apply("log", (Apply("neg", (a,)),))))
        case _, (a, *_):
            only_there = _root(Apply("neg", (a,)))
    yield f"the pole of {scalar!r}", tuple(Apply("+", (Const(number), only_there)) for number in (2, -2, 0.25))


def _root(scalar: Scalar) -> Scalar:
    """Return 0 where *scalar* is not below 0; it is undefined elsewhere."""
    return Apply("*", (Const(0), Apply("sqrt", (scalar,))))
