"""What derivations may do to the last digits: bounds, errors against double precision, and the levels of rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.algebra.bilinear import Bilinear, correlation
from einnet_explore.algebra.rounding import bilinear, computed, gamma, growth, roundings, softmax
from einnet_explore.algebra.small_products import karatsuba, laderman, nested, strassen
from einnet_explore.cost import program_seconds
from einnet_explore.graph.finalists import entries
from einnet_explore.graph.numerics import APPROXIMATING, LEVELS, REASSOCIATING, allowed, level, level_of
from einnet_explore.graph.request import settings as asked
from einnet_explore.graph.rows import by_rows
from einnet_explore.ir import Table, accesses
from einnet_explore.rules import ALL_RULES, RULES, Derivation
from tests.test_online_softmax import attention

TRIPLES = [correlation(m, 3) for m in (2, 4, 6)] + [strassen(), laderman(), nested(strassen(), strassen()), karatsuba()]


@given(st.sampled_from(TRIPLES), st.integers(1, 64), st.integers(0, 2**31))
def test_the_error_stays_below_its_bound(triple: Bilinear, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, data, taps = triple.shape
    x, g = (rng.standard_normal((channels, n)).astype(np.float32) for n in (data, taps))
    error = np.abs(computed(triple, x, g) - computed(triple, x, g, np.float64))
    assert (error <= bilinear(triple, x, g)).all()


def test_larger_tiles_lose_more() -> None:
    grown = [float(growth(correlation(m, 3))) for m in (2, 4, 6)]
    assert grown[0] < grown[1] < grown[2]
    assert float(growth(nested(strassen(), strassen()))) == pytest.approx(float(growth(strassen())) ** 2)
    assert growth(karatsuba()) == 3 and roundings(strassen(), 10) < roundings(nested(strassen(), strassen()), 10)


def test_errors_of_a_convolution_and_of_strassen() -> None:
    """What is reported of them: relative to the largest output, 64 channels, against double precision."""
    rng = np.random.default_rng(0)
    found = {}
    for triple in TRIPLES:
        _, data, taps = triple.shape
        x, g = (rng.standard_normal((64, n)).astype(np.float32) for n in (data, taps))
        want = computed(triple, x, g, np.float64)
        found[triple.name] = float(np.abs(computed(triple, x, g) - want).max() / np.abs(want).max())
    assert max(found.values()) < 1e-4
    assert found["F(6,3)"] < 1e-5 and found["Strassen of Strassen"] < 1e-5


@given(st.integers(1, 300), st.integers(1, 64), st.floats(0.1, 30), st.integers(0, 2**31))
def test_a_softmax_in_blocks(columns: int, size: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z = (scale * rng.standard_normal(columns)).astype(np.float32)
    x = rng.standard_normal(columns).astype(np.float32)
    most, total, weighted = np.float32(-3e38), np.float32(0), np.float32(0)
    starts = range(0, columns, size)
    for start in starts:
        part, values = z[start : start + size], x[start : start + size]
        largest = max(most, part.max())
        again, power = np.exp(most - largest), np.exp(part - largest)
        total, weighted = again * total + power.sum(), again * weighted + power @ values
        most = largest
    exact = np.exp(z.astype(np.float64) - z.max())
    want = float(exact @ x / exact.sum())
    bound = softmax(columns, len(starts), float(z.max() - z.min()), float(np.abs(x).max()))
    assert abs(float(weighted / total) - want) <= bound < 1e-3


def test_too_many_roundings() -> None:
    with pytest.raises(ValueError, match="leave no digit"):
        gamma(1 << 24)


def test_every_rule_has_a_level() -> None:
    names = {rule.name for rule in ALL_RULES}
    assert names >= REASSOCIATING | APPROXIMATING and not REASSOCIATING & APPROXIMATING
    assert {level_of(rule) for rule in ALL_RULES} == set(LEVELS)
    assert allowed(ALL_RULES, "approximate") == ALL_RULES
    exact = {rule.name for rule in allowed(RULES, "exact")}
    assert "summation_splitting" not in exact and "traversal_merging" in exact
    derivation = by_rows(attention(1, 5, 7, 3, 4))
    assert derivation is not None and level(derivation) == "approximate"
    assert level(Derivation(derivation.start)) == "exact"


def test_numerics_bound_the_search() -> None:
    conv = ee.ops.conv2d(1, 12, 12, 16, 16, 3, 3, padding=1)
    tables = {}
    for numerics in LEVELS:
        found, _ = entries(conv, program_seconds, 3, 0.5, numerics)
        ends = [entry.derivation() for entry in found]
        assert all(LEVELS.index(level(d)) <= LEVELS.index(numerics) for d in ends)
        read = (a for d in ends for e in d.end.equations for a in accesses(e.scope.body))
        tables[numerics] = any(isinstance(a.source, Table) for a in read)
    assert not tables["exact"] and not tables["reassociate"]
    start = attention(1, 5, 7, 3, 4)
    kinds = {n: [e.derivation().steps[-1].match.rule.name for e in entries(start, program_seconds, 2, 0.3, n)[0]][:1]
             for n in ("reassociate", "approximate")}  # fmt: skip
    assert kinds["approximate"] == ["one_pass_generation"] != kinds["reassociate"]


def test_unknown_numerics() -> None:
    with pytest.raises(ValueError, match="numerics 'sloppy': expected one of exact, reassociate, approximate"):
        asked("cpu", 1, 7, numerics="sloppy")
    assert asked("cpu", 1, 7, numerics="exact").numerics == "exact"
