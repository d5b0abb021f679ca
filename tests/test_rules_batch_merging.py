"""Batch merging: the same expression of other tensors, stacked, viewed or in common."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.analysis.flattening import view_strides
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import BATCH_MERGING
from einnet_explore.session.session import Session
from einnet_explore.syntax import parse, text
from tests.rules_kit import assert_equal, check_rule, contractions, refuses

PRODUCTS = parse("""
    tensor X[6, 4]
    tensor Z[6, 4]
    tensor U[6, 4]
    tensor A[4, 5] weight
    tensor B[4, 5] weight
    tensor C[4, 5] weight
    P[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
    Q[m:6, n:5] = sum[q:4] B[q, n] * Z[m, q]
    R[m:6, n:5] = sum[k:4] U[m, k] * C[k, n]
    output P, Q, R
""")


def merge(program: Program, at: int = 0, **params: object) -> Program:
    match = (
        BATCH_MERGING.match(program, (at,), **params) if params else next(iter(BATCH_MERGING.matches(program, (at,))))
    )
    after = match.apply(program).after
    assert certify(program, after).kind == "proved"
    assert parse(text(after)) == after
    assert_equal(program, after)
    return after


def test_three_products_become_a_batch() -> None:
    after = merge(PRODUCTS)
    shapes = {e.name: e.scope.shape for e in after.equations}
    assert shapes == {"B1": (3, 6, 4), "B2": (3, 4, 5), "M1": (3, 6, 5), "P": (6, 5), "Q": (6, 5), "R": (6, 5)}
    assert [repr(e.scope.body) for e in after.equations[3:]] == [f"M1[{n}, m, n]" for n in range(3)]
    proposed = [m.to_json()["params"]["others"] for m in BATCH_MERGING.matches(PRODUCTS, (0,))]
    assert proposed == [["Q", "R"], ["Q"], ["R"]]
    assert check_rule(BATCH_MERGING, PRODUCTS) == 4


def test_neighbouring_parts_are_read_in_place() -> None:
    program = parse("""
        tensor X[6, 12]
        tensor A[4, 5] weight
        tensor B[4, 5] weight
        tensor C[4, 5] weight
        X1[m:6, k:4] = X[m, k]
        X2[m:6, k:4] = X[m, k+4]
        X3[m:6, k:4] = X[m, k+8]
        P[m:6, n:5] = sum[k:4] X1[m, k] * A[k, n]
        Q[m:6, n:5] = sum[k:4] X2[m, k] * B[k, n]
        R[m:6, n:5] = sum[k:4] X3[m, k] * C[k, n]
        output P, Q, R
    """)
    after = merge(program, 3)
    assert repr(after.equations[1].scope.body) == "*(X[m, 4*b+k], B1[b, k, n])"
    uneven = merge(parse(text(program).replace("k+8", "k+7")), 3)
    assert view_strides(uneven.equations[0].scope) is None


SLICES = """
    tensor X[{rows}, 4]
    tensor A[4, {columns}] weight
    tensor B[4, 5] weight
    P[m:6, n:5] = {first}
    Q[m:6, n:5] = {second}
    output P, Q
"""


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ("sum[k:4] X[m, k] * B[k, n]", "sum[y:4] X[m+6, y] * B[y, n]", "*(X[6*b+m, k], B[k, n])"),
        ("sum[k:4] X[m, k] * A[k, n]", "sum[y:4] A[y, n+5] * X[m+7, y]", "*(X[7*b+m, k], A[k, 5*b+n])"),
        ("max[k:4] (X[m+7, k] - B[k, n])", "max[k:4] (X[m, k] - B[k, n])", "-(X[-7*b+m+7, k], B[k, n])"),
        ("relu(X[2*m, 1] + B[2, n])", "relu(X[2*m+1, 2] + B[3, n])", "relu(+(X[b+2*m, b+1], B[b+2, n]))"),
    ],
)
def test_slices_of_one_tensor_are_read_at_an_index_of_the_batch(first: str, second: str, merged: str) -> None:
    after = merge(parse(SLICES.format(rows=14, columns=10, first=first, second=second)))
    assert [e.name for e in after.equations] == ["M1", "P", "Q"]
    assert repr(after.equations[0].scope.body) == merged


def test_slices_at_unequal_distances_are_refused() -> None:
    rows = "\n".join(f"{name}[m:6] = sum[k:4] X[m+{n}, k]" for name, n in (("P", 0), ("Q", 3), ("R", 7)))
    program = parse(f"tensor X[14, 4]\n{rows}\noutput P, Q, R")
    message = "X[m, k] and X[m+3, k] are no slices of one tensor at equal distances"
    refuses(BATCH_MERGING, program, (0,), message, others=["Q", "R"])
    assert [m.params.others for m in BATCH_MERGING.matches(program, (0,))] == [("Q",), ("R",)]


def test_equal_expressions_are_no_batch() -> None:
    program = parse("tensor X[6, 4]\nP[m:6] = sum[k:4] X[m, k]\nQ[n:6] = sum[j:4] X[n, j]\noutput P, Q")
    refuses(BATCH_MERGING, program, (0,), "P, Q are equal: one of them is enough", others=["Q"])


def test_a_common_operand_is_not_stacked() -> None:
    """Merging is requested here: only expressions without a common operand are proposed, since others are siblings."""
    program = parse(text(PRODUCTS).replace("Z[m, q]", "X[m, q]"))
    assert [m.to_json()["params"]["others"] for m in BATCH_MERGING.matches(program, (0,))] == [["R"]]
    after = merge(program, others=["Q"])
    assert [e.name for e in after.equations] == ["B1", "M1", "P", "Q", "R"]
    assert "P and Q both read X: they are siblings" in BATCH_MERGING.explain(program, (0,))  # type: ignore[misc]


def test_padding_keeps_its_value() -> None:
    after = merge(
        parse("""
        tensor X[3, 6] pad [0, 1] value -5
        tensor Z[3, 6] pad [0, 1] value -5
        Q[c:3, h:6] = max[r:3] X[c, h+r-1]
        K[c:3, h:6] = max[r:3] Z[c, h+r-1]
        output Q, K
    """)
    )
    assert after.equations[0].scope.value == -5


def test_domains_and_paddings_of_results() -> None:
    after = merge(
        parse("""
        tensor X[6, 4]
        tensor Z[6, 4]
        P[m:6 | 1 <= m < 4] = sum[k:4] X[m, k] pad [2] value 3
        Q[m:6 | 1 <= m < 4] = sum[k:4] Z[m, k] value 3
        R[m:8] = P[m-1] + Q[m%6]
    """)
    )
    assert after.equations[1].scope.value == 3


@given(contractions(), st.integers(0, 99))
def test_copies_of_any_contraction_become_a_batch(program: Program, seed: int) -> None:
    """Two copies of any contraction on tensors of their own make a batch."""
    here = text(program)
    there = here
    for name in "ABY":
        there = there.replace(f"{name}[", f"{name}{name}[")
    lines = [*here.splitlines(), *there.splitlines()]
    twins = parse("\n".join(sorted(lines, key=lambda line: not line.startswith("tensor"))))
    at = next(n for n, e in enumerate(twins.equations) if e.name == "Y")
    after = BATCH_MERGING.match(twins, (at,), others=["YY"]).apply(twins).after
    assert certify(twins, after).ok
    assert_equal(twins, after, seed)


def test_session_applies_batch_merging() -> None:
    session = Session(PRODUCTS)
    session.apply("batch_merging", at="P", others=["R", "Q"])
    assert session.check().kind == "proved"
    assert [repr(e.scope.body) for e in session.program.equations[3:]] == ["M1[0, m, n]", "M1[2, m, n]", "M1[1, m, n]"]


REFUSED = """
    tensor X[6, 4]
    tensor Y[7, 4]
    tensor A[4, 5] weight
    P[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
    Q[m:5, n:5] = sum[k:4] X[m, k] * A[k, n]
    R[m:6, n:5] = max[k:4] X[m, k] * A[k, n]
    S[m:6, n:5] = sum[k:3] X[m, k] * A[k, n]
    T[m:6, n:5] = sum[k:4] Y[m, k] * A[k, n]
    U[m:6, n:5] = sum[k:4] X[5-m, k] * A[k, n]
    V[m:6, n:5] = sum[k:4] P[m, k] * A[k, n]
    W[m:6, n:5] = X[m, 0] * A[1, n] via eOperator(kind="elementwise")
    output P, Q, R, S, T, U, V, W
"""


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (["Q"], "P traverses [0, 6) × [0, 5), Q [0, 5) × [0, 5)"),
        (["R"], "P reduces by sum, R max"),
        (["S"], "P sums over [0, 4), S [0, 3)"),
        (["T"], "P reads tensors of [0, 4) × [0, 5) × [0, 6) × [0, 4), T [0, 4) × [0, 5) × [0, 7) × [0, 4)"),
        (["U"], "P computes another expression than U: X[m, k], A[k, n] against X[-m+5, k], A[k, n]"),
        (["V"], "V reads P, directly or through others: they are not independent"),
        (["W"], "W is run as eOperator: there is nothing to merge"),
        (["P"], "P, P names an equation twice"),
        (["H"], "no equation is called 'H': there are P, Q"),
        ([], "P alone is nothing to merge"),
    ],
)
def test_unequal_expressions_are_not_merged(others: list[str], message: str) -> None:
    refuses(BATCH_MERGING, parse(REFUSED), (0,), message, others=others)


def test_only_whole_equations_merge() -> None:
    nested = parse("""
        tensor X[6, 4]
        Q[m:6] = {[m:6] sum[k:4] X[m, k]}[m]
        R[m:6] = sum[k:4] X[m, k]
        output Q, R
    """)
    message = "0.0 is a scope inside an equation, expected an equation"
    refuses(BATCH_MERGING, nested, (0, 0), message, others=["R"])
    assert not list(BATCH_MERGING.matches(nested, (0, 0)))
    assert BATCH_MERGING.explain(nested, (0, 0)) == message  # type: ignore[misc]
    assert BATCH_MERGING.explain(nested, (0,)) == "no equation after Q is element-wise"  # type: ignore[misc]
    assert BATCH_MERGING.explain(nested, (1,)) == "no equation after R has a summation"  # type: ignore[misc]
