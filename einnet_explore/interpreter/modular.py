"""A second opinion: two programs evaluated modulo :math:`p = 2^{31}-1` on random inputs at their real sizes.

Elements of outputs are polynomials in the inputs.  Where two programs differ in one of them, the difference is a
polynomial of some degree *d* that is not 0, and at a random point it is 0 modulo *p* with probability at most
:math:`d/p` (unless *p* divides all its coefficients).  A function over the reals stands for one random polynomial of
degree 3, and quotients are those of the field, so that ``d`` counts these too; maxima compare residues as numbers, for
which no bound is claimed.

Sources: J. T. Schwartz, Fast probabilistic algorithms for verification of polynomial identities, JACM 27, 1980;
R. Zippel, Probabilistic algorithms for sparse polynomials, 1979.

Bounds of the degrees of what a program computes, as a quotient of polynomials in its inputs.

Arrays over the field of integers modulo the prime :math:`2^{31}-1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import reduce
from math import isinf, isnan, prod
from typing import Any
from zlib import crc32

import numpy as np

from einnet_explore.interpreter.evaluation import Evaluation
from einnet_explore.interpreter.exact_arrays import (
    Array,
    Part,
    Value,
    absent_extent,
    contract_factors,
    contract_pair,
)
from einnet_explore.interpreter.numbers import rounded
from einnet_explore.ir import Access, Apply, Const, Program, Scalar, Scope, Table, Tensor
from einnet_explore.support.wording import counted


def degree(program: Program) -> tuple[int, int, int]:
    """Bounds of the degrees of numerator and denominator of any output element, and 1 where values are compared."""
    known: dict[str, tuple[int, int, int]] = {t.name: (1, 0, 0) for t in program.inputs}

    def of(body: Scalar) -> tuple[int, int, int]:
        match body:
            case Access(Tensor(name)):
                return known[name]
            case Access(Scope() as scope):
                return over(scope)
            case Apply("where", (_, yes, no)):
                return tuple(map(max, of(yes), of(no)))  # type: ignore[return-value]
            case Apply(op, args):
                found = [of(a) for a in args]
                tops, bottoms, ordered = ([f[n] for f in found] for n in range(3))
                if op == "*":
                    return sum(tops), sum(bottoms), max(ordered)
                if op == "/":
                    return tops[0] + bottoms[1], bottoms[0] + tops[1], max(ordered)
                if op in ("+", "-", "neg"):
                    return (
                        max(t - b for t, b in zip(tops, bottoms, strict=True)) + sum(bottoms),
                        sum(bottoms),
                        max(ordered),
                    )
                if op in ("maximum", "minimum"):
                    return max(tops), max(bottoms), 1
                match args:
                    case (_, Const(value)) if op == "pow" and 0 <= value == int(value):
                        return tops[0] * int(value), bottoms[0] * int(value), ordered[0]
                return 1 + 3 * (sum(tops) + sum(bottoms)), 3 * sum(bottoms), max(ordered)
        return 0, 0, 0

    def over(scope: Scope) -> tuple[int, int, int]:
        top, bottom, ordered = of(scope.body)
        count = prod(y.extent for y in scope.summations)
        match scope.reduce:
            case "sum":
                return top + bottom * (count - 1), bottom * count, ordered
            case "prod":
                return top * count, bottom * count, ordered
        return top, bottom, 1

    for equation in program.equations:
        known[equation.name] = over(equation.scope)
    tops, bottoms, ordered = zip(*(known[name] for name in program.outputs), strict=True)
    return max(tops), max(bottoms), max(ordered)


PRIME = (1 << 31) - 1
LOW, HIGH = -1, PRIME
"""What stands for the infinities, which only maxima and minima may meet."""

_LIMB = 16
_CHUNK = 1 << 20
"""Products of limbs that a float sum holds exactly: 2³² · 2²⁰ < 2⁵³."""


def contract(a: Array, b: Array, axes: frozenset[int]) -> Array:
    """Σ over *axes* of a · b modulo ``PRIME``; residues are split into limbs, whose sums floats hold exactly."""
    own = [tuple(i for i in axes if y.shape[i] == 1 != x.shape[i]) for x, y in ((a, b), (b, a))]
    a, b = (x.sum(axis=over, keepdims=True) % PRIME if over else x for x, over in zip((a, b), own, strict=True))
    inner = [i for i in axes if a.shape[i] != 1]
    if not inner:
        return a * b % PRIME
    if prod(a.shape[i] for i in inner) > _CHUNK:
        i = max(inner, key=lambda i: a.shape[i])
        low, high = np.array_split(np.arange(a.shape[i]), 2)
        return (
            contract(a.take(low, i), b.take(low, i), axes) + contract(a.take(high, i), b.take(high, i), axes)
        ) % PRIME
    limbs = [[Part(x >> _LIMB, 1 << _LIMB), Part(x & ((1 << _LIMB) - 1), 1 << _LIMB)] for x in (a, b)]
    high_low, low_low = [[contract_pair(x, y, axes).array for y in limbs[1]] for x in limbs[0]]
    top, middle = high_low[0] % PRIME, (high_low[1] + low_low[0]) % PRIME
    return ((top << _LIMB) % PRIME * (1 << _LIMB) + (middle << _LIMB) + low_low[1]) % PRIME


def power(a: Array, n: int) -> Array:
    """aⁿ modulo ``PRIME``; 0 to the -1 counts as 0."""
    out = np.ones_like(a)
    for bit in f"{n:b}":
        out = out * out % PRIME
        out = out * a % PRIME if bit == "1" else out
    return out


def number(value: float | Fraction) -> int:
    """A constant as a residue: fractions, and floats that stand for simple ones, are quotients in the field."""
    if isnan(value):
        raise ValueError("a constant is not a number")
    if isinf(value):
        return HIGH if value > 0 else LOW
    exact = Fraction(rounded(Fraction(value)))
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def finite(values: Iterable[Array]) -> None:
    """Raise ValueError where an infinity would be calculated with."""
    for v in values:
        if v.size and (v.min() == LOW or v.max() == HIGH):
            raise ValueError("an infinity is calculated with modulo a prime")


_LIMIT = 1 << 23
"""Elements of what is gathered at once."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """Output elements that were compared, the first that differs, and how likely a wrong program is to pass.

    *bound* is None where a maximum or a comparison of values is involved, for which none is claimed.
    """

    elements: int
    degree: int
    bound: float | None
    differs: tuple[str, tuple[int, ...]] | None = None

    def to_json(self) -> dict[str, Any]:
        """The opinion as plain JSON values."""
        return {"prime": PRIME, **asdict(self)}

    def __str__(self) -> str:
        if self.differs is not None:
            name, at = self.differs
            return f"differs modulo {PRIME}: {name}{list(at)}"
        chance = "no bound (maxima)" if self.bound is None else f"a wrong one passes with probability {self.bound:.1e}"
        return f"equal modulo {PRIME}, {counted(self.elements, 'element')} compared; {chance}, degree {self.degree}"


def second_opinion(before: Program, after: Program, *, rounds: int = 1, seed: int = 0) -> Opinion:
    """Whether *after* gives what *before* does on *rounds* random inputs.

    Raises ValueError where an expression has no meaning modulo a prime (an infinity in a sum), IllegalRead for a read
    beyond the padding.
    """
    elements = 0
    top, bottom, ordered = (max(x) for x in zip(degree(before), degree(after), strict=True))
    total = top + bottom
    for n in range(rounds):
        random = np.random.default_rng((seed, n))
        inputs = {t.name: random.integers(0, PRIME, t.shape) for t in before.inputs}
        left, right = (residues(p, inputs, seed=seed + n) for p in (before, after))
        elements = 0
        for name in before.outputs:
            elements += left[name].size
            if left[name].shape != right[name].shape or not np.array_equal(left[name], right[name]):
                unlike = left[name] != right[name] if left[name].shape == right[name].shape else np.ones(1, bool)
                at = np.unravel_index(int(np.argmax(unlike)), np.shape(unlike))
                return Opinion(elements, total, 0.0, (name, tuple(map(int, at))))
    bound = None if ordered else min(1.0, (total / PRIME) ** rounds)
    return Opinion(elements, total, bound)


def residues(program: Program, inputs: Mapping[str, Array], *, seed: int = 0) -> dict[str, Array]:
    """Return every output of *program*, also one that is an input, modulo ``PRIME``."""
    run = Evaluation(PrimeField(seed), {name: _value(np.asarray(a, np.int64)) for name, a in inputs.items()}, _LIMIT)
    run.program(program)
    return {name: run.tensors[name][0].array for name in program.outputs}


def _value(residues: Array) -> Value:
    return (Part(residues, PRIME),)


@dataclass(frozen=True, slots=True)
class PrimeField:
    """Residues modulo ``PRIME``; *seed* draws the polynomials that stand for functions over the reals."""

    seed: int

    def constant(self, value: float) -> Value:
        return _value(np.asarray(number(value), np.int64))

    def table(self, table: Table) -> Value:
        return _value(np.array([number(x) for x in table.entries], np.int64).reshape(table.shape))

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        arrays = [part.array for (part,) in values]
        if op in ("maximum", "minimum"):
            return _value((np.maximum if op == "maximum" else np.minimum)(*arrays))
        finite(arrays)
        match op, arrays:
            case "+", _:
                return _value(reduce(lambda a, b: (a + b) % PRIME, arrays))
            case "*", _:
                return _value(reduce(lambda a, b: a * b % PRIME, arrays))
            case "-", [a, b]:
                return _value((a - b) % PRIME)
            case "neg", [a]:
                return _value(-a % PRIME)
            case "/", [a, b]:
                return _value(a * power(b, PRIME - 2) % PRIME)
        match args:
            case (_, Const(value)) if op == "pow" and 0 <= value == int(value):
                return _value(power(arrays[0], int(value)))
        return _value(self._random_polynomial(op, arrays))

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
            finite([array])
            for i in over:
                array = reduce(lambda a, b: a * b % PRIME, (array.take([n], i) for n in range(array.shape[i])))
            return _value(power(array, absent_extent(value, axes, extents)))
        best = np.max if monoid == "max" else np.min
        return _value(best(array, axis=over, keepdims=True)) if over else value

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        parts = [part for (part,) in factors]
        finite(part.array for part in parts)
        out = contract_factors(parts, axes, lambda a, b, over: Part(contract(a.array, b.array, over), PRIME)).array
        over = tuple(i for i in axes if out.shape[i] != 1)
        return _value(out.sum(axis=over, keepdims=True) % PRIME * (absent_extent(parts, axes, extents) % PRIME) % PRIME)

    def add(self, a: Value, b: Value) -> Value:
        return _value((a[0].array + b[0].array) % PRIME)

    def negate(self, a: Value) -> Value:
        return _value(-a[0].array % PRIME)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return reduced
