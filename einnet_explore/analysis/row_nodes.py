"""What work on rows is made of: band products, what depends on a column alone, rows, reductions along them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from einnet_explore.analysis.indices import guard, iterators_of
from einnet_explore.analysis.products import split_factors
from einnet_explore.analysis.substitution import rename_iterators, substitute
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
    map_accesses,
    mul,
)
from einnet_explore.support.errors import Refused


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
    """Row values, element by element."""

    body: Scalar


@dataclass(frozen=True, slots=True)
class ReducedNode:
    """One value a row: *body* reduced along it by the monoid *reduce*."""

    reduce: str
    body: Scalar


Node: TypeAlias = "BandNode | ColumnNode | RowNode | ReducedNode"


def node_name(n: int) -> str:
    """What scalars call node *n*."""
    return f"#{n}"


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Where the elements of a row stand: at the columns *row* + *along* of a band, or at *along* where all see all."""

    row: Iterator
    along: Iterator
    column: Iterator
    dense: bool = False

    @property
    def names(self) -> set[str]:
        """The names that nothing else may have."""
        return {self.row.name, self.along.name, self.column.name}

    def moved(self, body: Scalar) -> Scalar:
        """*body* over *column*; raises Refused where it depends on more of a row and a place in it."""
        to = {self.along: as_index(self.column)} if self.dense else {self.row: as_index(self.column) - self.along}
        moved = substitute(body, to)
        left = set(iterators_of(moved))
        if self.along in left or self.row in left or self.column not in left:
            on = self.along.name if self.dense else f"{self.row.name} + {self.along.name}"
            raise Refused(f"{body!r} does not depend on {on} alone")
        return moved


@dataclass
class RowNodes:
    """The nodes that have been met so far."""

    places: RowPlaces
    nodes: list[Node] = field(default_factory=list)

    def scalar(self, body: Scalar) -> Scalar:
        """*body*, over batch, row and along, with what it reads of scopes made nodes."""
        return map_accesses(body, self._access)

    def _access(self, access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return self._read(access)
            case Table():
                raise Refused("coefficients of an algorithm are read")
            case Scope() as inner:
                return guard(access.index, inner.box, self._scope(inner, access.index), inner.value)

    def _read(self, access: Access) -> Scalar:
        try:
            return self._node(ColumnNode(self.places.moved(access)))
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
        """Σ over *sums* of *body* as a band; raises Refused where it is none."""
        right, left = split_factors(body, (self.places.along,))
        if started := [s for s in sums if s.lo]:
            raise Refused(f"the summation {started[0].name} starts at {started[0].lo}, expected 0")
        moved = self.places.moved(mul(*map(inline_scopes, right)))
        return self._node(
            BandNode(sums, mul(*map(inline_scopes, left)), moved, column_support(moved, self.places.column))
        )

    def _node(self, node: Node) -> Scalar:
        if node not in self.nodes:
            self.nodes.append(node)
        n = self.nodes.index(node)
        return (
            Tensor(node_name(n), ())[()]
            if isinstance(node, ReducedNode)
            else Tensor(node_name(n), (self.places.along.extent,))[(self.places.along,)]
        )


def inline_scopes(body: Scalar) -> Scalar:
    """*body* without nested scopes; raises Refused where one of them sums."""

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
    """A range of *column* outside which *body* is 0."""
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
    """The values of *column* for which ``first <= index < last`` may hold."""
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
    """The numbers of the nodes that *body* reads."""
    for access in accesses(body):
        if isinstance(access.source, Tensor) and access.source.name.startswith("#"):
            yield int(access.source.name[1:])
