r"""Numbers that are rounded to small integers: how they are recognised, and in which type they are computed.

``float32`` takes the place of ``float64`` where it gives the same integers: twice as many numbers fit into a vector.
For an affine function of at most two bytes, all values are tried.  One of a 32-bit sum `S`, :math:`a S + b`, is rounded
to at most 256 integers from `l` on, and computed as

.. math::  t = h\,s + (c\,s + r), \quad s = S + k, \quad k = \lfloor o / a \rceil, \quad r = o - a k, \quad
   o = b - l + 256 + \tfrac12 - 2^{-16}

by two fused multiply-adds, where :math:`h + c = a` are two numbers of ``float32``.  `k` moves the numbers to 256 … 512,
where those of ``float32`` are :math:`2^{-15}` apart.  Ties are then halfway between two of them, and :math:`t`,
rounded, is on the side of a tie on which the number is, unless it is within some :math:`10^{-11}` of it: `r` is at most
half a step of the sum, so the inner sum is that exact, and `s` is an exact integer.  The bits above the fraction are
the integer.

Both are monotone in `S`, so they are the same for all sums if they are next to every tie, which is verified where
the constants are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.language.statements import walk_expression
from einnet_explore.codegen.language.values import (
    F32,
    F64,
    I32,
    Binary,
    Call,
    Cast,
    Expr,
    Literal,
    Load,
    call,
    cast,
    literal,
)

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
    exact = evaluate(x, dict(zip(leaves, np.meshgrid(*axes, indexing="ij"), strict=True)))
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


def evaluate(e: Expr, values: Mapping[Expr, Array], is_magnitude: bool = False) -> Array:
    """Return *e*, sums, products and quotients of expressions of known *values*, in float64 or as integers.

    *is_magnitude*: return a bound of the magnitude of it and of all its parts.
    """
    if e in values:
        return np.asarray(abs(values[e])) if is_magnitude else values[e]
    match e:
        case Cast(_, arg):
            return evaluate(arg, values, is_magnitude)
        case Binary(op, left, right):
            op = "+" if is_magnitude and op == "-" else "//" if op == "/" and e.type.integer else op
            return np.asarray(_OPERATIONS[op](*(evaluate(part, values, is_magnitude) for part in (left, right))))
        case Literal(value):
            return np.asarray(abs(value) if is_magnitude else value)
    raise ValueError(f"{e!r} is not computed of {', '.join(map(repr, values))}")


_OPERATIONS = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide, "%": np.remainder,
}  # fmt: skip


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


LEVELS, LEVEL_START = 256, 256
"""Integers that a sum may be rounded to, and the number in ``float32`` that stands for the first one."""

LEVEL_STEP = 1 << 15
"""Numbers of ``float32`` in an interval of 1 from ``LEVEL_START`` to twice of it."""

LEVEL_BITS = int(np.float32(LEVEL_START).view(np.int32))
"""The bits of ``LEVEL_START``."""

TIE_MARGIN, RELATIVE_TIE_MARGIN = 1e-11, 2.0**-23
"""A function whose numbers are next to a tie is not computed in ``float32``: the margin, and more as part of `a`.

