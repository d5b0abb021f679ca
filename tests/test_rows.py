"""Kernels of rows at the edges: blocks of few rows, masks that end where memory does."""

import re
import subprocess
import sys

import numpy as np
import pytest

from einnet_explore.analysis.row_nest import match_row_nest
from einnet_explore.codegen.register_tiles import Machine
from einnet_explore.codegen.rows.kernel import block_rows
from einnet_explore.codegen.tvm.emission import vector_tile
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Scope
from einnet_explore.runtime import tvm_cpu
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.syntax import parse

WINDOWS = """
    tensor P[20, {w}]
    tensor V[{u}, {n}]
    Y[m:20, n:{n}] = sum[w:{w}] P[m, w] * V[m+w, n]"""


def product(w: int, n: int) -> Scope:
    return parse(WINDOWS.format(w=w, u=w + 19, n=n)).equations[0].scope


@pytest.mark.parametrize("n", [3, 16, 24, 70])
def test_long_windows_leave_whole_tiles_of_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of fewer rows than a tile has wrote nothing at all."""
    scope, machine = product(300, n), Machine(l2=1 << 12)
    found = match_row_nest(scope)
    assert found is not None and found.product is not None
    assert block_rows(found, machine) == max(8, vector_tile(n, machine).rows)
    monkeypatch.setattr(tvm_cpu, "this_machine", lambda: machine)
    rng = np.random.default_rng(0)
    p, v = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((20, 300), (319, n)))
    out = tvm_cpu.load_tvm_kernel(tvm_cpu.TvmSource(scope))(p, v)
    np.testing.assert_array_equal(out, np.stack([p[m] @ v[m : m + 300] for m in range(20)]))


MASKED = """
import ctypes, mmap
import numpy as np
from einnet_explore.analysis.online_softmax import OnlineSoftmax
from einnet_explore.runtime import tvm_cpu
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.syntax import parse

SIZES = "[b:2, m:17, w:300]"
score = f"({{{SIZES} sum[k:8] Q[b, m, k] * K[b, w, k]}}[b, m, w] + N[m, w])"
power = f"exp({score} - {{[b:2, m:17] max[w:300] {score}}}[b, m])"
weight = f"{{{SIZES} {power} / {{[b:2, m:17] sum[w:300] {power}}}[b, m]}}[b, m, w]"
scope = parse(f'''
    tensor Q[2, 17, 8]
    tensor K[2, 300, 8]
    tensor N[17, 300]
    tensor V[2, 300, 5]
    Y[b:2, m:17, n:5] = sum[w:300] {weight} * V[b, w, n]''').equations[0].scope
kernel = tvm_cpu.compile_scope(scope)
assert isinstance(kernel.source.kind, OnlineSoftmax)

page, size = mmap.PAGESIZE, 4 * 17 * 300
pages = -(-size // page) + 1
held = mmap.mmap(-1, pages * page)  # the last page is nobody's
end = (pages - 1) * page
start = (end - size) // 64 * 64
mask = np.frombuffer(held, np.float32, 17 * 300, start).reshape(17, 300)
rng = np.random.default_rng(0)
mask[...] = rng.standard_normal((17, 300))
first = ctypes.addressof(ctypes.c_char.from_buffer(held))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + end), ctypes.c_size_t(page), 0) == 0
given = {name: aligned(rng.standard_normal(shape)) for name, shape in
         (("Q", (2, 17, 8)), ("K", (2, 300, 8)), ("V", (2, 300, 5)))} | {"N": mask}
out = aligned_empty((2, 17, 5))
kernel.bind([given[name] for name in kernel.source.inputs], out)()
z = np.einsum("bmk,bwk->bmw", given["Q"], given["K"]) + mask
p = np.exp(z - z.max(-1, keepdims=True))
np.testing.assert_allclose(out, p @ given["V"] / p.sum(-1, keepdims=True), rtol=1e-4, atol=1e-5)
"""


def test_nothing_is_read_beyond_a_mask() -> None:
    """TVM leaves out of what ``Select`` takes what keeps its indices inside: the mask was read up to 511 too far."""
    done = subprocess.run([sys.executable, "-c", MASKED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


NORMALISED = """
    tensor X[5, {n}]
    A[i:5] = sum[r:{n}] {scale} * X[i, r]
    D[i:5, j:{n}] = X[i, j] - A[i]
    V[i:5] = sum[r:{n}] {scale} * D[i, r] * D[i, r]
    M[i:5] = max[r:{n}] D[i, r]
    Y[i:5, j:{n}] = D[i, j] * rsqrt(0.00001 + V[i]) + exp(D[i, j] - M[i])
    output Y"""


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    ("n", "lanes"), [(768, 64), (96, 32), (197, 16), (448, 64), (127, 64), (113, 64), (9, 8), (5, 4), (200, 16)]
)
def test_rows_are_reduced_in_several_vectors_if_no_more_elements_are_computed(n: int, lanes: int) -> None:
    derivation = fuse_vertically(parse(NORMALISED.format(n=n, scale=1 / n)))
    assert derivation is not None
    (equation,) = derivation.end.equations
    source = tvm_cpu.TvmSource(equation.scope)
    widths = set(re.findall(r"T\.vectorized\((\d+)\)", str(source.function.script())))
    assert widths == {str(lanes)}
    x = np.random.default_rng(0).standard_normal((5, n)).astype(np.float32)
    want = evaluate(equation.scope, {"X": x}, np.float64)
    np.testing.assert_allclose(tvm_cpu.load_tvm_kernel(source)(x), want, rtol=1e-5, atol=1e-5)
