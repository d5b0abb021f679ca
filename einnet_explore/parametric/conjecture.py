r"""Conjecture a derivation for all sizes: replay it at several sizes and interpolate its integers.

A step is replayed with the same rule at the same place; its result must differ from the recorded one in integers only.
Its parameters are tried with every number near a size (or a product of two) scaled to the new sizes, then unchanged,
then among the rule's proposals.  The result is proved afterwards.

Integers are interpolated in Newton's form on a simplex of points:

.. math::  f(b + k) = \sum_{|j| \le D} \Delta^j f(b) \prod_i \binom{k_i}{j_i}

A polynomial of total degree *D* is determined by its values at the :math:`\binom{n + D}{D}` points
:math:`b + k,\ |k| \le D`; further points test whether it is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations_with_replacement, cycle, permutations, product
from math import comb, factorial, prod
from typing import TypeAlias

from einnet_explore.ir import Path, Program, read_path
from einnet_explore.parametric.parameters import FamilyParameters
from einnet_explore.parametric.schema import Schema, split_integers, with_integers
from einnet_explore.parametric.size_polynomials import Monomial, SizePolynomial, polynomial_value, sum_of_monomials
from einnet_explore.rules import Derivation, Match, Rule
from einnet_explore.strategies.instantiation import known_rules
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import TextError

MAX_DEGREE = 4
"""Degree of an integer in the sizes: the stride of a five-dimensional tensor."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Sample points of the sizes, and polynomials of total degree *degree* through values at them."""

    ground: FamilyParameters
    base: tuple[int, ...]
    degree: int

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """The points, as offsets from *base*."""
        every = product(range(self.degree + 1), repeat=len(self.base))
        return tuple(sorted((k for k in every if sum(k) <= self.degree), key=lambda k: (sum(k), k)))

    @property
    def tests(self) -> tuple[tuple[int, ...], ...]:
        """Test points: one further in every direction, one far away, one with different distances."""
        n = len(self.base)
        return (
            *(tuple(self.degree + 1 if i == j else 0 for j in range(n)) for i in range(n)),
            tuple(self.degree + 3 + 2 * j for j in range(n)),
            tuple(2 * n + 1 - j for j in range(n)),
        )

    def sizes(self, offset: tuple[int, ...]) -> dict[str, int]:
        """Return the parameters at a point."""
        return self.ground.sizes(b + k for b, k in zip(self.base, offset, strict=True))

    def fit(self, value: Callable[[tuple[int, ...]], int]) -> SizePolynomial:
        """Return the polynomial with *value* at every point; raises Refused if there is none."""
        total: dict[Monomial, Fraction] = {}
        for j in self.offsets:
            ways = product(*(range(i + 1) for i in j))
            difference = sum(
                (-1) ** (sum(j) - sum(k)) * prod(comb(a, b) for a, b in zip(j, k, strict=True)) * value(k) for k in ways
            )
            if difference:
                for monomial, c in self._newton(j).items():
                    total[monomial] = total.get(monomial, Fraction(0)) + difference * c
        if odd := next((c for c in total.values() if c.denominator != 1), None):
            raise Refused(f"an integer has the coefficient {odd}, expected whole ones")
        found = sum_of_monomials((m, int(c)) for m, c in total.items())
        for k in self.tests:
            if (guess := polynomial_value(found, self.sizes(k))) != value(k):
                raise Refused(
                    f"at {sizes_text(self.sizes(k))} an integer is {value(k)}, "
                    f"a polynomial of degree {self.degree} gives {guess}"
                )
        return found

    def _newton(self, j: tuple[int, ...]) -> dict[Monomial, Fraction]:
        """Expand Πᵢ binom(uᵢ - bᵢ, jᵢ)."""
        out: dict[Monomial, Fraction] = {(): Fraction(1, prod(map(factorial, j)))}
        for parameter, b, n in zip(self.ground.parameters, self.base, j, strict=True):
            for step in range(n):
                grown: dict[Monomial, Fraction] = {}
                for monomial, c in out.items():
                    for to, by in ((tuple(sorted((*monomial, parameter.unknown))), 1), (monomial, -b - step)):
                        grown[to] = grown.get(to, Fraction(0)) + c * by
                out = grown
        return out


def sizes_text(sizes: Mapping[str, int]) -> str:
    """``H = 3, W = 5``"""
    return ", ".join(f"{name} = {n}" for name, n in sizes.items())


_NUMBER = re.compile(r"\d+")
_SMALL = 3
"""Smaller numbers are never treated as sizes: they number accesses and bounds, or are offsets."""


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """A recorded step: its rule, place, parameters as JSON, and its result without integers."""

    rule: str
    at: Path
    params: str
    skeleton: Program


