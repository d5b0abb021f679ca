"""Products by a cuBLASLt on host memory, which follows its documentation; precisions; the cuDNN frontend."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import cases
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import VIEW, Instance
from einnet_explore.runtime.cuda import convolutions, device, execution
from einnet_explore.runtime.cuda import products as cublas
from einnet_explore.runtime.cuda.composition import compose_plans
from einnet_explore.runtime.cuda.device import Call
from einnet_explore.runtime.cuda.plan import cuda_plan
from einnet_explore.runtime.cuda.products import MAX_GEMM_BATCH, MAX_GEMM_CALLS, gemms
from einnet_explore.runtime.cuda.steps import (
    PRECISIONS,
    Convolution,
    CudaLaunch,
    CudaPlan,
    CudaProduct,
    Epilogue,
    View,
    cuda_plan_from_json,
)
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse
from tests.gpu_kit import on_cpu, record_kernels


def view(name: str, array: np.ndarray, base: np.ndarray) -> View:
    offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // base.itemsize
    return View(name, offset, array.shape, tuple(s // base.itemsize for s in array.strides))


class OnHost(np.ndarray):
    """An array on the host that says where it is as CuPy's arrays do."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def not_numbers(shape: Any, dtype: Any) -> np.ndarray:
    """Fresh memory, which nothing may count on: NaN in every floating-point type."""
    made = np.empty(shape, dtype)
    made.view(np.uint8).fill(255)
    return made.view(OnHost)


HOST = SimpleNamespace(
    cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=0)),
    empty=not_numbers,
    asarray=np.asarray,
    asnumpy=np.array,
    copyto=np.copyto,
    random=SimpleNamespace(standard_normal=lambda shape, dtype: np.random.default_rng(0).random(shape, dtype)),
    float32=np.float32,
    uint8=np.uint8,
    lib=np.lib,
)

INVALID, FAILED, UNSUPPORTED = 7, 13, 15
ATTRIBUTE_BYTES = {
    "MatmulDesc": {3: 4, 4: 4, 7: 4, 8: 8},
    "MatrixLayout": {5: 4, 6: 8},
    "MatmulPreference": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4},
}
NUMBERS = {0: np.float32, 2: np.float16}


