"""Long one-dimensional filters: grouped taps share one transform of the data and need fewer products."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.analysis.counts import is_transposed_for
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program, Table, accesses
from einnet_explore.pipeline.fusion import fuse_eoperators, fuse_with_refusals
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import find_variants
from einnet_explore.rules import (
    BILINEAR_SUBSTITUTION,
    BOUNDARY_RELAXING,
    EOPERATOR_GENERATION,
    FEWER_PRODUCTS,
    RULES,
    Derivation,
    Refused,
)
from einnet_explore.runtime.program import compile_program
from einnet_explore.strategies.strategy import Restrictions, best_first_moves, filter_products, tap_groups


def filters(taps: int, along: str, c: int = 2, f: int = 2, h: int = 8, w: int = 8) -> Program:
    """A taps x 1 or 1 x taps convolution that keeps the sides."""
    r, s = (taps, 1) if along == "h" else (1, taps)
    return ee.parse(f"""
        tensor X[1, {c}, {h}, {w}] pad [0, 0, {r // 2}, {s // 2}]
        tensor K[{f}, {c}, {r}, {s}] weight
        Y[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:{r}, s:{s}] X[n, c, h+r-{r // 2}, w+s-{s // 2}] * K[f, c, r, s]""")


def in_groups(program: Program, there: bool) -> Derivation:
    """The derivation of the first choice that takes taps in groups, data *there* in place or turned."""
    for matches, _ in best_first_moves(program, Restrictions((*RULES, *FEWER_PRODUCTS))):
        done = Derivation(program)
        if any(m.rule == BILINEAR_SUBSTITUTION and m.params.in_place == there for m in matches[1:]):
            for match in matches:
                done = done.then(match)
            return done
    raise AssertionError("no choice takes taps in groups")


def integers(program: Program, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-9, 10, t.shape) for t in program.inputs}


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("taps", "along", "side"), [(11, "h", 8), (11, "w", 7), (7, "w", 8), (9, "h", 6)])
def test_groups_share_one_transform_and_every_step_is_proved(taps: int, along: str, side: int, there: bool) -> None:
    program = filters(taps, along, h=side, w=side)
    done = in_groups(program, there)
    assert all(certify(step.before, step.after).kind == "proved" for step in done.steps)
    data = next(e for e in done.end.equations if e.name.startswith("X"))
    groups, windows = -(-taps // 4), -(-side // 4)
    assert groups + windows - 1 in data.scope.shape, "windows t + g, not pairs (t, g)"
    assert len(data.scope.traversals) == 5
    arrays = integers(program, taps)
    assert np.array_equal(evaluate(program, arrays)["Y"], evaluate(done.end, arrays)["Y"])


@settings(max_examples=20, deadline=None)
@given(
    outputs=st.integers(2, 9), taps=st.integers(2, 4), m=st.integers(1, 4), groups=st.integers(2, 4),
    every=st.integers(1, 9), step=st.integers(1, 2),
)  # fmt: skip
def test_windows_that_may_be_shared_keep_every_integer(
    outputs: int, taps: int, m: int, groups: int, every: int, step: int
) -> None:
    """Groups at any distance, shared where that is whole windows, with what is left beside."""
    reach = step * (outputs + taps - 2) + every * (groups - 1) + 1
    program = ee.parse(f"""
        tensor A[{reach}]
        tensor K[{groups}, {taps}] weight
        Y[h:{outputs}] = sum[g:{groups}, r:{taps}] A[{step}*h + {step}*r + {every}*g] * K[g, r]""")
    match = BILINEAR_SUBSTITUTION.match(program, (0,), traversal="h", summation="r", outputs=m)
    after = match.apply(program).after
    arrays = integers(program, outputs)
    assert np.array_equal(evaluate(program, arrays)["Y"], evaluate(after, arrays)["Y"])
    data = next(e for e in after.equations if e.name.startswith("X")).scope
    windows = -(-outputs // m)
    apart = every // (m * step)
    shared = every % (m * step) == 0 and windows + apart * (groups - 1) <= windows * groups
    assert len(data.traversals) == (2 if shared else 3)


@pytest.mark.parametrize("sides", [(8, 8), (6, 12)])
@pytest.mark.parametrize("along", ["h", "w"])
def test_in_place_data_have_another_dimension_innermost(along: str, sides: tuple[int, int]) -> None:
    program = filters(3, along, h=sides[0], w=sides[1])
    match = BILINEAR_SUBSTITUTION.match(
        program, (0,), traversal=along, summation="r" if along == "h" else "s", outputs=2, in_place=True
    )
    after = match.apply(program).after
    assert (
        BILINEAR_SUBSTITUTION.match(program, (0,), **BILINEAR_SUBSTITUTION.encode(match.params)).params == match.params
    )
    assert certify(program, after).kind == "proved"
    assert [e.name[0] for e in after.equations] == (list("XLMY") if along == "h" else list("DXLMZY"))
    data = next(e for e in after.equations if e.name.startswith("X")).scope
    assert data.traversals[-1].extent == (sides[1] if along == "h" else sides[0])


def test_data_that_only_the_filter_moves_cannot_stay_in_place() -> None:
    program = ee.parse("tensor A[2, 10]\ntensor K[2, 3] weight\nY[h:8] = sum[c:2, r:3] A[c, h + r] * K[c, r]")
    with pytest.raises(Refused, match=r"the data are read at c, h\+r: only h moves"):
        BILINEAR_SUBSTITUTION.match(program, (0,), traversal="h", summation="r", outputs=2, in_place=True).apply(
            program
        )


@pytest.mark.parametrize(
    ("taps", "side", "found"), [(2, 8, None), (3, 8, None), (5, 8, None), (7, 8, 4), (11, 8, 4), (11, 7, 4), (9, 2, 2)]
)
def test_groups_are_the_size_that_does_the_fewest_products(taps: int, side: int, found: int | None) -> None:
    """F(4,3) and F(4,5) do fewer than groups; 7 taps take 2 groups with 14 of 28 products, F(2,7) takes 16."""
    sizes = [
        m for h, r, m in tap_groups(filters(taps, "h", h=side).equations[0].scope) if (h.name, r.name) == ("h", "r")
    ]
    assert sizes == ([] if found is None else [found])


def test_products_are_counted_with_outputs_that_are_not_needed() -> None:
    assert [filter_products(8, 4, 3), filter_products(9, 4, 3), filter_products(56, 4, 4)] == [12, 18, 98]


def test_without_the_rules_that_make_groups_there_are_none() -> None:
    for missing in (BOUNDARY_RELAXING, BILINEAR_SUBSTITUTION):
        rules = tuple(r for r in (*RULES, *FEWER_PRODUCTS) if r != missing)
        for matches, _ in best_first_moves(filters(11, "h"), Restrictions(rules)):
            assert BILINEAR_SUBSTITUTION not in {m.rule for m in matches}


def test_search_finds_groups_and_they_run() -> None:
    """A 1x7 filter: eight taps in two groups, a product with seven coefficients."""
    program = filters(7, "w", c=16, f=5, h=8, w=8)
    found = [
        e for e in find_variants(program, program_seconds, Settings(max_depth=1, states=60)).variants if e.algorithm
    ]
    assert any(e.algorithm == ((4, 7), (7, 4), (7, 7)) for e in found)
    derivation = fuse_eoperators(next(e for e in found if "Conv2d" in e.kind).derivation())  # type: ignore[operator]
    rng = np.random.default_rng(0)
    x, k = (rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs)
    got = compile_program(derivation.end, 1, constants={"K": k}).run({"X": x})["Y"]
    want = evaluate(program, {"X": x, "K": k}, np.float64)["Y"]
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


TURNED = """
tensor X[16, 8, 12]
D[c:16, w:12, h:8] = X[c, h, w] pad [0, 2, 0]
Y[c:16, t:6, h:8] = sum[i:4] {table} * D[c, 2*t+i-1, h]"""


def generate(program: Program) -> Program:
    for n in range(len(program.equations)):
        program = next(iter(EOPERATOR_GENERATION.matches(program, (n,)))).apply(program).after
    return program


def test_operand_that_a_sum_reads_several_times_is_transposed_once() -> None:
    program = generate(ee.parse(TURNED.format(table="table[4] (1, 2, -1, 3) [i]")))
    source, reader = program.equations
    assert source.via is not None and source.via.operator == "View" and is_transposed_for(source, reader)
    assert not is_transposed_for(reader, source)
    result = fuse_with_refusals(Derivation(program))
    assert [e.name for e in result.derivation.end.equations] == ["D", "Y"]
    assert "sums elements of D several times, so they are transposed once" in result.refused["D", "Y"]
    run = compile_program(program)
    assert run.engines["D"] != "view"
    x = np.arange(16 * 8 * 12).reshape(16, 8, 12) % 11
    assert np.array_equal(run.run({"X": x})["Y"], evaluate(program, {"X": x})["Y"])


@pytest.mark.parametrize("body", ["D[c, t, h]", "D[c, t, h] + 1", "sum[i:1] D[c, t+i, h]"])
def test_operand_that_is_read_once_is_not_transposed(body: str) -> None:
    text = TURNED.splitlines()
    program = generate(ee.parse("\n".join((*text[:-1], f"Y[c:16, t:6, h:8] = {body}"))))
    source, reader = program.equations
    assert not is_transposed_for(source, reader)
    assert [e.name for e in fuse_eoperators(Derivation(program)).end.equations] == ["Y"]


def test_tables_of_groups_have_the_expected_shapes() -> None:
    done = in_groups(filters(11, "h"), True)
    tables = {a.source.shape for e in done.end.equations for a in accesses(e.scope.body) if isinstance(a.source, Table)}
    assert tables == {(7, 7), (7, 4), (4, 7)}
