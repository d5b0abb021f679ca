"""Programs whose equations are run by library operators, views, matrix products and kernels, against evaluation."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from einnet_explore.analysis.products import match_matrix_product
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Instance, Program, tensors
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.runtime import onnx_fragment
from einnet_explore.runtime.program import BoundProgram, CompiledProgram, compile_program, set_blas_threads
from einnet_explore.support.errors import BackendError
from einnet_explore.syntax import parse

CALLS: Mapping[str, Mapping[str, int]] = {
    "Matmul": {"m": 7, "n": 9, "k": 5},
    "BatchMatmul": {"b": 3, "m": 7, "n": 9, "k": 5, "ta": 1, "tb": 1},
    "Conv1d": {"n": 2, "f": 3, "c": 4, "h": 8, "r": 3, "H": 8, "sh": 1, "dh": 1, "ph": 1},
    "Conv2d": {
        "n": 2, "g": 2, "f": 3, "c": 4, "h": 4, "w": 5, "r": 3, "s": 2, "H": 8, "W": 7,
        "sh": 2, "sw": 1, "dh": 1, "dw": 2, "ph": 1, "pw": 0,
    },
    "ConvTranspose2d": {
        "n": 1, "f": 3, "c": 4, "y": 8, "x": 6, "h": 4, "w": 3, "R": 4, "S": 4, "sh": 2, "sw": 2, "ph": 1, "pw": 1,
    },
    "G2BMM": {"b": 2, "m": 12, "w": 5, "k": 8, "W": 2, "d": 3},
    "GBMM": {"b": 2, "m": 12, "n": 8, "w": 5, "W": 2, "d": 3},
}  # fmt: skip


def called(name: str, attributes: Mapping[str, int], operators: tuple[Operator, ...] = OPERATORS) -> Equation:
    operator = next(o for o in operators if name in o.names)
    return Equation("Y", operator.instantiate(attributes), Instance(name, tuple(attributes.items())))


def whole(*equations: Equation) -> Program:
    made = {e.name for e in equations}
    inputs = {t.name: t for e in equations for t in tensors(e.scope) if t.name not in made}
    return Program(tuple(inputs.values()), equations, (equations[-1].name,))


def check(program: Program, weights: tuple[str, ...] = (), **options: object) -> CompiledProgram:
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    constants = {name: arrays[name] for name in weights}
    compiled = compile_program(program, constants=constants, **options)  # type: ignore[arg-type]
    expected = evaluate(program, arrays, np.float64)
    for _ in range(2):
        found = compiled.run({name: a for name, a in arrays.items() if name not in weights})
        for name in program.outputs:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)
    return compiled


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize("weights", [(), (1,), (0, 1)])
@pytest.mark.parametrize("name", CALLS)
def test_library_operator_runs_in_its_engine(name: str, weights: tuple[int, ...]) -> None:
    equation = called(name, CALLS[name])
    program = whole(equation)
    operator = next(o for o in OPERATORS if name in o.names)
    compiled = check(program, tuple(program.inputs[n].name for n in weights))
    engine = "onnxruntime" if operator.onnx else "c"
    assert compiled.engines["Y"] == ("constant" if len(weights) == 2 else engine)


def test_users_operators_need_no_onnx_form() -> None:
    mine = Operator("SquaredDistance", "D[m, n] = sum[k] A[m, k] - B[n, k]")
    attributes = {"m": 6, "n": 7, "k": 5}
    compiled = check(whole(called("SquaredDistance", attributes, (mine,))), operators=(mine,))
    assert compiled.engines["Y"] == "c"


def test_mixed_program_runs_in_one_session() -> None:
    compiled = check(_mixed(), ("K",))
    assert compiled.engines == {"A": "view", "B": "constant", "T": "onnxruntime", "V": "view", "Y": "c"}
    assert len(compiled.calls) == 1  # one session


def _mixed() -> Program:
    made = parse("""
    tensor X[1, 6, 7, 8]
    tensor K[3, 3, 4, 8] weight
    A[m:42, k:8] = X[0, m // 7, m % 7, k]
    B[j:36, k:8] = K[j // 12, j // 4 % 3, j % 4, k] * 2
    T[m:42, n:36] = sum[k:8] A[m, k] * B[n, k]
    V[h:6, w:7, r:3, s:3, f:4] = T[7*h + w, 12*r + 4*s + f]
    Y[n:1, f:4, h:6, w:7] = sum[r:3, s:3] where(h+r-1 >= 0, V[(h+r-1) % 6, w, r, s, f], 0)
    """)
    vias = {
        "A": Instance(VIEW),
        "B": Instance(EOPERATOR),
        "T": Instance("Matmul", (("m", 42), ("n", 36), ("k", 8), ("tb", 1))),
        "V": Instance(VIEW),
        "Y": Instance(EOPERATOR),
    }
    return replace(made, equations=tuple(replace(e, via=vias[e.name]) for e in made.equations))


PRODUCTS = {
    "plain": "tensor A[6, 5]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5] A[m, k] * B[k, n]",
    "transposed result": "tensor A[6, 5]\ntensor B[5, 7]\nY[n:7, m:6] = sum[k:5] A[m, k] * B[k, n]",
    "both transposed": "tensor A[5, 6]\ntensor B[7, 5]\nY[m:6, n:7] = sum[k:5] A[k, m] * B[n, k]",
    "batch": "tensor A[3, 6, 5]\ntensor B[3, 5, 7]\nY[b:3, m:6, n:7] = sum[k:5] A[b, m, k] * B[b, k, n]",
    "batch inside": "tensor A[6, 3, 5]\ntensor B[5, 3, 7]\nY[b:3, m:6, n:7] = sum[k:5] A[m, b, k] * B[k, b, n]",
    "merged": "tensor A[4, 6, 5]\ntensor B[5, 7, 2]\nY[i:4, m:6, n:7, j:2] = sum[k:5] A[i, m, k] * B[k, n, j]",
    "split rows": "tensor A[4, 6, 5]\ntensor B[5, 7]\nY[i:6, m:4, n:7] = sum[k:5] A[m, i, k] * B[k, n]",
    "two sums": "tensor A[6, 3, 5]\ntensor B[3, 5, 7]\nY[m:6, n:7] = sum[j:5, k:3] A[m, k, j] * B[k, j, n]",
    "overlapping windows": "tensor A[40]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5] A[3*m + k] * B[k, n]",
    "part of a tensor": "tensor A[9, 9]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5] A[m+2, k+3] * B[k, n]",
    "vector": "tensor A[6, 5]\ntensor B[5]\nY[m:6] = sum[k:5] A[m, k] * B[k]",
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matrix_products_by_strides(name: str) -> None:
    assert check(parse(PRODUCTS[name])).engines["Y"] == "matmul"


@pytest.mark.usefixtures("wide_vectors")
@pytest.mark.parametrize(
    "text",
    [
        "tensor A[6, 5] pad [1, 0]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5] A[m-1, k] * B[k, n]",
        "tensor A[6, 5]\ntensor B[5, 7]\nY[m:6, n:7] = max[k:5] A[m, k] * B[k, n]",
        "tensor A[6, 5]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5, j:2] A[m, k] * B[k, n]",
        "tensor A[6, 5]\ntensor B[5, 7]\nY[m:6, n:7, i:2] = sum[k:5] A[m, k] * B[k, n]",
        "tensor A[6, 9]\ntensor B[5, 7]\nY[m:6, n:7] = sum[k:5] A[m, k*5//3] * B[k, n]",
        "tensor A[6, 7]\ntensor B[6, 7]\nY[m:6, n:7] = A[m, n] * B[m, n]",
        "tensor A[6, 7]\ntensor B[6, 7]\nY[m:6] = sum[n:7] A[m, n] * B[m, n]",
        "tensor A[1]\ntensor B[1]\nY[m:1] = A[0] * B[0]",
    ],
)
def test_other_scopes_are_no_matrix_products(text: str) -> None:
    program = parse(text)
    assert match_matrix_product(program.equations[0].scope) is None
    assert check(program).engines["Y"] == "c"


def test_results_are_the_callers_own() -> None:
    compiled = compile_program(parse("tensor A[4]\nY[i:4] = A[i] + 1"))
    first = compiled.run({"A": np.zeros(4)})["Y"]
    compiled.run({"A": np.ones(4)})
    np.testing.assert_array_equal(first, np.ones(4))


def test_without_custom_ops_a_program_is_run_by_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_fragment, "custom_ops_available", lambda: False)
    compiled = check(_mixed(), ("K",))
    assert len(compiled.calls) == 2
    assert compiled.write({"X": "x", "Y": "y"}, "/") is None


@pytest.mark.parametrize("in_session", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_programs_run_in_several_threads_at_once(
    threads: int, in_session: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every caller gets the results of its own inputs, and what it was given stays as it is."""
    if not in_session:
        monkeypatch.setattr(onnx_fragment, "custom_ops_available", lambda: False)
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((3, 3, 4, 8)).astype(np.float32)
    compiled = compile_program(_mixed(), threads, constants={"K": weights})
    given = [rng.standard_normal((1, 6, 7, 8)).astype(np.float32) for _ in range(6)]
    wanted = [evaluate(_mixed(), {"X": x, "K": weights}, np.float64)["Y"] for x in given]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: compiled.run({"X": given[n % 6]})["Y"], range(120)))
    for n, array in enumerate(found):
        np.testing.assert_allclose(array, wanted[n % 6], rtol=1e-4, atol=1e-4)


