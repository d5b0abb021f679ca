"""Searches in threads: started twice, stopped and resumed, saved and queried while running, aborted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import einnet_explore as ee
from einnet_explore.ir import Program
from einnet_explore.session.run import Run
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, SearchEvent
from einnet_explore.strategies.options import Options

CONV = ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1)


def search(**options: Any) -> Run:
    return Run(CONV, ee.program_seconds, target="Matmul", options=Options("paper", 2), **options)


@pytest.fixture(scope="module")
def through() -> Run:
    run = search()
    assert sum(1 for _ in run) > 45
    return run


def same(one: Run, other: Run) -> None:
    assert one.search.states == other.search.states and one.candidates == other.candidates
    assert (one.events, one.pruned, one.refused) == (other.events, other.pruned, other.refused)


class Held:
    """A cost that waits at a candidate until it is let go: a search that is in the middle of an event."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    def __call__(self, program: Program) -> tuple[float, str]:
        self.there.set()
        assert self.go.wait(60)
        return ee.program_seconds(program)


def held() -> tuple[Run, Held]:
    cost = Held()
    run = Run(CONV, cost, target="Matmul", options=Options("paper", 2)).start()
    assert cost.there.wait(60)
    return run, cost


@pytest.mark.parametrize("limit", [-1, -0.5, float("nan")])
def test_a_limit_that_is_never_reached_or_always_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match=f"budget {limit}: expected 0 or more seconds, or None for no limit"):
        search(budget=limit)
    with pytest.raises(ValueError, match="states 0: expected 1 or more, or None for no limit"):
        search(states=0)
    assert search(budget=float("inf")).budget == float("inf")


def test_starting_a_search_that_runs_changes_nothing(through: Run) -> None:
    run, cost = held()
    assert run.start() is run and run.running
    with pytest.raises(ValueError, match="the search runs in a thread: expected that it is stopped"):
        iter(run)
    cost.go.set()
    same(run.wait(60), through)
    assert sum(t.name == "einnet-search" for t in threading.enumerate()) == 0


def test_stopping_search_continues_when_it_is_started(through: Run) -> None:
    run, cost = held()
    run.stop()
    assert run.stopping
    run.start()
    assert run.running and not run.stopping
    cost.go.set()
    same(run.wait(60), through)


def test_stop_right_after_start_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()
    start = threading.Thread.run

    def late(self: threading.Thread) -> None:
        assert began.wait(60)
        start(self)

    monkeypatch.setattr(threading.Thread, "run", late)
    run = search().start()
    run.stop()
    began.set()
    assert run.wait(60).events == 1


def test_file_saved_during_a_search_is_consistent(tmp_path: Path, through: Run) -> None:
    """A file of more states than its events have made could be shown, but not gone on with."""
    run, cost = held()
    saving = threading.Thread(target=run.save, args=(tmp_path / "live.einx",))
    saving.start()
    saving.join(0.2)
    assert saving.is_alive()
    cost.go.set()
    saving.join(60)
    run.wait(60)
    data = json.loads((tmp_path / "live.einx").read_text())
    assert 0 < data["events"] <= run.events
    back = Run.load(tmp_path / "live.einx", ee.program_seconds)
    list(back)
    same(back, through)


def test_a_search_is_saved_and_reported_between_any_two_events(tmp_path: Path, through: Run) -> None:
    run = search()
    found: list[int] = []

    def look(_: SearchEvent) -> None:
        if run.events % 9 == 0:
            run.save(tmp_path / f"{run.events}.einx")
            said = run.report()
            found.append(len(said["candidates"]))
            assert said["unique"] == len(run.search.states)

    run.subscribe(look)
    run.start().wait(60)
    assert found == sorted(found) and found[-1] > 0
    for path in sorted(tmp_path.iterdir())[:3]:
        back = Run.load(path, ee.program_seconds)
        list(back)
        same(back, through)


def test_report_excludes_candidates_found_during_its_proofs(monkeypatch: pytest.MonkeyPatch, through: Run) -> None:
    """Proofs take their time; candidates that are found meanwhile are no part of it."""
    run = search()
    for _ in run:
        if len(run.candidates) == 2:
            break
    verdict = Run.verdict

    def slow(self: Run, candidate: Any) -> str:
        self.candidates.append(through.candidates[-1])
        return verdict(self, candidate)

    monkeypatch.setattr(Run, "verdict", slow)
    assert len(run.report()["candidates"]) == 2


