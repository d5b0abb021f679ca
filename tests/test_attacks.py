"""Attacks that prove a wrong step or exhaust the machine: each succeeded once."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einnet_explore as ee
from einnet_check import certificate, terms
from einnet_check.__main__ import main
from einnet_check.record import RULES
from einnet_check.rounding import ROUNDING_RULES
from einnet_check.terms import ROUNDED
from einnet_check.text import ROW
from einnet_explore.checker.record import COMPARISON, RULE_NAMES, RecordError, check_file, check_record
from einnet_explore.cli import main as cli
from einnet_explore.equivalence.assumptions import ROUNDING as FOLDED
from einnet_explore.equivalence.certificate import certify, program_hash
from einnet_explore.equivalence.verdict import CertificateKind, weakest_kind
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.runtime import compiled
from einnet_explore.runtime.profile_store import ProfileKey, TimeStore
from einnet_explore.strategies.instantiation import known_rules
from einnet_explore.syntax import TextError, parse

ROOT = Path(__file__).resolve().parents[1]


def record_of(*texts: str, rule: str = "expression_fusion", at: str = "0") -> dict[str, Any]:
    steps = [{"rule": rule, "at": at, "params": {}, "after": after} for after in texts[1:]]
    return {"format": "einnet-explore record", "version": 1, "start": texts[0], "steps": steps}


A = "tensor A[4]\n"
MASKED = f"{A}T[i:4] = where(i < 3, -inf, A[i])\n"
ALL = "{[] max[j:4] -inf}[]"
ENDS = f"{A}P[i:4] = where(i < 1, inf, A[i])\nN[i:4] = where(i < 1, -inf, A[i])\n"
"""P and N may be infinite, and are."""


def of_ends(before: str, after: str) -> tuple[str, str]:
    return f"{ENDS}{before}\noutput P, N, Y", f"{ENDS}{after}\noutput P, N, Y"


FORGED = {
    "an output that was an input": (
        f"{A}tensor B[4]\nY[i:4] = A[i]\noutput Y, B", f"{A}B[i:4] = 2*A[i]\nY[i:4] = A[i]\noutput Y, B"
    ),
    "so small that it is 0 as a float": (f"{A}Y[i:4] = 1e-400*A[i]", f"{A}Y[i:4] = 1e-420*A[i]"),
    "0 · ∞": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + 0*inf"),
    "0 · ∞, in a function": (f"{A}Y[i:4] = relu(A[i])", f"{A}Y[i:4] = relu(A[i] + 0*inf)"),
    "0 · ∞, in a maximum": (f"{A}Y[i:4] = max[j:4] 0", f"{A}Y[i:4] = max[j:4] 0*inf"),
    "0 · the maximum of nothing": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + 0*{ALL}"),
    "-∞ less -∞": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + {ALL} - {ALL}"),
    "-∞ less -∞, in two scopes": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + {{[] 1*{ALL}}}[] - {ALL}"),
    "-∞ less -∞, of a result": (f"{MASKED}Y[i:4] = A[i]\noutput T, Y", f"{MASKED}Y[i:4] = A[i]+T[i]-T[i]\noutput T, Y"),
    "-∞ less -∞, of a result of a result": (
        f"{MASKED}U[i:4] = 2*T[i]\nY[i:4] = A[i]\noutput U, Y",
        f"{MASKED}U[i:4] = 2*T[i]\nY[i:4] = A[i]+U[i]-U[i]\noutput U, Y",
    ),
    "∞ - ∞, in a maximum": (f"{A}Y[i:4] = max[j:4] -inf", f"{A}Y[i:4] = {{[i:4] max[j:4] -inf}}[i] + inf"),
    "exp(T) exp(-T), T a result that is infinite": (
        f"{MASKED}Y[i:4] = exp(A[i])\noutput T, Y", f"{MASKED}Y[i:4] = exp(A[i]-T[i])*exp(T[i])\noutput T, Y"
    ),
    "0 · 1/0": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i] + 0*(1/0)"),
    "larger than any float": (f"{A}Y[i:4] = 1e999*A[i]", f"{A}Y[i:4] = 1e998*A[i]"),
    "5 ∞ less 4 ∞": of_ends("Y[i:4] = N[i]", "Y[i:4] = 5*N[i] - 4*N[i]"),
    "5 ∞ less 4 ∞, in a function": of_ends("Y[i:4] = relu(P[i])", "Y[i:4] = relu(5*P[i] - 4*P[i])"),
    "∞ less ∞ as sets": of_ends(
        "Y[i:4] = where(i < 2, N[i], 2*N[i])", "Y[i:4] = where(i < 2, 2*N[i], N[i]) + where(i < 2, 0-N[i], N[i])"
    ),
    "∞ times a sum": of_ends("Y[i:4] = N[i]*(A[i] + A[3-i])", "Y[i:4] = N[i]*A[i] + N[i]*A[3-i]"),
    "∞ times a sum over a range": of_ends("Y[i:4] = N[i]*{[] sum[j:4] A[j]}[]", "Y[i:4] = sum[j:4] N[i]*A[j]"),
    "∞ times a sum, in a maximum": of_ends(
        "Y[] = max[i:4] P[i]*(A[0] + A[1])", "Y[] = max[i:4] P[i]*A[0] + P[i]*A[1]"
    ),
    "∞ times an entry that is 0": of_ends("Y[i:4] = P[i]", "Y[i:4] = sum[j:2] table[2] (1, 0) [j]*P[i]"),
    "a function of ∞ less itself": of_ends(
        "Y[i:4] = A[i]", "Y[i:4] = A[i] + maximum(N[i], N[i]) - maximum(N[i], N[i])"
    ),
    "the size of ∞ as a sum": of_ends("Y[i:4] = abs(P[i])", "Y[i:4] = 2*relu(P[i]) - P[i]"),
    "relu(-∞) less -∞": of_ends("Y[i:4] = relu(N[i])", "Y[i:4] = N[i] + relu(-N[i])"),
    "a maximum of ∞ as a sum": of_ends("Y[i:4] = maximum(A[i], P[i])", "Y[i:4] = P[i] + relu(A[i] - P[i])"),
    "relu(∞) less itself": of_ends("Y[i:4] = A[i]", "Y[i:4] = A[i] + relu(P[i]) - relu(P[i])"),
    "5 ∞ less 4 ∞ and ∞ less ∞, in functions": of_ends(
        "Y[i:4] = relu(5*P[i] - 4*P[i])", "Y[i:4] = relu(P[i] - P[i])"
    ),
    "what is added to ∞ less ∞": of_ends("Y[i:4] = 1/(A[i] + P[i] - P[i])", "Y[i:4] = 1/(A[3-i] + P[i] - P[i])"),
    "0 · ∞ here and there": of_ends("Y[i:4] = exp(A[i] + 0*P[i])", "Y[i:4] = exp(A[i] + 0*P[3-i])"),
    "0 · ∞ and ∞ less a part of it, in a maximum": of_ends(
        "Y[i:4] = max[j:4] 0*P[j]", "Y[i:4] = max[j:4] 2*P[j] - P[j]"
    ),
    "a maximum of ∞ and one of -∞": of_ends(
        "Y[] = {[] max[i:4] P[i]}[] + {[] max[i:4] N[i]}[]", "Y[] = max[i:4, j:4] P[i] + N[j]"
    ),
}  # fmt: skip


def alone(*texts: str) -> bool:
    """Whether the checker that stands alone believes a record of these programs."""
    try:
        return bool(certificate(record_of(*texts))["kind"] == "proved")
    except ValueError:
        return False


def engine(*texts: str) -> bool:
    """Whether the engine's own certificates prove it."""
    try:
        return check_record(record_of(*texts)).kind == "proved"
    except RecordError:
        return False


