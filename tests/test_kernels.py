"""Tiled contractions: recognition of scopes, choice of tiles, and exact kernels."""

import mmap
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from einnet_explore.codegen import versions
from einnet_explore.codegen.register_tiles import (
    MAX_UNROLLED_PRODUCTS,
    Machine,
    best_tile,
    count_loads,
    register_tiles,
    this_machine,
)
from einnet_explore.codegen.sum_of_products import SumOfProducts, match_sum_of_products
from einnet_explore.codegen.tvm import contraction
from einnet_explore.codegen.tvm.contraction import ContractionPlan, gather_positions
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Index, Iterator, Scope, tensors
from einnet_explore.runtime.arrays import aligned_empty
from einnet_explore.runtime.implementations import tiled_contraction
from einnet_explore.runtime.onnx_weights import lies_in_large_pages
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

CASES = {
    "few output channels": """
        tensor X[2, 5, 9, 20] pad [0, 0, 2, 2]
        tensor K[3, 5, 5, 5] weight
        Y[n:2, f:3, h:9, w:20] = sum[c:5, r:5, s:5] X[n, c, h+r-2, w+s-2] * K[f, c, r, s]""",
    "one input channel": """
        tensor X[1, 1, 17, 18] pad [0, 0, 2, 2]
        tensor K[13, 1, 5, 5] weight
        Y[n:1, f:13, h:17, w:18] = sum[c:1, r:5, s:5] X[n, c, h+r-2, w+s-2] * K[f, c, r, s]""",
    "rows shorter than a vector": """
        tensor X[4, 6, 7] pad [0, 1, 1]
        tensor K[6, 4, 3, 3] weight
        Y[f:6, h:6, w:7] = sum[c:4, r:3, s:3] X[c, h+r-1, w+s-1] * K[f, c, r, s]""",
    "strides and dilation": """
        tensor X[3, 21, 43] pad [0, 1, 2]
        tensor K[5, 3, 3, 3] weight
        Y[f:5, h:11, w:14] = sum[c:3, r:3, s:3] X[c, 2*h+r-1, 3*w+2*s-2] * K[f, c, r, s]""",
    "a vertical window: planes are rows": """
        tensor X[6, 12, 9] pad [0, 3, 0]
        tensor K[21, 6, 7] weight
        Y[f:21, h:12, w:9] = sum[c:6, r:7] X[c, h+r-3, w] * K[f, c, r]""",
    "grouped": """
        tensor X[4, 3, 8, 16] pad [0, 0, 1, 1]
        tensor K[4, 5, 3, 3, 3] weight
        Y[g:4, f:5, h:8, w:16] = sum[c:3, r:3, s:3] X[g, c, h+r-1, w+s-1] * K[g, f, c, r, s]""",
    "depthwise": """
        tensor X[6, 9, 19] pad [0, 1, 1]
        tensor K[6, 3, 3] weight
        Y[g:6, h:9, w:19] = sum[r:3, s:3] X[g, h+r-1, w+s-1] * K[g, r, s]""",
    "depthwise, channels last": """
        tensor X[7, 8, 20] pad [1, 1, 0]
        tensor K[3, 3, 20] weight
        Y[h:7, w:8, g:20] = sum[r:3, s:3] X[h+r-1, w+s-1, g] * K[r, s, g]""",
    "channels last": """
        tensor X[6, 7, 5] pad [1, 1, 0]
        tensor K[3, 3, 5, 24] weight
        Y[h:6, w:7, f:24] = sum[r:3, s:3, c:5] X[h+r-1, w+s-1, c] * K[r, s, c, f]""",
    "two phases woven": """
        tensor X[2, 9, 6, 18]
        tensor K[9, 3, 4, 4] weight pad [0, 0, (12, 12), (36, 36)]
        Y[n:2, f:3, y:12, x:36] = sum[c:9, h:6, w:18] X[n, c, h, w] * K[c, f, y+1-2*h, x+1-2*w]""",
    "four phases, one channel": """
        tensor X[5, 6, 7]
        tensor K[5, 9, 9] weight pad [0, (24, 24), (28, 28)]
        Y[y:24, x:28] = sum[c:5, h:6, w:7] X[c, h, w] * K[c, y+4-4*h, x+4-4*w]""",
    "three phases": """
        tensor X[5, 4, 18]
        tensor K[5, 2, 5, 5] weight pad [0, 0, (12, 12), (54, 54)]
        Y[f:2, y:12, x:54] = sum[c:5, h:4, w:18] X[c, h, w] * K[c, f, y+1-3*h, x+1-3*w]""",
    "three phases of a few": """
        tensor X[5, 6]
        tensor K[5, 2, 5] weight pad [0, 0, (18, 18)]
        Y[f:2, x:18] = relu({[f:2, x:18] sum[c:5, w:6] X[c, w] * K[c, f, x+1-3*w]}[f, x] - 2)""",
    "product": """
        tensor X[33, 20]
        tensor K[9, 33] weight
        Y[m:9, n:20] = sum[k:33] K[m, k] * X[k, n]""",
    "product with weights in vectors": """
        tensor X[11, 40]
        tensor K[40, 72] weight
        tensor b[72] weight
        Y[m:11, n:72] = relu({[m:11, n:72] sum[k:40] X[m, k] * K[k, n]}[m, n] + b[n])""",
    "batched, with weights in vectors": """
        tensor X[3, 30, 8]
        tensor K[3, 8, 40] weight
        Y[b:3, m:30, n:40] = sum[k:8] X[b, m, k] * K[b, k, n]""",
    "product of columns": """
        tensor X[20, 33]
        tensor K[9, 33] weight
        Y[m:9, n:20] = sum[k:33] K[m, k] * X[n, k]""",
    "batched, both change": """
        tensor X[3, 11, 18]
        tensor B[3, 5, 11]
        Y[b:3, m:5, n:18] = sum[k:11] B[b, m, k] * X[b, k, n]""",
    "both change, padded": """
        tensor X[4, 16, 7] pad [0, 1, 1]
        tensor B[2, 4, 3, 3]
        Y[f:2, h:16, w:7] = sum[c:4, r:3, s:3] X[c, h+r-1, w+s-1] * B[f, c, r, s]""",
    "band": """
        tensor A[2, 12, 8]
        tensor B[2, 12, 8] pad [0, 2, 0]
        Y[b:2, m:12, w:5] = sum[k:8] A[b, m, k] * B[b, m+w-2, k]""",
    "epilogue": """
        tensor X[5, 8, 10] pad [0, 1, 1]
        tensor K[7, 5, 3, 3] weight
        tensor b[7] weight
        tensor R[7, 8, 10]
        Y[f:7, h:8, w:10] = relu({[f:7, h:8, w:10] sum[c:5, r:3, s:3]
            X[c, h+r-1, w+s-1] * K[f, c, r, s]}[f, h, w] * 2 + b[f] + R[f, h, w])""",
    "epilogue over phases, other order inside": """
        tensor X[5, 6, 16]
        tensor K[5, 3, 4, 4] weight pad [0, 0, (12, 12), (32, 32)]
        tensor R[3, 12, 32] pad [0, 0, 1]
        Y[f:3, y:12, x:32] = maximum({[y:12, x:32, f:3] sum[c:5, h:6, w:16]
            X[c, h, w] * K[c, f, y+1-2*h, x+1-2*w]}[y, x, f], R[f, y, x+1])""",
    "phases that do not come out even, small windows": """
        tensor X[3, 2] pad [0, 8]
        tensor K[2, 3, 2] weight
        Y[f:2, w:3] = sum[c:3, s:2] X[c, w+2*s-3] * K[f, c, s]""",
    "ranges that start elsewhere": """
        tensor X[4, 20]
        tensor K[3, 4, 5] weight
        Y[f:1..3, w:-3..9] = sum[c:1..4, r:2..5] X[c, w+r+2] * K[f, c, r]""",
}

