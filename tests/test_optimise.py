"""The main job end to end: a model in, a program out that agrees, is proved, and says what it did.

No test asserts a time: the machine may be busy.  What must hold however it is: nothing kept means a speed-up of exactly
1, and what is kept is proved and agrees.
"""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_building import build, node
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

import einnet_explore as ee
from einnet_evaluation.models import write
from einnet_explore.cli import main
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import baseline as whole_module
from einnet_explore.pipeline import optimiser as contests_module
from einnet_explore.pipeline import selection as result_module
from einnet_explore.pipeline import selection_trials
from einnet_explore.pipeline import tuning_task as contest_module
from einnet_explore.pipeline.baseline import discriminating_inputs
from einnet_explore.pipeline.given_inputs import given_inputs
from einnet_explore.pipeline.optimisation import OptimiserOptions, optimize_model, parse_budget
from einnet_explore.pipeline.optimised import ORIGINAL_EXPORT, ExportedFile
from einnet_explore.pipeline.optimiser import Optimiser, Tuner, default_budget
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.pipeline.remote_tuning import PortableCost, answer_request
from einnet_explore.pipeline.subprogram import Subprogram, TunedSubprogram, certify_trial
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.tuning_task import Trial, TuningTask
from einnet_explore.rules import EOPERATOR_GENERATION, Derivation, Match, Step
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, Array, largest_error
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import Timing, time_calls, times_faster
from einnet_explore.strategies.rounding_levels import LEVELS
from einnet_explore.support import limits
from einnet_explore.support.errors import Refused
from einnet_explore.support.executors import SerialExecutor
from tests.optimising_kit import (
    SHORT,
    everything,
    kept_programs,
    model,
    nothing_remembered,
    plan_forms,
    searched,
    sound,
    transposed,
)

forgetting = pytest.fixture(autouse=True)(nothing_remembered)


def test_small_model_is_derived_proved_and_exported(tmp_path: Path) -> None:
    proto = transposed()
    fast = searched(model(proto))
    said = sound(fast, tmp_path)
    assert [part["nodes"] for part in said["subprograms"]] == [
        ["convtranspose_a", "relu_b"],
        ["convtranspose_c", "relu_y"],
    ]
    for derivation in kept_programs(fast):
        assert all(c.kind == "proved" for c in ee.check(derivation))


def test_plan_of_all_derived_subprograms_is_correct_at_any_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The way of what is kept, without luck: every candidate that agrees counts as faster.
    for name in ("MAX_WINNER_RATIO", "NEGLIGIBLE_SHARE"):
        monkeypatch.setattr(contest_module, name, {"MAX_WINNER_RATIO": 1e9, "NEGLIGIBLE_SHARE": 0.0}[name])
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 0.0)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined")})
    monkeypatch.setattr(selection_trials, "MIN_PART_SPEEDUP", 0.0)
    monkeypatch.setattr(selection_trials, "MAX_LOSING_SPEEDUP", 0.0)
    fast = searched(model(transposed()))
    said = sound(fast, tmp_path)
    assert [part["kept"] for part in said["subprograms"]] == [True, True]
    assert fast.form == "joined" and len(fast.programs) == 1 and fast.programs[0].certificate in ("proved", "none")
    assert fast.programs[0].piece.nodes == tuple(name for part in said["subprograms"] for name in part["nodes"])
    assert "2 of 2 subprograms replaced" in fast.summary() and "<details open>" not in fast._repr_html_()
    gain, proofs, error, deploy, *_ = fast.conclusions("folder", "file.onnx")
    assert gain.startswith(f"{fast.speedup:.2f} times as fast as your model in ONNX Runtime (1 thread): ")
    assert (proofs, error[:14]) == ("2 of 2 subprograms replaced: all proved", "largest error ")
    assert deploy.startswith(("deploy this: folder: a folder that", "deploy this: file.onnx: one ONNX file"))
    page = fast._repr_html_()
    assert page.index("deploy this") < page.index("<table>")
    assert said["region_ends"] == [{"node": "relu_b", "why": "relu is no product"}]
    assert "end before</summary>" in page and "<li>1 Relu: relu is no product</li>" in page
    assert page.count("<tr>") == 3 and "eOperator" in page
    assert len(fast.graphs()) == 2
    assert {"before", "after"} == set(fast.benchmark(3))


