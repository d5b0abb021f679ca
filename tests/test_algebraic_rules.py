"""Algebraic rules of tensor compilers: true ones are proved for all sizes, wrong ones refuted; the page has all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.algebraic_rules import FILE, PAGE, AlgebraicRule, page, read_rules
from einnet_explore.parametric.step_proofs import StepVerdict

Judged = Sequence[tuple[AlgebraicRule, StepVerdict]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    return [(rule, rule.judge()) for rule in read_rules(FILE.read_text())]


def test_every_true_rule_is_proved_and_every_wrong_one_refuted(judged: Judged) -> None:
    others = [
        (rule.name, str(found)) for rule, found in judged if found.kind != ("proved" if rule.holds else "refuted")
    ]
    assert others == []
    assert sum(rule.holds for rule, _ in judged) >= 155 and sum(not rule.holds for rule, _ in judged) >= 29
    assert len({(rule.group, rule.name) for rule, _ in judged}) == len(judged)


def test_the_page_has_the_verdicts(judged: Judged) -> None:
    assert PAGE.read_text().endswith("\n" + page(judged))
