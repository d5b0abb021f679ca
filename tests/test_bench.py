"""Paired measurement: its report, the engines, and the processes that they run in."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx_building import build, node
from test_cli import CASE

from einnet_evaluation import bench, engines, rivals, workers
from einnet_evaluation.engines import DIRECT, EXPORTED, NUMPY, OURS, Engine, Task, prepare
from einnet_evaluation.library_runtimes import OpenModel
from einnet_evaluation.rivals import ORT, RIVALS, Rival
from einnet_evaluation.workers import Worker
from einnet_explore.cli import main
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.runtime import measurement
from einnet_explore.runtime.arrays import Arrays


class Here:
    """A worker in this process: what it says is the same, and nothing has to start."""

    def __enter__(self) -> "Here":
        return self

    def ready(self) -> None:
        pass

    def open(self, task: Task, feeds: Arrays | None) -> Engine:
        return prepare(task, feeds)

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Worker", Here)


@pytest.fixture
def model(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3, 4, 4, 4)).astype(np.float32)
    nodes = [node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]), node("Relu", ["c"], ["y"])]
    path = tmp_path / "m.onnx"
    path.write_bytes(build(nodes, {"x": ["n", 3, 4, 4]}, ["y"], {"w": weight}).SerializeToString())
    return str(path)


@pytest.fixture
def case(tmp_path: Path) -> str:
    path = tmp_path / "conv.ein"
    path.write_text(CASE)
    return str(path)


def test_model_in_processes_of_their_own(model: str) -> None:
    said = bench.run_benchmark(model, threads=2, rounds=3, shapes={"x": (1, 3, 4, 4)}, budget=2.0, max_depth=4)
    assert list(said["engines"]) == [OURS, EXPORTED, ORT]
    assert said["reference"] == ORT and said["best"] == ORT and said["refused"] == {}
    assert all(len(e["samples"]) == 3 and min(e["samples"]) > 0 for e in said["engines"].values())
    assert said["ratios"][OURS] == 1.0 and said["speedup"] == said["ratios"][ORT] > 0
    assert said["max_rel_error"][ORT] == 0 and max(said["max_rel_error"].values()) <= 1e-4


@pytest.mark.usefixtures("here")
def test_case_is_compared_with_all_engines(case: str) -> None:
    said = bench.run_benchmark(case, against=(ORT, NUMPY), threads=1, rounds=2, max_depth=2, budget=2.0)
    assert list(said["engines"]) == [OURS, DIRECT, ORT, NUMPY]
    assert max(said["max_rel_error"].values()) <= 1e-5
    assert any(name in said["engines"][OURS]["says"] for name in ("Matmul", "Conv"))
    assert said["best"] in (ORT, NUMPY) and said["speedup"] == said["ratios"][said["best"]]


@pytest.mark.usefixtures("here")
def test_bench_without_rivals_has_no_speedup(case: str) -> None:
    said = bench.run_benchmark(case, against=(), threads=1, rounds=1, max_depth=1)
    assert list(said["engines"]) == [OURS, DIRECT] and said["engines"][DIRECT]["iqr"] == 0
    assert said["best"] is None and said["speedup"] is None


def test_rival_that_cannot_run_is_excluded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Weak(Here):
        def open(self, task: Task, feeds: Arrays | None) -> Engine:
            if task.engine == ORT:
                raise ValueError("no kernel")
            return super().open(task, feeds)

    monkeypatch.setattr(bench, "Worker", Weak)
    said = bench.run_benchmark(case, threads=1, rounds=1, max_depth=1)
    assert said["refused"] == {ORT: "no kernel"} and list(said["engines"]) == [OURS, DIRECT]
    monkeypatch.setattr(engines, "tune_case", lambda *_: (_ for _ in ()).throw(ValueError("no candidate runs")))
    with pytest.raises(ValueError, match="no candidate runs"):
        bench.run_benchmark(case, threads=1, rounds=1)


@pytest.mark.usefixtures("here")
def test_bench_writes_json_or_a_table(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", case, "--threads", "1", "--rounds", "2", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert [c["case"] for c in json.loads(said.out)["cases"]] == [case] and said.err == ""
    assert main(["bench", case, "--threads", "1", "--rounds", "2", "--budget", "1"]) == 0
    shown = capsys.readouterr().out
    assert "times ours" in shown and "times as fast as the fastest rival on the original, onnxruntime" in shown


def test_interrupted_the_command_keeps_what_was_measured(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[str] = []

    class Once(Here):
        def open(self, task: Task, feeds: Arrays | None) -> Engine:
            if task.engine == OURS and done:
                raise KeyboardInterrupt
            done.append(task.engine)
            return super().open(task, feeds)

    monkeypatch.setattr(bench, "Worker", Once)
    assert main(["bench", case, case, "--threads", "1", "--rounds", "1", "--json", "-"]) == 130
    said = capsys.readouterr()
    assert len(json.loads(said.out)["cases"]) == 1 and "1 of 2 cases" in said.err


def test_every_engine_is_measured_first_in_some_round() -> None:
    order: list[str] = []
    warm: list[bool] = []

    def call(name: str, seconds: float) -> bench.Sampler:
        def run(repeats: int, warmed: bool) -> float:
            order.append(name)
            warm.append(warmed)
            return seconds * repeats

        return run

    samples, lost = bench.measure_interleaved({"a": call("a", 0.02), "b": call("b", 0.5), "c": call("c", 0.001)}, 3)
    assert order[3:] == list("abcbcacab")
    assert samples == {"a": [0.02] * 3, "b": [0.5] * 3, "c": pytest.approx([0.001] * 3)} and lost == {}
    assert [w for name, w in zip(order[3:], warm[3:], strict=True) if name == "b"] == [False] * 3
    assert all(w for name, w in zip(order, warm, strict=True) if name != "b")


def test_no_round_begins_after_the_limit() -> None:
    samples, _ = bench.measure_interleaved({"a": lambda repeats, _: 1.0 * repeats}, 50, limit=0.0)
    assert len(samples["a"]) == bench.MIN_ROUNDS


@pytest.mark.parametrize("turn", [0, 1, 3])
def test_engine_that_dies_between_rounds_is_excluded(turn: int) -> None:
    left = turn

    def dying(repeats: int, _: bool) -> float:
        nonlocal left
        if not left:
            raise RuntimeError("its process ended")
        left -= 1
        return 1.0 * repeats

    calls: dict[str, bench.Sampler] = {"ours": lambda repeats, _: 2.0 * repeats, "other": dying}
    samples, lost = bench.measure_interleaved(calls, 5, needed="ours")
    assert samples == {"ours": [2.0] * 5} and lost == {"other": "its process ended"}
    left = turn
    with pytest.raises(RuntimeError, match="its process ended"):
        bench.measure_interleaved(calls, 5, needed="other")


def test_killed_rival_is_excluded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Worker):
        def open(self, task: Task, feeds: Arrays | None) -> workers.RemoteEngine:
            opened = super().open(task, feeds)
            if task.engine == NUMPY:
                self._process.kill()
            return opened

    monkeypatch.setattr(bench, "Worker", Killed)
    said = bench.run_benchmark(case, against=(NUMPY,), threads=1, rounds=1, max_depth=1, budget=1.0)
    assert said["refused"] == {NUMPY: "the engine's process ended with code -9"}
    assert list(said["engines"]) == list(said["max_rel_error"]) == [OURS, DIRECT] and said["best"] is None


@pytest.mark.usefixtures("here")
def test_a_case_that_fails_loses_no_other(
    case: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = ["bench", "--threads", "1", "--rounds", "1", "--budget", "1", "--json", str(out)]
    assert main([*command, case, model, case]) == 2
    said = json.loads(out.read_text())
    assert [c["case"] for c in said["cases"]] == [case, case] and list(said["failures"]) == [model]
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0] == f"error: {said['failures'][model]}" and "dynamic shapes" in shown.err
    assert shown.out.count("times ours") == 2
    out.unlink()
    assert main([*command, model]) == 2 and not out.exists()
    with pytest.raises(ValueError, match="dynamic shapes"):
        main([*command, model, "--debug"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"against": ("abacus",)},
            "expected one of onnxruntime, torch, torch.compile, openvino, ncnn, mnn, ",
        ),
        ({"device": "cuda"}, "no CUDA backend"),
        ({"rounds": 0}, "expected at least 1"),
    ],
)
def test_wrong_options_of_bench_are_refused(case: str, options: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        bench.run_benchmark(case, threads=1, **options)  # type: ignore[arg-type]


def test_numpy_runs_cases_only(model: str) -> None:
    with pytest.raises(ValueError, match=r"found the model .*m\.onnx, expected a case"):
        bench.run_benchmark(model, against=(NUMPY,))


@pytest.mark.usefixtures("here")
def test_missing_rivals_are_reported_and_the_others_measured(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals.importlib.util, "find_spec", lambda _: None)
    said = bench.run_benchmark(case, against=("all",), threads=1, rounds=1, max_depth=1, budget=1.0)
    assert list(said["engines"]) == [OURS, DIRECT, ORT, NUMPY] and list(said["refused"]) == [*RIVALS][1:]
    assert said["refused"]["ncnn"] == (
        "found no Python package ncnn and pnnx, expected it for the engine ncnn: pip install '.[rivals]'"
    )
    assert said["refused"]["torch"].endswith("pip install '.[torch]'")


@pytest.mark.usefixtures("here")
def test_rival_with_other_outputs_is_excluded(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(model: Model, feeds: Arrays, threads: int) -> OpenModel:
        right = RIVALS[ORT].start(model, feeds, threads)
        return OpenModel(lambda: {name: 2 * array for name, array in right.call().items()}, "twice as much")

    monkeypatch.setitem(RIVALS, "mnn", Rival("mnn", (), "", doubled))
    said = bench.run_benchmark(case, against=(ORT, "mnn"), threads=1, rounds=1, max_depth=1, budget=1.0)
    assert said["refused"] == {"mnn": "its outputs differ from those of onnxruntime by 1.0e+00 of the largest"}
    assert list(said["engines"]) == [OURS, DIRECT, ORT] == list(said["max_rel_error"]) and said["best"] == ORT


def test_a_worker_passes_on_what_is_wrong_and_serves_on(tmp_path: Path, case: str) -> None:
    with Worker() as worker:
        worker.ready()
        with pytest.raises(FileNotFoundError, match=r"none\.ein"):
            worker.open(Task(str(tmp_path / "none.ein"), DIRECT, 1), None)
        first = worker.open(Task(case, DIRECT, 1), None)
        other = worker.open(Task(case, NUMPY, 1), first.feeds)
        assert min(first.sample(2), other.sample(1, False)) > 0
        np.testing.assert_allclose(other.outputs["Y"], first.outputs["Y"], rtol=1e-4, atol=1e-4)
        with pytest.raises(RuntimeError, match="the engine's process ended with code 1"):
            worker.ask("nonsense")


def test_batches_run_by_the_plan_of_one_sample_or_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("Relu", ["c"], ["y"])]
    path = tmp_path / "batch.onnx"
    path.write_bytes(build(nodes, {"x": ["n", 3, 6, 6]}, ["y"], {"w": weight}).SerializeToString())
    shapes = {"x": (3, 3, 6, 6)}
    want = prepare(Task(str(path), ORT, 1, shapes))
    for chunks in ((), ((3,),), ((1,),) * 3):
        monkeypatch.setattr(engines.OptimisedSizes, "chunks_of", lambda *_, chosen=chunks: chosen)
        made = prepare(Task(str(path), OURS, 1, shapes, 2, 1.0, str(tmp_path / "out.onnx")), want.feeds)
        np.testing.assert_allclose(made.outputs["y"], want.outputs["y"], rtol=1e-4, atol=1e-4)
        assert made.said.startswith("3 runs of the plan of 1: ") == (len(chunks) == 3)
    exported = prepare(Task(str(path), EXPORTED, 1, shapes, export=str(tmp_path / "out.onnx")), want.feeds)
    np.testing.assert_allclose(exported.outputs["y"], want.outputs["y"], rtol=1e-4, atol=1e-4)


def test_only_first_dimensions_that_are_dynamic_are_batches(tmp_path: Path) -> None:
    def sizes(declared: list[int | str], given: tuple[int, ...]) -> object:
        proto = build([node("Relu", ["x"], ["y"])], {"x": declared}, ["y"])
        return engines._batch_sizes(load_model(proto, {"x": given}))

    assert sizes(["n", 3], (4, 3)) == {"x": ((1, 4), 3)}
    assert sizes(["n", 3], (1, 3)) == sizes([4, "n"], (4, 3)) == sizes([4, 3], (4, 3)) == {}


def test_sample_does_not_count_the_time_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "perf_counter", iter((0.0, 8.0)).__next__)
    monkeypatch.setattr(measurement, "process_time", iter((0.0, 2.0)).__next__)
    assert Engine(lambda: None, {}, {}).sample(1, False) == 2.0


def test_worker_reports_a_failed_sample_and_continues(case: str) -> None:
    with Worker() as worker:
        worker.ready()
        opened = worker.open(Task(case, DIRECT, 1), None)
        with pytest.raises(RuntimeError, match="IndexError: list index out of range"):
            worker.ask(7, 1, True)
        assert opened.sample(1) > 0


def test_dead_worker_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.sys, "executable", "/bin/false")
    with Worker() as worker, pytest.raises(RuntimeError, match="the engine's process ended with code 1"):
        worker.ready()


def test_engines_get_the_same_inputs(case: str) -> None:
    ours = prepare(Task(case, DIRECT, 1))
    for name in (ORT, NUMPY):
        other = prepare(Task(case, name, 1), ours.feeds)
        assert other.feeds is ours.feeds
        np.testing.assert_allclose(other.outputs["Y"], ours.outputs["Y"], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_exported_model_is_what_was_found(model: str, tmp_path: Path) -> None:
    out = str(tmp_path / "OUT.onnx")
    ours = prepare(Task(model, OURS, 1, {"x": (1, 3, 4, 4)}, 4, 1.0, out))
    exported = prepare(Task(model, EXPORTED, 1, {}, 4, 1.0, out), ours.feeds)
    np.testing.assert_allclose(exported.outputs["y"], ours.outputs["y"], rtol=1e-4, atol=1e-4)


def test_a_process_takes_no_more_memory_than_was_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(workers.resource, "getrlimit", lambda _: (-1, -1))
    monkeypatch.setattr(workers.resource, "setrlimit", lambda _, both: limits.append(both))
    told = tmp_path / "meminfo"
    for text in ("MemTotal: 9 kB\nMemAvailable:    2048 kB\n", "MemTotal: 9 kB\n", "MemAvailable: much\n"):
        told.write_text(text)
        workers._limit_memory(told)
    workers._limit_memory(tmp_path / "none")
    assert limits == [(2 << 20, -1)]
