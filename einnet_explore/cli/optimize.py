"""``einnet-explore optimize``: optimise an ONNX model, also for a range of sizes, or for the GPU of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from html import escape
from pathlib import Path

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

from einnet_explore.cli.output import (
    INTERRUPTED,
    NO,
    OK,
    STDOUT,
    check_writable,
    format_table,
    save_file,
    say,
    write_json,
    write_outputs,
)
from einnet_explore.cli.values import parse_domains, parse_ranged_shapes, parse_shapes
from einnet_explore.pipeline.bundle import README, check_bundle_folder
from einnet_explore.pipeline.gpu_plan import GpuPlan
from einnet_explore.pipeline.optimisation import (
    OptimisationResult,
    OptimiserOptions,
    begin_optimisation,
    refuse_cpu_options,
    run_to_end,
)
from einnet_explore.pipeline.optimised import ORIGINAL_FILE, Optimised
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.selection import selection_seconds
from einnet_explore.pipeline.size_optimiser import SizeOptimiser
from einnet_explore.strategies.candidate import save_records
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
    work = begin_optimisation(arguments.model, _options(arguments))
    _check_outputs(arguments)
    with limit_memory(arguments.memory) as memory, executor(arguments.jobs, arguments.cluster) as where:
        if isinstance(work, Optimiser | SizeOptimiser) and not isinstance(where, SerialExecutor):
            work.executor = where
        fast = run_to_end(work)
    if memory.reached:
        say(f"searches stopped near {format_bytes(arguments.memory)} of memory: their results so far are reported")
    report = fast.report()
    if arguments.json != STDOUT:
        _print_report(arguments, fast)
    failures = _write_outputs(arguments, fast, report)
    if work.interrupted:
        say(f"interrupted after {work.progress}: these are reported")
    elif fast.interrupted:
        say("interrupted while selecting: what was kept by then is reported")
    if failures:
        raise failures[0]
    return INTERRUPTED if report["interrupted"] else OK if fast.is_correct else NO


def _options(arguments: argparse.Namespace) -> OptimiserOptions:
    """Return the options of *arguments*; raises ValueError for those that do not fit a GPU."""
    is_gpu = arguments.device == "cuda"
    options = OptimiserOptions(
        shapes=parse_shapes(arguments.shape) if is_gpu else parse_ranged_shapes(arguments.shape),
        device=arguments.device,
        threads=arguments.threads,
        budget=arguments.budget,
        numerics=arguments.numerics,
        error_bound=arguments.error_bound,
        target_runtime=arguments.target_runtime,
        max_depth=arguments.max_depth,
        states=arguments.limit_states,
        inputs=arguments.inputs,
        domains=parse_domains(arguments.domain),
    )
    if is_gpu:
        others = (name for name in ("bundle", "jobs", "cluster") if getattr(arguments, name))
        refuse_cpu_options([f"--{name.replace('_', '-')}" for name in (*options.cpu_options, *others)])
        if arguments.output and Path(arguments.output).suffix == ".onnx":
            raise ValueError(
                f"{arguments.output}: a plan for a GPU is no ONNX model, expected another suffix, such as .gpu"
            )
    return options


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Raise OSError, ValueError or Refused if an output cannot be written, before any work."""
    check_writable(arguments.output, arguments.html, json=arguments.json, reads=[arguments.model, arguments.inputs])
    if arguments.certificates:
        Path(arguments.certificates).mkdir(parents=True, exist_ok=True)
        check_writable(str(Path(arguments.certificates) / "RECORD.json"))
    if arguments.bundle:
        check_bundle_folder(arguments.bundle)


