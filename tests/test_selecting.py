"""Selection in the whole model: a failure affects one candidate, a budget bounds it, and Ctrl-C keeps results."""

import gc
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_building import build, node

from einnet_explore.cli import main
from einnet_explore.onnx_export.export import rewrite_model
from einnet_explore.pipeline import assembly as assembling_module
from einnet_explore.pipeline import optimised as attribution_module
from einnet_explore.pipeline import plan as plan_module
from einnet_explore.pipeline import selection as result_module
from einnet_explore.pipeline import selection_trials
from einnet_explore.pipeline.assembly import PlanForm
from einnet_explore.pipeline.baseline import Baseline, random_model_inputs
from einnet_explore.pipeline.model_sessions import open_session, run_session
from einnet_explore.pipeline.optimisation import OptimiserOptions
from einnet_explore.pipeline.optimised import ExportSelection, Optimised
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.plan import ExecutionPlan, build_plan
from einnet_explore.pipeline.selection import MIN_SELECTION_SECONDS, Selector, selection_seconds
from einnet_explore.pipeline.selection_trials import (
    ELIMINATION_SECONDS,
    FORWARD_SELECTION_SECONDS,
    MAX_SINGLE_TRIALS,
    UNTRIED,
    ForwardSelection,
    forward_selection,
)
from einnet_explore.pipeline.selection_trials import EXPORT_SELECTION_SECONDS as FILING
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.onnx_fragment import FragmentWriter
from einnet_explore.support.errors import BackendError, Refused
from tests.optimising_kit import (
    SHORT,
    agree,
    everything,
    model,
    nothing_remembered,
    plan_forms,
    runs,
    searched,
    transposed,
)

forgetting = pytest.fixture(autouse=True)(nothing_remembered)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Optimiser:
    """Contests that are over, of two parts that both count as faster."""
    everything(monkeypatch)
    held = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(held.run())) == 2 and all(part.kept for part in held.parts)
    return held


def result(work: Optimiser, budget: float | None = None) -> Selector:
    """Return the selector of *work* with this *budget*."""
    return replace(work.selector(), budget=budget)


