"""Whether two scopes, and two programs, compute the same: their multisets of terms as integer sets.

For every product of factors the map from (output element, indices) to the total coefficient is a finite union of
integer sets; two scopes are equal if these are.  A point that is summed has to be determined by the element and the
indices, else the count is beyond integer sets; an integer that occurs nowhere multiplies by its extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, permutations, product
from math import factorial, prod
from typing import Any

import islpy as isl

from einnet_check.terms import MOST, NONE, Axioms, Beyond, Factors, Family, Form, Rows, Space, name, reduces, unbounded
from einnet_check.text import Box, Expr, Number, Program, Read, Scope, Tensor, reads, tensors

CONTEXT = isl.Context()
CONTEXT.set_max_operations(20_000_000)


@lru_cache(1 << 12)
def difference(before: Scope, after: Scope, box: Box, axioms: Axioms = NONE) -> str | None:
    """None where both scopes are proved to be one function on *box*, by *axioms* if any, else why not."""
    why = terms_differ(before, after, box, axioms)
    if why and replace(after, body=before.body, reach=before.reach) == before:
        # The same function of scopes that are the same where both may be read.
        for a, b in (inner := aligned(before.body, after.body) or []):
            both = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a.reach, b.reach, strict=True))
            if a != b and difference(a, b, both, axioms):
                return why
        return why if not inner else None
    return why


def aligned(a: Expr, b: Expr) -> list[tuple[Scope, Scope]] | None:
    """The scopes that *a* and *b* read in the same places; None if they differ in anything else."""
    match a, b:
        case Read(Scope() as one, i), Read(Scope() as other, j) if i == j:
            return [(one, other)]
        case (str(f), *x), (str(g), *y) if f == g and len(x) == len(y):
            parts = [aligned(p, q) for p, q in zip(x, y, strict=True)]
            return None if None in parts else [pair for part in parts if part for pair in part]
    return [] if a == b else None


def terms_differ(before: Scope, after: Scope, box: Box, axioms: Axioms) -> str | None:
    """As ``difference``, by their terms."""
    kinds = {k for k in (kind(before), kind(after)) if k} or {"sum"}
    space = Space(box, lambda a, b: a == b or difference(a, b, a.reach, axioms) is None, axioms)
    reduce = min(kinds)
    CONTEXT.reset_operations()
    try:
        if len(kinds) > 1:
            raise Beyond(f"{' and '.join(sorted(kinds))} have no common form")
        sides = [by_factors(space, space.read(scope, space.point, reduce), reduce) for scope in (before, after)]
        for names in {**sides[0], **sides[1]}:
            ways = [(reduce in ("sum", "prod"), [side.get(names, []) for side in sides])]
            if ways[0][0] and unbounded(0, tuple((n, ()) for n in names)):
                # Infinite values do not cancel: they have to be added, and subtracted, in the same places besides.
                ways += [(False, [[t for t in s if (t[0] > 0) == up] for s in ways[0][1]]) for up in (True, False)]
            for commuted in (False, True) if len(set(names)) < len(names) else (False,):
                for counted, terms in ways:
                    one, other = (counts(space, side, counted, commuted) for side in terms)
                    wrong = differ(one, other, counted)
                    if wrong is not None:
                        break
                else:
                    break
            else:
                point = wrong.lexmin().sample_point()
                return f"{' · '.join(names) or '1'} is counted differently at {point} (an element, then indices)"
    except (Beyond, isl.Error) as error:
        return f"beyond integer sets: {error}"
    return None


def kind(scope: Scope) -> str | None:
    """The reduction under which *scope* is compared: that of the first scope below it that reduces."""
    if reduces(scope):
        return scope.reduce
    return kind(scope.body.source) if isinstance(scope.body, Read) and isinstance(scope.body.source, Scope) else None


def by_factors(
    space: Space, families: Iterable[Family], reduce: str
) -> dict[tuple[str, ...], list[tuple[Number, Factors, Family]]]:
    """Coefficients and factors of the *families* by the factors' names; a value that is not added is one."""
    out: dict[tuple[str, ...], list[tuple[Number, Factors, Family]]] = {}
    for family in families:
        for k, factors in family.value if reduce == "sum" else ((Fraction(1), (space.skeleton(family.value),)),):
            out.setdefault(tuple(n for n, _ in factors), []).append((k, factors, family))
    return out


def counts(space: Space, terms: list[tuple[Number, Factors, Family]], counted: bool, commuted: bool) -> Any:
    """The total coefficient at each (element, indices); *commuted*: under all orders of like factors."""
    total: Any = None
    for k, factors, family in terms:
        groups = [list(g) for _, g in groupby(factors, key=lambda f: f[0] if commuted else id(f))]
        space.spend(100 * prod(factorial(len(g)) for g in groups))
        for order in product(*map(permutations, groups)):
            more = points(space, k, family, [form for group in order for _, at in group for form in at], counted)
            total = more if total is None else total.add(more)
    return total


