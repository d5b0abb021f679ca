"""Our own kernels in C among the engines of an equation: exact, convicted where they are not, and of use in models."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from einnet_evaluation import fused_programs as known
from einnet_evaluation.gpu_emulation import Elementwise
from einnet_explore.codegen.copies import regions_kernel
from einnet_explore.codegen.elementwise import build_functor
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.preparation import prepare
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, Equation, Instance, Program, Scope, tensors
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import find_variants
from einnet_explore.rules import REDUCTION_GENERATION, ROW_GENERATION, Refused
from einnet_explore.runtime import c_kernels, compiled, implementation_choice, onnx_fragment
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementations import BoundEquation, NativeCall, TiledCall, tiled_contraction
from einnet_explore.runtime.profile_store import TimeStore, profile_key
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmKernel, TvmSource
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse
from tests import kernel_machine
from tests.strategies import inputs_for, scopes_

needs_cc = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")

OVERLAP = parse(
    """
    tensor T[3, 5, 4, 4, 6] pad [0, 0, 12, 12, 0]
    Y[c:3, y:10, x:12] = sum[h:5, w:6] T[c, h, y+1-2*h, x+1-2*w, w]
    """
)
MASKED = parse("tensor A[3, 8, 8]\nY[b:3, m:8, k:8] = where(k <= m, A[b, m, k], 1)")
GATHERED = """
    tensor T[3, 4, 4, 20, 6] pad [0, 0, 0, 1, 1]
    Y[c:3, y:40, x:12] = T[c, (y+1)%2, (x+1)%2, (y+1)//2, (x+1)//2] + T[c, (y+1)%2+2, (x+1)%2, (y+1)//2-1, (x+1)//2]
    """

COEFFICIENTS = "table[4, 3](1, 1, 1, 0, 1, -1, 0, 1, 1, 0, 1, 2)"
TRANSFORMED_BOTH_WAYS = parse(
    f"""
    tensor S[3, 2, 4, 16]
    tensor T[3, 2, 4, 16]
    Y[f:2, h:16, w:16] = relu(
        {{[f:2, w:16, h:16] sum[p:3] {COEFFICIENTS}[w % 4, p] * S[p, f, w // 4, h]}}[f, w, h]
        + {{[f:2, h:16, w:16] sum[p:3] {COEFFICIENTS}[h % 4, p] * T[p, f, h // 4, w]}}[f, h, w])
    """
)


def scope_of(text: str) -> Scope:
    return parse(text).equations[-1].scope


def exact(scope: Scope, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    made = Program(tuple(dict.fromkeys(tensors(scope))), (Equation("Y'", scope),), ("Y'",))
    return np.asarray(evaluate(made, arrays)["Y'"], dtype=np.float64)


# Kernels without conditions


def by_machine(scope: Scope) -> None:
    """The kernel of *scope* by the plain interpreter, on exact integers."""
    kernel, blocks = regions_kernel(scope, "Y'")
    arrays = inputs_for(scope)
    out = np.full(int(np.prod(scope.shape)), np.nan)
    held = {name: np.asarray(a, dtype=np.float64).reshape(-1) for name, a in arrays.items()}
    assert emit(kernel, "c")  # which says what is wrong with a kernel
    kernel_machine.run(kernel, {**held, "Y'": out, ":first": 0}, (blocks, 1, 1))
    assert (out.reshape(scope.shape) == exact(scope, arrays)).all()


@pytest.mark.parametrize(
    "text",
    [
        GATHERED,
        "tensor A[9]\nY[i:9] = A[i // 2] + A[(i + 1) // 2]",
        "tensor A[40] pad [3]\nY[i:40] = A[i-3] + A[i+2]",
        "tensor A[7, 5] pad [2, 1]\nY[i:7, j:5] = A[i-2, j+1] * A[i+1, j-1] + A[i, 4-j]",
        "tensor A[12] pad [4]\nY[i:6, j:2] = A[2*i - 1 + j] - A[i-1]",
        "tensor A[4, 1, 8]\ntensor B[8, 1]\nY[i:8, j:4] = maximum(A[i // 2, 0, j+4*(i % 2)], B[i, 0])",
        "tensor A[3, 2, 20] pad [0, 1, 0]\nY[n:2, i:20, k:3] = A[k, n+k-1, i] + 1",
        "tensor A[2, 5, 20] pad [0, 1, 1]\nY[n:2, k:3, i:5, j:20] = A[n, k+i-1, j+k-1]",
        "tensor A[6, 6]\nY[i:6, j:6] = where(i < 2, A[i, j], A[j, i]) + where(j >= 3, 1, where(i == j, 2, A[0, j%3]))",
    ],
)
def test_kernels_of_regions_are_exact(text: str) -> None:
    by_machine(scope_of(text))


@given(scopes_(depth=0, domains=False))
@settings(max_examples=60)
def test_regions_of_drawn_scopes_are_exact(scope: Scope) -> None:
    with suppress(Refused):  # what has no such kernel: test_scopes_without_constant_regions_are_refused
        by_machine(scope)


def test_phases_are_those_of_the_windows() -> None:
    kernel, blocks = regions_kernel(scope_of(GATHERED), "Y'")
    assert blocks == 3 and "where" not in repr(kernel)  # nothing is asked at any element


def test_a_parity_split_reads_each_line_of_memory_once() -> None:
    scope = scope_of("tensor A[3, 8, 64]\nY[p:2, q:2, c:3, h:4, w:32] = A[c, 2*h + p, 2*w + q]")
    by_machine(scope)
    kernel, blocks = regions_kernel(scope, "Y'")
    lines = emit(kernel, "c").splitlines()
    assert blocks == 3 and sum("for (" in line for line in lines) == 4  # blocks; h, p, w in some order
    assert sum(" = A[" in line for line in lines) == 2  # both q inside of one loop over w


def test_windows_that_overlap_in_two_directions_have_conditions_of_rows_only() -> None:
    text = """
        tensor T[81, 6, 6]
        Y[h:24, w:24] = sum[i:3, j:3] {[h:6, w:6, i:9, j:9] T[9*i + j, h, w]} pad [(2, 1), (2, 1), (0, 3), (0, 3)][
            (h+3)//4 - i, (w+3)//4 - j, (h+3)%4 + 4*i, (w+3)%4 + 4*j]
    """
    scope = prepare(scope_of(text))
    by_machine(scope)
    text = emit(regions_kernel(scope, "Y'")[0], "c")
    assert text.count("for (long long u_1 = ") == text.count("for (") - 1 == 4  # pieces of a row, and rows


def test_short_rows_with_conditions_are_vectors_of_several_rows() -> None:
    scope = scope_of("tensor A[2, 5, 7] pad [0, 1, 1]\nY[n:2, k:3, i:5, j:7] = A[n, k+i-1, j+k-1]")
    by_machine(scope)
    text = emit(regions_kernel(scope, "Y'")[0], "c")
    assert "= 0LL; u_2 < 32LL" in text and "= 19LL; u_2 < 35LL" in text  # the last vector ends with the last row
    assert text.count(" & ") == 6 and text.count("&&") == 0  # four conditions, which compilers make a mask of


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tensor A[4, 4]\nY[i:4] = sum[j:4] A[i, j]", "reduces"),
        ("tensor A[64]\nY[i:8, j:8] = A[(8*i + j) // 3]", "divided by 3: expected one traversal"),
        ("tensor A[64]\nY[i:64] = A[i // 9]", "at most 8"),
        ("tensor A[64]\nY[i:60] = A[i // 5] + A[i // 7]", "35 phases"),
        ("tensor A[8]\nY[i:8] = A[i] + 1", "1 pieces of 1 reads"),
    ],
)
def test_scopes_without_constant_regions_are_refused(text: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        regions_kernel(scope_of(text), "Y'")


# In C


@needs_cc
@pytest.mark.parametrize(
    ("program", "threads"),
    [
        (OVERLAP, 1),
        (parse(GATHERED), 2),
        (MASKED, 1),
        (TRANSFORMED_BOTH_WAYS, 1),
        (known.instance_norm(3, 2, 5, 7), 2),
        (known.layer_norm(5, 7), 1),
    ],
)
def test_c_kernels_compute_the_same_as_evaluation(
    program: Program, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c_kernels, "MIN_PARALLEL_ELEMENTS", 1)
    found = fuse_vertically(program, (REDUCTION_GENERATION,))
    scope = program.equations[-1].scope if found is None else found.end.equations[0].scope
    source = NativeSource(scope, threads)
    rng = np.random.default_rng(0)
    arrays = {t.name: aligned(rng.integers(-4, 5, t.shape)) for t in tensors(scope)}
    out = aligned_empty(scope.shape)
    NativeCall(source).bind(arrays, out)()
    wanted = evaluate(program, {n: a.astype(np.float64) for n, a in arrays.items()}, "float64")[program.outputs[0]]
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)
    assert NativeSource(scope, threads).function is not None  # kept


@needs_cc
def test_scope_without_a_compilable_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_kernels, "VECTOR_MATH_DECLARATIONS", "this is no C\n")
    with pytest.raises(BackendError, match="error"):
        _ = NativeSource(scope_of("tensor A[33]\nY[i:33] = A[i] + 41")).function
    monkeypatch.setattr(compiled, "_linker", lambda: None)
    with pytest.raises(BackendError, match="no C compiler"):
        _ = NativeSource(scope_of("tensor A[33]\nY[i:33] = A[i] + 42")).function


ONE_THEN_TWO = """
import numpy as np
from einnet_explore.runtime import c_kernels
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementations import NativeCall
from einnet_explore.syntax import parse

c_kernels.MIN_PARALLEL_ELEMENTS = 1
scope = parse("tensor A[64, 33]\\nY[i:64, j:33] = A[i, j] * 2").equations[0].scope
for threads in (1, 2):
    out = aligned_empty((64, 33))
    NativeCall(NativeSource(scope, threads)).bind({"A": aligned(np.ones((64, 33)))}, out)()
    assert (out == 2).all()
"""


@needs_cc
def test_pool_grows_from_one_thread_to_two() -> None:
    """A pool that was made for one thread would hold no more of them for as long as the process lives."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_THEN_TWO],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_blocks_are_counted_in_32_bits() -> None:
    rows = 1 << 32
    scope = scope_of(f"tensor A[{rows}, 3] pad [1, 0]\nY[i:{rows}, j:3] = A[i-1, j]")
    with pytest.raises(BackendError, match=f"{rows} blocks for 1 threads, expected less than 2147483648 for each"):
        _ = NativeSource(scope).text
    assert "long long" in NativeSource(scope, 4).text  # places are 64 bits wide


@needs_cc
def test_a_kernel_that_crashes_does_so_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    around = c_kernels._entry_text

    def crashing(*given: Any) -> list[str]:
        return [line.replace("if (count", "*(volatile int *)8 = 1; if (count") for line in around(*given)]

    monkeypatch.setattr(c_kernels, "_entry_text", crashing)
    with pytest.raises(BackendError, match="the kernel is not run"):
        _ = NativeSource(scope_of("tensor A[35]\nY[i:35] = A[i] + 43")).function


# The exponential


@needs_cc
def test_exponential_is_accurate_at_all_magnitudes() -> None:
    run = Elementwise(build_functor(scope_of("tensor A[8]\nY[i:8] = exp(A[i])")), "c blocks")
    edges = np.array([0, 1, -1, 88.72283, 88.72284, 89, 200, -87.33655, -103.97208, -104, -200], np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(np.inf)), np.nextafter(edges, np.float32(-np.inf))])
    bits = np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([edges, np.float32([np.inf, -np.inf, np.nan]), bits])
    y = np.empty_like(x)
    run(y, x)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        wanted = np.exp(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
    assert (np.isnan(y) == np.isnan(x)).all() and (np.isinf(y) == np.isinf(rounded)).all()
    finite = np.isfinite(rounded)
    ulp = np.maximum(np.spacing(rounded[finite]).astype(np.float64), 2.0**-149)
    assert (np.abs(y[finite] - wanted[finite]) <= 1.1 * ulp).all()
    assert y[0] == 1 and y[x == -np.inf] == 0


@needs_cc
@pytest.mark.parametrize(
    ("function", "engine", "units"), [(f, e, n) for f, n in (("erf", 5), ("tanh", 6)) for e in ("c", "tiled")]
)
def test_functions_between_minus_one_and_one_are_accurate_at_all_magnitudes(
    function: str, engine: str, units: int
) -> None:
    """To so many units in the last place, and within -1 and 1; what is not a number stays one."""
    edges = np.float32([0, 1e-30, 1e-40, 0.5, 1, 3.9, 4, 5, 8.3, 8.99, 9, 9.1, 1e30, np.inf, np.nan])
    bits = np.arange(0, 1 << 32, 1 << 17, dtype=np.uint64).astype(np.uint32).view(np.float32)
    spread = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32) * 2
    x = np.concatenate([edges, -edges, spread, bits])[: 1 << 16].reshape(-1, 16)
    rows = len(x)
    value = "A[i, j]" if engine == "c" else f"{{[i:{rows}, j:16] sum[k:1] A[i+k, j] * B[k, 0]}}[i, j]"
    body = f"{function}({value})"
    scope = scope_of(f"tensor A[{rows}, 16]\ntensor B[1, 1]\nY[i:{rows}, j:16] = {body}")
    given, y = {"A": aligned(x), "B": aligned(np.ones((1, 1), np.float32))}, aligned_empty(x.shape, np.float32)
    made = tiled_contraction(scope) if engine == "tiled" else None
    (NativeCall(NativeSource(scope)) if made is None else TiledCall(made, {})).bind(given, y)()
    wanted = np.vectorize(getattr(math, function))(x.astype(np.float64))
    assert (engine == "tiled") == (made is not None)
    assert (np.isnan(y) == np.isnan(x)).all() and np.nanmax(np.abs(y)) == 1
    error = np.abs(y - wanted) / np.maximum(np.spacing(np.abs(wanted).astype(np.float32)), 2.0**-149)
    assert np.nanmax(error) <= units


def test_exponential_in_tvm_is_accurate_at_all_magnitudes() -> None:
    """To a unit in the last place from 1.7e-38 on; infinities and NaN are kept."""
    edges = np.float32([0, 1e-40, 87.3, 87.4, 88.1, 88.38, 88.72, 88.7228, 88.73, 90, 1e30, np.inf, np.nan])
    spread = np.random.default_rng(0).standard_normal(1 << 15).astype(np.float32) * 20
    x = np.concatenate([edges, -edges, spread])[: 1 << 15].reshape(-1, 16)
    scope = scope_of(f"tensor A[{len(x)}, 16]\nY[i:{len(x)}, j:16] = exp(A[i, j])")
    kernel = TvmKernel(source := TvmSource(scope), compiled.build_tvm(source.function, f"exp-{source.key}", 1))
    y = kernel(aligned(x))
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype(np.float64)).astype(np.float32)
    assert (np.isnan(y) == np.isnan(x)).all() and (np.isinf(y) == np.isinf(wanted)).all()
    assert (y[x < -87] == 0).all()
    normal = np.isfinite(wanted) & (wanted >= 1.7e-38)
    error = np.abs(y[normal] - np.exp(x[normal].astype(np.float64)))
    assert (error <= np.spacing(wanted[normal])).all()


# The contest


@dataclass
class Fake:
    """A way that writes *value*, and takes *seconds* to say so."""

    engine: str
    value: float = 1.0
    refuses: bool = False

    def bind(self, arrays: Mapping[str, np.ndarray], out: np.ndarray) -> Callable[[], object]:
        if self.refuses:
            raise BackendError(f"{self.engine} refuses")
        return lambda: out.fill(self.value)


LARGE = Equation("Y", scope_of("tensor A[512, 512]\nY[i:512, j:512] = A[j, i] + 1"), Instance(EOPERATOR))


def held(ways: list[Fake], store: TimeStore, monkeypatch: pytest.MonkeyPatch, times: Mapping[str, float]) -> Fake:
    """The winner where calls take *times*."""

    def compared(calls: Mapping[str, Callable[[], object]], *_: object) -> dict[str, float]:
        return {name: times[name] for name in calls}

    monkeypatch.setattr(implementation_choice, "time_implementations", compared)
    bound = BoundEquation(LARGE, {"A": aligned_empty((512, 512))}, aligned_empty((512, 512)))
    return implementation_choice.fastest_implementation(bound, ways, store)


def test_c_wins_where_it_is_faster_and_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    ways = [Fake("tvm"), Fake("c")]
    times = {"tvm": 1e-3, "best": 2e-3, "c": 1e-3}
    assert held(ways, store, monkeypatch, times) is ways[1]
    found = store.get(replace(profile_key(LARGE), engine="c"))
    assert found is not None and found.seconds == pytest.approx(0.5e-3)  # by the ratio of one comparison
    monkeypatch.setattr(Fake, "bind", lambda *_: pytest.fail("bound again"))
    assert held(ways, store, monkeypatch, {}) is ways[1]


def test_c_is_not_even_compiled_where_there_is_nothing_to_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 2 * 4 * 512 * 512 / implementation_choice.MAX_BYTES_PER_SECOND
    ways = [Fake("tvm"), Fake("c", refuses=True)]
    store = TimeStore(tmp_path / "profiles.sqlite")
    assert held(ways, store, monkeypatch, {"tvm": 1.2 * bound}) is ways[0]
    assert store.get(replace(profile_key(LARGE), engine="tvm")) is not None
    assert held(ways, TimeStore(tmp_path / "other.sqlite"), monkeypatch, {"tvm": 9 * bound}) is ways[0]  # refused


def test_c_that_differs_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TimeStore(tmp_path / "profiles.sqlite")
    ways = [Fake("tvm"), Fake("c", 1.1)]
    with pytest.warns(RuntimeWarning, match=r"differs by 1.0e-01 where values are up to 1.0e\+00"):
        assert held(ways, store, monkeypatch, {"tvm": 1e-3}) is ways[0]
    assert held(ways, store, monkeypatch, {}) is ways[0]  # remembered


@needs_cc
@pytest.mark.parametrize("threads", [1, 2])
def test_chosen_c_kernel_runs_in_a_plan(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads as a node of a session, which lends it its own."""
    monkeypatch.setattr(implementation_choice, "fastest_implementation", lambda _, ways, *__: list(ways)[-1])
    monkeypatch.setattr(c_kernels, "MIN_PARALLEL_ELEMENTS", 1)
    program = known.batch_norm(4, 3, 5, 6)
    found = fuse_vertically(program, (REDUCTION_GENERATION,))
    assert found is not None
    chosen = implementation_choice.chooser(TimeStore(tmp_path / "profiles.sqlite"))
    made = compile_program(found.end, threads, choose=chosen)
    assert set(made.engines.values()) == {"c"}
    arrays = {t.name: np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    wanted = evaluate(program, {n: a.astype(np.float64) for n, a in arrays.items()}, "float64")["Y"]
    for _ in range(3):
        np.testing.assert_allclose(made.run(arrays)["Y"], wanted, rtol=1e-5, atol=1e-5)
    assert (made._session is not None) == (threads > 1 and onnx_fragment.custom_ops_available())


# Whole programs


@pytest.mark.parametrize("make", [known.batch_norm, known.instance_norm])
def test_normalisations_are_one_kernel(make: Callable[..., Program]) -> None:
    program = make(4, 3, 5, 6)
    found = fuse_vertically(program, (REDUCTION_GENERATION,))
    assert found is not None and len(found.end.equations) == 1
    assert found.end.equations[0].via == Instance(EOPERATOR, (("kind", "reductions"),))
    assert certify(program, found.end).kind in ("proved", "exact")
    settings = Settings(max_depth=2, seconds=1.0)
    among = find_variants(program, lambda p: (float(len(p.equations)), ""), settings).variants
    assert next(len(e.derivation().end.equations) for e in among) == 1  # beside the kernels apart, by cost
    assert len(among) > 1


@pytest.mark.parametrize(
    "text",
    [
        "tensor A[4, 5]\nY[i:4, j:5] = A[i, j] + 1",
        "tensor A[4, 5]\nS[i:4] = sum[j:5] A[i, j]\nY[i:4, j:5] = A[i, j] + S[i]\noutput S, Y",
        "tensor A[4, 5]\ntensor B[5, 6]\nS[i:4, j:6] = sum[k:5] A[i, k] * B[k, j]\nY[i:4, j:6] = S[i, j] + 1",
    ],
)
def test_programs_that_are_no_normalisation_are_not_fused(text: str) -> None:
    assert fuse_vertically(parse(text), (REDUCTION_GENERATION,)) is None


def test_reduction_generation_refuses() -> None:
    plain = parse("tensor A[4, 5]\nY[i:4, j:5] = A[i, j] + 1")
    with pytest.raises(Refused, match="reads no reduction"):
        REDUCTION_GENERATION.match(plain, (0,)).apply(plain)
    product = parse("tensor A[4, 5]\ntensor B[5, 6]\nY[i:4, j:6] = {[i:4, j:6] sum[k:5] A[i, k] * B[k, j]}[i, j] + 1")
    with pytest.raises(Refused, match="120 points for at most 30 elements"):
        REDUCTION_GENERATION.match(product, (0,)).apply(product)
    assert "elements are read repeatedly" in REDUCTION_GENERATION.explain(product, (0,))
    found = fuse_vertically(known.softmax(4, 9), (REDUCTION_GENERATION,))
    assert found is not None
    with pytest.raises(Refused, match="instantiated already"):
        REDUCTION_GENERATION.rewrite(found.end, (0,), found.steps[-1].match.params)
    with pytest.raises(Refused, match="takes no parameters, found block"):
        REDUCTION_GENERATION.match(plain, (0,), block=1)


def test_one_kernel_of_whole_rows_is_proposed_once() -> None:
    found = fuse_vertically(known.softmax(4, 9), (REDUCTION_GENERATION,))
    assert found is not None
    fused = replace(found.end, equations=tuple(replace(e, via=None) for e in found.end.equations))
    assert [*REDUCTION_GENERATION.propose(fused, (0,))] and not [*ROW_GENERATION.propose(fused, (0,))]
    assert ROW_GENERATION.match(fused, (0,)).apply(fused)  # as recorded derivations may


def test_a_normalisation_alone_is_a_subprogram() -> None:
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 9]) for n in "xy"]
    scale = numpy_helper.from_array(np.ones(9, np.float32), "g")
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g"], ["l"], axis=-1),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
    ]
    for count in (1, 2):
        given_nodes = nodes[:1] if count == 1 else nodes
        last = helper.make_node("Identity", ["l" if count == 1 else "y"], ["z"])
        out = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 9])]
        graph = helper.make_graph([*given_nodes, last], "norm", info[:1], out, [scale])
        model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        (found,) = partition(load_model(model)).subprograms
        assert fuse_vertically(found.program, (REDUCTION_GENERATION,)) is not None


@needs_cc
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("divisor", [3, 49, -6, 0.7, 2**0.5])
def test_quotients_by_constants_are_rounded_like_divisions(divisor: float, dtype: str) -> None:
    real = np.dtype(dtype).type
    x = np.arange(-600, 600, dtype=dtype) * real(divisor)
    x = aligned(np.r_[x, np.array([np.inf, -np.inf, np.nan, -0.0, 2e38, 1e-30], dtype)], dtype)
    program = parse(f"tensor A[{x.size}] {dtype}\nY[i:{x.size}] = A[i] / {divisor}")
    assert "quotient" in NativeSource(program.equations[0].scope).text
    found = compile_program(program).run({"A": x})["Y"]
    np.testing.assert_array_equal(found, x / real(divisor))
