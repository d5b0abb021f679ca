"""Fleet simulation: every request completes once, and queues form at capacity."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import fleet
from benchmarks.fleet import _PLAN, Fleet, Plan, Samples, limits

FIXED = Samples(
    {
        "distinct subprograms": [4.0],
        "worth a search": [1.0] * 3,
        "negligible": [1.0],
        "search seconds": [10.0],
        "contest seconds": [30.0],
        "opening seconds": [5.0],
        "store get seconds": [0.001],
        "store put seconds": [0.002],
    }
)
PLAN = replace(
    Plan(**{name: usual for name, _, usual in _PLAN}), models=2_000, workers=60, devices=50, days=1.0, architectures=50
)


def test_every_model_is_done_and_nothing_is_searched_twice() -> None:
    run = Fleet(PLAN, FIXED)
    found = run.run()
    asked = sum(found.hits.values())
    assert not run.open and not run.blocked and found.done == len(found.latency) == pytest.approx(2_000, rel=0.1)
    assert found.hits["searched"] == len(run.known) < asked / 10
    assert found.pools["searches"].busy == pytest.approx(10 * len(run.known))
    assert found.pools["devices"].busy == pytest.approx(30 * len(run.known) + 5 * found.done)
    assert found.store == 2 * asked + 6 * len(run.known)
    # Nobody waits long, so a model takes what its own work takes: 5 seconds where all is known, 45 where nothing is.
    assert min(found.latency) == pytest.approx(5.0) and 45 <= max(found.latency) < 120
    rows = {str(k): v for k, v in found.rows()}
    assert rows["models"] == f"{found.done:,}" and rows["seconds a model, median"] == "5.0"


def test_the_same_seed_gives_the_same_days() -> None:
    assert Fleet(PLAN, FIXED).run().rows() == Fleet(PLAN, FIXED).run().rows()
    assert Fleet(replace(PLAN, seed=2), FIXED).run().rows() != Fleet(PLAN, FIXED).run().rows()


def test_a_release_forgets_and_too_few_devices_are_waited_for() -> None:
    once = Fleet(PLAN, FIXED).run()
    often = Fleet(replace(PLAN, release=0.1), FIXED).run()
    assert often.hits["searched"] > 3 * once.hits["searched"]
    # 2,000 models of 5 seconds a day are 10,000 device seconds: a part of one device, but not of none at noon.
    few = Fleet(replace(PLAN, models=20_000, devices=1, workers=11), FIXED).run()
    assert few.pools["devices"].busy > fleet.DAY and max(few.latency) > 3_600 > max(once.latency)


def test_limits_of_the_fleet_match_the_formulas() -> None:
    found = dict(limits(PLAN, FIXED))
    assert found["searches, nothing known"] == pytest.approx(10 * fleet.DAY / (3 * 10))
    assert found["devices, nothing known"] == pytest.approx(50 * fleet.DAY / (3 * 30 + 5))
    assert found["devices, all known"] == pytest.approx(50 * fleet.DAY / 5)
    assert found["store, all known"] == pytest.approx(fleet.DAY / (3 * 2 * 0.001))


def test_the_measured_values_are_all_there(capsys: Any) -> None:
    with fleet.MEASURED.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["what"] for row in rows} >= set(FIXED.values) and all(float(row["value"]) >= 0 for row in rows)
    fleet.main(["simulate", "--models", "500", "--days", "0.5"])
    assert "each part alone saturates" in capsys.readouterr().out
