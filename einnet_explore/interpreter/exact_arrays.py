"""Array arithmetic, exact on integers: int64 where a bound on the magnitude proves no overflow, else Python ints.

A ``Part`` is an array with a bound on its integer entries.  Float arrays follow NumPy and ignore the bound.
``RealNumbers`` computes with them; ``PrimeField`` computes with residues modulo the prime :math:`p = 2^{31}-1`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from math import isinf, isnan, prod
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt
from scipy import special

from einnet_explore.interpreter.numbers import simplest_fraction
from einnet_explore.ir import ELEMENT_TYPES, Const, Scalar, Scope, Table
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS, ScalarFunction

Array: TypeAlias = "npt.NDArray[Any]"

_INFINITY = float("inf")
INT64_BOUND = 1 << 62
"""Integers below this bound are stored as int64."""
FLOAT64_BOUND = 1 << 53
"""Integers up to this are exact in float64, so that sums below it may go through a float matrix product."""

PRIME = (1 << 31) - 1
Residue: TypeAlias = "Callable[[float | Fraction], int]"
"""The residue of a constant."""

LOW, HIGH = -1, PRIME
"""Representatives of the infinities, which only maxima and minima may read."""

_LIMB_BITS = 16
_MAX_TERMS = 1 << 20
"""Products of limbs whose sum is exact in float64: 2³² · 2²⁰ < 2⁵³."""


class _ArrayFunctions:
    """NumPy's functions, and the special functions of SciPy."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name) if hasattr(np, name) else getattr(special, name)


ARRAYS = _ArrayFunctions()
"""The library with which the table of scalar functions computes on arrays."""


class Part(NamedTuple):
    """An array and a bound on the magnitude of its integer entries."""

    array: Array
    size: int


Value: TypeAlias = "tuple[Part, ...]"
"""Numbers at the points of a grid: one array, or several where each number has an error bound."""


@dataclass(frozen=True, slots=True)
class RealNumbers:
    """Exact integers and rationals (*dtype* None), or floating-point numbers of *dtype*."""

    dtype: np.dtype[Any] | None = None

    def input(self, name: str, array: Array) -> Value:
        """Return an input's array; raises ValueError for a non-integer in an exact evaluation."""
        return (_integers(name, array) if self.dtype is None else Part(array.astype(self.dtype, copy=False), 0),)

    def constant(self, value: float) -> Value:
        if self.dtype is not None:
            return (Part(np.asarray(value, self.dtype), 0),)
        if isinstance(value, int) or (math.isfinite(value) and value == int(value)):
            exact = int(value)
            return (Part(np.asarray(exact, np.int64 if abs(exact) < INT64_BOUND else object), abs(exact)),)
        return (Part(np.asarray(value, np.float64), 0),)

    def table(self, table: Table) -> Value:
        shape, entries = table.shape, table.entries
        if self.dtype is not None:
            return (Part(np.array([float(x) for x in entries], self.dtype).reshape(shape), 0),)
        whole = all(x.denominator == 1 for x in entries)
        array = np.empty(len(entries), object)
        array[:] = [int(x) for x in entries] if whole else list(entries)
        array = array.reshape(shape)
        return (_integers("a table", array) if whole else Part(array, INT64_BOUND),)

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        return (_apply(op, [part for (part,) in values]),)

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        (part,) = value
        present = tuple(i for i in axes if part.array.shape[i] != 1)
        if monoid == "prod":
            part, count = _product(part, present), absent_extent(value, axes, extents)
            return (part if count == 1 else _power(part, *self.constant(count)),)
        best = np.max if monoid == "max" else np.min
        return (Part(best(part.array, axis=present, keepdims=True), part.size) if present else part,)

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        parts = [part for (part,) in factors]
        out, count = contract_factors(parts, axes), absent_extent(parts, axes, extents)
        out = sum_over(out, tuple(i for i in axes if out.array.shape[i] != 1))
        return (out if count == 1 else _multiply(out, *self.constant(count)),)

    def add(self, a: Value, b: Value) -> Value:
        return (_add(*a, *b),)

    def negate(self, a: Value) -> Value:
        return (_apply("neg", a),)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return reduced


def absent_extent(parts: Sequence[Part], axes: range, extents: Sequence[int]) -> int:
    """Return the number of points over those of *axes* along which all *parts* are constant."""
    return math.prod(extents[i] for i in axes if all(p.array.shape[i] == 1 for p in parts))


def contract_factors(
    factors: Sequence[Part],
    axes: range,
    contract: Callable[[Part, Part, frozenset[int]], Part] | None = None,
) -> Part:
    """Multiply *factors* pairwise and sum each of *axes* once its last factor is in; a lone factor is not summed."""
    contract = contract or contract_pair
    out = factors[0]
    for n, factor in enumerate(factors[1:], 2):
        out = contract(out, factor, frozenset(i for i in axes if all(f.array.shape[i] == 1 for f in factors[n:])))
    return out


