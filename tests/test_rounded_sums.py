"""Affine functions of sums of bytes that are rounded to integers: in ``float32`` where the constants are verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.codegen.language.lowering import lower_scalar, tensor_name
from einnet_explore.codegen.language.printer import emit
from einnet_explore.codegen.language.rounding import LEVEL_STEP, RoundedSum, rounded_sum
from einnet_explore.codegen.language.statements import Kernel, Store
from einnet_explore.codegen.language.values import F64, I32, U8, Array, Expr, Load, Type, Var, cast, literal
from einnet_explore.runtime import compiled
from einnet_explore.runtime.integer_products import PackedProduct, integer_product
from einnet_explore.runtime.program import compile_program

needs_compiler = pytest.mark.skipif(not compiled.c_compiler(), reason="no C compiler")
Numbers = np.ndarray[Any, Any]

DEPTH, FIRST = 64, 48
"""Factors of a sum: those from FIRST on have the weight 1, the others 127, or both are negative."""

PRODUCT = """tensor X[{rows}, 64] uint8
tensor W[64, {columns}] int8 weight
tensor F[{columns}] float64 weight
tensor B[{columns}] float64 weight
tensor Z[{rows}, {columns}] uint8
Y[m:{rows}, n:{columns}] = {value}
output Y"""
SUM = "{{[m:{rows}, n:{columns}] sum[k:64] X[m, k] * W[k, n]}}[m, n]"
UNSIGNED = "uint8(minimum(maximum(round(F[n] * SUM + B[n]) + 9, 0), 255))"
SIGNED = "int8(minimum(maximum(-5 + round(F[n] * SUM + B[n]), -128), 127))"
SINGLE = "uint8(minimum(relu(round(0.001372486113 * SUM + 0.3)), 200))"
RESIDUAL = (
    "uint8(minimum(relu(round((0.048896674066782 * uint8(minimum(relu(146 + round(F[n] * SUM + B[n])), 255)) - "
    "7.138914413750172 + 0.034170929342508316 * Z[m, n]) / 0.04424368217587471)), 255))"
)


def rows_of(sums: Numbers) -> Numbers:
    """Return rows of bytes whose products with a column of weights are *sums*, up to the sign."""
    x = np.zeros((len(sums), DEPTH), np.uint8)
    for part, last in ((slice(0, FIRST), False), (slice(FIRST, DEPTH), True)):
        left = sums % 127 if last else sums // 127
        for k in range(part.start, part.stop):
            x[:, k] = np.minimum(left, 255)
            left = left - x[:, k]
        assert not left.any()
    return x


def near_ties(factors: Numbers, starts: Numbers, sign: int) -> Numbers:
    """Return the sums, times *sign*, next to all ties of all columns, and random ones."""
    ties = (np.arange(-300, 301)[:, None] + 0.5 - starts) / factors
    near = (np.floor(ties)[..., None] + np.arange(-1, 3)).reshape(-1) * sign
    near = near[(near >= 0) & (near < 127 * 255 * FIRST)].astype(np.int64)
    return np.unique([*near, *np.random.default_rng(0).integers(0, 127 * 255 * FIRST, 999)])


def channels(columns: int) -> tuple[Numbers, Numbers]:
    rng = np.random.default_rng(3)
    signs = np.where(np.arange(columns) % 5 == 4, -1, 1)
    return rng.uniform(2e-4, 4e-3, columns) * signs, rng.uniform(-60, 60, columns)


def compiled_product(
    value: str, sign: int, factors: Numbers, starts: Numbers
) -> tuple[PackedProduct, Mapping[str, Numbers], Callable[[], Numbers], Numbers]:
    """Return the kernel of *value*, its inputs, a function that compiles and runs it, and the sums."""
    sums = near_ties(factors, starts, sign)
    size = {"rows": len(sums), "columns": len(factors)}
    program = ee.parse(PRODUCT.format(value=value.replace("SUM", SUM).format(**size), **size))
    weights = np.repeat([[127], [1]], [FIRST, DEPTH - FIRST], axis=0) * sign
    given = {
        "X": rows_of(sums),
        "W": np.repeat(weights, len(factors), axis=1).astype(np.int8),
        "F": factors,
        "B": starts,
        "Z": np.random.default_rng(1).integers(0, 256, (len(sums), len(factors))).astype(np.uint8),
    }
    kernel = integer_product(program.equations[0].scope, "WFB", {})
    assert kernel is not None

    def run() -> Numbers:
        made = compile_program(program, constants={name: given[name] for name in "WFB"})
        assert made.engines["Y"] == "integers"
        found: Numbers = made.run({name: given[name] for name in made.inputs})["Y"]
        return found

    return kernel, given, run, sums[:, None] * sign


def exact(value: str, sums: Numbers, given: Mapping[str, Numbers]) -> Numbers:
    """Return *value* in float64."""
    x = given["F"] * sums + given["B"]
    if value == UNSIGNED:
        return np.clip(np.rint(x) + 9, 0, 255)
    if value == SIGNED:
        return np.clip(np.rint(x) - 5, -128, 127)
    if value == SINGLE:
        return np.clip(np.rint(0.001372486113 * sums + 0.3), 0, 200) + 0 * x
    q = np.clip(np.rint(x) + 146, 0, 255)
    y = (0.048896674066782 * q - 7.138914413750172 + 0.034170929342508316 * given["Z"]) / 0.04424368217587471
    return np.clip(np.rint(y), 0, 255)


@needs_compiler
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("value", [UNSIGNED, SIGNED, SINGLE, RESIDUAL])
@pytest.mark.parametrize("is_by_channel", [True, False])
def test_sums_next_to_ties_are_rounded_as_in_float64(value: str, sign: int, is_by_channel: bool) -> None:
    factors, starts = channels(20) if is_by_channel else (np.full(20, 1.372486113e-3), channels(20)[1])
    kernel, given, run, sums = compiled_product(value, sign, factors, starts)
    constants = kernel.epilogue.constants(given, kernel.width)
    assert constants.shape == (4, 20) and constants[1].all()
    np.testing.assert_array_equal(run(), exact(value, sums, given))


@needs_compiler
def test_panels_with_a_channel_that_is_not_verified_are_in_float64() -> None:
    factors, starts = channels(130)
    factors[70], starts[70] = 0.5, 0.0  # ties
    kernel, given, run, sums = compiled_product(UNSIGNED, 1, factors, starts)
    constants = kernel.epilogue.constants(given, kernel.width)
    panel = 70 // kernel.width * kernel.width
    in_double = np.flatnonzero(constants[1] == 0)
    assert in_double.tolist() == list(range(panel, min(panel + kernel.width, 130))) and len(in_double) < 130
    np.testing.assert_array_equal(run(), exact(UNSIGNED, sums, given))


@needs_compiler
@pytest.mark.parametrize("change", ["no half step", "one number", "offset", "rest"])
def test_wrong_constants_are_seen_and_round_other_integers(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without half a step between two numbers, ties are rounded to even ones: some sums are on the other side."""
    original, verify = RoundedSum._single_constants, RoundedSum.agrees
    verdicts: list[Numbers] = []

    def wrong(self: RoundedSum, factor: Numbers, start: Numbers) -> Numbers:
        offset, high, low, rest = original(self, factor, start)
        match change:
            case "no half step":
                rest = (rest + 0.5 / LEVEL_STEP).astype(np.float32)
            case "one number":
                high = np.nextafter(high, np.float32(2))
            case "offset":
                offset = offset + np.float32(1)
            case _:
                rest = (rest + 3 / LEVEL_STEP).astype(np.float32)
        return np.stack([offset, high, low, rest])

    def unverified(self: RoundedSum, *given: Any) -> Numbers:
        verdicts.append(verify(self, *given))
        return np.ones_like(verdicts[-1])

    monkeypatch.setattr(RoundedSum, "_single_constants", wrong)
    monkeypatch.setattr(RoundedSum, "agrees", unverified)
    _, given, run, sums = compiled_product(UNSIGNED, 1, *channels(20))
    is_other = (run() != exact(UNSIGNED, sums, given)).any(0)
    verdict = verdicts[-1]
    assert not verdict[is_other].any() and is_other.sum() > 9 and verdict.sum() < 9


