"""Other panels: search, times of candidates, iterator table, models, quizzes."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="anywidget is not installed")

import numpy as np
import onnx

import einnet_explore as ee
import einnet_widgets
from einnet_evaluation import rivals
from einnet_explore.pipeline import gpu_optimiser
from einnet_explore.pipeline.gpu_plan import GpuPlan
from einnet_explore.runtime.cuda import execution
from einnet_explore.runtime.cuda.steps import CudaProduct
from einnet_explore.runtime.profile_store import TimeStore, record_rates, recorded_key
from einnet_explore.session.run import Run
from einnet_widgets import monitor
from tests.gpu_kit import Device
from tests.onnx_building import build, node
from tests.sessions_kit import by_hand
from tests.widgets_kit import CONV, decoded, told, until


def test_columns_equal_the_states_of_the_search() -> None:
    run = ee.live_search(CONV, target="Matmul", max_depth=2, strategy="paper")
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


def test_messages_of_the_search_panel_control_the_search() -> None:
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
    best = run.best
    assert best is not None
    face.receive({"do": "state", "state": best.state})
    detail = face.search["detail"]
    assert detail["seconds"] == best.seconds and len(detail["steps"]) == len(best.derivation.steps)
    until(lambda: any(match["best"] == best.seconds for match in face.rules["matches"]))
    why = next(s.id for s in run.search.states if run.why_pruned(s.id))
    face.receive({"do": "state", "state": why})
    assert face.search["detail"]["why"] == list(run.why_pruned(why))
    sent = told(face)
    face.receive({"do": "picture"})
    assert sent[0][0]["name"] == "tree.svg" and sent[0][0]["text"] == run.tree().svg
    face.receive({"do": "pin", "state": best.state})
    assert session.here == 0 and len(session.nodes) == 1 + len(best.derivation.steps)
    assert f"#{len(session.nodes) - 1}" in face.notice["text"]
    face.receive({"do": "take", "state": best.state})
    assert session.program == best.program and len(session.nodes) == 1 + len(best.derivation.steps)
    kept = next(s.id for s in run.search.states if s.phase == "explorative")
    face.receive({"do": "steer", "state": kept, "max_depth": 1, "rules": ["summation_splitting"]})
    steered = session.runs[-1].wait(30)
    assert steered is not run and steered.search.start == run.search.states[kept].program == session.program
    assert [rule.name for rule in steered.search.options.rules] == ["summation_splitting"]
    face.receive({"do": "state", "state": 9999})
    assert "state 9999: expected" in face.notice["text"]


def test_matches_of_further_rules_are_listed_when_they_are_unfolded() -> None:
    face = einnet_widgets.Explorer(ee.explore(CONV))
    usual = face.rules["matches"]
    assert face.rules["further"] and not face.rules["open"] and not any(row["further"] for row in usual)
    face.receive({"do": "further", "open": True})
    rows = face.rules["matches"]
    assert rows[: len(usual)] == usual and all(row["further"] for row in rows[len(usual) :])
    assert "bilinear_substitution" in {row["rule"] for row in rows} and face.rules["laws"]["bilinear_substitution"]
    face.receive({"do": "further", "open": False})
    assert face.rules["matches"] == usual


def test_a_search_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)

    def fail(_: Run) -> None:
        raise MemoryError("no room")

    run = session.live_search(max_depth=1)
    monkeypatch.setattr(run.search._converging, "cost", fail)
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


def test_candidates_are_measured_with_the_original_and_in_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rivals.RIVALS, "ncnn", replace(rivals.RIVALS["ncnn"], modules=("no_such_module",)))
    session = ee.explore(CONV)
    by_hand(session)
    face = einnet_widgets.BenchPanel(session)
    assert [row["key"] for row in face.bench["rows"]] == ["start", "#7"]
    until(lambda: len(face.bench["rows"]) > 2)
    *_, last = face.bench["rows"]
    assert last["missing"] == "not installed: pip install '.[rivals]'" and not last["suggested"]
    face.receive({"do": "bench", "keys": ["#7", "onnxruntime"], "rounds": 4})
    assert face.bench["running"]
    face.receive({"do": "bench", "keys": [], "rounds": 4})
    assert "a measurement is running" in face.notice["text"]
    until(lambda: not face.bench["running"], 60)
    measured = [row for row in face.bench["rows"] if row["measured"]]
    assert [row["measured"] for row in measured] == sorted(row["measured"] for row in measured)
    assert face.bench["rows"][:3] == measured
    rows = {row["key"]: row for row in measured}
    first, second, engine = (rows[key] for key in ("start", "#7", "onnxruntime"))
    assert first["speedup"] == 1 and second["measured"] > 0 and second["error"] < 1e-4
    assert (
        engine["error"] < 1e-4 and engine["estimated"] is engine["roof"] is None and "onnxruntime" in face.bench["csv"]
    )
    assert 0 < second["roof"]["part"] == max(second["roof"]["flops_part"], second["roof"]["bytes_part"])
    assert "4 interleaved rounds, 1 thread" in face.bench["caption"] and "numpy" in face.bench["caption"]
    assert face.bench["csv"].startswith("program,estimated_seconds,") and "<svg" in face.bench["svg"]


def test_unavailable_devices_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "missing_for_cuda", lambda: ("an NVIDIA driver (libcuda)",))
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
        face.receive({"do": "bench", "keys": ["#7"], "rounds": 3, "device": device})
        until(lambda: not face.bench["running"])
        assert said in face.notice["text"]
    face.receive({"do": "bench", "keys": ["onnxruntime"], "rounds": 3, "device": f"profile:{recording}"})
    assert "onnxruntime, which are measured on cpu only" in face.notice["text"]
    rates = {"peak_flops": 1e13, "memory_bandwidth": 1e12, "cache_bandwidth": 3e12, "cache_bytes": 1e6}
    record_rates(recording, "far away", "lib 1", rates | {"call_seconds": 1e-6})
    store = TimeStore(recording)
    product = next(e for e in session.program.equations if e.via and e.via.operator == "Matmul")
    store.record(recorded_key(product, "far away", "lib 1"), 0.5, "measured")
    face.receive({"do": "bench", "keys": ["#7"], "rounds": 3, "device": f"profile:{recording}"})
    until(lambda: not face.bench["running"] and face.bench["csv"])
    first, second, *_ = face.bench["rows"]
    assert second["measured"] > 0.5 > first["measured"] and second["speedup"] < 1
    assert first["how"].startswith("estimated") and second["iqr"] == 0 and second["roof"]["part"] < 0.1
    assert "as recorded, not run here, far away" in face.bench["caption"]


def test_search_without_a_session_has_a_monitor() -> None:
    session = ee.explore(CONV)
    einnet_widgets.Explorer(session)
    run = session.search(target="Matmul", max_depth=1)
    assert einnet_widgets.SearchMonitor(run).desk is einnet_widgets.Explorer(session).desk
    alone = ee.search(CONV, target="Matmul", max_depth=1)
    face = einnet_widgets.SearchMonitor(alone)
    assert face.search["run"] == id(alone)
    until(lambda: face.search["status"] == "done")
    assert face.search["states"] == len(alone.search.states)


def test_a_model_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    cell = einnet_widgets.OptimizeCell(tmp_path / "none.onnx")
    assert cell.optimise["status"] == "idle"
    for asked in ({"do": "write", "path": "x.onnx"}, {"do": "download"}):
        cell.receive(asked)
        assert "no model is optimised yet" in cell.notice["text"]
        cell.notice = {}
    cell.receive({"do": "optimise"})
    until(lambda: cell.notice.get("text", "").find("none.onnx") >= 0)
    assert "Error" not in cell.notice["text"]  # one clear line; a type's name is for what nobody expected
    until(lambda: cell.optimise["status"] == "idle")
    with pytest.raises(ValueError, match="the optimisation failed"):
        cell.wait(5)
    cell.receive({"do": "dance"})
    assert "unknown request 'dance'" in cell.notice["text"]
    with pytest.raises(ValueError, match="unknown options depth, numeric: expected some of budget, device,"):
        einnet_widgets.OptimizeCell("x.onnx", depth=1, numeric="exact")
    cell.receive({"do": "hush"})
    assert cell.notice == {} and "optimisation failed" in cell.saved()["text/html"]


@pytest.mark.slow
def test_a_model_is_optimised_in_a_cell(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal((4, 4, 3, 3)).astype(np.float32) for name in "wv"}
    convolutions = [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Conv", ["a", "v"], ["y"], pads=[1] * 4)]
    onnx.save(build(convolutions, {"x": [1, 4, 6, 6]}, ["y"], weights), tmp_path / "small.onnx")
    cell = einnet_widgets.OptimizeCell(tmp_path / "small.onnx", threads=1, budget=10).start()
    with pytest.raises(ValueError, match="already running"):
        cell.start()
    assert "Ctrl-C" not in cell.optimise["says"] and cell.optimise["progress"] is None
    cell.receive({"do": "cancel"})
    result = cell.wait(120)
    assert result.interrupted and len(cell.optimise["rows"]) == len(result.parts) >= 1
    until(lambda: cell.optimise["status"] == "done")
    assert (
        cell.optimise["says"].split("\n") == result.conclusions("Save bundle", "Save here")
        and "interrupted" in cell.optimise["says"]
    )
    assert all(row["kept"] or not row["certificate"] for row in cell.optimise["rows"])
    assert [row["numerics"] for row in cell.optimise["rows"]] == [str(p.numerics or "") for p in result.parts]
    cell.receive({"do": "write", "path": str(tmp_path / "fast.onnx")})
    said = "is your original model" if not result.replacements else "written to"
    assert said in cell.notice["text"]
    assert (tmp_path / "fast.onnx").exists() and "your model in ONNX Runtime" in cell.saved()["text/html"]
    cell.receive({"do": "write", "path": ""})
    assert "no file is named" in cell.notice["text"]
    cell.receive({"do": "bundle", "path": str(tmp_path / "fast.onnx")})
    assert "its README.md says" in cell.notice["text"] and (tmp_path / "fast" / "manifest.json").exists()
    sent = told(cell)
    cell.receive({"do": "download"})
    ((message, held),) = sent
    assert message == {"do": "file", "name": "small_fast.onnx"} and held == (tmp_path / "fast.onnx").read_bytes()


@pytest.mark.slow
def test_a_model_is_optimised_for_a_gpu_in_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"a": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    layer = [node("MatMul", ["x", "a"], ["h"]), node("Relu", ["h"], ["y"])]
    onnx.save(build(layer, {"x": [4, 8]}, ["y"], weights), tmp_path / "layer.onnx")
    absent = einnet_widgets.OptimizeCell(tmp_path / "layer.onnx")
    until(lambda: len(absent.optimise["devices"]) == 2)
    choice = absent.optimise["devices"][1]
    assert choice["missing"] and choice["missing"] in absent.optimise["note"] and "\n" not in absent.optimise["note"]
    absent.receive({"do": "optimise", "device": "cuda"})
    until(lambda: absent.notice.get("text", "").startswith("device 'cuda': "))

    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path / "cache"))
    rates = dict.fromkeys(("peak_flops", "memory_bandwidth", "cache_bandwidth", "cache_bytes"), 1e12)
    monkeypatch.setattr(gpu_optimiser, "measure_rates", lambda: rates | {"call_seconds": 3e-6})
    device = Device(monkeypatch)
    # A derived plan wins: its product is a convolution.
    device.seconds = lambda plan: sum(1e-2 if isinstance(s, CudaProduct) else 1e-3 for s in plan.steps[plan.once :])
    cell = einnet_widgets.OptimizeCell(tmp_path / "layer.onnx", device="cuda", budget=20, max_depth=2, states=40)
    result = cell.start().wait(60)
    until(lambda: cell.optimise["status"] == "done")
    (row,) = cell.optimise["rows"]
    assert row["kept"] and row["certificate"] == "proved" and row["after"] < row["before"]
    assert cell.optimise["says"].split("\n") == result.conclusions() and not cell.optimise["file"]
    assert "times as fast as library operators" in cell.saved()["text/html"]
    cell.receive({"do": "download"})
    assert "no ONNX file" in cell.notice["text"]
    cell.receive({"do": "write", "path": str(tmp_path / cell.optimise["path"])})
    assert GpuPlan.load(tmp_path / "layer_fast.gpu").report() == json.loads(json.dumps(result.report()))
    others = einnet_widgets.OptimizeCell(tmp_path / "layer.onnx", device="cuda", threads=2).start()
    until(lambda: "found threads, expected none" in others.notice.get("text", ""))


def test_messages_of_the_quiz_guess_and_reveal_steps() -> None:
    session = ee.explore(CONV)
    by_hand(session)
    view = einnet_widgets.QuizView(ee.Quiz(session.derivation), "one product")
    assert (view.quiz["number"], view.quiz["of"], view.quiz["goal"], view.quiz["over"]) == (1, 7, "one product", False)
    assert "splitting" not in view.quiz["after"]["latex"] and view.quiz["after"]["marks"]
    data = view.saved()
    assert "data:image/svg+xml" in data["text/html"] and "$$" in data["text/latex"]
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
    assert "1 of 7 guessed" in view.saved()["text/html"]


def test_a_search_is_steered_from_its_panel() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    run = session.search(target="Matmul", max_depth=1)
    kept = next(s.id for s in run.search.states if s.phase == "explorative")
    face.receive({"do": "pin", "state": kept})
    (name,) = face.search["pins"]
    assert name in face.notice["text"] and session.nodes[session.pins[name]].end == run.search.states[kept].program
    face.receive({"do": "forbid", "state": kept})
    assert face.search["forbidden"] == [f"summation splitting, from state 0 to {kept}"]
    asked = {"max_depth": 1, "patience": 5, "must_use": ["traversal_merging"], "rules": ["traversal_merging"]}
    face.receive({"do": "search", "target": "Matmul", "starts": [], **asked})
    steered = session.runs[-1].wait(30)
    options = steered.search.options
    assert (options.patience, options.must_use, options.forbid) == (5, ("traversal_merging",), (run.edge(kept),))
    assert face.search["options"]["patience"] == 5 and face.search["options"]["must_use"] == ["traversal_merging"]
    face.receive({"do": "allow", "edge": 0})
    assert face.search["forbidden"] == []
    face.receive({"do": "search", "max_depth": 1, "starts": [name]})
    again = session.runs[-1].wait(30)
    assert again.search.options.forbid == () and again.search.start == run.search.states[kept].program
    face.receive({"do": "forbid", "state": 0})
    assert "state 0 is the start" in face.notice["text"]


def test_a_state_is_described_and_the_reasons_of_moves_are_sent() -> None:
    session = ee.explore(CONV)
    face = einnet_widgets.Explorer(session)
    run = session.search(target="Matmul", max_depth=1)
    best = run.best
    assert best is not None
    sent = told(face)
    face.receive({"do": "hover", "state": best.state})
    face.receive({"do": "why"})
    (hover, _), (why, pairs) = [each for each in sent if each[0]["do"] in ("hover", "why")]
    assert hover["shown"]["state"] == best.state and face.search["detail"] is None
    assert any("Matmul b=1" in step for step in hover["shown"]["steps"])
    assert all(not any(c.isdigit() for c in text) for text in why["texts"]) and pairs is not None
    found = struct.unpack(f"<{len(pairs) // 4}i", pairs)
    told_of = {(state, why["texts"][n]) for state, n in zip(found[::2], found[1::2], strict=True)}
    assert {s for s, _ in told_of} == {p.parent for p in run.pruned} | {r.state for r in run.refused}
    assert any("compute-bound" in text for _, text in told_of)
