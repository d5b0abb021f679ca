"""``einnet-explore optimize --device cuda``: optimise an ONNX model for the GPU of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from einnet_explore.cli.output import (
    INTERRUPTED,
    NO,
    OK,
    STDOUT,
    check_writable,
    format_table,
    progress_bar,
    save_file,
    say,
    write_json,
    write_outputs,
)
from einnet_explore.cli.values import parse_shapes
from einnet_explore.pipeline.given_inputs import given_inputs
from einnet_explore.pipeline.gpu_optimiser import GpuOptimiser, refuse_cpu_options, require_gpu
from einnet_explore.pipeline.gpu_plan import GpuPlan
from einnet_explore.pipeline.optimiser import make_settings, read_model
from einnet_explore.strategies.candidate import save_record
from einnet_explore.support.limits import format_bytes, limit_memory
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.views import html_page


def run_optimize_on_gpu(arguments: argparse.Namespace) -> int:
    """Return 0 if done, 1 if the plan's outputs differ, 130 if interrupted (results are saved)."""
    refuse_cpu_options(
        {
            "--threads": arguments.threads,
            "--bundle": arguments.bundle,
            "--jobs": arguments.jobs,
            "--cluster": arguments.cluster,
            "--target-runtime": arguments.target_runtime != "plan",
            "--numerics bf16": arguments.numerics == "bf16",
            "--error-bound": arguments.error_bound,
        }
    )
    if arguments.output and Path(arguments.output).suffix == ".onnx":
        raise ValueError(
            f"{arguments.output}: a plan for a GPU is no ONNX model, expected another suffix, such as .gpu"
        )
    require_gpu()
    model = read_model(arguments.model, parse_shapes(arguments.shape))
    check_writable(arguments.output, arguments.html, json=arguments.json, reads=[arguments.model, arguments.inputs])
    inputs = given_inputs(arguments.inputs)
    settings = make_settings("cpu", None, arguments.max_depth, numerics=arguments.numerics)
    with limit_memory(arguments.memory) as memory:
        work = GpuOptimiser(model, replace(settings, states=arguments.limit_states), arguments.budget, inputs=inputs)
        work.prepare()
        fast = _result(work)
    if memory.reached:
        say(f"searches stopped near {format_bytes(arguments.memory)} of memory: their results so far are reported")
    failures = _write_outputs(arguments, fast)
    if arguments.json != STDOUT:
        print(format_table(fast.rows()))
        print("", *fast.conclusions(), "", sep="\n")
    if work.interrupted:
        say(f"interrupted after {len(work.tuned)} of {count_noun(len(work.different), 'part')}: these are reported")
    if failures:
        raise failures[0]
    return INTERRUPTED if fast.interrupted else OK if fast.is_correct else NO


def _result(work: GpuOptimiser) -> GpuPlan:
    """Tune all parts, and compose the plan; Ctrl-C ends the tuning, and a second one ends the command."""
    try:
        with progress_bar(len(work.different), "parts") as bar:
            for step in work.run():
                bar.update()
                bar.set_postfix(plan=step.part.chosen)
    except KeyboardInterrupt:
        work.interrupted = True
        say(f"interrupted: measuring the plan of {count_noun(len(work.tuned), 'tuned part')}")
    return work.result()


def _write_outputs(arguments: argparse.Namespace, fast: GpuPlan) -> list[Exception]:
    """Write every requested output; return the errors of those that could not be written."""
    outputs: list[tuple[str | None, Callable[[str], None]]] = [
        (arguments.output, lambda path: _save_plan(path, fast)),
        (arguments.html, lambda path: save_file(path, html_page(f"optimised: {fast.model}", [fast._repr_html_()]))),
        (arguments.certificates, lambda path: _save_records(path, fast)),
        (arguments.json, lambda path: write_json(path, fast.report())),
    ]
    return write_outputs(outputs)


def _save_plan(path: str, fast: GpuPlan) -> None:
    fast.save(path)
    say(f"saved {path}: GpuPlan.load({path!r}) runs it")


def _save_records(directory: str, fast: GpuPlan) -> None:
    """Write one record with its certificates for each derived part to *directory*."""
    where = Path(directory)
    where.mkdir(parents=True, exist_ok=True)
    for name, record in fast.records.items():
        save_record(where / f"{name}.json", record)
    say(f"saved {count_noun(len(fast.records), 'record')} in {directory}")