def function(text: str, **arrays: Type) -> tuple[RoundedSum | None, Expr]:
    """Return the function *text* of a sum S and of *arrays*, and its expression."""
    declared = "".join(f"tensor {name}[9] {kind!r}\n" for name, kind in arrays.items())
    program = ee.parse(f"tensor S[9] int32\n{declared}Y[i:9] = {text}\noutput Y")
    memory = {name: Array(name, kind, 9, const=True)[Var("column")] for name, kind in arrays.items()}
    known: dict[str, Expr] = {"S": Var("s", I32), **memory}
    scope = program.equations[0].scope
    at = {x: literal(0) for x in scope.traversals}
    value = cast(U8, lower_scalar(scope.body, at, lambda source, _: known[tensor_name(source)], F64))
    return rounded_sum(value, lambda e: isinstance(e, Load)), value


def is_verified(text: str, **values: float) -> bool:
    found, _ = function(text, **dict.fromkeys(values, F64))
    assert found is not None
    given = {load: np.array([values[load.array.name]]) for load in found.loads}
    return bool(found.constants(given)[1].all())


@pytest.mark.parametrize(
    ("text", "values", "verified"),
    [
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 1.2345678e-3, "B": 0.1}, True),
        ("uint8(minimum(relu(round((S[i] + 4.1) * A[i] / 0.7)), 255))", {"A": 1e-3}, True),
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 0.3712345678, "B": 0.1}, True),
        # Ties: float64 rounds them to even integers.
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 0.5, "B": 0.0}, False),
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 2.0**-10, "B": 0.0}, False),
        # Next to a tie, so that float64 may be on its other side.
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 0.5, "B": 1e-12}, False),
        # A step of the sum is less than one of float32, or than a level can be told from the next.
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 1e-6, "B": 0.1}, False),
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": 0.0, "B": 0.1}, False),
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": np.nan, "B": 0.1}, False),
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i])), 255))", {"A": np.inf, "B": 0.1}, False),
        # Rounding errors of large numbers that cancel.
        ("uint8(minimum(relu(round(A[i] * S[i] + B[i] - C[i])), 255))", {"A": 1e-3, "B": 1e9, "C": 1e9}, False),
        ("uint8(minimum(relu(round(A[i] * S[i] - B[i] * S[i])), 255))", {"A": 1e3, "B": 1e3 - 1e-3}, False),
    ],
)
def test_constants_are_verified_where_float32_rounds_as_float64(
    text: str, values: dict[str, float], verified: bool
) -> None:
    assert is_verified(text, **values) is verified


