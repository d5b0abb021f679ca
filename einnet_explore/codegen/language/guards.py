"""Loops split where their guards end: in the middle part every guard holds, so that compilers make vectors of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from einnet_explore.codegen.language.statements import (
    Declare,
    For,
    Statement,
    all_expressions,
    all_statements,
    declared_names,
    replace_expressions,
    rewrite_statement,
    walk_expression,
)
from einnet_explore.codegen.language.values import (
    Binary,
    Cast,
    Expr,
    Literal,
    Load,
    Select,
    Var,
    call,
    cast,
    conjunction,
    select,
)


def split_at_guards(loop: For, first: Var, last: Var) -> tuple[Statement, ...]:
    r"""Return *loop* in three parts, of which the middle one, from *first* to *last*, is without guards.

    Guards are the conditions :math:`k x + r \ge 0` and :math:`k x + r < 0` of the loop's variable `x`, with
    :math:`k > 0`, and those that do not depend on it.
    """
    inside = {name for s in all_statements(loop.body) for name in (*declared_names(s), *_counters(s))}
    guards = {g: k for g in _guards(loop.body) if (k := _slope(g, loop.var, inside)) is not None}
    if not guards:
        return (loop,)
    least, most, zero = loop.start, loop.stop, Literal(0, loop.var.kind)
    for guard, k in guards.items():
        if k:  # k x >= d, and k x < d
            at_zero = replace_expressions(guard.right - guard.left, lambda e: zero if e == loop.var else None)
            bound = (cast(loop.var.kind, at_zero) + (k - 1)) / k
            least = call("maximum", least, bound) if guard.op == ">=" else least
            most = call("minimum", most, bound) if guard.op == "<" else most
    fixed = conjunction(*(guard for guard, k in guards.items() if not k))
    least = call("minimum", least, loop.stop)
    most = call("maximum", most, first) if fixed is None else select(fixed, call("maximum", most, first), first)

    def without(e: Expr) -> Expr | None:
        match e:
            case Select(condition, yes, no):
                rest = conjunction(*(c for c in _conjuncts(condition) if c not in guards))
                if rest == condition:
                    return None
                yes = replace_expressions(yes, without)
                return yes if rest is None else Select(rest, yes, replace_expressions(no, without))
        return None

    middle = tuple(rewrite_statement(s, without) for s in loop.body)
    return (
        Declare(first, least),
        Declare(last, most),
        replace(loop, stop=first),
        replace(loop, start=first, stop=last, body=middle),
        replace(loop, start=last),
    )


def _counters(statement: Statement) -> tuple[str, ...]:
    return (statement.var.name,) if isinstance(statement, For) else ()


def _guards(body: Iterable[Statement]) -> Iterable[Binary]:
    """Yield the comparisons that decide whether an element is read."""
    for e in all_expressions(body):
        if isinstance(e, Select) and any(isinstance(part, Load) for part in walk_expression(e.yes)):
            yield from (c for c in _conjuncts(e.condition) if isinstance(c, Binary))


def _conjuncts(condition: Expr) -> tuple[Expr, ...]:
    match condition:
        case Binary("&&", left, right):
            return (*_conjuncts(left), *_conjuncts(right))
    return (condition,)


def _slope(guard: Binary, x: Var, inside: Iterable[str]) -> int | None:
    """Return k of *guard*, 0 if it does not depend on *x*; None if it is of another form, or varies *inside*."""
    parts = [*walk_expression(guard)]
    if any(isinstance(e, Load) or (isinstance(e, Var) and e.name in inside) for e in parts):
        return None
    if x not in parts:
        return 0
    left, right = _step(guard.left, x), _step(guard.right, x)
    if left is None or right is None or left - right <= 0 or guard.op not in (">=", "<"):
        return None
    return left - right


def _step(e: Expr, x: Var) -> int | None:
    """Return the difference that one step of *x* makes to *e*; None if *e* is not affine in it."""
    match e:
        case Var() if e == x:
            return 1
        case Binary("+" | "-" as op, left, right):
            a, b = _step(left, x), _step(right, x)
            return None if a is None or b is None else a + b if op == "+" else a - b
        case Binary("*", left, Literal(value)) | Binary("*", Literal(value), left):
            a = _step(left, x)
            return None if a is None else a * int(value)
        case Cast(_, arg):
            return _step(arg, x)
    return None if x in [*walk_expression(e)] else 0
