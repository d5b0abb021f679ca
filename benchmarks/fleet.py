"""Plan the capacity of a fleet that optimises models continuously: measurements, and a simulation (docs/scale.md).

``python -m benchmarks.fleet measure [--models NAMES] [--each N] [--out CSV]`` measures the inputs of the plan: the
subprograms of a model, processor seconds of a search, seconds of a tuning task's measurements, latencies of the store,
and the start of a worker.
``python -m benchmarks.fleet simulate [--models N] [--workers N] [--devices N] [--days D] [--release DAYS] …`` draws
from these samples and prints the workers' load, the waiting time of models, the store's hit rate, and the bottleneck.

Models arrive at random, more by day than by night.  Each model has an architecture; a few architectures are requested
often (Zipf).  The architectures of a family share some subprograms.  A new subprogram is searched on any worker and
measured on a worker with the device; requests for a subprogram in progress wait for it.  Then the model is assembled
and measured as a whole on a device.  A release of the engine empties the store.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from math import cos, pi
from pathlib import Path

from einnet_explore.cli.output import format_table
from einnet_explore.pipeline.tuning_context import Settings

MEASURED = Path(__file__).parent / "history" / "fleet.csv"
DAY = 86_400.0
STATES = 300


def main(argv: Sequence[str] = ()) -> None:
    """Measure, or simulate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--models", default="resnet18,infogan,dcgan,fsrcnn,srcnn,gcn")
    measuring.add_argument("--each", type=int, default=3, help="tuning tasks measured for each model")
    measuring.add_argument("--out", type=Path, default=MEASURED)
    plan = commands.add_parser("simulate")
    for name, kind, usual in _PLAN:
        plan.add_argument(f"--{name}", type=kind, default=usual)
    given = parser.parse_args(argv)
    if given.command == "measure":
        measure(given.models.split(","), given.each, given.out)
        return
    asked = Plan(**{name: getattr(given, name) for name, _, _ in _PLAN})
    held = Samples.read(MEASURED)
    print(format_table([["", "value"], *Fleet(asked, held).run().rows()]))
    print("\nmodels a day at which each part alone saturates:")
    print(format_table([["", "models a day"], *([k, f"{v:,.0f}"] for k, v in limits(asked, held))]))


def measure(models: Sequence[str], each: int, out: Path) -> None:
    """Write a CSV of (quantity, subject, value)."""
    from einnet_evaluation.models import write
    from einnet_explore.onnx_import.load import load_model
    from einnet_explore.pipeline.optimiser import Optimiser
    from einnet_explore.pipeline.variants import find_variants
    from einnet_explore.runtime.implementation_choice import ProfileStore
    from einnet_explore.runtime.profile_store import profile_key

    rows: list[tuple[str, str, float]] = []

    def keep(what: str, of: str, value: float) -> None:
        rows.append((what, of, float(f"{value:.4g}")))
        print(*rows[-1], flush=True)

    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import einnet_explore.pipeline.optimiser"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        keep("worker start seconds", "import", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    with tempfile.TemporaryDirectory() as scratch:
        store = ProfileStore(Path(scratch) / "p.sqlite")
        for name in models:
            began_model = time.perf_counter()
            work = Optimiser(load_model(write(name)), Settings(), store=store)
            work.prepare()
            keep("opening seconds", name, time.perf_counter() - began_model)
            distinct = {s.anonymous.signature: s for s in work.subprograms}
            keep("subprograms", name, len(work.subprograms))
            keep("distinct subprograms", name, len(distinct))
            contests = 0
            for subprogram in distinct.values():
                task, effort, _ = work.tuner.prepare(subprogram)
                if effort is None:
                    keep("negligible", name, 1)
                    continue
                keep("worth a search", name, 1)
                if contests == each:
                    continue
                contests += 1
                processor = time.process_time()
                found = find_variants(task.program, task.context.cost, Settings(seconds=effort, states=STATES))
                keep("search seconds", name, time.process_time() - processor)
                wall = time.perf_counter()
                trial = replace(task, found=found).run(effort)
                keep("contest seconds", name, time.perf_counter() - wall)
                keep("kept", name, trial.winner is not None)
        for n in range(40):
            key = profile_key(task.program, n + 1)
            began_put = time.perf_counter()
            store.record(key, 1.0, "fleet")
            began_get = time.perf_counter()
            store.get(key)
            keep("store put seconds", "sqlite", began_get - began_put)
            keep("store get seconds", "sqlite", time.perf_counter() - began_get)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("what", "of", "value"), *rows])


