"""Rounding of derivations: bounds, errors against double precision, and the levels of rules."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_building import build, node

import einnet_explore as ee
from einnet_explore.analysis.bilinear import Bilinear, correlation, karatsuba, laderman, nest_algorithms, strassen
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence.program_diff import inline_equations
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.interpreter.running_error import (
    DOUBLE_ROUNDOFF,
    bilinear_error_bound,
    bilinear_growth,
    bilinear_roundings,
    gamma,
    run_bilinear,
    running_error,
)
from einnet_explore.ir import (
    Apply,
    Compare,
    Const,
    Equation,
    Iterator,
    Program,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
)
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline import numerics as badge_module
from einnet_explore.pipeline import optimiser as optimise_module
from einnet_explore.pipeline import selection as result_module
from einnet_explore.pipeline import selection_trials
from einnet_explore.pipeline import tuning_task as contest_module
from einnet_explore.pipeline.assembly import PlanForm
from einnet_explore.pipeline.numerics import ErrorReport, report_errors
from einnet_explore.pipeline.optimisation import OptimiserOptions
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.subprogram import TunedSubprogram
from einnet_explore.pipeline.tuning_context import OriginalRun, Settings
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.pipeline.variants import FoundVariants, Variant, find_variants
from einnet_explore.rules import (
    ALL_RULES,
    BILINEAR_PRODUCT,
    BILINEAR_SUBSTITUTION,
    CONTRACTION_ORDER,
    FEWER_PRODUCTS,
    ROUNDING_RULES,
    RULES,
    Derivation,
)
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.rounding_levels import (
    APPROXIMATING,
    LEVELS,
    REASSOCIATING,
    allowed_rules,
    derivation_level,
    rule_level,
)
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.support.errors import BackendError
from tests.test_online_softmax import attention

TRIPLES = [correlation(m, 3) for m in (2, 4, 6)] + [
    strassen(),
    laderman(),
    nest_algorithms(strassen(), strassen()),
    karatsuba(),
]


@given(st.sampled_from(TRIPLES), st.integers(1, 64), st.integers(0, 2**31))
def test_the_error_stays_below_its_bound(triple: Bilinear, channels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, data, taps = triple.shape
    x, g = (rng.standard_normal((channels, n)).astype(np.float32) for n in (data, taps))
    error = np.abs(run_bilinear(triple, x, g) - run_bilinear(triple, x, g, np.float64))
    assert (error <= bilinear_error_bound(triple, x, g)).all()


def test_larger_tiles_lose_more() -> None:
    grown = [float(bilinear_growth(correlation(m, 3))) for m in (2, 4, 6)]
    assert grown[0] < grown[1] < grown[2]
    assert float(bilinear_growth(nest_algorithms(strassen(), strassen()))) == pytest.approx(
        float(bilinear_growth(strassen())) ** 2
    )
    assert bilinear_growth(karatsuba()) == 3 and bilinear_roundings(strassen(), 10) < bilinear_roundings(
        nest_algorithms(strassen(), strassen()), 10
    )


def test_errors_of_a_convolution_and_of_strassen() -> None:
    """Errors are relative to the largest output, with 64 channels, compared with double precision."""
    rng = np.random.default_rng(0)
    found = {}
    for triple in TRIPLES:
        _, data, taps = triple.shape
        x, g = (rng.standard_normal((64, n)).astype(np.float32) for n in (data, taps))
        want = run_bilinear(triple, x, g, np.float64)
        found[triple.name] = float(np.abs(run_bilinear(triple, x, g) - want).max() / np.abs(want).max())
    assert max(found.values()) < 1e-4
    assert found["F(6,3)"] < 1e-5 and found["Strassen of Strassen"] < 1e-5


def test_too_many_roundings_are_refused() -> None:
    with pytest.raises(ValueError, match="leave no digit"):
        gamma(1 << 24)


def test_every_rule_has_a_level() -> None:
    names = {rule.name for rule in ALL_RULES}
    assert names >= REASSOCIATING | APPROXIMATING and not REASSOCIATING & APPROXIMATING
    assert {rule_level(rule) for rule in (*ALL_RULES, *ROUNDING_RULES)} == set(LEVELS)
    assert {rule_level(rule) for rule in ROUNDING_RULES} == {"bf16"}
    assert allowed_rules(ALL_RULES, "approximate") == ALL_RULES
    exact = {rule.name for rule in allowed_rules(RULES, "exact")}
    assert "summation_splitting" not in exact and "traversal_merging" in exact
    derivation = fuse_vertically(attention(1, 5, 7, 3, 4))
    assert derivation is not None and derivation_level(derivation) == "approximate"
    assert derivation_level(Derivation(derivation.start)) == "exact"
    assert rule_level(ee.scope_rule("own", "", lambda _: (), lambda scope, params: scope)) == "approximate"


def test_numerics_bound_the_search() -> None:
    conv = ee.ops.conv2d(N=1, H=12, W=12, C=16, F=16, R=3, S=3, padding=1)
    tables = {}
    for numerics in LEVELS:
        found = find_variants(conv, program_seconds, Settings(max_depth=3, seconds=0.5, numerics=numerics)).variants
        ends = [entry.derivation() for entry in found]
        assert all(LEVELS.index(derivation_level(d)) <= LEVELS.index(numerics) for d in ends)
        read = (a for d in ends for e in d.end.equations for a in accesses(e.scope.body))
        tables[numerics] = any(isinstance(a.source, Table) for a in read)
    assert not tables["exact"] and not tables["reassociate"]
    start = attention(1, 5, 7, 3, 4)
    settings = Settings(max_depth=2, seconds=0.3)
    found = {
        n: find_variants(start, program_seconds, replace(settings, numerics=n)).variants
        for n in ("reassociate", "approximate")
    }
    used = {n: {s.match.rule.name for v in variants for s in v.derivation().steps} for n, variants in found.items()}
    assert "one_pass_generation" in used["approximate"] and "one_pass_generation" not in used["reassociate"]


def test_unknown_numerics_level_is_refused() -> None:
    with pytest.raises(ValueError, match="numerics 'sloppy': expected one of exact, reassociate, approximate"):
        _ = OptimiserOptions(numerics="sloppy").settings
    assert OptimiserOptions(numerics="exact").settings.numerics == "exact"


Arrays = Mapping[str, Any]


def drawn(program: Program, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in program.inputs}


def single(program: Program, constants: Arrays) -> Callable[[Arrays], Arrays]:
    """An engine: NumPy in single precision."""
    return lambda feeds: evaluate(program, {**feeds, **constants}, np.float32, outputs_only=True)


def badged(derivation: Derivation, seed: int = 0) -> ErrorReport:
    """The badge of *derivation* where single precision in NumPy runs both of its ends."""
    given = drawn(derivation.start, seed)
    return report_errors(
        derivation, lambda: OriginalRun(lambda: single(derivation.start, {})(given), given), {}, single
    )


def held(program: Program, given: Arrays) -> None:
    """Every error of *program* in single precision is within its bound, and its value is what evaluation gives."""
    scope = inline_equations(program, ())[program.outputs[0]]
    near = running_error(scope, given)
    want = evaluate(program, given, np.float64, outputs_only=True)[program.outputs[0]]
    got = single(program, {})(given)[program.outputs[0]]
    assert np.allclose(near.value, want, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert (np.abs(got - near.value) <= near.error).all()


BODIES = [
    "Y[i:5] = sum[k:9] A[i,k]*v[k] - 1/3*B[k,i]",
    "S[i:5] = sum[k:9] A[i,k]*v[k]\nY[i:5] = relu(S[i])*tanh(A[i,0])/(2 + abs(S[i]))",
    "Y[i:5] = exp(A[i,1] - v[i]) + sigmoid(v[i])*erf(B[i,0]) - pow(v[i], 3)",
    "Y[i:5] = sqrt(1 + abs(v[i])) + rsqrt(2 + B[i,0]*B[i,0]) + log(2 + abs(A[i,3])) + pow(2 + abs(v[i]), 0.5)",
    "Y[i:5] = max[k:9] maximum(A[i,k], v[k]) + minimum(A[i,k], -v[k])",
    "Y[i:5] = prod[k:3] (A[i,k] + v[k])",
    "M[i:5] = max[k:9] A[i,k]\nS[i:5] = sum[k:9] exp(A[i,k] - M[i])\nY[i:5] = sum[k:9] exp(A[i,k] - M[i])*v[k]/S[i]",
    "Y[i:5, j:7] = where(i < j, A[i, j], v[i] + B[j, i])",
]


@pytest.mark.parametrize("text", BODIES)
@given(seed=st.integers(0, 2**31))
def test_running_error_bounds_hold(text: str, seed: int) -> None:
    program = ee.parse(f"tensor A[5,9]\ntensor B[9,5]\ntensor v[9]\n{text}")
    held(program, drawn(program, seed))


def test_running_errors_of_reads_that_are_no_affine_ones_and_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = ee.parse("tensor A[2,9]\nY[i:2, j:5] = sum[k:3] A[i, (j + k)/2]*A[i, (j + 2*k)%3]")
    held(pooled, drawn(pooled))
    conv = ee.ops.conv2d(N=1, H=6, W=6, C=4, F=4, R=3, S=3, padding=1)
    whole = running_error(inline_equations(conv, ())[conv.outputs[0]], drawn(conv))
    monkeypatch.setattr("einnet_explore.interpreter.running_error._MAX_ELEMENTS", 16)
    pieces = running_error(inline_equations(conv, ())[conv.outputs[0]], drawn(conv))
    assert np.allclose(whole.value, pieces.value) and np.allclose(whole.error, pieces.error, rtol=0.2)
    assert (pieces.error > 0).all()


def test_undefined_values_have_no_bound() -> None:
    i, v = Iterator("i", 0, 2), Tensor("v", (2,))
    one, none = np.array([1, 2], np.float32), np.array([0, 0], np.float32)
    quotient = Scope((i,), (), Apply("/", (Const(1), Apply("-", (v[i,], v[i,])))))
    assert np.isinf(running_error(quotient, {"v": one}).error).all()
    rounded = Apply("exp", (v[i,],))
    power = Scope((i,), (), Apply("pow", (Apply("-", (rounded, rounded)), rounded)))
    assert np.isinf(running_error(power, {"v": none}).error).all()
    with pytest.raises(ValueError, match="tensor v has no array: given are w"):
        running_error(quotient, {"w": one})
    with pytest.raises(ValueError, match="outside the condition of where"):
        running_error(Scope((i,), (), Compare("<", as_index(i), as_index(1))), {})
    with pytest.raises(ValueError, match="gcd of 1 arguments has no error bound"):
        running_error(Scope((i,), (), Apply("gcd", (v[i,],))), {"v": one})
    with pytest.raises(IllegalRead, match="outside its reach"):
        running_error(Scope((i,), (), v[i + 1,]), {"v": one})


def test_an_infinite_padding_stays_itself() -> None:
    i, k = Iterator("i", 0, 3), Iterator("k", 0, 3)
    v = Tensor("v", (3,), ((1, 1),), float("-inf"))
    near = running_error(Scope((i,), (k,), v[i + k - 1,], "max"), {"v": np.array([1, 2, 3], np.float32)})
    assert near.value.tolist() == [2, 3, 3] and not near.error.any()
    soft = running_error(Scope((i,), (), Apply("exp", (v[i - 1,],))), {"v": np.array([1, 2, 3], np.float32)})
    assert soft.value[0] == soft.error[0] == 0 and (soft.error[1:] > 0).all()


def winograd(outputs: int) -> Derivation:
    conv = Derivation(ee.ops.conv2d(N=1, H=12, W=12, C=8, F=8, R=3, S=3, padding=1))
    found = [m for m in BILINEAR_SUBSTITUTION.matches(conv.end, (0,)) if m.params.algorithm.name == f"F({outputs},3)"]
    return conv.then(found[0])


def test_badges_of_tiles_of_different_sizes() -> None:
    badges = [badged(winograd(outputs)) for outputs in (2, 4, 6)]
    for found, name in zip(badges, ("F(2,3)", "F(4,3)", "F(6,3)"), strict=True):
        assert found.level == "approximate" and found.rules == (f"bilinear substitution {name}",)
        assert found.before and found.after and found.elements == found.whole == 12 * 12 * 8
        assert found.before.bound and found.after.bound
        assert 0 < found.before.error <= found.before.bound < 1e-4
        assert 0 < found.after.error <= found.after.bound < 1e-3
        assert found.before == badges[0].before
        assert str(found).startswith(f"approximate (bilinear substitution {name}): error ")
        assert ErrorReport.from_json(json.loads(json.dumps(found.to_json()))) == found
    two, four, six = (b.after.bound for b in badges if b.after and b.after.bound)
    assert 2 * two < four and 1.2 * four < six


CHAIN = """
tensor A[8,16]
tensor B[16,16]
tensor C[16,4]
Y[m:8, n:4] = sum[k:16, l:16] A[m,k]*B[k,l]*C[l,n]
"""


def test_badges_of_matrix_products() -> None:
    start = Derivation(ee.parse("tensor A[8,32]\ntensor B[32,8]\nY[m:8,n:8] = sum[k:32] A[m,k]*B[k,n]"))
    same = badged(start)
    assert same.level == "exact" and same.rules == () and same.before == same.after and same.after is not None
    assert str(same).startswith("sums unchanged: error ")
    chain = Derivation(ee.parse(CHAIN))
    other = badged(chain.then(next(iter(CONTRACTION_ORDER.matches(chain.end, (0,))))))
    assert other.level == "reassociate" and other.rules == ("contraction order",)
    assert str(other).startswith("reassociate: error ") and other.before and other.after
    assert other.before.bound and other.after.bound and other.after.error <= other.after.bound < 2 * other.before.bound
    products = [m for m in BILINEAR_PRODUCT.matches(start.end, (0,)) if m.params.algorithm.name == "Strassen"]
    fewer = badged(start.then(products[0]))
    assert fewer.rules == ("bilinear product Strassen",) and fewer.after and fewer.after.bound
    assert same.after.bound and 2 * same.after.bound < fewer.after.bound


def test_double_precision_has_its_own_bounds() -> None:
    program = ee.parse("tensor A[8,32] float64\ntensor B[32,8] float64\nY[m:8,n:8] = sum[k:32] A[m,k]*B[k,n]")
    given = {t.name: np.random.default_rng(0).standard_normal(t.shape) for t in program.inputs}
    product = given["A"].astype(np.longdouble) @ given["B"].astype(np.longdouble)
    near = running_error(program.equations[0].scope, given, unit=DOUBLE_ROUNDOFF)
    assert (np.abs(near.value - product) <= near.error).all()
    original = OriginalRun(lambda: {"Y": given["A"] @ given["B"]}, given)
    found = report_errors(Derivation(program), lambda: original, {}, lambda *_: lambda _: original.run())
    assert found.after and found.after.bound and found.after.error <= found.after.bound < 1e-13


def test_a_softmax_in_one_pass_is_rescaled() -> None:
    derivation = fuse_vertically(attention(1, 5, 40, 3, 4))
    assert derivation is not None
    found = badged(derivation)
    assert found.level == "approximate" and "one pass generation" in found.rules
    assert found.before and found.after and found.before.bound and found.after.bound
    assert found.after.error <= found.after.bound < 1e-4 and found.before.bound < found.after.bound


def test_large_outputs_are_compared_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = badged(winograd(4))
    monkeypatch.setattr(badge_module, "MAX_EVALUATED_WORK", 100_000)
    part = badged(winograd(4))
    assert 0 < part.elements < part.whole == whole.whole and part.before and part.after and whole.after
    assert part.after.bound and whole.after.bound and 0 < part.after.error <= part.after.bound <= whole.after.bound
    monkeypatch.setattr(badge_module, "MAX_EVALUATED_WORK", 10)
    none = badged(winograd(4))
    assert none.after is None and none.why == "one output element alone takes too long in double precision"
    assert "not measured, one output element" in str(none) and ErrorReport.from_json(none.to_json()) == none


@pytest.mark.parametrize("place", [0, 40, 63])
def test_the_window_is_around_the_largest_output(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere all may be zero, as after ``Relu``, and no error is seen."""
    monkeypatch.setattr(badge_module, "MAX_EVALUATED_WORK", 200)
    program = ee.parse("tensor A[64,8]\nY[i:64] = sum[j:8] A[i,j]*A[i,j]")
    given = np.zeros((64, 8), np.float32)
    given[place] = np.linspace(1, 2, 8)
    original = OriginalRun(lambda: {"Y": (given * given).sum(1)}, {"A": given})
    part = report_errors(Derivation(program), lambda: original, {}, lambda *_: lambda _: original.run())
    assert 1 <= part.elements < 64 and part.after and part.after.bound


