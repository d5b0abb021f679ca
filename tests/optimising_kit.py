"""A small model, short searches, and the properties of every optimised model."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_building import build, node

from einnet_explore.codegen import versions
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import selection as result_module
from einnet_explore.pipeline import selection_trials
from einnet_explore.pipeline import tuning_task as contest_module
from einnet_explore.pipeline.assembly import PlanForm
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, largest_error

FIELDS = {
    "model", "device", "seconds_before", "seconds_after", "speedup", "max_abs_error", "max_rel_error",
    "search_seconds", "progress", "subprograms", "folded_weights", "fused_eoperators", "skipped", "region_ends",
}  # fmt: skip
NO_MODEL: Any = SimpleNamespace(nodes=(), outputs=(), path="", original_proto=onnx.ModelProto(), original_weights={})
"""A model of no nodes, which ONNX Runtime refuses."""

SHORT = Settings(1, 3, 0.3, 2)
"""One thread, three choices deep, a third of a second for a search, two finalists."""

PART_FIELDS = {
    "nodes", "kept", "seconds_before", "seconds_after", "operators", "eoperators", "certificate", "steps"
}  # fmt: skip


def plan_forms(*names: str) -> tuple[PlanForm, ...]:
    """The forms with these names."""
    return tuple(map(PlanForm, names))


def transposed() -> onnx.ModelProto:
    """Two strided transposed convolutions with activations: where derivations win on any CPU, at a tiny size."""
    rng = np.random.default_rng(0)
    weights = {"w0": rng.standard_normal((24, 12, 4, 4)), "w1": rng.standard_normal((12, 3, 4, 4))}
    at = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        node("ConvTranspose", ["x", "w0"], ["a"], **at),
        node("Relu", ["a"], ["b"]),
        node("ConvTranspose", ["b", "w1"], ["c"], **at),
        node("Relu", ["c"], ["y"]),
    ]
    return build(nodes, {"x": [1, 24, 3, 5]}, ["y"], {k: v.astype(np.float32) for k, v in weights.items()})


def nothing_remembered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests share times that were measured, but not what became of them, and use no host that may be installed."""
    monkeypatch.setattr(versions, "SEARCH_VERSION", request.node.nodeid)
    monkeypatch.setattr(result_module, "installed_hosts", tuple)


def searched(of: Model, chosen: Settings = SHORT) -> Optimised:
    """*of*, optimised with little effort, however slow the machine is."""
    work = Optimiser(of, chosen)
    for _ in work.run():
        pass
    return work.result()


def model(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Model:
    return load_model(proto, shapes or {})


def sound(fast: Optimised, tmp_path: Path) -> dict[str, Any]:
    """The report of *fast*, after everything in it that must hold has been looked at."""
    said = fast.report()
    assert set(said) >= FIELDS and all(set(part) >= PART_FIELDS for part in said["subprograms"])
    assert said["max_rel_error"] <= MAX_RELATIVE_ERROR
    assert math.isfinite(said["speedup"]) and said["speedup"] > 0
    kept = [part for part in said["subprograms"] if part["kept"]]
    if not kept:
        assert said["speedup"] == 1.0 and said["max_abs_error"] == 0.0
    for part in said["subprograms"]:
        assert not part["why"].startswith("its search failed"), part["why"]
        assert part["kept"] == bool(part["steps"]) or not part["kept"]
        if part["kept"]:
            assert part["certificate"] == "proved" and part["operators"] + [0] * part["eoperators"]
            assert all({"rule", "at", "params"} <= set(step) for step in part["steps"])
    saved = tmp_path / "fast.onnx"
    fast.save(saved)
    if fast.replacements:
        onnx.checker.check_model(onnx.load(saved), full_check=True)
    feeds = fast.random_inputs(3)
    ran = runs(saved, feeds)
    agree(fast, runs(fast.model.original, feeds), ran)
    agree(fast, ran, fast(**feeds))
    return said


def runs(what: Path | onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    held = what.SerializeToString() if isinstance(what, onnx.ModelProto) else str(what)
    session = onnxruntime.InferenceSession(held, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def agree(fast: Optimised, want: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    # Where a model amplifies roundings, other inputs than those it was checked on say less: see telling_inputs.
    rounded = {k: np.nextafter(v, np.inf, dtype=v.dtype) for k, v in fast.random_inputs(3).items()}
    own = largest_error(fast.original.run(fast.random_inputs(3)), fast.original.run(rounded))
    assert largest_error(want, got) <= max(MAX_RELATIVE_ERROR, 10 * own)


def kept_programs(fast: Optimised) -> list[Any]:
    return [part.trial.winner for part in fast.parts if part.kept and part.trial.winner]


def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate that agrees counts as faster, by itself and in the whole."""
    for name in ("MAX_WINNER_RATIO", "NEGLIGIBLE_SHARE"):
        monkeypatch.setattr(contest_module, name, {"MAX_WINNER_RATIO": 1e9, "NEGLIGIBLE_SHARE": 0.0}[name])
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 0.0)
    monkeypatch.setattr(selection_trials, "MIN_EXPORT_SPEEDUP", 0.0)
    monkeypatch.setattr(
        result_module, "FORMS", {"plan": plan_forms("joined", "apart"), "onnxruntime": plan_forms("exported")}
    )
    monkeypatch.setattr(selection_trials, "MIN_PART_SPEEDUP", 0.0)
    monkeypatch.setattr(selection_trials, "MAX_LOSING_SPEEDUP", 0.0)
