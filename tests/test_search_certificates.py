"""Every candidate of a run carries a certificate, and the benchmark counts them."""

from __future__ import annotations

from collections import Counter

import pytest
from mutation import CASES

import einnet_explore as ee
from benchmarks import bars, search
from einnet_explore.equivalence.certificate import certify
from einnet_explore.session.run import Run
from einnet_explore.strategies.options import Options
from tests.slow_cases import with_slow

PROVED = set(CASES)

LONG = {"a batch and two terms"}
"""The case with the most candidates."""


@pytest.mark.parametrize("strategy", ["best_first", pytest.param("paper", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", with_slow(CASES, LONG))
def test_every_candidate_is_certified(case: str, strategy: str) -> None:
    run = Run(CASES[case], ee.program_seconds, options=Options(strategy, 1))
    for _ in run:
        pass
    kinds = Counter(run.verdict(c) for c in run.candidates)
    assert kinds.total() == len(run.candidates) > 0
    assert set(kinds) <= {"proved", "exact"}, kinds
    if case in PROVED:
        assert set(kinds) == {"proved"}, kinds
    for candidate in run.candidates:
        assert certify(CASES[case], candidate.program).ok


def test_a_bar_counts_the_certificates_of_all_that_it_found() -> None:
    small = bars.Bar("small", bars.conv(5, 3, C=2, F=3), "Matmul", {"m": 25, "k": 2})
    done = bars.measure(small)
    assert done.found and done.proof == "proved"
    assert done.proved >= 2 and (done.exact, done.none) == (0, 0)
    missed = bars.measure(bars.Bar("missed", bars.conv(4, 3, C=2, F=3), "Matmul", {"m": 9999}), limit=1.0)
    assert not missed.found and missed.proof == "" and missed.proved > done.proved
    assert bars.unsure(["proved", "exact", "none", "false"]) == 2


def test_bar_for_every_operator_counts_at_least_as_many_states() -> None:
    names = [bar.name for bar in bars.BARS]
    assert len(names) == len(set(names)) and "Conv3x3 7x7 512-512, for every operator" in names
    one, every = (
        bars.measure(bars.Bar("b", bars.conv(5, 3, C=2, F=3), "Matmul", {"m": 25, "k": 2}, every=e))
        for e in (False, True)
    )
    assert every.found and every.states >= one.states


def test_table_shows_verdict_counts_and_unverified_candidates_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = search.Case("small", CASES["band"], "G2BMM")
    assert search.whole((case,)) == 0
    said = capsys.readouterr().out
    assert search.CERTIFICATES in said
    counts = next(line for line in said.splitlines() if line.startswith("small")).split()[-1]
    proved, exact, none = map(int, counts.split("/"))
    assert proved > 3 and exact == none == 0
    monkeypatch.setattr(Run, "verdict", lambda *_: "none")
    assert search.whole((case,)) == proved
    monkeypatch.setattr(search, "bars", lambda *_: 0)
    monkeypatch.setattr(search, "whole", lambda: 2)
    with pytest.raises(SystemExit, match="2 candidates have no certificate"):
        search.main([])
