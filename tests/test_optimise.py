"""The main job end to end: a model in, a program out that agrees, is proved, and says what it did.

No test asserts a time: the machine may be busy.  What must hold however it is: nothing kept means a speed-up of exactly
1, and what is kept is proved and agrees.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.backends.measure import Timing, compare, times_faster
from einnet_explore.backends.profiles import ProfileStore
from einnet_explore.cli import main
from einnet_explore.cli import optimize as command
from einnet_explore.graph import contest as contest_module
from einnet_explore.graph import filed as filed_module
from einnet_explore.graph import remembered as remembered_module
from einnet_explore.graph import result as result_module
from einnet_explore.graph import whole as whole_module
from einnet_explore.graph.contest import AGREEMENT, Outcome, Settings, largest_error
from einnet_explore.graph.filed import filed
from einnet_explore.graph.judging import judged
from einnet_explore.graph.models import write
from einnet_explore.graph.optimise import Optimiser, optimize
from einnet_explore.graph.optimised import Exported, Optimised
from einnet_explore.graph.part import Part
from einnet_explore.graph.reading.load import load
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.request import seconds_of, settings
from einnet_explore.graph.running.alone import beside_alone
from einnet_explore.graph.running.plan import Plan, build_plan
from einnet_explore.graph.running.regions import random_inputs
from einnet_explore.graph.whole import telling_inputs
from einnet_explore.graph.writing.export import ExportError
from einnet_explore.rules import EOPERATOR_GENERATION, Derivation, Match, Step

FIELDS = {
    "model", "device", "seconds_before", "seconds_after", "speedup", "max_abs_error", "max_rel_error",
    "search_seconds", "subprograms", "folded_weights", "fused_eoperators", "skipped",
}  # fmt: skip
SHORT = Settings(1, 3, 0.3, 2)
"""One thread, three choices deep, a third of a second for a search, two finalists."""

PART_FIELDS = {
    "nodes", "kept", "seconds_before", "seconds_after", "operators", "eoperators", "certificate", "steps"
}  # fmt: skip


def transposed() -> onnx.ModelProto:
    """Two strided transposed convolutions with activations: where derivations win on any CPU, at a tiny size."""
    rng = np.random.default_rng(0)
    weights = {"w0": rng.standard_normal((24, 12, 4, 4)), "w1": rng.standard_normal((12, 3, 4, 4))}
    at = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        node("ConvTranspose", ["x", "w0"], ["a"], **at),
        node("Relu", ["a"], ["b"]),
        node("ConvTranspose", ["b", "w1"], ["c"], **at),
        node("Relu", ["c"], ["y"]),
    ]
    return build(nodes, {"x": [1, 24, 3, 5]}, ["y"], {k: v.astype(np.float32) for k, v in weights.items()})


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests share times that were measured, but not what became of them."""
    monkeypatch.setattr(remembered_module, "engine", lambda: request.node.nodeid)


def searched(of: Model, chosen: Settings = SHORT) -> Optimised:
    """*of*, optimised with little effort, however slow the machine is."""
    work = Optimiser(of, chosen)
    for _ in work.run():
        pass
    return work.result()


