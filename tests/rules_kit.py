"""Checks that the tests of all rules share: every law preserves every value, and every proposal is accepted."""

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import REDUCTIONS, Iterator, Program, Scalar, Scope, Tensor, as_index, mul, program
from einnet_explore.rules import Derivation, Refused, Rule
from einnet_explore.rules.base import places
from tests.strategies import inputs_for


def assert_equal(before: Program, after: Program, seed: int = 0) -> None:
    """Both programs give the same outputs on random integers."""
    inputs = inputs_for(before, seed)
    want, got = (evaluate(p, inputs, outputs_only=True) for p in (before, after))
    assert want.keys() == got.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name}: {before} became {after}")


def check_rule(rule: Rule[object], program: Program, most: int = 8) -> int:
    """Apply every proposal of *rule* to *program*; each is legal, keeps the values and survives its JSON form."""
    count = 0
    for at, _ in places(program):
        for match in rule.matches(program, at):
            after = match.apply(program).after
            assert_equal(program, after)
            written = rule.encode(match.params)
            again = rule.match(program, at, **written)
            assert rule.encode(again.params) == written
            assert again.apply(program).after == after
            count += 1
            if count == most:
                return count
    return count


class Steps:
    """A derivation by hand; every step is checked against the start on random integers."""

    def __init__(self, start: Program) -> None:
        self.derivation = Derivation(start)

    @property
    def end(self) -> Program:
        return self.derivation.end

    def do(self, rule: Rule[object], at: tuple[int, ...], **params: Any) -> "Steps":
        """One step with parameters in their JSON form."""
        self.derivation = self.derivation.then(rule.match(self.end, at, **params))
        assert_equal(self.derivation.start, self.end)
        return self

    def find(self, rule: Rule[object], at: tuple[int, ...], **params: Any) -> "Steps":
        """One step whose parameters the rule proposes itself."""
        proposed = [m.to_json()["params"] for m in rule.matches(self.end, at)]
        assert params in proposed, proposed
        return self.do(rule, at, **params)


def refuses(rule: Rule[object], program: Program, at: tuple[int, ...], message: str, **params: Any) -> None:
    """*rule* refuses *params* in exactly these words."""
    with pytest.raises(Refused) as refusal:
        rule.match(program, at, **params).apply(program)
    assert message in str(refusal.value), str(refusal.value)


@st.composite
def contractions(draw: st.DrawFn, *, reductions: tuple[str, ...] = ("sum", "sum", "max")) -> Program:
    """A reduction of a product of two sliding reads with padding, as in convolutions and transposed convolutions.

    ``random programs`` seldom have the structure at which boundaries move; here every read may leave its box on either
    side, with strides 1 to 3 and both directions.
    """
    reduce = draw(st.sampled_from(reductions))
    value = REDUCTIONS[reduce] if reduce == "max" else 0
    start = st.integers(-1, 1)
    x, y, h, r = (Iterator(n, lo := draw(start), lo + draw(st.integers(1, 5))) for n in "xyhr")
    traversals = draw(st.sampled_from([(x,), (x, y)]))
    summations = draw(st.sampled_from([(h,), (h, r)]))
    every = (*traversals, *summations)

    def read(name: str) -> Scalar:
        index = []
        for _ in range(draw(st.integers(1, 2))):
            picked = draw(st.lists(st.sampled_from(every), min_size=1, max_size=2, unique=True))
            total = as_index(draw(st.integers(-2, 2)))
            for it in picked:
                total = total + it * draw(st.sampled_from([1, 1, 1, 2, -1, -2, 3]))
            index.append(total)
        shape, padding = [], []
        for i in index:
            lo, hi = i.bounds
            size = draw(st.integers(1, max(1, hi + 1)))
            shape.append(size)
            padding.append((max(0, -lo) + draw(st.integers(0, 1)), max(0, hi + 1 - size) + draw(st.integers(0, 1))))
        return Tensor(name, tuple(shape), tuple(padding), value)[tuple(index)]

    bodies = [read("A"), read("B")]
    body = bodies[0] if reduce == "max" or draw(st.integers(0, 3)) == 0 else mul(*bodies)
    return program(Scope(traversals, summations, body, reduce))


@st.composite
def walks(draw: st.DrawFn, rules: tuple[Rule[object], ...], steps: int = 4) -> tuple[Program, Program]:
    """A contraction and what a few random proposals of *rules* make of it."""
    start = now = draw(contractions())
    for _ in range(draw(st.integers(0, steps))):
        matches = [m for at, _ in places(now) for rule in rules for m in rule.matches(now, at)]
        if not matches:
            break
        now = draw(st.sampled_from(matches)).apply(now).after
    return start, now
