"""``paper`` on the four official cases: a larger MaxDepth reaches no less, and the fingerprint loses no candidate.

What is compared are canonical keys of programs, from searches of their own for each MaxDepth.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from itertools import islice, pairwise

import pytest

import einnet_explore as ee
from einnet_evaluation.cases import CASES
from einnet_explore.operators.library import find_operators
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, Level, Reached
from einnet_explore.strategies.options import Options

LIMITS = {"Conv3x3": 3, "ConvTranspose": 3, "Conv5x5": 3, "G2BMM": 4}
"""MaxDepth that every run of the tests affords."""


@cache
def reached(case: str, depth: int, fingerprint: bool = True) -> tuple[frozenset[Hashable], frozenset[Hashable]]:
    """The distinct states and the distinct candidates within *depth*."""
    options = Options("paper", depth, fingerprint, targets=find_operators(CASES[case].targets))
    engine = Search(CASES[case].make(), ee.program_seconds, options)
    states, found = set[Hashable](), set[Hashable]()
    for event in engine.run():
        match event:
            case Reached(state):
                states.add(ee.program_key(state.program))
            case Found(state):
                found.add(ee.program_key(state.program))
    assert engine.complete
    return frozenset(states), frozenset(found)


def grows(case: str, depth: int) -> None:
    (states, found), (more_states, more_found) = reached(case, depth), reached(case, depth + 1)
    assert states < more_states
    assert found <= more_found


@pytest.mark.parametrize(("case", "depth"), [(case, d) for case, most in LIMITS.items() for d in range(most)])
def test_larger_depth_reaches_every_earlier_state(case, depth):
    grows(case, depth)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("case", "more"), [(case, more) for case in LIMITS for more in (0, 1)])
def test_still_larger_depth_reaches_every_earlier_state(case, more):
    grows(case, LIMITS[case] + more)


DEPTHS = range(1, 9)


def engine(case: str, depth: int) -> Search:
    options = Options("paper", depth, targets=find_operators(CASES[case].targets))
    return Search(CASES[case].make(), ee.program_seconds, options)


def begins_alike(case: str, events: int) -> set[int]:
    """The depths to 8 whose search ended within *events*; each says what the search to depth 9 says, until it ends."""
    deepest = list(islice(engine(case, 9).run(), events))
    ended = set[int]()
    for depth in DEPTHS:
        said = list(islice(engine(case, depth).run(), events))
        assert said == deepest[: len(said)], (case, depth)
        if len(said) < events:
            assert said[-1] == Level(depth)
            ended.add(depth)
        else:
            assert Level(depth) not in said
    return ended


@pytest.mark.parametrize("case", LIMITS)
def test_events_to_one_depth_are_a_prefix_of_those_to_the_next(case):
    """To depth 8: so states and candidates of one depth are among those of the next (``Search._levels``)."""
    assert begins_alike(case, 400) >= {1, 2}


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", LIMITS)
def test_longer_event_prefixes_are_equal(case):
    assert begins_alike(case, 4000) >= {1, 2, 3}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fingerprint_loses_nothing_of_g2bmm_to_depth_7():
    """The one official case that ends there within minutes (some 30,000 states): every depth, from one search.

    Depths are told apart by ``Level``, as a search to that depth ends there.
    """
    search, found, reached, last = engine("G2BMM", 7), set[Hashable](), 0, 0
    candidates, states = [set[Hashable]()], [0]
    for event in search.run():
        match event:
            case Reached(state):
                assert state.depth >= last
                last = state.depth
                reached += 1
            case Found(state):
                found.add(ee.program_key(state.program))
            case Level():
                candidates.append(set(found))
                states.append(reached)
    assert search.complete and len(states) == 9
    assert all(few < many for few, many in pairwise(states))
    assert all(few <= many for few, many in pairwise(candidates))
    assert states[-1] > 25_000 and len(candidates[-1]) >= 6


@pytest.mark.parametrize(("case", "depth"), [(case, d) for case, most in LIMITS.items() for d in (most - 1, most)])
def test_the_fingerprint_loses_no_state_and_no_candidate(case, depth):
    """Without it the search ends too at these depths: the same distinct programs, reached more often."""
    assert reached(case, depth, fingerprint=False) == reached(case, depth)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", LIMITS)
def test_the_fingerprint_loses_nothing_one_step_deeper(case):
    """No state is lost, because proposals depend only on properties that are part of the key."""
    assert reached(case, LIMITS[case] + 1, fingerprint=False) == reached(case, LIMITS[case] + 1)


def test_the_fingerprint_prunes():
    """Otherwise the two searches above would be the same one."""
    options = [Options("paper", 2, on, targets=find_operators(("Matmul",))) for on in (True, False)]
    kept = []
    for each in options:
        engine = Search(CASES["Conv3x3"].make(), ee.program_seconds, each)
        kept.append(sum(isinstance(e, Reached) for e in engine.run()))
    assert kept[0] < kept[1]
