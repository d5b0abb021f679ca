"""Paired measurement: what this project makes of a model or a case, beside other engines, in interleaved rounds.

Engines whose thread pools wait in loops take the cores from one another, so with more than one thread each gets a
process of its own; only one of them runs at any time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from einnet_explore.graph.bench.engines import OURS, Engine, Task, check_engines, prepare
from einnet_explore.graph.bench.workers import Worker
from einnet_explore.graph.contest import Arrays, largest_error
from einnet_explore.graph.optimise import check_device

NO_SHAPES: Mapping[str, tuple[int, ...]] = {}

SAMPLE = 0.01
"""Seconds that one sample lasts at least: quick calls are repeated."""


def benchmark(
    path: str | Path,
    *,
    against: Sequence[str] = ("onnxruntime",),
    device: str = "cpu",
    threads: int | None = None,
    rounds: int = 20,
    shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES,
    max_depth: int = 7,
    budget: float | None = None,
) -> dict[str, Any]:
    """Measure an ONNX model or an ``.ein`` case on this machine, in *rounds* interleaved rounds.

    A model is optimised (*budget* seconds of search at most) and compared with the engines *against*; of a case the
    best derived candidate is compared with its own equations as generated kernels (``direct``) and with the engines.
    The result holds, an engine: the median, the interquartile range and the samples in seconds; ``ratios``: how many
    times as long as ours it takes (median over the rounds); ``max_rel_error``: how far its outputs are from the
    reference's, relative to the largest output.

    Raises ValueError for an unknown engine or device, for an engine that is not installed, and for a file that cannot
    be read.
    """
    check_device(device)
    if rounds < 1:
        raise ValueError(f"rounds {rounds}: expected at least 1")
    count = threads or len(os.sched_getaffinity(0))
    names = check_engines(str(path), against)
    tasks = [Task(str(path), name, count, dict(shapes), max_depth, budget) for name in names]
    with ExitStack() as stack:
        engines = dict(zip(names, _started(tasks, stack, apart=count > 1), strict=True))
        want = engines[names[1]].outputs if len(names) > 1 else engines[OURS].outputs
        errors = {name: largest_error(want, engine.outputs) for name, engine in engines.items()}
        samples = interleaved({name: engine.sample for name, engine in engines.items()}, rounds)
        said = {name: engine.said for name, engine in engines.items()}
    return {
        "case": str(path),
        "device": device,
        "threads": count,
        "rounds": rounds,
        "apart": count > 1,
        "reference": names[1] if len(names) > 1 else OURS,
        "engines": {name: _summary(samples[name]) | {"says": said[name]} for name in names},
        "ratios": {name: median(a / b for a, b in zip(samples[name], samples[OURS], strict=True)) for name in names},
        "max_rel_error": errors,
    }


def _started(tasks: Iterable[Task], stack: ExitStack, apart: bool) -> Iterable[Engine | Worker]:
    """The engines, one after the other; those after the first are given its inputs."""
    feeds: Arrays | None = None
    for task in tasks:
        engine = stack.enter_context(Worker(task, feeds)) if apart else prepare(task, feeds)
        feeds = engine.feeds
        yield engine


def interleaved(calls: Mapping[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds a call in each round; every engine has its turn in each, and who begins changes.

    A call is given how often it is to run and returns the seconds of all these runs together.
    """
    names = list(calls)
    repeats = {name: max(1, int(SAMPLE / max(calls[name](1), 1e-7))) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for n in range(len(names)):
            name = names[(turn + n) % len(names)]
            samples[name].append(calls[name](repeats[name]) / repeats[name])
    return samples


def _summary(samples: Sequence[float]) -> dict[str, Any]:
    low, high = (quantiles(samples, n=4)[k] for k in (0, 2)) if len(samples) > 1 else (samples[0], samples[0])
    return {"seconds": median(samples), "iqr": high - low, "samples": list(samples)}