BOTH = [alone, engine]
NO_FLOATS = {"so small that it is 0 as a float", "larger than any float"}
"""They are no programs for the engine, whose numbers are floats."""


@pytest.mark.parametrize("believes", BOTH)
@pytest.mark.parametrize("name", FORGED)
def test_forged_step_is_not_proved(name: str, believes: Callable[..., bool]) -> None:
    before, after = FORGED[name]
    if believes is alone or name not in NO_FLOATS:
        assert believes(before, before)
    assert not believes(before, after) and not believes(after, before)


B = f"{A}tensor B[4]\n"
TURNED = "tensor A[4, 4]\nY[i:4, j:4] = relu({[a:4, b:4] %s}[%s])"
DIFFERENCE, NEARLY = "sum[k:4] A[a, k] - A[b, k]", "A[a, b]*A[b, a] + where(a == 3, A[0, 0], 0)"
DIFFERENT = {
    "a maximum with a branch": (f"{B}Y[] = max[i:4] where(i<2, A[i], 0)", f"{B}Y[] = max[i:2] A[i]"),
    "a minimum for a maximum": (
        f"{B}Y[] = {{[] max[i:4] A[i]}}[] + {{[] min[i:4] B[i]}}[]", f"{B}Y[] = max[i:4, j:4] A[i]+B[j]"
    ),
    "a maximum turned": (f"{B}Y[] = -2*{{[] max[i:4] A[i]}}[]", f"{B}Y[] = max[i:4] -2*A[i]"),
    "a maximum squared": (f"{B}Y[] = {{[] max[i:4] A[i]}}[]*{{[] max[i:4] A[i]}}[]", f"{B}Y[] = max[i:4] A[i]*A[i]"),
    "a maximum less a maximum": (
        f"{B}Y[] = max[i:4] A[i] - {{[] max[j:4] B[j]}}[]", f"{B}Y[] = max[i:4, j:4] A[i]-B[j]"
    ),
    "a maximum twice": (f"{B}Y[] = {{[] max[i:4] A[i]}}[]+{{[] max[i:4] A[i]}}[]", f"{B}Y[] = max[i:4] A[i]"),
    "a product of what does not depend on it": (f"{B}Y[] = prod[i:4] A[0]", f"{B}Y[] = A[0]"),
    "a product of sums": (f"{B}Y[] = prod[i:2] A[i]+B[i]", f"{B}Y[] = {{[] prod[i:2] A[i]}}[]+{{[] prod[i:2] B[i]}}[]"),
    "a product with a 0": (f"{B}Y[] = prod[i:4] where(i<3, A[i], 0)", f"{B}Y[] = prod[i:3] A[i]"),
    "the floor of what is negative": ("tensor A[9]\nY[i:4] = A[(i-3)//2+4]", "tensor A[9]\nY[i:4] = A[4-(3-i)//2]"),
    "a remainder of what is negative": (
        f"{A}Y[i:4] = table[2] (1, -1) [(i-3)%2]*A[i]", f"{A}Y[i:4] = table[2] (1, -1) [i%2]*A[i]"
    ),
    "a table too short": (f"{A}Y[i:4] = A[i]*table[4] (1, 1, 1, 0)[i]", f"{A}Y[i:4] = A[i]*table[3] (1, 1, 1)[i]"),
    "a scope too short": (f"{A}Y[i:4] = where(i<3, A[i], 0)", f"{A}Y[i:4] = {{[i:3] A[i]}}[i]"),
    "a divisor of 0": (f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i//0]"),
    "what changes its sign": (TURNED % (DIFFERENCE, "i, j"), TURNED % (DIFFERENCE, "j, i")),
    "what is nearly symmetric": (TURNED % (NEARLY, "i, j"), TURNED % (NEARLY, "j, i")),
    "a Greek letter": ("tensor A[4]\ntensor Α[4]\nY[i:4] = A[i]", "tensor A[4]\ntensor Α[4]\nY[i:4] = Α[i]"),
    "a wide letter": ("tensor A[4]\ntensor Ａ[4]\nY[i:4] = A[i]", "tensor A[4]\ntensor Ａ[4]\nY[i:4] = Ａ[i]"),
    "a name that is a function": (
        f'{A}tensor "relu(1*A)"[4]\nY[i:4] = relu(A[i])', f'{A}tensor "relu(1*A)"[4]\nY[i:4] = "relu(1*A)"[i]'
    ),
    "a name that is a scope": (
        f'{A}tensor "{{0}}"[4]\nY[i:4] = relu({{[i:4] sum[j:4] A[j]*A[i]}}[i])',
        f'{A}tensor "{{0}}"[4]\nY[i:4] = relu("{{0}}"[i])',
    ),
    "an output twice": (f"{A}Y[i:4] = A[i]\nZ[i:4] = 2*A[i]\noutput Y, Z", f"{A}Y[i:4] = A[i]\noutput Y, Y"),
    "a result of the same name": (f"{B}T[i:4] = A[i]\nY[i:4] = T[i]", f"{B}T[i:4] = B[i]\nY[i:4] = T[i]"),
    "an iterator of the same name": (
        "tensor A[4, 4]\nY[i:4] = sum[j:4] {[k:4] sum[i:4] A[k, i]}[j]*A[i, j]",
        "tensor A[4, 4]\nY[i:4] = sum[j:4] {[i:4] sum[k:4] A[k, i]}[j]*A[i, j]",
    ),
    "a stride for none": (
        f"{A}V[i:4] = A[0]\nY[i:4] = V[i]", f"{A}V[i:4] = A[0] via View(strides=(1,))\nY[i:4] = V[i]"
    ),
    "a stride that turns": (
        f"{A}V[i:4] = A[3-i]\nY[i:4] = V[i]", f"{A}V[i:4] = A[3-i] via View(offset=3, strides=(1,))\nY[i:4] = V[i]"
    ),
    "2^64 terms": (f"{A}Y[i:4] = sum[j:18446744073709551616] A[i]", f"{A}Y[i:4] = 0*A[i]"),
    "2^32 times 2^32 terms": (f"{A}Y[i:4] = sum[j:4294967296, k:4294967296] A[i]", f"{A}Y[i:4] = A[i]"),
    "2^64 as a factor of an index": (
        f"{A}Y[i:4] = relu(A[i])", f"{A}Y[i:4] = relu(where(18446744073709551616*i > 0, A[i], A[1]))"
    ),
    "2^62 as a factor of an index": (
        f"{A}Y[i:4] = relu(A[0])", f"{A}Y[i:4] = relu(where(4611686018427387904*(i+4) > 0, A[i], A[0]))"
    ),
    "padding with another value": (
        f"{A}T[i:4] = A[i] pad [1] value 3\nY[i:5] = T[i]", f"{A}T[i:4] = A[i] pad [1]\nY[i:5] = T[i]"
    ),
    "a domain": (f"{A}Y[i:4 | 0 <= i < 2] = sum[j:4] A[j]", f"{A}Y[i:4] = sum[j:4] A[j]"),
    "a maximum over no domain": (
        f"{A}Y[i:4] = {{[i:4 | 0 <= i < 2] max[j:4] A[j]}}[i]",
        f"{A}Y[i:4] = {{[i:4] max[j:4] where(i<2, A[j], -inf)}}[i]",
    ),
    "what stands for a function in an evaluation": (f"{A}Y[i:4] = tanh(A[i])", f"{A}Y[i:4] = A[i]*A[i] + 3*A[i] + 5"),
    "the order of arguments": (f"{B}Y[i:4] = pow(A[i], B[i])", f"{B}Y[i:4] = pow(B[i], A[i])"),
    "factors of arguments": (f"{A}Y[i:3] = relu(A[i] + 2*A[i+1])", f"{A}Y[i:3] = relu(2*A[i] + A[i+1])"),
}  # fmt: skip


@pytest.mark.parametrize("believes", BOTH)
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_programs_are_not_proved(name: str, believes: Callable[..., bool]) -> None:
    before, after = DIFFERENT[name]
    assert not believes(before, after) and not believes(after, before)


def test_engine_refutes_every_readable_different_pair() -> None:
    found = [check_record(record_of(*DIFFERENT[name])).ok for name in DIFFERENT if readable(*DIFFERENT[name])]
    assert len(found) >= 25 and not any(found)


def readable(*texts: str) -> bool:
    try:
        return bool([parse(text) for text in texts])
    except TextError:
        return False


@pytest.mark.parametrize("believes", BOTH)
def test_chain_through_a_wrong_program_is_not_proved(believes: Callable[..., bool]) -> None:
    one, wrong, other = (f"{A}Y[i:4] = {body}" for body in ("A[i] + A[3-i]", "A[i] + A[i]", "A[3-i] + A[i]"))
    assert believes(one, other) and believes(one, other, one)
    assert not believes(one, wrong, other) and not believes(one, other, wrong) and not believes(wrong, one, other)


def test_different_programs_have_different_digests() -> None:
    pairs = [pair for pair in (*FORGED.values(), *DIFFERENT.values()) if readable(*pair)]
    assert len(pairs) >= 40
    assert not [pair for pair in pairs if program_hash(parse(pair[0])) == program_hash(parse(pair[1]))]


def test_infinite_results_that_stay_where_they_are_are_proved() -> None:
    before = f"{MASKED}M[] = max[i:4] T[i]\nY[i:4] = exp(T[i] - M[])"
    after = f"{MASKED}Y[i:4] = exp(T[i] - {{[] max[j:4] T[3-j]}}[])"
    found = certificate(record_of(before, after))
    assert (found["kind"], found["axioms"]) == ("proved", []), found


ROUNDING = (
    f"{A}T[i:4] = A[i]\nY[i:4] = 1e12*T[i] - 1e12*A[i]",
    f"{A}T[i:4] = 1.000000000004*A[i]\nY[i:4] = 1e12*T[i] - 1e12*A[i]",
    f"{A}Y[i:4] = 1e12*(1.000000000004*A[i]) - 1e12*A[i]",
    f"{A}Y[i:4] = 4*A[i]",
)
"""From 0 to 4 A in steps of which each changes a constant by less than 1e-11."""

DIGITS = (
    ("1.0000000000001", "1.0000000000002"),
    ("0.3", "0.30000000000000004"),
    ("0.123456789012345", "0.1234567890123451"),
)


def test_the_engine_says_what_rounding_is_needed_for() -> None:
    for a, b in DIGITS:
        found = check_record(record_of(f"{A}Y[i:4] = {a}*A[i]", f"{A}Y[i:4] = {b}*A[i]"))
        (step,) = found.steps
        assert found.kind == step.kind == "rounded" and FOLDED in str(found) and FOLDED in str(step.certificate)
        assert abs(float(a) - float(b)) <= step.certificate.error <= 1e-11
    assert not check_record(record_of(*ROUNDING)).ok and not check_record(record_of(ROUNDING[0], ROUNDING[3])).ok
    exact = check_record(record_of(f"{A}Y[i:4] = 0.1*A[i] + 0.25*A[i]", f"{A}Y[i:4] = A[i]/4 + 0.1*A[i]"))
    assert exact.kind == "proved" and not exact.steps[0].certificate.detail


def test_the_engine_proves_what_holds_for_infinite_results() -> None:
    for before, after in (
        ("Y[i:4] = N[i]*A[0] + A[1]", "Y[i:4] = A[1] + {[j:4] A[0]*N[j]}[i]"),
        ("Y[i:4] = (N[i] + P[i])*A[0]", "Y[i:4] = N[i]*A[0] + A[0]*P[i]"),
        ("Y[i:4] = exp(N[i] - {[] max[j:4] N[j]}[])", "Y[i:4] = exp(N[i] - {[] max[j:4] N[3-j]}[])"),
        ("Y[] = {[] max[j:4] N[j]}[] + A[0]", "Y[] = max[j:4] N[3-j] + A[0]"),
        ("Y[i:4] = sum[j:4] P[j]*A[i]", "Y[i:4] = sum[j:4] P[3-j]*A[i]"),
        ("Y[i:4] = relu(P[i]) + relu(P[i])", "Y[i:4] = 2*relu(P[i])"),
    ):
        texts = of_ends(before, after)
        found = check_record(record_of(*texts))
        assert (found.kind, found.steps[0].certificate.detail) == ("proved", ""), (before, found)
        assert alone(*texts), before


def test_certificate_is_rounded_if_the_proof_rounds_constants() -> None:
    found = certificate(record_of(*ROUNDING[:3]))
    assert (found["kind"], found["axioms"]) == ("rounded", [ROUNDED])
    assert certificate(record_of(ROUNDING[0], ROUNDING[3]))["kind"] == "unproved"
    thirds = [f"{A}Y[i:4] = {third}*A[i]" for third in ("(1/3)", "0.3333333333333333", "0.333333333333")]
    assert certificate(record_of(*thirds[:2]))["axioms"] == [ROUNDED]
    assert certificate(record_of(thirds[0], f"{A}Y[i:4] = A[i]/3"))["axioms"] == []


def test_both_checkers_know_the_names_of_all_rules() -> None:
    assert RULES == set(RULE_NAMES) == (known_rules().keys() | {COMPARISON}) - ROUNDING_RULES


def test_a_step_of_an_unknown_rule_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record_of(f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = 1*A[i]", rule="magic")))
    for command in (lambda *more: cli(["check", str(path), *more]), lambda *more: main([str(path), *more])):
        assert command() == 2
        assert "$.steps[0].rule: found 'magic', expected one of" in capsys.readouterr().err
        assert command("--rule", "magic") == 0


def test_a_step_that_changes_the_mark_of_a_weight_is_false() -> None:
    texts = (f"{A}Y[i:4] = 2*A[i]", "tensor A[4] weight\nY[i:4] = A[i] + A[i]")
    for pair in (texts, texts[::-1]):
        found = check_record(record_of(*pair))
        assert found.kind == "false" and "weight" in str(found.counterexample)
        assert certificate(record_of(*pair))["kind"] == "unproved"


def test_a_value_that_is_undefined_on_both_sides_is_no_counterexample() -> None:
    texts = (f"{A}Y[i:4] = A[i]*log(-1 - A[i]*A[i])", f"{A}Y[i:4] = log(-1 - A[i]*A[i])*A[i]")
    assert certify(*map(parse, texts)).kind == "proved" and certificate(record_of(*texts))["kind"] == "proved"


HIDDEN = tuple(
    f"{A}tensor B[4]\nT[i:4] = {t}\nY[i:4] = relu((T[i] - A[i])*1e13) + B[i]\noutput Y"
    for t in ("1.00000000000012345*A[i]", "A[i]")
)
"""A constant that is rounded, and whose rounding is amplified."""


def test_an_amplified_rounding_is_a_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record_of(*HIDDEN, f"{A}tensor B[4]\nY[i:4] = relu(0*A[i]) + B[i]")))
    assert cli(["check", str(path)]) == 1 and "false" in capsys.readouterr().out
    assert cli(["check", str(path), "--modular", "--require", "rounded"]) == 1
    assert main([str(path)]) == 3 and "rounded" in capsys.readouterr().out.splitlines()[-1]


