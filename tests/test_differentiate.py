"""Gradients equal finite differences and PyTorch's autograd, are linear, and come out in forms that operators match."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.analysis.regions import preimage
from einnet_explore.autodiff.differentiation import differentiate
from einnet_explore.autodiff.linearity import assert_linear
from einnet_explore.cli import main
from einnet_explore.equivalence.reads import reads_legally
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Apply, Equation, Index, Instance, Iterator, Program, Scope, Tensor, accesses
from einnet_explore.runtime.program import compile_program
from einnet_explore.runtime.tvm_cpu import TvmSource, load_tvm_kernel
from einnet_explore.strategies.moves import inline_injective
from tests.rules_kit import assert_equal, contractions
from tests.strategies import indices, inputs_for, programs

FUNCTIONS = ("relu", "abs", "maximum", "minimum", "where", "tanh", "sigmoid", "exp", "erf")
KINKS = ("relu", "abs", "maximum", "minimum", "where")
Arrays = Mapping[str, np.ndarray]


def reals(program: Program, seed: int = 0, low: float = -1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.uniform(low, 1, t.shape) for t in program.inputs}


def seeds_of(program: Program, seed: int = 1) -> dict[str, np.ndarray]:
    """A random gradient for each output."""
    rng = np.random.default_rng(seed)
    made = {t.name: t.shape for t in program.inputs} | {e.name: e.scope.shape for e in program.equations}
    return {name: rng.uniform(-1, 1, made[name]) for name in program.outputs}


def run(gradient: Program, program: Program, inputs: Arrays, seeds: Arrays, dtype: str = "float64") -> list[np.ndarray]:
    """The gradients, in order."""
    names = [t.name for t in gradient.inputs[len(program.inputs) :]]
    found = evaluate(gradient, {**inputs, **dict(zip(names, seeds.values(), strict=True))}, dtype, outputs_only=True)
    return [found[name] for name in gradient.outputs]


def loss(program: Program, inputs: Arrays, seeds: Arrays) -> float:
    out = evaluate(program, inputs, "float64", outputs_only=True)
    held = {**inputs, **out}
    return sum(float((held[name] * seed).sum()) for name, seed in seeds.items())


def against_differences(program: Program, gradient: Program, inputs: Arrays, step: float = 1e-6) -> None:
    """Central differences along random directions, for every input by itself."""
    seeds = seeds_of(program)
    rng = np.random.default_rng(2)
    for tensor, found in zip(program.inputs, run(gradient, program, inputs, seeds), strict=True):
        assert found.shape == tensor.shape
        for _ in range(2):
            along = rng.uniform(-1, 1, tensor.shape)
            moved = [{**inputs, tensor.name: inputs[tensor.name] + k * along} for k in (step, -step)]
            ends = [loss(program, at, seeds) for at in moved]
            expected, computed = (ends[0] - ends[1]) / (2 * step), float((found * along).sum())
            scale = max(1.0, 1e-3 * abs(ends[0]), float(np.abs(found).sum()))
            assert abs(expected - computed) <= 1e-6 * scale, (tensor.name, expected, computed, ee.text(program))


def against_torch(program: Program, gradient: Program, inputs: Arrays, tolerance: float = 1e-9) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from tests.torch_programs import torch_gradients

    seeds = seeds_of(program)
    expected = torch_gradients(program, inputs, seeds)
    for tensor, found in zip(program.inputs, run(gradient, program, inputs, seeds), strict=True):
        scale = max(1.0, float(np.abs(expected[tensor.name]).max(initial=0)))
        np.testing.assert_allclose(found, expected[tensor.name], rtol=0, atol=tolerance * scale, err_msg=tensor.name)


def tame(program: Program, inputs: Arrays) -> bool:
    """Whether nothing is so large that differences drown."""
    values = evaluate(program, inputs, "float64").values()
    return all(np.isfinite(v).all() and np.abs(v).max(initial=0) < 1e4 for v in values)


def check_random(program: Program) -> None:
    gradient = differentiate(program)
    for equation in gradient.equations:
        assert reads_legally(equation.scope), ee.text(gradient)
    inputs = reals(program)
    if tame(program, inputs):
        against_differences(program, gradient, inputs)
        against_torch(program, gradient, inputs)


def check_ties(program: Program) -> None:
    """Compare subgradients with autograd's on small integers, where maxima tie and kinks are met."""
    inputs = {name: a.astype(float) for name, a in inputs_for(program).items()}
    if tame(program, inputs):
        against_torch(program, differentiate(program), inputs)


