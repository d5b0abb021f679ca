"""Quantised ONNX models: their expressions, proofs that two spellings are equal, and integer products in plans."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_building import node, run, whole

import einnet_check
import einnet_explore as ee
from benchmarks.quantised import exact_values
from einnet_explore.analysis.products import multiplies_bytes
from einnet_explore.codegen.register_tiles import cpu_flags
from einnet_explore.codegen.wide_values import rounds_computed_values, rounds_exactly
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import VIEW, Instance, Program
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.node_call import NotUnderstood
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.matching import match_operator
from einnet_explore.pipeline.fusion import fuse_eoperators, generate_equation
from einnet_explore.pipeline.layouts import PROHIBITIVE_SECONDS, LayoutProblem, assign_layouts, estimate_equation
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import ProgramCall, build_plan
from einnet_explore.pipeline.subprogram import step_certificates
from einnet_explore.rules import PADDING_EXCHANGE, REQUANTISATION, Derivation
from einnet_explore.runtime import c_kernels, compiled, integer_products
from einnet_explore.runtime.implementation_choice import ProfileStore, compile_measured, epilogue_pairs
from einnet_explore.runtime.onnx_fragment import onnx_session
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.session.model_equality import compare_models
from einnet_explore.strategies.candidate import combined_verdict
from einnet_explore.strategies.integer_forms import integer_forms
from einnet_explore.support.errors import Refused

Arrays = Mapping[str, np.ndarray]


def model(nodes: list[onnx.NodeProto], feeds: Arrays, weights: Mapping[str, Any], **outputs: str) -> onnx.ModelProto:
    """A model with the inputs *feeds* and *outputs* of these types."""

    def info(name: str, dtype: str, shape: Any) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, str(array.dtype), array.shape) for name, array in feeds.items()],
        [info(name, dtype, None) for name, dtype in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    random = np.random.default_rng((seed, *shape))
    if dtype == "float32":
        return (random.standard_normal(shape) * 3).astype(np.float32)
    kind = np.iinfo(dtype)
    return random.integers(max(kind.min, -(1 << 20)), min(kind.max, 1 << 20), shape, endpoint=True).astype(dtype)


X, S, Z = np.float32(0.02), np.float32(0.05), np.uint8(7)
ROWS, COLUMNS = numbers(5, dtype="uint8"), np.array([0.01, 0.02, 0.5, 3.0], np.float32)
IMAGE, KERNEL = numbers(2, 4, 6, 5, dtype="uint8"), numbers(6, 2, 3, 3, dtype="int8")

CASES: dict[str, tuple[onnx.NodeProto, Arrays, Mapping[str, Any], str]] = {
    "quantised": (node("QuantizeLinear", "xsz", "y"), {"x": numbers(3, 4)}, {"s": S, "z": Z}, "uint8"),
    "quantised without a zero point": (node("QuantizeLinear", "xs", "y"), {"x": numbers(3, 4)}, {"s": S}, "uint8"),
    "quantised by columns": (
        node("QuantizeLinear", "xsz", "y", axis=-1), {"x": numbers(3, 4)},
        {"s": COLUMNS, "z": np.array([1, -2, 0, 5], np.int8)}, "int8",
    ),
    "quantised in blocks": (
        node("QuantizeLinear", "xs", "y", axis=1, block_size=3, output_dtype=3), {"x": numbers(2, 6)},
        {"s": np.array([[0.1, 0.2], [0.3, 0.04]], np.float32)}, "int8",
    ),
    "quantised to 16 bits": (
        node("QuantizeLinear", "xsz", "y"), {"x": numbers(3, 4)}, {"s": np.float32(1e-4), "z": np.int16(9)}, "int16",
    ),
    "dequantised": (node("DequantizeLinear", "xsz", "y"), {"x": IMAGE}, {"s": S, "z": Z}, "float32"),
    "dequantised by rows": (
        node("DequantizeLinear", "xsz", "y", axis=0), {"x": numbers(4, 5, dtype="int8")},
        {"s": COLUMNS, "z": np.zeros(4, np.int8)}, "float32",
    ),
    "dequantised 32 bits": (
        node("DequantizeLinear", "xs", "y"), {"x": numbers(9, dtype="int32")}, {"s": S}, "float32",
    ),
    "dynamic": (node("DynamicQuantizeLinear", "x", ["y", "t", "u"]), {"x": numbers(3, 7)}, {}, "uint8"),
    "product": (
        node("MatMulInteger", "abzw", "y"), {"a": numbers(2, 5, 9, dtype="uint8"), "b": numbers(9, 4, dtype="int8")},
        {"z": Z, "w": np.array([0, 1, -3, 9], np.int8)}, "int32",
    ),
    "convolution": (
        node("ConvInteger", "xkzw", "y", pads=[1, 0, 1, 1], strides=[2, 1], group=2),
        {"x": IMAGE, "k": KERNEL}, {"z": Z, "w": np.int8(-2)}, "int32",
    ),
    "convolution with a computed zero point": (
        node("ConvInteger", "xkz", "y", pads=[1, 1, 1, 1], group=2),
        {"x": IMAGE, "k": KERNEL, "z": np.asarray(Z)}, {}, "int32",
    ),
    "quantised product": (
        node("QLinearMatMul", "aszbtuvw", "y"),
        {"a": numbers(5, 9, dtype="uint8"), "b": numbers(9, 4, dtype="int8")},
        {"s": S, "z": Z, "t": COLUMNS, "u": np.zeros(4, np.int8), "v": np.float32(0.7), "w": np.uint8(120)}, "uint8",
    ),
    "quantised convolution": (
        node("QLinearConv", "xszktuvwb", "y", pads=[1, 1, 1, 1], group=2), {"x": IMAGE},
        {
            "s": S, "z": Z, "k": KERNEL, "t": np.full(6, 0.01, np.float32) * np.arange(1, 7, dtype=np.float32),
            "u": np.zeros(6, np.int8), "v": np.float32(0.9), "w": np.uint8(99), "b": numbers(6, dtype="int32") // 999,
        }, "uint8",
    ),
}  # fmt: skip


@cache
def saturates_pairs() -> bool:
    """Whether ONNX Runtime adds products of bytes in pairs that saturate at 16 bits, as on processors without VNNI."""
    feeds, weights = {"a": np.full((1, 64), 255, np.uint8)}, {"b": np.full((64, 16), 127, np.int8)}
    (found,) = run(model([node("MatMulInteger", "ab", "y")], feeds, weights, y="int32"), feeds).values()
    return int(found.max()) != 64 * 255 * 127


EXACT_PAIRS = pytest.mark.skipif("saturates_pairs()", reason="ONNX Runtime saturates pairs of products of bytes here")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=EXACT_PAIRS) if CASES[name][0].op_type == "QLinearConv" else name for name in CASES],
)
def test_quantised_operators_have_the_results_of_onnx_runtime_bit_for_bit(name: str) -> None:
    call, feeds, weights, dtype = CASES[name]
    proto = model([call], feeds, weights, **dict(zip(call.output, (dtype, "float32", "uint8"), strict=False)))
    loaded = load_model(proto)
    program, want = whole(loaded), run(proto, feeds)
    given = {t.name: {**loaded.weights, **feeds}[t.name] for t in program.inputs}
    found = evaluate(program, given, np.float64)
    for output in want:
        tolerance = 0 if want[output].dtype.kind in "iu" else 1e-6
        np.testing.assert_allclose(found[output], want[output].astype(float), tolerance)
    assert program.equations[-1].tensor.dtype == dtype and ee.parse(ee.text(program)) == program
    if compiled.c_compiler():
        made = compile_program(program, constants={n: a for n, a in given.items() if n not in feeds})
        assert "interpreter" not in made.engines.values() or name == "convolution with a computed zero point"
        np.testing.assert_array_equal(made.run(feeds)["y"], want["y"])
        if "interpreter" not in made.engines.values():
            np.testing.assert_array_equal(in_session(made, feeds)["y"], want["y"])


def in_session(made: CompiledProgram, feeds: Arrays) -> Arrays:
    """The outputs of a program that is one session of ONNX Runtime."""
    outputs = made.program.outputs
    writer = made.write({name: name for name in (*feeds, *outputs)}, "/")
    assert writer is not None
    session = onnx_session(writer.model(tuple(feeds), outputs), made.threads, writer.weights)
    return dict(zip(outputs, session.run(outputs, dict(feeds)), strict=True))


@pytest.mark.parametrize(
    ("call", "feeds", "why"),
    [
        (
            node("MatMulInteger", "ab", "y"),
            {"a": np.zeros((1, 40000), np.uint8), "b": np.zeros((40000, 1), np.uint8)},
            "expected a result within int32",
        ),
        (node("DequantizeLinear", "xs", "y"), {"x": np.zeros(4, np.int8), "s": np.ones(4, np.float32)}, "no axis 1"),
        (node("Cast", "x", "y", to=helper.TensorProto.UINT64), {"x": numbers(3)}, "elements of uint64"),
    ],
)  # fmt: skip
def test_what_has_no_exact_integers_is_refused(call: Any, feeds: Arrays, why: str) -> None:
    types = {"MatMulInteger": "int32", "DequantizeLinear": "float32", "Cast": "uint64"}
    loaded = load_model(model([call], feeds, {}, y=types[call.op_type]))
    found = express(loaded.nodes[0], loaded)
    assert isinstance(found, NotUnderstood) and why in found.reason


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "bool", "float64"])
def test_elementwise_operators_keep_the_type_and_wrap(dtype: str) -> None:
    random = np.random.default_rng(0)
    low, high = (
        (0, 1) if dtype == "bool" else (-9, 9) if dtype == "float64" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    )
    feeds = {name: random.integers(low, high, (3, 4), endpoint=True).astype(dtype) for name in "ab"}
    nodes = {
        "joined": node("Concat", "ab", ["joined"], axis=1),
        "turned": node("Transpose", "a", ["turned"]),
        "real": node("Cast", "a", ["real"], to=1),
        "long": node("Cast", "a", ["long"], to=7),
    }
    if dtype != "bool":
        nodes |= {"largest": node("Max", "ab", ["largest"])}
    if dtype in ("int32", "int64", "float64"):
        nodes |= {op: node(op, "ab", [op]) for op in ("Add", "Sub", "Mul")} | {"Neg": node("Neg", "a", ["Neg"])}
    types = {name: {"real": "float32", "long": "int64"}.get(name, dtype) for name in nodes}
    proto = model(list(nodes.values()), feeds, {}, **types)
    program, want = whole(load_model(proto)), run(proto, feeds)
    found = evaluate(program, feeds, np.float64 if dtype == "float64" else "exact")
    for name, array in want.items():
        np.testing.assert_array_equal(np.asarray(found[name]).astype(array.dtype), array, name)


def dense(
    seed: int = 0, zero_point: int = 0, rows: int = 6, size: int = 24, columns: int = 10
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A product with a bias, between operators that quantise, and as one operator without the bias."""
    random = np.random.default_rng(seed)
    weights = {
        "s": np.float32(0.03), "z": np.uint8(120), "w": random.integers(-127, 127, (size, columns)).astype(np.int8),
        "t": np.float32(0.004), "u": np.int8(zero_point), "v": np.float32(0.11), "o": np.uint8(3),
    }  # fmt: skip
    feeds = {"q": numbers(rows, size, dtype="uint8")}
    nodes = [
        node("DequantizeLinear", "qsz", "x"),
        node("DequantizeLinear", "wtu", "k"),
        node("MatMul", "xk", "p"),
        node("QuantizeLinear", "pvo", "y"),
    ]
    apart = model(nodes, feeds, weights, y="uint8")
    return apart, model([node("QLinearMatMul", "qszwtuvo", "y")], feeds, weights, y="uint8")


