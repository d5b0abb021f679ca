"""``sweep``: results survive a failed search or Ctrl-C; numbers of tables in files."""

import csv
import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from test_cli import CASE

from einnet_explore.cli import main, sweep
from einnet_explore.session.run import run_search
from einnet_explore.support.executors import SerialExecutor
from einnet_explore.viz.tables import ResultTable


@pytest.fixture
def cases(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{name}.ein" for name in "abc"]
    for path in paths:
        path.write_text(CASE)
    return [str(path) for path in paths]


def searching(monkeypatch: pytest.MonkeyPatch, of_b: BaseException) -> None:
    """The search of the second case raises *of_b*."""

    def search(case: str, *rest: Any) -> dict[str, Any]:
        if case.endswith("b.ein"):
            raise of_b
        return run_search(case, *rest)

    monkeypatch.setattr(sweep, "run_search", search)


COMMAND = ["sweep", "--max-depth", "1", "--json"]


def test_a_search_that_fails_loses_no_other(
    cases: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searching(monkeypatch, RuntimeError("search_one was given up: 3 processes died of it"))
    out = tmp_path / "out.json"
    assert main([*COMMAND, str(out), *cases]) == 2
    said, shown = json.loads(out.read_text()), capsys.readouterr()
    assert [r["case"] for r in said["reports"]] == [cases[0], cases[2]] and list(said["failures"]) == [cases[1]]
    assert f"error: {cases[1]}: RuntimeError: search_one was given up" in shown.err and cases[2] in shown.out
    out.unlink()
    assert main([*COMMAND, str(out), cases[1]]) == 2 and not out.exists()
    with pytest.raises(RuntimeError, match="given up"):
        main([*COMMAND, str(out), *cases, "--debug"])


def test_unreadable_case_does_not_stop_the_others(
    cases: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(cases[0]).write_text("tensor A[3")
    Path(cases[1]).unlink()
    out = tmp_path / "out.json"
    assert main([*COMMAND, str(out), *cases]) == 2
    said, shown = json.loads(out.read_text()), capsys.readouterr()
    assert [r["case"] for r in said["reports"]] == [cases[2]] and list(said["failures"]) == cases[:2]
    assert f"error: {cases[0]}:1:11: found the end" in shown.err and f"error: {cases[1]}: No such file" in shown.err
    assert cases[2] in shown.out
    with pytest.raises(ValueError, match="found the end"):
        main([*COMMAND, str(out), *cases, "--debug"])


def test_finished_searches_survive_an_interrupt(
    cases: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    searching(monkeypatch, KeyboardInterrupt())
    assert main([*COMMAND, "-", *cases]) == 130
    shown = capsys.readouterr()
    assert [r["case"] for r in json.loads(shown.out)["reports"]] == [cases[0]]
    assert shown.err == "interrupted: 1 of 3 searches done\n"


def test_searches_finished_out_of_order_survive_an_interrupt(
    cases: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Late(Executor):
        """The first item never comes, and Ctrl-C while it is waited for."""

        asked = 0

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self.asked += 1
            return SerialExecutor().submit(fn, *args, **kwargs) if self.asked > 1 else Never()

    class Never(Future[Any]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "executor", lambda *_: nullcontext(Late()))
    assert main([*COMMAND, "-", *cases]) == 130
    assert [r["case"] for r in json.loads(capsys.readouterr().out)["reports"]] == cases[1:]


def test_small_numbers_keep_their_figures_in_a_table() -> None:
    numbers = (2.9612345678e-07, 1.23456789, 123456.789, 0.0, 1e-12, 3.0)
    sheet = ResultTable("s", "", ("x",), tuple((x,) for x in numbers))
    written = [row[0] for row in csv.reader(sheet.csv().splitlines()[1:])]
    assert written == ["2.961235e-07", "1.234568", "123456.8", "0.0", "1e-12", "3.0"]
