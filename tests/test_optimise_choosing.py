"""Selection of derivations: in the whole model, and again for the exported file."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import einnet_explore as ee
from einnet_evaluation.models import write
from einnet_explore.codegen import versions
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline import baseline as against_module
from einnet_explore.pipeline import baseline as whole_module
from einnet_explore.pipeline import selection as result_module
from einnet_explore.pipeline import selection_trials
from einnet_explore.pipeline import tuning_task as contest_module
from einnet_explore.pipeline.baseline import Baseline, random_model_inputs, time_with_original_process
from einnet_explore.pipeline.optimised import ExportSelection
from einnet_explore.pipeline.optimiser import Optimiser, Tuner
from einnet_explore.pipeline.plan import ExecutionPlan, PlanModel, build_plan
from einnet_explore.pipeline.selection_trials import ForwardSelection, select_for_export
from einnet_explore.pipeline.subprogram import Subprogram, TunedSubprogram, choose_joined_or_parts
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.rules import Derivation
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import Timing
from einnet_explore.support.errors import Refused
from tests.onnx_building import build, node
from tests.optimising_kit import SHORT, everything, model, nothing_remembered, plan_forms, searched, sound, transposed

forgetting = pytest.fixture(autouse=True)(nothing_remembered)


def test_parts_that_gain_nothing_in_the_whole_model_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest_module, "MAX_WINNER_RATIO", 1e9)
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(selection_trials, "MIN_PART_SPEEDUP", 1e9)
    fast = searched(model(transposed()))
    said = sound(fast, tmp_path)
    assert said["speedup"] == 1.0 and not any(part["kept"] for part in said["subprograms"])
    assert all("of the speed without" in part["why"] for part in said["subprograms"])
    monkeypatch.setattr(selection_trials, "MIN_PART_SPEEDUP", 0.0)
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 1e9)
    again = sound(searched(model(transposed())), tmp_path)
    assert again["speedup"] == 1.0 and all("of the speed without" in part["why"] for part in again["subprograms"])


def test_parts_with_wrong_outputs_in_the_whole_model_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest_module, "MAX_WINNER_RATIO", 1e9)
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    work = Optimiser(model(transposed()), Settings(1, 4, 1.0))
    for _ in work.run():
        pass
    assert any(part.kept for part in work.parts)
    monkeypatch.setattr(Baseline, "max_error", -1.0)
    said = work.result().report()
    assert not any(part["kept"] for part in said["subprograms"])
    assert any("of the largest output" in part["why"] for part in said["subprograms"])


def test_plan_is_compared_with_the_original_in_a_separate_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several threads that decides; where it cannot be had, what this process measures does."""
    everything(monkeypatch)
    for name in ("MIN_SPEEDUP", "MIN_REMEMBERED_SPEEDUP"):
        monkeypatch.setattr(result_module, name, 1.02)
    work = Optimiser(model(transposed()), replace(SHORT, threads=2))
    assert len(list(work.run())) == 2
    one, *others = (Timing(seconds, 0.0, 1, (seconds,)) for seconds in (1.0, 0.8, 1.25))
    monkeypatch.setattr(against_module, "time_against_original", lambda *_: {"before": one, "after": one})
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined")})
    monkeypatch.setattr(
        result_module.Selector, "_select_forward", lambda *_: ForwardSelection([0, 1], work.original, {})
    )
    for after in (*others, None):
        beside = after and {"before": one, "after": after}
        monkeypatch.setattr(against_module, "time_with_original_process", lambda *_, beside=beside, **__: beside)
        fast = work.result()
        kept = after == others[0]
        assert any(part.kept for part in fast.parts) == kept and math.isclose(fast.speedup, 1.25 if kept else 1.0)


def test_the_original_is_timed_in_a_process_of_its_own() -> None:
    model = load_model(write("infogan"))
    plan, feeds = build_plan(model, {}, 2), random_model_inputs(model, 0)
    timings = time_with_original_process(model.original, plan, feeds, 3, 0.01)
    assert timings is not None and all(t.n >= 3 and t.median > 0 for t in timings.values())
    assert (
        time_with_original_process(model.original, plan, {**feeds, "nobody": np.zeros(1, np.float32)}, 3, 0.01) is None
    )


