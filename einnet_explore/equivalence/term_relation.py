r"""Term relations: a scope as a piecewise polynomial over tensor elements.

For a scope in polynomial form, with its nested scopes substituted,

.. math::  Y[\vec x] = \sum_i k_i \sum_{\vec y :\, C_i(\vec x, \vec y) \ge 0} \prod_j T_{ij}[\tau_{ij}(\vec x, \vec y)]

every *i* is one ``Term``.  Ranges, domains, boxes and paddings are all conditions ``C_i``: reads of padding that holds
0 vanish, others are terms of their own.  A function that is no polynomial is a symbol: ``relu(A[i])`` is the factor
``relu(A)`` at the index *i*: equal arguments have equal factors, and nothing else is assumed of it.

Source: EinNet §3 for the meaning of scopes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations, compress, product
from math import isfinite, isinf, prod
from typing import Any, TypeAlias

from einnet_explore.analysis.bilinear import table_entries
from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import multiply_out, open_reduction, open_scope
from einnet_explore.equivalence.assumptions import Assumptions
from einnet_explore.equivalence.linear_space import (
    MAX_NAMES,
    Env,
    Factor,
    Form,
    TermSpace,
    Undecided,
    common_reduction,
    complement,
    form_key,
    pinned_values,
    reduces,
    scope_conditions,
    subtract_forms,
    tensor_factor,
    with_summations,
)
from einnet_explore.equivalence.polynomial import (
    CONDITION,
    Monomial,
    Polynomial,
    apply_to_polynomials,
    cancel_exponentials,
    constant_value,
    exact_number,
    factor_exponentials,
    may_be_infinite,
    multiply_numbers,
    polynomial_skeleton,
)
from einnet_explore.interpreter.numbers import INFINITE_SUFFIX, Number
from einnet_explore.ir import (
    ELEMENT_TYPES,
    REDUCTIONS,
    Access,
    Apply,
    Compare,
    Const,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    factors,
    is_exact_cast,
    mul,
)
from einnet_explore.ir.scalar_functions import monotonicity
from einnet_explore.support.errors import Refused

Case: TypeAlias = "tuple[tuple[Form, ...], Polynomial]"


def scalar_cases(space: TermSpace, scalar: Scalar, env: Env) -> list[Case]:
    """Return *scalar* at one point by cases: disjoint conditions, with a polynomial for each."""
    match scalar:
        case Const(value):
            return [((), ((exact_number(value), ()),) if value else ())]
        case Access(Tensor() as source, index):
            return read_cases(space, source, tuple(space.form(i, env) for i in index))
        case Access(Table() as source, index):
            return table_cases(space, source, tuple(space.form(i, env) for i in index))
        case Access(Scope() as source, index):
            return _scope_cases(space, source, tuple(space.form(i, env) for i in index))
        case Apply("where", (Compare() as condition, a, b)):
            yes, no = condition_pieces(space, condition, env)
            chosen = ((yes, scalar_cases(space, a, env)), (no, scalar_cases(space, b, env)))
            return [((*rows, *where), value) for sides, cases in chosen for rows in sides for where, value in cases]
        case Apply(_, (a,)) if is_exact_cast(scalar):
            return scalar_cases(space, a, env)
        case Apply(op, args):
            parts = [scalar_cases(space, arg, env) for arg in args]
            if prod(map(len, parts)) > MAX_NAMES:
                raise Undecided(f"{op} has more than {MAX_NAMES} cases")
            return [
                (
                    tuple(row for where, _ in choice for row in where),
                    _applied(space, op, [value for _, value in choice]),
                )
                for choice in product(*parts)
            ]
    raise Undecided(f"{scalar!r} is no number")


def _applied(space: TermSpace, op: str, args: list[Polynomial]) -> Polynomial:
    given = space.given
    if (kept := _unchanged_integer(space, op, args)) is not None:
        return kept
    if op == "select" and (negated := _negated(space, args[0])) is not None:
        args = [negated, args[2], args[1]]
    if given.factored and op not in ("+", "-", "*", "neg") and not (op == "exp" and given.exponential):
        args = [_with_joined_sums(space, arg) for arg in args]
    return (
        factor_exponentials(args[0], given.rounding)
        if op == "exp" and given.exponential
        else apply_to_polynomials(op, args, given.rounding)
    )


def _with_joined_sums(space: TermSpace, value: Polynomial) -> Polynomial:
    """Return the operand *value* of a function with the sums that have equal factors as one sum.

    The first of them has the factor 1 in it, so that multiples of a sum are multiples of one factor.
    """
    if any(may_be_infinite(*m) for m in value):
        return value
    groups: dict[Hashable, list[tuple[Number, Factor]]] = {}
    rest: dict[Hashable, tuple[Factor, ...]] = {}
    out = list[Monomial]()
    for k, own in value:
        sums = [n for n, (name, _) in enumerate(own) if name.startswith("{")]
        if len(sums) == 1:
            others = own[: sums[0]] + own[sums[0] + 1 :]
            same = tuple((name, tuple(map(form_key, at))) for name, at in others)
            rest[same] = others
            groups.setdefault(same, []).append((k, own[sums[0]]))
        else:
            out.append((k, own))
    if all(len(parts) == 1 for parts in groups.values()):
        return value
    for others, parts in ((rest[same], parts) for same, parts in groups.items()):
        first = parts[0][0]
        whole = space.sum_of([(k / first, part) for k, part in parts]) if len(parts) > 1 else None
        joined = parts if whole is None else [(first, whole)]
        out += ((k, (part, *others)) for k, part in joined)
    return apply_to_polynomials("+", [(one,) for one in out])


def _unchanged_integer(space: TermSpace, op: str, args: list[Polynomial]) -> Polynomial | None:
    """Return the operand of a rounding, a maximum or a minimum that is that operand, an integer within its bounds."""
    match op, args:
        case ("round", [value]):
            return value if _integer_range(space, value) else None
        case ("bool", [value]):
            return value if (found := _integer_range(space, value)) and found[0] >= 0 and found[1] <= 1 else None
        case ("relu", [value]):
            args = [value, ()]
        case (("maximum" | "minimum"), _):
            pass
        case _:
            return None
    for value, other in (args, args[::-1]):
        found, number = _integer_range(space, value), constant_value(other)
        if found and number is not None and (found[1] <= number if op == "minimum" else number <= found[0]):
            return value
    return None


def _negated(space: TermSpace, condition: Polynomial) -> Polynomial | None:
    """Return c if *condition* is 1 - c, and c is 0 or 1; None for others."""
    match condition:
        case ((1, ()), (-1, (factor,))) | ((-1, (factor,)), (1, ())):
            if factor[0].startswith(CONDITION) or space.elements.get(factor[0]) == (0, 1):
                return ((Fraction(1), (factor,)),)
    return None


def _integer_range(space: TermSpace, value: Polynomial) -> tuple[int, int] | None:
    """Return bounds of *value*, a sum of multiples of integers; None if it may be another number."""
    low = high = 0
    for k, of in value:
        own = (1, 1) if not of else space.elements.get(of[0][0]) if len(of) == 1 else None
        if own is None or isinf(k) or k != int(k):
            return None
        ends = sorted((int(k) * own[0], int(k) * own[1]))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _scope_cases(space: TermSpace, scope: Scope, at: tuple[Form, ...]) -> list[Case]:
    if reduces(scope):
        split = _without_constant_exponential(scope, space.given) if space.given.exponential else None
        if split is None and space.given.factored and not space.given.unsure(scope.body):
            if len(parts := _sums_of_terms(scope)) > 1:
                return _summed_cases(space, [_scope_cases(space, part, at) for part in parts])
            split = _without_constant_factors(scope)
        if split is None:
            return opaque_case(space, scope, at)
        outside, rest = split
        values = scalar_cases(space, outside, dict(zip(scope.traversals, at, strict=True)))
        if any(INFINITE_SUFFIX in name for _, value in values for _, found in value for name, _ in found):
            return opaque_case(space, scope, at)
        symbols = opaque_case(space, rest, at)
        return [(where, _applied(space, "*", [value, symbol])) for where, value in values for _, symbol in symbols]
    env, inside = scope_conditions(space, scope, at)
    out = constant_cases(complement(inside), scope.value)
    if inside is not None:
        env.update({y: {"": y.lo} for y in scope.summations})
        out += (((*inside, *where), value) for where, value in scalar_cases(space, scope.body, env))
    return out


def _summed_cases(space: TermSpace, parts: list[list[Case]]) -> list[Case]:
    """Return the cases of a sum of *parts*."""
    if prod(map(len, parts)) > MAX_NAMES:
        raise Undecided(f"a sum has more than {MAX_NAMES} cases")
    return [
        (tuple(row for where, _ in choice for row in where), _applied(space, "+", [value for _, value in choice]))
        for choice in product(*parts)
    ]


MAX_SUMMANDS = 8
"""Terms of a sum inside a function that are summed one by one."""


def _sums_of_terms(scope: Scope) -> list[Scope]:
    r"""Return the sums of the terms of *scope*, a sum inside a function; the scope itself if it has one term.

    :math:`\sum_y f_{xy} (a_y + b_y) = \sum_y f_{xy} a_y + \sum_y f_{xy} b_y`.
    """
    if scope.reduce != "sum" or scope.domain or any(map(any, scope.padding)):
        return [scope]
    opened = [_opened(part) for read in factors(scope.body) for part in factors(_opened(read))]
    if prod(len(multiply_out(part)) for part in opened) > MAX_SUMMANDS:
        return [scope]
    found = multiply_out(Apply("*", tuple(opened))) if len(opened) > 1 else multiply_out(opened[0])
    return [replace(scope, body=_multiplied(parts)) for parts in found] if len(found) > 1 else [scope]


def _multiplied(parts: tuple[Scalar, ...]) -> Scalar:
    """Return the product of *parts*; ``mul`` would round the product of constants."""
    return Apply("*", parts) if len(parts) > 1 else parts[0]


def _exponent_terms(argument: Scalar, given: Assumptions) -> Iterable[Scalar]:
    """Yield the terms of *argument*; if ``given.factored``, a sum of several terms is several sums.

    Each of these is read at those coordinates on which it depends.
    """
    for parts in multiply_out(_opened(argument)):
        reads = [part for part in parts if not isinstance(part, Const)]
        match reads:
            case [Access(Scope() as scope, index)] if (
                given.factored and reduces(scope) and not given.unsure(scope.body)
            ):
                numbers = tuple(part for part in parts if isinstance(part, Const))
                for each in _sums_of_terms(scope):
                    used = [x in iterators_of(each.body) for x in scope.traversals]
                    if each is scope or all(used):
                        yield mul(*numbers, Access(each, index))
                    else:
                        xs = tuple(compress(scope.traversals, used))
                        part = replace(each, traversals=xs, padding=())
                        yield mul(*numbers, Access(part, tuple(compress(index, used))))
            case _:
                yield mul(*parts)


def _without_constant_exponential(scope: Scope, given: Assumptions) -> tuple[Scalar, Scope] | None:
    r"""Return e^c and the rest of a sum of products that have the factor e^(a + c), c the same for all; None without.

    :math:`\sum_y e^{a_{xy} + c_x} f = e^{c_x} \sum_y e^{a_{xy}} f`.
    """
    if scope.reduce != "sum" or scope.domain or any(map(any, scope.padding)):
        return None
    outside, inside = list[Scalar](), list[Scalar]()
    for factor in (part for read in factors(scope.body) for part in factors(_opened(read))):
        match factor:
            case Apply("exp", (argument,)):
                for term in _exponent_terms(argument, given):
                    kept = iterators_of(term).isdisjoint(scope.summations)
                    (outside if kept else inside).append(Apply("exp", (term,)))
            case _:
                inside.append(factor)
    return (mul(*outside), replace(scope, body=mul(*inside))) if outside else None


def _without_constant_factors(scope: Scope) -> tuple[Scalar, Scope] | None:
    r"""Return c and the rest of a sum of products that have the factor c, the same for all; None without.

    :math:`\sum_y c_x f_{xy} = c_x \sum_y f_{xy}`.
    """
    if scope.reduce != "sum" or scope.domain or any(map(any, scope.padding)):
        return None
    outside, inside = list[Scalar](), list[Scalar]()
    for factor in (part for read in factors(scope.body) for part in _opened_factors(read)):
        kept = iterators_of(factor).isdisjoint(scope.summations)
        (outside if kept else inside).append(factor)
    if not outside:
        return None
    return _multiplied(tuple(outside)), replace(scope, body=mul(*inside) if inside else Const(1))


def _opened_factors(scalar: Scalar) -> Iterable[Scalar]:
    """Yield the factors of *scalar*, those of scopes that sum nothing included.

    A scope that is 0 around its box has the constants in it as factors.
    """
    match opened := _opened(scalar):
        case Access(Scope(summations=(), value=0) as inner, index):
            parts = factors(inner.body)
            numbers = [part for part in parts if isinstance(part, Const) and isfinite(part.value)]
            if numbers and len(numbers) < len(parts):
                yield from numbers
                rest = (part for part in parts if part not in numbers)
                yield Access(replace(inner, body=mul(*rest)), index)
                return
    yield from factors(opened)


def _opened(scalar: Scalar) -> Scalar:
    """Return *scalar*, reads of scopes that sum nothing as what these read."""
    inner = open_scope(scalar)
    return scalar if inner is scalar else _opened(inner)


def opaque_case(space: TermSpace, scope: Scope, at: tuple[Form, ...]) -> list[Case]:
    """Return ``scope[at]`` as a symbol."""
    return [((), ((Fraction(1), (space.opaque(scope, at),)),))]


def condition_pieces(
    space: TermSpace, condition: Compare, env: Env
) -> tuple[list[tuple[Form, ...]], list[tuple[Form, ...]]]:
    """Return the pieces where *condition* holds, and those where it fails."""
    left, right = space.form(condition.left, env), space.form(condition.right, env)
    less = space.within((subtract_forms(right, left),), ((1, None),))
    more = space.within((subtract_forms(left, right),), ((1, None),))
    below: list[tuple[Form, ...]] = [] if less is None else [less]
    above: list[tuple[Form, ...]] = [] if more is None else [more]
    equal = [(*a, *b) for a in complement(less) for b in complement(more)]
    holds = {"<": below, "<=": below + equal, ">": above, ">=": above + equal, "==": equal, "!=": below + above}
    fails = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
    return holds[condition.op], holds[fails[condition.op]]


def read_cases(space: TermSpace, source: Tensor, at: tuple[Form, ...]) -> list[Case]:
    """Return the cases of ``source[at]``: an element inside the box, the padding value outside."""
    inside = space.within(at, source.box)
    out = constant_cases(complement(inside), source.value)
    if inside is not None:
        name = tensor_factor(space, source.name)
        if (kind := ELEMENT_TYPES[source.dtype]).is_integer:
            space.elements[name] = kind.low, kind.high
        out.append((inside, ((Fraction(1), ((name, at),)),)))
    return out


def table_cases(space: TermSpace, table: Table, at: tuple[Form, ...]) -> list[Case]:
    """Return the cases of ``table[at]``, one for each possible entry."""
    found: list[Case] = []
    for index, x in table_entries(table).items():
        rows = space.within(at, tuple((n, n + 1) for n in index))
        if rows is not None:
            found.append((rows, ((x, ()),) if x else ()))
    return found


def constant_cases(pieces: list[tuple[Form, ...]], value: float) -> list[Case]:
    """Return cases with *value* in each of *pieces*."""
    return [(rows, ((exact_number(value), ()),) if value else ()) for rows in pieces]


_MAX_PRODUCTS = 64 * MAX_NAMES
"""Products of terms built before contradictory ones are dropped."""


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient · Π factors, summed over *summed* where every condition of *where* holds."""

    coefficient: Number
    factors: tuple[Factor, ...] = ()
    summed: tuple[str, ...] = ()
    where: tuple[Form, ...] = ()


