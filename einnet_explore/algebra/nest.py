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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from einnet_explore.algebra.guarding import guard
from einnet_explore.algebra.substitute import rename, substitute
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

COLUMNS = 64
"""Columns are counted in so many: no tile is wider."""

LEAST_ROW = 4
"""Shorter rows fill no vector."""


class Unfit(Exception):
    """Why a scope is no work on rows."""


@dataclass(frozen=True, slots=True)
class Band:
    """Row values :math:`\\sum_k left(b, m, k) \\cdot right(b, u, k)` at :math:`u = m + w`.

    *right* is 0 outside *support*, a half-open range of `u`.
    """

    sums: tuple[Iterator, ...]
    left: Scalar
    right: Scalar
    support: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Column:
    """Row values that depend on the column alone: :math:`right(b, u)` at :math:`u = m + w`."""

    right: Scalar


@dataclass(frozen=True, slots=True)
class Row:
    """Row values, element by element."""

    body: Scalar


@dataclass(frozen=True, slots=True)
class Reduced:
    """One value a row: *body* reduced along it by the monoid *reduce*."""

    reduce: str
    body: Scalar


Node: TypeAlias = "Band | Column | Row | Reduced"


@dataclass(frozen=True, slots=True)
class Product:
    """The result is the sum over `w` of the row values and *right* (b, u, n) at :math:`u = m + w`."""

    n: Iterator
    right: Scalar
    support: tuple[int, int]


