"""Models optimised for a GPU, with a device that is none: searched, measured, certified, checked, saved and run."""

from __future__ import annotations

import json
import re
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.cli import main
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline import gpu_optimiser
from einnet_explore.pipeline.gpu_optimiser import GpuOptimiser
from einnet_explore.pipeline.gpu_plan import GpuPlan
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.runtime.cuda import device as cuda_device
from einnet_explore.runtime.cuda.steps import Convolution, CudaPlan, CudaProduct
from tests.gpu_kit import CpuProgram, Device

RATES = {
    "peak_flops": 5e13, "memory_bandwidth": 2e12, "cache_bandwidth": 4e12, "cache_bytes": 5e7, "call_seconds": 3e-6,
}  # fmt: skip
SHORT = Settings(1, 3, states=60)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gpu_optimiser, "measure_rates", lambda: RATES)
    return Device(monkeypatch)


def layers() -> onnx.ModelProto:
    """Two equal layers, a third one, and a softmax."""
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("a", (8, 8)), ("b", (8, 8)), ("c", (8, 5)))}
    nodes = [
        node("MatMul", ["x", "a"], ["h"]), node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "b"], ["i"]), node("Relu", ["i"], ["s"]),
        node("MatMul", ["s", "c"], ["z"]), node("Softmax", ["z"], ["y"]),
    ]  # fmt: skip
    return build(nodes, {"x": [4, 8]}, ["y"], weights)


def convolutions_are_fast(device: Device) -> None:
    """Derived plans win: their products are convolutions."""
    device.seconds = lambda plan: sum(1e-2 if isinstance(s, CudaProduct) else 1e-3 for s in plan.steps[plan.once :])


def optimised(proto: onnx.ModelProto) -> GpuPlan:
    work = GpuOptimiser(load_model(proto), SHORT, 60.0)
    for _ in work.run():
        pass
    return work.result()


def agrees(fast: GpuPlan, proto: onnx.ModelProto) -> None:
    feeds = fast.random_inputs(3)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    want = dict(zip([v.name for v in session.get_outputs()], session.run(None, feeds), strict=True))
    got = fast(**feeds)
    assert list(got) == list(want) == ["y"]
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-4, atol=1e-5)


def test_faster_derived_plans_are_proved_kept_and_saved(device: Device, tmp_path: Path) -> None:
    convolutions_are_fast(device)
    fast = optimised(layers())
    agrees(fast, layers())
    assert fast.is_correct and not fast.interrupted
    assert [(part.is_derived, part.certificate) for part in fast.parts] == [(True, "proved")] * 3 + [(False, "proved")]
    # Three products of 10 ms, two with ReLU, are convolutions of 1 ms now; generated kernels take as long.
    assert fast.seconds == {"library": pytest.approx(0.031), "plan": pytest.approx(0.007)}
    assert fast.speedup == pytest.approx(31 / 7)
    assert len(fast.records) == 2  # of equal parts there is one
    for record in fast.records.values():
        assert record["certificate"]["kind"] == "proved" and record["steps"]
    assert "4.43 times as fast as library operators on CUDA Synthetic" in repr(fast)
    assert "3 of 4 parts derived: all proved" in fast._repr_html_()
    path = tmp_path / "plan.gpu"
    fast.save(path)
    compiled = len(device.compiled)
    loaded = GpuPlan.load(path)
    agrees(loaded, layers())
    assert loaded.report() == json.loads(json.dumps(fast.report()))
    assert loaded.records == fast.records and len(device.compiled) == compiled + 1


def test_library_stays_where_nothing_is_gained(device: Device) -> None:
    fast = optimised(layers())  # as many seconds as steps
    agrees(fast, layers())
    assert fast.speedup == 1.0 and not any(part.is_derived for part in fast.parts) and not fast.records
    assert fast.conclusions()[0] == "nothing gained over library operators on CUDA Synthetic"


