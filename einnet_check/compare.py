"""Equality proofs of scopes and programs: term multisets as integer sets.

For every product of factors the map from (output element, indices) to the total coefficient is a finite union of
integer sets; two scopes are equal if these sets are.  A summation point must be determined by the element and the
indices, else its count is beyond integer sets; an unused integer multiplies the coefficient by its extent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, reduce
from itertools import groupby, permutations, product
from math import factorial, prod
from typing import Any, TypeAlias

import islpy as isl

from einnet_check.sizes import Beyond, Size, Symbol, facts, form_of, terms_of
from einnet_check.terms import MOST, NONE, Axioms, Family, Form, Rows, Space, name, put, reduces, unbounded
from einnet_check.text import Box, Program, Read, Scope, Tensor, mapped, reads, tensors

Tally: TypeAlias = "dict[tuple[tuple[str, ...], int], Any]"
CONTEXT = isl.Context()
CONTEXT.set_max_operations(20_000_000)


@lru_cache(1 << 12)
def difference(before: Scope, after: Scope, box: Box, axioms: Axioms = NONE) -> str | None:
    """None where both scopes are proved to be one function on *box*, by *axioms* if any, else why not."""
    if unnamed(before) == unnamed(after):
        return None
    why = terms_differ(before, after, box, axioms)
    if why and around(before) == around(replace(after, reach=before.reach)):
        # The same function of scopes that are the same where both may be read.
        for a, b in zip(scopes(before), scopes(after), strict=True):
            ends = zip(a.reach, b.reach, strict=True)
            both = tuple((p if p == r else max(p, r), q if q == s else min(q, s)) for (p, q), (r, s) in ends)
            if a != b and difference(a, b, both, axioms):
                return why
        return None
    return why


def unnamed(scope: Scope) -> Scope:
    """*scope* with iterators named by their places, also in the scopes that it reads."""
    to = {x: f"{n}" for n, (x, _, _) in enumerate((*scope.own, *scope.sums))}
    own, sums = (tuple((to[x], lo, hi) for x, lo, hi in xs) for xs in (scope.own, scope.sums))
    domain = tuple(put(bound, to) for bound in scope.domain)
    body = mapped(put(scope.body, to), lambda r: Read(unnamed(r.source), r.at) if isinstance(r.source, Scope) else r)
    return replace(scope, own=own, sums=sums, body=body, domain=domain)


def scopes(scope: Scope) -> list[Scope]:
    return [r.source for r in reads(scope.body) if isinstance(r.source, Scope)]


def around(scope: Scope) -> Scope:
    """*scope* without the scopes that it reads."""
    body = mapped(scope.body, lambda r: Read(None, r.at) if isinstance(r.source, Scope) else r)
    return replace(scope, body=body)


def terms_differ(before: Scope, after: Scope, box: Box, axioms: Axioms) -> str | None:
    """Compare two scopes by their terms; return the reason why they are not proved equal, None if they are."""
    kinds = sorted({kind(before), kind(after)} - {""}) or ["sum"]
    space = Space(box, lambda a, b: a == b or difference(a, b, a.reach, axioms) is None, axioms)
    CONTEXT.reset_operations()
    try:
        if len(kinds) > 1:
            raise Beyond(f"{' and '.join(kinds)} have no common form")
        sides = [space.read(scope, space.point, kinds[0]) for scope in (before, after)]
        for commuted in (False, True):
            one, other = (tally(space, side, kinds[0], commuted) for side in sides)
            why = counted_differently(one, other, len(space.x))
            if why is None or all(len(set(names)) == len(names) for names, _ in {**one, **other}):
                break
        return why
    except (Beyond, isl.Error) as error:
        return f"beyond integer sets: {error}"


def kind(scope: Scope) -> str:
    """The reduction under which *scope* is compared: that of the first scope below it that reduces."""
    if reduces(scope):
        return scope.reduce
    return kind(scope.body.source) if isinstance(scope.body, Read) and isinstance(scope.body.source, Scope) else ""


def tally(space: Space, families: list[Family], reduce: str, commuted: bool) -> Tally:
    """The total coefficient at each (element, indices) by names of factors; *commuted*: under all orders of like ones.

    Of values that are not added it is 1.  Infinite values do not cancel: besides, where they are added, and where they
    are subtracted, has to be the same, so that it is 1 there under another key.
    """
    total: Tally = {}
    counted = reduce in ("sum", "prod")
    for family in families:
        for k, factors in family.value if reduce == "sum" else ((Fraction(1), (space.skeleton(family.value),)),):
            names = tuple(n for n, _ in factors)
            signs = (0, 1 if k > 0 else -1) if counted and unbounded(0, factors) else (0,)
            by_name = groupby(factors, key=lambda f: f[0])
            groups = [list(g) for _, g in by_name] if commuted else [[f] for f in factors]
            space.spend(100 * prod(factorial(len(g)) for g in groups))
            for sign, order in product(signs, product(*map(permutations, groups))):
                at = [form for group in order for _, forms in group for form in forms]
                number = space.number(k) if counted and not sign else None
                more = points(space, number, at, family)
                total[names, sign] = total[names, sign].add(more) if (names, sign) in total else more
    return {of: found if counted and not of[1] else constant(found.domain()) for of, found in total.items()}


def counted_differently(one: Tally, other: Tally, rank: int) -> str | None:
    """Return at which element of a result with *rank* dimensions *one* and *other* differ, None if they are equal."""
    for names, sign in {**one, **other}:
        left, *right = (side[names, sign] for side in (one, other) if (names, sign) in side)
        wrong = left.sub(*right).domain() if right else left.domain()
        if not wrong.is_empty():
            point, of = wrong.lexmin().sample_point(), isl.dim_type.set
            at = [int(str(point.get_coordinate_val(of, n))) for n in range(wrong.dim(of))]
            term = f"{' · '.join(names) or '1'}{f' at {at[rank:]}' if at[rank:] else ''}"
            return f"element {at[:rank]}: {term} is counted differently before and after"
    return None


def points(space: Space, k: Fraction | None, forms: Iterable[Form], family: Family) -> Any:
    """*k* where *family* is, by (element, indices), a piecewise constant; raises Beyond where one stands for several.

    None for *k*: 1 however many there are.
    """
    forms = tuple(forms)
    used = space.used((*forms, *family.where))
    summed = [y for y in family.summed if y in used]
    lost: int | Size = prod(space.range[y][1] - space.range[y][0] + 1 for y in family.summed if y not in used)
    ranges = {v: tuple(map(form_of, space.range[v])) for v in (*space.x, *summed)}
    named = {v for form in (form_of(lost), *(f for ends in ranges.values() for f in ends)) for v in form}
    symbols, rows = facts(v for v in {*used, *named} if isinstance(v, Symbol))
    rows += [f"{name(lo)} <= {v} <= {name(hi)}" for v, (lo, hi) in ranges.items()]
    rows += [f"{name(row)} >= 0" for row in family.where]
    # A coordinate that is just a summed integer lends it its name: one existential less to eliminate.
    names: list[str] = []
    for n, form in enumerate(forms):
        bare = next((y for y in summed if form == {y: 1, "": 0} and y not in names), None)
        names.append(bare or f"i{n}")
        rows += [] if bare else [f"i{n} = {name(form)}"]
    hidden, image = [y for y in summed if y not in names], ", ".join((*space.x, *names))
    given = f"[{', '.join(sorted(symbols))}] -> " if symbols else ""
    map_ = isl.Map(f"{given}{{ [{image}] -> [{', '.join(hidden)}] : {' and '.join(rows) or 'true'} }}", CONTEXT)
    if k is not None and not map_.is_single_valued():
        raise Beyond("one term stands for several points of a sum, whose number integer sets do not hold")
    return constant(map_.domain(), *((Fraction(1), 1) if k is None else (k, lost)))


def constant(where: Any, k: Fraction = Fraction(1), size: int | Size = 1) -> Any:
    """The piecewise constant that is *k* times *size* at every point of *where*."""
    space, terms = where.get_space(), []
    for of, n in terms_of(size):
        term = isl.QPolynomial.val_on_domain(space, isl.Val.read_from_str(CONTEXT, str(k * n)))
        if of:
            place = space.find_dim_by_name(isl.dim_type.param, Symbol(of))
            term = term.mul(isl.QPolynomial.var_on_domain(space, isl.dim_type.param, place))
        terms.append(term)
    return isl.PwQPolynomial.alloc(where, reduce(isl.QPolynomial.add, terms))


def occurs(space: Space, summed: tuple[str, ...], where: Rows) -> bool:
    """Whether all of *where* holds somewhere."""
    try:
        return not points(space, None, (), Family(where, (), summed)).domain().is_empty()
    except isl.Error as error:
        raise Beyond(f"beyond integer sets: {error}") from None


def prove(before: Program, after: Program, axioms: Axioms = NONE) -> str | None:
    """None where *after* computes every output of *before*, else why that is not proved.

    An equation that both have stays a tensor for its readers as long as that can be proved; else it is put into them.
    Outputs are compared also where they are put into their readers.
    """
    if before.guards != after.guards:
        return f"what is assumed of the sizes is another: {', '.join(after.guards) or 'nothing'}"
    mine, theirs = ({t._replace(reach=t.box, value=Fraction(0)) for t in p.inputs} for p in (before, after))
    if before.outputs != after.outputs or not theirs <= mine:
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
        for n, box in boxes[0].items():
            wanted = n in kept or n in before.outputs
            why = difference(left[n], right[n], box, axioms) if wanted and left[n] != right[n] else None
            if why:
                break
        else:
            return None
        one, other = ({*tensors(side[n])} & kept for side in (left, right))
        opened = (one ^ other) or (one | other if n in before.outputs else {n})
        if not opened:
            return f"{n}: {why}"
        kept -= opened


def inlined(program: Program, kept: Iterable[str]) -> dict[str, Scope]:
    """Every equation's scope by name, with the equations that are not *kept* in place of reads of them."""
    out: dict[str, Scope] = {}
    copies: dict[str, int] = {}

    def put(read: Read) -> Read:
        match read.source:
            case Scope(body=body) as source:
                return Read(replace(source, body=mapped(body, put)), read.at)
            case Tensor(name) if name in out and name not in kept:
                return Read(out[name], read.at)
        return read

    for of, scope, *_ in program.equations:
        copies[of] = 1 + sum(copies[n] for n in tensors(scope) if n in copies and n not in kept)
        if copies[of] > MOST:
            raise Beyond(f"{of} is made of more than {MOST} equations")
        out[of] = replace(scope, body=mapped(scope.body, put))
    return out
