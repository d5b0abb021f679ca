"""Paired measurement of a model or case against other engines, in interleaved rounds.

Every engine has its own process, and engines take turns, so that slow phases of the machine affect all of them equally.
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

from einnet_evaluation.engines import DIRECT, EXPORTED, NUMPY, OURS, WARMUP_LIMIT_SECONDS, Task, check_engines
from einnet_evaluation.rivals import ORT, RIVALS, installed
from einnet_evaluation.workers import RemoteEngine, Worker
from einnet_explore.onnx_import.load import load_model
from einnet_explore.pipeline.optimisation import check_device
from einnet_explore.runtime.arrays import Arrays, largest_error
from einnet_explore.support.limits import available_cores
from einnet_explore.syntax import load_text

_NO_SHAPES: Mapping[str, tuple[int, ...]] = {}

_NO_SHARED_PROCESSES: Mapping[str, str] = {}

Sampler: TypeAlias = "Callable[[int, bool], float]"

MIN_SAMPLE_SECONDS = 0.01
"""Minimum duration of a sample; shorter calls are repeated."""

SETTLE_SECONDS = 0.01
"""Pause between engines, after which idle threads of the previous engine no longer spin."""

REFERENCES = (ORT, NUMPY, DIRECT)
"""Engines by priority as the reference for outputs."""

MIN_ROUNDS = 3
"""Minimum number of rounds when the time limit is exceeded."""

MAX_RIVAL_ERROR = 1e-2
"""Largest difference from the reference's outputs, relative to the largest output, of an engine that is measured."""


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

    A model is optimised (no tuning task starts after *budget* seconds) and compared with the engines *against* and
    with the optimised model in ONNX Runtime.  For a case, the best derived candidate is compared with its original
    equations as generated kernels (``direct``) and with the engines.  No round starts after *limit* seconds.

    The result has for each engine the median, the interquartile range and the samples in seconds; ``ratios``: time
    relative to this engine's (median over the rounds); ``best``: the fastest of *against*, and ``speedup``, its ratio;
    ``max_rel_error``: deviation from the reference's outputs relative to the largest output; ``load`` of the machine;
    ``refused``: the engines that are not installed, cannot run the task or return other outputs, with reasons.  With
    *attribute*, ``attribution`` has the speedup of each selected derivation: the time of the model without it over that
    of the model with all derivations.

    Raises ValueError for an unknown engine or device, a file that cannot be read, and if this project's engine cannot
    run it.
    """
    check_device(device)
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    count = threads or available_cores()
    rivals = check_engines(str(path), against)
    is_case = str(path).endswith(".ein")
    _ = load_text(path) if is_case else load_model(path, shapes)  # what is wrong is reported before any engine starts
    names = (OURS, DIRECT if is_case else EXPORTED, *installed(rivals))
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "OUT.onnx")
        tasks = [Task(str(path), name, count, dict(shapes), max_depth, budget, out, attribute) for name in names]
        found = measure_engines(dict(zip(names, tasks, strict=True)), OURS, rounds, limit)
    ratios = {name: found.ratio(name, OURS) for name in found.samples}
    best = min((name for name in ratios if name in rivals), key=lambda name: ratios[name], default=None)
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
        "refused": {n: why for n in rivals if n in RIVALS and (why := RIVALS[n].why_missing())} | dict(found.refused),
        "attribution": list(found.details[OURS].get("attribution", ())),
    }


@dataclass(frozen=True, slots=True)
class Measurements:
    """Results by engine label: seconds of a call in each round, a description, the error against the *reference*.

    *refused*: reasons of the engines that cannot run their task.  *load*: the machine's load average of a minute when
    the rounds began; if it exceeds the number of cores, times of equal engines differ.
    """

    samples: Mapping[str, Sequence[float]]
    said: Mapping[str, str]
    errors: Mapping[str, float]
    details: Mapping[str, Mapping[str, Any]]
    reference: str
    refused: Mapping[str, str]
    load: float = 0.0

    def ratio(self, name: str, base: str) -> float:
        """Return the time of engine *name* relative to *base*: the median over the rounds."""
        return median(a / b for a, b in zip(self.samples[name], self.samples[base], strict=True))

    def summary(self, name: str) -> dict[str, Any]:
        """Return the median, interquartile range and samples in seconds, and the description."""
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
    """Measure the engines of *tasks* by label in interleaved rounds, on the inputs of the first engine that runs.

    Each engine has its own process, except that engines with equal *homes* entries share one.  Raises ValueError or
    RuntimeError if the engine *needed* fails; other engines that fail are refused.
    """
    refused: dict[str, str] = {}
    engines: dict[str, RemoteEngine] = {}
    feeds: Arrays | None = None
    with ExitStack() as stack:
        at = {name: homes.get(name, name) for name in tasks}
        workers = {home: stack.enter_context(Worker()) for home in dict.fromkeys(at.values())}
        for worker in workers.values():
            with suppress(RuntimeError):  # a dead process raises again when it is used
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
        wrong = [n for n in engines if n != needed and tasks[n].engine in RIVALS and errors[n] > MAX_RIVAL_ERROR]
        refused |= {n: f"its outputs differ from those of {reference} by {errors[n]:.1e} of the largest" for n in wrong}
        load = os.getloadavg()[0]
        samples, lost = measure_interleaved(
            {n: engine.sample for n, engine in engines.items() if n not in wrong}, rounds, limit, SETTLE_SECONDS, needed
        )
        refused |= lost
        errors = {name: errors[name] for name in samples}
        said = {name: engines[name].said for name in samples}
        details = {name: engines[name].details for name in samples}
    return Measurements(samples, said, errors, details, reference, refused, load)


def measure_interleaved(
    calls: Mapping[str, Sampler], rounds: int, limit: float | None = None, settle: float = 0, needed: str = ""
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of a call in each round, and the reasons of excluded engines; the order rotates each round.

    A sampler takes the number of repeats and whether to warm up first, and returns the total seconds of the repeats.
    Each sample follows a pause of *settle* seconds; after ``MIN_ROUNDS`` rounds, none starts after *limit* seconds.  A
    sampler that raises RuntimeError is excluded; if it is *needed*, the error propagates.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    lost: dict[str, str] = {}
    once: dict[str, float] = {}
    for name in calls:
        with _exclude_on_error(name, needed, samples, lost):
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
            with _exclude_on_error(name, needed, samples, lost):
                samples[name].append(calls[name](repeats[name], once[name] < WARMUP_LIMIT_SECONDS) / repeats[name])
    return samples, lost


@contextmanager
def _exclude_on_error(name: str, needed: str, samples: dict[str, list[float]], lost: dict[str, str]) -> Generator[None]:
    """Move *name* from *samples* to *lost* if the block raises RuntimeError, unless it is *needed*."""
    try:
        yield
    except RuntimeError as problem:
        if name == needed:
            raise
        del samples[name]
        lost[name] = str(problem)