def record_steps(derivation: Derivation) -> tuple[ReplayStep, ...]:
    """Record the steps of *derivation* for replay."""
    out = []
    for step in derivation.steps:
        document = step.match.to_json()
        params = {k: v for k, v in document["params"].items() if k != "attributes"}  # recomputed from the scope
        out.append(
            ReplayStep(document["rule"], read_path(document["at"]), json.dumps(params), split_integers(step.after)[0])
        )
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Replay:
    """A derivation to replay: *steps* from the program ``start(sizes)``, recorded at the sizes *found*."""

    start: Callable[[Mapping[str, int]], Program]
    steps: Sequence[ReplayStep]
    found: Mapping[str, int]

    def at(self, sizes: Mapping[str, int]) -> tuple[Program, ...]:
        """Return the programs of the derivation at *sizes*; raises Refused."""
        known = known_rules()
        programs = [self.start(sizes)]
        for n, step in enumerate(self.steps, 1):
            try:
                programs.append(self._apply(programs[-1], known[step.rule], step, sizes))
            except LookupError as error:
                raise Refused(f"step {n}, {step.rule}: {error}") from None
            except Refused as why:
                where = f"step {n}, {step.rule}, does not carry over to {sizes_text(sizes)}"
                raise Refused(f"{where}: {why}; one found at other sizes may") from None
        return tuple(programs)

    def _apply(self, program: Program, rule: Rule[object], step: ReplayStep, sizes: Mapping[str, int]) -> Program:
        why = "it has another form there"
        program.scope_at(step.at)
        for match in _candidate_matches(program, rule, step, self.found, sizes):
            try:
                after = match().apply(program).after
            except (LookupError, TypeError, ValueError) as error:
                why = str(error)
                continue
            if split_integers(after)[0] == step.skeleton:
                return after
        raise Refused(why)


