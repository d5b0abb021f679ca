"""What ``param`` lines assume, put together: free parameters, those that are tied to them, and inequalities."""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.algebra.space import Beyond
from einnet_explore.family.parameters import Ground, Parameter, Relation, Tied, form_of
from einnet_explore.family.statement import polynomial
from einnet_explore.family.whole import Poly, Unknown, Whole, named_in, put, shown, terms_of, whole
from einnet_explore.family.witness import witness
from einnet_explore.text.parametric import Assumption, Template


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
        except Beyond as why:
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
