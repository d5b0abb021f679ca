"""A short run of ``python -m benchmarks.soak``, and one test for each of its findings."""

from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_building import build, node
from soak_kit import crash

from benchmarks.soak import conformance, expressions, graphs, optimisers
from benchmarks.soak.grammar import Drawn
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.runner import State, soak
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Apply, Program
from einnet_explore.onnx_export.export import rewrite_model
from einnet_explore.onnx_import.load import load_model
from einnet_explore.operators.library import OPERATORS
from einnet_explore.pipeline.assembly import WeightFolder
from einnet_explore.pipeline.baseline import discriminating_inputs, random_model_inputs
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.rules import BILINEAR_SUBSTITUTION, SIBLING_MERGING, TRAVERSAL_MERGING, Derivation, Refused
from einnet_explore.session.records import from_record
from einnet_explore.session.run import Run
from einnet_explore.strategies.candidate import replay, steps_to_json, to_record
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.options import Options
from einnet_explore.support.executors import SerialExecutor
from einnet_explore.syntax import parse, text

pytestmark = pytest.mark.timeout(300)


def held(outcomes: list[Outcome]) -> Counter[str]:
    """All counts, once nothing was found."""
    assert [said for outcome in outcomes for said in outcome.findings] == []
    return sum((outcome.counts for outcome in outcomes), Counter[str]())


def test_random_expressions_have_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "BLOCK", 10)
    counts = held([expressions.item(0, n) for n in range(2)])
    assert counts["programs"] >= 18 and counts["records"] >= 12 and counts["certificate proved"] > 25


def test_random_graphs_have_no_finding() -> None:
    counts = held([graphs.item(0, n) for n in (1, 2, 4, 8, 9)])  # their times are drawn by lot
    assert counts["graphs"] == 5 and counts["plan"] >= 2 and counts["export"] >= 2


def test_conformance_models_have_no_finding() -> None:
    names = [case.name for case in conformance.cases()]
    chosen = (
        "test_conv_with_autopad_same",
        "test_conv_with_strides_padding",
        "test_gemm_all_attributes",
        "test_matmul_3d",
        "test_attention_4d_expanded",
        "test_sequence_map_identity_1_sequence",
    )
    counts = held([conformance.item(8, 2 * names.index(name)) for name in chosen])
    assert counts["tests"] == len(chosen) and counts["tests with derived programs"] >= 2


def test_random_graphs_are_optimised_correctly(monkeypatch: pytest.MonkeyPatch) -> None:
    ours_and_onnxruntime = {k: v for k, v in optimisers.optimisers().items() if k != optimisers.OPENVINO}
    monkeypatch.setattr(optimisers, "optimisers", lambda: ours_and_onnxruntime)
    counts = held([optimisers.item(0, n) for n in range(4)])
    assert counts["graphs"] == counts["einnet_explore: agrees"] == counts["onnxruntime all: agrees"] >= 3
    assert counts["equal: proved"] >= 2


@pytest.mark.parametrize("fault", optimisers.FAULTS)
def test_a_wrong_optimiser_is_found_and_reduced_to_the_wrong_node(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: Any, feeds: Any, seed: int) -> Any:
        right = optimisers.in_onnxruntime("basic", model, feeds, seed)
        has_tanh = any(node.op == "Tanh" for node in model.nodes)
        if has_tanh and fault == "crashes":
            raise optimisers.Crash("the process ended with code -11")
        return {name: array + 0.1 * has_tanh for name, array in right.items()}

    monkeypatch.setattr(optimisers, "SAVED", tmp_path)
    monkeypatch.setattr(optimisers, "optimisers", lambda: {"wrong": wrong})
    chain = [node("Relu", "x", "r"), node("Tanh", "r", "t"), node("Exp", "t", "y")]
    outcome = Outcome()
    drawn = Drawn(build(chain, {"x": (3, 4)}, {"y": (3, 4)}), {}, ("Relu", "Tanh", "Exp"))
    optimisers.examine(drawn, 0, "0-0", outcome, "the graph")
    assert outcome.counts[f"wrong: {fault}"] == outcome.counts["equal: proved"] == 1
    (said,) = outcome.findings
    assert "1 nodes: Tanh" in said and "equal says proved" in said
    saved = load_model(str(tmp_path / "wrong-0-0.onnx"))
    assert [n.op for n in saved.nodes] == ["Tanh"] and (tmp_path / "wrong-0-0.npz").exists()


