"""Products as cuBLAS takes them, computed here by its definition on flat memory; precisions; the cuDNN frontend."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.runtime.cuda import convolutions, execution
from einnet_explore.runtime.cuda.execution import MAX_GEMM_CALLS, Gemm, gemms
from einnet_explore.runtime.cuda.steps import (
    PRECISIONS,
    Convolution,
    CudaLaunch,
    CudaPlan,
    CudaProduct,
    View,
    cuda_plan_from_json,
)
from einnet_explore.support.errors import BackendError


def view(name: str, array: np.ndarray, base: np.ndarray) -> View:
    offset = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // base.itemsize
    return View(name, offset, array.shape, tuple(s // base.itemsize for s in array.strides))


def column_major(flat: np.ndarray, offset: int, leading: int, rows: int, columns: int) -> np.ndarray:
    """A matrix as BLAS means it: element (i, j) at offset + i + j·leading; rows may not be longer than that."""
    assert leading >= max(1, rows)
    i, j = np.ogrid[:rows, :columns]
    return offset + i + j * leading


def blas(g: Gemm, held: dict[str, np.ndarray]) -> None:
    """Emulate ``gemmStridedBatchedEx`` as documented, with the arguments that ``cupy`` passes."""
    (ta, tb), (m, n, k), a, b, c, batch = execution._gemm_arguments(g, {name: _Device(x) for name, x in held.items()})
    for t in range(batch):
        first, second, out = (
            column_major(held[name].reshape(-1), at + t * step, leading, *shape)
            for name, (at, leading, step), shape in (
                (g.right.name, a, (k, m) if ta else (m, k)),
                (g.left.name, b, (n, k) if tb else (k, n)),
                (g.out.name, c, (m, n)),
            )
        )
        left, right = held[g.right.name].reshape(-1)[first], held[g.left.name].reshape(-1)[second]
        held[g.out.name].reshape(-1)[out] = (left.T if ta else left) @ (right.T if tb else right)


class _Device:
    """An array whose memory begins at address 0, of elements of one byte: addresses are places in it."""

    itemsize = 1

    def __init__(self, array: np.ndarray) -> None:
        self.data = type("Pointer", (), {"ptr": 0})


@st.composite
def products(draw: st.DrawFn) -> tuple[CudaProduct, dict[str, np.ndarray]]:
    """Matrices that are permuted, cut out of larger ones, broadcast along the batch."""
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    m, n, k = (draw(st.integers(1, 4)) for _ in range(3))
    held: dict[str, np.ndarray] = {}
    views = []
    for name, rows, columns in (("y", m, n), ("a", m, k), ("b", k, n)):
        shape = [*batch, rows, columns]
        order = draw(st.permutations(range(len(shape))))
        wider = [shape[d] + draw(st.integers(0, 2)) for d in order]
        base = np.arange(prod(wider), dtype=np.int64).reshape(wider) % 7 - 3
        held[name] = base
        cut = base[tuple(slice(0, shape[d]) for d in order)].transpose(np.argsort(order))
        if name != "y" and batch and draw(st.booleans()):
            cut = np.broadcast_to(cut[:1], cut.shape)
        views.append(view(name, cut, base))
    return CudaProduct(*views), held


@given(products())
def test_cublas_is_given_the_product(drawn: tuple[CudaProduct, dict[str, np.ndarray]]) -> None:
    step, held = drawn

    def shown(v: View) -> np.ndarray:
        flat = held[v.name].reshape(-1)[v.offset :]
        return np.lib.stride_tricks.as_strided(flat, v.shape, tuple(s * 8 for s in v.strides))

    before = {name: x.copy() for name, x in held.items()}
    want = shown(step.left) @ shown(step.right)
    calls = gemms(step)
    packed = all(min(v.strides[-2:]) == 1 or 1 in v.shape[-2:] for v in (step.left, step.right))
    if calls is None:
        # Only what cuBLAS cannot be told: no side packed, or a result whose columns are apart.
        assert not packed or step.out.strides[-1] != 1
        return
    for g in calls:
        blas(g, held)
    assert (shown(step.out) == want).all()
    touched = np.zeros(held["y"].size, bool)
    np.lib.stride_tricks.as_strided(touched[step.out.offset :], step.out.shape, tuple(s for s in step.out.strides))[
        ...
    ] = True
    assert (held["y"].reshape(-1)[~touched] == before["y"].reshape(-1)[~touched]).all()
    assert all((held[name] == before[name]).all() for name in "ab")


def test_strides_without_a_cublas_call_are_refused() -> None:
    out, right = View("y", 0, (4, 5), (5, 1)), View("b", 0, (3, 5), (5, 1))
    windows = View("a", 0, (4, 3), (1, 1))  # rows of three, one apart
    assert gemms(CudaProduct(out, windows, right)) is None
    assert gemms(CudaProduct(replace(out, strides=(10, 2)), View("a", 0, (4, 3), (3, 1)), right)) is None
    n = MAX_GEMM_CALLS + 1
    many = [View(name, 0, (n, 2, 1, 1), (s, t, 1, 1)) for name, s, t in (("y", 2, 1), ("a", 5, 1), ("b", 5, 2))]
    assert len(gemms(CudaProduct(*many)) or ()) == 2  # the longer way is the batch
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