@EXACT_PAIRS
def test_a_quantised_product_equals_its_definition() -> None:
    for zero_point in (0, -3):
        apart, whole_operator = dense(zero_point=zero_point)
        found = compare_models(load_model(apart), load_model(whole_operator))
        assert found.kind == "proved", str(found)
        for pair in found.pairs:
            record = {"format": "einnet-explore record", "version": 1, "start": ee.text(pair.before), "steps": []}
            verdicts = einnet_check.check(record, ee.text(pair.after))
            assert [v.kind for v in verdicts] == ["proved"], str(verdicts)
    _, other = dense(seed=1)
    assert compare_models(load_model(apart), load_model(other)).kind == "different"


@EXACT_PAIRS
def test_a_quantised_convolution_equals_its_definition() -> None:
    kernel, feeds = numbers(6, 4, 3, 3, dtype="int8"), {"q": IMAGE}
    weights = {
        "s": np.float32(0.03), "z": np.uint8(9), "w": kernel, "t": np.linspace(0.01, 0.02, 6, dtype=np.float32),
        "u": np.zeros(6, np.int8), "v": np.float32(4.5), "o": np.uint8(100),
    }  # fmt: skip
    nodes = [
        node("DequantizeLinear", "qsz", "x"),
        node("DequantizeLinear", "wtu", "k", axis=0),
        node("Conv", "xk", "p", pads=[1, 1, 1, 1]),
        node("QuantizeLinear", "pvo", "y"),
    ]
    whole_operator = model([node("QLinearConv", "qszwtuvo", "y", pads=[1, 1, 1, 1])], feeds, weights, y="uint8")
    found = compare_models(load_model(model(nodes, feeds, weights, y="uint8")), load_model(whole_operator))
    assert found.kind == "proved", str(found)


