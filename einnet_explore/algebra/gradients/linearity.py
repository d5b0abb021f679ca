r"""Linearity by structure: a program whose results are homogeneous of degree one in some of its inputs.

.. math::  f(\alpha\, d + \beta\, e) = \alpha f(d) + \beta f(e)

Degrees are counted as of polynomials: those of factors add up, terms agree, a quotient has its numerator's if the
denominator has none, and what any other function gets has none.  A sum keeps a degree; a maximum or product does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einnet_explore.ir import Access, Apply, Compare, Const, Program, Scalar, Scope, Table, Tensor

ANY = None
"""The degree of 0, which is homogeneous of every degree."""


def assert_linear(program: Program, names: Iterable[str]) -> None:
    """Raises ValueError, with the expression that is at fault, unless every output is linear in the inputs *names*."""
    degrees: dict[str, int | None] = dict.fromkeys(names, 1)
    for equation in program.equations:
        degrees[equation.name] = _scope(equation.scope, degrees, equation.name)
    for name in program.outputs:
        if degrees.get(name, 0) not in (1, ANY):
            raise ValueError(f"{name} does not depend on {', '.join(sorted(set(names)))} linearly: it has degree 0")


def _scope(scope: Scope, degrees: Mapping[str, int | None], told: str) -> int | None:
    degree = _degree(scope.body, degrees, told)
    if degree == 1 and scope.summations and scope.reduce != "sum":
        raise ValueError(f"{told}: {scope.reduce} of what is linear is not linear")
    if degree == 1 and scope.value and (scope.padding or scope.domain):
        raise ValueError(f"{told} is {scope.value:g} outside, expected 0 of what is linear")
    return degree


def _source(source: Tensor | Table | Scope, degrees: Mapping[str, int | None], told: str) -> int | None:
    match source:
        case Tensor(name):
            degree = degrees.get(name, 0)
            if degree == 1 and source.value and source.padding:
                raise ValueError(f"{told}: {name} is {source.value:g} outside, expected 0 of what is linear")
            return degree
        case Table():
            return 0
        case Scope():
            return _scope(source, degrees, told)


def _degree(body: Scalar, degrees: Mapping[str, int | None], told: str) -> int | None:
    match body:
        case Access(source):
            return _source(source, degrees, told)
        case Compare():
            return 0
        case Const(value):
            return 0 if value else ANY
        case Apply("*", args):
            each = [_degree(a, degrees, told) for a in args]
            total = sum(d for d in each if d is not ANY)
            if total > 1:
                raise ValueError(f"{told}: {body!r} has degree {total}, expected 1 at most")
            return ANY if ANY in each else total
        case Apply("/", (a, b)):
            if _degree(b, degrees, told) == 1:
                raise ValueError(f"{told}: {body!r} divides by what is linear")
            return _degree(a, degrees, told)
        case Apply("where", (_, *branches)) | Apply("+" | "-" | "neg", branches):
            found = {d for a in branches if (d := _degree(a, degrees, told)) is not ANY}
            if len(found) > 1:
                raise ValueError(f"{told}: the terms of {body!r} have degrees 0 and 1")
            return found.pop() if found else ANY
        case Apply(op, args):
            if any(_degree(a, degrees, told) == 1 for a in args):
                raise ValueError(f"{told}: {op} of what is linear is not linear")
            return 0