def compared_terms(space: TermSpace, before: Scope, after: Scope) -> tuple[str, list[list[Term]]]:
    """Return the common reduction of two scopes and the terms of each at ``space.point``; raises Undecided."""
    reduce = common_reduction(before, after)
    if reduce != "sum":
        return reduce, [reduced_terms_at(space, scope, space.point, reduce) for scope in (before, after)]
    sides = [terms_at(space, scope, space.point) for scope in (before, after)]
    if space.given.exponential:
        sides = [[replace(t, factors=cancel_exponentials(t.factors)) for t in side] for side in sides]
    return reduce, sides


def terms_at(space: TermSpace, scope: Scope, at: tuple[Form, ...]) -> list[Term]:
    """Return the terms of ``scope[at]`` for a sum or a scope without reduction.  Raises Undecided."""
    if reduces(scope) and scope.reduce != "sum":
        return _from_cases(opaque_case(space, scope, at))
    env, inside = scope_conditions(space, scope, at)
    out = _from_cases(constant_cases(complement(inside), scope.value))
    if inside is not None:
        for at_values, summed in _summed_points(space, scope, env):
            for term in _expand(space, scope.body, at_values):
                made = Term(term.coefficient, term.factors, (*summed, *term.summed), (*inside, *term.where))
                if (settled := _eliminate_fixed(space, made)) is not None:
                    out.append(settled)
        if len(out) > MAX_NAMES and not any(may_be_infinite(t.coefficient, t.factors) for t in out):
            out = add_like_terms(out)
    return _check_term_count(out)


