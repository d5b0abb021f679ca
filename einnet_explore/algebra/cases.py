"""The value of a scalar at one point, by cases that exclude one another: a polynomial in each."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod
from typing import TypeAlias

from einnet_explore.algebra.lookup import entries
from einnet_explore.algebra.polynomial import Polynomial, applied, factored, number
from einnet_explore.algebra.space import MOST, Beyond, Env, Form, Space, complement, enter, minus, reduces, tensor_name
from einnet_explore.ir import Access, Apply, Compare, Const, Scalar, Scope, Table, Tensor

Case: TypeAlias = "tuple[tuple[Form, ...], Polynomial]"


def cases(space: Space, scalar: Scalar, env: Env) -> list[Case]:
    """*scalar* at one point, by cases: conditions that exclude one another, and a polynomial for each."""
    match scalar:
        case Const(value):
            return [((), ((number(value), ()),) if value else ())]
        case Access(Tensor() as source, index):
            return read(space, source, tuple(space.form(i, env) for i in index))
        case Access(Table() as source, index):
            return look_up(space, source, tuple(space.form(i, env) for i in index))
        case Access(Scope() as source, index):
            return _scope_cases(space, source, tuple(space.form(i, env) for i in index))
        case Apply("where", (Compare() as condition, a, b)):
            yes, no = decide(space, condition, env)
            chosen = ((yes, cases(space, a, env)), (no, cases(space, b, env)))
            return [((*rows, *where), value) for sides, cases in chosen for rows in sides for where, value in cases]
        case Apply(op, args):
            parts = [cases(space, arg, env) for arg in args]
            if prod(map(len, parts)) > MOST:
                raise Beyond(f"{op} has more than {MOST} cases")
            return [
                (
                    tuple(row for where, _ in choice for row in where),
                    _applied(space, op, [value for _, value in choice]),
                )
                for choice in product(*parts)
            ]
    raise Beyond(f"{scalar!r} is no number")


def _applied(space: Space, op: str, args: list[Polynomial]) -> Polynomial:
    given = space.given
    return factored(args[0], given.rounds) if op == "exp" and given.exponential else applied(op, args, given.rounds)


def _scope_cases(space: Space, scope: Scope, at: tuple[Form, ...]) -> list[Case]:
    if reduces(scope):
        return opaque_case(space, scope, at)
    env, inside = enter(space, scope, at)
    out = constants(complement(inside), scope.value)
    if inside is not None:
        env.update({y: {"": y.lo} for y in scope.summations})
        out += (((*inside, *where), value) for where, value in cases(space, scope.body, env))
    return out


def opaque_case(space: Space, scope: Scope, at: tuple[Form, ...]) -> list[Case]:
    """``scope[at]`` as a symbol of its own."""
    return [((), ((Fraction(1), (space.opaque(scope, at),)),))]


def decide(space: Space, condition: Compare, env: Env) -> tuple[list[tuple[Form, ...]], list[tuple[Form, ...]]]:
    """The pieces where *condition* holds, and those where it does not."""
    left, right = space.form(condition.left, env), space.form(condition.right, env)
    less = space.within((minus(right, left),), ((1, None),))
    more = space.within((minus(left, right),), ((1, None),))
    below: list[tuple[Form, ...]] = [] if less is None else [less]
    above: list[tuple[Form, ...]] = [] if more is None else [more]
    equal = [(*a, *b) for a in complement(less) for b in complement(more)]
    holds = {"<": below, "<=": below + equal, ">": above, ">=": above + equal, "==": equal, "!=": below + above}
    fails = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
    return holds[condition.op], holds[fails[condition.op]]


def read(space: Space, source: Tensor, at: tuple[Form, ...]) -> list[Case]:
    """``source[at]``: an element inside the box, the padding's value outside."""
    inside = space.within(at, source.box)
    out = constants(complement(inside), source.value)
    if inside is not None:
        out.append((inside, ((Fraction(1), ((tensor_name(space, source.name), at),)),)))
    return out


def look_up(space: Space, table: Table, at: tuple[Form, ...]) -> list[Case]:
    """``table[at]``: a case for each entry that may be meant."""
    found: list[Case] = []
    for index, x in entries(table).items():
        rows = space.within(at, tuple((n, n + 1) for n in index))
        if rows is not None:
            found.append((rows, ((x, ()),) if x else ()))
    return found


def constants(pieces: list[tuple[Form, ...]], value: float) -> list[Case]:
    """*value* in each of *pieces*."""
    return [(rows, ((number(value), ()),) if value else ()) for rows in pieces]