REFUSED = {
    "a sum of sums": "tensor A[8, 4]\ntensor B[4]\nY[m:8] = sum[k:4] A[m, k] + B[k]",
    "no product": "tensor A[8, 4]\nY[m:8] = sum[k:4] A[m, k]",
    "three factors": "tensor A[8, 4]\ntensor B[4]\nY[m:8] = sum[k:4] A[m, k] * B[k] * B[k]",
    "a maximum": "tensor A[8, 4]\ntensor B[4]\nY[m:8] = max[k:4] A[m, k] * B[k]",
    "nothing is summed": "tensor A[8]\ntensor B[8]\nY[m:8] = A[m] * B[m]",
    "padding that is not zero": """
        tensor A[8] pad [1] value 1
        tensor B[3]
        Y[m:8] = sum[k:3] A[m+k-1] * B[k]""",
    "an index that is not affine": "tensor A[8, 4]\ntensor B[4]\nY[m:8] = sum[k:4] A[m, k] * B[(k + 1) % 4]",
    "phases that do not come out even": """
        tensor A[8]
        tensor B[3] pad [(15, 15)]
        Y[m:17] = sum[k:8] A[k] * B[m - 2*k]""",
    "two sums": """
        tensor A[8, 4]
        tensor B[4]
        Y[m:8] = {[m:8] sum[k:4] A[m, k] * B[k]}[m] + {[m:8] sum[k:4] A[m, k] * B[k] * 1}[7 - m]""",
}


