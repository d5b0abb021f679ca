"""Element types: how results get theirs, casts, exact integers, proofs, and programs of integers that run."""

import ml_dtypes
import numpy as np
import pytest

import einnet_check
import einnet_explore as ee
from einnet_check.text import Parser, scope_type
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.equations import lift_scopes
from einnet_explore.analysis.indices import read_indices
from einnet_explore.codegen.preparation import split_traversals
from einnet_explore.codegen.wide_values import with_wide_values
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.exact_arrays import ARRAYS
from einnet_explore.ir import ELEMENT_TYPES, Iterator, Program, Scope, Tensor, computing_type, mul
from einnet_explore.ir import program as one_equation
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.rules import IDENTITIES
from einnet_explore.runtime import compiled
from einnet_explore.runtime.program import compile_program
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.syntax.trees import TextError

QUANTISED = """\
tensor X[5, 9] uint8
tensor W[9, 35] int8 weight
tensor B[35] int32
Y[m:5, n:35] = sum[k:9] (X[m, k] - 3) * W[k, n]
Z[m:5, n:35] = int32(Y[m, n] + B[n])
Q[m:5, n:35] = int8(minimum(127, maximum(-128, round(0.0625 * Z[m, n]))))
F[m:5, n:35] = 0.5 * (Q[m, n] - 3)
"""


def elements(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    random, kinds = np.random.default_rng(seed), {t.name: ELEMENT_TYPES[t.dtype] for t in program.inputs}
    ends = {name: (max(kind.low, -999), min(kind.high, 999)) for name, kind in kinds.items()}
    return {t.name: random.integers(*ends[t.name], t.shape, endpoint=True).astype(t.dtype) for t in program.inputs}


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("A[i]", "int8"),
        ("relu(A[i])", "int8"),
        ("maximum(A[i], 127)", "int8"),
        ("maximum(A[i], 128)", "int32"),
        ("where(i < 2, A[i], C[i])", "int32"),
        ("A[i] + 1", "int32"),
        ("A[i] * C[i]", "int32"),
        ("pow(A[i], 2)", "int32"),
        ("A[i] * B[i]", "int64"),
        ("A[i] + 0.5", "float32"),
        ("A[i] / 2", "float32"),
        ("A[i] * D[i]", "float64"),
        ("exp(A[i])", "float32"),
        ("H[i] + H[i]", "float32"),
        ("maximum(H[i], 0)", "float16"),
        ("int64(A[i])", "int64"),
        ("round(A[i])", "int8"),
        ("3", "float32"),
    ],
)
def test_results_have_the_type_of_their_expression(scalar: str, expected: str) -> None:
    text = (
        "tensor A[4] int8\ntensor B[4] uint32\ntensor C[4] int16\ntensor D[4] float64\ntensor H[4] float16\n"
        f"Y[i:4] = {scalar}\noutput Y, A, B, C, D, H\n"
    )
    program = ee.parse(text)
    assert program.equations[0].tensor.dtype == expected == scope_type(Parser(text).program().equations[0].scope)
    assert ee.parse(ee.text(program)) == program
    assert expected in ee.latex(program) or expected == "float32"


