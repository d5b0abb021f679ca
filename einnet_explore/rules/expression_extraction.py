r"""Expression extraction, the inverse of expression fusion: a nested scope becomes an expression of its own.

.. math::
   \mathop{L}_{\vec y} g\big(\{\mathop{L}_{\vec x} f\}[\pi(\vec y)]\big)
   \;\mapsto\;
   \mathop{L}_{\vec y} g(T'[\pi(\vec y)]) \;\circ\; T' = \mathop{L}_{\vec x} f

Like any other expression, the new one can be searched, shared, or computed at compile time.
"""

from __future__ import annotations

from einnet_explore.ir import Equation, Path, Program
from einnet_explore.rules.base import place_rule
from einnet_explore.support.errors import Refused


def rewrite(program: Program, at: Path) -> Program:
    """The law; refuses a whole equation, and a nested scope that sums nothing, since its reader computes it itself."""
    if len(at) == 1:
        raise Refused(f"{program.equations[at[0]].name} is an expression already")
    if (equation := program.equations[at[0]]).via is not None:
        raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
    scope = program.scope_at(at)
    if not scope.summations:
        raise Refused("the nested scope sums nothing: its reader computes each element where it reads it")
    new = Equation(program.fresh("T"), scope)
    return program.replace_at(at, new.tensor, before=(new,))


EXPRESSION_EXTRACTION = place_rule(
    "expression_extraction",
    r"\mathop{L}_y g(\{\mathop{L}_x f\}[\pi]) \mapsto \mathop{L}_y g(T'[\pi]) \circ T' = \mathop{L}_x f",
    rewrite,
    "its nested sum can be an expression",
)