@dataclass(frozen=True)
class Samples:
    """Measured values, by quantity."""

    values: dict[str, list[float]]

    @staticmethod
    def read(path: Path) -> Samples:
        """Read the CSV that ``measure`` wrote."""
        values: dict[str, list[float]] = {}
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                values.setdefault(row["what"], []).append(float(row["value"]))
        return Samples(values)

    def draw(self, what: str, by: random.Random) -> float:
        """Return one of the values at random."""
        return by.choice(self.values[what])

    def mean(self, what: str) -> float:
        """Return the mean of the values."""
        return statistics.fmean(self.values[what])

    @property
    def worth(self) -> float:
        """Return the fraction of distinct subprograms that are worth a search."""
        searched, left = (len(self.values.get(k, ())) for k in ("worth a search", "negligible"))
        return searched / (searched + left)


_PLAN = (
    ("models", int, 10_000), ("workers", int, 1_000), ("devices", int, 100), ("days", float, 3.0),
    ("release", float, 14.0), ("architectures", int, 20_000), ("families", int, 300), ("zipf", float, 1.0),
    ("shared", float, 0.5), ("price", float, 0.04), ("seed", int, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Workload and assumptions: *models* per day on *workers*, of which *devices* measure.

    There are *architectures* in *families*; the n-th is requested in proportion to n to the power of minus *zipf*.
    *shared* is the fraction of an architecture's subprograms that its family shares; *release* is the number of days
    between two versions of the engine; *price* is the price of a worker's hour.
    """

    models: int
    workers: int
    devices: int
    days: float
    release: float
    architectures: int
    families: int
    zipf: float
    shared: float
    price: float
    seed: int


@dataclass
class Pool:
    """Workers of one kind and their queue; *busy* adds up their seconds."""

    free: int
    waiting: deque[tuple[float, float, tuple[str, object]]] = field(default_factory=deque)
    busy: float = 0.0
    waits: list[float] = field(default_factory=list)


@dataclass
class Report:
    """Results of a simulation."""

    plan: Plan
    done: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    latency: list[float] = field(default_factory=list)
    pools: dict[str, Pool] = field(default_factory=dict)
    store: int = 0
    store_seconds: float = 0.0

    def rows(self) -> list[list[object]]:
        """Return names and values."""
        span = self.plan.days * DAY
        asked = sum(self.hits.values())
        cuts = statistics.quantiles(self.latency, n=100)
        out: list[list[object]] = [
            ["models", f"{self.done:,}"],
            ["subprograms asked for", f"{asked:,}"],
            *([f"of these {k}", f"{v / asked:.1%}"] for k, v in self.hits.most_common()),
            ["seconds a model, median", f"{cuts[49]:.1f}"],
            ["seconds a model, 95 %", f"{cuts[94]:.1f}"],
            ["seconds a model, 99 %", f"{cuts[98]:.1f}"],
        ]
        for name, pool in self.pools.items():
            size = self.plan.devices if name == "devices" else self.plan.workers - self.plan.devices
            out += [[f"{name}: busy", f"{pool.busy / span / size:.1%}"]]
            out += [[f"{name}: worker hours a day", f"{pool.busy / 3600 / self.plan.days:,.0f}"]]
            out += [[f"{name}: longest wait, seconds", f"{max(pool.waits, default=0):.1f}"]]
        hours = sum(pool.busy for pool in self.pools.values()) / 3600 / self.plan.days
        out += [["store: requests a second", f"{self.store / span:.2f}"]]
        out += [["store: busy (one writer)", f"{self.store_seconds / span:.2%}"]]
        out += [["cost a day of what is used", f"{hours * self.plan.price:,.0f}"]]
        out += [["cost a day of all workers", f"{24 * self.plan.workers * self.plan.price:,.0f}"]]
        return out


class Fleet:
    """Event simulation of several days."""

    def __init__(self, plan: Plan, held: Samples) -> None:
        self.plan, self.held, self.by = plan, held, random.Random(plan.seed)
        self.events: list[tuple[float, int, str, object]] = []
        self.known: dict[tuple[object, ...], float | None] = {}
        self.blocked: dict[tuple[object, ...], list[int]] = {}
        self.open: dict[int, tuple[float, set[tuple[object, ...]], float]] = {}
        self.report = Report(plan)
        workers = max(1, plan.workers - plan.devices)
        self.report.pools = {"searches": Pool(workers), "devices": Pool(plan.devices)}
        weights = ((n + 1) ** -plan.zipf for n in range(plan.architectures))
        self.weights = list(accumulate(weights))
        self.made: dict[int, list[tuple[object, ...]]] = {}
        self.numbers = count()

    def run(self) -> Report:
        """Run the whole simulation."""
        now, n = 0.0, 0
        while (now := self._next(now)) < self.plan.days * DAY:
            self._at(now, "arrives", n)
            n += 1
        for release in range(1, int(self.plan.days / self.plan.release) + 1):
            self._at(release * self.plan.release * DAY, "release", None)
        while self.events:
            at, _, what, of = heapq.heappop(self.events)
            getattr(self, f"_{what}")(at, of)
        return self.report

    def _next(self, now: float) -> float:
        """Schedule the next arrival, at random: the rate is half as high again at noon and half as high at night."""
        rate = self.plan.models / DAY
        while True:
            now += self.by.expovariate(1.5 * rate)
            if self.by.random() < (1 - 0.5 * cos(2 * pi * now / DAY)) / 1.5:
                return now

    def _at(self, when: float, what: str, of: object) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), what, of))

    def _parts(self, architecture: int) -> list[tuple[object, ...]]:
        """Return the subprograms of an architecture that are worth a search (deterministic)."""
        if architecture not in self.made:
            by = random.Random(f"{self.plan.seed} {architecture}")
            family = int(self.plan.families * by.random() ** 2)
            parts = max(1, round(self.held.draw("distinct subprograms", by) * self.held.worth))
            shared = [("family", family, by.randrange(2 * parts)) for _ in range(round(parts * self.plan.shared))]
            own: list[tuple[object, ...]] = [("own", architecture, n) for n in range(parts - len(shared))]
            self.made[architecture] = [*dict.fromkeys(shared), *own]
        return self.made[architecture]

    def _arrives(self, now: float, model: object) -> None:
        architecture = self.by.choices(range(self.plan.architectures), cum_weights=self.weights)[0]
        needed = set[tuple[object, ...]]()
        for part in self._parts(architecture):
            self._stored("store get seconds", 2)
            if part not in self.known:
                self.known[part] = None
                self.report.hits["searched"] += 1
                self._ask("searches", now, self.held.draw("search seconds", self.by), ("searched", part))
            elif self.known[part] is None:
                self.report.hits["being searched by another"] += 1
            else:
                self.report.hits["in the store"] += 1
                continue
            needed.add(part)
            self.blocked.setdefault(part, []).append(int(str(model)))
        self.open[int(str(model))] = now, needed, self.held.draw("opening seconds", self.by)
        if not needed:
            self._assemble(now, int(str(model)))

    def _ask(self, pool: str, now: float, seconds: float, then: tuple[str, object]) -> None:
        held = self.report.pools[pool]
        if held.free:
            held.free -= 1
            self._start(pool, now, now, seconds, then)
        else:
            held.waiting.append((now, seconds, then))

    def _start(self, pool: str, now: float, asked: float, seconds: float, then: tuple[str, object]) -> None:
        held = self.report.pools[pool]
        held.busy += seconds
        held.waits.append(now - asked)
        self._at(now + seconds, "free", (pool, then))

    def _free(self, now: float, of: object) -> None:
        pool, (what, about) = of  # type: ignore[misc]
        held = self.report.pools[pool]
        if held.waiting:
            self._start(pool, now, *held.waiting.popleft())
        else:
            held.free += 1
        getattr(self, f"_{what}")(now, about)

    def _searched(self, now: float, part: object) -> None:
        self._ask("devices", now, self.held.draw("contest seconds", self.by), ("contested", part))

    def _contested(self, now: float, part: tuple[object, ...]) -> None:
        self._stored("store put seconds", 6)
        self.known[part] = now
        for model in self.blocked.pop(part, ()):
            self.open[model][1].discard(part)
            if not self.open[model][1]:
                self._assemble(now, model)

    def _assemble(self, now: float, model: int) -> None:
        self._ask("devices", now, self.open[model][2], ("finished", model))

    def _finished(self, now: float, model: int) -> None:
        began, _, _ = self.open.pop(model)
        self.report.latency.append(now - began)
        self.report.done += 1

    def _release(self, now: float, _: object) -> None:
        self.known = {part: None for part, at in self.known.items() if at is None}

    def _stored(self, what: str, times: int) -> None:
        self.report.store += times
        self.report.store_seconds += times * self.held.draw(what, self.by)


def limits(plan: Plan, held: Samples) -> list[tuple[str, float]]:
    """Return the models per day that each part could serve with an empty store (after a release) and a full one."""
    parts = held.mean("distinct subprograms") * held.worth
    workers = plan.workers - plan.devices
    opened = held.mean("opening seconds")
    contest = held.mean("contest seconds")
    gets, puts = held.mean("store get seconds"), held.mean("store put seconds")
    return [
        ("searches, nothing known", workers * DAY / (parts * held.mean("search seconds"))),
        ("devices, nothing known", plan.devices * DAY / (parts * contest + opened)),
        ("devices, all known", plan.devices * DAY / opened),
        ("store, nothing known", DAY / (parts * (2 * gets + 6 * puts))),
        ("store, all known", DAY / (parts * 2 * gets)),
    ]


if __name__ == "__main__":
    main(sys.argv[1:])
