"""``reproduce e4 e5 e6``: levels of a search, contents of tables, and complete files."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

import einnet_explore as ee
from einnet_evaluation.cases import CASES, Case, Published
from einnet_evaluation.plots import plot
from einnet_evaluation.search_tables import search_tables
from einnet_evaluation.searches import (
    QUICK,
    SearchEffort,
    SearchLab,
    is_target,
    needed,
    run_in_process,
    search_case,
    search_depths,
)
from einnet_explore.cli import main
from einnet_explore.operators.library import find_operators
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, Reached
from einnet_explore.strategies.options import Options
from einnet_explore.viz.tables import ResultTable

SMALL = Case(
    "small",
    lambda: ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1),
    ("Matmul",),
    "Matmul",
    "Matmul",
    {"n": 27},
    {1: Published(1.0, 2)},
    10,
    ("1", "2"),
    milliseconds=(4.0, 2.0),
)


@pytest.mark.parametrize(("fingerprint", "converging"), [(True, True), (False, True), (True, False)])
def test_levels_of_one_search_equal_searches_to_smaller_depths(fingerprint, converging):
    """The levels of one run, against a run of its own for each MaxDepth."""
    levels = search_depths(SMALL, 3, 120, fingerprint, converging)
    assert [d.depth for d in levels] == [0, 1, 2, 3] and all(d.complete for d in levels)
    for level in levels:
        options = Options("paper", level.depth, fingerprint, converging, targets=find_operators(SMALL.targets))
        engine = Search(SMALL.make(), ee.program_seconds, options)
        events = list(engine.run())
        found = [e for e in events if isinstance(e, Found)]
        kept = [e for e in events if isinstance(e, Reached)]
        assert (level.kept, level.candidates) == (len(kept), len(found))
        if fingerprint:
            assert level.states == len(engine.states) + engine.pruned
        assert level.found == any(is_target(e.state.program, SMALL) for e in found)
        assert (level.cheapest[0][0] if level.cheapest else None) == min((e.seconds for e in found), default=None)
        assert level.original == (levels[0].original)


def test_a_search_that_is_cut_off_says_so():
    levels = search_depths(CASES["Conv3x3"], 6, 0.3)
    assert not levels[-1].complete and levels[-1].depth < 6
    assert [d.complete for d in levels[:-1]] == [True] * (len(levels) - 1)


def test_depths_beyond_the_last_new_state_repeat_it():
    relu = Case("relu", lambda: ee.ops.relu(2, 3), ("Matmul",), "Matmul", "Matmul", {}, {}, 0, ("", ""))
    levels = search_depths(relu, 4, 60)
    assert [(d.depth, d.complete) for d in levels] == [(n, True) for n in range(5)]


def test_the_target_is_found_where_the_paper_says_there_is_one():
    levels = {case: search_depths(CASES[case], depth, 60) for case, depth in (("G2BMM", 1), ("Conv3x3", 0))}
    assert levels["G2BMM"][-1].found and not levels["Conv3x3"][-1].found
    original = levels["G2BMM"][0].original
    assert original is not None and not is_target(original[1], CASES["G2BMM"])


def test_work_in_another_process_returns_equal_results_and_errors():
    here = search_case("G2BMM", 1, 60, True, True)
    there = run_in_process(search_case, "G2BMM", 1, 60, True, True)
    for a, b in zip(here, there, strict=True):
        assert (a.states, a.kept, a.cheapest, a.original) == (b.states, b.kept, b.cheapest, b.original)
        assert hash(a.cheapest) == hash(b.cheapest)
    with pytest.raises(RuntimeError, match="KeyError: 'Conv9x9'"):
        run_in_process(search_case, "Conv9x9", 1, 60, True, True)
    with pytest.raises(RuntimeError, match=r"the process of _exit ended with code 3"):
        run_in_process(os._exit, 3)


@pytest.fixture(scope="module")
def lab() -> SearchLab:
    made = SearchLab(SearchEffort(2, 20, 20, False))
    made.run(v for e in ("e4", "e5", "e6") for v in needed(e) if v[0] in ("G2BMM", "Conv5x5"))
    return made


def test_searches_that_were_run_are_reused(lab):
    before = dict(lab.results)
    lab.run(before)
    assert all(lab.results[v] is before[v] for v in before)


def test_table_has_our_and_the_published_speedups(lab):
    (sheet,) = search_tables("e4", lab.results)
    assert sheet.column("max_depth") == (1, 2, 3, 4, 5, 6)
    assert sheet.column("complete") == (True, True, False, False, False, False)
    assert sheet.column("speedup_published") == pytest.approx((1, 1, 1, 2.372, 2.372, 2.372), rel=1e-3)
    assert all(x >= 1 for x in sheet.column("speedup_estimated")[:2])
    assert set(sheet.column("speedup_estimated")[2:]) == {None}
    assert set(sheet.column("speedup_measured")) == {None}


def test_measured_speedups_are_of_what_ran():
    levels = search_depths(SMALL, 1, 60)
    from einnet_evaluation.searches import measured_seconds

    times = measured_seconds(levels)
    assert set(times) >= {program for _, program in levels[-1].cheapest}
    assert all(0 < t < 1 for t in times.values())


def test_table_e5_has_growth_and_steps_next_to_published_ones(lab):
    growth, steps = search_tables("e5", lab.results)
    rows = [dict(zip(growth.head, row, strict=True)) for row in growth.rows]
    artifact = {r["max_depth"]: r for r in rows if r["case"] == "G2BMM" and r["published_states"]}
    assert artifact[7]["published_times_per_depth"] == pytest.approx((0.287 / 0.022) ** (1 / 3))
    assert artifact[7]["complete"] is False and artifact[7]["states"] is None
    ours = [r for r in rows if r["case"] == "Conv5x5" and r["converging"] and r["complete"]]
    assert [r["states"] for r in ours] == [20, 121]
    said = {(row[0], row[2]): row[3] for row in steps.rows}
    assert said["G2BMM", True] == 1 and said["Conv5x5", True] == "> 2"


def test_the_ablation_keeps_every_candidate(lab):
    (sheet,) = search_tables("e6", lab.results)
    rows = [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]
    ours = [r for r in rows if "artifact" not in r["case"]]
    assert ours and all(r["complete"] for r in ours)
    assert all(r["candidates_with"] == r["candidates_without"] for r in ours)
    assert all(r["states_with"] < r["states_without"] for r in ours if r["max_depth"] == 2)
    assert next(r for r in rows if r["case"] == "Conv5x5, artifact")["pruned_percent"] == pytest.approx(97.1, abs=0.05)


@pytest.mark.parametrize("experiment", ["e4", "e5", "e6"])
def test_figures_are_well_formed_and_the_same_each_time(lab, experiment):
    made = search_tables(experiment, lab.results)
    assert ElementTree.fromstring(plot(made).svg).tag.endswith("svg")
    assert plot(made).svg == plot(made).svg


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="experiment 'e9': expected one of e4, e5, e6"):
        needed("e9")
    with pytest.raises(ValueError, match="table 'e9': expected one of e4, e5, e5_steps, e6"):
        plot((ResultTable("e9", "", (), ()),))


def test_sheets_as_csv_and_markdown():
    sheet = ResultTable(
        "s", "Title", ("a_b", "n", "x", "ok"), (("p|q, r", 1234, 0.5, True), ("", None, 12345.6, False)), "How"
    )
    assert list(csv.reader(sheet.csv().splitlines())) == [
        ["a_b", "n", "x", "ok"], ["p|q, r", "1234", "0.5", "true"], ["", "", "12345.6", "false"],
    ]  # fmt: skip
    assert sheet.markdown().splitlines() == [
        "## Title", "", "| a b | n | x | ok |", "| :-- | --: | --: | --: |", "| p\\|q, r | 1,234 | 0.5 | yes |",
        "|  |  | 12,346 | no |", "", "How",
    ]  # fmt: skip


def test_the_command_writes_tables_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "dir"
    argv = ["reproduce", "e4", "--quick", "--max-depth", "1", "--budget", "20", "--out", str(out)]
    assert main(argv) == 0
    assert {p.name for p in out.iterdir()} == {"e4.csv", "e4.md", "e4.svg"}
    said = capsys.readouterr()
    assert "## Fig. 17" in said.out and (out / "e4.md").read_text() in said.out
    with (out / "e4.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["case"], r["complete"]) for r in rows if r["speedup_estimated"]] == [
        ("ConvTranspose", "true"), ("G2BMM", "true"),
    ]  # fmt: skip


def test_bad_experiments_and_places_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "e7"])
    assert "invalid choice: 'e7'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["reproduce", "e4", "--quick", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interruption_keeps_the_searches_that_are_done(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "einnet_explore", "reproduce", "e4", "--max-depth", "9", "--budget", "1",
            "--count-seconds", "1"]  # fmt: skip
    with subprocess.Popen(
        [*argv, "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as p:
        assert p.stderr is not None
        for said in ("ConvTranspose: count", "ConvTranspose", "G2BMM: count", "G2BMM"):
            assert p.stderr.readline() == f"{said}\n"
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=30)
    assert p.returncode == 130
    assert (
        "the tables hold 1 search, completed before the interrupt" in err
        and "| ConvTranspose |" in out
        and "| G2BMM |" not in out
    )
    assert (tmp_path / "e4.csv").exists()


@pytest.mark.slow
def test_quick_takes_less_than_a_minute(tmp_path: Path) -> None:
    began = time.perf_counter()
    assert main(["reproduce", "e4", "e5", "e6", "--quick", "--out", str(tmp_path)]) == 0
    assert time.perf_counter() - began < 60
    assert (
        len(needed("e5")) + len(needed("e6")) - len(CASES) == 3 * len(CASES)
        and (QUICK.limit * 3 + QUICK.count_limit) * len(CASES) < 50
    )
    assert {p.suffix for p in tmp_path.iterdir()} == {".csv", ".md", ".svg"}
