"""``reproduce e1 e2 e3``: tables of measurements, figures, and results after an interruption."""

import csv
import json
import re
import sys
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from test_bench import Here

from einnet_evaluation import bench, end_to_end, operator_cases, rivals
from einnet_evaluation import operator_cases as operator_tables
from einnet_evaluation.bars import _BAR_COLOURS, draw_chart
from einnet_evaluation.end_to_end import Unit
from einnet_evaluation.engines import DIRECT, EXPORTED, GENERATED, NUMPY, OURS
from einnet_evaluation.models import MODELS
from einnet_evaluation.operator_cases import AFTER, BEFORE, OperatorCase, OperatorComparison, derive, table3_cases
from einnet_evaluation.rivals import COMPILED, ORT, TORCH
from einnet_explore.cli import main
from einnet_explore.operators import expressions as ops
from einnet_explore.syntax import text
from einnet_explore.viz.tables import ResultTable


def result(**milliseconds: float) -> dict[str, Any]:
    """Return the document of ``benchmark`` for engines with these times."""
    names = {"ours": OURS, "out": EXPORTED, "ort": ORT, "torch": TORCH}
    seconds = {names[k]: v / 1e3 for k, v in milliseconds.items()}
    ratios = {k: v / seconds[OURS] for k, v in seconds.items()}
    best = min((k for k in ratios if k in (ORT, TORCH)), key=lambda k: ratios[k])
    return {
        "engines": {k: {"seconds": v, "iqr": v / 10, "says": f"says {k}"} for k, v in seconds.items()},
        "ratios": ratios,
        "best": best,
        "speedup": ratios[best],
        "max_rel_error": dict.fromkeys(seconds, 1e-6),
        "refused": {COMPILED: "no compiler"},
        "load": 1e3,
        "attribution": [{"nodes": [["Conv_0", "Relu_1"], ["Conv_2", "Relu_3"]], "speedup": 1.5}],
    }


RESULTS = {
    Unit(1, 1, "infogan"): result(ours=1.0, out=1.5, ort=2.0, torch=9.0),
    Unit(1, 1, "dcgan"): result(ours=1.0, out=1.0, ort=8.0, torch=8.5),
    Unit(16, 2, "dcgan"): result(ours=2.0, out=2.0, ort=1.0, torch=4.0),
}


def test_table_e1_has_ratios_means_and_attribution() -> None:
    ratios, attribution = end_to_end.end_to_end_tables(RESULTS, {Unit(16, 2, "gcn"): "out of memory"})
    assert ratios.column("model") == ("infogan", "dcgan", "dcgan")
    assert ratios.column("speedup") == pytest.approx((2.0, 8.0, 0.5))
    assert ratios.column("torch_times_ours") == pytest.approx((9.0, 8.5, 2.0))
    assert ratios.column("torch_compile_ms") == (None,) * 3
    assert ratios.column("best_rival") == (ORT,) * 3 and ratios.column("refused")[0] == "torch.compile: no compiler"
    of = "of the 7 models at batch"
    without = "without fsrcnn, gcn, resnet18, csrnet, longformer"
    assert f"over 2 {of} 1, 1 thread ({without}): 4.00; least 2.00, most 8.00." in ratios.note
    assert f"over 1 {of} 16, 2 threads (without infogan, {without[8:]}): 0.50" in ratios.note
    assert "The machine was busy for 3 of 3 measurements: a load of up to 1000.0 on" in ratios.note
    assert "gcn at batch 16, 2 threads was not measured: out of memory." in ratios.note
    assert attribution.rows[0] == ("infogan", 1, 1, 2, "Conv_0, Relu_1", 1.5)


