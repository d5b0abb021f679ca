"""Traversal merging preserves every value; mismatched scopes and reductions are refused."""

from dataclasses import replace

import pytest
from hypothesis import given

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Bound, Iterator, Program, Scope, Tensor, as_index, mul, program
from einnet_explore.rules import RULES, TRAVERSAL_MERGING
from einnet_explore.syntax import parse, text
from tests.rules_kit import Steps, assert_equal, check_rule, refuses, walks
from tests.strategies import programs
from tests.test_einnet_check import believed


@given(programs(equations=2))
def test_merging_keeps_the_value(start: Program) -> None:
    check_rule(TRAVERSAL_MERGING, start)


@given(walks(tuple(r for r in RULES if r.name in ("summation_splitting", "variable_substitution")), 3))
def test_it_takes_back_what_others_nested(walk: tuple[Program, Program]) -> None:
    """A split and a substitution, of whatever scope, can be merged away again, one scope at a time."""
    start, nested = walk
    assert_equal(start, nested)
    check_rule(TRAVERSAL_MERGING, nested)


def test_a_split_is_merged_back() -> None:
    start = parse("tensor A[4, 3]\nY[h:4] = sum[r:3, s:2] A[h, r] * A[s, r]")
    split = next(r for r in RULES if r.name == "summation_splitting")
    steps = Steps(start).do(split, (0,), outer=["r"]).find(TRAVERSAL_MERGING, (0,), access=0)
    assert steps.end.scope_at((0,)) == start.scope_at((0,))


def test_names_that_clash_are_made_fresh() -> None:
    start = parse("tensor A[4, 3]\nY[h:4] = sum[r:3] A[h, r] * {[h:3] sum[r:4] A[r, h]}[r]")
    steps = Steps(start).find(TRAVERSAL_MERGING, (0,), access=1)
    assert repr(steps.end.scope_at((0,)).body) == "*(A[h, r], A[r1, r])"
    assert [y.name for y in steps.end.scope_at((0,)).summations] == ["r", "r1"]


def test_a_factor_of_a_product_without_summations_distributes() -> None:
    start = parse("tensor A[4, 3]\nY[h:4] = A[h, 0] * {[m:4] sum[r:3] A[m, r]}[h]")
    steps = Steps(start).find(TRAVERSAL_MERGING, (0,), access=1)
    assert [y.name for y in steps.end.scope_at((0,)).summations] == ["r"]


def test_a_scope_without_summations_merges_anywhere() -> None:
    start = parse("tensor A[4, 3]\nY[h:4] = max[r:3] relu(A[h, r] - {[m:4] A[m, 1] * A[m, 0]}[3-h])")
    Steps(start).find(TRAVERSAL_MERGING, (0,), access=1)


X = Iterator("x", 0, 6)
Z = Iterator("z", 0, 6)
A = Tensor("A", (3,))


def guarded(value: float = 5) -> Scope:
    """A[z - 1] for z in [1, 4), *value* elsewhere."""
    return Scope((Z,), (), A[(Z - 1,)], domain=(Bound(as_index(Z), 1, 4),), value=value)


def test_an_inner_domain_moves_out_where_nothing_else_is_computed() -> None:
    start = program(Scope((X,), (), guarded()[(5 - X,)]))
    after = Steps(start).find(TRAVERSAL_MERGING, (0,), access=0).end.scope_at((0,))
    assert [repr(b) for b in after.domain] == ["1 <= -x+5 < 4"] and after.value == 5


