r"""Nested scopes as equations of their own, so that every body reads tensors and tables only.

.. math::  Y = \mathop{L}_{\vec x} g(\{S\}[\pi]) \quad\mapsto\quad T = S,\ Y = \mathop{L}_{\vec x} g(T[\pi])

Scopes are closed, so this is always possible; equal scopes become one equation.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.ir import Access, Equation, Program, Scope, map_accesses


def lifted(program: Program) -> Program:
    """*program* with every nested scope as an equation before its reader; nothing is instantiated any more."""
    names = set(program.names())
    made: dict[Scope, Equation] = {}
    out: list[Equation] = []

    def flat(scope: Scope) -> Scope:
        return replace(scope, body=map_accesses(scope.body, read))

    def read(access: Access) -> Access:
        match access.source:
            case Scope() as inner:
                if inner not in made:
                    name = _fresh(names)
                    made[inner] = Equation(name, flat(inner))
                    out.append(made[inner])
                return Access(made[inner].tensor, access.index)
        return access

    for equation in program.equations:
        out.append(Equation(equation.name, flat(equation.scope)))
    return replace(program, equations=tuple(out))


def _fresh(names: set[str]) -> str:
    name = next(name for n in range(1, len(names) + 2) if (name := f"T{n}") not in names)
    names.add(name)
    return name
