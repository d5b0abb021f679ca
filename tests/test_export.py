"""Programs and models as ONNX: ONNX Runtime and the reference evaluator compute the values of the expressions."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto, helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator
from strategies import inputs_for, programs, scopes_

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    EOPERATOR,
    VIEW,
    Access,
    Apply,
    Compare,
    Const,
    Equation,
    Instance,
    Iterator,
    Program,
    Scope,
    Tensor,
    as_index,
    program,
    tensors,
)
from einnet_explore.ir.scalar_functions import FUNCTIONS, SCALAR_FUNCTIONS
from einnet_explore.onnx_export.export import MIN_OPSET, Replacement, rewrite_model
from einnet_explore.onnx_export.lowering import (
    EXPORT_OPSET,
    FUNCTION_DOMAIN,
    IR_VERSION,
    ExportedNodes,
    function_of,
    to_onnx,
)
from einnet_explore.operators.library import OPERATORS
from einnet_explore.support.errors import Refused

LARGEST_EXACT = 1 << 24
"""Integers beyond this are not exact in single precision."""


def model(
    of: Program, made: ExportedNodes, opset: int = EXPORT_OPSET, known: Mapping[str, Any] = {}
) -> onnx.ModelProto:
    shapes = {t.name: t.shape for t in of.inputs} | {e.name: e.scope.shape for e in of.equations}
    graph = helper.make_graph(
        list(made.nodes),
        "program",
        [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in of.inputs if t.name not in known],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in of.outputs],
        initializer=list(made.initialisers),
    )
    out = helper.make_model(
        graph,
        functions=list(made.functions),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(FUNCTION_DOMAIN, 1)],
        ir_version=IR_VERSION,
    )
    onnx.checker.check_model(out, full_check=True)
    return out


def exported(of: Program, constants: Mapping[str, Any] | None = None, opset: int = EXPORT_OPSET) -> onnx.ModelProto:
    known = constants or {}
    names = {name: name for name in of.names() if name not in known}
    return model(of, to_onnx(of, names, known, "_", opset=opset), opset, known)


def run(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The outputs in ONNX Runtime and in the reference evaluator."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    own = {v.name: np.asarray(feeds[v.name], np.float32) for v in session.get_inputs()}
    names = [v.name for v in proto.graph.output]
    return [
        dict(zip(names, session.run(names, own), strict=True)),
        dict(zip(names, ReferenceEvaluator(proto).run(names, own), strict=True)),
    ]


def agree(of: Program, proto: onnx.ModelProto, arrays: Mapping[str, Any], rtol: float = 0) -> None:
    want = evaluate(of, arrays, np.float64)
    if any(np.abs(a[np.isfinite(a)]).max(initial=0) >= LARGEST_EXACT for a in want.values()):
        return
    for got in run(proto, arrays):
        for name in of.outputs:
            assert got[name].shape == want[name].shape
            np.testing.assert_allclose(got[name], want[name].astype(np.float32), rtol, rtol)


def operators(proto: onnx.FunctionProto) -> Counter[str]:
    return Counter(node.op_type for node in proto.node if node.op_type != "Constant")


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs_mean_the_same_in_onnx(of: Program) -> None:
    agree(of, exported(of), inputs_for(of))


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(programs(equations=2), programs(equations=1))
def test_known_weights_are_evaluated_beforehand(of: Program, other: Program) -> None:
    for of_ in (of, other):
        arrays = inputs_for(of_)
        constants = {t.name: arrays[t.name] for t in of_.inputs if t.weight}
        proto = exported(of_, constants)
        assert not {v.name for v in proto.graph.input} & constants.keys()
        agree(of_, proto, arrays)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(scopes_())
def test_the_oldest_operator_set_will_do(scope: Scope) -> None:
    of = program(scope)
    agree(of, exported(of, opset=MIN_OPSET), inputs_for(of))


EXPORTED = {name for name in FUNCTIONS if SCALAR_FUNCTIONS[name].onnx or name == "rsqrt"}
"""``rsqrt`` is two operators."""


def applied(name: str) -> Program:
    x = Iterator("x", 0, 5)
    return program(Scope((x,), (), Apply(name, tuple(Tensor(f"T{n}", (5,))[x,] for n in range(FUNCTIONS[name])))))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name in EXPORTED - {"where"}])
def test_every_scalar_function_is_exported_correctly(name: str) -> None:
    arrays = {f"T{n}": np.linspace(0.5, 2.0 + n, 5) for n in range(FUNCTIONS[name])}
    agree(applied(name), exported(applied(name)), arrays, 1e-6)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in EXPORTED])
def test_functions_and_types_that_the_export_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(Refused, match=r"is not a scalar function of ONNX|expects programs in float32"):
        exported(applied(name))


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
def test_where_over_two_iterators_is_exported_correctly(op: str) -> None:
    x, y = Iterator("x", -2, 3), Iterator("y", 0, 4)
    scope = Scope((x, y), (), Apply("where", (Compare(op, as_index(x), y - 1), Tensor("T", (4,))[y,], Const(-1))))
    agree(program(scope), exported(program(scope)), inputs_for(scope))


def test_infinite_padding_and_empty_sums() -> None:
    x, r, none = Iterator("x", 0, 6), Iterator("r", 0, 3), Iterator("e", 0, 0)
    source = Tensor("T", (6,), ((1, 1),), float("-inf"))
    pooled = Scope((x,), (r,), source[x + r - 1,], "max")
    empty = Scope((x,), (none,), Tensor("T", (6,))[x,], "min")
    of = Program((source,), (Equation("P", pooled), Equation("E", empty)), ("P", "E"))
    agree(of, exported(of), inputs_for(of))


def offset_reduce(h: int, w: int, f: int, r: int) -> Scope:
    a, b, c = Iterator("h", 0, h), Iterator("w", 0, w), Iterator("f", 0, f)
    p, q = Iterator("r", 0, r), Iterator("s", 0, r)
    source = Tensor("T", (r, r, h, w, f), ((0, 0), (0, 0), (r, r), (r, r), (0, 0)))
    return Scope((a, b, c), (p, q), source[p, q, a + p - r // 2, b + q - r // 2, c])


@pytest.mark.parametrize(("h", "w", "f", "r"), [(5, 6, 4, 3), (9, 4, 3, 2), (6, 6, 2, 5)])
def test_offset_reduce_is_one_pad_and_slices(h: int, w: int, f: int, r: int) -> None:
    scope = offset_reduce(h, w, f, r)
    found = operators(function_of(scope))
    assert found["Pad"] == 1 and found["Slice"] == r * r and found["Add"] == r * r - 1
    assert not found.keys() & {"Gather", "Where", "ReduceSum"}
    agree(program(scope), exported(program(scope)), inputs_for(scope))


def test_layouts_are_reshapes_and_transposes() -> None:
    i, c, j = Iterator("i", 0, 12), Iterator("c", 0, 5), Iterator("j", 0, 20)
    merged = Scope((i, c), (), Tensor("A", (3, 4, 5))[i // 4, i % 4, c])
    turned = Scope((c, i), (), Tensor("A", (3, 4, 5))[i // 4, i % 4, c])
    digits = Scope((i, c), (), Tensor("A", (3, 20))[i // 4, i % 4 * 5 + c])
    split = Scope((Iterator("a", 0, 4), Iterator("b", 0, 5)), (), Tensor("A", (20,))[j,])
    split = replace(split, body=Tensor("A", (20,))[split.traversals[0] * 5 + split.traversals[1],])
    for scope, allowed in ((merged, {"Reshape"}), (turned, {"Reshape", "Transpose"}), (split, {"Reshape"})):
        assert operators(function_of(scope)).keys() <= allowed
    for scope in (merged, turned, digits, split):
        agree(program(scope), exported(program(scope)), inputs_for(scope))


def test_contractions_are_matrix_products() -> None:
    b, m, n, k = (Iterator(x, 0, e) for x, e in zip("bmnk", (2, 3, 4, 40), strict=True))
    nn = Scope((b, m, n), (k,), Apply("*", (Tensor("A", (2, 3, 40))[b, m, k], Tensor("B", (2, 40, 4))[b, k, n])))
    nt = Scope((m, n), (b, k), Apply("*", (Tensor("A", (2, 3, 40))[b, m, k], Tensor("B", (4, 40, 2))[n, k, b])))
    assert operators(function_of(nn)) == {"MatMul": 1}
    assert operators(function_of(nt)).keys() <= {"MatMul", "Transpose", "Reshape"}
    for scope in (nn, nt):
        agree(program(scope), exported(program(scope)), inputs_for(scope))


def test_no_gather_is_as_large_as_the_iteration_space() -> None:
    """im2col over (h, r) times a weight over (r, f): neither operand is read over f and h at once."""
    h, f, r, c = Iterator("h", 0, 30), Iterator("f", 0, 20), Iterator("r", 0, 3), Iterator("c", 0, 16)
    x, k = Tensor("X", (30, 16), ((1, 1), (0, 0))), Tensor("K", (3, 16, 20))
    scope = Scope((h, f), (r, c), Apply("*", (x[h + r - 1, c], k[r, c, f])))
    proto = exported(program(scope))
    inferred = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(proto))
    sizes = [np.prod([d.dim_value for d in v.type.tensor_type.shape.dim]) for v in inferred.graph.value_info]
    assert sizes and max(sizes) <= 30 * 16 * 3
    agree(program(scope), proto, inputs_for(scope))


@pytest.mark.parametrize(("h", "f", "c", "k", "s"), [(6, 40, 3, 4, 2), (5, 33, 2, 3, 3), (4, 36, 5, 6, 2)])
def test_a_transposed_convolution_is_one_matrix_product(h: int, f: int, c: int, k: int, s: int) -> None:
    """Its output's phases are digits, its window a small sum: what is gathered is no larger than what that needs."""
    y, o, i, z = Iterator("y", 0, s * h), Iterator("o", 0, c), Iterator("i", 0, h), Iterator("z", 0, f)
    weight = Tensor("K", (k, f, c), ((s * h, s * h), (0, 0), (0, 0)))
    scope = Scope((y, o), (i, z), Apply("*", (Tensor("X", (h, f))[i, z], weight[y + 1 - i * s, z, o])))
    found = operators(function_of(scope))
    assert found["MatMul"] == 1 and not found["ReduceSum"]
    agree(program(scope), exported(program(scope)), inputs_for(scope))


