"""The forms that a plan may have, measured beside each other and the original."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter

from einnet_explore.backends.measure import LONG, compare, pause, times_faster
from einnet_explore.graph.against import Against
from einnet_explore.graph.outputs import AGREEMENT, largest_error
from einnet_explore.graph.running.plan import Plan
from einnet_explore.graph.whole import rounds_for

HOPELESS = 4.0
"""A form whose first run takes so many times as long as a run of the original is not run again, where that is long."""


def form_ratios(
    forms: Iterable[str], plan_of: Callable[[str], Plan], against: Against
) -> tuple[dict[str, float], dict[str, str]]:
    """How many times faster than the original each of *forms* is, and why others do not run or agree.

    *plan_of* makes the plan in a form, or raises ValueError.
    """
    once, feeds = against.seconds, against.feeds
    plans = {"before": against.original}
    whys, warm = dict[str, str](), {"before": once}
    for form in forms:
        try:
            plan = plan_of(form)
            began = perf_counter()
            error = largest_error(against.want, plan.run(feeds))
            warm[form] = perf_counter() - began
        except ValueError as problem:
            whys[form] = str(problem)
            continue
        if error > AGREEMENT:
            whys[form] = f"it differs by {error:.1e} of its largest output"
        elif warm[form] > max(HOPELESS * once, LONG):
            whys[form] = f"a run takes {warm[form] / once:.1f} times as long as the original's"
        else:
            plans[form] = plan
    calls = {name: partial(plan.run, feeds) for name, plan in plans.items()}
    settle = pause(against.original.threads)
    times = compare(calls, rounds=rounds_for(once, 11), min_seconds=0.3, settle=settle, warm=warm)
    return {name: times_faster(times["before"], times[name]) for name in plans if name != "before"}, whys
