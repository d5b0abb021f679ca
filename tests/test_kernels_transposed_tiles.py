"""Transpose tiles and short rows are exact in the interpreter and in C, with and without streaming stores."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einnet_explore.analysis.indices import read_indices
from einnet_explore.codegen import copies
from einnet_explore.codegen.copies import regions_kernel, transpose_kernel
from einnet_explore.codegen.language.printer import emit, fission_at_barriers
from einnet_explore.codegen.language.statements import (
    Barrier,
    Copy,
    If,
    Kernel,
    LocalArray,
    Prefetch,
    Statement,
    Store,
    StoreTransposed,
    all_statements,
    check_kernel,
    counted_loop,
)
from einnet_explore.codegen.language.values import F16, F32, F64, I32, Array, LaunchIndex, Type, Var, literal
from einnet_explore.codegen.preparation import collapse_dimensions, prepare
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Equation, Program, Scope, tensors
from einnet_explore.runtime import c_kernels, compiled
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource, load_c_kernel
from einnet_explore.runtime.implementations import NativeCall
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.syntax import parse
from tests import kernel_machine
from tests.strategies import inputs_for

needs_cc = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")

SMALL = Machine(lanes=4, l3=1 << 20)
STREAMS = Machine(lanes=4, l3=0)
ZERO = literal(0)


def scope_of(text: str) -> Scope:
    return parse(text).equations[-1].scope


def exact(scope: Scope, arrays: dict[str, np.ndarray]) -> np.ndarray:
    made = Program(tuple(dict.fromkeys(tensors(scope))), (Equation("Y'", scope),), ("Y'",))
    return np.asarray(evaluate(made, arrays)["Y'"], dtype=np.float64)


def by_machine(scope: Scope, kernel: Kernel, blocks: int) -> None:
    arrays = inputs_for(scope)
    out = np.full(int(np.prod(scope.shape)), np.nan)
    held = {name: np.asarray(a, dtype=np.float64).reshape(-1) for name, a in arrays.items()}
    kernel_machine.run(kernel, {**held, "Y'": out, ":first": 0}, (blocks, 1, 1))
    assert (out.reshape(scope.shape) == exact(scope, arrays)).all()


TURNED = [
    "tensor A[6, 9]\nY[i:9, j:6] = A[j, i]",
    "tensor A[2, 7, 5]\ntensor b[7]\nY[n:2, i:5, j:7] = relu(A[n, j, i] + b[j]) * 2 - 1",
    "tensor A[8, 4, 3]\nY[j:4, u:3, i:8] = A[i, j, u] + A[i, j, 2]",  # along j: 3 apart; u does not fill a tile
    "tensor A[5, 11]\nY[i:4, j:5] = A[j, i+6]",
    "tensor A[10, 8]\nY[i:8, n:2, j:5] = A[2*j + n, i]",
    "tensor A[3, 6, 7] pad [1, 2, 0]\nY[n:5, i:7, j:9] = A[n-1, j-2, i] + 1",
    "tensor A[6, 7] pad [1, 2]\nY[i:10, j:8] = A[j-1, i-2] * 2",
    "tensor A[5, 3, 6] pad [1, 1, 0]\nY[i:6, m:15, k:3] = A[m // 3+k-1, k+m % 3-1, i]",
    "tensor X[6, 5, 6, 9]\nY[i:9, h:10, w:6] = relu(X[2*(h % 2) + w % 2, h // 2, w // 2, i])",
]


@pytest.mark.parametrize(("text", "machine"), [*product(TURNED, (SMALL, STREAMS))])
def test_transpose_kernels_are_exact(text: str, machine: Machine) -> None:
    scope = scope_of(text)
    if scope.traversals[-2].name == "u":
        with pytest.raises(Refused, match="3 x 8 elements: expected 4 x 4 and more"):
            transpose_kernel(scope, "Y'", machine)
        return
    by_machine(scope, *transpose_kernel(scope, "Y'", machine))


DIVIDED = [
    "tensor A[3, 32, 20]\nY[i:20, m:96] = A[m // 32, m % 32, i]",
    "tensor A[5, 4, 16] pad [1, 1, 0]\nY[m:12, k:96] = A[m // 4+k // 32-1, (k // 16) % 2+m % 4-1, k % 16]",
    "tensor A[2, 3, 9]\nY[m:6, i:9, j:5] = A[m // 3, m % 3, i] * A[m // 3, 1, j+1]",
    "tensor A[6, 7, 9]\nY[h:6, i:9, j:7] = sum[p:2] table[2, 2] (1, 2, 3, -1)[h % 2, p] * A[h // 2 + 2*p, j, i]",
    "tensor A[6, 4, 20]\nY[h:6, j:4, i:20] = sum[p:2] table[2, 2] (1, 2, 3, -1)[h % 2, p] * A[h // 2 + 2*p, j, i]",
]


@pytest.mark.parametrize("text", DIVIDED)
def test_divided_traversals_are_split(text: str) -> None:
    scope = scope_of(text)
    ready = collapse_dimensions(prepare(scope))
    assert not any(tuple(i.divisions) for i in read_indices(ready.body))
    arrays = inputs_for(scope)
    flat = {t.name: arrays[t.name].reshape(t.shape) for t in tensors(ready)}
    assert (exact(ready, flat).reshape(scope.shape) == exact(scope, arrays)).all()
    for generate in (partial(transpose_kernel, machine=SMALL), regions_kernel):
        with suppress(Refused):
            by_machine(ready, *generate(ready, "Y'"))


TURNS = st.permutations(range(3)).filter(lambda order: order[-1] != 2)


@given(TURNS, st.tuples(*[st.integers(4, 9)] * 3), st.booleans(), st.integers(0, 40))
@settings(max_examples=30)
def test_permutations_of_drawn_sizes_are_exact(order: list[int], sizes: tuple[int, ...], far: bool, near: int) -> None:
    names = "xyz"
    over = ", ".join(f"{names[d]}:{sizes[d]}" for d in order)
    scope = scope_of(f"tensor A[{', '.join(map(str, sizes))}]\nY[{over}] = A[x, y, z] + 3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "SAME_PAGE_BYTES", 4 * near)  # bands one way and the other
        patch.setattr(copies, "BLOCK_TILES", 2)
        patch.setattr(copies, "STREAMED_BLOCK_TILES", 2)
        by_machine(scope, *transpose_kernel(scope, "Y'", STREAMS if far else SMALL))


def test_results_beyond_the_caches_are_streamed_in_whole_lines() -> None:
    wide = scope_of("tensor A[64, 32]\nY[i:32, j:64] = A[j, i]")
    odd = scope_of("tensor A[65, 32]\nY[i:32, j:65] = A[j, i]")
    assert "stream_4_4((" in emit(transpose_kernel(wide, "Y", STREAMS)[0], "c")
    assert "STREAM_END();" in emit(transpose_kernel(wide, "Y", STREAMS)[0], "c")
    for scope, machine in ((wide, SMALL), (odd, STREAMS)):
        text = emit(transpose_kernel(scope, "Y", machine)[0], "c")
        assert "turn_4_4((" in text and "stream_4_4((" not in text and "STREAM_END();" not in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tensor A[8, 8]\nY[i:8] = sum[j:8] A[i, j]", "the scope reduces"),
        ("tensor A[8, 8]\nY[i:8, j:8] = A[i, j] + 1", "written as it is read"),
        ("tensor A[8, 8]\nY[i:8, j:8] = A[j, i//2]", "nothing runs along memory"),
        (
            "tensor A[8, 8]\ntensor B[4, 8]\nY[i:8, j:8] = A[j, i] + B[i//2, j]",
            "i, along which memory is read, is divided",
        ),
        ("tensor A[8, 8]\ntensor B[8, 8]\nY[i:8, j:8] = A[j, i] + B[i, j]", "steps along i"),
        ("tensor A[8, 3]\nY[i:3, j:8] = A[j, i]", "3 x 8 elements: expected 4 x 4"),
        ("Y[i:8, j:8] = 1", "expected reads of tensors"),
    ],
)
def test_scopes_without_a_transpose_kernel_are_refused(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        transpose_kernel(scope_of(text), "Y'", SMALL)


# Short rows


@pytest.mark.parametrize(
    ("text", "lanes"),
    [
        ("tensor T[5, 4, 3] pad [5, 0, 0]\nY[y:8, c:3] = T[(y+1)//2, (y+1)%2, c] + T[(y+1)//2-1, (y+1)%2+2, c]", 8),
        # two phases of 3 channels continue one another: 6 elements of 8
        ("tensor T[2, 5, 4, 3] pad [0, 5, 0, 0]\nY[n:2, x:8, c:3] = T[n, (x+1)//2, (x+1)%2, c]", 8),
        # what is said twice along a row does not go on with the next phase, though that begins where a row would end
        ("tensor T[2, 5, 6] pad [0, 5, 0]\nY[n:2, x:8, c:3] = T[n, (x+1)//2, 3*((x+1)%2)]", 4),
        ("tensor T[2, 5, 2] pad [0, 5, 0]\nY[n:2, x:8, c:1] = T[n, (x+1)//2, (x+1)%2]", 4),
        ("tensor A[6, 5, 3] pad [1, 1, 0]\nY[i:6, j:5, c:3] = A[i-1, j+1, c] + A[i, j, 2-c]", 4),
        ("tensor A[3, 9, 2] pad [0, 1, 0]\nY[i:3, j:9, c:2] = where(c == 1, A[i, j-1, 0], A[i, j, c])", 0),
    ],
)
def test_short_rows_are_exact(text: str, lanes: int) -> None:
    scope = scope_of(text)
    kernel, blocks = regions_kernel(scope, "Y'")
    by_machine(scope, kernel, blocks)
    rows = {s.array.size for s in _everything(kernel) if isinstance(s, LocalArray)}
    assert (max(rows) if rows else 0) == lanes


@needs_cc
def test_rows_are_along_a_traversal_of_several_values() -> None:
    """A model's overlap-add whose batch of one stands last: its rows of one element were taken for rows of two."""
    scope = scope_of("tensor T[5, 5, 4] pad [5, 5, 0]\nY[h:8, w:8, n:1] = T[(h+1)//2, (w+1)//2, 2*((h+1)%2)+(w+1)%2]")
    arrays = {t.name: aligned(np.random.default_rng(0).integers(-9, 9, t.shape)) for t in tensors(scope)}
    out = aligned_empty(scope.shape)
    NativeCall(NativeSource(scope)).bind(arrays, out)()
    assert (out == exact(scope, arrays)).all()


