"""Products in bfloat16: kernels, the rule that rounds operands, certificates, and the bound on errors."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx_building import build, node

import einnet_check
import einnet_explore as ee
from einnet_check.__main__ import main as check_independently
from einnet_explore.checker.record import RecordError, check_record
from einnet_explore.cli import main
from einnet_explore.interpreter.running_error import running_error
from einnet_explore.ir import VIEW, Equation, Instance, Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.candidate_race import Form, Reference
from einnet_explore.pipeline.numerics import ErrorReport, RoundingError
from einnet_explore.pipeline.optimisation import OptimiserOptions
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.rounded_products import round_products
from einnet_explore.pipeline.subprogram import TunedSubprogram
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.rules import ALL_RULES, OPERAND_ROUNDING, Derivation, Refused
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import bind_arrays
from einnet_explore.runtime.bfloat16_products import bfloat16_kernel, match_bfloat16_product
from einnet_explore.runtime.integer_products import PackedProduct
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.candidate import replay, steps_to_json, to_record
from einnet_explore.strategies.rounding_levels import allowed_rules, derivation_level
from einnet_explore.support.limits import MemoryWatch

needs_compiler = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")

PRODUCT = "tensor A[9, 33]\ntensor B[33, 45] weight\nY[i:9, j:45] = sum[k:33] bfloat16(A[i, k]) * bfloat16(B[k, j])"
PRODUCTS = {
    "matrix": PRODUCT,
    "stored": PRODUCT.replace("A[9, 33]", "A[9, 33] bfloat16").replace("bfloat16(A[i, k])", "A[i, k]"),
    "transposed": "tensor A[7, 20]\ntensor B[40, 20]\nY[j:40, i:7] = sum[k:20] bfloat16(A[i, k]) * bfloat16(B[j, k])",
    "batch": (
        "tensor A[2, 5, 8, 6]\ntensor B[2, 5, 6, 11] weight\n"
        "Y[a:2, b:5, i:8, j:11] = sum[k:6] bfloat16(A[a, b, i, k]) * bfloat16(B[a, b, k, j])"
    ),
    "window": (
        "tensor A[3, 9, 9] pad [0, 1, 1]\ntensor B[8, 3, 3, 3]\n"
        "Y[f:8, h:9, w:9] = sum[c:3, r:3, s:3] bfloat16(A[c, h+r-1, w+s-1]) * bfloat16(B[f, c, r, s])"
    ),
    "epilogue": (
        "tensor A[2, 9, 33]\ntensor B[33, 4, 10] weight\ntensor M[4, 10] weight\ntensor R[2, 9, 4, 10]\n"
        "Y[a:2, i:9, h:4, j:10] = R[a, i, h, j] + tanh(M[h, j] + {[b:2, l:9, g:4, m:10] sum[k:33] "
        "bfloat16(A[b, l, k]) * bfloat16(B[k, g, m])}[a, i, h, j])"
    ),
}
SLOW = ("stored", "transposed", "batch")
"""Cases for whose parts there are others."""


def numbers(program: Program) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    kinds = {"bfloat16": ml_dtypes.bfloat16}
    return {t.name: rng.standard_normal(t.shape).astype(kinds.get(t.dtype, t.dtype)) for t in program.inputs}


def kernel(program: Program, constants: tuple[str, ...] = ()) -> PackedProduct:
    found = match_bfloat16_product(program.equations[-1].scope)
    made = found and bfloat16_kernel(found, constants, {})
    assert made is not None
    return made


@needs_compiler
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in PRODUCTS])
def test_products_in_bfloat16_equal_their_definition(name: str) -> None:
    program = ee.parse(PRODUCTS[name])
    given = numbers(program)
    want = np.asarray(ee.evaluate(program, given, "float64")["Y"], np.float64)
    constants = {t.name: given[t.name] for t in program.inputs if t.weight}
    made = compile_program(program, constants=constants)
    assert made.engines["Y"] == "bfloat16"
    found = made.run({name: array for name, array in given.items() if name not in constants})["Y"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@needs_compiler
def test_products_in_bfloat16_need_no_instruction() -> None:
    """Where a processor lacks it, plain loops convert the packed elements."""
    program = ee.parse(PRODUCTS["epilogue"])
    given = numbers(program)
    made = kernel(program, ("B",))
    made.__dict__["text"] = made.text.replace("#if defined __x86_64__", "#if 0")
    out = np.empty(program.equations[0].scope.shape, np.float32)
    arrays = [given[name] if array is None else array for name, array in made.arguments(given)]
    bind_arrays(made.function, (*arrays, out), made.shapes)()
    want = np.asarray(ee.evaluate(program, given, "float64")["Y"], np.float64)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_packing_rounds_to_nearest_even() -> None:
    bits = np.arange(0, 1 << 32, 65521 * 3, dtype=np.uint32)
    ties = np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000
    x = np.concatenate([bits, ties, ties - 1, ties + 1]).view(np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    kept = np.isfinite(want) & (np.abs(want) >= 2.0**-126)  # the instruction takes smaller ones for 0
    x, want = x[kept][:, None], want[kept]
    n, zeros = len(x), np.zeros_like(x)
    program = ee.parse(
        f"tensor A[{n}, 2]\ntensor B[2, 3]\nY[i:{n}, j:3] = sum[k:2] bfloat16(A[i, k]) * bfloat16(B[k, j])"
    )
    given = {"A": np.hstack([x, zeros]), "B": np.array([[1, -1, 2**-10], [1, 1, 1]], np.float32)}
    found = compile_program(program).run(given)["Y"]
    np.testing.assert_array_equal(found[:, 0], want)
    np.testing.assert_array_equal(found[:, 1], -want)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_programs_store_bfloat16(threads: int) -> None:
    program = ee.parse(
        "tensor X[6, 70] bfloat16\ntensor W[70, 40] weight\nT[i:70, j:6] = X[j, i]\n"
        "Y[i:6, j:40] = bfloat16({[i:6, j:40] sum[k:70] T[k, i] * bfloat16(W[k, j])}[i, j])\noutput Y"
    )
    first, second = program.equations
    program = Program(program.inputs, (Equation(first.name, first.scope, Instance(VIEW)), second), program.outputs)
    given = numbers(program)
    found = compile_program(program, threads, {"W": given["W"]}).run({"X": given["X"]})["Y"]
    want = given["X"].astype(np.float64) @ given["W"].astype(ml_dtypes.bfloat16).astype(np.float64)
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(found.astype(np.float64), want, rtol=2**-8, atol=1e-5)


LAYER = """\
tensor X[1, 32, 64]
tensor W[64, 96] weight
tensor B[96] weight
T[b:1, i:32, j:96] = sum[k:64] X[b, i, k] * W[k, j] via Matmul(m=32, n=96, k=64)
Y[b:1, i:32, j:96] = tanh(T[b, i, j] + B[j]) * (T[b, i, j] + B[j]) via eOperator(kind="elementwise")
"""


def layer() -> Derivation:
    """A layer whose product is a library call, and its epilogue a kernel."""
    text = LAYER.replace("X[1, 32, 64]", "X[32, 64]").replace("X[b, i, k]", "X[i, k]").replace("T[b:1, ", "T[")
    return Derivation(ee.parse(text.replace("T[b, i, j]", "T[i, j]")))


def test_rounding_a_product_fuses_its_epilogue_and_is_certified_as_rounding() -> None:
    derivation = round_products(layer())
    assert derivation is not None and derivation_level(derivation) == "bf16"
    assert [step.match.rule.name for step in derivation.steps] == ["expression_fusion", *["operand_rounding"] * 2]
    assert match_bfloat16_product(derivation.end.equations[-1].scope) is not None
    first, *others = ee.check(derivation)
    assert first.kind == "proved" and {c.kind for c in others} == {"rounded"}
    assert "rounding of operands, its error depends on the inputs" in str(others[0])
    assert replay(derivation.start, json.loads(json.dumps(steps_to_json(derivation)))).end == derivation.end
    # Only a step of this rule may round: equality of programs does not hold, and other levels lack the rule.
    assert not ee.equal(derivation.start, derivation.end)
    assert OPERAND_ROUNDING not in ALL_RULES and allowed_rules([OPERAND_ROUNDING], "approximate") == ()
    assert round_products(derivation) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Y[i:4] = max[k:5] A[i, k] * B[k]", "takes the max over no iterator, expected a sum"),
        ("Y[i:4] = sum[k:5] A[i, k] + B[k]", "expected a product"),
        ("Y[i:4] = sum[k:5] relu(A[i, k]) * B[k]", "is no read of float32"),
        ("Y[i:4] = sum[k:5] C[i, k] * B[k]", "is no read of float32"),
    ],
)
def test_operands_are_rounded_in_sums_of_products_only(text: str, why: str) -> None:
    program = ee.parse(f"tensor A[4, 5]\ntensor B[5]\ntensor C[4, 5] float64\n{text}")
    with pytest.raises(Refused, match=why):
        OPERAND_ROUNDING.match(program, (0,)).apply(program)


def test_both_checkers_admit_rounded_operands_at_the_level_bf16_only(tmp_path: Path, capsys: Any) -> None:
    derivation = round_products(layer())
    assert derivation is not None
    record = json.loads(json.dumps(to_record(derivation, ee.check(derivation))))
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record))
    with pytest.raises(RecordError, match=r"'operand_rounding', which rounds operands .*--numerics bf16"):
        check_record(record)
    assert check_record(record, rounding=True).kind == "rounded"
    assert main(["check", str(path), "--numerics", "bf16", "--require", "rounded"]) == 0
    assert main(["check", str(path)]) == 2 == check_independently([str(path)])
    assert check_independently([str(path), "--numerics", "bf16"]) == 3
    assert "rounded, with operands of products rounded to bfloat16" in capsys.readouterr().out
    last = record["steps"][-1]
    for good, bad in (
        ("bfloat16(X[i, k])", "float16(X[i, k])"),
        ("bfloat16(X[i, k])", "bfloat16(X[i, k] + 1)"),
        ("+ B[j]", "+ bfloat16(B[j])"),
        ("tanh(", "erf("),
    ):
        changed = {**record, "steps": [*record["steps"][:-1], {**last, "after": last["after"].replace(good, bad)}]}
        assert changed != record
        assert check_record(changed, rounding=True).steps[-1].kind in ("false", "unknown")
        assert [v.kind for v in einnet_check.check(changed, rounding=True)][-1] == "unproved"


def test_the_running_error_of_rounded_operands_bounds_the_error() -> None:
    program = ee.parse(PRODUCT)
    given = numbers(program)
    exact = running_error(ee.parse(PRODUCT.replace("bfloat16", "")).equations[0].scope, given)
    rounded = running_error(program.equations[0].scope, given, rounded_operands=True)
    np.testing.assert_allclose(rounded.value, exact.value)
    error = np.abs(np.asarray(ee.evaluate(program, given, "float64")["Y"], np.float64) - exact.value)
    assert (error <= rounded.error).all() and (100 * exact.error < rounded.error).all()
    most = np.abs(given["A"]) @ np.abs(given["B"])
    assert (rounded.error <= 2.1 * 2**-8 * most).all()


@needs_compiler
def test_a_product_whose_error_may_exceed_the_bound_is_not_taken() -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((64, 48)).astype(np.float32)}
    proto = build([node("MatMul", ["x", "w"], ["y"])], {"x": [32, 64]}, ["y"], weights)
    messages = {}
    for bound in (0.1, 0.001):
        work = Optimiser(load_model(proto, {}), Settings(1, 2, 0.2, 2, numerics="bf16", error_bound=bound))
        (subprogram,) = work.subprograms
        task = work.tuner._task(subprogram)
        form = round_products(Derivation(task.program))
        assert form is not None
        original = task.opener()
        reference = Reference(original, original.outputs(), None)
        found = task._compile([Form(form, 1e-5, "bf16")], reference, MemoryWatch())
        assert bool(found.derivations) == (bound == 0.1)
        messages[bound] = found.over_bound
        # Another layer with the same program: the bound holds with its own weights, too.
        trial = Trial(seconds_before=2.0, seconds_after=1.0, winner=form, why="")
        part = work._within_bound(TunedSubprogram(subprogram.nodes, trial, True, "rounded", ""))
        assert part.kept == (bound == 0.1) and ("times the 0.001 that is allowed" in part.why) == (bound == 0.001)
    assert messages[0.1] == [] and "times the 0.001 that is allowed" in messages[0.001][0]


def test_errors_without_a_bound_are_beyond_it() -> None:
    report = ErrorReport("bf16", ("operand rounding",), RoundingError(1e-6, 0.0), RoundingError(0.02, 1e-3))
    assert report.excess(0.05) == "" and "2 times the 0.01 that is allowed" in report.excess(0.01)
    unbounded = ErrorReport("bf16", (), RoundingError(None, 0.0), RoundingError(None, 1e-3))
    assert "has no bound, 0.5 is allowed" in unbounded.excess(0.5)
    assert str(unbounded).endswith("no bound")
    of_integers = ErrorReport("exact", (), RoundingError(1.0, 0.0), RoundingError(1.0, 0.0))
    assert str(of_integers).endswith("error 0.0e+00, no bound")  # one integer more or less
    assert "is not known: too long" in ErrorReport("bf16", (), why="too long").excess(0.5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("plan", "bf16", None), "numerics bf16: found no error bound, expected --error-bound "),
        (("plan", "bf16", 1.5), "error bound 1.5: expected a part of the largest output between 0 and 1"),
        (("plan", "approximate", 0.1), "error bound 0.1 with numerics approximate: expected numerics bf16"),
        (("onnxruntime", "bf16", 0.1), "numerics bf16 with the runtime onnxruntime"),
    ],
)
def test_settings_that_do_not_fit_the_level_are_refused(options: Any, why: str) -> None:
    runtime, numerics, bound = options
    with pytest.raises(ValueError, match=why):
        _ = OptimiserOptions(target_runtime=runtime, numerics=numerics, error_bound=bound).settings
