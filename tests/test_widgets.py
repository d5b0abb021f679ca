"""The explorer's Python side with a front end that is not there: each message is a call of the session."""

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed")

import numpy as np
import onnx

import einnet_explore as ee
import einnet_widgets
from einnet_explore.backends import cupy
from einnet_explore.backends.recorded import record_rates, recorded_key
from einnet_explore.backends.store import Store
from einnet_explore.explore import faces
from einnet_explore.explore.run import Run
from einnet_explore.explore.session import Session
from einnet_widgets import describe, monitor
from einnet_widgets.describe import Look
from einnet_widgets.face import Face
from einnet_widgets.page import page, recorded
from tests.onnx_building import build, node

CONV = ee.ops.conv2d(N=1, H=4, W=5, C=3, F=2, R=3, S=3)
PHI = {"r": "r", "s": "s", "n": "n", "f": "f", "t1": "h+r-1", "t2": "w+s-1"}
LARGEST = 100_000
"""Bytes of one update."""


def by_hand(session: Session) -> Session:
    """From a convolution to a matrix product and an eOperator: E1 to E7."""
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.apply("variable_substitution", at="Y.0", phi=PHI)
    for match in ee.clean(session.program)[0]:
        session.apply(match)
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    session.apply("eoperator_generation", at="Y")
    return session


def told(face: Face) -> list[tuple[dict[str, Any], bytes | None]]:
    """The messages that *face* sends from now on."""
    sent: list[tuple[dict[str, Any], bytes | None]] = []
    face.send = lambda message, buffers=None: sent.append((message, buffers[0] if buffers else None))
    return sent


def until(true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_every_message_is_a_call_of_the_session() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    split = next(m for m in face.rules["matches"] if m["params"] == {"outer": ["r", "s"]})
    face.receive({"do": "apply", "rule": split["rule"], "at": split["at"], "params": split["params"]})
    assert session.derivation.steps[0].match.to_json()["params"] == {"outer": ["r", "s"]}
    assert face.expression["marks"] == {"0": "new"} and face.expression["before"]["rule"] == "summation_splitting"
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
    face.receive({"do": "compare"})
    assert face.history["compare"] is None
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


def test_what_is_done_in_code_shows_and_its_steps_are_proved() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    assert face.expression["certificate"] is None
    by_hand(session)
    assert [n["rule"] for n in face.history["nodes"]][1:3] == ["summation_splitting", "variable_substitution"]
    assert face.rules["matches"] == [] and "nothing is left" in face.rules["none"]
    until(lambda: face.expression["certificate"])
    assert face.expression["certificate"]["kind"] == "proved"
    assert [n["certificate"] for n in face.history["nodes"]] == [None] + ["proved"] * 7
    assert face.graph["kinds"].keys() == {"input", "weight", "library", "eOperator", "view"}
    assert "at compile time" in face.graph["svg"] or "dot" not in face.graph["svg"]


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


def test_previews_beyond_the_payload_come_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ee.explore(CONV)
    full = describe.rules(session, Look())["matches"]
    monkeypatch.setattr(describe, "PAYLOAD", 1)
    face = einnet_widgets.RulePicker(ee.explore(CONV))
    assert [m["latex"] is None for m in face.rules["matches"]] == [False] + [True] * (len(full) - 1)
    sent = told(face)
    face.receive({"do": "preview", "match": 3, "node": 0})
    assert sent[0][0]["shown"] == {k: full[3][k] for k in ("latex", "text", "marks")}
    face.receive({"do": "preview", "match": 3, "node": 9})  # the session has moved on
    face.receive({"do": "preview", "match": 99, "node": 0})
    assert len(sent) == 1 and face.notice == {}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"do": "apply", "rule": "split", "at": "0", "params": {}}, "no rule is called 'split'"),
        ({"do": "apply", "rule": "summation_splitting", "at": "0", "params": {"outer": ["x"]}}, "x"),
        ({"do": "apply", "rule": "summation_splitting", "at": "0", "params": {"outer": 3}}, "int"),
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
        ({"do": "bench", "keys": ["state 9"], "rounds": 3}, "state 9: not offered any more"),
        ({"do": "dance"}, "'dance', which is unknown"),
        ({}, "unknown"),
    ],
)
def test_bad_use_is_said_and_changes_nothing(message: dict[str, Any], said: str) -> None:
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
    session = ee.explore(ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3))
    face = einnet_widgets.Explorer(session)
    by_hand(session)
    for there in range(len(session.nodes)):
        session.goto(there)
        for name in ("head", "history", "expression", "rules", "graph"):
            assert len(json.dumps(getattr(face, name))) < LARGEST
    session.goto(0)
    run = session.search(max_depth=2, strategy="paper")
    many = run.search
    for _ in run:
        pass
    states = list(many.states)
    while len(many.states) < 9000:
        many.states += [s for s in states if s.phase == "explorative"]
    columns, since, merged, count = monitor.Columns(run), 0, 0, 0
    while (batch := columns.batch(since, merged)) is not None:
        assert len(batch[1]) + len(json.dumps(batch[0])) < LARGEST
        since, merged, count = since + batch[0]["count"], merged + batch[0]["merges"], count + 1
    assert since == len(many.states) and count >= 3


