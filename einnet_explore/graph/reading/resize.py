r"""ONNX's Resize and Upsample by nearest neighbours: :math:`Y[\vec i] = X[\rho_1(i_1), \dots]` per dimension.

The rounding formulas of the ONNX reference are evaluated over the whole extent; where the places that they give are an
affine or a stepwise function of the position, that function is the index.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from einnet_explore.graph.reading.call import Call, OnnxOperator, Unclear, iterators, progression, read
from einnet_explore.graph.reading.model import Array
from einnet_explore.ir import Equation, Index, Scope


def _resize(call: Call) -> Iterable[Equation]:
    if call.opset < 11:
        yield from _upsample(call)
        return
    scales = call.constant(2, "scales") if call.has(2) else None
    axes = call.get("axes", tuple(range(len(call.out.shape))))
    yield from _nearest(
        call,
        scales,
        tuple(call.axis(a, len(call.out.shape)) for a in axes),
        call.get("coordinate_transformation_mode", "half_pixel"),
        call.get("nearest_mode", "round_prefer_floor"),
    )


def _upsample(call: Call) -> Iterable[Equation]:
    """What Resize was too, up to operator set 10: samples begin at the first element."""
    scales = call.constant(1, "scales") if call.has(1) else np.asarray(call.get("scales", ()))
    yield from _nearest(call, scales, tuple(range(len(call.out.shape))), "asymmetric", "simple")


def _nearest(call: Call, scales: Array | None, axes: tuple[int, ...], place: str, rounding: str) -> Iterable[Equation]:
    shape, out = call.shape(0), call.out.shape
    if (mode := call.get("mode", "nearest")) != "nearest":
        raise Unclear(f"mode is {mode}, not nearest")
    given = (
        dict(zip(axes, scales.reshape(-1).tolist(), strict=True))
        if scales is not None and scales.size
        else _ratios(call, axes)
    )
    xs = iterators(out)
    at = []
    for d, x in enumerate(xs):
        scale = float(np.float32(given.get(d, 1)))
        positions = _positions(np.arange(x.hi), shape[d], out[d], scale, place)
        way = rounding if rounding != "simple" else "ceil" if scale < 1 else "floor"
        index: Index | None = progression(_elements(positions, way, d, shape[d]), x)
        if index is None:
            raise Unclear(f"dimension {d}: {shape[d]} to {out[d]} is no whole factor")
        at.append(index)
    yield call.equation(Scope(xs, (), read(call.tensor(0), *at)))


def _ratios(call: Call, axes: tuple[int, ...]) -> dict[int, float]:
    shape = call.shape(0)
    sizes = (call.integers(3, "sizes") or ()) if call.has(3) else ()
    ratios = {d: float(np.float32(n) / np.float32(shape[d])) for d, n in zip(axes, sizes, strict=True)}
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios
    return dict.fromkeys(axes, (min if policy == "not_larger" else max)(ratios.values()))


def _elements(positions: Array, way: str, d: int, size: int) -> Array:
    """The elements at *positions*, where these do not hang on how a runtime rounds: a third is no float32."""
    margin = _MARGIN * (1 + np.abs(positions))
    before, at, after = (
        np.clip(_rounded(p, way), 0, size - 1) for p in (positions - margin, positions, positions + margin)
    )
    if np.any((before != after) & (positions != positions.astype(np.float32))):
        raise Unclear(f"dimension {d}: positions lie between two elements but for rounding")
    return at


_MARGIN = 1e-6
"""More than the error of a position in float32, relative to the position."""


def _positions(i: Array, size: int, out: int, scale: float, mode: str) -> Array:
    """Where in the input each output position lies (ONNX: coordinate_transformation_mode)."""
    match mode:
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            if size * scale != out:
                raise Unclear(f"{size} times {scale:.6g} is not {out}: where its middle lies hangs on rounding")
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if out > 1 else np.zeros_like(i, float)
        case "align_corners":
            return i * (size - 1) / (out - 1) if out > 1 else np.zeros_like(i, float)
        case other:
            raise Unclear(f"coordinate_transformation_mode is {other}")


def _rounded(positions: Array, mode: str) -> Array:
    match mode:
        case "floor":
            found = np.floor(positions)
        case "ceil":
            found = np.ceil(positions)
        case "round_prefer_floor":
            found = np.ceil(positions - 0.5)
        case "round_prefer_ceil":
            found = np.floor(positions + 0.5)
        case other:
            raise Unclear(f"nearest_mode is {other}")
    return found.astype(int)


RESIZE: tuple[OnnxOperator, ...] = (
    OnnxOperator(
        "Resize",
        "layout",
        _resize,
        attributes="antialias axes coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value"
        " keep_aspect_ratio_policy mode nearest_mode",
    ),
    OnnxOperator("Upsample", "layout", _upsample, attributes="mode scales"),
)
"""Other modes interpolate; they stay as they are."""
