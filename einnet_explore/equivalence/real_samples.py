r"""Samples of real functions: inputs of all magnitudes, many in one evaluation, and mutants that must be distinguished.

A sample is evidence only for the operands on which it depends.  In :math:`e^{10^{10} a} + b` the second operand is lost
to rounding or overflow at almost all inputs.  Therefore each operand of a sum is left out in turn, and each constant is
changed a little; agreement counts if, for every such mutant, some decisive sample differs from the original.  The last
digits of a constant make no difference: constants with many digits must occur on both sides.  Functions are left out as
well, since :math:`\tanh x` is :math:`x` to the last digit where `x` is small.

A pole is reached by few inputs.  Each partial function is therefore replaced by a total one; some sample must be
undefined in both programs because of this function alone: the mutant is defined there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import isfinite
from typing import TypeAlias

import numpy as np

from einnet_explore.equivalence.value_bounds import is_positive, value_range
from einnet_explore.interpreter.double_precision import SMALLEST_PRECISE
from einnet_explore.interpreter.exact_arrays import Array
from einnet_explore.interpreter.running_error import BoundedValue
from einnet_explore.ir import (
    Access,
    Apply,
    Const,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    as_index,
    map_accesses,
    scopes,
    tensors,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS

RELATIVE_CHANGE = 1e-7
"""The change of a constant that samples must tell."""


def is_precise(value: float) -> bool:
    """Whether *value* has more digits than samples tell: two others differ by more than ``RELATIVE_CHANGE``."""
    top, bottom = value.as_integer_ratio()
    return abs(top) > 1 << 20 or bottom > 1 << 10


_SAMPLE = "sample "
"""The name of the iterator over samples, which no parsed program has."""


def batch_samples(scope: Scope, count: int) -> Scope:
    """Return *count* samples of *scope* as one scope: a leading dimension of all tensors, scopes and results."""
    sample = Iterator(_SAMPLE, 0, count)

    def add_dimension(access: Access) -> Scalar:
        match access.source:
            case Table():
                return access
            case Tensor() as source:
                origin = (0, *source.origin) if source.origin else ()
                wider: Tensor | Scope = replace(
                    source, shape=(count, *source.shape), padding=_pad(source.padding), origin=origin
                )
            case Scope() as source:
                wider = batch_samples(source, count)
        return Access(wider, (as_index(sample), *access.index))

    return replace(
        scope,
        traversals=(sample, *scope.traversals),
        body=map_accesses(scope.body, add_dimension),
        padding=_pad(scope.padding),
    )


def _pad(padding: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return ((0, 0), *padding) if padding else ()


Mutant: TypeAlias = "tuple[str, Scope]"
"""What is changed, and the changed scope."""

Change: TypeAlias = "Callable[[Scalar], Iterable[tuple[str, Scalar]]]"


def drop_operands(scalar: Scalar) -> Iterable[tuple[str, Scalar]]:
    """Yield a sum or difference without each of its operands."""
    match scalar:
        case Apply("+" | "-" as op, args):
            for n, arg in enumerate(args):
                if value_range(arg) != (0, 0):
                    yield f"the operand {arg!r}", _without(op, args[:n], args[n + 1 :])


def change_constant(scalar: Scalar) -> Iterable[tuple[str, Scalar]]:
    """Yield a constant with other digits."""
    match scalar:
        case Const(value) if value and isfinite(value):
            yield f"the digits of {value:g}", Const(value * (1 + RELATIVE_CHANGE))


def drop_functions(scalar: Scalar) -> Iterable[tuple[str, Scalar]]:
    """Yield the argument of a function that has no kink."""
    match scalar:
        case Apply(op, (arg,)) if op != "neg" and not SCALAR_FUNCTIONS[op].has_kink:
            yield f"the function in {scalar!r}", arg


def drop_poles(scalar: Scalar) -> Iterable[tuple[str, Scalar]]:
    """Yield the first argument of a function that is undefined at some of its arguments, for example a numerator."""
    if isinstance(scalar, Apply) and _may_be_undefined(scalar):
        yield f"the pole of {scalar!r}", scalar.args[0]


def _may_be_undefined(scalar: Apply) -> bool:
    match scalar:
        case Apply("/", (_, b)):
            return not isinstance(b, Const) and value_range(b)[1] >= 0 and not is_positive(b)
        case Apply("pow", (a, b)):
            whole = isinstance(b, Const) and b.value == int(b.value)
            return (value_range(b)[0] < 0 and not is_positive(a)) or (not whole and value_range(a)[0] < 0)
        case Apply("sqrt", (a,)):
            return value_range(a)[0] < 0
        case Apply(op, (a, *_)):
            return SCALAR_FUNCTIONS[op].has_pole and not is_positive(a)
    return False


def mutants(scope: Scope, change: Change) -> Iterable[Mutant]:
    """Yield *scope* with one *change* at one place of it or of a nested scope."""
    for text, body in _scalar_mutants(scope.body, change):
        yield text, replace(scope, body=body)


def _scalar_mutants(body: Scalar, change: Change) -> Iterable[tuple[str, Scalar]]:
    yield from change(body)
    match body:
        case Access(Scope() as source, index):
            for text, inner in mutants(source, change):
                yield text, Access(inner, index)
        case Apply(op, args):
            for n, arg in enumerate(args):
                for text, changed in _scalar_mutants(arg, change):
                    yield text, Apply(op, (*args[:n], changed, *args[n + 1 :]))


def _without(op: str, before: tuple[Scalar, ...], after: tuple[Scalar, ...]) -> Scalar:
    """Return a sum or difference without the operand between *before* and *after*."""
    rest = (*before, *after)
    if op == "-" and not before:
        return Apply("neg", rest)
    return rest[0] if len(rest) == 1 else Apply(op, rest)


def compare_bounded(left: BoundedValue, right: BoundedValue) -> tuple[Array, Array]:
    """Return where the values agree or nothing is known, and where their agreement has at least nine digits."""
    error = left.error + right.error
    known = np.isfinite(error)
    largest = np.maximum(np.abs(left.value), np.abs(right.value))
    with np.errstate(all="ignore"):
        same = (left.value == right.value) | (np.abs(left.value - right.value) <= 4 * error + SMALLEST_PRECISE)
    undefined = np.isnan(left.value) & np.isnan(right.value)
    decisive = (
        known & same & np.isfinite(largest) & ((error <= 1e-9 * largest) & (largest > SMALLEST_PRECISE) | (error == 0))
    )
    return ~known | undefined | same, decisive


Draw = Callable[[np.random.Generator, tuple[int, ...], Array], Array]


def _powers(low: float, high: float, signs: tuple[float, ...] = (-1.0, 1.0)) -> Draw:
    """Draw magnitudes from 10^low to 10^high, log-uniform, with one of *signs*."""

    def draw(random: np.random.Generator, shape: tuple[int, ...], _: Array) -> Array:
        return np.asarray(random.choice(signs, shape) * 10.0 ** random.uniform(low, high, shape))

    return draw


def _equal(random: np.random.Generator, shape: tuple[int, ...], _: Array) -> Array:
    """Draw one number for all elements."""
    return np.full(shape, random.normal())


def _near_constants(random: np.random.Generator, shape: tuple[int, ...], constants: Array) -> Array:
    """Draw numbers next to zero and the constants of the scopes, of both signs."""
    return _special(random, shape, constants) + random.normal(0, 1.5, shape)


def _mixed(random: np.random.Generator, shape: tuple[int, ...], constants: Array) -> Array:
    """Draw zeros and ones, moderate numbers, and numbers next to constants."""
    near = _near_constants(random, shape, constants)
    some = np.where(random.random(shape) < 0.5, near, random.normal(0, 2, shape))
    return np.asarray(np.where(random.random(shape) < 0.2, np.round(some), some))


def _special(random: np.random.Generator, shape: tuple[int, ...], constants: Array) -> Array:
    """Draw zeros, ones, and the constants of the scopes, of both signs."""
    return np.asarray(
        random.choice(np.concatenate([[0.0, 1.0, 0.5, 2.0], constants]), shape) * random.choice([-1.0, 1.0], shape)
    )


REAL_INPUTS: tuple[Draw, ...] = (
    lambda random, shape, _: np.asarray(random.uniform(1, 2, shape)),
    _powers(-1, 1),
    _powers(-2, 2, (1.0,)),
    _special,
    _powers(1, 2.8),
    _powers(-6, -2),
    lambda random, shape, _: np.asarray(-random.uniform(0.1, 3, shape)),
    _equal,
    _powers(2, 8),
    lambda random, shape, _: np.asarray(random.normal(0, 2, shape) * (random.random(shape) < 0.6)),
    _near_constants,
    _near_constants,
    _mixed,
    _mixed,
)
"""Inputs: moderate, wide, positive, special, large, small, negative, equal, huge, some zero, near constants, mixed."""


def draw_inputs(
    draws: Sequence[Draw], pair: tuple[Scope, Scope], random: np.random.Generator, constants: Array
) -> dict[str, Array]:
    """Draw samples for each tensor that either scope reads, one for each of *draws*.

    ``_equal`` draws the same number for all tensors.
    """
    seeds = [int(seed) for seed in random.integers(1 << 32, size=len(draws))]
    return {
        t.name: np.stack(
            [
                draw(np.random.default_rng(seed if draw is _equal else (seed, n)), t.shape, constants)
                for draw, seed in zip(draws, seeds, strict=True)
            ]
        )
        for n, t in enumerate(tensors_of(pair))
    }


def tensors_of(pair: tuple[Scope, Scope]) -> tuple[Tensor, ...]:
    """Return the tensors that either scope reads, each once."""
    return tuple(dict.fromkeys((*tensors(pair[0]), *tensors(pair[1]))))


def constants_of(scope: Scope) -> Iterable[float]:
    """Yield the finite constants of *scope* and its nested scopes."""
    parts = (part for _, each in scopes(scope) for part in walk_scalar(each.body))
    return (float(part.value) for part in parts if isinstance(part, Const) and isfinite(part.value))
