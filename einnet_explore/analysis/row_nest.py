r"""Nested scopes as work on rows: band products, elementwise work, reductions along a row, a product with a band.

.. math::
   S[b,m,w] = \sum_k A[b,m,k]\, B[b, m+w, k], \qquad
   Y[b,m,n] = \sum_w P[b,m,w]\, V[b, m+w, n], \qquad
   P[b,m,w] = g\big(S[b,m,w], \textstyle\bigoplus_{w'} h(S[b,m,w'])\big)

(G2BMM and GBMM of EinNet §5.1, Table 2, and a softmax between them.)  A factor is a band's if it depends on `m` and
`w` through their sum only, that is, if :math:`m \mapsto u - w` makes `w` vanish from it: whatever the strides are, and
whatever is computed on the way.  Dilated bands have no such form before residues are a batch of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import split_factors
from einnet_explore.analysis.row_nodes import (
    BandNode,
    ColumnNode,
    Node,
    ReducedNode,
    RowNode,
    RowNodes,
    RowPlaces,
    column_support,
    inline_scopes,
    node_name,
    read_nodes,
)
from einnet_explore.ir import Access, Apply, Const, Iterator, Scalar, Scope, Tensor, factors, map_accesses, mul
from einnet_explore.support.errors import Refused

COLUMN_MULTIPLE = 64
"""Columns are counted in so many: no tile is wider."""

MIN_ROW_EXTENT = 4
"""Shorter rows fill no vector."""


@dataclass(frozen=True, slots=True)
class RowProduct:
    """The result is the sum over `w` of the row values and *right* (b, u, n) at :math:`u = m + w`."""

    n: Iterator
    right: Scalar
    support: tuple[int, int]


@dataclass(frozen=True)
class RowNest:
    """The rows of *scope*: *nodes* in an order in which they can be computed, then *result* times *scale*.

    Scalars are over *batch*, *row* (`m`), *along* (`w`) and *column* (`u`); they read node `n` as the tensor
    ``name(n)``, at `w` or, where it has one value a row, at nothing.  *scale* does not depend on `w`.  With a *product*
    the rows are multiplied by it, else they are the result.
    """

    scope: Scope
    batch: tuple[Iterator, ...]
    row: Iterator
    along: Iterator
    column: Iterator
    nodes: tuple[Node, ...]
    result: Scalar
    scale: Scalar
    product: RowProduct | None = None
    dense: bool = False
    """Whether every row sees every column: :math:`u = w` then."""

    @property
    def banded(self) -> bool:
        """Whether it holds a band."""
        return self.product is not None or any(isinstance(node, BandNode) for node in self.nodes)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the band products."""
        each = [prod(s.extent for s in n.sums) for n in self.nodes if isinstance(n, BandNode)]
        each += [self.product.n.extent] if self.product else []
        return 2 * sum(each) * prod(x.extent for x in (*self.batch, self.row, self.along))


def match_row_nest(scope: Scope) -> RowNest | None:
    """*scope* as work on rows that other kernels do badly; None where it is none.

    It has to hold a band, or to reduce its rows and use the outcome along them.
    """
    if scope.domain or any(x.lo for x in scope.traversals) or not scope.traversals:
        return None
    if scope.summations and scope.reduce != "sum":
        return None
    tries = (_product, _band) if scope.summations else (_rows,)
    for attempt in tries:
        for row in reversed(scope.traversals[:-1]):
            try:
                found = attempt(scope, row)
            except Refused:
                continue
            if found.banded:
                return found
    if scope.summations or len(scope.traversals) < 2:
        return None
    try:
        plain = _rows(scope, scope.traversals[-2])
    except Refused:
        return None
    return plain if any(isinstance(n, ReducedNode) for n in plain.nodes) else None


def match_dense_product(scope: Scope) -> RowNest | None:
    """*scope* as row values, of which each sees every column, times a matrix over the columns; None where it is not."""
    if scope.domain or any(x.lo for x in scope.traversals) or not scope.summations or scope.reduce != "sum":
        return None
    for row in reversed(scope.traversals[:-1]):
        try:
            return _product(scope, row, dense=True)
        except Refused:
            continue
    return None


def _product(scope: Scope, row: Iterator, *, dense: bool = False) -> RowNest:
    """Σ_w of row values and what is read along a band (or, *dense*, of every column)."""
    if len(scope.summations) != 1 or scope.summations[0].lo:
        raise Refused("it sums over more than one iterator")
    (along,), n = scope.summations, scope.traversals[-1]
    batch = tuple(x for x in scope.traversals[:-1] if x != row)
    places = RowPlaces(row, along, _dense_column(along) if dense else _column(row, along), dense)
    right, left = split_factors(scope.body, (n,))
    if not right:
        raise Refused(f"no factor is {n.name}'s")
    moved = places.moved(mul(*map(inline_scopes, right)))
    rows = RowNodes(places)
    product = RowProduct(n, moved, column_support(moved, places.column))
    result = rows.scalar(mul(*left))
    return _finished(RowNest(scope, batch, row, along, places.column, (), result, Const(1), product, dense), rows)


