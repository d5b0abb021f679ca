"""``ee.fuse``: functions over arrays as one kernel, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import einnet_explore as ee
from einnet_evaluation.gpu_emulation import Elementwise
from einnet_explore.codegen.elementwise import aligned_kernel
from einnet_explore.codegen.fusion.frame import FusedLayout
from einnet_explore.codegen.fusion.gpu import gpu_kernel
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.statements import Kernel
from einnet_explore.codegen.language.values import F32, Type
from einnet_explore.runtime import compiled, fused
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.c_kernels import load_c_kernel
from einnet_explore.runtime.cuda import fused as cuda_fused
from einnet_explore.runtime.cuda import nvrtc
from einnet_explore.support.errors import BackendError, Refused


def softmax(x, w):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, w):
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w


def batch_norm(x, w):
    return (x - np.mean(x, axis=(0, 1), keepdims=True)) / np.sqrt(np.var(x, axis=(0, 1), keepdims=True) + 1e-5) * w


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def clipped_in_place(x):
    e = x * 2
    np.minimum(e, 5, out=e)
    e -= x
    return e


def centred(x):
    x = x - x.mean(axis=1, keepdims=True)
    return x, x.any(axis=1, keepdims=True)


FUNCTIONS: list[Callable[[Array, Array], object]] = [
    softmax, layer_norm, batch_norm, lambda x, w: gelu(x), lambda x, w: clipped_in_place(x), lambda x, w: centred(x),
    lambda x, w: x + w, lambda x, w: w - x, lambda x, w: 2 - x, lambda x, w: x * w / 3, lambda x, w: -x + 1,
    lambda x, w: x**2, lambda x, w: x**3, lambda x, w: np.abs(x) ** 1.5, lambda x, w: 1 / (1 + np.exp(-x * 1.0)),
    lambda x, w: np.tanh(x + 0.5) - w, lambda x, w: np.maximum(x, 0), lambda x, w: np.minimum(w, x),
    lambda x, w: np.log(np.abs(x) + 1.0), lambda x, w: np.square(x).sum(), lambda x, w: x.sum(axis=0),
    lambda x, w: x.mean(axis=(0, 2)), lambda x, w: x.std(axis=1, ddof=1), lambda x, w: np.max(x, axis=-1),
    lambda x, w: np.min(x, axis=1, keepdims=True), lambda x, w: (x, x), lambda x, w: x,
    lambda x, w: (x.mean(axis=0), x.var(axis=0), w), lambda x, w: x - x.mean(), lambda x, w: np.prod(x, axis=1),
    lambda x, w: x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6), lambda x, w: +x,
    lambda x, w: np.reciprocal(np.abs(x) + 1), lambda x, w: np.where(x > w, x, w), lambda x, w: np.where(x, 1, w),
    lambda x, w: np.where(x < 0, 0.1 * x, x), lambda x, w: x > w, lambda x, w: (x <= 0) | (w >= x),
    lambda x, w: (x == w) & (x != 2), lambda x, w: ~(x < w), np.logical_xor,
    lambda x, w: np.logical_not(x), lambda x, w: np.logical_and(x > 0, w), lambda x, w: x.argmax(),
    lambda x, w: x.argmax(axis=1), lambda x, w: np.argmin(x, axis=-1), lambda x, w: x.argmin(axis=0, keepdims=True),
    lambda x, w: x.any(), lambda x, w: (x > 0).all(axis=2), lambda x, w: np.any(x, axis=0),
    lambda x, w: np.all(x, axis=(1, 2)), lambda x, w: np.count_nonzero(x, axis=1), lambda x, w: (x > w).sum(axis=-1),
    lambda x, w: np.clip(x, -1, 2), lambda x, w: np.sign(x), lambda x, w: np.isnan(x / w), lambda x, w: np.isfinite(x),
    lambda x, w: np.isinf(x / w), lambda x, w: x.astype("int32") * 100_000 * 100_000, lambda x, w: x.astype(bool),
    lambda x, w: x * np.float64(0.5), lambda x, w: x + np.int64(3), lambda x, w: x - x.max(axis=0),
    lambda x, w: x * True,
    lambda x, w: (np.isnan(x) | (x > 0)).sum(), lambda x, w: np.exp2(x / 4), lambda x, w: (x - w).prod(axis=2),
]  # fmt: skip
BOOL_REFUSALS = [0, 7, 10, 11, 14, 19, 31, 32, 54, 62, 66]
TYPES = ("float32", "float64", "int32", "bool")


def arguments(dtype: str) -> tuple[Array, Array]:
    """A strided array and a row, with zeros and equal elements; integers whose products overflow."""
    source = np.random.default_rng(0)
    x = source.integers(-3, 4, (4, 6, 5)) * (40_000 if dtype == "int32" else 1)
    x = (x + source.standard_normal(x.shape) * (dtype[:5] == "float")).astype(dtype)
    return x.transpose(1, 0, 2)[::2], source.integers(-2, 3, 5).astype(dtype)


@np.errstate(all="ignore")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flags", [("-O0",), pytest.param(fused.FLAGS, marks=pytest.mark.slow)], ids=["O0", "O3"])
@pytest.mark.parametrize("dtype", TYPES)
def test_functions_equal_numpy(dtype: str, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """All functions of a type are one kernel with many results; without optimisation it compiles in a second."""
    monkeypatch.setattr(fused, "FLAGS", flags)
    monkeypatch.setattr(fused, "_function", fused._function.__wrapped__)
    x, w = arguments(dtype)
    wanted, able, refused = [], [], []
    for number, function in enumerate(FUNCTIONS):
        try:
            ee.fuse(function).program(x.shape, w.shape, dtype=dtype)
        except Refused:
            refused.append(number)
            continue
        value = function(x, w)
        able.append(function)
        wanted += value if isinstance(value, tuple) else (value,)

    def every(x, w):
        return tuple(v for f in able for r in (f(x, w),) for v in (r if isinstance(r, tuple) else (r,)))

    assert len(able) + len(refused) == len(FUNCTIONS) >= 60
    # A reciprocal of integers; functions of truth values that NumPy refuses or computes in float16 and int8.
    assert refused == {"int32": [32], "bool": BOOL_REFUSALS}.get(dtype, [])
    results = ee.fuse(every)(x, w)
    assert len(results) == len(wanted)
    for n, (a, b) in enumerate(zip(wanted, results, strict=True)):
        assert (b.shape, b.dtype) == (np.shape(a), np.asarray(a).dtype), n
        np.testing.assert_allclose(b, a, rtol=2e-5 if b.dtype == "float32" else 1e-12, atol=1e-5, err_msg=str(n))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_values_of_16_bits_are_computed_in_float32_and_rounded_once(dtype: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(fused, "FLAGS", ("-O0",))
    x, w = (a.astype(dtype) for a in arguments("float32"))

    def every(x, w):
        return softmax(x, w), layer_norm(x, w), x.sum(axis=0), (x * 3).astype("float32").astype(dtype), x > w

    exact = every(x.astype(np.float64), w.astype(np.float64))
    for found, want, as_numpy in zip(ee.fuse(every)(x, w), exact, every(x, w), strict=True):
        assert found.dtype == as_numpy.dtype
        digits = 8 if dtype == ml_dtypes.bfloat16 else 11
        np.testing.assert_allclose(found.astype(np.float64), want, rtol=1.01 * 2.0**-digits, atol=1e-6)


def test_kernels_are_reused_numbers_are_arguments_and_keywords_constants() -> None:
    calls = []

    @ee.fuse
    def scaled(x, k, axis):
        calls.append(axis)
        return x.sum(axis=axis) * k

    x = np.arange(6.0).reshape(2, 3)
    assert scaled(x, 2.0, axis=0).tolist() == [6, 10, 14]
    assert scaled(x, 3.0, axis=0).tolist() == [9, 15, 21]
    assert scaled(x, 1.0, axis=1).tolist() == [3, 12]
    assert calls == [0, 1]


def test_mixed_types_and_python_numbers_are_promoted_as_in_numpy() -> None:
    def mixed(x, n, b, k, j):
        return (
            x * (k**2),
            x + n,
            x * b,
            n * b,
            n + k,
            x * k,
            x * (k - 1),
            n + j,
            n / 2,
            b + 1,
            b * 2.0,
            np.where(b, n, k),
            b | (n > j),
        )

    x, n, b = np.linspace(-1, 1, 4, dtype="float32"), np.arange(4, dtype="int32"), np.arange(4) % 2 == 0
    function = ee.fuse(threads=2)(mixed)
    for a, found in zip(mixed(x, n, b, 1.5, 7), function(x, n, b, 1.5, 7), strict=True):
        assert found.dtype == a.dtype
        np.testing.assert_allclose(found, a, rtol=1e-6)
    with pytest.raises(Refused, match="a Python integer that is too large for int32"):
        function(x, n, b, 1.5, 1 << 40)
    with pytest.raises(Refused, match="arithmetic of Python integers alone"):
        ee.fuse(lambda x, j: x * (j + 1))(x, 3)
    with pytest.raises(Refused, match="in_j is 1000000000000000000000: expected an integer of at most 64 bits"):
        function(x, n, b, 1.5, 10**21)


@np.errstate(all="ignore")
def test_integers_wrap_and_special_values_are_those_of_numpy() -> None:
    def edges(n, x):
        return (
            n * n,
            n + n,
            -n,
            abs(n),
            n**5,
            n.sum(),
            x.argmax(),
            x.argmin(),
            x.max(),
            x.any(),
            x.min() <= x,
            np.where(x > 0, 1 / x, 0),
        )

    n = np.array([-(1 << 31), (1 << 31) - 1, 1 << 30, 77_777], "int32")
    x = np.array([0.0, np.inf, np.nan, -np.inf], "float32")
    for a, b in zip(edges(n, x), ee.fuse(edges)(n, x), strict=True):
        np.testing.assert_array_equal(b, a)
        assert b.dtype == a.dtype


def test_results_in_given_arrays() -> None:
    double = ee.fuse(lambda x: x * 2)
    x, y = np.arange(4.0), np.zeros((4, 2))
    double(x, out=y[:, 1])
    assert y.tolist() == [[0, 0], [0, 2], [0, 4], [0, 6]]
    double(x[:3], out=x[1:])
    assert x.tolist() == [0, 0, 2, 4]
    twice = ee.fuse(lambda x: (x * 2, x + 1))
    with pytest.raises(BackendError, match="out_1 overlaps out_0"):
        twice(x[:3], out=(y[:3, 0], y[1:, 0]))
    twice(x, out=(y[:, 0], y[:, 1]))
    assert y.tolist() == [[0, 1], [0, 1], [4, 3], [8, 5]]
    with pytest.raises(BackendError, match="out_0 is int32, expected float64"):
        double(x, out=np.zeros(4, "int32"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.sort(x) + 1, "np.sort has no kernel"),
        (lambda x: np.arctan(x) + 1, "np.arctan has no kernel"),
        (lambda x: x if x else -x, "a condition on values"),
        (lambda x: x + np.ones(3), "ndarray is not traced"),
        (lambda x: x.sum(axis=4), "axis 4 of an array with 1 axes"),
        (lambda x: x[0], "not subscriptable"),
        (lambda x: x.reshape(3, 1), "no attribute 'reshape'"),
        (lambda x: np.reciprocal(x.astype("int32")), "/ of int32 has no kernel"),
        (lambda x: (x > 0) - (x > 1), "boolean subtract"),
        (lambda x: np.add(x > 0, np.int8(1)), "makes int8: it has no kernel"),
        (lambda x: x.astype("int32") + (1 << 31), "2147483648 out of bounds for int32"),
        (lambda x: x.astype("int32") ** x.astype("int32"), "needs a constant exponent"),
        (lambda x: x.astype("int8"), "int8: expected one of bool, int32"),
        (lambda x: np.add(x, 1, out=x), "changes an argument in place"),
        (lambda x: np.multiply(x.sum(), x, out=x.sum()), r"makes shape \(3,\), in place of \(\)"),
        (lambda x: np.add(x > 0, x, out=x > 1), "makes float32, which is not cast to bool"),
        (lambda x: np.add(x, x, where=True), "np.add with where"),
        (lambda x: np.add.accumulate(x + 1), "np.add.accumulate has no kernel"),
        (lambda x: np.add(x, 1, out=np.ones(3)), "no value of this function"),
        (lambda x: x + 1j, "complex is not traced"),
    ],
)
def test_refusals_name_the_line(function: Callable[[Array], object], message: str) -> None:
    line = function.__code__.co_firstlineno
    with pytest.raises(Refused, match=rf"test_array_functions.py:{line}: .*{message}"):
        ee.fuse(function)(np.ones(3, "float32"))


def test_other_types_are_refused() -> None:
    with pytest.raises(Refused, match="in_y is int8: expected one of bool, int32, int64, float32, float64, float16, b"):
        ee.fuse(lambda x, y: x + y)(np.ones(3, "float32"), np.ones(3, "int8"))
    with pytest.raises(Refused, match="2 types for 1 arrays"):
        ee.fuse(lambda x: x + 1).program((3,), dtype=("int32", "bool"))
    with pytest.raises(BackendError, match="threads=0, expected at least 1"):
        ee.fuse(threads=0)(lambda x: x + 1)


def test_an_array_by_keyword_is_refused() -> None:
    with pytest.raises(Refused, match="y is a ndarray: a keyword argument is a constant"):
        ee.fuse(lambda x, y: x + y)(np.ones(3), y=np.ones(3))


def test_a_function_without_python_source_is_refused_with_its_name() -> None:
    with pytest.raises(Refused, match="sort, which has no Python source"):
        ee.fuse(np.sort)(np.ones((3, 4), np.float32))
    with pytest.raises(Refused, match="sorted, which has no Python source"):
        ee.fuse(sorted)(np.ones((3, 4), np.float32))


class DeviceArray(np.ndarray):
    """An array that says that it is CuPy's."""

    @property
    def __cuda_array_interface__(self) -> object:
        return self.__array_interface__

    @property
    def memory(self) -> Array:
        """The elements from the first to the last, as a kernel finds them at the address."""
        span = 1 + sum((n - 1) * k for n, k in zip(self.shape, self.strides, strict=True)) // self.itemsize
        return np.lib.stride_tricks.as_strided(self.view(np.ndarray), (span,), (self.itemsize,))


