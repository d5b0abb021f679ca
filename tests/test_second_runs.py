"""Cost of a second run, counted in runs of the original by a simulated clock; removal of unprofitable parts."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from einnet_explore.pipeline import baseline as against_module
from einnet_explore.pipeline import baseline as whole_module
from einnet_explore.pipeline import optimiser as optimise_module
from einnet_explore.pipeline import selection as result_module
from einnet_explore.pipeline import tuning_task as task_module
from einnet_explore.pipeline.baseline import (
    BRIEF_SECONDS,
    CLEAR_SPEEDUP,
    CLOSE_ROUNDS_FACTOR,
    CLOSE_SECONDS,
    Baseline,
    is_clearly_faster,
    is_decided,
    plan_speedup,
)
from einnet_explore.pipeline.optimiser import SEARCH_TIME_SHARE, Optimiser
from einnet_explore.pipeline.plan import ExecutionPlan
from einnet_explore.pipeline.selection_trials import (
    CERTAIN_SPEEDUP,
    ELIMINATION_SECONDS,
    FORWARD_SELECTION_SECONDS,
    MAX_CONTENDERS,
    MAX_ELIMINATION_TRIALS,
    MAX_SINGLE_TRIALS,
    Alternatives,
    eliminate_unprofitable,
    forward_selection,
)
from einnet_explore.pipeline.subprogram import TunedSubprogram
from einnet_explore.pipeline.tuning_task import Trial
from einnet_explore.runtime import measurement
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.measurement import Enough, Timing, all_rounds, time_samplers
from tests.optimising_kit import NO_MODEL, SHORT, everything, model, nothing_remembered, transposed

forgetting = pytest.fixture(autouse=True)(nothing_remembered)


@dataclass
class Clock:
    """Seconds that pass only where something is run."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    for module, names in ((measurement, ("perf_counter", "process_time")), (against_module, ("perf_counter",))):
        for name in names:
            monkeypatch.setattr(module, name, found)
    return found


@dataclass(eq=False)
class Fake:
    """A plan that takes *seconds* by *clock*, the first time twice as long, and always gives *number*."""

    clock: Clock
    seconds: float
    number: float = 1.0
    threads: int = 1
    runs: int = 0

    def rest(self) -> None:
        """Nothing to free."""

    def make_room(self) -> None:
        """Nothing to open."""

    def run(self, _: object) -> dict[str, Any]:
        self.clock.now += self.seconds * (1 if self.runs else 2)
        self.runs += 1
        return {"y": np.full(3, self.number, np.float32)}


def against(original: Fake) -> Baseline:
    return Baseline(NO_MODEL, original, {}, original.seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "enough", "runs", "gain"),
    [
        (5.0, 0.3, is_clearly_faster, 2, 5 / 0.3),  # one round leaves no doubt
        (5.0, 4.5, is_clearly_faster, 4, 5 / 4.5),  # more would take long: as many rounds as the first time
        (5.0, 6.0, is_clearly_faster, 4, 5 / 6),
        (5.0, 0.3, all_rounds, 4, 5 / 0.3),
        (0.8, 0.1, is_clearly_faster, 5, 8.0),  # 3 seconds of rounds
        (0.9, 0.5, is_clearly_faster, 4, 1.8),  # three rounds that say the same
        (0.9, 0.5, all_rounds, 6, 1.8),
        (0.9, 0.89, is_clearly_faster, 6, 0.9 / 0.89),  # or do not
        (0.3, 0.2, is_clearly_faster, 7, 1.5),
    ],
)
def test_number_of_runs_of_the_original(
    clock: Clock, before: float, after: float, enough: Enough, runs: int, gain: float
) -> None:
    original, plan = Fake(clock, before), Fake(clock, after)
    held = against(original).measure(lambda: plan, enough)  # type: ignore[arg-type, return-value]
    assert held is not None and original.runs == plan.runs == runs
    assert held.speedup == pytest.approx(gain)  # the first runs, which take longer, count nowhere
    assert held.errors == (0.0, 0.0) and len(held.timings["before"].samples) == runs - 1


