"""Moves that ``best_first`` omits, compared with ``paper``, which omits none (docs/decisions/0004)."""

from __future__ import annotations

from functools import cache

import pytest

import einnet_explore as ee
from einnet_explore.ir import EOPERATOR, VIEW, Program
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import BOUNDARY_RELAXING, VARIABLE_SUBSTITUTION, Derivation
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found, Level, Reached
from einnet_explore.strategies.moves import LazySequence, clean
from einnet_explore.strategies.options import Options
from einnet_explore.strategies.strategy import is_mere_join

CASES = {
    "Conv1x3": (ee.ops.conv2d(N=1, H=3, W=4, C=2, F=3, R=1, S=3, padding="same"), 3),
    "Conv3x3": (ee.ops.conv2d(N=1, H=4, W=3, C=2, F=3, R=3, S=3, padding=1), 2),
    "strided Conv1x4": (ee.ops.conv2d(N=1, H=1, W=8, C=2, F=3, R=1, S=4, stride=2, padding=0), 3),
    "ConvTranspose": (ee.ops.conv_transpose2d(N=1, H=2, W=1, in_channels=3, out_channels=2, R=4, S=1, stride=2), 3),
    "G2BMM": (ee.ops.g2bmm(b=2, m=4, w=1, k=3, dilation=2), 3),
    "Matmul": (ee.ops.matmul(4, 5, 3), 2),
    "MaxPool": (ee.ops.max_pool2d(N=1, H=4, W=4, C=2, R=2, S=2, stride=2), 2),
}

TARGETS = tuple(o for o in OPERATORS if o.name in ("Matmul", "Conv1d", "Conv2d", "G2BMM", "MaxPool2d"))


def calls(program: Program) -> tuple[str, ...]:
    """The library calls with their attributes."""
    return tuple(sorted(repr(e.via) for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW)))


def names(program: Program) -> tuple[str, ...]:
    """The library calls without their attributes."""
    return tuple(sorted(call.split("(")[0].removeprefix("Batch") for call in calls(program)))


@cache
def candidates(case: str, strategy: str) -> tuple[tuple[Derivation, float], ...]:
    program, depth = CASES[case]
    engine = Search(
        program, ee.program_seconds, Options(strategy=strategy, max_depth=depth, patience=99, targets=TARGETS)
    )
    found = [(e.state.id, e.seconds) for e in engine.run() if isinstance(e, Found)]
    assert engine.complete or engine.options.max_depth == depth
    return tuple((engine.derivation(n), seconds) for n, seconds in found)


def is_lean(derivation: Derivation) -> bool:
    """Whether no summation is widened, no iterators are joined, and nothing was left to tidy up before matching."""
    for step in derivation.steps:
        match step.match.rule.name:
            case "operator_matching":
                return not clean(step.before)[0]
            case BOUNDARY_RELAXING.name if "ranges" in BOUNDARY_RELAXING.encode(step.match.params):
                return False
            case VARIABLE_SUBSTITUTION.name if is_mere_join(step.before.scope_at(step.match.at), step.match.params):
                return False
    return True


@pytest.mark.parametrize("case", CASES)
def test_nothing_cheaper_is_lost(case):
    """For every candidate of ``paper`` at a depth, ``best_first`` has one with the same calls at no higher cost."""
    best = {}
    for derivation, seconds in candidates(case, "best_first"):
        key = names(derivation.end)
        best[key] = min(seconds, best.get(key, seconds))
    for derivation, seconds in candidates(case, "paper"):
        key = names(derivation.end)
        assert best[key] <= seconds * (1 + 1e-9), (key, seconds, [s.match.to_json() for s in derivation.steps])


@pytest.mark.parametrize("case", CASES)
def test_best_first_finds_the_calls_of_candidates_without_waste(case):
    """Candidates that compute nothing in vain are found with the same attributes."""
    found = {calls(derivation.end) for derivation, _ in candidates(case, "best_first")}
    lean = [d for d, _ in candidates(case, "paper") if is_lean(d)]
    assert lean
    for derivation in lean:
        assert calls(derivation.end) in found, [s.match.to_json() for s in derivation.steps]


def test_best_first_needs_fewer_states():
    for case in ("strided Conv1x4", "ConvTranspose", "Conv1x3"):
        program, depth = CASES[case]
        states = {}
        for strategy in ("paper", "best_first"):
            engine = Search(
                program, ee.program_seconds,
                Options(strategy=strategy, max_depth=depth, patience=99, targets=OPERATORS[:1], converging=False),
            )  # fmt: skip
            for _ in engine.run():
                pass
            states[strategy] = len(engine.states) + engine.pruned
        assert states["best_first"] < states["paper"], (case, states)