def test_means_are_of_whole_models_and_loads_of_the_rows_shown() -> None:
    every = {Unit(1, 1, model.name): result(ours=1.0, ort=4.0) | {"load": 0.5} for model in MODELS}
    part = {Unit(1, 1, "gcn-heads"): result(ours=1.0, ort=500.0) | {"load": 1e3}}
    (quiet, _), (both, _), (alone, _) = (end_to_end.end_to_end_tables(found) for found in (every, every | part, part))
    assert "over the 7 models at batch 1, 1 thread: 4.00; least 4.00, most 4.00." in quiet.note
    assert "busy" not in quiet.note and "gcn-heads" not in quiet.note
    assert "over the 7 models at batch 1, 1 thread: 4.00; least 4.00, most 4.00." in both.note
    assert "gcn-heads at batch 1, 1 thread, a part of a model, in no mean: 500.00." in both.note
    assert "busy for 1 of 8 measurements: a load of up to 1000.0" in both.note and both.column("load")[-1] == 1e3
    assert "mean over" not in alone.note


def test_nothing_measured_is_an_empty_table() -> None:
    (only,) = end_to_end.end_to_end_tables({})
    assert only.rows == ()
    with pytest.raises(ValueError, match="table 'e1' is empty, expected a row to draw"):
        draw_chart(only)


def test_units_are_ordered_by_cost_and_rivals_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    effort = end_to_end.EndToEndEffort(("a", "b"), (1, 16), (1, 2))
    assert [u.size for u in end_to_end.EndToEndEffort(("longformer", "gcn"), (16,), (1,)).units()] == [1000, None]
    assert [(u.model, u.batch, u.threads) for u in effort.units()][:3] == [("a", 1, 1), ("b", 1, 1), ("a", 1, 2)]
    monkeypatch.setattr(rivals.importlib.util, "find_spec", lambda _: None)
    assert effort.rivals == (ORT,)
    assert operator_cases.operator_effort().present == (ORT, GENERATED)


def test_unknown_model_of_e1_is_refused() -> None:
    assert end_to_end.known(["gcn", "gcn-heads", "gcn"]) == ("gcn", "gcn-heads")
    with pytest.raises(ValueError, match="model 'vgg': expected one of infogan, dcgan"):
        end_to_end.known(["vgg"])


@pytest.mark.parametrize("case", table3_cases(quick=True), ids=lambda case: case.name)
def test_the_papers_programs_are_found(case: OperatorCase) -> None:
    derivation = derive(case, 20)
    assert derivation.start == case.program
    vias = [e.via for e in derivation.end.equations if e.via]
    assert any(case.wanted in via.operator and case.attributes.items() <= dict(via.attributes).items() for via in vias)


def test_missing_derivation_is_reported() -> None:
    case = OperatorCase(
        "odd", "Fig. 3", ops.conv2d(N=1, H=4, W=4, C=2, F=2, R=3, S=3, padding=1), "Matmul", {"k": 5}, (1.0, 1.0)
    )
    with pytest.raises(ValueError, match=r"odd: found no program with Matmul with \{'k': 5\} among \d+ states"):
        derive(case, 0.2)


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> operator_cases.OperatorLab:
    monkeypatch.setattr(bench, "Worker", Here)
    small = OperatorCase(
        "Conv3x3",
        "Fig. 3",
        ops.conv2d(N=1, H=5, W=5, C=4, F=6, R=3, S=3, layout="NCHW", padding=1),
        "Matmul",
        {"k": 4},
        (2.0, 1.0),
    )
    never = OperatorCase("never", "Fig. 3", small.program, "Matmul", {"k": 5}, (2.0, 1.0))
    return operator_cases.OperatorLab(operator_cases.OperatorEffort((small, never), 1, (ORT, GENERATED), 3, 1.0, 0.5))