def test_a_second_run_measures_nothing_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    chosen = Settings(1, 2, 60.0)
    proto = model(transposed())
    first = Optimiser(proto, chosen, store=store)
    assert len(list(first.run())) == 2
    monkeypatch.setattr(contest_module, "time_calls", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr(contest_module, "find_variants", lambda *_, **__: pytest.fail("searched again"))
    second = Optimiser(proto, chosen, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(second.run())) == 2
    assert [p.certificate for p in first.parts] == [p.certificate for p in second.parts]
    ends = [[p.derivation.end if p.derivation else None for p in w.parts] for w in (first, second)]
    assert ends[0] == ends[1]
    times = [[(p.trial.seconds_before, p.trial.seconds_after) for p in w.parts] for w in (first, second)]
    assert times[0] == times[1] and first.seconds == second.seconds


def test_second_run_with_the_same_budget_tunes_nothing_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The time of all runs counts; one with a larger budget goes on."""
    monkeypatch.setattr(contest_module, "NEGLIGIBLE_SHARE", 0.0)
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(contests_module, "perf_counter", lambda: float(next(clock)))
    contests: list[str] = []
    run = TuningTask.run

    def held(self: TuningTask, seconds: float) -> Trial:
        contests.append(self.program.outputs[0])
        return run(self, seconds)

    monkeypatch.setattr(TuningTask, "run", held)

    def runs(budget: float) -> list[TunedSubprogram]:
        store = ProfileStore(tmp_path / "profiles.sqlite")
        work = Optimiser(model(transposed()), replace(SHORT, states=30), budget, store)
        return [step.part for step in work.run()]

    first = runs(50.0)
    assert len(first) == len(contests) == 1
    second = runs(50.0)
    assert len(contests) == 1 and [part.trial.seconds_after for part in second] == [first[0].trial.seconds_after]
    assert len(runs(400.0)) == len(contests) == 2


def test_an_interrupted_search_keeps_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Tuner.run_task
    calls: list[int] = []

    def once(self: Tuner, *args: Any) -> Trial:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return contest(self, *args)

    monkeypatch.setattr(Tuner, "run_task", once)
    fast = optimize_model(model(transposed()), threads=1, states=40)
    assert fast.interrupted and fast.report()["interrupted"] is True and len(fast.parts) == 1
    assert [s.why for s in fast.skipped] == ["the run was interrupted before it was tuned"] * 2
    assert fast.conclusions()[-1].startswith(
        "interrupted: this is the best of what was found by then; 1 subprogram not tuned (convtranspose_c). "
    )


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError, Fail])
def test_failed_search_does_not_affect_others(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Tuner.run_task
    calls: list[int] = []

    def first_fails(self: Tuner, *args: Any) -> Trial:
        calls.append(1)
        if len(calls) == 1:
            raise kind("no such schedule")
        return contest(self, *args)

    monkeypatch.setattr(Tuner, "run_task", first_fails)
    with pytest.warns(RuntimeWarning, match="no such schedule"):
        fast = searched(model(transposed()))
    said = fast.report()["subprograms"]
    assert said[0]["why"] == f"its search failed: {kind.__name__}: no such schedule" and not said[0]["kept"]
    assert not said[1]["why"].startswith("its search failed")
    assert len(fast.rows()) == 3


def test_budget_ends_the_search() -> None:
    work = Optimiser(model(transposed()), Settings(1, 7, 4.0), budget=1e-9)
    assert list(work.run()) == []
    fast = work.result()
    why = "the budget of 1e-09 s ended before it was tuned"
    assert fast.speedup == 1.0 and fast.untouched() == []
    assert {s.node for s in fast.skipped} == {node.name for node in fast.model.nodes}
    assert fast.report()["skipped"][0] == {"node": "convtranspose_a", "why": why}
    assert fast.summary().startswith("0 of 2 subprograms replaced; ")
    gain, late = fast.conclusions(budget="--budget ")
    assert gain.startswith(
        "nothing gained: keep your file. No subprogram was tuned; your model in ONNX Runtime (1 thread): "
    )
    assert late == (
        "2 subprograms not tuned (convtranspose_a, convtranspose_c): repeat with --budget 2e-09, which continues"
    )
    assert "repeat with budget=2e-09, which continues" in fast._repr_html_()  # seen without a click


def test_a_part_that_cannot_be_opened_costs_no_other_where_others_search(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = contests_module.open_original

    def first_fails(held: Model, subprogram: Subprogram, *rest: Any) -> Any:
        if subprogram.nodes[0] == "convtranspose_a":
            raise Refused("no such type")
        return opening(held, subprogram, *rest)

    monkeypatch.setattr(contests_module, "open_original", first_fails)
    work = Optimiser(model(transposed()), SHORT, executor=SerialExecutor())
    with pytest.warns(RuntimeWarning, match="no such type"):
        parts = {step.part.nodes[0]: step.part for step in work.run()}
    assert parts["convtranspose_a"].why == "its search failed: Refused: no such type"
    assert not parts["convtranspose_c"].why.startswith("its search failed")


@pytest.mark.parametrize("interrupt", [False, True])
def test_remote_candidates_that_arrive_in_time_compete(interrupt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subprograms whose candidates are late are searched locally, except after an interrupt."""
    monkeypatch.setattr(contest_module, "NEGLIGIBLE_SHARE", 0.0)
    seconds: list[float] = []

    def one(executor: Any, asked: Any, means: Any, left: float, _: object) -> Any:
        seconds.append(left)
        name = next(iter(asked))
        cost = PortableCost.of(means.model.device, means.store, 1)
        yield name, answer_request(replace(asked[name], seconds=1.0), cost, means.settings)
        if interrupt:
            raise KeyboardInterrupt

    monkeypatch.setattr(contests_module, "tune_on_executor", one)
    work = Optimiser(model(transposed()), replace(SHORT, states=30), budget=600.0, executor=SerialExecutor())
    parts = [step.part for step in work.run()]
    assert work.interrupted is interrupt and len(parts) == (1 if interrupt else 2)
    assert all(part.trial.states and not part.why.startswith("its search failed") for part in parts)
    assert 0 < seconds[0] <= contests_module.REMOTE_TIME_SHARE * 600
    assert work.result().interrupted is interrupt


def test_results_limited_by_memory_are_not_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(limits, "used_bytes", lambda: 0)
    proto, store = model(transposed()), ProfileStore(tmp_path / "profiles.sqlite")
    with limits.limit_memory(1):
        whys = [step.part.why for step in Optimiser(proto, SHORT, store=store).run()]
    assert all(why.startswith("the original needs") for why in whys)
    assert all(step.part.trial.winner for step in Optimiser(proto, SHORT, store=store).run())


def test_times_belong_to_the_operators_that_were_timed() -> None:
    """One program, written by two operators; equal layers are one, whatever they are called."""
    weights = {name: np.ones((1, 8, 8), np.float32) for name in ("w", "v")}
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("TopK", ["a", "k"], ["b", "i"]),
        node("Einsum", ["b", "v"], ["c"], equation="bij,bjk->bik"),
        node("TopK", ["c", "k"], ["d", "j"]),
        node("MatMul", ["d", "v"], ["y"]),
    ]
    weights["k"] = np.array([8])
    work = Optimiser(model(build(nodes, {"x": [1, 8, 8]}, ["y"], weights)), SHORT)
    by_node = {s.nodes: s for s in work.subprograms}
    first, einsum, last = (by_node[(name,)] for name in ("matmul_a", "einsum_c", "matmul_y"))
    names = [each.task_name(work.model) for each in (first, einsum, last)]
    assert names[0] == names[2] != names[1]
    tasks = [work.tuner.prepare(each)[0] for each in (first, einsum, last)]
    for timed in ("onnxruntime", "onnxruntime alone"):
        keys = [task._key(timed) for task in tasks]
        assert keys[0] == keys[2] != keys[1]
    assert len({task._key("program in place", task.program) for task in tasks}) == 1