def test_types_distinguish_programs_and_float32_is_the_default() -> None:
    texts = [f"tensor A[4]{dtype}\nY[i:4] = A[i]" for dtype in ("", " float32", " int8")]
    keys = [program_key(ee.parse(text)) for text in texts]
    assert keys[0] == keys[1] != keys[2] and "float32" not in ee.text(ee.parse(texts[1]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("tensor X[4] int32\nY[i:4] = X[i] + 1", "integers from -2147483648 to 2147483648 in 1 + X[i]"),
        ("tensor X[200000] int8\nY[i:4] = sum[k:200000] X[k] * X[k]", "in sum[k:200000] X[k] * X[k]"),
        ("tensor X[4] int64\nY[i:4] = 0.5 * -X[i]", "in -X[i]"),
        ("tensor X[9] int8\nY[i:4] = prod[k:9] X[k]", "expected a result within int32"),
        ("tensor X[4] int8 pad [1] value -inf\nY[i:4] = X[i]", "padding value -inf, expected an integer from -128"),
        ("tensor X[4] int8 int8\nY[i:4] = X[i]", "found a type twice"),
    ],
)
def test_integers_beyond_their_type_are_refused(text: str, found: str) -> None:
    with pytest.raises(TextError, match=found.replace("[", r"\[").replace("*", r"\*").replace("+", r"\+")):
        ee.parse(text)
    record = {"format": "einnet-explore record", "version": 1, "start": text, "steps": []}
    if "integers from" in found:
        other = text.replace("X[i] + 1", "1 + X[i]")
        assert [v.kind for v in einnet_check.check(record, other)] == ["unproved"]


@pytest.mark.parametrize("name", ["float16", "float32", "bfloat16"])
def test_casts_to_floating_point_round_to_nearest_even(name: str) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal(9999) * 10.0 ** random.uniform(-45, 40, 9999)
    values = np.concatenate([values, [0.0, np.inf, -np.inf, 65519.99, 65520, 2049, 2051]])
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    with np.errstate(all="ignore"):
        found, expected = SCALAR_FUNCTIONS[name].compute(ARRAYS, values), values.astype(kind).astype(float)
    np.testing.assert_array_equal(found, expected)
    assert [SCALAR_FUNCTIONS[name].of_numbers(v) for v in values[-9:].tolist()] == expected[-9:].tolist()