def raising(error: BaseException) -> Callable[..., Any]:
    """Return a function that always raises *error*."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize("error", [BackendError("equation Y: it crashed"), MemoryError("8 TiB")], ids=["crash", "room"])
def test_part_without_a_plan_is_not_kept(error: Exception, work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling_module, "compile_measured", raising(error))
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined", "apart", "exported")})
    fast = work.result()
    assert fast.form == "original" and fast.speedup == 1.0
    assert all(not part.kept and str(error) in part.why for part in fast.parts)


def test_part_that_fails_to_fold_is_not_kept(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(work.assembler.folder), "fold", raising(BackendError("equation Y: it hangs")))
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("exported")})
    assert all(not part.kept and "it hangs" in part.why for part in work.result().parts)


def test_part_that_fails_at_run_time_is_not_kept(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("apart")})
    monkeypatch.setattr(assembling_module.ProgramCall, "write", raising(Refused("it has to be called")))
    compute = assembling_module.CompiledProgram.run

    def run(self: Any, inputs: Any) -> Any:
        if inputs:
            raise RuntimeError("no such address")
        return compute(self, inputs)  # weights are folded

    monkeypatch.setattr(assembling_module.CompiledProgram, "run", run)
    assert all(not part.kept and "RuntimeError: no such address" in part.why for part in work.result().parts)
    held = open_session(build([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"]), 1)
    with pytest.raises(Refused, match=r"ONNX Runtime fails: Got invalid dimensions for input: x"):
        run_session(held, ["y"], {"x": np.zeros(3, np.float32)})


def test_compiled_programs_are_freed_with_their_last_plan(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    assembler = work.assembler
    plans = [assembler.plan(assembler.separate(work.selector().pieces([n]))) for n in (0, 1)]
    assert len(assembler._runs) == 2
    with monkeypatch.context() as patched:
        patched.setattr(assembling_module, "compile_measured", lambda *_: pytest.fail("compiled again"))
        plans.append(assembler.plan(assembler.separate(work.selector().pieces([0, 1]))))
    del plans[:2]
    gc.collect()
    assert len(assembler._runs) == 2
    plans.clear()
    gc.collect()
    assert not assembler._runs


def test_pieces_have_the_order_of_the_model(work: Optimiser) -> None:
    expected = [piece.nodes for piece in work.selector().pieces([0, 1])]
    work.parts.reverse()
    assert [piece.nodes for piece in work.selector().pieces([1, 0])] == expected == [s.nodes for s in work.subprograms]


def test_attribution_omits_parts_without_a_plan(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    fast, asked = work.result(), []

    def plan_of(kept: Sequence[int]) -> ExecutionPlan:
        asked.append(tuple(kept))
        if len(asked) == 1:
            raise Refused("cannot be made")
        return fast.plan

    assert fast.without is not None and list(fast.attributions(-1.0)) == []
    other = replace(fast, without=replace(fast.without, plan_of=plan_of))
    brought = other.attribution()
    assert len(brought) == 1 and len(asked) == 2 and fast.attribution()[1:] == brought
    monkeypatch.setattr(result_module, "MIN_REMEMBERED_SPEEDUP", 0.0)
    again = work.result()  # which measures nothing of it, not even where there is no time
    monkeypatch.setattr(attribution_module, "plan_speedup", lambda *_: pytest.fail("measured again"))
    assert tuple(again.attributions(-1.0)) == fast.attribution()


def test_a_budget_bounds_selecting(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (selection_seconds(None), selection_seconds(1.0), selection_seconds(90.0)) == (
        math.inf,
        MIN_SELECTION_SECONDS,
        45.0,
    )
    given: dict[str, float] = {}

    def noted(name: str, answer: object) -> Callable[..., Any]:
        return lambda *arguments, **_: given.update({name: arguments[-1]}) or answer

    monkeypatch.setattr(
        result_module, "forward_selection", noted("select", ForwardSelection([0, 1], work.original, {}))
    )
    monkeypatch.setattr(result_module, "eliminate_unprofitable", noted("spared", {}))
    monkeypatch.setattr(result_module, "select_for_export", noted("filed", ExportSelection(1.0, "")))
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined", "apart")})
    fast = result(work).optimised()
    assert given == {"select": FORWARD_SELECTION_SECONDS, "spared": ELIMINATION_SECONDS}
    assert fast.exported.speedup == 1.0 and given["filed"] == FILING
    monkeypatch.setattr(result_module.Selector, "_find_remembered", lambda _: None)
    result(work, 2.0).optimised()
    assert MIN_SELECTION_SECONDS >= given["select"] > given["spared"] >= 0


def test_selection_with_a_smaller_budget_is_repeated(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    chosen = ForwardSelection([0], work.original, {})
    monkeypatch.setattr(result_module.Selector, "_select_forward", lambda *_: calls.append(1) or chosen)
    for budget, selected in ((1.0, 1), (15.0, 1), (90.0, 2), (None, 3), (90.0, 3)):
        result(work, budget).optimised()
        assert len(calls) == selected, budget


@dataclass(eq=False)
class Fake:
    """A plan with *seconds* to run, by the test."""

    seconds: float
    threads: int = 1

    rested: int = 0
    made_room: int = 0

    def run(self, _: object) -> dict[str, Any]:
        return {"y": np.ones(3, np.float32)}

    def rest(self) -> None:
        self.rested += 1

    def make_room(self) -> None:
        self.made_room += 1


@pytest.mark.parametrize("exact", [False, True])
def test_many_exact_subprograms_are_tried_in_the_first_form(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = SimpleNamespace(rounds_exactly=exact, contender=None)
    parts = [SimpleNamespace(kept=True, trial=trial, gain=1.0) for _ in range(MAX_SINGLE_TRIALS + 1)]
    subprograms = [SimpleNamespace(task_name=lambda _, n=n: str(n)) for n in range(len(parts))]
    settings = SimpleNamespace(runtime="plan")
    selector = Selector(
        SimpleNamespace(model=None),  # type: ignore[arg-type]
        SimpleNamespace(settings=settings),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        "",
        parts,  # type: ignore[arg-type]
        subprograms,  # type: ignore[arg-type]
    )
    forms: list[PlanForm] = []

    def select(form: PlanForm, winners: Any, contenders: Any) -> ForwardSelection:
        forms.append(form)
        return ForwardSelection([], None, {})  # type: ignore[arg-type]

    monkeypatch.setattr(selector, "_select_forward", select)
    selector._select()
    assert forms == [PlanForm.JOINED if exact else PlanForm.SEPARATE]  # joined programs are derived for each trial


def test_the_original_rests_while_two_plans_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_trials, "plan_speedup", lambda before, after, *_: before.seconds / after.seconds)
    original = Fake(10.0)
    baseline = Baseline(SimpleNamespace(nodes=()), original, {}, 1.0)  # type: ignore[arg-type]
    rested = list[int]()

    def plan_of(kept: list[int]) -> Any:
        rested.append(original.rested)
        return Fake(10.0 - len(kept))

    assert forward_selection(baseline, plan_of, [(0,), (1,), (2,)]).kept == [0, 1, 2]
    assert rested == [0, 1, 2]  # it has memory of its own, which the next plan can have
    assert original.made_room == 1  # before the plan that it is compared with


def test_an_interrupt_ends_the_trials_with_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_trials, "plan_speedup", lambda before, after, *_: before.seconds / after.seconds)

    def plan_of(kept: list[int]) -> Any:
        if 2 in kept:
            raise KeyboardInterrupt
        if 1 in kept:
            raise ValueError("refused")
        return Fake(10.0 - len(kept))

    baseline = Baseline(SimpleNamespace(nodes=()), Fake(10.0), {}, 1.0)  # type: ignore[arg-type]
    found = forward_selection(baseline, plan_of, [(n,) for n in range(4)])
    assert found.interrupted and found.kept == [0] and found.plan.seconds == 9.0  # type: ignore[attr-defined]
    assert found.refused == {1: "refused", 2: UNTRIED, 3: UNTRIED}


@pytest.mark.parametrize("where", ["select", "_fastest_form", "_final_form"])
def test_an_interrupt_while_selecting_keeps_what_is_kept(
    where: str, work: Optimiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        if where == "select":
            chosen = ForwardSelection([0], work.original, {1: UNTRIED}, True)
            patched.setattr(result_module.Selector, "_select_forward", lambda *_: chosen)
        else:
            patched.setattr(result_module.Selector, where, raising(KeyboardInterrupt()))
        making = result(work)
        fast = making.optimised()
    assert making.interrupted and fast.interrupted and fast.report()["interrupted"] is True
    assert [part.kept for part in fast.parts] == [True, where != "select"]
    with monkeypatch.context() as patched:
        patched.setattr(result_module, "select_for_export", raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            fast.onnx()
    assert fast.errors[1] <= 1e-4 and fast.exported.parts  # both were checked
    assert where != "select" or fast.parts[1].why == UNTRIED
    again = result(work)
    assert [part.kept for part in again.optimised().parts] == [True, True] and not again.interrupted


def test_an_interrupt_keeps_what_an_earlier_run_kept(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [part.kept for part in result(work).optimised().parts] == [True, True]
    monkeypatch.setattr(result_module.Selector, "_find_remembered", lambda _: None)
    chosen = ForwardSelection([], work.original, dict.fromkeys((0, 1), UNTRIED), True)
    monkeypatch.setattr(result_module.Selector, "_select_forward", lambda *_: chosen)
    fast = result(work).optimised()
    assert fast.interrupted and [part.kept for part in fast.parts] == [True, True]


def test_what_an_earlier_run_kept_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_trials, "plan_speedup", lambda before, after, *_: before.seconds / after.seconds)
    tried = list[list[int]]()

    def plan_of(kept: list[int]) -> Any:
        tried.append(kept)
        return Fake(10.0 - len(kept))

    baseline = Baseline(SimpleNamespace(nodes=()), Fake(10.0), {}, 1.0)  # type: ignore[arg-type]
    earlier = result_module.Alternatives(earlier=(1, 2))
    assert forward_selection(baseline, plan_of, [(0,), (1,), (2,)], alternatives=earlier).kept == [0, 1, 2]
    assert tried == [[1, 2], [0, 1, 2]]


def test_a_second_interrupt_ends_everything(work: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_module.Selector, "_fastest_form", raising(KeyboardInterrupt()))
    monkeypatch.setattr(result_module.Selector, "_measure", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        result(work).optimised()


def commanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``optimize`` of a small model with every output."""
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined")})
    monkeypatch.setattr(OptimiserOptions, "settings", SHORT)
    onnx.save(transposed(), tmp_path / "m.onnx")
    outputs = {"-o": "o.onnx", "--html": "o.html", "--json": "o.json", "--certificates": "records"}
    argv = [word for option, name in outputs.items() for word in (option, str(tmp_path / name))]
    return ["optimize", str(tmp_path / "m.onnx"), *argv]