def test_errors_are_of_results_that_are_defined() -> None:
    program = ee.parse("tensor A[6]\nY[i:6] = 2*sqrt(A[i])")
    some = badged(Derivation(program))
    assert np.isnan(single(program, {})(drawn(program))["Y"]).sum() in range(1, 6)
    assert some.after and some.after.bound and 0 <= some.after.error <= some.after.bound < 1e-6
    nowhere = ee.parse("tensor A[6]\nY[i:6] = sqrt(0 - 1 - A[i]*A[i])")
    none = badged(Derivation(nowhere))
    assert none.after is None and none.why == "its results are undefined on random inputs"


def test_a_program_that_does_not_run_has_no_figures() -> None:
    derivation = winograd(2)
    given = drawn(derivation.start)

    def broken(program: Program, constants: Arrays) -> Callable[[Arrays], Arrays]:
        raise BackendError("no compiler")

    found = report_errors(
        derivation, lambda: OriginalRun(lambda: single(derivation.start, {})(given), given), {}, broken
    )
    assert (found.level, found.after, found.why) == ("approximate", None, "no compiler")


def fewest(program: Program, *_: object) -> FoundVariants:
    """The first candidate with fewer multiplications that the search finds, however long that takes."""
    search = Search(program, program_seconds, Options(max_depth=1, rules=FEWER_PRODUCTS))
    found = (event for event in search.run() if isinstance(event, Found))
    first = next(e for e in found if any(map(with_table, search.states[e.state.id].program.equations)))
    variant = Variant(first.seconds, (), lambda: search.derivation(first.state.id))
    return FoundVariants([variant], len(search.states))


