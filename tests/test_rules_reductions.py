"""Identities of reductions: distributivity, exchange, the order of contractions, re-centring; each proved."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einnet_explore.analysis.indices import iterators_of
from einnet_explore.analysis.products import MAX_FACTORS, cheapest_tree, multiplications, tree_leaves
from einnet_explore.equivalence.assumptions import EXPONENTIAL_AXIOM
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Iterator, Program
from einnet_explore.rules import (
    CONTRACTION_ORDER,
    DISTRIBUTIVITY,
    RECENTRING,
    SUMMATION_EXCHANGE,
    SUMMATION_SPLITTING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Rule,
)
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse
from tests.rules_kit import check_rule, refuses

TENSORS = "tensor A[4, 5]\ntensor B[5, 6]\ntensor C[6, 3]\ntensor D[3, 7]\ntensor v[5]\ntensor g[4]\n"


def made(text: str) -> Program:
    return parse(TENSORS + text)


def explained(rule: Rule[object], program: Program) -> str:
    assert rule.explain is not None
    return rule.explain(program, (0,))


def proved(program: Program, rule: Rule[object], at: tuple[int, ...] = (0,), **params: object) -> Program:
    """The end of one step, which is proved."""
    (step,) = Derivation(program).then(rule.match(program, at, **params)).steps
    certificate = certify(step.before, step.after)
    assert certificate.kind == "proved" and not certificate.detail, certificate
    return step.after


# Distributivity


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Y[i:4] = sum[j:5] g[i] * A[i, j] * v[j]", "g[i] * {[i:4] sum[j:5] A[i, j] * v[j]}[i]"),
        ("Y[i:4] = sum[j:5] A[i, j] / g[i]", "1 / g[i] * {[i:4] sum[j:5] A[i, j]}[i]"),
        ("Y[i:4] = max[j:5] g[i] + A[i, j]", "g[i] + {[i:4] max[j:5] A[i, j]}[i]"),
        ("Y[i:4] = sum[j:5] 3 * exp(g[i]) * v[j]", "3 * exp(g[i]) * {[] sum[j:5] v[j]}[]"),
    ],
)
def test_independent_factor_moves_out_of_a_sum(text: str, found: str) -> None:
    before = made(text)
    after = proved(before, DISTRIBUTIVITY, direction="out")
    expected = made(f"Y[i:4] = {found}")
    assert after.equations[0].scope == expected.equations[0].scope
    assert check_rule(DISTRIBUTIVITY, before) >= 1


def test_independent_factor_moves_into_a_sum() -> None:
    before = made("Y[i:4] = g[i] * {[i:4] sum[j:5] A[i, j] * v[j]}[i]")
    after = proved(before, DISTRIBUTIVITY, direction="in", part=1)
    assert after.equations[0].scope == made("Y[i:4] = sum[j:5] g[i] * A[i, j] * v[j]").equations[0].scope
    sums = made("Y[i:4] = sum[j:5] A[i, j] * {[k:5] sum[j:6] B[k, j]}[j]")
    after = proved(sums, DISTRIBUTIVITY, direction="in", part=1)
    assert [x.extent for x in after.equations[0].scope.summations] == [5, 6]
    largest = made("Y[i:4] = g[i] + {[i:4] max[j:5] A[i, j]}[i]")
    after = proved(largest, DISTRIBUTIVITY, direction="in", part=1)
    assert after.equations[0].scope.reduce == "max" and check_rule(DISTRIBUTIVITY, largest) == 1


@pytest.mark.parametrize(
    ("text", "params", "why"),
    [
        ("Y[i:4] = sum[j:5] A[i, j] * v[j]", {"direction": "out"}, "of 2 factors 2 depend on the summations"),
        ("Y[i:4] = max[j:5] A[i, j] * v[j]", {"direction": "out"}, "of 1 terms 1 depend"),
        ("Y[i:4] = g[i]", {"direction": "out"}, "the scope sums nothing: no factor can move out of it"),
        ("Y[i:4] = prod[j:5] g[i] * v[j]", {"direction": "out"}, "the scope takes a product"),
        ("Y[i:4 | 0 <= i < 3] = sum[j:5] g[i] * v[j]", {"direction": "out"}, "the scope has a domain"),
        ("Y[i:4 | 0 <= i < 3] = g[i] * {[] sum[j:5] v[j]}[]", {"direction": "in", "part": 1}, "has a domain"),
        ("Y[i:4] = g[i] * {[] sum[j:5] v[j]}[]", {"direction": "in", "part": 0}, "reads no reduction"),
        ("Y[i:4] = g[i] * {[] sum[j:5] v[j]}[]", {"direction": "in", "part": 2}, "part 2: the body has 2"),
        ("Y[i:4] = 2 * relu(g[i])", {"direction": "in", "part": 1}, "which reads no reduction"),
        ("Y[i:4] = g[i] * {[] max[j:5] v[j]}[]", {"direction": "in", "part": 1}, "reduces by max, expected sum"),
        ("Y[i:4] = g[i] + {[] sum[j:5] v[j]}[]", {"direction": "in", "part": 1}, "no maximum or minimum"),
        ("Y[i:4] = max[j:5] v[j] * {[] sum[j:5] v[j]}[]", {"direction": "in", "part": 1}, "reduces by max, the inner"),
        ("Y[z:1] = {[] sum[j:5] v[j]}[]", {"direction": "in", "part": 0}, "the inner reduction is the whole body"),
        (
            "Y[i:5] = g[0] * {[i:4] sum[j:5] A[i, j]} pad [1][i]",
            {"direction": "in", "part": 1},
            "it is read at i ∈ [0, 4], outside its box [0, 4)",
        ),
        (
            "tensor P[4, 5] pad [0, 1] value inf\nY[i:4] = sum[j:6] g[i] * P[i, j]",
            {"direction": "out"},
            "0 times infinity",
        ),
        (
            "Y[i:4] = sum[j:5] g[i] * v[j]",
            {"direction": "up"},
            "takes {direction: 'out'} or {direction: 'in', part} or {direction: 'terms'}, found direction='up'",
        ),
    ],
)
def test_distributivity_refuses(text: str, params: dict[str, object], why: str) -> None:
    refuses(DISTRIBUTIVITY, made(text), (0,), why, **params)


# Exchange


@pytest.mark.parametrize("reduce", ["sum", "max", "prod"])
def test_nested_summations_are_exchanged(reduce: str) -> None:
    before = made(f"Y[i:4] = {reduce}[k:5] {{[i:4, k:5] {reduce}[j:6] A[i, k] * B[k, j]}}[i, k]")
    after = proved(before, SUMMATION_EXCHANGE)
    outer = after.equations[0].scope
    assert [x.extent for x in outer.summations] == [6] and check_rule(SUMMATION_EXCHANGE, before) == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Y[i:4] = g[i]", "the scope sums nothing"),
        ("Y[i:4] = sum[k:5] A[i, k]", "reads no reduction"),
        ("Y[i:4] = sum[k:5] 2 * {[k:5] sum[j:6] B[k, j]}[k]", "more than a read of a reduction"),
        ("Y[z:1] = sum[k:5] {[k:5] max[j:6] B[k, j]}[k]", "reduces by max, expected sum"),
        ("Y[i:4 | 0 <= i < 3] = sum[k:5] {[k:5] sum[j:6] B[k, j]}[k]", "the scope has a domain"),
        ("Y[z:1] = sum[k:5] {[k:5 | 0 <= k < 2] sum[j:6] B[k, j]}[k]", "the inner scope has a domain"),
    ],
)
def test_exchange_refuses(text: str, why: str) -> None:
    refuses(SUMMATION_EXCHANGE, made(text), (0,), why)
    assert why in explained(SUMMATION_EXCHANGE, made(text))


def test_exchange_takes_no_parameters() -> None:
    refuses(SUMMATION_EXCHANGE, made("Y[z:1] = sum[k:5] v[k]"), (0,), "takes no parameters, found by", by=1)


# The order of contractions


def test_a_chain_is_associated_by_its_cost() -> None:
    before = made("Y[i:4, l:7] = sum[j:5, k:6, m:3] A[i, j] * B[j, k] * C[k, m] * D[m, l]")
    (match,) = CONTRACTION_ORDER.matches(before, (0,))
    after = proved(before, CONTRACTION_ORDER, **match.to_json()["params"])
    # A(B C) takes 5·6·3 + 4·5·3 products, and D then 4·3·7.
    assert CONTRACTION_ORDER.encode(match.params) == {"tree": [[0, [1, 2]], 3]}
    assert not list(CONTRACTION_ORDER.matches(after, (0,))) and check_rule(CONTRACTION_ORDER, before) == 1


def test_a_flat_product_is_taken_apart_from_the_left() -> None:
    """The tree reads as the product does, but sums below."""
    before = made("Y[i:4, m:3] = sum[j:5, k:6] A[i, j] * B[j, k] * C[k, m]")
    after = proved(before, CONTRACTION_ORDER, tree=[[0, 1], 2])
    assert after != before and len(after.equations[0].scope.summations) == 1
    refuses(CONTRACTION_ORDER, after, (0,), "this is the present order", tree=[[0, 1], 2])


def test_no_order_is_proposed_that_sums_nothing_below() -> None:
    """Found by a soak: a sum over nothing that is read costs its grid, but no tree takes it away."""
    assert not list(CONTRACTION_ORDER.matches(made("Y[s:4] = sum[c:1, n:3] g[s] * A[s, 1] * g[s]"), (0,)))


def test_a_factor_is_summed_alone_over_what_only_it_reads() -> None:
    before = made("Y[s:4] = sum[n:3] g[s] * g[s] * v[n]")
    (match,) = CONTRACTION_ORDER.matches(before, (0,))
    after = proved(before, CONTRACTION_ORDER, **match.to_json()["params"])
    assert "{[] sum[n:0..3] v[n]}[]" in repr(after) and not after.equations[0].scope.summations


def test_nested_products_are_reassociated() -> None:
    before = made("Y[i:4, l:3] = sum[k:6] {[i:4, k:6] sum[j:5] A[i, j] * B[j, k]}[i, k] * C[k, l] * 2")
    after = proved(before, CONTRACTION_ORDER, tree=[0, [1, 2]])
    back = proved(after, CONTRACTION_ORDER, tree=[[0, 1], 2])
    assert certify(before, back).kind == "proved"
    vector = made("Y[i:4] = sum[k:5] {[i:4, k:6] sum[j:5] A[i, j] * B[j, k]}[i, k] * v[k]")
    assert [CONTRACTION_ORDER.encode(m.params) for m in CONTRACTION_ORDER.matches(vector, (0,))] == [
        {"tree": [0, [1, 2]]}
    ]


@pytest.mark.parametrize(
    ("text", "tree", "why"),
    [
        ("Y[i:4] = sum[j:5] A[i, j] * v[j]", [0, [1, 2]], "has the factors [0, 1, 2], expected each of 0 to 1 once"),
        ("Y[i:4] = sum[j:5] A[i, j]", 0, "only one factor"),
        ("Y[i:4] = sum[j:5] A[i, j] * v[j]", [0, 1], "this is the present order"),
        ("Y[i:4] = max[j:5] A[i, j] * v[j]", [0, 1], "takes the max, expected a plain sum"),
        ("Y[i:4] = g[i] * g[i]", [0, 1], "sums nothing"),
        ("Y[i:4] = sum[j:5] 2", [0, 1], "the body is a constant"),
        ("Y[i:4] = sum[j:5] A[i, j] * v[j]", [0, 1, 2], "tree [0, 1, 2]: expected a number or a pair of trees"),
    ],
)
def test_contraction_order_refuses(text: str, tree: object, why: str) -> None:
    refuses(CONTRACTION_ORDER, made(text), (0,), why, tree=tree)


def test_refusal_states_why_no_contraction_order_is_proposed() -> None:
    for text, why in (
        ("Y[i:4] = sum[j:5] A[i, j] * v[j]", "the present order takes 20 multiplications, no other fewer"),
        ("Y[i:4] = sum[j:5] A[i, j]", "there is only one factor"),
        ("Y[i:4] = g[i]", "sums nothing"),
        (
            f"Y[z:1] = sum[j:5] {' * '.join(['v[j]'] * (MAX_FACTORS + 1))}",
            f"orders of up to {MAX_FACTORS} are compared",
        ),
        ("Y[z:1] = sum[j:5] v[j] * v[j] * v[j]", "the present order takes 10 multiplications, no other fewer"),
    ):
        assert why in explained(CONTRACTION_ORDER, made(text))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=3, max_size=7))
def test_the_cheapest_chain_is_the_classic_one(sizes: list[int]) -> None:
    """Matrix chains: the recurrence over intervals finds what is found over all trees."""
    xs = [Iterator(f"x{n}", 0, size) for n, size in enumerate(sizes)]
    reads = [frozenset(pair) for pair in pairwise(xs)]
    kept = frozenset((xs[0], xs[-1]))
    tree = cheapest_tree(reads, kept)
    count = len(reads)
    best = {(n, n): 0 for n in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            best[i, j] = min(best[i, k] + best[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j))
    assert sorted(tree_leaves(tree)) == list(range(count)) and multiplications(tree, reads, kept) <= best[0, count - 1]


def test_a_tree_needs_two_factors() -> None:
    with pytest.raises(ValueError, match="1 factors: expected 2 to 12"):
        cheapest_tree([frozenset()], frozenset())


# Re-centring, and the online softmax in steps

SOFTMAX = """
tensor S[3, 12]
tensor V[12, 2]
tensor M[3]
Y[m:3, n:2] = sum[w:12] exp(S[m, w] - M[m]) * V[w, n]
"""


def blocked() -> Derivation:
    """Blocks of four, each relative to its own maximum; what relates the blocks stands outside."""
    start = parse(SOFTMAX)
    steps = Derivation(start)
    steps = steps.then(VARIABLE_SUBSTITUTION.match(start, (0,), phi={"j": "w//4", "i": "w%4"}))
    at = (0,) if len(steps.end.scope_at((0,)).summations) == 2 else (0, 0)
    steps = steps.then(RECENTRING.match(steps.end, at, factor=0, within=["i"]))
    return steps.then(SUMMATION_SPLITTING.match(steps.end, at, outer=["j"], apart=True))


def test_the_online_softmax_is_derived_and_proved() -> None:
    derivation = blocked()
    certificates = [certify(step.before, step.after) for step in derivation.steps]
    assert [c.kind for c in certificates] == ["proved"] * 3
    assert [c.detail == EXPONENTIAL_AXIOM for c in certificates] == [False, True, False]
    whole = certify(derivation.start, derivation.end)
    assert whole.kind == "proved" and EXPONENTIAL_AXIOM in whole.detail
    inputs = {t.name: np.random.default_rng(0).standard_normal(t.shape) for t in derivation.start.inputs}
    want, got = (evaluate(p, inputs, np.float64)["Y"] for p in (derivation.start, derivation.end))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_wrong_centre_is_not_proved() -> None:
    """e^(a-c) e^(c'-b) with another c' is neither proved nor equal."""
    before = parse("tensor a[5]\ntensor b[5]\ntensor c[5]\nY[i:5] = exp(a[i] - b[i])")
    after = parse("tensor a[5]\ntensor b[5]\ntensor c[5]\nY[i:5] = exp(a[i] - c[i]) * exp(c[4-i] - b[i])")
    right = parse("tensor a[5]\ntensor b[5]\ntensor c[5]\nY[i:5] = exp(a[i] - c[i]) * exp(c[i] - b[i])")
    assert certify(before, right).kind == "proved" and certify(before, right).detail == EXPONENTIAL_AXIOM
    assert certify(before, after).kind == "false"
    twice = parse("tensor a[5]\ntensor b[5]\ntensor c[5]\nY[i:5] = exp(a[i] - b[i]) * exp(a[i] - b[i])")
    assert certify(before, twice).kind == "false"


@pytest.mark.parametrize(
    ("body", "params", "why"),
    [
        ("exp(S[m, w] - M[m]) * V[w, n]", {"factor": 1, "within": ["w"]}, "expected the exponential of a difference"),
        ("exp(S[m, w] - M[m]) * V[w, n]", {"factor": 2, "within": ["w"]}, "factor 2: the body has 2"),
        ("exp(S[m, w] - M[m]) * V[w, n]", {"factor": 0, "within": []}, "is not summed here"),
        ("exp(S[m, 0] - M[m]) * V[w, n]", {"factor": 0, "within": ["w"]}, "does not depend on {w}"),
        ("exp(S[m, w] - V[w, 0]) * V[w, n]", {"factor": 0, "within": ["w"]}, "which depends on {w} too"),
        ("exp(S[m, w] - M[m]) * V[w, n]", {"factor": 0, "within": ["q"]}, "no iterator is called 'q'"),
    ],
)
def test_recentring_refuses(body: str, params: dict[str, object], why: str) -> None:
    program = parse(SOFTMAX.rpartition("Y[")[0] + f"Y[m:3, n:2] = sum[w:12] {body}")
    refuses(RECENTRING, program, (0,), why, **params)


DECAY = """
tensor L[12]
tensor V[12, 2]
Y[T:3, t:4, n:2] = sum[S:3, s:4] where(S < T, exp({argument}), 0) * V[4*S+s, n]
"""


@pytest.mark.parametrize("argument", ["L[4*T+t] - L[4*S+s]", "-1 * L[4*S+s] + 2 * L[4*T+t] - 3"])
def test_decay_becomes_relative_to_the_ends_of_blocks(argument: str) -> None:
    start = parse(DECAY.format(argument=argument))
    steps = Derivation(start)
    while match := next((m for m in RECENTRING.matches(steps.end, (0,)) if "at" in m.to_json()["params"]), None):
        steps = steps.then(match)
    assert [m.match.to_json()["params"]["at"] for m in steps.steps] == ["0", "3"]
    held, *_ = steps.end.equations[0].scope.body.args
    assert {x.name for x in iterators_of(held)} == {"S", "T"}
    verdict = certify(start, steps.end)
    assert verdict.kind == "proved" and EXPONENTIAL_AXIOM in verdict.detail
    inputs = {"L": -(np.arange(12.0) ** 1.5) / 9, "V": np.arange(24.0).reshape(12, 2)}
    want, got = (evaluate(program, inputs, float)["Y"] for program in (start, steps.end))
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize(
    ("argument", "params", "why"),
    [
        ("L[4*T+t] - L[4*S+s]", {"iterator": "n", "at": "0"}, "0 of L[4*T+t] and L[4*S+s] depend on n, expected one"),
        ("L[4*T+t] - L[4*T+s]", {"iterator": "T", "at": "0"}, "2 of L[4*T+t] and L[4*T+s] depend on T, expected one"),
        ("L[4*T+t] - L[4*S+s]", {"iterator": "s", "at": "S+2"}, "s is S+2 in [2, 4], outside [0, 4)"),
        ("L[4*T+t] + L[4*S+s]", {"iterator": "s", "at": "3"}, "expected a difference"),
    ],
)
def test_recentring_refuses_a_place(argument: str, params: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=re.escape(why)):
        RECENTRING.match(program := parse(DECAY.format(argument=argument)), (0,), factor=0, **params).apply(program)


def test_recentring_refuses_a_place_that_may_be_infinite() -> None:
    program = parse(DECAY.format(argument="L[4*T+t] - L[4*S+s]").replace("L[12]", "L[12] pad [1] value -inf"))
    with pytest.raises(Refused, match="may be infinite"):
        RECENTRING.match(program, (0,), factor=0, iterator="s", at="3").apply(program)


def test_recentring_refuses_a_maximum() -> None:
    program = parse(SOFTMAX.replace("= sum", "= max"))
    refuses(RECENTRING, program, (0,), "takes the max, expected a plain sum", factor=0, within=["w"])
    assert "the scope has 1 summation," in explained(RECENTRING, program)