def _integers(name: str, array: Array) -> Part:
    """Return integer entries with their bound; raises ValueError for a non-integer (infinities are allowed)."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        odd = array[np.isfinite(array) & (array != np.floor(array)) | np.isnan(array)]
        if odd.size:
            raise ValueError(f"exact evaluation needs integers: {name} holds {odd.flat[0]:g}")
        if not np.isfinite(array).all():
            return Part(array.astype(np.float64), 0)
    elif array.dtype.kind == "O":
        strange = next(
            (v for v in array.flat if v not in (_INFINITY, -_INFINITY) and (math.isnan(v) or v != int(v))), None
        )
        if strange is not None:
            raise ValueError(f"exact evaluation needs integers: {name} holds {strange}")
        if any(v in (_INFINITY, -_INFINITY) for v in array.flat):
            return Part(array, INT64_BOUND)
    elif array.dtype.kind not in "biu":
        raise ValueError(f"exact evaluation needs integers: {name} has type {array.dtype}")
    size = max(abs(int(array.min())), abs(int(array.max()))) if array.size else 0
    if size < INT64_BOUND:
        return Part(array.astype(np.int64), size)
    # Python ints throughout: NumPy ones among objects overflow
    return Part(np.asarray([int(v) for v in array.flat], object).reshape(array.shape), size)


def common_dtype(parts: Sequence[Part]) -> tuple[list[Array], int]:
    """Convert the arrays to one dtype that represents all entries exactly; return them and the larger bound."""
    size = max(p.size for p in parts)
    kinds = {p.array.dtype.kind for p in parts}
    if "i" in kinds and ("O" in kinds or ("f" in kinds and size > FLOAT64_BOUND)):
        return [_objects(p.array) for p in parts], size
    common = np.result_type(*(p.array.dtype for p in parts))
    return [p.array.astype(common, copy=False) for p in parts], size


def select_entries(mask: Array, a: Part, b: Part) -> Part:
    """Select *a* where *mask* is true and *b* elsewhere."""
    (x, y), size = common_dtype((a, b))
    return Part(np.where(mask, x, y), size)


def _add(a: Part, b: Part) -> Part:

    return _elementwise(np.add, (a, b), a.size + b.size)


def _subtract(a: Part, b: Part) -> Part:

    return _elementwise(np.subtract, (a, b), a.size + b.size)


def _multiply(a: Part, b: Part) -> Part:

    return _elementwise(np.multiply, (a, b), a.size * b.size)


def _power(a: Part, b: Part) -> Part:
    """Return a to the power b: exact for integers with b ≥ 0, else in floating point."""
    whole = a.array.dtype.kind in "iO" and b.array.dtype.kind == "i" and (not b.array.size or b.array.min() >= 0)
    if not whole:
        return Part(np.power(_floats(a), _floats(b)), 0)
    # 0, 1 and -1 stay small for every exponent; other entries are bounded by size to the largest exponent
    most = int(b.array.max()) if b.array.size else 0
    size = max(1, a.size) ** most if a.size <= 1 or most <= INT64_BOUND.bit_length() else INT64_BOUND
    return _elementwise(np.power, (a, b), max(size, 1))


def sum_over(a: Part, axes: tuple[int, ...]) -> Part:
    """Sum over *axes*, which keep extent 1."""
    size = a.size * math.prod(a.array.shape[i] for i in axes)
    return Part(_widen(a.array, size).sum(axis=axes, keepdims=True), size) if axes else a


def _product(a: Part, axes: tuple[int, ...]) -> Part:
    """Multiply over *axes*, which keep extent 1."""
    count = math.prod(a.array.shape[i] for i in axes)
    size = a.size**count if a.size <= 1 or count <= INT64_BOUND.bit_length() else INT64_BOUND
    size = max(size, 1)
    return Part(_widen(a.array, size).prod(axis=axes, keepdims=True), size) if axes else a


def contract_pair(a: Part, b: Part, axes: frozenset[int]) -> Part:
    """Return Σ a · b over *axes*, which keep extent 1; both arrays have one rank and are broadcastable.

    Axes of both arrays become the inner dimension of a (batched) matrix product; the others are summed before it.
    """
    x, y = a.array.shape, b.array.shape
    a = sum_over(a, tuple(i for i in sorted(axes) if y[i] == 1))
    b = sum_over(b, tuple(i for i in sorted(axes) if x[i] == 1))
    inner = tuple(i for i in sorted(axes) if x[i] != 1 and y[i] != 1)
    if not inner:
        return _multiply(a, b)
    rank = range(len(x))
    batch = tuple(i for i in rank if i not in axes and x[i] != 1 and y[i] != 1)
    left = tuple(i for i in rank if i not in axes and i not in batch and x[i] != 1)
    right = tuple(i for i in rank if i not in axes and i not in batch and i not in left)
    size = a.size * b.size * math.prod(x[i] for i in inner)
    (p, q), _ = common_dtype((a, b))
    ints = p.dtype.kind == "i"
    p, q = (
        (p.astype(np.float64), q.astype(np.float64))
        if ints and size < FLOAT64_BOUND
        else (_widen(p, size), _widen(q, size))
    )
    counts = [math.prod(max(x[i], y[i]) if x[i] and y[i] else 0 for i in g) for g in (batch, left, inner, right)]
    once = tuple(i for i in rank if i in axes and i not in inner)
    lhs = p.transpose(*batch, *left, *inner, *right, *once).reshape(counts[0], counts[1], counts[2])
    rhs = q.transpose(*batch, *inner, *right, *left, *once).reshape(counts[0], counts[2], counts[3])
    out = np.matmul(lhs, rhs)
    outer = (*batch, *left, *right)
    extents = tuple(y[i] if x[i] == 1 else x[i] for i in outer)
    order = (*outer, *inner, *once)
    out = out.reshape(*extents, *(1 for _ in range(len(inner) + len(once))))
    out = out.transpose(np.argsort(order))
    return Part(out.astype(np.int64) if ints and size < FLOAT64_BOUND else out, size)


def _apply(op: str, parts: Sequence[Part]) -> Part:
    """Apply *op* element by element; raises ValueError for an unknown operator."""
    match op, parts:
        case (("+" | "*"), _):
            return reduce(_add if op == "+" else _multiply, parts)
        case "-", (a, b):
            return _subtract(a, b)
        case "pow", (a, b):
            return _power(a, b)
    function = SCALAR_FUNCTIONS.get(op)
    if function and function.compute and len(parts) == function.arity:
        f = partial(function.compute, ARRAYS)
        if function.is_integral:
            return _elementwise(f, parts, max(p.size for p in parts))
        if function.is_rounding and parts[0].array.dtype.kind in "iO":
            return _round(function, parts[0])
        reals = [_floats(p) for p in parts]
        return Part(np.asarray(f(*reals)).astype(np.result_type(*reals), copy=False), 0)
    raise ValueError(f"operator {op} of {len(parts)} arguments: not one of the text form's functions")


def _round(function: ScalarFunction, a: Part) -> Part:
    """Round integers and rationals, or cast them, exactly."""
    kind = ELEMENT_TYPES.get(function.name)
    if a.array.dtype.kind == "i":
        most = a.size if kind is None else min(-kind.low, kind.high) if kind.is_integer else 1 << kind.digits
        if a.size <= most:
            return a
    found = np.asarray(np.frompyfunc(function.of_numbers, 1, 1)(_objects(a.array)), object)
    return Part(found, INT64_BOUND if kind is None else max(-kind.low, kind.high))


def _objects(array: Array) -> Array:
    return array if array.dtype.kind == "O" else array.astype(object)


def _floats(a: Part) -> Array:
    return a.array if a.array.dtype.kind == "f" else a.array.astype(np.float64)


def _widen(array: Array, size: int) -> Array:
    return _objects(array) if array.dtype.kind == "i" and size >= INT64_BOUND else array


def _elementwise(op: Callable[..., Any], parts: Sequence[Part], size: int) -> Part:
    """Apply *op* to parts; its integer results are at most *size*."""
    arrays = [_widen(array, size) for array in common_dtype(parts)[0]]
    # On 0-d arrays NumPy returns a scalar, and big integers must stay objects.
    return Part(np.asarray(op(*arrays), arrays[0].dtype), size)


def residue_value(residues: Array) -> Value:
    return (Part(residues, PRIME),)


def contract_residues(a: Array, b: Array, axes: frozenset[int]) -> Array:
    """Return Σ a · b over *axes* modulo ``PRIME``; residues are split into limbs, whose sums are exact in float64."""
    own = [tuple(i for i in axes if y.shape[i] == 1 != x.shape[i]) for x, y in ((a, b), (b, a))]
    a, b = (x.sum(axis=over, keepdims=True) % PRIME if over else x for x, over in zip((a, b), own, strict=True))
    inner = [i for i in axes if a.shape[i] != 1]
    if not inner:
        return a * b % PRIME
    if prod(a.shape[i] for i in inner) > _MAX_TERMS:
        i = max(inner, key=lambda i: a.shape[i])
        low, high = np.array_split(np.arange(a.shape[i]), 2)
        return (
            contract_residues(a.take(low, i), b.take(low, i), axes)
            + contract_residues(a.take(high, i), b.take(high, i), axes)
        ) % PRIME
    limbs = [
        [Part(x >> _LIMB_BITS, 1 << _LIMB_BITS), Part(x & ((1 << _LIMB_BITS) - 1), 1 << _LIMB_BITS)] for x in (a, b)
    ]
    high_low, low_low = [[contract_pair(x, y, axes).array for y in limbs[1]] for x in limbs[0]]
    top, middle = high_low[0] % PRIME, (high_low[1] + low_low[0]) % PRIME
    return ((top << _LIMB_BITS) % PRIME * (1 << _LIMB_BITS) + (middle << _LIMB_BITS) + low_low[1]) % PRIME


def field_power(a: Array, n: int) -> Array:
    """Return aⁿ modulo ``PRIME``, by repeated squaring."""
    out = np.ones_like(a)
    for bit in f"{n:b}":
        out = out * out % PRIME
        out = out * a % PRIME if bit == "1" else out
    return out


def residue_of(value: float | Fraction) -> int:
    """Return a constant as a residue: a fraction is a quotient in the field."""
    if isnan(value):
        raise ValueError("a constant is not a number")
    if isinf(value):
        return HIGH if value > 0 else LOW
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def rounded_residue_of(value: float | Fraction) -> int:
    """Return the residue of the simple fraction near *value*, or of *value* in twelve digits."""
    return residue_of(value if isnan(value) else simplest_fraction(value))


def require_finite(values: Iterable[Array]) -> None:
    """Raise ValueError if an operand contains an infinity."""
    for v in values:
        if v.size and (v.min() == LOW or v.max() == HIGH):
            raise ValueError("an infinity is calculated with modulo a prime")


@dataclass(frozen=True, slots=True)
class PrimeField:
    """Residues modulo ``PRIME``; *seed* draws the polynomials that stand for functions over the reals.

    *residue* is that of a constant.
    """

    seed: int
    residue: Residue = residue_of

    def constant(self, value: float) -> Value:
        return residue_value(np.asarray(self.residue(value), np.int64))

    def table(self, table: Table) -> Value:
        return residue_value(np.array([self.residue(x) for x in table.entries], np.int64).reshape(table.shape))

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        arrays = [part.array for (part,) in values]
        if op in ("maximum", "minimum"):
            return residue_value((np.maximum if op == "maximum" else np.minimum)(*arrays))
        require_finite(arrays)
        match op, arrays:
            case "+", _:
                return residue_value(reduce(lambda a, b: (a + b) % PRIME, arrays))
            case "*", _:
                return residue_value(reduce(lambda a, b: a * b % PRIME, arrays))
            case "-", [a, b]:
                return residue_value((a - b) % PRIME)
            case "neg", [a]:
                return residue_value(-a % PRIME)
            case "/", [a, b]:
                return residue_value(a * field_power(b, PRIME - 2) % PRIME)
        match args:
            case (_, Const(value)) if op == "pow" and 0 <= value == int(value):
                return residue_value(field_power(arrays[0], int(value)))
        return residue_value(self._random_polynomial(op, arrays))

    def _random_polynomial(self, op: str, arrays: list[Array]) -> Array:
        random = np.random.default_rng((self.seed, crc32(op.encode())))
        out = np.zeros_like(arrays[0]) + random.integers(PRIME)
        for v in arrays:
            a, b, c = random.integers(0, PRIME, 3)
            out = (out + ((a * v + b) % PRIME * v + c) % PRIME * v) % PRIME
        # the product tells f(x, y) from f(y, x) + f(x, x) - …, which a sum of one-argument polynomials does not
        return out if len(arrays) == 1 else (out + reduce(lambda a, b: a * b % PRIME, arrays)) % PRIME

    def reduce(self, monoid: str, value: Value, axes: range, extents: Sequence[int]) -> Value:
        array = value[0].array
        over = tuple(i for i in axes if array.shape[i] != 1)
        if monoid == "prod":
            require_finite([array])
            for i in over:
                array = reduce(lambda a, b: a * b % PRIME, (array.take([n], i) for n in range(array.shape[i])))
            return residue_value(field_power(array, absent_extent(value, axes, extents)))
        best = np.max if monoid == "max" else np.min
        return residue_value(best(array, axis=over, keepdims=True)) if over else value

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        parts = [part for (part,) in factors]
        require_finite(part.array for part in parts)
        out = contract_factors(
            parts, axes, lambda a, b, over: Part(contract_residues(a.array, b.array, over), PRIME)
        ).array
        over = tuple(i for i in axes if out.shape[i] != 1)
        return residue_value(
            out.sum(axis=over, keepdims=True) % PRIME * (absent_extent(parts, axes, extents) % PRIME) % PRIME
        )

    def add(self, a: Value, b: Value) -> Value:
        return residue_value((a[0].array + b[0].array) % PRIME)

    def negate(self, a: Value) -> Value:
        return residue_value(-a[0].array % PRIME)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return reduced