def test_attribution_leaves_out_each_kept_derivation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    fast = searched(model(transposed()))
    found = sorted(fast.attribution(), key=lambda part: part.nodes)
    assert [part.nodes for part in found] == [(part.nodes,) for part in fast.parts]
    assert all(math.isfinite(part.speedup) and part.speedup > 0 for part in found)
    assert found[0].to_json()["nodes"] == [["convtranspose_a", "relu_b"]]
    records = fast.derivations()
    assert {name.split("-")[0] for name in records} >= {"000", "001"}
    assert Optimiser(model(transposed()), SHORT).result().attribution() == ()


def test_target_runtime_onnxruntime_selects_the_exported_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    fast = searched(model(transposed()), replace(SHORT, runtime="onnxruntime"))
    said = sound(fast, tmp_path)
    assert fast.form == "exported" and all(part["kept"] for part in said["subprograms"])
    assert fast.plan.sessions == 1 and said["export"]["speedup"] == fast.exported.speedup is not None


def test_the_report_says_how_fast_the_export_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined")})
    fast = searched(model(transposed()))
    assert not fast.is_file_selected and sound(fast, tmp_path)["export"] == {
        "speedup": None,
        "why": "its rewrites are selected when the file is written",
        "nodes": [],
    }
    said = fast.report()  # after it was saved
    assert said["export"]["speedup"] > 0 and "with the original" in said["export"]["why"]

    def refuse(*_: object) -> None:
        raise Refused("no such operator")

    monkeypatch.setattr(result_module.Assembler, "export", refuse)
    refused = searched(model(transposed()), replace(SHORT, max_depth=2))
    assert refused.replacements == ()
    again = refused.report()
    why = "no kept rewrite is faster in plain ONNX Runtime (it is not run: no such operator): the file is the original"
    assert again["export"] == {"speedup": 1.0, "why": why, "nodes": []}
    nothing = Optimiser(model(transposed()), SHORT).result().report()
    assert nothing["export"]["speedup"] == 1.0


def again(first: Optimiser, **changed: object) -> Optimiser:
    """Optimise the model of *first* once more with stored tuning results, with other settings if *changed*."""
    work = Optimiser(first.model, replace(first.settings, **changed), store=ProfileStore(first.store.path))
    work.parts = [*first.parts]
    return work


def measured(gain: float) -> Callable[..., dict[str, Timing]]:
    """A measurement by which a plan runs at *gain* of the original's speed."""

    def timed(original: ExecutionPlan, plan: ExecutionPlan, *_: object) -> dict[str, Timing]:
        after = 1.0 if plan is original else 1 / gain
        return {"before": Timing(1.0, 0.0, 1, (1.0,)), "after": Timing(after, 0.0, 1, (after,))}

    return timed


def test_second_result_repeats_the_first_and_reports_lost_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined"), "onnxruntime": plan_forms("exported")})
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 1.02)
    first = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(first.run())) == 2
    monkeypatch.setattr(against_module, "time_against_original", measured(1.5))
    proved: list[bool] = []
    together = result_module.Assembler.together

    def noted(self: Any, pieces: Any, proof: Any = "required") -> Any:
        proved.append(proof == "required")
        return together(self, pieces, proof)

    monkeypatch.setattr(result_module.Assembler, "together", noted)
    before = first.result()
    assert not proved[0] and proved[-1] and proved == sorted(proved)  # first what is tried, then what is kept
    proved.clear()
    exported = before.exported
    assert proved and not any(proved)  # the file is measured, not proved
    assert [part.kept for part in before.parts] == [True, True] and math.isclose(before.speedup, 1.5)

    monkeypatch.setattr(result_module.Selector, "_select_forward", lambda *_: pytest.fail("selected again"))
    for gain, kept in ((1.4, True), (1.01, True), (0.97, False), (1.2, True)):
        monkeypatch.setattr(against_module, "time_against_original", measured(gain))
        after = again(first).result()
        assert [part.kept for part in after.parts] == [kept, kept]
        assert math.isclose(after.speedup, gain if kept else 1.0)
        if kept:
            assert before.form == after.form and after.is_file_selected and after.exported == exported
            assert [p.piece for p in before.programs] == [p.piece for p in after.programs]
        else:
            assert not after.replacements and after.exported.parts == ()
            assert all("not faster by more than noise: 0.97 of the speed without" in part.why for part in after.parts)