def test_negligible_subprograms_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest_module, "NEGLIGIBLE_SHARE", 1e9)
    work = Optimiser(model(transposed()), Settings(1))
    parts = [step.part for step in work.run()]
    assert [part.trial.states for part in parts] == [0, 0]
    assert all("a gain is not measurable" in part.why for part in parts)
    budgets = (work.time_budget, *map(default_budget, (5, 99)), replace(work, budget=7.0).time_budget)
    assert budgets == (60, 60, 150, 7)  # of 2 subprograms, of more, and as given


def test_inputs_distinguish_wrong_results() -> None:
    # Outputs of a saturated sigmoid are rounding errors: other inputs are drawn until some are not.
    nodes = [node("Mul", ["x", "k"], ["a"]), node("Sub", ["a", "o"], ["b"]), node("Sigmoid", ["b"], ["y"])]
    weights = {"k": np.float32([4.0]), "o": np.float32([14.0])}
    held = model(build(nodes, {"x": [1]}, ["y"], weights))
    plan = build_plan(held, {}, 1)
    feeds = discriminating_inputs(held, plan)
    first = plan.run(whole_module.random_model_inputs(held, 0))["y"].max()
    assert plan.run(feeds)["y"].max() >= first


def test_model_without_anything_to_derive(tmp_path: Path) -> None:
    proto = build([node("TopK", ["x", "k"], ["y", "i"])], {"x": [2, 8]}, ["y"], {"k": np.array([3])})
    said = sound(optimize_model(model(proto), threads=1), tmp_path)
    assert said["speedup"] == 1.0 and said["subprograms"] == []
    assert [s["node"] for s in said["skipped"]] == ["topk_y"]


