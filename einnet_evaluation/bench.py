"""Paired measurement: what this project makes of a model or a case, beside other engines, in interleaved rounds.

Every engine has a process of its own; they take turns, so that a slow moment of the machine hits all of them.

Models and cases measured against other engines.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import Any, TypeAlias

from einnet_evaluation.engines import DIRECT, NUMPY, ORT, OURS, WARMUP_LIMIT_SECONDS, Task, check_engines
from einnet_evaluation.workers import RemoteEngine, Worker
from einnet_explore.pipeline.request import check_device
from einnet_explore.runtime.outputs import Arrays, largest_error

_NO_SHAPES: Mapping[str, tuple[int, ...]] = {}

_NO_SHARED_PROCESSES: Mapping[str, str] = {}

Sampler: TypeAlias = "Callable[[int, bool], float]"

MIN_SAMPLE_SECONDS = 0.01
"""Seconds that one sample lasts at least: quick calls are repeated."""

SETTLE_SECONDS = 0.01
"""Seconds after which the waiting threads of the engine that ran last no longer spin."""

REFERENCES = (ORT, NUMPY, DIRECT)
"""Whose outputs the others' are compared with, the first that there is."""

MIN_ROUNDS = 3
"""How many rounds there are at least where time is short."""


def run_benchmark(
    path: str | Path,
    *,
    against: Sequence[str] = (ORT,),
    device: str = "cpu",
    threads: int | None = None,
    rounds: int = 20,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    max_depth: int = 7,
    budget: float | None = None,
    limit: float | None = None,
    attribute: bool = False,
) -> dict[str, Any]:
    """Measure an ONNX model or an ``.ein`` case on this machine, in *rounds* interleaved rounds.

    A model is optimised (*budget* seconds of search at most) and compared with the engines *against* and with what
    ONNX Runtime makes of the optimised model; of a case the best derived candidate is compared with its own equations
    as generated kernels (``direct``) and with the engines.  After *limit* seconds of rounds no more begin.

    The result holds, an engine: the median, the interquartile range and the samples in seconds; ``ratios``: how many
    times as long as ours it takes (median over the rounds); ``best``: the fastest of the engines *against* and
    ``speedup``, its ratio; ``max_rel_error``: how far outputs are from the reference's, relative to the largest output;
    ``load``: that of the machine, without which times cannot be judged; ``refused``: the engines that cannot run it,
    and why.  *attribute*: ``attribution`` says what each kept derivation of a model brings: the model without it beside
    the model with all.

    Raises ValueError for an unknown engine or device, for an engine that is not installed, for a file that cannot be
    read, and where our own engine cannot run it.
    """
    check_device(device)
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    count = threads or len(os.sched_getaffinity(0))
    names = check_engines(str(path), against)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "OUT.onnx")
        tasks = [Task(str(path), name, count, dict(shapes), max_depth, budget, out, attribute) for name in names]
        found = measure_engines(dict(zip(names, tasks, strict=True)), OURS, rounds, limit)
    ratios = {name: found.ratio(name, OURS) for name in found.samples}
    best = min((name for name in ratios if name in against), key=lambda name: ratios[name], default=None)
    return {
        "case": str(path),
        "device": device,
        "threads": count,
        "rounds": len(found.samples[OURS]),
        "load": found.load,
        "reference": found.reference,
        "engines": {name: found.summary(name) for name in found.samples},
        "ratios": ratios,
        "best": best,
        "speedup": ratios[best] if best else None,
        "max_rel_error": dict(found.errors),
        "refused": dict(found.refused),
        "attribution": list(found.details[OURS].get("attribution", ())),
    }


