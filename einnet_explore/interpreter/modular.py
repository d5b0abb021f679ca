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

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import reduce
from math import isinf, isnan, prod
from typing import Any
from zlib import crc32

import numpy as np

from einnet_explore.interpreter import exact_arrays
from einnet_explore.interpreter.exact_arrays import Array, Part
from einnet_explore.interpreter.grid import Grid, branches, gathered, holds
from einnet_explore.interpreter.numbers import rounded
from einnet_explore.ir import Access, Apply, Compare, Const, Program, Scalar, Scope, Table, Tensor
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
    high_low, low_low = [[exact_arrays.contract(x, y, axes).array for y in limbs[1]] for x in limbs[0]]
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
    """Every output of *program* (an input among them too) modulo ``PRIME``."""
    run = _Run({name: Part(np.asarray(a, np.int64), PRIME) for name, a in inputs.items()}, seed)
    for equation in program.equations:
        run.tensors[equation.name] = run.scope(equation.scope)
    return {name: run.tensors[name].array for name in program.outputs}


@dataclass(slots=True)
class _Run:
    """Arrays of residues by name, and scopes that were evaluated already."""

    tensors: dict[str, Part]
    seed: int
    known: dict[Scope, Part] = field(default_factory=dict)

    def scope(self, scope: Scope) -> Part:
        if scope in self.known:
            return self.known[scope]
        array = self.region(scope, Grid({x: (x.lo, x.hi) for x in (*scope.traversals, *scope.summations)}))
        if scope.domain:
            here = Grid({x: (x.lo, x.hi) for x in scope.traversals})
            array = np.where(holds(scope.domain, here), array, number(scope.value))
        self.known[scope] = Part(np.ascontiguousarray(array).reshape(scope.shape), PRIME)
        return self.known[scope]

    def region(self, scope: Scope, grid: Grid) -> Array:
        """The raw reduction over a part of the grid, halved until what is gathered of it is small."""
        if (x := grid.too_large(scope, _LIMIT)) is not None:
            low, high = (self.region(scope, half) for half in grid.halves(x))
            if x in scope.summations:
                return (low + high) % PRIME
            return np.concatenate((low, high), scope.traversals.index(x))
        active = holds(scope.domain, grid) if scope.domain else None
        axes = range(len(scope.traversals), len(grid.ranges))
        if grid.volume(scope.summations) == 1:
            out = self.value(scope.body, grid, active)  # it may copy infinities
        elif scope.reduce == "sum":
            out = self.summed(scope.body, grid, axes, active)
        else:
            out = _reduced(scope.reduce, self.value(scope.body, grid, active), grid, axes)
        return np.broadcast_to(out.reshape(out.shape[: len(scope.traversals)]), _sizes(grid)[: len(scope.traversals)])

    def summed(self, body: Scalar, grid: Grid, axes: range, active: Array | None) -> Array:
        """Σ over *axes*: distributed over sums, products contracted pairwise."""
        match body:
            case Apply("+", args):
                return reduce(lambda a, b: (a + b) % PRIME, (self.summed(a, grid, axes, active) for a in args))
            case Apply("-", (a, b)):
                return (self.summed(a, grid, axes, active) - self.summed(b, grid, axes, active)) % PRIME
            case Apply("neg", (a,)):
                return -self.summed(a, grid, axes, active) % PRIME
            case Apply("*", args):
                factors = [self.value(a, grid, active) for a in args]
            case _:
                factors = [self.value(body, grid, active)]
        finite(factors)
        missing = prod(grid.extent(x) for i, x in enumerate(grid.ranges) if i in axes and _flat(factors, i))
        out = factors[0]
        for n, factor in enumerate(factors[1:], 2):
            out = contract(out, factor, frozenset(i for i in axes if _flat(factors[n:], i)))
        over = tuple(i for i in axes if out.shape[i] != 1)
        return np.asarray(out.sum(axis=over, keepdims=True) % PRIME * (missing % PRIME) % PRIME)

    def value(self, body: Scalar, grid: Grid, active: Array | None) -> Array:
        """The body over the grid, broadcastable to it; *active* says where its reads are made."""
        match body:
            case Const(value):
                return np.full((1,) * len(grid.ranges), number(value))
            case Access():
                return self.read(body, grid, active)
            case Apply("where", (Compare() as condition, yes, no)):
                taken, here, there = branches(condition, grid, active)
                return np.where(taken, self.value(yes, grid, here), self.value(no, grid, there))
            case Apply(op, args):
                return self.applied(op, [self.value(a, grid, active) for a in args], args)
        raise ValueError(f"comparison {body!r} outside the condition of where")

    def applied(self, op: str, values: list[Array], args: tuple[Scalar, ...]) -> Array:
        if op in ("maximum", "minimum"):
            return (np.maximum if op == "maximum" else np.minimum)(*values)
        finite(values)
        match op, values:
            case "+", _:
                return reduce(lambda a, b: (a + b) % PRIME, values)
            case "*", _:
                return reduce(lambda a, b: a * b % PRIME, values)
            case "-", [a, b]:
                return (a - b) % PRIME
            case "neg", [a]:
                return -a % PRIME
            case "/", [a, b]:
                return a * power(b, PRIME - 2) % PRIME
        match args:
            case (_, Const(value)) if op == "pow" and 0 <= value == int(value):
                return power(values[0], int(value))
        random = np.random.default_rng((self.seed, crc32(op.encode())))
        out = np.zeros_like(values[0]) + random.integers(PRIME)
        for v in values:
            a, b, c = random.integers(0, PRIME, 3)
            out = (out + ((a * v + b) % PRIME * v + c) % PRIME * v) % PRIME
        # Several arguments are not only added: one of them alone would not tell f(x, y) from f(y, x) + f(x, x) - ….
        return out if len(values) == 1 else (out + reduce(lambda a, b: a * b % PRIME, values)) % PRIME

    def read(self, access: Access, grid: Grid, active: Array | None) -> Array:
        match access.source:
            case Tensor(name=name):
                held = self.tensors[name]
            case Table(shape, entries):
                held = Part(np.array([number(x) for x in entries], np.int64).reshape(shape), PRIME)
            case Scope() as scope:
                held = self.scope(scope)
        outside = Part(np.asarray(number(access.source.value), np.int64), PRIME)
        (found,) = gathered(access, [(held, outside)], grid, active)
        return found.array


def _reduced(monoid: str, value: Array, grid: Grid, axes: range) -> Array:
    over = tuple(i for i in axes if value.shape[i] != 1)
    if monoid == "prod":
        finite([value])
        for i in over:
            value = reduce(lambda a, b: a * b % PRIME, (value.take([n], i) for n in range(value.shape[i])))
        left = (grid.extent(x) for i, x in enumerate(grid.ranges) if i in axes and i not in over)
        return power(value, prod(left))
    best = np.max if monoid == "max" else np.min
    return np.asarray(best(value, axis=over, keepdims=True)) if over else value


def _flat(factors: list[Array], i: int) -> bool:
    return all(f.shape[i] == 1 for f in factors)


def _sizes(grid: Grid) -> tuple[int, ...]:
    return tuple(grid.extent(x) for x in grid.ranges)