def test_a_record_up_to_rounding_has_its_own_verdict_in_all_checkers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record_of(f"{A}Y[i:4] = tanh(0.3*A[i])", f"{A}Y[i:4] = tanh(0.30000000000000004*A[i])")))
    for more in ([], ["--modular"]):
        assert cli(["check", str(path), *more]) == 3
        assert "outputs differ by at most" in capsys.readouterr().out
        assert cli(["check", str(path), *more, "--require", "rounded"]) == 0
        assert cli(["check", str(path), *more, "--require", "exact"]) == 0
    assert main([str(path)]) == 3


def test_without_a_bound_rounded_constants_prove_nothing() -> None:
    found = certify(parse(f"{A}Y[i:4] = 1/(0.3*A[i])"), parse(f"{A}Y[i:4] = 1/(0.30000000000000004*A[i])"))
    assert found.kind == "unknown" and "without a bound on the error" in found.detail


@pytest.mark.parametrize("kind", ["proved", "rounded", "exact"])
def test_rounded_and_exact_together_are_unknown(kind: CertificateKind) -> None:
    assert weakest_kind(["rounded", kind]) == ("unknown" if kind == "exact" else "rounded")


@pytest.mark.parametrize(
    "body",
    [
        "tanh({c}*A[i])", "exp({c}*A[i])", "A[i]*B[i]*{c} + {c}", "1/(2 + tanh({c}*A[i]))", "sqrt(2 + {c}*A[i])",
        "log(2 + {c}*A[i])", "rsqrt(2 + {c}*A[i]*B[i])", "pow({c}*A[i], 3)", "abs({c}*A[i] - B[i])",
        "maximum({c}*A[i], B[i])", "sigmoid({c}*A[i])*relu({c}*B[i])", "{{[i:4] max[j:4] {c}*A[j]*B[i]}}[i]",
        "{{[i:4] prod[j:4] (1 + {c}*A[j])}}[i]", "where(i < 2, {c}*A[i], exp({c}*A[i]*B[i]))", "1000*tanh({c}*A[i])",
    ],
)  # fmt: skip
def test_the_bound_of_a_rounded_certificate_holds(body: str) -> None:
    head, (one, other) = f"{A}tensor B[4]\n", ("0.3", "0.3000000000001")
    pair = [parse(f"{head}Y[i:4] = {body.format(c=c)}") for c in (one, other)]
    found = certify(*pair)
    assert found.kind == "rounded" and found.error > 0
    random = np.random.default_rng(0)
    worst = 0.0
    for _ in range(200):
        inputs = {name: random.uniform(-1, 1, 4) for name in "AB"}
        before, after = (evaluate(p, inputs, np.longdouble)["Y"] for p in pair)
        worst = max(worst, float(np.abs(before - after).max()))
    assert 0 < worst <= found.error * 1.01 <= 1000 * worst


