"""The line that says how far long work is."""

from __future__ import annotations

import io
import sys

import pytest

from einnet_explore.support import status_line as module
from einnet_explore.support.status_line import status_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_line_and_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "PERIOD_SECONDS", 0.001)
    calls: list[int] = []

    def text() -> str:
        calls.append(1)
        return f"{len(calls)} of 9"

    with status_line(text):
        while len(calls) < 3:
            pass
    shown = terminal.getvalue().split("\r\x1b[K")
    assert shown[1:4] == ["1 of 9", "2 of 9", "3 of 9"] and shown[-1] == ""


def test_nothing_is_shown_where_no_one_looks_on(capsys: pytest.CaptureFixture[str]) -> None:
    with status_line(lambda: pytest.fail("not asked")):
        pass
    assert capsys.readouterr() == ("", "")
