r"""Derivatives of a body with respect to what it reads.

.. math::  f(a_1, \dots, a_n) \quad\mapsto\quad \frac{\partial f}{\partial a_i}\ \text{for every read } a_i

by the chain rule, from the body down to its reads.  Where a function has a kink a *subgradient* is taken, named here:

===========================  ==============================================================
``relu`` at 0                0
``abs`` at 0                 0
``maximum``, ``minimum``     both arguments get one half where they are equal
max and min reductions       all that attain the extremum share equally (``differentiate``)
===========================  ==============================================================

The text form compares indices, not values; a power of zero does the latter: :math:`0^u` is 1 where :math:`u = 0` and
0 where :math:`u > 0`, so :math:`[x > 0] = 1 - 0^{relu(x)}`.  Source: Griewank and Walther, "Evaluating Derivatives",
for reverse accumulation; EinNet §3 for bodies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.ir import FUNCTIONS, Access, Apply, Compare, Const, Scalar, add, mul, terms

Condition = tuple[Compare, bool]
"""A comparison, and whether it has to hold or to fail."""

ONE = Const(1)


@dataclass(frozen=True, slots=True)
class Partial:
    """The derivative with respect to one read: *factor* where all *conditions* are met, else 0."""

    access: Access
    factor: Scalar
    conditions: tuple[Condition, ...] = ()


def partials(body: Scalar) -> tuple[Partial, ...]:
    """The derivatives of *body* with respect to its reads; reads of one element are one.

    Raises ValueError for an operator without a derivative.
    """
    total: dict[tuple[Access, tuple[Condition, ...]], list[Scalar]] = {}
    for part in _down(body, ONE, ()):
        total.setdefault((part.access, part.conditions), []).append(part.factor)
    return tuple(Partial(access, summed(factors), where) for (access, where), factors in total.items())


def summed(parts: Iterable[Scalar]) -> Scalar:
    """The sum of *parts*; equal ones are counted."""
    counted = Counter(term for part in parts for term in terms(part))
    return add(*(mul(Const(n), part) for part, n in counted.items()))


def is_zero(u: Scalar) -> Scalar:
    """1 where *u*, which is nowhere negative, is 0, and 0 elsewhere."""
    return Apply("pow", (Const(0), u))


def minus(a: Scalar, b: Scalar) -> Scalar:
    """a - b."""
    return Apply("-", (a, b))


def _down(body: Scalar, above: Scalar, where: tuple[Condition, ...]) -> Iterable[Partial]:
    """What reaches every read of *body*, of which the whole's derivative is *above*."""
    match body:
        case Access():
            yield Partial(body, above, where)
        case Const() | Compare():
            pass
        case Apply("+", args):
            for arg in args:
                yield from _down(arg, above, where)
        case Apply("*", args):
            for n, arg in enumerate(args):
                yield from _down(arg, mul(above, *args[:n], *args[n + 1 :]), where)
        case Apply("where", (Compare() as condition, yes, no)):
            yield from _down(yes, above, (*where, (condition, True)))
            yield from _down(no, above, (*where, (condition, False)))
        case Apply(op, args):
            for arg, factor in zip(args, _derivatives(op, args), strict=True):
                if factor != Const(0):
                    yield from _down(arg, mul(above, factor), where)


def _derivatives(op: str, args: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    """The derivative of ``op(args)`` with respect to each argument."""
    whole = Apply(op, args)
    match op, args:
        case "-", (_, _):
            return ONE, Const(-1)
        case "neg", (_,):
            return (Const(-1),)
        case "/", (_, b):
            # -a/b² in parts that the quotient and the other derivative have, too.
            return (inverse := Apply("/", (ONE, b))), mul(Const(-1), whole, inverse)
        case "relu", (x,):
            return (_positive(x),)
        case "abs", (x,):
            return (minus(_positive(x), _positive(_negative(x))),)
        case "tanh", (_,):
            return (minus(ONE, mul(whole, whole)),)
        case "sigmoid", (_,):
            return (mul(whole, minus(ONE, whole)),)
        case "exp", (_,):
            return (whole,)
        case "log", (x,):
            return (Apply("/", (ONE, x)),)
        case "sqrt", (_,):
            return (Apply("/", (Const(0.5), whole)),)
        case "rsqrt", (_,):
            return (mul(Const(-0.5), whole, whole, whole),)
        case "erf", (x,):
            return (mul(Const(2 / math.sqrt(math.pi)), Apply("exp", (Apply("neg", (mul(x, x),)),))),)
        case "maximum", (a, b):
            first = _larger(a, b)
            return first, _larger(b, a)
        case "minimum", (a, b):
            return _larger(b, a), _larger(a, b)
        case "pow", (a, b):
            return _power(a, b)
    known = ", ".join(("+ - * / neg", *FUNCTIONS))
    raise ValueError(f"operator {op} of {len(args)} arguments has no derivative here, expected one of {known}")


def _power(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """The derivatives of a^b: b·a^(b-1) and a^b·ln a; a power of zero is a step, whose slope is 0."""
    match a, b:
        case Const(base), _ if base < 0 and not isinstance(b, Const):
            raise ValueError(f"pow of the constant {base:g} is real at integers only, expected a base that is not < 0")
        case Const(base), _:
            return Const(0), Const(0) if base == 0 else mul(Const(math.log(base)), Apply("pow", (a, b)))
        case _, Const(n):
            lower: Scalar = Apply("pow", (a, Const(n - 1))) if n not in (1, 2) else (ONE, a)[int(n) - 1]
            return mul(b, lower) if n else Const(0), Const(0)
    return mul(b, Apply("pow", (a, minus(b, ONE)))), mul(Apply("pow", (a, b)), Apply("log", (a,)))


def _positive(x: Scalar) -> Scalar:
    """[x > 0]."""
    return minus(ONE, is_zero(Apply("relu", (x,))))


def _negative(x: Scalar) -> Scalar:
    return Apply("neg", (x,))


def _larger(a: Scalar, b: Scalar) -> Scalar:
    """[a > b] + ½·[a = b]: 1 - ½·[a <= b] - ½·[a < b]."""
    above = is_zero(Apply("relu", (minus(b, a),)))  # a >= b
    below = is_zero(Apply("relu", (minus(a, b),)))  # a <= b
    return mul(Const(0.5), add(ONE, above, mul(Const(-1), below)))