def test_second_run_searches_nothing(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    convolutions_are_fast(device)
    first = optimised(layers())
    monkeypatch.setattr(gpu_optimiser, "other_plans", None)
    again = optimised(layers())
    assert again.report() == first.report() and again.plan == first.plan


def test_failing_slow_and_wrong_plans_are_left_out(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    convolutions_are_fast(device)

    def fail(plan: CudaPlan) -> None:
        if any(isinstance(step, Convolution) for step in plan.steps):
            raise RuntimeError("no algorithm")

    device.fail = fail
    fast = optimised(layers())
    assert set(fast.parts[0].failures.values()) == {"RuntimeError: no algorithm"} and not fast.parts[0].is_derived

    device.fail = lambda plan: None
    seconds = device.seconds
    device.seconds = lambda plan: seconds(plan) + any(isinstance(step, Convolution) for step in plan.steps)
    monkeypatch.setattr(GpuOptimiser, "_remembered", lambda *_: None)
    fast = optimised(layers())
    assert "times as long as the fastest" in " ".join(fast.parts[0].failures.values())

    device.seconds = seconds
    run = CpuProgram.run

    def wrong(program: CpuProgram, *given: Any) -> dict[str, Any]:
        off = any(isinstance(step, Convolution) for step in program.plan.steps)
        return {name: array + off for name, array in run(program, *given).items()}

    monkeypatch.setattr(CpuProgram, "run", wrong)
    fast = optimised(layers())
    assert "of the largest output" in " ".join(fast.parts[0].failures.values()) and fast.is_correct
    agrees(fast, layers())


def test_unproved_plan_is_not_kept(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    convolutions_are_fast(device)
    certify = GpuOptimiser._certify
    monkeypatch.setattr(
        GpuOptimiser,
        "_certify",
        lambda self, plan: certify(self, plan) if plan.name == "library" else ("unknown", None),
    )
    fast = optimised(layers())
    assert not any(part.is_derived for part in fast.parts)
    assert set(fast.parts[0].failures.values()) == {"its derivation has a step that is unknown"}


def test_interrupt_keeps_what_was_chosen(device: Device) -> None:
    convolutions_are_fast(device)
    work = GpuOptimiser(load_model(layers()), SHORT, 60.0)
    for _ in work.run():
        work.interrupted = True
        break
    fast = work.result()
    agrees(fast, layers())
    assert sum(part.is_derived for part in fast.parts) == 2  # the equal ones, which were tuned first
    assert fast.parts[2].why == "there was no time to tune it" and "interrupted" in fast.conclusions()[-1]


def test_lost_device_ends_with_one_line_and_the_next_run_goes_on(device: Device) -> None:
    convolutions_are_fast(device)

    def fail(plan: CudaPlan) -> None:
        if any(isinstance(step, Convolution) for step in plan.steps) and plan.buffers.get("y1") == (4, 5):
            raise RuntimeError("cudaErrorLaunchTimeout: the launch timed out and was terminated")

    device.fail = fail
    with pytest.raises(ValueError, match=r"matmul_z: a kernel ran longer .* 2 of 3 parts are tuned and remembered"):
        optimised(layers())
    fast = optimised(layers())
    assert sum(part.is_derived for part in fast.parts) == 2 and "timed out" in fast.parts[2].why


def test_plan_beyond_the_memory_says_what_it_needs(device: Device) -> None:
    def fail(plan: CudaPlan) -> None:
        raise MemoryError("Out of memory allocating 512 bytes")

    device.fail = fail
    with pytest.raises(ValueError, match=r"not enough memory: .* GiB are needed, .* expected a smaller batch"):
        optimised(layers())


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"),
            "can no longer use the GPU",
        ),
        (RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the provided PTX"), "driver .*: expected a newer driver"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "it is not known how much is free"),
        (cuda_device.BackendError("kernel k is not compiled: x"), "^kernel k is not compiled: x$"),
    ],
)
def test_errors_of_devices_say_what_to_do(error: Exception, says: str) -> None:
    found = cuda_device.describe_device_error(error)
    assert re.search(says, str(found)) and "\n" not in str(found)
    assert isinstance(found, cuda_device.DeviceFailure) == ("illegal" in str(error))


class Buffers:
    def call(self) -> None:
        pass


@pytest.mark.parametrize("interrupted", [False, True])
def test_graph_keeps_its_buffers_and_ends_every_capture(interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = MagicMock()
    monkeypatch.setattr(cuda_device, "cupy_package", lambda: cupy)
    stream = cupy.cuda.Stream.return_value
    buffers = Buffers()
    kept = weakref.ref(buffers)
    if interrupted:
        calls = MagicMock(side_effect=[None, KeyboardInterrupt])
        with pytest.raises(KeyboardInterrupt):
            cuda_device.capture_graph(calls)
    else:
        launch = cuda_device.capture_graph(buffers.call)
        del buffers
        launch()
        assert kept() is not None
    assert stream.begin_capture.call_count == stream.end_capture.call_count == 1


def test_node_without_a_plan_is_named(device: Device) -> None:
    proto = build([node("Relu", ["x"], ["r"]), node("Det", ["r"], ["y"])], {"x": [4, 4]}, ["y"])
    with pytest.raises(ValueError, match=r"node det_y \(Det\): operator Det has no canonical expression"):
        GpuOptimiser(load_model(proto), SHORT).prepare()


def test_command_writes_the_plan(device: Device, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convolutions_are_fast(device)
    model, out, report = (tmp_path / name for name in ("m.onnx", "out.gpu", "r.json"))
    model.write_bytes(layers().SerializeToString())
    command = ["optimize", str(model), "--device", "cuda", "--limit-states", "60", "--max-depth", "3"]
    records = ["--certificates", str(tmp_path / "records"), "--html", str(tmp_path / "r.html")]
    np.savez(tmp_path / "x.npz", x=np.ones((4, 8)))
    given = ["--inputs", str(tmp_path / "x.npz")]
    assert main([*command, *given, "-o", str(out), "--json", str(report), *records]) == 0
    said = capsys.readouterr()
    assert f"compared on your inputs, {given[1]}" in said.out and GpuPlan.load(out).inputs == given[1]
    assert "times as fast as library operators" in said.out and "saved" in said.err
    assert json.loads(report.read_text())["speedup"] > 1
    agrees(ee.GpuPlan.load(out), layers())
    assert main(["check", *map(str, (tmp_path / "records").iterdir())]) == 0
    for more, says in (
        (["-o", str(tmp_path / "out.onnx")], "no ONNX model, expected another suffix"),
        (["--threads", "2", "--bundle", "b"], "found --threads, --bundle, expected none"),
        (["--inputs", str(tmp_path / "none.npz")], "none.npz"),
    ):
        capsys.readouterr()
        assert main([*command, *more]) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(ValueError, match="found threads, target_runtime, expected none"):
        ee.optimize(str(model), device="cuda", threads=2, target_runtime="onnxruntime")
    with pytest.raises(ValueError, match=r"inputs: input x has shape \(8,\), expected \(4, 8\)"):
        ee.optimize(str(model), device="cuda", inputs={"x": np.ones(8)})
    with pytest.raises(ValueError, match="found no plan for a GPU"):
        GpuPlan.load(report)
    fast = ee.optimize(str(model), device="cuda", max_depth=3, states=60, budget=60)
    with pytest.raises(ValueError, match="input x is missing"):
        fast()
    with pytest.raises(ValueError, match=r"shape \(1,\), expected \(4, 8\)"):
        fast(x=[1.0])
