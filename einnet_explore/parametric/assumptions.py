"""What ``param`` lines assume, put together: free parameters, those that are tied to them, and inequalities.

Sizes that fulfil what is assumed: without any, all that is proved would be true of nothing.

Integer sets take a product of parameters for a number of its own: where they say that there are no sizes there are
none, where they name some these may be no solution.  Then small ones are tried, and z3 is asked.  Whether polynomials
have a common solution in the integers is undecidable (Y. Matiyasevich, 1970), so an end of the effort is an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, count, islice, product

from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.parametric.decision import solution
from einnet_explore.parametric.parameters import Ground, Parameter, Relation, Tied, form_of
from einnet_explore.parametric.size_polynomials import Poly, Unknown, Whole, named_in, put, shown, terms_of, whole
from einnet_explore.parametric.size_region import bounds, least
from einnet_explore.parametric.statement import polynomial
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.parametric_text import Assumption, Template

TRIED = 2000
"""So many sizes are tried, of those next to the least; and as many of powers of two above it."""


def witness(ground: Ground) -> tuple[int, ...] | None:
    """The unknowns of *ground* at sizes that it allows; None where there are none.

    Raises Undecided where it is not known whether there are any.
    """
    first = least(ground.ranges, ground.rows)
    if first is None:
        return None
    for unknowns in chain([first], _small(ground), _powers(ground)):
        if _allowed(ground, unknowns):
            return unknowns
    unknown = f"whether any sizes fulfil it is not known: none of up to {2 * TRIED} do"
    try:
        found = solution([*bounds(ground.ranges), *ground.rows])
    except Undecided as why:
        raise Undecided(f"{unknown}, and {why}") from None
    if found is None:
        return None
    unknowns = tuple(found.get(p.unknown.symbol, p.first) for p in ground.parameters)
    if not _allowed(ground, unknowns):
        raise Undecided(f"{unknown}, nor does what z3 found: {unknowns}")
    return unknowns


def _allowed(ground: Ground, unknowns: Iterable[int]) -> bool:
    try:
        ground.refuse(ground.sizes(unknowns))
    except Refused:
        return False
    return True


def _small(ground: Ground) -> Iterable[tuple[int, ...]]:
    """The unknowns by how far they lie above their least values, in all."""
    firsts = [p.first for p in ground.parameters]
    every = (more for total in count() for more in _parts(total, len(firsts)))
    return (tuple(map(sum, zip(firsts, more, strict=True))) for more in islice(every, TRIED))


def _parts(total: int, terms: int) -> Iterable[tuple[int, ...]]:
    """Natural numbers, *terms* of them, whose sum is *total*."""
    if terms == 1:
        yield (total,)
        return
    for n in range(total + 1):
        for rest in _parts(total - n, terms - 1):
            yield (n, *rest)


def _powers(ground: Ground) -> Iterable[tuple[int, ...]]:
    """The unknowns at powers of two above their least values, as far up as so many sizes go."""
    terms = len(ground.parameters)
    ends = range(2, 64)
    most = max((n for n in ends if n**terms <= TRIED), default=1)
    steps = product([0, *(1 << (n * 48 // most) for n in range(most))], repeat=terms)
    return (tuple(p.first + n for p, n in zip(ground.parameters, more, strict=True)) for more in steps)


def ground_of(template: Template) -> Ground:
    """The parameters of *template* with all that is assumed of them; raises TextError at an assumption that leaves
    no sizes, and at an equation or a remainder that cannot be solved for one parameter."""
    alone: dict[str, Parameter] = {name: Parameter(name) for name in template.names}
    for a in template.assumptions:
        if a.name:
            alone[a.name] = _alone(template, a, alone[a.name])
    ground = Ground(tuple(alone.values()), declared=template.names)
    several = [a for a in template.assumptions if not a.name]
    for a in sorted(several, key=lambda a: a.op not in ("==", "%")):
        try:
            ground = _with(template, ground, a)
            empty = witness(ground) is None
        except Undecided as why:
            raise template.refuse(a, f"found {a.text}: {why}") from None
        if empty:
            others = [guard for guard in ground.guards if guard != a.text]
            raise template.refuse(a, f"found {a.text}, which no sizes with {' and '.join(others)} fulfil")
    return ground


def _alone(template: Template, a: Assumption, p: Parameter) -> Parameter:
    match a.op:
        case ">=":
            p = replace(p, least=max(p.least, a.number))
        case "<=":
            p = replace(p, most=a.number if p.most is None else min(p.most, a.number))
        case "%":
            both = p.also(a.modulus, a.number)
            if both is None:
                guard = f"{a.name} % {p.modulus} == {p.residue}"
                raise template.refuse(
                    a, f"found {a.name} % {a.modulus} == {a.number}, which no number with {guard} has"
                )
            p = both
    if p.empty:
        raise template.refuse(a, f"found no number with {' and '.join(p.guards)}, expected at least one")
    return p


def _with(template: Template, ground: Ground, a: Assumption) -> Ground:
    """*ground* with one assumption on several parameters; raises TextError where it cannot be solved."""
    assert a.left is not None and a.right is not None
    left, right = (polynomial(side, ground.names) for side in (a.left, a.right))
    match a.op:
        case "%":
            return _multiple(template, ground, a, left, right)
        case "==":
            return _equal(template, ground, a, left, right)
    gap = left - right if a.op in (">=", ">") else right - left
    return _related(ground, Relation(a.text, gap - 1 if a.op in (">", "<") else gap))


def _related(ground: Ground, *relations: Relation) -> Ground:
    return replace(ground, relations=(*ground.relations, *relations))


def _equal(template: Template, ground: Ground, a: Assumption, left: Whole, right: Whole) -> Ground:
    """*ground* with the parameter that stands alone on one side as what the other side is."""
    free = {p.name: p for p in ground.parameters}
    for one, other in ((right, left), (left, right)):
        name, value = _name(one), _over_free(ground, other)
        if name in free and not (isinstance(value, Poly) and name in named_in(value)):
            return _tied(template, ground, a, free[name], Tied(name, value, a.text))
    if _over_free(ground, left - right) == 0:
        return ground
    raise template.refuse(a, f"found {a.text}, expected a parameter that stands alone on one side, and is not tied")


def _multiple(template: Template, ground: Ground, a: Assumption, left: Whole, right: Whole) -> Ground:
    """*ground* with a parameter as a product of *right* and a new natural number."""
    name, free = _name(left), {p.name: p for p in ground.parameters}
    if name not in free or name in named_in(_over_free(ground, right)):
        raise template.refuse(a, f"found {a.text}, expected one parameter, which is not tied, in front of %")
    quotient = next(q for n in range(len(template.text)) if (q := f"{name}_{n}") not in template.text)
    simple = shown(right).isidentifier()
    text = f"{name}//{shown(right)}" if simple else f"{name}//({shown(right)})"
    ground = replace(ground, parameters=(*ground.parameters, Parameter(quotient, text=text)))
    value = right * whole((((Unknown(quotient),), 1),))
    return _tied(template, ground, a, free[name], Tied(name, value, a.text, quotient, right))


def _tied(template: Template, ground: Ground, a: Assumption, p: Parameter, tied: Tied) -> Ground:
    """*ground* with *p* no longer free: its least and largest values are inequalities now."""
    rest = tuple(q for q in ground.parameters if q != p)
    same = next((q for q in rest if _name(tied.value) == q.name), None)
    if p.modulus > 1 and same is None:
        guard = f"{p.name} % {p.modulus} == {p.residue}"
        raise template.refuse(a, f"found {a.text} beside {guard}, expected one of the two")
    if same is not None and (p.modulus > 1 or p.least > 1 or p.most is not None):
        both = same.also(p.modulus, p.residue)
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
    gap = whole((((Unknown(p.name),), 1), ((), -p.least)))
    ground = _related(ground, Relation(f"{p.name} >= {p.least}", gap)) if _may_fail(ground, gap) else ground
    return (
        ground
        if p.most is None
        else _related(ground, Relation(f"{p.name} <= {p.most}", whole((((Unknown(p.name),), -1), ((), p.most)))))
    )


def _may_fail(ground: Ground, gap: Whole) -> bool:
    return not ground.surely(form_of(put(gap, ground.values)))


def _over_free(ground: Ground, n: Whole) -> Whole:
    """*n* with tied parameters as what they are tied to, by names."""
    ties = {t.name: t.value for t in ground.tied}
    while isinstance(n, Poly) and named_in(n) & ties.keys():
        n = put(n, {name: ties.get(name, whole((((Unknown(name),), 1),))) for name in named_in(n)})
    return n


def _name(n: Whole) -> str:
    """The parameter that *n* is, or nothing."""
    match terms_of(n):
        case (((Unknown(parameter=name),), 1),):
            return name
    return ""
