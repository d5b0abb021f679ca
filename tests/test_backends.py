"""Kernels and compiled programs: equal in value to the interpreter on random legal programs and on real shapes."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from einnet_explore.codegen.preparation import prepare
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program, Scope, program, tensors
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementations import KernelCall, NativeCall
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmSource, compile_scope
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse
from tests.strategies import inputs_for, programs, scopes_

needs_cc = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")


def scope_of(text: str) -> Scope:
    return parse(text).equations[-1].scope


def arrays_of(scope: Scope, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in tensors(scope)}


def check(scope: Scope, threads: int = 1, in_c: bool = True) -> None:
    """Compare the loop nests of *scope*, in C or by TVM, with evaluation."""
    arrays = {name: aligned(array) for name, array in arrays_of(scope).items()}
    result = aligned_empty(scope.shape)
    (NativeCall(NativeSource(scope, threads)) if in_c else KernelCall(scope, threads)).bind(arrays, result)()
    expected = evaluate(scope, arrays, np.float64)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * max(1.0, np.abs(expected).max()))


CASES = {
    "offset-reduce NHWC": """
        tensor T[3, 3, 9, 10, 16] pad [0, 0, 1, 1, 0]
        Y[h:9, w:10, f:16] = sum[r:3, s:3] T[r, s, h+r-1, w+s-1, f]""",
    "offset-reduce NCHW": """
        tensor T[16, 3, 3, 9, 10] pad [0, 0, 0, 1, 1]
        Y[f:16, h:9, w:10] = sum[r:3, s:3] T[f, r, s, h+r-1, w+s-1]""",
    "overlap-add NHWC": """
        tensor T[2, 6, 5, 4, 4, 8] pad [0, 0, 0, 12, 12, 0]
        Y[n:2, y:12, x:10, c:8] = sum[h:6, w:5] T[n, h, w, y+1-2*h, x+1-2*w, c]""",
    "overlap-add NCHW": """
        tensor T[2, 3, 4, 4, 6, 16] pad [0, 0, 12, 36, 0, 0]
        Y[n:2, c:3, y:12, x:32] = sum[h:6, w:16] T[n, c, y+1-2*h, x+1-2*w, h, w]""",
    "transpose": "tensor A[16, 12, 48]\nY[h:12, w:48, c:16] = A[c, h, w]",
    "transpose back": "tensor A[6, 7, 32]\nY[c:32, h:6, w:7] = A[h, w, c]",
    "transpose past a dimension": "tensor A[8, 3, 24]\nY[w:24, g:3, c:8] = A[c, 2-g, w]",
    "small tiles of a wide row": "tensor A[12, 3, 64] pad [1, 0, 0]\nY[c:64, h:12] = A[h, 0, c] + A[h-1, 2, c]",
    "transpose of six columns": "tensor A[3, 30, 6]\nY[b:3, j:6, i:30] = A[b, i, j]",
    "transpose of 49 columns": "tensor A[40, 49]\nY[j:49, i:40] = relu(A[i, j])",
    "padded transpose": "tensor A[16, 6, 32] pad [0, 1, 0]\nY[h:8, w:32, c:16] = A[c, h-1, w]",
    "odd transpose": "tensor A[6, 14]\nY[w:14, c:6] = A[c, w] * 2",
    "offset-reduce to NCHW": """
        tensor T[8, 8, 3, 3, 32] pad [1, 1, 0, 0, 0]
        Y[f:32, h:8, w:8] = relu({[f:32, h:8, w:8] sum[r:3, s:3] T[h+r-1, w+s-1, r, s, f]}[f, h, w])""",
    "partitioned rows after another stage": """
        tensor B[1, 1] pad [0, (0, 1)]
        tensor C[1]
        Y[h:1, n:4] = B[h, n // 2] * {[] C[0] * C[0]}[]""",
    "remainders of two numbers": "tensor A[2, 2]\nY[h:3] = A[h % 2, (h + 1) % 2]",
    "negative numerators": "tensor A[3, 4]\nY[h:-5..4, w:4] = A[h % 3, (h - 2*w) // 5 % 4]",
    "contradicting remainders": """
        tensor A[1, 1] pad [(1, 0), (0, 1)]
        Y[h:3] = relu(A[0 - h % 2, (h + 1) % 2] + 1)""",
    "band": """
        tensor A[2, 20, 32]
        tensor B[2, 20, 32] pad [0, 12, 0]
        Y[b:2, m:20, w:7] = sum[k:32] A[b, m, k] * B[b, m+4*w-12, k]""",
    "chain": """
        tensor A[4, 6, 20]
        tensor b[4]
        Y[c:4, h:6, w:20] = relu(A[c, h, w] + b[c]) * sigmoid(A[c, h, w])""",
    "max over channels": "tensor A[20, 6, 32]\nY[h:6, w:32] = max[c:20] A[c, h, w]",
    "max over many channels": "tensor A[200, 6, 32]\nY[h:6, w:32] = max[c:200] A[c, h, w]",
    "mean of rows": "tensor A[24, 7, 32]\nY[c:24] = sum[h:7, w:32] A[c, h, w] / 224",
    "sums of columns": "tensor A[150, 100]\nY[j:100] = sum[i:150] A[i, j]",
    "sums of short rows": "tensor A[2, 37, 13]\nY[b:2, i:37] = sum[k:13] A[b, i, k] * A[b, i, 0]",
    "sums and maxima of rows": """
        tensor A[20, 3, 24]
        Y[i:20] = {[i:20] sum[j:3, k:24] A[i, j, k]}[i] / 3 + {[i:20] max[j:3, k:24] A[i, j, k]}[i]""",
    "epilogue": """
        tensor A[70, 24]
        tensor B[24, 40]
        Y[m:70, n:40] = relu({[m:70, n:40] sum[k:24] A[m, k] * B[k, n]}[m, n] - 1)""",
    "softmax rows": """
        tensor A[5, 96]
        Y[m:5, n:96] = exp(A[m, n]) / {[m:5] sum[k:96] exp(A[m, k])}[m]""",
    "max pool with -inf": """
        tensor A[4, 9, 9] pad [0, 1, 1] value -inf
        Y[c:4, h:5, w:5] = max[r:3, s:3] A[c, 2*h+r-1, 2*w+s-1]""",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("in_c", [pytest.param(True, marks=needs_cc), False], ids=["C", "TVM"])
def test_kernels_are_correct(name: str, in_c: bool) -> None:
    check(scope_of(CASES[name]), in_c=in_c)


SHARED = [
    "tensor A[40, 64, 64]\nY[h:64, w:64, c:40] = A[c, h, w] * 2 + 1",
    "tensor A[64, 2, 32, 60]\nY[c:64, h:32, w:120] = A[c, w % 2, h, w // 2]",
    "tensor A[1100, 256]\nY[m:1100] = sum[k:256] A[m, k]",
    "tensor A[256, 10, 128]\nY[m:10, n:128] = max[k:256] A[k, m, n]",
    "tensor A[180001]\nY[i:180001] = A[i] * 2",
    "tensor A[180000]\nY[i:180000] = relu(A[i]) + 1",
    "tensor A[60, 52, 61] pad [0, 1, 1]\nY[c:60, h:52, w:61] = sum[r:3] A[c, h+r-1, w+r-1]",
]


@pytest.mark.parametrize("text", SHARED)
@pytest.mark.parametrize("in_c", [pytest.param(True, marks=needs_cc), False], ids=["C", "TVM"])
def test_two_threads_compute_the_same(text: str, in_c: bool) -> None:
    scope = scope_of(text)
    check(scope, 2, in_c)
    source = NativeSource if in_c else TvmSource
    assert source(scope, 2).shared and not source(scope).shared


@given(scopes_())
@settings(max_examples=15)  # each compiles a kernel
def test_kernels_by_tvm_are_exact(scope: Scope) -> None:
    inputs = {name: array.astype(np.float32) for name, array in inputs_for(scope).items()}
    kernel = compile_scope(scope)
    expected = evaluate(scope, inputs, np.float64)
    np.testing.assert_allclose(kernel(*(inputs[name] for name in kernel.source.inputs)), expected, rtol=1e-5)


@given(programs())
@settings(max_examples=25)  # each compiles up to three kernels
def test_programs_agree_with_evaluation(drawn: Program) -> None:
    inputs = inputs_for(drawn)
    weights = {t.name: inputs[t.name] for t in drawn.inputs if t.weight}
    compiled = compile_program(drawn, constants=weights)
    found = compiled.run({name: a for name, a in inputs.items() if name not in weights})
    expected = evaluate(drawn, inputs, np.float64)
    for name in drawn.outputs:
        np.testing.assert_allclose(found[name], expected[name].astype(np.float64), rtol=1e-5)


def test_dimensions_are_collapsed_only_if_every_read_is_contiguous() -> None:
    def shapes(text: str) -> list[tuple[int, ...]]:
        return [*TvmSource(scope_of(text)).shapes]

    assert shapes("tensor A[4, 6, 7]\nY[c:4, h:6, w:7] = A[c, h, w]") == [(168,), (168,)]
    assert shapes("tensor A[4, 6, 7]\nY[c:4, h:6, w:7] = A[c, h, w] + A[c, 5-h, w]") == [(4, 6, 7)] * 2
    assert shapes("tensor A[4, 6, 8]\nY[c:4, h:6, w:7] = A[c, h, w]") == [(24, 8), (24, 7)]
    assert shapes("tensor A[4, 6]\nY[c:4, h:6] = where(c < h, A[c, h], 0)") == [(4, 6)] * 2
    assert shapes("tensor A[3, 4, 6]\nY[h:6] = sum[a:3, b:4] A[a, b, h]") == [(3, 4, 6), (6,)]
    assert shapes("tensor A[9, 8, 6]\nY[h:6] = sum[a:9, b:8] A[a, b, h]") == [(72, 6), (6,)]


@given(scopes_())
def test_preparing_keeps_every_value(scope: Scope) -> None:
    inputs = inputs_for(scope)
    np.testing.assert_array_equal(evaluate(prepare(scope), inputs, np.float64), evaluate(scope, inputs, np.float64))


def test_functions_are_accurate_to_single_precision() -> None:
    x = np.concatenate([np.linspace(-100, 100, 4001), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30]]).astype(np.float32)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        known = {
            "exp": np.exp(wide),
            "tanh": np.tanh(wide),
            "sigmoid": 1 / (1 + np.exp(-wide)),
            "relu": np.maximum(wide, 0),
        }
        for function, expected in known.items():
            scope = scope_of(f"tensor A[{x.size}]\nY[i:{x.size}] = {function}(A[i])")
            usual = ~np.isnan(expected) & ((np.abs(expected) > 1e-37) | (expected == 0))
            found = compile_scope(scope)(x)
            np.testing.assert_allclose(found[usual], expected.astype(np.float32)[usual], rtol=4e-7, atol=1e-37)
    assert np.isnan(compile_scope(scope_of("tensor A[1]\nY[i:1] = exp(A[i])"))(np.array([np.nan], np.float32)))[0]


