"""Simplification across functions: less work, every step proved by both checkers; else the start is kept."""

import numpy as np
import pytest

import einnet_check
import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Equation, Program, tensors
from einnet_explore.rules import Derivation
from einnet_explore.strategies.candidate import to_record
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.program_search import derive_across
from einnet_explore.strategies.simplification import FUNCTION_RULES, operations_left, simplifications
from einnet_explore.syntax import parse


def attention(rows: int, columns: int, features: int, scores: str, more: str = "") -> Program:
    """Softmax of *scores*, with the maximum subtracted, times V."""
    i, j, k = f"i:{rows}", f"j:{columns}", f"k:{features}"
    return parse(f"""tensor Q[{rows}, {features}]
    tensor K[{columns}, {features}]
    tensor V[{columns}, {features}]
    tensor b[{features}] weight
    tensor row[{rows}]
    tensor column[{columns}]
    {more.format(i=i, j=j, k=k)}
    {scores.format(i=i, j=j, k=k)}
    M[{i}] = max[{j}] S[i, j]
    E[{i}, {j}] = exp(S[i, j] - M[i])
    D[{i}] = sum[{j}] E[i, j]
    P[{i}, {j}] = E[i, j] / D[i]
    Y[{i}, {k}] = sum[{j}] P[i, j] * V[j, k]
    output Y""")


SIZES = [(12, 20, 8), (5, 7, 3), (33, 16, 9)]


def last(program: Program) -> Derivation:
    """The last simplification; every step is proved by both checkers, and every value is kept."""
    *_, derivation = simplifications(program)
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    record = to_record(derivation)
    assert {verdict.kind for verdict in einnet_check.check(record)} == {"proved"}
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape) for t in program.inputs}
    want, got = evaluate(program, arrays, np.float64), evaluate(derivation.end, arrays, np.float64)
    for name in program.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9, atol=1e-12)
    return derivation


def reads(equation: Equation) -> set[str]:
    return {t.name for t in tensors(equation.scope)}


def without_bias(program: Program) -> bool:
    return not any("b" in reads(equation) for equation in program.equations)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "scores",
    [
        "S[{i}, {j}] = sum[{k}] Q[i, k] * B[j, k]",
        "G[{i}, {j}] = sum[{k}] Q[i, k] * B[j, k]\nS[{i}, {j}] = 0.25 * G[i, j]",
        "G[{i}, {j}] = sum[{k}] Q[i, k] * B[j, k]\nS[{i}, {j}] = G[i, j] + column[j]",
    ],
)
def test_bias_of_the_keys_vanishes_under_softmax(size: tuple[int, int, int], scores: str) -> None:
    start = attention(*size, scores, "B[{j}, {k}] = K[j, k] + b[k]")
    end = last(start).end
    assert without_bias(end) and not without_bias(start)
    assert operations_left(end) <= operations_left(start) - size[1] * size[2]


@pytest.mark.parametrize("size", SIZES)
def test_row_term_of_a_positional_bias_vanishes_and_the_column_term_stays(size: tuple[int, int, int]) -> None:
    scores = "G[{i}, {j}] = sum[{k}] Q[i, k] * K[j, k]\nS[{i}, {j}] = G[i, j] + column[j] - row[i]"
    end = last(attention(*size, scores)).end
    read = set().union(*map(reads, end.equations))
    assert "row" not in read and "column" in read


def test_bias_of_the_queries_stays() -> None:
    """It adds another number to every score of a row."""
    scores = "B[{i}, {k}] = Q[i, k] + b[k]\nS[{i}, {j}] = sum[{k}] B[i, k] * K[j, k]"
    assert not without_bias(last(attention(12, 20, 8, scores)).end)