def decoded(header: dict[str, Any], buffer: bytes) -> dict[str, tuple[Any, ...]]:
    n, m = header["count"], header["merges"]
    names = ("parent", "seconds", "pairs", "depth", "distance", "phase", "rule")
    forms = (f"{n}i", f"{n}f", f"{2 * m}i", *[f"{n}B"] * 4)
    found, at = {}, 0
    for name, form in zip(names, forms, strict=True):
        found[name] = struct.unpack_from(f"<{form}", buffer, at)
        at += struct.calcsize(f"<{form}")
    assert at == len(buffer)
    return found


def test_a_huge_program_is_shown_in_small_updates() -> None:
    lines = ["tensor A[8, 8]"] + [
        f"Y{n}[i:8, j:8] = sum[k:8] {f'Y{n - 1}' if n else 'A'}[i, k] * A[k, j]" for n in range(62)
    ]
    face = einnet_widgets.Explorer(ee.explore(ee.parse("\n".join(lines))))
    assert "62 equations" in face.rules["unsaid"] and face.rules["refusals"] == []
    assert face.graph["svg"] == "" and "63 nodes: too many to be drawn here" in face.graph["says"]
    face.receive({"do": "reach", "reach": "everywhere"})
    assert len(face.rules["matches"]) == describe.LISTED and face.rules["more"] > 0
    sizes = {name: len(json.dumps(getattr(face, name))) for name in ("expression", "rules", "graph", "history")}
    assert max(sizes.values()) < LARGEST, sizes
    face.receive({"do": "apply", "rule": "eoperator_generation", "at": "5", "params": {}})
    assert face.notice["kind"] == "error" and face.expression["step"] == 0


def test_columns_say_what_the_search_says() -> None:
    run = ee.search(CONV, target="Matmul", max_depth=2, strategy="paper")
    columns, parts = monitor.Columns(run), []
    since = merged = 0
    for n, _ in enumerate(run):
        if n % 7 == 0 and (batch := columns.batch(since, merged)) is not None:
            parts.append(batch)
            since, merged = since + batch[0]["count"], merged + batch[0]["merges"]
    while (batch := columns.batch(since, merged)) is not None:
        parts.append(batch)
        since, merged = since + batch[0]["count"], merged + batch[0]["merges"]
    whole = [decoded(*part) for part in parts]
    states = run.search.states
    assert len(parts) > 3 and since == len(states)
    joined = {name: [v for part in whole for v in part[name]] for name in whole[0]}
    assert joined["parent"] == [s.parent for s in states] and joined["depth"] == [s.depth for s in states]
    assert [None if d == 255 else d for d in joined["distance"]] == [s.distance for s in states]
    names = parts[-1][0]["rules"]
    assert [names[r] for r in joined["rule"][1:]] == [s.matches[0].rule.name for s in states[1:]]
    prices = {c.state: c.seconds for c in run.candidates}
    for n, price in enumerate(joined["seconds"]):
        assert price == (pytest.approx(prices[n], rel=1e-6) if n in prices else -1)
    pairs = list(zip(joined["pairs"][::2], joined["pairs"][1::2], strict=True))
    assert pairs and set(pairs) == {(p.parent, p.twin) for p in run.pruned if p.twin is not None}


