"""The panel over a session: what it shows is a function of the session; its buttons are the session's calls."""

import pytest

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")

import einnet_explore as ee
from einnet_explore.rules import Refused
from einnet_widgets.panel import Panel, described, panel

CONV = ee.ops.conv2d(N=1, H=4, W=5, C=3, F=2, R=3, S=3)


def test_what_a_panel_shows_is_a_function_of_the_session() -> None:
    session = ee.explore(CONV)
    shown = described(session)
    assert shown == described(session)
    assert [path for _, path in shown.scopes] == ["0"] and shown.at == "0"
    assert shown.legal == session.rules("0")
    assert [n for _, n in shown.matches] == list(range(len(shown.legal)))
    assert any(label == "summation_splitting: outer = r, s" for label, _ in shown.matches)
    assert (shown.can_undo, shown.can_redo, shown.here, shown.nodes) == (False, False, 0, 1)
    session.apply("summation_splitting", at="0", outer=["r", "s"])
    inner = described(session, "0.0")
    assert inner.at == "0.0" and [path for _, path in inner.scopes] == ["0", "0.0"]
    assert all(m.at == (0, 0) for m in inner.legal) and inner.can_undo
    assert described(session, "0.7").at == "0"  # a scope that is not there any more


def test_a_finished_program_has_no_scope_left() -> None:
    session = ee.explore(ee.parse("tensor A[4]\nY[i:4] = relu(A[i])"))
    session.apply("eoperator_generation", at="Y")
    shown = described(session, "0")
    assert (shown.scopes, shown.at, shown.matches, shown.legal) == ((), "", (), ())
    it = Panel(session)
    assert it.apply.disabled and it.scope.value is None and it.match.value is None


def test_buttons_are_calls_of_the_session() -> None:
    session = ee.explore(CONV)
    it = panel(session)
    it.match.index = next(n for n, m in enumerate(session.rules("0")) if m.to_json()["params"] == {"outer": ["r", "s"]})
    it.apply.click()
    assert session.derivation.steps[0].match.to_json()["params"] == {"outer": ["r", "s"]}
    it.scope.value = "0.0"
    assert len(it.match.options) == len(session.rules("0.0"))
    it.undo.click()
    assert session.here == 0 and it.scope.value == "0" and it.undo.disabled and not it.redo.disabled
    it.redo.click()
    assert session.here == 1 and "node 1 of 2" in it.status.value
    it.check.click()
    assert "proved" in it.status.value


def test_a_panel_follows_the_session_until_it_is_closed() -> None:
    session = ee.explore(CONV)
    it = panel(session)
    session.apply("summation_splitting", at="0", outer=["r", "s"])
    assert len(it.scope.options) == 2 and "summation_splitting" in it.history.value
    it.close()
    session.undo()
    assert len(it.scope.options) == 2


def test_a_refusal_is_said_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ee.explore(CONV)
    it = panel(session)

    def refuse(*_: object) -> None:
        raise Refused("3 is not below 2")

    monkeypatch.setattr(session, "apply", refuse)
    it.apply.click()
    assert it.status.value == "3 is not below 2" and session.here == 0


def test_without_a_kernel_there_is_still_the_expression() -> None:
    session = ee.explore(CONV)
    shown = panel(session)._repr_mimebundle_()
    assert set(shown) == {"application/vnd.jupyter.widget-view+json", "text/latex", "image/svg+xml", "text/plain"}
    assert shown["image/svg+xml"] == session._repr_mimebundle_()["image/svg+xml"]
