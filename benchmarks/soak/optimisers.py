"""Random ONNX graphs through optimisers: ONNX Runtime at three levels, OpenVINO if it is installed, and ours.

The graphs and the reference are those of ``graphs``: ONNX Runtime without optimisations, where ONNX's reference
evaluator agrees with it.  An optimiser whose outputs differ by more than rounding, or whose process ends, is a finding.
It is reduced to the fewest nodes that still do, and saved with inputs as ONNX and NumPy files in ``findings`` of the
cache.  OpenVINO runs in a process of its own.

The certificates judge as well: ``equal`` compares each graph with the file that ONNX Runtime's optimiser writes.  Files
with other outputs that are called equal, and equal outputs that are called different, are findings of ours.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from benchmarks.soak.grammar import Drawn, graph
from benchmarks.soak.graphs import QUICK, Arrays, Lots, Truth, _error, where
from benchmarks.soak.outcome import Outcome
from einnet_evaluation.engines import Task
from einnet_evaluation.rivals import OPENVINO, RIVALS
from einnet_evaluation.workers import Worker
from einnet_explore.onnx_import.contrib_operators import expand_contrib_operators
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelError
from einnet_explore.onnx_import.shapes import infer_static_shapes
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.model_sessions import ModelRegions, open_session, run_session
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.session.model_equality import Verdict, compare_models
from einnet_explore.support.errors import Refused
from einnet_explore.support.storage import cache_directory

LEVELS = {
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
JUDGED = "extended"
"""The level whose files are judged: those of the highest have layouts of one processor."""

JUDGEMENT_SECONDS = 20.0
SAVED = cache_directory() / "soak" / "findings"

Run = Callable[[Model, Arrays, int], Arrays]
"""The outputs of a model after optimisation, for inputs and a seed."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, inputs, the outputs without optimisation, and the error that rounding explains."""

    model: Model
    feeds: Arrays
    want: Arrays
    allowed: float


def item(number: int, n: int) -> Outcome:
    """Graph *n* of seed *number*."""
    outcome = Outcome()
    rng = random.Random(f"optimisers {number}:{n}")
    drawn = graph(rng)
    shown = f"opset {drawn.model.opset_import[0].version}: {', '.join(drawn.operators)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            examine(drawn, rng.getrandbits(30), f"{number}-{n}", outcome, shown)
        except Exception as error:
            outcome.found("traceback", error, shown, where(error))
    return outcome


def examine(drawn: Drawn, seed: int, name: str, outcome: Outcome, shown: str) -> None:
    """Compare all optimisers on one graph."""
    try:
        model = load_model(drawn.model, drawn.shapes)
    except ModelError:
        outcome.counts["graphs that are not read"] += 1
        return
    feeds = random_model_inputs(model, seed)
    truth = Truth(model, feeds)
    if not (truth.settled and truth.told):
        outcome.counts["graphs without two engines that agree"] += 1
        return
    outcome.counts["graphs"] += 1
    case = Case(model, feeds, truth.want, truth.allowed)
    verdict = judged(case, outcome, shown)
    for optimiser, run in optimisers().items():
        kind, says = tried(run, case, seed)
        outcome.counts[f"{optimiser}: {kind}"] += 1
        if kind in FAULTS:
            nodes, small = reduced(run, case, truth.values, seed)
            file = SAVED / f"{optimiser.replace(' ', '-')}-{name}.onnx"
            save(small, file)
            operators = ", ".join(node.op_type for node in small.model.original.graph.node)
            outcome.found(optimiser, says, f"{len(nodes)} nodes: {operators}", f"equal says {verdict}", file)


def optimisers() -> dict[str, Run]:
    """Return the optimisers that are installed."""
    found: dict[str, Run] = {f"onnxruntime {level}": partial(in_onnxruntime, level) for level in LEVELS}
    found["einnet_explore"] = in_plan
    if RIVALS[OPENVINO].why_missing() is None:
        found[OPENVINO] = in_openvino
    return found


class Crash(Exception):
    """The process of an optimiser ended."""


_workers: list[Worker] = []


def in_openvino(model: Model, feeds: Arrays, seed: int) -> Arrays:
    """Run *model* in OpenVINO in another process; raise Crash if that ends."""
    if not _workers:
        _workers.append(Worker())
        _workers[0].ready()
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(model.original, file.name)
        shapes = {name: array.shape for name, array in feeds.items()}
        try:
            return _workers[0].open(Task(file.name, OPENVINO, 1, shapes), feeds).outputs
        except RuntimeError as error:
            if "process ended" not in str(error):
                raise
            _workers.clear()
            raise Crash(str(error)) from None