def test_dequantisations_are_copied_for_each_reader_and_join_it() -> None:
    weights = {"s": np.float32(0.1), "a": numbers(8, 8), "b": numbers(8, 8, seed=1)}
    nodes = [
        node("DequantizeLinear", "qs", "x"),
        node("MatMul", "xa", "p"),
        node("MatMul", "xb", "r"),
        node("Softmax", "p", "t"),
        node("Mul", "tr", "y"),
    ]
    loaded = load_model(model(nodes, {"q": numbers(4, 8, dtype="int8")}, weights, y="float32"))
    assert [n.op for n in loaded.nodes].count("DequantizeLinear") == 2
    for part in partition(loaded).subprograms:
        if any("matmul" in name for name in part.nodes):
            assert next(t.dtype for t in part.program.inputs if not t.weight) == "int8"


def test_search_finds_the_product_of_integers_and_proves_it() -> None:
    (part,) = partition(load_model(dense(zero_point=-3, rows=64, size=512, columns=256)[0])).subprograms
    program = part.anonymous.program
    assert len(part.nodes) == 4
    (form,) = integer_forms(program)
    assert [certify(step.before, step.after).kind for step in form.steps] == ["proved"] * len(form.steps)
    best = ee.search(program, max_depth=2).best
    products = [e.scope for e in best.program.equations if multiplies_bytes(e.scope)]
    assert len(products) == 1, ee.text(best.program)


