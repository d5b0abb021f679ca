"""``paper`` on the four official cases: a larger MaxDepth reaches no less, and the fingerprint loses no candidate.

What is compared are canonical keys of programs, from searches of their own for each MaxDepth.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache

import pytest

import einnet_explore as ee
from einnet_explore.explore.cases import CASES
from einnet_explore.explore.run import find_operators
from einnet_explore.search.engine import Options, Search
from einnet_explore.search.events import Found, Reached

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
def test_a_larger_depth_reaches_no_less(case, depth):
    grows(case, depth)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("case", "more"), [(case, more) for case in LIMITS for more in (0, 1)])
def test_a_still_larger_depth_reaches_no_less(case, more):
    grows(case, LIMITS[case] + more)


@pytest.mark.parametrize(("case", "depth"), [(case, d) for case, most in LIMITS.items() for d in (most - 1, most)])
def test_the_fingerprint_loses_no_state_and_no_candidate(case, depth):
    """Without it the search ends too at these depths: the same distinct programs, reached more often."""
    assert reached(case, depth, fingerprint=False) == reached(case, depth)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("case", LIMITS)
def test_the_fingerprint_loses_no_candidate_one_step_deeper(case):
    """States are another matter: it loses 3 of 2703 of Conv3x3: proposals depend a little on how a program is put."""
    (states, found), (all_states, all_found) = (reached(case, LIMITS[case] + 1, on) for on in (True, False))
    assert found == all_found
    assert states <= all_states


def test_the_fingerprint_prunes():
    """Otherwise the two searches above would be the same one."""
    options = [Options("paper", 2, on, targets=find_operators(("Matmul",))) for on in (True, False)]
    kept = []
    for each in options:
        engine = Search(CASES["Conv3x3"].make(), ee.program_seconds, each)
        kept.append(sum(isinstance(e, Reached) for e in engine.run()))
    assert kept[0] < kept[1]