@pytest.mark.parametrize(("given", "value"), [(None, None), (60, 60.0), (1.5, 1.5)])
def test_budgets_are_parsed(given: float | str | None, value: float | None) -> None:
    assert parse_budget(given) == value


@pytest.mark.parametrize(("given", "value"), [("60s", 60.0), ("1.5", 1.5)])
def test_budgets_as_text_warn(given: str, value: float) -> None:
    with pytest.warns(DeprecationWarning, match=f"budget={given!r} is deprecated: write a number of seconds"):
        assert parse_budget(given) == value


@pytest.mark.parametrize("given", [0, -1, float("nan")])
def test_bad_budgets_are_refused(given: float) -> None:
    with pytest.raises(ValueError, match=f"budget {given!r}: expected a positive number"):
        parse_budget(given)


@pytest.mark.parametrize("device", ["cuda", "abacus"])
def test_bad_devices_are_refused(device: str) -> None:
    with pytest.raises(ValueError, match="expected cpu"):
        optimize_model(model(transposed()), device=device)


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
    timings = time_calls({"a": lambda: sum(range(4000)), "b": lambda: sum(range(1000))}, rounds=5, min_seconds=0.01)
    assert timings["a"].low <= timings["a"].median
    assert len(timings["a"].samples) == timings["a"].n == len(timings["b"].samples) >= 5


@pytest.mark.slow
def test_infogan_is_optimised_correctly(tmp_path: Path) -> None:
    said = sound(searched(model(write("infogan"))), tmp_path)
    assert len(said["subprograms"]) == 5


@pytest.mark.slow
def test_resnet18_is_optimised_correctly(tmp_path: Path) -> None:
    said = sound(optimize_model(model(write("resnet18")), threads=1, budget=480), tmp_path)
    assert len(said["subprograms"]) > 15


@pytest.mark.slow
@pytest.mark.skipif(find_spec("rapidocr_onnxruntime") is None, reason="rapidocr-onnxruntime is not installed")
def test_pretrained_text_detector_is_optimised_correctly(tmp_path: Path) -> None:
    spec = find_spec("rapidocr_onnxruntime")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
    fast = optimize_model(path, shapes={"x": (1, 3, 320, 320)}, threads=1, budget=480)
    said = sound(fast, tmp_path)
    assert len(said["subprograms"]) > 60


def test_a_winner_with_a_false_step_is_not_kept() -> None:
    right = ee.parse("tensor A[3]\nY[x:3] = A[x] + 1")
    wrong = ee.parse("tensor A[3]\nY[x:3] = A[x] + 2")
    match = Match(EOPERATOR_GENERATION, (0,), None)
    won = contest_module.Trial(
        seconds_before=2.0,
        seconds_after=1.0,
        winner=Derivation(right, (Step(right, match, wrong),)),
        states=1,
        why="2x",
    )
    part = certify_trial(("a", "b"), won)
    assert not part.kept and part.certificate == "false" and "a step that is false" in part.why


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "found no array, expected the inputs of .*: x"),
        ({"x": np.zeros((1, 24, 3, 5)), "w": np.zeros(2)}, "found x, w, expected the inputs of .*: x"),
        ({"x": np.zeros((24, 3, 5))}, r"input x has shape \(24, 3, 5\), expected \(1, 24, 3, 5\)"),
        ({"x": np.zeros((1, 24, 3, 5), complex)}, "input x has type complex128, expected float32"),
    ],
)
def test_given_inputs_that_do_not_fit_are_refused_by_name(
    given: dict[str, Array], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "x.npz", **given)  # type: ignore[arg-type]
    model = load_model(transposed())
    with pytest.raises(ValueError, match=f"^{tmp_path / 'x.npz'}: {message}"):
        given_inputs(tmp_path / "x.npz").for_model(model)
    with pytest.raises(ValueError, match=f"^inputs: {message}"):
        ee.optimize(transposed(), inputs=given)
    (tmp_path / "x.npz").write_text("no archive")
    with pytest.raises(ValueError, match=r"x\.npz: found no archive of arrays"):
        given_inputs(tmp_path / "x.npz")


