"""Models in parts for a GPU: put together, computed here step by step, beside ONNX Runtime and torch; budgets; tables.

Numbers of the results files here are made up, as is the device's name: they check tables, and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from benchmarks.gpu import cases, models, session, torch_side, whole
from benchmarks.gpu import run as runner
from benchmarks.gpu.budget import OVER, Budget, TimeOver, interrupted_at
from einnet_evaluation.gpu_results import gpu_tables, load_gpu_results
from einnet_evaluation.models import write
from einnet_explore.cli import main
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.gpu_parts import data_sheet_cost
from einnet_explore.runtime.cuda import execution
from einnet_explore.runtime.cuda.composition import choose_plan
from einnet_explore.runtime.cuda.convolutions import torch_output_padding, with_two_spatial_dimensions
from einnet_explore.runtime.cuda.steps import Convolution, CudaProduct
from tests.gpu_kit import CpuProgram, on_cpu, record_kernels

RATED = {
    "peak_flops": 5e13, "memory_bandwidth": 2e12, "cache_bandwidth": 4e12, "cache_bytes": 5e7, "call_seconds": 3e-6,
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Any:
    patch = pytest.MonkeyPatch()
    found = record_kernels(patch)
    yield found
    patch.undo()


@pytest.fixture(scope="module")
def held(kernels: Any) -> models.Collected:
    return models.collected(data_sheet_cost(), 0.2, quick=True)


def computed(plan: Any, feeds: dict[str, Any], kernels: Any) -> dict[str, Any]:
    """Run *plan* with torch's convolutions."""
    torch = pytest.importorskip("torch")
    return on_cpu(plan, feeds, kernels, lambda step, seen: convolved(torch, with_two_spatial_dimensions(step), seen))


def convolved(torch: Any, step: Convolution, shown: Any) -> None:
    """A convolution or its transpose, as the plan says, by torch on the CPU."""
    x, w = (torch.from_numpy(shown(v).copy()) for v in (step.data, step.weights))
    half = len(step.strides)
    before, after = step.pads[:half], step.pads[half:]
    if step.kind == "Conv":
        wider = [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]
        x = torch.nn.functional.pad(x, wider)
        got = torch.conv2d(x, w, None, step.strides, 0, step.dilations, step.group)
    else:
        got = torch.conv_transpose2d(
            x, w, None, step.strides, before, torch_output_padding(step), step.group, step.dilations
        )
    shown(step.out)[...] = got.numpy()


def test_a_model_in_parts_is_the_model(held: models.Collected, kernels: Any) -> None:
    told = held.models[0]
    assert not held.left_out
    proto = write("fsrcnn", 1, 8)
    model = load_model(proto, {})
    weights, feeds = dict(model.weights), whole.inputs_of(told, 3)
    assert set(told["weights"]) <= set(weights)
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    tried = 0
    for n in range(1 + max(len(way["plans"]) for way in held.ways.values())):
        chosen = {key: list(way["plans"])[min(n, len(way["plans"]) - 1)] for key, way in held.ways.items()}
        plan = whole.composed(told, held.ways, chosen)
        (got,) = computed(plan, {**weights, **feeds}, kernels).values()
        assert runner.error_of(want, got) < 1e-5, chosen
        tried += len(set(chosen.values()))
    assert tried > 3  # derived ways are among them
    tf32 = whole.composed(told, held.ways, dict.fromkeys(held.ways, "library"), "tf32")
    assert tf32.precision == "tf32" and tf32.agreement > plan.agreement


def test_torch_runs_the_same_model_from_text(held: models.Collected) -> None:
    torch = pytest.importorskip("torch")
    told = held.models[0]
    model = load_model(write("fsrcnn", 1, 8), {})
    feeds = whole.inputs_of(told, 5)
    built = torch_side.module(torch, told["torch"], dict(model.weights), "cpu")
    (want,) = ReferenceEvaluator(model.proto).run(None, feeds)
    for name, call in torch_side.calls(torch, built, [torch.from_numpy(x) for x in feeds.values()]).items():
        assert runner.error_of(want, call().numpy()) < 1e-5, name
    with pytest.raises(ValueError, match="found no function forward"):
        torch_side.module(torch, {"text": "x = 1", "arguments": []}, {}, "cpu")