def _everything(kernel: Kernel) -> list[Statement]:
    return list(all_statements(kernel.body))


def test_a_row_reads_no_further_than_its_tensor() -> None:
    kernel, _ = regions_kernel(scope_of("tensor A[5, 3] pad [1, 0]\nY[i:5, c:3] = A[i-1, c]"), "Y'")
    copies = [s for s in _everything(kernel) if isinstance(s, Copy)]
    assert {(s.size, s.source.size) for s in copies} == {(3, 4)}
    last, _ = regions_kernel(scope_of("tensor A[5, 3] pad [1, 0]\nY[i:5, c:3] = A[i+1, c]"), "Y'")
    text = emit(last, "c")
    assert "row_0[v] = 0.0f;" in text and "row_0[v] = A" not in text


# In C


@needs_cc
@pytest.mark.parametrize(("kind", "side", "streamed"), [*product((F16, F32, F64), (4, 8, 16), (False, True))])
def test_c_transposes_every_tile_in_registers(kind: Type, side: int, streamed: bool) -> None:
    a, y = Array("a", kind, const=True), Array("y", kind)
    tile = Array("tile", kind, side * side, "private", align=64)
    at = LaunchIndex("block") * side
    body = (
        LocalArray(tile),
        Prefetch(a, LaunchIndex("block") * 1000),
        Copy(tile, ZERO, a, LaunchIndex("block") * side * side, side * side),
        StoreTransposed(y, at, 3 * side, tile, side, streamed),
    )
    run = load_c_kernel(Kernel("square", (a, y), body, grid=(3, 1, 1)))
    given_ = np.arange(3 * side * side).astype(kind.dtype)
    for shift in (0, 1):  # lines, and what is no line
        out = aligned_empty((8 * side * side,)).view(np.uint8).view(kind.dtype)[shift : shift + 3 * side * side]
        out[...] = 0
        run(given_, out)
        assert (out.reshape(side, 3, side).transpose(1, 2, 0) == given_.reshape(3, side, side)).all()


