"""Two scopes compared where they differ: at the smallest sub-scopes first, and at their parents where that fails.

A bound that readers never violate may be dropped, which only the reader shows.
"""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.algebra.beside import children, pairs
from einnet_explore.algebra.given import Given
from einnet_explore.algebra.space import Beyond
from einnet_explore.algebra.tally import Witness, difference
from einnet_explore.algebra.verdict import Certificate, joint
from einnet_explore.ir import Box, Path, Scope, show_path


def agreement(before: Scope, after: Scope, region: Box, at: Path, given: Given) -> Certificate | Witness | str:
    """The proof at the smallest scopes that differ; else what the comparison at *at* itself says against it."""
    if before == after:
        return Certificate("proved", "identical", show_path(at))
    if inner := children(before, after):
        found = [agreement(b, a, _meet(b.reach, a.reach), (*at, n), given) for n, b, a in inner]
        proofs = [c for c in found if isinstance(c, Certificate)]
        if len(proofs) == len(found):
            return proofs[0] if len(proofs) == 1 else joint(proofs, show_path(at))
    why = _why(before, after, region, given)
    if why is None or _equal_pointwise(before, after, given):
        return Certificate("proved", "term relation", show_path(at))
    for more in given.axioms([before], [after]):
        if _why(before, after, region, more) is None or (more.rounds and _equal_pointwise(before, after, more)):
            return Certificate("proved", "term relation", show_path(at), detail=more.named)
    return why


def _why(before: Scope, after: Scope, region: Box, given: Given) -> Witness | str | None:
    try:
        return difference(before, after, region, given)
    except Beyond as beyond:
        return str(beyond)


def _equal_pointwise(before: Scope, after: Scope, given: Given) -> bool:
    """Whether two scopes that differ in accesses only read equal elements at every point, access by access.

    So a function of a sum is equal where the sum is, although it is no sum itself.
    """
    if before.domain or replace(after, body=before.body, padding=before.padding) != before:
        return False
    met = pairs(before.body, after.body)
    if met is None:
        return False
    own = (*before.traversals, *before.summations)
    for b, a in met:
        if b != a:
            one, other = Scope(own, (), b), Scope(own, (), a)
            if one == before and other == after:
                return False
            if _why(one, other, one.box, given) is not None:
                return False
    return True


def _meet(a: Box, b: Box) -> Box:
    return tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b, strict=True))
