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
    scales = call.constant(2, "scales") if call.has(2) else None
    yield from _nearest(call, scales, call.get("coordinate_transformation_mode", "half_pixel"))


def _upsample(call: Call) -> Iterable[Equation]:
    scales = call.constant(1, "scales") if call.has(1) else np.asarray(call.get("scales", ()))
    yield from _nearest(call, scales, "asymmetric", "floor")


def _nearest(call: Call, scales: Array | None, place: str, rounding: str = "") -> Iterable[Equation]:
    shape, out = call.shape(0), call.out.shape
    if (mode := call.get("mode", "nearest")) != "nearest":
        raise Unclear(f"mode is {mode}, not nearest")
    axes = tuple(call.axis(a, len(shape)) for a in call.get("axes", tuple(range(len(shape)))))
    given = (
        dict(zip(axes, scales.reshape(-1).tolist(), strict=True))
        if scales is not None and scales.size
        else _ratios(call, axes)
    )
    xs = iterators(out)
    at = []
    for d, x in enumerate(xs):
        positions = _positions(np.arange(x.hi), shape[d], out[d], float(given.get(d, 1)), place)
        places = np.clip(
            _rounded(positions, rounding or call.get("nearest_mode", "round_prefer_floor")), 0, shape[d] - 1
        )
        index: Index | None = progression(places, x)
        if index is None:
            raise Unclear(f"dimension {d}: {shape[d]} to {out[d]} is no whole factor")
        at.append(index)
    yield call.equation(Scope(xs, (), read(call.tensor(0), *at)))


def _ratios(call: Call, axes: tuple[int, ...]) -> dict[int, float]:
    shape = call.shape(0)
    sizes = (call.integers(3, "sizes") or ()) if call.has(3) else ()
    ratios = {d: n / shape[d] for d, n in zip(axes, sizes, strict=True)}
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return ratios
    return dict.fromkeys(axes, (min if policy == "not_larger" else max)(ratios.values()))


def _positions(i: Array, size: int, out: int, scale: float, mode: str) -> Array:
    """Where in the input each output position lies (ONNX: coordinate_transformation_mode)."""
    match mode:
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjusted = out / (size * scale)
            return (size / 2) * (1 - adjusted) + (i + 0.5) / scale - 0.5
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
