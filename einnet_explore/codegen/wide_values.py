"""Values that only arithmetic in ``float64`` reads: computed and stored in ``float64``.

An expression denotes a number.  Where all that read it compute in ``float64``, since they round to integers, an error
of ``float32`` in it would decide next to a tie.  Such values are constants (the scales and the biases of
requantisations, divided beforehand), and element-wise arithmetic of integers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.ir import (
    ELEMENT_TYPES,
    FLOAT32,
    Access,
    Apply,
    Equation,
    Program,
    Scalar,
    Scope,
    Tensor,
    accesses,
    add,
    computing_type,
    element_type,
    is_arithmetic,
    map_tensors,
    mul,
    scalar_type,
    scopes,
    tensors,
)

WIDE = "float64"
_MAX_CAST_BITS = 32
"""Bits of the integers that are exact in ``float64``, at most."""


def with_wide_values(program: Program) -> Program:
    """Return *program* with equations in ``float64`` where all their readers compute in it.

    These are equations of weights alone, and element-wise arithmetic of integers and such constants.  Calls of
    operators and outputs keep their types.
    """
    wide = _wide_equations(program)
    if not wide:
        return program
    made: dict[str, Tensor] = {}
    equations = list[Equation]()
    for equation in program.equations:
        scope = map_tensors(equation.scope, lambda t: made.get(t.name, t))
        if equation.name in wide:
            scope = _widened(scope)
        equations.append(replace(equation, scope=scope))
        made[equation.name] = equations[-1].tensor
    return replace(program, equations=tuple(equations))


def _wide_equations(program: Program) -> set[str]:
    """Return the equations in ``float32`` that become ``float64``, by name."""
    known = constant_tensors(program)
    wide, narrow, read = set[str](), set[str](), set[str]()
    for equation in reversed(program.equations):
        scope, name = equation.scope, equation.name
        own = {t.name for t in tensors(scope)}
        is_call = equation.via is not None and equation.via.is_library_call
        if (
            name in read - narrow - set(program.outputs)
            and not is_call
            and element_type(scope) == FLOAT32
            and (name in known or _is_arithmetic_of_integers(scope, known))
        ):
            wide.add(name)
        elif is_call or computing_type(scope) != WIDE:
            narrow |= own
        read |= own
    return wide


def _is_arithmetic_of_integers(scope: Scope, known: Collection[str]) -> bool:
    """Whether *scope* is element-wise arithmetic of integers and of tensors that are *known*."""
    exact = all(t.name in known or ELEMENT_TYPES[t.dtype].is_integer for t in tensors(scope))
    return exact and is_arithmetic(scope.body) and not any(inner.summations for _, inner in scopes(scope))


def _widened(scope: Scope) -> Scope:
    """Return *scope* with casts of what its functions, or its sum, take; a movement stays one."""
    match scope.body:
        case Access(Scope() as inner, index) if not scope.summations:
            return replace(scope, body=Access(_widened(inner), index))
        case Access() if not scope.summations:
            return scope
    return replace(scope, body=_cast(scope.body))


def _cast(body: Scalar) -> Scalar:
    """Return *body* in ``float64``; its integer parts stay integers up to there."""
    kind = ELEMENT_TYPES.get(scalar_type(body)) if accesses(body) else None
    match body:
        case _ if kind is None or kind.name == WIDE or kind.bits > _MAX_CAST_BITS:
            return body
        case Access(Scope() as inner, index) if not kind.is_integer:
            return Apply(WIDE, (Access(_widened(inner), index),))
        case Apply("select" | "where" as op, (condition, yes, no)) if not kind.is_integer:
            return Apply(op, (condition, _cast(yes), _cast(no)))
        case Apply(op, args) if not kind.is_integer and op not in ELEMENT_TYPES:
            new = tuple(map(_cast, args))
            return mul(*new) if op == "*" else add(*new) if op == "+" else Apply(op, new)
    return Apply(WIDE, (body,))
