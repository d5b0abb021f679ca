r"""Quotients as products with inverses, so that factors may be reassociated across a division.

.. math::  a / (b\,c) = a \cdot \frac1b \cdot \frac1c

It holds over the reals wherever the quotient is defined.  Two programs that agree in this form agree.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.ir import Access, Apply, Compare, Const, Program, Scalar, Scope, factors, map_accesses, mul, scopes


def with_inverses(program: Program) -> Program:
    """*program* with every quotient, at any depth, as a product with inverses of single factors."""
    return replace(program, equations=tuple(replace(e, scope=_scope(e.scope)) for e in program.equations))


def divides(scope: Scope) -> bool:
    """Whether *scope*, or a scope below it, divides by anything but a number."""
    return any(_divides(inner.body) for _, inner in scopes(scope))


def _divides(body: Scalar) -> bool:
    match body:
        case Apply("/", (a, b)):
            return not isinstance(b, Const) or _divides(a)
        case Apply(_, args):
            return any(map(_divides, args))
        case Access() | Const() | Compare():
            return False


def _scope(scope: Scope) -> Scope:
    def read(access: Access) -> Access:
        return Access(_scope(access.source), access.index) if isinstance(access.source, Scope) else access

    return replace(scope, body=map_accesses(_inverted(scope.body), read))


def _inverted(body: Scalar) -> Scalar:
    match body:
        case Apply("/", (a, b)):
            return mul(_inverted(a), *map(_inverse, factors(_inverted(b))))
        case Apply("*", args):
            return mul(*map(_inverted, args))
        case Apply("neg", (a,)):
            return mul(Const(-1), _inverted(a))
        case Apply(op, args):
            return Apply(op, tuple(map(_inverted, args)))
        case Access() | Const() | Compare():
            return body


def _inverse(factor: Scalar) -> Scalar:
    match factor:
        case Const(-1):
            return factor
        case Apply("/", (Const(1), inner)):
            return inner
    return Apply("/", (Const(1), factor))
