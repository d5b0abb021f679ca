"""Input of the runner, and models assembled from their parts: pure values, no device, NumPy only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from einnet_explore.runtime.cuda.steps import (
    Convolution,
    CudaLaunch,
    CudaPlan,
    CudaProduct,
    Step,
    View,
    cuda_plan_from_json,
)


def plans(manifest: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Every plan in *manifest*, as JSON."""
    for check in manifest["checks"]:
        yield check["plan"]
    for case in manifest["cases"]:
        yield from case["plans"].values()
    for one in manifest["profiles"]:
        yield one["plan"]
    for way in manifest["ways"].values():
        yield from way["plans"].values()


def read(data: Path) -> dict[str, Any]:
    """The manifest in the folder *data*, with the kernels' texts, which are files of that folder, in its plans."""
    manifest: dict[str, Any] = json.loads((data / "manifest.json").read_text())
    texts: dict[str, str] = {}
    for plan in plans(manifest):
        for step in plan["steps"]:
            if step["op"] == "launch":
                name = step["text"]
                if name not in texts:
                    texts[name] = (data / "kernels" / f"{name}.cu").read_text()
                step["text"] = texts[name]
    return manifest


def composed(
    model: Mapping[str, Any], ways: Mapping[str, Any], chosen: Mapping[str, str], precision: str = "float32"
) -> CudaPlan:
    """The plan of *model*: every part done in the way that *chosen* names by the part's key, in order.

    Buffers that parts share are called as the model calls them, others by the part's number.  Raises KeyError for a
    part without a choice.
    """
    buffers: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    early, late = list[Step](), list[Step]()
    weights: dict[str, None] = {}
    for n, part in enumerate(model["parts"]):
        plan = cuda_plan_from_json(ways[part["way"]]["plans"][chosen[part["way"]]])
        names = {name: part["names"].get(name, f"{n}: {name}") for name in plan.buffers}
        buffers |= {names[name]: shape for name, shape in plan.buffers.items()}
        dtypes |= {names[name]: dtype for name, dtype in plan.dtypes.items()}
        weights |= dict.fromkeys(names[name] for name in plan.weights)
        steps = [renamed(step, names) for step in plan.steps]
        early += steps[: plan.once]
        late += steps[plan.once :]
    outputs = tuple(model["outputs"])
    return CudaPlan(
        buffers,
        tuple(model["inputs"]),
        tuple(weights),
        outputs,
        (*early, *late),
        len(early),
        "float32",
        dtypes,
        precision,
    )


def renamed(step: Step, names: Mapping[str, str]) -> Step:
    """*step* on buffers that are called otherwise."""

    def view(v: View) -> View:
        return replace(v, name=names[v.name])

    match step:
        case CudaLaunch(arguments=given):
            return replace(step, arguments=tuple(names[a] if isinstance(a, str) else a for a in given))
        case CudaProduct(out, left, right):
            return CudaProduct(view(out), view(left), view(right))
        case Convolution(out=out, data=data, weights=weights):
            return replace(step, out=view(out), data=view(data), weights=view(weights))


def weights_of(model: Mapping[str, Any], stored: Mapping[str, Any], library: Any = np) -> dict[str, Any]:
    """The weights of *model* by value: small ones as they are, large ones drawn like them, the same every time.

    They are arrays of *library*: NumPy's, or CuPy's, which draws them on the device.
    """
    random = library.random.RandomState(crc32(model["name"].encode()))

    def array(told: Mapping[str, Any]) -> Any:
        if "stored" in told:
            return library.asarray(stored[told["stored"]])
        drawn = random.standard_normal(tuple(told["shape"])) * told["deviation"] + told["mean"]
        return library.asarray(drawn, dtype=np.float32)

    return {name: array(told) for name, told in model["weights"].items()}


def inputs_of(model: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs of *model*, the same for the same *seed*."""
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape, np.float32) for name, shape in model["inputs"].items()}


def best(times: Mapping[str, float], first: str, margin: float = 0.97) -> str:
    """The fastest way; *first* unless another takes less than the part *margin* of its time."""
    found = min(times, key=lambda name: times[name])
    return found if first not in times or times[found] < margin * times[first] else first