@needs_cc
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("text", [*TURNED[:2], "tensor A[40, 50, 37]\nY[h:50, w:37, c:40] = A[c, h, w]"])
def test_transpose_kernels_run_in_c(text: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_kernels, "MIN_PARALLEL_ELEMENTS", 1)
    scope = scope_of(text)
    source = NativeSource(scope, threads)
    assert "turned" in source.text
    arrays = {t.name: aligned(np.random.default_rng(0).integers(-9, 9, t.shape)) for t in tensors(scope)}
    out = aligned_empty(scope.shape)
    NativeCall(source).bind(arrays, out)()
    assert (out == exact(scope, arrays)).all()


def test_plans_run_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_linker", lambda: None)
    program = parse("tensor A[40, 50, 37]\nY[h:50, w:37, c:40] = A[c, h, w]")
    with pytest.raises(BackendError, match="no C compiler was found: it needs cc, gcc or clang"):
        _ = NativeSource(program.equations[0].scope).function
    a = np.random.default_rng(0).standard_normal((40, 50, 37)).astype(np.float32)
    made = compile_program(program, 1)
    assert (made.run({"A": a})["Y"] == a.transpose(1, 2, 0)).all() and "c" not in made.engines.values()


# The statements


TILE = Array("tile", F32, 16, "private")
OUT = Array("out", F32)


