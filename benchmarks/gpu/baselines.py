"""Baselines of the cases: CuPy (plain, fused) and torch, as their users write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

from benchmarks.gpu.torch_side import COMPILE_MODE, TUNED

Arrays = Mapping[str, Any]
Make = Callable[[Arrays, Arrays], Callable[[], Any]]
"""Makes device arrays by name, and host arrays of weights, into a call; it gives an array of either library."""

EPSILON = 1e-5

COPY = "copy of as many bytes"
"""The baseline that computes something else: its output is not compared."""


def baselines(kind: str, settings: Mapping[str, Any], cp: Any, torch: Any | None) -> Mapping[str, Make]:
    """Return the baselines for a case of *kind*, by name; those of torch only if it is installed."""
    match kind:
        case "cast":
            found: dict[str, Make] = {"cupy": lambda a, _: lambda: a["x"].astype(cp.float16)}
            if torch is not None:
                found["torch"] = _in_torch(torch, _torch_call(kind, settings, torch))
        case "pointwise":
            found = _pointwise(settings["what"], cp, torch)
        case "product":
            found = {}
            if torch is not None and settings["what"] != "band":
                found["torch"] = _in_torch(torch, _torch_call(kind, settings, torch))
        case "reduction":
            found = _batch_norm(cp) if settings["what"] == "batch norm" else {}
            if torch is not None:
                found["torch"] = _in_torch(torch, _torch_call(kind, settings, torch))
        case "bandwidth":
            found = {COPY: lambda a, _: _copy(cp, a)}
        case "table 3" | "band":
            found = {}
        case _:
            raise ValueError(
                f"case of kind {kind!r}: expected cast, pointwise, reduction, product, band, bandwidth or table 3"
            )
    return found


def _pointwise(what: str, cp: Any, torch: Any | None) -> dict[str, Make]:
    def hard_swish(a: Any) -> Any:
        return a * cp.minimum(cp.maximum(a / 6 + 0.5, 0), 1)

    plain: Mapping[str, Callable[..., Any]] = {
        "relu": lambda a: cp.maximum(a, 0),
        "residual, relu": lambda a, b: cp.maximum(a + b, 0),
        "hard swish": hard_swish,
        "swish": lambda a: a / (1 + cp.exp(-a)),
    }
    call = plain[what]
    names = ("A", "B")[: 2 if what == "residual, relu" else 1]

    def of(function: Callable[..., Any], a: Arrays, _: Arrays) -> Callable[[], Any]:
        return partial(function, *(a[n] for n in names))

    found: dict[str, Make] = {"cupy": partial(of, call), "cupy.fuse": partial(of, cp.fuse(kernel_name="fused")(call))}
    if torch is not None:
        found["torch"] = _in_torch(torch, _torch_call("pointwise", {"what": what}, torch))
    return found


def _batch_norm(cp: Any) -> dict[str, Make]:
    across, axes = (1, -1, 1, 1), (0, 2, 3)

    def plain(x: Any, g: Any, b: Any) -> Any:
        d = x - x.mean(axes, keepdims=True)
        return d * (1 / cp.sqrt((d * d).mean(axes, keepdims=True) + EPSILON)) * g + b

    # ``cupy.fuse`` takes element-wise work and at most the reductions that it knows: parts are fused around them.
    # Named, because the name of a lambda is none in CUDA.
    moved = cp.fuse(kernel_name="moved")(lambda x, m: (x - m) * (x - m))
    scaled = cp.fuse(kernel_name="scaled")(lambda x, m, v, g, b: (x - m) * (1 / cp.sqrt(v + EPSILON)) * g + b)

    def parts(x: Any, g: Any, b: Any) -> Any:
        m = x.mean(axes, keepdims=True)
        return scaled(x, m, moved(x, m).mean(axes, keepdims=True), g, b)

    def of(function: Callable[..., Any], a: Arrays, _: Arrays) -> Callable[[], Any]:
        return partial(function, a["X"], a["g"].reshape(across), a["b"].reshape(across))

    return {"cupy": partial(of, plain), "cupy.fuse": partial(of, parts)}


def _copy(cp: Any, arrays: Arrays) -> Callable[[], Any]:
    (a,) = arrays.values()
    out = cp.empty_like(a)

    def call() -> Any:
        cp.copyto(out, a)
        return out

    return call


def _in_torch(torch: Any, call: Callable[[Arrays], Any]) -> Make:
    """*call* on torch's arrays, which are CuPy's, in CuPy's stream."""

    def make(arrays: Arrays, _: Arrays) -> Callable[[], Any]:
        shared = {name: torch.from_dlpack(a) for name, a in arrays.items()}
        return lambda: call(shared)

    return make


