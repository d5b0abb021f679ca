r"""One-pass generation: a softmax-weighted sum becomes a kernel that processes its columns block by block.

.. math::
   \mathop{L}_{b\,m\,n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}}
   \;\Rightarrow\; \text{eOperator (one pass)}, \qquad M = \max_w z_w, \quad
   h(a ⧺ b) = h(a) \oplus h(b)

The scope is unchanged.  Computation by blocks is correct because (m, s, v) is a homomorphism into a monoid
(``analysis/online_softmax.py``).  This law is checked when the rule is applied.
Eoperator generation (EinNet §5.2) refuses such a scope: it sums inside, and it is compute-bound.

Source: T. Dao et al., FlashAttention, 2022.
"""

from __future__ import annotations

from einnet_explore.analysis.online_softmax import check_softmax_laws, match_online_softmax
from einnet_explore.ir import EOperatorKind, Instance, Path, Program
from einnet_explore.rules.base import generation_rule


def _instance(program: Program, at: Path) -> Instance:
    """The eOperator kind ``one_pass``; refuses a scope that is no softmax-weighted sum, with the missing part."""
    match_online_softmax(program.scope_at(at))
    check_softmax_laws()
    return EOperatorKind.ONE_PASS.instance


ONE_PASS_GENERATION = generation_rule(
    "one_pass_generation",
    r"\mathop{L}_{b m n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}} \;\Rightarrow\;"
    r" \text{eOperator (one pass)}, \qquad M = \max_w z_w",
    _instance,
    "it can be generated in one pass",
)
