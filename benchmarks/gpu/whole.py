"""Input of the runner, and models assembled from their parts: pure values, no device, NumPy only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from einnet_explore.runtime.cuda.composition import compose_plans
from einnet_explore.runtime.cuda.steps import CudaPlan, cuda_plan_from_json


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

    See ``compose_plans``.  Raises KeyError for a part without a choice.
    """
    parts = (
        (cuda_plan_from_json(ways[part["way"]]["plans"][chosen[part["way"]]]), part["names"]) for part in model["parts"]
    )
    return compose_plans(parts, {n: tuple(s) for n, s in model["inputs"].items()}, model["outputs"], precision)


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