@pytest.mark.parametrize("name", [name for name in ELEMENT_TYPES if "int" in name])
def test_casts_to_integers_truncate_and_wrap(name: str) -> None:
    program = ee.parse(f"tensor X[6] int64\nY[i:6] = {name}(X[i])\nZ[i:6] = {name}(0.5 * X[i])")
    values = np.array([-(1 << 63), (1 << 63) - 1, -129, 255, 65536, 1 << 40])
    found = ee.evaluate(program, {"X": values})
    np.testing.assert_array_equal(np.asarray(found["Y"]).astype(np.int64), values.astype(name).astype(np.int64))
    near = ee.evaluate(program, {"X": values // (1 << 20)})["Z"]
    np.testing.assert_array_equal(near, np.trunc(values // (1 << 20) / 2).astype(np.int64).astype(name))


def test_wrapping_sums_are_exact_modulo_a_power_of_two() -> None:
    program = ee.parse("tensor X[3] int64\ntensor Y[3] int64\nZ[i:3] = int64(X[i] * Y[i] + 1)")
    given = {"X": np.array([1 << 62, -5, (1 << 63) - 1]), "Y": np.array([6, 7, 3])}
    with np.errstate(over="ignore"):
        expected = given["X"] * given["Y"] + 1
    assert [int(v) for v in ee.evaluate(program, given)["Z"]] == expected.tolist()
    np.testing.assert_array_equal(compile_program(program).run(given)["Z"], expected)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_sums_below_a_cast_do_not_wrap_at_fewer_bits() -> None:
    program = ee.parse("tensor X[99999] int16\nY[i:1] = int64({[i:1] sum[k:99999] X[k] * X[k]}[i])")
    given = {"X": np.full(99999, 32767, np.int16)}
    made = compile_program(program)
    assert made.engines["Y"] == "c" and made.run(given)["Y"].tolist() == [99999 * 32767**2]


def test_proofs_follow_types() -> None:
    tensors = "tensor A[4, 8] int8\ntensor B[8, 4] int8\n"
    whole = ee.parse(tensors + "Y[m:4, n:4] = sum[k:8] (A[m, k] - 3) * (B[k, n] - 5)")
    parts = tensors + (
        "Y[m:4, n:4] = {[m:4, n:4] sum[k:8] A[m, k] * B[k, n]}[m, n] - 3 * {[n:4] sum[k:8] B[k, n]}[n]"
        " - 5 * {[m:4] sum[k:8] A[m, k]}[m] + 120"
    )
    assert certify(whole, ee.parse(parts)).kind == "proved"
    assert certify(whole, ee.parse(parts.replace("120", "121"))).kind == "false"
    record = {"format": "einnet-explore record", "version": 1, "start": parts, "steps": []}
    assert [v.kind for v in einnet_check.check(record, ee.text(whole))] == ["proved"]
    plain = ee.parse("tensor A[4] int8\nY[i:4] = A[i]")
    for other, kind in (("int8(A[i])", "proved"), ("float32(A[i])", "false"), ("maximum(A[i], -100)", "false")):
        assert certify(plain, ee.parse(f"tensor A[4] int8\nY[i:4] = {other}")).kind == kind
    other = {
        "format": "einnet-explore record",
        "version": 1,
        "start": "tensor A[4] int8\nY[i:4] = 1 * A[i]",
        "steps": [],
    }
    why = [v.why for v in einnet_check.check(other, "tensor A[4]\nY[i:4] = A[i]")]
    assert len(why) == 1 and why[0] is not None
    rounded = [ee.parse(f"tensor A[4]\nY[i:4] = {body}") for body in ("round(A[i])", "A[i]", "relu(round(A[i]))")]
    assert certify(rounded[0], rounded[1]).kind == certify(rounded[0], rounded[2]).kind == "false"


def test_rules_keep_types_and_do_not_let_integers_overflow() -> None:
    program = ee.parse("tensor A[4, 8] int8\ntensor B[8, 4] int8\nY[m:4, n:4] = sum[k:8] (A[m, k] - 3) * (B[k, n] - 5)")
    session = ee.explore(program, rules=(*ee.RULES,))
    for match in session.rules(at="0"):
        after = match.apply(program).after
        assert after.equations[-1].tensor.dtype == "int32"
        assert certify(program, after).kind == "proved"


def test_a_cast_refuses_what_kernels_of_one_type_cannot_do() -> None:
    program = ee.parse("tensor A[4] int8\nY[i:4] = A[i]")
    for make in (ee.grad, lambda p: ee.show(p, kernel="c")):
        with pytest.raises((Refused, TypeError), match=r"A is int8|kernel"):
            make(program)


def test_computing_types_hold_all_integers() -> None:
    program = ee.parse(
        "tensor A[9] int8\nX[i:9] = 0.5 * (A[i] + 1)\nY[i:9] = 0.5 * {[i:9] sum[k:5000] A[i] * A[i]}[i]\nZ[i:9] = -A[i]"
    )
    assert [computing_type(e.scope) for e in program.equations] == ["float32", "float64", "int32"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("int8(round(0.3 * A[i]))", "float64"),
        ("int8(minimum(round(W[i] * A[i] + W[i]), 9))", "float64"),
        ("int8(round({[i:9] sum[k:4] 0.5 * A[i]}[i]))", "float64"),
        ("int8(round(W[i]))", "float32"),  # nothing is computed before
        ("int8(round(exp(W[i]) / 2))", "float32"),  # not arithmetic alone
        ("round(0.3 * W[i])", "float32"),  # no integer
        ("int8(A[i] + 1)", "int32"),
    ],
)
def test_arithmetic_that_is_rounded_to_integers_is_computed_in_float64(body: str, kind: str) -> None:
    program = ee.parse(f"tensor A[9] int8\ntensor W[9]\nY[i:9] = {body}")
    assert computing_type(program.equations[0].scope) == kind


def test_what_only_float64_reads_is_float64() -> None:
    program = ee.parse(
        "tensor A[9] int8\ntensor S[9] weight\ntensor B[9] int32 weight\ntensor X[9]\n"
        "T[i:9] = S[i] / 0.3\nU[i:9] = S[i] * B[i]\nV[i:9] = S[i] + 1\nM[i:9] = S[8 - i]\nF[i:9] = 0.2 * (A[i] - 3)\n"
        "G[i:9] = 0.2 * X[i]\nE[i:9] = exp(S[i]) + M[i] + select(less(B[i], 3), S[i], 1)\n"
        "Y[i:9] = int8(round(T[i] * A[i] + U[i] + V[i] + E[i] + F[i] + G[i]))\nZ[i:9] = V[i] * X[i]\noutput Y\noutput Z"
    )
    wide = with_wide_values(program)
    types = {e.name: e.tensor.dtype for e in wide.equations}
    assert {name for name, dtype in types.items() if dtype == "float64"} == {"T", "U", "E", "F"}, ee.text(wide)
    assert types["V"] == types["G"] == "float32" and types["Y"] == "int8"  # Z reads V; G is no exact number
    assert with_wide_values(wide) == wide
    given = {name: array % 3 for name, array in elements(program).items()}
    exact = evaluate(program, given, np.float64)
    for name, found in compile_program(program, constants={n: given[n] for n in "SB"}).run(given).items():
        np.testing.assert_allclose(found, exact[name], rtol=1e-6)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize("zero", [0, -128, 127, 200])
@pytest.mark.parametrize("factor", ["", "0.5 * "])
def test_numbers_beyond_all_integers_are_saturated(zero: int, factor: str) -> None:
    """With the zero point 200, the largest number before it is added is negative."""
    body = f"int8(minimum(maximum(round({factor}A[i]) + {zero}, -128), 127))"
    x = np.float32([0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 99.4, -333, 1e9, -1e9, 3e38, -3e38, np.inf, -np.inf])
    program = ee.parse(f"tensor A[{x.size}]\nY[i:{x.size}] = {body}")
    want = np.clip(np.round((0.5 if factor else 1) * x.astype(np.float64)) + zero, -128, 127)
    np.testing.assert_array_equal(compile_program(program).run({"A": x})["Y"], want)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 37, 13), (8, 32, 16), (3, 33, 130)])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_bytes_are_exact(left: str, right: str, m: int, n: int, k: int, transposed: bool) -> None:
    a, b = ((k, m), (n, k)) if transposed else ((m, k), (k, n))
    body = "A[k, m] * B[n, k]" if transposed else "A[m, k] * B[k, n]"
    program = ee.parse(f"tensor A{list(a)} {left}\ntensor B{list(b)} {right}\nY[m:{m}, n:{n}] = sum[k:{k}] {body}")
    given = elements(program)
    for name in given:
        given[name].flat[0] = np.iinfo(given[name].dtype).min
    made = compile_program(program, constants={"B": given["B"]})
    assert made.engines["Y"] == "integers"
    np.testing.assert_array_equal(made.run({"A": given["A"]})["Y"], ee.evaluate(program, given)["Y"])