def test_an_inner_domain_that_holds_is_dropped() -> None:
    near = Iterator("x", 0, 3)
    start = program(Scope((near,), (), guarded()[(near + 1,)]))
    assert Steps(start).find(TRAVERSAL_MERGING, (0,), access=0).end.scope_at((0,)).domain == ()
    outer = replace(start.equations[0].scope, traversals=(X,), body=guarded()[(X,)], domain=guarded().domain)
    outer = replace(outer, domain=(Bound(as_index(X), 1, 4),))
    assert Steps(program(outer)).find(TRAVERSAL_MERGING, (0,), access=0).end.scope_at((0,)).domain == outer.domain


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ("Y[h:2] = {[z:2] A[z, 0]} pad [2] [h+1]", "Φ reaches [1, 2], outside z ∈ [0, 2)"),
        ("Y[h:2] = A[h, 0] * {[z:2] A[z, 0]}[h]", "access 0 reads tensor A, not a scope"),
        ("Y[h:2] = sum[r:3] {[z:2, r:3] max[q:2] A[q, r]}[h, r]", "the inner scope reduces by max, the outer by sum"),
        (
            "Y[h:2] = sum[r:3] relu({[z:2, r:3] sum[q:2] A[q, r]}[h, r])",
            "access 0 has summations and is neither the whole body nor a factor of a sum's terms",
        ),
        (
            "Y[h:2] = max[r:3] A[h, r] + {[z:2, r:3] max[q:2] A[q, r]}[h, r]",
            "access 0 reads tensor A, not a scope",
        ),
    ],
)
def test_reads_outside_the_inner_range_are_refused(scope: str, message: str) -> None:
    start = parse(f"tensor A[3, 3]\n{scope}")
    refuses(TRAVERSAL_MERGING, start, (0,), message, access=0)
    assert 0 not in [m.params.access for m in TRAVERSAL_MERGING.matches(start, (0,))]


def test_a_maximum_does_not_distribute_over_a_sum() -> None:
    start = parse("tensor A[3, 3]\nY[h:2] = max[r:3] {[z:2, r:3] max[q:2] A[q, r]}[h, r] * A[h, r]")
    message = "access 0 has summations and is neither the whole body nor a factor of a sum's terms"
    refuses(TRAVERSAL_MERGING, start, (0,), message, access=0)


def test_inner_domains_that_do_not_hold_are_refused() -> None:
    y = Iterator("y", 0, 2)
    body = guarded()[(X,)]
    summed = program(Scope((X,), (y,), body))
    refuses(TRAVERSAL_MERGING, summed, (0,), "the inner domain 1 <= x < 4 does not hold: it reaches [0, 5]", access=0)
    product = program(Scope((X,), (), mul(body, body)))
    refuses(TRAVERSAL_MERGING, product, (0,), "the inner domain 1 <= x < 4 does not hold: it reaches [0, 5]", access=1)
    two = program(Scope((X,), (), body, padding=((1, 1),), value=2))
    refuses(TRAVERSAL_MERGING, two, (0,), "and the values differ: 2 outside, 5 inside", access=0)


def test_wrong_access_numbers_are_refused() -> None:
    start = parse("tensor A[3]\nY[h:2] = A[h]")
    refuses(TRAVERSAL_MERGING, start, (0,), "access 3: the body has 1 accesses", access=3)
    refuses(TRAVERSAL_MERGING, start, (0,), "the parameter 'access' is missing")


@pytest.mark.parametrize(
    ("body", "merged"),
    [
        ("0.3 * {[i:4] A[i] / 0.1}[i]", "0.3 * (A[i] / 0.1)"),
        ("0.3 * {[i:4] 0.1 * A[i]}[i]", "0.1 * 0.3 * A[i]"),
        ("2 * {[i:4] 0.1 * A[i]}[i]", "0.2 * A[i]"),
        ("0.75 * {[i:4] 0.5 * A[i]}[i]", "0.375 * A[i]"),
        ("4 * {[i:4] 0.3 * {[i:4] 0.1 * A[i]}[i]}[i]", "0.1 * 1.2 * A[i]"),
        ("0.1 * {[i:4] 0.3 * {[i:4] 0.1 * A[i]}[i]}[i]", "0.1 * 0.1 * 0.3 * A[i]"),
        ("0.2 + {[i:4] 0.1 + A[i]}[i]", "0.1 + 0.2 + A[i]"),
        ("0.5 + {[i:4] 0.25 + A[i]}[i]", "0.75 + A[i]"),
        ("-0.1 + {[i:4] 0.1 + A[i]}[i]", "A[i]"),
        ("0 * {[i:4] 0.1 * A[i]}[i]", "0 * A[i]"),
    ],
)
def test_constants_of_merged_scopes_are_folded_only_if_that_is_exact(body: str, merged: str) -> None:
    program_of = "tensor A[4]\nY[i:4] = {}"
    start = parse(program_of.format(body))
    after = start
    while "{" in text(after):
        after = TRAVERSAL_MERGING.match(after, (0,), access=0).apply(after).after
    assert after == parse(program_of.format(merged)) == parse(text(after))
    assert certify(start, after).kind == "proved" and believed(start, after)