def test_a_search_by_buttons() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    sent = told(face)
    assert face.search["status"] == "idle" and face.search["options"]["max_depth"] == 7
    face.receive({"do": "target", "target": "Matmul"})
    face.receive({"do": "search", "max_depth": 5, "limit": 60, "strategy": "paper"})
    run = session.runs[-1]
    assert run.target == ("Matmul",) and run.search.options.strategy == "paper"
    until(lambda: len(run.search.states) > 40)
    assert run.running  # and this thread is free
    face.receive({"do": "search"})
    assert "a search still runs" in face.notice["text"]
    face.receive({"do": "pause"})
    until(lambda: face.search["status"] == "paused")
    states = len(run.search.states)
    face.receive({"do": "resume"})
    until(lambda: len(run.search.states) > states)
    face.receive({"do": "stop"})
    until(lambda: face.search["status"] == "ended")
    until(lambda: sum(m["count"] for m, _ in sent if m["do"] == "tree") == len(run.search.states))
    assert face.search["states"] == len(run.search.states)
    sent.clear()
    face.receive({"do": "tree", "run": id(run), "since": 0})  # a view that opens later
    assert sum(m["count"] for m, _ in sent) == len(run.search.states) and sent[0][0]["from"] == 0


def test_states_are_shown_taken_pinned_and_searched_from() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    run = session.search(target="Matmul", max_depth=2)
    for _ in run:
        pass
    best = run.best
    assert best is not None
    face.receive({"do": "state", "state": best.state})
    detail = face.search["detail"]
    assert detail["seconds"] == best.seconds and len(detail["steps"]) == len(best.derivation.steps)
    why = next(s.id for s in run.search.states if run.why_pruned(s.id))
    face.receive({"do": "state", "state": why})
    assert face.search["detail"]["why"] == list(run.why_pruned(why))
    sent = told(face)
    face.receive({"do": "picture"})
    assert sent[0][0]["name"] == "tree.svg" and sent[0][0]["text"] == run.tree().svg
    face.receive({"do": "pin", "state": best.state})
    assert session.here == 0 and len(session.nodes) == 1 + len(best.derivation.steps)
    assert f"node {len(session.nodes) - 1}" in face.notice["text"]
    face.receive({"do": "take", "state": best.state})
    assert session.program == best.program and len(session.nodes) == 1 + len(best.derivation.steps)
    kept = next(s.id for s in run.search.states if s.phase == "explorative")
    face.receive({"do": "steer", "state": kept, "max_depth": 1, "rules": ["summation_splitting"]})
    steered = session.runs[-1].wait(30)
    assert steered is not run and steered.search.start == run.search.states[kept].program == session.program
    assert [rule.name for rule in steered.search.options.rules] == ["summation_splitting"]
    face.receive({"do": "state", "state": 9999})
    assert "state 9999: expected" in face.notice["text"]


def test_a_search_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)

    def fail(_: Run) -> None:
        raise MemoryError("no room")

    run = session.search(max_depth=1)
    monkeypatch.setattr(run.search, "cost", fail)
    run.start()
    until(lambda: face.search["status"] == "failed")
    assert face.search["error"] == "MemoryError: no room"


def test_the_iterator_table_marks_what_does_not_fit() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.IteratorTableView(session, "Matmul")
    assert face.table["operator"] == "Matmul" and face.table["distance"] == sum(
        row["mismatch"] for row in face.table["rows"]
    )
    assert any(row["mismatch"] for row in face.table["rows"])
    face.receive({"do": "table", "operator": "Conv2d"})
    assert face.table["distance"] == 1 and dict(face.table["map"])["c"] == "c"  # n is 1, so it is no iterator here
    pool = einnet_widgets.IteratorTableView(ee.explore(ee.parse("tensor A[4]\nY[i:4] = relu(A[i])")), "Matmul")
    assert pool.table["rows"] is None and "Matmul has 2 operands" in pool.table["says"]


def test_candidates_are_measured_beside_the_original() -> None:
    session = ee.explore(CONV)
    by_hand(session)
    face = einnet_widgets.BenchPanel(session)
    assert [row["key"] for row in face.bench["rows"]] == ["start", "node 7"]
    face.receive({"do": "bench", "keys": ["node 7"], "rounds": 4})
    assert face.bench["running"]
    face.receive({"do": "bench", "keys": [], "rounds": 4})
    assert "a measurement goes on" in face.notice["text"]
    until(lambda: not face.bench["running"], 60)
    first, second = face.bench["rows"]
    assert first["speedup"] == 1 and second["measured"] > 0 and second["error"] < 1e-4
    assert 0 < second["roof"]["part"] == max(second["roof"]["flops_part"], second["roof"]["bytes_part"])
    assert "4 interleaved rounds, 1 thread" in face.bench["caption"] and "numpy" in face.bench["caption"]
    assert face.bench["csv"].startswith("program,estimated_seconds,") and "<svg" in face.bench["svg"]


