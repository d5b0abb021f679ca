"""Randomised comparison of two programs modulo the prime :math:`p = 2^{31}-1`, at their real sizes.

The elements of the outputs are polynomials in the inputs.  If two programs differ in an element, the difference is a
nonzero polynomial of some degree *d*, and at a random point it is 0 modulo *p* with probability at most :math:`d/p`
(unless *p* divides all its coefficients).  A function over the reals is replaced by a random polynomial of degree 3,
and a quotient by the field's quotient; *d* counts both.  Maxima compare residues as integers, without a bound.

Sources: J. T. Schwartz, Fast probabilistic algorithms for verification of polynomial identities, JACM 27, 1980;
R. Zippel, Probabilistic algorithms for sparse polynomials, 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import reduce
from math import isinf, isnan, prod
from typing import Any, TypeAlias
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
from einnet_explore.interpreter.numbers import simplest_fraction
from einnet_explore.ir import Access, Apply, Const, Program, Scalar, Scope, Table, Tensor
from einnet_explore.support.wording import count_noun


def output_degree(program: Program) -> tuple[int, int, int]:
    """Bound the degrees of the outputs' numerators and denominators; third, 1 if the program compares values."""
    known = {t.name: (1, 0, 0) for t in program.inputs}
    for equation in program.equations:
        known[equation.name] = _scope_degree(equation.scope, known)
    tops, bottoms, ordered = zip(*(known[name] for name in program.outputs), strict=True)
    return max(tops), max(bottoms), max(ordered)