@dataclass(frozen=True)
class Nest:
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
    product: Product | None = None

    @property
    def banded(self) -> bool:
        """Whether it holds a band."""
        return self.product is not None or any(isinstance(node, Band) for node in self.nodes)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the band products."""
        each = [prod(s.extent for s in n.sums) for n in self.nodes if isinstance(n, Band)]
        each += [self.product.n.extent] if self.product else []
        return 2 * sum(each) * prod(x.extent for x in (*self.batch, self.row, self.along))


def name(n: int) -> str:
    """What scalars call node *n*."""
    return f"#{n}"


def nest(scope: Scope) -> Nest | None:
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
            except Unfit:
                continue
            if found.banded:
                return found
    if scope.summations or len(scope.traversals) < 2:
        return None
    try:
        plain = _rows(scope, scope.traversals[-2])
    except Unfit:
        return None
    return plain if any(isinstance(n, Reduced) for n in plain.nodes) else None


def _product(scope: Scope, row: Iterator) -> Nest:
    """Σ_w of row values and what is read along a band."""
    if len(scope.summations) != 1 or scope.summations[0].lo:
        raise Unfit("it sums over more than one iterator")
    (along,), n = scope.summations, scope.traversals[-1]
    batch = tuple(x for x in scope.traversals[:-1] if x != row)
    column = _column(row, along)
    right = [f for f in factors(scope.body) if n in _iterators(f)]
    left = [f for f in factors(scope.body) if f not in right]
    if not right or len(left) + len(right) != len(factors(scope.body)):
        raise Unfit(f"no factor is {n.name}'s")
    banded = _banded(mul(*map(_flat, right)), row, along, column)
    rows = _Rows(row, along, column)
    product = Product(n, banded, _support(banded, column))
    return _finished(Nest(scope, batch, row, along, column, (), rows.scalar(mul(*left)), Const(1), product), rows)


def _band(scope: Scope, row: Iterator) -> Nest:
    """A band product by itself."""
    along = scope.traversals[-1]
    batch = tuple(x for x in scope.traversals[:-1] if x != row)
    rows = _Rows(row, along, _column(row, along))
    result = rows.band(scope.summations, scope.body)
    return _finished(Nest(scope, batch, row, along, rows.column, (), result, Const(1)), rows)


def _rows(scope: Scope, row: Iterator) -> Nest:
    along = scope.traversals[-1]
    if along.extent < LEAST_ROW:
        raise Unfit(f"rows have {along.extent} elements")
    batch = tuple(x for x in scope.traversals[:-1] if x != row)
    rows = _Rows(row, along, _column(row, along))
    return _finished(Nest(scope, batch, row, along, rows.column, (), rows.scalar(scope.body), Const(1)), rows)


def _column(row: Iterator, along: Iterator) -> Iterator:
    return Iterator("u", 0, -(-(row.extent + along.extent - 1) // COLUMNS) * COLUMNS)


@dataclass
class _Rows:
    """The nodes that have been met so far."""

    row: Iterator
    along: Iterator
    column: Iterator
    nodes: list[Node] = field(default_factory=list)

    def scalar(self, body: Scalar) -> Scalar:
        """*body*, over batch, row and along, with what it reads of scopes made nodes."""
        return map_accesses(body, self._access)

    def _access(self, access: Access) -> Scalar:
        match access.source:
            case Tensor():
                return self._read(access)
            case Table():
                raise Unfit("coefficients of an algorithm are read")
            case Scope() as inner:
                return guard(access.index, inner.box, self._scope(inner, access.index), inner.value)

    def _read(self, access: Access) -> Scalar:
        try:
            return self._node(Column(_banded(access, self.row, self.along, self.column)))
        except Unfit:
            return access

    def _scope(self, inner: Scope, index: tuple[Index, ...]) -> Scalar:
        used = {x.name for i in index for x in i.iterators} | {self.row.name, self.along.name, self.column.name}
        inner = rename(inner, used)
        at: dict[Iterator, IndexLike] = dict(zip(inner.traversals, index, strict=True))
        body = substitute(inner.body, at)
        if inner.domain:
            raise Unfit("a nested scope has a domain")
        if not inner.summations:
            found = self.scalar(body)
            if isinstance(found, Access | Const) or self.along not in _iterators(found):
                return found
            return self._node(Row(found))
        if self.along in _iterators(body):
            if inner.reduce != "sum":
                raise Unfit(f"a nested scope reduces by {inner.reduce} at each place of a row")
            return self.band(inner.summations, body)
        if len(inner.summations) != 1 or inner.summations[0].lo or inner.summations[0].extent != self.along.extent:
            raise Unfit("a nested reduction is not along the row")
        return self._node(Reduced(inner.reduce, self.scalar(substitute(body, {inner.summations[0]: self.along}))))

    def band(self, sums: tuple[Iterator, ...], body: Scalar) -> Scalar:
        """Σ over *sums* of *body* as a band; raises Unfit where it is none."""
        right = [f for f in factors(body) if self.along in _iterators(f)]
        left = [f for f in factors(body) if f not in right]
        if len(left) + len(right) != len(factors(body)) or any(s.lo for s in sums):
            raise Unfit("a factor stands twice")
        banded = _banded(mul(*map(_flat, right)), self.row, self.along, self.column)
        support = _support(banded, self.column)
        return self._node(Band(sums, mul(*map(_flat, left)), banded, support))

    def _node(self, node: Node) -> Scalar:
        if node not in self.nodes:
            self.nodes.append(node)
        n = self.nodes.index(node)
        return (
            Tensor(name(n), ())[()]
            if isinstance(node, Reduced)
            else Tensor(name(n), (self.along.extent,))[(self.along,)]
        )


def _finished(nest: Nest, rows: _Rows) -> Nest:
    """*nest* with the nodes of *rows*, less those rows that are read once: their reader computes them itself."""
    result, nodes = nest.result, list(rows.nodes)
    for n, node in enumerate(nodes):
        often = [m for body in (*map(_body, nodes), result) for m in reads(body)].count(n)
        if isinstance(node, Row) and often == 1:
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
    waiting = list(reads(result))
    while waiting:
        n = waiting.pop()
        if n not in found:
            found.add(n)
            waiting += reads(_body(nodes[n]))
    return sorted(found)


def _body(node: Node) -> Scalar:
    """What *node* computes from other nodes."""
    match node:
        case Band() | Column():
            return Const(0)
        case Row(body) | Reduced(_, body):
            return body


def _with_body(node: Node, body: Scalar) -> Node:
    return replace(node, body=body) if isinstance(node, Row | Reduced) else node


def _put(body: Scalar, n: int, new: Scalar) -> Scalar:
    """*body* with what it reads of node *n* replaced; products stay flat."""
    called = name(n)
    return _mapped(body, lambda a: new if isinstance(a.source, Tensor) and a.source.name == called else a)


def _renumbered(body: Scalar, number: Mapping[int, int]) -> Scalar:
    def change(access: Access) -> Scalar:
        match access.source:
            case Tensor(called, shape) if called.startswith("#"):
                return Access(Tensor(name(number[int(called[1:])]), shape), access.index)
        return access

    return map_accesses(body, change)


def _mapped(body: Scalar, change: Callable[[Access], Scalar]) -> Scalar:
    parts = factors(body)
    return mul(*(map_accesses(part, change) for part in parts)) if len(parts) > 1 else map_accesses(body, change)


def _flat(body: Scalar) -> Scalar:
    """*body* without nested scopes; raises Unfit where one of them sums."""

    def flat(access: Access) -> Scalar:
        match access.source:
            case Scope(traversals, (), inner, domain=()) as scope:
                at: Mapping[Iterator, IndexLike] = dict(zip(traversals, access.index, strict=True))
                return guard(access.index, scope.box, _flat(substitute(inner, at)), scope.value)
            case Scope():
                raise Unfit("an operand is computed by a sum")
            case Table():
                raise Unfit("coefficients of an algorithm are read")
        return access

    return map_accesses(body, flat)


def _banded(body: Scalar, row: Iterator, along: Iterator, column: Iterator) -> Scalar:
    """*body* over *column* in place of row + along; raises Unfit where it depends on more than their sum."""
    moved = substitute(body, {row: as_index(column) - along})
    left = set(_iterators(moved))
    if along in left or row in left or column not in left:
        raise Unfit(f"{body!r} does not depend on {row.name} + {along.name} alone")
    return moved


def _support(body: Scalar, column: Iterator) -> tuple[int, int]:
    """A range of *column* outside which *body* is 0."""
    lo, hi = column.lo, column.hi
    match body:
        case Access(source, index) if source.value == 0:
            for i, (first, last) in zip(index, source.box, strict=True):
                lo, hi = _meet((lo, hi), _where(i, column, first, last))
        case Apply("*", args):
            for arg in args:
                lo, hi = _meet((lo, hi), _support(arg, column))
        case Apply("where", (Compare(op, left, right), inner, Const(0))):
            lo, hi = _support(inner, column)
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


def _apart(body: Scalar, along: Iterator) -> tuple[Scalar, Scalar]:
    """(the factors of *body* that depend on *along*, the product of the others)."""
    inside: list[Scalar] = []
    outside: list[Scalar] = []
    for factor in factors(body):
        if along not in _iterators(factor):
            outside.append(factor)
            continue
        match factor:
            case Apply("/", (a, b)) if along not in _iterators(b):
                more, scale = _apart(a, along)
                inside.append(more)
                outside += [scale, Apply("/", (Const(1), b))]
            case _:
                inside.append(factor)
    return mul(*inside), mul(*outside)


def _iterators(body: Scalar) -> Iterable[Iterator]:
    """Every iterator that the indices of *body* name; nested scopes' own are theirs."""
    match body:
        case Access(_, index):
            return tuple(x for i in index for x in i.iterators)
        case Compare(_, left, right):
            return (*left.iterators, *right.iterators)
        case Apply(args=args):
            return tuple(x for a in args for x in _iterators(a))
        case Const():
            return ()


def reads(body: Scalar) -> Iterable[int]:
    """The numbers of the nodes that *body* reads."""
    for access in accesses(body):
        if isinstance(access.source, Tensor) and access.source.name.startswith("#"):
            yield int(access.source.name[1:])