They are larger than errors of ``float64``, however the function is evaluated, for numbers up to ``MAX_MAGNITUDE`` and
ten operations, and than those of `r` and of the inner sum: half a unit in the last place of `a` / 2 each, and 2e-12.
So it does not matter that fused operations are emulated in ``float64``, where results are rounded twice.
"""

MAX_MAGNITUDE, MAX_CANCELLATION = 1 << 11, 4
"""The largest number on the way to `b`, and the most that the parts of `a` are larger than it, all together."""

MAX_OFFSET = 1 << 24
"""The largest integer that is added to a sum: all smaller ones are numbers of ``float32``."""

MAX_TOGETHER = 128
"""Elements that are verified at a time, so that memory does not grow with their number."""

INTEGERS = np.iinfo(np.int32)


@dataclass(frozen=True)
class RoundedSum:
    """The integer *whole*: *x*, affine in the 32-bit integer *sum*, rounded, plus *shift*, from *low* to *high*."""

    whole: Cast
    x: Expr
    sum: Expr
    shift: int
    low: int
    high: int

    @property
    def first(self) -> int:
        """The integer that ``LEVEL_START`` stands for: 0 if possible, which takes an instruction less."""
        return 0 if self.low >= 0 and self.high < LEVELS else self.low

    @property
    def loads(self) -> tuple[Load, ...]:
        """The elements of arrays that the function is computed of, besides the sum."""
        return tuple(dict.fromkeys(_coefficients(self.x, self.sum)))

    def in_single(self, constants: Sequence[Expr]) -> Expr:
        """Return it in ``float32``, of the *constants* k, h, c and r."""
        offset, high, low, rest = constants
        ends = (literal(float(n), F32) for n in (self.low, self.high, self.first))
        return Cast(self.whole.kind, call("rounded_sum", high, cast(F32, self.sum) + offset, low, rest, *ends))

    def constants(self, values: Mapping[Load, Array]) -> npt.NDArray[np.float32]:
        """Return k, h, c and r for each element of *values*, as [4, element]: 0 where the integers are not the same."""
        size = max((len(a) for a in values.values()), default=1)
        parts = [
            self._verified({load: a[start : start + MAX_TOGETHER] for load, a in values.items()})
            for start in range(0, size, MAX_TOGETHER)
        ]
        return np.concatenate(parts, axis=1)

    def _verified(self, values: Mapping[Load, Array]) -> npt.NDArray[np.float32]:
        given: dict[Expr, Array] = {load: np.asarray(a, np.float64).reshape(-1, 1) for load, a in values.items()}

        def number(sums: Array, is_magnitude: bool = False) -> Array:
            return evaluate(self.x, {**given, self.sum: sums}, is_magnitude)

        with np.errstate(all="ignore"):
            start, end = number(np.zeros((1, 1))), number(np.full((1, 1), float(MAX_OFFSET)))
            factor = (end - start) / MAX_OFFSET
            least, most = number(np.zeros((1, 1)), True), number(np.full((1, 1), float(MAX_OFFSET)), True)
            is_moderate = (least < MAX_MAGNITUDE) & (most - least <= MAX_CANCELLATION * abs(end - start))
            made = self._single_constants(factor, start)
            is_same = self.agrees(number, factor, start, made) & is_moderate[:, 0]
        return np.where(is_same, made, np.float32(0))

    def _single_constants(self, factor: Array, start: Array) -> npt.NDArray[np.float32]:
        origin = start[:, 0] + (self.shift - self.first + LEVEL_START + 0.5 - 0.5 / LEVEL_STEP)
        offset = np.rint(origin / factor[:, 0])
        high = factor[:, 0].astype(np.float32)
        rest = origin - offset * factor[:, 0]
        return np.stack([offset, high, factor[:, 0] - high, rest]).astype(np.float32)

    def agrees(
        self, number: Callable[[Array], Array], factor: Array, start: Array, constants: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.bool_]:
        """Whether *constants* give the integers of *number*, the function of the sums, for every sum, by element.

        Both are monotone.  They are compared at two sums below and two above each tie, and at the ends: if the exact
        one changes between these, and nowhere else, and the other one is the same there, it is the same everywhere.
        """
        offset, high, low, rest = (c.astype(np.float64)[:, None] for c in constants)
        levels = np.arange(self.low + 1, self.high + 1, dtype=np.float64)
        ties = (levels - self.shift - 0.5 - start) / factor
        near = np.floor(ties)[..., None] + np.arange(-1, 3)
        ends = np.broadcast_to([float(INTEGERS.min), float(INTEGERS.max)], (len(ties), 2))
        sums = np.concatenate([near.reshape(len(ties), -1), ends], axis=1)
        sums = np.clip(np.nan_to_num(sums), INTEGERS.min, INTEGERS.max)
        exact = number(sums)
        wanted = np.clip(np.rint(exact) + self.shift, self.low, self.high)
        s = _single(_single(sums) + offset)
        bits = _single(high * s + _single(low * s + rest)).astype(np.float32).view(np.int32)
        found = np.clip((bits - LEVEL_BITS) // LEVEL_STEP + self.first, self.low, self.high)
        same = (found == wanted).all(1) & (wanted[:, -2:].min(1) == self.low) & (wanted[:, -2:].max(1) == self.high)
        at = exact[:, :-2].reshape(near.shape)
        tie = levels - self.shift - 0.5
        crossed = ((at[..., 0] < tie) != (at[..., -1] < tie)).all(1)
        margin = TIE_MARGIN + RELATIVE_TIE_MARGIN * abs(factor)
        apart = (abs(at - tie[:, None]) > margin[..., None]).all((1, 2))
        is_monotone = (abs(rest) <= abs(high))[:, 0] & (abs(low) <= abs(high) * 2.0**-24)[:, 0]
        is_moderate = (abs(offset) < MAX_OFFSET)[:, 0] & (abs(high) > MIN)[:, 0] & (abs(high) < 1 / MIN)[:, 0]
        return np.asarray(same & crossed & apart & is_monotone & is_moderate)


def _single(x: Array) -> Array:
    return np.asarray(x.astype(np.float32).astype(np.float64))


def rounded_sum(e: Expr, is_constant: Callable[[Expr], bool]) -> RoundedSum | None:
    """Return *e* as a rounded affine function of a 32-bit integer, with coefficients for which *is_constant*."""
    whole = nearest_integer(e)
    if whole is None or whole[0].type != F64:
        return None
    x, shift, low, high = whole
    sums = {
        part.arg
        for part in walk_expression(x)
        if isinstance(part, Cast) and part.kind == F64 and part.arg.type == I32 and not is_constant(part.arg)
    }
    if len(sums) != 1 or high - low >= LEVELS or not low < high:
        return None
    (varying,) = sums
    if _degree(x, varying) != 1 or not all(map(is_constant, _coefficients(x, varying))):
        return None
    assert isinstance(e, Cast)
    return RoundedSum(e, x, varying, int(shift), int(low), int(high))


def _degree(e: Expr, varying: Expr) -> int | None:
    """The degree, 0 or 1, of the polynomial *e* in *varying*; None if it is another function of it."""
    match e:
        case _ if e == varying:
            return 1
        case Literal() | Load():
            return 0
        case Cast(kind, arg) if kind == F64:
            return _degree(arg, varying)
        case Binary(op, left, right) if e.type == F64 and op in "+-*/":
            a, b = _degree(left, varying), _degree(right, varying)
            is_product = not any(isinstance(part, Binary) and part.op in "+-" for part in walk_expression(right))
            if a is None or b is None or (op == "/" and (b or not is_product)) or (op == "*" and a and b):
                return None
            return max(a, b)
    return None


def _coefficients(e: Expr, varying: Expr) -> Iterable[Load]:
    match e:
        case _ if e == varying:
            return
        case Load():
            yield e
        case Cast(_, arg):
            yield from _coefficients(arg, varying)
        case Binary(_, left, right):
            yield from (*_coefficients(left, varying), *_coefficients(right, varying))
