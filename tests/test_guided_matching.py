"""Converging derivation step by step: distances fall, and the operator is the one that matching finds at once."""

from collections.abc import Iterable

import pytest

import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.operators.form import expression_distance
from einnet_explore.operators.library import OPERATORS, find_operators
from einnet_explore.operators.matching import match_operator
from einnet_explore.operators.operator import Operator
from einnet_explore.rules.base import places
from einnet_explore.strategies.instantiation import guided_matching
from einnet_explore.support.errors import Refused

PRODUCT = "tensor A[5, 7, 4]\ntensor K[4, 3, 6]\nY[h:5, w:7, r:3, f:6] = sum[c:4] A[h, w, c] * K[c, r, f]"


@pytest.mark.parametrize(
    ("operator", "text", "joins"),
    [
        ("Matmul", PRODUCT, 2),
        ("Matmul", "tensor A[5, 2, 7, 4]\ntensor K[4, 3]\nY[h:5, w:7, e:2, f:3] = sum[c:4] A[h, e, w, c] * K[c, f]", 2),
        ("Matmul", "tensor A[2, 5, 4, 3]\ntensor K[4, 2, 3, 6]\n"
         "Y[f:6, b:2, h:5] = sum[c:4, d:3] A[b, h, c, d] * K[c, b, d, f]", 1),
        ("Conv2d", "tensor A[2, 3, 6, 7, 4] pad [0, 0, 1, 1, 0]\ntensor K[3, 3, 4, 5]\n"
         "Y[n:2, m:3, h:6, w:7, f:5] = sum[c:4, r:3, s:3] A[n, m, h+r-1, w+s-1, c] * K[r, s, c, f]", 1),
        ("Add", "tensor A[2, 3]\ntensor B[2, 3]\nY[n:2, m:3] = A[n, m] + B[n, m]", 1),
    ],
)  # fmt: skip
def test_each_substitution_joins_two_iterators_and_every_step_is_proved(operator: str, text: str, joins: int) -> None:
    target = find_operators((operator,))[0]
    start = ee.parse(text)
    derivation = guided_matching(start, (0,), target)
    joined = [step.after for step in derivation.steps if step.match.rule.name == "variable_substitution"]
    far = expression_distance(start.scope_at((0,)), target).total
    distances = [min(_distances(program, target)) for program in joined]
    assert distances == list(range(far - 1, far - joins - 1, -1))
    assert derivation.steps[-1].match.rule.name == "operator_matching"
    assert all(certify(step.before, step.after).kind == "proved" for step in derivation.steps)


def _distances(program: Program, target: Operator) -> Iterable[int]:
    for _, scope in places(program):
        try:
            yield expression_distance(scope, target).total
        except Refused:
            continue


@pytest.mark.parametrize(
    "start",
    [
        ee.ops.conv2d(N=1, H=6, W=5, C=4, F=8, R=3, S=3, padding=1),
        ee.ops.conv_transpose2d(N=1, H=4, W=4, out_channels=3, in_channels=5, R=4, S=4),
        ee.ops.g2bmm(b=2, m=12, w=2, k=4, dilation=2),
    ],
    ids=["conv2d", "conv_transpose2d", "g2bmm"],
)
def test_the_operator_is_one_that_matching_finds_at_once(start: Program) -> None:
    """Every scope of a search's states that an operator matches: joining one by one ends with the same attributes."""
    run = ee.search(start, max_depth=2, budget=60, between=())
    found = {scope: (state.program, at) for state in run.search.states[:120] for at, scope in places(state.program)}
    compared = 0
    for scope, (program, at) in found.items():
        for operator in OPERATORS:
            try:
                known = {operator.instance(dict(way.attributes)) for way in match_operator(scope, operator)}
            except Refused:
                continue
            end = guided_matching(program, at, operator).end
            assert known & {e.via for e in end.equations}, (operator.name, scope)
            compared += 1
    assert compared >= 10


def test_a_session_adds_one_node_a_step() -> None:
    session = ee.explore(ee.parse(PRODUCT))
    session.converge("Matmul", at="Y")
    rules = [step.match.rule.name for step in session.derivation.steps]
    assert rules == ["variable_substitution", "variable_substitution", "traversal_merging", "operator_matching"]
    assert len(session.nodes) == 5 and session.check().kind == "proved"


def test_what_joining_cannot_match_is_refused() -> None:
    session = ee.explore(ee.parse("tensor A[5, 4]\ntensor K[40]\nY[h:5, f:3] = sum[c:4, z:10] A[h, c] * K[f + 4*z]"))
    with pytest.raises(ValueError, match="3 iterators away from Matmul, and joining iterators of one group leads"):
        session.converge("Matmul")
    with pytest.raises(ValueError, match="Nothing"):
        session.converge("Nothing")
    assert len(session.nodes) == 1
