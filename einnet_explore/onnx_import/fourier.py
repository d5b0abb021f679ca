r"""ONNX's DFT and STFT: products with the matrix of the discrete Fourier transform, whose parts are real.

.. math::  Y[\dots, k, \dots] = \sum_n X[\dots, n, \dots]\, e^{\mp 2 \pi i\, n k / N}, \qquad
           Y[b, f, k] = \sum_n X[b, f s + n]\, w[n]\, e^{-2 \pi i\, n k / N}

The last dimension has the real and the imaginary part.  The matrices, with the window, are weights that the model gets
when it is loaded.  Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from einnet_explore.ir import Equation, Iterator, Scope, mul
from einnet_explore.onnx_import.model import Array
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, extent_iterators
from einnet_explore.support.errors import Refused

MAX_MATRIX_ELEMENTS = 1 << 22
"""Elements of a matrix: of more, a fast algorithm needs far fewer products."""


def _axis(call: NodeCall) -> int:
    """Return the dimension that a DFT transforms: an input since operator set 20, before an attribute."""
    rank = len(call.shape(0))
    given = call.integers(2, "axis", (-2,)) if call.opset >= 20 else (call.get("axis", 1),)
    axis = call.axis(given[0] if given else -2, rank)
    if axis == rank - 1:
        raise Refused(f"axis {axis} has the real and the imaginary parts")
    return axis


def _dft_matrix(call: NodeCall) -> Sequence[Array]:
    axis, shape = _axis(call), call.shape(0)
    length = int(call.constant(1, "dft_length").reshape(())) if call.has(1) else shape[axis]
    inverse, onesided = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    if inverse and onesided:
        raise Refused("it is inverse and onesided")
    return (_matrix(call, min(length, shape[axis]), length, shape[-1], inverse=inverse),)


def _stft_matrix(call: NodeCall) -> Sequence[Array]:
    length = _frame_length(call)
    window = call.constant(2, "window").reshape(-1) if call.has(2) else np.ones(length)
    if len(window) != length:
        raise Refused(f"its window has {len(window)} elements, its frames have {length}")
    matrix = _matrix(call, length, length, _parts(call))
    return (matrix * window.astype(matrix.dtype).reshape(-1, *[1] * (matrix.ndim - 1)),)


def _matrix(call: NodeCall, reads: int, length: int, parts: int, inverse: bool = False) -> Array:
    """Return the coefficients of the transform of *length* numbers, of which *reads* are not 0.

    Dimensions: numbers, their *parts* if they are complex, results, and the parts of these.
    """
    if parts not in (1, 2):
        raise Refused(f"its last dimension has {parts} elements, expected a real or also an imaginary part")
    bins = call.out.shape[-2] if call.node.op == "STFT" else call.out.shape[_axis(call)]
    if (size := 2 * parts * reads * bins) > MAX_MATRIX_ELEMENTS:
        raise Refused(f"its matrix has {size} elements, at most {MAX_MATRIX_ELEMENTS} are multiplied")
    angles = 2 * np.pi / length * (np.outer(np.arange(reads), np.arange(bins)) % length)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    of_real = np.stack([cosine, sine], -1)
    matrix = of_real if parts == 1 else np.stack([of_real, np.stack([-sine, cosine], -1)], 1)
    return np.asarray(matrix / length if inverse else matrix, call.model.dtype(call.node.outputs[0]))


def _parts(call: NodeCall) -> int:
    """Return 2 if the signal of an STFT is complex, else 1."""
    shape = call.shape(0)
    return shape[-1] if len(shape) == 3 else 1


def _frame_length(call: NodeCall) -> int:
    if call.has(3):
        return int(call.constant(3, "frame_length").reshape(()))
    if call.has(2):
        return call.shape(2)[0]
    raise Refused("it has neither a window nor a frame length")


def _dft(call: NodeCall) -> Iterable[Equation]:
    axis, shape = _axis(call), call.shape(0)
    matrix = call.weight(0, _dft_matrix)
    xs = extent_iterators(call.out.shape)
    n, part = Iterator("n", 0, matrix.shape[0]), Iterator("p", 0, shape[-1])
    is_complex = shape[-1] == 2
    at = [n if d == axis else x for d, x in enumerate(xs[:-1])]
    coefficients = access(matrix, n, *([part] if is_complex else []), xs[axis], xs[-1])
    sums = (n, part) if is_complex else (n,)
    yield call.equation(Scope(xs, sums, mul(access(call.tensor(0), *at, part if is_complex else 0), coefficients)))


def _stft(call: NodeCall) -> Iterable[Equation]:
    shape, step = call.shape(0), int(call.constant(1, "frame_step").reshape(()))
    matrix = call.weight(0, _stft_matrix)
    xs = batch, frame, bin_, result = extent_iterators(call.out.shape)
    last = (frame.extent - 1) * step + matrix.shape[0]
    if last > shape[1]:
        raise Refused(f"its frames read {last} elements, its signal has {shape[1]}")
    n, part = Iterator("n", 0, matrix.shape[0]), Iterator("p", 0, 2)
    is_complex = _parts(call) == 2
    at = [batch, frame * step + n, *([part if is_complex else 0] if len(shape) == 3 else [])]
    coefficients = access(matrix, n, *([part] if is_complex else []), bin_, result)
    sums = (n, part) if is_complex else (n,)
    yield call.equation(Scope(xs, sums, mul(access(call.tensor(0), *at), coefficients)))


FOURIER: tuple[OnnxOperator, ...] = (
    OnnxOperator("DFT", "contraction", _dft, attributes="axis inverse onesided", constants=_dft_matrix),
    OnnxOperator("STFT", "contraction", _stft, attributes="onesided", constants=_stft_matrix),
)