def with_table(equation: Equation) -> bool:
    return any(isinstance(a.source, Table) for a in accesses(equation.scope.body))


def test_the_report_of_a_kept_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution that is kept by Winograd's algorithm, whatever the times, and what is said of it."""
    for name in ("MAX_WINNER_RATIO", "NEGLIGIBLE_SHARE"):
        monkeypatch.setattr(contest_module, name, {"MAX_WINNER_RATIO": 1e9, "NEGLIGIBLE_SHARE": 0.0}[name])
    monkeypatch.setattr(contest_module, "_time", lambda *_: 1.0)
    monkeypatch.setattr(contest_module, "_times", lambda _, keys, *__: dict.fromkeys(keys, 1.0))
    monkeypatch.setattr(contest_module, "find_variants", fewest)
    monkeypatch.setattr(result_module, "MIN_SPEEDUP", 0.0)
    monkeypatch.setattr(result_module, "MIN_REMEMBERED_SPEEDUP", 0.0)
    monkeypatch.setattr(result_module, "FORMS", {"onnxruntime": (PlanForm.EXPORTED_SEPARATE,)})
    monkeypatch.setattr(selection_trials, "MIN_PART_SPEEDUP", 0.0)
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 16, 3, 3)).astype(np.float32)}
    proto = build([node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])], {"x": [1, 16, 12, 12]}, ["y"], weights)
    work = Optimiser(load_model(proto, {}), Settings(1, 3, 0.5, 2, runtime="onnxruntime"))
    before = [step.part.numerics for step in work.run()]
    fast = work.result()
    (part,) = fast.report()["subprograms"]
    assert part["kept"], part["why"]
    assert before[0] is not None and before[0].after is None
    said = part["numerics"]
    assert said["level"] == "approximate" and any(r.startswith("bilinear substitution F(") for r in said["rules"])
    assert said["elements"] == said["of"] == 16 * 12 * 12 and not said["why"]
    assert 0 < said["error_before"] <= said["bound_before"] < said["bound_after"]
    assert 0 < said["error_after"] <= said["bound_after"] < 1e-2
    assert "numerics: approximate (bilinear substitution F(" in fast.summary()
    assert fast.rows()[1][-1] == str(fast.parts[0].numerics) and ">numerics</th>" in fast._repr_html_()
    monkeypatch.setitem(Optimiser.result.__globals__, "report_errors", lambda *_: pytest.fail("measured again"))
    assert work.result().parts[0].numerics == fast.parts[0].numerics
    nothing = replace(fast, parts=tuple(replace(part, kept=False) for part in fast.parts))
    assert "numerics:" not in nothing.summary() and nothing.rows()[1][-1] == ""
    assert nothing.report()["subprograms"][0]["numerics"] is None


