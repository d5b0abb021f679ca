"""Weights of one program as products of weights of another, found by their elements.

A normalisation's scale that was folded into a convolution's weight is the product of two weights in the terms of the
program that was not folded.  Weights that were joined into one are pieces of it along an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from math import inf, isfinite, prod
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from einnet_explore.analysis.equations import constant_tensors
from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import flatten_product
from einnet_explore.equivalence.program_diff import inline_equations
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    Access,
    Apply,
    Const,
    Equation,
    Program,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
    scopes,
    tensors,
    terms,
    walk_scalar,
)
from einnet_explore.ir.program import with_body
from einnet_explore.onnx_import.known_arrays import select_by_mask
from einnet_explore.onnx_import.node_call import extent_iterators, ravel_index, unravel_index
from einnet_explore.pipeline.weight_sums import find_sum
from einnet_explore.runtime.arrays import Array
from einnet_explore.strategies.factoring import multiplied_out
from einnet_explore.support.errors import Refused

MAX_ROUNDING = 1e-5
"""Largest difference of a weight from its definition, relative to its largest element."""

EPSILON = 3e-7
"""Largest relative difference of a constant from its definition: some roundings to float32."""

PART = "M"
"""The name of a product of weights."""


@dataclass(frozen=True, slots=True)
class FoldedWeight:
    """A *weight* of one model alone as a function of weights of the other, and their largest relative difference.

    The weight may also be a constant, which is a product or quotient of the other model's constants.
    """

    weight: str
    definition: Scope
    error: float


def find_folded_weights(
    unknown: Mapping[str, Array], reference: Program, weight: Callable[[str], Array]
) -> Iterable[FoldedWeight]:
    """Yield a definition of each of the *unknown* weights that is a product of weights in a term of *reference*.

    *weight* returns the array of a weight of *reference*.
    """
    left = dict(unknown)
    for scope in weight_parts(reference):
        if not any(_may_hold(scope.shape, array.shape) for array in left.values()):
            continue
        given = {t.name: weight(t.name).astype(np.float64) for t in tensors(scope)}
        try:
            value = evaluate(scope, given, np.float64)
        except (ValueError, Refused):
            continue
        for name, array in tuple(left.items()):
            found = _axes_of(value, array) or _cut_of(value, array)
            if found is not None:
                axes, first, error = found
                yield FoldedWeight(name, _transposed(scope, axes, first, array.shape), error)
                del left[name]
                if value.size == array.size:
                    break


def find_summed_weights(
    unknown: Mapping[str, Array], reference: Program, weight: Callable[[str], Array]
) -> Iterable[FoldedWeight]:
    """Yield a definition of each of the *unknown* weights that is a sum of products of weights in *reference*.

    *weight* returns the array of a weight of *reference*.
    """
    limit = max(array.size for array in unknown.values())
    parts = list[tuple[Scope, Array]]()
    for scope in weight_parts(reference):
        if prod(scope.shape) <= limit:
            given = {t.name: weight(t.name).astype(np.float64) for t in tensors(scope)}
            with suppress(ValueError, Refused):
                parts.append((scope, evaluate(scope, given, np.float64)))
    for name, array in unknown.items():
        if array.dtype.kind == "f" and (found := find_sum(array, parts)) is not None:
            yield FoldedWeight(name, *found)


def find_joined_weights(unknown: Mapping[str, Array], pieces: Mapping[str, Array]) -> Iterable[FoldedWeight]:
    """Yield a definition of each of the *unknown* weights that consists of two or more *pieces* along one axis.

    A piece has the elements of a weight in their order, and may occur several times.
    """
    for name, array in unknown.items():
        found = next((made for axis in range(array.ndim) if (made := _pieces_along(array, axis, pieces))), None)
        if found is not None:
            yield FoldedWeight(name, found, 0.0)


def _pieces_along(array: Array, axis: int, pieces: Mapping[str, Array]) -> Scope | None:
    """Return *array* as a sum of padded *pieces* along *axis*, one after the other; None if there are none."""
    xs = extent_iterators(array.shape)
    length, parts, done = array.shape[axis], list[Scalar](), 0
    while done < length:
        rest = array.take(range(done, length), axis)
        found = next((name for name, piece in pieces.items() if _begins(rest, axis, piece)), None)
        if found is None or pieces[found].size == array.size:
            return None
        shape, size = pieces[found].shape, pieces[found].size * length // array.size
        part = (*array.shape[:axis], size, *array.shape[axis + 1 :])
        zs = extent_iterators(part)
        elements = Tensor(found, shape, weight=True)[unravel_index(ravel_index(zs, part), shape)]
        around = tuple((done, length - done - size) if n == axis else (0, 0) for n in range(array.ndim))
        index = tuple(x - done if n == axis else as_index(x) for n, x in enumerate(xs))
        parts.append(Access(Scope(zs, (), elements, padding=around), index))
        done += size
    return Scope(xs, (), add(*parts))


def _begins(array: Array, axis: int, piece: Array) -> bool:
    """Whether *array* begins with the elements of *piece* along *axis*."""
    across = array.size // array.shape[axis]
    size = piece.size // across
    fits = 0 < size <= array.shape[axis] and array.flat[0] == piece.flat[0]
    return fits and np.array_equal(array.take(range(size), axis).reshape(-1), piece.reshape(-1))


@lru_cache(256)
def weight_parts(program: Program) -> tuple[Scope, ...]:
    """Return the products of weights in the terms of *program*, multiplied out, and the sums of terms of weights alone.

    Each is a scope over weights alone.
    """
    found: dict[Scope, None] = {}
    for derivation in multiplied_out(program):
        step = derivation.end
        constant = constant_tensors(step)
        made = tuple(e for e in step.equations if e.name in constant)
        for equation in step.equations:
            for _, scope in scopes(equation.scope) if equation.name not in constant else ():
                for part in _constant_parts(scope, constant):
                    whole = Program(step.inputs, (*made, Equation(PART, part)), (PART,))
                    found[inline_equations(whole, ())[PART]] = None
    return tuple(found)


def _constant_parts(scope: Scope, constant: frozenset[str]) -> Iterable[Scope]:
    """Yield the product of the *constant* factors of each term of *scope*, their divisors, and the constant terms."""
    alone = list[Scalar]()
    for term in terms(scope.body):
        flat = flatten_product(term, scope.traversals, scope.summations)
        known = [part for part in flat.parts if _reads(part) <= constant]
        varying = {x for part in flat.parts if part not in known for x in iterators_of(part)}
        if not varying and not scope.summations:
            alone.append(term)
        elif any(map(_reads, known)):
            body = mul(*flat.constants, *known)
            summed = tuple(x for x in flat.summations if x in iterators_of(body) - varying)
            every = (*scope.traversals, *flat.summations)
            yield Scope(tuple(x for x in every if x in iterators_of(body) and x not in summed), summed, body)
        for part in known:
            match part:
                case Apply("/", (_, divisor)) if _reads(divisor):
                    yield Scope(tuple(x for x in scope.traversals if x in iterators_of(divisor)), (), divisor)
    if alone:
        body = add(*alone)
        yield Scope(tuple(x for x in scope.traversals if x in iterators_of(body)), (), body)


def _reads(body: Scalar) -> set[str]:
    """The tensors that *body* reads, those in nested scopes included."""
    return {t.name for t in tensors(Scope((), (), body))}


def find_folded_constants(unknown: Iterable[float], known: Iterable[float]) -> Mapping[float, Scalar]:
    """Return each of the *unknown* constants that is one of the *known*, a reciprocal, a product or a quotient.

    The first of these is taken.
    """
    given = sorted(value for value in set(known) if isfinite(value) and value)
    made: list[tuple[float, Scalar]] = [(a, Const(a)) for a in given]
    made += [(1 / a, Apply("/", (Const(1), Const(a)))) for a in given]
    made += [(a * b, Apply("*", (Const(a), Const(b)))) for a in given for b in given if a <= b]
    made += [(a / b, Apply("/", (Const(a), Const(b)))) for a in given for b in given]
    found: dict[float, Scalar] = {}
    for value in set(unknown).difference(given):
        if isfinite(value) and value != int(value):
            form = next((form for about, form in made if abs(value - about) <= EPSILON * abs(value)), None)
            if form is not None:
                found[value] = form
    return found


def constants_of(scope: Scope) -> Iterable[float]:
    """Yield the constants in the bodies of *scope* and of its nested scopes."""
    for _, inner in scopes(scope):
        yield from (part.value for part in walk_scalar(inner.body) if isinstance(part, Const))


def with_constants(scope: Scope, new: Mapping[float, Scalar]) -> Scope:
    """Return *scope* with other scalars in place of some constants."""
    return _map_scalars(scope, lambda part: new.get(part.value, part) if isinstance(part, Const) else part)


def with_elements(scope: Scope, elements: Mapping[str, float]) -> Scope:
    """Return *scope* with the *elements* of weights that have only one as constants."""

    def change(part: Scalar) -> Scalar:
        match part:
            case Access(Tensor(name) as tensor) if name in elements and not tensor.padding:
                return Const(elements[name])
        return part

    return _map_scalars(scope, change)


def in_basic_functions(scope: Scope) -> Scope:
    """Return *scope* with reciprocal square roots and sigmoids as quotients, as exporters write them by parts."""

    def change(part: Scalar) -> Scalar:
        match part:
            case Apply("rsqrt", args):
                return Apply("/", (Const(1), Apply("sqrt", args)))
            case Apply("sigmoid", (x,)):
                return Apply("/", (Const(1), add(Const(1), Apply("exp", (Apply("neg", (x,)),)))))
        return part

    return _map_scalars(scope, change)


def find_masks(weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return those of *weights* that mask: of 0 and minus infinity or 1, or matrices of 0, where nothing is masked."""
    return {name: array for name, array in weights.items() if array.dtype.kind == "f" and _is_mask(array)}