@pytest.mark.parametrize(
    "turn",
    [
        StoreTransposed(OUT, ZERO, 5, Array("tile", F32, 25, "private"), 5),
        StoreTransposed(OUT, ZERO, 3, TILE, 4),
        StoreTransposed(OUT, ZERO, 4, Array("tile", F32, 15, "private"), 4),
        StoreTransposed(OUT, ZERO, 4, Array("tile", F64, 16, "private"), 4),
        StoreTransposed(OUT, ZERO, 4, Array("tile", F32, 16, "shared"), 4),
    ],
)
def test_broken_squares_are_refused(turn: StoreTransposed) -> None:
    with pytest.raises(Refused, match=r"a square of \d of (private|shared) float\d\d, \d+ elements, is turned into"):
        check_kernel(Kernel("broken", (OUT,), (LocalArray(turn.tile), turn)))


def test_hints_have_whole_numbers() -> None:
    with pytest.raises(Refused, match="array out has an index of float32"):
        check_kernel(Kernel("broken", (OUT,), (Prefetch(OUT, literal(1.0)),)))
    assert "FETCH_LINE(out + -7, 1);" in emit(Kernel("k", (OUT,), (Prefetch(OUT, literal(-7), True),)), "c")


def test_squares_in_the_other_dialects_are_loops() -> None:
    j = Var("j", I32)
    body = (
        LocalArray(TILE),
        counted_loop(j, 16, Store(TILE, j, OUT[j])),
        StoreTransposed(OUT, literal(16), 4, TILE, 4),
    )
    kernel = Kernel("turning", (OUT,), body)
    for dialect in ("cuda", "opencl"):
        text = emit(kernel, dialect)
        assert re.search(r"out\[16 \+ \(?j_?\w* \* 4 \+ i\)?\] = tile\[i \* 4 \+ j_?\w*\];", text), text
    kept = Kernel("kept", (OUT,), (*body[:2], Barrier(), body[2]))
    direct, looped = ({"out": np.arange(99, dtype=np.float32)} for _ in range(2))
    kernel_machine.run(kept, direct)
    kernel_machine.run(replace(kept, body=fission_at_barriers(replace(kept, block=(4, 1, 1)))), looped)
    np.testing.assert_array_equal(looped["out"], direct["out"])


def test_opencl_unrolls_no_loop_with_a_condition_inside() -> None:
    """pocl's LLVM would drop the condition around it: ``test_gpu_tiles`` runs such a kernel."""
    j = Var("j", I32)
    inner = If((LaunchIndex("block") + j).lt(40), (Store(OUT, j, literal(1.0)),))
    asked = If(LaunchIndex("thread").lt(9), (counted_loop(j, 4, inner, hint="unroll"),))
    plain = If(LaunchIndex("thread").lt(9), (counted_loop(j, 4, Store(OUT, j, literal(1.0)), hint="unroll"),))
    for body, dialect, unrolled in ((asked, "opencl", False), (asked, "cuda", True), (plain, "opencl", True)):
        assert ("#pragma unroll" in emit(Kernel("k", (OUT,), (body,), (16, 1, 1)), dialect)) == unrolled
