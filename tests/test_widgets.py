"""The explorer's Python side with a front end that is not there: each message is a call of the session."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed")


import traitlets

import einnet_explore as ee
import einnet_widgets
from einnet_explore.analysis.indices import substitute
from einnet_explore.ir import Scope
from einnet_explore.rules import GROUPS, RULES, Rule
from einnet_explore.session import faces
from einnet_widgets import describe, monitor
from einnet_widgets.desk import desk_of
from einnet_widgets.look import Look
from einnet_widgets.page import page, recorded
from tests.sessions_kit import by_hand
from tests.widgets_kit import CONV, told, until

LARGEST = 100_000
"""Bytes of one update."""


def describe_bench(session: ee.Session) -> list[dict[str, Any]]:
    return list(desk_of(session).measuring.describe()["rows"])


def test_every_message_is_a_call_of_the_session() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    split = next(m for m in face.rules["matches"] if m["params"] == {"outer": ["r", "s"]})
    face.receive({"do": "apply", "rule": split["rule"], "at": split["at"], "params": split["params"]})
    assert session.derivation.steps[0].match.to_json()["params"] == {"outer": ["r", "s"]}
    assert face.expression["marks"]["new"] and face.expression["before"]["rule"] == "summation_splitting"
    face.receive({"do": "select", "at": "0.0"})
    assert face.expression["at"] == face.rules["at"] == "0.0"
    assert [m["at"] for m in face.rules["matches"]] == ["0.0"] * len(session.rules("0.0"))
    face.receive({"do": "undo"})
    assert session.here == 0 and face.head["redo"] and not face.head["undo"]
    assert face.expression["at"] == "0"  # the scope that was selected is gone
    face.receive({"do": "redo"})
    assert session.here == 1
    face.receive({"do": "goto", "node": 0})
    assert session.here == 0
    face.receive({"do": "target", "target": "Matmul"})
    assert face.head["target"] == "Matmul"
    assert face.expression["distance"] == session.table("Matmul").distance.total  # type: ignore[union-attr]
    face.receive({"do": "compare", "a": 0, "b": 1})
    assert face.history["compare"]["certificate"]["kind"] == "proved" and not face.history["compare"]["same"]
    one, other = face.compare["sides"]
    assert other["certificate"]["kind"] == "proved" and other["steps"] == list(session.compare(0, 1).steps)
    assert one["marks"]["old"] and other["marks"]["new"] and one["seconds"] != other["seconds"]
    sent = told(face)
    face.receive({"do": "kernels", "node": 0})
    assert "void" in sent[0][0]["kernels"][0]["text"]
    assert "#1" in [row["key"] for row in describe_bench(session)]
    face.receive({"do": "compare", "a": 0, "b": 9})
    assert "expected 0 to 1" in face.notice["text"]
    face.receive({"do": "compare"})
    assert face.history["compare"] is None and face.compare == {"sides": []}
    face.receive({"do": "goto", "node": 1})
    face.receive({"do": "check"})
    assert "proved" in face.notice["text"]
    face.receive({"do": "script"})
    assert face.notice["code"] == session.script()
    face.receive({"do": "latex"})
    assert r"\begin{align*}" in face.notice["code"]
    face.receive({"do": "hush"})
    assert face.notice["text"] == ""
    sent = told(face)
    face.receive({"do": "export"})
    assert json.loads(sent[0][0]["text"]) == session.record()


def test_steps_from_code_are_displayed_and_proved() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    assert face.expression["certificate"] is None
    by_hand(session)
    assert [n["rule"] for n in face.history["nodes"]][1:3] == ["summation_splitting", "variable_substitution"]
    assert face.rules["matches"] == [] and "nothing is left" in face.rules["none"]
    until(lambda: face.expression["certificate"])
    assert face.expression["certificate"]["kind"] == "proved"
    until(lambda: [n["certificate"] for n in face.history["nodes"]] == [None] + ["proved"] * 7)
    assert set(face.graph["kinds"]) == {"input", "weight", "library", "eOperator", "view"}
    assert "at compile time" in face.graph["svg"] or "dot" not in face.graph["svg"]
    assert face.expression["certificate"]["says"].startswith("7 steps; the weakest: proved")
    session.goto(1)
    assert face.expression["certificate"]["says"].startswith("1 step; the weakest: proved")


def test_rules_are_offered_for_the_selected_token() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    tokens = face.expression["tokens"]
    c = next(name for name, token in tokens.items() if token["says"][0].startswith("c: iterator of the sum"))
    assert "0 ≤ c < 3: 3 values" in tokens[c]["says"] and "A dimension 3: c" in tokens[c]["says"][2]
    window = next(token for token in tokens.values() if token["says"][0] == "h+r-1: index of dimension 1 of A")
    assert (
        window["says"][1:] == ["values -1 to 4, the dimension has [0, 4)", *window["says"][2:]] and window["says"][3:]
    )
    assert tokens["t1"]["says"] == ["K: weight", "shape 3 × 3 × 2 × 3", "read by Y"]
    face.receive({"do": "select", "at": "0", "token": c})
    assert face.expression["token"] == c and face.rules["matches"][0]["group"] == "for c"
    face.receive({"do": "reach", "reach": "selection"})
    offered = [match["params"] for match in face.rules["matches"]]
    assert offered == [m.to_json()["params"] for m in session.rules("0", about="c")] != []
    assert {"outer": ["r", "s"]} not in offered and {"outer": ["c"]} in offered
    face.receive({"do": "apply", "rule": "summation_splitting", "at": "0", "params": {"outer": ["r", "s"]}})
    face.receive({"do": "select", "at": "0", "token": "x9_9"})
    assert face.expression["token"] == "p0"  # a token that is not there


def test_reach_says_where_rules_are_listed() -> None:
    session = ee.explore(CONV)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    places: dict[str, set[str]] = {}
    for reach in ("selection", "scope", "everywhere"):
        for at in ("0", "0.0"):
            shown = describe.rules(session, Look(at, reach))  # type: ignore[arg-type]
            places[f"{reach} {at}"] = {m["at"] for m in shown["matches"]}
    assert places == {
        "selection 0": {"0"}, "selection 0.0": {"0.0"}, "scope 0": {"0", "0.0"},
        "scope 0.0": {"0.0"}, "everywhere 0": {"0", "0.0"}, "everywhere 0.0": {"0", "0.0"},
    }  # fmt: skip
    first = describe.rules(session, Look("0.0", "everywhere"))["matches"][0]
    assert first["at"] == "0.0"  # what is selected comes first


def test_gains_and_previews_are_those_of_the_step() -> None:
    session = ee.explore(CONV)
    before = describe.expression(session, Look())
    for match in describe.rules(session, Look())["matches"]:
        again = ee.explore(CONV)
        again.apply(match["rule"], at=match["at"], **match["params"])
        after = describe.expression(again, Look())
        assert match["latex"] == after["latex"] and match["marks"] == after["marks"]
        assert match["seconds"] == after["seconds"] - before["seconds"]
        far = after["distance"]
        assert match["distance"] == (None if far is None else far - before["distance"])


def test_previews_beyond_the_payload_are_sent_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ee.explore(CONV)
    full = describe.rules(session, Look())["matches"]
    monkeypatch.setattr(describe, "PAYLOAD", 1)
    face = einnet_widgets.RulePicker(ee.explore(CONV))
    assert [m["latex"] is None for m in face.rules["matches"]] == [False] + [True] * (len(full) - 1)
    sent = told(face)
    face.receive({"do": "preview", "match": 3, "node": 0})
    assert sent[0][0]["shown"] == {k: full[3][k] for k in ("latex", "text", "marks", "gone")}
    face.receive({"do": "preview", "match": 3, "node": 9})  # the session has moved on
    face.receive({"do": "preview", "match": 99, "node": 0})
    assert len(sent) == 1 and face.notice == {}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"do": "apply", "rule": "split", "at": "0", "params": {}}, "no rule is called 'split'"),
        ({"do": "apply", "rule": "summation_splitting", "at": "0", "params": {"outer": ["x"]}}, "x"),
        ({"do": "apply", "rule": "summation_splitting", "at": "0", "params": {"outer": 3}}, "expected an array"),
        ({"do": "apply", "rule": "summation_splitting", "at": "0.4", "params": {"outer": ["r"]}}, "accesses"),
        ({"do": "apply", "rule": "summation_splitting", "at": "7", "params": {"outer": ["r"]}}, "equation number"),
        ({"do": "apply", "rule": "summation_splitting"}, "params"),
        ({"do": "goto", "node": 5}, "node 5: expected 0 to 0"),
        ({"do": "goto", "node": "x"}, "x"),
        ({"do": "select", "at": "0.0.0"}, "not to a scope"),
        ({"do": "reach", "reach": "far"}, "expected selection, scope or everywhere"),
        ({"do": "target", "target": "Fft"}, "unknown target 'Fft'"),
        ({"do": "table", "operator": "Fft"}, "unknown target 'Fft'"),
        ({"do": "compare", "a": 0, "b": 4}, "node 4: expected 0 to 0"),
        ({"do": "state", "state": 0}, "there is no search yet"),
        ({"do": "picture"}, "there is no search yet"),
        ({"do": "search", "max_depth": -1}, "max depth -1: expected 0 or more"),
        ({"do": "search", "rules": ["split"]}, "no rule is called 'split'"),
        ({"do": "bench", "keys": ["state 9"], "rounds": 3}, "state 9: no longer available"),
        ({"do": "dance"}, "unknown request 'dance'"),
        ({}, "unknown"),
    ],
)
def test_wrong_messages_are_reported_and_change_nothing(message: dict[str, Any], said: str) -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    shown = {name: getattr(face, name) for name in ("history", "expression", "rules")}
    face.receive(message)
    assert face.notice["kind"] == "error" and said in face.notice["text"]
    assert len(session.nodes) == 1 and {name: getattr(face, name) for name in shown} == shown
    face.receive({"do": "check"})
    assert face.notice["kind"] == ""


def test_panels_of_one_session_share_a_selection_and_those_of_another_do_not() -> None:
    session, other = ee.explore(CONV), ee.explore(CONV)
    expression, rules = einnet_widgets.ExpressionView(session), einnet_widgets.RulePicker(session)
    elsewhere = einnet_widgets.ExpressionView(other)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    expression.receive({"do": "select", "at": "0.0"})
    assert rules.rules["at"] == "0.0" and elsewhere.expression["step"] == 0
    assert rules.expression == {} and expression.rules == {}  # a panel is sent what it shows
    expression.close()
    session.undo()
    assert expression.expression["step"] == 1 and rules.rules["node"] == 0
    assert einnet_widgets.explorer(session) is einnet_widgets.explorer(session)


def test_no_update_is_larger_than_a_hundred_kilobytes() -> None:
    session = ee.explore(ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1))
    face = einnet_widgets.Explorer(session)
    by_hand(session)
    for there in range(len(session.nodes)):
        session.goto(there)
        for name in ("head", "history", "expression", "rules", "graph"):
            assert len(json.dumps(getattr(face, name))) < LARGEST
    session.goto(0)
    run = session.search(max_depth=2, strategy="paper")
    many = run.search
    states = list(many.states)
    while len(many.states) < 9000:
        many.states += [s for s in states if s.phase == "explorative"]
    columns, since, merged, count = monitor.Columns(run), 0, 0, 0
    while (batch := columns.batch(since, merged)) is not None:
        assert len(batch[1]) + len(json.dumps(batch[0])) < LARGEST
        since, merged, count = since + batch[0]["count"], merged + batch[0]["merges"], count + 1
    assert since == len(many.states) and count >= 3


def test_a_huge_program_is_shown_in_small_updates() -> None:
    lines = ["tensor A[8, 8]"] + [
        f"Y{n}[i:8, j:8] = sum[k:8] {f'Y{n - 1}' if n else 'A'}[i, k] * A[k, j]" for n in range(62)
    ]
    face = einnet_widgets.Explorer(ee.explore(ee.parse("\n".join(lines))))
    assert "62 equations" in face.rules["unsaid"] and face.rules["refusals"] == []
    assert len(face.graph["folded"]) == 8 and "Y0 … Y7" in face.graph["svg"]
    face.receive({"do": "fold", "layer": "Y0 … Y7"})
    assert len(face.graph["folded"]) == 7 and face.graph["paths"]["Y7"] == "7" and "Y8" not in face.graph["paths"]
    assert face.graph["values"]["time"]["Y8 … Y15"][1] == 1 > face.graph["values"]["time"]["Y6"][1] > 0
    face.receive({"do": "fold", "all": False})
    assert face.graph["svg"] == "" and "63 nodes: too many to be drawn here" in face.graph["says"]
    face.receive({"do": "fold", "all": True})
    assert len(face.graph["folded"]) == 8
    face.receive({"do": "reach", "reach": "everywhere"})
    assert len(face.rules["matches"]) == describe.LISTED and face.rules["more"] > 0
    sizes = {name: len(json.dumps(getattr(face, name))) for name in ("expression", "rules", "graph", "history")}
    assert max(sizes.values()) < LARGEST, sizes
    face.receive({"do": "apply", "rule": "eoperator_generation", "at": "5", "params": {}})
    assert face.notice["kind"] == "error" and face.expression["step"] == 0


@pytest.mark.parametrize("name", ["Explorer", "ExpressionView", "SearchMonitor", "GraphView", "IteratorTableView"])
def test_without_a_kernel_there_is_still_a_picture(name: str) -> None:
    session = ee.explore(CONV)
    session.search(target="Matmul", max_depth=1)
    face = getattr(einnet_widgets, name)(session)
    data = face.saved()
    assert data["text/plain"].strip() and "as it was saved" in data["text/html"]
    assert "data:image/svg+xml" in data["text/html"] or name == "IteratorTableView"
    assert ("text/latex" in data) == (name in ("Explorer", "ExpressionView"))
    assert ("<h4>candidates</h4>" in data["text/html"]) == (name == "Explorer")


def test_false_candidates_of_a_search_are_named_with_a_counterexample() -> None:
    def halve(scope: Scope, params: None = None) -> Scope:
        first, *others = scope.summations
        half = replace(first, hi=first.hi // 2)
        return replace(scope, summations=(half, *others), body=substitute(scope.body, {first: half + 0}))

    half: Rule[None] = ee.scope_rule("half", "", lambda _: [None], halve)
    session = ee.explore(ee.ops.matmul(4, 5, 8), rules=(*RULES, half))
    run = session.search(max_depth=1)
    face = einnet_widgets.Explorer(session)
    (group,) = face.search["false"]
    assert group["rule"] == "half" and "A[0, 4]" in group["why"]
    assert face.search["top"] not in group["states"] and len(group["states"]) < len(run.candidates)
    face.select(state=group["states"][0])
    assert "rule half makes a false step" in face.search["detail"]["false"]
    face.select(state=face.search["top"])
    assert face.search["detail"]["false"] == ""
    assert not any(f"state {state}" in desk_of(session).measuring.offered() for state in group["states"])


def test_the_saved_form_follows_the_session_in_an_output_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, list[dict[str, Any]]] = {"display": [], "update": []}

    def display(data: dict[str, Any], **options: Any) -> Any:
        shown["display"].append({**data, **options})
        return (
            SimpleNamespace(update=lambda data, raw: shown["update"].append(data)) if "display_id" in options else None
        )

    monkeypatch.setattr("einnet_widgets.face.display", display)
    monkeypatch.setattr("einnet_widgets.face.SAVE_SECONDS", 0.05)
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    face._ipython_display_()
    live, saved = shown["display"]
    assert "application/vnd.jupyter.widget-view+json" in live and "text/html" not in live
    assert saved["display_id"] == face.key and f"ein-saved-{face.key}" in saved["text/html"]
    assert "summation_splitting" in saved["text/html"] and "operator_matching" not in saved["text/html"]
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    until(lambda: any("operator_matching" in data["text/html"] for data in shown["update"]))
    assert len(saved["text/html"]) < 60_000
    # With a reader, whose first click would wait for it, the picture follows.
    shown["update"].clear()
    shell = SimpleNamespace(get_parent=lambda: {"content": {"allow_stdin": True}})
    monkeypatch.setattr("einnet_widgets.face.get_ipython", lambda: shell)
    face._ipython_display_()
    assert "summation_splitting" not in shown["display"][-1]["text/html"]
    until(lambda: any("operator_matching" in data["text/html"] for data in shown["update"]))
    face.close()


def test_a_page_holds_every_node_and_names_no_other_host(tmp_path: Path) -> None:
    session = by_hand(ee.explore(CONV))
    session.goto(1)
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    session.search(target="Matmul", max_depth=1)
    held = recorded(session)
    assert [node["expression"]["node"] for node in held["nodes"]] == list(range(len(session.nodes)))
    assert [child["node"] for child in held["nodes"][1]["children"]] == [2, 8] and held["here"] == session.here
    assert held["nodes"][8]["parent"] == 1 and held["nodes"][2]["expression"]["certificate"]["kind"] == "proved"
    assert sum(b["header"]["count"] for b in held["tree"]["batches"]) == len(session.runs[-1].search.states)
    session.to_html(tmp_path / "page.html", title="a <b> & c")
    text = (tmp_path / "page.html").read_text()
    assert text == page(session, "a <b> & c") and "<title>a &lt;b&gt; &amp; c</title>" in text
    run = session.runs[-1]
    run.to_html(tmp_path / "run.html")
    assert "<title>einnet_explore: Y</title>" in (tmp_path / "run.html").read_text()
    addresses = {part.split("/")[0] for part in text.split("http://")[1:] + text.split("https://")[1:]}
    assert {a.split('"')[0].split("'")[0].strip("\\") for a in addresses} <= {"www.w3.org"}


def test_marimo_is_given_the_explorer_and_the_expression_where_there_is_no_face(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = ee.explore(CONV)
    assert session._display_() is einnet_widgets.explorer(session)
    monkeypatch.setattr(faces, "_faces", [])
    monkeypatch.setattr(faces, "load_faces", lambda: None)
    assert session._display_() == session.formula()


def test_the_search_panel_says_why_a_search_ended_and_offers_the_step_that_unblocks_it() -> None:
    source = "tensor E[2,8,8]\ntensor V[2,8,4]\ntensor Z[2,8]\nO[b:2,i:8,d:4] = sum[j:8] E[b,i,j]*V[b,j,d]/Z[b,i]"
    session = ee.explore(ee.parse(source))
    face = einnet_widgets.Explorer(session)
    session.search(between=())
    until(lambda: face.search["ending"] == "complete")
    (remark,) = face.search["remarks"]
    assert remark["says"].startswith("no candidate, because of O: intensity")
    face.receive({"do": "apply", **remark["step"]})
    assert session.derivation.steps[-1].match.rule.name == "distributivity" and not face.notice
    assert session.search(between=()).candidates


def test_rules_are_grouped_and_have_their_laws_and_pages() -> None:
    face = einnet_widgets.Explorer(ee.explore(CONV))
    groups = [match["group"] for match in face.rules["matches"]]
    assert set(groups) <= set(GROUPS) and groups == sorted(groups, key=GROUPS.index)
    assert {match["rule"] for match in face.rules["matches"]} <= face.rules["laws"].keys()
    face.receive({"do": "page", "rule": "summation_splitting"})
    assert "summation_splitting: " in face.notice["code"]


def test_a_good_step_is_taken_with_its_reason_and_scopes_are_tidied_up() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    face.receive({"do": "clean"})
    assert "nothing to tidy up" in face.notice["text"] and session.here == 0
    face.receive({"do": "advise"})
    until(lambda: session.here == 1)
    until(lambda: "estimated" in face.notice["text"])
    assert "the first of " in face.notice["text"] and session.runs == []
    advice = session.advise(budget=2.0)
    assert advice.match is None or session.apply(advice.match)


def test_a_session_is_saved_and_opened_with_its_pins_notes_searches_and_selection() -> None:
    session = by_hand(ee.explore(CONV))
    face = einnet_widgets.Explorer(session)
    run = session.search(target="Matmul", max_depth=1)
    for message in (
        {"do": "target", "target": "Matmul"},
        {"do": "select", "at": "3"},
        {"do": "pin_node", "node": 7, "name": "by hand"},
        {"do": "note", "node": 2, "text": "the windows"},
    ):
        face.receive(message)
    sent = told(face)
    face.receive({"do": "save"})
    ((message, _),) = [each for each in sent if each[0]["do"] == "file"]
    assert message["name"] == "session.eins"
    other = ee.explore(ee.ops.matmul(4, 6, 8))
    view = einnet_widgets.Explorer(other)
    view.receive({"do": "load", "name": "a.eins", "text": "{"})
    assert "a.eins: $: expected JSON" in view.notice["text"] and len(other.nodes) == 1
    view.receive({"do": "load", "name": "a.eins", "text": message["text"]})
    assert view.notice["text"] == "opened a.eins: 8 nodes, 1 pin, 1 note, 1 search"
    nodes = {node["id"]: node for node in view.history["nodes"]}
    assert nodes[7]["pins"] == ["by hand"] and nodes[2]["note"] == "the windows"
    assert view.head["target"] == "Matmul" and view.expression["at"] == face.expression["at"]
    until(lambda: view.search["states"] == len(run.search.states) and view.search["status"] == "done")
    until(lambda: not any(node["claimed"] for node in view.history["nodes"]))
    assert other.claims == {} and nodes.keys() - {0} == other.known_certificates().keys()
    view.receive({"do": view.notice["action"]["do"]})
    assert other.program == ee.ops.matmul(4, 6, 8) and view.search["run"] is None and other.runs == []
    overdone = json.loads(message["text"])
    overdone["view"] = {"at": 7, "reach": "far", "target": "Nothing", "compare": [0, 99], "operator": None}
    view.receive({"do": "load", "name": "a.eins", "text": json.dumps(overdone)})
    assert view.head["target"] == "" and view.history["compare"] is None


def test_selection_pins_and_run_of_an_explorer_can_be_observed() -> None:
    session = by_hand(ee.explore(CONV))
    explorer = einnet_widgets.Explorer(session)
    seen: list[tuple[str, Any]] = []
    explorer.observe(lambda change: seen.append((change.name, change.new)), ["selection", "pins", "run"])
    session.goto(1)
    assert explorer.selection.node == 1 and seen == [("selection", explorer.selection)]
    explorer.select("Y.0")
    assert explorer.selection.at == "0.0" and explorer.expression["at"] == "0.0"
    session.pin(7, "by hand")
    assert explorer.pins == {"by hand": 7}
    run = session.search(target="Matmul", max_depth=1)
    assert explorer.run is run and explorer.selection.state is None
    explorer.select(state=run.best.state)  # type: ignore[union-attr]
    assert explorer.selection.state == run.best.state == explorer.search["detail"]["state"]  # type: ignore[union-attr]
    assert [name for name, _ in seen] == ["selection", "selection", "pins", "run", "selection"]
    for wrong, said in (
        (lambda: explorer.select("Z"), "path 'Z'"),
        (lambda: explorer.select(state=9999), "state 9999"),
    ):
        with pytest.raises((ValueError, LookupError), match=said):
            wrong()
    with pytest.raises(traitlets.TraitError, match="read-only"):
        explorer.pins = {}


def test_steps_between_branches_are_looked_for_and_become_a_branch() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    for outer in (["r", "s"], ["r"]):
        session.goto(0)
        session.apply("summation_splitting", at="Y", outer=outer)
    face.receive({"do": "compare", "a": 1, "b": 2})
    assert not face.compare["sides"][1]["follows"]
    face.receive({"do": "connect", "a": 1, "b": 2})
    until(lambda: "the branch ends with #" in face.notice["text"])
    first, end = face.history["chosen"]
    assert first == 1 and face.compare["sides"][1]["follows"] and session.way(end)[1] == 1
    assert ee.program_key(session.nodes[end].end) == ee.program_key(session.nodes[2].end) and session.here == 2
