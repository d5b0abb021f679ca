r"""Columns that a term of the scores hides from rows, as a causal mask or one of padding does.

Let :math:`z = \sum_i c_i\, q_i \cdot k_i + t`, where `t` has no product.  Let :math:`t \le -10^{37}` in a column,
:math:`t \ge -10^{30}` in another one of the row, and :math:`|q_i|^2 |k_i|^2 < 10^{30}`.  Then the scores without `t`
are at most :math:`10^{15} \sum_i |c_i|` (Cauchy and Schwarz), and :math:`e^{z - M}` is 0 in float32 in the former
column.  If the values are finite, so is its share of the result.  The kernel tests all this at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.online_softmax import OnlineSoftmax
from einnet_explore.analysis.row_nest import BandNode, ColumnNode, RowNest, node_name, read_nodes
from einnet_explore.codegen.language.lowering import mixed_radix_split
from einnet_explore.codegen.rows.kernel import NodeReader, RowKernel, RowReader, VectorReader, band_depth
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment, fold_vector, load_vector, store_vector, tvm_constant
from einnet_explore.ir import Access, Apply, Compare, Const, Iterator, Scalar, Tensor, mul
from einnet_explore.support.lazy_modules import LazyModule

tirx, T = LazyModule("tvm.tirx"), LazyModule("tvm.tirx.script.builder.ir")

HIDDEN_SCORE = -1e37
"""Terms up to this one hide a column from a row in which another term is at least ``VISIBLE_SCORE``."""

VISIBLE_SCORE = -1e30

MAX_NORM_PRODUCT = 1e30
"""The square of the largest product of which scores are multiples."""

MAX_VALUE_NORM = 1e38
"""The sum of squares of values that are finite."""

MAX_SCORE_FACTOR = 1e12
"""The largest sum of factors of products in a score, which is at most 1e27 then without the hiding term."""


@dataclass(frozen=True, slots=True)
class _SplitScore:
    """A score as a multiple of products, by the sum *factor* of their absolute factors, and another *term*."""

    factor: float
    term: Scalar


def hiding_term(online: OnlineSoftmax) -> Scalar | None:
    """Return the term `t` of the scores; None if no column can be hidden, or scores have another form."""
    nest = online.nest
    if not nest.dense:
        return None
    found = _split(nest, online.score)
    if found is None or found.factor > MAX_SCORE_FACTOR or nest.along not in iterators_of(found.term):
        return None
    return found.term


def _split(nest: RowNest, score: Scalar) -> _SplitScore | None:
    numbers = tuple(read_nodes(score))
    if not any(isinstance(nest.nodes[n], BandNode) for n in numbers):
        return _SplitScore(0, score)
    match score:
        case Access(Tensor()):
            return _SplitScore(1, Const(0))
        case Apply("+", args):
            parts = [_split(nest, each) for each in args]
            found = [p for p in parts if p is not None]
            if len(found) < len(parts):
                return None
            # Terms are added in the order of the score: both are rounded alike.
            return _SplitScore(sum(p.factor for p in found), Apply("+", tuple(p.term for p in found)))
        case Apply("*", (Const(c), inner)) if (part := _split(nest, inner)) is not None:
            return _SplitScore(abs(c) * part.factor, mul(Const(c), part.term))
        case Apply("where", (Compare() as test, inner, Const(c))) if c <= HIDDEN_SCORE:
            part = _split(nest, inner)
            return part and replace(part, term=Apply("where", (test, part.term, Const(c))))
        case Apply("where", (Compare() as test, Const(c), inner)) if c <= HIDDEN_SCORE:
            part = _split(nest, inner)
            return part and replace(part, term=Apply("where", (test, Const(c), part.term)))
    return None


@dataclass(frozen=True)
class HiddenColumns:
    """The end of the columns that *term* does not hide from each *group* of rows, of blocks of *rows*."""

    kernel: RowKernel
    term: Scalar
    group: int
    rows: int

    @cached_property
    def groups(self) -> int:
        """Groups of a block; the last one may be smaller."""
        return -(-self.rows // self.group)

    @cached_property
    def blocks(self) -> int:
        """Blocks of rows."""
        return -(-self.kernel.nest.row.extent // self.rows)

    @cached_property
    def batch(self) -> tuple[Iterator, ...]:
        """The iterators of the batch on which the term depends."""
        nest = self.kernel.nest
        read = set(iterators_of(self.term))
        for n in read_nodes(self.term):
            node = nest.nodes[n]
            assert isinstance(node, ColumnNode)
            read |= set(iterators_of(node.right))
        return tuple(x for x in nest.batch if x in read)

    def write_ends(self) -> TvmObject:
        """Write the ends of all groups, for each element of ``batch``, each block, each group."""
        kernel, extent = self.kernel, self.kernel.nest.row.extent
        count = self.blocks * self.groups
        ends = T.alloc_buffer((prod(x.extent for x in self.batch) * count,), "int32")
        with kernel.loop(prod(x.extent for x in self.batch) * count) as at:
            env = mixed_radix_split(self.batch, at // count)
            first = T.bind(at % count // self.groups * self.rows + at % self.groups * self.group)
            T.buffer_store(ends, 0, [at])
            with T.serial(self.group) as r:
                end = self._find_end({**env, kernel.nest.row: T.bind(tirx.min(first + r, extent - 1))})
                T.buffer_store(ends, tirx.max(ends[at], end), [at])
        return ends

    def _find_end(self, env: Environment) -> TvmObject:
        """Return the end of the visible columns of the row of *env*; of all if none is, or the last one may be hidden.

        Vectors are read from the last one on, up to one with a column that is not hidden.
        """
        kernel, lanes, along = self.kernel, self.kernel.lanes, self.kernel.nest.along
        left, ends = T.alloc_buffer((1,), "int32"), T.alloc_buffer((lanes,), "int32")
        terms, end = T.alloc_buffer((lanes,)), T.alloc_buffer((1,), "int32")
        T.buffer_store(left, along.extent, [0])
        T.buffer_store(end, 0, [0])
        readers: dict[str, NodeReader] = {}
        for n in read_nodes(self.term):
            node = kernel.nest.nodes[n]
            assert isinstance(node, ColumnNode)
            readers[node_name(n)] = lambda w, right=node.right: kernel.at_column(right, env, w, along.extent)
        with T.While(tirx.all(left[0] > 0, end[0] == 0)):
            begin = T.bind(tirx.max(left[0] - lanes, 0))
            with T.vectorized(lanes) as x:
                T.buffer_store(terms, kernel.scalar(self.term, {**env, along: begin + x}, readers), [x])
                is_hidden = terms[x] <= tvm_constant(HIDDEN_SCORE)
                T.buffer_store(ends, tirx.Select(is_hidden, tirx.const(0, "int32"), begin + x + 1), [x])
            T.buffer_store(end, _largest(ends, lanes), [0])
            T.buffer_store(left, begin, [0])
        return tirx.Select(fold_vector(terms, lanes, "max") >= tvm_constant(VISIBLE_SCORE), end[0], along.extent)

    def is_any(self, ends: TvmObject, env: Environment, first: TvmObject | None = None) -> TvmObject:
        """Return whether columns are hidden from a group of an element of the batch, of the block from *first* on."""
        least = T.alloc_buffer((1,), "int32")
        T.buffer_store(least, self.kernel.nest.along.extent, [0])
        start = T.bind(self.start(env, 0 if first is None else first))
        with T.serial(self.blocks * self.groups if first is None else self.groups) as g:
            T.buffer_store(least, tirx.min(least[0], ends[start + g]), [0])
        return least[0] < self.kernel.nest.along.extent

    def start(self, env: Environment, first: TvmObject) -> TvmObject:
        """Return the place of the ends of the block of rows from *first* on."""
        flat = tirx.const(0, "int32")
        for x in self.batch:
            flat = flat * x.extent + env[x]
        return (flat * self.blocks + first // self.rows) * self.groups

    def band_norm(self, band: BandNode, packed: TvmObject) -> TvmObject:
        """Return the sum of the squares of the *packed* right operand of *band*."""
        lanes, width = self.kernel.lanes, 4 * self.kernel.tile.width
        tiles = -(-self.kernel.nest.along.extent // self.kernel.tile.width)
        count = tiles * band_depth(band) * self.kernel.tile.width // width
        return sum_squares(count, width, lanes, lambda r: lambda x: load_vector(packed, r * width + x, lanes))

    def row_norm(self, band: BandNode, left: RowReader, rows: TvmObject) -> TvmObject:
        """Return the sum of the squares of *rows* rows of the *left* operand of *band*."""
        lanes, depth = self.kernel.lanes, band_depth(band)
        return sum_squares(rows, depth, lanes, lambda r: lambda x: left(r)(x, lanes))

    def value_norm(self, values: VectorReader) -> TvmObject:
        """Return the sum of the squares of *values*."""
        kernel = self.kernel
        return sum_squares(kernel.nest.along.extent, kernel.width, kernel.lanes, lambda r: lambda x: values(r, x))


def _largest(ends: TvmObject, lanes: int) -> TvmObject:
    """Return the largest of *lanes* integers; the buffer is overwritten."""
    while lanes > 1:
        lanes //= 2
        one, other = (ends.vload([at], f"int32x{lanes}" if lanes > 1 else "int32") for at in (0, lanes))
        T.buffer_store(ends, tirx.max(one, other), [tirx.Ramp(0, 1, lanes) if lanes > 1 else 0])
    return ends[0]


def sum_squares(
    count: TvmObject, width: int, lanes: int, load: Callable[[TvmObject], Callable[[int], TvmObject]]
) -> TvmObject:
    """Return the sum of the squares of *count* rows of *width* elements; ``load(row)(column)`` is a vector."""
    sums = T.alloc_buffer((width,))
    for x in range(0, width, lanes):
        store_vector(sums, tirx.Broadcast(tvm_constant(0), lanes), x, lanes)
    with T.serial(count) as r:
        row = load(r)
        for x in range(0, width, lanes):
            value = T.bind(row(x))
            store_vector(sums, load_vector(sums, x, lanes) + value * value, x, lanes)
    total = load_vector(sums, 0, lanes)
    for x in range(lanes, width, lanes):
        total = total + load_vector(sums, x, lanes)
    store_vector(sums, total, 0, lanes)
    return fold_vector(sums, lanes, "sum")