def compiled_baselines(kind: str, settings: Mapping[str, Any], torch: Any) -> Mapping[str, Make]:
    """Return the baselines for a case of *kind* that Inductor compiles when they are first called."""
    torch.compiler.reset()  # as for models
    if kind == "band":
        return _flex_attention(settings, torch)
    if kind not in ("cast", "pointwise", "reduction", "product") or settings.get("what") == "band":
        return {}
    call = _torch_call(kind, settings, torch)
    return {"torch.compile": _in_torch(torch, torch.compile(call, mode=COMPILE_MODE, dynamic=False))}


def _flex_attention(settings: Mapping[str, Any], torch: Any) -> Mapping[str, Make]:
    """FlexAttention, whose blocks cover the band: as the rows are, and a sequence for every residue of the dilation.

    The best form that the sizes have is tuned, too: last, since that takes longest.
    """
    flex = import_module("torch.nn.attention.flex_attention")
    rows, half, dilation, heads, features = (settings[n] for n in ("rows", "half", "dilation", "heads", "features"))

    def as_it_is(_b: Any, _h: Any, q: Any, k: Any) -> Any:
        return ((q - k).abs() <= half * dilation) & ((q - k) % dilation == 0)

    def by_residue(_b: Any, _h: Any, q: Any, k: Any) -> Any:
        return (q - k).abs() <= half

    def attention(seen: Any, length: int, mode: str) -> Callable[..., Any]:
        @cache  # made when it is first called, like what is compiled
        def block_mask() -> Any:
            return flex.create_block_mask(seen, None, None, length, length, device="cuda")

        attend = torch.compile(flex.flex_attention, mode=mode, dynamic=False)
        return lambda *qkv: attend(*qkv, block_mask=block_mask())

    def plain(mode: str) -> Callable[[Arrays], Any]:
        whole = attention(as_it_is, rows, mode)
        return lambda t: whole(*(t[n][None] for n in "qkv"))[0]

    def split(mode: str) -> Callable[[Arrays], Any]:
        shape, length = (heads, rows // dilation, dilation, features), rows // dilation
        residue = attention(by_residue, length, mode)

        def call(t: Arrays) -> Any:
            parts = (t[n].view(shape).transpose(1, 2).reshape(1, heads * dilation, length, features) for n in "qkv")
            out = residue(*parts)
            return out.view(heads, dilation, length, features).transpose(1, 2).reshape(heads, rows, features)

        return call

    found = {"flex attention": plain(COMPILE_MODE)}
    if rows % dilation:
        found["flex attention, tuned"] = plain(TUNED)
    else:
        found["flex attention by residue"] = split(COMPILE_MODE)
        found["flex attention by residue, tuned"] = split(TUNED)
    return {name: _in_torch(torch, call) for name, call in found.items()}


def _torch_call(kind: str, settings: Mapping[str, Any], torch: Any) -> Callable[[Arrays], Any]:
    """Return the torch code of a user for a case."""
    f = torch.nn.functional
    match kind, settings.get("what"):
        case "cast", _:
            return lambda t: t["x"].to(torch.float16)
        case "product", "convolution":
            return lambda t: f.silu(f.conv2d(t["A"], t["W"], t["b"], padding=1))
        case "product", _:
            return lambda t: f.relu(torch.addmm(t["b"], t["A"], t["W"]))
        case "reduction", "softmax":
            return lambda t: f.softmax(t["X"], 1)
        case "reduction", "layer norm":
            return lambda t: f.layer_norm(t["X"], t["g"].shape, t["g"], t["b"])
        case "reduction", "group norm":
            return lambda t: f.group_norm(
                t["X"].flatten(1, 2), t["g"].shape[0], t["g"].flatten(), t["b"].flatten()
            ).view_as(t["X"])
        case "reduction", "batch norm":
            return lambda t: f.batch_norm(t["X"], None, None, t["g"], t["b"], training=True)
        case _, "relu":
            return lambda t: f.relu(t["A"])
        case _, "residual, relu":
            return lambda t: f.relu(t["A"] + t["B"])
        case _, "hard swish":
            return lambda t: f.hardswish(t["A"])
        case _, "swish":
            return lambda t: f.silu(t["A"])
    raise ValueError(f"element-wise case {settings!r}: torch has no call for it")
