"""Laws of functions: homomorphisms, positive scaling, monotone exchange, cancellation, extraction.

Every law is tested on random legal inputs in double precision (both signs, zeros, large and small values); every step
is proved by both checkers.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_check
import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Program
from einnet_explore.ir.scalar_functions import SCALAR_FUNCTIONS
from einnet_explore.rules import (
    CANCELLATION,
    DISTRIBUTIVITY,
    HOMOMORPHISM,
    IDENTITIES,
    KNOWN_QUOTIENT,
    MONOTONE_DISTRIBUTION,
    MONOTONE_EXCHANGE,
    PART_EXTRACTION,
    POLYNOMIAL_FORM,
    POSITIVE_SCALING,
    Rule,
    Step,
)
from einnet_explore.rules.base import places
from einnet_explore.syntax import parse
from tests.rules_kit import check_rule, contractions, refuses
from tests.strategies import programs

LAWS: tuple[Rule[object], ...] = (
    CANCELLATION, HOMOMORPHISM, KNOWN_QUOTIENT, MONOTONE_DISTRIBUTION, MONOTONE_EXCHANGE, PART_EXTRACTION,
    POLYNOMIAL_FORM, POSITIVE_SCALING,
)  # fmt: skip

TENSORS = "tensor A[4, 5]\ntensor B[4, 5]\ntensor a[4]\ntensor b[5]\n"


def both_checkers(before: Program, after: Program) -> tuple[str, str]:
    """The verdicts of the two checkers on one step."""
    start, end = ee.text(before), ee.text(after)
    step = {"rule": "cancellation", "at": "0", "params": {}, "after": end}
    record = {"format": "einnet-explore record", "version": 1, "start": start, "steps": [step]}
    return certify(before, after).kind, list(einnet_check.check(record))[-1].kind


def steps(rule: Rule[object], program: Program) -> Iterable[Step]:
    for at, _ in places(program):
        for match in rule.matches(program, at):
            yield match.apply(program)


EXAMPLES: list[tuple[Rule[object], str, str]] = [
    (HOMOMORPHISM, "Y[i:4, j:5] = exp(A[i, j] + a[i])", "Y[i:4, j:5] = exp(A[i, j]) * exp(a[i])"),
    (HOMOMORPHISM, "Y[i:4, j:5] = exp(A[i, j] - a[i])", "Y[i:4, j:5] = exp(A[i, j]) * exp(-a[i])"),
    (HOMOMORPHISM, "Y[i:4] = 2 * exp(a[i]) * exp(b[i])", "Y[i:4] = 2 * exp(a[i] + b[i])"),
    (HOMOMORPHISM, "Y[i:4] = abs(a[i] * b[i])", "Y[i:4] = abs(a[i]) * abs(b[i])"),
    (HOMOMORPHISM, "Y[i:4] = abs(a[i]) * abs(b[i])", "Y[i:4] = abs(a[i] * b[i])"),
    (KNOWN_QUOTIENT, "Y[i:4] = relu(3 * a[i] / 7)", "Y[i:4] = relu((3 / 7) * a[i])"),
    (KNOWN_QUOTIENT, "Y[i:4] = (3 / 7) * a[i]", "Y[i:4] = 3 * a[i] / 7"),
    (KNOWN_QUOTIENT, "Y[i:4] = (3 * a[i] + 2 * b[i]) / 7", "Y[i:4] = (3 / 7) * a[i] + (2 / 7) * b[i]"),
    (KNOWN_QUOTIENT, "Y[i:4] = (3 / 7) * a[i] + (2 / 7) * b[i]", "Y[i:4] = (3 * a[i] + 2 * b[i]) / 7"),
    (POSITIVE_SCALING, "Y[i:4] = relu(2 * a[i])", "Y[i:4] = 2 * relu(a[i])"),
    (POSITIVE_SCALING, "Y[i:4] = relu(-3 * a[i] * b[i])", "Y[i:4] = 3 * relu(-1 * a[i] * b[i])"),
    (POSITIVE_SCALING, "Y[i:4] = 2 * relu(a[i])", "Y[i:4] = relu(2 * a[i])"),
    (POSITIVE_SCALING, "Y[i:4] = maximum(2 * a[i], 6)", "Y[i:4] = 2 * maximum(a[i], 3)"),
    (POSITIVE_SCALING, "Y[i:4] = 1 + minimum(2 * a[i], -2 * b[i])", "Y[i:4] = 1 + 2 * minimum(a[i], -1 * b[i])"),
    (POSITIVE_SCALING, "Y[i:4] = sqrt(4 * a[i] * a[i])", "Y[i:4] = 2 * sqrt(a[i] * a[i])"),
    (POSITIVE_SCALING, "Y[i:4] = rsqrt(4 * exp(a[i]))", "Y[i:4] = 0.5 * rsqrt(exp(a[i]))"),
    (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] (A[i, j] + a[i])", "Y[i:4] = a[i] + {[i:4] max[j:5] A[i, j]}[i]"),
    (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] relu(A[i, j] + a[i])", "Y[i:4] = relu(a[i] + {[i:4] max[j:5] A[i, j]}[i])"),
    (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] (-2 * A[i, j])", "Y[i:4] = -2 * {[i:4] min[j:5] A[i, j]}[i]"),
    (MONOTONE_EXCHANGE, "Y[i:4] = min[j:5] (a[i]-tanh(A[i, j]))", "Y[i:4] = a[i] - tanh({[i:4] max[j:5] A[i, j]}[i])"),
    (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] minimum(A[i,j], 2)", "Y[i:4] = minimum({[i:4] max[j:5] A[i, j]}[i], 2)"),
    (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] sigmoid(b[j] / 2)", "Y[i:4] = sigmoid({[] max[j:5] b[j]}[] / 2)"),
    (MONOTONE_DISTRIBUTION, "Y[i:4] = 2 - {[] max[j:5] b[j]}[] + a[i]", "Y[i:4] = min[j:5] (2 - b[j] + a[i])"),
    (
        MONOTONE_DISTRIBUTION, "Y[i:4] = relu({[i:4] max[j:5] {[k:5] b[k]} pad [1] value -inf[j - 1]}[i])",
        "Y[i:4] = max[j:5] relu({[k:5] b[k]} pad [1] value -inf[j - 1])",
    ),
    (CANCELLATION, "Y[i:4] = exp(a[i] + b[i] - (b[i] + 1))", "Y[i:4] = exp(a[i] - 1)"),
    (CANCELLATION, "Y[i:4] = exp(a[i]) * b[i] / (exp(a[i]) * (1 + abs(b[i])))", "Y[i:4] = b[i] / (1 + abs(b[i]))"),
    (POLYNOMIAL_FORM, "Y[i:4] = a[i] + maximum(0, a[i])", "Y[i:4] = a[i] + relu(a[i])"),
    (POLYNOMIAL_FORM, "Y[i:4] = minimum(a[i], 0)", "Y[i:4] = -1 * relu(-1 * a[i])"),
    (POLYNOMIAL_FORM, "Y[i:4] = (a[i] - b[i]) * a[i] / 2", "Y[i:4] = 0.5 * a[i] * a[i] + -0.5 * a[i] * b[i]"),
    (POLYNOMIAL_FORM, "Y[i:4] = 2 / pow(a[i], 2)", "Y[i:4] = 2 * (1 / a[i]) * (1 / a[i])"),
    (POLYNOMIAL_FORM, "Y[i:4] = tanh(a[i])", "Y[i:4] = -1 + 2 * (1 / (1 + exp(-2 * a[i])))"),
    (
        POLYNOMIAL_FORM, "Y[i:4, j:5] = where(i < j, A[i, j] / 2, -A[i, j])",
        "Y[i:4, j:5] = where(i < j, 0.5 * A[i, j], -1 * A[i, j])",
    ),
    (
        PART_EXTRACTION, "Y[i:4] = sum[j:5] exp(A[i, j] + b[j])",
        "T1[i:4, j:5] = A[i, j] + b[j]\nY[i:4] = sum[j:5] exp(T1[i, j])",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "before", "after"), EXAMPLES)
def test_law_rewrites_and_both_checkers_prove_it(rule: Rule[object], before: str, after: str) -> None:
    start, end = parse(f"{TENSORS}{before}\noutput Y"), parse(f"{TENSORS}{after}\noutput Y")
    found = [step.after for step in steps(rule, start)]
    assert end in found, "\n".join(map(ee.text, found))
    assert both_checkers(start, end) == ("proved", "proved")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("b[i] * a[i]", "has this form already"),
        ("a[i] / 0", "the divisor is 0"),
        ("a[i] / 3", "the coefficient 1/3 is no number in double precision"),
        ("a[i] * 1e200 * (a[i] * 1e200 + 1)", "is no number in double precision"),
        ("a[i] - inf", "the constant inf is not finite"),
        ("pow(a[i] + b[i] + 1, 8)", "at most 32 are multiplied out"),
    ],
)
def test_polynomial_form_is_refused(body: str, message: str) -> None:
    refuses(POLYNOMIAL_FORM, parse(f"{TENSORS}Y[i:4] = {body} + b[i]\noutput Y"), (0,), message)


VALUES = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, -3.25, 1e-30, -1e-30, 40.0, -40.0, 1e4, -1e4])


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(EXAMPLES), st.data())
def test_law_keeps_values_of_all_signs_and_magnitudes(
    example: tuple[Rule[object], str, str], data: st.DataObject
) -> None:
    """If the start overflows (an exponential of a large number), its value is no number and the law does not apply."""
    _, before, after = example
    start, end = parse(f"{TENSORS}{before}\noutput Y"), parse(f"{TENSORS}{after}\noutput Y")
    arrays = {}
    for t in start.inputs:
        size = int(np.prod(t.shape))
        arrays[t.name] = np.array(data.draw(st.lists(VALUES, min_size=size, max_size=size))).reshape(t.shape)
    with np.errstate(all="ignore"):
        want, got = evaluate(start, arrays, np.longdouble)["Y"], evaluate(end, arrays, np.longdouble)["Y"]
    usual = np.isfinite(want) & np.isfinite(got)
    scale = 1 + max(float(np.max(np.abs(array))) for array in arrays.values()) ** 2
    got, want = got[usual], want[usual]
    assert (abs(got - want) <= 1e-12 * scale + 1e-9 * abs(want)).all()


@settings(deadline=None)
@given(st.one_of(contractions(), programs()))
def test_laws_keep_random_programs(program: Program) -> None:
    for rule in (MONOTONE_EXCHANGE, PART_EXTRACTION, CANCELLATION, POSITIVE_SCALING, HOMOMORPHISM):
        check_rule(rule, program, 3)


@pytest.mark.parametrize("name", [n for n, f in SCALAR_FUNCTIONS.items() if f.compute and f.arity in (1, 2)])
def test_algebraic_fields_of_functions_are_true(name: str) -> None:
    function, random = SCALAR_FUNCTIONS[name], np.random.default_rng(0)
    points = [0.0, 1.0, -1.0, *random.uniform(-6, 6, 40)]

    def at(*values: float) -> float:
        return float(function.of_numbers(*values))

    if function.is_increasing:
        values = [at(x) for x in sorted(points)]
        assert values == sorted(values)
    if function.at_zero is not None:
        assert at(0.0) == function.at_zero
    if function.at_minus_infinity is not None:
        assert at(-np.inf) == function.at_minus_infinity
    if function.degree is not None:
        for x, y in zip(map(abs, points[1:]), points[2:], strict=False):
            given = (x, y)[: function.arity]
            for k in (0.25, 4.0, 9.0):
                assert at(*(k * v for v in given)) == pytest.approx(k ** float(function.degree) * at(*given))
    if function.homomorphism is not None:
        combine = {"+": lambda a, b: a + b, "*": lambda a, b: a * b}
        inside, outside = (combine[op] for op in function.homomorphism)
        for a, b in zip(points, points[5:], strict=False):
            assert at(inside(a, b)) == pytest.approx(outside(at(a), at(b)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Y[i:4] = relu(-2 * a[i])", "Y[i:4] = -2 * relu(a[i])"),
        ("Y[i:4] = relu(b[i] * a[i])", "Y[i:4] = b[i] * relu(a[i])"),
        ("Y[i:4] = sqrt(2 * a[i])", "Y[i:4] = 2 * sqrt(a[i])"),
        ("Y[i:4] = maximum(2 * a[i], 1)", "Y[i:4] = 2 * maximum(a[i], 1)"),
        ("Y[i:4] = max[j:5] abs(A[i, j])", "Y[i:4] = abs({[i:4] max[j:5] A[i, j]}[i])"),
        ("Y[i:4] = max[j:5] (-1 * A[i, j])", "Y[i:4] = -1 * {[i:4] max[j:5] A[i, j]}[i]"),
        ("Y[i:4] = max[j:5] (A[i, j] * a[i])", "Y[i:4] = a[i] * {[i:4] max[j:5] A[i, j]}[i]"),
        ("Y[i:4] = sum[j:5] relu(A[i, j])", "Y[i:4] = relu({[i:4] sum[j:5] A[i, j]}[i])"),
        ("Y[i:4] = exp(a[i] * b[i])", "Y[i:4] = exp(a[i]) * exp(b[i])"),
        ("Y[i:4] = a[i] * b[i] / b[i]", "Y[i:4] = a[i]"),
        ("Y[i:4] = sigmoid(0 * a[i])", "Y[i:4] = 0"),
    ],
)
def test_false_law_is_not_proved(before: str, after: str) -> None:
    start, end = parse(f"{TENSORS}{before}\noutput Y"), parse(f"{TENSORS}{after}\noutput Y")
    ours, theirs = both_checkers(start, end)
    assert ours in ("false", "unknown", "exact") and theirs == "unproved"
    if before != "Y[i:4] = a[i] * b[i] / b[i]":  # equal wherever the start has a value
        assert ours == "false"


@pytest.mark.parametrize(
    ("rule", "text", "why", "params"),
    [
        (HOMOMORPHISM, "Y[i:4] = relu(a[i] + b[i])", "relu is no homomorphism", {"part": 0, "direction": "apart"}),
        (HOMOMORPHISM, "Y[i:4] = exp(a[i])", "has one part", {"part": 0, "direction": "apart"}),
        (HOMOMORPHISM, "Y[i:4] = exp(a[i]) * b[i]", "no two parts", {"part": 0, "direction": "together"}),
        (
            HOMOMORPHISM,
            "Y[i:4] = exp(a[i])",
            "direction: 'apart' or 'together'}, found direction='up'",
            {"part": 0, "direction": "up"},
        ),
        (HOMOMORPHISM, "Y[i:4] = exp(a[i])", "part 1 is a[i], expected a function", {"part": 1, "direction": "apart"}),
        (POSITIVE_SCALING, "Y[i:4] = relu(a[i])", "no common constant", {"part": 0, "direction": "apart"}),
        (POSITIVE_SCALING, "Y[i:4] = sqrt(2 * a[i])", "no number in binary", {"part": 0, "direction": "apart"}),
        (POSITIVE_SCALING, "Y[i:4] = maximum(3 * a[i], 1)", "1 / 3 is no number", {"part": 0, "direction": "apart"}),
        (POSITIVE_SCALING, "Y[i:4] = tanh(2 * a[i])", "tanh is not homogeneous", {"part": 0, "direction": "apart"}),
        (POSITIVE_SCALING, "Y[i:4] = -2 * relu(a[i])", "is not positive", {"part": 0, "direction": "together"}),
        (POSITIVE_SCALING, "Y[i:4] = 0.1 * 0.3 * relu(a[i])", "has 2 constants", {"part": 0, "direction": "together"}),
        (POSITIVE_SCALING, "Y[i:4] = relu(0.1 * 0.3 * a[i])", "no common constant", {"part": 0, "direction": "apart"}),
        (POSITIVE_SCALING, "Y[i:4] = 2 * sqrt(a[i])", "has the degree 1/2", {"part": 0, "direction": "together"}),
        (MONOTONE_DISTRIBUTION, "Y[i:4] = abs({[i:4] max[j:5] A[i, j]}[i])", "is no monotone function", {}),
        (MONOTONE_DISTRIBUTION, "Y[i:4] = {[i:4] max[j:5] A[i, j]}[i]", "is no function of one maximum", {}),
        (MONOTONE_DISTRIBUTION, "Y[i:4] = max[j:5] A[i, j]", "sums or has a domain", {}),
        (MONOTONE_DISTRIBUTION, "Y[i:4] = relu({[k:4] max[j:5] A[k, j]} pad [1][i-1])", "outside its box", {}),
        (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] abs(A[i, j])", "is no monotone function", {}),
        (MONOTONE_EXCHANGE, "Y[i:4] = sum[j:5] relu(A[i, j])", "takes no maximum", {}),
        (MONOTONE_EXCHANGE, "Y[i:4] = max[j:5] (A[i, j] * a[i])", "is no monotone function", {}),
        (CANCELLATION, "Y[i:4] = a[i] * b[i] / b[i]", "no two finite terms are opposite", {}),
        (CANCELLATION, "Y[i:4] = inf + a[i] - inf", "no two finite terms are opposite", {}),
        (PART_EXTRACTION, "Y[i:4] = relu(a[i])", "part 1 is a[i], expected a function", {"part": 1}),
        (PART_EXTRACTION, "Y[i:5] = where(i < 4, relu(a[i]), 0)", "under a condition only", {"part": 2}),
    ],
)
def test_laws_refuse_functions_without_the_property(
    rule: Rule[object], text: str, why: str, params: dict[str, object]
) -> None:
    refuses(rule, parse(f"{TENSORS}{text}\noutput Y"), (0,), why, **params)


def test_possibly_infinite_terms_do_not_cancel() -> None:
    """A maximum over masked values may be infinite: ∞ - ∞ is no number."""
    start = parse(f"{TENSORS}M[i:4] = max[j:5] where(j < i, A[i, j], -inf)\nY[i:4] = exp(a[i] + M[i] - M[i])\noutput Y")
    assert not list(CANCELLATION.matches(start, (1,)))


@pytest.mark.parametrize("name", ["relu", "tanh", "exp", "sigmoid", "erf"])
@pytest.mark.parametrize(
    ("moved", "outside", "of"),
    [
        ("where(j < 5, A[i, j], B[i, j-5])", "where(j < 5, F[i, j], G[i, j-5])", "C[i:4, j:10]"),
        ("A[j//5, j%5]", "F[j//5, j%5]", "C[i:1, j:20]"),
        ("A[j, i]", "F[j, i]", "C[i:5, j:4]"),
        ("where(i < 4, A[i, j], 0)", "where(i < 4, F[i, j], ZERO)", "C[i:6, j:5]"),
    ],
)
def test_elementwise_functions_commute_with_moved_elements(name: str, moved: str, outside: str, of: str) -> None:
    """Concatenation, reshape, transposition, and padding by 0, which becomes f(0)."""
    zero = SCALAR_FUNCTIONS[name].at_zero or 0
    after = of.replace("C", "Y", 1)
    start = parse(f"{TENSORS}{of} = {moved}\n{after} = {name}(C[i, j])\noutput Y")
    end = parse(
        f"{TENSORS}F[i:4, j:5] = {name}(A[i, j])\nG[i:4, j:5] = {name}(B[i, j])\n"
        f"{after} = {outside.replace('ZERO', str(zero))}\noutput Y"
    )
    assert both_checkers(start, end) == ("proved", "proved")


def test_distributivity_moves_a_term_out_of_a_maximum_as_before() -> None:
    start = parse(f"{TENSORS}Y[i:4] = max[j:5] (A[i, j] + a[i])\noutput Y")
    assert [s.after for s in steps(MONOTONE_EXCHANGE, start)] == [s.after for s in steps(DISTRIBUTIVITY, start)]


def test_every_law_is_an_identity_or_an_extraction() -> None:
    assert {rule for rule in LAWS if rule not in IDENTITIES} == {PART_EXTRACTION}
