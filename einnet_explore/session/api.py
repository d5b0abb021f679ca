"""Functions of ``import einnet_explore as ee``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

from einnet_explore.checker.record import FORMAT, load_json
from einnet_explore.cost import program_seconds
from einnet_explore.equivalence import certificate, operand_rounding
from einnet_explore.equivalence.verdict import Certificate
from einnet_explore.ir import Program
from einnet_explore.operators.library import OPERATORS, find_operators
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import INTER_RULES, RULES, Derivation, Rule
from einnet_explore.session.faces import load_faces
from einnet_explore.session.records import from_record
from einnet_explore.session.run import Run, run_searches
from einnet_explore.session.running_search import SEARCH_FORMAT, SEARCH_SUFFIX, saved_search_from_json
from einnet_explore.session.saved_sessions import SESSION_FORMAT, SESSION_SUFFIX
from einnet_explore.session.session import Session
from einnet_explore.strategies.options import Cost, SearchOptions, options_by_name
from einnet_explore.support.deprecation import renamed_argument
from einnet_explore.syntax import parse
from einnet_explore.syntax.parser import text_of
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.graph_figures import graph_figure

if TYPE_CHECKING:
    import onnx
    import torch

    from einnet_explore.onnx_import.input_domains import Domains
    from einnet_explore.onnx_import.size_ranges import RangedShapes
    from einnet_explore.pipeline.given_inputs import Inputs
    from einnet_explore.pipeline.gpu_plan import GpuPlan
    from einnet_explore.pipeline.optimisation import OptimizeOptions, TuningOptions
    from einnet_explore.pipeline.optimised import Optimised
    from einnet_explore.pipeline.optimised_sizes import OptimisedSizes
    from einnet_explore.strategies.candidate import Candidate
    from einnet_explore.support.executors import WorkExecutor

Source: TypeAlias = "str | Path | Program | onnx.ModelProto | torch.nn.Module"
"""A model to optimise."""
KINDS = {".json": FORMAT, SEARCH_SUFFIX: SEARCH_FORMAT, SESSION_SUFFIX: SESSION_FORMAT}
"""Formats of JSON files by suffix, for files that do not name their format."""


def explore(
    program: Program,
    rules: Iterable[Rule[object] | str] = (*RULES, *INTER_RULES),
    operators: Iterable[Operator | str] = OPERATORS,
) -> Session:
    """Return a session on *program*: rules by hand, undo, branches, certificates.

    *rules* and *operators* are those that it knows, as values, yours among them, or by name.  Notebooks with
    ``einnet_widgets`` display it as an explorer.
    """
    if "ipykernel" in sys.modules:
        load_faces()
    return Session(program, rules, operators)


def load(path: str | Path, recorded_rules: Collection[str] = ()) -> Program | Derivation | Run | Session:
    """Load a program (``.ein``), a derivation (a record, ``.json``), a search (``.einx``) or a session (``.eins``).

    JSON files name their format, so the last three may have other suffixes in *path*.  *recorded_rules* are names of
    rules of your own: a record's steps of these rules are taken as it has them.  Raises OSError if the file cannot be
    read, TextError with line and column for a wrong text, RecordError for other wrong files.
    """
    kind = KINDS.get(Path(path).suffix)
    if kind is None and not (text := text_of(path)).lstrip().startswith("{"):
        return parse(text, str(path))
    data = load_json(path)
    match data:
        case {"format": str(found)} if found in KINDS.values():
            kind = found
    if kind == SESSION_FORMAT:
        return Session.load(path)
    if kind == SEARCH_FORMAT:
        return saved_search_from_json(Run, data, program_seconds, str(path))
    return from_record(data, source=str(path), recorded=recorded_rules)


@renamed_argument("limit", "budget")
def search(
    program: Program,
    target: str | Iterable[str] = (),
    budget: float | None = 60,
    operators: Iterable[Operator | str] = OPERATORS,
    device: str = "cpu",
    **options: Unpack[SearchOptions],
) -> Run:
    """Search *program* for the *operators* named by *target* (all when empty) and return the finished run.

    It takes at most about *budget* seconds (None: no limit).  An interrupt (Ctrl-C) ends the search, too; the run has
    its results so far, and its ``finish`` continues.  ``live_search`` returns a run that has not begun.

    *options*: *max_depth* (levels of choices, 7), *rules* inside expressions and *between* them (the library's and
    yours, as values or by name), *must_use*, *forbid* and *starts*, which steer it, *patience* (levels without a
    cheaper candidate after which it ends, 2), *strategy* (``"best_first"`` or ``"paper"``), *combinations*; all are
    fields of ``strategies.options.Options``.

    A program of several expressions is searched by Algorithm 1: rules *between* expressions make equal programs, and
    each expression of these is searched by itself.  The program's candidates are the cheapest *combinations* of the
    expressions' candidates, and the programs that merging makes of them.

    The *device* ``profile:FILE.sqlite`` orders candidates by times and rates that were recorded elsewhere; raises
    ValueError if that file has none.
    """
    return live_search(program, target, budget, operators, device, **options).finish()


@renamed_argument("limit", "budget")
def live_search(
    program: Program,
    target: str | Iterable[str] = (),
    budget: float | None = 60,
    operators: Iterable[Operator | str] = OPERATORS,
    device: str = "cpu",
    **options: Unpack[SearchOptions],
) -> Run:
    """Return a search that has not begun; iterate it for its events, ``start`` it in a thread, or ``finish`` it.

    The arguments are those of ``search``: *program*, *target*, *budget*, *operators*, *device* and *options*.
    """
    cost: Cost = program_seconds
    if device != "cpu":
        from einnet_explore.runtime.profile_store import device_cost

        cost = device_cost(device)
    chosen = options_by_name(options)
    return Run(program, cost, target=target, budget=budget, operators=find_operators(operators), options=chosen)


def search_all(programs: Iterable[Program] | Mapping[str, Program], *args: Any, **options: Any) -> list[dict[str, Any]]:
    """Search *programs* over any executor; *args* and *options* are those of ``session.run.run_searches``.

    Return their reports in order: the JSON of ``einnet-explore derive``.
    """
    return run_searches(programs, *args, **options)


def check(derivation: Derivation) -> tuple[Certificate, ...]:
    """Return a certificate for every step of *derivation*; ``check_file`` checks one that was saved."""
    return tuple(
        operand_rounding.certify_step(step.match.rule.name, step.before, step.after) for step in derivation.steps
    )


def certify(before: Program, after: Program, **options: Any) -> Certificate:
    """Return the certificate of two programs; deprecated: ``ee.equal(before, after)`` has it as ``certificate``.

    *options* are *exact_elements* and *seed* of ``equivalence.certificate.certify``.
    """
    message = "ee.certify(a, b) is deprecated: write ee.equal(a, b), whose certificate is what certify returned"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return certificate.certify(before, after, **options)


def post_optimize(found: Candidate | Derivation) -> Derivation:
    """Return *found*, a candidate or its derivation, with its eOperators fused and layouts assigned (EinNet §6.3).

    Consecutive eOperators become one; layout changes that another one undoes disappear, if that is estimated to be
    faster.  All of it are steps with certificates.
    """
    from einnet_explore.pipeline.layouts import post_optimise

    return post_optimise(found if isinstance(found, Derivation) else found.derivation)


def graph(program: Program, title: str = "", folded: bool = False) -> Figure:
    """Return the computation graph of *program* with a *title*; *folded*: with one node for each of its layers."""
    return graph_figure(program, title, folded)


# Imports the compilers and ONNX Runtime when it is called: ``import einnet_explore`` stays quick.


@overload  # shapes of single sizes match the first one
def optimize(  # type: ignore[overload-overlap]
    model: Source,
    example_inputs: Sequence[object] = (),
    *,
    device: Literal["cpu"] = "cpu",
    **options: Unpack[OptimizeOptions],
) -> Optimised: ...


@overload
def optimize(
    model: Source,
    example_inputs: Sequence[object] = (),
    *,
    shapes: RangedShapes,
    device: Literal["cpu"] = "cpu",
    **options: Unpack[TuningOptions],
) -> OptimisedSizes: ...


@overload
def optimize(
    model: Source, example_inputs: Sequence[object] = (), *, device: Literal["cuda"], **options: Unpack[OptimizeOptions]
) -> GpuPlan: ...


@overload
def optimize(
    model: Source, example_inputs: Sequence[object] = (), *, device: str, **options: Unpack[OptimizeOptions]
) -> Optimised | OptimisedSizes | GpuPlan: ...


def optimize(
    model: Source,
    example_inputs: Sequence[object] = (),
    *,
    shapes: RangedShapes | None = None,
    device: str = "cpu",
    threads: int | None = None,
    budget: float | None = None,
    numerics: str = "approximate",
    error_bound: float | None = None,
    target_runtime: str = "plan",
    max_depth: int = 7,
    states: int | None = None,
    executor: WorkExecutor | None = None,
    inputs: Inputs | None = None,
    domains: Domains | None = None,
) -> Optimised | OptimisedSizes | GpuPlan:
    """Optimise an ONNX model, a program, or a PyTorch module with the shapes of its *example_inputs*, for this machine.

    The result is called with arrays by input name; ``save("fast.onnx")`` and ``save_bundle("DIR")`` deploy it.  Ctrl-C
    keeps what was found so far.

    *shapes* sets dynamic inputs by name.  A dimension may have several sizes: ``range(1, 9)``, of which a few are
    tuned, or a list, of which each is; the result, an ``OptimisedSizes``, accepts all of them (docs/deploying.md).
    *threads* defaults to the cores of this machine.  No subprogram is tuned after *budget* seconds, all runs of the
    model counted (None: 4 for each different subprogram, at least 60 and at most 150; on a GPU 20 and at most 480), and
    all sizes; final selection takes half as long at most.  *numerics* bounds the change of rounding: ``"exact"``,
    ``"reassociate"``, ``"approximate"`` (outputs may differ by 1e-4 of the largest) or ``"bf16"`` (products may also
    have operands in bfloat16, as far as the running error stays below *error_bound*, relative to the largest output).
    *target_runtime* ``"onnxruntime"`` optimises the exported file in place of the plan.  *max_depth* and *states* bound
    each search; *executor*, one of ``concurrent.futures``, runs the searches.  *inputs*, arrays by input name or the
    path of an ``.npz`` archive of them, are those on which the original and the result are compared and timed (None:
    random ones, whose elements are drawn from *domains*, such as ``{"mask": "0,1", "ids": "0..30521"}``).

    On the *device* ``"cuda"``, the GPU of this machine, derived plans of each part of the model are measured against
    library operators (cuBLAS, cuDNN); the result is a ``GpuPlan``, one CUDA graph.  There, *threads*, *target_runtime*,
    *executor*, *error_bound* and ``numerics="bf16"`` have no meaning, and are refused.

    Raises ModelError for a model that cannot be read, ValueError for an unknown device, runtime or level, a budget that
    is not positive, a bound that is missing or not between 0 and 1, *inputs* whose names, shapes or types are not the
    model's, and for a GPU that is missing, cannot run the model or fails; OSError if the archive of *inputs* cannot be
    read.
    """
    from einnet_explore.pipeline.optimisation import OptimiserOptions, begin_optimisation, run_to_end
    from einnet_explore.pipeline.torch_modules import export_if_module

    options = OptimiserOptions(
        shapes=shapes,
        device=device,
        threads=threads,
        budget=budget,
        numerics=numerics,
        error_bound=error_bound,
        target_runtime=target_runtime,
        max_depth=max_depth,
        states=states,
        executor=executor,
        inputs=inputs,
        domains=domains or {},
    )
    return run_to_end(begin_optimisation(export_if_module(model, example_inputs), options))
