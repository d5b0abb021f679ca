"""From programs at several sizes to one schema, and from a derivation at one size to a derivation at all.

The same derivation at other sizes: each step's rule and place again, its numbers as the sizes ask for.

A step is followed if what it leaves differs from the original's in integers only.  Its parameters are tried as they
were, with every number that is one of the sizes (or one more, one less, a product of two) moved along, and then among
what the rule proposes.  Whether the result is right is no question here: it is proved afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, cycle, permutations
from typing import Any

from einnet_explore.ir import Path, Program, read_path
from einnet_explore.operators import OPERATORS
from einnet_explore.parametric.interpolation import MOST_DEGREE, Lattice, told
from einnet_explore.parametric.parameters import Ground
from einnet_explore.parametric.schema import Schema, integers, with_integers
from einnet_explore.parametric.size_polynomials import Whole, value_at
from einnet_explore.rules import ALL_RULES, Derivation, Match, Rule
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import TextError

_NUMBER = re.compile(r"\d+")
_SMALL = 3
"""Numbers below this are never taken for sizes: they number accesses and bounds, or are offsets."""


@dataclass(frozen=True, slots=True)
class Original:
    """A step that was found: its rule, its place, its parameters as JSON, and what it leaves without its integers."""

    rule: str
    at: Path
    params: str
    skeleton: Program


def original(derivation: Derivation) -> tuple[Original, ...]:
    """The steps of *derivation* as they are to be followed."""
    out = []
    for step in derivation.steps:
        told = step.match.to_json()
        params = {k: v for k, v in told["params"].items() if k != "attributes"}  # solved anew from the scope
        out.append(Original(told["rule"], read_path(told["at"]), json.dumps(params), integers(step.after)[0]))
    return tuple(out)


def follow(
    start: Program, steps: Sequence[Original], found: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[Program, ...]:
    """The programs from *start*, at *sizes*, along *steps* that were found at other ones.  Raises Refused."""
    known: dict[str, Rule[Any]] = {rule.name: rule for rule in (*ALL_RULES, matching_rule(OPERATORS))}
    programs = [start]
    for n, step in enumerate(steps):
        programs.append(_next(programs[-1], known[step.rule], step, found, sizes, n))
    return tuple(programs)


def _next(
    program: Program, rule: Rule[Any], step: Original, found: Mapping[str, int], sizes: Mapping[str, int], n: int
) -> Program:
    why = "it has another form there"
    try:
        program.scope_at(step.at)
    except LookupError as error:
        raise Refused(f"step {n}, {rule.name}: {error}") from None
    for params in _ways(program, rule, step, found, sizes):
        try:
            after = Match(rule, step.at, params()).apply(program).after
        except (LookupError, TypeError, ValueError) as error:
            why = str(error)
            continue
        if integers(after)[0] == step.skeleton:
            return after
    at = ", ".join(f"{name} = {value}" for name, value in sizes.items())
    raise Refused(f"step {n}, {rule.name}, does not carry over to {at}: {why}")


def _ways(
    program: Program, rule: Rule[Any], step: Original, found: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterable[Any]:
    for text in dict.fromkeys((_moved(step.params, found, sizes), step.params)):
        yield lambda text=text: rule.decode(program, step.at, json.loads(text))
    shape, numbers = _shape(step.params)
    proposed = []
    for params in rule.propose(program, step.at):
        told = json.dumps({k: v for k, v in rule.encode(params).items() if k != "attributes"})
        its_shape, its_numbers = _shape(told)
        if its_shape == shape:
            proposed.append((sum(a != b for a, b in zip(numbers, its_numbers, strict=True)), params))
    for _, params in sorted(proposed, key=lambda way: way[0]):
        yield lambda params=params: params


def _shape(params: str) -> tuple[str, list[int]]:
    return _NUMBER.sub("#", params), [int(n) for n in _NUMBER.findall(params)]


def _moved(params: str, found: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """*params* with every number that is recognised as one of the sizes in *found* as it is at *sizes*."""
    known: dict[int, int] = {}
    for off in (0, 1, -1, 2, -2):
        for name, n in found.items():
            known.setdefault(n + off, sizes[name] + off)
    for a, b in combinations_with_replacement(found, 2):
        known.setdefault(found[a] * found[b], sizes[a] * sizes[b])

    def moved(number: re.Match[str]) -> str:
        n = int(number[0])
        return str(known[n] if n >= _SMALL and n in known else n)

    # Numbers that are part of a name (``t11``) are not numbers.
    return re.sub(r"(?<![\w])\d+(?!\w)", moved, params)


PRIMES = (11, 17, 23, 31, 41, 53, 67, 83)
"""Sizes at which one derives: so far apart that a number near one of them, or a product of two, tells which it is."""

ROOM = 20
"""By how much what is assumed of several parameters should hold where one derives: sizes near by are looked at, too."""

APART = 5
MOST_MODULUS = 16


@dataclass(frozen=True, slots=True)
class Conjecture:
    """The schemas along a derivation, and the parameters with the remainders that it turned out to need."""

    ground: Ground
    schemas: tuple[Schema, ...]


def usual_sizes(ground: Ground) -> dict[str, int]:
    """Sizes to derive at: primes, or the next that are assumed and ``APART``; nearer where a largest is assumed.

    Where something is assumed of several parameters, the primes are dealt so that it holds at larger sizes, too.
    """
    if not ground.relations:
        return ground.given(_dealt(ground, tuple(p for p, _ in zip(cycle(PRIMES), ground.parameters, strict=False))))
    best: tuple[int, dict[str, int]] | None = None
    for primes in permutations(PRIMES, min(len(ground.parameters), len(PRIMES))):
        sizes = _dealt(ground, primes)
        room = min(value_at(r.gap, sizes) for r in ground.relations)
        if best is None or room > best[0]:
            best = room, sizes
        if room >= ROOM:
            break
    if best is not None and best[0] >= 0:
        return ground.given(best[1])
    return ground.given(ground.sizes(ground.corner() or ()))


def _dealt(ground: Ground, primes: Sequence[int]) -> dict[str, int]:
    out: dict[str, int] = {}
    for p, prime in zip(ground.parameters, cycle(primes), strict=False):
        u = max(p.first, -((p.residue - prime) // p.modulus))
        while any(abs(p.modulus * u + p.residue - n) < APART for n in out.values()):
            u += 1
        out[p.name] = p.modulus * (u if p.last is None else min(u, p.last)) + p.residue
    return ground.completed(out)


def conjecture(
    ground: Ground,
    at: Callable[[Mapping[str, int]], Program],
    steps: Sequence[Original],
    found: Mapping[str, int],
) -> Conjecture:
    """The schemas of the programs from ``at(sizes)`` along *steps*, which were found at the sizes *found*.

    Where a step applies to some remainders of a parameter only, that is assumed.  Raises Refused.
    """
    for _ in range(len(ground.parameters) + 1):
        try:
            return Conjecture(ground, _schemas(ground, at, steps, found))
        except (Refused, TextError) as why:
            narrower = _narrower(ground, at, steps, found)
            if narrower is None:
                raise Refused(str(why)) from None
            ground = narrower
    raise Refused("assuming remainders of every parameter is not enough")


def _narrower(
    ground: Ground,
    at: Callable[[Mapping[str, int]], Program],
    steps: Sequence[Original],
    found: Mapping[str, int],
) -> Ground | None:
    """*ground* with the least modulus of one parameter at which the derivation carries over, as far as that is seen."""
    for n, p in enumerate(ground.parameters):
        if _carries(ground, at, steps, found, p.name, (p.modulus, 2 * p.modulus, 3 * p.modulus)):
            continue
        for k in range(2, MOST_MODULUS + 1):
            m = k * p.modulus
            if m <= found[p.name] and _carries(ground, at, steps, found, p.name, (m, 2 * m, 3 * m)):
                also = p.also(m, found[p.name] % m)
                assert also is not None
                return replace(ground, parameters=(*ground.parameters[:n], also, *ground.parameters[n + 1 :]))
    return None


def _carries(
    ground: Ground,
    at: Callable[[Mapping[str, int]], Program],
    steps: Sequence[Original],
    found: Mapping[str, int],
    name: str,
    offsets: Iterable[int],
) -> bool:
    """Whether the derivation has the same form, and integers on a parabola, with *name* larger by *offsets*."""
    seen: list[tuple[tuple[int, ...], ...]] = []
    for off in (0, *offsets):
        free = {p.name: found[p.name] + off * (p.name == name) for p in ground.parameters}
        sizes = ground.completed(free)
        try:
            seen.append(tuple(integers(p)[1] for p in follow(at(sizes), steps, found, sizes)))
        except (Refused, TextError):
            return False
    a, b, c, d = seen
    return all(
        s - 3 * r + 3 * q - p == 0
        for one in zip(a, b, c, d, strict=True)
        for p, q, r, s in zip(*one, strict=True)
    )  # fmt: skip


def _schemas(
    ground: Ground,
    at: Callable[[Mapping[str, int]], Program],
    steps: Sequence[Original],
    found: Mapping[str, int],
) -> tuple[Schema, ...]:
    base = tuple(p.unknown.of(found[p.name]) for p in ground.parameters)
    seen: dict[tuple[int, ...], tuple[Program, ...]] = {}

    def programs(lattice: Lattice, offset: tuple[int, ...]) -> tuple[Program, ...]:
        if offset not in seen:
            sizes = lattice.sizes(offset)
            seen[offset] = follow(at(sizes), steps, found, sizes)
        return seen[offset]

    for degree in range(2, MOST_DEGREE + 1):
        lattice = Lattice(ground, base, degree)
        points = {offset: programs(lattice, offset) for offset in (*lattice.offsets, *lattice.tests)}
        try:
            return tuple(_schema(lattice, {k: p[n] for k, p in points.items()}) for n in range(len(steps) + 1))
        except Refused:
            if degree == MOST_DEGREE:
                raise
    raise AssertionError("every degree has been tried")


def _schema(lattice: Lattice, programs: Mapping[tuple[int, ...], Program]) -> Schema:
    """The schema of one program seen at every point; raises Refused."""
    apart = {k: integers(p) for k, p in programs.items()}
    first = next(iter(programs))
    for k, (skeleton, _) in apart.items():
        if skeleton != apart[first][0]:
            one, other = told(lattice.sizes(first)), told(lattice.sizes(k))
            raise Refused(f"the program at {other} has another form than at {one}")
    fitted: dict[tuple[int, ...], Whole] = {}
    values: list[Whole] = []
    for column in zip(*(numbers for _, numbers in apart.values()), strict=True):
        if column not in fitted:
            fitted[column] = lattice.fit(dict(zip(apart, column, strict=True)).__getitem__)
        values.append(fitted[column])
    return with_integers(programs[first], tuple(values))