def test_an_operator_before_and_after_on_each_backend(lab: operator_cases.OperatorLab) -> None:
    lab.run()
    (one,) = lab.results.values()
    assert list(lab.failures) == ["never"] and one.certificate == "proved" and one.times.refused == {}
    assert max(one.times.errors.values()) < 1e-5
    assert one.seconds(BEFORE, DIRECT) is None and one.speedup(DIRECT) is None
    assert one.speedup(DIRECT, ORT) is not None and one.seconds(AFTER, GENERATED) is not None
    table = operator_tables.table3(lab.results.values(), lab.failures)
    assert "never was not compared: never: found no program" in table.note
    (row,) = [dict(zip(table.head, r, strict=True)) for r in table.rows]
    assert row["before_gflop"] == pytest.approx(2 * 25 * 6 * 4 * 9 / 1e9) and row["published_speedup"] == 2.0
    assert "Matmul(" in row["after"] and row["before_by"] in (ORT, NUMPY, GENERATED)
    figure = operator_tables.fig16(lab.results.values(), lab.failures, lab.effort.present)
    assert figure.column("backend") == (ORT, GENERATED, "our plan", "what is kept")
    assert figure.column("before_by")[:2] == (None, None) and set(figure.column("before_by")[2:]) <= {ORT, NUMPY}
    assert one.times.said[f"{AFTER}, {OURS}"] == row["kept_here"] and re.search(
        r" \((0 steps: the original\)$|\d+ steps?, proved\); )", row["kept_here"]
    )
    for sheet in (table, figure):
        assert draw_chart(sheet).svg.startswith("<svg")


def fig16_with(refused: dict[str, str]) -> ResultTable:
    samples = {f"{BEFORE}, {ORT}": (0.002, 0.002), f"{AFTER}, {DIRECT}": (0.001, 0.001)}
    times = bench.Measurements(samples, dict.fromkeys(samples, ""), dict.fromkeys(samples, 0.0), {}, "", refused)
    case = table3_cases(True)[0]
    return operator_tables.fig16([OperatorComparison(case, derive(case, 5), "proved", times)], {}, (ORT,))


def test_a_backend_that_cannot_run_one_of_the_two_says_why() -> None:
    sheet = fig16_with({f"{AFTER}, {ORT}": "no kernel"})
    assert sheet.rows == (
        ("Conv3x3", ORT, 2.0, None, None, None, 0.0, "no kernel"),
        ("Conv3x3", "our plan", 2.0, 1.0, 2.0, ORT, 0.0, None),
    )


def test_backend_with_wrong_outputs_is_not_the_fastest() -> None:
    samples = {f"{BEFORE}, {name}": (seconds,) for name, seconds in ((ORT, 0.002), (NUMPY, 0.001))}
    times = bench.Measurements(samples, dict.fromkeys(samples, ""), {f"{BEFORE}, {NUMPY}": 1e-3}, {}, "", {}, 1e3)
    case = table3_cases(True)[0]
    one = OperatorComparison(case, derive(case, 5), "proved", times)
    assert one.fastest(BEFORE, (ORT, NUMPY)) == ORT and one.error(BEFORE, NUMPY) == 1e-3
    assert "busy for 1 of 1 measurements: a load of up to 1000.0" in operator_tables.fig16([one], {}, (ORT,)).note


def test_chart_has_a_text_alternative_with_all_figures() -> None:
    drawn = draw_chart(end_to_end.end_to_end_tables(RESULTS)[0])
    words = repr(drawn)
    assert "batch 1, 1 thread (time relative to ours)" in words and "batch 16, 2 threads" in words
    assert "infogan: ours 1, out_onnx 1.5, onnxruntime 2, torch 9; 2.00×" in words
    assert draw_chart(end_to_end.end_to_end_tables(RESULTS)[0]).svg == drawn.svg


def test_every_engine_has_a_colour() -> None:
    assert len({*_BAR_COLOURS}) >= len(end_to_end.ENGINES)


def test_chart_draws_no_axes_for_missing_panels() -> None:
    drawn = draw_chart(end_to_end.end_to_end_tables({**RESULTS, Unit(1, 2, "dcgan"): result(ours=1.0, ort=2.0)})[0])
    assert drawn.svg.count('id="matplotlib.axis_') == 2 * 3


def test_charts_of_unknown_tables_and_without_matplotlib_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="table 'e9': expected one of e1, e2, e3"):
        draw_chart(ResultTable("e9", "", ("a",), ((1,),)))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match="matplotlib is not installed; expected it for figures"):
        draw_chart(end_to_end.end_to_end_tables(RESULTS)[0])