def outcome(case, depth, patience, ahead):
    """Candidates with the depth of their levels, what is reached, and whether the run was complete."""
    engine = Search(
        CASES[case][0], ee.program_seconds, Options(max_depth=depth, patience=patience, ahead=ahead, targets=TARGETS)
    )
    events = list(engine.run())
    found = {ee.program_key(e.state.program): e.seconds for e in events if isinstance(e, Found)}
    reached = {ee.program_key(e.state.program) for e in events if isinstance(e, Reached)}
    levels = [e.depth for e in events if isinstance(e, Level)]
    return engine, found, reached, levels


@pytest.mark.parametrize("patience", [1, 99])
@pytest.mark.parametrize("case", ["Conv1x3", "strided Conv1x4", "ConvTranspose", "G2BMM", "MaxPool"])
def test_looking_ahead_loses_no_candidate_and_no_state(case, patience):
    """Looking ahead takes nothing away; where a run is not cut short it adds nothing, and it ends no run earlier."""
    plain, found, reached, levels = outcome(case, 2, patience, 0)
    sooner, found_sooner, reached_sooner, levels_sooner = outcome(case, 2, patience, 3)
    assert levels_sooner == levels and sooner.complete == plain.complete
    assert found.items() <= found_sooner.items() and reached <= reached_sooner
    if patience == 99:
        assert found == found_sooner and reached == reached_sooner


def test_looking_ahead_finds_the_target_in_fewer_states():
    def states(ahead):
        program = ee.ops.conv2d(N=1, H=7, W=7, C=16, F=16, R=3, S=3, padding=1)
        engine = Search(program, ee.program_seconds, Options(ahead=ahead, targets=OPERATORS[:1]))
        for event in engine.run():
            if isinstance(event, Found) and any(
                "n=144" in call and "k=16" in call for call in calls(event.state.program)
            ):
                return len(engine.states) + engine.pruned
        raise AssertionError("the target is not found")

    assert states(3) * 5 < states(0)


UNTIDY = {
    "a window within bounds, of which no choice is left": (
        """
        tensor A[1, 4, 3]
        tensor B[1, 4, 3] pad [0, 1, 0]
        Y[b:1, m:4, j:3] = {[b:1, m:4, t:-1..5 | 0 <= t+1-m < 3] sum[k:3] A[b, m, k] * B[b, t, k]}[b, m, j+m-1]
        """,
        "Matmul(b=1, m=4, n=4, k=3, tb=1)",
    ),
    "what is computed beyond the data": (
        """
        tensor A[1, 4, 3]
        tensor B[1, 4, 3] pad [0, 1, 0]
        Y[b:1, m:4, j:3] = {[b:1, m:4, t:-1..5] sum[k:3] A[b, m, k] * B[b, t, k]}[b, m, j+m-1]
        """,
        "Matmul(b=1, m=4, n=4, k=3, tb=1)",
    ),
    "a nested sum that is to be merged": (
        """
        tensor A[1, 3, 3, 2]
        tensor K[1, 1, 3, 2] weight
        Y[n:1, h:3, w:3, f:3] = {[t:9, f:3] sum[r:1, s:1] {[r:1, s:1, t:9, f:3] {[r:1, s:1, p:3, q:3, f:3] \
        sum[c:2] A[0, q+r, p+s, c] * K[r, s, f, c]}[r, s, t % 3, t // 3, f]}[r, s, t, f]}[3*h+9*n+w, f]
        """,
        "Matmul(b=1, m=3, n=9, k=2, tb=1)",
    ),
}


@pytest.mark.parametrize("name", UNTIDY)
def test_start_before_clean_ups_has_the_candidates_of_the_cleaned_start(name):
    """A program after steps by hand has all candidates of the program that clean-ups make of it."""
    text, call = UNTIDY[name]
    start = ee.parse(text)
    before, tidy = clean(start)
    assert before
    for depth in (0, 1):
        found = {}
        for program in (start, tidy):
            engine = Search(program, ee.program_seconds, Options(max_depth=depth, patience=99))
            events = [e for e in engine.run() if isinstance(e, Found)]
            assert all(engine.derivation(e.state.id).end == e.state.program for e in events)
            found[program] = {calls(e.state.program) for e in events}
        assert found[tidy] <= found[start]
    assert (call,) in found[start]


def test_equal_searches_have_equal_events():
    def events():
        return [repr(e) for e in Search(CASES["Conv1x3"][0], ee.program_seconds, Options(max_depth=2)).run()]

    assert events() == events()


def test_lazy_sequence_computes_each_item_once_on_demand():
    asked = []

    def items():
        for n in range(3):
            asked.append(n)
            yield n

    lazy = LazySequence(items)
    assert lazy.reaches(0) and asked == [0]
    assert list(lazy) == list(lazy) == [0, 1, 2] == asked
    assert not lazy.reaches(3) and lazy[2] == 2


def test_a_lazy_sequence_that_is_interrupted_loses_nothing():
    interrupt = [True]

    def items():
        yield 0
        if interrupt.pop() if interrupt else False:
            raise KeyboardInterrupt
        yield 1

    lazy = LazySequence(items)
    with pytest.raises(KeyboardInterrupt):
        list(lazy)
    assert list(lazy) == [0, 1]