def test_a_comparison_is_decided_by_rounds_that_agree() -> None:
    one = [0.01] * 40
    assert is_decided({"before": one, "after": [0.009] * 40}, 1.005)  # faster
    assert is_decided({"before": one, "after": [0.00999] * 40}, 1.005)  # not by so much
    assert is_decided({"before": one, "after": [0.012] * 6 + [0.009] * 34}, 1.005)
    assert not is_decided({"before": one, "after": [0.012] * 10 + [0.009] * 30}, 1.005)
    assert not is_decided({"before": one[:10], "after": [0.009] * 10}, 1.005)  # too few
    assert is_decided({"before": [0.1] * 6, "after": [0.09] * 6}, 1.005)  # long, and all agree
    assert not is_decided({"before": [0.1] * 7, "after": [0.12, *[0.09] * 6]}, 1.005)
    assert not is_decided({"before": [1e-4] * 40, "after": [9e-5] * 40}, 1.005)  # too short


@pytest.mark.parametrize(
    ("faster", "rounds", "decided"), [(9, 11, True), (8, 11, False), (28, 44, False), (29, 44, True)]
)
def test_a_close_comparison_is_decided_by_a_likely_majority(faster: int, rounds: int, decided: bool) -> None:
    samples = {"before": [0.01] * rounds, "after": [0.009] * faster + [0.012] * (rounds - faster)}
    assert is_decided(samples, 1.005, likely_rounds=11) == decided
    assert is_decided({"before": samples["after"], "after": samples["before"]}, 1.0, likely_rounds=11) == decided
    assert not is_decided({"before": [0.01] * 10, "after": [0.009] * 10}, 1.005, likely_rounds=11)


def test_close_comparisons_take_more_rounds(clock: Clock) -> None:
    class Unsteady(Fake):
        """A plan every other run of which takes a tenth longer."""

        def run(self, feeds: object) -> dict[str, Any]:
            self.clock.now += self.seconds / 10 * (self.runs % 2)
            return super().run(feeds)

    def rounds(plan: Fake) -> int:
        original = Fake(clock, 0.025, runs=1)
        plan_speedup(original, plan, {}, 0.025, least=1.0)  # type: ignore[arg-type]
        return original.runs - 3  # two calls say how long it takes

    assert rounds(Fake(clock, 0.02)) == 11
    assert rounds(Unsteady(clock, 0.024)) == int(CLOSE_SECONDS / 0.05)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(against_module, "CLOSE_SECONDS", 1e9)
        assert rounds(Unsteady(clock, 0.024)) == 11 * CLOSE_ROUNDS_FACTOR


def test_all_plans_share_one_run_of_the_original(clock: Clock) -> None:
    original = Fake(clock, 5.0)
    holding = against(original)
    assert holding.measure(lambda: Fake(clock, 1.0, 1.001)) is None  # type: ignore[arg-type, return-value]
    assert original.runs == 1 and holding.want["y"][0] == 1.0

    def impossible() -> ExecutionPlan:
        raise ValueError("cannot be made")

    assert holding.measure(impossible) is None and original.runs == 1
    near = holding.measure(lambda: Fake(clock, 1.0, 1.00001), is_clearly_faster)  # type: ignore[arg-type, return-value]
    assert near is not None and 0 < near.errors[1] < 1e-4 and original.runs == 2


def test_clearly_faster_needs_long_rounds_or_a_large_gain() -> None:
    assert is_clearly_faster({"before": [BRIEF_SECONDS], "after": [BRIEF_SECONDS / CLEAR_SPEEDUP]})
    assert is_clearly_faster({"before": [BRIEF_SECONDS, BRIEF_SECONDS], "after": [0.1, 0.2]})
    assert not is_clearly_faster(
        {"before": [BRIEF_SECONDS / 2], "after": [0.01]}
    )  # it took no time yet: more is known for little
    assert not is_clearly_faster({"before": [BRIEF_SECONDS, BRIEF_SECONDS], "after": [0.1, BRIEF_SECONDS / 2]})
    assert is_clearly_faster({"before": [BRIEF_SECONDS] * 3, "after": [0.1, BRIEF_SECONDS / 2, BRIEF_SECONDS / 1.02]})
    assert not is_clearly_faster({"before": [BRIEF_SECONDS] * 3, "after": [0.1, BRIEF_SECONDS / 2, BRIEF_SECONDS]})
    assert not is_clearly_faster({"before": [BRIEF_SECONDS], "after": [2 * BRIEF_SECONDS]})