def test_weights_are_like_the_models_and_the_same_every_time(held: models.Collected) -> None:
    told = held.models[0]
    model = load_model(write("fsrcnn", 1, 8), {})
    made, again = (whole.weights_of(told, held.arrays) for _ in range(2))
    drawn = 0
    for name, array in made.items():
        assert (array == again[name]).all() and array.shape == model.weights[name].shape
        if "stored" in told["weights"][name]:
            assert (array == model.weights[name]).all()
        else:
            drawn += 1
            assert abs(array.std() / model.weights[name].std() - 1) < 0.1
    assert drawn


def test_unsupported_node_is_named() -> None:
    graph = helper.make_graph(
        [helper.make_node("Resize", ["X", "", "s"], ["Y"], mode="linear", antialias=1)],
        "g",
        [helper.make_tensor_value_info("X", 1, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("Y", 1, [1, 1, 8, 8])],
        [helper.make_tensor("s", 1, [4], [1.0, 1, 2, 2])],
    )
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), {})
    found = models.Collected(data_sheet_cost(), 0.1)
    found.add("antialias", model)
    assert not found.models and "antialias is 1" in found.left_out["antialias"]


def test_fastest_implementation_is_chosen_if_it_gains() -> None:
    assert choose_plan({"library": 1.0, "derived 1": 0.9, "derived 2": 0.8}, "library") == "derived 2"
    assert choose_plan({"library": 1.0, "derived 1": 0.98}, "library") == "library"
    assert choose_plan({"derived 1": 2.0}, "library") == "derived 1"


# --- the budget


def test_budget_is_respected() -> None:
    budget = Budget(1e9)
    assert budget.refused() is None
    assert time.perf_counter() < budget.until("checks") < time.perf_counter() + 10 < budget.until("compiled")
    over = Budget(0.0)
    assert "the time (0 s) was over: run again" in (over.refused() or "")
    assert over.until("compiled") <= time.perf_counter()


def test_compiler_beyond_its_time_is_interrupted() -> None:
    def run_until(end: float, count: int) -> None:
        with interrupted_at(end):
            for _ in range(count):
                with suppress(Exception):  # what handles mistakes does not take it for one
                    time.sleep(0.005)

    with pytest.raises(TimeOver, match=OVER):
        run_until(time.perf_counter() + 0.01, 100)
    run_until(time.perf_counter() + 100, 1)
    run_until(float("inf"), 1)


# --- the runner, on a device that is none


