r"""Sums of products: recognition, factors, nested sums, and the cheapest order of a contraction.

A contraction :math:`\sum_{\vec y} f_1 f_2 \cdots f_n` can be computed as a binary tree; at each node, iterators that no
other factor and no output depends on are summed.  A node costs as many multiplications as its grid has points,

.. math::  c(S) = \min_{S = A \uplus B} c(A) + c(B) + \prod_{x \in A \cup B} |x|,

over all subsets, which for a chain of matrices is the classic recurrence (S. Godbole, 1973; for contractions
R. Pfeifer et al., 2014).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import isfinite, prod
from typing import TypeAlias

from einnet_explore.analysis.indices import iterators_of, rename_iterators, substitute
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import Access, Apply, Bound, Const, Iterator, Scalar, Scope, Tensor, accesses, factors
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class TensorContraction:
    r"""A contraction :math:`Y[b, m, n] = \sum_k A[b, m, k] B[b, k, n]`, its iterators grouped by operand.

    *left* and *right* are the two reads.  Traversals that index neither are in none of the groups.
    """

    scope: Scope
    left: Access
    right: Access
    batch: tuple[Iterator, ...]
    m: tuple[Iterator, ...]
    n: tuple[Iterator, ...]

    @property
    def k(self) -> tuple[Iterator, ...]:
        """The summations."""
        return self.scope.summations

    @classmethod
    def of(cls, scope: Scope) -> TensorContraction:
        """Recognise a sum of products of two reads; raises Refused with the reduction, domain or factors found."""
        summed_factors(scope)
        if not scope.summations:
            raise Refused("the scope sums nothing, expected a plain sum")
        left, right = two_reads(scope.body)
        in_left, in_right = iterators_of(left), iterators_of(right)
        batch = tuple(x for x in scope.traversals if x in in_left and x in in_right)
        m = tuple(x for x in scope.traversals if x in in_left and x not in in_right)
        n = tuple(x for x in scope.traversals if x in in_right and x not in in_left)
        return cls(scope, left, right, batch, m, n)


def summed_factors(scope: Scope) -> tuple[Scalar, ...]:
    """Return the factors of the product that *scope* sums; raises Refused for another reduction, or with a domain."""
    if scope.reduce != "sum" or scope.domain:
        where = " over a domain" if scope.domain else ""
        raise Refused(f"the scope takes the {scope.reduce}{where}, expected a plain sum")
    return factors(scope.body)


def two_reads(body: Scalar) -> tuple[Access, Access]:
    """Return the two reads that *body* multiplies; raises Refused if it is another product."""
    match factors(body):
        case (Access() as left, Access() as right):
            return left, right
    raise Refused(f"the body is no product of two reads: {body!r}")


def split_factors(body: Scalar, moving: Collection[Iterator]) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """Split the factors of *body*: those that depend on one of *moving*, and the others."""
    parts = [(f, not iterators_of(f).isdisjoint(moving)) for f in factors(body)]
    return tuple(f for f, moves in parts if moves), tuple(f for f, moves in parts if not moves)


def quotient_factors(body: Scalar) -> tuple[Scalar, ...]:
    """Return the factors of *body*; a quotient a / b has the factors of a, and 1 / b."""
    out: list[Scalar] = []
    for factor in factors(body):
        match factor:
            case Apply("/", (a, b)) if a != Const(1):
                out += [*quotient_factors(a), Apply("/", (Const(1), b))]
            case _:
                out.append(factor)
    return tuple(out)


def has_finite_padding(body: Scalar) -> bool:
    """Whether no read of *body* has an infinite padding: 0 times infinity is no number."""
    return all(isfinite(access.source.value) for access in accesses(body))


def open_reduction(access: Access, reduce: str, used: Iterable[Iterator]) -> tuple[Scalar, tuple[Iterator, ...]]:
    """Return the body and the summations of the scope that *access* reads, in the reader's iterators, *used*.

    Raises Refused where the scope is more than a reduction by *reduce* of its body at that place.
    """
    scope = access.source
    if not isinstance(scope, Scope) or not scope.summations:
        raise Refused(f"{access!r} reads no reduction")
    if scope.reduce != reduce:
        raise Refused(f"the inner scope reduces by {scope.reduce}, expected {reduce}")
    if scope.domain:
        raise Refused(f"the inner scope has a domain: {scope.domain[0]!r}")
    for i, (lo, hi) in zip(access.index, scope.box, strict=True):
        if not always_holds(Bound(i, lo, hi)):
            least, most = i.bounds
            raise Refused(f"it is read at {i!r} ∈ [{least}, {most}], outside its box [{lo}, {hi})")
    inner = rename_iterators(scope, {x.name for x in used})
    return substitute(inner.body, dict(zip(inner.traversals, access.index, strict=True))), inner.summations


Tree: TypeAlias = "int | tuple[Tree, Tree]"
"""A factor by its number, or two trees whose product is summed over what nothing else needs."""

MAX_FACTORS = 8
"""Factors up to which every tree is looked at: 3⁸ splits of subsets."""

FactorReads: TypeAlias = "Sequence[frozenset[Iterator]]"


def tree_leaves(tree: Tree) -> tuple[int, ...]:
    """Return the factors of *tree*, from left to right."""
    return (tree,) if isinstance(tree, int) else (*tree_leaves(tree[0]), *tree_leaves(tree[1]))


def open_iterators(reads: FactorReads, inside: Iterable[int], kept: frozenset[Iterator]) -> frozenset[Iterator]:
    """Return the iterators of the product of *inside* that remain once all others are summed."""
    chosen = set(inside)
    own = frozenset[Iterator]().union(*(reads[n] for n in chosen))
    elsewhere = frozenset[Iterator]().union(*(r for n, r in enumerate(reads) if n not in chosen))
    return own & (elsewhere | kept)


def reads_weights(body: Scalar) -> bool:
    """Whether *body* is known at compile time: it reads only weights and coefficients, at any depth."""
    for access in accesses(body):
        match access.source:
            case Tensor(weight=False):
                return False
            case Scope(body=inner) if not reads_weights(inner):
                return False
    return True


def count_products(scope: Scope) -> int:
    """Count the products of *scope* at run time: the points of its grid and of sums that it multiplies."""
    if reads_weights(scope.body):
        return 0
    moves = isinstance(scope.body, Access) and not scope.summations
    here = 0 if moves else prod(x.extent for x in (*scope.traversals, *scope.summations))
    inner = (f.source for f in quotient_factors(scope.body) if isinstance(f, Access))
    return here + sum(count_products(s) for s in inner if isinstance(s, Scope) and s.summations)


def multiplications(
    tree: Tree, reads: FactorReads, kept: frozenset[Iterator], weights: frozenset[int] = frozenset()
) -> int:
    """Return the cost of *tree*: the points of its nodes' grids; products of *weights* alone are free."""
    if isinstance(tree, int):
        return 0
    here = 0 if weights.issuperset(tree_leaves(tree)) else prod(x.extent for x in _grid(tree, reads, kept))
    return here + sum(multiplications(part, reads, kept, weights) for part in tree)


