"""Mixed plans on small models made by hand: branches, shared weights, diamonds, several outputs, shape computations."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.model_sessions import subgraph_session
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import GroupRun, ProgramCall, build_plan
from einnet_explore.runtime import measurement, onnx_fragment
from einnet_explore.runtime.onnx_fragment import LOADED_KERNELS, session_options
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse

Arrays = Mapping[str, Any]


def model(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Any], outputs: Mapping[str, Any], **weights: Any
) -> Model:
    def infos(values: Mapping[str, Any]) -> list[onnx.ValueInfoProto]:
        kinds = {name: v if isinstance(v, tuple) else (TensorProto.FLOAT, v) for name, v in values.items()}
        return [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items()]

    stored = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(list(nodes), "model", infos(inputs), infos(outputs), initializer=stored)
    return load_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def node(op: str, name: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=name, **attributes)


def whole(of: Model, feeds: Arrays) -> dict[str, Any]:
    """Return the outputs of ONNX Runtime for the model as read."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(of.original.SerializeToString(), options)
    names = [v.name for v in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def by_itself(of: Model, *names: str) -> GroupRun:
    """The nodes *names* run by a session of their own, as any other engine would run them."""
    session = subgraph_session(of, names)
    outputs = [v.name for v in session.get_outputs()]
    return lambda arrays: dict(zip(outputs, session.run(outputs, dict(arrays)), strict=True))


def check(of: Model, *groups: tuple[str, ...]) -> Any:
    plan = build_plan(of, {group: by_itself(of, *group) for group in groups})
    feeds = random_model_inputs(of, 1)
    want, got = whole(of, feeds), plan.run(feeds)
    assert list(got) == [v.name for v in of.outputs]
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name], array, 1e-6, 1e-6)
    return plan


def chain() -> Model:
    return model(
        [
            node("Relu", "a", "x", "p"),
            node("MatMul", "b", "p k", "q"),
            node("Tanh", "c", "q", "r"),
            node("MatMul", "d", "r k", "s"),
            node("Softmax", "e", "s", "y", axis=-1),
        ],
        {"x": [3, 4]},
        {"y": [3, 4], "q": [3, 4]},
        k=np.eye(4, dtype=np.float32)[::-1] * 2,
    )


def diamond() -> Model:
    """Two branches of different length between one fork and one join."""
    return model(
        [
            node("Relu", "fork", "x", "f"),
            node("MatMul", "left", "f k", "l"),
            node("Tanh", "right1", "f", "r1"),
            node("MatMul", "right2", "r1 k", "r2"),
            node("Sigmoid", "right3", "r2", "r3"),
            node("Add", "join", "l r3", "j"),
            node("Split", "parts", "j", "y z", axis=1, num_outputs=2),
        ],
        {"x": [3, 4]},
        {"y": [3, 2], "z": [3, 2]},
        k=np.arange(16, dtype=np.float32).reshape(4, 4) / 8,
    )


def test_nothing_replaced_is_one_session() -> None:
    plan = check(diamond())
    assert plan.sessions == len(plan.segments) == 1


@pytest.mark.parametrize(
    ("groups", "sessions"),
    [
        ([("b",)], 2),
        ([("b",), ("d",)], 3),
        ([("a", "b")], 1),
        ([("a",), ("b",)], 1),
        ([("a", "b", "c", "d", "e")], 0),
        ([("e",)], 1),
        ([("b",), ("c",), ("d",)], 2),
    ],
)
def test_a_chain_is_cut_where_it_is_replaced(groups: list[tuple[str, ...]], sessions: int) -> None:
    plan = check(chain(), *groups)
    assert plan.sessions == sessions
    assert len(plan.segments) == sessions + len(groups)


