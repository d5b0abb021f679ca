"""Other hosts than ONNX Runtime: a second ONNX Runtime session plays one, and OpenVINO is one if it is installed."""

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import build, node

from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline import baseline as baseline_module
from einnet_explore.pipeline import hosted_plan, optimised, selection, selection_trials
from einnet_explore.pipeline.baseline import Baseline, random_model_inputs
from einnet_explore.pipeline.hosted_plan import build_hosted_plan
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import GroupRun, ProgramCall
from einnet_explore.pipeline.selection_trials import MIN_HOSTED_SPEEDUP, select_host
from einnet_explore.pipeline.subprogram import TunedSubprogram
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.rules import Derivation
from einnet_explore.runtime import onnx_fragment
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.hosts import Binder, Host, installed_hosts
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import Timing
from einnet_explore.runtime.onnx_fragment import bind_session, onnx_session
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import Refused
from tests.optimising_kit import NO_MODEL, SHORT, nothing_remembered, plan_forms, runs

forgetting = pytest.fixture(autouse=True)(nothing_remembered)
compiler = pytest.mark.skipif(not onnx_fragment.custom_ops_available(), reason="no C compiler")


@dataclass
class StandIn:
    """A host that refuses the operators *refused*, and notes the operators and the arrays of every model it opens."""

    refused: Sequence[str] = ()
    opened: list[list[str]] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)

    def open(self, proto: onnx.ModelProto | Path, threads: int) -> Binder:
        assert isinstance(proto, onnx.ModelProto)
        operators = [each.op_type for each in proto.graph.node]
        if found := [name for name in operators if name in self.refused]:
            raise Refused(f"no {found[0]}")
        self.opened.append(operators)
        session = onnx_session(proto, threads)

        def bind(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
            self.arrays |= {**inputs, **outputs}
            return bind_session(session, inputs, outputs)

        return bind

    @property
    def host(self) -> Host:
        return Host("Stand-in", "1", self.open)


def tower() -> Model:
    """A convolution that is replaced between nodes that stay; one output leaves the group, and one is an integer."""
    rng = np.random.default_rng(0)
    weights = {
        "k": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "m": rng.standard_normal((12, 5)).astype(np.float32),
    }
    nodes = [
        node("Softmax", ["x"], ["s"], name="first", axis=1),
        node("Conv", ["s", "k"], ["c"], name="conv", pads=[1] * 4),
        node("Relu", ["c"], ["r"], name="relu"),
        node("MatMul", ["r", "m"], ["z"], name="product"),
        node("ArgMax", ["z"], ["i"], name="last", axis=1),
    ]
    proto = build(nodes, {"x": [1, 3, 12, 12]}, ["c", "z", "i"], weights)
    proto.graph.output[2].type.tensor_type.elem_type = onnx.TensorProto.INT64
    return load_model(proto)


def compiled(of: Model, threads: int = 1) -> dict[tuple[str, ...], GroupRun]:
    """The subprogram of *of* with the convolution, compiled as it is."""
    (part,) = (part for part in partition(of).subprograms if any("conv" in name for name in part.nodes))
    names = {of.identifiers[value]: value for value in (*part.inputs, *part.outputs)}
    weights = {t.name: of.weights[names[t.name]] for t in part.program.inputs if t.weight}
    return {part.nodes: ProgramCall(compile_program(part.program, threads, constants=weights), names)}


def agrees(of: Model, got: Mapping[str, Any], seed: int = 1) -> None:
    want = runs(of.original, random_model_inputs(of, seed))
    assert list(got) == [value.name for value in of.outputs]
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, 1e-5, 1e-5)


