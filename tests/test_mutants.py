"""No wrong step is proved: random mutants of the steps of every rule in real searches."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from mutation import CASES, chosen, kind, mutant, passes, picked, right, steps

from einnet_explore.ir import Instance, Program
from einnet_explore.rules import INTER_RULES, RULES
from einnet_explore.syntax import parse

NAMES = {*(rule.name for rule in (*RULES, *INTER_RULES)), "operator_matching"}

BETWEEN = {rule.name for rule in INTER_RULES}
"""These take steps in few cases."""

KINDS = {
    "padding", "offset", "index as 0", "swapped index", "stride", "divisor", "lost residue", "other iterator", "range",
    "lost sum", "reduction", "attribute", "body", "bound",
}  # fmt: skip


def judged(each: int, most: int) -> tuple[Counter[str], Counter[str], int]:
    """Wrong mutants by rule and by kind, and how many were right: of *each* steps a rule and case, *most* a step."""
    by_rule, by_kind, same = Counter[str](), Counter[str](), 0
    for case, step in picked(each):
        for told, changed in chosen(step, most):
            wrong = mutant(changed)
            if right(step.before, wrong):
                same += 1
                continue
            believed = passes(step.before, wrong)
            assert believed is None, f"{case}, {step.match.to_json()}, {told}: {believed}\n{wrong}"
            by_rule[step.match.rule.name] += 1
            by_kind[kind(told)] += 1
    return by_rule, by_kind, same


def test_no_mutant_of_any_rule_passes() -> None:
    by_rule, by_kind, same = judged(1, 12)
    assert by_rule.keys() == NAMES
    assert all(n >= (8 if rule in BETWEEN else 60) for rule, n in by_rule.items()), by_rule
    assert by_rule.total() >= 900 and same >= 40, (by_rule, same)
    assert by_kind.keys() == KINDS, by_kind


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_mutant_of_many_steps_passes() -> None:
    by_rule, by_kind, _ = judged(6, 80)
    assert by_rule.keys() == NAMES and by_kind.keys() == KINDS
    assert all(n >= (100 if rule in BETWEEN else 400) for rule, n in by_rule.items()), by_rule
    assert by_rule.total() >= 15_000, by_rule


@pytest.mark.parametrize("case", CASES)
def test_unmutated_steps_are_right_and_proved(case: str) -> None:
    """Otherwise a certificate that says no to everything would do."""
    sample = steps(case)[:: max(1, len(steps(case)) // 12)]
    assert sample
    for step in sample:
        assert right(step.before, step.after)
        assert passes(step.before, step.after) is not None, step.match.to_json()


def test_reference_evaluation_detects_wrong_views_calls_and_values() -> None:
    """The reference that judges mutants detects a wrong view, call or value itself."""
    start = parse("tensor A[4, 3]\nY[i:3, j:4] = A[j, i]")

    def view(offset: int, strides: tuple[int, ...]) -> Program:
        (equation,) = start.equations
        named = Instance("View", (("offset", offset), ("strides", strides)))
        return program_with(start, named, equation.name)

    assert right(start, view(0, (1, 3)))
    assert not any(right(start, view(*at)) for at in ((1, (1, 3)), (0, (3, 1)), (0, (1, 3, 1)), (0, (1, 4))))
    assert not right(start, parse("tensor A[4, 3]\nY[i:3, j:4] = A[j, 2-i]"))
    assert passes(start, view(0, (1, 3))) is not None
    assert all(passes(start, view(*at)) is None for at in ((1, (1, 3)), (0, (3, 1)), (0, (1, 3, 1)), (0, (1, 4))))
    call = parse("tensor A[4, 3]\ntensor B[3, 2]\nY[m:4, n:2] = sum[k:3] A[m, k] * B[k, n]")
    sizes = {"b": 1, "m": 4, "n": 2, "k": 3}
    assert right(call, program_with(call, Instance("Matmul", tuple(sizes.items())), "Y"))
    assert not right(call, program_with(call, Instance("Matmul", tuple({**sizes, "k": 2}.items())), "Y"))


def program_with(start: Program, via: Instance, name: str) -> Program:
    """*start* with its equation *name* run by *via*."""
    return replace(start, equations=tuple(replace(e, via=via) if e.name == name else e for e in start.equations))
