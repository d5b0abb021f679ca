r"""ONNX's Resize and Upsample: linear maps along each axis.

.. math::  Y[\vec i] = X[\rho_1(i_1), \dots] \quad\text{(nearest)}, \qquad
           Y[\vec i] = \sum_{\vec k} X[\vec k]\, A_1[i_1, k_1] \cdots A_d[i_d, k_d] \quad\text{(linear, cubic)}

The formulas of the ONNX reference are evaluated over the whole extent.  If the positions of the nearest elements are
affine in digits of the position, that function is the index; otherwise the node is refused. The matrices of an
interpolation are weights that the model gets when it is loaded: a convolution or an average can then move across it.
Source: the ONNX operator reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from einnet_explore.ir import Equation, Index, Iterator, Scope, as_index, mul
from einnet_explore.onnx_import.known_arrays import index_of_digits
from einnet_explore.onnx_import.model import Array
from einnet_explore.onnx_import.node_call import NodeCall, OnnxOperator, access, extent_iterators
from einnet_explore.support.errors import Refused

Taps: TypeAlias = "tuple[Array, Array]"
"""The first element that each result reads, and the coefficients of this and the next elements."""


def _sampling(call: NodeCall) -> tuple[list[float], str]:
    """Return the scale of each dimension, as float32, and how positions are computed."""
    rank = len(call.out.shape)
    if call.opset < 11 or call.node.op == "Upsample":  # up to operator set 10, samples start at the first element
        scales = call.constant(1, "scales") if call.has(1) else np.asarray(call.get("scales", ()))
        axes, place = tuple(range(rank)), "asymmetric"
    else:
        scales = call.constant(2, "scales") if call.has(2) else np.zeros(0)
        axes = tuple(call.axis(a, rank) for a in call.get("axes", tuple(range(rank))))
        place = call.get("coordinate_transformation_mode", "half_pixel")
    given = dict(zip(axes, scales.reshape(-1).tolist(), strict=True)) if scales.size else _ratios(call, axes)
    return [float(np.float32(given.get(d, 1))) for d in range(rank)], place


def _resize(call: NodeCall) -> Iterable[Equation]:
    yield from _nearest(call) if call.get("mode", "nearest") == "nearest" else _interpolation(call)


def _nearest(call: NodeCall) -> Iterable[Equation]:
    shape, out = call.shape(0), call.out.shape
    scales, place = _sampling(call)
    simple = call.opset < 11 or call.node.op == "Upsample"
    rounding = "simple" if simple else call.get("nearest_mode", "round_prefer_floor")
    xs = extent_iterators(out)
    at = []
    for d, (x, scale) in enumerate(zip(xs, scales, strict=True)):
        positions = _positions(np.arange(x.hi), shape[d], out[d], scale, place)
        way = rounding if rounding != "simple" else "ceil" if scale < 1 else "floor"
        index: Index | None = index_of_digits(_elements(positions, way, d, shape[d]), as_index(x))
        if index is None:
            raise Refused(f"dimension {d}: {shape[d]} to {out[d]} is not an integer factor")
        at.append(index)
    yield call.equation(Scope(xs, (), access(call.tensor(0), *at)))


def _interpolation(call: NodeCall) -> Iterable[Equation]:
    """Contract one axis after the other; axes that shrink most come first."""
    matrices = call.weights(_matrices)
    source, shape = call.tensor(0), list(call.shape(0))
    order = sorted((d for d, name in enumerate(matrices) if name), key=lambda d: (call.out.shape[d] / shape[d], -d))
    for d in order:
        shape[d] = call.out.shape[d]
        xs = extent_iterators(shape)
        k = Iterator("k", 0, source.shape[d])
        read = access(source, *(k if n == d else x for n, x in enumerate(xs)))
        scope = Scope(xs, (k,), mul(read, access(call.named(matrices[d]), xs[d], k)))
        yield (made := call.equation(scope, "" if d == order[-1] else f"axis{d}"))
        source = made.tensor
    if not order:
        xs = extent_iterators(call.out.shape)
        yield call.equation(Scope(xs, (), access(source, *xs)))


def _matrices(call: NodeCall) -> Sequence[Array | None]:
    """Return the matrix of every axis that changes, results by elements; none of nearest elements."""
    mode = call.get("mode", "nearest")
    if mode == "nearest":
        return ()
    if mode not in ("linear", "cubic"):
        raise Refused(f"mode is {mode}, neither nearest, linear nor cubic")
    if call.get("antialias", 0):
        raise Refused("antialias is 1, not 0")
    shape, out = call.shape(0), call.out.shape
    scales, place = _sampling(call)
    found: list[Array | None] = []
    for d, scale in enumerate(scales):
        at = _positions(np.arange(out[d]), shape[d], out[d], scale, place)
        first, taps = _linear(at) if mode == "linear" else _cubic(at, call.get("cubic_coeff_a", -0.75))
        reads = first[:, None] + np.arange(taps.shape[1])
        if call.get("exclude_outside", 0):
            taps = np.where((reads >= 0) & (reads < shape[d]), taps, 0)
            taps = taps / taps.sum(1, keepdims=True)
        matrix = np.zeros((out[d], shape[d]))
        np.add.at(matrix, (np.arange(out[d])[:, None], reads.clip(0, shape[d] - 1)), taps)
        found.append(None if np.array_equal(matrix, np.eye(shape[d])) else matrix.astype(np.float32))
    return found


def _linear(at: Array) -> Taps:
    first = np.floor(at)
    rest = at - first
    return first.astype(int), np.stack([1 - rest, rest], 1)


def _cubic(at: Array, a: float) -> Taps:
    """Return the four taps of the cubic convolution with coefficient *a* (Keys 1981)."""
    first = np.floor(at)
    near, far = np.stack([at - first, 1 + first - at]), np.stack([1 + at - first, 2 + first - at])
    inner = ((a + 2) * near - (a + 3)) * near**2 + 1
    outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return first.astype(int) - 1, np.stack([outer[0], *inner, outer[1]], 1)


def _ratios(call: NodeCall, axes: tuple[int, ...]) -> dict[int, float]:
    shape = call.shape(0)
    sizes = (call.integers(3, "sizes") or ()) if call.has(3) else ()
    ratios = {d: float(np.float32(n) / np.float32(shape[d])) for d, n in zip(axes, sizes, strict=True)}
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios
    return dict.fromkeys(axes, (min if policy == "not_larger" else max)(ratios.values()))


def _elements(positions: Array, way: str, d: int, size: int) -> Array:
    """Return the elements at *positions*; refuse positions whose element depends on float32 rounding (as of 1/3)."""
    margin = _MARGIN * (1 + np.abs(positions))
    before, at, after = (_round(p, way).clip(0, size - 1) for p in (positions - margin, positions, positions + margin))
    if np.any((before != after) & (positions != positions.astype(np.float32))):
        raise Refused(f"dimension {d}: the nearest elements depend on rounding")
    return at


_MARGIN = 1e-6
"""Upper bound of the relative error of a position in float32."""


def _positions(i: Array, size: int, out: int, scale: float, mode: str) -> Array:
    """Return the input position of each output position (ONNX: coordinate_transformation_mode)."""
    match mode:
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            if size * scale != out:
                raise Refused(f"{size} times {scale:.6g} is not {out}: the position of its middle depends on rounding")
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if out > 1 else np.zeros_like(i, float)
        case "align_corners":
            if abs(size * scale - out) > _MARGIN * out:  # the reference divides by size times scale, runtimes by out
                raise Refused(f"{size} times {scale:.6g} is not {out}: the position of its last element differs")
            return i * (size - 1) / (out - 1) if out > 1 else np.zeros_like(i, float)
        case other:
            raise Refused(f"coordinate_transformation_mode is {other}")


def _round(positions: Array, mode: str) -> Array:
    rounded: Array
    match mode:
        case "floor":
            rounded = np.floor(positions)
        case "ceil":
            rounded = np.ceil(positions)
        case "round_prefer_floor":
            rounded = np.ceil(positions - 0.5)
        case "round_prefer_ceil":
            rounded = np.floor(positions + 0.5)
        case other:
            raise Refused(f"nearest_mode is {other}")
    return rounded.astype(int)


RESIZE: tuple[OnnxOperator, ...] = (
    OnnxOperator(
        "Resize",
        "layout",
        _resize,
        attributes="antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value"
        " keep_aspect_ratio_policy mode nearest_mode",
        constants=_matrices,
    ),
    OnnxOperator("Upsample", "layout", _resize, attributes="mode scales", constants=_matrices),
)
