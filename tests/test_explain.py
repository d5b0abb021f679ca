"""Every rule says why it proposes nothing, with the numbers at hand."""

from __future__ import annotations

import pytest

import einnet_explore as ee
from einnet_explore.ir import Program
from einnet_explore.rules import INTER_RULES, RULES
from einnet_explore.rules.base import places
from einnet_explore.strategies.instantiation import matching_rule

MATMUL = ee.ops.matmul(4, 5, 3)
CONV = ee.ops.conv2d(N=1, H=5, W=4, C=3, F=2, R=3, S=3, padding=1)
RELU = ee.ops.relu(2, 3)


def split(program: Program) -> Program:
    session = ee.Session(program)
    return session.apply("summation_splitting", at="0", outer=["r", "s"])


@pytest.mark.parametrize(
    ("rule", "program", "at", "words"),
    [
        ("summation_splitting", MATMUL, "0", "only one summation, k:3: both groups need an iterator"),
        ("summation_splitting", RELU, "0", "the scope has no summation to split"),
        ("variable_substitution", MATMUL, "0", "suggests one in the indices m, k, n"),
        ("traversal_merging", MATMUL, "0", "the body reads no scope"),
        (
            "boundary_relaxing",
            MATMUL,
            "0",
            "no nested scope has a domain, and no index needs a wider range of the summations",
        ),
        ("boundary_tightening", CONV, "0", "the support of c is [0, 3), r is [0, 3), s is [0, 3), the whole range"),
        ("eoperator_generation", CONV, "0", "intensity 14.0 FLOP/element is not below 4: this is compute-bound"),
        ("eoperator_generation", split(CONV), "0", "the scope at 0.0 sums over c"),
        ("operator_matching", RELU, "0", "Matmul has 2 operands, the body reads 1"),
        ("operator_matching", split(CONV), "0", "the nearest is AveragePool2d, 1 iterator away: "),
        ("expression_fusion", MATMUL, "0", "Y reads no other equation's result"),
    ],
)
def test_rule_explains_why_it_does_not_match(rule, program, at, words):
    known = {r.name: r for r in (*RULES, *INTER_RULES, matching_rule(ee.OPERATORS))}
    path = tuple(int(part) for part in at.split("."))
    assert not list(known[rule].matches(program, path))
    assert known[rule].explain is not None
    assert words in known[rule].explain(program, path)


def test_a_session_repeats_what_the_rule_says():
    session = ee.Session(MATMUL)
    said = {r.rule: r.why for r in session.refusals("0")}
    assert said["summation_splitting"] == "only one summation, k:3: both groups need an iterator"
    assert all("parameter" not in why for why in said.values())


def test_merging_names_the_reach_that_fails():
    """Φ of the nested scope reaches into its padding: [-1, 5] of [0, 5)."""
    program = split(CONV)
    session = ee.Session(program)
    session.apply(next(m for m in session.rules("0.0") if m.rule.name == "variable_substitution"))
    rule = next(r for r in RULES if r.name == "traversal_merging")
    for at, _ in places(session.program):
        if not list(rule.matches(session.program, at)):
            assert rule.explain is not None
            assert rule.explain(session.program, at)