def test_sampling_ends_when_the_samples_suffice(clock: Clock) -> None:
    calls: list[int] = []

    def sampler(repeats: int) -> float:
        calls.append(repeats)
        return 0.2

    samplers = {"one": sampler, "other": sampler}
    assert (
        time_samplers(samplers, 3, 0.0)["one"].n == 3 and len(calls) == 2 * 3 + 2
    )  # a first call says how long it takes
    calls.clear()
    assert time_samplers(samplers, 3, 0.0, warm={"one": 0.2})["one"].n == 3 and len(calls) == 2 * 3 + 1
    calls.clear()
    found = time_samplers(samplers, 9, 0.0, warm={"one": 0.2, "other": 0.2}, enough=lambda s: len(s["other"]) > 1)
    assert [timing.n for timing in found.values()] == [2, 2] and calls == [1] * 4
    with pytest.raises(ValueError, match="rounds 0: expected at least 1"):
        time_samplers(samplers, 0)


def test_distinguishing_inputs_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def optimiser() -> Optimiser:
        work = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "profiles.sqlite"))
        work.prepare()
        return work

    monkeypatch.setattr(optimise_module, "discriminating_seed", lambda *_: 5)
    first = optimiser()
    monkeypatch.setattr(optimise_module, "discriminating_seed", lambda *_: pytest.fail("looked for again"))
    monkeypatch.setattr(ExecutionPlan, "run", lambda *_: pytest.fail("run again"))
    again = optimiser()
    assert again.seconds == first.seconds
    assert all(np.array_equal(again.feeds[name], array) for name, array in first.feeds.items())
    seeds = [optimise_module.random_model_inputs(first.model, seed) for seed in (0, 5)]
    assert [all(np.array_equal(s[k], v) for k, v in again.feeds.items()) for s in seeds] == [False, True]