def scope_of(text: str) -> Scope:
    return parse(text).equations[-1].scope


def arrays_of(scope: Scope) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    found = {}
    for t in tensors(scope):
        found[t.name] = aligned_empty(t.shape)
        found[t.name][...] = rng.integers(-4, 5, t.shape)
    return found


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_exact(name: str) -> None:
    scope = scope_of(CASES[name])
    arrays = arrays_of(scope)
    made = tiled_contraction(scope, {t.name for t in tensors(scope) if t.weight})
    assert made is not None
    out = aligned_empty(scope.shape)
    out[...] = np.nan
    made.bind(arrays, out)()
    np.testing.assert_array_equal(out, evaluate(scope, arrays))


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_kernels_with_a_packed_operand_are_exact(name: str, operand: int) -> None:
    """Whether it is read in vectors or not; windows that overlap, which would be stored repeatedly, stay in place."""
    scope = scope_of(CASES[name])
    found, arrays = match_sum_of_products(scope), arrays_of(scope)
    assert found is not None
    constant = found.operands[operand].name
    made = tiled_contraction(scope, {constant})
    assert made is not None
    assert made.packed == constant or made.plan.tile.vector == operand
    out = aligned_empty(scope.shape)
    out[...] = np.nan
    made.bind(arrays, out)()
    np.testing.assert_array_equal(out, evaluate(scope, arrays))


