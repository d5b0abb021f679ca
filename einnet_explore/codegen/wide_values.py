"""Values that only arithmetic in ``float64`` reads: computed and stored in ``float64``.

An expression denotes a number.  Where all that read it compute in ``float64``, since they round to integers, an error
of ``float32`` in it would decide next to a tie.  Such values are constants (the scales and the biases of
requantisations, divided beforehand), and element-wise arithmetic of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
    rounds_numbers,
    scalar_type,
    scopes,
    tensors,
    walk_scalar,
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
    known, kept = constant_tensors(program), {e.name for e in program.equations if _is_call(e)} | set(program.outputs)

    def may_widen(equation: Equation) -> bool:
        scope = equation.scope
        is_known = equation.name in known or _is_arithmetic_of_integers(scope, known)
        return is_known and equation.name not in kept and element_type(scope) == FLOAT32

    return read_in_double_only(program, may_widen)


def read_in_double_only(program: Program, may_widen: Callable[[Equation], bool]) -> set[str]:
    """Return the equations that *may_widen* and that only arithmetic in ``float64`` reads, by name."""
    wide, narrow, read = set[str](), set[str](), set[str]()
    for equation in reversed(program.equations):
        own = {t.name for t in tensors(equation.scope)}
        if equation.name in read - narrow and may_widen(equation):
            wide.add(equation.name)
        elif _is_call(equation) or computing_type(equation.scope) != WIDE:
            narrow |= own
        read |= own
    return wide


def _is_call(equation: Equation) -> bool:
    return equation.via is not None and equation.via.is_library_call


def _is_arithmetic_of_integers(scope: Scope, known: Collection[str]) -> bool:
    """True if *scope* is element-wise arithmetic of integers and of tensors that are *known*."""
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


def rounds_computed_values(program: Program) -> bool:
    """True if *program* rounds numbers in floating point to integers that its equations compute.

    A runtime rounds each of them to ``float32`` first, so it gives other integers next to a tie.  The quotient of an
    input by a scale alone is one operation, which a runtime computes as it is defined.
    """
    computed = {equation.name for equation in program.equations} - constant_tensors(program)
    return any(
        rounds_numbers(equation.scope) and not computed.isdisjoint(t.name for t in tensors(equation.scope))
        for equation in program.equations
    )


def rounds_exactly(program: Program) -> bool:
    """True if kernels of *program* compute all that they round to integers in ``float64``, from its inputs on.

    Where a value in between is ``float32``, or a function such as ``exp`` is computed, errors decide next to a tie.
    """
    exact = {tensor.name for tensor in program.inputs}
    for equation in with_wide_values(program).equations:
        scope = equation.scope
        own = {tensor.name for tensor in tensors(scope)}
        if rounds_numbers(scope) and not (computing_type(scope) == WIDE and own <= exact):
            return False
        if element_type(scope) != FLOAT32 or (own <= exact and not _is_call(equation) and _is_selection(scope)):
            exact.add(equation.name)
    return True


_SELECTIONS = frozenset(("where", "select", "relu", "maximum", "minimum", "less", "less_equal", "equal"))


def _is_selection(scope: Scope) -> bool:
    """True if the elements of *scope* are elements that it reads, or constants."""
    return all(
        (not inner.summations or inner.reduce in ("max", "min"))
        and all(part.op in _SELECTIONS for part in walk_scalar(inner.body) if isinstance(part, Apply))
        for _, inner in scopes(scope)
    )