@pytest.mark.parametrize(
    ("groups", "sessions"),
    [
        ([("left",)], 2),
        ([("right2",)], 2),
        ([("left",), ("right2",)], 2),
        ([("left",), ("right2",), ("join",)], 2 + 1),
        ([("right1",), ("right3",)], 3),
        ([("fork", "left", "right1", "right2", "right3", "join")], 1),
        ([("left", "right1")], 2),
    ],
)
def test_branches_share_sessions(groups: list[tuple[str, ...]], sessions: int) -> None:
    plan = check(diamond(), *groups)
    assert plan.sessions == sessions


def test_the_number_of_sessions_is_the_longest_alternation() -> None:
    """Two replaced nodes on one path and one beside it: the lone one costs no session of its own."""
    nodes = [node("Relu", "a0", "x", "a0")]
    nodes += [node("Neg" if n % 2 else "Tanh", f"a{n}", f"a{n - 1}", f"a{n}") for n in range(1, 5)]
    nodes += [node("Sigmoid", "b", "a0", "b"), node("Abs", "c", "b", "c"), node("Add", "y", "a4 c", "y")]
    of = model(nodes, {"x": [4]}, {"y": [4]})
    assert check(of, ("a1",), ("a3",), ("b",)).sessions == 3


def test_arrays_are_freed_after_their_last_reader() -> None:
    plan = check(chain(), ("b",), ("d",))
    dropped = [set(segment.dropped) for segment in plan.segments]
    assert dropped == [{"x"}, {"p"}, set(), {"r"}, {"s"}]  # q is an output, though c is its last reader


def test_dead_nodes_are_omitted() -> None:
    nodes = [node("Relu", "a", "x", "p"), node("Tanh", "dead", "p", "q"), node("Neg", "b", "p", "y")]
    of = model(nodes, {"x": [4]}, {"y": [4]})
    plan = check(of, ("b",))
    assert "dead" not in {name for segment in plan.segments for name in segment.nodes}


def test_integer_shapes_flow_between_segments() -> None:
    of = model(
        [
            node("NonZero", "where", "x", "n"),
            node("Transpose", "turn", "n", "t", perm=[1, 0]),
            node("Shape", "shape", "t", "s"),
            node("Relu", "relu", "x", "r"),
            node("GatherND", "picked", "r t", "g"),
            node("Reshape", "flat", "g minus", "f"),
            node("Gather", "count", "s zero", "y", axis=0),
            node("Mul", "mul", "f two", "z"),
        ],
        {"x": [3, 4]},
        {"y": (TensorProto.INT64, []), "z": ["k"]},
        minus=np.array([-1]),
        zero=np.array(0),
        two=np.float32(2),
    )
    assert check(of, ("relu",), ("count",)).sessions == 1
    assert check(of, ("turn",), ("flat",)).sessions == 3


def test_unsupported_subgraphs_are_unchanged() -> None:
    """Subgraphs that read outer values and weights: If keeps what it captures."""

    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
        return helper.make_graph([helper.make_node(op, ["r", "k"], ["o"])], op, [], [out])

    of = model(
        [
            node("Relu", "relu", "x", "r"),
            node("ReduceSum", "sum", "x", "s", keepdims=0),
            node("Greater", "test", "s zero", "c"),
            node("If", "choice", "c", "i", then_branch=branch("Add"), else_branch=branch("Mul")),
            node("Neg", "neg", "i", "y"),
        ],
        {"x": [4]},
        {"y": [4]},
        zero=np.float32(0),
        k=np.arange(4, dtype=np.float32),
    )
    assert check(of, ("relu",), ("neg",)).sessions == 1
    assert check(of, ("test",)).sessions == 2


def test_outputs_may_be_weights_and_inputs() -> None:
    nodes = [node("Relu", "a", "x", "p"), node("Neg", "b", "p", "y")]
    of = model(nodes, {"x": [4]}, {"y": [4], "k": [2], "x": [4]}, k=np.array([1, 2], np.float32))
    check(of, ("b",))
    check(of)