class HostLt:
    """cuBLASLt as it is documented, on host memory: its functions are called through ctypes, as those of a library.

    Of the algorithms found, the first fails, the second is not supported, the third and the fourth multiply.
    Factors are numbers: none is timed on memory that nothing was written to.
    """

    def __init__(self) -> None:
        self.objects: list[dict[Any, Any]] = []
        self.ran: list[int] = []
        self.algorithms = 4
        for name, types in cublas.SIGNATURES.items():
            short = name.removeprefix("cublasLt")
            kind = short.removesuffix("SetAttribute")
            act = partial(self.set_attribute, kind) if kind != short else getattr(self, short)
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *types)(act))

    def cublasLtGetStatusName(self, status: int) -> bytes:  # noqa: N802
        return f"status {status}".encode()

    def create(self, place: int, **fields: int) -> int:
        self.objects.append(fields)
        ctypes.c_void_p.from_address(place).value = len(self.objects)
        return 0

    def __getitem__(self, number: int) -> dict[Any, Any]:
        return self.objects[number - 1]

    def Create(self, place: int) -> int:  # noqa: N802
        return self.create(place)

    def MatmulDescCreate(self, place: int, compute: int, scale: int) -> int:  # noqa: N802
        return self.create(place, compute=compute, scale=scale)

    def MatrixLayoutCreate(self, place: int, kind: int, rows: int, columns: int, leading: int) -> int:  # noqa: N802
        return self.create(place, kind=kind, rows=rows, columns=columns, leading=leading)

    def MatmulPreferenceCreate(self, place: int) -> int:  # noqa: N802
        return self.create(place)

    def MatmulPreferenceDestroy(self, number: int) -> int:  # noqa: N802
        return 0

    def set_attribute(self, kind: str, number: int, attribute: int, value: int, nbytes: int) -> int:
        if ATTRIBUTE_BYTES[kind].get(attribute) != nbytes:
            return INVALID
        self[number][attribute] = int.from_bytes(ctypes.string_at(value, nbytes), "little", signed=True)
        return 0

    def MatmulAlgoGetHeuristic(self, *given: Any) -> int:  # noqa: N802
        *_, most, found, count = given
        for n in range(min(most, self.algorithms)):
            one = cublas.Heuristic.from_address(found + n * ctypes.sizeof(cublas.Heuristic))
            one.algorithm.data[0], one.state = n, UNSUPPORTED if n == 1 else 0
        ctypes.c_int.from_address(count).value = min(most, self.algorithms)
        return 0

    def Matmul(self, handle: int, product: int, *given: Any) -> int:  # noqa: N802
        alpha, a, layout_a, b, layout_b, beta, c, layout_c, d, layout_d, algorithm, workspace, nbytes, _ = given
        how, (left, right, out) = self[product], (self[n] for n in (layout_a, layout_b, layout_d))
        number = cublas.Algorithm.from_address(algorithm).data[0]
        scales = [ctypes.c_float.from_address(p).value for p in (alpha, beta)]
        if number == 0:
            return FAILED
        if (
            how[7] not in (1, 2, 4, 6)
            or scales != [1, 0]
            or (c, layout_c) != (d, layout_d)
            or how["scale"]
            or not workspace
            or nbytes != 32 << 20
        ):
            return INVALID
        if len({one[5] for one in (left, right, out)}) > 1 or any(o["leading"] < o["rows"] for o in (left, right, out)):
            return INVALID
        for t in range(out[5]):
            x, y, z = (column_major(p, one, t) for p, one in ((a, left), (b, right), (d, out)))
            x, y = x.T if how[3] else x, y.T if how[4] else y
            if (
                x.shape[1] != y.shape[0]
                or z.shape != (x.shape[0], y.shape[1])
                or np.isnan(x).any()
                or np.isnan(y).any()
            ):
                return INVALID
            made = x.astype(np.float32) @ y.astype(np.float32)
            if how[7] & 4:  # a bias, of the result's type: an element a row, the same for all columns and batches
                nbytes = z.shape[0] * z.itemsize
                made += np.ndarray((z.shape[0], 1), z.dtype, (ctypes.c_char * nbytes).from_address(how[8]))
            z[...] = np.maximum(made, 0) if how[7] & 2 else made
        self.ran.append(number)
        return 0


def column_major(address: int, layout: dict[Any, int], batch: int) -> np.ndarray:
    """Matrix number *batch*: element (i, j) at ``i + j * leading``."""
    dtype = np.dtype(NUMBERS[layout["kind"]])
    rows, columns, leading = layout["rows"], layout["columns"], layout["leading"]
    nbytes = ((columns - 1) * leading + rows) * dtype.itemsize
    memory = (ctypes.c_char * nbytes).from_address(address + batch * layout[6] * dtype.itemsize)
    return np.ndarray((rows, columns), dtype, memory, strides=(dtype.itemsize, leading * dtype.itemsize))


@pytest.fixture(scope="module")
def library() -> Iterable[HostLt]:
    made, workspace = HostLt(), HOST.empty(cublas.MAX_WORKSPACE_BYTES, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cublas, "_library", lambda: made)
        patch.setattr(cublas, "_handle", lambda: cublas._created("cublasLtCreate"))
        patch.setattr(cublas, "_workspace", lambda: workspace)
        patch.setattr(cublas, "_BUILT", {})
        for module in (cublas, device, execution):
            patch.setattr(module, "cupy_package", lambda: HOST)
        yield made


def run_for_seconds(library: HostLt) -> Callable[[Call], float]:
    """A timer for which algorithm 3 is the fastest."""

    def seconds(call: Call) -> float:
        call()
        return 1.0 / library.ran[-1]

    return seconds