def model(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Model:
    return load(proto, shapes or {})


def sound(fast: Optimised, tmp_path: Path) -> dict[str, Any]:
    """The report of *fast*, after everything in it that must hold has been looked at."""
    said = fast.report()
    assert set(said) >= FIELDS and all(set(part) >= PART_FIELDS for part in said["subprograms"])
    assert said["max_rel_error"] <= AGREEMENT
    assert math.isfinite(said["speedup"]) and said["speedup"] > 0
    kept = [part for part in said["subprograms"] if part["kept"]]
    if not kept:
        assert said["speedup"] == 1.0 and said["max_abs_error"] == 0.0
    for part in said["subprograms"]:
        assert not part["why"].startswith("its search failed"), part["why"]
        assert part["kept"] == bool(part["steps"]) or not part["kept"]
        if part["kept"]:
            assert part["certificate"] == "proved" and part["operators"] + [0] * part["eoperators"]
            assert all({"rule", "at", "params"} <= set(step) for step in part["steps"])
    saved = tmp_path / "fast.onnx"
    fast.save(saved)
    onnx.checker.check_model(onnx.load(saved), full_check=True)
    feeds = fast.random_inputs(3)
    ran = runs(saved, feeds)
    agree(fast, runs(fast.model.original, feeds), ran)
    agree(fast, ran, fast(**feeds))
    return said


def runs(what: Path | onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    held = what.SerializeToString() if isinstance(what, onnx.ModelProto) else str(what)
    session = onnxruntime.InferenceSession(held, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def agree(fast: Optimised, want: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    # Where a model amplifies roundings, other inputs than those it was checked on say less: see telling_inputs.
    rounded = {k: np.nextafter(v, np.inf, dtype=v.dtype) for k, v in fast.random_inputs(3).items()}
    own = largest_error(fast.original.run(fast.random_inputs(3)), fast.original.run(rounded))
    assert largest_error(want, got) <= max(AGREEMENT, 10 * own)


def kept_programs(fast: Optimised) -> list[Any]:
    return [part.outcome.winner for part in fast.parts if part.kept and part.outcome.winner]


def test_small_model(tmp_path: Path) -> None:
    proto = transposed()
    fast = searched(model(proto))
    said = sound(fast, tmp_path)
    assert [part["nodes"] for part in said["subprograms"]] == [
        ["convtranspose_a", "relu_b"],
        ["convtranspose_c", "relu_y"],
    ]
    for derivation in kept_programs(fast):
        assert all(c.kind == "proved" for c in ee.check(derivation))


def test_kept_whatever_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The way of what is kept, without luck: every candidate that agrees counts as faster.
    for name in ("MARGIN", "NEGLIGIBLE"):
        monkeypatch.setattr(contest_module, name, {"MARGIN": 1e9, "NEGLIGIBLE": 0.0}[name])
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(result_module, "WORTH", 0.0)
    monkeypatch.setattr(result_module, "FORMS", {"plan": ("joined",)})
    monkeypatch.setattr(whole_module, "PAYS", 0.0)
    fast = searched(model(transposed()))
    said = sound(fast, tmp_path)
    assert [part["kept"] for part in said["subprograms"]] == [True, True]
    assert fast.form == "joined" and len(fast.programs) == 1 and fast.programs[0].certificate in ("proved", "none")
    assert fast.programs[0].piece.nodes == tuple(name for part in said["subprograms"] for name in part["nodes"])
    assert "2 of 2 subprograms replaced" in fast.summary()
    page = fast._repr_html_()
    assert page.count("<tr>") == 3 and "eOperators" in page
    assert len(fast.graphs()) == 2
    assert {"before", "after"} == set(fast.benchmark(3))


def test_what_does_not_pay_in_the_whole_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest_module, "MARGIN", 1e9)
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(whole_module, "PAYS", 1e9)
    fast = searched(model(transposed()))
    said = sound(fast, tmp_path)
    assert said["speedup"] == 1.0 and not any(part["kept"] for part in said["subprograms"])
    assert all("of its speed without" in part["why"] for part in said["subprograms"])
    monkeypatch.setattr(whole_module, "PAYS", 0.0)
    monkeypatch.setattr(result_module, "WORTH", 1e9)
    again = sound(searched(model(transposed())), tmp_path)
    assert again["speedup"] == 1.0 and all("of its speed" in part["why"] for part in again["subprograms"])


def test_what_disagrees_in_the_whole_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest_module, "MARGIN", 1e9)
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    work = Optimiser(model(transposed()), Settings(1, 4, 1.0))
    for _ in work.run():
        pass
    assert any(part.kept for part in work.parts)
    monkeypatch.setattr(whole_module, "AGREEMENT", -1.0)
    said = work.result().report()
    assert not any(part["kept"] for part in said["subprograms"])
    assert any("of its largest output" in part["why"] for part in said["subprograms"])


def test_a_second_run_measures_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    chosen = Settings(1, 2, 60.0)
    proto = model(transposed())
    first = Optimiser(proto, chosen, store=store)
    assert len(list(first.run())) == 2
    monkeypatch.setattr(contest_module, "compare", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr(contest_module, "entries", lambda *_, **__: pytest.fail("searched again"))
    second = Optimiser(proto, chosen, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(second.run())) == 2
    assert [p.certificate for p in first.parts] == [p.certificate for p in second.parts]
    ends = [[p.derivation.end if p.derivation else None for p in w.parts] for w in (first, second)]
    assert ends[0] == ends[1]
    times = [[(p.outcome.seconds_before, p.outcome.seconds_after) for p in w.parts] for w in (first, second)]
    assert times[0] == times[1] and first.seconds == second.seconds


def test_an_interrupted_search_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Optimiser.outcome
    calls: list[int] = []

    def once(self: Optimiser, *args: Any) -> Outcome:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return contest(self, *args)

    monkeypatch.setattr(Optimiser, "outcome", once)
    fast = optimize(model(transposed()), threads=1, states=40)
    assert fast.interrupted and fast.report()["interrupted"] is True and len(fast.parts) == 1


def test_a_mistake_in_one_search_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Optimiser.outcome
    calls: list[int] = []

    def first_fails(self: Optimiser, *args: Any) -> Outcome:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("no such schedule")
        return contest(self, *args)

    monkeypatch.setattr(Optimiser, "outcome", first_fails)
    with pytest.warns(RuntimeWarning, match="no such schedule"):
        fast = searched(model(transposed()))
    said = fast.report()["subprograms"]
    assert said[0]["why"] == "its search failed: RuntimeError: no such schedule" and not said[0]["kept"]
    assert not said[1]["why"].startswith("its search failed")
    assert len(fast.rows()) == 3


def test_budget_ends_the_search() -> None:
    work = Optimiser(model(transposed()), Settings(1, 7, 4.0), budget=1e-9)
    assert list(work.run()) == [] and work.result().speedup == 1.0


def test_what_takes_no_time_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest_module, "NEGLIGIBLE", 1e9)
    work = Optimiser(model(transposed()), Settings(1))
    parts = [step.part for step in work.run()]
    assert [part.outcome.states for part in parts] == [0, 0]
    assert all("no gain there could be seen" in part.why for part in parts)


def test_inputs_tell_right_from_wrong() -> None:
    # Outputs of a saturated sigmoid are rounding errors: other inputs are drawn until some are not.
    nodes = [node("Mul", ["x", "k"], ["a"]), node("Sub", ["a", "o"], ["b"]), node("Sigmoid", ["b"], ["y"])]
    weights = {"k": np.float32([4.0]), "o": np.float32([14.0])}
    held = model(build(nodes, {"x": [1]}, ["y"], weights))
    plan = build_plan(held, {}, 1)
    feeds = telling_inputs(held, plan)
    first = plan.run(whole_module.random_inputs(held, 0))["y"].max()
    assert plan.run(feeds)["y"].max() >= first


def test_model_without_anything_to_derive(tmp_path: Path) -> None:
    proto = build([node("TopK", ["x", "k"], ["y", "i"])], {"x": [2, 8]}, ["y"], {"k": np.array([3])})
    said = sound(optimize(model(proto), threads=1), tmp_path)
    assert said["speedup"] == 1.0 and said["subprograms"] == []
    assert [s["node"] for s in said["skipped"]] == ["topk_y"]


@pytest.mark.parametrize(("given", "value"), [(None, None), (60, 60.0), ("60s", 60.0), ("1.5", 1.5)])
def test_budgets(given: float | str | None, value: float | None) -> None:
    assert seconds_of(given) == value


@pytest.mark.parametrize("given", [0, -1, "nan", "soon"])
def test_bad_budgets(given: float | str) -> None:
    with pytest.raises(ValueError, match=r"budget|could not convert"):
        seconds_of(given)


@pytest.mark.parametrize("device", ["cuda", "abacus"])
def test_bad_devices(device: str) -> None:
    with pytest.raises(ValueError, match="expected cpu"):
        optimize(model(transposed()), device=device)


def test_calling_an_optimised_model_wrongly() -> None:
    fast = Optimiser(model(transposed()), Settings(1)).result()
    with pytest.raises(ValueError, match="input x is missing"):
        fast()
    with pytest.raises(ValueError, match=r"shape \(1,\), expected \(1, 24, 3, 5\)"):
        fast(x=[1.0])


def test_times_are_compared_round_by_round() -> None:
    # A slow spell over the last three rounds: the medians of all rounds would say 5, round by round it is 4.
    a = Timing(20.0, 0.0, 5, (4.0, 4.0, 20.0, 20.0, 20.0))
    b = Timing(4.0, 0.0, 5, (1.0, 1.0, 5.0, 4.0, 5.0))
    assert (times_faster(a, a), times_faster(a, b), times_faster(b, a)) == (1.0, 4.0, 0.25)


def test_every_round_has_a_sample_of_each() -> None:
    timings = compare({"a": lambda: sum(range(4000)), "b": lambda: sum(range(1000))}, rounds=5, min_seconds=0.01)
    assert timings["a"].low <= timings["a"].median
    assert len(timings["a"].samples) == timings["a"].n == len(timings["b"].samples) >= 5


def test_infogan(tmp_path: Path) -> None:
    said = sound(searched(model(write("infogan"))), tmp_path)
    assert len(said["subprograms"]) == 5


@pytest.mark.slow
def test_resnet18(tmp_path: Path) -> None:
    said = sound(optimize(model(write("resnet18")), threads=1), tmp_path)
    assert len(said["subprograms"]) > 15


@pytest.mark.slow
@pytest.mark.skipif(find_spec("rapidocr_onnxruntime") is None, reason="rapidocr-onnxruntime is not installed")
def test_pretrained_text_detector(tmp_path: Path) -> None:
    spec = find_spec("rapidocr_onnxruntime")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
    fast = optimize(path, shapes={"x": (1, 3, 320, 320)}, threads=1)
    said = sound(fast, tmp_path)
    assert len(said["subprograms"]) > 60


def test_a_winner_with_a_false_step_is_not_kept() -> None:
    right = ee.parse("tensor A[3]\nY[x:3] = A[x] + 1")
    wrong = ee.parse("tensor A[3]\nY[x:3] = A[x] + 2")
    match = Match(EOPERATOR_GENERATION, (0,), None)
    won = contest_module.Outcome(2.0, 1.0, Derivation(right, (Step(right, match, wrong),)), 0.0, 1, "2x")
    part = judged(("a", "b"), won)
    assert not part.kept and part.certificate == "false" and "false step" in part.why


def test_a_plan_is_held_against_the_original_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several threads that decides; where it cannot be had, what this process measures does."""
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "WORTH", 1.02)
    work = Optimiser(model(transposed()), replace(SHORT, threads=2))
    assert len(list(work.run())) == 2
    one, *others = (Timing(seconds, 0.0, 1, (seconds,)) for seconds in (1.0, 0.8, 1.25))
    monkeypatch.setattr(result_module, "timed", lambda *_: {"before": one, "after": one})
    monkeypatch.setattr(result_module, "FORMS", {"plan": ("joined",)})
    monkeypatch.setattr(result_module, "select", lambda *_: ([0, 1], None, {}))
    for after in (*others, None):
        beside = after and {"before": one, "after": after}
        monkeypatch.setattr(result_module, "beside_alone", lambda *_, beside=beside: beside)
        fast = work.result()
        kept = after == others[0]
        assert any(part.kept for part in fast.parts) == kept and math.isclose(fast.speedup, 1.25 if kept else 1.0)


def test_the_original_is_timed_in_a_process_of_its_own() -> None:
    model = load(write("infogan"))
    plan, feeds = build_plan(model, {}, 2), random_inputs(model, 0)
    timings = beside_alone(model.original, plan, feeds, 3, 0.01)
    assert timings is not None and all(t.n >= 3 and t.median > 0 for t in timings.values())
    assert beside_alone(model.original, plan, {**feeds, "nobody": np.zeros(1, np.float32)}, 3, 0.01) is None


def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate that agrees counts as faster, by itself and in the whole."""
    for name in ("MARGIN", "NEGLIGIBLE"):
        monkeypatch.setattr(contest_module, name, {"MARGIN": 1e9, "NEGLIGIBLE": 0.0}[name])
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(result_module, "WORTH", 0.0)
    monkeypatch.setattr(filed_module, "LEAST", 0.0)
    monkeypatch.setattr(result_module, "FORMS", {"plan": ("joined", "apart"), "onnxruntime": ("exported",)})
    monkeypatch.setattr(whole_module, "PAYS", 0.0)


def test_each_kept_derivation_is_switched_off_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    fast = searched(model(transposed()))
    found = fast.attribution()
    assert [part.nodes for part in found] == [(part.nodes,) for part in fast.parts]
    assert all(math.isfinite(part.speedup) and part.speedup > 0 for part in found)
    assert found[0].to_json()["nodes"] == [["convtranspose_a", "relu_b"]]
    records = fast.derivations()
    assert {name.split("-")[0] for name in records} >= {"000", "001"}
    assert Optimiser(model(transposed()), SHORT).result().attribution() == ()


def test_the_exported_model_is_what_counts_where_onnxruntime_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    fast = searched(model(transposed()), replace(SHORT, runtime="onnxruntime"))
    said = sound(fast, tmp_path)
    assert fast.form == "exported" and all(part["kept"] for part in said["subprograms"])
    assert fast.plan.sessions == 1 and said["export"]["speedup"] == fast.exported.speedup is not None


def test_the_report_says_how_fast_the_export_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": ("joined", "exported")})
    said = sound(searched(model(transposed())), tmp_path)
    assert said["export"]["speedup"] > 0 and "beside the original" in said["export"]["why"]

    def refuse(*_: object) -> None:
        raise ExportError("no such operator")

    monkeypatch.setattr(result_module.Assembler, "export", refuse)
    again = searched(model(transposed()), replace(SHORT, max_depth=2)).report()
    why = "none of what is kept pays in ONNX Runtime alone (it is not run: no such operator): it is the original"
    assert again["export"] == {"speedup": 1.0, "why": why, "nodes": []}
    nothing = Optimiser(model(transposed()), SHORT).result().report()
    assert nothing["export"]["speedup"] == 1.0


def test_a_second_result_selects_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    store = ProfileStore(tmp_path / "profiles.sqlite")
    first = Optimiser(model(transposed()), SHORT, store=store)
    assert len(list(first.run())) == 2
    before = first.result()
    monkeypatch.setattr(result_module, "select", lambda *_: pytest.fail("selected again"))
    second = Optimiser(model(transposed()), SHORT, store=store)
    assert len(list(second.run())) == 2
    after = second.result()
    assert [p.kept for p in before.parts] == [p.kept for p in after.parts] == [True, True]
    assert before.form == after.form and before.exported == after.exported


def test_a_remembered_selection_that_no_longer_holds_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    store = ProfileStore(tmp_path / "profiles.sqlite")
    first = Optimiser(model(transposed()), SHORT, store=store)
    assert len(list(first.run())) == 2 and first.result().replacements
    monkeypatch.setattr(result_module, "WORTH", 1e9)
    second = Optimiser(model(transposed()), SHORT, store=store)
    assert len(list(second.run())) == 2
    said = second.result()
    assert said.speedup == 1.0 and not said.replacements
    assert all("not faster by more than noise" in part.why for part in said.parts)


def test_a_joined_subprogram_replaces_its_parts_only_where_it_gains_more() -> None:
    end = Derivation(ee.parse("tensor A[3]\nY[x:3] = A[x] + 1"))

    def part(nodes: tuple[str, ...], before: float, after: float) -> Part:
        return Part(nodes, Outcome(before, after, end, 0.0, 1, "faster"), True, "proved", "faster")

    for gain, kept in ((1.5, [False, False, True]), (0.9, [True, True, False])):
        work = Optimiser(model(transposed()), SHORT)
        work.parts = [part(("a",), 2.0, 1.5), part(("b",), 2.0, 1.4)]
        whole = work._among(part(("a", "b"), 4.0, 4.0 - gain))
        assert [p.kept for p in (*work.parts, whole)] == kept
    assert "its parts" in whole.why


def test_nearly_winning_is_enough_beside_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(contest_module, "MARGIN", 0.0)
    monkeypatch.setattr(contest_module, "NEAR", 1e9)
    fast = searched(model(transposed()))
    assert all(part.kept and part.outcome.winner is None for part in fast.parts)


@pytest.mark.parametrize(
    ("speedup", "parts", "said"),
    [
        (1.0, (0,), ""),
        (1.3, (0,), ""),
        (1.3, (), "holds 0 of 1 derivations and runs at 1.30 of"),
        (0.5, (0,), "at 0.50 of the original's speed"),
        (None, (0,), "not known (it broke)"),
    ],
)
def test_a_slow_export_is_not_passed_in_silence(speedup: float | None, parts: tuple[int, ...], said: str) -> None:
    told = Exported(speedup, "it broke", parts).lacks(1)
    assert said in told and bool(told) == bool(said)


def test_the_file_holds_what_pays_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part 1 makes the whole faster there, part 0 slower: the times are the test's own."""
    seconds = {(): 4.0, (0,): 5.0, (1,): 3.0, (0, 1): 3.5}
    plans = {kept: Plan((), {}, (), {}) for kept in seconds}

    def paired(before: Plan, after: Plan, *_: object) -> dict[str, Timing]:
        taken = {id(plan): seconds[kept] for kept, plan in plans.items()}
        return {
            name: Timing(taken[id(plan)], 0.0, 1, (taken[id(plan)],))
            for name, plan in (("before", before), ("after", after))
        }

    monkeypatch.setattr(whole_module, "paired", paired)

    def told(ratios: Mapping[str, float], *groups: tuple[int, ...]) -> Exported:
        gains = {0: 2.0, 1: 1.0}
        return filed((0, 1), ratios, "untried", groups, gains, plans[()], lambda n: plans[tuple(n)], {}, 1.0)

    assert told({"exported": 1.2}, (0,), (1,)).parts == (0, 1)
    assert told({"exported": 0.9}, (0,), (1,)) == Exported(4 / 3, "measured beside the original in ONNX Runtime", (1,))
    lost = "none of what is kept pays in ONNX Runtime alone"
    assert told({}, (0,)) == Exported(1.0, f"{lost} (untried): it is the original")
    assert told({"exported": 0.9}, (0,)).why == (
        f"{lost} (it runs at 0.90 of the original's speed there): it is the original"
    )


def test_the_command_writes_records_that_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": ("joined",)})
    monkeypatch.setattr(command, "settings", lambda *_: SHORT)
    path, said, records = tmp_path / "m.onnx", tmp_path / "m.json", tmp_path / "records"
    onnx.save(transposed(), path)
    assert main(["optimize", str(path), "--json", str(said), "--certificates", str(records)]) == 0
    report = json.loads(said.read_text())
    assert [len(part["nodes"]) for part in report["attribution"]] == [1, 1]
    assert report["form"] == "joined" and len(report["programs"]) == 1 and "speedup" in report["export"]
    written = sorted(records.iterdir())
    assert len(written) >= 2
    for record in written:
        assert main(["check", str(record)]) == 0
    with pytest.raises(SystemExit):
        main(["optimize", str(path), "--certificates"])


def test_bad_runtimes() -> None:
    with pytest.raises(ValueError, match="target runtime 'abacus': expected one of plan, onnxruntime"):
        settings("cpu", 1, 7, "abacus")


def test_a_program_is_optimised_as_a_model() -> None:
    forward = ee.parse(
        "tensor A[4, 6]\ntensor B[6, 5]\nY[i:4, j:5] = tanh({[i:4, j:5] sum[k:6] A[i, k]*B[k, j]}[i, j])"
    )
    backward = ee.cse(forward, ee.grad(forward)).backward
    fast = ee.optimize(backward, budget=2.0, max_depth=1)
    arrays = {t.name: np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in backward.inputs}
    want = ee.evaluate(backward, arrays, np.float64)
    got = fast(**arrays)
    for name in backward.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    assert fast.summary()
