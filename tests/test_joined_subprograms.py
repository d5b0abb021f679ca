"""Adjacent derived subprograms joined into one program; weights folded once; tuning results reused."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.analysis.equations import map_reads, redirect_reads
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Access, Program, tensors
from einnet_explore.onnx_export.export import Replacement
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.operators.library import OPERATORS
from einnet_explore.pipeline import assembly, layouts
from einnet_explore.pipeline.assembly import Assembler, Piece, WeightFolder, join_adjacent, join_programs
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.layouts import estimate_equation
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import build_plan, export_model
from einnet_explore.pipeline.subprogram import Subprogram
from einnet_explore.pipeline.tuning_context import Settings, TuningHistory, compile_in_onnxruntime, program_model
from einnet_explore.pipeline.tuning_task import Trial, trial_from_json, trial_to_json
from einnet_explore.rules import EOPERATOR_GENERATION, RULES, Derivation
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.support.errors import Refused


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}


def two_products(between: str = "Relu") -> Model:
    """Two linear layers; what lies *between* them belongs to the first."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node(between, ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    return load_model(build(nodes, {"x": [4, 6]}, ["y"], weights(w=(6, 5), v=(5, 7))), {})


def piece(s: Subprogram) -> Piece:
    names = dict(zip((t.name for t in s.program.inputs), s.inputs, strict=True))
    return Piece(s.nodes, s.program, names | dict(zip(s.program.outputs, s.outputs, strict=True)))


def pieces(model: Model) -> list[Piece]:
    return [piece(part) for s in partition(model).subprograms for part in (s.parts or (s,))]


def run(instance: Program) -> Program:
    """*instance* with means: products by the library where they are one, the rest generated."""
    derivation = Derivation(instance)
    for _ in instance.equations:
        n = next(n for n, e in enumerate(derivation.end.equations) if e.via is None)
        found = [
            *matching_rule(OPERATORS).matches(derivation.end, (n,)),
            *EOPERATOR_GENERATION.matches(derivation.end, (n,)),
        ]
        derivation = derivation.then(found[0])
    return derivation.end


def agree(model: Model, made: tuple[Piece, ...]) -> None:
    """The joined programs compute what the model does."""
    feeds = random_model_inputs(model, 0)
    held: dict[str, np.ndarray] = {**feeds, **model.weights}
    want = build_plan(model, {}, 1).run(feeds)
    for each in made:
        inputs = {t.name: held[each.names[t.name]] for t in each.program.inputs}
        out = evaluate(each.program, inputs, np.float64, outputs_only=True)
        held |= {each.names[name]: array for name, array in out.items()}
    for name, array in want.items():
        np.testing.assert_allclose(held[name], array, rtol=1e-5, atol=1e-5)


def test_subprogram_and_its_reader_are_joined() -> None:
    model = two_products()
    apart = pieces(model)
    (whole,) = join_adjacent(model, apart)
    assert whole.nodes == tuple(name for p in apart for name in p.nodes)
    assert whole.program.outputs == ("y",) and [t.name for t in whole.program.inputs] == ["x", "w", "v"]
    agree(model, (whole,))


def test_equal_names_of_joined_programs_are_distinguished() -> None:
    model = two_products()
    apart = [
        replace(
            p,
            program=Program(
                p.program.inputs,
                tuple(replace(e, name="T" if e.name not in p.program.outputs else e.name) for e in p.program.equations),
                p.program.outputs,
            ),
        )
        for p in pieces(model)
    ]
    # Both call their first equation T; its readers have to be told.
    apart = [replace(p, program=_rewired(p.program)) for p in apart]
    (whole,) = join_adjacent(model, apart)
    assert [e.name for e in whole.program.equations] == ["b__T", "b", "y__T", "y"]
    agree(model, (whole,))


def _rewired(program: Program) -> Program:
    first, second = program.equations
    inputs = {t.name for t in program.inputs}
    (old,) = (t.name for t in tensors(second.scope) if t.name not in inputs)
    scope = map_reads(second.scope, old, lambda access: Access(first.tensor, access.index))
    return replace(program, equations=(first, replace(second, scope=scope)))


