r"""ONNX values with one dimension for each iterator: arithmetic, indices, comparisons, and tensor accesses.

Their nodes have fresh names; equal nodes and constants are shared, and operators without effect are omitted.

An index or comparison of one iterator is a constant table; one of several iterators is computed by integer arithmetic.

An access moves as little data as its structure allows.  First the dimensions of its source are made independent:

* one dimension read at :math:`d\,a + b`, :math:`0 \le b < d`, becomes two, read at `a` and at `b`;
* dimensions that share an iterator become one, read at the flat address (which often is a plain iterator again).

Then a dimension read at :math:`k\,x + c` is sliced, and any other dimension is gathered by a table over its iterators.
Out-of-range elements come from one ``Pad`` of the source; tables are clamped to its first padding element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from einnet_explore.ir import (
    COMPARISONS,
    Access,
    Compare,
    Index,
    Iterator,
    Padding,
    Quotient,
    Remainder,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
)

Array = np.ndarray

REDUCTION_OPERATORS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}

AXES_INPUT_SINCE_OPSET = {"ReduceSum": 13, "ReduceProd": 18, "ReduceMax": 18, "ReduceMin": 18}
"""The first operator set in which the axes of each reduction are an input; in older ones they are an attribute."""


@dataclass
class NodeBuilder:
    """Nodes of a local function or of a part of a graph, for elements of *dtype* in operator set *opset*.

    New values are named *prefix* + a number.
    """

    prefix: str
    dtype: np.dtype
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _made: dict[object, str] = field(default_factory=dict)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Return the result of *op*, added as a node unless an equal node exists."""
        key = (op, inputs, tuple(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = name = self._name()
            self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return self._made[key]

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """Return a constant tensor."""
        tensor = np.ascontiguousarray(np.asarray(array, dtype)).reshape(np.shape(array))
        key = (tensor.dtype.str, tensor.shape, tensor.tobytes())
        if key not in self._made:
            self._made[key] = name = self._name()
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(tensor)))
        return self._made[key]

    def number(self, value: float) -> str:
        """Return a constant scalar of type ``dtype``."""
        return self.constant(value, self.dtype)

    def reshape(self, name: str, old: Sequence[int], new: Sequence[int]) -> str:
        """Return *name* of shape *old* reshaped to *new*."""
        return name if tuple(old) == tuple(new) else self.emit("Reshape", name, self.constant(list(new)))

    def transpose(self, name: str, order: Sequence[int]) -> str:
        """Return *name* with its dimensions permuted by *order*."""
        return name if list(order) == sorted(order) else self.emit("Transpose", name, perm=tuple(order))

    def pad(self, name: str, pads: Sequence[tuple[int, int]], value: float) -> str:
        """Return *name* padded with *value*."""
        if not any(map(any, pads)):
            return name
        ends = [before for before, _ in pads] + [after for _, after in pads]
        return self.emit("Pad", name, self.constant(ends), self.number(value))

    def slice(self, name: str, shape: Sequence[int], runs: Sequence[tuple[int, int, int]]) -> str:
        """Return *name* sliced to the *runs* (start, step, count) of its dimensions."""
        cut = [d for d, (n, run) in enumerate(zip(shape, runs, strict=True)) if run != (0, 1, n)]
        if not cut:
            return name
        starts = [runs[d][0] for d in cut]
        steps = [runs[d][1] for d in cut]
        # An end before the first element is a large negative number, since -1 is the last element.
        ends = [
            end if end >= 0 else -shape[d] - 1
            for d, end in ((d, runs[d][0] + runs[d][1] * (runs[d][2] - 1) + np.sign(runs[d][1])) for d in cut)
        ]
        return self.emit("Slice", name, *map(self.constant, (starts, ends, cut, steps)))

    def reduce(self, monoid: str, name: str, axes: Iterable[int]) -> str:
        """Return *name* reduced over *axes*, which are removed."""
        kept, op = list(axes), REDUCTION_OPERATORS[monoid]
        if not kept:
            return name
        if self.opset >= AXES_INPUT_SINCE_OPSET[op]:
            return self.emit(op, name, self.constant(kept), keepdims=0)
        return self.emit(op, name, axes=tuple(kept), keepdims=0)

    def finish(self, name: str, output: str, existing: Iterable[str]) -> None:
        """Rename the value *name* to *output*, or copy it if it is one of *existing*, which keep their names."""
        if name in existing:
            self.nodes.append(helper.make_node("Identity", [name], [output]))
            return
        for node in self.nodes:
            for names in (node.input, node.output):
                for n, old in enumerate(names):
                    if old == name:
                        names[n] = output

    def _name(self) -> str:
        return f"{self.prefix}{len(self._made)}"