def test_scale_and_shift_of_a_normalisation_move_into_the_next_weight() -> None:
    start = parse("""tensor X[6, 40]
    tensor g[40] weight
    tensor s[40] weight
    tensor W[40, 5] weight
    m[i:6] = sum[j:40] 0.025 * X[i, j]
    C[i:6, j:40] = X[i, j] - m[i]
    v[i:6] = sum[j:40] 0.025 * C[i, j] * C[i, j]
    r[i:6] = rsqrt(v[i] + 0.00001)
    N[i:6, j:40] = C[i, j] * r[i] * g[j] + s[j]
    Y[i:6, k:5] = sum[j:40] N[i, j] * W[j, k]
    output Y""")
    end = last(start).end
    known = {"g", "s", "W"}
    at_run_time = [e for e in end.equations if not reads(e) <= known]
    assert not any(reads(e) & known for e in at_run_time)
    # The deviations are squared as they are: multiplied out, they would cancel.
    assert any(ee.text(end).count(f"* {e.name}[i, j]") for e in end.equations)
    assert operations_left(end) < 0.8 * operations_left(start)


CONVOLUTION = """tensor x[3, 10] pad [0, 1]
    tensor W[4, 3, 3] weight
    tensor s[4] weight
    tensor t[4] weight
    C[f:4, h:10] = sum[c:3, r:3] x[c, h+r-1] * W[f, c, r]
    N[f:4, h:10] = C[f, h] * s[f] + t[f]
    R[f:4, h:10] = relu(N[f, h])
"""


def test_scales_around_relu_move_into_the_weights() -> None:
    """BatchNorm's into the convolution before it, a constant through relu into the convolution after it."""
    start = parse(f"""{CONVOLUTION}tensor U[6, 4] weight
    Z[f:4, h:10] = 2 * R[f, h]
    Y[g:6, h:10] = sum[f:4] Z[f, h] * U[g, f]
    output Y""")
    end = last(start).end
    assert operations_left(end) == operations_left(start) - 2 * 40  # the scale and the constant, at every element
    one = parse(f"{CONVOLUTION}Y[f:4, h:10] = 2 * R[f, h]\noutput Y")
    assert operations_left(last(one).end) <= operations_left(one) - 40


def test_bias_and_relu_move_behind_a_maximum() -> None:
    start = parse(f"{CONVOLUTION}Y[f:4, h:5] = max[r:2] R[f, 2*h+r]\noutput Y")
    end = last(start).end
    assert (
        operations_left(end) <= operations_left(start) - 40 - 40
    )  # the scale at 40 elements, shift and relu at 20 instead of 40


@pytest.mark.parametrize(
    "text",
    [
        "Y[i:4] = sum[j:5] A[i, j] * A[i, j]",
        "D[i:4, j:5] = A[i, j] - a[i]\nY[i:4] = sum[j:5] D[i, j] * D[i, j]",  # multiplied out, it would cancel
        "R[i:4, j:5] = relu(A[i, j])\nY[i:4] = sum[j:5] R[i, j]",
        "T[i:4, j:5] = A[i, j] + a[i]\nY[i:4] = max[j:5] abs(T[i, j])",
    ],
)
def test_program_without_gain_is_unchanged(text: str) -> None:
    assert not list(simplifications(parse(f"tensor A[4, 5]\ntensor a[4]\n{text}\noutput Y")))


def test_only_allowed_laws_are_applied() -> None:
    start = attention(12, 20, 8, "S[{i}, {j}] = sum[{k}] Q[i, k] * B[j, k]", "B[{j}, {k}] = K[j, k] + b[k]")
    some = tuple(rule for rule in FUNCTION_RULES if rule.name != "cancellation")
    assert all(not without_bias(found.end) for found in simplifications(start, some))


def test_search_has_the_simplified_program_as_a_candidate() -> None:
    start = attention(12, 20, 8, "S[{i}, {j}] = sum[{k}] Q[i, k] * B[j, k]", "B[{j}, {k}] = K[j, k] + b[k]")
    assert any(without_bias(found.end) for found in derive_across(start, Options()))
    run = ee.search(start, max_depth=2)
    assert any(without_bias(candidate.program) for candidate in run.candidates)