def test_padding_of_scaled_elements_becomes_padding_of_the_tensor() -> None:
    text = (
        "tensor X[8, 2] uint8\ntensor K[5] int8\n"
        "Y[h:6, c:2] = sum[r:5] {[i:8, c:2] 0.5 * (X[i, c] - 3)} pad [1, 0][h + r - 1, c] * K[r]"
    )
    program = ee.parse(text)
    match, factors = PADDING_EXCHANGE.matches(program, (0,))
    assert ee.certify(program, factors.apply(program).after).kind == "proved"
    after = match.apply(program).after
    assert after.inputs[0].padding == ((1, 1), (0, 0)) and after.inputs[0].value == 3
    assert certify(program, after).kind == "proved"
    record = {"format": "einnet-explore record", "version": 1, "start": text, "steps": []}
    assert [v.kind for v in einnet_check.check(record, ee.text(after))] == ["proved"]
    for other, why in (
        ("0.5 * (X[i, c] - 3.5)", "has no 3.5"),
        ("exp(X[i, c])", "no tensor, plus or minus a constant"),
        ("X[i, c] * X[i, c]", "2 factors depend on the padded dimensions"),
        ("X[7 - i, c]", "no element of a tensor at the point of the scope"),
    ):
        refused = ee.parse(text.replace("0.5 * (X[i, c] - 3)", other))
        with pytest.raises(Refused, match=why):
            PADDING_EXCHANGE.match(refused, (0,), access=0).apply(refused)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize(
    ("left", "right"), [("uint8", "int8"), ("int8", "uint8"), ("int8", "int8"), ("uint8", "uint8")]
)
@pytest.mark.parametrize(("size", "step"), [(5, 1), (19, 1), (23, 2), (40, 3)])
def test_convolutions_of_bytes_are_exact(left: str, right: str, size: int, step: int) -> None:
    out = (size + 2 - 3) // step + 1
    text = (
        f"tensor X[2, 3, {size}, {size}] {left} pad [0, 0, 1, 1] value 3\ntensor K[9, 3, 3, 3] {right} weight\n"
        f"Y[n:2, f:9, h:{out}, w:{out}] = sum[c:3, r:3, s:3] X[n, c, {step}*h+r-1, {step}*w+s-1] * K[f, c, r, s]"
    )
    program = ee.parse(text)
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    made = compile_program(program, constants={"K": given["K"]})
    assert made.engines["Y"] == "integers"
    want = evaluate(program, given)["Y"]
    np.testing.assert_array_equal(made.run({"X": given["X"]})["Y"], want)
    np.testing.assert_array_equal(in_session(made, {"X": given["X"]})["Y"], want)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize(("kind", "value", "skips"), [("uint8", 0, True), ("uint8", 3, False), ("int8", 0, False)])