def test_failing_output_does_not_prevent_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = commanded(tmp_path, monkeypatch)
    monkeypatch.setattr(Optimised, "onnx", raising(Refused("found no way to write it")))
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert f"{tmp_path / 'o.onnx'} was not written: found no way to write it\n" in err
    assert err.splitlines()[-1] == "error: found no way to write it"
    assert not (tmp_path / "o.onnx").exists() and (tmp_path / "o.html").exists()
    assert len(json.loads((tmp_path / "o.json").read_text())["attribution"]) == 2
    assert list((tmp_path / "records").iterdir()) and "2 of 2 subprograms replaced" in out


def test_an_interrupt_while_parts_are_left_out_keeps_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = commanded(tmp_path, monkeypatch)
    monkeypatch.setattr(attribution_module.LeaveOneOut, "measure", raising(KeyboardInterrupt()))
    assert main(argv) == 130
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["attribution"] == [] and report["interrupted"] is True
    assert "interrupted: what 0 of 2 kept kinds bring is reported" in capsys.readouterr().err


def test_unusable_folder_for_records_is_reported_before_tuning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = commanded(tmp_path, monkeypatch)
    (tmp_path / "records").write_text("a file")
    monkeypatch.setattr(Optimiser, "run", lambda _: pytest.fail("the work was begun"))
    assert main(argv) == 2
    assert "records: File exists" in capsys.readouterr().err