def _is_mask(array: Array) -> bool:
    least, most = float(array.min(initial=inf)), float(array.max(initial=-inf))
    if least == most == 0:
        return bool(sum(n > 1 for n in array.shape) > 1)
    other = least if least < 0 else most
    return least in (-inf, 0) and other in (-inf, 1) and bool(np.all((array == 0) | (array == other)))


def with_conditions(scope: Scope, masks: Mapping[str, Array]) -> Scope:
    """Return *scope* with conditions in place of *masks*: weights of 0 and -∞ that are added, or of 0 and 1.

    The latter are factors where nothing is summed.  Masks that ``select_by_mask`` refuses stay.  A finite
    number plus minus infinity is minus infinity, and times 0 it is 0.
    """

    def change(part: Scalar) -> Scalar:
        match part:
            case Apply("+", args):
                return _selected(part, args, masks, -inf)
            case Apply("*", args) if not scope.summations:
                return _selected(part, args, masks, 0)
        return part

    return _map_scalars(scope, change)


def _selected(whole: Scalar, args: tuple[Scalar, ...], masks: Mapping[str, Array], masked: float) -> Scalar:
    """Return the sum or product *whole* of *args* with a condition in place of a mask that makes it *masked*."""
    join, kept = (mul, 1) if masked == 0 else (add, 0)
    for n, arg in enumerate(args):
        match arg:
            case Access(Tensor(name) as mask, index) if name in masks and not mask.padding:
                if {masks[name].min(), masks[name].max()} <= {masked, kept}:
                    with suppress(Refused):
                        return select_by_mask(
                            masks[name] == kept, index, join(*args[:n], *args[n + 1 :]), Const(masked)
                        )
    return whole


