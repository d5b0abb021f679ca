"""Statements and kernels of the kernel language: frozen values that describe one thread."""

from __future__ import annotations

import typing
from math import prod
from typing import TypeAlias

from einnet_explore.codegen.language.types import F16, F32
from einnet_explore.codegen.language.values import Array, Expr, Literal, Var
from einnet_explore.ir.node import Node, node
from einnet_explore.support.errors import Refused

PACK_BYTES = 16
"""The widest transfer of one instruction: 128 bits."""


@node
class Declare(Node):
    """A variable of this thread, with its initial value or None."""

    var: Var
    value: Expr | None = None


@node
class LocalArray(Node):
    """A ``private`` array of this thread, or a ``shared`` one of the block (only at a kernel's top level)."""

    array: Array


@node
class Assign(Node):
    """var = value."""

    var: Var
    value: Expr


@node
class Store(Node):
    """array[index] = value; half precision rounds to the nearest, ties to even."""

    array: Array
    index: Expr
    value: Expr


@node
class Copy(Node):
    """*size* neighbouring elements from *source* at *read* to *target* at *write*, in one transfer if possible.

    One transfer takes 2, 4, 8 or 16 bytes; the caller promises that both ends are multiples of that. Other sizes are
    copied element by element. *asynchronous*: from global to shared memory, 4, 8 or 16 bytes; the data have arrived
    after a ``Barrier`` of *copies*. GPUs from sm_80 on copy without registers.
    """

    target: Array
    write: Expr
    source: Array
    read: Expr
    size: int
    asynchronous: bool = False

    @property
    def whole(self) -> bool:
        """True if one instruction copies all elements."""
        size = self.size * self.target.kind.size
        return self.size > 1 and size <= PACK_BYTES and size & (size - 1) == 0


@node
class LoadPair(Node):
    """Declare *left* and *right*, float32, as two neighbouring halves of *array*, from the even *index* on."""

    left: Var
    right: Var
    array: Array
    index: Expr


@node
class StorePair(Node):
    """Two neighbouring halves of *array*, from the even *index* on, rounded to the nearest, ties to even."""

    array: Array
    index: Expr
    left: Expr
    right: Expr


@node
class PairOperation(Node):
    """target[index], target[index+1] = a op b for two neighbouring halves; *op* is ``+``, ``-`` or ``*``.

    One operation of halves, rounded once, is the same in single precision and rounded (24 ≥ 2·11 + 2 bits).
    """

    op: str
    target: Array
    index: Expr
    left: Array
    right: Array


@node
class StoreTransposed(Node):
    """target[write + j·stride + i] = tile[i·side + j] for all i, j < side: a tile transposed in registers.

    *tile* is a private array of side² elements; side is 4, 8 or 16. *streamed*: whole lines bypass the caches where
    the machine can; other threads of the grid see them only after the kernel has ended.
    """

    target: Array
    write: Expr
    stride: int
    tile: Array
    side: int
    streamed: bool = False


@node
class Prefetch(Node):
    """A hint that the line of *array* with *index*, which may be outside, is read or written soon."""

    array: Array
    index: Expr
    write: bool = False


@node
class For(Node):
    """for (var = start; var < stop; var += step), *step* positive; *unroll* where the trip count is known.

    *simd*: iterations are independent except for reductions.  *vector*: all iterations are one vector, which compilers
    would split otherwise.
    """

    var: Var
    start: Expr
    stop: Expr
    step: Expr
    body: tuple[Statement, ...]
    unroll: bool = False
    simd: bool = False
    vector: bool = False


@node
class If(Node):
    """if (condition) then, else orelse."""

    condition: Expr
    then: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()


@node
class Barrier(Node):
    """Wait for all threads of the block; each then sees the others' writes to shared and global memory.

    *copies*: wait for asynchronous copies as well.
    """

    copies: bool = False


@node
class Comment(Node):
    """A comment in the emitted text; only letters, digits and a few signs are kept."""

    text: str


Statement: TypeAlias = (
    Declare
    | LocalArray
    | Assign
    | Store
    | Copy
    | LoadPair
    | StorePair
    | PairOperation
    | StoreTransposed
    | Prefetch
    | For
    | If
    | Barrier
    | Comment
)


LoopHint: TypeAlias = typing.Literal["unroll", "simd", "vector"]


def counted_loop(var: Var, stop: int | Expr, *body: Statement, hint: LoopHint | None = None) -> For:
    """for var in 0 … stop-1; *hint* sets the flag of ``For`` with that name."""
    end = stop if isinstance(stop, Expr) else Literal(stop, var.kind)
    vector = hint == "vector"
    return For(
        var, Literal(0, var.kind), end, Literal(1, var.kind), body, hint == "unroll", hint == "simd" or vector, vector
    )


def nested_bodies(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the lists of statements inside *statement*."""
    match statement:
        case For(body=body):
            return (body,)
        case If(_, then, orelse):
            return (then, orelse)
        case _:
            return ()


def has_barrier(statement: Statement) -> bool:
    """True if *statement* is or contains a barrier."""
    return isinstance(statement, Barrier) or any(has_barrier(s) for body in nested_bodies(statement) for s in body)


def _halves(*arrays: Array) -> None:
    for a in arrays:
        if a.kind != F16:
            raise Refused(f"array {a.name} of {a.kind!r} has no halves")


def checked_pair_store(array: Array, index: Expr, left: Expr, right: Expr) -> StorePair:
    """Return a ``StorePair``; raises Refused if *array* is not of halves or the values are not float32."""
    _halves(array)
    if left.type != F32 or right.type != F32:
        raise Refused(f"a pair of {left.type!r} and {right.type!r}: expected float32")
    return StorePair(array, index, left, right)


MAX_BLOCK_THREADS = 1024


@node
class Kernel(Node):
    """One thread's program, for every thread of a grid of blocks.

    *params* are arrays in global memory and scalars, in the order of the arguments. *block* is fixed; *grid* is a
    default that callers may override. Raises Refused if a block has too many threads.
    """

    name: str
    params: tuple[Array | Var, ...]
    body: tuple[Statement, ...]
    block: tuple[int, int, int] = (1, 1, 1)
    grid: tuple[int, int, int] = (1, 1, 1)

    def __post_init__(self) -> None:
        if min(*self.block, *self.grid) < 1 or prod(self.block) > MAX_BLOCK_THREADS:
            raise Refused(
                f"kernel {self.name}: blocks of {self.block}, a grid of {self.grid}: expected positive numbers, and at "
                f"most {MAX_BLOCK_THREADS} threads a block"
            )
        for p in self.params:
            if isinstance(p, Array) and p.space != "global":
                raise Refused(f"kernel {self.name}: parameter {p.name} is a {p.space} array")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return prod(self.block)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return sum(
            s.array.size * s.array.kind.size
            for s in self.body
            if isinstance(s, LocalArray) and s.array.space == "shared"
        )