MAX_LISTED = 64
"""Values of summed integers by which a table is indexed up to which these are written out."""


def _summed_points(
    space: TermSpace, scope: Scope, env: dict[Iterator, Form]
) -> Iterable[tuple[dict[Iterator, Form], tuple[str, ...]]]:
    """Yield *env* with the summations of *scope*: all values of those by which it indexes tables, and names of others.

    The names of integers that are summed further inside recur from value to value, so that like terms can be added.
    """
    tables = _tabulated(scope)
    listed = tuple(y for y in scope.summations if y in tables)
    if not listed or prod(y.extent for y in listed) > MAX_LISTED:
        yield with_summations(space, scope, env)
        return
    env, summed = with_summations(
        space, replace(scope, summations=tuple(y for y in scope.summations if y not in listed)), env
    )
    first = last = space.named_sums
    for values in product(*(range(y.lo, y.hi) for y in listed)):
        space.named_sums = first
        yield {**env, **{y: {"": n} for y, n in zip(listed, values, strict=True)}}, summed
        last = max(last, space.named_sums)
    space.named_sums = last


@lru_cache(1 << 12)
def _tabulated(scope: Scope) -> frozenset[Iterator]:
    """Return the iterators of *scope* by which it, or a scope inside it, indexes a table."""
    found = set[Iterator]()
    for read in accesses(scope.body):
        match read.source:
            case Table():
                indices = read.index
            case Scope() as inner:
                tables = _tabulated(inner)
                indices = tuple(i for x, i in zip(inner.traversals, read.index, strict=True) if x in tables)
            case _:
                continue
        found |= {x for i in indices for x in i.iterators}
    return frozenset(found)


