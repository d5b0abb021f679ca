r"""Frame of the kernels of rows: buffers of tensors, loops over the batch, scalars, products in vector registers.

A product is a few rows times a few vectors, summed over one loop:

.. math::  C[r, x] \mathrel{+}= \sum_k a(r, k)\, b(k, x)

The sums are small buffers of default scope: TVM 0.27 allocates those on the stack, where LLVM promotes them to
registers (buffers of local scope go to the heap, of any size).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment, tvm_expression
from einnet_explore.ir import Iterator, Scalar, Scope, Table, Tensor

SUM_REGISTERS = 16
"""Registers for sums: twice the latency of a multiply-add, and half of all."""


@dataclass(frozen=True, slots=True)
class VectorTile:
    """*rows* rows of *vectors* vectors of *lanes* elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns."""
        return self.vectors * self.lanes


def vector_tile(columns: int, lanes: int) -> VectorTile:
    """Return the tile for *columns* columns: up to four vectors, and rows for the other registers."""
    vectors = min(4, -(-columns // lanes))
    vectors = max(v for v in (1, 2, 4) if v <= vectors)
    return VectorTile(SUM_REGISTERS // vectors, vectors, lanes)


def load_vector(buffer: TvmObject, at: TvmObject, lanes: int) -> TvmObject:
    """Return elements *at* … *at* + *lanes* - 1 of a buffer of one dimension."""
    return buffer.vload([at], f"float32x{lanes}")


def store_vector(buffer: TvmObject, value: TvmObject, at: TvmObject, lanes: int) -> None:
    """Store a vector from *at* on in a buffer of one dimension."""
    T.buffer_store(buffer, value, [tirx.Ramp(at, 1, lanes)])


def multiply_tile(
    tile: VectorTile,
    loop: Callable[[Callable[[TvmObject], None]], None],
    left: Callable[[int, TvmObject], TvmObject],
    right: Callable[[TvmObject, int], TvmObject],
    begin: Callable[[int, int], TvmObject] | None = None,
) -> list[TvmObject]:
    """Return the sums of *tile*, a buffer a row.

    ``loop(body)`` runs body(k); *left* (row, k) is a scalar, *right* (k, column) a vector.  Sums start at 0, or at the
    vectors *begin* (row, column).
    """
    zero = tirx.Broadcast(tirx.const(0.0, "float32"), tile.lanes)
    sums = [T.alloc_buffer((tile.width,), "float32") for _ in range(tile.rows)]
    starts = [v * tile.lanes for v in range(tile.vectors)]
    for row, total in enumerate(sums):
        for start in starts:
            store_vector(total, zero if begin is None else begin(row, start), start, tile.lanes)

    def step(k: TvmObject) -> None:
        for row, total in enumerate(sums):
            factor = tirx.Broadcast(left(row, k), tile.lanes)
            for start in starts:
                store_vector(total, load_vector(total, start, tile.lanes) + factor * right(k, start), start, tile.lanes)

    loop(step)
    return sums


def count_steps(extent: TvmObject, start: TvmObject | None = None) -> Callable[[Callable[[TvmObject], None]], None]:
    """Return the loop of a product: *extent* steps from *start* on."""

    def loop(body: Callable[[TvmObject], None]) -> None:
        with T.serial(extent) as k:
            body(k if start is None else k + start)

    return loop


def store_tile(
    tile: VectorTile, sums: list[TvmObject], buffer: TvmObject, place: Callable[[int, int], TvmObject]
) -> None:
    """Store the sums of *tile* into *buffer*, a vector at a time, at *place* (row, column)."""
    for row, total in enumerate(sums):
        for x in range(0, tile.width, tile.lanes):
            store_vector(buffer, load_vector(total, x, tile.lanes), place(row, x), tile.lanes)


def fill_buffer(buffer: TvmObject, value: float, extent: TvmObject, lanes: int, start: TvmObject | None = None) -> None:
    """Store *value* into *extent* elements of *buffer* from *start* on, in whole vectors."""
    with T.serial(extent // lanes) as c:
        at = c * lanes if start is None else start + c * lanes
        store_vector(buffer, tirx.Broadcast(tirx.const(value, "float32"), lanes), at, lanes)


def fold_vector(buffer: TvmObject, lanes: int, combine: Callable[[TvmObject, TvmObject], TvmObject]) -> TvmObject:
    """Return the *lanes* elements of *buffer* combined, half by half; the buffer is overwritten."""
    while lanes > 2:
        lanes //= 2
        store_vector(buffer, combine(load_vector(buffer, 0, lanes), load_vector(buffer, lanes, lanes)), 0, lanes)
    return combine(buffer[0], buffer[1])


NodeReader = Callable[..., TvmObject]

MAX_BLOCK_ROWS = 64
"""Rows of a block, at most."""


def rows_function(
    nest: RowNest, inputs: Mapping[str, tuple[int, ...]], write: Callable[[Mapping[str, TvmObject], TvmObject], None]
) -> TvmObject:
    """Return the PrimFunc of *nest* from *inputs* (shapes by name); ``write(buffers, result)`` writes its body."""
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        places = {
            tensor: T.match_buffer(T.arg(f"t{n}", T.handle()), shape, "float32")
            for n, (tensor, shape) in enumerate(inputs.items())
        }
        result = T.match_buffer(T.arg("y", T.handle()), nest.scope.shape, "float32")
        T.func_attr({"tir.noalias": True})
        write(places, result)
    return builder.get()


@dataclass
class RowKernel:
    """A kernel of *nest* that reads the buffers *places* and writes *result*."""

    nest: RowNest
    places: Mapping[str, TvmObject]
    result: TvmObject
    threads: int
    machine: Machine

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.machine.lanes

    @property
    def batches(self) -> int:
        """Elements of the batch."""
        return prod(x.extent for x in self.nest.batch)

    def loop(self, extent: int) -> AbstractContextManager[TvmObject]:
        """Return a loop, parallel if there are several threads."""
        return T.parallel(extent) if self.threads > 1 else T.serial(extent)  # type: ignore[no-any-return]

    def over_batch(self, batch: TvmObject) -> dict[Iterator, TvmObject]:
        """Return the iterators of the batch for its flat index."""
        return mixed_radix_split(self.nest.batch, batch)

    def scalar(self, body: Scalar, env: Environment, nodes: Mapping[str, NodeReader] | None = None) -> TvmObject:
        """Return *body* for iterators of the values *env*; *nodes* read the values of nodes."""

        def node_reader(source: Tensor | Table | Scope) -> NodeReader:
            match source:
                case Tensor(called) if nodes and called in nodes:
                    return nodes[called]
                case Tensor(called):
                    return lambda *at: self.places[called][at]
            raise TypeError(f"{source!r} is no tensor")

        return tvm_expression(body, env, node_reader, "float32")


def mixed_radix_split(group: tuple[Iterator, ...], number: TvmObject) -> dict[Iterator, TvmObject]:
    """Return the values of the iterators of *group* for their flat index *number*."""
    out: dict[Iterator, TvmObject] = {}
    for x in reversed(group):
        out[x] = number % x.extent
        number = number // x.extent
    return out
