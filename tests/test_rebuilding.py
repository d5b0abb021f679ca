"""No wrongly rebuilt program is proved: names, unread values, copies, origins, padding between equations."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from rebuilding import WRONG, drawn, rebuilt, same

from einnet_check import certificate as alone
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.syntax import text


def judged(seed: int, programs: int, each: int = 4) -> tuple[Counter[str], Counter[str]]:
    """Wrong mutants by what was changed, *each* of as many *programs*; and what was right, by what was said of it."""
    random = Random(seed)
    wrong, right = Counter[str](), Counter[str]()
    for _ in range(programs):
        before = drawn(random)
        made = rebuilt(before, random)
        assert same(before, made), f"{before}\n{made}"
        right[certify(before, made, exact_elements=None).kind] += 1
        for change in random.sample(WRONG, each):
            after = change(made, random)
            if after == made or same(before, after):
                continue
            wrong[change.__name__] += 1
            told = f"{change.__name__}: {before}\n{after}"
            assert not certify(before, after, exact_elements=None).ok, told
            assert not believed_alone(before, after), told
    return wrong, right


def believed_alone(before: Program, after: Program) -> bool:
    try:
        texts = text(before), text(after)
    except ValueError:
        return False  # what no text says
    steps = [{"rule": "expression_fusion", "at": "0", "params": {}, "after": texts[1]}]
    record = {"format": "einnet-explore record", "version": 1, "start": texts[0], "steps": steps}
    try:
        return bool(alone(record)["kind"] == "proved")
    except ValueError:
        return False


def test_no_wrongly_rebuilt_program_is_proved() -> None:
    wrong, right = judged(0, 40, len(WRONG))
    assert len(wrong) >= len(WRONG) - 1 and wrong.total() >= 60, wrong
    assert right["proved"] >= 0.8 * right.total(), right


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_none_of_many_wrongly_rebuilt_programs_is_proved() -> None:
    wrong, right = judged(1, 4000, len(WRONG))
    assert len(wrong) == len(WRONG) and wrong.total() >= 10_000, wrong
    assert right["proved"] >= 0.8 * right.total(), right