def test_joined_siblings_keep_outputs_with_other_readers() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("MatMul", ["x", "v"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Softmax", ["b"], ["y"]),
        node("Softmax", ["d"], ["z"]),
    ]
    model = load_model(build(nodes, {"x": [4, 6]}, ["y", "z"], weights(w=(6, 5), v=(6, 5))), {})
    apart = [p for p in pieces(model) if len(p.nodes) == 2]
    (whole,) = join_adjacent(model, apart)
    assert set(whole.program.outputs) == {"b", "d"}


def test_programs_with_a_path_between_them_are_not_joined() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("CumSum", ["b", "axis"], ["s"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Add", ["c", "s"], ["y"]),
    ]
    held = {**weights(w=(6, 5), v=(5, 5)), "axis": np.array(0)}
    model = load_model(build(nodes, {"x": [4, 6]}, ["y"], held), {})
    apart = pieces(model)
    assert len(apart) == 2 and join_adjacent(model, apart) == tuple(apart)


def test_readers_that_expect_different_values_outside_are_not_joined() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["x", "v"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["d"]),
        node("Add", ["b", "d"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": [1, 2, 5, 5]}, ["y"], weights(w=(3, 2, 3, 3), v=(3, 2, 3, 3))), {})
    one, other, *_ = pieces(model)
    assert join_programs(model, [one, other]) is not None
    x = next(t for t in other.program.inputs if t.name == "x")
    odd = replace(x, value=-1.0)
    changed = redirect_reads(
        replace(other.program, inputs=tuple(odd if t == x else t for t in other.program.inputs)), x.name, odd
    )
    assert join_programs(model, [one, replace(other, program=changed)]) is None


def test_wider_padding_serves_all_readers() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "v"], ["c"], pads=[2, 2, 2, 2]),
        node("Relu", ["c"], ["y"]),
    ]
    model = load_model(build(nodes, {"x": [1, 2, 5, 5]}, ["y"], weights(w=(3, 2, 3, 3), v=(2, 3, 5, 5))), {})
    (whole,) = join_adjacent(model, pieces(model))
    made = next(e for e in whole.program.equations if e.name == "b")
    assert made.scope.padding[2:] == ((2, 2), (2, 2))
    agree(model, (whole,))


def assembler(model: Model) -> Assembler:
    return Assembler(model, Settings(1), estimate_equation, estimate_equation)


def test_plans_and_exports_of_joined_programs_agree() -> None:
    model = two_products()
    apart = [replace(p, program=run(p.program)) for p in pieces(model)]
    makes = assembler(model)
    feeds = random_model_inputs(model, 1)
    want = build_plan(model, {}, 1).run(feeds)["y"]
    together = makes.together(apart)
    assert len(together) == 1 and together[0].certificate in ("proved", "none")
    for parts in (together, makes.separate(apart)):
        np.testing.assert_allclose(makes.plan(parts).run(feeds)["y"], want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(makes.export(parts).run(feeds)["y"], want, rtol=1e-5, atol=1e-5)
    said = together[0].to_json()
    assert said["operators"] == ["Matmul", "Matmul"] and said["eoperators"] >= 1


def test_trial_plans_are_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_products()
    apart = [replace(p, program=run(p.program)) for p in pieces(model)]
    proofs: list[Derivation] = []
    monkeypatch.setattr(assembly, "step_certificates", lambda derivation: proofs.append(derivation) or ())
    makes = assembler(model)
    tried = makes.together(apart, "skipped")
    assert not proofs and [part.certificate for part in tried] == ["none"]
    for _ in range(2):
        assert [part.piece for part in makes.together(apart)] == [part.piece for part in tried]
        assert proofs == [tried[0].derivation]
    monkeypatch.setattr(assembly, "combined_verdict", lambda _: "false")
    assert [part.piece for part in assembler(model).together(apart)] == apart


def test_post_optimisation_of_a_joined_program_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_products()
    apart = pieces(model)
    looked: list[Derivation] = []

    def noted(derivation: Derivation, *_: Any) -> Derivation:
        looked.append(derivation)
        return derivation.then(next(m for rule in RULES for m in rule.matches(derivation.end, (0,))))

    monkeypatch.setattr(layouts, "assign_layouts", noted)
    store = ProfileStore(tmp_path / "profiles.sqlite")
    found = [
        replace(assembler(model), memory=TuningHistory(ProfileStore(store.path)), settings=Settings(threads)).together(
            apart
        )
        for threads in (1, 1, 2)
    ]
    assert found[0] == found[1] == found[2] and found[0][0].derivation.steps
    assert len(looked) == 2  # with other settings it is another plan
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE remembered SET found = '[{}]' WHERE what = 'post'")
    again = replace(assembler(model), memory=TuningHistory(ProfileStore(store.path))).together(apart)
    assert again == found[0] and len(looked) == 3  # what is no derivation is found again


def test_equal_work_on_equal_weights_is_done_once() -> None:
    start = ee.parse(
        """tensor x[4, 6]
tensor w[6, 5] weight
t[j:5, i:6] = w[i, j] * 2 via eOperator(kind="elementwise")
y[n:4, j:5] = sum[i:6] x[n, i] * t[j, i]
output y"""
    )
    array = weights(w=(6, 5))["w"]
    folder = WeightFolder()
    made, constants = folder.fold(start, {"w": array})
    again, same = folder.fold(start, {"w": array})
    assert [e.name for e in made.equations] == ["y"] and {t.name for t in made.inputs} == {"x", "t"}
    np.testing.assert_array_equal(constants["t"], array.T * 2)
    assert same["t"] is constants["t"] and folder.shared == 1 and again == made
    _, other = folder.fold(start, {"w": array + 1})
    assert other["t"] is not constants["t"]


def test_a_transposed_view_of_a_folded_weight_is_stored_once() -> None:
    start = ee.parse(
        """tensor x[4, 6]
tensor w[6, 5] weight
t[i:6, j:5] = w[i, j] * 2 via eOperator(kind="elementwise")
u[j:5, i:6] = t[i, j] via View
v[k:30] = t[k//5, k%5] via View
y[n:4, j:5] = sum[i:6] x[n, i] * u[j, i]
z[n:4] = sum[k:30] x[n, k%6] * v[k]
output y, z"""
    )
    array = weights(w=(6, 5))["w"]
    rest, constants = WeightFolder().fold(start, {"w": array})
    assert [e.name for e in rest.equations] == ["v", "y", "z"] and constants.keys() == {"t", "u"}
    np.testing.assert_array_equal(constants["u"], array.T * 2)
    held = compile_program(rest, constants=constants).contexts.constants
    assert held and all(any(np.shares_memory(a, b) for b in constants.values()) for a in held.values())


def test_programs_run_in_onnxruntime() -> None:
    model = two_products()
    (whole,) = join_adjacent(model, pieces(model))
    constants = {t.name: model.weights[whole.names[t.name]] for t in whole.program.inputs if t.weight}
    feeds = random_model_inputs(model, 0)
    got = compile_in_onnxruntime(whole.program, constants, 1)(feeds)
    np.testing.assert_allclose(got["y"], build_plan(model, {}, 1).run(feeds)["y"], rtol=1e-5, atol=1e-5)
    onnx.checker.check_model(program_model(whole.program, constants), full_check=True)


def test_models_beyond_a_protocol_buffer_are_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_products()
    (whole,) = join_adjacent(model, pieces(model))
    constants = {t.name: model.weights[whole.names[t.name]] for t in whole.program.inputs if t.weight}
    names = {k: v for k, v in whole.names.items() if k not in constants}
    replacement = Replacement(whole.nodes, whole.program, names, constants)
    assert export_model(model, [replacement]).proto.graph.node
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 10)
    with pytest.raises(Refused, match="bytes, expected at most 10"):
        export_model(model, [replacement])


def test_tuning_history_persists_and_survives_a_broken_file(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    memory = TuningHistory(store)
    assert memory.get("contest", "a") is None
    memory.record({"seconds": 1.5}, "contest", "a")
    assert TuningHistory(store).get("contest", "a") == {"seconds": 1.5}
    assert TuningHistory(store).get("selection", "a") is None and TuningHistory(store).get("contest", "b") is None
    (tmp_path / "broken.sqlite").write_bytes(b"no database" * 100)
    broken = TuningHistory(ProfileStore(tmp_path / "broken.sqlite"))
    broken.record([1], "contest", "a")
    assert broken.get("contest", "a") == [1] and broken.get("contest", "b") is None
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE remembered SET found = 'no json'")
    assert TuningHistory(store).get("contest", "a") is None


def test_trial_is_restored_from_json() -> None:
    model = two_products()
    program = pieces(model)[0].program
    end = Derivation(program)
    for n in range(len(program.equations)):
        for match in EOPERATOR_GENERATION.matches(end.end, (n,)):
            end = end.then(match)
    told = trial_to_json(
        Trial(seconds_before=2.0, seconds_after=1.0, winner=end, search_seconds=0.1, states=3, why="2x")
    )
    again = trial_from_json(told, program)
    assert again is not None and again.winner is not None and again.winner.end == end.end
    assert (again.seconds_before, again.seconds_after, again.states, again.why) == (2.0, 1.0, 3, "2x")
    broken = {**told, "winner": [{"rule": "eoperator_generation", "at": "9", "params": {}}]}
    assert trial_from_json(broken, program) is None
    assert trial_from_json({**told, "winner": [{"rule": "nobody's", "at": "0", "params": {}}]}, program) is None
    assert trial_from_json({}, program) is None
