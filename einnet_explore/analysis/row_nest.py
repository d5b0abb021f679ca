r"""Nested scopes as work on rows: band products, elementwise work, reductions along a row, a product with a band.

.. math::
   S[b,m,w] = \sum_k A[b,m,k]\, B[b, m+w, k], \qquad
   Y[b,m,n] = \sum_w P[b,m,w]\, V[b, m+w, n], \qquad
   P[b,m,w] = g\big(S[b,m,w], \textstyle\bigoplus_{w'} h(S[b,m,w'])\big)

(G2BMM and GBMM of EinNet §5.1, Table 2, and a softmax between them.)  A factor belongs to a band if it depends on `m`
and `w` through their sum only, that is, if :math:`m \mapsto u - w` removes `w` from it: whatever the strides and the
computation in between.  Dilated bands have no such form unless residues become a batch dimension.

The work is a list of nodes in the order of their computation: band products, values of a column, rows, and reductions
along rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from einnet_explore.analysis.indices import (
    guard,
    iterators_of,
    rename_iterators,
    split_divided_traversals,
    substitute,
)
from einnet_explore.analysis.products import split_factors
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    IndexLike,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    factors,
    map_accesses,
    mul,
)
from einnet_explore.support.errors import Refused

COLUMN_MULTIPLE = 64
"""The column range is rounded up to a multiple of this: no tile is wider."""

MIN_ROW_EXTENT = 4
"""Least extent of a row: shorter rows fill no vector."""


@dataclass(frozen=True, slots=True)
class BandNode:
    """Row values :math:`\\sum_k left(b, m, k) \\cdot right(b, u, k)` at :math:`u = m + w`.

    *right* is 0 outside *support*, a half-open range of `u`.
    """

    sums: tuple[Iterator, ...]
    left: Scalar
    right: Scalar
    support: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ColumnNode:
    """Row values that depend on the column alone: :math:`right(b, u)` at :math:`u = m + w`."""

    right: Scalar


@dataclass(frozen=True, slots=True)
class RowNode:
    """Row values, elementwise."""

    body: Scalar


@dataclass(frozen=True, slots=True)
class ReducedNode:
    """One value per row: *body* reduced along the row by the monoid *reduce*."""

    reduce: str
    body: Scalar


RowNestNode: TypeAlias = "BandNode | ColumnNode | RowNode | ReducedNode"


def node_name(n: int) -> str:
    """Return the name of node *n* in scalars."""
    return f"#{n}"


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The columns of a row's elements: *row* + *along* in a band, or *along* if every row sees every column."""

    row: Iterator
    along: Iterator
    column: Iterator
    dense: bool = False

    @staticmethod
    def band(row: Iterator, along: Iterator) -> RowPlaces:
        """Return the places of a band."""
        return RowPlaces(row, along, _column(row.extent + along.extent - 1))

    @staticmethod
    def full(row: Iterator, along: Iterator) -> RowPlaces:
        """Return the places of rows that see every column."""
        return RowPlaces(row, along, _column(along.extent), dense=True)

    @property
    def names(self) -> set[str]:
        """The names in use."""
        return {self.row.name, self.along.name, self.column.name}

    def over_columns(self, body: Scalar) -> Scalar:
        """Express *body* over *column*; raises Refused if it depends on row and place otherwise."""
        to = {self.along: as_index(self.column)} if self.dense else {self.row: as_index(self.column) - self.along}
        moved = substitute(body, to)
        left = set(iterators_of(moved))
        if self.along in left or self.row in left or self.column not in left:
            on = self.along.name if self.dense else f"{self.row.name} + {self.along.name}"
            raise Refused(f"{body!r} does not depend on {on} alone")
        return moved


