"""Counts of states and candidates, against searches that visit each of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from rules_kit import walks

import einnet_explore as ee
from einnet_evaluation.cases import CASES, Case
from einnet_evaluation.scope_graph import ScopeGraph
from einnet_evaluation.searches import UNGUIDED, UNPRUNED, WITH, Depth, count_depths, join_depths, search_depths
from einnet_evaluation.state_counts import StateCount
from einnet_explore.analysis.canonical_keys import canonical_key, program_key
from einnet_explore.ir import Program
from einnet_explore.operators.library import find_operators
from einnet_explore.rules import RULES, Refused
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.moves import rule_moves
from einnet_explore.strategies.options import Options
from tests.slow_cases import with_slow

LOCAL = tuple(rule for rule in RULES if rule.local)


def case(program: Program, *targets: str) -> Case:
    return Case("small", lambda: program, targets, targets[0], targets[0], {}, {}, 0, ("", ""))


SMALL = {
    "strided": case(ee.ops.conv2d(N=1, H=5, W=4, C=2, F=3, R=3, S=2, stride=2, padding="same"), "Matmul", "Conv2d"),
    "product": case(ee.ops.matmul(4, 6, 8), "Matmul"),
    "elementwise": case(ee.ops.relu(2, 3), "Matmul"),
    "two sums": case(
        ee.parse("tensor A[4, 6]\ntensor B[6, 4]\nY[i:4] = sum[j:4] {[a:4, b:4] sum[k:6] A[a, k]*B[k, b]}[i, j]"
                 " * {[a:4] sum[k:6] A[a, k]*B[k, 1]}[j]"), "Matmul"
    ),
}  # fmt: skip


LONG = {"ConvTranspose"}
"""The case whose searches take the longest."""


@pytest.mark.parametrize(("fingerprint", "converging"), [WITH, UNPRUNED, UNGUIDED])
@pytest.mark.parametrize("name", with_slow([*CASES, *SMALL], LONG))
def test_counted_states_and_candidates_are_those_of_a_search(name: str, fingerprint: bool, converging: bool) -> None:
    one, depth = CASES.get(name) or SMALL[name], 3 if name in ("Conv3x3", "Conv5x5", "ConvTranspose", "strided") else 4
    counted = count_depths(one, depth, 60)[fingerprint, converging]
    searched = search_depths(one, depth, 60, fingerprint, converging)
    assert [d.depth for d in counted] == [*range(depth + 1)]
    for here, there in zip(counted, searched, strict=True):
        assert here.complete and there.complete
        assert (here.kept, here.candidates, here.found) == (there.kept, there.candidates, there.found)
        assert [seconds for seconds, _ in here.cheapest] == pytest.approx([seconds for seconds, _ in there.cheapest])
        if fingerprint:
            assert here.states == there.states


def test_counted_candidates_are_the_programs_that_a_search_finds() -> None:
    one = CASES["Conv3x3"]
    options = Options("paper", 2, targets=find_operators(one.targets))
    found = {program_key(e.state.program) for e in Search(one.make(), ee.program_seconds, options).run()
             if isinstance(e, Found)}  # fmt: skip
    levels = StateCount(one.make(), options.targets, ee.program_seconds).levels(2)
    assert {program_key(program) for level in levels for _, program in level.candidates} == found


@given(walks(LOCAL, steps=6))
def test_moves_of_a_node_are_those_of_its_scope(walk: tuple[Program, Program]) -> None:
    graph = ScopeGraph()
    for equation in walk[1].equations:
        program = Program(walk[1].inputs, (equation,), (equation.name,))
        found = sorted(
            graph.add(after.scope_at((0,)))
            for at, scope in ee.rules.base.places(program)
            for rule in LOCAL
            for _, after in rule_moves(rule, program, at, scope)
        )
        node = graph.add(equation.scope)
        assert canonical_key(graph.scope(node)) == canonical_key(equation.scope)
        assert sorted(graph.moves(node, "equation")) == found


def test_equal_scopes_with_other_names_are_one_node() -> None:
    graph = ScopeGraph()
    one, other = (
        ee.parse(f"tensor A[4, 6]\nY[{i}:4] = sum[{k}:6] {{[a:4, b:6] A[a, b]}}[{i}, {k}]").equations[0].scope
        for i, k in ("ik", "pq")
    )
    assert graph.add(one) == graph.add(other)
    assert graph.add(ee.ops.relu(4, 6).equations[0].scope) != graph.add(one)


def test_a_count_that_is_cut_off_has_complete_depths_only() -> None:
    depths = count_depths(CASES["Conv3x3"], 7, 0.3)[WITH]
    assert 0 < len(depths) < 7 and all(d.complete for d in depths)


def test_a_search_with_other_counts_is_refused() -> None:
    counted = (Depth(0, None, 1.0, 1, 1, 1, complete=True), Depth(1, None, 1.0, 3, 3, 1, complete=True))
    searched = (Depth(0, 0.5, None, 1, 1, 1, complete=True), Depth(1, 0.6, None, 2, 2, 1))
    assert [d.seconds for d in join_depths(counted, searched)] == [0.5, None]
    longer = (*searched[:1], Depth(1, 0.6, None, 2, 2, 1, complete=True))
    with pytest.raises(RuntimeError, match="MaxDepth 1: counted 3 states and 1 candidates, the search has 2 and 1"):
        join_depths(counted, longer)


def test_scopes_that_read_tables_are_refused() -> None:
    program = next(
        after
        for at, scope in ee.rules.base.places(ee.ops.conv2d(N=1, H=6, W=6, C=2, F=2, R=3, S=3, padding=1))
        for _, after in rule_moves(
            ee.rules.BILINEAR_SUBSTITUTION, ee.ops.conv2d(N=1, H=6, W=6, C=2, F=2, R=3, S=3, padding=1), at, scope
        )
    )
    with pytest.raises(Refused, match="reads a table"):
        ScopeGraph().add(program.equations[-1].scope)
