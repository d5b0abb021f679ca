"""``einnet-explore optimize``: optimise an ONNX model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from einnet_explore.cli.optimize_sizes import check_outputs, run_optimize_sizes, write_bundle, write_model
from einnet_explore.cli.output import (
    INTERRUPTED,
    NO,
    OK,
    STDOUT,
    format_table,
    progress_bar,
    save_file,
    say,
    write_json,
    write_outputs,
)
from einnet_explore.cli.values import parse_ranged_shapes
from einnet_explore.onnx_import.size_ranges import are_single
from einnet_explore.pipeline.given_inputs import given_inputs
from einnet_explore.pipeline.optimised import Optimised
from einnet_explore.pipeline.optimiser import Optimiser, make_settings, read_model
from einnet_explore.pipeline.selection import selection_seconds
from einnet_explore.strategies.candidate import save_record
from einnet_explore.support.errors import BackendError
from einnet_explore.support.executors import SerialExecutor, executor
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.limits import format_bytes, limit_memory
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.graph_figures import graph_figure
from einnet_explore.viz.views import html_page

_REASON_LINES = 8
"""Printed reasons why nodes are not optimised; the JSON has one for each node."""


def run_optimize(arguments: argparse.Namespace) -> int:
    """Return 0 if done, 1 if the optimised model's outputs differ, 130 if interrupted (results are saved)."""
    if arguments.device == "cuda":
        from einnet_explore.cli.optimize_gpu import run_optimize_on_gpu

        return run_optimize_on_gpu(arguments)
    settings = make_settings(
        arguments.device,
        arguments.threads,
        arguments.max_depth,
        arguments.target_runtime,
        arguments.numerics,
        arguments.error_bound,
    )
    shapes = parse_ranged_shapes(arguments.shape)
    settings = replace(settings, states=arguments.limit_states)
    if not are_single(shapes):
        return run_optimize_sizes(arguments, shapes, settings)
    model = read_model(arguments.model, shapes)
    check_outputs(arguments)
    inputs = given_inputs(arguments.inputs)
    with limit_memory(arguments.memory) as memory, executor(arguments.jobs, arguments.cluster) as where:
        work = Optimiser(
            model,
            settings,
            arguments.budget,
            executor=None if isinstance(where, SerialExecutor) else where,
            inputs=inputs,
        )
        work.prepare()
        fast = _result(work)
    if memory.reached:
        say(f"searches stopped near {format_bytes(arguments.memory)} of memory: their results so far are reported")
    report = fast.report()
    failures = _write_outputs(arguments, fast, report)
    if arguments.json != STDOUT:
        print(format_table(fast.rows()))
        bundle, file = arguments.bundle or "--bundle DIR", arguments.output or "-o OUT.onnx"
        print("", *fast.conclusions(bundle, file, "--budget "), "", sep="\n")
        for line in fast.beyond_bound()[:_REASON_LINES]:
            print(f"not taken: {line}")
        for line in fast.untouched()[:_REASON_LINES]:
            print(f"not optimised: {line}")
        for line in fast.ends_of_regions()[:_REASON_LINES]:
            print(f"sums of products across operators end before {line}")
    if work.interrupted:
        every = count_noun(len(work.subprograms), "subprogram")
        say(f"interrupted after {len(work.parts)} of {every}: these are reported")
    elif fast.interrupted:
        say("interrupted while selecting: what was kept by then is reported")
    if failures:
        raise failures[0]
    if report["interrupted"]:
        return INTERRUPTED
    return OK if fast.errors[1] <= fast.max_error else NO


def _result(work: Optimiser) -> Optimised:
    """Run all tuning tasks and the selection; Ctrl-C ends the current phase, and a second one ends the command."""
    try:
        with progress_bar(len(work.subprograms), "subprograms") as bar:
            for step in work.run():
                bar.update()
                bar.set_postfix(kept=sum(p.kept for p in work.parts), states=step.part.trial.states)
    except KeyboardInterrupt:
        work.interrupted = True
        say(f"interrupted: measuring what {count_noun(len(work.parts), 'subprogram')} gave")
    return work.result()


def _write_outputs(arguments: argparse.Namespace, fast: Optimised, report: JsonObject) -> list[Exception]:
    """Write every requested output; return the errors of those that could not be written."""
    outputs: list[tuple[str | None, Callable[[str], None]]] = [
        (arguments.output, lambda path: _write_model(path, fast)),
        (arguments.bundle, lambda path: write_bundle(path, fast)),
        (arguments.html, lambda path: save_file(path, _report_page(fast))),
        (arguments.certificates, lambda path: _write_records(path, fast)),
        (arguments.json, lambda path: _write_report(path, fast, report, selection_seconds(arguments.budget))),
    ]
    return write_outputs(outputs, BackendError, EncodeError)


def _write_model(path: str, fast: Optimised) -> None:
    """Write the optimised model, and report the derivations that the file lacks."""
    write_model(path, fast)
    if lacks := fast.exported.lacks(sum(part.kept for part in fast.bundled.parts)):
        say(f"{path}: {lacks}")


def _write_report(path: str, fast: Optimised, report: JsonObject, seconds: float) -> None:
    """Add the attributions to *report* and write it as JSON."""
    report |= _attributions(fast, seconds)
    write_json(path, report)


def _attributions(fast: Optimised, seconds: float) -> JsonObject:
    """Return the speedup of each selected kind of derivation, measured within *seconds* or until Ctrl-C."""
    found: list[JsonObject] = []
    try:
        for attribution in fast.attributions(seconds):
            found.append(attribution.to_json())
    except KeyboardInterrupt:
        kinds = 0 if fast.without is None else len(fast.without.groups)
        say(f"interrupted: what {len(found)} of {kinds} kept kinds bring is reported")
        return {"attribution": found, "interrupted": True}
    return {"attribution": found}


def _write_records(directory: str, fast: Optimised) -> None:
    """Write one record with its certificates for each selected derivation to *directory*."""
    where = Path(directory)
    records = fast.records()
    for name, record in records.items():
        save_record(where / f"{name}.json", record)
    say(f"saved {count_noun(len(records), 'record')} in {directory}")


def _report_page(fast: Optimised) -> str:
    """Return the report as one page: the table, then the graphs of every selected subprogram before and after."""
    parts = [fast._repr_html_()]
    for name, before, after in fast.graphs():
        drawn = "".join(
            f"<figure><figcaption>{when}</figcaption>{graph_figure(program).svg}</figure>"
            for when, program in (("before", before), ("after", after))
        )
        parts.append(f"<h2>{escape(name)}</h2><div class='pair'>{drawn}</div>")
    return html_page(f"optimised: {fast.model.path}", parts)