@st.composite
def products(draw: st.DrawFn) -> tuple[CudaProduct, dict[str, np.ndarray]]:
    """Matrices that are permuted, cut out of larger ones, broadcast along the batch; a bias, and ReLU."""
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    held: dict[str, np.ndarray] = {}
    views = []
    dtype = draw(st.sampled_from((np.float32, np.float16)))
    for name, rows, columns in (("y", m, n), ("a", m, k), ("b", k, n)):
        shape = [*batch, rows, columns]
        order = draw(st.permutations(range(len(shape))))
        starts = [draw(st.integers(0, 1)) for _ in order]
        wider = [start + shape[d] + draw(st.integers(0, 1)) for start, d in zip(starts, order, strict=True)]
        base = (np.arange(prod(wider)).reshape(wider) % 7 - 3).astype(dtype)
        held[name] = base.view(OnHost)
        cut = base[tuple(slice(start, start + shape[d]) for start, d in zip(starts, order, strict=True))].transpose(
            np.argsort(order)
        )
        if name != "y" and batch and draw(st.booleans()):
            cut = np.broadcast_to(cut[:1], cut.shape)
        views.append(view(name, cut, base))
    bias = None
    if draw(st.booleans()):
        held["c"] = (np.arange(n + 2) % 5 - 2).astype(dtype).view(OnHost)
        bias = View("c", draw(st.integers(0, 2)), (n,), (1,))
    return CudaProduct(*views, Epilogue(bias, draw(st.booleans()))), held


@given(products())
def test_cublas_is_given_the_product(library: HostLt, drawn: tuple[CudaProduct, dict[str, np.ndarray]]) -> None:
    step, held = drawn

    def shown(v: View) -> np.ndarray:
        flat = held[v.name].reshape(-1)[v.offset :]
        return np.lib.stride_tricks.as_strided(flat, v.shape, tuple(s * flat.itemsize for s in v.strides))

    before = {name: np.array(x) for name, x in held.items()}
    want = shown(step.left).astype(np.float64) @ shown(step.right)
    want += shown(step.epilogue.bias) if step.epilogue.bias else 0
    want = np.maximum(want, 0) if step.epilogue.relu else want
    calls = gemms(step)
    packed = all(min(v.strides[-2:]) == 1 or 1 in v.shape[-2:] for v in (step.left, step.right))
    # Only what cuBLAS cannot be told is copied: no side packed, or a result whose columns are apart.
    assert calls is not None or not packed or step.out.strides[-1] != 1
    call = cublas.bind_product(step, held, "float32", run_for_seconds(library))
    held["y"][...] = before["y"]
    library.ran.clear()
    call()
    assert library.ran == [3] * (1 if calls is None else len(calls))
    assert (shown(step.out) == want).all()
    touched = np.zeros(held["y"].size, bool)
    np.lib.stride_tricks.as_strided(touched[step.out.offset :], step.out.shape, step.out.strides)[...] = True
    assert (held["y"].reshape(-1)[~touched] == before["y"].reshape(-1)[~touched]).all()
    assert all((held[name] == before[name]).all() for name in held if name != "y")


def test_a_plan_of_products_runs_by_the_library(library: HostLt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "short_call_seconds", run_for_seconds(library))
    program = parse("""
        tensor A[3, 5, 7]
        tensor K[7, 7] weight
        tensor B[7, 3, 6] weight
        W[i:7, b:3, j:6] = sum[k:7] K[i, k] * B[k, b, j]
        Y[b:3, i:5, j:6] = sum[k:7] A[b, i, k] * W[k, b, j]""")
    plan = cuda_plan(program)
    assert plan.once == 1 and {s.op for s in plan.steps} == {"product"}
    random = np.random.default_rng(0)
    a, k, b = (random.integers(-3, 4, t.shape).astype(np.float32) for t in program.inputs)
    made = execution.compile_plan(plan, {"K": k, "B": b})
    library.ran.clear()
    for x in (a, 2 * a):
        assert (made.run({"A": x})["Y"] == np.einsum("bik,kl,lbj->bij", x, k, b)).all()
    assert library.ran == [3, 3]


BIASED = """
    tensor A[6, 5]
    tensor K[5, 12] weight
    tensor b[12] weight
    P[i:6, j:12] = sum[k:5] A[i, k] * K[k, j]
    """