def add_like_terms(terms: Sequence[Term]) -> list[Term]:
    """Add terms that differ in coefficients only, and drop terms with coefficient 0.

    Most products of a bilinear algorithm cancel here, without integer sets.
    """
    out: dict[Any, Term] = {}
    seen: dict[int, tuple[tuple[str, int], ...]] = {}  # most forms are shared by many terms

    def known_as(form: Form) -> tuple[tuple[str, int], ...]:
        if id(form) not in seen:
            seen[id(form)] = form_key(form)
        return seen[id(form)]

    for term in terms:
        factors = tuple(sorted([(name, tuple([known_as(form) for form in at])) for name, at in term.factors]))
        where = frozenset([known_as(row) for row in term.where])
        same = factors, frozenset(term.summed), where, isinf(term.coefficient) and term.coefficient
        known = out.get(same)
        out[same] = replace(term, coefficient=known.coefficient + term.coefficient) if known else term
    return [term for term in out.values() if term.coefficient]


def _eliminate_fixed(space: TermSpace, term: Term) -> Term | None:
    """Substitute the summed integers that the conditions of *term* fix to one value; None if the conditions fail.

    Integers inside quotients and aliases remain, since these are shared by all terms.
    """
    fixed = {
        v: n for v, n in pinned_values(term.where, space.ranges).items() if v in term.summed and not space.means(v)
    }
    if not fixed:
        return term
    free = fixed.keys().isdisjoint
    rows = [row if free(row) else _substitute(row, fixed) for row in term.where]
    if any(row[""] < 0 for row in rows if len(row) == 1):
        return None
    return Term(
        term.coefficient,
        tuple([(name, tuple([f if free(f) else _substitute(f, fixed) for f in at])) for name, at in term.factors]),
        tuple([y for y in term.summed if y not in fixed]),
        tuple([row for row in rows if len(row) > 1]),
    )


