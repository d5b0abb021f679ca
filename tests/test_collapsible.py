"""Programs that linear algebra collapses are found by factoring and by search, proved; near misses are refused."""

from time import process_time

import pytest

import einnet_explore as ee
from einnet_check.record import check
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation
from einnet_explore.strategies.candidate import to_record
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.factoring import products_at_run_time
from einnet_explore.syntax import parse
from tests.collapsible_programs import COLLAPSIBLE, NEAR_MISSES, SHARED
from tests.test_factoring import agree, best

TOLERANCE = 1.1
"""Products that a result may have, in multiples of the count that is derived by hand."""

MAX_SECONDS = 20


@pytest.mark.parametrize("name", COLLAPSIBLE)
def test_factoring_reaches_the_count_derived_by_hand(name: str) -> None:
    text, least = COLLAPSIBLE[name]
    start = parse(text)
    assert products_at_run_time(start) > TOLERANCE * least
    found = best(start)
    assert products_at_run_time(found.end) <= TOLERANCE * least
    assert {verdict.kind for verdict in check(to_record(found))} == {"proved"}  # by the independent checker, too
    agree(start, found.end)


def searched(start: Program, least: int) -> Derivation | None:
    """The first derivation that the public search finds with at most *least* products, within the time."""
    run, began = ee.live_search(start, max_depth=4), process_time()
    for event in run:
        if isinstance(event, Found) and products_at_run_time(event.state.program) <= least:
            return run.search.derivation(event.state.id)
        if process_time() - began > MAX_SECONDS:
            break
    return None


@pytest.mark.parametrize("name", COLLAPSIBLE)
def test_search_reaches_the_count_derived_by_hand(name: str) -> None:
    text, least = COLLAPSIBLE[name]
    found = searched(parse(text), int(TOLERANCE * least))
    assert found is not None, f"no candidate within {MAX_SECONDS} s"
    assert {certify(step.before, step.after).kind for step in found.steps} == {"proved"}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_near_miss_is_refused_with_a_counterexample(name: str) -> None:
    before, after = (parse(f"{SHARED}{text}\noutput Y") for text in NEAR_MISSES[name])
    certificate = certify(before, after)
    assert certificate.kind == "false" and certificate.counterexample
    assert "element" in certificate.counterexample, certificate.counterexample