def in_onnxruntime(level: str, model: Model, feeds: Arrays, seed: int, file: str = "") -> Arrays:
    """Run *model* at a *level*; write the optimised model to *file*."""

    def adjust(options: onnxruntime.SessionOptions) -> None:
        options.graph_optimization_level = LEVELS[level]
        if file:
            options.optimized_model_filepath = file

    names = [value.name for value in model.outputs]
    return dict(zip(names, run_session(open_session(model.original, 1, adjust=adjust), names, feeds), strict=True))


def in_plan(model: Model, feeds: Arrays, seed: int) -> Arrays:
    """Run *model* in a plan whose winners are drawn by lot."""
    with tempfile.TemporaryDirectory() as folder:
        work = Optimiser(model, QUICK, store=Lots(Path(folder) / "none" / "profiles", seed))
        list(work.run())
        pieces = work.selector().pieces(n for n, part in enumerate(work.parts) if part.kept)
        if not pieces:
            return work.original.run(feeds)
        return work.assembler.plan(work.assembler.together(pieces)).run(feeds)


FAULTS = ("differs", "crashes")
"""The results of a run that are findings."""


def tried(run: Run, case: Case, seed: int) -> tuple[str, str]:
    """Return whether *run* agrees, differs, refuses the model or crashes, and what there is to say of it."""
    try:
        got = {name: np.asarray(array) for name, array in run(case.model, case.feeds, seed).items()}
    except Crash as error:
        return "crashes", str(error)
    except Exception as error:  # every engine has its own
        return "refuses", f"{type(error).__name__}: {error}"
    fits = got.keys() == case.want.keys() and all(got[name].shape == case.want[name].shape for name in got)
    error = _error(case.want, got) if fits else float("inf")
    says = f"differs by {error:.1e} of the largest output, rounding explains {case.allowed:.1e}"
    return ("differs", says) if error > case.allowed else ("agrees", "")


def judged(case: Case, outcome: Outcome, shown: str) -> str:
    """Compare the model with the file of ONNX Runtime's optimiser by proof; return the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/optimised.onnx"
        try:
            got = in_onnxruntime(JUDGED, case.model, case.feeds, 0, file)
            second = load_model(file, {k: a.shape for k, a in case.feeds.items()}, rewrite=expand_contrib_operators)
            verdict: Verdict = compare_models(case.model, second, JUDGEMENT_SECONDS)
        except (ModelError, Refused) as why:
            outcome.counts["equal: not compared"] += 1
            return str(why)
    outcome.counts[f"equal: {verdict.kind}"] += 1
    differs = _error(case.want, got) > case.allowed
    if differs and verdict.kind == "proved":
        outcome.found("equal", "a file with other outputs is called equal", shown)
    if verdict.kind == "different" and not differs:
        outcome.found("equal", f"equal outputs are called different: {verdict.difference}", shown)
    return verdict.kind


def reduced(run: Run, case: Case, values: Mapping[str, Any], seed: int) -> tuple[tuple[str, ...], Case]:
    """Return nodes on which the optimiser still fails, none of which can be left out, and that case.

    Results of nodes that are left out become inputs.
    """
    written = infer_static_shapes("the graph", case.model.original)  # in its operator set: faults may depend on it
    left, small = tuple(node.name for node in written.graph.node), case
    regions = ModelRegions(written)
    waiting = list(left)
    while waiting and len(left) > 1:
        name = waiting.pop(0)
        fewer = tuple(other for other in left if other != name)
        try:
            model = load_model(regions.extract(regions.named(fewer)))
            feeds = {value.name: values[value.name] for value in model.inputs}
            want = {value.name: values[value.name] for value in model.outputs}
        except (ModelError, Refused, KeyError):
            continue
        smaller = Case(model, feeds, want, case.allowed)
        if tried(run, smaller, seed)[0] in FAULTS:
            small, left, waiting = smaller, fewer, list(fewer)
    return left, small


def save(case: Case, file: Path) -> None:
    """Write the model to *file*, inputs and outputs to a NumPy archive of the same name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(case.model.original, file)
    arrays = {f"input {k}": a for k, a in case.feeds.items()} | {f"output {k}": a for k, a in case.want.items()}
    np.savez(file.with_suffix(".npz"), **arrays)
