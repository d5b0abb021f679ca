"""Time budgets of searches and samples on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from einnet_explore.runtime import measurement
from einnet_explore.support import limits


def ticking(*times: float) -> Callable[[], float]:
    """A clock that says *times*, one after the other."""
    left = iter(times)
    return lambda: next(left)


@pytest.mark.parametrize(("worked", "passed", "seconds"), [(1.0, 2.0, 1.0), (1.0, 9.0, 3.0), (4.0, 4.0, 4.0)])
def test_search_counts_processor_time_and_at_least_a_third_of_wall_time(
    monkeypatch: pytest.MonkeyPatch, worked: float, passed: float, seconds: float
) -> None:
    monkeypatch.setattr(limits, "perf_counter", ticking(10.0, 10.0 + passed))
    monkeypatch.setattr(limits, "thread_time", ticking(5.0, 5.0 + worked))
    assert limits.WorkClock().seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("worked", "passed", "seconds"),
    [
        (1.0, 4.0, 1.0),  # others had the core
        (8.0, 4.0, 4.0),  # two threads
        (0.0, 4.0, 4.0),  # it waited for a device
    ],
)
def test_sample_is_processor_time_within_wall_time(
    monkeypatch: pytest.MonkeyPatch, worked: float, passed: float, seconds: float
) -> None:
    monkeypatch.setattr(measurement, "perf_counter", ticking(0.0, passed))
    monkeypatch.setattr(measurement, "process_time", ticking(0.0, worked))
    monkeypatch.setattr(measurement, "WARM_CACHE_SECONDS", 0.0)
    assert measurement.sample_seconds(lambda: None, 1) == pytest.approx(seconds)


@pytest.mark.parametrize(("caches", "repeats", "calls"), [(0.0, 1, 1), (float("inf"), 1, 2), (0.0, 3, 4)])
def test_a_sample_is_warm_unless_one_call_is_long(
    monkeypatch: pytest.MonkeyPatch, caches: float, repeats: int, calls: int
) -> None:
    monkeypatch.setattr(measurement, "WARM_CACHE_SECONDS", caches)
    number = count()
    measurement.sample_seconds(lambda: next(number), repeats)
    assert next(number) == calls
