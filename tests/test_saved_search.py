"""A search that is saved, loaded and gone on with; its graph with merges; why something was refused."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import networkx
import pytest

import einnet_explore as ee
from einnet_explore.checker.record import RecordError
from einnet_explore.cli import main
from einnet_explore.rules import Match
from einnet_explore.session.run import Run
from einnet_explore.session.running_search import saved_search_from_json, saved_search_to_json
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, Pruned, SearchEvent
from einnet_explore.strategies.options import Options
from einnet_explore.viz.graph_figures import search_graph

CONV = ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1)


def started(strategy: str, depth: int = 2, **options: object) -> Run:
    return Run(CONV, ee.program_seconds, target="Matmul", options=Options(strategy, depth, **options))  # type: ignore[arg-type]


def whole(strategy: str) -> tuple[Run, list[SearchEvent]]:
    run = started(strategy)
    return run, list(run)


def same(one: Run, other: Run) -> None:
    assert one.search.states == other.search.states
    assert one.candidates == other.candidates
    assert (one.pruned, one.refused) == (other.pruned, other.refused)
    assert (one.events, one.search.pruned, one.search.complete) == (
        other.events,
        other.search.pruned,
        other.search.complete,
    )
    assert (one.best, one.target, one.search.options) == (other.best, other.target, other.search.options)


@pytest.mark.parametrize("strategy", ["paper", "best_first"])
def test_a_finished_search_comes_back_as_it_was(tmp_path: Path, strategy: str) -> None:
    run, _ = whole(strategy)
    run.save(tmp_path / "x.einx")
    back = ee.load(tmp_path / "x.einx")
    assert isinstance(back, Run)
    same(run, back)
    assert back.report("case")["candidates"] == run.report("case")["candidates"]
    assert back.why_pruned(0) == run.why_pruned(0)
    assert "Matmul" in repr(back.table()) and back.tree().svg == run.tree().svg
    steps = back.derivation(run.best)
    assert steps == run.derivation() and steps.derivation == run.derivation(run.best.state).derivation
    assert steps.to_latex("align").startswith("\\begin{align}") and "Matmul" in steps.graph().svg
    with pytest.raises(ValueError, match="environment 'figure': expected one of align, "):
        steps.to_latex("figure")
    for ask in (back.derivation, back.why_pruned):
        with pytest.raises(LookupError, match=f"state 9999: the search has states 0 to {len(run.search.states) - 1}"):
            ask(9999)
    assert list(back) == []


@pytest.mark.parametrize("strategy", ["paper", "best_first"])
@pytest.mark.parametrize("cut", [0, 1, 7, 40])
def test_a_search_goes_on_as_if_it_had_not_been_left(tmp_path: Path, strategy: str, cut: int) -> None:
    through, events = whole(strategy)
    assert len(events) > 45
    part = started(strategy)
    assert list(islice(part, cut)) == events[:cut]
    part.save(tmp_path / "part.einx")
    back = Run.load(tmp_path / "part.einx", ee.program_seconds)
    assert back.search.states == part.search.states and back.events == cut
    assert list(back) == events[cut:]
    same(back, through)
    assert list(part) == events[cut:]
    same(part, through)


def test_time_limit_applies_to_each_iteration() -> None:
    run = Run(CONV, ee.program_seconds, budget=1e-9, options=Options("paper", 2))
    assert [sum(1 for _ in run) for _ in range(3)] == [1, 1, 1]
    assert run.events == 3


def test_a_search_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """Strings hash differently in every process; what is found, and in which order, does not."""
    code = (
        "import sys, einnet_explore as ee; from einnet_explore.session.run import Run\n"
        "from einnet_explore.strategies.options import Options\n"
        "conv = ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1)\n"
        "for strategy in ('paper', 'best_first'):\n"
        "    run = Run(conv, ee.program_seconds, options=Options(strategy, 2))\n"
        "    [None for _ in run]; run.save(f'{strategy}{sys.argv[1]}.einx')\n"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code, seed]
        subprocess.run(command, env=environment, check=True, timeout=120, cwd=tmp_path)
    for strategy in ("paper", "best_first"):
        first, second = (json.loads((tmp_path / f"{strategy}{seed}.einx").read_text()) for seed in ("1", "2"))
        for data in (first, second):
            for candidate in data["candidates"]:
                assert 0 <= candidate.pop("found") <= data["seconds"]
            for measured in ("seconds", "first_found"):
                data.pop(measured, None)
        assert first == second


def test_saved_search_that_replays_differently_is_refused() -> None:
    run = started("paper")
    list(islice(run, 30))
    data = saved_search_to_json(run)
    data["states"].append(data["states"][1])
    back = saved_search_from_json(Run, data, ee.program_seconds)
    n = len(data["states"])
    with pytest.raises(ValueError, match=rf"differs from the saved one from state \d+ of {n} on"):
        list(back)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "x"}, "found 'x' version 1, expected 'einnet-explore search' version 1"),
        ({"version": 2}, "version 2, expected"),
        ({"options": {"luck": 1}}, "unknown options luck"),
        ({"states": [{"parent": 3}]}, "state 0: found parent 3, expected an earlier state"),
        ({"target": ["Frobnicate"]}, "unknown target 'Frobnicate'"),
    ],
)
def test_files_that_are_not_saved_searches(change: dict[str, object], words: str) -> None:
    data = saved_search_to_json(started("paper")) | change
    with pytest.raises(RecordError, match=words):
        saved_search_from_json(Run, data, ee.program_seconds, "f.einx")


def test_broken_steps_and_missing_parts_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = whole("paper")
    data = saved_search_to_json(run)
    with pytest.raises(RecordError, match="'states' is missing"):
        saved_search_from_json(Run, {k: v for k, v in data.items() if k != "states"}, ee.program_seconds)
    with pytest.raises(RecordError, match="expected a saved search"):
        saved_search_from_json(Run, [], ee.program_seconds)
    step = data["states"][1]["steps"][0]
    good = step["rule"], step["at"]
    step["rule"] = "frobnicate"
    with pytest.raises(RecordError, match="found the rule 'frobnicate', expected one of"):
        saved_search_from_json(Run, data, ee.program_seconds)
    step["rule"], step["at"] = good[0], "7"
    with pytest.raises(RecordError, match=r"state 1: \w+ at 7: path '7': expected an equation number below 1"):
        saved_search_from_json(Run, data, ee.program_seconds)
    (tmp_path / "x.einx").write_text("{")
    assert main(["show", str(tmp_path / "x.einx")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_saved_searches_with_one_thing_changed_are_read_or_refused() -> None:
    """A seeded sample of what one value of another type, or one that is lost, can do."""
    run = started("paper")
    list(islice(run, 60))
    text = json.dumps(saved_search_to_json(run))
    rng = random.Random(5)
    refused = 0
    changes: list[object] = [None, -1, 10**30, 1e400, "", [], {}, 3.7, "0.0.0.0"]
    for what in (
        "at",
        "phi",
        "iterators",
        "state",
        "parent",
        "seconds",
        "params",
        "steps",
        "options",
        "start",
        "depth",
    ):
        data = json.loads(text)
        holders = [each for each in _objects(data) if what in each]
        holder = rng.choice(holders[:6])
        if rng.random() < 0.2:
            del holder[what]
        else:
            holder[what] = rng.choice(changes)
        try:
            saved_search_from_json(Run, data, ee.program_seconds)
        except RecordError:
            refused += 1
    assert refused >= 8
    for where, part in (("candidates", "state"), ("prunings", "parent"), ("refusals", "state")):
        data = json.loads(text)
        data[where][0][part] = -1
        with pytest.raises(RecordError, match=rf"0: found {part} -1, expected one of the \d+ states"):
            saved_search_from_json(Run, data, ee.program_seconds)


def _objects(data: object) -> list[dict[str, object]]:
    match data:
        case dict():
            return [data, *(found for value in data.values() for found in _objects(value))]
        case list():
            return [found for value in data for found in _objects(value)]
    return []


def test_show_takes_a_saved_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = whole("best_first")
    run.save(tmp_path / "x.einx")
    assert main(["show", str(tmp_path / "x.einx")]) == 0
    assert "via Matmul" in capsys.readouterr().out
    started("paper").save(tmp_path / "empty.einx")
    assert main(["show", str(tmp_path / "empty.einx")]) == 2
    assert "no candidate yet" in capsys.readouterr().err


def test_the_graph_has_every_state_and_every_merge() -> None:
    search = Search(CONV, ee.program_seconds, Options("paper", 2))
    events = list(search.run())
    found = {e.state.id: e.seconds for e in events if isinstance(e, Found)}
    graph = search_graph(search.states, (e for e in events if isinstance(e, Pruned)), found)
    assert json.loads(json.dumps(graph)) == graph
    assert [node["id"] for node in graph["nodes"]] == list(range(len(search.states)))
    moves = [e for e in graph["edges"] if e["kind"] == "move"]
    assert sorted(e["target"] for e in moves) == list(range(1, len(search.states)))
    merges = [e for e in graph["edges"] if e["kind"] == "merge"]
    assert sum(e["times"] for e in merges) == sum(isinstance(e, Pruned) for e in events) > len(search.states) // 10
    assert {n["id"]: n["seconds"] for n in graph["nodes"] if n["seconds"] is not None} == found


def test_a_merge_leads_to_the_same_program() -> None:
    run, _ = whole("paper")
    keys = [ee.program_key(s.program) for s in run.search.states]
    for pruned in run.pruned:
        program = run.search.states[pruned.parent].program
        for match in pruned.matches:
            assert isinstance(match, Match)
            program = match.apply(program).after
        assert pruned.twin is not None and ee.program_key(program) == keys[pruned.twin]
    graph = networkx.node_link_graph(json.loads(json.dumps(run.graph())))
    assert graph.is_directed() and set(graph) == set(range(len(run.search.states)))
    assert graph.number_of_edges() == len(run.graph()["edges"])


def test_why_refused_states_the_reason() -> None:
    run, _ = whole("paper")
    assert " away: " in run.why_refused("G2BMM") or "reads" in run.why_refused("G2BMM")
    assert run.why_refused("traversal_merging") == "the body reads no scope"
    assert run.why_refused("summation_splitting").startswith("summation_splitting applies, in ")
    with pytest.raises(LookupError, match="no rule or operator is called 'luck'"):
        run.why_refused("luck")
    with pytest.raises(LookupError):
        run.why_refused("traversal_merging", at="5")
    assert run.why_refused("traversal_merging", at="Y") == "the body reads no scope"
    session = ee.Session(CONV)
    assert session.why_refused("traversal_merging") == "the body reads no scope"


def test_why_not_explains_an_unexplored_derivation() -> None:
    deep = started("paper", 2)
    list(deep)
    longest = max((c.derivation for c in deep.candidates), key=lambda d: len(d.steps))
    assert deep.why_not(longest).startswith("the search reached it: its end is state ")
    state = next(s for s in deep.search.states if s.depth == 2 and s.phase == "explorative")
    way = deep.search.derivation(state.id)
    flat = started("paper", 1)
    list(flat)
    rule = way.steps[1].match
    assert re.fullmatch(
        rf"after 1 of 2 steps it is state \d+, 1 choice from the start, so {rule.rule.name} at .* goes beyond depth 1",
        flat.why_not(way),
    )
    unused = started("paper", 2, rules=tuple(r for r in ee.RULES if r.name != way.steps[0].match.rule.name))
    list(unused)
    assert unused.why_not(way) == (
        f"after 0 of 2 steps it is state 0; the search does not use {way.steps[0].match.rule.name}"
    )
    left = started("paper", 2)
    list(islice(left, 1))
    assert "the search ended before" in left.why_not(way)
    narrow = Run(CONV, ee.program_seconds, options=Options("best_first", 1, patience=99))
    list(narrow)
    said = {narrow.why_not(deep.search.derivation(s.id)) for s in deep.search.states if s.depth == 1}
    assert any("best_first leaves out what follows" in each for each in said)
    with pytest.raises(ValueError, match="starts from a program that is no state of this search"):
        deep.why_not(ee.explore(ee.ops.matmul(2, 3, 4)).derivation)
