"""Measurements of the zoo: contents of its table, results after an interruption, repeated measurements."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_building import build, node

from benchmarks.zoo import measured
from benchmarks.zoo.__main__ import main
from benchmarks.zoo.across import ACROSS
from benchmarks.zoo.measured import Effort, Lab, spread, table
from benchmarks.zoo.parts import Kind
from einnet_evaluation.engines import EXPORTED, OURS
from einnet_evaluation.rivals import ORT, RIVALS
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.partition import partition
from einnet_explore.strategies.factoring import factorings, products_at_run_time


def result(path: str, ours: float, ort: float, load: float = 0.5) -> dict[str, Any]:
    """Return the document of ``benchmark`` for engines with these times."""
    takes = {OURS: ours, EXPORTED: ort / 2, ORT: ort}
    return {
        "case": path,
        "load": load,
        "engines": {name: {"seconds": s, "samples": [s, s, 2 * s, 2 * s]} for name, s in takes.items()},
        "ratios": {name: s / ours for name, s in takes.items()},
        "best": ORT,
        "speedup": ort / ours,
        "max_rel_error": dict.fromkeys(takes, 1e-6),
        "refused": {"ncnn": "no layer"},
    }


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    """Files of three models, of different sizes."""
    paths = [tmp_path / f"{name}.onnx" for name in "abc"]
    for n, path in enumerate(paths, 2):
        weight = np.ones((n, n), np.float32)
        proto = build([node("MatMul", ["x", "w"], ["y"])], {"x": [1, n]}, ["y"], {"w": weight})
        path.write_bytes(proto.SerializeToString())
    return [str(path) for path in paths]


def test_interrupted_zoo_resumes(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    stops = {"c"}

    def measure(path: Path, **options: Any) -> dict[str, Any]:
        assert path.exists() and options == {
            "against": tuple(RIVALS), "threads": 2, "rounds": 3, "budget": 4.0, "limit": 5.0
        }  # fmt: skip
        asked.append(path.stem)
        if path.stem in stops:
            raise KeyboardInterrupt
        if path.stem == "b":
            raise ValueError(f"{path}: found no session, expected one")
        return result(str(path), 1.0, 2.0)

    monkeypatch.setattr(measured, "run_benchmark", measure)
    out = tmp_path / "out"
    command = ["--threads", "2", "--rounds", "3", "--budget", "4", "--limit", "5", "--out", str(out), *models]
    with pytest.raises(KeyboardInterrupt):
        main(command)
    assert asked == ["a", "b", "c"]
    said = (out / "zoo.md").read_text()
    assert "| a |" in said and "b was not measured: b.onnx: found no session, expected one." in said
    stops.clear()
    main(command)
    assert asked == ["a", "b", "c", "c"] and "| c |" in capsys.readouterr().out
    main([*command[:-3], models[2], "--again"])
    assert asked[4:] == ["c"]
    with (out / "zoo.csv").open() as file:
        assert [(row["model"], row["speedup"], row["refused"]) for row in csv.DictReader(file)] == [
            (name, "2.0", "ncnn: no layer") for name in "ac"
        ]
    assert str(tmp_path) not in (out / "zoo.json").read_text()
    # Another model of that name is not the one that was measured.
    Path(models[0]).write_bytes(Path(models[1]).read_bytes())
    main(command)
    assert asked[5:] == ["a"] and len(json.loads((out / "zoo.json").read_text())["results"]) == 3


def test_the_table_says_what_is_slower_and_when_the_machine_was_busy(tmp_path: Path) -> None:
    made = [
        {"model": "fast", "title": "t", "result": result("", 1.0, 4.0), "seconds": 3.0},
        {"model": "slow", "title": "t", "result": result("", 1.0, 0.25, 1e3), "seconds": 3.0},
    ]
    sheet = table(made)
    assert sheet.column("speedup") == (4.0, 0.25) and sheet.column("file_times_faster") == (2.0, 2.0)
    assert "Geometric mean over the best of all, 2 models: 1.00; least 0.25, most 4.00; below 0.98: slow." in sheet.note
    assert "busy for 1 of 2 measurements: a load of up to 1000.0" in sheet.note
    assert "none." in table(made[:1]).note and "busy" not in table(made[:1]).note
    assert table([]).rows == () and "mean" not in table([]).note


def test_spread_is_that_of_ratios_by_round() -> None:
    assert spread([2.0, 4.0, 6.0, 8.0, 10.0], [2.0] * 5) == (1.5, 4.5)
    assert spread([3.0], [2.0]) == (1.5, 1.5)


def test_results_of_other_options_are_renamed(
    models: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "run_benchmark", lambda path, **_: result(str(path), 1.0, 2.0))
    out = tmp_path / "out"
    main(["--out", str(out), models[0]])
    first = (out / "zoo.json").read_text()
    main(["--out", str(out), "--threads", "2", models[1]])
    assert (out / "zoo.other.json").read_text() == first
    assert set(Lab(Effort(2), out).run([]).column("model")) == {"b"}


@pytest.mark.parametrize("kind", ACROSS, ids=lambda kind: kind.name)
def test_operators_that_algebra_reorders_are_one_subprogram_with_few_products(kind: Kind) -> None:
    (subprogram,) = partition(load_model(kind.write())).subprograms
    *_, best = factorings(subprogram.program)
    assert products_at_run_time(subprogram.program) > 3.5 * products_at_run_time(best.end)