@pytest.mark.parametrize(
    "text",
    [
        "uint8(minimum(relu(round(0.001 * S[i] * S[i])), 255))",
        "uint8(minimum(relu(round(2.5 / S[i])), 255))",
        "uint8(minimum(relu(round(0.5 * exp(0.001 * S[i]))), 255))",
        "int16(minimum(relu(round(0.001 * S[i])), 256))",
    ],
)
def test_other_functions_of_sums_stay_in_float64(text: str) -> None:
    assert function(text)[0] is None


def test_functions_of_elements_that_change_stay_in_float64() -> None:
    text = "uint8(minimum(relu(round(A[i] * S[i])), 255))"
    _, value = function(text, A=F64)
    assert rounded_sum(value, lambda e: False) is None


def test_rounded_sums_are_integers_without_float64_in_c() -> None:
    found, _ = function("uint8(minimum(relu(round(A[i] * S[i])), 255))", A=F64)
    assert found is not None
    out = Array("O", U8, 1)
    constants = [literal(float(n)) for n in (3, 1, 0, 0)]
    kernel = Kernel("k", (out, Var("s", I32)), (Store(out, literal(0), found.in_single(constants)),))
    assert "rounded_sum(" in emit(kernel, "c") and "double" not in emit(kernel, "c").split("void k")[1]
