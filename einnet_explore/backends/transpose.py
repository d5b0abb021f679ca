"""Tiles of a matrix transposed in vector registers, as a TVM tensor intrinsic.

How: ``kernels.source.shuffles``.
"""

from __future__ import annotations

from functools import cache
from itertools import count

import tvm
from tvm.s_tir import TensorIntrin

from einnet_explore.kernels.source.shuffles import transposed


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
