r"""Re-centring: an exponential relative to one value becomes relative to another, times a correcting exponential.

.. math::
   e^{a - b} \;\mapsto\; e^{a - c}\, e^{c - b}, \qquad c = \Big\{ \mathop{L}_{\vec z} \max_{\vec y} a \Big\}[\vec z]

for a finite `c`; here `c` is the maximum of `a` over some of the scope's summations, so :math:`e^{a-c} \le 1`.  The
second factor does not depend on these summations, so distributivity moves it out, and each block of a softmax is
relative to its own maximum.  It is the only rule that needs the law :math:`e^{a+b} = e^a e^b`; its certificate names
the law.

Source: M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import iterators_of, join_names
from einnet_explore.analysis.products import summed_factors
from einnet_explore.ir import Apply, Iterator, Scalar, Scope, factors, mul
from einnet_explore.rules.base import accepted, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Centre:
    """Make factor number *factor* relative to its largest argument over the summations *within*."""

    factor: int
    within: tuple[Iterator, ...]


def propose(scope: Scope) -> Iterable[Centre]:
    """Propose every exponential of a difference, relative to its maximum over all but one of several summations."""
    if len(scope.summations) < 2:
        return
    for n in range(len(factors(scope.body))):
        for y in scope.summations:
            params = Centre(n, (y,))
            if accepted(rewrite, scope, params):
                yield params


def rewrite(scope: Scope, params: Centre) -> Scope:
    """Apply the law; refuses a factor that is no exponential of a difference, or whose argument lacks an iterator."""
    parts = summed_factors(scope)
    if not 0 <= params.factor < len(parts):
        raise Refused(f"factor {params.factor}: the body has {len(parts)}")
    match parts[params.factor]:
        case Apply("exp", (Apply("-", (a, b)),)):
            centre = _centre(scope, a, b, params.within)
        case other:
            raise Refused(f"factor {params.factor} is {other!r}, expected the exponential of a difference")
    split = (_exp(a, centre), _exp(centre, b))
    body = mul(*(x for n, p in enumerate(parts) for x in (split if n == params.factor else (p,))))
    return replace(scope, body=body)


def _exp(a: Scalar, b: Scalar) -> Scalar:
    return Apply("exp", (Apply("-", (a, b)),))


def _centre(scope: Scope, a: Scalar, b: Scalar, within: tuple[Iterator, ...]) -> Scalar:
    read, stray = iterators_of(a), [y for y in within if y not in scope.summations]
    if stray or not within:
        raise Refused(
            f"{join_names(stray or within)} is not summed here: the summations are {join_names(scope.summations)}"
        )
    if missing := [y for y in within if y not in read]:
        raise Refused(f"the exponential is of {a!r}, which does not depend on {join_names(missing)}")
    if common := iterators_of(b) & set(within):
        raise Refused(
            f"the exponential subtracts {b!r}, which depends on {join_names(sorted(common, key=lambda y: y.name))} too"
        )
    kept = tuple(x for x in (*scope.summations, *scope.traversals) if x in read and x not in within)
    return Scope(kept, within, a, "max")[kept]


def explain(scope: Scope) -> str:
    """Return why no factor can be re-centred."""
    if len(scope.summations) < 2:
        return f"the scope has {len(scope.summations)} summations, expected one to stand within another"
    return "no factor is the exponential of a difference of what is summed and what is not"


RECENTRING = scope_rule(
    "recentring",
    r"e^{a - b} \;\mapsto\; e^{a - c}\, e^{c - b}, \qquad"
    r" c = \Big\{ \mathop{L}_{\vec z} \max_{\vec y} a \Big\}[\vec z]",
    propose,
    rewrite,
    explain=explain,
)
