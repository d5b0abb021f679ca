"""Numbers that are rounded to small integers: how they are recognised, and in which type they are computed.

An affine function of at most two bytes has few values.  Where ``float32`` gives the same integers as ``float64`` for
all of them, it takes its place: twice as many numbers fit into a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.language.values import F32, F64, Binary, Call, Cast, Expr, Literal, call, cast, literal

Array = npt.NDArray[np.float64]

STEPS = range(-2, 3)
"""Neighbours of a constant in ``float32`` that are tried: two numbers below it to two above."""

MIN = 2.0**-20
"""Constants that are not 0 are larger than this, and smaller than its reciprocal."""


def nearest_integer(e: Expr) -> tuple[Expr, float, float, float] | None:
    """Return (x, n, low, high) if *e* is x, rounded, plus n, between two numbers of at most 16 bits; else None."""
    match e:
        case Cast(kind, Call("minimum", (Call("maximum", (x, Literal(low))), Literal(high)))) if (
            kind.integer and kind.bits <= 16 and (whole := _shifted_rounding(x)) is not None
        ):
            return (*whole, low, high)
    return None


def _shifted_rounding(e: Expr) -> tuple[Expr, float] | None:
    """Return (x, n) if *e* is x of float32 or float64, rounded, plus an integer n; else None."""
    match e:
        case Call("round", (x,)) if x.type in (F32, F64):
            return x, 0.0
        case Binary("+", Literal(n), Call("round", (x,))) | Binary("+", Call("round", (x,)), Literal(n)) if x.type in (
            F32,
            F64,
        ) and n == int(n):
            return x, n
    return None


@lru_cache(1 << 10)
def round_in_single(e: Expr) -> Expr:
    """Return *e*, a number that is rounded to a small integer, in ``float32`` if that gives the same integers.

    It has to be an affine function, in ``float64``, of one or two integers of 8 bits; all their values are tried.
    """
    whole = nearest_integer(e)
    if whole is None or whole[0].type != F64:
        return e
    x, shift, low, high = whole
    leaves = tuple(dict.fromkeys(_bytes(x)))
    if not 1 <= len(leaves) <= 2 or x in leaves:
        return e
    axes = [np.arange(256.0) if leaf.type.kind == "uint" else np.arange(-128.0, 128) for leaf in leaves]
    exact = _evaluate(x, dict(zip(leaves, np.meshgrid(*axes, indexing="ij"), strict=True)))
    found = _single_constants(exact, axes, lambda y: np.clip(np.rint(y) + shift, low, high))
    if found is None:
        return e
    total: Expr = literal(found[0], F32)
    for factor, leaf in zip(found[1:], leaves, strict=True):
        total = call("fma", literal(factor, F32), cast(F32, leaf), total)
    rounded = call("round", total)
    rounded = literal(shift, F32) + rounded if shift else rounded
    return cast(e.type, call("minimum", call("maximum", rounded, literal(low, F32)), literal(high, F32)))


def _bytes(e: Expr, whole: Expr | None = None) -> tuple[Expr, ...]:
    """The integers of 8 bits that *e* is computed of by sums and products; *whole*, or *e*, stands for all else."""
    whole = e if whole is None else whole
    match e:
        case Literal():
            return ()
        case Cast(kind, arg) if kind == F64 and arg.type.integer and arg.type.bits == 8:
            return (arg,)
        case Binary("+" | "-" | "*" | "/", left, right):
            return (*_bytes(left, whole), *_bytes(right, whole))
    return (whole,)


def _evaluate(e: Expr, values: Mapping[Expr, Array]) -> Array:
    match e:
        case Cast(_, arg):
            return values[arg]
        case Binary(op, left, right):
            return _OPERATIONS[op](_evaluate(left, values), _evaluate(right, values))
    assert isinstance(e, Literal)
    return np.asarray(e.value, np.float64)


_OPERATIONS = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}


def _single_constants(
    exact: Array, axes: Sequence[Array], rounded: Callable[[Array], Array]
) -> tuple[float, ...] | None:
    """Return c and factors in ``float32``, whose fused sum c + Σ factor · byte is *rounded* as *exact* is.

    They are neighbours of those of the function; None if it is not affine, or no combination gives all integers.
    Constants have so many bits that the sums are exact in ``float64`` before they are rounded once.
    """
    start = (0,) * exact.ndim
    ends = [tuple(-1 if d == n else 0 for d in range(exact.ndim)) for n in range(exact.ndim)]
    factors = [float(exact[end] - exact[start]) / 255 for end in ends]
    const = float(exact[start]) - sum(k * axis[0] for k, axis in zip(factors, axes, strict=True))
    grid = np.meshgrid(*axes, indexing="ij")
    affine = const + sum(k * x for k, x in zip(factors, grid, strict=True))
    is_moderate = all(x == 0 or MIN < abs(x) < 1 / MIN for x in (const, *factors))
    if not is_moderate or not np.allclose(exact, affine, rtol=0, atol=1e-6):
        return None
    wanted = rounded(exact)
    for steps in sorted(product(STEPS, repeat=1 + exact.ndim), key=lambda s: sum(map(abs, s))):
        total, *ks = (_neighbour(x, n) for x, n in zip((const, *factors), steps, strict=True))
        made: Array = np.asarray(total)
        for k, x in zip(ks, grid, strict=True):
            made = (k * x + made).astype(np.float32).astype(np.float64)
        if np.array_equal(rounded(made), wanted):
            return (total, *ks)
    return None


def _neighbour(value: float, steps: int) -> float:
    """The number of ``float32`` that is *steps* after the nearest one to *value*; 0 has none."""
    found = np.float32(value)
    for _ in range(abs(steps) if value else 0):
        found = np.nextafter(found, np.float32(np.copysign(np.inf, steps)))
    return float(found)
