"""``bound``: pruned branches cost more than a known candidate, and the best candidate is never lost."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.cost import CostModel, minimum_products, program_least
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Instance, Program
from einnet_explore.rules import EXPRESSION_FUSION, RULES
from einnet_explore.strategies.engine import Search, lower_bound
from einnet_explore.strategies.events import Found, Level, Pruned
from einnet_explore.strategies.options import Options
from einnet_explore.syntax import parse
from tests.slow_cases import with_slow

CASES = {
    "Conv3x3": ee.ops.conv2d(N=1, H=7, W=7, C=32, F=48, R=3, S=3, padding=1),
    "Conv5x5": ee.ops.conv2d(N=2, H=12, W=12, C=8, F=2, R=5, S=5, padding=2),
    "strided": ee.ops.conv2d(N=1, H=9, W=8, C=3, F=4, R=3, S=3, stride=2, padding=1),
    "ConvTranspose": ee.ops.conv_transpose2d(
        N=2, H=4, W=4, in_channels=12, out_channels=8, R=4, S=4, stride=2, padding=1
    ),
    "G2BMM": ee.ops.g2bmm(b=2, m=64, w=4, k=16, dilation=4),
    "chain": parse(
        """
        tensor A[4, 64]
        tensor B[64, 64]
        tensor C[64, 64]
        Y[m:4, n:64] = sum[k:64, j:64] A[m, j] * B[j, k] * C[k, n]
        """
    ),
    "bias and relu": parse(
        """
        tensor A[6, 9]
        tensor B[9, 8]
        tensor b[8] weight
        Y[i:6, l:8] = relu({[i:6, l:8] sum[j:9] A[i, j] * B[j, l]}[i, l] + b[l])
        """
    ),
}

LEVELS = {"paper": 2, "best_first": 7}

LONG = {"ConvTranspose", "strided"}
"""The cases whose searches take the longest; the others are convolutions too."""


@cache
def searched(case: str, strategy: str, bound: bool) -> tuple[Search, tuple[object, ...]]:
    options = Options(strategy, LEVELS[strategy], bound=bound)
    engine = Search(CASES[case], ee.program_seconds, options, least=program_least)
    return engine, tuple(engine.run())


@pytest.mark.parametrize("strategy", LEVELS)
@pytest.mark.parametrize("case", with_slow(CASES, LONG))
def test_the_best_candidate_is_never_lost(case: str, strategy: str) -> None:
    """Levels and the end are unchanged too, and every candidate is also found without the bound."""
    whole, everything = searched(case, strategy, False)
    bounded, less = searched(case, strategy, True)
    assert bounded.best == whole.best
    assert [e for e in less if isinstance(e, Level)] == [e for e in everything if isinstance(e, Level)]
    assert (bounded.complete, bounded.ended) == (whole.complete, whole.ended)
    keys = [{ee.program_key(e.state.program) for e in events if isinstance(e, Found)} for events in (less, everything)]
    assert keys[0] <= keys[1]
    cheapest = {ee.program_key(e.state.program) for e in everything if isinstance(e, Found) and e.seconds == whole.best}
    assert cheapest <= keys[0]


@pytest.mark.parametrize("strategy", LEVELS)
def test_pruned_branch_states_bound_and_candidate_cost(strategy: str) -> None:
    bounded, events = searched("Conv5x5", strategy, True)
    dear = [e for e in events if isinstance(e, Pruned) and "it costs at least" in e.why]
    assert len(dear) >= 10
    for each in dear:
        words = each.why.split()
        assert each.twin is None and float(words[4]) >= float(words[8]) >= float(f"{bounded.best:.4g}"), each.why
    assert not any(
        "it costs at least" in e.why for e in searched("Conv5x5", strategy, False)[1] if isinstance(e, Pruned)
    )


@pytest.mark.parametrize("case", with_slow(CASES, LONG))
def test_every_candidate_costs_at_least_its_bounds(case: str) -> None:
    """At the start, at every state on the way, and at the end, where the bound is the cost."""
    engine, events = searched(case, "best_first", False)
    for event in events:
        if isinstance(event, Found):
            derivation = engine.derivation(event.state.id)
            for program in (derivation.start, *(step.after for step in derivation.steps)):
                assert lower_bound(program, ee.program_seconds, program_least) <= event.seconds * (1 + 1e-12)
                assert lower_bound(program, ee.program_seconds) <= event.seconds * (1 + 1e-12)
            assert lower_bound(derivation.end, ee.program_seconds, program_least) == pytest.approx(event.seconds)


def test_cost_bound_counts_chosen_calls_in_full() -> None:
    start = parse("tensor A[64, 32]\ntensor B[32, 16]\nT[m:64, n:16] = sum[k:32] A[m, k]*B[k, n]\nY[i:64] = T[i, 3]")
    first, last = start.equations
    call = Equation("T", first.scope, Instance("Matmul", (("b", 1), ("m", 64), ("n", 16), ("k", 32))))
    half = Program(start.inputs, (call, last), start.outputs)
    assert lower_bound(half, ee.program_seconds) == pytest.approx(CostModel().estimate(call).seconds)
    done = Program(start.inputs, (call, Equation("Y", last.scope, Instance(VIEW))), start.outputs)
    assert lower_bound(half, ee.program_seconds, program_least) <= lower_bound(done, ee.program_seconds)
    assert lower_bound(start, ee.program_seconds) == 0 < lower_bound(start, ee.program_seconds, program_least)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("tensor A[4, 5]\ntensor B[5, 6]\nY[m:4, n:6] = sum[k:5] A[m, k]*B[k, n]", 120),
        ("tensor A[7] pad [1]\ntensor K[3]\nY[h:7] = sum[r:3] A[h+r-1]*K[r]", 19),
        ("tensor A[7, 5] pad [1, 1]\ntensor K[3, 3]\nY[h:7, w:5] = sum[r:3, s:3] A[h+r-1, w+s-1]*K[r, s]", 19 * 13),
        # One factor can stay outside, a factor is read twice for one output, products repeat: not known.
        ("tensor A[4, 5]\ntensor B[5, 6]\nY[m:4] = sum[k:5, n:6] A[m, k]*B[k, n]", 0),
        ("tensor A[9]\ntensor K[4, 4]\nY[i:1] = sum[r:4, s:4] A[r+s]*K[r, s]", 0),
        ("tensor A[9]\ntensor K[4]\nY[i:3, j:3] = sum[r:4] A[r]*K[r]", 0),
        ("tensor A[4] pad [1] value 2\ntensor K[3]\nY[h:4] = sum[r:3] A[h+r-1]*K[r]", 0),
        ("tensor A[8]\ntensor K[4]\nY[h:4] = sum[r:4] A[(h+r)//2]*K[r]", 0),
    ],
)
def test_products_that_have_to_be_formed(text: str, count: int) -> None:
    assert minimum_products(parse(text).equations[0].scope) == count


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
def test_products_are_counted_like_points(h: int, r: int, stride: int, before: int, after: int) -> None:
    n = max(1, (h - 1) * stride + r - before - after)
    scope = (
        parse(
            f"tensor A[{n}] pad [({before}, {after + stride * h + r})]\ntensor K[{r}]\n"
            f"Y[h:{h}] = sum[r:{r}] A[{stride}*h+r-{before}]*K[r]"
        )
        .equations[0]
        .scope
    )
    inside = sum(0 <= stride * i + j - before < n for i in range(h) for j in range(r))
    known = r > 1 or not scope.summations
    assert minimum_products(scope) == inside or (not known and minimum_products(scope) in (0, inside))


def test_a_view_at_the_end_is_free_and_the_bound_knows() -> None:
    start = parse("tensor A[3, 4]\nY[i:12] = A[i//4, i%4]")
    assert CostModel().lower_bound(start) == 0
    moved = parse("tensor A[3, 4]\nY[i:3, j:4] = A[i, j] * 2")
    assert CostModel().lower_bound(moved) > 0
    done = Program(moved.inputs, tuple(Equation(e.name, e.scope, Instance(EOPERATOR)) for e in moved.equations), ("Y",))
    assert CostModel().lower_bound(moved) < CostModel().program_cost(done).seconds


def test_rules_that_choose_are_bounded_too() -> None:
    """``paper`` may generate an eOperator as a move: what that costs counts from then on."""
    engine, events = searched("bias and relu", "paper", True)
    assert any(rule.name == "eoperator_generation" for rule in RULES)
    assert np.isfinite(engine.best) and any(isinstance(e, Found) for e in events)


def test_rules_that_take_instances_back_are_not_bounded_before_the_end() -> None:
    """Fusion makes one open equation of two that are run: what these cost is no bound of what follows."""
    start = parse("tensor A[40, 30]\nT[i:40, j:30] = A[i, j] + 1\nY[i:40, j:30] = T[i, j] * 2")
    bests = []
    for bound in (False, True):
        options = Options("paper", 3, bound=bound, rules=(*RULES, EXPRESSION_FUSION))
        engine = Search(start, ee.program_seconds, options, least=program_least)
        found = [e for e in engine.run() if isinstance(e, Found)]
        bests.append((engine.best, {ee.program_key(e.state.program) for e in found if e.seconds == engine.best}))
    assert bests[0][0] == bests[1][0] and bests[0][1] <= bests[1][1]
