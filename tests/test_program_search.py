"""Algorithm 1: one public call combines rules between expressions with searches inside them."""

from itertools import islice
from math import prod

import pytest

import einnet_explore as ee
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.counts import compute_bound
from einnet_explore.checker.record import check_record
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import EOperatorKind, Program
from einnet_explore.rules import EXPRESSION_SPLITTING, SIBLING_MERGING
from einnet_explore.session.session import Session
from einnet_explore.strategies.candidate import Candidate, replay, steps_to_json
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, Reached, Searched
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.program_search import (
    MAX_CHOICES,
    MAX_MEMBERS,
    ProgramSearch,
    limit_choices,
    search_program,
    standalone,
)
from einnet_explore.syntax import parse
from tests.rules_kit import assert_equal
from tests.test_online_softmax import attention

SHALLOW = Options(max_depth=1)


def algorithm1(program: Program, options: Options = SHALLOW) -> ProgramSearch:
    search = search_program(program, program_seconds, options)
    assert isinstance(search, ProgramSearch)
    return search


def qkv(m: int, k: int, n: int) -> Program:
    return parse(f"""
        tensor X[{m}, {k}]
        tensor A[{k}, {n}] weight
        tensor B[{k}, {n}] weight
        tensor C[{n}, {k}] weight
        Q[m:{m}, n:{n}] = sum[k:{k}] X[m, k] * A[k, n]
        K[m:{m}, n:{n}] = sum[k:{k}] X[m, k] * B[k, n]
        V[m:{m}, n:{n}] = sum[k:{k}] X[m, k] * C[n, k]
        output Q, K, V
    """)


def calls(candidate: Candidate) -> list[tuple[str, dict[str, object]]]:
    return [(e.via.operator, dict(e.via.attributes)) for e in candidate.operators if e.via]


def test_queries_keys_and_values_are_one_product() -> None:
    program = qkv(36, 30, 10)
    run = ee.live_search(program, max_depth=1, budget=None)
    assert not any(run.running for _ in run) and run.search.complete
    assert not any("has not come to it" in why for why in run.why_pruned(0))
    best = run.best
    assert best is not None and [name for name, _ in calls(best)] == ["Matmul"]
    assert sorted(n for n in calls(best)[0][1].values() if isinstance(n, int))[-3:] == [30, 30, 36]
    assert run.verdict(best) == "proved"
    assert_equal(program, best.program)


def test_a_search_of_several_expressions_is_saved_and_goes_on(tmp_path) -> None:
    run = ee.live_search(qkv(36, 30, 10), max_depth=1, budget=None)
    for event in run:
        if isinstance(event, Found):
            break
    run.save(tmp_path / "run.einx")
    again = ee.load(tmp_path / "run.einx")
    for each in (again, run):
        each.finish()
    assert [c.derivation for c in again.candidates] == [c.derivation for c in run.candidates]
    assert again.search.options.between == run.search.options.between


def test_rules_between_expressions_are_forbidden_by_leaving_them_out() -> None:
    program = qkv(36, 30, 10)
    only = ee.search(program, max_depth=1, budget=None, between=(EXPRESSION_SPLITTING,))
    used = {s.match.rule.name for c in only.candidates for s in c.derivation.steps}
    assert "operator_matching" in used and not used & {"sibling_merging", "batch_merging"}
    assert isinstance(ee.live_search(program, between=()).search, Search)
    named = Session(program).live_search(rules=["summation_splitting", "sibling_merging"])
    assert named.search.options.between == (SIBLING_MERGING,) and len(named.search.options.rules) == 1


def test_one_expression_is_searched_as_it_was() -> None:
    assert isinstance(search_program(ee.ops.matmul(40, 24, 16), program_seconds, SHALLOW), Search)