def test_plans_run_in_several_threads_at_once() -> None:
    of = chain()
    inside, most = 0, 0
    product = by_itself(of, "b")

    def counted(arrays: Arrays) -> Arrays:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        made = product(arrays)
        inside -= 1
        return made

    plan = build_plan(of, {("b",): counted})
    feeds = [random_model_inputs(of, seed) for seed in range(8)]
    want = [whole(of, feed) for feed in feeds]
    got: list[Any] = [None] * len(feeds)

    def work(n: int) -> None:
        for _ in range(20):
            got[n] = plan.run(feeds[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a["y"], b["y"], 1e-6)


def test_sessions_get_the_thread_and_spinning_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    real = onnxruntime.InferenceSession

    def session(model: Any, options: Any, **rest: Any) -> Any:
        try:
            spinning = options.get_session_config_entry("session.intra_op.allow_spinning")
        except RuntimeError:
            spinning = "default"
        seen.append((options.intra_op_num_threads, spinning))
        return real(model, options, **rest)

    of = chain()
    run = by_itself(of, "b")
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    build_plan(of, {("b",): run}, threads=2)
    build_plan(of, threads=2)
    assert seen == [(2, "0"), (2, "0"), (2, "default")]


def test_closed_session_is_reopened_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real = onnxruntime.InferenceSession

    def session(*given: Any, **rest: Any) -> Any:
        opened.append(1)
        return real(*given, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    plan = build_plan(chain())
    feeds = random_model_inputs(chain())
    want = plan.run(feeds)
    plan.rest()
    plan.rest()
    assert len(opened) == 1
    for _ in range(2):
        np.testing.assert_array_equal(plan.run(feeds)["y"], want["y"])
    assert len(opened) == 2
    plan.rest()
    plan.make_room()
    plan.run(feeds)
    assert len(opened) == 3


def test_waiting_threads_stop_before_the_next_engine_begins() -> None:
    option = "session.intra_op.spin_duration_us"
    for waiting in ("spin", "sleep"):
        options = session_options(2, waiting)
        assert (
            float(options.get_session_config_entry(option))
            == measurement.SPIN_SECONDS * 1e6
            < measurement.settle_seconds(2) * 1e6 / 2
        )
    assert measurement.settle_seconds(1) == 0


def refusing(_: Arrays) -> Arrays:
    return {}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([("nobody",)], "node nobody: found no such node"),
        ([("b",), ("b", "c")], "node b: found in two groups"),
        ([()], "a group holds no node"),
        ([("b", "d")], r"found a cycle .*\{b, d\}.*, expected convex groups"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: list[tuple[str, ...]], message: str) -> None:
    with pytest.raises(Refused, match=message):
        build_plan(chain(), dict.fromkeys(groups, refusing))


def test_missing_result_or_input_is_reported() -> None:
    plan = build_plan(chain(), {("b",): refusing})
    with pytest.raises(Refused, match=r"node b \(MatMul\): found no result for q"):
        plan.run(random_model_inputs(chain()))
    with pytest.raises(ValueError, match="input x is missing, given z"):
        plan.run({"z": np.zeros(3)})


def test_region_that_fails_to_load_is_reported_with_its_nodes() -> None:
    nodes = [helper.make_node("Unknown", ["p"], ["q"], name="odd", domain="elsewhere"), node("Neg", "b", "q", "y")]
    graph = helper.make_graph(
        [node("Relu", "a", "x", "p"), *nodes],
        "model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("elsewhere", 1)]
    of = load_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    with pytest.raises(Refused, match=r"nodes? .*odd \(Unknown\).*ONNX Runtime refuses"):
        build_plan(of, {("a",): refusing})
    with pytest.raises(Refused, match=r"node b \(Neg\): found no type for q"):
        subgraph_session(of, ["b"])


def test_random_inputs_have_the_right_types() -> None:
    of = model(
        [node("Cast", "a", "i", "f", to=TensorProto.FLOAT), node("Where", "b", "t f x", "y")],
        {"i": (TensorProto.INT64, [50]), "t": (TensorProto.BOOL, [50]), "x": [50]},
        {"y": [50]},
    )
    first, again, other = random_model_inputs(of, 3), random_model_inputs(of, 3), random_model_inputs(of, 4)
    assert {name: (a.dtype.name, a.shape) for name, a in first.items()} == {
        "i": ("int64", (50,)),
        "t": ("bool", (50,)),
        "x": ("float32", (50,)),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)
    assert set(first["i"]) == {0, 1} and 0.5 < first["x"].std() < 2
    group = random_model_inputs(subgraph_session(of, ["b"]), 3)
    assert {name: a.dtype.name for name, a in group.items()} == {"t": "bool", "f": "float32", "x": "float32"}
    assert random_model_inputs(of.proto, 3).keys() == first.keys()


def test_inputs_that_cannot_be_drawn_are_refused() -> None:
    info: Callable[..., onnx.ValueInfoProto] = helper.make_tensor_value_info
    for bad, message in (
        (info("x", TensorProto.FLOAT, ["n"]), r"input x: found shape \['n'\], expected static dimensions"),
        (info("x", TensorProto.STRING, [2]), "input x: found type .*, expected a tensor of numbers"),
    ):
        graph = helper.make_graph([node("Identity", "a", "x", "y")], "g", [bad], [onnx.ValueInfoProto(name="y")])
        with pytest.raises(Refused, match=message):
            random_model_inputs(helper.make_model(graph))


def compiled(of: Model, threads: int = 1) -> dict[tuple[str, ...], GroupRun]:
    """The subprogram of *of* that holds ``conv``, compiled as it is."""
    runs: dict[tuple[str, ...], GroupRun] = {}
    for part in partition(of).subprograms:
        if "conv" in part.nodes:
            names = {of.identifiers[value]: value for value in (*part.inputs, *part.outputs)}
            weights = {t.name: of.weights[names[t.name]] for t in part.program.inputs if t.weight}
            runs[part.nodes] = ProgramCall(compile_program(part.program, threads, constants=weights), names)
    return runs


def tower(size: int = 12) -> Model:
    """A convolution that is replaced, between nodes that stay; two outputs, one of them inside of the group."""
    rng = np.random.default_rng(0)
    return model(
        [
            node("Softmax", "first", "x", "s", axis=1),
            node("Conv", "conv", "s k b", "c", pads=[1, 1, 1, 1]),
            node("Relu", "relu", "c", "r"),
            node("Softmax", "last", "r", "y", axis=1),
            node("MatMul", "product", "r m", "z"),
        ],
        {"x": [1, 3, size, size]},
        {"y": [1, 4, size, size], "c": [1, 4, size, size], "z": [1, 4, size, 5]},
        k=rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        b=rng.standard_normal(4).astype(np.float32),
        m=rng.standard_normal((size, 5)).astype(np.float32),
    )


hosts = pytest.mark.skipif(not onnx_fragment.custom_ops_available(), reason="no C compiler")


@hosts
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_programs_and_what_stays_are_one_session(threads: int) -> None:
    of = tower()
    runs = compiled(of, threads)
    assert runs
    plan = build_plan(of, runs, threads)
    assert plan.sessions == len(plan.segments) == 1
    feeds = random_model_inputs(of, 1)
    want = whole(of, feeds)
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(plan.run, [feeds] * 40):
            assert list(got) == [v.name for v in of.outputs]
            for name, array in want.items():
                np.testing.assert_allclose(got[name], array, 1e-5, 1e-5)


@hosts
def test_results_of_one_session_are_the_callers_own() -> None:
    of = tower()
    plan = build_plan(of, compiled(of))
    first = plan.run(random_model_inputs(of, 1))
    kept = {name: array.copy() for name, array in first.items()}
    plan.run(random_model_inputs(of, 2))
    for name, array in kept.items():
        np.testing.assert_array_equal(first[name], array)


@hosts
def test_program_without_onnx_form_is_called_between_sessions() -> None:
    """One group that is any callable: all are called between sessions."""
    of = tower()
    plan = build_plan(of, {**compiled(of), ("last",): by_itself(of, "last")})
    assert len(plan.segments) > 1
    feeds = random_model_inputs(of, 1)
    for name, array in whole(of, feeds).items():
        np.testing.assert_allclose(plan.run(feeds)[name], array, 1e-5, 1e-5)


def test_without_custom_ops_programs_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_fragment, "custom_ops_available", lambda: False)
    of = tower()
    plan = build_plan(of, compiled(of))
    assert len(plan.segments) > 1
    feeds = random_model_inputs(of, 1)
    for name, array in whole(of, feeds).items():
        np.testing.assert_allclose(plan.run(feeds)[name], array, 1e-5, 1e-5)


@hosts
def test_values_of_double_precision_are_converted_between_calls() -> None:
    """Programs run in single precision: a group among doubles is called, and its results are doubles again."""
    of = model(
        [node("Cast", "narrow", "x", "n", to=TensorProto.FLOAT), node("Relu", "relu", "n", "r"),
         node("Cast", "wide", "r", "y", to=TensorProto.DOUBLE)],
        {"x": (TensorProto.DOUBLE, [4])},
        {"y": (TensorProto.DOUBLE, [4])},
    )  # fmt: skip
    program = parse("tensor a[4]\nb[i:4] = relu(a[i])")
    run = ProgramCall(compile_program(program), {"a": "x", "b": "y"})
    plan = build_plan(of, {("narrow", "relu", "wide"): run})
    got = plan.run({"x": np.array([-1.0, 0.0, 1.0, 2.0])})["y"]
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, [0, 0, 1, 2])


@hosts
def test_kernels_read_and_make_values_in_the_shapes_around_reshapes() -> None:
    """A reshape of an input and one of the result; that of a value which another node reads stays."""
    of = model(
        [node("Reshape", "flat", "x twelve", "a"), node("Relu", "relu", "a", "b"),
         node("Reshape", "wide", "b six", "y"),
         node("Relu", "other", "y", "u"), node("Reshape", "back", "u twelve", "z")],
        {"x": [3, 4]}, {"y": [2, 6], "z": [12]}, twelve=np.array([12]), six=np.array([2, 6]),
    )  # fmt: skip
    run = ProgramCall(compile_program(parse("tensor p[12]\nq[i:12] = relu(p[i])")), {"p": "a", "q": "b"})
    plan = build_plan(of, {("relu",): run})
    nodes = plan.model_with(LOADED_KERNELS).proto.graph.node
    assert [(n.op_type, *n.input[:1], *n.output) for n in nodes] == [
        ("Kernel", "x", "y"), ("Relu", "y", "u"), ("Reshape", "u", "z"),
    ]  # fmt: skip
    feeds = random_model_inputs(of, 2)
    for name, array in whole(of, feeds).items():
        np.testing.assert_array_equal(plan.run(feeds)[name], array)


@hosts
def test_a_program_that_lacks_a_result_is_refused_when_it_runs() -> None:
    of = chain()
    run = ProgramCall(
        compile_program(parse("tensor a[3, 4]\nb[i:3, j:4] = relu(a[i, j])")), {"a": "p", "b": "elsewhere"}
    )
    plan = build_plan(of, {("b",): run})
    with pytest.raises(Refused, match=r"node b \(MatMul\): found no result for q"):
        plan.run(random_model_inputs(of))


@hosts
def test_an_input_of_another_shape_is_refused() -> None:
    plan = build_plan(of := tower(), compiled(of))
    with pytest.raises(Exception, match="invalid dimensions"):
        plan.run({"x": np.zeros((1, 3, 5, 5), np.float32)})


def test_quick_calls_are_sampled_several_times_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(measurement, "sleep", pauses.append)
    for seconds, in_a_row in ((1e-4, measurement.SETTLED_SAMPLES), (0.02, 1)):
        pauses.clear()
        samplers = {name: lambda _, taken=seconds: taken for name in "ab"}
        times = measurement.time_samplers(samplers, rounds=6, min_seconds=0.001, settle=0.005)
        assert {timing.n for timing in times.values()} == {6}
        assert pauses == [0.005] * (12 // in_a_row)
