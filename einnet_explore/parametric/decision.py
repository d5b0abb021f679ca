r"""Whether conditions can hold together for any sizes: integer sets where they are affine, z3 where there are products.

A product of parameters alone, as in a merged extent :math:`H W`, is one more number for integer sets: what they prove
holds for any value of it.  Of z3 only one question is asked: whether a conjunction of polynomials that are ≥ 0, and of
negated such conjunctions, has a solution in the integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import islpy as isl

from einnet_explore.equivalence.integer_sets import context
from einnet_explore.equivalence.linear_space import Form, Undecided
from einnet_explore.parametric.linear_forms import parts_of, plus, told
from einnet_explore.parametric.size_region import bounds, coordinates, dimension, linear, relaxed
from einnet_explore.parametric.space import ParametricSpace

EFFORT = 4_000_000
"""Of z3, in units that do not depend on the machine, for one question."""


def used_in(space: ParametricSpace, forms: Iterable[Form]) -> list[str]:
    """Every integer that *forms* are made of, also through quotients and aliases."""
    found: dict[str, None] = {}
    stack = [v for form in forms for v in sorted(parts_of(form))]
    while stack:
        v = stack.pop()
        if v not in found:
            found[v] = None
            made = (*space.divisions.get(v, ()), space.aliases.get(v, {}))
            stack += (u for form in made for u in sorted(parts_of(form)))
    return list(found)


def assumptions(space: ParametricSpace) -> list[Form]:
    """What is assumed of the parameters, as forms that are ≥ 0."""
    return [*bounds(space.ground.ranges), *space.ground.rows]


def conditions(space: ParametricSpace, used: Iterable[str], where: Iterable[Form]) -> list[Form]:
    """What holds of output coordinates and the integers *used*: ranges, what they mean, and *where*."""
    rows = [*where]
    named = dict.fromkeys((*space.coordinates, *used))
    for v in named:
        if v in space.divisions:
            rows += meaning(space, v)
        elif v in space.limits:
            lo, hi = space.limits[v]
            rows += [plus({v: 1, "": 0}, lo, -1), plus(hi, {v: 1, "": 0}, -1)]
            rows += equal({v: 1, "": 0}, space.aliases[v]) if v in space.aliases else ()
    return rows


def meaning(space: ParametricSpace, q: str) -> list[Form]:
    """That *q* is its quotient."""
    e, d = space.divisions[q]
    rest = plus(e, space.times(d, {q: 1, "": 0}), -1)
    return [rest, plus(plus(d, rest, -1), {"": -1})]


def equal(a: Form, b: Form) -> list[Form]:
    """That two forms are equal."""
    return [plus(a, b, -1), plus(b, a, -1)]


def multiplied(space: ParametricSpace, rows: Iterable[Form]) -> bool:
    """Whether a parameter is multiplied by an integer that is none."""
    names = (name.split("*") for row in rows for name in row if "*" in name)
    return any(part not in space.symbols for parts in names for part in parts)


def size_names(space: ParametricSpace, rows: Iterable[Form]) -> tuple[str, ...]:
    """The parameters, and the products of parameters in *rows*: what integer sets take as numbers of their own."""
    found = {name for row in rows for name in row if "*" in name}
    return (*space.symbols, *sorted(found))


def impossible(space: ParametricSpace, where: Sequence[Form]) -> str | None:
    """None where *where* cannot all hold for any sizes, else values at which they may.  Raises Undecided."""
    if any(_never(space, row) for row in where):
        return None
    rows = [*assumptions(space), *conditions(space, used_in(space, where), where)]
    if multiplied(space, rows):
        space.asked.add("z3")
        return unsatisfiable(rows)
    space.asked.add("isl")
    sizes = size_names(space, rows)
    rows += relaxed(space.ground.ranges, sizes)
    names = dict.fromkeys((*sizes, *(v for row in rows for v in row if v)))
    dims = ", ".join(map(dimension, names))
    try:
        found = isl.Set(f"{{ [{dims}] : {' and '.join(f'{linear(row)} >= 0' for row in rows)} }}", context())
        if found.is_empty():
            return None
        values = coordinates(found)
    except isl.Error as error:
        raise Undecided(f"integer sets: {error}") from None
    return ", ".join(f"{told(v)} = {n}" for v, n in zip(names, values, strict=True))


def _never(space: ParametricSpace, row: Form) -> bool:
    try:
        return space.ground.surely(plus({"": -1}, space.span(row)[1], -1))
    except Undecided:
        return False


def unsatisfiable(rows: Sequence[Form], never: Sequence[Sequence[Form]] = ()) -> str | None:
    """None where z3 proves that *rows* do not all hold while every conjunction of *never* fails; else a solution.

    Raises Undecided where z3 is not installed, or gives up.
    """
    found = solution(rows, never)
    return None if found is None else ", ".join(f"{told(v)} = {n}" for v, n in sorted(found.items()))


def solution(rows: Sequence[Form], never: Sequence[Sequence[Form]] = ()) -> dict[str, int] | None:
    """As ``unsatisfiable``, with the solution by names."""
    z3 = solver()
    numbers: dict[str, Any] = {}

    def value(form: Form) -> Any:
        total: Any = z3.IntVal(form.get("", 0))
        for name, k in form.items():
            if name:
                made: Any = z3.IntVal(k)
                for part in name.split("*"):
                    made = made * numbers.setdefault(part, z3.Int(part))
                total = total + made
        return total

    asked = z3.Solver()
    asked.set("rlimit", EFFORT)
    asked.add(*(value(row) >= 0 for row in rows))
    for conjunction in never:
        asked.add(z3.Or(*(value(row) < 0 for row in conjunction)) if conjunction else z3.BoolVal(False))
    answer = asked.check()
    if answer == z3.unsat:
        return None
    if answer == z3.unknown:
        raise Undecided(f"z3 gives up: {asked.reason_unknown()}")
    model = asked.model()
    return {v: model.eval(n, model_completion=True).as_long() for v, n in numbers.items()}


def solver() -> Any:
    """The module z3; raises Undecided where it is not installed."""
    try:
        import z3
    except ImportError:
        why = "products are beyond integer sets, and z3 is not installed (pip install 'einnet-explore[proofs]')"
        raise Undecided(why) from None
    return z3
