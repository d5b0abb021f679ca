r"""Dead-equation elimination: an equation without readers is removed.

.. math::  T = \mathop{L}_{\vec x} f \;\circ\; P \;\mapsto\; P, \quad T \text{ neither read in } P \text{ nor an output}
"""

from __future__ import annotations

from einnet_explore.analysis.equations import readers, remove_equation, whole_equation
from einnet_explore.ir import Path, Program
from einnet_explore.rules.base import place_rule, refusing
from einnet_explore.support.errors import Refused


@refusing()
def rewrite(program: Program, at: Path) -> Program:
    """Remove the equation; refuses an output, and an equation with readers."""
    name = whole_equation(program, at).name
    if name in program.outputs:
        raise Refused(f"{name} is an output, its value is needed outside")
    if found := [program.equations[n].name for n in readers(program, name)]:
        raise Refused(f"{name} is read by {', '.join(found)}")
    return remove_equation(program, at[0])


DEAD_EQUATION = place_rule(
    "dead_equation",
    r"T = \mathop{L}_{\vec x} f \circ P \;\mapsto\; P",
    rewrite,
    "it is dead",
)