RANDOM = programs(functions=FUNCTIONS).filter(lambda p: p.inputs)
ODD = programs(functions=KINKS).filter(lambda p: p.inputs)

LONG = pytest.mark.timeout(1800)
"""A limit that is met while hypothesis draws is told as "Inconsistent data generation", not as one that was met."""


@given(RANDOM)
def test_gradients_of_random_programs_agree_with_differences(program: Program) -> None:
    check_random(program)


@given(ODD)
def test_gradients_at_ties_agree_with_torch(program: Program) -> None:
    check_ties(program)


@given(contractions())
def test_gradients_of_random_windows_agree_with_differences(program: Program) -> None:
    """Windows, strides and padding on both sides: where points of the pre-image lie outside, and who says so."""
    check_random(program)


@pytest.mark.slow
@LONG
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(contractions())
def test_many_gradients_of_random_windows_agree_with_differences(program: Program) -> None:
    check_random(program)


@pytest.mark.slow
@LONG
@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(RANDOM)
def test_many_gradients_of_random_programs_agree_with_differences(program: Program) -> None:
    check_random(program)


@pytest.mark.slow
@LONG
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(ODD)
def test_many_gradients_at_ties_agree_with_torch(program: Program) -> None:
    check_ties(program)


@given(programs(polynomial=True, equations=2).filter(lambda p: p.inputs), st.integers(-3, 3), st.integers(-3, 3))
def test_gradients_are_linear_in_the_output_gradient(program: Program, a: int, b: int) -> None:
    # differentiate proves it by structure; this holds the proof to exact integers.
    try:
        gradient = differentiate(program)
    except ValueError as refusal:
        assume("has no usable inverse" not in str(refusal))
        raise
    names = [t.name for t in gradient.inputs[len(program.inputs) :]]
    assert_linear(gradient, names)
    inputs = inputs_for(program)
    shapes = [t.shape for t in gradient.inputs[len(program.inputs) :]]
    rng = np.random.default_rng(3)
    one, two = ([rng.integers(-3, 4, s) for s in shapes] for _ in range(2))

    def at(seeds: list[np.ndarray]) -> dict[str, np.ndarray]:
        return evaluate(gradient, {**inputs, **dict(zip(names, seeds, strict=True))}, outputs_only=True)

    mixed = at([a * x + b * y for x, y in zip(one, two, strict=True)])
    first, second = at(one), at(two)
    for name in gradient.outputs:
        np.testing.assert_array_equal(mixed[name], a * first[name] + b * second[name])