def _substitute(form: Form, values: Mapping[str, int]) -> Form:
    out: Form = {"": form[""]}
    for v, k in form.items():
        if v in values:
            out[""] += k * values[v]
        elif v:
            out[v] = k
    return out


def reduced_terms_at(space: TermSpace, scope: Scope, at: tuple[Form, ...], reduce: str) -> list[Term]:
    """Return the terms under max, min or prod: every reduced value is one factor with coefficient 1."""
    env, inside = scope_conditions(space, scope, at)
    out: list[Term] = []
    if scope.value != REDUCTIONS[reduce]:
        out = [_choice(space, *case) for case in constant_cases(complement(inside), scope.value)]
    if inside is None:
        return out
    env, summed = with_summations(space, scope, env)
    inner = _choose(space, scope.body, env, reduce)
    out += (replace(t, summed=(*summed, *t.summed), where=(*inside, *t.where)) for t in inner)
    return _check_term_count(out)


def _choose(space: TermSpace, scalar: Scalar, env: Env, reduce: str) -> list[Term]:
    match scalar:
        case Access(Scope() as source, index) if not reduces(source) or source.reduce == reduce:
            return reduced_terms_at(space, source, tuple(space.form(i, env) for i in index), reduce)
        case Apply(op, args) if op == _BINARY[reduce]:
            return [t for arg in args for t in _choose(space, arg, env, reduce)]
        case Apply("+", args) if (pieces := _choose_pieces(space, args, env, reduce)) is not None:
            return pieces
        case Apply() if reduce in ("max", "min"):
            for body, over in _open_monotone(space, scalar, reduce, tuple(env)):
                # f(max g) is max f(g), for example g + max f is max (g + f)
                inside, summed = with_summations(space, Scope((), over, body), dict(env))
                chosen = _choose(space, body, inside, reduce)
                return [replace(t, summed=(*summed, *t.summed)) for t in chosen]
    neutral = REDUCTIONS[reduce]
    return [
        _choice(space, where, value)
        for where, value in scalar_cases(space, scalar, env)
        if constant_value(value) != neutral
    ]