def test_contexts_lay_their_buffers_over_each_other() -> None:
    compiled = compile_program(
        parse("""
        tensor A[1000]
        B[i:1000] = exp(A[i])
        C[i:1000] = B[999 - i] + 1
        D[i:1000] = C[999 - i] * 2
        Y[i:1000] = D[i] + A[i]
        """)
    )
    arena = compiled.contexts.arena
    assert arena.separate == 4 * 4032
    assert arena.size == 2 * 4032
    array = np.linspace(-1, 1, 1000, dtype=np.float32)
    for _ in range(2):
        np.testing.assert_allclose(compiled.run({"A": array})["Y"], (np.exp(array) + 1) * 2 + array, rtol=1e-6)


def test_buffer_of_a_view_is_live_until_the_last_read_of_the_view() -> None:
    made = parse("""
    tensor A[40]
    B[i:40] = A[i] + 1
    V[i:4, j:10] = B[10*i + j]
    C[i:40] = A[i] * 3
    D[i:4, j:10] = C[10*i + j] - 2
    Y[i:4, j:10] = V[i, j] + D[i, j]
    """)
    viewed = replace(
        made, equations=(made.equations[0], replace(made.equations[1], via=Instance(VIEW)), *made.equations[2:])
    )
    assert check(viewed).engines["V"] == "view"


