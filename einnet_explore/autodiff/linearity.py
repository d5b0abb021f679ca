"""Degree of the outputs of a program in some of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einnet_explore.ir import Access, Apply, Compare, Const, Program, Scalar, Scope, Table, Tensor

NONLINEAR = None
"""The degree of 0, which is homogeneous of every degree."""


def assert_linear(program: Program, names: Iterable[str]) -> None:
    """Raise ValueError, with the offending expression, unless every output is linear in the inputs *names*."""
    degrees: dict[str, int | None] = dict.fromkeys(names, 1)
    for equation in program.equations:
        degrees[equation.name] = _scope(equation.scope, degrees, equation.name)
    for name in program.outputs:
        if degrees.get(name, 0) not in (1, NONLINEAR):
            raise ValueError(f"{name} does not depend on {', '.join(sorted(set(names)))} linearly: it has degree 0")


def _scope(scope: Scope, degrees: Mapping[str, int | None], label: str) -> int | None:
    degree = _degree(scope.body, degrees, label)
    if degree == 1 and scope.summations and scope.reduce != "sum":
        raise ValueError(f"{label}: {scope.reduce} of what is linear is not linear")
    if degree == 1 and scope.value and (scope.padding or scope.domain):
        raise ValueError(f"{label} is {scope.value:g} outside, expected 0 of what is linear")
    return degree


def _source(source: Tensor | Table | Scope, degrees: Mapping[str, int | None], label: str) -> int | None:
    match source:
        case Tensor(name):
            degree = degrees.get(name, 0)
            if degree == 1 and source.value and source.padding:
                raise ValueError(f"{label}: {name} is {source.value:g} outside, expected 0 of what is linear")
            return degree
        case Table():
            return 0
        case Scope():
            return _scope(source, degrees, label)


def _degree(body: Scalar, degrees: Mapping[str, int | None], label: str) -> int | None:
    match body:
        case Access(source):
            return _source(source, degrees, label)
        case Compare():
            return 0
        case Const(value):
            return 0 if value else NONLINEAR
        case Apply("*", args):
            each = [_degree(a, degrees, label) for a in args]
            total = sum(d for d in each if d is not NONLINEAR)
            if total > 1:
                raise ValueError(f"{label}: {body!r} has degree {total}, expected 1 at most")
            return NONLINEAR if NONLINEAR in each else total
        case Apply("/", (a, b)):
            if _degree(b, degrees, label) == 1:
                raise ValueError(f"{label}: {body!r} divides by what is linear")
            return _degree(a, degrees, label)
        case Apply("where", (_, *branches)) | Apply("+" | "-" | "neg", branches):
            found = {d for a in branches if (d := _degree(a, degrees, label)) is not NONLINEAR}
            if len(found) > 1:
                raise ValueError(f"{label}: the terms of {body!r} have degrees 0 and 1")
            return found.pop() if found else NONLINEAR
        case Apply(op, args):
            if any(_degree(a, degrees, label) == 1 for a in args):
                raise ValueError(f"{label}: {op} of what is linear is not linear")
            return 0