def test_programs_of_several_types_run_and_elements_beyond_them_are_refused() -> None:
    quantised = ee.parse(QUANTISED)
    given = elements(quantised)
    made = compile_program(ee.parse(QUANTISED + "output Y, Z, Q, F"))
    assert set(made.engines.values()) == {"c"} or not compiled.c_compiler()
    found = made.run(given)
    assert {name: str(array.dtype) for name, array in found.items()} == {
        "Y": "int32", "Z": "int32", "Q": "int8", "F": "float32"
    }  # fmt: skip
    product = (given["X"].astype(np.int64) - 3) @ given["W"].astype(np.int64) + given["B"]
    expected = np.clip(np.rint(product * 0.0625), -128, 127)
    np.testing.assert_array_equal(found["Q"], expected)
    np.testing.assert_array_equal(found["F"], (expected - 3) / 2)
    k = Iterator("k", 0, 1 << 20)
    wide = Scope((), (k,), mul(*(Tensor(name, (1 << 20,), dtype="int8")[(k,)] for name in "AB")))
    with pytest.raises(BackendError, match=r"Y: found integers from -\d+ to \d+ in sum"):
        compile_program(one_equation(wide))
    with pytest.raises(BackendError, match="X holds 300, expected elements of uint8"):
        compile_program(quantised).run({**given, "X": given["X"].astype(int) * 0 + 300})
    with pytest.raises(BackendError, match=r"W holds 0\.5, expected elements of int8"):
        compile_program(quantised).run({**given, "W": np.full((9, 35), 0.5)})


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_reshaped_bytes_are_read_at_affine_addresses() -> None:
    """i = 15 a + 5 b + c: no quotient or remainder is left in the kernel."""
    program = ee.parse(
        "tensor X[4, 3, 5] int8\n"
        "Y[i:60] = int8(minimum(X[i // 15, (i // 5) % 3, i % 5] * 2, 100))\nZ[i:60] = X[i // 15, (i // 5) % 3, i % 5]"
        "\noutput Y, Z"
    )
    split = split_traversals(program.equations[0].scope, 1)
    assert split.shape == (4, 3, 5) and all(index.affine for index in read_indices(split.body))
    given = elements(program)
    found, flat = compile_program(program).run(given), given["X"].reshape(60)
    np.testing.assert_array_equal(found["Y"], np.minimum(flat.astype(np.int32) * 2, 100).astype(np.int8))
    np.testing.assert_array_equal(found["Z"], flat)


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
@pytest.mark.parametrize(("threads", "kind"), [(1, "float16"), (2, "float16"), (2, "bfloat16")])
def test_kernels_load_and_store_16_bits(threads: int, kind: str) -> None:
    """Every number, the middles between neighbours, and the numbers around those; by two threads as one session."""
    program = ee.parse(
        f"tensor X[262144]\ntensor H[262144] {kind}\nY[i:262144] = {kind}(X[i])\nZ[i:262144] = H[i] * 2\noutput Y, Z"
    )
    halves = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    with np.errstate(invalid="ignore", over="ignore"):
        middles = (halves[:-1].astype(np.float32) + halves[1:].astype(np.float32)) / 2
        near = [np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)]
        given = np.resize(np.concatenate([halves.astype(np.float32), middles, *near]), 1 << 18)
        want = {"Y": given.astype(halves.dtype), "Z": np.resize(halves, 1 << 18).astype(np.float32) * 2}
    made = compile_program(program, threads)
    assert set(made.engines.values()) == {"c"}
    found = made.run({"X": given, "H": np.resize(halves, 1 << 18)})
    for name, array in want.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name].astype(np.float32), array.astype(np.float32))  # NaNs, too


@pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
def test_a_product_of_dequantised_matrices_is_derived_to_a_product_of_integers() -> None:
    """s_x s_w (Σ q_x q_w - z_x Σ q_w - z_w Σ q_x + n z_x z_w), in two proved steps; sums of weights are folded."""
    program = ee.parse(
        "tensor X[6, 40] uint8\ntensor W[40, 5] int8 weight\n"
        "Y[m:6, n:5] = sum[k:40] (0.02 * (X[m, k] - 3)) * (0.005 * (W[k, n] - 5))"
    )
    session = ee.explore(program, rules=IDENTITIES)
    for at, direction in (("0", "out"), ("0.0", "terms")):
        (match,) = (m for m in session.rules(at=at) if m.to_json()["params"].get("direction") == direction)
        session.apply(match)
    assert [certify(s.before, s.after).kind for s in session.derivation.steps] == ["proved", "proved"]
    lifted = lift_scopes(session.program)
    assert certify(program, lifted).kind in ("proved", "rounded")
    given = elements(program)
    made = compile_program(lifted, constants={"W": given["W"]})
    assert sorted(made.engines.values()) == ["c", "c", "c", "constant", "integers"]
    expected = 0.0001 * ((given["X"].astype(int) - 3) @ (given["W"].astype(int) - 5))
    np.testing.assert_allclose(made.run({"X": given["X"]})["Y"], expected, rtol=1e-6)
