"""Searches that are steered: rules that must be used, edges that are forbidden, other starts."""

from itertools import islice
from pathlib import Path

import pytest

import einnet_explore as ee
from einnet_explore.ir import Program
from einnet_explore.session.run import Run
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.strategies.events import State
from einnet_explore.syntax import text

CONV = ee.ops.conv2d(N=1, H=4, W=5, C=3, F=2, R=3, S=3, padding=1)
CHAIN = ee.parse("""
tensor X[16, 8]
tensor W[8, 6] weight
tensor V[6, 8] weight
Z[i:16, j:6] = sum[k:8] X[i, k] * W[k, j]
Y[i:16, j:8] = sum[k:6] Z[i, k] * V[k, j]
""")
SIBLINGS = ee.parse("""
tensor X[16, 8]
tensor W[8, 6] weight
tensor V[8, 6] weight
Z[i:16, j:6] = sum[k:8] X[i, k] * W[k, j]
Y[i:16, j:6] = sum[k:8] X[i, k] * V[k, j]
output Z, Y
""")


def used(candidate: Candidate) -> set[str]:
    return {step.match.rule.name for step in candidate.derivation.steps}


def keys(found: list[Candidate]) -> set[object]:
    return {ee.program_key(c.program) for c in found}


@pytest.mark.parametrize(
    ("program", "rule", "options"),
    [
        (CONV, "variable_substitution", {"strategy": "paper", "max_depth": 2, "target": "Matmul"}),
        (CONV, "traversal_merging", {"max_depth": 1}),
        (CHAIN, "traversal_merging", {}),  # which post-optimisation uses
        (SIBLINGS, "sibling_merging", {"max_depth": 1}),
    ],
)
def test_candidates_use_the_rules_that_they_must(program: Program, rule: str, options: dict[str, object]) -> None:
    free = ee.search(program, **options)
    run = ee.search(program, must_use=[rule], **options)
    assert all(rule in used(c) for c in run.candidates)
    filtered = [c for c in free.candidates if rule in used(c)]
    assert 0 < len(filtered) < len(free.candidates)
    assert keys(filtered) <= keys(run.candidates)
    some = run.pruned and f"it does not use {rule}" in {p.why for p in run.pruned}
    assert some or len(program.equations) > 1


def test_a_program_that_is_reached_without_the_rule_first_is_reached_with_it_too() -> None:
    rules = ["summation_splitting", "traversal_merging"]
    product = ee.parse("tensor A[6, 4]\ntensor B[4, 5]\nY[i:6, j:5] = sum[k:4] A[i, k] * B[k, j]")
    turned = ee.parse("tensor A[6, 4]\ntensor B[4, 5]\nY[i:6, j:5] = {[i:6, j:5] sum[k:4] A[i, k] * B[k, j]}[i, j]")
    assert any("traversal_merging" not in used(c) for c in ee.search(product, rules=rules, max_depth=1).candidates)
    run = ee.search(turned, rules=rules, max_depth=1, must_use=["traversal_merging"])
    assert run.candidates and all("traversal_merging" in used(c) for c in run.candidates)


@pytest.mark.parametrize("program", [CONV, CHAIN])
def test_a_forbidden_edge_is_not_followed(program: Program) -> None:
    free = ee.search(program, max_depth=2)
    assert free.best is not None
    edge = free.edge(free.search.above(free.best.state)[1].id)
    run = ee.search(program, max_depth=2, forbid=[edge])
    ends = (ee.program_key(edge.before), ee.program_key(edge.after))
    states = run.search.states
    assert ends not in {(ee.program_key(states[s.parent].program), ee.program_key(s.program)) for s in states if s.id}
    assert keys(run.candidates) < keys(free.candidates)
    if program is CONV:
        assert "this edge is forbidden" in run.why_pruned(0)
    with pytest.raises(LookupError, match="state 0 is the start"):
        run.edge(0)


def test_a_step_of_a_session_can_be_forbidden() -> None:
    session = ee.explore(CONV)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    (step,) = session.derivation.steps
    session.undo()
    run = session.search(target="Matmul", max_depth=1, forbid=[step])
    assert ee.program_key(step.after) not in {ee.program_key(s.program) for s in run.search.states}


def test_a_search_starts_from_pins_and_results() -> None:
    session = ee.explore(CONV)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    session.pin(name="left")
    session.goto(0)
    session.apply("summation_splitting", at="Y", outer=["c"])
    session.pin(name="right")
    run = session.search(target="Matmul", max_depth=1, starts=["left", "right"])
    first, *states = run.search.states
    assert first.program == CONV and [s.program for s in states[:2]] == [session.nodes[1].end, session.nodes[2].end]
    assert all(s.parent for s in states[2:]) and run.candidates  # nothing follows the common start itself
    assert "the search started from other programs" in run.why_pruned(0)
    session.goto(run.best)
    assert session.way()[1] in (1, 2) and session.check().ok
    alone = session.search(starts=["left"], max_depth=0)
    assert alone.search.start == session.nodes[1].end
    both = session.search(starts=[0, "left"], max_depth=0)
    assert both.search.start == CONV and any(s.parent == 0 and s.phase == "converging" for s in both.search.states)
    with pytest.raises(ValueError, match="node 'up': expected a label such as 'E7' or '#7', or a pin: left, right"):
        session.search(starts=["up"])


def plain(state: State) -> tuple[object, ...]:
    return state.parent, state.depth, state.phase, [match.to_json() for match in state.matches], text(state.program)


@pytest.mark.parametrize("cut", [3, 1000])
def test_steered_searches_are_saved_and_continue(tmp_path: Path, cut: int) -> None:
    session = ee.explore(CONV)
    session.apply("summation_splitting", at="Y", outer=["r", "s"])
    one = session.search(target="Matmul", max_depth=1)
    assert one.best is not None
    called = session.keep(one.best)  # calls an operator, which is no target below
    options = {"must_use": ["traversal_merging"], "forbid": [one.edge(1)], "max_depth": 1}
    for run in (
        session.live_search(starts=[called, 1, 0], target="Conv2d", max_depth=1),
        session.live_search(starts=[1], **options),
        ee.live_search(SIBLINGS, must_use=["sibling_merging"], max_depth=0),
    ):
        through = list(islice(run, cut))
        run.save(tmp_path / "it.einx")
        back = ee.load(tmp_path / "it.einx")
        assert isinstance(back, Run) and back.events == len(through)
        # The rule of a step that matches an operator may be another value: that of the session's operators.
        assert list(map(plain, back.finish().search.states)) == list(map(plain, run.finish().search.states))
        assert [c.to_json("") for c in back.candidates] == [c.to_json("") for c in run.candidates]


def test_what_cannot_be_used_is_said() -> None:
    with pytest.raises(ValueError, match="must_use: found 'magic', expected some of summation_splitting, "):
        ee.search(CONV, must_use=["magic"])
    with pytest.raises(ValueError, match="must_use: a search of one expression does not use sibling_merging, only "):
        ee.search(CONV, must_use=["sibling_merging"])
    other = ee.search(CHAIN, max_depth=0).derivation().derivation
    with pytest.raises(ValueError, match=r"starts: found .*, expected derivations from the program that is searched"):
        ee.search(CONV, starts=[other])