def _grid(tree: tuple[Tree, Tree], reads: FactorReads, kept: frozenset[Iterator]) -> frozenset[Iterator]:
    """Return the iterators of the two operands of the product at the top of *tree*."""
    return frozenset[Iterator]().union(*(open_iterators(reads, tree_leaves(part), kept) for part in tree))


def cheapest_tree(reads: FactorReads, kept: frozenset[Iterator], weights: frozenset[int] = frozenset()) -> Tree:
    """Return the tree with the fewest multiplications; of several, the first in the order of factors.

    Raises ValueError for fewer than two factors, or more than ``MAX_FACTORS``.
    """
    count = len(reads)
    if not 2 <= count <= MAX_FACTORS:
        raise ValueError(f"{count} factors: expected 2 to {MAX_FACTORS}")

    @lru_cache(maxsize=1 << MAX_FACTORS)
    def best(chosen: frozenset[int]) -> tuple[int, str, Tree]:
        if len(chosen) == 1:
            (n,) = chosen
            return 0, str(n), n
        first, *others = sorted(chosen)
        found = []
        for size in range(len(others)):
            for more in combinations(others, size):
                one = frozenset((first, *more))
                a, b = best(one), best(chosen - one)
                tree = (a[2], b[2])
                here = 0 if chosen <= weights else prod(x.extent for x in _grid(tree, reads, kept))
                found.append((a[0] + b[0] + here, repr(tree), tree))
        return min(found)

    return best(frozenset(range(count)))[2]