def _open_monotone(
    space: TermSpace, scalar: Scalar, reduce: str, used: tuple[Iterator, ...]
) -> Iterable[tuple[Scalar, tuple[Iterator, ...]]]:
    """Yield *scalar* with one maximum or minimum opened, of which it is a monotone function, and the iterators of that.

    A decreasing function of a minimum is a maximum.
    """
    match scalar:
        case Access():
            try:
                yield open_reduction(scalar, reduce, used)
            except Refused:
                return
        case Apply(_, (arg,)) if is_exact_cast(scalar):
            yield from ((Apply(scalar.op, (body,)), over) for body, over in _open_monotone(space, arg, reduce, used))
        case Apply(op, args) if op not in ("+", "-") or sum(map(space.given.unsure, args)) < 2:
            for n, arg in enumerate(args):
                if direction := monotonicity(scalar, n):
                    inner = reduce if direction > 0 else {"max": "min", "min": "max"}[reduce]
                    for body, over in _open_monotone(space, arg, inner, used):
                        yield Apply(op, (*args[:n], body, *args[n + 1 :])), over


def _choose_pieces(space: TermSpace, args: tuple[Scalar, ...], env: Env, reduce: str) -> list[Term] | None:
    """Return the terms of a sum of parts, of which at most one is not 0 at any point; None for other sums."""
    out: list[Term] = []
    regions: list[tuple[Form, ...] | None] = []
    for arg in args:
        match arg:
            case Access(Scope(value=0) as source, index) if not reduces(source) or source.reduce == reduce:
                at = tuple(space.form(i, env) for i in index)
                regions.append(scope_conditions(space, source, at)[1])
                out += reduced_terms_at(space, replace(source, value=REDUCTIONS[reduce]), at, reduce)
            case _:
                return None
    spans = [(_spans(Term(1, where=rows), 1), _spans(Term(1, where=rows), -1)) for rows in regions if rows is not None]
    if any(_compatible(one, turned) for (one, _), (_, turned) in combinations(spans, 2)):
        return None
    outside = [complement(rows) for rows in regions]
    if prod(map(len, outside)) > MAX_NAMES:
        return None
    nowhere = (tuple(row for rows in choice for row in rows) for choice in product(*outside))
    return out + [_choice(space, rows, ()) for rows in nowhere]