@pytest.mark.parametrize(("f", "c"), [(96, 128), (60, 5), (512, 40)])
@pytest.mark.parametrize("read", ["R[f, p]", "R[p]"])
def test_residuals_are_prefetched_while_sums_are_computed(f: int, c: int, read: str) -> None:
    """Each step prefetches its share of the rows of a tile: all of them together, one step or several for each row."""
    shape = f"{f}, 160" if read == "R[f, p]" else "160"
    total = f"{{[f:{f}, p:160] sum[c:{c}] K[f, c] * X[c, p]}}[f, p]"
    text = f"tensor X[{c}, 160]\ntensor K[{f}, {c}] weight\ntensor R[{shape}]\nY[f:{f}, p:160] = relu({total} + {read})"
    scope = scope_of(text)
    made = tiled_contraction(scope, {"K"}, 1)
    assert made is not None
    tile, plan = made.plan.tile, made.plan
    steps = prod(y.extent for y in plan.sums)
    lines = -(-tile.rows * tile.slots // steps) * tile.vectors
    script = made.text
    assert [source.name for source, _ in plan.far_sides] == ["R"] * (read == "R[f, p]")
    packed = -(-plan.prefetch_stride // 16)
    assert script.count("prefetch") == packed + lines * len(plan.far_sides)
    arrays, out = arrays_of(scope), aligned_empty(scope.shape)
    out[...] = np.nan
    made.bind(arrays, out)()
    np.testing.assert_array_equal(out, evaluate(scope, arrays))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        "tensor X[60, 160]\ntensor K[160, 100] weight\nY[i:60, j:100] = sum[k:160] X[i, k] * K[k, j]",
        "tensor X[160, 100]\ntensor K[60, 160] weight\nY[i:60, j:100] = sum[k:160] X[k, j] * K[i, k]",
        "tensor X[3, 40, 60]\ntensor K[3, 60, 70] weight\nY[b:3, i:40, j:70] = sum[k:60] X[b, i, k] * K[b, k, j]",
    ],
)
def test_packed_operands_beyond_the_nearest_cache_are_prefetched(text: str, threads: int) -> None:
    """All of what the next tiles read is asked for by those that read the same elements now."""
    scope = scope_of(text)
    arrays, out = arrays_of(scope), aligned_empty(scope.shape)
    made, small = (tiled_contraction(scope_of(t), {"K"}, threads) for t in (text, CASES["product"]))
    assert made is not None and small is not None
    plan, (region,) = made.plan, made.plan.regions
    assert plan.sharing == plan.blocks[-len(plan.sharing) :]
    asked = plan.prefetch_stride * prod(b.count for b in plan.sharing)
    assert region.inside <= asked and made.text.count("prefetch") == -(-plan.prefetch_stride // 16) > 0
    assert "prefetch" not in small.text
    out[...] = np.nan
    made.bind(arrays, out)()
    np.testing.assert_array_equal(out, evaluate(scope, arrays))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "text",
    [
        "tensor X[30, 2900]\ntensor K[2900, 70] weight\nY[i:30, j:70] = sum[k:2900] X[i, k] * K[k, j]",
        "tensor X[2, 20, 40, 80]\ntensor K[2, 40, 80, 70] weight\ntensor B[70]\n"
        "Y[b:2, i:20, j:70] = maximum({[b:2, i:20, j:70] sum[k:40, l:80] X[b, i, k, l] * K[b, k, l, j]}[b, i, j] "
        "+ B[j], 0)",
    ],
)
def test_long_sums_are_computed_in_blocks_in_the_same_order(
    text: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = scope_of(text)
    arrays = arrays_of(scope)
    for array in arrays.values():
        array[...] = np.random.default_rng(1).standard_normal(array.shape)
    blocks, out, whole = (
        tiled_contraction(scope, {"K"}, threads),
        aligned_empty(scope.shape),
        aligned_empty(scope.shape),
    )
    assert blocks is not None and blocks.plan.sum_blocks > 1
    out[...] = np.nan
    blocks.bind(arrays, out)()
    np.testing.assert_allclose(out, evaluate(scope, arrays, np.float64), rtol=1e-4, atol=1e-3)
    monkeypatch.setattr(contraction, "MAX_PANEL_BYTES", 1 << 30)
    monkeypatch.setattr(versions, "TILED_KERNEL_VERSION", "whole sums")
    undivided = tiled_contraction(scope, {"K"}, threads)
    assert undivided is not None and undivided.plan.sum_blocks == 1
    undivided.bind(arrays, whole)()
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize(
    "text",
    [
        "tensor X[30, 2909]\ntensor K[2909, 70] weight\nY[i:30, j:70] = sum[k:2909] X[i, k] * K[k, j]",
        "tensor X[5, 2900]\ntensor K[2900, 70] weight\nY[i:5, j:70] = sum[k:2900] X[i, k] * K[k, j]",
        "tensor X[3000, 2900]\ntensor K[2900, 70] weight\nY[i:3000, j:70] = sum[k:2900] X[i, k] * K[k, j]",
    ],
    ids=["prime", "one tile of rows", "partial sums of too many rows"],
)
def test_sums_that_have_no_blocks_stay_whole(text: str) -> None:
    made = tiled_contraction(scope_of(text), {"K"})
    assert made is not None and made.plan.is_far and made.plan.sum_blocks == 1


@pytest.mark.parametrize(("columns", "accesses"), [(192, 1), (169, 2)])
def test_vectors_cross_lines_if_a_loop_moves_them_by_no_whole_vectors(columns: int, accesses: int) -> None:
    form = match_sum_of_products(
        scope_of(f"tensor X[64, {columns}]\ntensor K[32, 64]\nY[f:32, x:{columns}] = sum[c:64] X[c, x] * K[f, c]")
    )
    assert form is not None
    tile = best_tile(form, Machine())
    assert tile is not None and not tile.layout.copied and tile.vector == 0
    taps = contraction.list_taps(form, tile.vector, tile.layout, tile.groups[0], tile.unrolled)
    assert count_loads(form, tile, taps).accesses == accesses


@pytest.mark.parametrize("name", ["few output channels", "two phases woven", "batched, both change"])
def test_kernels_of_several_threads_are_exact(name: str) -> None:
    text = CASES[name]
    scope = scope_of(text)
    arrays = arrays_of(scope)
    made = tiled_contraction(scope, {t.name for t in tensors(scope) if t.weight}, threads=2)
    assert made is not None
    out = aligned_empty(scope.shape)
    made.bind(arrays, out)()
    np.testing.assert_array_equal(out, evaluate(scope, arrays))


def test_work_is_shared_by_threads() -> None:
    big = """
        tensor X[1, 16, 64, 64] pad [0, 0, 1, 1]
        tensor K[16, 16, 3, 3] weight
        Y[n:1, f:16, h:64, w:64] = sum[c:16, r:3, s:3] X[n, c, h+r-1, w+s-1] * K[f, c, r, s]"""
    one, two = (tiled_contraction(scope_of(big), {"K"}, threads) for threads in (1, 2))
    assert one is not None and two is not None
    assert "T.parallel(" not in one.text
    assert two.text.count("T.parallel(") == 2  # the copy and the tiles
    assert one.key != two.key


@pytest.mark.parametrize("name", REFUSED)
def test_non_contractions_have_no_tiled_kernel(name: str) -> None:
    scope = scope_of(REFUSED[name])
    assert match_sum_of_products(scope) is None
    assert tiled_contraction(scope) is None


def test_arrays_of_other_shapes_or_strides_are_refused() -> None:
    scope = scope_of(CASES["product"])
    made = tiled_contraction(scope)
    assert made is not None
    arrays = arrays_of(scope)
    with pytest.raises(BackendError, match=r"the result is float32\[9, 21\], expected float32\[9, 20\]"):
        made.bind(arrays, aligned_empty((9, 21)))
    with pytest.raises(BackendError, match="X is not contiguous"):
        made.bind({**arrays, "X": aligned_empty((20, 33)).T}, aligned_empty((9, 20)))
    with pytest.raises(BackendError, match=r"X is float64\[33, 20\]"):
        made.bind({**arrays, "X": np.zeros((33, 20))}, aligned_empty((9, 20)))


@pytest.mark.parametrize("constant", ["A", "K", ""])
def test_a_sum_that_only_reads_outside_is_zero(constant: str) -> None:
    """A window of two, one apart, around the only column: no step of the sum multiplies anything."""
    scope = (
        parse("""
        tensor A[33, 1, 16] pad [2, 2, 0]
        tensor K[2, 2, 64, 16]
        Y[h:17, w:1, f:64] = sum[c:16, r:2, s:2] A[2*h+2*r-1, 2*w+2*s-1, c] * K[r, s, f, c]""")
        .equations[0]
        .scope
    )
    made = tiled_contraction(scope, [constant])
    assert made is not None
    arrays, out = {t.name: aligned_empty(t.shape) for t in tensors(scope)}, aligned_empty(scope.shape)
    for array in (*arrays.values(), out):
        array[...] = 7
    made.bind(arrays, out)()
    assert not out.any()


def test_kernels_of_one_text_share_packed_constants() -> None:
    scope = scope_of(CASES["product"])
    weights = {t.name: np.ones(t.shape, np.float32) for t in tensors(scope)}
    made = [tiled_contraction(scope, [name]) for name in weights for _ in range(2)]
    packed = [(m, weights[m.reads[1]]) for m in made if m is not None and m.plan.other is None]
    (one, array), (other, _), *_ = packed
    found = one.pack(array)
    assert other.pack(array) is found and one.pack(array.copy()) is not found


@pytest.mark.parametrize("case", ["few output channels", "grouped", "product"])
def test_constants_packed_in_blocks_are_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = scope_of(CASES[case])
    (weight, *_) = (t for t in tensors(scope) if t.weight) if "weight" in CASES[case] else tensors(scope)
    made = tiled_contraction(scope, [weight.name])
    assert made is not None and made.packed == weight.name
    array = np.random.default_rng(0).standard_normal(weight.shape).astype(np.float32)
    whole = made.pack(array).copy()
    operand = made.plan.packed_operand
    assert operand is not None

    def blocks() -> list[int]:
        plan = made.plan
        found = gather_positions(plan.form, plan.tile, operand, plan.steps, plan.regions)
        return [positions.size for positions in found]

    one = blocks()
    monkeypatch.setattr(contraction, "BLOCK_ELEMENTS", 16)
    several = blocks()
    assert len(several) > len(one) and sum(several) == sum(one) and max(several) < max(one)
    np.testing.assert_array_equal(made.pack(array.copy()), whole)


def test_large_packed_constants_lie_where_sessions_read_them() -> None:
    size = 1 << 10
    scope = scope_of(f"""
        tensor A[{size}, {size}] weight
        tensor B[{size}, 64]
        Y[m:{size}, n:64] = sum[k:{size}] A[m, k] * B[k, n]""")
    made = tiled_contraction(scope, ["A"])
    assert made is not None and made.packed == "A"
    assert lies_in_large_pages(made.pack(np.ones((size, size), np.float32))) == hasattr(mmap, "MADV_HUGEPAGE")


def test_an_empty_result_needs_no_kernel() -> None:
    scope = scope_of(CASES["product"])
    assert tiled_contraction(replace(scope, traversals=(Iterator("m", 0, 0), scope.traversals[1]))) is None


def test_a_dilated_band_has_no_tile() -> None:
    """Neighbouring lanes are three rows apart, and which ones depends on a traversal that moves both operands."""
    scope = scope_of(CASES["band"].replace("m+w-2", "m+3*w-6").replace("pad [0, 2, 0]", "pad [0, 6, 0]"))
    assert match_sum_of_products(scope) is not None
    assert tiled_contraction(scope) is None


def test_traversals_of_a_plane_are_collapsed() -> None:
    found = match_sum_of_products(scope_of(CASES["a vertical window: planes are rows"]))
    assert found is not None
    assert [x.extent for x in found.traversals] == [21, 108]
    assert [t.shape for t in found.operands] == [(6, 108), (21, 6, 7)]


def test_tile_of_phases_computes_only_the_taps_that_exist() -> None:
    found = match_sum_of_products(scope_of(CASES["four phases, one channel"]))
    assert found is not None
    assert found.periods == (4, 4)
    tile = best_tile(found, Machine())
    assert tile is not None
    # 9 taps of a row over 4 phases: 81 products an input element are all that is left, none with padding.
    made = ContractionPlan(found, tile, None, 1)
    assert made is not None
    blocks = gather_positions(found, tile, 1 - tile.vector, made.steps, made.regions)
    assert sum(positions.size for positions in blocks) == 5 * 81


@pytest.mark.parametrize("name", CASES)
def test_tiles_fit_registers_and_code_size(name: str) -> None:
    found = match_sum_of_products(scope_of(CASES[name]))
    assert found is not None
    machine = Machine(registers=16, lanes=8)
    shapes = list(register_tiles(found, machine))
    assert shapes
    for tile in shapes:
        assert tile.sums < machine.registers
        assert tile.sums <= MAX_UNROLLED_PRODUCTS
        assert tile.lanes <= machine.lanes
        assert tile.cycles > 0


def test_more_sums_in_registers_are_better_until_there_are_too_many() -> None:
    found = match_sum_of_products(scope_of(CASES["few output channels"].replace("20", "64").replace("n:2", "n:1")))
    assert found is not None
    tile = best_tile(found, Machine())
    assert tile is not None
    assert tile.slots == 3  # all channels share every vector
    assert 8 <= tile.sums <= 29  # enough to hide the latency of four cycles twice over


@pytest.mark.parametrize(("k", "least", "most"), [(3080, 10, 14), (3072, 1, 9)])
def test_rows_that_share_a_set_of_the_cache_do_not_displace_one_another(k: int, least: int, most: int) -> None:
    """Rows of 12 KiB begin in one set of the first-level cache, of twelve lines here."""
    text = f"tensor A[128, {k}]\ntensor B[{k}, 768]\nY[i:128, j:768] = sum[k:{k}] A[i, k] * B[k, j]"
    found = match_sum_of_products(scope_of(text))
    tile = found and best_tile(found, Machine(l1=48 << 10))
    assert tile and least <= tile.slots <= most


def test_vectors_from_beyond_the_caches_are_shared_by_more_registers() -> None:
    """A tile of one vector would load as many values as it multiplies."""
    near, far = (
        match_sum_of_products(
            scope_of(f"tensor A[85, 384]\ntensor B[384, {n}]\nY[i:85, j:{n}] = sum[k:384] A[i, k] * B[k, j]")
        )
        for n in (64, 1536)
    )
    tiles = [best_tile(form, Machine()) for form in (near, far) if form]
    assert [tile and tile.vectors > 1 for tile in tiles] == [False, True]


def test_vector_width_and_caches_of_this_machine_are_plausible() -> None:
    here = this_machine()
    assert here.lanes in {8, 16}
    assert 8 << 10 <= here.l1 <= here.l2


@st.composite
def windows(draw: st.DrawFn) -> str:
    """Convolutions, transposed ones too, in one dimension: stride, dilation, padding, window, channels."""
    channels, window, stride = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    dilation, before = draw(st.integers(1, 2)), draw(st.integers(0, 3))
    size = draw(st.integers(2, 6))
    if draw(st.booleans()):
        extent = size * stride
        return f"""
            tensor X[{channels}, {size}]
            tensor K[{channels}, 2, {window}] pad [0, 0, {extent + before + window}]
            Y[f:2, x:{extent}] = sum[c:{channels}, w:{size}] X[c, w] * K[c, f, x+{before}-{stride}*w]"""
    reach = stride * (size - 1) + dilation * (window - 1) + 1
    return f"""
        tensor X[{channels}, {max(1, reach - before)}] pad [0, {before + reach}]
        tensor K[2, {channels}, {window}]
        Y[f:2, w:{size}] = sum[c:{channels}, s:{window}] X[c, {stride}*w+{dilation}*s-{before}] * K[f, c, s]"""


@given(windows())
@settings(deadline=None)
def test_recognised_sum_of_products_has_the_value_of_its_scope(text: str) -> None:
    scope = scope_of(text)
    arrays = arrays_of(scope)
    found = match_sum_of_products(scope)
    assume(found is not None)  # a window that is worth having, and phases that do not come out even
    assert found is not None
    np.testing.assert_array_equal(_meaning(found, arrays), evaluate(scope, arrays))


def _meaning(found: SumOfProducts, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The sums of a form, written out."""
    out = np.zeros([x.extent * p for x, p in zip(found.traversals, found.periods, strict=True)])
    everything = (*found.traversals, *found.summations)
    for phase, reads in found.reads.items():
        for point in product(*(range(x.extent) for x in everything)):
            at = dict(zip(everything, point, strict=True))
            value = 1.0
            for operand, where in zip(found.operands, reads, strict=True):
                value *= _read(arrays[operand.name].reshape(operand.shape), where, at)
            place = tuple(at[x] * p + q for x, p, q in zip(found.traversals, found.periods, phase, strict=True))
            out[place] += value
    return out.reshape([x.extent for x in found.outside])


def _read(array: np.ndarray, where: tuple[Index, ...], at: dict) -> float:
    index = tuple(i.evaluate(lambda x: at[x]) for i in where)
    inside = all(0 <= i < n for i, n in zip(index, array.shape, strict=True))
    return float(array[index]) if inside else 0.0
