r"""Softmax-weighted sums in expressions: what one pass over the columns can compute.

.. math::
   Y[b,m,n] = \frac{\sum_w e^{z(b,m,w) - M}\, V[b,u,n]}{\sum_w e^{z(b,m,w) - M}}, \qquad M = \max_w z(b,m,w)

with :math:`u = w` (full attention) or :math:`u = m + w` (a band), and `z` any elementwise function of band products, of
what depends on the column and of what is read at (b, m, w).  The three reductions are the parts of one homomorphism
into the monoid of ``algebra/monoids.py``, so columns may be met block by block, in one pass, and nothing of the size of
`z` has to be there at once (M. Milakov and N. Gimelshein, 2018; T. Dao et al., FlashAttention, 2022).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.analysis.row_nest import RowNest, match_dense_product, match_row_nest
from einnet_explore.analysis.row_nodes import ReducedNode, RowNode, node_name, read_nodes
from einnet_explore.ir import Access, Apply, Scalar, Scope, Tensor, map_accesses


@dataclass(frozen=True)
class OnlineSoftmax:
    """The rows of *nest*, whose *score* is `z`; ``name(total)`` is what scalars call :math:`\\sum_w e^{z - M}`."""

    nest: RowNest
    score: Scalar
    total: int | None


def row_work(scope: Scope) -> OnlineSoftmax | RowNest | None:
    """*scope* as a softmax-weighted sum, else as other work on rows; None where it is neither."""
    found = match_row_nest(scope)
    weighted = _weighted(scope, found)
    return weighted if isinstance(weighted, OnlineSoftmax) else found


def match_online_softmax(scope: Scope) -> OnlineSoftmax | str:
    """*scope* as a softmax-weighted sum; where it is none, why."""
    return _weighted(scope, match_row_nest(scope))


def _weighted(scope: Scope, rows: RowNest | None) -> OnlineSoftmax | str:
    found = match_dense_product(scope) if rows is None or rows.product is None else rows
    if found is None or found.product is None:
        return "no row values, of a band or of every column, are summed with a matrix over the columns"
    match _whole(found, found.result):
        case Apply("exp", (Apply("-", (score, Access(Tensor(called), ()))),)) if called.startswith("#"):
            return _checked(found, score, called)
    return "what is summed is no exponential of the difference to a maximum"


def _checked(nest: RowNest, score: Scalar, called: str) -> OnlineSoftmax | str:
    reductions = {node_name(n): node for n, node in enumerate(nest.nodes) if isinstance(node, ReducedNode)}
    largest = reductions.pop(called, None)
    if largest is None or largest.reduce != "max" or _whole(nest, largest.body) != score:
        return f"{called} is not the largest of what the exponential is of"
    if any(n in (called, *reductions) for n in _names(score)):
        return "what the exponential is of waits for another reduction"
    if called in _names(nest.scale):
        return "the result is scaled by the maximum, which depends on nothing but rounding"
    power = _whole(nest, nest.result)
    for other, node in reductions.items():
        if node.reduce != "sum" or _whole(nest, node.body) != power:
            return f"{other} is not the sum of the exponentials"
    if len(reductions) > 1:
        return f"{len(reductions)} sums are taken, expected one"
    return OnlineSoftmax(nest, score, next((int(n[1:]) for n in reductions), None))


def _names(body: Scalar) -> Iterable[str]:
    return tuple(node_name(n) for n in read_nodes(body))


def _whole(nest: RowNest, body: Scalar) -> Scalar:
    """*body* with the rows that it reads put in."""

    def put(access: Access) -> Scalar:
        match access.source:
            case Tensor(called) if called.startswith("#"):
                node = nest.nodes[int(called[1:])]
                return _whole(nest, node.body) if isinstance(node, RowNode) else access
        return access

    return map_accesses(body, put)