@pytest.mark.parametrize(
    ("after", "steps", "relu"),
    [
        ("Y[i:6, j:12] = float16(relu(P[i, j]) )", 2, False),  # factors of float32 have a result of float32
        ("Y[i:6, j:12] = relu(b[j] + P[i, j])", 1, True),
        ("Q[i:6, j:12] = P[i, j] + b[j]\nY[i:6, j:12] = maximum(Q[i, j], 0)", 1, True),
        ("V[i:6, x:3, y:4] = P[i, 4*x + y]\nY[i:6, x:3, y:4] = V[i, x, y] + b[4*x + y]", 1, False),
        # A row by a matrix is no contraction that tiles serve: it waits for others until its view is reached.
        (
            "Q[j:12] = sum[k:5] A[0, k] * K[k, j]\nV[x:3, y:4] = Q[4*x + y]\nY[x:3, y:4] = V[x, y] + b[4*x + y]",
            1,
            False,
        ),
        ("Y[i:6, j:12] = relu(P[i, j]) + b[j]", 2, False),
        ("V[i:6, x:3, y:4] = P[i, 4*x + y]\nY[i:6, x:3, y:4] = V[i, x, y] + b[y]", 2, False),
        ("Y[i:6, j:12] = P[i, j] + A[i, 0]", 2, False),
        ("Y[i:6, j:12] = P[i, j] + b[11 - j]", 2, False),
        ("Q[i:6, j:12] = relu(P[i, j])\nZ[j:12] = sum[i:6] P[i, j]\nY[i:6, j:12] = Q[i, j] * Z[j]", 3, False),
    ],
)
def test_bias_and_relu_are_the_epilogue_of_the_product_that_they_alone_read(
    monkeypatch: pytest.MonkeyPatch, after: str, steps: int, relu: bool
) -> None:
    kernels = record_kernels(monkeypatch)
    program = parse("\n".join(line.strip() for line in f"{BIASED}{after}\noutput Y".splitlines()))
    views = [replace(e, via=Instance(VIEW)) if e.name == "V" else e for e in program.equations]
    needed = {"Q"} if any(e.name == "Q" and e.scope.summations for e in views) else {"P"}
    program = replace(program, equations=tuple(e for e in views if e.name != "P" or "P" in needed))
    plan = cuda_plan(program)
    (product,) = (s for s in plan.steps if isinstance(s, CudaProduct))
    assert (len(plan.steps), product.epilogue.relu) == (steps, relu)
    assert (needed <= plan.buffers.keys()) == (product.epilogue == Epilogue())
    assert cuda_plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
    random = np.random.default_rng(0)
    feeds = {t.name: random.integers(-3, 4, t.shape).astype(np.float32) for t in program.inputs}
    whole = compose_plans([(plan, {"A": "A", "Y": "Y"})], {"A": (6, 5)}, ["Y"])
    for made, own in ((plan, feeds), (whole, {"A": feeds["A"], "0: K": feeds["K"], "0: b": feeds["b"]})):
        assert (on_cpu(made, own, kernels)["Y"] == evaluate(program, feeds)["Y"]).all()


def test_epilogues_in_half_precision_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = record_kernels(monkeypatch)
    plan = cases.product(6, 5, 12, "float16").plans["ours"]
    (step,) = plan.steps
    assert isinstance(step, CudaProduct) and step.epilogue.bias and step.epilogue.relu
    assert set(plan.dtypes) == set(plan.buffers) == {"A", "W", "b", "Y"}
    random = np.random.default_rng(0)
    a, w, b = (random.standard_normal(plan.buffers[n]).astype(np.float16) for n in "AWb")
    got = on_cpu(plan, {"A": a, "W": w, "b": b}, kernels)["Y"]
    want = np.maximum(a.astype(np.float64) @ w + b, 0)
    assert got.dtype == np.float16 and abs(got - want).max() <= plan.agreement * want.max()