def statistics(x, w):
    e = np.where(x > w, x, 0)
    return e.sum(axis=-1, keepdims=True) * x, x.argmax(axis=1), (x > 0).any(axis=(0, 1)), x.mean(axis=0)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_cupy_arrays_have_kernels_for_their_device(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of kernels for GPUs, printed as C, computes the same in blocks of threads; NVRTC compiles it."""
    launched = []

    def load(name: str, text: str) -> Callable[..., None]:
        kernel = next(k for k in written if emit(k, "cuda") == text)
        if nvrtc.nvrtc_available():
            assert nvrtc.compile_text(text, name, "compute_80").code
        launched.append(text)
        return lambda grid, block, values: load_c_kernel(kernel)(
            *(getattr(v, "memory", v) if isinstance(v, np.ndarray) else v.item() for v in values), grid=grid
        )

    def write(flat: FusedLayout, kind: Type) -> Kernel:
        written.append(gpu_kernel(flat, kind))
        return written[-1]

    written: list[Kernel] = []
    library = SimpleNamespace(empty=lambda shape, kind: np.empty(shape, kind).view(DeviceArray), asarray=np.asanyarray)
    monkeypatch.setattr(cuda_fused, "cupy_package", lambda: library)
    monkeypatch.setattr(cuda_fused, "gpu_kernel", write)
    monkeypatch.setattr(cuda_fused, "load_cuda_text", load)
    x, w = arguments(dtype)
    function = ee.fuse(statistics)
    for given in (x, x.copy()):
        for a, b in zip(statistics(given, w), function(given.view(DeviceArray), w.view(DeviceArray)), strict=True):
            assert isinstance(b, DeviceArray) and b.dtype == a.dtype
            np.testing.assert_allclose(b, a, rtol=1e-5)
    assert launched and all("__global__" in text for text in launched)
    with pytest.raises(BackendError, match="in_x is on a GPU and in_w is not"):
        function(x.view(DeviceArray), w)


def test_elementwise_functions_take_one_shape_and_are_functors() -> None:
    def swish(x, scale):
        return np.where(x > -2, x / (1 + np.exp(-x)), 0) * scale

    x = np.linspace(-4, 4, 1003, dtype="float32")
    function = ee.elementwise(swish)
    np.testing.assert_allclose(function(x, 2.0), swish(x, 2.0), rtol=1e-5)
    functor = function.functor("float32", "float32", numbers=1)
    assert (functor.name, functor.output, functor.computed) == ("swish", F32, F32)
    assert "pack_16" in emit(aligned_kernel(functor, x.size), "cuda")
    found = np.empty_like(x)
    Elementwise(functor, "c blocks")(found, x, np.array([2], "float32"))
    np.testing.assert_allclose(found, swish(x, 2.0), rtol=1e-5)
    wanted = swish(x, 2.0)
    assert function(x, 2.0, out=x) is x
    np.testing.assert_allclose(x, wanted, rtol=1e-5)


def test_other_functions_are_not_elementwise() -> None:
    line = test_other_functions_are_not_elementwise.__code__.co_firstlineno
    with pytest.raises(Refused, match=rf"py:{line + 3}: a sum over several positions is not element-wise"):
        ee.elementwise(lambda x: x / x.sum())(np.ones(3))
    with pytest.raises(Refused, match=r"arrays of shapes \(3,\), \(2, 3\): an element-wise function takes one"):
        ee.elementwise(lambda x, y: x + y)(np.ones(3), np.ones((2, 3)))
    with pytest.raises(Refused, match="value_0 is computed in float64, and the functor in int32"):
        ee.elementwise(lambda x: (x / 2).astype("int32")).functor("int32")
    with pytest.raises(Refused, match="2 results: a functor has one"):
        ee.elementwise(lambda x: (x, x)).functor("int32")