def test_a_form_that_only_seemed_the_fastest_does_not_cost_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 1.02)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined", "exported")})
    monkeypatch.setattr(
        result_module.Selector,
        "_form_speedups",
        lambda *_: dict(zip(plan_forms("joined", "exported"), (1.5, 9.0), strict=True)),
    )
    files: list[ExecutionPlan] = []
    export = result_module.Assembler.export

    def noted(self: Any, parts: Any) -> ExecutionPlan:
        files.append(export(self, parts))
        return files[-1]

    def timed(original: ExecutionPlan, plan: ExecutionPlan, *rest: object) -> dict[str, Timing]:
        return measured(0.5 if any(plan is file for file in files) else gain)(original, plan)

    monkeypatch.setattr(result_module.Assembler, "export", noted)
    monkeypatch.setattr(against_module, "time_against_original", timed)
    first = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(first.run())) == 2
    for version, gain in (("gains", 1.5), ("loses", 0.9)):
        monkeypatch.setattr(versions, "SEARCH_VERSION", version)
        found = again(first).result()
        assert files and [part.kept for part in found.parts] == [gain > 1, gain > 1]
        if gain > 1:
            assert found.form == "joined"
            assert math.isclose(found.speedup, 1.5)


def test_foreign_or_disagreeing_selection_is_selected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(against_module, "time_against_original", measured(1.5))
    first = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(first.run())) == 2 and first.result().replacements
    calls: list[object] = []
    found = ForwardSelection([0], first.original, {1: "not now"})
    monkeypatch.setattr(result_module.Selector, "_select_forward", lambda *_: calls.append(1) or found)
    monkeypatch.setattr(against_module, "time_with_original_process", lambda *_, **__: None)
    assert first.result().replacements and not calls
    assert [part.kept for part in again(first, threads=2).result().parts] == [True, False]
    assert len(calls) == 1
    with monkeypatch.context() as other:
        other.setattr(versions, "SEARCH_VERSION", f"{request.node.nodeid}, another version")
        assert [part.kept for part in again(first).result().parts] == [True, False]
    assert len(calls) == 2
    monkeypatch.setattr(Baseline, "max_error", -1.0)
    wrong = again(first).result()
    assert len(calls) == 3 and not any(part.kept for part in wrong.parts) and wrong.speedup == 1.0
    assert ["does not agree" in part.why for part in wrong.parts] == [True, False]


