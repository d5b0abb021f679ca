r"""Reduction generation: element-wise operations and nested reductions become one kernel.

.. math::
   \mathop{L}_{\vec x}\; g\Big(X[\vec x],\;
   \Big\{\mathop{L}_{\vec u} \bigoplus_{\vec y} h(X[\vec u, \vec y])\Big\}[\vec u], \dots\Big)
   \;\Rightarrow\; \text{eOperator (reductions)}

A normalisation or a softmax reduces its input and then reads it again.  eOperator generation (EinNet §5.2) refuses
such a scope, because its kernel would repeat the reduction for every element.  A kernel with stages reduces once, while
the input is still in a cache.  Such a kernel is memory-bound only if no reduction reads an element of its largest
operand more than once, so matrix products and convolutions are refused.

Source: D. Nishino and Z. Xu, "CuPy kernel fusion, extended" (2019).
"""

from __future__ import annotations

from math import prod

from einnet_explore.ir import EOperatorKind, Instance, Path, Program, Scope, accesses, scopes, show_path
from einnet_explore.rules.base import generation_rule
from einnet_explore.support.errors import Refused


def _instance(program: Program, at: Path) -> Instance:
    """The eOperator kind ``reductions``; refuses a scope without a nested reduction, or with elements read again."""
    scope = program.scope_at(at)
    found = [inner for _, inner in scopes(scope)]
    if not any(inner.summations for inner in found[1:]):
        raise Refused(f"the scope at {show_path(at)} reads no reduction: eoperator_generation is for that")
    for inner in found:
        points, most = _points(inner), _largest(inner)
        if points > most:
            raise Refused(f"{inner!r} has {points} points for at most {most} elements: elements are read repeatedly")
    return EOperatorKind.REDUCTIONS.instance


def _points(scope: Scope) -> int:
    return prod(x.extent for x in (*scope.traversals, *scope.summations))


def _largest(scope: Scope) -> int:
    """Return the number of elements of the largest tensor among the result and the direct operands of *scope*."""
    return max(prod(scope.shape), *(prod(a.source.shape) for a in accesses(scope.body)), 0)


REDUCTION_GENERATION = generation_rule(
    "reduction_generation",
    r"\mathop{L}_{\vec x} g\Big(X[\vec x], \Big\{\mathop{L}_{\vec u} \bigoplus_{\vec y} h(X[\vec u, \vec y])"
    r"\Big\}[\vec u], \dots\Big) \;\Rightarrow\; \text{eOperator (reductions)}",
    _instance,
    "it can be generated with its reductions",
)
