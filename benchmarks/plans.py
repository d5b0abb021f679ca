"""Compare plans, run as one session, as calls between sessions and as a bundle, with the original model.

``python -m benchmarks.plans [--model NAME] [--replaced N] [--threads N] [--seconds N]`` prints µs and speedups.  A plan
replaces the first N subprograms that can become Matmul + eOperator, even if that is slower.  A sample is the third
fastest of eight calls after two untimed ones; the engines take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

import onnxruntime

import einnet_explore as ee
from einnet_evaluation.models import write
from einnet_explore.cli.output import format_table
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.baseline import discriminating_inputs
from einnet_explore.pipeline.bundle import LIBRARY, MODEL, BundledPlan, write_bundle
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.plan import ExecutionPlan, GroupRun, ProgramCall, build_plan
from einnet_explore.pipeline.subprogram import Subprogram
from einnet_explore.runtime.measurement import settle_seconds
from einnet_explore.runtime.onnx_fragment import session_options
from einnet_explore.runtime.program import compile_program

SEARCH = 20
"""Seconds, at most, that a group is searched for."""


def replaced(model: Model, part: Subprogram, threads: int) -> ProgramCall | None:
    """Return *part* with a Matmul and eOperators; None if none is found."""
    run = ee.search(part.program, target="Matmul", budget=SEARCH)
    if run.best is None:
        return None
    program = fuse_eoperators(run.best.derivation).end
    if not any(e.via is not None and e.via.operator == "Matmul" for e in program.equations):
        return None
    names = {model.identifiers[value]: value for value in (*part.inputs, *part.outputs)}
    weights = {t.name: model.weights[names[t.name]] for t in program.inputs if t.weight}
    return ProgramCall(compile_program(program, threads, constants=weights), names)


def called(run: GroupRun) -> GroupRun:
    """Wrap *run* so that a plan must call it as a function."""
    return partial(run)


def bundled(model: Model, plan: ExecutionPlan) -> onnxruntime.InferenceSession:
    """Open *plan* as a bundle."""
    options = session_options(plan.threads)
    with TemporaryDirectory() as folder:
        write_bundle(folder, BundledPlan(model=model, plan=plan, numerics="reassociate", error=0.0, records={}))
        options.register_custom_ops_library(str(Path(folder, LIBRARY)))
        return onnxruntime.InferenceSession(str(Path(folder, MODEL)), options, providers=["CPUExecutionProvider"])


def timed(calls: Mapping[str, Callable[[], Any]], seconds: float, threads: int) -> dict[str, list[float]]:
    """Return samples of each call, in turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin, turn = perf_counter(), 0
    while perf_counter() - begin < seconds:
        for name in (*calls, *calls)[turn % len(calls) :][: len(calls)]:
            sleep(settle_seconds(threads))
            samples[name].append(_sample(calls[name]))
        turn += 1
    return samples


def _sample(call: Callable[[], Any]) -> float:
    taken = []
    for _ in range(10):
        begin = perf_counter()
        call()
        taken.append(perf_counter() - begin)
    return sorted(taken[2:])[2]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="infogan")
    parser.add_argument("--replaced", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    chosen = parser.parse_args()
    model = load_model(write(chosen.model))
    runs: dict[tuple[str, ...], GroupRun] = {}
    for part in partition(model).subprograms:
        if len(runs) < chosen.replaced and (run := replaced(model, part, chosen.threads)) is not None:
            runs[part.nodes] = run
    original = build_plan(model, {}, chosen.threads)
    plans = {
        "original": original,
        "one session": build_plan(model, runs, chosen.threads),
        "called": build_plan(model, {nodes: called(run) for nodes, run in runs.items()}, chosen.threads),
    }
    feeds = discriminating_inputs(model, original)
    calls = {name: lambda plan=plan: plan.run(feeds) for name, plan in plans.items()}
    bundle = bundled(model, plans["one session"])
    given = {value.name: feeds[value.name] for value in bundle.get_inputs()}
    calls["bundle"] = lambda: bundle.run(None, given)
    samples = timed(calls, chosen.seconds, chosen.threads)
    base = samples["original"]
    rows = [["plan", "sessions", "tenth µs", "median µs", "tenths", "median of pairs"]]
    for name in calls:
        low = [quantiles(taken, n=10)[0] for taken in (base, samples[name])]
        pairs = median(one / other for one, other in zip(base, samples[name], strict=True))
        figures = [
            f"{low[1] * 1e6:.0f}",
            f"{median(samples[name]) * 1e6:.0f}",
            f"{low[0] / low[1]:.2f}",
            f"{pairs:.2f}",
        ]
        rows.append([name, str(plans[name].sessions if name in plans else 1), *figures])
    print(format_table(rows))


if __name__ == "__main__":
    main()
