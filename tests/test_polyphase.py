"""Polyphase decomposition of transposed convolutions: small filters that bilinear algorithms compute faster."""

from __future__ import annotations

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.pipeline.fusion import chain_in_blocks, fuse_eoperators
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import Variant, best_by_algorithm, find_variants
from einnet_explore.rules import FEWER_PRODUCTS, RULES, VARIABLE_SUBSTITUTION, rule
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.strategy import Restrictions, best_first_moves

CHANNELS, SIDE = 16, 4


def transposed(c: int = CHANNELS, f: int = CHANNELS, h: int = SIDE) -> Program:
    """A transposed 4x4 convolution of stride 2 that doubles the sides."""
    return ee.parse(f"""
        tensor X[1, {c}, {h}, {h}]
        tensor K[{c}, {f}, 4, 4] pad [0, 0, {2 * h}, {2 * h}] weight
        Y[n:1, f:{f}, y:{2 * h}, x:{2 * h}] =
            sum[c:{c}, h:{h}, w:{h}] X[n, c, h, w] * K[c, f, y-2*h+1, x-2*w+1]""")


@pytest.fixture(scope="module")
def found() -> list[Variant]:
    """Return the variants of a search to depth 2 that is not cut off."""
    return find_variants(transposed(), program_seconds, Settings(max_depth=2, states=600)).variants


def test_search_finds_bilinear_algorithms_on_the_phases(found: list[Variant]) -> None:
    assert any(set(e.algorithm) == {(2, 3), (3, 2), (3, 3)} and len(e.algorithm) == 6 for e in found)


def test_polyphase_derivation_is_proved_and_runs_in_blocks(found: list[Variant]) -> None:
    nested = [e for e in best_by_algorithm(found, 99, 1.0) if len(e.algorithm) == 6 and (3, 2) in e.algorithm]
    (entry,) = nested
    derivation = chain_in_blocks(fuse_eoperators(entry.derivation()))
    assert derivation is not None
    assert all(certify(step.before, step.after).kind == "proved" for step in derivation.steps)
    rng = np.random.default_rng(3)
    x = rng.integers(-4, 5, (1, CHANNELS, SIDE, SIDE))
    k = rng.integers(-4, 5, (CHANNELS, CHANNELS, 4, 4))
    got = compile_program(derivation.end, 1, constants={"K": k}).run({"X": x})["Y"]
    want = np.zeros((1, CHANNELS, 2 * SIDE + 2, 2 * SIDE + 2), np.int64)
    for h in range(SIDE):
        for w in range(SIDE):
            want[:, :, 2 * h : 2 * h + 4, 2 * w : 2 * w + 4] += np.einsum("nc,cfab->nfab", x[:, :, h, w], k)
    assert np.array_equal(got, want[:, :, 1:-1, 1:-1])  # F(2,2) has whole numbers alone


def test_a_phase_comes_with_the_substitution_and_never_alone() -> None:
    made = list(best_first_moves(transposed(), Restrictions((*RULES, *FEWER_PRODUCTS))))
    windows = [matches for matches, _ in made if any("window" in m.to_json()["params"] for m in matches)]
    assert windows
    for matches in windows:
        assert matches[0].rule == VARIABLE_SUBSTITUTION
    without = [r for r in RULES if r.name != "boundary_tightening"]
    for matches, _ in best_first_moves(transposed(), Restrictions(tuple(without))):
        assert rule("boundary_tightening") not in {m.rule for m in matches}


def test_no_convolution_has_more_choices_than_before() -> None:
    conv = ee.ops.conv2d(N=1, H=4, W=4, C=4, F=4, R=3, S=3, padding=1)
    search = Search(conv, program_seconds, Options(max_depth=1, ahead=0))
    kept = [e for e in search.run() if isinstance(e, Found)]
    assert kept and not any(
        "window" in m.to_json()["params"] for state in search.states for m in state.matches if state.parent == 0
    )