def test_short_calls_are_timed_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "rough_seconds", lambda call: call())
    monkeypatch.setattr(device, "capture_graph", lambda call: lambda: sum(call()) / 2)  # half of it was the host's
    assert device.short_call_seconds(lambda: 1e-5) == pytest.approx(5e-6)
    assert device.short_call_seconds(lambda: 1e-3) == 1e-3


def test_types_and_precision_select_the_way_to_multiply(library: HostLt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "_BUILT", {})
    found = {}
    for dtype, precision in (("float32", "float32"), ("float32", "tf32"), ("float16", "tf32")):
        held = {name: np.ones((2, 2), dtype).view(OnHost) for name in "yab"}
        start = len(library.objects)
        cublas.bind_product(STEP, held, precision, run_for_seconds(library))
        made = library.objects[start:]
        kinds = [one["kind"] for one in made if "kind" in one]
        (preference,) = (one for one in made if one.get(1) == cublas.MAX_WORKSPACE_BYTES)
        alignments = [preference[n] for n in (5, 6, 7, 8)]
        assert all(p % n == 0 for p, n in zip((held[x].data.ptr for x in "bayy"), alignments, strict=True))
        found[dtype, precision] = made[0]["compute"], kinds, preference.get(3)
    assert found == {
        ("float32", "float32"): (68, [0, 0, 0], None),
        ("float32", "tf32"): (77, [0, 0, 0], None),
        ("float16", "tf32"): (68, [2, 2, 2], 2),  # partial sums stay float32
    }


