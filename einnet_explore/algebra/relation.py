r"""The terms of a scope: what it computes, as piecewise polynomials over tensor elements.

For a scope in polynomial form, with its nested scopes substituted in,

.. math::  Y[\vec x] = \sum_i k_i \sum_{\vec y :\, C_i(\vec x, \vec y) \ge 0} \prod_j T_{ij}[\tau_{ij}(\vec x, \vec y)]

every *i* is one ``Term``.  Ranges, domains, boxes and paddings are all conditions ``C_i``: reads of padding that holds
0 vanish, others are terms of their own.  A function that is no polynomial is a symbol: ``relu(A[i])`` is the factor
``relu(A)`` at the index *i*, so that equal arguments give equal factors and nothing else is assumed of it.

Source: the term relations of the design (trust, 2); EinNet §3 for the meaning of scopes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import prod

from einnet_explore.algebra.cases import Case, cases, constants, opaque_case, read
from einnet_explore.algebra.polynomial import Polynomial, constant, number, skeleton, times
from einnet_explore.algebra.space import (
    MOST,
    Beyond,
    Env,
    Factor,
    Form,
    Number,
    Space,
    complement,
    enter,
    point_of,
    reduces,
)
from einnet_explore.ir import REDUCTIONS, Access, Apply, Const, Scalar, Scope, Tensor


@dataclass(frozen=True, slots=True)
class Term:
    """coefficient · Π factors, summed over *summed* where every condition of *where* holds."""

    coefficient: Number
    factors: tuple[Factor, ...] = ()
    summed: tuple[str, ...] = ()
    where: tuple[Form, ...] = ()


def terms_at(space: Space, scope: Scope, at: tuple[Form, ...]) -> list[Term]:
    """The terms of ``scope[at]`` for a sum (or a scope that does not reduce).  Raises Beyond."""
    if reduces(scope) and scope.reduce != "sum":
        return _from_cases(opaque_case(space, scope, at))
    env, inside = enter(space, scope, at)
    out = _from_cases(constants(complement(inside), scope.value))
    if inside is not None:
        env, summed = point_of(space, scope, env)
        for term in _expand(space, scope.body, env):
            out.append(Term(term.coefficient, term.factors, (*summed, *term.summed), (*inside, *term.where)))
    return _capped(out)


def choices_at(space: Space, scope: Scope, at: tuple[Form, ...], reduce: str) -> list[Term]:
    """Like ``terms_at`` under max, min or prod: every value that is reduced, as one factor with coefficient 1."""
    env, inside = enter(space, scope, at)
    out: list[Term] = []
    if scope.value != REDUCTIONS[reduce]:
        out = [_choice(*case) for case in constants(complement(inside), scope.value)]
    if inside is None:
        return out
    env, summed = point_of(space, scope, env)
    inner = _choose(space, scope.body, env, reduce)
    out += (replace(t, summed=(*summed, *t.summed), where=(*inside, *t.where)) for t in inner)
    return _capped(out)


def _choose(space: Space, scalar: Scalar, env: Env, reduce: str) -> list[Term]:
    match scalar:
        case Access(Scope() as source, index) if not reduces(source) or source.reduce == reduce:
            return choices_at(space, source, tuple(space.form(i, env) for i in index), reduce)
        case Apply(op, args) if op == _BINARY[reduce]:
            return [t for arg in args for t in _choose(space, arg, env, reduce)]
    neutral = REDUCTIONS[reduce]
    return [_choice(where, value) for where, value in cases(space, scalar, env) if constant(value) != neutral]


_BINARY = {"max": "maximum", "min": "minimum", "prod": "*"}


def _expand(space: Space, scalar: Scalar, env: Env) -> list[Term]:
    match scalar:
        case Const(value):
            return [Term(number(value))] if value else []
        case Access(Tensor() as source, index):
            return _from_cases(read(space, source, tuple(space.form(i, env) for i in index)))
        case Access(Scope() as source, index):
            return terms_at(space, source, tuple(space.form(i, env) for i in index))
        case Apply("+", args):
            return [t for arg in args for t in _expand(space, arg, env)]
        case Apply("-", (a, b)):
            return [*_expand(space, a, env), *_scaled(_expand(space, b, env), Fraction(-1))]
        case Apply("neg", (a,)):
            return _scaled(_expand(space, a, env), Fraction(-1))
        case Apply("*", args):
            return _product([_expand(space, arg, env) for arg in args])
        case Apply("/", (a, Const(value))) if value:
            return _scaled(_expand(space, a, env), 1 / Fraction(value))
    return _from_cases(cases(space, scalar, env))


def _scaled(terms: list[Term], by: Number) -> list[Term]:
    return [replace(t, coefficient=times(t.coefficient, by)) for t in terms]


def _product(parts: list[list[Term]]) -> list[Term]:
    if prod(map(len, parts)) > MOST:
        raise Beyond(f"the product has more than {MOST} terms")
    return [
        Term(
            times(*(t.coefficient for t in choice)),
            tuple(f for t in choice for f in t.factors),
            tuple(y for t in choice for y in t.summed),
            tuple(c for t in choice for c in t.where),
        )
        for choice in product(*parts)
    ]


def _choice(where: tuple[Form, ...], value: Polynomial) -> Term:
    return Term(Fraction(1), (skeleton(value),), where=where)


def _from_cases(found: list[Case]) -> list[Term]:
    return [Term(k, factors, where=where) for where, value in found for k, factors in value]


def _capped(terms: list[Term]) -> list[Term]:
    if len(terms) > MOST:
        raise Beyond(f"the scope has more than {MOST} kinds of terms")
    return terms