def test_products_of_padding_are_skipped_where_they_are_zero(kind: str, value: int, skips: bool) -> None:
    """Signed rows of a product with signed columns are stored with another zero."""
    program = ee.parse(
        f"tensor X[2, 5, 9, 7] {kind} pad [0, 0, 2, 1] value {value}\ntensor K[9, 5, 5, 3] int8 weight\n"
        "Y[n:2, f:9, h:9, w:7] = sum[c:5, r:5, s:3] X[n, c, h+r-2, w+s-1] * K[f, c, r, s]"
    )
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    kernel = integer_products.integer_product(program.equations[0].scope, ("K",), {})
    assert kernel is not None and bool(kernel.spans) is skips
    made = compile_program(program, constants={"K": given["K"]})
    np.testing.assert_array_equal(made.run({"X": given["X"]})["Y"], evaluate(program, given)["Y"])


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("constant", [True, False])
def test_operands_that_are_read_backwards_are_exact(kinds: tuple[str, str], constant: bool) -> None:
    program = ee.parse(
        f"tensor X[5, 4, 2, 2] {kinds[0]}\ntensor K[9, 4, 3, 3] {kinds[1]} weight\n"
        "Y[n:5, f:9, h:2, w:2] = sum[c:4, r:2, s:2] X[n, c, 1-r, 1-s] * K[f, c, 2-h-r, 2-w-s]"
    )
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    made = compile_program(program, constants={"K": given["K"]} if constant else {})
    assert made.engines == {"Y": "integers"}
    feeds = {name: given[name] for name in made.inputs}
    np.testing.assert_array_equal(made.run(feeds)["Y"], evaluate(program, given)["Y"])


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_a_view_with_padding_is_read_in_place() -> None:
    program = ee.parse(
        "tensor X[6, 5, 7] int8\ntensor K[4, 6, 3, 3] int8 weight\n"
        "V[n:1, c:6, h:5, w:7] = X[c, h, w] pad [0, 0, 1, 1]\n"
        "Y[n:1, f:4, h:5, w:7] = sum[c:6, r:3, s:3] V[n, c, h+r-1, w+s-1] * K[f, c, r, s]\noutput Y"
    )
    view, product = program.equations
    program = replace(program, equations=(replace(view, via=Instance(VIEW)), product))
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    made = compile_program(program, constants={"K": given["K"]})
    assert made.engines == {"V": "view", "Y": "integers"}
    want = evaluate(program, given)["Y"]
    np.testing.assert_array_equal(made.run({"X": given["X"]})["Y"], want)
    np.testing.assert_array_equal(in_session(made, {"X": given["X"]})["Y"], want)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_threads_share_a_product_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both operands are packed by the threads of the session: one matrix for each b, and views of a tensor."""
    monkeypatch.setattr(integer_products, "MIN_SHARED_PRODUCTS", 0)
    program = ee.parse(
        "tensor X[2, 8, 9] int8\ntensor W[2, 9, 35] int8\n"
        "V[b:2, i:7, k:9] = X[b, i+1, k]\nY[b:2, i:7, j:35] = sum[k:9] V[b, i, k] * W[b, k, j]\noutput Y"
    )
    view, product = program.equations
    program = replace(program, equations=(replace(view, via=Instance(VIEW)), product))
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    made = compile_program(program, threads=2)
    assert made.engines == {"V": "view", "Y": "integers"}
    np.testing.assert_array_equal(made.run(given)["Y"], evaluate(program, given)["Y"])


REQUANTISED = """tensor X[2, {c}, 9, 9] {kind} pad [0, 0, 1, 1] value 3
tensor K[{f}, {c}, 3, 3] int8 weight
tensor W[{f}] weight
tensor B[{f}] weight
tensor Z[2, {f}, 9, 9] uint8
T[n:2, f:{f}, h:9, w:9] = sum[c:{c}, r:3, s:3] X[n, c, h+r-1, w+s-1] * K[f, c, r, s]
Y[n:2, f:{f}, h:9, w:9] = uint8(minimum(relu(round(W[f] * T[n, f, h, w] + B[f] + 0.3 * (Z[n, f, h, w] - 9))), 255))
output Y"""


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize(("c", "f"), [(8, 33), (3, 64), (1, 2)])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_requantisation_and_a_residual_are_part_of_the_product(c: int, f: int, kind: str) -> None:
    program = generate_equation(Derivation(ee.parse(REQUANTISED.format(c=c, f=f, kind=kind))), "Y").end
    (pair,) = epilogue_pairs(program)
    fused = replace(program, equations=(pair.both,))
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    constants = {name: given[name] * (0.001 if name == "W" else 1) for name in ("W", "B")} | {"K": given["K"]}
    feeds = {name: given[name] for name in "XZ"}
    apart, whole = (compile_program(p, constants=constants) for p in (program, fused))
    assert apart.engines == {"T": "integers", "Y": "c"} and whole.engines == {"Y": "integers"}
    want = apart.run(feeds)["Y"]
    np.testing.assert_array_equal(whole.run(feeds)["Y"], want)
    np.testing.assert_array_equal(in_session(whole, feeds)["Y"], want)
    assert len(np.unique(want)) > 9


def test_the_scale_and_the_bias_of_a_requantisation_are_divided_beforehand() -> None:
    program = ee.parse(
        "tensor A[8, 16] uint8\ntensor W[16, 12] int8 weight\ntensor S[12] weight\ntensor C[12] int32 weight\n"
        "X[i:8, k:16] = 0.5 * A[i, k]\nV[k:16, j:12] = S[j] * W[k, j]\nD[j:12] = S[j] * C[j]\n"
        "P[i:8, j:12] = sum[k:16] X[i, k] * V[k, j]\nQ[i:8, j:12] = P[i, j] + D[j]\n"
        "Y[i:8, j:12] = int8(minimum(maximum(round(Q[i, j] / 0.25), -128), 127))\noutput Y"
    )
    (form,) = integer_forms(program)
    assert [certify(step.before, step.after).kind for step in form.steps] == ["proved"] * len(form.steps)
    assert "int8(minimum(maximum(round(T2[j] * T1[i, j] + T3[j]), -128), 127))" in ee.text(form.end)


def quantised(dtype: str, zero: int, operand: str, scale: float = 0.25) -> str:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return f"{dtype}(minimum(maximum(round({operand} / {scale}) + {zero}, {low}), {high}))"


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 146), ("int8", -5)])
@pytest.mark.parametrize(("reduce", "outside"), [("max", "-inf"), ("min", "inf")])
def test_pooling_between_equal_quantisations_is_pooling_of_bytes(
    dtype: str, zero: int, reduce: str, outside: str
) -> None:
    program = ee.parse(
        f"tensor X[3, 9] {dtype}\nF[c:3, h:9] = 0.25 * (X[c, h] - {zero}) pad [0, (1, 0)] value {outside}\n"
        f"P[c:3, h:4] = {reduce}[r:3] F[c, 2*h+r-1]\nY[c:3, h:4] = {quantised(dtype, zero, 'P[c, h]')}\noutput Y"
    )
    (form,) = integer_forms(program)
    assert f"Y[c:3, h:4] = {reduce}[r:3] X[c, 2*h+r-1]" in ee.text(form.end).splitlines()
    padding = form.end.inputs[0]
    assert padding.value == (np.iinfo(dtype).min if reduce == "max" else np.iinfo(dtype).max)
    assert [certify(step.before, step.after).kind for step in form.steps] == ["proved"] * len(form.steps)
    steps = [{**step.match.to_json(), "after": ee.text(step.after)} for step in form.steps]
    record = {"format": "einnet-explore record", "version": 1, "start": ee.text(program), "steps": steps}
    assert {v.kind for v in einnet_check.check(record)} == {"proved"}
    feeds = {"X": numbers(3, 9, dtype=dtype)}
    np.testing.assert_array_equal(evaluate(form.end, feeds)["Y"], evaluate(program, feeds, np.float32)["Y"])


def test_requantisation_needs_equal_parameters() -> None:
    def program(body: str) -> Program:
        return ee.parse(f"tensor X[256] uint8\nY[i:256] = {body}")

    scaled = "0.25 * (X[i] - 146)"
    start = program(quantised("uint8", 146, scaled))
    after = REQUANTISATION.match(start, (0,)).apply(start).after
    assert ee.text(after.equations[0].scope.body) == "X[i]" and certify(start, after).kind == "proved"
    feeds = {"X": np.arange(256, dtype=np.uint8)}
    np.testing.assert_array_equal(evaluate(start, feeds, np.float32)["Y"], feeds["X"])
    for body, why in (
        (quantised("uint8", 146, scaled, 0.5), "is no rounding or bound"),
        (quantised("uint8", 145, scaled), "is from -1 to 254, expected 0 to inf"),
        (quantised("int8", 146, scaled), "is from 0 to 255, expected -inf to 127"),
        (f"sum[j:2] {quantised('uint8', 146, scaled)}", "takes the sum"),
        ("X[i] + 0 * X[i]", "is no rounding or bound"),
        ("X[i]", "plus 0"),
    ):
        refused = program(body)
        with pytest.raises(Refused, match=why):
            REQUANTISATION.match(refused, (0,)).apply(refused)


def test_scales_of_added_bytes_are_divided_beforehand() -> None:
    program = ee.parse(
        "tensor A[8] uint8\ntensor B[8] uint8\nP[i:8] = 0.5 * (A[i] - 3)\nQ[i:8] = P[i] + 0.75 * B[i]\n"
        f"Y[i:8] = {quantised('uint8', 0, 'Q[i]')}\noutput Y"
    )
    (form,) = integer_forms(program)
    assert "round(0.5 / 0.25 * (A[i] - 3) + 0.75 / 0.25 * B[i])" in ee.text(form.end)
    assert [certify(step.before, step.after).kind for step in form.steps] == ["proved"] * len(form.steps)


def test_convolution_around_a_zero_point_is_one_candidate_kernel() -> None:
    """No library has padding that is not 0; the kernel of bytes has, so that nothing is copied."""
    program = ee.parse(
        "tensor X[3, 20, 20] uint8 pad [0, 1, 1] value 7\ntensor K[9, 3, 3, 3] int8 weight\n"
        "Y[f:9, h:20, w:20] = sum[c:3, r:3, s:3] X[c, h+r-1, w+s-1] * K[f, c, r, s]"
    )
    found = ee.search(program, max_depth=2).candidates
    assert any(not c.operators and len(c.program.equations) == 1 for c in found), [ee.text(c.program) for c in found]


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize("reduce", ["max", "sum"])
def test_overlapping_windows_with_padding_are_exact(reduce: str) -> None:
    """Loops over lanes are split where reads enter and leave the tensor."""
    program = ee.parse(
        "tensor X[2, 21, 37] uint8 pad [0, 1, 2] value 1\n"
        f"Y[n:2, h:11, w:19] = {reduce}[r:3, s:5] X[n, 2*h+r-1, 2*w+s-2]\noutput Y"
    )
    feeds = {"X": numbers(2, 21, 37, dtype="uint8")}
    made = compile_program(program)
    assert made.engines == {"Y": "c"}
    np.testing.assert_array_equal(made.run(feeds)["Y"], evaluate(program, feeds)["Y"])


CHANNELS, SIDE = 24, 120


def residual_network(seed: int) -> onnx.ModelProto:
    """Convolutions of bytes by channel and by tensor, a residual and a mean, with random scales.

    Sums and biases nearly cancel, so that a rounding of either to float32 moves numbers across a tie.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Any] = {}

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def given(value: Any, dtype: str = "float32") -> str:
        weights[f"c{len(weights)}"] = np.asarray(value, dtype)
        return f"c{len(weights) - 1}"

    def quantised(x: str, scale: Any, zero: int) -> str:
        parameters = given(scale), given(zero, "uint8")
        return add("DequantizeLinear", add("QuantizeLinear", x, *parameters), *parameters)

    def convolved(x: str, scale: Any, zero: int, result: Any, by_channel: bool) -> str:
        """Bytes around 127 with another zero point become such bytes, of the scale *result* and the zero point 3."""
        kernel = rng.integers(1, 128, (CHANNELS, CHANNELS, 3, 3))
        scales = rng.uniform(0.001, 0.002, CHANNELS if by_channel else ()).astype(np.float32)
        bias = kernel.sum((1, 2, 3)) * -(127 - zero) + 124 * result / (scale * scales)
        axis = {"axis": 0} if by_channel else {}
        filters = add("DequantizeLinear", given(kernel, "int8"), given(scales), **axis)
        offsets = add("DequantizeLinear", given(bias, "int32"), given(scale * scales), **axis)
        return quantised(add("Conv", x, filters, offsets, pads=[1, 1, 1, 1]), result, 3)

    scales = (rng.uniform(1, 2, 5) * (0.02, 0.06, 0.06, 0.15, 0.15)).astype(np.float32)
    image = add("DequantizeLinear", "x", given(scales[0]), given(1, "uint8"))
    first = convolved(image, scales[0], 1, scales[1], True)
    second = convolved(first, scales[1], 3, scales[2], False)
    third = quantised(add("Relu", add("Add", first, second)), scales[3], 0)
    fourth = convolved(third, scales[3], 0, scales[4], True)
    add("QuantizeLinear", add("GlobalAveragePool", fourth), given(scales[4] / 2), given(3, "uint8"))
    return model(nodes, {"x": np.zeros((1, CHANNELS, SIDE, SIDE), np.uint8)}, weights, **{nodes[-1].output[0]: "uint8"})


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_quantised_subprograms_are_equal_to_their_definition_bit_for_bit() -> None:
    network = load_model(residual_network(0))
    feeds = {"x": numbers(1, CHANNELS, SIDE, SIDE, dtype="uint8")}
    want = exact_values(network, feeds)
    calls, elements = {}, 0
    for part in partition(network).subprograms:
        program, names = part.anonymous.program, part.value_names(network)
        form = next(iter(integer_forms(program)), Derivation(program))
        for e in form.end.equations:
            form = generate_equation(form, e.name) if e.via is None else form
        weights = {t.name: network.weights[names[t.name]] for t in program.inputs if t.weight}
        made = compile_measured(fuse_eoperators(form).end, 1, weights, ProfileStore())
        given = {name: want[network.identifiers[names[name]]] for name in made.inputs}
        for name, found in made.run(given).items():
            np.testing.assert_array_equal(found, want[network.identifiers[names[name]]], err_msg=part.nodes[-1])
            elements += found.size
        calls[part.nodes] = ProgramCall(made, names)
    fast = sum("integers" in c.program.engines.values() for c in calls.values())
    assert elements > 1_000_000 and (fast == 3 or "avx512_vnni" not in cpu_flags())  # plain loops lose elsewhere
    (found,) = build_plan(network, calls, 1).run(feeds).values()
    np.testing.assert_array_equal(found, want[network.identifiers[network.outputs[0].name]])