@compiler
def test_a_host_runs_the_regions_between_kernels_on_shared_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    of, other, kernels = tower(), StandIn(), dict[str, Array]()

    def noted(session: Any, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        kernels.update({**inputs, **outputs})
        return bind_session(session, inputs, outputs)

    monkeypatch.setattr(hosted_plan, "bind_session", noted)
    plan = build_hosted_plan(of, compiled(of, 2), 2, other.host)
    assert plan.host == "Stand-in 1" and set(plan.hosted) | {"conv", "relu"} == {each.name for each in of.nodes}
    assert other.opened[0] == ["Softmax"] and "ArgMax" in other.opened[1] and len(other.opened) == 2
    assert set(kernels) & set(other.arrays) >= {"s", "r"}
    assert all(kernels[name] is other.arrays[name] for name in set(kernels) & set(other.arrays))
    first = plan.run(random_model_inputs(of, 1))
    plan.run(random_model_inputs(of, 2))
    agrees(of, first)  # results are the caller's own
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(plan.run, [random_model_inputs(of, 1)] * 20):
            agrees(of, got)


def test_a_host_runs_a_whole_model() -> None:
    of, other = tower(), StandIn()
    plan = build_hosted_plan(of, {}, 1, other.host)
    assert plan.hosted == tuple(each.name for each in of.nodes) and len(other.opened) == 1
    agrees(of, plan.run(random_model_inputs(of, 1)))
    with pytest.raises(Refused, match=r"input x has shape \[1, 3, 5, 5\], expected \[1, 3, 12, 12\]"):
        plan.run({"x": np.zeros((1, 3, 5, 5), np.float32)})


@compiler
def test_regions_that_a_host_refuses_stay_in_onnxruntime() -> None:
    of = tower()
    plan = build_hosted_plan(of, compiled(of), 1, StandIn(["ArgMax"]).host)
    assert plan.hosted == ("first",)
    agrees(of, plan.run(random_model_inputs(of, 1)))
    with pytest.raises(Refused, match="no ArgMax"):
        build_hosted_plan(of, compiled(of), 1, StandIn(["Softmax", "ArgMax"]).host)
    with pytest.raises(Refused, match="no Softmax"):
        build_hosted_plan(of, {}, 1, StandIn(["Softmax"]).host)


def test_inputs_and_weights_may_be_outputs_of_a_hosted_model() -> None:
    nodes = [node("Softmax", ["x"], ["s"]), node("Add", ["s", "w"], ["y"])]
    of = load_model(build(nodes, {"x": [2, 3]}, ["y", "w", "x"], {"w": np.ones((2, 3), np.float32)}))
    agrees(of, build_hosted_plan(of, {}, 1, StandIn().host).run(random_model_inputs(of, 1)))


def test_values_of_unknown_size_are_refused() -> None:
    proto = build([node("NonZero", ["x"], ["y"])], {"x": [3]}, ["y"])
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    of = load_model(proto)
    with pytest.raises(Refused, match="value y: found no static shape and type"):
        build_hosted_plan(of, {}, 1, StandIn().host)


@compiler
def test_failures_of_a_step_name_the_runtime() -> None:
    """An index out of range, which only a run finds, in a region that stays in ONNX Runtime."""
    table = np.ones((2, 3), np.float32)
    nodes = [
        node("Softmax", ["x"], ["s"], name="first"),
        node("Conv", ["s", "k"], ["c"], name="conv"),
        node("Relu", ["c"], ["y"], name="relu"),
        node("ReduceMax", ["y"], ["m"], name="largest", keepdims=0),
        node("Gather", ["t", "n"], ["p"], name="pick"),
        node("Add", ["p", "m"], ["g"], name="sum"),
    ]
    proto = build(nodes, {"n": [1], "x": [1, 1, 4]}, ["g", "y"], {"t": table, "k": np.ones((2, 1, 3), np.float32)})
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    of = load_model(proto)
    plan = build_hosted_plan(of, compiled(of), 1, StandIn(["Gather"]).host)
    feeds = {"n": np.array([7]), "x": np.zeros((1, 1, 4), np.float32)}
    with pytest.raises(Refused, match=r"ONNX Runtime fails: .*Gather"):
        plan.run(feeds)
    assert plan.run(feeds | {"n": np.array([1])})["g"].shape == (1, 3)


@dataclass(eq=False)
class Fake:
    """A plan that takes *seconds*, by the test, and gives *number*."""

    seconds: float
    number: float = 1.0
    threads: int = 1

    def run(self, _: object) -> dict[str, Any]:
        return {"y": np.full(3, self.number, np.float32)}

    def rest(self) -> None:
        """A plan has a session, which this one has not."""


Seconds = Callable[[frozenset[int]], float]


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        (lambda kept: 8.0 + len(kept), ()),  # the host alone
        (lambda kept: 12.0 - 2 * len(kept), (0, 1)),  # the subprograms of the plan for ONNX Runtime
        (lambda kept: 9.0 - (kept == {1}), (1,)),  # some of them
        (lambda kept: 9.9, None),  # not by more than noise
        (lambda kept: 10.5, None),
        (lambda kept: 11.0 / MIN_HOSTED_SPEEDUP - 8 * (kept == {1}), None),  # too slow to try more
    ],
)
def test_the_host_is_the_fastest_by_trials(
    seconds: Seconds, found: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection_trials, "plan_speedup", lambda before, after, *_: before.seconds / after.seconds)
    made: list[frozenset[int]] = []

    def plan_of(kept: Sequence[int]) -> Any:
        made.append(frozenset(kept))
        return Fake(seconds(made[-1]))

    current: Any = Fake(10.0)
    baseline = Baseline(NO_MODEL, Fake(10.0), {}, 1.0)  # type: ignore[arg-type]
    assert select_host(baseline, current, plan_of, [(0,), (1,)], (0, 1)) == found
    if seconds(frozenset()) > 12:
        assert len(made) == 2
    only_one = select_host(baseline, current, plan_of, [(0, 1)], (0, 1))  # of which all was tried
    assert made[-2:] == [frozenset(), frozenset({0, 1})] and only_one in ((), (0, 1), None)


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        (lambda kept: 9.0 + len(kept), None),  # alone it is faster by a little, and not exact
        (lambda kept: 7.5 + len(kept), ()),  # by much
        (lambda kept: 9.0 if kept == {0, 1} else 9.5 if kept else 8.5, (0, 1)),
        (lambda kept: 9.0 + (kept != {1}), (1,)),  # the exact one is in it
    ],
)
def test_exact_subprograms_leave_only_for_a_much_faster_host(
    seconds: Seconds, found: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection_trials, "plan_speedup", lambda before, after, *_: before.seconds / after.seconds)
    plan_of: Any = lambda kept: Fake(seconds(frozenset(kept)))  # noqa: E731
    current: Any = Fake(10.0)
    baseline = Baseline(NO_MODEL, Fake(10.0), {}, 1.0)  # type: ignore[arg-type]
    assert select_host(baseline, current, plan_of, [(0,), (1,)], (0, 1), exact={1}) == found