@dataclass(frozen=True, slots=True)
class GridValue:
    """An ONNX value with one dimension for each iterator of *over*, in this order."""

    name: str
    over: tuple[Iterator, ...]


def tabulate_index(index: Index, over: Sequence[Iterator]) -> np.typing.NDArray[np.int64]:
    """Return the values of *index* over a grid with an axis for each of *over*."""

    def at(x: Iterator) -> int:
        return np.arange(x.lo, x.hi).reshape([-1 if y == x else 1 for y in over])  # type: ignore[return-value]

    found = np.asarray(index.evaluate(at), np.int64)
    return found if found.ndim else found.reshape((1,) * len(over))


def emit_index(body: NodeBuilder, index: Index, over: tuple[Iterator, ...]) -> str:
    """Return an index of several iterators as the sum of tables of its atoms."""
    parts = [Index(((atom, k),)) for atom, k in index.terms]
    parts[0] = parts[0] + index.const
    return emit_sum(body, [_atom(body, part, over) for part in parts])


def _atom(body: NodeBuilder, part: Index, over: tuple[Iterator, ...]) -> str:
    if len(part.iterators) <= 1:
        return body.constant(tabulate_index(part, over))
    (atom, k), const = part.terms[0], part.const
    match atom:
        case Quotient(numerator, d):
            op = "Div"
        case Remainder(numerator, d):
            op = "Mod"
        case Iterator():
            raise AssertionError(f"{part!r} names one iterator only")
    # ONNX rounds quotients towards zero, so a multiple of the divisor makes the numerator non-negative.
    lift = numerator.lift(d)
    name = body.emit(op, emit_index(body, numerator + lift * d, over), body.constant(d))
    name = body.emit("Mul", name, body.constant(k)) if k != 1 else name
    rest = const - (k * lift if op == "Div" else 0)
    return body.emit("Add", name, body.constant(rest)) if rest else name


def emit_sum(body: NodeBuilder, names: list[str]) -> str:
    """Return the sum of the values *names*."""
    total = names[0]
    for name in names[1:]:
        total = body.emit("Add", total, name)
    return total


_COMPARE_OPS = {"<": "Less", "<=": "LessOrEqual", ">": "Greater", ">=": "GreaterOrEqual", "==": "Equal", "!=": "Equal"}


def emit_comparison(body: NodeBuilder, condition: Compare) -> GridValue:
    """Return *condition* over its iterators as booleans."""
    index = condition.left - condition.right
    over = index.iterators
    if len(over) <= 1:
        return GridValue(body.constant(COMPARISONS[condition.op](tabulate_index(index, over), 0), np.bool_), over)
    name = body.emit(_COMPARE_OPS[condition.op], emit_index(body, index, over), body.constant(0))
    return GridValue(body.emit("Not", name) if condition.op == "!=" else name, over)


@dataclass(frozen=True)
class ValueGrid:
    """Arithmetic in *body* on values over subsets of *iterators*."""

    body: NodeBuilder
    iterators: tuple[Iterator, ...]

    def constant(self, value: float) -> GridValue:
        """Return a constant."""
        return GridValue(self.body.number(value), ())

    def apply(self, op: str, *args: GridValue) -> GridValue:
        """Return the broadcast elementwise *op*, in the order of the largest argument if that has all iterators."""
        union = {x for a in args for x in a.over}
        widest = max(args, key=lambda a: prod(x.extent for x in a.over)).over
        over = widest if union <= set(widest) else tuple(x for x in self.iterators if x in union)
        return GridValue(self.body.emit(op, *(self.align(a, over) for a in args)), over)

    def align(self, value: GridValue, over: Sequence[Iterator]) -> str:
        """Return *value* transposed and reshaped to broadcast against the dimensions *over*."""
        name = self._transpose(value, [x for x in over if x in value.over])
        first = next((n for n, x in enumerate(over) if x in value.over), len(over))
        shape = [x.extent if x in value.over else 1 for x in over[first:]]
        return self.body.reshape(name, [x.extent for x in over if x in value.over], shape)

    def _transpose(self, value: GridValue, over: Sequence[Iterator]) -> str:
        return self.body.transpose(value.name, [value.over.index(x) for x in over])

    def total(self, monoid: str, value: GridValue, summed: Sequence[Iterator]) -> GridValue:
        """Return *value* reduced over its iterators in *summed*."""
        axes = [n for n, x in enumerate(value.over) if x in summed]
        return GridValue(self.body.reduce(monoid, value.name, axes), tuple(x for x in value.over if x not in summed))

    def contract(self, a: GridValue, b: GridValue, summed: Sequence[Iterator]) -> GridValue:
        """Return Σ a·b over *summed*: a batched matrix product, or elementwise if all iterators are shared."""
        a = self.total("sum", a, [x for x in summed if x not in b.over])
        b = self.total("sum", b, [x for x in summed if x not in a.over])
        inner = [x for x in a.over if x in summed]
        batch = [x for x in a.over if x in b.over and x not in inner]
        left = [x for x in a.over if x not in b.over]
        right = [x for x in b.over if x not in a.over]
        if not inner or not (left or right):
            return self.total("sum", self.apply("Mul", a, b), inner)
        name = self.body.emit("MatMul", self._matrix(a, batch, left, inner), self._matrix(b, batch, inner, right))
        over = (*batch, *left, *right)
        shape = _sizes(*([batch] if batch else []), left, right)
        return GridValue(self.body.reshape(name, shape, [x.extent for x in over]), over)

    def _matrix(self, value: GridValue, batch: list[Iterator], rows: list[Iterator], columns: list[Iterator]) -> str:
        order = [*batch, *rows, *columns]
        name = self._transpose(value, order)
        return self.body.reshape(name, [x.extent for x in order], _sizes(*([batch] if batch else []), rows, columns))


