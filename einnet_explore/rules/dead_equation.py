r"""Dead equations: what nobody reads is not computed.

.. math::  T = \mathop{L}_{\vec x} f \;\circ\; P \;\mapsto\; P, \quad T \text{ neither read in } P \text{ nor an output}
"""

from __future__ import annotations

from einnet_explore.analysis.equations import readers, whole_equation, without
from einnet_explore.ir import Path, Program
from einnet_explore.rules.base import place_rule, refusing
from einnet_explore.support.errors import Refused


@refusing()
def rewrite(program: Program, at: Path) -> Program:
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


DEAD_EQUATION = place_rule(
    "dead_equation",
    r"T = \mathop{L}_{\vec x} f \circ P \;\mapsto\; P",
    rewrite,
    lambda _: "it is dead",
)