def _candidate_matches(
    program: Program, rule: Rule[object], step: ReplayStep, found: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterable[Callable[[], Match[object]]]:
    for text in dict.fromkeys((_scale_parameters(step.params, found, sizes), step.params)):
        yield partial(rule.match, program, step.at, **json.loads(text))
    shape, numbers = _text_shape(step.params)
    proposed = []
    for params in rule.propose(program, step.at):
        text = json.dumps({k: v for k, v in rule.encode(params).items() if k != "attributes"})
        its_shape, its_numbers = _text_shape(text)
        if its_shape == shape:
            proposed.append((sum(a != b for a, b in zip(numbers, its_numbers, strict=True)), params))
    for _, params in sorted(proposed, key=lambda way: way[0]):
        yield partial(Match, rule, step.at, params)


def _text_shape(params: str) -> tuple[str, list[int]]:
    return _NUMBER.sub("#", params), [int(n) for n in _NUMBER.findall(params)]


def _scale_parameters(params: str, found: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """Scale every number of *params* that is recognised as one of the sizes *found*."""
    known: dict[int, int] = {}
    for off in (0, 1, -1, 2, -2):
        for name, n in found.items():
            known.setdefault(n + off, sizes[name] + off)
    for a, b in combinations_with_replacement(found, 2):
        known.setdefault(found[a] * found[b], sizes[a] * sizes[b])

    def scale_number(number: re.Match[str]) -> str:
        n = int(number[0])
        return str(known[n] if n >= _SMALL and n in known else n)

    # digits inside a name (``t11``) are no number
    return re.sub(r"(?<![\w])\d+(?!\w)", scale_number, params)


DERIVATION_SIZES = (11, 17, 23, 31, 41, 53, 67, 83)
"""Default sizes of derivations: so far apart that a number near a size, or a product of two, identifies it."""

MIN_RELATION_GAP = 20
"""The margin by which inequalities should hold at the derivation's sizes; nearby sizes are used, too."""

MIN_SIZE_DISTANCE = 5
MAX_MODULUS = 16


@dataclass(frozen=True, slots=True)
class Conjecture:
    """The schemas of programs, and the parameters with the remainders that these require."""

    ground: FamilyParameters
    schemas: tuple[Schema, ...]


def default_sizes(ground: FamilyParameters) -> dict[str, int]:
    """Return sizes to derive at: primes, or the next allowed sizes at distance ``MIN_SIZE_DISTANCE``.

    Sizes with an upper bound may be closer.  The primes are assigned so that inequalities hold at larger sizes, too.
    """
    if not ground.relations:
        return ground.declared_sizes(
            _assign_primes(ground, tuple(p for p, _ in zip(cycle(DERIVATION_SIZES), ground.parameters, strict=False)))
        )
    best: tuple[int, dict[str, int]] | None = None
    for primes in permutations(DERIVATION_SIZES, min(len(ground.parameters), len(DERIVATION_SIZES))):
        sizes = _assign_primes(ground, primes)
        room = min(polynomial_value(r.gap, sizes) for r in ground.relations)
        if best is None or room > best[0]:
            best = room, sizes
        if room >= MIN_RELATION_GAP:
            break
    if best is not None and best[0] >= 0:
        return ground.declared_sizes(best[1])
    return ground.declared_sizes(ground.sizes(ground.corner() or ()))


def _assign_primes(ground: FamilyParameters, primes: Sequence[int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for p, prime in zip(ground.parameters, cycle(primes), strict=False):
        u = max(p.first, -((p.residue - prime) // p.modulus))
        while any(abs(p.modulus * u + p.residue - n) < MIN_SIZE_DISTANCE for n in out.values()):
            u += 1
        out[p.name] = p.modulus * (u if p.last is None else min(u, p.last)) + p.residue
    return ground.with_tied(out)


ProgramsAtSizes: TypeAlias = "Callable[[Mapping[str, int]], Sequence[Program]]"
"""The programs at given sizes; raises Refused or TextError if there are none."""


def conjecture(ground: FamilyParameters, found: Mapping[str, int], at: ProgramsAtSizes) -> Conjecture:
    """Interpolate the schemas of the programs that *at* gives at sizes near *found*.

    If they exist only at some remainders of a parameter, that becomes an assumption.  Raises Refused.
    """
    for _ in range(len(ground.parameters) + 1):
        try:
            return Conjecture(ground, tuple(_interpolate(ground, found, at)))
        except (Refused, TextError) as why:
            narrower = _with_remainder(ground, found, at)
            if narrower is None:
                raise Refused(str(why)) from None
            ground = narrower
    raise Refused("assuming remainders of every parameter is not enough")


def _with_remainder(ground: FamilyParameters, found: Mapping[str, int], at: ProgramsAtSizes) -> FamilyParameters | None:
    """Restrict one parameter to the smallest modulus for which the programs carry over to sampled sizes."""
    for n, p in enumerate(ground.parameters):
        if _carries_over(ground, found, at, p.name, p.modulus):
            continue
        for m in range(2 * p.modulus, min(MAX_MODULUS * p.modulus, found[p.name]) + 1, p.modulus):
            if _carries_over(ground, found, at, p.name, m):
                narrower = p.with_congruence(m, found[p.name] % m)
                assert narrower is not None
                return replace(ground, parameters=(*ground.parameters[:n], narrower, *ground.parameters[n + 1 :]))
    return None


def _carries_over(
    ground: FamilyParameters, found: Mapping[str, int], at: ProgramsAtSizes, name: str, step: int
) -> bool:
    """Whether the programs keep their form, with integers on a parabola, when *name* grows by multiples of *step*."""
    seen: list[tuple[tuple[int, ...], ...]] = []
    for k in range(4):
        free = {p.name: found[p.name] + k * step * (p.name == name) for p in ground.parameters}
        try:
            seen.append(tuple(split_integers(p)[1] for p in at(ground.with_tied(free))))
        except (Refused, TextError):
            return False
    return all(s - 3 * r + 3 * q - p == 0 for one in zip(*seen, strict=True) for p, q, r, s in zip(*one, strict=True))


def _interpolate(ground: FamilyParameters, found: Mapping[str, int], at: ProgramsAtSizes) -> Iterable[Schema]:
    """Yield the schemas of the programs that *at* gives at sizes near *found*; raises Refused at the first without."""
    base = tuple(p.unknown.of(found[p.name]) for p in ground.parameters)
    seen: dict[tuple[int, ...], Sequence[Program]] = {}

    def points(lattice: Lattice, n: int) -> dict[tuple[int, ...], Program]:
        for offset in (*lattice.offsets, *lattice.tests):
            if offset not in seen:
                seen[offset] = at(lattice.sizes(offset))
        return {offset: seen[offset][n] for offset in (*lattice.offsets, *lattice.tests)}

    for n in range(len(at(found))):
        for degree in range(2, MAX_DEGREE + 1):
            lattice = Lattice(ground, base, degree)
            try:
                yield _schema(lattice, points(lattice, n))
                break
            except Refused:
                if degree == MAX_DEGREE:
                    raise


def _schema(lattice: Lattice, programs: Mapping[tuple[int, ...], Program]) -> Schema:
    """Interpolate the schema of one program from its values at every point; raises Refused."""
    apart = {k: split_integers(p) for k, p in programs.items()}
    first = next(iter(programs))
    for k, (skeleton, _) in apart.items():
        if skeleton != apart[first][0]:
            one, other = sizes_text(lattice.sizes(first)), sizes_text(lattice.sizes(k))
            raise Refused(f"the program at {other} has another form than at {one}")
    fitted: dict[tuple[int, ...], SizePolynomial] = {}
    values: list[SizePolynomial] = []
    for column in zip(*(numbers for _, numbers in apart.values()), strict=True):
        if column not in fitted:
            fitted[column] = lattice.fit(dict(zip(apart, column, strict=True)).__getitem__)
        values.append(fitted[column])
    return with_integers(programs[first], tuple(values))