@dataclass
class Plans:
    """Plans by the parts in them, and how long each takes; *made* are those that were asked for."""

    seconds: Callable[[Sequence[int]], float]
    number: float = 1.0
    made: list[tuple[int, ...]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    def __call__(self, kept: list[int]) -> Any:
        self.made.append(tuple(kept))
        if 99 in kept and len(self.made) > 1:
            raise ValueError("cannot be made")
        return Fake(self.clock, self.seconds(kept), self.number if len(self.made) > 1 else 1.0)


def parts(*gains: float) -> dict[int, TunedSubprogram]:
    """Parts that are so many times faster by themselves."""
    outcomes = [Trial(seconds_before=gain, seconds_after=1.0, states=1, why="") for gain in gains]
    return {n: TunedSubprogram((f"n{n}",), outcome, True, "proved", "") for n, outcome in enumerate(outcomes)}


def left_out(plans: Plans, gains: Sequence[float], groups: Sequence[Sequence[int]] = ()) -> dict[int, str]:
    """Return the parts that are removed; each is a kind of its own unless *groups* is given."""
    kinds = groups or [(n,) for n in range(len(gains))]
    return eliminate_unprofitable(baseline(), plans, kinds, parts(*gains), clock=plans.clock)


def baseline(seconds: float = 1.0) -> Baseline:
    """An original whose outputs are ones."""
    return against(Fake(Clock(), seconds))


@pytest.fixture
def paired(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(before: Fake, after: Fake, *_: object) -> Mapping[str, Timing]:
        return {
            name: Timing(plan.seconds, 0.0, 1, (plan.seconds,)) for name, plan in (("before", before), ("after", after))
        }

    monkeypatch.setattr(whole_module, "time_plans", told)


@pytest.mark.usefixtures("paired")
def test_part_that_slows_the_whole_model_is_removed() -> None:
    # Part 1 gains by itself and costs the whole a fifth; part 2 gains nothing and costs nothing.
    plans = Plans(lambda kept: 1.0 - 0.1 * (0 in kept) + 0.2 * (1 in kept))
    lost = left_out(plans, (1.3, 1.2, 1.1))
    assert lost == {1: "in the whole model, the plan with it runs at 0.82 of its speed"}
    assert plans.made == [(0, 1, 2), (0, 1), (0, 2), (2,)]  # least gain first, and then without it
    assert left_out(Plans(lambda _: 1.0), (1.2, 1.2)) == {}


@pytest.mark.usefixtures("paired")
def test_equal_parts_stay_or_go_together() -> None:
    plans = Plans(lambda kept: 1.0 + (2 in kept))
    assert set(left_out(plans, (1.2, 1.2, 1.2), [(0, 2), (1,)])) == {0, 2}
    assert left_out(Plans(lambda kept: 1.0 + len(kept)), (1.2, 1.2), [(0, 1)]) == {}  # all of it is for others to judge


@pytest.mark.usefixtures("paired")
def test_elimination_skips_certain_parts_and_is_bounded() -> None:
    costly = Plans(lambda kept: 1.0 + len(kept))
    assert set(left_out(costly, (1.2, CERTAIN_SPEEDUP, 9.0))) == {0} and costly.made == [(0, 1, 2), (1, 2)]
    many = Plans(lambda kept: 1e-3 * (1 + len(kept)))
    assert len(left_out(many, [1.2] * (MAX_ELIMINATION_TRIALS + 3))) == MAX_ELIMINATION_TRIALS
    late = Plans(lambda kept: 1.0 + len(kept))
    make = Plans.__call__

    def slowly(kept: list[int]) -> Any:
        late.clock.now += ELIMINATION_SECONDS
        return make(late, kept)

    assert set(
        eliminate_unprofitable(baseline(), slowly, [(0,), (1,), (2,)], parts(1.2, 1.2, 1.2), clock=late.clock)
    ) == {0}


COUNT, DOUBTFUL = MAX_SINGLE_TRIALS + 2, 4
"""Groups that are tried together first, and the first of them that is doubtful."""


def trials(once: float, winners: int, contenders: int) -> list[tuple[int, ...]]:
    """Return the trials of a model that takes *once* seconds, of which each part saves a hundredth."""
    plans = Plans(lambda kept: once * (1 - len(kept) / 100), number=1.0)
    groups, near = [(n,) for n in range(winners)], [(winners + n,) for n in range(contenders)]
    original = against(plans([]))
    kept, _, refused, _ = forward_selection(original, plans, groups, near, clock=plans.clock)
    assert kept == list(plans.made[-1]) and not refused
    return [tuple(set(more) - set(before)) for before, more in itertools.pairwise(plans.made)]


@pytest.mark.usefixtures("paired")
def test_remaining_parts_are_tried_together_when_time_is_short() -> None:
    assert trials(FORWARD_SELECTION_SECONDS / 7, 3, MAX_CONTENDERS) == [(0,), (1,), (2,), (3,), (4, 5, 6)]
    assert trials(FORWARD_SELECTION_SECONDS / 5, 6, 1) == [(0,), (1,), (2,), (3, 4, 5), (6,)]
    assert trials(2 * FORWARD_SELECTION_SECONDS, 6, 1) == [(0,), (1, 2, 3, 4, 5), (6,)]
    assert trials(1e-9, 6, 1) == [(n,) for n in range(7)]


@pytest.mark.usefixtures("paired")
def test_many_parts_are_tried_together_first_and_then_one_by_one() -> None:
    count = MAX_SINGLE_TRIALS + 2
    everything = tuple(range(count))
    assert trials(1e-9, count, 1) == [everything, (count,)]
    costly = Plans(lambda kept: 1.0 - len(kept) / 100 + (count - 1 in kept), number=1.0)
    kept, *_ = forward_selection(against(costly([])), costly, [(n,) for n in everything], clock=costly.clock)
    assert costly.made[1:4] == [everything, (0,), (0, 1)] and kept == [*range(MAX_SINGLE_TRIALS)]


@pytest.mark.usefixtures("paired")
@pytest.mark.parametrize(
    ("cost_each", "kept", "trials"),
    [
        # Each doubtful group costs less than noise and all of them more; the last one pays next to the certain ones.
        (0.004, [*range(DOUBTFUL), COUNT - 1], 1 + 1 + COUNT - DOUBTFUL),
        (-0.004, [*range(COUNT)], 2),  # each gains a little, and all together stay
    ],
)
def test_doubtful_parts_leave_together_unless_they_pay(cost_each: float, kept: list[int], trials: int) -> None:
    def seconds(numbers: Sequence[int]) -> float:
        certain = sum(n < DOUBTFUL for n in numbers)
        return 1.0 - 0.05 * certain + cost_each * (len(numbers) - certain) - 0.01 * (COUNT - 1 in numbers)

    plans, groups = Plans(seconds, number=1.0), [(n,) for n in range(COUNT)]
    original, doubtful = against(plans([])), range(DOUBTFUL, COUNT)
    found = forward_selection(original, plans, groups, clock=plans.clock, doubtful=doubtful)
    assert found.kept == kept and {*found.refused} == {*range(COUNT)} - {*kept}
    assert plans.made[1:3] == [tuple(range(COUNT)), tuple(range(DOUBTFUL))] and len(plans.made[1:]) >= trials
    exact = forward_selection(original, plans, groups, clock=plans.clock, doubtful=doubtful, exact=range(COUNT))
    assert exact.kept == [*range(COUNT)]  # exact ones need not be faster


@pytest.mark.usefixtures("paired")
def test_doubtful_parts_are_kept_if_no_part_is_certain() -> None:
    plans, groups = Plans(lambda kept: 1.0 - 0.01 * len(kept), number=1.0), [(n,) for n in range(COUNT)]
    original = against(plans([]))
    found = forward_selection(original, plans, groups, clock=plans.clock, doubtful=range(COUNT))
    assert found.kept == [*range(COUNT)] and len(plans.made[1:]) == 1


@pytest.mark.usefixtures("paired")
def test_failing_or_different_plans_remove_no_part() -> None:
    wrong = Plans(lambda kept: 1.0 + len(kept), number=1.01)
    assert left_out(wrong, (1.2, 1.2)) == {} and len(wrong.made) == 3
    refused = Plans(lambda kept: 1.0 + len(kept))
    assert eliminate_unprofitable(baseline(), refused, [(0,), (99,)], {0: parts(1.2)[0], 99: parts(1.1)[0]}) == {
        99: "in the whole model, the plan with it runs at 0.67 of its speed"
    }
    assert refused.made == [(0, 99), (0,)]


def test_part_is_removed_only_if_two_measurements_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """One measurement says that a part costs something, the next that it does not."""
    told = iter((1.2, 0.9, 1.2, 1.1, 0.9))

    def noisy(*_: object) -> Mapping[str, Timing]:
        after = next(told)
        return {"before": Timing(1.0, 0.0, 1, (1.0,)), "after": Timing(after, 0.0, 1, (after,))}

    monkeypatch.setattr(whole_module, "time_plans", noisy)
    assert set(left_out(Plans(lambda _: 1.0), (1.2, 1.3, 1.4))) == {1}


def test_part_removed_by_backward_elimination_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything(monkeypatch)
    monkeypatch.setattr(result_module, "MIN_REMEMBERED_SPEEDUP", 0.0)
    work = Optimiser(model(transposed()), SHORT, store=ProfileStore(tmp_path / "profiles.sqlite"))
    assert len(list(work.run())) == 2
    asked: list[object] = []
    eliminate = lambda _, plan_of, groups, *rest, **more: asked.append(groups) or {1: "it costs"}  # noqa: E731
    monkeypatch.setattr(result_module, "eliminate_unprofitable", eliminate)
    fast = work.result()
    assert [part.kept for part in fast.parts] == [True, False] and fast.parts[1].why == "it costs"
    assert asked == [((0,), (1,))]  # once: what is left is not looked at again
    again = work.result()  # what was decided is remembered
    assert [part.kept for part in again.parts] == [True, False] and len(asked) == 1


@pytest.mark.usefixtures("paired")
def test_exact_parts_join_together_first_and_need_not_be_faster() -> None:
    plans = Plans(lambda kept: 1.0 - 0.1 * (1 in kept))
    found = forward_selection(against(plans([])), plans, [(0,), (1,)], [(2,)], clock=plans.clock, exact={0, 2})
    assert found.kept == [0, 1, 2] and plans.made[1:] == [(0, 2), (0, 1, 2)]
    plain = Plans(lambda kept: 1.0 - 0.1 * (1 in kept))
    assert forward_selection(against(plain([])), plain, [(0,), (1,)], [(2,)], clock=plain.clock).kept == [1]


@pytest.mark.usefixtures("paired")
def test_exact_parts_cost_no_more_than_noise_and_no_more_than_was_gained() -> None:
    costs = {0: 0.05, 1: -0.01, 2: 0.005, 3: 0.008}  # part 0 is not exact
    plans = Plans(lambda kept: 1.0 - sum((-1) ** (n > 0) * abs(costs[n]) for n in kept))
    exact, winners = {1, 2, 3}, [(0,), (1,), (2,), (3,)]
    found = forward_selection(against(plans([])), plans, winners, clock=plans.clock, exact=exact)
    # Together they cost 2.3 %, so they come one by one: 1 costs 1.05 % of the plan, the others less.
    assert plans.made[1] == (1, 2, 3) and 0 in found.kept and 1 not in found.kept and {2, 3} <= {*found.kept}
    slower = Plans(lambda kept: 1.0 + 0.005 * len(kept))
    assert forward_selection(against(slower([])), slower, winners, clock=slower.clock, exact=exact).kept == []


@pytest.mark.usefixtures("paired")
@pytest.mark.parametrize(("cost", "stays"), [(0.03, True), (0.08, False)])
def test_exact_parts_leave_the_plan_only_if_they_cost_much(cost: float, stays: bool) -> None:
    plans = Plans(lambda kept: 1.0 + cost * (1 in kept))
    groups = [(0,), (1,)]
    lost = eliminate_unprofitable(baseline(), plans, groups, parts(1.2, 1.1), clock=plans.clock, exact={1})
    assert (1 not in lost) is stays
    again = Plans(lambda kept: 1.0 + cost * (1 in kept))
    assert 1 in eliminate_unprofitable(baseline(), again, groups, parts(1.2, 1.1), clock=again.clock)


def test_tasks_that_time_is_short_for_measure_variants_of_similar_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    work = Optimiser(model(transposed()), SHORT, budget=60.0, store=ProfileStore(tmp_path / "profiles.sqlite"))
    work.prepare()
    first, second = work.subprograms
    assert not work.tuner.is_short_of_time and work.tuner.run_task(first).winner is not None
    work.tuner._began = perf_counter() - (1 - SEARCH_TIME_SHARE) * 60.0
    with monkeypatch.context() as patched:
        patched.setattr(task_module, "find_variants", lambda *_: pytest.fail("searched"))
        trial = work.tuner.run_task(second)
    assert trial.winner is not None and trial.states == 0
    known = work.tuner.prepare(second)[2]
    assert known is not None and known.winner == trial.winner
    work.implementations.replayable.clear()  # in another process, with more time, it is searched
    work.tuner.start_clock()
    assert work.tuner.prepare(second)[2] is None and work.tuner.prepare(first)[2] is not None
    assert work.tuner.run_task(second).states > 0


@pytest.mark.usefixtures("paired")
def test_a_proposed_plan_is_tried_first_and_its_subprograms_are_not_doubtful() -> None:
    proposed = (0, 1, COUNT - 1)
    plans = Plans(lambda kept: 1.0 - 0.01 * len({*kept} & {*proposed}) + 0.01 * len({*kept} - {*proposed}), number=1.0)
    groups, every = [(n,) for n in range(COUNT)], range(COUNT)
    choices = Alternatives(proposed)
    found = forward_selection(
        against(plans([])), plans, groups, clock=plans.clock, doubtful=every, alternatives=choices
    )
    assert plans.made[1:3] == [proposed, tuple(every)] and found.kept == [*proposed]
    assert not any({*made} < {*proposed} for made in plans.made[2:])  # nothing of it leaves


@pytest.mark.usefixtures("paired")
def test_a_proposed_plan_that_is_slower_leaves_the_trials_as_they_were() -> None:
    plans = Plans(lambda kept: 1.0 - 0.05 * ([*kept] == [0]) + 0.1 * (1 in kept), number=1.0)
    choices = Alternatives((0, 1))
    found = forward_selection(against(plans([])), plans, [(0,), (1,)], clock=plans.clock, alternatives=choices)
    assert found.kept == [0] and plans.made[1:3] == [(0, 1), (0,)]


@pytest.mark.usefixtures("paired")
@pytest.mark.parametrize(("joined", "kept"), [(0.8, [2]), (0.95, [0, 1])])
def test_a_joined_subprogram_and_its_parts_replace_one_another(joined: float, kept: list[int]) -> None:
    """Both parts gain 0.1 together; number 2 is the joined subprogram, which is nearly as fast by itself."""
    plans = Plans(lambda kept: joined if 2 in kept else 1.0 - 0.05 * len(kept), number=1.0)
    choices = Alternatives(near=((2,),), rivals={0: (2,), 1: (2,), 2: (0, 1)})
    found = forward_selection(against(plans([])), plans, [(0,), (1,)], clock=plans.clock, alternatives=choices)
    assert found.kept == kept and not any({2} < {*made} for made in plans.made)
    assert {*found.refused} == {0, 1, 2} - {*kept}