def _print_report(arguments: argparse.Namespace, fast: OptimisationResult) -> None:
    rows = fast.rows()
    if len(rows) > 1:
        print(format_table(rows), end="\n\n")
    if isinstance(fast, GpuPlan):
        conclusions = fast.conclusions()
    else:
        bundle, file = arguments.bundle or "--bundle DIR", arguments.output or "-o OUT.onnx"
        conclusions = fast.conclusions(bundle, file, "--budget ")
    print(*conclusions, "", sep="\n")
    if isinstance(fast, Optimised):
        for line in fast.beyond_bound()[:_REASON_LINES]:
            print(f"not taken: {line}")
        for line in fast.untouched()[:_REASON_LINES]:
            print(f"not optimised: {line}")
        for line in fast.ends_of_regions()[:_REASON_LINES]:
            print(f"sums of products across operators end before {line}")


def _write_outputs(arguments: argparse.Namespace, fast: OptimisationResult, report: JsonObject) -> list[BaseException]:
    """Write every requested output; return the errors of those that could not be written."""
    outputs: list[tuple[str | None, Callable[[str], None]]] = [
        (arguments.bundle, lambda path: _write_bundle(path, fast)),
        (arguments.output, lambda path: _write_model(path, fast)),
        (arguments.html, lambda path: save_file(path, _report_page(arguments.model, fast))),
        (arguments.certificates, lambda path: _write_records(path, fast)),
        (arguments.json, lambda path: _write_report(path, fast, report, selection_seconds(arguments.budget))),
    ]
    return write_outputs(outputs, BackendError, EncodeError)


def _write_model(path: str, fast: OptimisationResult) -> None:
    """Write the optimised model or the plan for a GPU, and report what the file lacks."""
    if isinstance(fast, GpuPlan):
        fast.save(path)
        say(f"saved {path}: GpuPlan.load({path!r}) runs it")
        return
    if not fast.is_file_selected:
        say(f"selecting the rewrites for {path} that are also faster in plain ONNX Runtime")
    save_file(path, fast.onnx_bytes())
    if not fast.replacements:
        say(f"{path}: the original model: {ORIGINAL_FILE}")
    elif isinstance(fast, Optimised) and fast.model.dynamic:
        shapes = ", ".join(f"{each.name} {list(each.shape or ())}" for each in fast.model.inputs)
        say(f"{path}: its inputs have these sizes only: {shapes}; a range in --shape, or --bundle, allows others")
    if isinstance(fast, Optimised) and fast.replacements:
        say(f"{path}: {fast.exported.lacks(sum(p.kept for p in fast.bundled.parts)) or fast.exported.describe()}")


def _write_bundle(path: str, fast: OptimisationResult) -> None:
    """Write the bundle, which a GPU has not, and report how to use it."""
    if not isinstance(fast, GpuPlan):
        fast.save_bundle(path)
        if isinstance(fast, Optimised):
            is_original = not any(part.kept for part in fast.bundled.parts)
        else:
            is_original = not any(choice.chunks for choice in fast.choices.values())
        original = " (the original model, without kernels)" if is_original else ""
        say(f"saved the bundle {path}{original}: {Path(path) / README} says how to run it")


def _write_records(directory: str, fast: OptimisationResult) -> None:
    """Write one record with its certificates for each selected derivation to *directory*."""
    records = fast.records if isinstance(fast, GpuPlan) else fast.records()
    save_records(directory, records)
    say(f"saved {count_noun(len(records), 'record')} in {directory}")


def _write_report(path: str, fast: OptimisationResult, report: JsonObject, seconds: float) -> None:
    """Write *report*, and the attributions of one size, measured within *seconds*, as JSON."""
    report |= fast.report()  # with the speedup of the file
    if isinstance(fast, Optimised):
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


def _report_page(model: str, fast: OptimisationResult) -> str:
    """Return the report as one page: the table, then the graphs of every selected subprogram before and after."""
    parts = [fast._repr_html_()]
    for name, before, after in fast.graphs() if isinstance(fast, Optimised) else []:
        drawn = "".join(
            f"<figure><figcaption>{when}</figcaption>{graph_figure(program).svg}</figure>"
            for when, program in (("before", before), ("after", after))
        )
        parts.append(f"<h2>{escape(name)}</h2><div class='pair'>{drawn}</div>")
    return html_page(f"optimised: {model}", parts)
