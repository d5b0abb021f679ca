r"""Satisfiability of conditions over all sizes: integer sets for affine conditions, z3 for products.

A product of parameters alone, as in a merged extent :math:`H W`, is a further variable of the integer set; a proof
holds for all its values.  Every z3 query has one form: whether a conjunction of polynomials ≥ 0 and of negated such
conjunctions has an integer solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import islpy as isl

from einnet_explore.equivalence.integer_sets import bounded_context
from einnet_explore.equivalence.linear_space import Form, Undecided
from einnet_explore.parametric.size_polynomials import (
    add_forms,
    isl_expression,
    isl_name,
    product_rows,
    range_rows,
    smallest_point,
    symbol_text,
    symbols_in,
)
from einnet_explore.parametric.space import ParametricSpace

if TYPE_CHECKING:
    import z3

Z3_RESOURCE_LIMIT = 4_000_000
"""Resource limit of one z3 query, in z3's machine-independent units."""


def integers_in(space: ParametricSpace, forms: Iterable[Form]) -> list[str]:
    """Return every integer in *forms*, also through quotients and aliases."""
    found: dict[str, None] = {}
    stack = [v for form in forms for v in sorted(symbols_in(form))]
    while stack:
        v = stack.pop()
        if v not in found:
            found[v] = None
            made = (*space.divisions.get(v, ()), space.aliases.get(v, {}))
            stack += (u for form in made for u in sorted(symbols_in(form)))
    return list(found)


def assumption_rows(space: ParametricSpace) -> list[Form]:
    """Return the assumptions on the parameters, as forms that are ≥ 0."""
    return [*range_rows(space.ground.ranges), *space.ground.rows]


def condition_rows(space: ParametricSpace, used: Iterable[str], where: Iterable[Form]) -> list[Form]:
    """Return the conditions on output coordinates and the integers *used*: ranges, definitions, and *where*."""
    rows = [*where]
    named = dict.fromkeys((*space.coordinates, *used))
    for v in named:
        if v in space.divisions:
            rows += quotient_rows(space, v)
        elif v in space.limits:
            lo, hi = space.limits[v]
            rows += [add_forms({v: 1, "": 0}, lo, -1), add_forms(hi, {v: 1, "": 0}, -1)]
            rows += equality_rows({v: 1, "": 0}, space.aliases[v]) if v in space.aliases else ()
    return rows


def quotient_rows(space: ParametricSpace, q: str) -> list[Form]:
    """Return the conditions that define the quotient *q*."""
    e, d = space.divisions[q]
    rest = add_forms(e, space.times(d, {q: 1, "": 0}), -1)
    return [rest, add_forms(add_forms(d, rest, -1), {"": -1})]


def equality_rows(a: Form, b: Form) -> list[Form]:
    """Return the conditions for two forms to be equal."""
    return [add_forms(a, b, -1), add_forms(b, a, -1)]


def has_parameter_products(space: ParametricSpace, rows: Iterable[Form]) -> bool:
    """Whether a parameter is multiplied by an integer that is no parameter."""
    names = (name.split("*") for row in rows for name in row if "*" in name)
    return any(part not in space.symbols for parts in names for part in parts)


def size_names(space: ParametricSpace, rows: Iterable[Form]) -> tuple[str, ...]:
    """Return the size variables of an integer set: the parameters, and the products of parameters in *rows*."""
    found = {name for row in rows for name in row if "*" in name}
    return (*space.symbols, *sorted(found))


Solution: TypeAlias = "dict[str, int]"
"""Values of integers, by the name of the integer or of a product."""


def solution_text(solution: Solution) -> str:
    """Format *solution* for messages: ``H = 3, x0 = 2``."""
    return ", ".join(f"{symbol_text(v)} = {n}" for v, n in solution.items())


def find_solution(space: ParametricSpace, where: Sequence[Form]) -> Solution | None:
    """Return values that may fulfil *where*; None if no sizes fulfil all conditions.  Raises Undecided."""
    if any(_never_holds(space, row) for row in where):
        return None
    rows = [*assumption_rows(space), *condition_rows(space, integers_in(space, where), where)]
    if has_parameter_products(space, rows):
        space.solvers.add("z3")
        return solve_with_z3(rows)
    space.solvers.add("isl")
    sizes = size_names(space, rows)
    rows += product_rows(space.ground.ranges, sizes)
    names = dict.fromkeys((*sizes, *(v for row in rows for v in row if v)))
    dims = ", ".join(map(isl_name, names))
    try:
        found = isl.Set(
            f"{{ [{dims}] : {' and '.join(f'{isl_expression(row)} >= 0' for row in rows)} }}", bounded_context()
        )
        if found.is_empty():
            return None
        return dict(zip(names, smallest_point(found), strict=True))
    except isl.Error as error:
        raise Undecided(f"integer sets: {error}") from None


def _never_holds(space: ParametricSpace, row: Form) -> bool:
    try:
        return space.ground.is_nonnegative(add_forms({"": -1}, space.span(row)[1], -1))
    except Undecided:
        return False


def solve_with_z3(rows: Sequence[Form], never: Sequence[Sequence[Form]] = ()) -> Solution | None:
    """Return a solution of *rows* at which every conjunction of *never* fails; None if z3 proves there is none.

    Raises Undecided if z3 is not installed or gives up.
    """
    solver = load_z3()
    numbers: dict[str, z3.ArithRef] = {}

    def value(form: Form) -> z3.ArithRef:
        total: z3.ArithRef = solver.IntVal(form.get("", 0))
        for name, k in form.items():
            if name:
                made: z3.ArithRef = solver.IntVal(k)
                for part in name.split("*"):
                    made = made * numbers.setdefault(part, solver.Int(part))
                total = total + made
        return total

    query = solver.Solver()
    query.set("rlimit", Z3_RESOURCE_LIMIT)
    query.add(*(value(row) >= 0 for row in rows))
    for conjunction in never:
        query.add(solver.Or(*(value(row) < 0 for row in conjunction)) if conjunction else solver.BoolVal(False))
    answer = query.check()
    if answer == solver.unsat:
        return None
    if answer == solver.unknown:
        raise Undecided(f"z3 gives up: {query.reason_unknown()}")
    model = query.model()
    return {v: model.eval(n, model_completion=True).as_long() for v, n in sorted(numbers.items())}


def load_z3() -> ModuleType:
    """Return the module z3; raises Undecided if it is not installed."""
    try:
        return import_module("z3")
    except ImportError:
        why = "products are beyond integer sets, and z3 is not installed (pip install 'einnet-explore[proofs]')"
        raise Undecided(why) from None