def test_equal_functions_are_written_once_and_others_are_not() -> None:
    first, second = offset_reduce(5, 6, 4, 3), offset_reduce(5, 6, 4, 3)
    other = offset_reduce(5, 6, 3, 3)
    renamed = replace(second, body=replace(second.body, source=replace(second.body.source, name="U")))  # type: ignore
    via = Instance(EOPERATOR)
    of = Program(
        (*tensors(first), *tensors(renamed), replace(tensors(other)[0], name="V")),  # type: ignore[index]
        (
            Equation("Y", first, via),
            Equation("Z", renamed, via),
            Equation("W", replace(other, body=replace(other.body, source=replace(other.body.source, name="V"))), via),  # type: ignore
        ),
        ("Y", "Z", "W"),
    )
    made = to_onnx(of, {name: name for name in of.names()})
    assert len(made.functions) == 2 and [n.domain for n in made.nodes] == [FUNCTION_DOMAIN] * 3
    assert all(f.name.startswith(EOPERATOR) for f in made.functions)
    agree(of, model(of, made), inputs_for(of))


@pytest.mark.parametrize("name", ["Matmul", "Conv2d", "ConvTranspose2d", "MaxPool2d", "G2BMM", "GBMM"])
def test_library_operators_are_exported_correctly(name: str) -> None:
    operator = next((o for o in OPERATORS if name in o.names), None)
    if operator is None:
        pytest.skip(f"no operator {name}")
    extents = {"n": 1, "g": 1, "b": 2, "m": 6, "k": 4, "f": 3, "c": 2, "r": 3, "s": 3, "w": 5, "h": 5, "d": 1, "W": 2}
    if name == "Matmul":
        extents |= {"n": 5, "ta": 1}
    if name.startswith("Conv2d") or name.startswith("MaxPool"):
        extents |= {"H": 5, "sh": 1, "dh": 1, "ph": 1, "sw": 1, "dw": 1, "pw": 1}
        extents["W"] = 5
    if name == "ConvTranspose2d":
        extents |= {"y": 10, "x": 10, "R": 4, "S": 4, "sh": 2, "sw": 2, "ph": 1, "pw": 1}
    scope = operator.instantiate(extents)
    of = replace(program(scope), equations=(Equation("Y", scope, operator.instance(extents)),))
    made = to_onnx(of, {n: n for n in of.names()})
    if operator.onnx is not None and (call := operator.onnx(extents)) is not None:
        assert not made.functions and call.op_type in {n.op_type for n in made.nodes}
    else:
        assert [f.name.rpartition("_")[0] for f in made.functions] == [of.equations[0].via.operator]  # type: ignore
    agree(of, model(of, made), inputs_for(of))


