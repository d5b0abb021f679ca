"""Session files: everything comes back, claims are not trusted, damaged and foreign files are refused by field."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import einnet_explore as ee
from einnet_explore.checker.record import RecordError
from einnet_explore.equivalence.certificate import Certificate
from einnet_explore.rules import SUMMATION_SPLITTING
from einnet_explore.session.session import Session
from tests.sessions_kit import by_hand

CONV = ee.ops.conv2d(N=1, H=4, W=5, C=3, F=2, R=3, S=3, padding=1)
MINE = replace(SUMMATION_SPLITTING, name="mine")
OUTER = ee.Operator("Outer", "Y[m, n] = A[m] * B[n]")


def full() -> Session:
    """A session with branches, pins, notes, two searches, one of which ended early, certificates and a selection."""
    session = by_hand(ee.explore(CONV))
    session.certificates()
    session.pin(name="by hand")
    session.note("the paper's Fig. 3")
    session.goto(1)
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    session.note("a *branch*\n")
    session.search(target="Matmul", max_depth=1)
    run = session.live_search(strategy="paper", max_depth=1)
    next(iter(run))
    session.pin(session.runs[0].best, "found")
    session.view = {"at": "0.0", "target": "Matmul"}
    return session


def same(one: Session, other: Session) -> None:
    for name in ("parents", "here", "pins", "notes", "view", "operators", "known"):
        assert getattr(one, name) == getattr(other, name), name
    assert [d.end for d in one.nodes] == [d.end for d in other.nodes]
    assert [(r.events, r.candidates, r.search.states, r.search.options, r.target) for r in one.runs] == [
        (r.events, r.candidates, r.search.states, r.search.options, r.target) for r in other.runs
    ]


def test_everything_comes_back_and_searches_continue(tmp_path: Path) -> None:
    session = full()
    session.save(tmp_path / "it.eins")
    again = ee.load(tmp_path / "it.eins")
    assert isinstance(again, Session)
    same(session, again)
    assert again.notes == {7: "the paper's Fig. 3", 8: "a *branch*"} and again.pins["by hand"] == 7
    assert again.node("by hand") == 7 and again.goto("found") == session.nodes[session.pins["found"]].end
    assert again.runs[1].finish().ending == session.runs[1].finish().ending
    other = ee.explore(ee.ops.matmul(4, 6, 8))
    heard: list[int] = []
    other.subscribe(lambda s: heard.append(s.here))
    other.open(tmp_path / "it.eins")
    assert heard == [session.here] and other.program == session.program
    same(other, ee.load(tmp_path / "it.eins"))  # type: ignore[arg-type]


def test_certificates_are_claims_until_they_are_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = full()
    data = json.loads(session.to_text())
    assert [claim["kind"] for claim in data["certificates"]] == ["proved"] * 7
    again = ee.explore(CONV)
    again.open_text(session.to_text())
    assert again.known_certificates() == {} and sorted(again.claims) == list(range(1, 8))
    assert json.loads(again.to_text())["certificates"] == data["certificates"]  # not lost by a second saving
    assert again.certificate(1).kind == "proved" and sorted(again.claims) == list(range(2, 8))
    # A file that claims too much is contradicted: the certificate is the one found here.
    weak = Certificate("unknown", "evaluation", detail="a gap")
    monkeypatch.setattr("einnet_explore.session.derivation_tree.certify_step", lambda *_: weak)
    assert again.certificate(2) == weak and again.claims[2].kind == "proved"
    assert json.loads(again.to_text())["certificates"][1]["kind"] == "unknown"


def test_rules_and_operators_of_a_session_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "it.eins"
    few = ee.explore(CONV, rules=["summation_splitting"], operators=["matmul"])
    few.save(path)
    same(few, Session.load(path))
    own = ee.explore(CONV, rules=[MINE], operators=[*ee.OPERATORS, OUTER])
    own.apply("mine", at="Y", outer=["r", "s"])
    own.search(rules=[MINE], max_depth=1)
    own.save(path)
    same(own, Session.load(path, rules=[MINE], operators=[*ee.OPERATORS, OUTER]))
    again = ee.explore(CONV, rules=[MINE], operators=[OUTER])
    again.open(path)
    same(own, again)
    with pytest.raises(RecordError, match=r"steps\[0\]: found the rule 'mine', expected one of"):
        Session.load(path)
    ee.explore(CONV, rules=[MINE]).save(path)
    with pytest.raises(
        RecordError, match=r"\$\.rules: found 'mine', which is none of the library's: pass it, as rules="
    ):
        Session.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(format="einnet-explore search"), "found 'einnet-explore search' version 1, expected"),
        (lambda d: d["pins"][0].update(node=99), r"\$\.pins\[0\]\.node: found 99, expected 0 to"),
        (lambda d: d["pins"][0].update(name="E3"), r"\$\.pins\[0\]: name 'E3': expected a text that is no label"),
        (lambda d: d["pins"].append(d["pins"][0]), r"\$\.pins\[2\]: name: found 'by hand' twice"),
        (lambda d: d["notes"][0].pop("text"), r"\$\.notes\[0\]: 'text' is missing"),
        (lambda d: d["notes"][0].update(node=True), r"\$\.notes\[0\]\.node: found True"),
        (lambda d: d.update(notes=7), "notes: found 7, expected list"),
        (lambda d: d["certificates"][0].update(kind="sure"), r"\$\.certificates\[0\]: certificate: kind is 'sure'"),
        (lambda d: d["certificates"][0].update(node=0), r"\$\.certificates\[0\]\.node: found 0, expected 1 to"),
        (lambda d: d["runs"][0].update(version=9), r"\$\.runs\[0\]: found 'einnet-explore search' version 9"),
        (lambda d: d["runs"][0]["states"][1].update(parent=5), r"\$\.runs\[0\]: state 1: found parent 5"),
        (lambda d: d.update(operators=["Nothing"]), r"\$\.operators: found 'Nothing'"),
        (lambda d: d.update(view=[]), r"view: found \[\], expected dict"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_and_changes_nothing(
    damaged: Callable[[Any], Session], change: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        damaged(change)


@pytest.fixture(scope="module")
def damaged() -> Callable[[Any], Session]:
    held = full().to_text()

    def open_damaged(change: Any) -> Session:
        data = json.loads(held)
        change(data)
        session = by_hand(ee.explore(CONV))
        before = session.to_text()
        try:
            session.open_text(json.dumps(data), "it.eins")
        finally:
            assert session.to_text() == before
        return session

    return open_damaged


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "it.eins").write_text(full().to_text()[:-40])
    with pytest.raises(RecordError, match=r"it\.eins: \$: expected JSON; at line"):
        ee.load(tmp_path / "it.eins")


def test_pins_have_names_and_nodes_have_notes() -> None:
    session = by_hand(ee.explore(CONV))
    assert [session.pin(), session.pin(0), session.pin(1)] == ["Matmul", "node 0", "node 1"]
    assert session.pin(name="the end") == "the end" and session.pin("the end") == "Matmul"
    session.pin("E2", "node 1")
    assert session.pins == {"Matmul": 7, "node 0": 0, "node 1": 2, "the end": 7}
    session.unpin("Matmul")
    session.note("first", "the end")
    session.note("", 7)
    assert session.notes == {} and "Matmul" not in session.pins
    for wrong, error, said in (
        (lambda: session.pin(name="E4"), ValueError, "name 'E4': expected a text that is no label"),
        (lambda: session.pin(99), IndexError, "node 99: expected 0 to 7"),
        (
            lambda: session.goto("Matmul"),
            ValueError,
            "expected a label such as 'E7' or '#7', or a pin: node 0, node 1, the end",
        ),
        (lambda: session.unpin("Matmul"), LookupError, "no pin is called 'Matmul': there are node 0"),
    ):
        with pytest.raises(error, match=said):
            wrong()