def test_hosts_with_other_outputs_or_refusals_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_trials, "plan_speedup", lambda before, after, *_: before.seconds / after.seconds)
    current: Any = Fake(10.0)
    baseline = Baseline(NO_MODEL, Fake(10.0), {}, 1.0)  # type: ignore[arg-type]
    wrong: Any = lambda kept: Fake(1.0, 1.0 if kept else 1.1)  # noqa: E731
    assert select_host(baseline, current, wrong, [(0,), (1,)], (0,)) == (0,)

    def refuse(_: object) -> Any:
        raise Refused("no such operator")

    assert select_host(baseline, current, refuse, [(0,)], (0,)) is None

    def interrupt(kept: Sequence[int]) -> Any:
        if 1 in kept:
            raise KeyboardInterrupt
        return Fake(1.0)

    with pytest.raises(KeyboardInterrupt):
        select_host(baseline, current, interrupt, [(1,)], ())


@pytest.fixture
def gains(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The speedups of plans by host, in place of measurements; a host gains less by a node that it runs itself."""
    found = {"": 1.5, "Stand-in 1": 3.0}

    def speedup(_: Any, plan: Any, *__: object) -> float:
        return found[plan.host] * (1 - len(plan.hosted) / 100)

    def timed(original: Any, plan: Any, *_: object) -> dict[str, Timing]:
        after = 1.0 if plan is original else 1 / found[plan.host]
        return {"before": Timing(1.0, 0.0, 1, (1.0,)), "after": Timing(after, 0.0, 1, (after,))}

    for module in (selection, selection_trials):
        monkeypatch.setattr(module, "plan_speedup", speedup)
    monkeypatch.setattr(baseline_module, "time_against_original", timed)
    monkeypatch.setattr(selection, "FORMS", {"plan": plan_forms("apart")})
    monkeypatch.setattr(selection, "installed_hosts", lambda: (StandIn().host,))
    return found


def optimiser(store: Path, derived: bool = True) -> Optimiser:
    """The optimiser of ``tower``; if *derived*, the convolution is kept as it is."""
    work = Optimiser(tower(), SHORT, store=ProfileStore(store))
    for part in work.subprograms if derived else ():
        if "conv" in part.nodes:
            derivation = Derivation(part.anonymous.program)
            trial = Trial(seconds_before=1e-3, seconds_after=5e-4, why="faster", winner=derivation)
            work.parts.append(TunedSubprogram(part.nodes, trial, True, "proved", "faster"))
    return work


@compiler
def test_a_faster_host_is_reported_and_bundles_do_without_it(
    gains: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "profiles.sqlite"
    fast = optimiser(store).result()
    said = fast.report()
    assert said["host"] == "Stand-in 1" and said["hosted"] == ["first", "product", "last"]
    assert math.isclose(said["speedup"], 3.0) and math.isclose(said["bundle"]["speedup"], 1.5)
    assert [part["kept"] for part in said["subprograms"]] == [True]
    assert said["bundle"]["nodes"] == [part["nodes"] for part in said["subprograms"]]
    agrees(fast.model, fast(**random_model_inputs(fast.model, 1)))
    lines = fast.conclusions()
    assert "1 of 3 subprograms replaced: proved; Stand-in 1 runs 3 of 5 nodes" in lines
    assert "this plan is for Python with Stand-in 1; in ONNX Runtime alone 1.50 times as fast:" in lines
    assert "Stand-in 1 runs 3 of 5 nodes" in fast.summary()
    written: list[Any] = []
    monkeypatch.setattr(optimised, "write_bundle", lambda _, *plans: written.extend(plans))
    fast.save_bundle(tmp_path / "bundle")
    assert [each.plan.host for each in written] == [""] and written[0].plan.model_with is not fast.plan.model_with

    (name,) = fast.records()

    monkeypatch.setattr(selection, "select_host", lambda *_, **__: ())
    alone = optimiser(tmp_path / "alone.sqlite").result()
    assert len(alone.plan.hosted) == 5 and list(alone.records()) == [f"onnxruntime-{name}"]
    assert [part.why for part in alone.parts] == ["Stand-in 1 runs its nodes as fast or faster"]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(selection, "select_host", interrupt)
    cut = optimiser(tmp_path / "others.sqlite").result()
    assert cut.interrupted and cut.report()["host"] == "ONNX Runtime" and cut.parts[0].kept
    monkeypatch.setattr(selection, "select_host", lambda *_, **__: pytest.fail("selected again"))
    with monkeypatch.context() as patched:
        patched.setattr(StandIn, "open", interrupt)  # while the remembered plan is made
        cut = optimiser(store).result()
        assert cut.interrupted and cut.report()["host"] == "ONNX Runtime"
    assert optimiser(store).result().report()["host"] == "Stand-in 1"
    gains["Stand-in 1"] = 1.4  # slower today
    slower = optimiser(store).result()
    assert slower.report()["host"] == "ONNX Runtime" and slower.in_onnxruntime is None and slower.bundled is slower


def test_a_host_may_run_the_whole_model_where_nothing_is_derived(gains: dict[str, float], tmp_path: Path) -> None:
    fast = optimiser(tmp_path / "profiles.sqlite", derived=False).result()
    assert fast.plan.host == "Stand-in 1" and len(fast.plan.hosted) == 5 and fast.bundled.speedup == 1.0
    assert fast.conclusions()[-2].endswith("nothing was faster than your original, so a bundle or file is that")
    agrees(fast.model, fast(**random_model_inputs(fast.model, 1)))
    gains["Stand-in 1"] = 1.01
    slow = optimiser(tmp_path / "others.sqlite", derived=False).result()
    assert slow.report()["host"] == "ONNX Runtime" and slow.report()["speedup"] == 1.0


def test_without_openvino_there_is_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert installed_hosts() == ()


@compiler
def test_openvino_is_a_host() -> None:
    pytest.importorskip("openvino")
    of, (host,) = tower(), installed_hosts()
    for replaced in ({}, compiled(of)):
        plan = build_hosted_plan(of, replaced, 1, host)
        assert plan.host.startswith("OpenVINO 2") and set(plan.hosted) >= {"first", "product", "last"}
        with ThreadPoolExecutor(4) as pool:
            for got in pool.map(plan.run, [random_model_inputs(of, 1)] * 8):
                agrees(of, got)
    with pytest.raises(Refused, match=r"OpenVINO refuses the model: .*No conversion rule found for operations: Det"):
        build_hosted_plan(load_model(build([node("Det", ["x"], ["y"])], {"x": [2, 2]}, ["y"])), {}, 1, host)