def test_a_joined_subprogram_replaces_its_parts_only_where_it_gains_more() -> None:
    end = Derivation(ee.parse("tensor A[3]\nY[x:3] = A[x] + 1"))

    def part(nodes: tuple[str, ...], before: float, after: float) -> TunedSubprogram:
        trial = Trial(seconds_before=before, seconds_after=after, winner=end, states=1, why="faster")
        return TunedSubprogram(nodes, trial, True, "proved", "faster")

    for gain, kept in ((1.5, [False, False, True, True]), (0.9, [True, True, True, False])):
        apart = [part(("a",), 2.0, 1.5), part(("b",), 2.0, 1.4), part(("c",), 2.0, 1.0)]
        whole, parts = choose_joined_or_parts(part(("a", "b"), 4.0, 4.0 - gain), apart)
        assert [p.kept for p in (*parts, whole)] == kept
        assert parts[2] == apart[2]
    assert "its parts" in whole.why


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(("gain", "tuned"), [(1.0, 5), (1.1, 5), (1.5, 3)])
def test_parts_come_before_what_joins_them_unless_that_gains_much(
    gain: float, tuned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The joined subprogram of two large and two small convolutions comes between these."""
    tall, wide = {"pads": [3, 0, 3, 0]}, {"pads": [0, 3, 0, 3]}
    shapes = {"k": (8, 256, 7, 1), "l": (8, 8, 1, 7), "m": (8, 256, 1, 7), "n": (8, 8, 7, 1)}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "k"], ["a"], **tall), node("Conv", ["a", "l"], ["b"], **wide),
        node("Conv", ["x", "m"], ["c"], **wide), node("Conv", ["c", "n"], ["d"], **tall),
        node("Add", ["b", "d"], ["y"]),
    ]  # fmt: skip
    work = Optimiser(model(build(nodes, {"x": (1, 256, 28, 28)}, ["y"], weights)), SHORT)
    (whole,) = work.split.subprograms
    order: list[int] = []

    def trial_of(_: object, subprogram: Subprogram) -> Trial:
        order.append(len(subprogram.nodes))
        joined = subprogram.nodes == whole.nodes
        found = Derivation(subprogram.anonymous.program) if joined and gain > 1 else None
        return Trial(seconds_before=gain, seconds_after=1.0, why="", winner=found)

    monkeypatch.setattr(Tuner, "trial_of", trial_of)
    monkeypatch.setattr(Optimiser, "_within_bound", lambda _, part: part)
    list(work.run())
    assert len(whole.parts) == 4 and order.index(5) == 2 and len(order) == tuned


@pytest.mark.parametrize(("first_gains", "order"), [(True, "abc"), (False, "acb")])
def test_tasks_like_one_that_gained_nothing_come_later(
    first_gains: bool, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two convolutions have windows in two dimensions; the third, of fewer operations, has one in one."""
    weights = {"k": np.ones((64, 64, 3, 3), np.float32), "l": np.ones((48, 64, 3, 3), np.float32)}
    nodes = [node("Conv", ["x", w], [w.translate({107: "a", 108: "b"})], pads=[1] * 4) for w in "kl"]
    nodes.append(node("Conv", ["x", "m"], ["c"], pads=[0, 3, 0, 3]))
    proto = build(nodes, {"x": (1, 64, 28, 28)}, ["a", "b", "c"], weights | {"m": np.ones((56, 64, 1, 7), np.float32)})
    work, tuned = Optimiser(model(proto), SHORT), list[str]()

    def trial_of(_: object, subprogram: Subprogram) -> Trial:
        tuned.append(subprogram.outputs[0])
        found = Derivation(subprogram.anonymous.program) if first_gains else None
        return Trial(seconds_before=2.0, seconds_after=1.0, why="", winner=found)

    monkeypatch.setattr(Tuner, "trial_of", trial_of)
    monkeypatch.setattr(Optimiser, "_within_bound", lambda _, part: part)
    list(work.run())
    assert "".join(tuned[:3]) == order  # what joins them is last


def test_gain_of_a_convolution_promises_nothing_for_larger_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second convolution has a stride of 2; the third, of a few more operations, has windows in one dimension."""
    shapes = {"k": (64, 64, 3, 3), "l": (160, 64, 3, 3), "m": (56, 64, 1, 7)}
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "k"], ["a"], pads=[1] * 4),
        node("Conv", ["x", "l"], ["b"], pads=[1] * 4, strides=[2, 2]),
        node("Conv", ["x", "m"], ["c"], pads=[0, 3, 0, 3]),
    ]
    work = Optimiser(model(build(nodes, {"x": (1, 64, 28, 28)}, ["a", "b", "c"], weights)), SHORT)
    tuned: list[str] = []

    def trial_of(_: object, subprogram: Subprogram) -> Trial:
        tuned.extend(subprogram.outputs)
        return Trial(seconds_before=2.0, seconds_after=1.0, why="", winner=Derivation(subprogram.anonymous.program))

    monkeypatch.setattr(Tuner, "trial_of", trial_of)
    monkeypatch.setattr(Optimiser, "_within_bound", lambda _, part: part)
    list(work.run())
    assert "".join(tuned[:3]) == "acb"


def test_near_winners_are_kept_if_joined_with_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(contest_module, "MAX_WINNER_RATIO", 0.0)
    monkeypatch.setattr(contest_module, "MAX_CONTENDER_RATIO", 1e9)
    fast = searched(model(transposed()))
    assert all(part.kept and part.trial.winner is None for part in fast.parts)


@pytest.mark.parametrize(
    ("speedup", "parts", "said"),
    [
        (1.0, (0,), ""),
        (1.3, (0,), ""),
        (1.0, (), ""),
        (1.3, (0, 1), "has 2 of 3 derivations and runs at 1.30 of"),
        (0.5, (0,), "at 0.50 of the original's speed"),
        (None, (0,), "not known (it broke)"),
    ],
)
def test_report_says_why_an_export_is_slow_or_incomplete(
    speedup: float | None, parts: tuple[int, ...], said: str
) -> None:
    told = ExportSelection(speedup, "it broke", parts).lacks(2 * len(parts) - 1)
    assert said in told and bool(told) == bool(said)


def test_file_has_only_derivations_that_are_faster_in_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Part 1 makes the whole faster there, part 0 slower: the times are the test's own."""
    seconds = {(): 4.0, (0,): 5.0, (1,): 3.0, (0, 1): 3.5}
    plans = {kept: ExecutionPlan((), {}, (), {}, model_with=lambda _: PlanModel(onnx.ModelProto())) for kept in seconds}

    def paired(before: ExecutionPlan, after: ExecutionPlan, *_: object) -> dict[str, Timing]:
        taken = {id(plan): seconds[kept] for kept, plan in plans.items()}
        return {
            name: Timing(taken[id(plan)], 0.0, 1, (taken[id(plan)],))
            for name, plan in (("before", before), ("after", after))
        }

    monkeypatch.setattr(whole_module, "time_plans", paired)

    def told(speedup: float | None, *groups: tuple[int, ...]) -> ExportSelection:
        baseline = Baseline(SimpleNamespace(nodes=()), plans[()], {}, 1.0)  # type: ignore[arg-type]
        whole = ExportSelection(speedup, "untried", (0, 1))
        return select_for_export(baseline, lambda n: plans[tuple(n)], groups, whole)

    assert told(1.2, (0,), (1,)).parts == (0, 1)
    assert told(0.9, (0,), (1,)) == ExportSelection(4 / 3, "measured in turn with the original in ONNX Runtime", (1,))
    lost = "no kept rewrite is faster in plain ONNX Runtime"
    assert told(None, (0,)) == ExportSelection(1.0, f"{lost} (untried): the file is the original")
    assert (
        told(0.9, (0,)).why
        == f"{lost} (with all of them it runs at 0.90 of the original's speed): the file is the original"
    )


def test_an_exact_joined_subprogram_may_be_slower_than_inexact_parts_within_the_noise() -> None:
    end = Derivation(ee.parse("tensor x[3]\ny[i:3] = x[i]\noutput y"))

    def tuned(nodes: tuple[str, ...], before: float, after: float, exact: bool, kept: bool = True) -> TunedSubprogram:
        trial = Trial(seconds_before=before, seconds_after=after, winner=end, why="", rounds_exactly=exact)
        return TunedSubprogram(nodes, trial, kept, "proved", "")

    parts = [tuned(("a",), 1.0, 1.0, False, False), tuned(("b",), 1.0, 1.0, False, False)]
    for after, exact, joined in ((2.05, True, True), (2.05, False, False), (2.2, True, False)):
        best, others = choose_joined_or_parts(tuned(("a", "b"), 2.0, after, exact), parts)
        assert (best.kept, best.rounds_exactly) == (joined, joined)
        assert all("together with others" in part.why for part in others) is joined
    exact_parts = [tuned((name,), 1.0, 1.0, True) for name in "ab"]
    assert not choose_joined_or_parts(tuned(("a", "b"), 2.0, 2.05, True), exact_parts)[0].kept


@pytest.mark.parametrize("exact", [True, False])
def test_a_plan_with_exact_subprograms_has_to_be_as_fast_as_the_original(
    exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 1.02)
    work = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "p.sqlite"))
    assert len(list(work.run())) == 2
    work.parts = [replace(part, trial=replace(part.trial, rounds_exactly=exact)) for part in work.parts]

    def timed(original: Any, plan: Any, *_: object) -> dict[str, Timing]:
        after = 1.0 if plan is original else 1 / 1.01
        return {"before": Timing(1.0, 0.0, 1, (1.0,)), "after": Timing(after, 0.0, 1, (after,))}

    monkeypatch.setattr(whole_module, "time_against_original", timed)
    for module in (result_module, selection_trials):
        monkeypatch.setattr(module, "plan_speedup", lambda *_: 1.0)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("apart")})
    fast = work.result()
    assert [part.kept for part in fast.parts] == [exact, exact]
    assert [part["rounds_exactly"] for part in fast.report()["subprograms"]] == [exact, exact]
    assert ("2 of 2 subprograms replaced, 2 of them to round to integers as defined" in fast.summary()) is exact
