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

from einnet_explore.analysis.equations import instantiated
from einnet_explore.analysis.online_softmax import online
from einnet_explore.analysis.softmax_monoid import softmax_is_broken
from einnet_explore.ir import EOPERATOR, Instance, Path, Program
from einnet_explore.rules.base import not_run_yet, place_rule
from einnet_explore.support.errors import Refused


def rewrite(program: Program, at: Path) -> Program:
    """The scope generated: a whole equation where it stands, a nested scope as an equation of its own.

    Refuses what is no softmax-weighted sum, with what is missing, and what is instantiated already.
    """
    not_run_yet(program, at)
    found = online(program.scope_at(at))
    if isinstance(found, str):
        raise Refused(found)
    if (wrong := softmax_is_broken()) is not None:
        raise Refused(wrong)
    return instantiated(program, at, Instance(EOPERATOR, (("kind", "one_pass"),)))


ONE_PASS_GENERATION = place_rule(
    "one_pass_generation",
    r"\mathop{L}_{b m n} \frac{\sum_w e^{z_w - M} V[u, n]}{\sum_w e^{z_w - M}} \;\Rightarrow\;"
    r" \text{eOperator (one pass)}, \qquad M = \max_w z_w",
    rewrite,
    lambda _: "it can be generated in one pass",
)