@dataclass(frozen=True, slots=True)
class Measurements:
    """Engines by label: seconds a call in each round, what is said of each, its error against the *reference*.

    *refused*: those that cannot run their task, and why.  *load*: how many others wanted a core when the rounds began,
    on average over a minute; beyond the cores that there are, equal engines differ by what core they happen to get.
    """

    samples: Mapping[str, Sequence[float]]
    said: Mapping[str, str]
    errors: Mapping[str, float]
    details: Mapping[str, Mapping[str, Any]]
    reference: str
    refused: Mapping[str, str]
    load: float = 0.0

    def ratio(self, name: str, base: str) -> float:
        """How many times as long as *base* the engine *name* takes: the median over the rounds."""
        return median(a / b for a, b in zip(self.samples[name], self.samples[base], strict=True))

    def summary(self, name: str) -> dict[str, Any]:
        """Median, interquartile range and samples in seconds, and what is said."""
        samples = self.samples[name]
        low, high = (quantiles(samples, n=4)[k] for k in (0, 2)) if len(samples) > 1 else (samples[0], samples[0])
        return {"seconds": median(samples), "iqr": high - low, "samples": list(samples), "says": self.said[name]}


def measure_engines(
    tasks: Mapping[str, Task],
    needed: str,
    rounds: int,
    limit: float | None = None,
    homes: Mapping[str, str] = _NO_SHARED_PROCESSES,
) -> Measurements:
    """The engines of *tasks* by label, all on the inputs of the first that runs, in interleaved rounds.

    Each has a process of its own, save that those with the same *homes* entry share one.  Raises ValueError or
    RuntimeError where the one called *needed* cannot run, or fails later; others are left out then.
    """
    refused: dict[str, str] = {}
    engines: dict[str, RemoteEngine] = {}
    feeds: Arrays | None = None
    with ExitStack() as stack:
        at = {name: homes.get(name, name) for name in tasks}
        workers = {home: stack.enter_context(Worker()) for home in dict.fromkeys(at.values())}
        for worker in workers.values():
            with suppress(RuntimeError):  # one that died says so again when it is asked
                worker.ready()
        for name, task in tasks.items():
            try:
                engines[name] = workers[at[name]].open(task, feeds)
            except (ValueError, RuntimeError) as problem:
                if name == needed:
                    raise
                refused[name] = str(problem)
                continue
            feeds = engines[name].feeds
        reference = next((n for wanted in REFERENCES for n in engines if tasks[n].engine == wanted), needed)
        want = engines[reference].outputs
        errors = {name: largest_error(want, engine.outputs) for name, engine in engines.items()}
        load = os.getloadavg()[0]
        samples, lost = measure_interleaved(
            {n: engine.sample for n, engine in engines.items()}, rounds, limit, SETTLE_SECONDS, needed
        )
        refused |= lost
        errors = {name: errors[name] for name in samples}
        said = {name: engines[name].said for name in samples}
        details = {name: engines[name].details for name in samples}
    return Measurements(samples, said, errors, details, reference, refused, load)


def measure_interleaved(
    calls: Mapping[str, Sampler], rounds: int, limit: float | None = None, settle: float = 0, needed: str = ""
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds a call in each round, and who is left out and why; who begins changes from round to round.

    A call is given how often it is to run and whether once before that, and returns the seconds of the counted runs
    together.  *settle* seconds pass before each; after *limit* seconds no more rounds begin, once there are
    ``LEAST_ROUNDS``.  A call that raises RuntimeError is left out from then on, save that of *needed*, which ends all.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    lost: dict[str, str] = {}
    once: dict[str, float] = {}
    for name in calls:
        with _left_out(name, needed, samples, lost):
            once[name] = max(calls[name](1, True), 1e-7)
    repeats = {name: max(1, int(MIN_SAMPLE_SECONDS / seconds)) for name, seconds in once.items()}
    began = perf_counter()
    for turn in range(rounds):
        if limit is not None and turn >= MIN_ROUNDS and perf_counter() - began > limit:
            break
        names = list(samples)
        for n in range(len(names)):
            name = names[(turn + n) % len(names)]
            sleep(settle)
            with _left_out(name, needed, samples, lost):
                samples[name].append(calls[name](repeats[name], once[name] < WARMUP_LIMIT_SECONDS) / repeats[name])
    return samples, lost


@contextmanager
def _left_out(name: str, needed: str, samples: dict[str, list[float]], lost: dict[str, str]) -> Generator[None]:
    """Move *name* from *samples* to *lost* where it raises RuntimeError, unless it is *needed*."""
    try:
        yield
    except RuntimeError as problem:
        if name == needed:
            raise
        del samples[name]
        lost[name] = str(problem)