def _map_scalars(scope: Scope, change: Callable[[Scalar], Scalar]) -> Scope:
    def within(body: Scalar) -> Scalar:
        match body:
            case Apply(op, args):
                return change(Apply(op, tuple(map(within, args))))
            case Access(Scope() as inner, index):
                return Access(_map_scalars(inner, change), index)
        return change(body)

    return with_body(scope, within(scope.body))


Axes: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...], float]"
"""Axes of an array, where they begin, and an error."""


def _may_hold(shape: tuple[int, ...], part: tuple[int, ...]) -> bool:
    """Return whether an array of *shape* has as many elements as one of shape *part*, or one axis of another extent."""
    if prod(shape) == prod(part):
        return True
    mine, theirs = ([n for n in sizes if n > 1] for sizes in (shape, part))
    return len(mine) == len(theirs) and sum(a != b for a, b in zip(mine, theirs, strict=True)) == 1


def _cut_of(value: Array, weight: Array) -> Axes | None:
    """The axes of *value* longer than 1, and where *weight* is a piece of it along one of them; None if it is none."""
    axes, held, want = _long_axes(value, weight)
    if held.ndim != want.ndim or sum(a != b for a, b in zip(held.shape, want.shape, strict=True)) != 1:
        return None
    axis = next(n for n in range(held.ndim) if held.shape[n] != want.shape[n])
    if not 0 < want.shape[axis] <= held.shape[axis]:
        return None
    line, wanted = (np.moveaxis(each, axis, -1).reshape(-1, each.shape[axis])[0] for each in (held, want))
    apart = np.abs(sliding_window_view(line, wanted.size) - wanted).max(axis=1)
    for first in np.flatnonzero(apart <= MAX_ROUNDING * np.abs(want).max()):
        error = _rounding(held.take(range(first, first + want.shape[axis]), axis), want)
        if error is not None:
            return axes, tuple(int(first) if n == axis else 0 for n in range(held.ndim)), error
    return None