def test_the_command_writes_what_was_measured_and_keeps_it_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measured(path: Path, **options: Any) -> dict[str, Any]:
        asked.append(path.stem)
        if len(asked) == 2:
            raise ValueError("does not fit")
        if len(asked) == 4:
            assert (tmp_path / "e1.csv").exists()  # before the end
            raise KeyboardInterrupt
        assert options["threads"] == 2 and options["budget"] == 3.0
        return result(ours=1.0, ort=2.0)

    monkeypatch.setattr(end_to_end, "run_benchmark", measured)
    options = ["--threads", "2", "--budget", "3", "--model", "infogan", "--model", "fsrcnn"]
    assert main(["reproduce", "e1", *options, "--out", str(tmp_path)]) == 130
    assert asked == ["infogan", "fsrcnn", "infogan", "fsrcnn"]
    said = capsys.readouterr()
    assert (
        "the tables hold 2 models, completed before the interrupt" in said.err
        and "fsrcnn at batch 1, 2 threads was not measured" in said.out
    )
    with (tmp_path / "e1.csv").open() as file:
        assert [(r["model"], r["batch"], r["speedup"]) for r in csv.DictReader(file)] == [
            ("infogan", "1", "2.0"), ("infogan", "16", "2.0"),
        ]  # fmt: skip
    assert {p.name for p in tmp_path.iterdir()} == {"e1.csv", "e1.md", "e1.svg", "e1.json", "e1_attribution.csv"}
    assert main(["reproduce", "e1", "--model", "vgg"]) == 2


def test_interrupted_reproduce_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, int]] = []

    def measured(path: Path, **options: Any) -> dict[str, Any]:
        asked.append((path.stem, options["rounds"]))
        if path.stem == "fsrcnn" and len(asked) == 2:
            raise KeyboardInterrupt
        return result(ours=1.0, ort=2.0)

    monkeypatch.setattr(end_to_end, "run_benchmark", measured)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # to draw takes the time
    command = ["reproduce", "e1", "--threads", "2", "--batch", "1", "--out", str(tmp_path)]
    both = [*command, "--model", "infogan", "--model", "fsrcnn"]
    assert main(both) == 130 and main(both) == 0
    assert [name for name, _ in asked] == ["infogan", "fsrcnn", "fsrcnn"]
    assert "found 1 model measured before" in capsys.readouterr().err
    assert rows(tmp_path) == {"infogan": "2.0", "fsrcnn": "2.0"}
    asked.clear()
    # Another model alone keeps what is there; other options, and --again, do not believe it.
    assert main([*command, "--model", "dcgan"]) == 0 and main(both) == 0 and asked == [("dcgan", 20)]
    assert main([*both, "--again"]) == 0 and len(asked) == 3
    everything = (tmp_path / "e1.json").read_text()
    assert main([*both, "--budget", "1"]) == 0 and len(asked) == 5
    assert rows(tmp_path) == {"infogan": "2.0", "fsrcnn": "2.0"}  # of one origin, the other is kept
    assert (tmp_path / "e1.other.json").read_text() == everything
    for damaged in ("{", "[]", "{}", '{"origin": 1, "results": 2}'):
        (tmp_path / "e1.json").write_text(damaged)
        asked.clear()
        assert main([*command, "--model", "infogan"]) == 0 and len(asked) == 1


def rows(folder: Path) -> dict[str, str]:
    """The speed-up of each model in the table there, in its order."""
    with (folder / "e1.csv").open() as file:
        return {r["model"]: r["speedup"] for r in csv.DictReader(file)}