def test_products_that_cublas_does_not_run_are_refused(library: HostLt, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {name: np.ones((2, 2), np.int32).view(OnHost) for name in "yab"}
    with pytest.raises(BackendError, match="a product of int32: cuBLAS takes float32, float16, bfloat16"):
        cublas.bind_product(STEP, held, "float32", run_for_seconds(library))
    monkeypatch.setattr(library, "algorithms", 2)
    monkeypatch.setattr(cublas, "_BUILT", {})
    held = {name: x.astype(np.float32) for name, x in held.items()}
    with pytest.raises(BackendError, match=r"none of its 1 algorithms for 2x2x2 in .*cublasLtMatmul returns status 13"):
        cublas.bind_product(STEP, held, "float32", run_for_seconds(library))


def test_strides_without_a_cublas_call_are_refused() -> None:
    out, right = View("y", 0, (4, 5), (5, 1)), View("b", 0, (3, 5), (5, 1))
    windows = View("a", 0, (4, 3), (1, 1))  # rows of three, one apart
    assert gemms(CudaProduct(out, windows, right)) is None
    assert gemms(CudaProduct(replace(out, strides=(10, 2)), View("a", 0, (4, 3), (3, 1)), right)) is None
    n = MAX_GEMM_CALLS + 1
    many = [View(name, 0, (n, 2, 1, 1), (s, t, 1, 1)) for name, s, t in (("y", 2, 1), ("a", 5, 1), ("b", 5, 2))]
    assert len(gemms(CudaProduct(*many)) or ()) == 2  # the longer way is the batch
    large = [replace(v, shape=(MAX_GEMM_BATCH + 3, *v.shape[1:])) for v in many]
    assert [(g.batch, g.out.offset, g.left.offset) for g in gemms(CudaProduct(*large)) or ()] == [
        *((MAX_GEMM_BATCH, p, p) for p in range(2)),
        *((3, 2 * MAX_GEMM_BATCH + p, 5 * MAX_GEMM_BATCH + p) for p in range(2)),
    ]
    square = [replace(v, shape=(n, n, 1, 1)) for v in many]
    assert gemms(CudaProduct(*square)) is None


STEP = CudaProduct(View("y", 0, (2, 2), (2, 1)), View("a", 0, (2, 2), (2, 1)), View("b", 0, (2, 2), (2, 1)))


def test_a_plan_carries_its_precision() -> None:
    plan = CudaPlan(dict.fromkeys("yab", (2, 2)), ("a", "b"), (), ("y",), (STEP,))
    allowed = {}
    for precision, bits in PRECISIONS.items():
        made = replace(plan, precision=precision)
        assert cuda_plan_from_json(json.loads(json.dumps(made.to_json()))) == made
        allowed[precision] = made.agreement
        assert (precision in made.numerics) and (precision == "float32" or f"2^-{bits}" in made.numerics)
    assert allowed["float32"] == 1e-4 < allowed["tf32"] == allowed["float16"] == 2**-8 < allowed["bfloat16"] == 2**-5
    ours = replace(plan, steps=(CudaLaunch("k", "", (1, 1, 1), (1, 1, 1), ()),), precision="tf32")
    assert ours.agreement == 1e-4 and "as they are" in ours.numerics  # no library multiplies in it
    with pytest.raises(ValueError, match="precision 'float8': expected one of float32, tf32"):
        replace(plan, precision="float8")
    with pytest.raises(ValueError, match="precision 'float8'"):
        cuda_plan_from_json({**plan.to_json(), "precision": "float8"})


@given(st.sampled_from([p for p in PRECISIONS if p != "float32"]), st.integers(0, 2**32 - 1))
def test_the_error_allowed_covers_rounded_factors(precision: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((2, 24, 24))

    def rounded(x: np.ndarray) -> np.ndarray:
        m, e = np.frexp(x)
        return np.ldexp(np.round(m * 2.0 ** PRECISIONS[precision]), e - PRECISIONS[precision])

    want = a @ b
    error = np.abs(rounded(a) @ rounded(b) - want).max() / np.abs(want).max()
    assert 1e-5 < error < replace(CudaPlan({}, (), (), (), (STEP,)), precision=precision).agreement


def conv(kind: str, out: Any, data: Any, weights: Any, **more: Any) -> Convolution:
    half = len(out) - 2
    packed = [
        View(n, 0, s, tuple(prod(s[d + 1 :]) for d in range(len(s))))
        for n, s in zip("yxw", (out, data, weights), strict=True)
    ]
    how = {"strides": (1,) * half, "dilations": (1,) * half, "pads": (1,) * 2 * half, "output_padding": (0,) * half}
    return Convolution(kind, *packed, **{**how, "group": 1, **more})


def test_cudnn_graph_has_the_parameters_of_the_convolution() -> None:
    cudnn = pytest.importorskip("cudnn", reason="the cuDNN frontend is not installed")
    step = conv("Conv", (1, 4, 4, 9), (1, 8, 7, 9), (4, 8, 3, 3), strides=(2, 1), pads=(1, 0, 1, 2))
    made = convolutions.cudnn_graph(cudnn, step)
    (node,) = made.nodes
    assert node.params == {"pre_padding": [1, 0], "post_padding": [1, 2], "stride": [2, 1], "dilation": [1, 1]}
    assert [t.dim for t in made.tensors.values()] == [[1, 8, 7, 9], [4, 8, 3, 3], [1, 4, 4, 9]]
    step = conv("ConvTranspose", (1, 4, 8, 8), (1, 8, 4, 4), (8, 4, 4, 4), strides=(2, 2))
    (node,) = convolutions.cudnn_graph(cudnn, step).nodes
    assert "DGRAD" in str(node) and set(node.inputs) == {"loss", "filter"}
    assert len(convolutions.excluded_notes(cudnn, "float32")) == 2 > len(convolutions.excluded_notes(cudnn, "tf32"))


def test_one_dimensional_convolution_is_a_convolution_of_one_row() -> None:
    step = conv("Conv", (2, 4, 7), (2, 8, 7), (4, 8, 3), pads=(0, 2))
    made = convolutions.with_two_spatial_dimensions(step)
    assert made.data.shape == (2, 8, 1, 7) and made.data.strides == (56, 7, 7, 1)
    assert made.pads == (0, 0, 0, 2) and made.strides == (1, 1) and made.kind == "Conv"
    turned = replace(step, kind="ConvTranspose", strides=(3,))
    assert convolutions.torch_output_padding(replace(turned, pads=(2, 1))) == (1,)
    for pads in ((0, 2), (3, 0)):
        with pytest.raises(BackendError, match=r"paddings .*: torch takes no"):
            convolutions.torch_output_padding(replace(turned, pads=pads))
