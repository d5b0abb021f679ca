"""``einnet-explore optimize --shape x=1..8,3,224,224``: optimise an ONNX model for a range of sizes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

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
from einnet_explore.onnx_import.size_ranges import RangedShapes, read_ranges
from einnet_explore.pipeline.bundle import README, check_bundle_folder
from einnet_explore.pipeline.optimised import ORIGINAL_FILE, Optimised
from einnet_explore.pipeline.optimised_sizes import OptimisedSizes
from einnet_explore.pipeline.size_optimiser import SizeOptimiser
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.support.errors import BackendError
from einnet_explore.support.executors import SerialExecutor, executor
from einnet_explore.support.limits import format_bytes, limit_memory
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.views import html_page


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raise OSError, ValueError or Refused if an output cannot be written, before any work."""
    check_writable(arguments.output, arguments.html, json=arguments.json, reads=[arguments.model, arguments.inputs])
    if arguments.certificates:
        Path(arguments.certificates).mkdir(parents=True, exist_ok=True)
        check_writable(str(Path(arguments.certificates) / "RECORD.json"))
    if arguments.bundle:
        check_bundle_folder(arguments.bundle)


def run_optimize_sizes(arguments: argparse.Namespace, shapes: RangedShapes, settings: Settings) -> int:
    """Return 0 if done, 1 if the optimised model's outputs differ, 130 if interrupted (results are saved)."""
    if arguments.inputs:
        raise ValueError(f"--inputs {arguments.inputs}: found inputs of one size, expected none for a range of sizes")
    ranges = read_ranges(arguments.model, shapes)
    check_outputs(arguments)
    with limit_memory(arguments.memory) as memory, executor(arguments.jobs, arguments.cluster) as where:
        work = SizeOptimiser(
            arguments.model,
            ranges,
            settings,
            arguments.budget,
            executor=None if isinstance(where, SerialExecutor) else where,
        )
        work.prepare()
        fast = _result(work)
    if memory.reached:
        say(f"searches stopped near {format_bytes(arguments.memory)} of memory: their results so far are reported")
    failures = _write_outputs(arguments, fast)
    if arguments.json != STDOUT:
        print(format_table(fast.rows()))
        bundle, file = arguments.bundle or "--bundle DIR", arguments.output or "-o OUT.onnx"
        print("", *fast.conclusions(bundle, file, "--budget "), "", sep="\n")
    if fast.interrupted:
        say(f"interrupted after {len(fast.plans)} of {count_noun(len(ranges.tuned), 'size')}: these are reported")
    if failures:
        raise failures[0]
    return INTERRUPTED if fast.interrupted else OK if fast.is_correct else NO


def _result(work: SizeOptimiser) -> OptimisedSizes:
    """Tune all sizes; Ctrl-C ends the current phase."""
    try:
        with progress_bar(work.subprograms, "subprograms") as bar:
            for _ in work.run():
                bar.update()
                bar.set_postfix(sizes=len(work.results))
    except KeyboardInterrupt:
        work.interrupted = True
        say(f"interrupted: measuring the plans of {count_noun(len(work.results) + 1, 'size')}")
    return work.result()


def _write_outputs(arguments: argparse.Namespace, fast: OptimisedSizes) -> list[Exception]:
    """Write every requested output; return the errors of those that could not be written."""
    outputs: list[tuple[str | None, Callable[[str], None]]] = [
        (arguments.output, lambda path: write_model(path, fast)),
        (arguments.bundle, lambda path: write_bundle(path, fast)),
        (
            arguments.html,
            lambda path: save_file(path, html_page(f"optimised: {fast.model.path}", [fast._repr_html_()])),
        ),
        (arguments.certificates, lambda path: _write_records(path, fast)),
        (arguments.json, lambda path: write_json(path, fast.report())),
    ]
    return write_outputs(outputs, BackendError, EncodeError)


def write_model(path: str, fast: Optimised | OptimisedSizes) -> None:
    """Write the optimised model, and say so if it is the original."""
    save_file(path, fast.onnx_bytes())
    if not fast.replacements:
        say(f"{path}: the original model: {ORIGINAL_FILE}")
    elif isinstance(fast, Optimised) and fast.model.dynamic:
        shapes = ", ".join(f"{each.name} {list(each.shape or ())}" for each in fast.model.inputs)
        say(f"{path}: its inputs have these sizes only: {shapes}; a range in --shape, or --bundle, allows others")


def write_bundle(path: str, fast: Optimised | OptimisedSizes) -> None:
    """Write the bundle, and report how to use it."""
    fast.save_bundle(path)
    say(f"saved the bundle {path}: {Path(path) / README} says how to run it")


def _write_records(path: str, fast: OptimisedSizes) -> None:
    say(f"saved {count_noun(fast.save_records(path), 'record')} in {path}")