def doubled(name: str, levels: int) -> str:
    results = "".join(f"{name}{n + 1}[i:4] = {name}{n}[i] + {name}{n}[i]\n" for n in range(levels))
    return f"{A}{name}0[i:4] = A[i]\n{results}Y[i:4] = {name}{levels}[i]\noutput Y"


SUMS = " * ".join("(" + " + ".join(f"B[{10 * m + n}]" for n in range(10)) + ")" for m in range(4))
LONG = {
    "results that read others twice": (doubled("T", 60), doubled("S", 60), "is made of more than"),
    "a product in all its orders": (
        "tensor A[40]\nY[i:3] = " + "*".join(f"A[{n}*i]" for n in range(11)),
        "tensor A[40]\nY[i:3] = " + "*".join(f"A[{n}*i+1]" for n in range(11)), "more than 2000 steps",
    ),
    "sums multiplied out": (
        f"tensor B[40]\nY[i:4] = relu({SUMS})", f"tensor B[40]\nY[i:4] = relu(2*{SUMS})", "more than 2000 steps"
    ),
}  # fmt: skip


def test_deeply_nested_record_is_refused() -> None:
    for body in ("A[i]" + "+A[i]" * 1500, "relu(" * 1500 + "A[i]" + ")" * 1500, "(" * 9000 + "A[i]" + ")" * 9000):
        with pytest.raises(ValueError, match="nested too deeply"):
            certificate(record_of(f"{A}Y[i:4] = {body}"))
        with pytest.raises(ValueError, match="the program: it is nested too deeply"):
            certificate(record_of(f"{A}Y[i:4] = A[i]"), f"{A}Y[i:4] = {body}")


