r"""Prefix splitting: a sum up to a position is a sum of whole blocks before it, and of the part of its own block.

.. math::
   \mathop{L}_{\vec x} \sum_s [s \le e(\vec x)]\, f(\vec x, s)
   \;\mapsto\;
   \mathop{L}_{\vec x}
     \Big\{ \mathop{L}_{\vec x} \sum_{S\, r} [S < \lfloor e/g \rfloor]\, f(\vec x, g S + r) \Big\}[\vec x]
     + \Big\{ \mathop{L}_{\vec x} \sum_r [r \le e \bmod g]\, f(\vec x, g \lfloor e/g \rfloor + r) \Big\}[\vec x]

for blocks of g positions; :math:`[c]` is 1 where *c* holds, else 0.  The condition of the first sum does not depend on
the position in a block, so the products of a block can be summed once for all later positions: the chunked form of
linear attention and of state-space models (Y. Sun et al., 2023; T. Dao and A. Gu, 2024).  In the same
way, :math:`[s < e]` divides into :math:`[S < \lfloor e/g \rfloor]` and :math:`[r < e \bmod g]`, and a sum from a
position on, :math:`[s \ge e]`, into later blocks and :math:`[r \ge e \bmod g]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from einnet_explore.analysis.indices import condition_slack, fresh_name, iterators_of, substitute
from einnet_explore.analysis.products import quotient_factors, summed_factors
from einnet_explore.ir import Apply, Compare, Const, Index, Iterator, Scalar, Scope, add, as_index, mul
from einnet_explore.rules.base import accepted, refusals_of, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Blocks:
    """The summation that a condition bounds on one side, and the number of its positions in a block."""

    summation: Iterator
    size: int


@dataclass(frozen=True, slots=True)
class End:
    """The *position*, in the range of the summation, up to which it is summed, or from which on.

    The position itself is left out if the end is *strict*.
    """

    position: Index
    is_upper: bool
    strict: bool


def propose(scope: Scope) -> Iterable[Blocks]:
    """Propose every block size of which two or more blocks reach all positions, and none beyond, from the smallest."""
    for s in scope.summations:
        if accepted(summed_end, scope, s):
            sizes = (Blocks(s, size) for size in block_sizes(summed_end(scope, s)[0], s))
            yield from (params for params in sizes if accepted(rewrite, scope, params))


def block_sizes(end: End, s: Iterator) -> Iterable[int]:
    """Return the sizes of blocks of which two or more reach all values of *s* that are summed, and none beyond *s*."""
    last = end.position.bounds[1] if end.is_upper else s.hi - 1
    return (size for size in range(2, last + 1) if (last // size + 1) * size <= s.hi)


def rewrite(scope: Scope, params: Blocks) -> Scope:
    """Apply the law; refuses a sum without such a condition, a position outside the range, and partial blocks."""
    s, size = params.summation, params.size
    if s not in scope.summations:
        raise Refused(f"{s.name} is no summation")
    summed_factors(scope)
    end, part, others = summed_end(scope, s)
    if size not in block_sizes(end, s):
        raise Refused(f"blocks of {size} do not divide {s.name} in [0, {s.hi}) into two or more whole ones")
    kept = tuple(y for y in scope.summations if y != s)
    names = [x.name for x in (*scope.traversals, *scope.summations)]
    count = end.position.bounds[1] // size + 1 if end.is_upper else s.hi // size
    whole = Iterator(fresh_name(s.name.upper(), names), 0, count)
    inside = Iterator(fresh_name(s.name, (*names, whole.name)), 0, size)
    op, sign = ("<=", -1) if end.is_upper else (">=", 1)
    block, place = end.position // size, end.position % size + sign * end.strict
    sums = (
        ((whole, inside, *kept), Compare(op, as_index(whole), block + sign), whole * size + inside),
        ((inside, *kept), Compare(op, as_index(inside), place), block * size + inside),
    )
    split: list[Scalar] = []
    for over, holds, at in sums:
        held = Apply("where", (holds, substitute(part, {s: at}), Const(0)))
        split.append(Scope(scope.traversals, over, mul(held, substitute(others, {s: at})))[scope.traversals])
    return replace(scope, summations=(), body=add(*split))


def summed_end(scope: Scope, s: Iterator) -> tuple[End, Scalar, Scalar]:
    """Return the end of the values of *s* that a condition admits, the factors that are read only then, and the others.

    A function of all iterators of the condition joins it: elsewhere its value is not needed, and may overflow.  Raises
    Refused without such a condition, and if the end leaves the range of *s*.
    """
    last, is_upper, held, free = last_summed(scope, s)
    return _end(last, s, is_upper), held, free


def last_summed(scope: Scope, s: Iterator) -> tuple[Index, bool, Scalar, Scalar]:
    """Return the last value of *s* that a condition admits, whether *s* is summed up to it, and both kinds of factors.

    The value may leave the range of *s*.  Raises Refused without such a condition.
    """
    found = quotient_factors(scope.body)
    for n, factor in enumerate(found):
        match factor:
            case Apply("where", (Compare() as condition, part, Const(0))):
                slack, read = condition_slack(condition), iterators_of(condition)
                if slack is not None and abs(slack.coefficient(s)) == 1:
                    at = slack + s if slack.coefficient(s) < 0 else s - slack
                    if read - {s} <= set(scope.traversals) and s not in at.iterators:
                        rest = (*found[:n], *found[n + 1 :])
                        joins = [isinstance(f, Apply) and read <= iterators_of(f) for f in rest]
                        held = mul(part, *(f for f, with_it in zip(rest, joins, strict=True) if with_it))
                        free = mul(*(f for f, with_it in zip(rest, joins, strict=True) if not with_it))
                        return at, slack.coefficient(s) < 0, held, free
    raise Refused(f"no factor is 0 where {s.name} is beyond an index of the traversals")


def _end(last: Index, s: Iterator, is_upper: bool) -> End:
    """Return the end of *s* at *last*, which still is summed; the position next to it is an end that is strict."""
    for strict in (False, True):
        position = last + (strict if is_upper else -strict)
        low, high = position.bounds
        if s.lo == 0 <= low and high < s.hi:
            return End(position, is_upper, strict)
    low, high = last.bounds
    raise Refused(f"{s.name} in [{s.lo}, {s.hi}) ends at {last!r} in [{low}, {high}], outside [0, {s.hi})")


def explain(scope: Scope) -> str:
    """Return why no sum is split."""
    reasons = [why for s in scope.summations for why in refusals_of(summed_end, scope, s)]
    return "; ".join(reasons) or "no block size divides the summation" if scope.summations else "the scope sums nothing"


PREFIX_SPLITTING = scope_rule(
    "prefix_splitting",
    r"\mathop{L}_{\vec x} \sum_s [s \le e]\, f(s) \;\mapsto\; \mathop{L}_{\vec x}"
    r" \Big\{ \mathop{L}_{\vec x} \sum_{S\, r} [S < \lfloor e/g \rfloor]\, f(g S + r) \Big\}[\vec x]"
    r" + \Big\{ \mathop{L}_{\vec x} \sum_r [r \le e \bmod g]\, f(g \lfloor e/g \rfloor + r) \Big\}[\vec x]",
    propose,
    rewrite,
    explain=explain,
)
