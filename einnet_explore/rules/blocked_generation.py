r"""Blocked generation: a chain of scopes becomes one kernel that computes it block by block.

.. math::
   \mathop{L}_{y\,\vec x} f_1(f_2(\dots f_n(T)))\ \Rightarrow\ \text{eOperator (blocked)}, \qquad
   y = p\,s + y' : \text{each } f_i \text{ is needed in a box that moves with } s

The scope is unchanged.  The result needs a traversal that can be cut into blocks without computing a product twice
(``analysis/fused_chain.py``); then intermediate results stay in the cache.  eOperator generation (EinNet §5.2) refuses
such a scope: it sums inside, and it is compute-bound.

Source: post-optimisation's fusion (EinNet §6.3, Fig. 11), extended across a contraction.
"""

from __future__ import annotations

from einnet_explore.analysis.fused_chain import find_chain
from einnet_explore.ir import EOperatorKind, Instance, Path, Program
from einnet_explore.rules.base import generation_rule
from einnet_explore.support.errors import Refused

BLOCKED = EOperatorKind.BLOCKED.instance


def _instance(program: Program, at: Path) -> Instance:
    """``BLOCKED``; refuses a scope that is no chain, has no product, or of which every cut repeats products."""
    found = find_chain(program.scope_at(at))
    if len(found.stages) == 1:
        raise Refused("it reads no scope: there is only one stage")
    if not any(stage.product for stage in found.stages):
        raise Refused(f"none of the {len(found.stages)} stages sums products of two tensors")
    if not found.result.scope.traversals:
        raise Refused("the result is one number: there is no traversal to share")
    if not found.cuts():
        x = max(found.result.scope.traversals, key=lambda x: x.extent)
        cut = found.make_cut(x, 1, 1)
        again, whole = found.multiplications((cut,)), found.multiplications()
        raise Refused(f"cut along {x.name} it computes {again} products instead of {whole}: no traversal is shared")
    return BLOCKED


BLOCKED_GENERATION = generation_rule(
    "blocked_generation",
    r"\mathop{L}_{y\,\vec x} f_1(f_2(\dots f_n(T))) \;\Rightarrow\; \text{eOperator (blocked)}, \qquad"
    r" y = p\,s + y'",
    _instance,
    "it can be generated block by block",
)