def test_the_quotient_of_an_input_by_a_scale_has_the_precision_of_the_scale() -> None:
    """Next to a tie the rounding of the quotient decides: ONNX divides in the type of the scale."""
    scale = np.float32(0.0173)
    x = (np.arange(-100, 100, dtype=np.float32) + np.float32(0.5)) * scale
    proto = model([node("QuantizeLinear", "xsz", "y")], {"x": x}, {"s": scale, "z": np.int8(0)}, y="int8")
    want = run(proto, {"x": x})["y"]
    assert np.any(np.rint(x.astype(np.float64) / np.float64(scale)) != want)  # in float64 it is another one
    np.testing.assert_array_equal(np.rint(x / scale), want)
    program = whole(load_model(proto))
    np.testing.assert_array_equal(evaluate(program, {"x": x}, np.float64)["y"], want)
    if compiled.c_compiler():
        np.testing.assert_array_equal(compile_program(program).run({"x": x})["y"], want)


def test_a_computed_number_is_divided_as_it_is() -> None:
    nodes = [node("DequantizeLinear", "qs", "x"), node("QuantizeLinear", "xtz", "y")]
    weights = {"s": np.float32(0.02), "t": np.float32(0.03), "z": np.uint8(0)}
    program = whole(load_model(model(nodes, {"q": ROWS}, weights, y="uint8")))
    assert "float32(" not in ee.text(program)
    dynamic = whole(load_model(model([node("DynamicQuantizeLinear", "x", "yst")], {"x": numbers(9)}, {}, y="uint8")))
    assert ee.text(dynamic).count("float32(") == 2  # the scale and the quotient


