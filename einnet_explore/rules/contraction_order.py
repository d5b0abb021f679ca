r"""Contraction order: variable elimination in a sum over a product of several factors, ordered by cost.

.. math::
   \mathop{L}_{i\,l} \sum_k \Big\{ \mathop{L}_{i\,k} \sum_j A[i,j]\, B[j,k] \Big\} C[k,l]
   \;\mapsto\;
   \mathop{L}_{i\,l} \sum_j A[i,j] \Big\{ \mathop{L}_{j\,l} \sum_k B[j,k]\, C[k,l] \Big\}

Sums that are read as factors are substituted (distributivity inwards), which results in one sum over all factors.  This
sum is split along a binary tree of factors.  Each node, also a single factor, sums over the iterators that no other
factor needs: :math:`\sum_{j k} A[i,k]\, B[j,k] = \sum_k A[i,k]\, \{\sum_j B[j,k]\}[k]`.  The tree with
the fewest multiplications at run time is proposed (``analysis/products.py``); products of weights alone are computed at
compile time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.products import (
    MAX_FACTORS,
    SummedProduct,
    Tree,
    cheapest_tree,
    count_products,
    flatten_product,
    has_finite_padding,
    order_product,
    summed_factors,
    tree_leaves,
)
from einnet_explore.ir import Scope
from einnet_explore.rules.base import refusing, scope_rule
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Order:
    """The tree of the factors, numbered in the order after nested sums are inlined; constants have no number."""

    tree: Tree


def propose(scope: Scope) -> Iterable[Order]:
    """Propose the cheapest order if it is cheaper than the present one."""
    try:
        flat = _flat(scope)
        tree = cheapest_tree(flat.reads, frozenset(scope.traversals), flat.weights)
    except ValueError:
        return
    ordered = _ordered(scope, flat, tree)
    if count_products(ordered) < count_products(scope):
        yield Order(tree)


def rewrite(scope: Scope, params: Order) -> Scope:
    """Apply the law; refuses a scope that is no sum of a product, and a tree without exactly one leaf a factor."""
    flat = _flat(scope)
    held = tree_leaves(params.tree)
    if sorted(held) != list(range(len(flat.parts))):
        raise Refused(f"the tree has the factors {list(held)}, expected each of 0 to {len(flat.parts) - 1} once")
    if isinstance(params.tree, int):
        raise Refused("there is only one factor, so there is no order to choose")
    ordered = _ordered(scope, flat, params.tree)
    if canonical_key(ordered) == canonical_key(scope):
        raise Refused(f"this is the present order: {params.tree!r}")
    return ordered


def _ordered(scope: Scope, flat: SummedProduct, tree: Tree) -> Scope:
    """Return *scope* in the order of *tree*; a tree that sums nothing below its root gives one sum over all factors."""
    body, left = order_product(flat, tree, scope.traversals)
    return replace(scope, summations=left, body=body)


def _flat(scope: Scope) -> SummedProduct:
    """Return *scope* as one sum; raises Refused if it is none."""
    summed_factors(scope)
    if not scope.summations:
        raise Refused("the scope sums nothing, expected a plain sum of a product")
    if not has_finite_padding(scope.body):
        raise Refused("associativity needs finite paddings: 0 times infinity is undefined")
    flat = flatten_product(scope.body, scope.traversals, scope.summations)
    if not flat.parts:
        raise Refused("the body is a constant")
    return flat


def explain(scope: Scope) -> str:
    """Return why no other order is proposed."""
    try:
        flat = _flat(scope)
    except Refused as why:
        return str(why)
    if len(flat.parts) < 2:
        return "there is only one factor"
    if len(flat.parts) > MAX_FACTORS:
        return f"{len(flat.parts)} factors: orders of up to {MAX_FACTORS} are compared"
    return f"the present order takes {count_products(scope)} multiplications, no other fewer"


def encode(params: Order) -> dict[str, object]:
    """``{"tree": [0, [1, 2]]}``."""
    return {"tree": _lists(params.tree)}


def _lists(tree: Tree) -> object:
    return tree if isinstance(tree, int) else [_lists(tree[0]), _lists(tree[1])]


def decode(_: Scope, params: Mapping[str, object]) -> Order:
    """The inverse of ``encode``; refuses a value that is no binary tree of numbers."""
    with refusing():
        return Order(_tree(params["tree"]))


def _tree(found: object) -> Tree:
    match found:
        case int():
            return found
        case [left, right]:
            return _tree(left), _tree(right)
    raise Refused(f"tree {found!r}: expected a number or a pair of trees")


CONTRACTION_ORDER = scope_rule(
    "contraction_order",
    r"\mathop{L}_{i l} \sum_k \Big\{ \mathop{L}_{i k} \sum_j A[i,j]\, B[j,k] \Big\} C[k,l] \;\mapsto\;"
    r" \mathop{L}_{i l} \sum_j A[i,j] \Big\{ \mathop{L}_{j l} \sum_k B[j,k]\, C[k,l] \Big\}",
    propose,
    rewrite,
    encode,
    decode,
    explain,
)