@pytest.mark.slow
def test_longer_fuzzing_has_no_finding() -> None:
    held([expressions.item(7, n) for n in range(10)])
    held([graphs.item(7, n) for n in range(60)])
    held([conformance.item(7, n) for n in range(0, conformance.total(), 20)])


def test_a_finding_says_what_and_where() -> None:
    outcome = Outcome()
    outcome.found("plan", ValueError("two\nlines"), "the graph")
    assert outcome.findings == ["plan: ValueError: two lines\nthe graph"]


def test_soak_records_findings_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state.jsonl"
    state = State(path)
    soak(crash, 0, range(3), state, jobs=1, seconds=100, limit=60, command="again")
    assert [n for n, _ in state.findings] == [1, 2] and state.counts["items"] == 1
    assert "crash: the process ended with -9" in state.findings[0][1] and "a mistake" in state.findings[1][1]
    assert "again --seed 0 --only 2" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-7])  # killed while it wrote its last line
    again = State(path)
    assert sorted(again.outcomes) == [0, 1]
    soak(crash, 0, range(5), again, jobs=1, seconds=0, limit=60, command="again")
    assert sorted(again.outcomes) == [0, 1]
    again.forget()
    assert sorted(State(path).outcomes) == [0]


def test_a_soak_on_an_executor_finds_the_same(tmp_path: Path) -> None:
    def mistaken(seed: int, item: int) -> Outcome:
        if item == 2:
            raise ValueError("a mistake")
        return Outcome(Counter(items=1))

    class Slow(SerialExecutor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Future() if args[1] == 3 else super().submit(fn, *args, **kwargs)

    state = State(tmp_path / "state.jsonl")
    soak(mistaken, 0, range(4), state, jobs=2, seconds=100, limit=0.1, command="again", executor=Slow())
    assert state.counts["items"] == 2
    assert state.findings == [(2, "crash: ValueError: a mistake"), (3, "hang: nothing after 0 seconds")]


# What was found, and is so no more.


def applied(program: Program, rule: Any, at: tuple[int, ...], **params: Any) -> Derivation:
    return Derivation(program).then(rule.match(program, at, **params))


def test_substituted_term_of_a_sum_of_products_is_flattened() -> None:
    # It was nested, so the text did not give it back and its record was refused.
    program = parse("""
        tensor A[4] weight
        tensor B[4]
        Y[i:4] = 2 * A[i] * {[j:4] 3 * B[j] * A[j]}[i] + {[j:4] A[j] + B[j]}[i]""")
    done = applied(program, TRAVERSAL_MERGING, (0,), access=2)
    done = done.then(TRAVERSAL_MERGING.match(done.end, (0,), access=1))
    assert parse(text(done.end)) == done.end
    body = done.end.equations[0].scope.body
    assert isinstance(body, Apply) and body.op == "+" and len(body.args) == 3
    assert from_record(to_record(done)).end == done.end


def test_a_record_with_fewer_products_is_replayed() -> None:
    # The rules that compute with other products were unknown to records, to what is remembered and to saved searches.
    program = parse("""
        tensor A[10]
        tensor K[3] weight
        Y[h:8] = sum[r:3] A[h+r] * K[r]""")
    match = next(iter(BILINEAR_SUBSTITUTION.matches(program, (0,))))
    done = Derivation(program).then(match)
    assert from_record(to_record(done)).end == done.end
    assert replay(program, steps_to_json(done)).end == done.end


def test_a_search_with_fewer_products_is_loaded(tmp_path: Path) -> None:
    program = parse("tensor A[4]\nY[i:4] = 2 * A[i]\n")
    run = Run(program, program_seconds, options=Options(max_depth=1, rules=(TRAVERSAL_MERGING, BILINEAR_SUBSTITUTION)))
    for _ in run:
        pass
    run.save(tmp_path / "it.einx")
    assert len(Run.load(tmp_path / "it.einx", program_seconds).search.states) == len(run.search.states)


def test_siblings_share_what_is_the_same() -> None:
    # Nested scopes have no name, and were taken for one another: a wrong program, which certificates called false.
    program = parse("""
        tensor A[]
        tensor B[4] weight
        tensor C[4] weight
        Y[] = sum[c:4] A[] * {[h:4] 2 * B[h]}[c]
        Z[] = sum[c:4] A[] * {[h:4] 3 * C[h]}[c]""")
    with pytest.raises(Refused, match="share no operand"):
        applied(program, SIBLING_MERGING, (0,), others=["Z"], tensor="what has no name")
    for match in SIBLING_MERGING.matches(program, (0,)):
        assert certify(program, match.apply(program).after).ok


def test_unread_padding_value_is_not_named() -> None:
    # A matched or merged result got another one than its readers named: the program could not be written any more.
    program = parse("""
        tensor A[4]
        tensor B[4]
        Y[i:4] = A[i] + B[i] value 1
        Z[i:2] = Y[2*i]""")
    matches = list(matching_rule(OPERATORS).matches(program, (0,)))
    assert matches
    for match in matches:
        after = match.apply(program).after
        assert parse(text(after)) == after
        assert certify(program, after).ok


def test_merged_scope_may_have_an_unread_padding_value() -> None:
    program = parse("""
        tensor A[6]
        Y[h:4] = {[c:4 | 1 <= c < 9] 3 * A[c]} value -2[h]
        Z[i:2] = Y[2*i]""")
    after = applied(program, TRAVERSAL_MERGING, (0,), access=0).end
    assert after.equations[0].scope.value == -2
    assert parse(text(after)) == after
    assert certify(program, after).ok


def test_a_weight_of_rank_zero_stays_one() -> None:
    # NumPy makes what is contiguous one-dimensional.
    program = parse("tensor s[] weight\ntensor A[3]\nF[] = sqrt(s[]) * 2\nY[i:3] = A[i] * F[]\n")
    rest, constants = WeightFolder().fold(program, {"s": np.asarray(4.0, np.float32)})
    assert [(name, a.shape, float(a)) for name, a in constants.items()] == [("F", (), 4.0)]
    assert [e.name for e in rest.equations] == ["Y"]


def test_dead_nodes_are_in_no_subprogram() -> None:
    # They were a subprogram without outputs, whose search failed.
    model = load_model(
        build(
            [node("Relu", ["x"], ["y"]), node("Sqrt", ["x"], ["a"], "dead"), node("Neg", ["a"], ["b"], "dead too")],
            {"x": [4]},
            ["y"],
        )
    )
    found = partition(model)
    assert all("dead" not in name for sub in found.subprograms for name in sub.nodes)
    assert {s.node: s.why for s in found.skipped}["dead"] == "no output depends on it"


@pytest.mark.parametrize("opset", [11, 12, 13, 18])
def test_an_operator_that_onnx_misjudges_is_read_and_written(opset: int) -> None:
    # ONNX's shape inference reads the definition of this one by an older operator set, and refuses it.
    model = load_model(
        build(
            [node("MeanVarianceNormalization", ["x"], ["a"]), node("Relu", ["a"], ["y"])],
            {"x": [1, 2, 3, 4]},
            ["y"],
            opset=opset,
            ir=8,
        )
    )
    assert model.shape("a") == (1, 2, 3, 4)
    assert [n.op for n in model.nodes] == ["MeanVarianceNormalization", "Relu"]
    assert [n.op_type for n in rewrite_model(model.proto, ()).graph.node] == ["MeanVarianceNormalization", "Relu"]


def test_a_model_that_random_inputs_break_is_refused_in_one_line() -> None:
    # Its input is a size: ONNX Runtime's error came through.
    graph = helper.make_graph(
        [helper.make_node("AffineGrid", ["theta", "size"], ["y"])],
        "sizes",
        [
            helper.make_tensor_value_info("theta", TensorProto.FLOAT, [2, 2, 3]),
            helper.make_tensor_value_info("size", TensorProto.INT64, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "h", "w", 2])],
    )
    model = load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    with pytest.raises(Refused, match="fails on random inputs") as told_:
        discriminating_inputs(model, build_plan(model, {}, 1))
    assert "\n" not in str(told_.value)
    with pytest.raises(Refused):
        Optimiser(model, graphs.QUICK).prepare()


def test_inputs_of_rank_zero_are_arrays() -> None:
    model = load_model(build([node("Relu", ["x"], ["y"])], {"x": []}, ["y"]))
    assert all(isinstance(a, np.ndarray) and a.shape == () for a in random_model_inputs(model).values())
    assert all(isinstance(a, np.ndarray) for a in discriminating_inputs(model, build_plan(model, {}, 1)).values())