def test_views_are_nodes_of_the_graph() -> None:
    i, c = Iterator("i", 0, 12), Iterator("c", 0, 5)
    scope = Scope((c, i), (), Tensor("A", (3, 4, 5))[i // 4, i % 4, c])
    of = replace(program(scope), equations=(Equation("Y", scope, Instance(VIEW)),))
    made = to_onnx(of, {n: n for n in of.names()})
    assert not made.functions and {n.op_type for n in made.nodes} <= {"Constant", "Reshape", "Transpose"}
    agree(of, model(of, made), inputs_for(of))


def test_a_program_of_weights_only_has_outputs() -> None:
    x = Iterator("x", 0, 4)
    k = Tensor("K", (4,), weight=True)
    doubled = Scope((x,), (), Apply("*", (Const(2), k[x,])))
    of = Program(
        (k,),
        (
            Equation("D", doubled),
            Equation("Y", Scope((x,), (), Apply("relu", (Access(Equation("D", doubled).tensor, (as_index(x),)),)))),
        ),
        ("D", "Y"),
    )
    proto = exported(of, {"K": np.array([1.0, -2, 3, -4])})
    assert not proto.functions
    agree(of, proto, {"K": np.array([1.0, -2, 3, -4])})


def test_unwritable_program_is_refused_with_the_reason() -> None:
    x = Iterator("x", 0, 4)
    of = program(Scope((x,), (), Tensor("K", (4,), weight=True)[x,]))
    with pytest.raises(Refused, match="input K: found neither a value"):
        to_onnx(of, {"Y": "Y"})
    with pytest.raises(Refused, match=r"constant K has shape \(3,\), expected \(4,\)"):
        to_onnx(of, {"Y": "Y"}, {"K": np.zeros(3)})
    with pytest.raises(Refused, match="output Z: no equation"):
        to_onnx(replace(of, outputs=("Z",)), {"Y": "Y"})
    odd = program(Scope((x,), (), Apply("sinh", (Tensor("K", (4,))[x,],))))
    with pytest.raises(Refused, match=r"equation Y: .*sinh.* is not a scalar function"):
        to_onnx(odd, {"Y": "Y", "K": "K"})


def two_layers(opset: int = EXPORT_OPSET, ir: int = IR_VERSION) -> onnx.ModelProto:
    """relu(x·A + b)·A, and the sum of it and x; the weight A is shared."""
    rng = np.random.default_rng(0)
    weights = [("A", rng.integers(-2, 3, (4, 4))), ("b", rng.integers(-2, 3, (4,)))]
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["m"], name="first"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "A"], ["n"], name="second"),
        helper.make_node("Add", ["n", "x"], ["y"], name="residual"),
    ]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 4]) for n in ("y", "r")],
        initializer=[numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    return onnx.shape_inference.infer_shapes(made)


def biased_relu() -> Program:
    i, j = Iterator("i", 0, 3), Iterator("j", 0, 4)
    body = Apply("relu", (Apply("+", (Tensor("m", (3, 4))[i, j], Tensor("b", (4,), weight=True)[j,])),))
    return program(Scope((i, j), (), body), "r")


NAMES = {"m": "m", "b": "b", "r": "r"}


@pytest.mark.parametrize("opset", [MIN_OPSET, EXPORT_OPSET, EXPORT_OPSET + 1])
def test_a_model_is_rewritten(opset: int) -> None:
    before = two_layers(opset)
    after = rewrite_model(before, [Replacement(("bias", "relu"), biased_relu(), NAMES)])
    assert after.graph.node[0].name == "first" and "relu" not in {n.name for n in after.graph.node}
    assert {w.name for w in after.graph.initializer} == {"A", "b"}
    assert next(o.version for o in after.opset_import if not o.domain) == max(opset, EXPORT_OPSET)
    assert after.ir_version == IR_VERSION
    feeds = {"x": np.arange(12).reshape(3, 4) - 5}
    for got, want in zip(run(after, feeds), run(before, feeds), strict=True):
        assert {n: a.tolist() for n, a in got.items()} == {n: a.tolist() for n, a in want.items()}


def test_weights_that_nothing_reads_are_dropped() -> None:
    constants = {"b": numpy_helper.to_array(two_layers().graph.initializer[1])}
    names = {"m": "m", "r": "r"}
    after = rewrite_model(two_layers(), [Replacement(("bias", "relu"), biased_relu(), names, constants)])
    assert "b" not in {w.name for w in after.graph.initializer} and len(after.graph.initializer) == 2
    before = len(two_layers().graph.node)
    assert before == 5


def test_equal_folded_weights_are_stored_once() -> None:
    i, j = Iterator("i", 0, 3), Iterator("j", 0, 4)
    doubled = Equation("D", Scope((j,), (), Apply("*", (Const(2), Tensor("b", (4,), weight=True)[j,]))))

    def scaled(read: str, made: str) -> Program:
        scope = Scope((i, j), (), Apply("+", (Tensor(read, (3, 4))[i, j], doubled.tensor[j,])))
        return Program(
            (Tensor(read, (3, 4)), Tensor("b", (4,), weight=True)), (doubled, Equation(made, scope)), (made,)
        )

    constants = {"b": np.array([1.0, 2, 3, 4])}
    groups = [
        Replacement(("bias", "relu"), scaled("m", "r"), {"m": "m", "r": "r"}, constants),
        Replacement(("residual",), scaled("n", "y"), {"n": "n", "y": "y"}, constants),
    ]
    after = rewrite_model(two_layers(), groups)
    assert len(after.graph.initializer) == 2  # A, and 2·b for both
    x = np.arange(12).reshape(3, 4) - 5
    weight = numpy_helper.to_array(two_layers().graph.initializer[0])
    r = x @ weight + 2 * constants["b"]
    for got in run(after, {"x": x}):
        np.testing.assert_array_equal(got["r"], r)
        np.testing.assert_array_equal(got["y"], r @ weight + 2 * constants["b"])


def test_an_old_model_without_converter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr("onnx.version_converter.convert_version", refuse)
    replacement = Replacement(("bias", "relu"), biased_relu(), NAMES)
    with pytest.raises(Refused, match=f"operator set 11: .* expected {MIN_OPSET} or later"):
        rewrite_model(two_layers(11, 6), [replacement])
    kept = rewrite_model(two_layers(MIN_OPSET), [replacement])
    assert next(o.version for o in kept.opset_import if not o.domain) == MIN_OPSET


def test_groups_that_do_not_fit_are_refused() -> None:
    good = Replacement(("bias", "relu"), biased_relu(), NAMES)
    with pytest.raises(Refused, match="node nobody: found no such node"):
        rewrite_model(two_layers(), [replace(good, nodes=("nobody",))])
    with pytest.raises(Refused, match="node relu: found in two groups"):
        rewrite_model(two_layers(), [good, replace(good, nodes=("relu",))])
    with pytest.raises(Refused, match=r"found input m that nothing computes"):
        rewrite_model(two_layers(), [replace(good, nodes=("first", "bias", "relu"))])
    i, j = Iterator("i", 0, 3), Iterator("j", 0, 4)
    body = Apply("+", (Tensor("r", (3, 4))[i, j], Tensor("n", (3, 4))[i, j]))
    both = Program(
        (Tensor("n", (3, 4)), Tensor("m", (3, 4))),
        (Equation("r", Scope((i, j), (), Tensor("m", (3, 4))[i, j])), Equation("y", Scope((i, j), (), body))),
        ("r", "y"),
    )
    around = Replacement(("bias", "relu", "residual"), both, {n: n for n in "mnry"})
    assert rewrite_model(two_layers(), [around]).graph.node  # separate nodes of a program need not be convex together
    looped = replace(both, equations=(replace(both.equations[0], scope=both.equations[1].scope),), outputs=("r",))
    looped = replace(looped, equations=(Equation("r", Scope((i, j), (), Tensor("n", (3, 4))[i, j])),))
    with pytest.raises(Refused, match="cycle"):
        rewrite_model(two_layers(), [Replacement(("bias", "relu"), looped, {"n": "n", "r": "r"})])