def differ(one: Any, other: Any, counted: bool) -> Any:
    """Where two coefficients differ (None: nowhere); those not *counted* only by where there are any."""
    if one is other:
        return None
    if one is None or other is None:
        wrong = (one or other).domain()
    else:
        wrong = one.sub(other).domain() if counted else one.domain() - other.domain() | other.domain() - one.domain()
    return None if wrong.is_empty() else wrong


def points(space: Space, k: Number, family: Family, forms: list[Form], counted: bool) -> Any:
    """The coefficient *k*, as a piecewise constant, where *family* occurs as (element, indices); raises Beyond."""
    used = frozenset[str]().union(*(space.inside[v] for f in (*forms, *family.where) for v in f))
    summed, k = [y for y in family.summed if y in used], space.number(k) if counted else Fraction(1)
    k *= prod(space.range[y][1] - space.range[y][0] + 1 for y in family.summed if counted and y not in used)
    rows = [f"{space.range[v][0]} <= {v} <= {space.range[v][1]}" for v in (*space.x, *summed)]
    rows += [f"{name(row)} >= 0" for row in family.where]
    # A coordinate that is just a summed integer lends it its name: one existential less to eliminate.
    names: list[str] = []
    for n, form in enumerate(forms):
        bare = next((y for y in summed if form == {y: 1, "": 0} and y not in names), None)
        names.append(bare or f"i{n}")
        rows += [] if bare else [f"i{n} = {name(form)}"]
    hidden, image = [y for y in summed if y not in names], ", ".join((*space.x, *names))
    map_ = isl.Map(f"{{ [{image}] -> [{', '.join(hidden)}] : {' and '.join(rows) or 'true'} }}", CONTEXT)
    if counted and not map_.is_single_valued():
        raise Beyond("one term stands for several points of a sum, whose number integer sets do not hold")
    where, value = map_.domain(), isl.Val.read_from_str(CONTEXT, str(k))
    return isl.PwQPolynomial.alloc(where, isl.QPolynomial.val_on_domain(where.get_space(), value))


def occurs(space: Space, summed: tuple[str, ...], where: Rows) -> bool:
    """Whether all of *where* holds somewhere."""
    try:
        return not points(space, Fraction(1), Family(where, (), summed), [], False).domain().is_empty()
    except isl.Error as error:
        raise Beyond(f"beyond integer sets: {error}") from None


def prove(before: Program, after: Program, axioms: Axioms = NONE) -> str | None:
    """None where *after* computes every output of *before*, else why that is not proved.

    An equation that both have stays a tensor for its readers as long as that can be proved; else it is put into them.
    """
    if before.outputs != after.outputs or not set(after.inputs) <= set(before.inputs):
        return "inputs or outputs are others"
    boxes = [{e.name: e.scope.box for e in p.equations} for p in (before, after)]
    kept = {n for n, box in boxes[0].items() if box == boxes[1].get(n)}
    given = {tensor.name for tensor in after.inputs}
    if strange := [n for n in before.outputs if n not in (kept if n in boxes[0] else given)]:
        return f"output {strange[0]} has another box, or is an input no more"
    while True:
        try:
            left, right = inlined(before, kept), inlined(after, kept)
        except Beyond as error:
            return f"beyond integer sets: {error}"
        sides = ((n, left[n], right[n]) for n in boxes[0] if n in kept)
        wrong = ((n, a != b and difference(a, b, boxes[0][n], axioms)) for n, a, b in sides)
        found, why = next(((n, why) for n, why in wrong if why), ("", None))
        if why is None:
            return None
        one, other = (tensors(side[found]) & kept for side in (left, right))
        opened = (one ^ other) or (one | other if found in before.outputs else {found})
        if not opened:
            return f"{found}: {why}"
        kept -= opened


def inlined(program: Program, kept: Iterable[str]) -> dict[str, Scope]:
    """Every equation's scope by name, with the equations that are not *kept* in place of reads of them."""
    out: dict[str, Scope] = {}
    copies: dict[str, int] = {}

    def put(e: Expr) -> Expr:
        match e:
            case Read(Tensor(of), index) if of in out and of not in kept:
                return Read(out[of], index)
            case Read(Scope() as source, index):
                return Read(replace(source, body=put(source.body)), index)
            case (op, *args) if not isinstance(e, Read):
                return (op, *map(put, args))
        return e

    for equation in program.equations:
        names = [r.source.name for r in reads(equation.scope.body, True) if isinstance(r.source, Tensor)]
        copies[equation.name] = 1 + sum(copies[n] for n in names if n in copies and n not in kept)
        if copies[equation.name] > MOST:
            raise Beyond(f"{equation.name} is made of more than {MOST} equations")
        out[equation.name] = replace(equation.scope, body=put(equation.scope.body))
    return out
