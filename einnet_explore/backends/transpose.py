"""Tiles of a matrix transposed in vector registers, as a TVM tensor intrinsic.

A tile of L×L elements takes log₂ L rounds; in the round of distance d, rows i and i + d exchange their off-diagonal
blocks of d lanes (the recursive block transpose, Eklundh 1972).
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.s_tir import TensorIntrin


@cache
def transposing(side: int, gap: int) -> str:
    """The name of the intrinsic B[j, 0 × *gap*, i] = A[i, j] for tiles of *side* (a power of two) float32 elements."""
    name = f"einnet_explore.transpose.{side}.{gap}"
    rounds, last = _rounds(side)
    zeros = ", ".join(["0"] * gap)
    between = f", {zeros}, " if gap else ", "
    shape = (side, *[1] * gap, side)
    region = ", ".join(f"0:{n}" for n in shape)
    steps = ", ".join((*(f"s{n}" for n in range(gap + 1)), "1"))
    head = f"""    with T.sblock("root"):
        T.reads(A[0:{side}, 0:{side}])
        T.writes(B[{region}])
"""
    meaning = f"""
@T.prim_func(s_tir=True)
def meaning(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, ({side}, {side}), "float32", offset_factor=1)
    B = T.match_buffer(b, {shape}, "float32", offset_factor=1)
{head}        for i, j in T.grid({side}, {side}):
            with T.sblock("element"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi{between}vj] = A[vj, vi]
"""
    loads = "".join(f'        v{i}_0 = A.vload([{i}, 0], "float32x{side}")\n' for i in range(side))
    stores = "".join(f"        B.vstore([{i}{between}0], {row})\n" for i, row in enumerate(last))
    strides = "".join(f"    s{n} = T.int32()\n" for n in range(gap + 1))
    done = f"""
@T.prim_func(s_tir=True)
def done(a: T.handle, b: T.handle) -> None:
    r = T.int32()
{strides}    A = T.match_buffer(a, ({side}, {side}), "float32", offset_factor=1, strides=[r, 1])
    B = T.match_buffer(b, {shape}, "float32", offset_factor=1, strides=[{steps}])
{head}{loads}{rounds}{stores}"""
    TensorIntrin.register(name, tvm.script.from_source(meaning), tvm.script.from_source(done), override=True)
    return name


def _rounds(side: int) -> tuple[str, list[str]]:
    """(statements, names of the transposed rows)."""
    rows = [f"v{i}_0" for i in range(side)]
    lines = []
    distance, turn = side // 2, 1
    while distance:
        for i in range(side):
            if i & distance:
                continue
            pair = f"[{rows[i]}, {rows[i + distance]}]"
            low = [lane if not lane & distance else side + lane - distance for lane in range(side)]
            high = [lane + distance if not lane & distance else side + lane for lane in range(side)]
            rows[i], rows[i + distance] = f"v{i}_{turn}", f"v{i + distance}_{turn}"
            lines += [
                f"        {rows[i]} = T.Shuffle({pair}, {low})\n",
                f"        {rows[i + distance]} = T.Shuffle({pair}, {high})\n",
            ]
        distance, turn = distance // 2, turn + 1
    return "".join(lines), rows