def _axes_of(value: Array, weight: Array) -> Axes | None:
    """The axes of *value* in the order of the axes of *weight* longer than 1, and the error; None if it differs."""
    axes, held, want = _long_axes(value, weight)
    if held.size != want.size or _rounding(np.sort(held, axis=None), np.sort(want, axis=None)) is None:
        return None
    for order in permutations(range(len(axes))):
        if tuple(held.shape[n] for n in order) == want.shape:
            error = _rounding(held.transpose(order), want)
            if error is not None:
                return tuple(axes[n] for n in order), (0,) * len(order), error
    return None


def _long_axes(value: Array, weight: Array) -> tuple[tuple[int, ...], Array, Array]:
    """The axes of *value* longer than 1, and both arrays without the others."""
    axes = tuple(n for n, size in enumerate(value.shape) if size > 1)
    want = weight.astype(np.float64).reshape([n for n in weight.shape if n > 1])
    return axes, value.reshape([value.shape[n] for n in axes]), want


def _rounding(held: Array, want: Array) -> float | None:
    """The largest difference, relative to the largest element of *want*; None if rounding does not explain it."""
    largest = float(np.abs(want).max(initial=0))
    error = float(np.abs(held - want).max(initial=0))
    if not error <= MAX_ROUNDING * largest:
        return None
    return error / largest if largest else 0.0


def _transposed(scope: Scope, axes: tuple[int, ...], first: tuple[int, ...], shape: tuple[int, ...]) -> Scope:
    """*scope*, read with its *axes* in this order from *first* on, as a scope of *shape*."""
    xs = extent_iterators(shape)
    long = [x for x in xs if x.extent > 1]
    place = {axis: x + start for axis, x, start in zip(axes, long, first, strict=True)}
    index = tuple(place[n] + lo if n in place else lo for n, (lo, _) in enumerate(scope.box))
    return Scope(xs, (), Access(scope, tuple(map(as_index, index))))
