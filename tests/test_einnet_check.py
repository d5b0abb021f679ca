"""The independent checker: it proves the optimiser's steps and no wrong step."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificate_steps import STEPS, mutants, programs, reread
from mutation import CASES, attributes, chosen, kind, mutant, right, steps
from test_certificate import CASES as PAIRS
from test_certificate import SOME

import einnet_explore as ee
from einnet_check import certificate, check
from einnet_check.compare import prove
from einnet_check.legal import wrong_equations
from einnet_check.record import EXPONENTIAL
from einnet_check.terms import MOST, ROUNDED, Beyond, Space, simple
from einnet_check.text import Parser
from einnet_evaluation import cases
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.ir import Program
from einnet_explore.rules import (
    ALL_RULES,
    BILINEAR_PRODUCT,
    COMMON_FACTOR,
    CONTRACTION_ORDER,
    DISTRIBUTIVITY,
    RECENTRING,
    SUMMATION_EXCHANGE,
    SUMMATION_SPLITTING,
    Derivation,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.session.run import Run
from einnet_explore.strategies.candidate import to_record
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.vertical_fusion import fuse_vertically
from einnet_explore.syntax import text

ROOT = Path(__file__).resolve().parents[1]
QUICK = ("strided", "maximum", "bias and relu", "two equations")
"""Cases whose searches take little; all of them are gone through in the slow sweep."""


def record_of(*texts: str, rule: str = "expression_fusion", at: str = "0") -> dict[str, Any]:
    taken = [{"rule": rule, "at": at, "params": {}, "after": after} for after in texts[1:]]
    return {"format": "einnet-explore record", "version": 1, "start": texts[0], "steps": taken}


def believed(before: Program, after: Program) -> bool:
    """Whether the checker proves a step; one that the text form cannot hold is no record."""
    try:
        return certificate(record_of(text(before), text(after)))["kind"] == "proved"
    except ValueError:
        return False


def why(before: str, after: str) -> str | None:
    """Why a step is not proved, even with all axioms."""
    left, right_ = Parser(before).program(), Parser(after).program()
    return prove(left, right_) and prove(left, right_, frozenset([EXPONENTIAL, ROUNDED]))


def wrong(program: str) -> str | None:
    return wrong_equations(Parser(program).program())


def judged(names: Iterable[str], each: int, most: int) -> tuple[Counter[str], int]:
    """Wrong mutants by kind, and how many were right: of *each* steps a rule and case, *most* a step."""
    by_kind, same = Counter[str](), 0
    for case in names:
        by_rule: dict[str, list[Any]] = {}
        for step in steps(case):
            by_rule.setdefault(step.match.rule.name, []).append(step)
        for of_rule in by_rule.values():
            for step in of_rule[:: max(1, len(of_rule) // each)][:each]:
                assert believed(step.before, step.after), step.match.to_json()
                for told, changed in chosen(step, most):
                    after = mutant(changed)
                    if right(step.before, after):
                        same += 1
                        continue
                    assert not believed(step.before, after), f"{case}, {step.match.to_json()}, {told}:\n{after}"
                    by_kind[kind(told)] += 1
    return by_kind, same


def test_no_mutant_of_a_rule_is_proved() -> None:
    by_kind, same = judged(QUICK, 1, 8)
    assert by_kind.total() >= 150 and len(by_kind) >= 12 and same >= 5, (by_kind, same)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_no_mutant_of_many_steps_is_proved() -> None:
    by_kind, same = judged(CASES, 3, 12)
    assert by_kind.total() >= 3_000 and len(by_kind) == 14, (by_kind, same)


@pytest.mark.parametrize("name", STEPS)
def test_steps_written_by_hand_and_their_mutants(name: str) -> None:
    before, after = programs(name)
    assert believed(before, after) and believed(after, before)
    made = [reread(p) for _, p in mutants(after)]
    tried = [p for p in made[:: max(1, len(made) // 25)] if not right(before, p)]
    assert len(tried) >= 10
    assert not [text(p) for p in tried if believed(before, p)]


@pytest.mark.parametrize(("verdict", "before", "after"), PAIRS)
def test_equal_programs_are_proved(verdict: str, before: str, after: str) -> None:
    if verdict == "rounded":
        assert certificate(record_of(SOME + before, SOME + after))["kind"] == "rounded"
        return
    found = why(SOME + before, SOME + after)
    # Terms that stand for several points are compared by the engine where both programs have them alike; not here.
    counted = "sum[a:3, b:3] v[i+a+b]" in before
    assert (found is None) == (verdict == "proved" and not counted), found


def found_by_search(case: cases.Case, depth: int, **options: Any) -> Run:
    run = Run(case.make(), ee.program_seconds, target=case.targets, options=Options(max_depth=depth), **options)
    for _ in run:
        pass
    return run


@pytest.mark.parametrize("name", cases.CASES)
def test_the_gallery_is_proved(name: str, tmp_path: Path) -> None:
    run = found_by_search(cases.CASES[name], 1)
    assert run.candidates
    for n, candidate in enumerate(sorted(run.candidates, key=lambda c: c.seconds)[:2]):
        record = json.loads(json.dumps(run.record(candidate, name)))
        found = certificate(record, text(cases.CASES[name].make()))
        assert (found["kind"], found["steps"]) == ("proved", len(candidate.derivation.steps)), found
        assert n or found["steps"]


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", cases.CASES)
def test_every_candidate_of_the_gallery_is_proved(name: str) -> None:
    run = found_by_search(cases.CASES[name], 3, budget=60)
    for candidate in run.candidates[:: max(1, len(run.candidates) // 150)]:
        found = certificate(run.record(candidate))
        assert found["kind"] == "proved", found


def derived(start: Program, *names: str) -> Derivation:
    """The first match of each rule in turn."""
    found = Derivation(start)
    for name in names:
        rule = next(rule for rule in ALL_RULES if rule.name == name)
        found = found.then(next(m for path, _ in places(found.end) for m in rule.matches(found.end, path)))
    return found


REDUCED = "tensor A[4, 5]\ntensor B[5, 6]\ntensor C[6, 3]\ntensor g[4]\ntensor v[5]\n"
CHAIN = "sum[k:6] {[i:4, k:6] sum[j:5] A[i, j] * B[j, k]}[i, k] * C[k, l] * 2"
TIMES = "tensor A[{0}, {0}]\ntensor B[{0}, {0}]\nY[m:{0}, n:{0}] = {1}sum[k:{0}] A[m, k] * B[k, n]{2}"
BLOCKS = {"rows": "m", "between": "k", "columns": "n"}
OUT: dict[str, Any] = {"direction": "out"}
IN: dict[str, Any] = {"direction": "in", "part": 1}
TERMS: dict[str, Any] = {"direction": "terms"}
POLYNOMIALS = ", ".join(str(int(k == i + j)) for k in range(3) for i in range(2) for j in range(2))
NEW: dict[str, tuple[str, Rule[object], tuple[int, ...], dict[str, Any]]] = {
    "out of a sum": (f"{REDUCED}Y[i:4] = sum[j:5] g[i]*A[i, j] / exp(g[i])", DISTRIBUTIVITY, (0,), OUT),
    "out of a maximum": (f"{REDUCED}Y[i:4] = max[j:5] g[i] + A[i, j]", DISTRIBUTIVITY, (0,), OUT),
    "out, in a function": (f"{REDUCED}Y[i:4] = relu({{[i:4] sum[j:5] g[i]*A[i, j]}}[i])", DISTRIBUTIVITY, (0, 0), OUT),
    "out of a maximum, in a sum": (
        f"{REDUCED}Y[i:4] = sum[k:6] C[k, 0] * {{[i:4] max[j:5] g[i] + A[i, j]}}[i]", DISTRIBUTIVITY, (0, 1), OUT
    ),
    "into a sum": (f"{REDUCED}Y[i:4] = sum[j:5] A[i, j] * {{[k:5] sum[j:6] B[k, j]}}[j]", DISTRIBUTIVITY, (0,), IN),
    "into a minimum": (f"{REDUCED}Y[i:4] = g[i] + {{[i:4] min[j:5] A[i, j]*v[j]}}[i]", DISTRIBUTIVITY, (0,), IN),
    "into a maximum, in a function": (
        f"{REDUCED}Y[i:4] = tanh({{[i:4] g[i] + {{[i:4] max[j:5] A[i, j]}}[i]}}[i])", DISTRIBUTIVITY, (0, 0), IN
    ),
    "terms": (f"{REDUCED}Y[i:4] = sum[j:5] (A[i, j] - v[j])*(A[i, j] + g[i])", DISTRIBUTIVITY, (0,), TERMS),
    "common factor": (
        f"{REDUCED}Y[i:4] = {{[i:4] sum[j:5] A[i, j]*v[j]}}[i] + 2*A[i, 3]", COMMON_FACTOR, (0,),
        {"terms": [0, 1], "factors": [0, 0]},
    ),
    **{
        f"{r} exchanged": (
            f"{REDUCED}Y[i:4] = {r}[k:5] {{[i:4, k:5] {r}[j:6] A[i, k]*B[k, j]}}[i, k]", SUMMATION_EXCHANGE, (0,), {}
        )
        for r in ("sum", "max", "prod")
    },
    "associated": (f"{REDUCED}Y[i:4, l:3] = {CHAIN}", CONTRACTION_ORDER, (0,), {"tree": [0, [1, 2]]}),
    "associated, in a function": (
        f"{REDUCED}Y[i:4, l:3] = exp({{[i:4, l:3] {CHAIN}}}[i, l])", CONTRACTION_ORDER, (0, 0), {"tree": [0, [1, 2]]}
    ),
    "Strassen": (TIMES.format(4, "", ""), BILINEAR_PRODUCT, (0,), {"algorithm": "Strassen", **BLOCKS}),
    "Laderman": (TIMES.format(3, "", ""), BILINEAR_PRODUCT, (0,), {"algorithm": "Laderman", **BLOCKS}),
    "Strassen, in a function": (
        TIMES.format(2, "relu({[m:2, n:2] ", "}[m, n])"), BILINEAR_PRODUCT, (0, 0), {"algorithm": "Strassen", **BLOCKS}
    ),
    "Karatsuba": (
        "tensor A[2, 2]\ntensor B[2, 2]\n"
        f"Y[k:3] = sum[i:2, j:2, c:2] table[3, 2, 2]({POLYNOMIALS})[k, i, j] * A[i, c] * B[j, c]",
        BILINEAR_PRODUCT, (0,), {"algorithm": "Karatsuba"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ["Winograd", "Strassen", "Laderman"])
def test_bilinear_steps_are_checked_by_their_tables(algorithm: str) -> None:
    steps_ = derived(ee.ops.conv2d(N=1, H=6, W=3, C=2, F=2, R=3, S=3, padding=1), "bilinear_substitution")
    if algorithm != "Winograd":
        start, rule, at, params = NEW[algorithm]
        start_ = ee.parse(start)
        steps_ = Derivation(start_).then(rule.match(start_, at, **params))
    record = to_record(steps_)
    assert certificate(record)["kind"] == "proved"
    after = record["steps"][0]["after"]
    tables = list(re.finditer(r"table\[[^]]*\]\(([^)]*)\)", after))
    assert len(tables) == 3
    for table in tables:
        entries = table[1].split(", ")
        n = max(range(len(entries)), key=lambda n: (entries[n] != "0", entries[n] != "1"))
        for other in ("0", "7/3"):
            changed = ", ".join([*entries[:n], other, *entries[n + 1 :]])
            record["steps"][0]["after"] = after[: table.start(1)] + changed + after[table.end(1) :]
            assert certificate(record)["kind"] == "unproved"


@pytest.mark.parametrize("name", NEW)
def test_identities_of_reductions_and_their_mutants(name: str) -> None:
    start, rule, at, params = NEW[name]
    before = ee.parse(start)
    found = Derivation(before).then(rule.match(before, at, **params))
    proof = certificate(json.loads(json.dumps(to_record(found))))
    assert (proof["kind"], proof["axioms"]) == ("proved", []), proof
    (step,) = found.steps
    tried = [
        p
        for p in (mutant(changed) for _, changed in chosen(step, {"Laderman": 9, "terms": 17}.get(name, 24)))
        if not right(before, p)
    ]
    assert len(tried) >= 7
    assert not [text(p) for p in tried if believed(before, p)]


def blocked(score: str) -> Derivation:
    """A softmax-weighted sum in blocks of two, each relative to its own maximum."""
    start = f"tensor S[3, 4]\ntensor V[4]\ntensor M[3]\nY[m:3] = sum[j:2, i:2] exp({score} - M[m]) * V[2*j+i]"
    found = Derivation(ee.parse(start))
    found = found.then(RECENTRING.match(found.end, (0,), factor=0, within=["i"]))
    return found.then(SUMMATION_SPLITTING.match(found.end, (0,), outer=["j"], apart=True))


def test_recentring_is_proved_with_an_axiom_that_is_named(tmp_path: Path, capsys: Any) -> None:
    from einnet_check.__main__ import main

    found = blocked("S[m, 2*j+i]")
    record = json.loads(json.dumps(to_record(found)))
    assert [(v.why, sorted(v.axioms)) for v in check(record)] == [(None, []), (None, [EXPONENTIAL]), (None, [])]
    assert (certificate(record)["kind"], certificate(record)["axioms"]) == ("proved", [EXPONENTIAL])
    (tmp_path / "r.json").write_text(json.dumps(record))
    assert main([str(tmp_path / "r.json")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1] == f"1. recentring at 0: proved, {EXPONENTIAL}" and told[2].endswith(": proved")
    assert told[-1].endswith(f"what the first does, {EXPONENTIAL}")

    def value(program: Program) -> Any:
        inputs = {t.name: np.random.default_rng(0).standard_normal(t.shape) for t in program.inputs}
        return evaluate(program, inputs, np.float64)["Y"]

    want, wrong_ = value(found.start), 0
    np.testing.assert_allclose(value(found.end), want)
    for step in found.steps:
        for told_, changed in chosen(step, 60):
            after = mutant(changed)
            try:
                differs = not np.allclose(value(after), want, rtol=1e-9)
            except (IllegalRead, ValueError):
                differs = True
            wrong_ += differs
            assert not (differs and believed(step.before, after)), f"{told_}:\n{after}"
    assert wrong_ >= 50


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        ("exp(a[i] - b[i])", "exp(a[i] - c[i]) * exp(c[i] - b[i])", True),
        ("relu(exp(a[i]) - 1)", "relu(exp(a[i] + b[i]) * exp(-b[i]) - 1)", True),
        ("exp(a[i] - b[i])", "exp(a[i] - c[i]) * exp(c[4-i] - b[i])", False),
        ("exp(a[i] - b[i])", "exp(a[i] - c[i]) * exp(c[i] + b[i])", False),
        ("exp(a[i] - b[i])", "exp(a[i] - b[i]) * exp(a[i] - b[i])", False),
        ("exp(a[i])", "exp(2*a[i]) * exp(-1/2*a[i])", False),
        ("tanh(a[i] - b[i])", "tanh(a[i] - c[i]) * tanh(c[i] - b[i])", False),
        ("1", "exp(a[i] - a[i])", True),
        ("2", "exp(a[i] - a[i])", False),
        ("exp(a[i])", "exp(a[i] - inf) * exp(inf)", False),
        ("exp(a[i])", "exp(a[i] - {[] max[j:5] -inf}[]) * exp({[] max[j:5] -inf}[])", False),
    ],
)
def test_exponential_law_proves_equal_programs(before: str, after: str, proved: bool) -> None:
    found = why(*(f"tensor a[5]\ntensor b[5]\ntensor c[5]\nY[i:5] = {body}" for body in (before, after)))
    assert (found is None) == proved, found


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        ("relu(a[i] - b[i])", "maximum(a[i] - b[i], 0)", True),
        ("relu(a[i])", "maximum(0, 3*a[i]) / 3", True),
        ("-relu(b[i] - a[i])", "minimum(a[i] - b[i], 0)", True),
        ("a[i]", "maximum(a[i], 0) + minimum(0, a[i])", True),
        ("relu(a[i])", "maximum(a[i], 1/1000)", False),
        ("relu(a[i])", "minimum(a[i], 0)", False),
        ("relu(-a[i])", "minimum(a[i], 0)", False),
        ("relu(a[i])", "maximum(b[i], 0)", False),
        ("relu(a[i]) + 0.01*minimum(a[i], 0)", "maximum(0.01*a[i], a[i])", True),
        ("relu(a[i]) + 2*minimum(a[i], 0)", "minimum(2*a[i], a[i])", True),
        ("relu(a[i]) + 2*minimum(a[i], 0)", "maximum(2*a[i], a[i])", False),
        ("abs(a[i])", "relu(a[i]) + relu(-a[i])", True),
        ("abs(a[i] - b[i])", "maximum(a[i], b[i]) - minimum(b[i], a[i])", True),
        ("abs(a[i] - b[i])", "maximum(a[i], b[i]) + minimum(b[i], a[i])", False),
        ("abs(-2*a[i]*b[i])", "2*abs(a[i])*abs(b[i])", True),
        ("abs(a[i] + b[i])", "abs(a[i]) + abs(b[i])", False),
        ("relu(relu(a[i]) + exp(b[i]))", "relu(a[i]) + exp(b[i])", True),
        ("relu(relu(a[i]) - exp(b[i]))", "relu(a[i]) - exp(b[i])", False),
        ("relu(1 - relu(a[i]))", "1 - relu(a[i])", False),
        ("relu(a[i] - a[4 - i])", "relu(a[4 - i] - a[i])", False),
    ],
)
def test_maxima_and_sizes_are_sums_of_positive_parts(before: str, after: str, proved: bool) -> None:
    texts = [f"tensor a[5]\ntensor b[5]\nc[i:5] = {body}" for body in (before, after)]
    assert (why(*texts) is None) == proved
    assert (certify(*map(ee.parse, texts)).kind == "proved") == proved


def test_a_block_that_may_be_masked_is_not_recentred() -> None:
    """The largest of nothing but -inf is no centre: e^(-inf + inf) is no number."""
    found = blocked("{[m:3, w:4] where(w <= m, S[m, w], -inf)}[m, 2*j+i]")
    first, *_ = (v.why for v in check(to_record(found)) if v.why)
    assert "is counted differently" in first


ATTENTION = """
tensor Q[6, 4]
tensor K[9, 4]
tensor V[9, 3]
S[m:6, w:9] = sum[k:4] Q[m, k] * K[w, k]
Z[m:6, w:9] = where(w <= m, 0.5 * S[m, w], -inf)
M[m:6] = max[w:9] Z[m, w]
E[m:6, w:9] = exp(Z[m, w] - M[m])
T[m:6] = sum[w:9] E[m, w]
P[m:6, w:9] = E[m, w] / T[m]
Y[m:6, n:3] = sum[w:9] P[m, w] * V[w, n]
output Y
"""


def test_attention_in_one_pass_is_proved_step_by_step() -> None:
    found = fuse_vertically(ee.parse(ATTENTION))
    assert found is not None and found.steps[-1].match.rule.name == "one_pass_generation"
    record = json.loads(json.dumps(to_record(found)))
    proof = certificate(record, ATTENTION)
    assert (proof["kind"], proof["axioms"], proof["steps"]) == ("proved", [], len(found.steps)), proof
    end = record["steps"][-1]["after"]
    for old, new in (("max[", "min["), ("sum[", "max["), ("<= 0", "< 0"), ("exp(", "tanh("), (" / ", " * ")):
        for place in list(re.finditer(re.escape(old), end))[:4]:
            record["steps"][-1]["after"] = end[: place.start()] + new + end[place.end() :]
            assert not accepted(record), record["steps"][-1]["after"]


BETWEEN = [
    (
        "inlined",
        "T[i:6] = tanh(A[i, 0])\nY[i:6] = T[i] * T[5-i]",
        "Y[i:6] = tanh(A[i, 0]) * tanh(A[5-i, 0])",
    ),
    (
        "common subexpression",
        "T[i:6] = sum[j:4] A[i, j]\nU[a:6] = sum[b:4] A[a, b]\nY[i:6] = exp(T[i]) - U[5-i]",
        "T[i:6] = sum[j:4] A[i, j]\nY[i:6] = exp(T[i]) - T[5-i]",
    ),
    ("dead equation", "T[i:6] = A[i, 1]\nY[i:6] = A[i, 0]\noutput Y", "Y[i:6] = A[i, 0]"),
    (
        "storage layout, with padding",
        "T[i:6, j:4] = relu(A[i, j]) pad [1, 0]\nY[i:6] = sum[r:3, j:4] T[i+r-1, j]",
        "T[j:4, i:6] = relu(A[i, j]) pad [0, 1]\nY[i:6] = sum[r:3, j:4] T[j, i+r-1]",
    ),
    (
        "blocked layout",
        "T[i:6, j:4] = relu(A[i, j])\nY[i:6, j:4] = exp(T[i, j])",
        "T[a:3, j:4, b:2] = relu(A[2*a+b, j])\nY[i:6, j:4] = exp(T[i//2, j, i%2])",
    ),
    (
        "a row of a softmax",
        "S[i:6] = sum[j:4] exp(A[i, j])\nY[i:6, j:4] = exp(A[i, j]) / S[i]",
        "Y[i:6, j:4] = exp(A[i, j]) / {[i:6] sum[k:4] exp(A[i, k])}[i]",
    ),
    (
        "siblings merged",
        "T[i:6] = sum[j:4] A[i, j]*B[j]\nU[i:6] = sum[j:4] A[i, j]*C[j]\nY[i:6] = exp(T[i]) * tanh(U[i])",
        "K[p:2, j:4] = where(p < 1, B[j], C[j])\nM[p:2, i:6] = sum[j:4] A[i, j]*K[p, j]\n"
        "Y[i:6] = exp(M[0, i]) * tanh(M[1, i])",
    ),
    (
        "maxima by idempotence",
        "Y[i:6] = max[j:4] A[i, j]",
        "T[i:6] = max[j:3] A[i, j]\nU[i:6] = max[j:1..4] A[i, j]\nY[i:6] = maximum(T[i], U[i])",
    ),
    (
        "distributed",
        "Y[i:6] = sum[j:4] A[i, j] * (B[j] + C[j])",
        "T[i:6] = sum[j:4] A[i, j]*B[j]\nY[i:6] = T[i] + {[i:6] sum[j:4] C[j]*A[i, j]}[i]",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), [pair[1:] for pair in BETWEEN], ids=[pair[0] for pair in BETWEEN])
def test_steps_between_expressions_are_proved_and_their_mutants_are_not(before: str, after: str) -> None:
    tensors = "tensor A[6, 4]\ntensor B[4]\ntensor C[4]\n"
    assert why(tensors + before, tensors + after) is None
    assert "Y" in before and why(tensors + after, tensors + before) is None
    held = ee.parse(tensors + before)
    tried = [reread(p) for _, p in mutants(ee.parse(tensors + after))][::7]
    assert not [text(p) for p in tried if believed(held, p) and not right(held, p)]


def test_programs_that_simpler_comparisons_missed_are_proved() -> None:
    """Padding is no sum, whatever it is multiplied with; a long product is compared in the order that it has."""
    masked = "tensor A[6] pad [1] value -inf\ntensor B[6] pad [1] value 3\nM[i:6] = max[r:3] A[i+r-1]\n"
    assert why(f"{masked}Y[i:6] = sum[j:3] M[i]*B[i+j-1]", f"{masked}Y[i:6] = sum[j:3] M[i]*B[i-j+1]") is None
    rows, power = "tensor A[6]\ntensor B[4]\nY[i:6] = ", "*".join(["A[i]"] * 8)
    assert why(f"{rows}sum[j:2] {power}*B[j]", f"{rows}{{[i:6, p:1] sum[q:2] {power}*B[q]}}[i, 0]") is None
    assert why(f"{rows}A[i]*A[i]", f"{rows}2*A[i]*A[i]") is not None
    count = "sum[{y}:3] where({x}+{y} >= 1, 1, 0)"  # a number of points, which is no set
    counts = f"T[i:6] = {count.format(x='i', y='r')}\nU[j:6] = {count.format(x='j', y='s')}\nY[i:6, j:6] = A[i] / "
    assert why(f"tensor A[6]\n{counts}(T[i]*U[j])\noutput Y", f"tensor A[6]\n{counts}(T[i]*T[j])\noutput Y") is None
    other = counts.replace("j+s >= 1", "j+s >= 2")
    assert why(f"tensor A[6]\n{other}(T[i]*U[j])\noutput Y", f"tensor A[6]\n{other}(T[i]*T[j])\noutput Y") is not None


def matched() -> dict[str, Any]:
    """A record whose last steps are matches with leading dimensions, views and transposed operands."""
    start = ee.parse("tensor A[4, 6]\ntensor B[6, 5] weight\nY[m:4, n:5] = sum[k:3] A[m, k+2] * B[k, n]")
    run = Run(start, ee.program_seconds, target="Matmul", options=Options(max_depth=1))
    for _ in run:
        pass
    found = next(c for c in run.candidates if any("lda" in dict(e.via.attributes) for e in c.operators if e.via))
    return json.loads(json.dumps(run.record(found)))  # type: ignore[no-any-return]


def changed_numbers(record: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """Records that differ in one number of one program, or in one thing that a match says of itself."""
    for n, step in enumerate(record["steps"]):
        for number in re.finditer(r"(?<![\w.])\d+", step["after"]):
            for by in (1, -1):
                made = copy.deepcopy(record)
                after = step["after"]
                made["steps"][n]["after"] = after[: number.start()] + str(int(number[0]) + by) + after[number.end() :]
                yield f"{n}: {after[max(0, number.start() - 12) : number.end() + 4]!r} {by:+d}", made
        if step["rule"] != "operator_matching":
            continue
        for name, value in step["params"]["attributes"].items():
            made = copy.deepcopy(record)
            made["steps"][n]["params"]["attributes"][name] = value + 1
            yield f"{n}: attribute {name}", made
            del made["steps"][n]["params"]["attributes"][name]
            yield f"{n}: no attribute {name}", made
        made = copy.deepcopy(record)
        iterators = made["steps"][n]["params"]["iterators"]
        iterators["m"], iterators["k"] = iterators["k"], iterators["m"]
        yield f"{n}: iterators", made
        made = copy.deepcopy(record)
        made["steps"][n]["params"]["operator"] = "Conv1d"
        yield f"{n}: operator", made
        made = copy.deepcopy(record)
        made["steps"][n]["at"] = "7"
        yield f"{n}: place", made


def holds(record: dict[str, Any]) -> bool:
    """Whether every step of *record* is right, by evaluation; a text that does not parse is not."""
    try:
        held = [ee.parse(t) for t in (record["start"], *(s["after"] for s in record["steps"]))]
        return all(right(a, b) for a, b in pairwise(held))
    except ValueError:
        return False


def accepted(record: dict[str, Any]) -> bool:
    try:
        return certificate(record)["kind"] == "proved"
    except ValueError:
        return False


def test_no_changed_record_is_proved() -> None:
    record = matched()
    assert accepted(record) and holds(record)
    count = 0
    for told, made in changed_numbers(record):
        own = any(a["after"] != b["after"] for a, b in zip(made["steps"], record["steps"], strict=True))
        count += 1
        if accepted(made):
            leading = re.search(r"ld[ab]=|offset=", told)
            assert own and holds(made) and not leading, f"{told}:\n{json.dumps(made, indent=1)}"
    assert count >= 50


def test_missing_or_exchanged_steps_are_detected() -> None:
    start = "tensor A[4]\nY[i:4] = 2*A[i]"
    other = "tensor A[4]\nY[i:4] = A[i] + 3*A[i]"
    assert not accepted(record_of(start, other, start))
    verdicts = [v.why for v in check(record_of(start, other, start))]
    assert verdicts[0] is None and verdicts[1] is not None and verdicts[2] is not None
    assert certificate(record_of(start, start), other)["why"].startswith("start: Y: ")
    assert accepted(record_of(start)) and certificate(record_of(start), start)["steps"] == 0


@pytest.mark.parametrize("case", QUICK)
def test_leading_dimensions_and_attributes(case: str) -> None:
    """Every attribute of every kind of call is looked at, leading dimensions too."""
    seen: dict[tuple[Any, ...], Program] = {}
    for step in steps(case):
        for e in step.after.equations:
            if e.via and e.via.operator != "eOperator":
                seen.setdefault((e.via.operator, *(k for k, _ in e.via.attributes)), step.after)
    for program in list(seen.values())[:4]:
        assert wrong(text(program)) is None
        every = range(len(program.equations))
        for told, changed in attributes(program, every):
            if right(program, changed):
                continue
            assert wrong(text(changed)) is not None, f"{told}:\n{text(changed)}"


WRONG = [
    ("Y[i:4] = A[i", "2:13: found 'the end', expected ]"),
    ("Y[i:4] = A[j]", "2:13: found ']', expected one of A, B, i instead of j before"),
    ("Y[i:4] = A[i, 0]", "2:17: found 'the end', expected 1 indices before"),
    ("Y[i:0] = A[i]", "2:6: found '] = A[i]', expected a range of i that is new and not empty before"),
    ("Y[i:4, i:4] = A[i]", "a range of i that is new and not empty before"),
    ("Y[i:4] = {[j:4] A[i]}[i]", "expected one of A, B, j instead of i before"),
    ("Y[i:4] = relu(A[i], A[i])", "1 arguments of relu before"),
    ("Y[i:4] = f()", "1 arguments of f before"),
    ("Y[i:4] = max(A[i], 0)", "found '(A[i], 0)', expected ["),
    ("Y[i:4] = table[2, 2](1, 2, 3)[0, 0]", "as many entries as the shape says before"),
    ("Y[i:4] = table[2](1/2, 3/0)[0]", "a denominator other than 0 before"),
    ("Y[i:4] = A[i] + 1e999999999", "found '999999', expected"),
    ("Y[i:4] = A[i] pad [1, 1]", "1 pads before"),
    ("Y[i:4] = A[i] value A[0]", "a number before"),
    ("Y[i:4] = A[i]\nY[i:4] = A[i]", "no second definition of Y before"),
    ("tensor C[0]\nY[i:4] = A[i]", "sizes of C above 0 before"),
    ("output Z", "equations and outputs before"),
    ("Y[i:4] = A[i] via X(a=b)", "an integer"),
    ("Y[i:4] = $", "found '$', expected a name"),
    ("3[i:4] = A[i]", "expected a name"),
]


@pytest.mark.parametrize(("after", "message"), WRONG)
def test_malformed_texts_are_refused(after: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Parser("tensor A[4]\ntensor B[4, 4]\n".replace("\ntensor B", " tensor B") + after).program()


def test_an_unknown_function_is_uninterpreted() -> None:
    start = "tensor A[4]\nY[i:4] = f(A[i] + 1) * 2 - f(A[i]) - f(A[i])"
    assert why(start, "tensor A[4]\nY[i:4] = 2 * (f(1 + A[i]) - f(A[i]))") is None
    for other in ("f(A[i] + 1)*2 - f(A[i]) - g(A[i])", "2*f(A[i] + 1) - 2*f(A[3-i])", "2*f(1)"):
        assert why(start, f"tensor A[4]\nY[i:4] = {other}") is not None
    infinite = "tensor A[4] pad [1] value -inf\nY[i:4] = 0 * f(A[i-1])"
    assert why(infinite, "tensor A[4] pad [1] value -inf\nY[i:4] = 0 * A[i]") is not None


def test_both_parsers_read_the_documented_programs_equally() -> None:
    for block in (ROOT / "docs" / "text-form.md").read_text().split("```ein\n")[1:]:
        source = block.split("```")[0]
        again = text(ee.parse(source))
        assert why(source, again) is None and why(again, source) is None and wrong(source) is None


MATRICES = "tensor A[4, 2]\ntensor B[2, 4]\ntensor C[4, 4]\ntensor D[4] pad [1]\n"
PRODUCT = "Y[m:4, n:4] = sum[k:2] A[m, k]*B[k, n] via "
SOLE = [
    (f"{PRODUCT}Matmul(m=4, n=4, k=2)", None),
    (f"{PRODUCT}Matmul(m=4, n=4, k=2, lda=2, ldb=4)", None),
    (f"{PRODUCT}Nothing(m=4)", "Nothing is no known operator"),
    (f"{PRODUCT}BatchConv1d(m=4)", "BatchConv1d is no known operator"),
    (f"{PRODUCT}Matmul(m=4)", "Matmul: attribute n is None, expected an integer"),
    (f"{PRODUCT}Matmul(m=4, n=4, k=(2, 2))", "Matmul: attribute k is (2, 2), expected an integer"),
    (f'{PRODUCT}Matmul(m=4, n=4, k="2")', "Matmul: attribute k is '2', expected an integer"),
    (f"{PRODUCT}Conv1d(m=4)", "Conv1d: attribute n is None"),
    (f"{PRODUCT}Matmul(m=5, n=4, k=2)", "operand 0 of Matmul is no tensor of shape [5, 2]"),
    (f"{PRODUCT}Matmul(m=4, n=4, k=2, lda=3)", "operand 0 has stride 2 in dimension 0, not 3"),
    (f"{PRODUCT}Matmul(m=4, n=4, k=2, x=3)", "Matmul has no attribute x"),
    (f"{PRODUCT}Matmul(m=4, n=4, k=2, b=3)", "operand 0 of Matmul is no tensor of shape [3, 4, 2]"),
    (f"{PRODUCT}Add(i=16)", "operand 0 of Add is no tensor of shape [16]"),
    ("Y[m:2, n:4] = sum[k:4] C[m, k]*C[k, n] via Matmul(m=4, n=4, k=4)", "gives a result of box"),
    ("Y[m:4, n:4] = sum[k:4] C[m, k]*C[n, k] via Matmul(m=4, n=4, k=4)",
     'element [0, 0]: "C" · "C" at [0, 1, 0, 1] is counted differently before and after'),
    ("Y[m:4, n:4] = sum[k:4] C[m, k]*C[n, k] via Matmul(m=4, n=4, k=4, tb=1)", None),
    ("Y[m:4, n:4] = max[k:4] C[m, k]*C[k, n] via Matmul(m=4, n=4, k=4)", "max and sum have no common form"),
    ("Y[m:4, n:2] = {[i:4] C[i, i]}[m] * A[m, n] via Mul(i=8)", "operand 0 of Mul is no tensor"),
    ("T[n:4, k:2] = C[n, 2*k] via View(offset=0, strides=(4, 2))\n"
     "Y[m:4, n:4] = sum[k:2] T[m, k]*B[k, n] via Matmul(m=4, n=4, k=2, lda=4)",
     "operand 0 has stride 2 in dimension 1, not 1"),
    ("T[k:4, n:4] = C[n, k] via View(offset=0, strides=(1, 4))\n"
     "Y[m:4, n:4] = sum[k:4] T[m, k]*C[k, n] via Matmul(m=4, n=4, k=4, lda=1)",
     "operand 0 has stride 4 in dimension 1, not 1"),
    ("Y[i:4] = sum[k:4] C[i, k] via View", "a view reads one tensor and nothing else"),
    ("Y[i:4] = A[i//2, 0] via View", "a view lies elsewhere"),
    ("Y[i:5] = D[i] via View", "a view lies elsewhere"),
    ("Y[i:4, j:4] = C[j, 3-i] via View(offset=3, strides=(-1, 4))", None),
    ("Y[i:4, j:4] = C[j, 3-i] via View(offset=2, strides=(-1, 4))", "offset 2, strides (-1, 4)"),
    ("Y[i:4, j:4] = C[j, 3-i] via View(offset=3, strides=(1, 4))", "offset 3, strides (1, 4)"),
    ("Y[i:16] = C[i//4, i%4] via View(offset=0, strides=(1,))", None),
    ("T[m:4, n:2] = C[m, n] via View(offset=0, strides=(4, 1))\n"
     "U[i:8] = T[i//2, i%2] via View(offset=0, strides=(1,))\nY[i:8] = U[i] + U[i] via Add(i=8)", None),
    ("T[m:4, n:2] = C[m, n] via View(offset=0, strides=(4, 1))\nU[i:8] = T[i//2, i%2] via View(offset=0, strides=(2,))",
     "a view lies elsewhere than offset 0, strides (2,)"),
    ("T[k:4, n:4] = C[n, k] via View(offset=0, strides=(1, 4))\n"
     "U[k:4, n:4] = T[k, n] via View(offset=0, strides=(4, 1))\n"
     "Y[m:4, n:4] = sum[k:4] U[m, k]*C[k, n] via Matmul(m=4, n=4, k=4)", None),
    ("Y[i:4] = D[i+2]", "D is read beyond its reach [(-1, 5)]"),
    ("Y[i:4] = {[i:4] A[i, 0]}[i+1]", "a scope is read beyond its reach [(0, 4)]"),
    ("Y[i:8] = where(i < 4, A[i, 0], A[7-i, 0])", None),
    ("Y[i:8 | 0 <= i < 4] = A[i, 0]", None),
    ("Y[i:8 | 0 <= i < 5] = A[i, 0]", "A is read beyond its reach"),
    ("T[i:4, j:2] = C[i, j+1] via View(offset=1, strides=(4, 1))\n"
     "Y[m:4, n:4] = sum[k:2] T[m, k]*B[k, n] via Matmul(m=4, n=4, k=2, lda=4)", None),
    ("T[i:4, j:2] = C[i, j+1] via View(offset=1, strides=(4, 1))\n"
     "Y[m:4, n:4] = sum[k:2] T[m, k]*B[k, n] via Matmul(m=4, n=4, k=2)",
     "operand 0 has stride 4 in dimension 0, not 2"),
    ("T[n:2, c:2] = C[n, c+1] via View(offset=1, strides=(4, 1))\n"
     "Y[n:2, f:2, h:1] = sum[c:2, r:1] {[n:2, c:2, h:1] T[n, c]}[n, c, h] * {[f:2, c:2, r:1] B[f, c]}[f, c, r] "
     "via Conv1d(n=2, f=2, c=2, h=1, r=1, H=1, sh=1, dh=1, ph=0)", "operand 0 of Conv1d is no tensor"),
    ("T[n:1, c:2, h:3] = C[c, h+1] via View(offset=1, strides=(0, 4, 1))\nK[f:1, c:2, r:1] = B[0, c]\n"
     "Y[n:1, f:1, h:3] = sum[c:2, r:1] T[n, c, h+r] * K[f, c, r] "
     "via Conv1d(n=1, f=1, c=2, h=3, r=1, H=3, sh=1, dh=1, ph=0)", "operand 0 has stride 4 in dimension 1, not 3"),
    ("T[n:1, c:2, h:4] = C[c, h] via View(offset=0, strides=(0, 4, 1))\nK[f:1, c:2, r:1] = B[0, c]\n"
     "Y[n:1, f:1, h:4] = sum[c:2, r:1] T[n, c, h+r] * K[f, c, r] "
     "via Conv1d(n=1, f=1, c=2, h=4, r=1, H=4, sh=1, dh=1, ph=0)", None),
    ("Y[m:4, w:4] = sum[k:2] A[m, k]*A[(m+w)//2, k] via G2BMM(m=4, w=4, k=2, d=1, W=1)", "G2BMM is no known operator"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "message"), SOLE)
def test_calls_and_views_of_an_equation_are_checked(program: str, message: str | None) -> None:
    found = wrong(MATRICES + program)
    assert found is None if message is None else found is not None and message in found, found


def test_unproved_pair_states_the_reason() -> None:
    padded = "tensor A[9] pad [1] value 2\n"
    many = " + ".join(f"A[i-{n % 2}]" for n in range(40))
    sums = f"({' + '.join(f'A[{n}]' for n in range(9))})"
    cube = f"({sums}*{sums}*{sums})"
    others = " + ".join(f"{f}(A[{n}])" for f in ("relu", "tanh", "exp") for n in range(9))
    for before, after, message in (
        ("Y[i:4] = 2*A[i] + inf", "Y[i:4] = A[i] + A[i] + inf", "an infinite constant is added or multiplied"),
        ("Y[i:4] = max[j:2] A[i] + inf", "Y[i:4] = max[j:3] A[i] + inf", "an infinite constant is added or multiplied"),
        ("Y[i:3] = sum[a:3, b:3] A[i+a+b]", "Y[i:3] = sum[b:9] A[i+b//3+b%3]", "one term stands for several points"),
        (f"Y[i:4] = relu({many})", "Y[i:4] = A[i]", "+ has 2048 times 2 cases"),
        (f"Y[i:4] = {cube}*({others})", "Y[i:4] = A[i]", f"a scope has more than {MOST} kinds of terms"),
        (f"Y[i:4] = {cube}*{cube}", "Y[i:4] = A[i]", "it takes more than 2000000 steps"),
        (f"Y[i:4] = ({cube}*{sums})*({cube}*{sums})", "Y[i:4] = A[i]", "* has 495 times 495 terms"),
        ("Y[i:4] = A[i] + i", "Y[i:4] = A[i]", "'i' is no number"),
        ("Y[i:4] = A[i*i]", "Y[i:4] = A[i]", "is no index"),
        ("Y[i:4] = A[i//0]", "Y[i:4] = A[i]", "is no index"),
    ):
        found = why(padded + before, padded + after)
        assert found is not None and message in found, found
    assert simple(Fraction(1 / 6)) == simple(Fraction(1, 6)) != simple(Fraction(1, 6) + Fraction(1, 10**7))
    with pytest.raises(Beyond, match="an infinite constant"):
        Space((), lambda a, b: False).number(float("nan"))


def test_programs_that_do_not_compare() -> None:
    start = "tensor A[4]\ntensor B[4]\nY[i:4] = A[i]\n"
    assert why(start, "tensor A[4]\ntensor B[4]\nZ[i:4] = A[i]") == "inputs or outputs are others"
    assert why(start, "tensor A[5]\nY[i:4] = A[i]") == "inputs or outputs are others"
    assert why(start, "tensor A[4]\nY[i:3] = A[i]") == "output Y has another box, or is an input no more"
    assert why(start, "tensor A[4]\nY[i:4] = A[i]") is None
    assert why(start, "tensor A[4]\ntensor B[4]\nT[i:4] = A[i] + B[i]\nY[i:4] = T[i] - B[i]") is None
    # What both call T need not be one thing, as long as nobody can tell.
    one = "tensor A[4]\nT[i:4] = 2*A[i]\nY[i:4] = exp(T[i])"
    assert why(one, "tensor A[4]\nT[i:4] = 3*A[i]\nY[i:4] = exp(T[i] - A[i])") is None
    assert why(one, "tensor A[4]\nT[i:4] = 3*A[i]\nY[i:4] = exp(T[i])") is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "$: found something else"),
        ({"version": 2}, "$: found something else"),
        ({"start": None}, "$.start: expected str"),
        ({"start": "Y[i:4] = A[i]"}, "$.start:1:"),
        ({"steps": {}}, "$.steps: expected list"),
        ({"steps": [3]}, "$.steps[0].rule: expected str"),
        ({"steps": [{"rule": "expression_fusion", "at": "0", "after": "tensor"}]}, "$.steps[0].after:1:7"),
    ],
)
def test_files_without_a_record_are_refused(change: dict[str, Any], message: str, tmp_path: Path, capsys: Any) -> None:
    from einnet_check.__main__ import main

    path = tmp_path / "r.json"
    path.write_text(json.dumps({**record_of("tensor A[4]\nY[i:4] = A[i]"), **change}))
    assert main([str(path)]) == 2
    assert f"error: {path}: {message}" in capsys.readouterr().err


def test_command_has_an_exit_code_for_each_verdict(tmp_path: Path) -> None:
    record, program = tmp_path / "r.json", tmp_path / "p.ein"
    start = "tensor A[4, 4]\nY[i:4] = sum[j:4] A[i, j]\n"
    split = "tensor A[4, 4]\nY[i:4] = sum[p:2] {[i:4, p:2] sum[q:2] A[i, 2*p+q]}[i, p]\n"
    program.write_text(start)

    def run(*arguments: object) -> Any:
        command = [sys.executable, "-m", "einnet_check", *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    record.write_text(json.dumps(record_of(start, split)))
    done = run(record, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == ["start: proved", "1. expression_fusion at 0: proved"]
    good = tmp_path / "good.json"
    good.write_text(record.read_text())
    record.write_text(json.dumps(record_of(start, split.replace("2*p", "p"))))
    done = run(good, record, good, "--program", program)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stdout.count(f"{good}: proved, ") == 2
    assert [line for line in done.stdout.splitlines() if line.endswith(".json:")] == [
        f"{path}:" for path in (good, record, good)
    ]
    done = run(record, program)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"{record}: 1. expression_fusion at 0: NOT PROVED: Y: ")
    record.write_text(json.dumps(record_of(start, split, rule="mine")))
    done = run(record)
    assert done.returncode == 2 and done.stderr.endswith("another one is allowed by rules=, or --rule mine\n")
    record.write_text("{")
    assert run(record).returncode == run(tmp_path / "none.json").returncode == run().returncode == 2
    record.write_text("[" * 100_000)
    assert run(record).returncode == 2


def test_package_imports_only_islpy() -> None:
    code = "import sys, einnet_check.__main__; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"einnet_explore", "numpy", "lark", "onnx", "tvm"} & set(out.stdout.split())
    imported: set[str] = set()
    for path in (ROOT / "einnet_check").glob("*.py"):
        imported |= set(re.findall(r"^(?:from|import) (\w+)", path.read_text(), re.MULTILINE))
    assert imported <= {*sys.stdlib_module_names, "islpy", "einnet_check"}


SIZED = "param H >= 2, W >= 2, W % 2 == 0\ntensor A[H, W]\nY[i:H] = "


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("sum[k:W] 2*A[i, k]", "2 * {[i:H] sum[k:W] A[i, k]}[i]", None),
        ("sum[k:W] A[i, k]", "sum[k:W//2] (A[i, 2*k] + A[i, 2*k+1])", None),
        ("sum[k:W] A[i, k]", "sum[k:W] A[i, W-1-k]", None),
        ("sum[k:W, h:H] A[i, 0]", "sum[k:W//2, h:H] (A[i, 0] + A[i, 0])", None),
        ("max[k:W] relu(A[i, k])", "relu({[i:H] max[k:W] A[i, k]}[i])", None),
        ("sum[k:W] where(k < H, A[i, k], 0)", "sum[k:W] where(H <= k, 0, A[i, k])", None),
        ("sum[k:W] A[i, k]", "sum[k:W-1] A[i, k]", "counted differently"),
        ("sum[k:W] A[i, 0]", "sum[k:H] A[i, 0]", "counted differently"),
        ("sum[k:W] A[i, k]", "sum[k:W//2] A[i, 2*k]", "counted differently"),
        ("sum[k:W] A[i, k]", "sum[k:W] A[i, (W*k) // W]", "is no index"),
        ("A[i, 0]", "sum[k:H-1] A[i, 0]", "counted differently"),
    ],
)
def test_programs_of_all_sizes_are_compared(before: str, after: str, reason: str | None) -> None:
    found = why(SIZED + before, SIZED + after)
    assert found is None if reason is None else reason in (found or ""), found


def test_reads_are_legal_at_all_sizes() -> None:
    assert wrong(SIZED + "sum[k:W-1] A[i, k+1]") is None
    assert "beyond its reach" in (wrong(SIZED + "sum[k:W-1] A[i, k+2]") or "")


def test_assumptions_are_those_of_the_start_and_sizes_are_positive() -> None:
    start, wider = (f"param H >= {n}\ntensor A[H]\nY[i:H] = A[i]" for n in (2, 1))
    assert "what is assumed of the sizes is another" in (why(start, wider) or "")
    verdicts = list(check(record_of(start, start)))
    assert [v.step for v in verdicts] == ["start for all sizes with H >= 2", "1. expression_fusion at 0"]
    for wrong in ("param H\ntensor A[H-1]\nY[i:H-1] = A[i]", "param H >= 2, H <= 1\ntensor A[H]\nY[i:H] = A[i]"):
        with pytest.raises(ValueError, match="expected"):
            list(check(record_of(wrong)))


def test_largest_sizes_are_part_of_a_proof() -> None:
    upto = "tensor A[N]\nY[i:N] = {}\n"
    for odd in ("", ", N % 2 == 1"):
        for largest, expected in ((10, "proved"), (11, "unproved")):
            head = f"param N >= 2, N <= {largest}{odd}\n{upto}"
            verdicts = list(check(record_of(head.format("A[i]"), head.format("where(i < 10, A[i], 0)"))))
            assert verdicts[-1].kind == expected, (head, verdicts)


def test_families_that_are_equal_are_proved_by_both_checkers(tmp_path: Path) -> None:
    one, two = (
        ee.family(f"param N >= 3, M\ntensor A[N, M]\nY[i:N-2, j:M] = {body}\n")
        for body in ("sum[r:3] A[i+r, j]", "A[i+2, j] + {[i:N-2, j:M] sum[r:2] A[i+r, j]}[i, j]")
    )
    found = ee.equal(one, two)
    assert found.kind == "proved" and found.save_certificates(tmp_path) == 1
    (record,) = (json.loads(path.read_text()) for path in tmp_path.iterdir())
    assert {v.why for v in check(record)} == {None}


@pytest.mark.parametrize(("one", "other"), [("1 - 0 + y[]", "y[]"), ("0 * y[] + 3", "0"), ("2 + (1 - 1)", "0")])
def test_a_constant_plus_nothing_stays(one: str, other: str) -> None:
    programs = [Parser(f"tensor y[]\nY[] = {body}\noutput Y\n").program() for body in (one, other)]
    assert prove(*programs) is not None
    assert prove(programs[0], programs[0]) is None
