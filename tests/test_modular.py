"""The second opinion: residues of two programs on random inputs, and how much they say."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutation import CASES, right, steps

from einnet_explore.cli import main
from einnet_explore.equivalence import certificate
from einnet_explore.equivalence.certificate import compare_modulo_prime, output_degree, program_residues
from einnet_explore.interpreter import exact_arrays as field
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.exact_arrays import (
    PRIME,
    contract_residues,
    field_power,
    residue_of,
    rounded_residue_of,
)
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation
from einnet_explore.strategies.candidate import to_record
from einnet_explore.syntax import parse
from einnet_explore.syntax import text as render

POLYNOMIAL = ("convolution", "strided", "transposed", "band", "chain", "siblings", "three equations")


def inputs_of(program: Program, seed: int, most: int = PRIME) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {t.name: random.integers(0, most, t.shape) for t in program.inputs}


@pytest.mark.parametrize("case", POLYNOMIAL)
@pytest.mark.parametrize("limit", [8, 1 << 23])
def test_residues_are_those_of_exact_values(case: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large inputs, so that exact values need many digits; also where every region is halved."""
    monkeypatch.setattr(certificate, "MAX_RESIDUES", limit)
    given_ = inputs_of(CASES[case], 0)
    exact = evaluate(CASES[case], {k: v.astype(object) for k, v in given_.items()}, outputs_only=True)
    for name, found in program_residues(CASES[case], given_).items():
        np.testing.assert_array_equal(found, (exact[name].astype(object) % PRIME).astype(np.int64))


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 3), st.integers(0, 99), st.sampled_from([4, 1 << 20]))
@settings(deadline=None)
def test_products_of_residues(m: int, k: int, n: int, seed: int, chunk: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(PRIME - 3, PRIME, (m, k, 1)), random.integers(0, PRIME, (1, k, n))
    exact = (a[:, :, 0].astype(object) @ b[0].astype(object)) % PRIME
    held, field._MAX_TERMS = field._MAX_TERMS, chunk
    try:
        np.testing.assert_array_equal(contract_residues(a, b, frozenset([1]))[:, 0, :], exact.astype(np.int64))
    finally:
        field._MAX_TERMS = held


@given(st.integers(0, PRIME - 1), st.integers(0, 50))
def test_powers_and_fractions_have_the_right_residues(a: int, n: int) -> None:
    assert field_power(np.array([a]), n)[0] == pow(a, n, PRIME)
    assert residue_of(Fraction(a, n + 1)) * (n + 1) % PRIME == a % PRIME
    assert rounded_residue_of(1 / 3) * 3 % PRIME == 1 != residue_of(1 / 3) * 3 % PRIME


@pytest.mark.parametrize("case", ["strided", "maximum", "bias and relu", "two equations"])
def test_correct_steps_agree_modulo_the_prime(case: str) -> None:
    for step in steps(case)[:: max(1, len(steps(case)) // 6)]:
        found = compare_modulo_prime(step.before, step.after)
        assert found.differs is None and found.elements > 0, f"{step.match.to_json()}: {found}"


def test_wrong_programs_differ() -> None:
    from certificate_steps import STEPS, mutants, programs, reread

    count = 0
    for name in STEPS:
        before, after = programs(name)
        made = [reread(p) for _, p in mutants(after)]
        for wrong in made[:: max(1, len(made) // 12)]:
            if right(before, wrong):
                continue
            try:
                found = compare_modulo_prime(before, wrong)
            except (IllegalRead, ValueError):
                continue
            count += 1
            assert found.differs is not None, f"{name}: {wrong}"
    assert count >= 60


def test_the_bound_is_the_degree_over_the_prime() -> None:
    case = CASES["convolution"]
    found = compare_modulo_prime(case, case, rounds=2)
    assert (found.degree, found.bound) == (2, (2 / PRIME) ** 2)
    assert str(found).endswith(f"a difference is missed with probability {(2 / PRIME) ** 2:.1e}, degree 2")
    quotient = parse("tensor A[3, 4]\nS[i:3] = sum[j:4] 1/A[i, j]\nY[i:3] = A[i, 0]*S[i]")
    assert output_degree(quotient) == (1 + 3, 4, 0)
    assert output_degree(parse("tensor A[3]\nY[i:3] = exp(A[i]*A[i]) - pow(A[i], 4)")) == (7, 0, 0)
    assert output_degree(parse("tensor A[3]\nY[i:1] = prod[j:3] A[j]")) == (3, 0, 0)
    pooled = compare_modulo_prime(CASES["maximum"], CASES["maximum"])
    assert pooled.bound is None and "no bound (maxima)" in str(pooled)


PAIRS = [
    ("Y[i:4] = A[i]/B[i] + B[i]/A[i]", "Y[i:4] = (A[i]*A[i] + B[i]*B[i]) / (A[i]*B[i])", True),
    ("Y[i:4] = A[i]/6", "Y[i:4] = 0.16666666666666666*A[i]", True),
    ("Y[i:4] = pow(A[i], 3)", "Y[i:4] = A[i]*A[i]*A[i]", True),
    ("Y[i:4] = exp(A[i] + B[i])", "Y[i:4] = exp(B[i] + A[i])", True),
    ("Y[i:4] = exp(A[i] + B[i])", "Y[i:4] = exp(A[i]) + exp(B[i])", False),
    ("Y[i:4] = pow(A[i], B[i])", "Y[i:4] = pow(B[i], A[i])", False),
    ("Y[i:4] = exp(A[i])", "Y[i:4] = tanh(A[i])", False),
    ("Y[i:1] = max[j:4] A[j]", "Y[i:1] = maximum({[p:2] max[q:2] A[2*p+q]}[0], {[p:2] max[q:2] A[2*p+q]}[1])", True),
    ("Y[i:1] = min[j:4] A[j]", "Y[i:1] = min[j:3] minimum(A[j], A[j+1])", True),
    ("Y[i:1] = prod[j:4, k:2] A[j]", "Y[i:1] = prod[j:4] (A[j]*A[j])", True),
    ("Y[i:4] = where(i < 2, A[i], -A[i])", "Y[i:4] = table[2](1, -1)[i//2]*A[i]", True),
    ("Y[i:4 | 1 <= i < 3] = A[i]", "Y[i:4] = where(i < 1, 0, where(i < 3, A[i], 0))", True),
]


@pytest.mark.parametrize(("before", "after", "same"), PAIRS)
def test_functions_and_quotients_are_compared_modulo_a_prime(before: str, after: str, same: bool) -> None:
    both = (parse(f"tensor A[4]\ntensor B[4]\n{text}") for text in (before, after))
    found = compare_modulo_prime(*both)
    assert (found.differs is None) == same, found
    assert str(found).startswith("equal modulo" if same else "differs modulo")


def test_values_without_a_residue_are_refused() -> None:
    wrong = parse("tensor A[4] pad [1] value -inf\nY[i:4] = A[i-1] + 1")
    with pytest.raises(ValueError, match="an infinity is calculated with"):
        compare_modulo_prime(wrong, wrong)
    with pytest.raises(ValueError, match="a constant is not a number"):
        residue_of(float("nan"))
    one, other = parse("tensor A[4]\nY[i:4] = A[i]"), parse("tensor A[4]\nY[i:3] = A[i]")
    assert compare_modulo_prime(one, other).differs == ("Y", (0,))


def test_check_modular_prints_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    record = to_record(Derivation(CASES["strided"]))
    text = render(steps("strided")[0].after)
    record["steps"] = [{"rule": "expression_fusion", "at": "0", "params": {}, "after": text, "certificate": None}]
    path.write_text(json.dumps(record))
    assert main(["check", str(path), "--modular"]) == 0
    assert f"start to end: equal modulo {PRIME}, " in capsys.readouterr().out
    assert main(["check", str(path), "--modular", "--json", "-"]) == 0
    said = json.loads(capsys.readouterr().out)["second_opinion"]
    assert said["prime"] == PRIME and said["bound"] == 2 / PRIME and said["differs"] is None
    record["steps"][0]["after"] = record["start"].replace("K[r,", "2*K[r,")
    path.write_text(json.dumps(record))
    assert main(["check", str(path), "--modular"]) == 1
    assert "differs modulo" in capsys.readouterr().out