def test_devices_are_those_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy, "missing", lambda: ("an NVIDIA driver (libcuda)",))
    session = ee.explore(CONV)
    by_hand(session)
    face = einnet_widgets.BenchPanel(session)
    assert next(d["name"] for d in face.bench["devices"]) == "cpu"  # what needs no look at the machine, at once
    until(lambda: len(face.bench["devices"]) == 3)
    assert [(d["name"], bool(d["missing"])) for d in face.bench["devices"]] == [
        *(("cpu", False), ("cuda", True), ("profile:", False)),
    ]
    assert "no CUDA GPU" in face.bench["note"] and "libcuda" in face.bench["note"]
    recording = tmp_path / "far.sqlite"
    for device, said in (
        ("cuda", "missing an NVIDIA driver"),
        ("profile:", "no file is named"),
        ("tpu", "no such device"),
        (f"profile:{recording}", "no such file"),
    ):
        face.receive({"do": "bench", "keys": ["node 7"], "rounds": 3, "device": device})
        until(lambda: not face.bench["running"])
        assert said in face.notice["text"]
    rates = {"peak_flops": 1e13, "memory_bandwidth": 1e12, "cache_bandwidth": 3e12, "cache_bytes": 1e6}
    record_rates(recording, "far away", "lib 1", rates | {"call_seconds": 1e-6})
    store = Store(recording)
    product = next(e for e in session.program.equations if e.via and e.via.operator == "Matmul")
    store.put(recorded_key(product, "far away", "lib 1"), 0.5, "measured")
    face.receive({"do": "bench", "keys": ["node 7"], "rounds": 3, "device": f"profile:{recording}"})
    until(lambda: not face.bench["running"] and face.bench["csv"])
    first, second = face.bench["rows"]
    assert second["measured"] > 0.5 > first["measured"] and second["speedup"] < 1
    assert first["how"].startswith("estimated") and second["iqr"] == 0 and second["roof"]["part"] < 0.1
    assert "as recorded, not run here, far away" in face.bench["caption"]


@pytest.mark.parametrize("name", ["Explorer", "ExpressionView", "SearchMonitor", "GraphView", "IteratorTableView"])
def test_without_a_kernel_there_is_still_a_picture(name: str) -> None:
    session = ee.explore(CONV)
    for _ in session.search(target="Matmul", max_depth=1):
        pass
    face = getattr(einnet_widgets, name)(session)
    data, _ = face._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data and data["text/plain"].strip()
    assert "<svg" in data.get("image/svg+xml", "") or name == "IteratorTableView"
    assert ("text/latex" in data) == (name in ("Explorer", "ExpressionView"))


def test_a_page_holds_every_node_and_names_no_other_host(tmp_path: Path) -> None:
    session = by_hand(ee.explore(CONV))
    session.goto(1)
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    for _ in session.search(target="Matmul", max_depth=1):
        pass
    held = recorded(session)
    assert [node["expression"]["node"] for node in held["nodes"]] == list(range(len(session.nodes)))
    assert [child["node"] for child in held["nodes"][1]["children"]] == [2, 8] and held["here"] == session.here
    assert held["nodes"][8]["parent"] == 1 and held["nodes"][2]["expression"]["certificate"]["kind"] == "proved"
    assert sum(b["header"]["count"] for b in held["tree"]["batches"]) == len(session.runs[-1].search.states)
    session.to_html(tmp_path / "page.html", title="a <b> & c")
    text = (tmp_path / "page.html").read_text()
    assert text == page(session, "a <b> & c") and "<title>a &lt;b&gt; &amp; c</title>" in text
    addresses = {part.split("/")[0] for part in text.split("http://")[1:] + text.split("https://")[1:]}
    assert {a.split('"')[0].split("'")[0].strip("\\") for a in addresses} <= {"www.w3.org"}


def test_a_run_alone_has_a_monitor() -> None:
    session = ee.explore(CONV)
    einnet_widgets.Explorer(session)
    run = session.search(target="Matmul", max_depth=1)
    assert einnet_widgets.SearchMonitor(run).desk is einnet_widgets.Explorer(session).desk
    alone = ee.search(CONV, target="Matmul", max_depth=1)
    face = einnet_widgets.SearchMonitor(alone)
    assert face.search["run"] == id(alone)
    for _ in alone:
        pass
    until(lambda: face.search["status"] == "done")
    assert face.search["states"] == len(alone.search.states)