def test_equal_layers_have_figures_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another checkpoint of one architecture has figures of its own too; the same one reuses stored figures."""
    measured: list[ErrorReport] = []
    nodes = [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Conv", ["a", "v"], ["y"], pads=[1] * 4)]

    def measure(*given: Any) -> ErrorReport:
        measured.append(report_errors(*given))
        return measured[-1]

    def badges(seed: int) -> list[ErrorReport | None]:
        rng = np.random.default_rng(seed)
        weights = {name: rng.standard_normal((8, 8, 3, 3)).astype(np.float32) for name in ("w", "v")}
        held = load_model(build(nodes, {"x": [1, 8, 6, 6]}, ["y"], weights), {})
        work = Optimiser(held, Settings(1, 3, 0.5, 2), store=ProfileStore(tmp_path / "p.sqlite"))
        assert len({s.anonymous.signature for s in work.subprograms}) == 1
        trials = {
            s.nodes: Trial(
                seconds_before=2.0, seconds_after=1.0, winner=Derivation(s.anonymous.program), states=1, why=""
            )
            for s in work.subprograms
        }
        parts = [TunedSubprogram(nodes, trial, True, "proved", "") for nodes, trial in trials.items()]
        return [work._with_errors(part).measured for part in parts]

    monkeypatch.setattr(optimise_module, "report_errors", measure)
    assert badges(0) == measured and len({found.after for found in measured}) == 2
    assert badges(1) == measured[2:] and len({found.after for found in measured}) == 4
    assert badges(0) == measured[:2] and len(measured) == 4
