"""Random inputs of samples: integers, and reals of all signs and magnitudes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einnet_explore.interpreter.exact_arrays import Array
from einnet_explore.ir import ELEMENT_TYPES, Scope, Tensor, tensors

Draw = Callable[[np.random.Generator, tuple[int, ...], Array], Array]


def tensors_of_pair(pair: tuple[Scope, Scope]) -> tuple[Tensor, ...]:
    """Return the tensors that either scope reads, each once."""
    return tuple(dict.fromkeys((*tensors(pair[0]), *tensors(pair[1]))))


def random_integers(before: Scope, after: Scope, random: np.random.Generator, most: int) -> dict[str, Any]:
    """Draw random integers in [-most, most] for every tensor that either scope reads, within its type."""
    drawn = {t.name: (t, random.integers(-most, most + 1, t.shape)) for t in tensors_of_pair((before, after))}
    return {name: within_type(t, np.asarray(array)) for name, (t, array) in drawn.items()}


def within_type(tensor: Tensor, array: Array) -> Array:
    """Return *array* as elements of *tensor*: unchanged, or integers of its type."""
    kind = ELEMENT_TYPES[tensor.dtype]
    if not kind.is_integer:
        return array
    found = np.rint(array)
    inside = np.clip(found, kind.low, kind.high)
    # Small types wrap, so that large inputs reach all elements and not the ends only.
    wrapped = (found - kind.low) % (kind.high - kind.low + 1) + kind.low if kind.bits <= 32 else inside
    return np.asarray(np.where(np.isfinite(found), wrapped, inside).astype(array.dtype))


def put_peak(given: dict[str, Any], indices: tuple[tuple[int, ...], ...], value: int) -> None:
    """Write *value* at all coordinates of *indices*, or parts of them, that lie in a tensor."""
    for array in given.values():
        for index in indices:
            for n in range(len(index) - array.ndim + 1):
                part = index[n : n + array.ndim]
                if all(0 <= i < extent for i, extent in zip(part, array.shape, strict=True)):
                    array[part] = value


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


def draw_reals(
    draws: Sequence[Draw], pair: tuple[Scope, Scope], random: np.random.Generator, constants: Array
) -> dict[str, Array]:
    """Draw samples for each tensor that either scope reads, one for each of *draws*.

    ``_equal`` draws the same number for all tensors.
    """
    seeds = [int(seed) for seed in random.integers(1 << 32, size=len(draws))]
    return {
        t.name: np.stack(
            [
                within_type(t, draw(np.random.default_rng(seed if draw is _equal else (seed, n)), t.shape, constants))
                for draw, seed in zip(draws, seeds, strict=True)
            ]
        )
        for n, t in enumerate(tensors_of_pair(pair))
    }
