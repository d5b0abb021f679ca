"""Random ONNX graphs through import, derivation, compilation and export, against two other engines.

The reference is ONNX Runtime without optimisations, where ONNX's reference evaluator agrees with it.  Each stage is
compared with the reference:

- the expression of each subprogram, evaluated in double precision on the inputs of its nodes;
- the plan of the winners: tuning times are drawn at random, so every implementation and every derivation wins
  sometimes, not only the fastest on this machine.  Post-optimisation and joining are unchanged;
- the exported file in ONNX Runtime, and sometimes in the reference evaluator;
- ``optimize`` with real measurements, for one graph in 20.

An ill-conditioned graph may differ by as much as rounding of its inputs changes its outputs.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from benchmarks.soak.grammar import Drawn, graph
from benchmarks.soak.outcome import Outcome
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelError
from einnet_explore.onnx_import.shapes import replace_misjudged_nodes
from einnet_explore.pipeline.baseline import random_model_inputs
from einnet_explore.pipeline.optimiser import Optimiser
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.runtime.arrays import MAX_RELATIVE_ERROR, largest_error
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.runtime.profile_store import ProfileKey, StoredTime

Arrays = Mapping[str, Any]

MEASURED, REFERENCE = 20, 4
"""One graph in so many is optimised with measurements, one is exported to the reference evaluator."""

QUICK = Settings(threads=1, max_depth=3, seconds=0.15, finalists=3)


class Lots(ProfileStore):
    """Times drawn by lot, the same on every machine: nothing is measured, and anything may win."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path)
        self.seed = seed

    def get(self, key: ProfileKey) -> StoredTime:
        """A time between a microsecond and a millisecond."""
        anywhere = replace(key, device="", library="")
        lot = int.from_bytes(sha256(f"{self.seed} {anywhere}".encode()).digest()[:4], "big") / 2**32
        return StoredTime(10 ** (3 * lot - 6), "drawn by lot")

    def put(self, key: ProfileKey, seconds: float, how: str) -> None:
        """Nothing is kept."""


def item(number: int, n: int) -> Outcome:
    """Graph *n* of seed *number*."""
    outcome = Outcome()
    rng = random.Random(f"{number}:{n}")
    drawn = graph(rng)
    outcome.counts["graphs"] += 1
    outcome.counts.update(f"node {op}" for op in drawn.operators)
    shown = f"opset {drawn.model.opset_import[0].version}: {', '.join(drawn.operators)}"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            examine(drawn, rng.getrandbits(30), n, Path(folder), outcome, shown)
        except Exception as error:
            outcome.found("traceback", error, shown, where(error))
    for warning in said:
        if "search failed" in str(warning.message) or "memory only" in str(warning.message):
            outcome.found("warning", warning.message, shown)
    return outcome


