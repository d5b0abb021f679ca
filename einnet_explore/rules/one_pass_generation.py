r"""One-pass generation: a softmax-weighted sum becomes a kernel that meets its columns block by block.

.. math::
   \mathop{L}_{b\,m\,n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}}
   \;\Rightarrow\; \text{eOperator (one pass)}, \qquad M = \max_w z_w, \quad
   h(a ⧺ b) = h(a) \oplus h(b)

The scope says what is computed, before and after.  That it may be computed in blocks is the law of
``algebra/monoids.py``: (m, s, v) is a homomorphism into a monoid.  The law is checked when the rule is applied.
Eoperator generation (EinNet §5.2) refuses such a scope: it sums inside, and it is compute-bound.

Source: T. Dao et al., FlashAttention, 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from einnet_explore.algebra.monoids import softmax_is_broken
from einnet_explore.algebra.online import online
from einnet_explore.ir import EOPERATOR, Equation, Instance, Path, Program
from einnet_explore.rules.base import Refused, Rule, accepted


@dataclass(frozen=True, slots=True)
class OnePass:
    """One-pass generation has no parameters: the place says everything."""


def propose(program: Program, at: Path) -> Iterable[OnePass]:
    """The scope at *at*, where it is a softmax-weighted sum."""
    if accepted(rewrite, program, at, OnePass()):
        yield OnePass()


def rewrite(program: Program, at: Path, _: OnePass) -> Program:
    """The scope generated: a whole equation where it stands, a nested scope as an equation of its own.

    Refuses what is no softmax-weighted sum, with what is missing, and what is instantiated already.
    """
    equation = program.equations[at[0]]
    if equation.via is not None:
        raise Refused(f"{equation.name} is instantiated already, by {equation.via.operator}")
    scope = program.scope_at(at)
    found = online(scope)
    if isinstance(found, str):
        raise Refused(found)
    if (wrong := softmax_is_broken()) is not None:
        raise Refused(wrong)
    via = Instance(EOPERATOR, (("kind", "one_pass"),))
    if len(at) == 1:
        n = at[0]
        made = replace(equation, via=via)
        return replace(program, equations=(*program.equations[:n], made, *program.equations[n + 1 :]))
    new = Equation(program.fresh("T"), scope, via)
    return program.replace_at(at, new.tensor, before=(new,))


def explain(program: Program, at: Path) -> str:
    """Why the scope is not generated in one pass."""
    try:
        rewrite(program, at, OnePass())
    except Refused as why:
        return str(why)
    return "it can be generated in one pass"


def encode(_: OnePass) -> dict[str, Any]:
    """``{}``."""
    return {}


def decode(_: Program, __: Path, params: Mapping[str, Any]) -> OnePass:
    """The inverse of ``encode``; refuses parameters, since there are none."""
    if params:
        raise Refused(f"one-pass generation takes no parameters, found {', '.join(params)}")
    return OnePass()


ONE_PASS_GENERATION = Rule(
    name="one_pass_generation",
    law=r"\mathop{L}_{b m n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}} \;\Rightarrow\;"
    r" \text{eOperator (one pass)}, \qquad M = \max_w z_w",
    propose=propose,
    rewrite=rewrite,
    encode=encode,
    decode=decode,
    explain=explain,
)
