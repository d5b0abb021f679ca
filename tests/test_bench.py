"""Paired measurement: what it reports, on one thread in this process and on two in processes of their own."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx_building import build, node
from test_cli import CASE

from einnet_explore.cli import main
from einnet_explore.graph.bench import engines
from einnet_explore.graph.bench import paired as bench
from einnet_explore.graph.bench.engines import Task, prepare
from einnet_explore.graph.bench.workers import Worker


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


@pytest.mark.parametrize("threads", [1, 2])
def test_model(model: str, threads: int) -> None:
    said = bench.benchmark(model, threads=threads, rounds=3, shapes={"x": (1, 3, 4, 4)}, budget=2.0, max_depth=4)
    assert list(said["engines"]) == ["einnet_explore", "onnxruntime"]
    assert said["reference"] == "onnxruntime" and said["apart"] is (threads > 1)
    assert all(len(e["samples"]) == 3 and min(e["samples"]) > 0 for e in said["engines"].values())
    assert said["ratios"]["einnet_explore"] == 1.0 and said["ratios"]["onnxruntime"] > 0
    assert said["max_rel_error"]["onnxruntime"] == 0 and said["max_rel_error"]["einnet_explore"] <= 1e-4


@pytest.mark.parametrize("threads", [1, 2])
def test_case(case: str, threads: int) -> None:
    said = bench.benchmark(case, threads=threads, rounds=2, max_depth=2, budget=2.0)
    assert list(said["engines"]) == ["einnet_explore", "direct", "onnxruntime"]
    assert max(said["max_rel_error"].values()) <= 1e-5
    assert "Matmul" in said["engines"]["einnet_explore"]["says"] or "Conv" in said["engines"]["einnet_explore"]["says"]


def test_without_rivals(case: str) -> None:
    said = bench.benchmark(case, against=(), threads=1, rounds=1, max_depth=1)
    assert list(said["engines"]) == ["einnet_explore", "direct"] and said["engines"]["direct"]["iqr"] == 0


def test_command(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", case, "--threads", "1", "--rounds", "2", "--json", "-"]) == 0
    said = capsys.readouterr()
    assert [c["case"] for c in json.loads(said.out)["cases"]] == [case] and said.err == ""
    assert main(["bench", case, "--threads", "1", "--rounds", "2"]) == 0
    assert "times ours" in capsys.readouterr().out


def test_every_engine_has_its_turn_first() -> None:
    order: list[str] = []

    def call(name: str) -> bench.Callable[[int], float]:
        def run(repeats: int) -> float:
            order.append(name)
            return 0.02 * repeats

        return run

    samples = bench.interleaved({name: call(name) for name in "abc"}, 3)
    assert order[3:] == list("abcbcacab")
    assert samples == {name: [0.02] * 3 for name in "abc"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"against": ("abacus",)}, "expected one of onnxruntime, torch"),
        ({"against": ("torch",)}, "expected an ONNX model"),
        ({"device": "cuda"}, "no CUDA backend"),
        ({"rounds": 0}, "expected at least 1"),
    ],
)
def test_refusals(case: str, options: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        bench.benchmark(case, threads=1, **options)  # type: ignore[arg-type]


def test_missing_torch_is_said(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="torch is not installed; expected"):
        bench.benchmark(model, against=("torch",))


def test_worker_passes_on_what_is_wrong(tmp_path: Path) -> None:
    task = Task(str(tmp_path / "none.ein"), "direct", 1)
    with pytest.raises(ValueError, match=r"none\.ein"), Worker(task, None):
        pass


def test_engines_get_the_same_inputs(case: str) -> None:
    ours = prepare(Task(case, "direct", 1))
    other = prepare(Task(case, "onnxruntime", 1), ours.feeds)
    assert other.feeds is ours.feeds
    np.testing.assert_allclose(other.outputs["Y"], ours.outputs["Y"], rtol=1e-4, atol=1e-4)