def old(opset: int) -> onnx.ModelProto:
    """A model that ONNX's converter refuses for its sparse weight, and that stays in its operator set."""
    proto = transposed()
    proto.opset_import[0].version = opset
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))  # shapes come from ONNX Runtime then
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [2.0])
    places = helper.make_tensor("s_at", TensorProto.INT64, [1], [1])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 1, 1]))
    proto.graph.node.append(node("Gelu", ["y"], ["g"], domain="com.microsoft"))
    proto.graph.node.append(node("Add", ["g", "s"], ["z"]))
    proto.graph.output[0].name = "z"
    return proto


@pytest.mark.parametrize("opset", [11, 13])
def test_a_model_that_the_converter_refuses(opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optimised as a plan; the written file is the original model."""
    held = model(old(opset))
    assert held.opset == opset
    with pytest.raises(Refused):
        rewrite_model(held.proto, ())
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "FORMS", {"plan": plan_forms("joined", "apart")})
    fast = searched(held)
    assert all(part.kept for part in fast.parts) and fast.exported.parts == ()
    fast.save(tmp_path / "o.onnx")
    feeds = fast.random_inputs(3)
    agree(fast, runs(held.original, feeds), fast(**feeds))
    agree(fast, runs(held.original, feeds), runs(tmp_path / "o.onnx", feeds))


def test_programs_beyond_the_operator_set_of_the_model_run_in_their_own_session(
    work: Optimiser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If ONNX Runtime refuses both in one session, each runs in its own."""
    refused: list[object] = []

    def refuse(proto: Any, *rest: object, **more: object) -> Any:
        if any(n.domain == "einnet" or n.op_type == "Reshape" for n in proto.graph.node):
            refused.append(proto)
            raise Refused("ONNX Runtime refuses: Unrecognized attribute: allowzero")
        return open_session(proto, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(plan_module, "open_session", refuse)
    plan = work.assembler.plan(work.assembler.separate(work.selector().pieces([0, 1])))
    assert refused and any(segment.replaced for segment in plan.segments)
    feeds = random_model_inputs(work.model, 1)
    np.testing.assert_allclose(plan.run(feeds)["y"], build_plan(work.model).run(feeds)["y"], atol=1e-3)


def test_reshape_sets_allowzero_only_for_empty_shapes() -> None:
    writer = FragmentWriter({}, {}, {})
    writer.reshape("x", (2, 3))
    writer.reshape("x", (0, 3))
    assert [[a.name for a in n.attribute] for n in writer.nodes] == [[], ["allowzero"]]