def test_tables_gather_what_several_runs_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    takes = {"infogan": 2.0, "fsrcnn": 3.0, "dcgan": 4.0}

    def measured(path: Path, **_: Any) -> dict[str, Any]:
        if takes[path.stem] < 0:
            raise KeyboardInterrupt
        return result(ours=1.0, ort=takes[path.stem])

    def asked(*models: str, again: bool = False) -> dict[str, str]:
        wanted = [word for name in models for word in ("--model", name)]
        assert main([*command, *wanted, *(["--again"] if again else [])]) == (130 if min(takes.values()) < 0 else 0)
        return rows(tmp_path)

    monkeypatch.setattr(end_to_end, "run_benchmark", measured)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # to draw takes the time
    command = ["reproduce", "e1", "--threads", "2", "--batch", "1", "--out", str(tmp_path)]
    assert asked("fsrcnn") == {"fsrcnn": "3.0"}
    assert asked("infogan") == {"infogan": "2.0", "fsrcnn": "3.0"}
    assert "over 2 of the 7 models at batch 1, 2 threads" in (tmp_path / "e1.md").read_text()
    takes |= {"infogan": 5.0, "fsrcnn": 6.0}
    assert asked("infogan", "dcgan") == {"infogan": "2.0", "dcgan": "4.0", "fsrcnn": "3.0"}
    assert asked("infogan", again=True) == {"infogan": "5.0", "dcgan": "4.0", "fsrcnn": "3.0"}
    takes |= {"dcgan": -1.0}  # interrupted there: it stands as it was
    assert asked("infogan", "dcgan", "fsrcnn", again=True) == {"infogan": "5.0", "dcgan": "4.0", "fsrcnn": "3.0"}
    assert "the tables hold 1 model, completed before the interrupt" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "e1.json").read_text())["results"]) == 3
    # What another run has measured meanwhile is kept.
    labs = [
        end_to_end.EndToEndLab(replace(EFFORT, models=(name,)), out=tmp_path / "both.json")
        for name in ("infogan", "fsrcnn")
    ]
    assert [lab.resume() for lab in labs] == [0, 0]
    for lab in labs:
        lab.run()
    assert [unit.model for unit in labs[1].shown] == ["infogan", "fsrcnn"]
    assert end_to_end.EndToEndLab(EFFORT, out=tmp_path / "both.json").resume() == 2


EFFORT = end_to_end.EndToEndEffort(("infogan", "fsrcnn"), (1,), (1,), attribute=False)


def test_the_command_compares_operators_once_for_both(
    lab: operator_cases.OperatorLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operator_cases, "operator_effort", lambda _: lab.effort)
    assert main(["reproduce", "e3", "e2", "--quick", "--out", str(tmp_path)]) == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "e2-e3.json", *(f"{e}.{kind}" for e in ("e2", "e3") for kind in ("csv", "md", "svg"))
    }  # fmt: skip
    said = capsys.readouterr()
    assert said.err.count("Conv3x3\n") == 1 and said.out.index("Fig. 16") < said.out.index("Table 3")
    before = (tmp_path / "e2.csv").read_text()

    asked: list[str] = []

    def measured(case: OperatorCase, _: operator_cases.OperatorEffort) -> OperatorComparison:
        asked.append(case.name)
        raise ValueError("not now")

    monkeypatch.setattr(operator_cases, "compare_operator", measured)
    assert main(["reproduce", "e2", "--quick", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "e2.csv").read_text() == before and asked == ["never"]
    assert main(["reproduce", "e2", "--quick", "--out", str(tmp_path), "--again"]) == 0
    assert asked == ["never", "Conv3x3", "never"]


@pytest.mark.parametrize("damage", [None, ("steps", 0, "rule"), ("start",)])
def test_operator_is_resumed_if_its_derivation_can_be_replayed(
    lab: operator_cases.OperatorLab, tmp_path: Path, damage: tuple[Any, ...] | None
) -> None:
    lab.run()
    lab.out = tmp_path / "e2-e3.json"
    told = lab.to_json("Conv3x3", lab.results["Conv3x3"])
    if damage:
        *inner, last = damage
        reduce(getitem, inner, told["record"])[last] = "tensor A[3]\nY[x:3] = A[x]"
    lab.results_file.write([told])
    held = lab.results.pop("Conv3x3")
    assert lab.resume() == (0 if damage else 1)
    assert damage or text(lab.results["Conv3x3"].derivation.end) == text(held.derivation.end)
