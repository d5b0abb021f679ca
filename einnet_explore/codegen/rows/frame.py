"""Frame of the kernels of rows: buffers of tensors, loops over the batch, scalars."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from einnet_explore.analysis.row_nest import RowNest
from einnet_explore.codegen.machine import Machine
from einnet_explore.codegen.tvm import TvmObject
from einnet_explore.codegen.tvm.emission import Environment, tvm_expression
from einnet_explore.ir import Iterator, Scalar, Scope, Table, Tensor

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

        def read(source: Tensor | Table | Scope) -> NodeReader:
            match source:
                case Tensor(called) if nodes and called in nodes:
                    return nodes[called]
                case Tensor(called):
                    return lambda *at: self.places[called][at]
            raise TypeError(f"{source!r} is no tensor")

        return tvm_expression(body, env, read, "float32")


def mixed_radix_split(group: tuple[Iterator, ...], number: TvmObject) -> dict[Iterator, TvmObject]:
    """Return the values of the iterators of *group* for their flat index *number*."""
    out: dict[Iterator, TvmObject] = {}
    for x in reversed(group):
        out[x] = number % x.extent
        number = number // x.extent
    return out
