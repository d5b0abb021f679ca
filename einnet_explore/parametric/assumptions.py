"""Assumptions of ``param`` lines, as parameters of a family.

Assumptions are free parameters, tied parameters and inequalities, and some sizes must fulfil them.

Assumptions without a solution are refused, since every claim about them would hold vacuously.  Integer sets relax a
product of parameters to a further variable: an empty set has no solution, but a point of the set may be none.  Then
small sizes are tried, and z3 is run.  The problem is undecidable (Y. Matiyasevich, 1970), so the effort is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, count, islice, product

from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.parametric.comparison import solve_with_z3
from einnet_explore.parametric.parameters import FamilyParameters, Inequality, Parameter, TiedParameter, polynomial_form
from einnet_explore.parametric.schema import parse_polynomial
from einnet_explore.parametric.size_polynomials import (
    Poly,
    SizePolynomial,
    Unknown,
    divide_form,
    least_point,
    parameter_polynomial,
    parameters_in,
    polynomial_text,
    range_rows,
    substitute_sizes,
    terms_of,
)
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.parametric_text import Assumption, Template

MAX_TRIED_SIZES = 2000
"""Tuples of sizes tried near the minimum, and as many at powers of two above it."""


def find_sizes(ground: FamilyParameters) -> tuple[int, ...] | None:
    """Return unknowns at allowed sizes; None if there are none.

    Raises Undecided if neither is found.
    """
    first = least_point(ground.ranges, ground.rows)
    if first is None:
        return None
    for unknowns in chain([first], _sizes_near_least(ground), _powers_of_two(ground)):
        if _is_allowed(ground, unknowns):
            return unknowns
    unknown = f"whether any sizes fulfil it is not known: none of up to {2 * MAX_TRIED_SIZES} do"
    try:
        found = solve_with_z3([*range_rows(ground.ranges), *ground.rows])
    except Undecided as why:
        raise Undecided(f"{unknown}, and {why}") from None
    if found is None:
        return None
    unknowns = tuple(found.get(p.unknown.symbol, p.first) for p in ground.parameters)
    if not _is_allowed(ground, unknowns):
        raise Undecided(f"{unknown}, nor does what z3 found: {unknowns}")
    return unknowns


def _is_allowed(ground: FamilyParameters, unknowns: Iterable[int]) -> bool:
    try:
        ground.refuse(ground.sizes(unknowns))
    except Refused:
        return False
    return True


def _sizes_near_least(ground: FamilyParameters) -> Iterable[tuple[int, ...]]:
    """Yield unknowns by their total distance above the minimum values."""
    firsts = [p.first for p in ground.parameters]
    every = (more for total in count() for more in _compositions(total, len(firsts)))
    return (tuple(map(sum, zip(firsts, more, strict=True))) for more in islice(every, MAX_TRIED_SIZES))


def _compositions(total: int, terms: int) -> Iterable[tuple[int, ...]]:
    """Yield all tuples of *terms* natural numbers with sum *total*."""
    if terms == 1:
        yield (total,)
        return
    for n in range(total + 1):
        for rest in _compositions(total - n, terms - 1):
            yield (n, *rest)


def _powers_of_two(ground: FamilyParameters) -> Iterable[tuple[int, ...]]:
    """Yield unknowns at powers of two above their minimum values."""
    terms = len(ground.parameters)
    ends = range(2, 64)
    most = max((n for n in ends if n**terms <= MAX_TRIED_SIZES), default=1)
    steps = product([0, *(1 << (n * 48 // most) for n in range(most))], repeat=terms)
    return (tuple(p.first + n for p, n in zip(ground.parameters, more, strict=True)) for more in steps)


def parse_assumptions(template: Template) -> FamilyParameters:
    """Return the parameters of *template* with their assumptions.

    Raises TextError for an assumption without solutions, and for an equation or remainder that cannot be solved for
    one parameter.
    """
    alone: dict[str, Parameter] = {name: Parameter(name) for name in template.names}
    for a in template.assumptions:
        if a.name:
            alone[a.name] = _assume_of_one(template, a, alone[a.name])
    ground = FamilyParameters(tuple(alone.values()), declared=template.names)
    several = [a for a in template.assumptions if not a.name]
    for a in sorted(several, key=lambda a: a.op not in ("==", "%")):
        try:
            ground = _assume_of_several(template, ground, a)
            empty = find_sizes(ground) is None
        except Undecided as why:
            raise template.refuse(a, f"found {a.text}: {why}") from None
        if empty:
            others = [guard for guard in ground.guards if guard != a.text]
            raise template.refuse(a, f"found {a.text}, which no sizes with {' and '.join(others)} fulfil")
    return ground


def _assume_of_one(template: Template, a: Assumption, p: Parameter) -> Parameter:
    match a.op:
        case ">=":
            p = replace(p, least=max(p.least, a.number))
        case "<=":
            p = replace(p, most=a.number if p.most is None else min(p.most, a.number))
        case "%":
            both = p.with_congruence(a.modulus, a.number)
            if both is None:
                guard = f"{a.name} % {p.modulus} == {p.residue}"
                raise template.refuse(
                    a, f"found {a.name} % {a.modulus} == {a.number}, which no number with {guard} has"
                )
            p = both
    if p.empty:
        raise template.refuse(a, f"found no number with {' and '.join(p.guards)}, expected at least one")
    return p


def _assume_of_several(template: Template, ground: FamilyParameters, a: Assumption) -> FamilyParameters:
    """Add one assumption on several parameters; raises TextError if it cannot be solved."""
    assert a.left is not None and a.right is not None
    left, right = (parse_polynomial(side, ground.names) for side in (a.left, a.right))
    match a.op:
        case "%":
            return _assume_multiple(template, ground, a, left, right)
        case "==":
            return _assume_equal(template, ground, a, left, right)
    gap = left - right if a.op in (">=", ">") else right - left
    return _with_relation(ground, Inequality(a.text, gap - 1 if a.op in (">", "<") else gap))


def _with_relation(ground: FamilyParameters, relation: Inequality) -> FamilyParameters:
    return replace(ground, relations=(*ground.relations, relation))


def _assume_equal(
    template: Template, ground: FamilyParameters, a: Assumption, left: SizePolynomial, right: SizePolynomial
) -> FamilyParameters:
    """Eliminate a parameter that is alone on one side of an equation."""
    free = {p.name: p for p in ground.parameters}
    for one, other in ((right, left), (left, right)):
        name, value = _lone_parameter(one), _eliminate_tied(ground, other)
        if name in free and not (isinstance(value, Poly) and name in parameters_in(value)):
            return _tie(template, ground, a, free[name], TiedParameter(name, value, a.text))
    if _eliminate_tied(ground, left - right) == 0:
        return ground
    raise template.refuse(a, f"found {a.text}, expected a parameter that stands alone on one side, and is not tied")


def _assume_multiple(
    template: Template, ground: FamilyParameters, a: Assumption, left: SizePolynomial, right: SizePolynomial
) -> FamilyParameters:
    """Replace a parameter by the product of *right* and a new natural number."""
    name, free = _lone_parameter(left), {p.name: p for p in ground.parameters}
    sides = (polynomial_form(_eliminate_tied(ground, side)) for side in (left, right))
    if name not in free and divide_form(*sides) is not None:
        return ground
    if name not in free or name in parameters_in(_eliminate_tied(ground, right)):
        raise template.refuse(a, f"found {a.text}, expected one parameter, which is not tied, in front of %")
    quotient = next(q for n in range(len(template.text)) if (q := f"{name}_{n}") not in template.text)
    simple = polynomial_text(right).isidentifier()
    text = f"{name}//{polynomial_text(right)}" if simple else f"{name}//({polynomial_text(right)})"
    ground = replace(ground, parameters=(*ground.parameters, Parameter(quotient, text=text)))
    value = right * parameter_polynomial(quotient)
    return _tie(template, ground, a, free[name], TiedParameter(name, value, a.text, quotient, right))


def _tie(
    template: Template, ground: FamilyParameters, a: Assumption, p: Parameter, tied: TiedParameter
) -> FamilyParameters:
    """Make *p* a tied parameter; its bounds become inequalities."""
    rest = tuple(q for q in ground.parameters if q != p)
    same = next((q for q in rest if _lone_parameter(tied.value) == q.name), None)
    if p.modulus > 1 and same is None:
        guard = f"{p.name} % {p.modulus} == {p.residue}"
        raise template.refuse(a, f"found {a.text} with {guard}, expected one of the two")
    if same is not None and (p.modulus > 1 or p.least > 1 or p.most is not None):
        both = same.with_congruence(p.modulus, p.residue)
        tops = [n for n in (same.most, p.most) if n is not None]
        both = both and replace(both, least=max(same.least, p.least), most=min(tops, default=None))
        if both is None or both.empty:
            raise template.refuse(
                a, f"found {a.text}, which no number with {' and '.join((*same.guards, *p.guards))} has"
            )
        rest = tuple(both if q == same else q for q in rest)
    ground = replace(ground, parameters=rest, tied=(*ground.tied, tied))
    if same is not None:
        return ground
    size = parameter_polynomial(p.name)
    if not ground.is_nonnegative(polynomial_form(substitute_sizes(size - p.least, ground.values))):
        ground = _with_relation(ground, Inequality(f"{p.name} >= {p.least}", size - p.least))
    if p.most is not None:
        ground = _with_relation(ground, Inequality(f"{p.name} <= {p.most}", p.most - size))
    return ground


def _eliminate_tied(ground: FamilyParameters, n: SizePolynomial) -> SizePolynomial:
    """Substitute the values of tied parameters in *n*."""
    ties = {t.name: t.value for t in ground.tied}
    while isinstance(n, Poly) and parameters_in(n) & ties.keys():
        n = substitute_sizes(n, {name: ties.get(name, parameter_polynomial(name)) for name in parameters_in(n)})
    return n


def _lone_parameter(n: SizePolynomial) -> str:
    """Return the name if *n* is one parameter, else an empty string."""
    match terms_of(n):
        case (((Unknown(parameter=name),), 1),):
            return name
    return ""
