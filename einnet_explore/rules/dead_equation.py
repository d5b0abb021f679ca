r"""Dead equations: what nobody reads is not computed.

.. math::  T = \mathop{L}_{\vec x} f \;\circ\; P \;\mapsto\; P, \quad T \text{ neither read in } P \text{ nor an output}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from einnet_explore.algebra.rereading import readers, whole_equation, without
from einnet_explore.ir import Path, Program
from einnet_explore.rules.base import Refused, Rule, refusing


@dataclass(frozen=True, slots=True)
class Dead:
    """The place says everything."""


def propose(program: Program, at: Path) -> Iterable[Dead]:
    """The equation at *at*, if it is dead."""
    if len(at) == 1 and _why_not(program, at) is None:
        yield Dead()


@refusing()
def rewrite(program: Program, at: Path, _: Dead) -> Program:
    """The law; refuses an output, and what is read."""
    whole_equation(program, at)
    if (why := _why_not(program, at)) is not None:
        raise Refused(why)
    return without(program, at[0])


def _why_not(program: Program, at: Path) -> str | None:
    name = program.equations[at[0]].name
    if name in program.outputs:
        return f"{name} is an output, its value is needed outside"
    found = [program.equations[n].name for n in readers(program, name)]
    return f"{name} is read by {', '.join(found)}" if found else None


def explain(program: Program, at: Path) -> str:
    """Why the equation is not dead."""
    if len(at) != 1:
        return f"path {at} is a scope inside an equation, expected an equation"
    return _why_not(program, at) or "it is dead"


def encode(_: Dead) -> dict[str, Any]:
    """No parameters."""
    return {}


def decode(_: Program, __: Path, ___: Mapping[str, Any]) -> Dead:
    """The inverse of ``encode``."""
    return Dead()


DEAD_EQUATION = Rule(
    "dead_equation",
    r"T = \mathop{L}_{\vec x} f \circ P \;\mapsto\; P",
    propose,
    rewrite,
    encode,
    decode,
    explain=explain,
)