def test_windows_leave_no_long_sum() -> None:
    prepared = prepare(scope_of(CASES["overlap-add NHWC"]))
    assert prepared.summations == ()
    assert "where" in repr(prepared.body)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities on this system")
def test_a_kernel_does_not_tie_its_process_to_a_core() -> None:
    """Two searches on one machine would share a core; in a process of its own, as a pool is made once."""
    code = (
        "import os, numpy as np\n"
        "from einnet_explore.runtime.program import compile_program\n"
        "from einnet_explore.syntax import parse\n"
        "before = os.sched_getaffinity(0)\n"
        "compile_program(parse('tensor A[4]\\nY[i:4] = relu(A[i])'), threads=1).run({'A': np.ones(4, np.float32)})\n"
        "assert os.sched_getaffinity(0) == before, (os.sched_getaffinity(0), before)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TVM_BIND_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_of_kernels_soon_sleep() -> None:
    """They would take the cores of what is measured next; 100,000 yields take 50 to 100 ms."""
    assert int(os.environ["TVM_THREAD_POOL_SPIN_COUNT"]) <= 5_000


def test_misaligned_and_strided_arrays_are_accepted() -> None:
    scope = scope_of("tensor A[33]\nY[i:33] = A[i] * 2")
    raw = np.arange(100, dtype=np.float32)
    kernel = compile_scope(scope)
    for given_array in (raw[1:34], raw[:66:2], raw[:33].astype(np.float64)):
        np.testing.assert_array_equal(kernel(given_array), given_array * 2)
    longer = aligned_empty((34,))
    with pytest.raises(BackendError, match="aligned"):
        kernel.bind([longer[1:]], aligned_empty((33,)))


def test_binding_refuses_other_shapes() -> None:
    kernel = compile_scope(scope_of("tensor A[4]\nY[i:4] = A[i]"))
    with pytest.raises(BackendError, match=r"float32\[5\], expected float32\[4\]"):
        kernel.bind([aligned_empty((5,))], aligned_empty((4,)))
    with pytest.raises(BackendError, match="0 arrays for the 1 inputs A"):
        kernel.bind([], aligned_empty((4,)))


def test_bad_requests_are_refused() -> None:
    scope = scope_of("tensor A[4]\nY[i:4] = A[i]")
    with pytest.raises(BackendError, match=r"constant A has shape \[5\], expected \[4\]"):
        compile_program(program(scope), constants={"A": np.ones(5)})
    compiled = compile_program(program(scope))
    with pytest.raises(BackendError, match="input A is missing"):
        compiled.run({})
    with pytest.raises(BackendError, match=r"input A has shape \[3\], expected \[4\]"):
        compiled.run({"A": np.ones(3)})
    drawn = program(scope)
    with pytest.raises(BackendError, match="equation Y reads A"):
        compile_program(replace(drawn, inputs=()))


def test_a_refusal_names_the_equation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BackendError("no such instruction")

    monkeypatch.setattr(compiled, "build_c", refuse)
    drawn = parse("tensor A[4, 61]\nZ[i:4, j:61] = exp(A[i, j]) + 17")
    with pytest.raises(BackendError, match=r"equation Z: .*no such instruction"):
        compile_program(drawn)