_BINARY = {"max": "maximum", "min": "minimum", "prod": "*"}


def _expand(space: TermSpace, scalar: Scalar, env: Env) -> list[Term]:
    match scalar:
        case Const(value):
            return [Term(exact_number(value))] if value else []
        case Access(Tensor() as source, index):
            return _from_cases(read_cases(space, source, tuple(space.form(i, env) for i in index)))
        case Access(Table() as source, index):
            return _from_cases(table_cases(space, source, tuple(space.form(i, env) for i in index)))
        case Access(Scope() as source, index):
            return terms_at(space, source, tuple(space.form(i, env) for i in index))
        case Apply("*") if _selects(scalar):
            return _from_cases(scalar_cases(space, scalar, env))
        case Apply("neg", (a,)) if not (isinstance(a, Apply) and a.op in ("+", "-", "neg")):
            return _scale_terms(_expand(space, a, env), Fraction(-1))
        case Apply("+" | "-" | "neg") if _selects(scalar):
            by_kind: dict[bool, list[Scalar]] = {True: [], False: []}
            for each in _summands(scalar):
                by_kind[_selects(each)].append(each)
            whole = by_kind[True][0] if len(by_kind[True]) == 1 else Apply("+", tuple(by_kind[True]))
            found = _from_cases(scalar_cases(space, whole, env))
            return found + [t for each in by_kind[False] for t in _expand(space, each, env)]
        case Apply("+", args):
            return [t for arg in args for t in _expand(space, arg, env)]
        case Apply("-", (a, b)):
            return [*_expand(space, a, env), *_scale_terms(_expand(space, b, env), Fraction(-1))]
        case Apply("neg", (a,)):
            return _scale_terms(_expand(space, a, env), Fraction(-1))
        case Apply("*", args):
            return _product(args, [_expand(space, arg, env) for arg in args])
        case Apply("/", (a, Const(value))) if value and isfinite(value):
            return _scale_terms(_expand(space, a, env), 1 / Fraction(value))
        case Apply("/", (a, b)) if a != Const(1):
            over = Apply("/", (Const(1), b))
            return _product((a, over), [_expand(space, a, env), _expand(space, over, env)])
        case Apply(_, (a,)) if is_exact_cast(scalar):
            return _expand(space, a, env)
        case Apply("where", (Compare() as condition, a, b)):
            yes, no = condition_pieces(space, condition, env)
            chosen = ((yes, _expand(space, a, env)), (no, _expand(space, b, env)))
            return [replace(t, where=(*rows, *t.where)) for side, found in chosen for rows in side for t in found]
    return _from_cases(scalar_cases(space, scalar, env))


def _summands(scalar: Scalar) -> Iterable[Scalar]:
    """Yield what *scalar* is a sum of; products are not multiplied out."""
    match scalar:
        case Apply("+", args):
            yield from (each for arg in args for each in _summands(arg))
        case Apply("-", (a, b)):
            yield from (*_summands(a), *(Apply("neg", (each,)) for each in _summands(b)))
        case Apply("neg", (a,)) if isinstance(a, Apply) and a.op in ("+", "-", "neg"):
            yield from (Apply("neg", (each,)) for each in _summands(a))
        case _:
            yield scalar