def test_the_program_itself_comes_first_and_nothing_twice() -> None:
    search = algorithm1(qkv(40, 24, 16))
    for _ in search.run():
        pass
    assert search.states[0].program == search.start
    assert search.states[1].matches[0].params.others == ("K", "V")
    keys = [program_key(state.program) for state in search.states]
    assert len(set(keys)) == len(keys)
    for state in search.states:
        assert certify(search.start, state.program).kind == "proved"


def test_members_come_one_by_one() -> None:
    """Nothing is searched before the closure of the program is used up."""

    def never(_: Program) -> tuple[float, str]:
        raise AssertionError("searched")

    search = search_program(qkv(40, 24, 16), never, SHALLOW)
    assert all(isinstance(event, Reached) for event in islice(search.run(), 5))


def test_members_with_nothing_to_search_are_candidates_first() -> None:
    search = algorithm1(attention(2, 24, 32, 8, 8))
    first = next(event for event in search.run() if isinstance(event, Found | Searched))
    assert isinstance(first, Found)
    (equation,) = first.state.program.equations
    assert equation.via == EOperatorKind.ONE_PASS.instance


def test_a_closure_is_bounded() -> None:
    search = algorithm1(qkv(40, 24, 16), Options(between=(SIBLING_MERGING,)))
    members = [event.state for event in search._closure()]
    assert 1 < len(members) < MAX_MEMBERS and any(state.depth == 2 for state in members)


def test_equal_expressions_are_searched_once() -> None:
    program = qkv(40, 24, 16)
    assert compute_bound(program) == (0, 1, 2)
    assert compute_bound(program, {"K"}) == (0, 2)
    assert standalone(program, 0) == standalone(program, 1) != standalone(program, 2)
    search = algorithm1(program)
    assert search._expression(program, 0) is search._expression(program, 1)


def test_the_cheapest_combinations_are_candidates() -> None:
    """The *combinations* cheapest ones, in order, are found before a product is merged."""
    program = qkv(40, 24, 16)
    for count in (1, 3, 6):
        search = algorithm1(program, Options(max_depth=1, between=(EXPRESSION_SPLITTING,), combinations=count))
        plain = [event.seconds for event in search.run() if isinstance(event, Found) and event.state.parent == 0][
            :count
        ]
        assert len(plain) == count and plain == sorted(plain)


def test_many_expressions_are_put_together_in_bounded_time() -> None:
    """Two ways for each of 40 expressions, such as experts of one value, were 2^40 choices."""
    inputs = "".join(f"tensor W{n}[24, 16] weight\n" for n in range(40))
    equations = "".join(f"Y{n}[i:40, j:16] = sum[k:24] X[i, k] * W{n}[k, j]\n" for n in range(40))
    program = parse(f"tensor X[40, 24]\n{inputs}{equations}")
    search = algorithm1(program, Options(max_depth=1, between=(EXPRESSION_SPLITTING,)))
    found = next(event for event in search.run() if isinstance(event, Found))
    assert sum(bool(e.via and e.via.is_library_call) for e in found.state.program.equations) == 40
    held = [search._expression(program, n).variants() for n in compute_bound(program)]
    assert prod(map(len, limit_choices(held))) <= MAX_CHOICES < prod(map(len, held))


@pytest.mark.parametrize("states", [20, 60])
def test_states_of_each_expression_are_bounded(states: int) -> None:
    search = search_program(qkv(40, 24, 16), program_seconds, Options(), states=states)
    assert isinstance(search, ProgramSearch)
    found = [event for event in search.run() if isinstance(event, Found)]
    assert found and all(len(each.search.states) <= states + 1 for each in search._searches.values())


def test_best_candidate_is_replayed_and_checked() -> None:
    program = qkv(40, 24, 16)
    run = ee.search(program, max_depth=1, budget=None)
    best = run.best
    assert best is not None
    assert replay(program, steps_to_json(best.derivation)) == best.derivation
    session = Session(program)
    session.adopt(best.derivation)
    assert check_record(session.record()).kind == "proved"
