"""``ee.fuse``: functions over arrays as one kernel, compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.runtime.arrays import Array
from einnet_explore.support.errors import BackendError, Refused


def softmax(x, w):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, w):
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * w


def batch_norm(x, w):
    return (x - np.mean(x, axis=(0, 1), keepdims=True)) / np.sqrt(np.var(x, axis=(0, 1), keepdims=True) + 1e-5) * w


FUNCTIONS: list[Callable[[Array, Array], object]] = [
    softmax, layer_norm, batch_norm,
    lambda x, w: x + w, lambda x, w: w - x, lambda x, w: 2 - x, lambda x, w: x * w / 3, lambda x, w: -x + 1,
    lambda x, w: x**2, lambda x, w: np.abs(x) ** 1.5, lambda x, w: 1 / (1 + np.exp(-x)), lambda x, w: np.tanh(x) - w,
    lambda x, w: np.maximum(x, 0), lambda x, w: np.minimum(w, x), lambda x, w: np.log(np.abs(x) + 1),
    lambda x, w: np.square(x).sum(), lambda x, w: x.sum(axis=0), lambda x, w: x.mean(axis=(0, 2)),
    lambda x, w: x.std(axis=1, ddof=1), lambda x, w: np.max(x, axis=-1), lambda x, w: np.min(x, axis=1, keepdims=True),
    lambda x, w: (x, x), lambda x, w: (x.mean(axis=0), x.var(axis=0), w), lambda x, w: x,
    lambda x, w: x - x.mean(), lambda x, w: x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6),
    lambda x, w: np.prod(x, axis=1), lambda x, w: +x, lambda x, w: np.reciprocal(np.abs(x) + 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_equals_numpy(number: int, dtype: str) -> None:
    function = FUNCTIONS[number]
    source = np.random.default_rng(number)
    x = source.standard_normal((4, 6, 5)).astype(dtype).transpose(1, 0, 2)[::2]  # strided
    w = source.standard_normal(5).astype(dtype)
    wanted, found = function(x, w), ee.fuse(function)(x, w)
    pairs = zip(wanted, found, strict=True) if isinstance(wanted, tuple) else [(wanted, found)]
    for a, b in pairs:
        assert (b.shape, b.dtype) == (np.shape(a), dtype)
        np.testing.assert_allclose(b, a, rtol=2e-5 if dtype == "float32" else 1e-12, atol=1e-5)


def test_kernels_are_reused_numbers_are_arguments_and_keywords_constants() -> None:
    calls = []

    @ee.fuse
    def scaled(x, k, axis):
        calls.append(axis)
        return x.sum(axis=axis) * k

    x = np.arange(6.0).reshape(2, 3)
    assert scaled(x, 2, axis=0).tolist() == [6, 10, 14]
    assert scaled(x, 3.0, axis=0).tolist() == [9, 15, 21]
    assert scaled(x, 1, axis=1).tolist() == [3, 12]
    assert calls == [0, 1]


def test_results_in_given_arrays() -> None:
    double = ee.fuse(lambda x: x * 2)
    x, y = np.arange(4.0), np.zeros((4, 2))
    double(x, out=y[:, 1])
    assert y.tolist() == [[0, 0], [0, 2], [0, 4], [0, 6]]
    with pytest.raises(BackendError, match="out_0 overlaps in_x"):
        double(x[:3], out=x[1:])


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
        (lambda x: x * np.float64(2), "makes float64 values"),
    ],
)
def test_refusals_name_the_line(function: Callable[[Array], object], message: str) -> None:
    line = function.__code__.co_firstlineno
    with pytest.raises(Refused, match=rf"test_array_functions.py:{line}: .*{message}"):
        ee.fuse(function)(np.ones(3, "float32"))


def test_other_types_are_refused() -> None:
    with pytest.raises(BackendError, match="in_y is float64, expected float32"):
        ee.fuse(lambda x, y: x + y)(np.ones(3, "float32"), np.ones(3))
    with pytest.raises(BackendError, match="int64"):
        ee.fuse(lambda x: x + 1)(np.ones(3, "int64"))


def test_an_array_by_keyword_is_refused() -> None:
    with pytest.raises(Refused, match="y is a ndarray: a keyword argument is a constant"):
        ee.fuse(lambda x, y: x + y)(np.ones(3), y=np.ones(3))


def test_a_function_without_python_source_is_refused_with_its_name() -> None:
    with pytest.raises(Refused, match="sort, which has no Python source"):
        ee.fuse(np.sort)(np.ones((3, 4), np.float32))
    with pytest.raises(Refused, match="sorted, which has no Python source"):
        ee.fuse(sorted)(np.ones((3, 4), np.float32))