@pytest.mark.parametrize("cut", [0, 1, 7, 40])
def test_a_search_that_was_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch, cut: int, through: Run) -> None:
    """Ctrl-C in a loop over it: a notebook's "interrupt the kernel"."""
    events = Search.run

    def interrupted(self: Search) -> Iterable[SearchEvent]:
        for n, event in enumerate(events(self)):
            if n == cut:
                self.reached(0, (), self.start, 0, "explorative", None)  # what was not said yet
                raise KeyboardInterrupt
            yield event

    run = search()
    monkeypatch.setattr(Search, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    monkeypatch.undo()
    assert run.events == cut and len(run.search.states) <= cut
    list(run)
    same(run, through)
    assert run.search.complete


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_candidate_is_found_once_whenever_the_interrupt_comes(
    monkeypatch: pytest.MonkeyPatch, when: str, through: Run
) -> None:
    record, derivation = Run._record, Search.derivation

    def noted(self: Run, event: SearchEvent) -> None:
        if when == "before" and isinstance(event, Found):
            raise KeyboardInterrupt
        record(self, event)
        if when == "after" and isinstance(event, Found):
            raise KeyboardInterrupt

    def interrupted(self: Search, state: int) -> Any:
        if when == "within":
            raise KeyboardInterrupt
        return derivation(self, state)

    run = search()
    monkeypatch.setattr(Run, "_record", noted)
    monkeypatch.setattr(Search, "derivation", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(run)
    monkeypatch.undo()
    assert len(run.candidates) == (when == "after")
    assert all(c.state < len(run.search.states) for c in run.candidates)
    list(run)
    same(run, through)


def test_error_of_a_search_is_raised_once() -> None:
    run = search()
    leave = run.subscribe(lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run.start().wait(60)
    leave()
    assert run.start().wait(60).search.complete


def test_a_loaded_search_stops_while_it_catches_up(tmp_path: Path, through: Run) -> None:
    through.save(tmp_path / "x.einx")
    back = Run.load(tmp_path / "x.einx", ee.program_seconds)
    going = iter(back)
    back.stop()
    assert list(going) == []
    assert list(back) == []
    same(back, through)


def test_limit_of_states_is_saved(tmp_path: Path) -> None:
    run = search(states=5)
    list(run)
    run.save(tmp_path / "x.einx")
    back = Run.load(tmp_path / "x.einx", ee.program_seconds)
    assert back.most == 5 and len(list(back)) == 1
    data = json.loads((tmp_path / "x.einx").read_text())
    del data["most"]
    (tmp_path / "old.einx").write_text(json.dumps(data))
    assert Run.load(tmp_path / "old.einx", ee.program_seconds).most is None


class Interrupting:
    """A cost that interrupts the search at its third candidate, once."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, program: Program) -> tuple[float, str]:
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return ee.program_seconds(program)


def test_an_interrupt_ends_a_search_with_its_results_and_finish_continues(through: Run) -> None:
    run = Run(CONV, Interrupting(), target="Matmul", options=Options("paper", 2)).finish()
    assert run.interrupted and len(run.candidates) == 2 and run.best in run.candidates
    assert "interrupted: finish() continues" in repr(run) and "interrupted" in repr(run.table())
    assert not run.finish().interrupted and run.search.complete
    assert [c.derivation for c in run.candidates] == [c.derivation for c in through.candidates]


def test_search_is_finished_and_its_old_spellings_warn(through: Run) -> None:
    options = {"target": "Matmul", "strategy": "paper", "max_depth": 2}
    run = ee.search(CONV, **options)
    assert run.search.complete and not run.running and len(run.candidates) == len(through.candidates)
    with pytest.warns(DeprecationWarning, match=r"the run is finished: leave out start\(\)"):
        assert run.start().wait() is run and not run.running
    run = ee.search(CONV, **options)
    with pytest.warns(DeprecationWarning, match="write live_search"):
        events = list(run)
    assert len(events) == run.events and events == list(ee.live_search(CONV, **options))
    with pytest.warns(DeprecationWarning, match=r"search\(limit=...\) is deprecated: write budget=..."):
        assert ee.search(CONV, limit=7, max_depth=0).budget == 7
    with pytest.raises(TypeError, match="search: found limit and budget, expected only budget"):
        ee.search(CONV, limit=7, budget=7)


def test_searches_of_a_session_are_finished_too() -> None:
    session = ee.explore(CONV)
    run = session.search("Matmul", max_depth=1)
    live = session.live_search("Matmul", max_depth=1)
    assert session.runs == [run, live] and not live.candidates
    assert live.finish().candidates == run.candidates != []