def test_the_command_writes_records_that_check_and_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined")})
    monkeypatch.setattr(OptimiserOptions, "settings", SHORT)
    path, said, records = tmp_path / "m.onnx", tmp_path / "m.json", tmp_path / "records"
    onnx.save(transposed(), path)
    bundle = tmp_path / "bundle"
    options = ["--json", str(said), "--certificates", str(records), "--bundle", str(bundle)]
    np.savez(tmp_path / "x.npz", x=np.linspace(-1, 1, 24 * 15).reshape(1, 24, 3, 5))
    assert main(["optimize", str(path), *options, "--inputs", str(tmp_path / "x.npz")]) == 0
    report = json.loads(said.read_text())
    assert report["inputs"] == str(tmp_path / "x.npz")
    assert [len(part["nodes"]) for part in report["attribution"]] == [1, 1]
    assert report["form"] == "joined" and len(report["programs"]) == 1 and "speedup" in report["export"]
    written = sorted(records.iterdir())
    assert len(written) >= 2
    for record in written:
        assert main(["check", str(record)]) == 0
    with pytest.raises(SystemExit):
        main(["optimize", str(path), "--certificates"])
    assert [file.read_bytes() for file in sorted((bundle / "certificates").iterdir())] == [
        file.read_bytes() for file in written
    ]
    manifest = json.loads((bundle / "manifest.json").read_text())
    (entry,) = manifest["plans"]
    assert manifest["kernels"] and entry["numerics"] in LEVELS and entry["max_rel_error"] < MAX_RELATIVE_ERROR
    assert "einnet" in {node.domain for node in onnx.load(bundle / "model.onnx").graph.node}
    found = onnxruntime.SessionOptions()
    found.register_custom_ops_library(str(bundle / "kernels.so"))
    session = onnxruntime.InferenceSession(str(bundle / "model.onnx"), found)
    x = np.random.default_rng(1).standard_normal((1, 24, 3, 5)).astype(np.float32)
    want = onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0]
    assert largest_error({"y": want}, {"y": session.run(None, {"x": x})[0]}) < MAX_RELATIVE_ERROR


def test_a_bundle_does_not_replace_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(transposed(), path)
    assert main(["optimize", str(path), "--bundle", str(tmp_path)]) == 2
    assert "found m.onnx, expected a new folder, an empty one, or only a bundle" in capsys.readouterr().err


def test_bad_target_runtimes_are_refused() -> None:
    with pytest.raises(ValueError, match="target runtime 'abacus': expected one of plan, onnxruntime"):
        _ = OptimiserOptions(target_runtime="abacus").settings


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


def test_a_file_without_rewrites_is_the_original(tmp_path: Path) -> None:
    path, out = tmp_path / "old.onnx", tmp_path / "out.onnx"
    proto = build([node("Relu", ["x"], ["y"])], {"x": (3, 4)}, ["y"], opset=17)
    onnx.save(proto, path)
    Optimiser(load_model(path), Settings(1), budget=1e-9).result().save(out)
    assert out.read_bytes() == path.read_bytes()


def test_saving_the_original_warns_and_parts_that_stay_have_no_verdict(tmp_path: Path) -> None:
    work = Optimiser(model(transposed()), SHORT)
    assert work.status().startswith("reading the model · ")
    for _ in work.run():
        assert work.status().startswith(f"tuning subprograms · {work.done} of 2 · ")
        assert work.status("Cancel").endswith(" · Cancel measures and keeps these")
    found = work.result()
    assert work.status().startswith("done · ")
    assert found.progress[-1][1] == found.speedup and [*found.progress] == sorted(found.progress)
    stayed = tuple(replace(part, kept=False, certificate="proved") for part in found.parts)
    original = ExportedFile(lambda: ORIGINAL_EXPORT, lambda _: ())
    fast = replace(found, parts=stayed, file=original)
    with pytest.warns(UserWarning, match="is your original model: no rewrite is faster in plain ONNX Runtime$"):
        fast.save(tmp_path / "fast.onnx")
    assert [row[5] for row in fast.rows()] == ["certificate", "", ""]
    kept = replace(
        found,
        parts=tuple(
            replace(part, kept=True, certificate=c) for part, c in zip(stayed, ("proved", "exact"), strict=True)
        ),
        file=ExportedFile(original.select, original.rewrite),
    )
    waits = 'as one ONNX file (save("OUT.onnx")): its rewrites are selected when the file is written'
    assert not kept.is_file_selected and kept.conclusions()[4] == waits
    with pytest.warns(UserWarning, match="save_bundle writes the plan, which is faster$"):
        kept.save(tmp_path / "fast.onnx")
    said = kept.conclusions()
    assert said[1] == "2 of 2 subprograms replaced: 1 proved, 1 exact (equal on samples, not proved)"
    assert said[4] == 'as one ONNX file (save("OUT.onnx")): your original: no rewrite is faster in plain ONNX Runtime'
