"""Tiles of a matrix transposed in vector registers, as a TVM tensor intrinsic.

A tile of L×L elements is transposed as a matrix of 4×4 blocks, then inside the blocks (Eklundh 1972).  Every step is
one instruction of two vectors, and the second half of them stays inside quarters of a register, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import TypeVar

import tvm
from tvm.s_tir import TensorIntrin

V = TypeVar("V")

BLOCK = 4
"""Elements that a shuffle keeps together or moves among: a quarter of the widest register."""


@cache
def transposing(side: int, gap: int, between: int) -> str:
    """The name of the intrinsic B[j, 0 × *gap*, i] = A[i, 0 × *between*, j] for tiles of *side*² float32 elements.

    *side* is 4, 8 or 16.
    """
    name = f"einnet_explore.transpose.{side}.{gap}.{between}"
    moves, last = _moves(side, between)
    stores = "".join(f"        B.vstore([{_at(i, gap, 0)}], {row})\n" for i, row in enumerate(last))
    a_shape, b_shape = ((side, *[1] * n, side) for n in (between, gap))
    a_strides, b_strides = (
        [*(f"{letter}{n}" for n in range(len(shape) - 1)), "1"] for letter, shape in (("r", a_shape), ("s", b_shape))
    )
    head = f"""    with T.sblock("root"):
        T.reads(A[{_whole(a_shape)}])
        T.writes(B[{_whole(b_shape)}])
"""
    meaning = f"""
@T.prim_func(s_tir=True)
def meaning(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, {a_shape}, "float32", offset_factor=1)
    B = T.match_buffer(b, {b_shape}, "float32", offset_factor=1)
{head}        for i, j in T.grid({side}, {side}):
            with T.sblock("element"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[{_at("vi", gap, "vj")}] = A[{_at("vj", between, "vi")}]
"""
    variables = "".join(f"    {s} = T.int32()\n" for s in (*a_strides[:-1], *b_strides[:-1]))
    done = f"""
@T.prim_func(s_tir=True)
def done(a: T.handle, b: T.handle) -> None:
{variables}    A = T.match_buffer(a, {a_shape}, "float32", offset_factor=1, strides=[{", ".join(a_strides)}])
    B = T.match_buffer(b, {b_shape}, "float32", offset_factor=1, strides=[{", ".join(b_strides)}])
{head}{moves}{stores}"""
    TensorIntrin.register(name, tvm.script.from_source(meaning), tvm.script.from_source(done), override=True)
    return name


def _at(first: object, zeros: int, last: object) -> str:
    return ", ".join(map(str, (first, *[0] * zeros, last)))


def _whole(shape: tuple[int, ...]) -> str:
    return ", ".join(f"0:{n}" for n in shape)


def _moves(side: int, between: int) -> tuple[str, list[str]]:
    """(statements, names of the transposed rows)."""
    lines: list[str] = []
    numbers = count()

    def let(value: str) -> str:
        name = f"v{next(numbers)}"
        # Not an assignment: that would be a buffer on the heap.
        lines.append(f"        {name}: T.let = {value}\n")
        return name

    rows = [let(f'A.vload([{_at(i, between, 0)}], "float32x{side}")') for i in range(side)]
    done = transposed(rows, lambda a, b, lanes: let(f"T.Shuffle([{a}, {b}], {lanes})"))
    return "".join(lines), done


def transposed(rows: Sequence[V], shuffle: Callable[[V, V, list[int]], V]) -> list[V]:
    """The columns of a tile of as many *rows* as these have lanes: 4, 8 or 16.

    ``shuffle(a, b, lanes)`` are those *lanes* of *a* and *b*, one after the other.
    """
    side = len(rows)

    def pairs(a: V, b: V, part: int, within: int) -> tuple[V, V]:
        """In every *within* lanes: the first, then the second halves of a's and b's, *part* lanes in turn."""
        lanes = [(start, at) for start in range(0, side, within) for at in range(0, within // 2, part)]
        first, second = (
            [n + start + at + more for start, at in lanes for n in (0, side) for more in range(shift, shift + part)]
            for shift in (0, within // 2)
        )
        return shuffle(a, b, first), shuffle(a, b, second)

    gathered = [_turned(rows[i::BLOCK], lambda a, b: pairs(a, b, BLOCK, side)) for i in range(BLOCK)]
    done: list[V] = []
    for column in zip(*gathered, strict=True):
        done += _turned(column, lambda a, b: pairs(a, b, 1, BLOCK))
    return done


def _turned(rows: Sequence[V], pairs: Callable[[V, V], tuple[V, V]]) -> list[V]:
    """The transpose of 1, 2 or 4 rows of as many parts; *pairs* interleaves the first and the second halves of two."""
    if len(rows) == 1:
        return [*rows]
    if len(rows) == 2:
        return [*pairs(*rows)]
    # Perfect shuffles: log₂ of them, each of rows half the matrix apart, transpose.
    (a, b), (c, d) = pairs(rows[0], rows[2]), pairs(rows[1], rows[3])
    return [*pairs(a, c), *pairs(b, d)]