def test_a_model_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    cell = einnet_widgets.OptimizeCell(tmp_path / "none.onnx")
    assert cell.optimise["status"] == "idle"
    for asked in ({"do": "write", "path": "x.onnx"}, {"do": "download"}):
        cell.receive(asked)
        assert "nothing is optimised yet" in cell.notice["text"]
        cell.notice = {}
    cell.receive({"do": "optimise"})
    until(lambda: cell.notice.get("text", "").find("none.onnx") >= 0)
    until(lambda: cell.optimise["status"] == "idle")
    with pytest.raises(ValueError, match="it ended with an error"):
        cell.wait(5)
    cell.receive({"do": "dance"})
    assert "'dance', which is unknown" in cell.notice["text"]
    with pytest.raises(ValueError, match="unknown options depth, numeric: expected some of budget, device,"):
        einnet_widgets.OptimizeCell("x.onnx", depth=1, numeric="exact")
    cell.receive({"do": "hush"})
    assert cell.notice == {} and "none.onnx" not in cell._repr_mimebundle_()[0].get("text/html", "")


@pytest.mark.slow
def test_a_model_is_optimised_in_a_cell(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((4, 4, 3, 3)).astype(np.float32) for name in "wv"}
    convolutions = [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Conv", ["a", "v"], ["y"], pads=[1] * 4)]
    onnx.save(build(convolutions, {"x": [1, 4, 6, 6]}, ["y"], weights), tmp_path / "small.onnx")
    cell = einnet_widgets.OptimizeCell(tmp_path / "small.onnx", threads=1, budget=10).start()
    with pytest.raises(ValueError, match="it goes on already"):
        cell.start()
    cell.receive({"do": "cancel"})
    result = cell.wait(120)
    assert result.interrupted and len(cell.optimise["rows"]) == len(result.parts) >= 1
    assert cell.optimise["status"] == "done" and cell.optimise["says"] == result.summary()
    assert [row["numerics"] for row in cell.optimise["rows"]] == [str(p.numerics or "") for p in result.parts]
    cell.receive({"do": "write", "path": str(tmp_path / "fast.onnx")})
    assert (tmp_path / "fast.onnx").exists() and "text/html" in cell._repr_mimebundle_()[0]
    cell.receive({"do": "write", "path": ""})
    assert "no file is named" in cell.notice["text"]
    sent = told(cell)
    cell.receive({"do": "download"})
    ((message, held),) = sent
    assert message == {"do": "file", "name": "small_fast.onnx"} and held == (tmp_path / "fast.onnx").read_bytes()


def test_marimo_is_given_the_explorer_and_the_expression_where_there_is_no_face(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = ee.explore(CONV)
    assert session._display_() is einnet_widgets.explorer(session)
    monkeypatch.setattr(faces, "_faces", [])
    monkeypatch.setattr(faces, "load_faces", lambda: None)
    assert session._display_() == session.formula()


def test_a_quiz_by_buttons() -> None:
    session = ee.explore(CONV)
    by_hand(session)
    view = einnet_widgets.QuizView(ee.Quiz(session.derivation), "one product")
    assert (view.quiz["number"], view.quiz["of"], view.quiz["goal"], view.quiz["over"]) == (1, 7, "one product", False)
    assert "splitting" not in view.quiz["after"]["latex"] and view.quiz["after"]["marks"]
    data, _ = view._repr_mimebundle_()
    assert "<svg" in data["image/svg+xml"] and "$$" in data["text/latex"]
    view.receive({"do": "guess", "rule": "expression_fusion"})
    (answer,) = view.quiz["answers"]
    assert answer["verdict"] == "wrong" and "does not apply at 0" in answer["why"] and view.quiz["number"] == 1
    for n in (1, 2, 3, 3):
        view.receive({"do": "hint"})
        assert len(view.quiz["hints"]) == n
    view.receive({"do": "guess", "rule": "summation_splitting"})
    assert view.quiz["number"] == 2 and view.quiz["hints"] == [] and view.quiz["answers"][-1]["verdict"] == "right"
    for asked, said in (({"do": "guess", "rule": "magic"}, "no rule is called 'magic'"), ({"do": "dance"}, "unknown")):
        view.receive(asked)
        assert said in view.notice["text"] and view.quiz["number"] == 2
    while not view.quiz["over"]:
        view.receive({"do": "reveal"})
    assert view.notice == {} and view.quiz["score"]["caption"] == "1 of 7 guessed, 0 at once, 6 shown"
    view.receive({"do": "hint"})
    assert "all 7 steps are guessed" in view.notice["text"]
    assert "text/html" in view._repr_mimebundle_()[0]
