"""Which candidates are measured: of different kinds first, then by estimate."""

import einnet_explore as ee
from einnet_explore.cost import program_seconds
from einnet_explore.graph.finalists import Entry, entries, finalists, search
from einnet_explore.rules import Derivation

START = Derivation(ee.parse("tensor x[3]\ny[i:3] = x[i]\noutput y"))


def entry(seconds: float, *kind: str) -> Entry:
    return Entry(seconds, kind, lambda: START)


def test_every_kind_gets_its_best_first() -> None:
    ranked = [
        entry(1, "Matmul"),
        entry(2, "Matmul"),
        entry(3, "Matmul"),
        entry(4, "Conv2d"),
        entry(5),
        entry(9, "G2BMM"),
    ]
    assert [e.seconds for e in finalists(ranked, 3, 8)] == [1, 4, 5]
    assert [e.seconds for e in finalists(ranked, 4, 8)] == [1, 2, 4, 5]
    assert [e.seconds for e in finalists(ranked, 2, 8)] == [1, 4]
    assert [e.seconds for e in finalists(ranked, 9, 8)] == [1, 2, 3, 4, 5]
    assert finalists(ranked, 4, 1) == ()


def test_a_search_has_its_first_candidate_whatever_the_time() -> None:
    program = ee.parse("tensor A[64, 64]\ntensor B[64, 64]\nC[m:64, n:64] = sum[k:64] A[m, k] * B[k, n]\noutput C")
    found, _ = search(program, program_seconds, 2, 0.05)
    assert found and found == sorted(found)


def test_entries_lead_from_the_program_to_what_runs() -> None:
    one = ee.parse("tensor A[64, 64]\ntensor B[64, 64]\nC[m:64, n:64] = sum[k:64] A[m, k] * B[k, n]\noutput C")
    two = ee.parse(
        """tensor A[32, 32]
tensor B[32, 48]
tensor D[32, 48]
C[m:32, n:48] = sum[k:32] A[m, k] * B[k, n]
E[m:32, n:48] = sum[k:32] A[m, k] * D[k, n]
output C, E"""
    )
    for program in (one, two):
        found, _ = entries(program, program_seconds, 2, 0.5)
        best = found[0].derivation()
        assert best.start == program and all(e.via is not None for e in best.end.equations)
        assert [e.seconds for e in found] == sorted(e.seconds for e in found)
        assert any("Matmul" in str(e.kind) for e in found)