@pytest.mark.parametrize("name", LONG)
def test_comparison_beyond_the_work_limit_is_unproved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "WORK", 2000)
    before, after, message = LONG[name]
    found = certificate(record_of(before, after))
    assert found["kind"] == "unproved" and message in found["why"], found["why"]


BAD_FILES: dict[str, tuple[Callable[[dict[str, Any]], str], str]] = {
    "a thing twice": (lambda r: json.dumps(r)[:-1] + ', "start": "tensor A[4] Y[i:4] = 2*A[i]"}', "twice"),
    "a verdict in the name of a rule": (
        lambda r: json.dumps({**r, "steps": [{**r["steps"][0], "rule": "x at 0: proved\nR.json: proved, all of it"}]}),
        "rule",
    ),
    "a place that is no path": (
        lambda r: json.dumps({**r, "steps": [{**r["steps"][0], "at": "\x1b[2J"}]}), "path",
    ),
    "a row without end": (lambda r: json.dumps({**r, "start": f"{A}Y[i:4] = A[i]" + "+A[i]" * ROW}), "nest"),
    "an attribute twice": (
        lambda r: json.dumps({**r, "start": f"{A}Y[i:4] = A[i] via View(offset=1, offset=0)"}), "twice",
    ),
    "other digits": (lambda r: json.dumps({**r, "start": f"{A}Y[i:4] = A[\u0663]"}), "\u0663"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_ambiguous_record_is_refused(name: str, tmp_path: Path, capsys: Any) -> None:
    change, said = BAD_FILES[name]
    path = tmp_path / "r.json"
    path.write_text(change(record_of(f"{A}Y[i:4] = A[i]", f"{A}Y[i:4] = A[i]")))
    assert main([str(path)]) == 2
    told = capsys.readouterr()
    assert "R.json: proved" not in told.out and told.err.count("\n") == 1 and "\x1b" not in told.err
    with pytest.raises(RecordError) as caught:
        check_file(path)
    assert said in str(caught.value)


def test_control_characters_of_names_are_escaped(tmp_path: Path, capsys: Any) -> None:
    texts = [f'{A}"\\u001b[2J\\nr.json: proved"[i:4] = {k}*A[i]' for k in (1, 2)]
    (tmp_path / "r.json").write_text(json.dumps(record_of(*texts)))
    assert main([str(tmp_path / "r.json")]) == 1
    told = capsys.readouterr()
    assert told.err.count("\n") == 1 and "\x1b" not in told.err and "NOT PROVED" in told.err


@pytest.mark.parametrize("value", ["'never'", "-1.0", "9e999", "x'00ff'", "'nan'", "0"])
def test_stored_times_that_are_no_positive_numbers_are_ignored(value: str, tmp_path: Path) -> None:
    key = ProfileKey("Matmul", "m=1", "[2, 3]", "float32", 1, "a processor", "libraries")
    store = TimeStore(tmp_path / "p.sqlite")
    store.record(key, 1.0, "measured")
    with closing(sqlite3.connect(tmp_path / "p.sqlite")) as connection, connection:
        connection.execute(f"UPDATE engine_profile SET seconds = {value}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert TimeStore(tmp_path / "p.sqlite").get(key) is None


def test_flipped_bytes_of_the_store_lose_only_times(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    key = ProfileKey("Matmul", "m=1", "[2, 3]", "float32", 1, "a processor", "libraries")
    TimeStore(path).record(key, 1.0, "measured")
    good = path.read_bytes()
    at = good.rfind(b"Matmul")
    for n in range(-40, min(120, len(good) - at)):
        path.write_bytes(good[: at + n] + bytes([good[at + n] ^ 0xE6]) + good[at + n + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = TimeStore(path).get(key)
        assert found is None or 0 < found.seconds < float("inf")


@pytest.mark.skipif(compiled._linker() is None, reason="no C compiler here")
@pytest.mark.parametrize("open_", ["the folder", "the file"])
def test_a_library_that_others_may_write_is_not_loaded(
    open_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    path = compiled.c_library("int one(void) { return 1; }")
    assert compiled._is_intact(path)
    held = path if open_ == "the file" else path.parent
    held.chmod(held.stat().st_mode | stat.S_IWOTH)
    assert not compiled._is_intact(path) and compiled.load_stored(path.stem) is None
    held.chmod(0o755)
    assert compiled._is_intact(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert path.stat().st_uid == 0 or not compiled._is_intact(path)


@pytest.mark.skipif(compiled._linker() is None, reason="no C compiler here")
def test_cached_library_is_writable_by_its_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINNET_EXPLORE_CACHE", str(tmp_path))
    mask = os.umask(0)
    try:
        path = compiled.c_library("int two(void) { return 2; }")
    finally:
        os.umask(mask)
    assert compiled._is_intact(path)


FAMILY = "\ntensor A[H, W]\nY[h:H, w:W] = A[h, w]\n"


@pytest.mark.parametrize(
    "assumed",
    [
        "H >= 5, H <= 3, W", "H, W\nparam H*W >= 10, H*W <= 5", "H, W\nparam H >= W, W > H", "H <= 0, W",
        "H, W\nparam H % 4 == 0, W % 4 == 0, H >= W+1, H <= W+2", "H % 4 == 1, H % 6 == 0, W",
        "H, W\nparam H == W, H % 2 == 0, W % 2 == 1", "H == W+1, W == H+1",
        "H, W\nparam H*H >= 2*W*W, H*H <= 2*W*W", "H, W\nparam H*W*W <= 10, H >= 4, W >= 2",
    ],
)  # fmt: skip
def test_contradictory_assumptions_are_refused(assumed: str) -> None:
    with pytest.raises(TextError, match="found "):
        ee.family(f"param {assumed}{FAMILY}")


def test_weaker_assumption_does_not_replace_a_stronger_one() -> None:
    assert ee.family(f"param W >= 5, W >= 3, H{FAMILY}").guards == ("W >= 5", "H >= 1")


def test_a_program_of_many_equations_is_read_once() -> None:
    made = parse(f"{A}" + "".join(f"Y{n}[i:4] = A[i]\n" for n in range(600)))
    assert len(made.equations) == 600


def test_the_checker_stands_alone_against_a_long_record() -> None:
    code = "import json, sys; from einnet_check import certificate; print(certificate(json.load(sys.stdin))['kind'])"
    record = json.dumps(record_of(*LONG["results that read others twice"][:2]))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=record, capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "unproved\n"
