"""Expression splitting: along traversals, along summations, by terms; it undoes merging."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.operators import expressions as ops
from einnet_explore.rules import EXPRESSION_SPLITTING, SIBLING_MERGING
from einnet_explore.session.session import Session
from einnet_explore.syntax import parse, text
from tests.rules_kit import assert_equal, check_rule, contractions, refuses


def proposed(program: Program, at: int = 0) -> list[dict[str, object]]:
    return [m.to_json()["params"] for m in EXPRESSION_SPLITTING.matches(program, (at,))]


def split(program: Program, at: int = 0, **params: object) -> Program:
    after = EXPRESSION_SPLITTING.match(program, (at,), **params).apply(program).after
    assert certify(program, after).kind == "proved"
    assert parse(text(after)) == after
    assert_equal(program, after)
    return after


def test_sum_is_split_into_its_terms() -> None:
    program = parse("""
        tensor X[6, 4]
        tensor Z[6, 4]
        tensor A[4, 5] weight
        tensor B[4, 5] weight
        Q[m:6, n:5] = sum[k:4] (X[m, k] * A[k, n] + Z[m, k] * B[k, n])
    """)
    assert proposed(program) == [{"terms": [0]}]
    after = split(program, terms=[0])
    bodies = [repr(e.scope.body) for e in after.equations]
    assert bodies == ["*(X[m, k], A[k, n])", "*(Z[m, k], B[k, n])", "+(P1[m, n], P2[m, n])"]


def test_grouped_convolution_is_split_into_its_groups() -> None:
    """Each group of a grouped convolution is a convolution."""
    program = ops.conv2d(N=1, H=3, W=3, C=4, F=6, R=3, S=3, groups=2, padding=1)
    cuts = [p for p in proposed(program) if "iterator" in p]
    assert cuts
    after = split(program, **cuts[0])
    assert len(after.equations) == 3
    assert check_rule(EXPRESSION_SPLITTING, program) >= 1


def test_splitting_undoes_merging() -> None:
    program = parse("""
        tensor X[6, 4]
        tensor A[4, 5] weight
        tensor B[4, 3] weight
        Q[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
        K[m:6, n:3] = sum[k:4] X[m, k] * B[k, n]
        output Q, K
    """)
    merged = next(iter(SIBLING_MERGING.matches(program, (0,)))).apply(program).after
    assert proposed(merged, 1) == [{"iterator": "n", "cuts": [5]}]
    parts = split(merged, 1, iterator="n", cuts=[5])
    assert [e.scope.shape for e in parts.equations if e.scope.summations] == [(6, 5), (6, 3)]
    assert certify(program, parts).kind == "proved"


def test_readers_of_slices_suggest_a_cut() -> None:
    program = parse("""
        tensor X[6, 4]
        tensor A[4, 12] weight
        Q[m:6, n:12] = sum[k:4] X[m, k] * A[k, n]
        U[m:6, n:4] = Q[m, n]
        V[m:6, n:8] = Q[m, n+4]
    """)
    assert proposed(program) == [{"iterator": "n", "cuts": [4]}]


@pytest.mark.parametrize("reduce", ["sum", "max", "min", "prod"])
def test_summations_of_every_monoid_are_split(reduce: str) -> None:
    program = parse(f"tensor X[6, 5]\nQ[m:6] = {reduce}[k:5] X[m, k]")
    after = EXPRESSION_SPLITTING.match(program, (0,), iterator="k", cuts=[1, 3]).apply(program).after
    assert certify(program, after).ok
    assert_equal(program, after)


@given(contractions(), st.data())
def test_any_cut_of_a_contraction_keeps_the_value(program: Program, data: st.DataObject) -> None:
    scope = program.equations[0].scope
    long = [x for x in (*scope.traversals, *scope.summations) if x.extent > 1]
    if long:
        x = data.draw(st.sampled_from(long))
        at = sorted(data.draw(st.sets(st.integers(x.lo + 1, x.hi - 1), min_size=1)))
        after = EXPRESSION_SPLITTING.match(program, (0,), iterator=x.name, cuts=at).apply(program).after
        assert certify(program, after).ok
        assert_equal(program, after)


def test_domains_and_paddings_stay_outside() -> None:
    program = parse("""
        tensor X[6, 4]
        P[m:6 | 1 <= m < 4] = sum[k:4] X[m, k] pad [2] value 3
        R[m:8] = P[m-1]
    """)
    split(program, iterator="m", cuts=[2])


def test_session_applies_expression_splitting() -> None:
    session = Session(parse("tensor X[6, 5]\nQ[m:6] = sum[k:5] X[m, k]"))
    session.apply("expression_splitting", at="Q", iterator="k", cuts=[2])
    assert session.check().kind == "proved"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"iterator": "m", "cuts": [6]}, "cuts at 6 do not divide m ∈ [0, 6)"),
        ({"iterator": "m", "cuts": [3, 3]}, "cuts at 3, 3 do not divide m ∈ [0, 6)"),
        ({"iterator": "m", "cuts": []}, "cuts at nothing do not divide m ∈ [0, 6)"),
        ({"iterator": "z", "cuts": [1]}, "no iterator is called 'z' here: there are {m, k}"),
        ({"iterator": "m"}, "the parameter 'cuts' is missing"),
        ({"terms": [0]}, "both groups need terms: [0] and [] of 1"),
        ({"terms": [1]}, "term 1: the body has 1 terms"),
    ],
)
def test_wrong_cuts_are_refused(params: dict[str, object], message: str) -> None:
    program = parse("tensor X[6, 4]\nP[m:6] = sum[k:4] X[m, k]")
    refuses(EXPRESSION_SPLITTING, program, (0,), message, **params)


def test_terms_under_a_maximum_and_instances_are_not_split() -> None:
    program = parse("""
        tensor X[6, 4]
        P[m:6] = max[k:4] (X[m, k] + X[5-m, k])
        Q[m:6] = {[m:6] sum[k:4] X[m, k]}[m]
        R[m:6] = X[m, 0] + X[m, 1] via eOperator(kind="elementwise")
        output P, Q, R
    """)
    refuses(EXPRESSION_SPLITTING, program, (0,), "a sum's terms are independent, the scope reduces by max", terms=[0])
    message = "1.0 is a scope inside an equation, expected an equation"
    refuses(EXPRESSION_SPLITTING, program, (1, 0), message, iterator="m", cuts=[1])
    refuses(EXPRESSION_SPLITTING, program, (2,), "R is run as eOperator: there is nothing to split", terms=[0])
    explain = EXPRESSION_SPLITTING.explain
    assert explain is not None
    assert explain(program, (0,)).startswith("no index divides one of {m, k}, no operand is a concatenation")
    assert explain(program, (1,)).startswith("no index divides one of {m}")
    assert explain(program, (1, 0)) == message
    assert explain(program, (2,)) == "R is run as eOperator: there is nothing to split"