class HostArrays:
    """CuPy's functions that the runner calls, on arrays of the host."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    random = SimpleNamespace(
        RandomState=lambda seed: SimpleNamespace(
            standard_normal=lambda shape, dtype=float: np.random.default_rng(seed).standard_normal(shape).astype(dtype)
        )
    )
    asnumpy = staticmethod(np.array)
    get_default_memory_pool = staticmethod(lambda: SimpleNamespace(free_all_blocks=lambda: None))


def host_layer(kernels: Any, fail: Callable[[Any], object]) -> Any:
    def compile_plan(plan: Any, weights: Any, cubin: Any) -> CpuProgram:
        fail(plan)
        return CpuProgram(plan, weights, kernels)

    def once(call: Callable[[], object]) -> float:
        call()
        return 1e-3

    return SimpleNamespace(
        cupy_package=HostArrays,
        cuda_device=lambda: execution.CudaDevice("Synthetic", "90", 132, 1, 1, "13000", "13000", "none"),
        compile_plan=compile_plan,
        rotation_copies=lambda nbytes: 2,
        single_call_seconds=once,
        event_seconds=lambda turn, samples=1: [once(call) for call in turn],
        time_in_rounds=lambda calls, rounds: {name: [once(turn[0])] * rounds for name, turn in calls.items()},
        capture_graph=lambda call: call,
    )


@pytest.mark.slow
def test_runner_measures_in_order_and_goes_on_after_it_was_killed(
    held: models.Collected, kernels: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.measuring.measure_rates", lambda: RATED)
    monkeypatch.setattr(runner.Session, "_torch", lambda self: None)
    measured = (cases.reduction("softmax", 5, 300), cases.product(6, 5, 12, "float16"))
    manifest = {
        "checks": [], "profiles": [], "ways": held.ways, "models": held.models[1:], "left_out": {}, "quick": True,
        "cases": [case.to_json() for case in measured],
    }  # fmt: skip
    names = [m["name"] for m in held.models[1:]]
    np.savez(tmp_path / "arrays.npz", **held.arrays)
    began: list[Any] = []

    def session(limit: float, fail: Callable[[Any], object] = began.append) -> Any:
        return runner.Session(host_layer(kernels, fail), tmp_path, manifest, tmp_path / "r.json", "b", limit)

    assert session(0.0).run() == 3 and not began  # no time: all is left

    def kill(plan: Any) -> None:
        if any(isinstance(step, CudaProduct) and step.epilogue.bias for step in plan.steps):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session(1e9, kill).run()
    told = json.loads((tmp_path / "r.json").read_text())  # what was done before the last half second is saved
    again = session(1e9)
    (ended,) = again.results["ended_in"]
    assert ended.startswith("cases linear layer") and [*told["models"]] == names
    assert again.run() == 0
    done = json.loads((tmp_path / "r.json").read_text())
    assert {name.split(",")[0] for name in done["cases"]} == {"softmax 5x300", "linear layer with ReLU"}
    assert not any(one["wrong"] for kind in ("models", "cases", "parts") for one in done[kind].values())
    assert not (tmp_path / "r.json.running").exists()


def test_session_goes_on_from_earlier_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = list[float]()

    def run(data: Path, out: Path, limit: float) -> int:
        limits.append(limit)
        print("measured")
        out.write_text((out.read_text() if out.exists() else "") + "x")
        return 3

    monkeypatch.setattr(session, "run", run)
    earlier = [tmp_path / "none" / "gpu.json", tmp_path / "gpu.json"]
    (tmp_path / "gpu.json").write_text("")
    (tmp_path / "gpu.json.running").write_text("models x")
    for call in ("a", "b"):
        assert session.measure(tmp_path, tmp_path / call, 7.0, earlier) == 3
    assert (tmp_path / "b" / "gpu.json").read_text() == earlier[1].read_text() == "xx" and limits == [7.0] * 2
    assert (tmp_path / "b" / "gpu.json.running").read_text() == "models x"
    log = (tmp_path / "b" / "session.log").read_text()
    assert log.startswith("measured") and "none/gpu.json: not copied" in log
    monkeypatch.setattr(session, "run", lambda *_: 1 // 0)
    assert session.measure(tmp_path, tmp_path / "b", 7.0) == 1
    assert "ZeroDivisionError" in (tmp_path / "b" / "session.log").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not execution.missing_for_cuda(), reason="there is a GPU")
def test_session_logs_what_the_live_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / session.LIVE_MODEL).write_bytes(b"")
    assert session.optimise(tmp_path, tmp_path / "out", 240.0) != 0
    log = (tmp_path / "out" / "live.log").read_text()
    assert "optimize" in log.splitlines()[0] and "no CUDA backend can run here" in log
    assert log[-1000:] in capsys.readouterr().out


# --- what there is to search for, and figures from elsewhere


def entry(times: dict[str, float], ours: str, **more: Any) -> dict[str, Any]:
    return {
        "times": {n: runner.summary([t]) for n, t in times.items()},
        "ratios": {n: t / times[ours] for n, t in times.items() if n != ours},
        "ours": ours,
        "errors": dict.fromkeys(times, 1e-6),
        "wrong": False,
        "failures": {},
        "bytes_per_second": {n: 1e9 / t for n, t in times.items()},
        **more,
    }


@pytest.fixture
def results(tmp_path: Path) -> Path:
    table = {"settings": {"published_ms": [2.0, 1.0], "figure": "Fig. 3"}}
    parts = {"derived_parts": 1, "parts": 3}
    told = {
        "device": {"name": "Synthetic", "driver": "1"}, "versions": {"cupy": "0"}, "begun": "then",
        "ceilings": {"all": {"rates": {"memory_bandwidth": 2e9}}},
        "checks": {}, "parts": {}, "profiles": {}, "skipped": {"compiled x": "time was over"}, "left_out": {"m": "why"},
        "cases": {
            "Table 3 Conv3x3": entry({"before, library": 4.0, "before, generated": 8, "after": 2.0}, "after", **table),
            "Table 3 Conv3x3 [tf32]": entry({"before, library": 3.0, "after": 2.0}, "after", **table),
            "Table 3 G2BMM": entry({"before, generated": 9.0, "after": 3.0}, "after", **table),
            "cast": entry({"template": 1.0, "cupy": 3.0}, "template", failures={"torch": "no memory"}),
            "band": entry({"ours": 1.0}, "ours", flops_per_second={"ours": 4e12}),
        },
        "models": {
            "fsrcnn, batch 1": entry({"ours": 1.0, "library": 2.0, "torch": 3.0}, "ours", **parts),
            "fsrcnn, batch 16 [tf32]": entry({"ours": 1.0, "library": 0.5}, "ours", **parts),
            "gcn, batch 1": {"failure": "x"},
        },
        "compiled": {"fsrcnn, batch 1": entry({"ours": 1.0, "torch.compile": 1.5}, "ours"),
            "band [tf32]": entry({"ours": 1.0, "flex attention": 2.5}, "ours", flops_per_second={"ours": 4e12})},
    }  # fmt: skip
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(told))
    return path


def test_figures_are_drawn_from_results(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "e1", "e2", "e3", "--device", "cuda", "--results", str(results)]
    assert main([*command, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    rows = {tuple(line.split(",")[:3]): line for line in (out / "e1_cuda.csv").read_text().splitlines()}
    # The compiled one is the best rival, though it was measured apart.
    assert "torch.compile,1.5,1,3" in rows["fsrcnn", "1", "float32"]
    assert "library,0.5,1,3" in rows["fsrcnn", "16", "tf32"]
    assert 'Conv3x3,Fig. 3,float32,"before, library",4000.0,after,2000.0,2.0' in (out / "e2_cuda.csv").read_text()
    measured = (out / "e2_kernels_cuda.csv").read_text()
    assert "cast,1000.0,1.0,0.5,," in measured  # half of the copy's bandwidth
    assert "band,1000.0,1.0,,4.0," in measured and "band [tf32],1000.0,1.0,,4.0,,2.5,flex attention" in measured
    assert "memory bandwidth,2.0,GB/s" in (out / "e2_rates_cuda.csv").read_text()
    assert "cases,cast,torch,no memory" in (out / "e2_failures_cuda.csv").read_text()
    assert '"gcn, batch 1",all,x' in (out / "e1_failures_cuda.csv").read_text()
    assert "Geometric mean over 1 models at batch 1, float32: 1.50" in said
    assert "1 entries were left out" in said and "m is not in it: why" in said and "Synthetic" in said
    pytest.importorskip("matplotlib")
    assert all((out / f"e{n}_cuda.svg").read_text().startswith("<svg") for n in (1, 2, 3))
    told = json.loads(results.read_text())
    told["models"]["fsrcnn, batch 1"]["wrong"] = True
    results.write_text(json.dumps(told))
    assert main(command) == 1
    assert "wrong results: fsrcnn, batch 1" in capsys.readouterr().err


def test_the_first_run_is_read() -> None:
    data = load_gpu_results(Path(__file__).parents[1] / "benchmarks/history/gpu-h200-first.json")
    names = [sheet.name for n in (1, 2, 3) for sheet in gpu_tables(f"e{n}", data)]
    assert names == ["e1", "e1_failures", "e2", "e2_kernels", "e2_rates", "e2_failures", "e3"]


def test_missing_results_name_the_command_that_measures_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "x.json"
    for content, says in (
        (None, "found no results of a GPU at"),
        ("{", "holds no results"),
        ("{}", "holds no results of"),
    ):
        if content is not None:
            other.write_text(content)
        assert main(["reproduce", "e1", "--device", "cuda", "--results", str(other)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and says in error and "python -m benchmarks.gpu bundle" in error
    other.write_text(json.dumps({k: {} for k in ("device", "versions", "cases", "models", "compiled")}))
    assert main(["reproduce", "e4", "--device", "cuda", "--results", str(other)]) == 2
    assert "expected one of e1, e2, e3" in capsys.readouterr().err


def test_a_profile_is_pointed_to_where_it_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(write("fsrcnn", 1, 8).SerializeToString())
    assert main(["optimize", str(path), "--device", "profile:x.sqlite"]) == 2
    assert "bundle OUT.zip --model FILE.onnx --device profile:x.sqlite" in capsys.readouterr().err