def test_views_that_a_session_has_to_move() -> None:
    """A library call on a window of a tensor and on a transposed one: strided views, which sessions do not have."""
    made = parse("""
    tensor A[9, 6]
    tensor B[7, 6]
    V[m:5, k:6] = A[m + 2, k]
    W[k:6, n:7] = B[n, k]
    T[m:5, n:7] = sum[k:6] V[m, k] * W[k, n]
    U[n:7, m:5] = T[m, n]
    output U, V
    """)
    vias = (VIEW, VIEW, "Matmul", VIEW)
    attributes = (("m", 5), ("n", 7), ("k", 6))
    program = replace(
        made,
        equations=tuple(
            replace(e, via=Instance(via, attributes if via == "Matmul" else ()))
            for e, via in zip(made.equations, vias, strict=True)
        ),
    )
    compiled = check(program)
    assert compiled.engines == {"V": "view", "W": "view", "T": "onnxruntime", "U": "view"}
    assert len(compiled.calls) == 1


def test_a_session_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such node")

    compiled = compile_program(whole(called("Matmul", {"m": 3, "n": 17, "k": 29})))
    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    with pytest.raises(BackendError, match="ONNX Runtime refuses the program: no such node"):
        compiled.run({t.name: np.zeros(t.shape) for t in compiled.program.inputs})
    with pytest.raises(BackendError, match="equation Y: RuntimeError: no such node"):
        compiled.contexts.context()


def test_views_of_inputs_may_be_outputs() -> None:
    made = parse("tensor A[6]\nY[i:2, j:3] = A[5 - 3*i - j]\nZ[j:3, i:2] = Y[i, j] * 2\noutput Y, Z")
    viewed = replace(made, equations=(replace(made.equations[0], via=Instance(VIEW)), made.equations[1]))
    assert check(viewed).engines == {"Y": "view", "Z": "c"}


def test_blas_threads_can_be_set() -> None:
    assert set_blas_threads(1) in (True, False)


def test_bound_program_reads_and_writes_arrays_of_its_own_in_place() -> None:
    compiled = compile_program(parse("tensor A[3, 4]\nY[i:3, j:4] = exp(A[i, j])"))
    given = np.arange(12, dtype=np.float32).reshape(3, 4) / 12
    bound = compiled.bind({"A": given})
    assert isinstance(bound, BoundProgram)
    first = bound()["Y"]
    np.testing.assert_array_equal(first, compiled.run({"A": given})["Y"])
    assert first is not compiled.outputs["Y"]  # another context
    bound.context.inputs["A"][...] = 0
    assert bound()["Y"] is first and (first == 1).all()
    assert (compiled({"A": given})["Y"] != 1).any()
    with pytest.raises(BackendError, match="input A has shape \\[4, 3\\]"):
        compiled.bind({"A": given.T})


def test_bound_program_of_several_threads_has_the_values_of_a_run() -> None:
    compiled = compile_program(whole(called("Matmul", CALLS["Matmul"])), threads=2)
    given = {t.name: np.ones(t.shape, np.float32) for t in compiled.program.inputs}
    np.testing.assert_array_equal(compiled.bind(given)()["Y"], compiled.run(given)["Y"])