def _selects(scalar: Scalar) -> bool:
    """Whether a condition on values is an operand in sums and products of *scalar*."""
    match scalar:
        case Access(Scope(summations=()) as scope):
            return _selects(scope.body)
        case Apply("less" | "less_equal" | "select" | "bool"):
            return True
        case Apply("+" | "-" | "neg" | "*" | "/", args):
            return any(map(_selects, args))
        case Apply(_, (a,)) if is_exact_cast(scalar):
            return _selects(a)
    return False


def _scale_terms(terms: list[Term], by: Number) -> list[Term]:
    return [replace(t, coefficient=multiply_numbers(t.coefficient, by)) for t in terms]


def _product(args: tuple[Scalar, ...], parts: list[list[Term]]) -> list[Term]:
    """Multiply out: products of one term of each part, without those of contradictory conditions.

    Raises Undecided if one of *args*, the factors' expressions, may be infinite and another is 0 or a sum.
    """
    if infinite := [n for n, part in enumerate(parts) if any(may_be_infinite(t.coefficient, t.factors) for t in part)]:
        for n, (arg, part) in enumerate(zip(args, parts, strict=True)):
            if infinite != [n] and (not part or _adds(arg)):
                raise Undecided(f"what may be infinite is multiplied by {'a sum' if part else 0}")
    found = [Term(Fraction(1))]
    for part in sorted(parts, key=len):
        if len(found) * len(part) > _MAX_PRODUCTS:
            raise Undecided(f"the product has more than {_MAX_PRODUCTS} combinations of terms")
        firsts = [(a, _spans(a, 1)) for a in found]
        seconds = [(b, _spans(b, -1)) for b in part]
        found = [
            _multiply_terms(a, b) for (a, spans), (b, turned) in product(firsts, seconds) if _compatible(spans, turned)
        ]
        if len(found) > MAX_NAMES:
            raise Undecided(f"the product has more than {MAX_NAMES} terms")
    return found


def _adds(scalar: Scalar) -> bool:
    """Whether *scalar* may be the sum of several terms at one point, or an entry of a table that is 0."""
    match scalar:
        case Access(Table() as source):
            return 0 in source.entries
        case Access(Scope() as source):
            return reduces(source) or _adds(source.body)
        case Apply("+" | "-"):
            return True
        case Apply("where" | "neg" | "*" | "/", args):
            return any(map(_adds, args))
    return False


_Span: TypeAlias = "frozenset[tuple[str, int]]"


def _spans(term: Term, sign: int) -> dict[_Span, int]:
    """Return the conditions c + f >= 0 of *term*: the smallest c for each sign · f."""
    out: dict[_Span, int] = {}
    for row in term.where:
        span = frozenset([(v, sign * k) for v, k in row.items() if v])
        out[span] = min(row[""], out.get(span, row[""]))
    return out


def _compatible(spans: dict[_Span, int], turned: dict[_Span, int]) -> bool:
    """Whether no condition of one side contradicts one of the other: c + f >= 0 and c' - f >= 0 with c + c' < 0."""
    return all(spans[f] + turned[f] >= 0 for f in spans.keys() & turned.keys())


def _multiply_terms(a: Term, b: Term) -> Term:
    return Term(
        multiply_numbers(a.coefficient, b.coefficient), a.factors + b.factors, a.summed + b.summed, a.where + b.where
    )


def _choice(space: TermSpace, where: tuple[Form, ...], value: Polynomial) -> Term:
    return Term(Fraction(1), (polynomial_skeleton(value, space.given.rounding),), where=where)


def _from_cases(found: list[Case]) -> list[Term]:
    return [Term(k, factors, where=where) for where, value in found for k, factors in value]


def _check_term_count(terms: list[Term]) -> list[Term]:
    if len(terms) > MAX_NAMES:
        raise Undecided(f"the scope has more than {MAX_NAMES} kinds of terms")
    return terms