def _sizes(*groups: Sequence[Iterator]) -> list[int]:
    return [prod(x.extent for x in group) for group in groups]


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dimension of *extent* read at *index*; *clamped*: the index may exceed it, and its edges are padding."""

    extent: int
    index: Index
    clamped: bool = False
    table: tuple[str, tuple[Iterator, ...]] | None = None

    @property
    def iterators(self) -> tuple[Iterator, ...]:
        return self.table[1] if self.table else self.index.iterators

    @property
    def run(self) -> tuple[Iterator | None, int, int] | None:
        """(x, k, c) if the index is k·x + c, else None."""
        if self.table:
            return None
        match self.index:
            case Index((), c):
                return None, 1, c
            case Index(((Iterator() as x, k),), c):
                return x, k, c
        return None


def required_padding(bodies: Iterable[Scalar]) -> dict[Tensor | Table | Scope, Padding]:
    """Return the padding of every source that all accesses in *bodies* need, so that one ``Pad`` serves them all."""
    needed: dict[Tensor | Table | Scope, Padding] = {}
    for body in bodies:
        for access in accesses(body):
            own = tuple(_padding_of(i, box) for i, box in zip(access.index, access.source.box, strict=True))
            allowed = access.source.padding or ((0, 0),) * len(own)
            own = tuple(
                # Guarded accesses may exceed the padding in branches that are not taken; one element stands for those.
                (min(a, max(p, 1)), min(b, max(q, 1)))
                for (a, b), (p, q) in zip(own, allowed, strict=True)
            )
            old = needed.get(access.source, ((0, 0),) * len(own))
            needed[access.source] = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(own, old, strict=True))
    return needed


def _padding_of(index: Index, box: tuple[int, int]) -> tuple[int, int]:
    lo, hi = index.bounds
    before, after = max(0, box[0] - lo), max(0, hi + 1 - box[1])
    if _Dim(0, index).run is None:
        return min(before, 1), min(after, 1)
    return before, after


def emit_access(body: NodeBuilder, access: Access, source: str, pads: Padding) -> GridValue:
    """Return *access* of the value *source*, which is padded by *pads* first."""
    box, shape = access.source.box, access.source.shape
    name = body.pad(source, pads, access.source.value)
    dims = []
    for index, (lo, hi), (before, after) in zip(access.index, box, pads or ((0, 0),) * len(box), strict=True):
        at, extent = index - (lo - before), hi - lo + before + after
        first, last = at.bounds
        dims.append(_Dim(extent, at, first < 0 or last >= extent))
    name, dims = _separate_dimensions(body, name, dims)
    shape = tuple(d.extent for d in dims)
    name, shape = _slice(body, name, shape, dims, access.source.value)
    return _gather(body, name, shape, dims)


def _separate_dimensions(body: NodeBuilder, name: str, dims: list[_Dim]) -> tuple[str, list[_Dim]]:
    """Split and merge dimensions until no iterator occurs in two of them."""
    shape = tuple(d.extent for d in dims)
    groups: list[list[int]] = []
    for d, dim in enumerate(dims):
        touching = [g for g in groups if any(set(dims[e].iterators) & set(dim.iterators) for e in g)]
        groups = [g for g in groups if g not in touching]
        groups.append(sorted([d, *(e for g in touching for e in g)]))
    groups.sort()
    name = body.transpose(name, [d for g in groups for d in g])
    out: list[_Dim] = []
    for group in groups:
        out.extend(_split(_merge(body, [dims[d] for d in group])))
    return body.reshape(name, [shape[d] for g in groups for d in g], [d.extent for d in out]), out


def _merge(body: NodeBuilder, dims: list[_Dim]) -> _Dim:
    """Merge consecutive dimensions into one."""
    if len(dims) == 1:
        return dims[0]
    extent = prod(d.extent for d in dims)
    if not any(d.clamped for d in dims):
        flat = Index()
        for d in dims:
            flat = flat * d.extent + d.index
        return _Dim(extent, flat)
    parts: list[tuple[str, tuple[Iterator, ...]]] = []
    over = tuple(dict.fromkeys(x for d in dims for x in d.index.iterators))
    stride = extent
    for d in dims:
        stride //= d.extent
        parts.append((_table(body, d, over, stride), over))
    return _Dim(extent, Index(), table=(emit_sum(body, [name for name, _ in parts]), over))


def _split(dim: _Dim) -> list[_Dim]:
    """Split *dim* into dimensions that share no iterator, as far as its index allows."""
    if dim.table or dim.clamped or dim.run is not None:
        return [dim]
    for d in sorted({abs(k) for _, k in dim.index.terms} - {1}, reverse=True):
        high, low = dim.index // d, dim.index % d
        if dim.extent % d == 0 and high.terms and low.terms and not set(high.iterators) & set(low.iterators):
            return [*_split(_Dim(dim.extent // d, high)), *_split(_Dim(d, low))]
    return [dim]


def _slice(
    body: NodeBuilder, name: str, shape: tuple[int, ...], dims: list[_Dim], value: float
) -> tuple[str, tuple[int, ...]]:
    """Slice all dimensions read at k·x + c; elements beyond the edge, read under a guard, are *value*."""
    runs: list[tuple[int, int, int]] = []
    pads: list[tuple[int, int]] = []
    for n, dim in zip(shape, dims, strict=True):
        if (run := dim.run) is None:
            runs.append((0, 1, n))
            pads.append((0, 0))
            continue
        x, k, c = run
        lo, count = (x.lo, x.extent) if x else (0, 1)
        inside = [v for v in range(count) if 0 <= k * (lo + v) + c < n]
        if not inside:  # the access is never evaluated, so any element will do
            inside, c = [0], -k * lo
        first, last = inside[0], inside[-1]
        runs.append((k * (lo + first) + c, k if last > first else 1, last - first + 1))
        pads.append((first, count - 1 - last))
    name = body.slice(name, shape, runs)
    return body.pad(name, pads, value), tuple(
        run[2] + before + after for run, (before, after) in zip(runs, pads, strict=True)
    )


def _gather(body: NodeBuilder, name: str, shape: tuple[int, ...], dims: list[_Dim]) -> GridValue:
    """Gather the other dimensions by their tables, and drop dimensions without an iterator."""
    order: list[Iterator | None] = []
    extents: list[int] = []
    for n, dim in reversed(list(enumerate(dims))):
        if (run := dim.run) is not None:
            order.insert(0, run[0])
            extents.insert(0, shape[n])
            continue
        over = dim.iterators
        table = dim.table[0] if dim.table else _table(body, dim, over, 1)
        name = body.emit("Gather", name, table, axis=n)
        order[:0] = over
        extents[:0] = [x.extent for x in over]
    own = tuple(x for x in order if x is not None)
    return GridValue(body.reshape(name, extents, [x.extent for x in own]), own)


def _table(body: NodeBuilder, dim: _Dim, over: tuple[Iterator, ...], stride: int) -> str:
    """Return the indices of *dim* over the iterators *over*, clamped to the dimension, times *stride*."""
    if len(dim.index.iterators) <= 1:
        found = tabulate_index(dim.index, over)
        return body.constant((np.clip(found, 0, dim.extent - 1) if dim.clamped else found) * stride)
    name = emit_index(body, dim.index, over)
    if dim.clamped:
        name = body.emit("Max", body.emit("Min", name, body.constant(dim.extent - 1)), body.constant(0))
    return name if stride == 1 else body.emit("Mul", name, body.constant(stride))