def _scope_degree(scope: Scope, known: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    top, bottom, ordered = _scalar_degree(scope.body, known)
    count = prod(y.extent for y in scope.summations)
    match scope.reduce:
        case "sum":
            return top + bottom * (count - 1), bottom * count, ordered
        case "prod":
            return top * count, bottom * count, ordered
    return top, bottom, 1


def _scalar_degree(body: Scalar, known: Mapping[str, tuple[int, int, int]]) -> tuple[int, int, int]:
    match body:
        case Access(Tensor(name)):
            return known[name]
        case Access(Scope() as scope):
            return _scope_degree(scope, known)
        case Apply("where", (_, yes, no)):
            pairs = zip(_scalar_degree(yes, known), _scalar_degree(no, known), strict=True)
            return tuple(map(max, pairs))  # type: ignore[return-value]
        case Apply(op, args):
            tops, bottoms, compares = zip(*(_scalar_degree(a, known) for a in args), strict=True)
            ordered = max(compares)
        case _:
            return 0, 0, 0
    match op, args:
        case "*", _:
            return sum(tops), sum(bottoms), ordered
        case "/", _:
            return tops[0] + bottoms[1], bottoms[0] + tops[1], ordered
        case (("+" | "-" | "neg"), _):
            return max(t - b for t, b in zip(tops, bottoms, strict=True)) + sum(bottoms), sum(bottoms), ordered
        case (("maximum" | "minimum"), _):
            return max(tops), max(bottoms), 1
        case "pow", (_, Const(value)) if 0 <= value == int(value):
            return tops[0] * int(value), bottoms[0] * int(value), compares[0]
    return 1 + 3 * (sum(tops) + sum(bottoms)), 3 * sum(bottoms), ordered


PRIME = (1 << 31) - 1
Residue: TypeAlias = "Callable[[float | Fraction], int]"
"""The residue of a constant."""

LOW, HIGH = -1, PRIME
"""Representatives of the infinities, which only maxima and minima may read."""

_LIMB_BITS = 16
_MAX_TERMS = 1 << 20
"""Products of limbs whose sum is exact in float64: 2³² · 2²⁰ < 2⁵³."""


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


_MAX_ELEMENTS = 1 << 23
"""Elements of an intermediate array."""


@dataclass(frozen=True, slots=True)
class ModularComparison:
    """Number of compared output elements, the first difference, and the probability that a wrong program passes.

    *bound* is None if a program contains a maximum or compares values.  *rounded*: the programs agree only with
    constants rounded to twelve digits.
    """

    elements: int
    degree: int
    bound: float | None
    differs: tuple[str, tuple[int, ...]] | None = None
    rounded: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {"prime": PRIME, **asdict(self)}

    def __str__(self) -> str:
        if self.differs is not None:
            name, at = self.differs
            return f"differs modulo {PRIME}: {name}{list(at)}"
        chance = (
            "no bound (maxima)" if self.bound is None else f"a difference is missed with probability {self.bound:.1e}"
        )
        how = ", with constants rounded to 12 digits" if self.rounded else ""
        elements = count_noun(self.elements, "element")
        return f"equal modulo {PRIME}{how}, {elements} compared; {chance}, degree {self.degree}"


def compare_modulo_prime(before: Program, after: Program, *, rounds: int = 1, seed: int = 0) -> ModularComparison:
    """Compare the outputs on *rounds* random inputs; if they differ, compare again with rounded constants.

    Raises ValueError for an expression without a meaning modulo a prime (an infinity in a sum), IllegalRead for a read
    beyond the padding.
    """
    found = _compare_residues(before, after, rounds, seed, residue_of)
    if found.differs is None:
        return found
    rounded = _compare_residues(before, after, rounds, seed, rounded_residue_of)
    return found if rounded.differs is not None else replace(rounded, rounded=True)


def _compare_residues(before: Program, after: Program, rounds: int, seed: int, residue: Residue) -> ModularComparison:
    elements = 0
    top, bottom, ordered = (max(x) for x in zip(output_degree(before), output_degree(after), strict=True))
    total = top + bottom
    for n in range(rounds):
        random = np.random.default_rng((seed, n))
        inputs = {t.name: random.integers(0, PRIME, t.shape) for t in before.inputs}
        left, right = (program_residues(p, inputs, seed=seed + n, residue=residue) for p in (before, after))
        elements = 0
        for name in before.outputs:
            elements += left[name].size
            if left[name].shape != right[name].shape or not np.array_equal(left[name], right[name]):
                unlike = left[name] != right[name] if left[name].shape == right[name].shape else np.ones(1, bool)
                at = np.unravel_index(int(np.argmax(unlike)), np.shape(unlike))
                return ModularComparison(elements, total, 0.0, (name, tuple(map(int, at))))
    bound = None if ordered else min(1.0, (total / PRIME) ** rounds)
    return ModularComparison(elements, total, bound)


def program_residues(
    program: Program, inputs: Mapping[str, Array], *, seed: int = 0, residue: Residue = residue_of
) -> dict[str, Array]:
    """Return every output of *program*, also one that is an input, modulo ``PRIME``."""
    run = Evaluation(
        PrimeField(seed, residue),
        {name: _residues(np.asarray(a, np.int64)) for name, a in inputs.items()},
        _MAX_ELEMENTS,
    )
    run.program(program)
    return {name: run.tensors[name][0].array for name in program.outputs}


def _residues(residues: Array) -> Value:
    return (Part(residues, PRIME),)


@dataclass(frozen=True, slots=True)
class PrimeField:
    """Residues modulo ``PRIME``; *seed* draws the polynomials that stand for functions over the reals.

    *residue* is that of a constant.
    """

    seed: int
    residue: Residue = residue_of

    def constant(self, value: float) -> Value:
        return _residues(np.asarray(self.residue(value), np.int64))

    def table(self, table: Table) -> Value:
        return _residues(np.array([self.residue(x) for x in table.entries], np.int64).reshape(table.shape))

    def apply(self, op: str, values: Sequence[Value], args: tuple[Scalar, ...]) -> Value:
        arrays = [part.array for (part,) in values]
        if op in ("maximum", "minimum"):
            return _residues((np.maximum if op == "maximum" else np.minimum)(*arrays))
        require_finite(arrays)
        match op, arrays:
            case "+", _:
                return _residues(reduce(lambda a, b: (a + b) % PRIME, arrays))
            case "*", _:
                return _residues(reduce(lambda a, b: a * b % PRIME, arrays))
            case "-", [a, b]:
                return _residues((a - b) % PRIME)
            case "neg", [a]:
                return _residues(-a % PRIME)
            case "/", [a, b]:
                return _residues(a * field_power(b, PRIME - 2) % PRIME)
        match args:
            case (_, Const(value)) if op == "pow" and 0 <= value == int(value):
                return _residues(field_power(arrays[0], int(value)))
        return _residues(self._random_polynomial(op, arrays))

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
            return _residues(field_power(array, absent_extent(value, axes, extents)))
        best = np.max if monoid == "max" else np.min
        return _residues(best(array, axis=over, keepdims=True)) if over else value

    def contract(self, factors: Sequence[Value], axes: range, extents: Sequence[int]) -> Value:
        parts = [part for (part,) in factors]
        require_finite(part.array for part in parts)
        out = contract_factors(
            parts, axes, lambda a, b, over: Part(contract_residues(a.array, b.array, over), PRIME)
        ).array
        over = tuple(i for i in axes if out.shape[i] != 1)
        return _residues(
            out.sum(axis=over, keepdims=True) % PRIME * (absent_extent(parts, axes, extents) % PRIME) % PRIME
        )

    def add(self, a: Value, b: Value) -> Value:
        return _residues((a[0].array + b[0].array) % PRIME)

    def negate(self, a: Value) -> Value:
        return _residues(-a[0].array % PRIME)

    def finish(self, scope: Scope, reduced: Value) -> Value:
        return reduced
