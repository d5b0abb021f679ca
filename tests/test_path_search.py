"""Paths between programs: found, proved by both checkers, no longer than by hand; steps backwards as a rule."""

import json
from pathlib import Path
from typing import Any

import pytest

import einnet_check
import einnet_explore as ee
from einnet_explore.checker.record import check_record
from einnet_explore.rules import INVERSE, Refused
from einnet_explore.session.program_paths import ProgramPath
from tests.path_pairs import pairs
from tests.slow_cases import with_slow

PAIRS = dict(pairs())

MATMULS = """tensor Q[8, 4]
tensor K[8, 4]
tensor V[8, 4]
"""
QUADRATIC = f"""{MATMULS}S[i:8, j:8] = sum[k:4] Q[i, k] * K[j, k]
Y[i:8, d:4] = sum[j:8] S[i, j] * V[j, d]
output Y
"""
LINEAR = f"""{MATMULS}S[k:4, d:4] = sum[j:8] K[j, k] * V[j, d]
Y[i:8, d:4] = sum[k:4] Q[i, k] * S[k, d]
output Y
"""


def test_there_are_pairs_for_the_gallery() -> None:
    assert len(PAIRS) >= 30


LONG = {"attention in one pass", "convolution to Winograd's form", "LoRA"}
"""Pairs whose searches take the longest."""


@pytest.mark.parametrize("name", with_slow(PAIRS, LONG))
def test_a_path_is_found_and_proved(name: str) -> None:
    before, after, by_hand = PAIRS[name]()
    found = ee.path(before, after, budget=60.0)
    assert found and found.derivation is not None, found
    assert found.derivation.start == before and ee.program_key(found.derivation.end) == ee.program_key(after)
    assert len(found.derivation.steps) <= by_hand
    record = json.loads(json.dumps(found.to_record()))
    assert check_record(record).kind == "proved"
    assert [step.why for step in einnet_check.check(record) if step.why is not None] == []


def test_inputs_and_outputs_of_other_names_correspond_by_position() -> None:
    """An equation of the second program has the name of the first one's input."""
    first = ee.parse("tensor A[4]\nY[i:4] = A[i] * 2 + 1\n")
    second = ee.parse("tensor B[4]\nA[i:4] = B[i] * 2\nZ[i:4] = A[i] + 1\n")
    found = ee.path(first, second)
    assert found and found.derivation is not None and found.derivation.end.outputs == ("Y",)
    assert ee.equal(first, second).kind == ee.equal(second, first).kind == "proved"
    with pytest.raises(Refused, match="input B"):
        ee.path(first, ee.parse("tensor A[4]\ntensor B[4]\nZ[i:4] = A[i] * 2 + B[i]\n"))


def linear() -> ProgramPath:
    return ee.path(ee.parse(QUADRATIC), ee.parse(LINEAR))


def test_a_path_is_a_derivation_for_records_scripts_and_sessions(tmp_path: Path) -> None:
    found = linear()
    found.save(tmp_path / "path.json")
    assert ee.load(tmp_path / "path.json") == found.derivation
    session = ee.explore(ee.parse(QUADRATIC))
    session.goto(found.derivation)  # type: ignore[arg-type]
    assert session.program == ee.parse(LINEAR)
    scope: dict[str, Any] = {}
    exec(session.script(), scope)
    assert scope["session"].program == ee.parse(LINEAR)
    assert "expression_fusion backwards" in repr(found) and repr(found).endswith("proved")
    assert r"\begin{align*}" in found.to_latex() and "backwards" in found.to_latex()


def test_programs_that_are_equal_up_to_names_need_no_step() -> None:
    found = ee.path(ee.parse(QUADRATIC), ee.parse(QUADRATIC.replace("S[", "T[").replace("j", "l")))
    assert found and found.derivation is not None and not found.derivation.steps
    assert "the same up to names" in repr(found)


def test_programs_that_differ_are_told_at_once() -> None:
    found = ee.path(ee.parse(QUADRATIC), ee.parse(LINEAR.replace("K[j, k] *", "2 * K[j, k] *")), budget=1000.0)
    assert not found and found.differs and found.seconds < 10
    assert "the programs differ; as a whole: false" in repr(found) and "occurs 1 time before and 2 times" in repr(found)
    with pytest.raises(ValueError, match="the programs differ"):
        found.to_latex()


def test_other_inputs_are_refused() -> None:
    with pytest.raises(Refused, match="input R has shape"):
        ee.path(ee.parse(QUADRATIC), ee.parse(LINEAR.replace("Q", "R")))


def test_without_time_the_programs_are_compared() -> None:
    found = ee.path(ee.parse(QUADRATIC), ee.parse(LINEAR), budget=0.0)
    assert not found and not found.differs
    assert "no derivation in" in repr(found) and "as a whole: proved" in repr(found)


def test_a_step_backwards_is_applied_only_where_the_step_leads() -> None:
    found = linear()
    assert found.derivation is not None
    last = found.derivation.steps[-1]
    assert last.match.rule is INVERSE
    params = last.match.to_json()["params"]
    assert INVERSE.match(last.before, (0,), **params).apply(last.before).after == ee.parse(LINEAR)
    with pytest.raises(Refused, match="expression_fusion at 1 leads to another program"):
        INVERSE.match(found.derivation.start, (0,), **params).apply(found.derivation.start)
    for wrong, why in (
        ({**params, "before": "nonsense"}, "expected"),
        ({**params, "of": {"rule": "guessing", "at": "0", "params": {}}}, "found the rule 'guessing'"),
        ({"of": params["of"]}, "the parameter 'before' is missing"),
    ):
        with pytest.raises(Refused, match=why):
            INVERSE.match(last.before, (0,), **wrong)
    assert list(INVERSE.matches(last.before, (0,))) == []
