"""Operators as values: patterns, iterator tables (Table 2), instantiation, ONNX calls, canonical checks."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import VIEW, Equation, Instance, Iterator, Scope, Tensor, tensors
from einnet_explore.operators import expressions
from einnet_explore.operators.library import OPERATORS, check_canonical
from einnet_explore.operators.operator import Attributes, Operator
from einnet_explore.operators.pattern import parse_pattern
from einnet_explore.support.errors import Refused

NAMED = {operator.name: operator for operator in OPERATORS}


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("Add", {"YYY": ("i",)}),
        ("Matmul", {"YYY": ("b",), "YNY": ("m",), "NYY": ("n",), "YYN": ("k",)}),
        ("Conv2d", {"YNY": ("n", "h", "w"), "YYY": ("g",), "NYY": ("f",), "YYN": ("c", "r", "s")}),
        ("Conv1d", {"YNY": ("n", "h"), "YYY": ("g",), "NYY": ("f",), "YYN": ("c", "r")}),
        ("ConvTranspose2d", {"YNY": ("n",), "YYY": ("g",), "NYY": ("f", "y", "x"), "YYN": ("c", "h", "w")}),
        ("G2BMM", {"YYY": ("b", "m"), "NYY": ("w",), "YYN": ("k",)}),
        ("GBMM", {"YYY": ("b", "m"), "NYY": ("n",), "YYN": ("w",)}),
        ("MaxPool2d", {"YY": ("n", "c", "h", "w"), "YN": ("r", "s")}),
    ],
)
def test_table_2_is_derived(name: str, groups: dict[str, tuple[str, ...]]) -> None:
    assert dict(NAMED[name].table.groups) == groups


def test_table_holds_coefficients() -> None:
    held = dict(NAMED["Conv2d"].table.coefficients)
    assert held["h", "X"] == ("0", "0", "0", "sh", "0")
    assert held["r", "X"] == ("0", "0", "0", "dh", "0")
    assert dict(NAMED["G2BMM"].table.coefficients)["w", "B"] == ("0", "d", "0")
    assert NAMED["Matmul"].table.group("NNY") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("C[m] = A[m", "found 'the end', expected ']'"),
        ("C[m] = sum[k] A[m, k] * B[k] + D[m]", r"found '\+' after '\*'"),
        ("C[m] = sum[k] A[m]", "no operand reads k"),
        ("C[m] = A[m] * B[k]", "found k in the index k, expected one of m, the iterators that are declared"),
        ("C[m, m] = A[m]", "an iterator stands twice"),
        ("C[m] = sum[k] A[m + k]", "needs an extent"),
        ("C[m] = sum[k] A[m*k : H]", "multiplies iterators k and m"),
        ("C[m] = A[m] $", r"unexpected '\$'"),
        ("C[m, n] = A[m, n] or t[m, m]", "is no other order"),
        ("C[m] = A[+]", "found '\\+', expected a name or a number"),
        ("= A[m]", "found '=', expected a name"),
    ],
)
def test_invalid_patterns_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_pattern(text)


def test_instantiate_wants_every_attribute() -> None:
    with pytest.raises(ValueError, match=r"Matmul: attributes n, k are missing, given \{'m': 2\}"):
        NAMED["Matmul"].instantiate({"m": 2})


def test_instantiate_wants_the_operands_shapes_and_reach() -> None:
    matmul, band = NAMED["Matmul"], NAMED["G2BMM"]
    with pytest.raises(ValueError, match=r"operand A has box \(\(0, 3\), \(0, 3\)\), expected shape \(2, 3\)"):
        matmul.instantiate({"b": 1, "m": 2, "n": 4, "k": 3}, (Tensor("A", (3, 3)), Tensor("B", (3, 4))))
    attributes = {"b": 1, "m": 5, "w": 3, "k": 2, "d": 2, "W": 1}
    a, b = Tensor("A", (5, 2)), Tensor("B", (5, 2), ((2, 1), (0, 0)))
    with pytest.raises(ValueError, match=r"dimension 0 of B is read in \[-2, 7\), its reach is \[-2, 6\)"):
        band.instantiate(attributes, (a, b))
    with pytest.raises(ValueError, match="B is 7 outside, expected 0"):
        band.instantiate(attributes, (a, replace(b, padding=((2, 2), (0, 0)), value=7)))


def test_transposed_operands_are_part_of_the_meaning() -> None:
    scope = NAMED["Matmul"].instantiate({"b": 1, "m": 2, "n": 4, "k": 3, "ta": 1, "tb": 1})
    a, b = np.arange(6).reshape(3, 2), np.arange(12).reshape(4, 3)
    assert np.array_equal(evaluate(scope, {"A": a, "B": b}), a.T @ b.T)


CALLS: list[tuple[str, Attributes]] = [
    ("Matmul", {"b": 1, "m": 2, "n": 5, "k": 3}),
    ("Matmul", {"b": 4, "m": 2, "n": 5, "k": 3, "ta": 1}),
    ("Matmul", {"b": 4, "m": 2, "n": 5, "k": 3, "ta": 1, "tb": 1}),
    ("Conv1d", {"n": 2, "g": 3, "f": 2, "h": 4, "c": 2, "r": 3, "sh": 2, "dh": 2, "ph": 1, "H": 10}),
    (
        "Conv2d",
        {"n": 2, "g": 1, "f": 3, "h": 5, "w": 4, "c": 2, "r": 3, "s": 2}
        | {"sh": 1, "dh": 1, "ph": 2, "H": 4, "sw": 2, "dw": 3, "pw": 1, "W": 9},
    ),
    (
        "Conv3d",
        {"n": 1, "g": 2, "f": 2, "d": 3, "h": 2, "w": 4, "c": 2, "q": 2, "r": 3, "s": 1}
        | {"sd": 1, "dd": 2, "pd": 1, "D": 4, "sh": 2, "dh": 1, "ph": 0, "H": 5, "sw": 1, "dw": 1, "pw": 0, "W": 4},
    ),
    ("ConvTranspose1d", {"n": 2, "g": 1, "f": 3, "y": 8, "c": 2, "h": 4, "sh": 2, "ph": 1, "R": 3}),
    (
        "ConvTranspose2d",
        {"n": 2, "g": 2, "f": 3, "y": 8, "x": 7, "c": 2, "h": 4, "w": 3}
        | {"sh": 2, "ph": 1, "R": 4, "sw": 3, "pw": 0, "S": 1},
    ),
    (
        "MaxPool2d",
        {"n": 2, "c": 3, "h": 4, "w": 3, "r": 3, "s": 2}
        | {"sh": 2, "dh": 1, "ph": 1, "H": 7, "sw": 2, "dw": 2, "pw": 0, "W": 7},
    ),
    (
        "AveragePool2d",
        {"n": 1, "c": 3, "h": 4, "w": 3, "r": 3, "s": 2}
        | {"sh": 2, "dh": 1, "ph": 1, "H": 7, "sw": 2, "dw": 1, "pw": 1, "W": 4},
    ),
    ("Add", {"i": 6}),
    ("Sub", {"i": 6}),
    ("Mul", {"i": 6}),
    ("Div", {"i": 6}),
]


@pytest.mark.parametrize(("name", "attributes"), CALLS)
def test_onnx_runtime_computes_the_canonical_expression(name: str, attributes: Attributes) -> None:
    operator = NAMED[name]
    scope = operator.instantiate(attributes)
    rng = np.random.default_rng(7)
    held = {t.name: rng.integers(1, 9, t.shape).astype(np.float32) for t in tensors(scope)}
    assert operator.onnx is not None
    call = operator.onnx(attributes)
    assert call is not None
    fed = [held[o.name] for o in operator.pattern.operands]
    fed = [
        (x.reshape(s) if p is None else x.reshape(s).transpose(p))
        for x, s, p in zip(fed, call.shapes, call.permutations, strict=True)
    ]
    node = helper.make_node(call.op_type, [f"x{i}" for i in range(len(fed))], ["y"], **dict(call.attributes))
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, x.shape) for i, x in enumerate(fed)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, call.output)
    graph = helper.make_graph([node], "g", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {f"x{i}": np.ascontiguousarray(x) for i, x in enumerate(fed)})
    assert found.shape == call.output
    assert np.allclose(found.reshape(scope.shape), evaluate(scope, held, "float64"), rtol=1e-5)


def test_calls_that_onnx_cannot_express_have_no_node() -> None:
    transpose, pool = NAMED["ConvTranspose1d"].onnx, NAMED["MaxPool2d"].onnx
    assert transpose is not None and pool is not None
    long = {"n": 1, "g": 1, "f": 1, "y": 12, "c": 1, "h": 4, "sh": 2, "ph": 1, "R": 3}
    assert transpose(long) is None
    wide = dict(CALLS[8][1]) | {"ph": 3}
    assert pool(wide) is None
    assert NAMED["G2BMM"].onnx is None and NAMED["GBMM"].onnx is None


def test_an_equation_is_checked_against_what_runs_it() -> None:
    matmul = NAMED["Matmul"]
    attributes = {"b": 1, "m": 2, "n": 4, "k": 3}
    scope = matmul.instantiate(attributes)
    good = Equation("T", scope, matmul.instance(attributes))
    assert good.via == Instance("Matmul", tuple(attributes.items()))
    check_canonical(good)
    check_canonical(replace(good, via=None))
    check_canonical(replace(good, via=Instance("eOperator")))
    renamed = replace(good, scope=replace(scope, padding=((1, 1), (0, 0))))
    check_canonical(renamed)
    said = {
        "unknown operator Gemm": replace(good, via=Instance("Gemm", good.via.attributes)),
        "expected shape \\(5, 3\\)": replace(good, via=matmul.instance(attributes | {"m": 5})),
        "means .* found": replace(good, scope=replace(scope, reduce="max")),
        "reads 1": replace(good, scope=Scope(scope.traversals, (), Tensor("A", (2, 4))[scope.traversals])),
        "a view has no summations, found 1": replace(good, via=Instance(VIEW)),
        "is called BatchMatmul": replace(good, via=Instance("BatchMatmul", good.via.attributes)),
    }
    for message, equation in said.items():
        with pytest.raises(Refused, match=f"^T: .*{message}"):
            check_canonical(equation)


def test_a_view_is_affine_and_inside() -> None:
    x, y = Iterator("x", 0, 4), Iterator("y", 0, 3)
    a = Tensor("A", (3, 4), ((0, 1), (0, 0)))

    def check_view(*index: object) -> None:
        check_canonical(Equation("V", Scope((x, y), (), a[index]), Instance(VIEW)))  # type: ignore[index]

    check_view(y, x)
    with pytest.raises(Refused, match=re.escape("dimension 0 is read in [1, 3], the elements lie in [0, 3)")):
        check_view(y + 1, x)
    with pytest.raises(Refused, match="is not affine"):
        check_view(y, (x + y) % 4)


def test_a_user_adds_an_operator_with_one_value() -> None:
    ger = Operator("Ger", "Y[m, n] = X[m] * Z[n]")
    assert dict(ger.table.groups) == {"YNY": ("m",), "NYY": ("n",)}
    three = Operator("Bilinear", "Y[m] = sum[i, j] X[m, i] * W[i, j] * Z[m, j]")
    assert dict(three.table.groups) == {"YNYY": ("m",), "YYNN": ("i",), "NYYN": ("j",)}


def test_expressions_refuse_what_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="5 groups do not divide 4 input and 5 output channels"):
        expressions.conv2d(N=1, H=4, W=4, C=4, F=5, R=3, S=3, groups=5)
    with pytest.raises(ValueError, match="9 taps, dilation 1, stride 1 on 4 points padded by"):
        expressions.conv2d(N=1, H=4, W=4, C=4, F=5, R=9, S=3, padding=0)
    with pytest.raises(ValueError, match="layout 'HWC': expected NHWC or NCHW"):
        expressions.max_pool2d(N=1, H=4, W=4, C=4, R=2, S=2, layout="HWC")
    with pytest.raises(ValueError, match="the output would have 0x4 points"):
        expressions.conv_transpose2d(N=1, H=1, W=4, in_channels=1, out_channels=1, R=2, S=1, padding=(1, 0))
    with pytest.raises(ValueError, match="k has extent 0"):
        expressions.matmul(1, 1, 0)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: expressions.conv2d(H=4, W=4, C=4, F=4, R=3, S=3, groups=0), "0 groups do not divide 4 input"),
        (lambda: expressions.conv2d(H=4, W=4, C=4, F=4, R=3, S=3, groups=-2), "-2 groups do not divide"),
        (lambda: expressions.conv2d(H=4, W=4, C=4, F=4, R=3, S=3, padding=(1, 1, 1)), r"padding \(1, 1, 1\): expected"),
        (
            lambda: expressions.conv_transpose2d(H=2, W=2, out_channels=1, in_channels=1, R=2, S=2, stride=0),
            "with a stride of 0x0",
        ),
        (lambda: expressions.unary("softplus", 3), "function 'softplus': expected one of relu, tanh"),
        (lambda: expressions.unary("pow", 3), "function 'pow': expected one of relu"),
        (lambda: expressions.binary("minus", 3), "operation 'minus': expected one of"),
        (lambda: expressions.binary("relu", 3), "operation 'relu': expected one of"),
        (lambda: expressions.relu(3, 0), "x1 has extent 0, expected at least 1"),
    ],
)
def test_invalid_operator_arguments_are_refused(made: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made()


def test_a_transposed_convolution_from_its_own_definition() -> None:
    """The golden of the conformance cases: N1 H=W=2 F3 C2, k4 s2 p1, iota inputs, its kernel is held FRSC."""
    made = expressions.conv_transpose2d(N=1, H=2, W=2, in_channels=3, out_channels=2, R=4, S=4, stride=2, padding=1)
    kernel = np.arange(3 * 4 * 4 * 2).reshape(3, 4, 4, 2).transpose(1, 2, 3, 0)
    found = evaluate(made, {"A": np.arange(12).reshape(1, 2, 2, 3), "K": kernel})["Y"]
    golden = """
    190 193 740 755 770 785 592 604 992 1016 2704 2770 2836 2902 1832 1874 1184 1208 3232 3298 3364 3430 2168
    2210 1114 1135 2660 2711 2762 2813 1624 1654
    """
    assert found.ravel().tolist() == [int(word) for word in golden.split()]


def test_channels_have_the_names_of_torch_and_old_letters_work() -> None:
    sizes = {"H": 4, "W": 5, "R": 3, "S": 3}
    named = expressions.conv2d(**sizes, in_channels=2, out_channels=6, padding="same")
    assert named == expressions.conv2d(**sizes, C=2, F=6, padding=1)
    plain = expressions.conv2d(**sizes, C=2, F=6)
    assert plain == expressions.conv2d(**sizes, C=2, F=6, padding="valid")
    assert [x.extent for x in plain.equations[0].scope.traversals] == [1, 2, 3, 6]
    assert [t.shape for t in named.inputs] == [(1, 4, 5, 2), (3, 3, 6, 2)]
    new = expressions.conv_transpose2d(**sizes, in_channels=2, out_channels=6)
    assert [t.shape for t in new.inputs] == [(1, 4, 5, 2), (3, 3, 6, 2)]
    with pytest.warns(DeprecationWarning, match="write in_channels= for F and out_channels= for C"):
        assert expressions.conv_transpose2d(**sizes, F=2, C=6) == new
    with pytest.raises(TypeError, match="found 0 of F and out_channels, expected one of them"):
        expressions.conv2d(**sizes, C=2)
    with pytest.raises(TypeError, match="found 2 of C and in_channels, expected one of them"):
        expressions.conv2d(**sizes, C=2, in_channels=2, F=1)
    with pytest.raises(ValueError, match="padding 'full': expected one number, two, four, 'same' or 'valid'"):
        expressions.conv2d(**sizes, C=2, F=6, padding="full")