NAMED = {
    "tanh": "tensor X[3, 4]\nY[i:3, j:4] = tanh(X[i, j])",
    "every function": """
        tensor X[7]
        tensor Z[7]
        Y[i:7] = log(X[i]) * sqrt(X[i]) + rsqrt(X[i]) - sigmoid(X[i]) / erf(X[i]) + pow(X[i], Z[i]) + abs(X[i])
        U[i:7] = pow(X[i], 3) + pow(2, Z[i]) + pow(X[i], 0.5) + pow(X[i], 2) + pow(X[i], 1) + pow(X[i], 0) - (-Z[i])""",
    "batch normalisation": """
        tensor X[4, 3, 5, 5]
        tensor g[3]
        tensor b[3]
        M[c:3] = sum[n:4, h:5, w:5] 0.01 * X[n, c, h, w]
        V[c:3] = sum[n:4, h:5, w:5] 0.01 * pow(X[n, c, h, w] - M[c], 2)
        Y[n:4, c:3, h:5, w:5] = g[c] * ((X[n, c, h, w] - M[c]) / sqrt(V[c] + 0.001)) + b[c]""",
    "layer normalisation in one": """
        tensor X[6, 8]
        tensor g[8]
        tensor b[8]
        Y[m:6, n:8] = (X[m, n] - {[m:6] sum[k:8] X[m, k] / 8}[m])
            * rsqrt({[m:6] sum[k:8] pow(X[m, k] - {[m:6] sum[j:8] X[m, j] / 8}[m], 2) / 8}[m] + 0.00001)
            * g[n] + b[n]""",
    "softmax": """
        tensor X[5, 7]
        M[i:5] = max[j:7] X[i, j]
        E[i:5, j:7] = exp(X[i, j] - M[i])
        S[i:5] = sum[j:7] E[i, j]
        Y[i:5, j:7] = E[i, j] / S[i]""",
    "attention": """
        tensor Q[2, 5, 4]
        tensor K[2, 6, 4]
        tensor V[2, 6, 3]
        S[b:2, i:5, j:6] = sum[k:4] 0.5 * Q[b, i, k] * K[b, j, k]
        E[b:2, i:5, j:6] = exp(S[b, i, j] - {[b:2, i:5] max[j:6] S[b, i, j]}[b, i])
        Y[b:2, i:5, n:3] = sum[j:6] E[b, i, j] / {[b:2, i:5] sum[j:6] E[b, i, j]}[b, i] * V[b, j, n]""",
    "residual block": """
        tensor X[1, 5, 5, 3] pad [0, 1, 1, 0]
        tensor K[3, 3, 4, 3]
        tensor L[3, 4]
        C[n:1, h:5, w:5, f:4] = sum[c:3, r:3, s:3] X[n, h+r-1, w+s-1, c] * K[r, s, f, c]
        M[f:4] = sum[h:5, w:5] 0.04 * C[0, h, w, f]
        V[f:4] = sum[h:5, w:5] 0.04 * pow(C[0, h, w, f] - M[f], 2)
        R[n:1, h:5, w:5, f:4] = relu((C[n, h, w, f] - M[f]) * rsqrt(V[f] + 1))
        Y[n:1, h:5, w:5, c:3] = relu(X[n, h, w, c] + {[h:5, w:5, c:3] sum[f:4] R[0, h, w, f] * L[c, f]}[h, w, c])""",
    "GELU": "tensor X[9]\nY[i:9] = 0.5 * X[i] * (1 + erf(X[i] * 0.7071067811865476))",
    "product of all": "tensor X[3, 4]\nY[i:3] = prod[j:2, k:2] X[i, 2*j+k]",
    "least of windows": "tensor X[9] pad [1] value 2\nY[i:5] = min[r:3] X[2*i+r-1]",
    "reshape": "tensor X[4, 6]\nY[i:8, j:3] = tanh(X[(3*i+j) // 6, (3*i+j) % 6])",
    "nearest neighbour, twice as large": "tensor X[4, 3]\nY[i:8, j:6] = exp(X[i // 2, j // 2])",
    "concatenation": "tensor A[3]\ntensor B[4]\nY[i:7] = where(i < 3, exp(A[i]), B[i-3] * B[i-3])",
    "several reads": "tensor X[6]\nY[i:4] = X[i] * X[i+1] + X[5-i] * X[i]",
    "diagonal": "tensor X[4, 4]\nY[i:4] = X[i, i] * X[i, 3-i]",
    "an origin": "tensor X[5]\nT[i:-2..3] = tanh(X[i+2])\nY[i:-1..4] = T[i-1] * T[1-i//2]",
    "a table": "tensor X[3]\nY[i:2] = sum[j:3] table[2, 3] (1, 1/2, 0, -1, 3, 2) [i, j] * X[j]",
    "an input that is an output": "tensor X[3]\nY[i:3] = 2 * X[i]\noutput Y, X",
    "an output that is read": "tensor X[3]\nY[i:3] = tanh(X[i])\nZ[] = sum[i:3] Y[i] * X[i]\noutput Y, Z",
    "names that are taken": "tensor d_X[3]\ntensor X[3]\nd_Y[i:3] = X[i] * d_X[i]\nY[i:3] = d_Y[i] * X[i]",
    "something unused": "tensor X[3]\ntensor Z[2]\nY[i:3] = X[i] * 0 + 1",
    "a domain": "tensor X[5]\nT[i:7 | 2 <= i < 6] = log(X[i-2])\nY[i:7] = T[i] * T[6-i]",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_gradients_of_named_programs_agree_with_differences_and_torch(name: str) -> None:
    program = ee.parse(NAMED[name])
    inputs = reals(program, low=0.2)
    for gradient in (differentiate(program), ee.grad(program), ee.grad(program, inline=True)):
        assert ee.parse(ee.text(gradient)) == gradient
        against_differences(program, gradient, inputs)
        against_torch(program, gradient, inputs)


OPERATORS = {
    "conv": ee.ops.conv2d(N=2, H=5, W=6, C=3, F=2, R=3, S=3, padding=1),
    "conv, strides": ee.ops.conv2d(N=1, H=7, W=8, C=2, F=3, R=3, S=3, stride=2, padding=1),
    "conv, strides by kernel": ee.ops.conv2d(N=1, H=6, W=6, C=2, F=3, R=2, S=3, stride=(2, 3), padding=0),
    "conv, dilated and strided": ee.ops.conv2d(N=1, H=9, W=9, C=2, F=2, R=3, S=3, stride=2, dilation=3, padding=3),
    "conv, groups, NCHW": ee.ops.conv2d(N=1, H=5, W=5, C=4, F=4, R=3, S=3, groups=2, layout="NCHW", padding=1),
    "depthwise": ee.ops.depthwise_conv2d(N=1, H=5, W=5, C=3, R=3, S=3, stride=2, padding=1),
    "transposed": ee.ops.conv_transpose2d(N=1, H=3, W=4, in_channels=2, out_channels=3, R=4, S=4, stride=2, padding=1),
    "matmul": ee.ops.matmul(3, 4, 5, batch=2, transpose_b=True),
    "band": ee.ops.g2bmm(2, 7, 2, 3, dilation=2),
    "band times matrix": ee.ops.gbmm(2, 7, 2, 3),
    "max pool": ee.ops.max_pool2d(N=1, H=7, W=7, C=2, R=3, S=3, stride=2, padding=1),
    "average pool": ee.ops.average_pool2d(N=1, H=6, W=6, C=2, R=3, S=2, stride=2, padding=1),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_of_operators_agree_with_differences_and_torch(name: str) -> None:
    program = OPERATORS[name]
    gradient = ee.grad(program)
    inputs = reals(program)
    against_differences(program, gradient, inputs)
    against_torch(program, gradient, inputs)


def test_second_derivatives() -> None:
    program = ee.parse("tensor X[4]\nY[] = sum[i:4] tanh(X[i]) * X[3-i] * X[i]")
    first = ee.grad(program)
    second = ee.grad(first, wrt=["X", "d_Y"])
    inputs, seeds = reals(first), seeds_of(first)
    rng = np.random.default_rng(5)
    for name, computed in zip(("X", "d_Y"), run(second, first, inputs, seeds), strict=True):
        along = rng.uniform(-1, 1, computed.shape)
        up, down = (loss(first, {**inputs, name: inputs[name] + k * along}, seeds) for k in (1e-6, -1e-6))
        assert abs((up - down) / 2e-6 - float((computed * along).sum())) < 1e-6


def test_a_gradient_is_a_program_in_the_text_form() -> None:
    assert ee.text(ee.grad(ee.ops.matmul(4, 5, 6))).split("\n")[-3:-1] == [
        "d_A[m:4, k:6] = sum[n:5] d_Y[m, n] * B[k, n]",
        "d_B[k:6, n:5] = sum[m:4] d_Y[m, n] * A[m, k]",
    ]
    assert ee.text(ee.grad(ee.ops.tanh(4))).split("\n")[-2] == "d_A[x0:4] = d_Y[x0] * (1 - tanh(A[x0]) * tanh(A[x0]))"


def test_gradient_through_an_invertible_map_has_no_summation() -> None:
    for text in ("tensor X[4, 6]\nY[i:8, j:3] = X[(3*i+j) // 6, (3*i+j) % 6]", "tensor X[12]\nY[i:3, j:4] = X[4*i+j]"):
        assert not ee.grad(ee.parse(text)).equations[-1].scope.summations


def test_windows_over_strides_leave_the_taps_that_meet() -> None:
    made = differentiate(ee.ops.average_pool2d(N=1, H=9, W=9, C=2, R=3, S=3, stride=2)).equations[-1].scope
    assert sorted(y.extent for y in made.summations) == [2, 2]


# ---- forms that operators match


def derives(program: Program, target: str, wanted: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether search finds a candidate with one library call, a *target* with the attributes *wanted*."""
    search = ee.live_search(program, target=target, budget=120, max_depth=4)
    for _ in search:
        for candidate in search.candidates:
            match candidate.operators:
                case (Equation(via=Instance(operator, attributes)),) if operator == target and wanted(dict(attributes)):
                    return True
    return False


@pytest.mark.parametrize(("H", "C", "F"), [(5, 4, 6), (7, 3, 8)])
def test_the_gradients_of_a_convolution_are_products_of_matrices(H: int, C: int, F: int) -> None:
    conv = ee.ops.conv2d(N=1, H=H, W=H, C=C, F=F, R=3, S=3, padding=1)
    # Matmul and overlap-add: every tap of every pixel at once, then the taps that meet are added.
    taps = {H * H, 9 * C}
    assert derives(ee.grad(conv, "A"), "Matmul", lambda a: {a["m"], a["n"]} == taps and a["k"] == F)
    assert derives(ee.grad(conv, "K"), "Matmul", lambda a: {a["m"], a["n"]} == {9 * C, F} and a["k"] == H * H)


def test_the_input_gradient_of_a_strided_convolution_is_a_transposed_convolution() -> None:
    conv = ee.ops.conv2d(N=1, H=8, W=8, C=3, F=5, R=4, S=4, stride=2, padding=1, layout="NCHW")
    wanted = {"sh": 2, "sw": 2, "R": 4, "S": 4, "ph": 1, "pw": 1, "h": 4, "w": 4}
    assert derives(ee.grad(conv, "A"), "ConvTranspose2d", lambda a: wanted.items() <= a.items())


def test_kernels_run_gradients() -> None:
    for text in ("Y[i:6, j:40] = relu(X[i, j])", "Y[i:6, j:20] = max[r:2] X[i, 2*j+r]"):
        program = ee.parse(f"tensor X[6, 40]\n{text}")
        gradient = ee.grad(program)
        inputs = {k: np.round(4 * v) for k, v in reals(program).items()}
        inputs |= {t.name: np.ones(t.shape) for t in gradient.inputs[1:]}
        expected = evaluate(gradient, inputs, "float64")
        held = {k: v.astype(np.float32) for k, v in (inputs | expected).items()}
        for equation in gradient.equations:
            kernel = load_tvm_kernel(TvmSource(equation.scope))
            result = kernel(*(held[name] for name in kernel.source.inputs))
            np.testing.assert_allclose(result, expected[equation.name], rtol=1e-6)


def test_kernels_raise_zero_without_a_call() -> None:
    scope = ee.parse("tensor X[6]\nY[i:6] = pow(0, X[i])").equations[0].scope
    exponents = np.array([-1, -0.0, 0, 2, np.inf, np.nan], np.float32)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(load_tvm_kernel(TvmSource(scope))(exponents), np.power(np.float32(0), exponents))


@pytest.mark.parametrize("body", ["X[i, j] * Z[j]", "exp(X[i, j]) * Z[j]", "tanh(X[i, j] * Z[j]) * X[i, j] + Z[j]"])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_kernels_find_an_element_that_attains_the_extremum(reduce: str, body: str) -> None:
    """The products are computed again to compare them: in one operation with the comparison they were others."""
    program = ee.parse(f"tensor X[40, 50]\ntensor Z[50]\nY[i:40] = {reduce}[j:50] {body}")
    gradient = ee.grad(program)
    inputs = {t.name: a.astype(np.float32) for t, a in zip(gradient.inputs, reals(gradient).values(), strict=True)}
    expected = evaluate(gradient, {k: v.astype(np.float64) for k, v in inputs.items()}, "float64", outputs_only=True)
    found = compile_program(gradient).run(inputs)
    for name in gradient.outputs:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5)


# ---- pre-images


Map = tuple[tuple[Iterator, ...], tuple[Index, ...], frozenset[Iterator]]
"""The iterators of a box, an index map on it, and the iterators to solve for first."""


@st.composite
def maps(draw: st.DrawFn) -> Map:
    lows = draw(st.lists(st.integers(-2, 1), min_size=1, max_size=3))
    box = tuple(Iterator(name, lo, lo + draw(st.integers(1, 5))) for name, lo in zip("hwr", lows, strict=False))
    index = draw(st.lists(indices(box), max_size=3))
    sums = [i + draw(indices(box)) * draw(st.integers(0, 3)) for i in index]
    return box, tuple(sums), frozenset(draw(st.lists(st.sampled_from(box))))


@given(maps())
@settings(max_examples=60)
def test_preimages_hold_every_point_once(drawn: Map) -> None:
    box, index, prefer = drawn
    targets = tuple(Iterator(f"t{n}", i.bounds[0] - 1, min(i.bounds[1], i.bounds[0] + 9)) for n, i in enumerate(index))
    pre = preimage(box, index, targets, prefer)
    expected = Counter()
    for point in itertools.product(*(range(x.lo, x.hi) for x in box)):
        at = dict(zip(box, point, strict=True))
        values = tuple(i.evaluate(at.__getitem__) for i in index)
        if all(t.lo <= v < t.hi for v, t in zip(values, targets, strict=True)):
            expected[values, point] += 1
    own = (*targets, *pre.free)
    computed = Counter()
    for point in itertools.product(*(range(x.lo, x.hi) for x in own)):
        at = dict(zip(own, point, strict=True))
        if all(b.lo <= b.index.evaluate(at.__getitem__) < b.hi for b in pre.guards):
            computed[point[: len(targets)], tuple(pre.values[x].evaluate(at.__getitem__) for x in box)] += 1
    assert computed == expected


# ---- injective computes


def test_injective_computes_are_read_through_permuted_negated_and_strided_indices() -> None:
    program = ee.parse("""
        tensor X[4, 3]
        tensor D[2, 3]
        T[a:3, b:-3..1] = tanh(X[-b, a])
        U[i:2, j:3] = 2 * T[j, -2*i]
        Y[i:2] = sum[j:3] D[i, j] * U[i, j] * T[j, -i]""")
    derivation = inline_injective(program)
    assert ee.text(derivation.end).split("\n")[-2] == (
        "Y[i:2] = sum[j:3] 2 * D[i, j] * tanh(X[2*i, j]) * tanh(X[i, j])"
    )
    assert all(c.ok for c in ee.check(derivation))


def test_gamma_s_gradient_reads_no_intermediate() -> None:
    # The extracted tensor of the document: another order, and a negated index.
    program = ee.parse("""
        tensor X[2, 3, 4, 4]
        tensor E[3]
        tensor V[3]
        tensor d_Y[2, 3, 4, 4]
        T[b:2, h:4, w:4, c:-2..1] = (X[b, -c, h, w] - E[-c]) / sqrt(V[-c] + 0.001)
        d_g[c:3] = sum[b:2, h:4, w:4] d_Y[b, c, h, w] * T[b, h, w, -c]""")
    end = inline_injective(program).end
    assert ee.text(end).split("\n")[-2] == (
        "d_g[c:3] = sum[b:2, h:4, w:4] d_Y[b, c, h, w] * ((X[b, c, h, w] - E[c]) / sqrt(0.001 + V[c]))"
    )


def test_outputs_and_padded_reads_are_not_inlined() -> None:
    program = ee.parse("tensor X[4]\nT[i:4] = tanh(X[i]) \nY[i:4] = T[i]")
    assert inline_injective(program, keep=["T"]).end == program
    padded = replace(program.equations[0].scope, padding=((1, 0),))
    made = replace(program.equations[0], scope=padded)
    i = Iterator("i", 0, 4)
    reader = replace(program.equations[1], scope=Scope((i,), (), made.tensor[(i - 1,)]))
    shifted = Program(program.inputs, (made, reader), ("Y",))
    assert inline_injective(shifted).end == shifted


@given(programs())
def test_inlining_keeps_every_value(program: Program) -> None:
    derivation = inline_injective(program)
    assert_equal(program, derivation.end)


@example(  # read twice, once in its padding: the reader keeps both reads
    ee.parse("tensor A[]\nT[h:1, w:1] = -2 * A[] pad [(0, 1), 0]\nY[] = T[0, 0] - 2 * T[1, 0]")
)
@given(programs(domains=False, depth=1))
def test_remaining_intermediates_sum_or_are_read_in_their_padding(program: Program) -> None:
    end = inline_injective(program).end
    boxes = {e.name: e.scope.box for e in end.equations if not e.scope.summations}
    for equation in end.equations:
        reads = [a for a in accesses(equation.scope.body) if isinstance(a.source, Tensor)]
        for name in {a.source.name for a in reads} & boxes.keys():
            indices = [zip(a.index, boxes[name], strict=True) for a in reads if a.source.name == name]
            assert not all(lo <= i.bounds[0] and i.bounds[1] < hi for index in indices for i, (lo, hi) in index)


# ---- refusals


@pytest.mark.parametrize(
    ("text", "wrt", "message"),
    [
        ("tensor A[3]\nY[i:3] = A[i]", ["B"], "wrt B: found unknown, expected one of the inputs A"),
        ("tensor A[3]\nT[i:3] = A[i]\nY[i:3] = T[i]", ["T"], "wrt T: found an equation, expected one of the inputs A"),
        ("tensor A[3]\nY[i:3] = A[i]", ["A", "A"], "wrt A: found it 2 times, expected it once"),
        ("tensor A[3]\nY[i:3] = A[i]", [], "wrt: found no name, expected one of the inputs A"),
        (
            "tensor A[3]\nY[i:3] = pow(-2, A[i])",
            None,
            "pow of the constant -2 is real at integers only, expected a base that is not < 0",
        ),
        (
            "tensor A[420, 80]\nY[h:20, w:40] = A[7*h+7*w, (4*h+2*w) // 5 + 39 - w]",
            None,
            "the index map (7*h+7*w, -w+(4*h+2*w) // 5+39) of A has no usable inverse: its gradient, of 33600 "
            "elements, would walk through 6720000 points, expected at most 16 times as many as elements or as the 800",
        ),
    ],
)
def test_wrong_inputs_to_differentiate_are_refused(text: str, wrt: list[str] | None, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ee.grad(ee.parse(text), wrt)


def test_an_operator_without_a_derivative_is_refused() -> None:
    i = Iterator("i", 0, 3)
    program = Program((a := Tensor("A", (3,)),), (ee.parse("Y[i:3] = 0").equations[0],), ("Y",))
    odd = replace(program.equations[0], scope=Scope((i,), (), Apply("floor", (a[(i,)],))))
    with pytest.raises(ValueError, match="operator floor of 1 arguments has no derivative here, expected one of"):
        differentiate(replace(program, equations=(odd,)))


NONLINEAR = [
    ("Y[i:3] = d[i] * d[i]", "has degree 2, expected 1 at most"),
    ("Y[i:3] = A[i] / d[i]", "divides by what is linear"),
    ("Y[i:3] = A[i] + d[i]", "have degrees 0 and 1"),
    ("Y[i:3] = tanh(d[i])", "tanh of what is linear is not linear"),
    ("Y[] = max[i:3] d[i]", "max of what is linear is not linear"),
    ("Y[i:3] = A[i]", "does not depend on d linearly"),
    ("T[i:5 | 0 <= i < 3] = d[i] value 1\nY[i:5] = T[i]", "T is 1 outside, expected 0 of what is linear"),
    ("Y[i:3] = e[i+1]", "e is 2 outside, expected 0 of what is linear"),
]


@pytest.mark.parametrize(("text", "message"), NONLINEAR)
def test_nonlinear_program_is_reported(text: str, message: str) -> None:
    program = ee.parse(f"tensor A[3]\ntensor d[3]\ntensor e[3] pad [1] value 2\n{text}")
    names = {"d", *(("e",) if "e[" in text else ())}
    with pytest.raises(ValueError, match=re.escape(message)):
        assert_linear(program, names)


# ---- the command


def test_grad_prints_the_gradients_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "matmul.ein"
    case.write_text(ee.text(ee.ops.matmul(4, 5, 6)))
    assert main(["grad", str(case), "--wrt", "B,A"]) == 0
    assert ee.parse(capsys.readouterr().out) == ee.grad(ee.ops.matmul(4, 5, 6), ["B", "A"])
    assert main(["grad", str(case), "--wrt", "A", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["gradients"], said["output_gradients"]) == ({"A": "d_A"}, {"Y": "d_Y"})
    assert ee.parse(said["program"]) == ee.grad(ee.ops.matmul(4, 5, 6), "A")
    assert main(["grad", str(case), "--latex"]) == 0
    assert r"\sum" in capsys.readouterr().out
    assert main(["grad", str(case), "--wrt", "Q"]) == 2
    assert capsys.readouterr().err == "error: wrt Q: found unknown, expected one of the inputs A, B\n"
