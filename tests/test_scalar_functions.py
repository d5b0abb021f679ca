"""Every entry of ``ir/scalar_functions.py`` works in every layer: a new entry is tested without a new test."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import einnet_check
import einnet_explore as ee
from einnet_explore.codegen.language.dialects import CUDA, OPENCL, C, Dialect
from einnet_explore.codegen.language.values import F32
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.running_error import running_error
from einnet_explore.ir import ELEMENT_TYPES, Apply, Iterator, Program, Scope, Tensor
from einnet_explore.ir.scalar_functions import FUNCTIONS, SCALAR_FUNCTIONS, ScalarFunction
from einnet_explore.onnx_import import operators_by_name
from einnet_explore.onnx_import.elementwise import ELEMENTWISE
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import aligned, aligned_empty
from einnet_explore.runtime.c_kernels import NativeSource
from einnet_explore.runtime.implementations import NativeCall
from einnet_explore.runtime.tvm_cpu import TvmSource, load_tvm_kernel

NAMES = tuple(name for name in FUNCTIONS if name != "where")
IN_KERNELS = tuple(name for name in NAMES if name not in ("float16", "bfloat16", "float64"))
POINTS = 24


def call(name: str) -> Program:
    """``Y[i] = f(A[i], …)``."""
    operands = "ABC"[: FUNCTIONS[name]]
    reads = ", ".join(f"{operand}[i]" for operand in operands)
    tensors = "".join(f"tensor {operand}[{POINTS}]\n" for operand in operands)
    return ee.parse(f"{tensors}Y[i:{POINTS}] = {name}({reads})")


def arguments(name: str, low: float = 0.3) -> dict[str, np.ndarray]:
    """Arguments at which every function has a value and no kink."""
    random = np.random.default_rng(0)
    return {operand: random.uniform(low, 2, POINTS) for operand in "ABC"[: FUNCTIONS[name]]}


def value(program: Program, arrays: dict[str, np.ndarray], dtype: str = "float64") -> np.ndarray:
    return np.asarray(evaluate(program, arrays, dtype)["Y"])


@pytest.mark.parametrize("name", NAMES)
def test_the_text_form_has_every_function(name: str) -> None:
    program = call(name)
    text = ee.text(program)
    assert ee.parse(text) == program and name in ee.text(program) and ee.latex(program)
    record = {"format": "einnet-explore record", "version": 1, "start": text, "steps": []}
    assert [verdict.kind for verdict in einnet_check.check(record, text)] == ["proved"]
    described = (Path(__file__).parents[1] / "docs" / "text-form.md").read_text(encoding="utf-8")
    assert name in described.split("| functions |")[1].split("\n")[0].replace("`", " ").split()


@pytest.mark.parametrize("name", NAMES)
def test_the_fields_of_every_function_are_true(name: str) -> None:
    function, program = SCALAR_FUNCTIONS[name], call(name)
    low, high = function.image
    for smallest in (0.3, -2.0):
        arrays = arguments(name, smallest)
        with np.errstate(invalid="ignore"):
            found = value(program, arrays)
        usual = np.isfinite(found)
        assert usual.all() or function.has_pole or name == "sqrt"
        assert ((low <= found) & (found <= high))[usual].all()
        if function.is_monotone:
            steps = np.diff(found[np.argsort(arrays["A"])][usual[np.argsort(arrays["A"])]])
            assert (steps >= 0).all() or (steps <= 0).all()
        whole = {operand: np.rint(3 * array) for operand, array in arrays.items()}
        if function.is_integral:
            assert (value(program, whole) == np.rint(value(program, whole))).all()
        if function.is_commutative:
            assert (found == value(program, dict(zip("AB", reversed(arrays.values()), strict=True)))).all()


IN_FLOAT32 = tuple(name for name in NAMES if call(name).equations[0].tensor.dtype == "float32")


@pytest.mark.parametrize("name", [name for name in IN_FLOAT32 if SCALAR_FUNCTIONS[name].derivative])
def test_every_derivative_is_the_limit_of_differences(name: str) -> None:
    program, arrays, step = call(name), arguments(name), 1e-6
    found = evaluate(ee.grad(program), {**arrays, "d_Y": np.ones(POINTS)}, "float64", outputs_only=True)
    for operand, array in arrays.items():
        above, below = (value(program, {**arrays, operand: array + side * step}) for side in (1, -1))
        np.testing.assert_allclose(found[f"d_{operand}"], (above - below) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_every_function_has_kernels() -> None:
    """One kernel computes all functions: compilation takes a second."""
    unary = [f"{name}(A[i])" for name in IN_KERNELS if FUNCTIONS[name] == 1]
    binary = [f"{name}(A[i], B[i])" for name in IN_KERNELS if FUNCTIONS[name] == 2]
    calls = [*unary, *binary, "select(less(A[i], B[i]), A[i], B[i])"]
    terms = " + ".join(f"{n + 1}.5 * {each}" for n, each in enumerate(calls))
    program = ee.parse(f"tensor A[{POINTS}]\ntensor B[{POINTS}]\nY[i:{POINTS}] = {terms}")
    scope, arrays, out = program.equations[0].scope, arguments("pow"), aligned_empty((POINTS,))
    NativeCall(NativeSource(scope)).bind({name: aligned(array) for name, array in arrays.items()}, out)()
    np.testing.assert_allclose(out, value(program, arrays), rtol=1e-5)
    single = [array.astype(np.float32) for array in arrays.values()]
    np.testing.assert_allclose(load_tvm_kernel(TvmSource(scope))(*single), value(program, arrays), rtol=1e-5)


@pytest.mark.parametrize("dialect", [C, CUDA, OPENCL], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("relu", *ELEMENT_TYPES)])
def test_every_dialect_spells_every_function(name: str, dialect: Dialect) -> None:
    assert name in dialect.built_ins(F32) or dialect.helper_text(name, F32)


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ("less(A[i], B[i])", "less_equal(A[i], B[i])", "false"),
        ("equal(A[i], B[i])", "0", "false"),
        ("select(A[i], B[i], A[i])", "B[i]", "false"),
        ("select(less(A[i], B[i]), A[i], B[i])", "minimum(A[i], B[i])", "proved"),
        ("select(equal(A[i], exp(B[i])), B[i], A[i])", "A[i]", "unknown"),  # no sample reaches equality
    ],
)
def test_samples_must_reach_every_side_of_a_comparison(one: str, other: str, verdict: str) -> None:
    programs = [ee.parse(f"tensor A[6]\ntensor B[6]\nY[i:6] = {body}") for body in (one, other)]
    assert str(certify(*programs)).startswith(verdict)


def test_a_function_that_is_not_monotone_has_an_error_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    i, exact = Iterator("i", 0, 2), np.array([1, 2], np.float32)
    read = Tensor("v", (2,))[(i,)]
    for image, bound in (((-1, 1), 2.0), ((-np.inf, np.inf), np.inf)):
        monkeypatch.setitem(SCALAR_FUNCTIONS, "sin", ScalarFunction("sin", 1, lambda lib, x: lib.sin(x), image=image))
        plain = running_error(Scope((i,), (), Apply("sin", (read,))), {"v": exact})
        assert (plain.error < 1e-5).all()
        rounded = running_error(Scope((i,), (), Apply("sin", (Apply("exp", (read,)),))), {"v": exact})
        assert (rounded.error >= bound).all()


def test_two_entries_of_one_onnx_operator_are_refused() -> None:
    (again,) = (replace(operator) for operator in ELEMENTWISE if operator.name == "Add")
    with pytest.raises(ValueError, match="ONNX operator Add has two entries"):
        operators_by_name(ELEMENTWISE, (again,))