def _column(count: int) -> Iterator:
    return Iterator("u", 0, -(-count // COLUMN_MULTIPLE) * COLUMN_MULTIPLE)


@dataclass
class RowNodes:
    """The nodes found so far."""

    places: RowPlaces
    nodes: list[RowNestNode] = field(default_factory=list)

    def scalar(self, body: Scalar) -> Scalar:
        """Express *body* over batch, row and along; scopes that it reads become nodes."""
        return map_accesses(body, self._access)

    def _access(self, access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return self._column_or_access(access)
            case Table():
                raise Refused("coefficients of an algorithm are read")
            case Scope() as inner:
                return guard(access.index, inner.box, self._scope(inner, access.index), inner.value)

    def _column_or_access(self, access: Access) -> Scalar:
        try:
            return self._node(ColumnNode(self.places.over_columns(access)))
        except Refused:
            return access

    def _scope(self, inner: Scope, index: tuple[Index, ...]) -> Scalar:
        used = {x.name for i in index for x in i.iterators} | self.places.names
        inner = rename_iterators(inner, used)
        at: dict[Iterator, IndexLike] = dict(zip(inner.traversals, index, strict=True))
        body = substitute(inner.body, at)
        if inner.domain:
            raise Refused("a nested scope has a domain")
        if not inner.summations:
            found = self.scalar(body)
            if isinstance(found, Access | Const) or self.places.along not in iterators_of(found):
                return found
            return self._node(RowNode(found))
        if self.places.along in iterators_of(body):
            if inner.reduce != "sum":
                raise Refused(f"a nested scope reduces by {inner.reduce} at each place of a row")
            return self.band(inner.summations, body)
        if (
            len(inner.summations) != 1
            or inner.summations[0].lo
            or inner.summations[0].extent != self.places.along.extent
        ):
            raise Refused("a nested reduction is not along the row")
        return self._node(
            ReducedNode(inner.reduce, self.scalar(substitute(body, {inner.summations[0]: self.places.along})))
        )

    def band(self, sums: tuple[Iterator, ...], body: Scalar) -> Scalar:
        """Add Σ over *sums* of *body* as a band; raises Refused if it is none."""
        right, left = split_factors(body, (self.places.along,))
        if started := [s for s in sums if s.lo]:
            raise Refused(f"the summation {started[0].name} starts at {started[0].lo}, expected 0")
        moved = self.places.over_columns(mul(*map(inline_scopes, right)))
        return self._node(
            BandNode(sums, mul(*map(inline_scopes, left)), moved, column_support(moved, self.places.column))
        )

    def _node(self, node: RowNestNode) -> Scalar:
        if node not in self.nodes:
            self.nodes.append(node)
        n = self.nodes.index(node)
        return (
            Tensor(node_name(n), ())[()]
            if isinstance(node, ReducedNode)
            else Tensor(node_name(n), (self.places.along.extent,))[(self.places.along,)]
        )


def inline_scopes(body: Scalar) -> Scalar:
    """Inline nested scopes into *body*; raises Refused if one of them sums."""

    def element(access: Access) -> Scalar:
        match access.source:
            case Scope(traversals, (), inner, domain=()) as scope:
                at: Mapping[Iterator, IndexLike] = dict(zip(traversals, access.index, strict=True))
                return guard(access.index, scope.box, inline_scopes(substitute(inner, at)), scope.value)
            case Scope():
                raise Refused("an operand is computed by a sum")
            case Table():
                raise Refused("coefficients of an algorithm are read")
        return access

    return map_accesses(body, element)


def column_support(body: Scalar, column: Iterator) -> tuple[int, int]:
    """Return a range of *column* outside which *body* is 0."""
    lo, hi = column.lo, column.hi
    match body:
        case Access(source, index) if source.value == 0:
            for i, (first, last) in zip(index, source.box, strict=True):
                lo, hi = _meet((lo, hi), _where(i, column, first, last))
        case Apply("*", args):
            for arg in args:
                lo, hi = _meet((lo, hi), column_support(arg, column))
        case Apply("where", (Compare(op, left, right), inner, Const(0))):
            lo, hi = column_support(inner, column)
            if op == "<":
                lo, hi = _meet((lo, hi), _where(left - right, column, None, 0))
            elif op == ">=":
                lo, hi = _meet((lo, hi), _where(left - right, column, 0, None))
    return lo, max(lo, hi)


def _where(index: Index, column: Iterator, first: int | None, last: int | None) -> tuple[int, int]:
    """Return the values of *column* for which ``first <= index < last`` may hold."""
    k = index.coefficient(column)
    rest = index - as_index(column) * k
    if k <= 0 or column in rest.iterators:
        return column.lo, column.hi
    least, most = rest.bounds
    lo = column.lo if first is None else -((most - first) // k)
    hi = column.hi if last is None else (last - 1 - least) // k + 1
    return lo, hi


def _meet(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return max(a[0], b[0]), min(a[1], b[1])


def read_nodes(body: Scalar) -> Iterable[int]:
    """Yield the numbers of the nodes that *body* reads."""
    for access in accesses(body):
        if isinstance(access.source, Tensor) and access.source.name.startswith("#"):
            yield int(access.source.name[1:])


@dataclass(frozen=True, slots=True)
class RowProduct:
    """A matrix: the result is the sum over `w` of row values times *right* (b, u, n) at :math:`u = m + w`."""

    n: Iterator
    right: Scalar
    support: tuple[int, int]


@dataclass(frozen=True)
class RowNest:
    """Work on the rows of *scope*: *nodes* in computable order, then *result* times *scale*.

    Scalars are over *batch*, *row* (`m`), *along* (`w`) and *column* (`u`); they read node `n` as the tensor
    ``node_name(n)``, at `w` or, for one value per row, without an index. *scale* does not depend on `w`. A *product*
    multiplies the rows by a matrix; without one they are the result.
    """

    scope: Scope
    batch: tuple[Iterator, ...]
    row: Iterator
    along: Iterator
    column: Iterator
    nodes: tuple[RowNestNode, ...]
    result: Scalar
    scale: Scalar
    product: RowProduct | None = None
    dense: bool = False
    """Whether every row sees every column: :math:`u = w` then."""

    @property
    def banded(self) -> bool:
        """Whether the work includes a band."""
        return self.product is not None or any(isinstance(node, BandNode) for node in self.nodes)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products."""
        each = [prod(s.extent for s in n.sums) for n in self.nodes if isinstance(n, BandNode)]
        each += [self.product.n.extent] if self.product else []
        return 2 * sum(each) * prod(x.extent for x in (*self.batch, self.row, self.along))


def match_row_nest(scope: Scope) -> RowNest | None:
    """Match *scope* as work on rows for which there is a special kernel; None if it is no such work.

    It must contain a band, or reduce its rows and use the results along them.
    """
    if scope.domain or any(x.lo for x in scope.traversals) or not scope.traversals:
        return None
    if scope.summations and scope.reduce != "sum":
        return None
    tries = (_band_times_matrix, _band) if scope.summations else (_rows,)
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
    """Match row values that see every column, times a matrix over the columns; None if there is no match.

    Traversals that are divided are split: the nest's scope then has another shape, and its elements the same order.
    """
    scope = split_divided_traversals(scope)
    if scope.domain or any(x.lo for x in scope.traversals) or not scope.summations or scope.reduce != "sum":
        return None
    for row in reversed(scope.traversals[:-1]):
        try:
            return _product(scope, RowPlaces.full(row, scope.summations[0]))
        except Refused:
            continue
    return None


def _band_times_matrix(scope: Scope, row: Iterator) -> RowNest:
    return _product(scope, RowPlaces.band(row, scope.summations[0]))


def _product(scope: Scope, places: RowPlaces) -> RowNest:
    """Match Σ_w of row values and a matrix over the columns."""
    if len(scope.summations) != 1 or scope.summations[0].lo:
        raise Refused("it sums over more than one iterator")
    n = scope.traversals[-1]
    right, left = split_factors(scope.body, (n,))
    if not right:
        raise Refused(f"no factor is {n.name}'s")
    moved = places.over_columns(mul(*map(inline_scopes, right)))
    rows = RowNodes(places)
    product = RowProduct(n, moved, column_support(moved, places.column))
    return _assemble(scope, rows, rows.scalar(mul(*left)), product)


def _band(scope: Scope, row: Iterator) -> RowNest:
    """Match a band product by itself."""
    rows = RowNodes(RowPlaces.band(row, scope.traversals[-1]))
    return _assemble(scope, rows, rows.band(scope.summations, scope.body))


def _rows(scope: Scope, row: Iterator) -> RowNest:
    along = scope.traversals[-1]
    if along.extent < MIN_ROW_EXTENT:
        raise Refused(f"rows have {along.extent} elements")
    rows = RowNodes(RowPlaces.band(row, along))
    return _assemble(scope, rows, rows.scalar(scope.body))


def _assemble(scope: Scope, rows: RowNodes, result: Scalar, product: RowProduct | None = None) -> RowNest:
    """Build the nest of *rows*; rows that are read once are computed by their reader."""
    places, nodes = rows.places, list(rows.nodes)
    for n, node in enumerate(nodes):
        often = [m for body in (*map(_body, nodes), result) for m in read_nodes(body)].count(n)
        if isinstance(node, RowNode) and often == 1:
            nodes = [_with_body(other, _inline_node(_body(other), n, node.body)) for other in nodes]
            result = _inline_node(result, n, node.body)
    used = _needed_nodes(nodes, result)
    number = {n: k for k, n in enumerate(used)}
    nodes = [_with_body(nodes[n], _renumber(_body(nodes[n]), number)) for n in used]
    result, scale = _split_scale(_renumber(result, number), places.along)
    batch = tuple(x for x in scope.traversals[:-1] if x != places.row)
    return RowNest(
        scope, batch, places.row, places.along, places.column, tuple(nodes), result, scale, product, places.dense
    )


def _needed_nodes(nodes: Sequence[RowNestNode], result: Scalar) -> list[int]:
    """Return the nodes that the result needs, in order."""
    found: set[int] = set()
    waiting = list(read_nodes(result))
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting += read_nodes(_body(nodes[n]))
    return sorted(found)


def _body(node: RowNestNode) -> Scalar:
    """Return the scalar that *node* computes from other nodes."""
    match node:
        case BandNode() | ColumnNode():
            return Const(0)
        case RowNode(body) | ReducedNode(_, body):
            return body


def _with_body(node: RowNestNode, body: Scalar) -> RowNestNode:
    return replace(node, body=body) if isinstance(node, RowNode | ReducedNode) else node


def _inline_node(body: Scalar, n: int, new: Scalar) -> Scalar:
    """Replace reads of node *n* in *body* by *new*; products stay flat."""
    called = node_name(n)
    return _map_factors(body, lambda a: new if isinstance(a.source, Tensor) and a.source.name == called else a)


def _renumber(body: Scalar, number: Mapping[int, int]) -> Scalar:
    def change(access: Access) -> Scalar:
        match access.source:
            case Tensor(called, shape) if called.startswith("#"):
                return Access(Tensor(node_name(number[int(called[1:])]), shape), access.index)
        return access

    return map_accesses(body, change)


def _map_factors(body: Scalar, change: Callable[[Access], Scalar]) -> Scalar:
    parts = factors(body)
    return mul(*(map_accesses(part, change) for part in parts)) if len(parts) > 1 else map_accesses(body, change)


def _split_scale(body: Scalar, along: Iterator) -> tuple[Scalar, Scalar]:
    """Return (the factors of *body* that depend on *along*, the product of the others)."""
    inside: list[Scalar] = []
    outside: list[Scalar] = []
    for factor in factors(body):
        if along not in iterators_of(factor):
            outside.append(factor)
            continue
        match factor:
            case Apply("/", (a, b)) if along not in iterators_of(b):
                more, scale = _split_scale(a, along)
                inside.append(more)
                outside += [scale, Apply("/", (Const(1), b))]
            case _:
                inside.append(factor)
    return mul(*inside), mul(*outside)