def softmax_of_bytes() -> onnx.ModelProto:
    """A softmax between operators that quantise."""
    weights = {"s": np.float32(0.1), "v": np.float32(1 / 255), "z": np.uint8(0)}
    nodes = [node("DequantizeLinear", "qsz", "x"), node("Softmax", "x", "p"), node("QuantizeLinear", "pvz", "y")]
    return model(nodes, {"q": numbers(4, 8, dtype="uint8")}, weights, y="uint8")


def test_integer_forms_round_exactly_and_float32_does_not() -> None:
    (part,) = partition(load_model(dense(zero_point=-3)[0])).subprograms
    program = part.anonymous.program
    assert rounds_computed_values(program) and not rounds_exactly(program)
    (form,) = integer_forms(program)
    assert rounds_exactly(fuse_eoperators(form).end)
    _, operator = dense()
    assert rounds_computed_values(whole(load_model(operator))) and rounds_exactly(whole(load_model(operator)))
    softmax = whole(load_model(softmax_of_bytes()))
    assert rounds_computed_values(softmax) and not rounds_exactly(softmax)


@pytest.mark.parametrize(
    ("body", "computed", "exact"),
    [
        ("Y[i:9] = int8(round(X[i] / 0.3))", False, True),  # one operation
        ("F[i:9] = relu(X[8 - i])\nY[i:9] = int8(round(F[i] / 0.3))", True, True),  # nothing is rounded before
        ("F[i:9] = 0.2 * X[i]\nY[i:9] = int8(round(F[i] / 0.3))", True, False),
        ("F[i:9] = 0.2 * A[i]\nY[i:9] = int8(round(F[i] / 0.3))", True, True),  # F is float64
        ("F[i:9] = exp(X[i])\nY[i:9] = int8(round(F[i]))", True, False),
        ("Y[i:9] = int8(round(exp(X[i])))", False, False),
        ("F[i:9] = max[k:2] X[i - k]\nY[i:9] = int8(round(F[i] / 0.3))", True, True),
        ("F[i:9] = sum[k:2] X[i - k]\nY[i:9] = int8(round(F[i] / 0.3))", True, False),
        ("Y[i:9] = 0.3 * X[i]", False, True),  # rounds nothing
        ("F[i:9] = int32(A[i]) + 1\nY[i:9] = int8(round(F[i]))", False, True),
    ],
)
def test_what_is_computed_before_a_rounding_decides_whether_it_is_exact(body: str, computed: bool, exact: bool) -> None:
    program = ee.parse(f"tensor X[9] pad [2]\ntensor A[9] int8\n{body}\noutput Y")
    assert (rounds_computed_values(program), rounds_exactly(program)) == (computed, exact)


