"""Bilinear algorithms, tables, and the rule that puts them in a filter's place."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.analysis.bilinear import (
    POINTS,
    Bilinear,
    check_bilinear,
    correlates,
    correlation,
    select_entry,
    table_scope,
)
from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Access, Iterator, Program, Scope, Table, accesses, as_index, map_accesses
from einnet_explore.pipeline.tuning_context import program_model
from einnet_explore.rules import BILINEAR_SUBSTITUTION, FEWER_PRODUCTS, RULES, Derivation, Refused
from einnet_explore.rules.bilinear_substitution import Filter
from einnet_explore.runtime.program import compile_program
from einnet_explore.syntax.latex_printer import latex
from einnet_explore.syntax.printer import text

LINE = """
tensor A[{n}] pad [({before}, {after})]
tensor K[{taps}] weight
Y[h:{outputs}] = sum[r:{taps}] A[h {sign} r + {offset}] * K[r]
"""


def first(program: Program, h: str = "h", r: str = "r", **more: object) -> Program:
    """*program* with the filter over *h* and *r* of its first equation replaced."""
    return BILINEAR_SUBSTITUTION.match(program, (0,), traversal=h, summation=r, **more).apply(program).after


def line(outputs: int, taps: int, padding: int = 0, backwards: bool = False) -> Program:
    n = outputs + taps - 1 - 2 * padding
    offset = (taps - 1 if backwards else 0) - padding
    sign = "-" if backwards else "+"
    return ee.parse(
        LINE.format(n=n, before=padding, after=padding, taps=taps, outputs=outputs, sign=sign, offset=offset)
    )


@pytest.mark.parametrize(("outputs", "taps"), [(m, r) for m in range(1, 8) for r in range(1, 8) if m + r < 12])
def test_the_algorithm_of_every_size_is_exact(outputs: int, taps: int) -> None:
    found = correlation(outputs, taps)
    assert found.rank == outputs + taps - 1
    check_bilinear(found, correlates)


def test_f_4_3_has_the_table_of_lavin_and_gray() -> None:
    """F(4,3) at 0, 1, -1, 2, -2: Lavin and Gray, equation 19 (rows may differ by sign on both sides)."""
    u = correlation(4, 3).u
    assert u[0] == tuple(map(Fraction, (4, 0, -5, 0, 1, 0)))
    assert u[1] == tuple(map(Fraction, (0, 4, 4, -1, -1, 0)))
    assert u[5] == tuple(map(Fraction, (0, 4, 0, -5, 0, 1)))


def test_points_decide_and_are_checked() -> None:
    half = correlation(2, 3, tuple(map(Fraction, ("0", "1/2", "-1/2"))))
    assert half != correlation(2, 3)
    check_bilinear(half, correlates)
    with pytest.raises(ValueError, match=r"F\(2, 3\) needs 3 different points, found 2"):
        correlation(2, 3, (POINTS[0], POINTS[1], POINTS[1]))
    with pytest.raises(ValueError, match=r"F\(0, 3\): expected at least one output and one tap"):
        correlation(0, 3)


@pytest.mark.parametrize(("outputs", "taps"), [(2, 3), (4, 3), (6, 3), (4, 5)])
def test_any_changed_entry_is_refused(outputs: int, taps: int) -> None:
    program, right = line(8, taps), correlation(outputs, taps)
    h, r = program.equations[0].scope.traversals[0], program.equations[0].scope.summations[0]
    count = 0
    for name in "uvw":
        rows = getattr(right, name)
        for y, x in product(range(len(rows)), range(len(rows[0]))):
            changed = [list(row) for row in rows]
            changed[y][x] += 1
            wrong = replace(right, **{name: tuple(map(tuple, changed))})
            with pytest.raises(Refused, match=r"at \(k, i, j\) = \(\d+, \d+, \d+\), expected [01]") as raised:
                BILINEAR_SUBSTITUTION.rewrite(program, (0,), Filter(h, r, wrong))
            k, i, j = map(int, re.findall(r"= \((\d+), (\d+), (\d+)\)", str(raised.value))[0])
            assert sum(wrong.w[k][p] * wrong.u[p][i] * wrong.v[p][j] for p in range(wrong.rank)) != correlates(k, i, j)
            count += 1
    assert count == sum(len(getattr(right, n)) * len(getattr(right, n)[0]) for n in "uvw")


@pytest.mark.parametrize("entry", [(0, 0), (1, 2), (2, 1)])
def test_the_certificate_finds_a_wrong_table(entry: tuple[int, int]) -> None:
    """The certificate does not rely on the guard: a changed table is false."""
    program = line(8, 3)
    after = first(program, outputs=2)
    data = next(e for e in after.equations if e.name.startswith("X"))
    table = next(a.source for a in accesses(data.scope.body) if isinstance(a.source, Table))
    at = entry[0] * table.shape[1] + entry[1]
    other = replace(table, entries=tuple(x + (n == at) for n, x in enumerate(table.entries)))
    wrong = replace(data, scope=_with_table(data.scope, other))
    assert certify(program, after).kind == "proved"
    found = certify(program, replace(after, equations=tuple(wrong if e is data else e for e in after.equations)))
    assert found.kind == "false"
    assert "occurs" in str(found.counterexample)


def _with_table(scope: Scope, table: Table) -> Scope:
    return replace(
        scope,
        body=map_accesses(scope.body, lambda a: Access(table, a.index) if isinstance(a.source, Table) else a),
    )


@settings(max_examples=25, deadline=None)
@given(
    outputs=st.integers(2, 13), taps=st.integers(2, 5), m=st.integers(1, 4), padded=st.booleans(), back=st.booleans()
)
def test_bilinear_substitution_is_exact_on_integers(outputs: int, taps: int, m: int, padded: bool, back: bool) -> None:
    program = line(outputs, taps, padding=int(padded), backwards=back)
    after = first(program, outputs=m)
    rng = np.random.default_rng(outputs)
    arrays = {t.name: rng.integers(-50, 51, t.shape) for t in program.inputs}
    assert np.array_equal(evaluate(program, arrays)["Y"], evaluate(after, arrays)["Y"])
    assert ee.parse(text(after)) == after


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("outputs", "m"), [(7, 2), (8, 4), (9, 4)])
def test_bilinear_substitution_is_proved(outputs: int, m: int, padding: int, backwards: bool) -> None:
    program = line(outputs, 3, padding, backwards)
    assert certify(program, first(program, outputs=m)).kind == "proved"


@pytest.mark.parametrize("body", ["A[2*h + 2*r + g]", "A[h + r + 4*g]", "A[3*h - 3*r + g + 6]"])
def test_filter_window_may_also_depend_on_residues_and_blocks(body: str) -> None:
    program = ee.parse(f"tensor A[30]\ntensor K[3] weight\nY[h:5, g:2] = sum[r:3] {body} * K[r]")
    after = first(program, outputs=2)
    arrays = {"A": np.arange(30) ** 2 % 17, "K": np.array([2, -3, 5])}
    assert np.array_equal(evaluate(program, arrays)["Y"], evaluate(after, arrays)["Y"])
    assert certify(program, after).kind == "proved"


def test_bilinear_substitution_applies_to_both_dimensions_of_a_window() -> None:
    program = ee.ops.conv2d(N=1, H=6, W=5, C=2, F=3, R=3, S=3, padding=1)
    rows = first(program, outputs=2)
    middle = next(n for n, e in enumerate(rows.equations) if e.name.startswith("M"))
    match = BILINEAR_SUBSTITUTION.match(rows, (middle,), traversal="w", summation="s", outputs=2)
    both = match.apply(rows).after
    assert [certify(program, rows).kind, certify(rows, both).kind] == ["proved", "proved"]
    product_of = next(e for e in both.equations if e.name == "M2").scope
    assert [y.name for y in product_of.summations] == ["c"]
    assert program_key(both) != program_key(rows)


@pytest.mark.parametrize(
    ("case", "h", "r", "why"),
    [
        ("Y[h:4] = max[r:3] A[h + r] * K[r]", "h", "r", "takes the max, expected a plain sum"),
        ("Y[h:4] = sum[r:3] A[h + r] + K[r]", "h", "r", "the body is no product of elements"),
        ("Y[h:4] = sum[r:3] A[h + r] * K[r] * B[h]", "h", "r", "h occurs in 2 factors and r in 2"),
        ("Y[h:4] = sum[r:3] A[h + 2*r] * K[r]", "h", "r", r"read at h\+2\*r, expected a multiple of h \+ r"),
        ("Y[h:4] = sum[r:3] A[2*h + r] * K[r]", "h", "r", r"read at 2\*h\+r, expected a multiple of h \+ r"),
        ("Y[h:4] = sum[r:3] A[h + r + h//2] * K[r]", "h", "r", r"expected a multiple of h \+ r or of h - r"),
    ],
)
def test_scope_that_is_no_filter_is_refused(case: str, h: str, r: str, why: str) -> None:
    program = ee.parse(f"tensor A[20]\ntensor K[3] weight\ntensor B[4]\n{case}")
    with pytest.raises(Refused, match=why):
        first(program, h, r, outputs=2)
    assert not list(BILINEAR_SUBSTITUTION.matches(program, (0,)))
    assert BILINEAR_SUBSTITUTION.explain is not None
    assert BILINEAR_SUBSTITUTION.explain(program, (0,))


def test_parameters_that_do_not_fit_are_refused() -> None:
    program = line(8, 3)
    with pytest.raises(Refused, match="no iterator is called 'x' here"):
        first(program, h="x", outputs=2)
    other = correlation(2, 2)
    shown = {n: [[str(x) for x in row] for row in getattr(other, n)] for n in "uvw"}
    with pytest.raises(Refused, match="the algorithm is for 2 taps and 3 data, r has 3 taps"):
        first(program, **shown)
    with pytest.raises(Refused, match="found a matrix with rows of 1, 2 entries"):
        first(program, u=[[1], [1, 2]], v=[[1]], w=[[1]])


def test_user_algorithm_survives_json() -> None:
    program, triple = line(8, 3), correlation(2, 3, tuple(map(Fraction, ("0", "1/2", "-1/2"))))
    h, r = program.equations[0].scope.traversals[0], program.equations[0].scope.summations[0]
    params = Filter(h, r, Bilinear("halves", triple.u, triple.v, triple.w))
    said = BILINEAR_SUBSTITUTION.encode(params)
    assert said["name"] == "halves"
    assert BILINEAR_SUBSTITUTION.match(program, (0,), **said).params == params
    assert certify(program, BILINEAR_SUBSTITUTION.rewrite(program, (0,), params)).kind == "proved"


def test_a_table_read_by_cases_is_the_table() -> None:
    table = Table((2, 3), tuple(map(Fraction, ("1", "-1/2", "0", "4", "4", "4"))))
    p, i = Iterator("p", 0, 2), Iterator("i", 0, 3)
    plain = evaluate(table_scope(table), {})
    assert plain.tolist() == [[1, Fraction(-1, 2), 0], [4, 4, 4]]
    cases = Scope((p, i), (), select_entry(table, (as_index(p), as_index(i))))
    assert np.array_equal(evaluate(cases, {}, np.float64), plain.astype(float))
    with pytest.raises(ValueError, match=r"a table of shape \[2\] has 1 entries"):
        Table((2,), (Fraction(1),))


def test_a_table_is_shown_as_a_matrix() -> None:
    shown = latex(first(line(8, 3), outputs=2))
    assert r"\begin{smallmatrix} 1 & 0 & -1 & 0" in shown


def test_substituted_filter_runs_and_is_exported_to_onnx() -> None:
    program = first(ee.ops.conv2d(N=1, H=6, W=5, C=2, F=3, R=3, S=3, padding=1), outputs=2)
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}
    want = evaluate(program, arrays, np.float64)["Y"]
    weights = {t.name: arrays[t.name] for t in program.inputs if t.weight}
    feeds = {name: a for name, a in arrays.items() if name not in weights}
    assert np.allclose(compile_program(program, constants=weights).run(feeds)["Y"], want, atol=1e-5)
    model = program_model(program, weights)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.allclose(session.run(None, feeds)[0], want, atol=1e-5)


def test_search_finds_the_nested_algorithm_by_itself() -> None:
    program = ee.ops.conv2d(N=1, H=9, W=10, C=32, F=32, R=3, S=3, padding=1)
    run = ee.search(program, target="Matmul", rules=RULES + FEWER_PRODUCTS, max_depth=1, budget=60)
    nested = [c for c in run.candidates if _batch(c) == 36]
    assert nested, "F(4x4, 3x3) multiplies 36 matrices"
    assert run.verdict(nested[0]) == "proved"
    assert any(_batch(c) == 16 for c in run.candidates), "F(2x2, 3x3) multiplies 16"


def _batch(candidate: object) -> int:
    calls = [dict(e.via.attributes) for e in candidate.operators]  # type: ignore[attr-defined]
    return calls[0].get("b", 0) if len(calls) == 1 else 0


def test_derivations_are_replayed() -> None:
    program = line(8, 3)
    match = next(iter(BILINEAR_SUBSTITUTION.matches(program, (0,))))
    derivation = Derivation(program).then(match)
    again = BILINEAR_SUBSTITUTION.match(program, (0,), **BILINEAR_SUBSTITUTION.encode(match.params)).params
    assert BILINEAR_SUBSTITUTION.rewrite(program, (0,), again) == derivation.end