def where(error: BaseException) -> str:
    """The innermost line of ours in the traceback of *error*."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        found = f"{file}:{trace.tb_lineno}" if "einnet" in file or "soak" in file else found
        trace = trace.tb_next
    return found


def examine(drawn: Drawn, seed: int, n: int, folder: Path, outcome: Outcome, shown: str) -> None:
    """Check one graph in every way: its expressions, its plan, its export."""
    try:
        model = load_model(drawn.model, drawn.shapes)
    except ModelError as error:
        outcome.counts["refused"] += 1
        return outcome.found("refused", error, shown)
    feeds = random_model_inputs(model, seed)
    truth = Truth(model, feeds)
    if not truth.settled:
        outcome.counts[f"graphs on which engines differ: {truth.why}"] += 1
        return None
    expressions(model, truth, outcome, shown)
    work = Optimiser(model, QUICK, store=Lots(folder / "none" / "profiles", seed))
    list(work.run())
    outcome.counts.update(f"part {part.certificate}" for part in work.parts if part.trial.winner)
    for part in work.parts:
        if part.certificate == "false":
            outcome.found("certificate", "a derivation has a false step", part.nodes, shown)
    pieces = work.selector().pieces(n_ for n_, part in enumerate(work.parts) if part.kept)
    outcome.counts["subprograms"] += len(work.parts)
    outcome.counts["subprograms replaced"] += len(pieces)
    if pieces:
        assembled = work.assembler.separate(pieces) if seed % 3 == 0 else work.assembler.together(pieces)
        truth.compare("plan", work.assembler.plan(assembled).run(feeds), outcome, shown)
        exported(work, assembled, truth, n, outcome, shown)
    if n % MEASURED == 0:
        measured(model, truth, folder, outcome, shown)
    return None


class Truth:
    """Return the outputs on which two engines agree, and the tolerance."""

    def __init__(self, model: Model, feeds: Arrays) -> None:
        self.model, self.feeds = model, feeds
        self.outputs = [v.name for v in model.outputs]
        self.allowed, self.why, self.told = MAX_RELATIVE_ERROR, "", False
        try:
            session = _session(_showing(model.original))
            names = [output.name for output in session.get_outputs()]
            self.values = dict(feeds) | dict(zip(names, session.run(names, dict(feeds)), strict=True))
        except Exception:  # ONNX Runtime has a class of its own for every kind of failure
            self.why = "ONNX Runtime refuses it"
            return
        self.want = {name: self.values[name] for name in self.outputs}
        known = {name: value.shape for name, value in model.values.items() if value.shape is not None}
        if any(known.get(name, a.shape) != a.shape for name, a in self.values.items()):
            self.why = "ONNX Runtime and ONNX's shape inference"
            return
        if not all(np.isfinite(a).all() for a in self.values.values() if a.dtype.kind == "f"):
            self.why = "it has infinities or NaN"
            return
        moved = {k: np.asarray(np.nextafter(v, np.float32(np.inf))) for k, v in feeds.items()}
        again = dict(zip(self.outputs, session.run(self.outputs, moved), strict=True))
        self.allowed = max(MAX_RELATIVE_ERROR, 50 * largest_error(self.want, again))
        if self.allowed > 0.01:
            self.why = "it is ill-conditioned"
            return
        try:
            reference = ReferenceEvaluator(model.original).run(self.outputs, dict(feeds))
        except Exception:
            return  # the reference has gaps; ONNX Runtime is believed
        self.told = True
        given = dict(zip(self.outputs, map(np.asarray, reference), strict=True))
        if _error(self.want, given) > self.allowed:
            self.why = "ONNX Runtime and the reference evaluator"

    @property
    def settled(self) -> bool:
        """Whether there is something to agree with."""
        return not self.why

    def compare(self, what: str, got: Arrays, outcome: Outcome, shown: str) -> None:
        """Note it where *got* is not what the graph computes."""
        outcome.counts[what] += 1
        if set(got) != set(self.want):
            return outcome.found(what, f"outputs {sorted(got)}, expected {sorted(self.want)}", shown)
        if (error := _error(self.want, got)) > self.allowed:
            outcome.found(what, f"differs by {error:.1e} of the largest output, allowed {self.allowed:.1e}", shown)
        return None


def expressions(model: Model, truth: Truth, outcome: Outcome, shown: str) -> None:
    """Each subprogram's expression on the values that flow into it."""
    for sub in partition(model).subprograms:
        known = {**truth.values, **model.weights}
        names = [t.name for t in sub.program.inputs]
        if not set(sub.inputs) | set(sub.outputs) <= known.keys():
            outcome.counts["subprograms whose values the converter renamed"] += 1
            continue
        inputs = {name: known[value] for name, value in zip(names, sub.inputs, strict=True)}
        exact = evaluate(sub.program, inputs, np.float64, outputs_only=True)
        got = {name: array.astype(np.float32) for name, array in exact.items()}
        want = {name: known[value] for name, value in zip(sub.program.outputs, sub.outputs, strict=True)}
        outcome.counts["expressions"] += 1
        if (error := _error(want, got)) > 1e-3:
            outcome.found("expression", f"differs by {error:.1e}", ", ".join(sub.nodes), shown)


def exported(work: Optimiser, assembled: Any, truth: Truth, n: int, outcome: Outcome, shown: str) -> None:
    """The exported model in ONNX Runtime, and now and then by the reference evaluator."""
    truth.compare("export", work.assembler.export(assembled).run(dict(truth.feeds)), outcome, shown)
    if n % REFERENCE or not truth.told:
        return
    from einnet_explore.pipeline.plan import export_model as written

    made = written(work.model, work.assembler.replacements(assembled)).whole
    proto = onnx.load_from_string(made.SerializeToString())
    judged = onnx.load_from_string(proto.SerializeToString())
    replace_misjudged_nodes(judged)
    onnx.checker.check_model(judged, full_check=True)
    try:
        found = ReferenceEvaluator(proto).run(truth.outputs, dict(truth.feeds))
    except Exception:  # ONNX Runtime ran it, the checker takes it: grouped ConvTranspose is one of the reference's gaps
        outcome.counts["exports that the reference evaluator does not run"] += 1
        return
    truth.compare("export in the reference evaluator", dict(zip(truth.outputs, found, strict=True)), outcome, shown)


def measured(model: Model, truth: Truth, folder: Path, outcome: Outcome, shown: str) -> None:
    """The whole of ``optimize``."""
    work = Optimiser(model, QUICK, budget=1.0, store=ProfileStore(folder / "profiles.sqlite"))
    list(work.run())
    fast = work.result()
    truth.compare("optimize", fast.plan.run(dict(truth.feeds)), outcome, shown)
    fast.onnx()


def _error(want: Arrays, got: Arrays) -> float:
    """``largest_error``, but for outputs that are nothing but what is left below the smallest normal numbers."""
    tiny = {name for name in want if max(np.max(np.abs(a), initial=0) for a in (want[name], got[name])) < 1e-30}
    return largest_error({k: v for k, v in want.items() if k not in tiny}, got)


def _showing(proto: onnx.ModelProto) -> onnx.ModelProto:
    """*proto* with every real value as an output."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    have = {v.name for v in shown.graph.output}
    names = [name for node in shown.graph.node for name in node.output if name and name not in have]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return shown


def _session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