CHANNELS_LAST = """tensor X[2, {h}, {w}, {c}] {kind} pad [0, (1, 2), (2, 1), 0] value {value}
tensor K[{f}, {c}, 3, 3] int8 weight
Y[n:2, h:{rows}, w:{columns}, f:{f}] = sum[c:{c}, r:3, s:3] X[n, {step}*h+r-1, w+s-2, c] * K[f, c, r, s]
output Y"""


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize(("kind", "value"), [("uint8", 0), ("uint8", 7), ("int8", 0)])
@pytest.mark.parametrize(("c", "f", "step"), [(8, 33, 1), (3, 64, 2), (64, 5, 2)])
def test_products_with_channels_last_are_copied_line_by_line(kind: str, value: int, c: int, f: int, step: int) -> None:
    rows = 8 if step == 1 else 4
    text = CHANNELS_LAST.format(h=7, w=6, rows=rows, columns=7, kind=kind, value=value, c=c, f=f, step=step)
    program = ee.parse(text)
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs}
    kernel = integer_products.integer_product(program.equations[0].scope, ("K",), {})
    assert kernel is not None and kernel.copy is not None
    assert (kernel.copy.spread, kernel.copy.line, kernel.by_column) == (1, 6 * c, 1)
    made = compile_program(program, constants={"K": given["K"]})
    assert made.engines["Y"] == "integers"
    np.testing.assert_array_equal(made.run({"X": given["X"]})["Y"], evaluate(program, given)["Y"])


CHAIN = """tensor X[1, 8, 14, 14] uint8 pad [0, 0, 1, 1]
tensor K[16, 8, 3, 3] int8 weight
tensor L[16, 16, 3, 3] int8 weight
tensor S[16] float64 weight
T[n:1, f:16, h:14, w:14] = sum[c:8, r:3, s:3] X[n, c, h+r-1, w+s-1] * K[f, c, r, s] via eOperator(kind="reduction")
Q[n:1, f:16, h:14, w:14] = uint8(relu(round(S[f] * T[n, f, h, w]))) pad [0, 0, 1, 1] via eOperator(kind="elementwise")
M[n:1, f:16, h:7, w:7] = max[r:3, s:3] Q[n, f, 2*h+r-1, 2*w+s-1] pad [0, 0, 1, 1] via eOperator(kind="reduction")
U[n:1, f:16, h:7, w:7] = sum[c:16, r:3, s:3] M[n, c, h+r-1, w+s-1] * L[f, c, r, s] via eOperator(kind="reduction")
Y[n:1, f:16, h:7, w:7] = U[n, f, h, w] + T[n, f, 2*h, 2*w] via eOperator(kind="elementwise")
output Y"""


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_layouts_between_products_of_bytes_have_channels_last() -> None:
    program = ee.parse(CHAIN)
    back = LayoutProblem(program, estimate_equation).transform(("T", 1, 0))
    assert back == PROHIBITIVE_SECONDS  # a copy in the own layout is not derived, so it is not chosen
    done = assign_layouts(Derivation(program), estimate_equation, None)
    shapes = {e.name: e.scope.shape for e in done.end.equations}
    assert shapes["T"] == shapes["Q"] == (1, 14, 14, 16) and shapes["M"] == (1, 7, 7, 16)
    assert shapes["Y"] == (1, 16, 7, 7)
    assert combined_verdict(step_certificates(done)) == "proved"
    given = {t.name: numbers(*t.shape, dtype=t.dtype) for t in program.inputs if t.dtype != "float64"}
    given["S"] = np.linspace(1e-4, 3e-3, 16)
    constants = {name: given[name] for name in "KLS"}
    plain, made = (compile_program(p, constants=constants) for p in (program, done.end))
    assert made.engines["T"] == made.engines["U"] == "integers"
    found = made.run({"X": given["X"]})["Y"]
    np.testing.assert_array_equal(found, plain.run({"X": given["X"]})["Y"])
    assert len(np.unique(found)) > 99


def test_products_of_bytes_are_no_calls_of_libraries() -> None:
    program = ee.parse(
        "tensor A[8, 16] uint8\ntensor B[16, 4] int8\nY[m:8, n:4] = sum[k:16] A[m, k] * B[k, n]\noutput Y"
    )
    with pytest.raises(Refused, match="sums products of bytes"):
        match_operator(program.equations[0].scope, next(o for o in OPERATORS if o.name == "Matmul"))


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_pooling_with_channels_last_has_loops_without_conditions() -> None:
    program = ee.parse(
        "tensor X[2, 9, 8, 35] uint8 pad [0, 1, 1, 0]\nY[n:2, h:5, w:4, c:35] = max[r:3, s:3] X[n, 2*h+r-1, 2*w+s-1, c]"
    )
    text = c_kernels.NativeSource(program.equations[0].scope, 1).text
    loops = [line for line in text.splitlines() if "maximum_uint8(maximum_uint8(" in line]
    assert len(loops) > 1 and any("?" not in line for line in loops)
    given = {"X": numbers(2, 9, 8, 35, dtype="uint8")}
    np.testing.assert_array_equal(compile_program(program).run(given)["Y"], evaluate(program, given)["Y"])