def _band(scope: Scope, row: Iterator) -> RowNest:
    """A band product by itself."""
    along = scope.traversals[-1]
    batch = tuple(x for x in scope.traversals[:-1] if x != row)
    rows = RowNodes(RowPlaces(row, along, _column(row, along)))
    result = rows.band(scope.summations, scope.body)
    return _finished(RowNest(scope, batch, row, along, rows.places.column, (), result, Const(1)), rows)


def _rows(scope: Scope, row: Iterator) -> RowNest:
    along = scope.traversals[-1]
    if along.extent < MIN_ROW_EXTENT:
        raise Refused(f"rows have {along.extent} elements")
    batch = tuple(x for x in scope.traversals[:-1] if x != row)
    rows = RowNodes(RowPlaces(row, along, _column(row, along)))
    return _finished(RowNest(scope, batch, row, along, rows.places.column, (), rows.scalar(scope.body), Const(1)), rows)


def _column(row: Iterator, along: Iterator) -> Iterator:
    return Iterator("u", 0, -(-(row.extent + along.extent - 1) // COLUMN_MULTIPLE) * COLUMN_MULTIPLE)


def _dense_column(along: Iterator) -> Iterator:
    return Iterator("u", 0, -(-along.extent // COLUMN_MULTIPLE) * COLUMN_MULTIPLE)


def _finished(nest: RowNest, rows: RowNodes) -> RowNest:
    """*nest* with the nodes of *rows*, less those rows that are read once: their reader computes them itself."""
    result, nodes = nest.result, list(rows.nodes)
    for n, node in enumerate(nodes):
        often = [m for body in (*map(_body, nodes), result) for m in read_nodes(body)].count(n)
        if isinstance(node, RowNode) and often == 1:
            nodes = [_with_body(other, _put(_body(other), n, node.body)) for other in nodes]
            result = _put(result, n, node.body)
    used = _used(nodes, result)
    number = {n: k for k, n in enumerate(used)}
    nodes = [_with_body(nodes[n], _renumbered(_body(nodes[n]), number)) for n in used]
    result, scale = _apart(_renumbered(result, number), nest.along)
    return replace(nest, nodes=tuple(nodes), result=result, scale=scale)


def _used(nodes: Sequence[Node], result: Scalar) -> list[int]:
    """The nodes that the result needs, in order."""
    found: set[int] = set()
    waiting = list(read_nodes(result))
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting += read_nodes(_body(nodes[n]))
    return sorted(found)


def _body(node: Node) -> Scalar:
    """What *node* computes from other nodes."""
    match node:
        case BandNode() | ColumnNode():
            return Const(0)
        case RowNode(body) | ReducedNode(_, body):
            return body


def _with_body(node: Node, body: Scalar) -> Node:
    return replace(node, body=body) if isinstance(node, RowNode | ReducedNode) else node


def _put(body: Scalar, n: int, new: Scalar) -> Scalar:
    """*body* with what it reads of node *n* replaced; products stay flat."""
    called = node_name(n)
    return _mapped(body, lambda a: new if isinstance(a.source, Tensor) and a.source.name == called else a)


def _renumbered(body: Scalar, number: Mapping[int, int]) -> Scalar:
    def change(access: Access) -> Scalar:
        match access.source:
            case Tensor(called, shape) if called.startswith("#"):
                return Access(Tensor(node_name(number[int(called[1:])]), shape), access.index)
        return access

    return map_accesses(body, change)


def _mapped(body: Scalar, change: Callable[[Access], Scalar]) -> Scalar:
    parts = factors(body)
    return mul(*(map_accesses(part, change) for part in parts)) if len(parts) > 1 else map_accesses(body, change)


def _apart(body: Scalar, along: Iterator) -> tuple[Scalar, Scalar]:
    """(the factors of *body* that depend on *along*, the product of the others)."""
    inside: list[Scalar] = []
    outside: list[Scalar] = []
    for factor in factors(body):
        if along not in iterators_of(factor):
            outside.append(factor)
            continue
        match factor:
            case Apply("/", (a, b)) if along not in iterators_of(b):
                more, scale = _apart(a, along)
                inside.append(more)
                outside += [scale, Apply("/", (Const(1), b))]
            case _:
                inside.append(factor)
    return mul(*inside), mul(*outside)
