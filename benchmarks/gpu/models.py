"""The evaluation models for a GPU, in parts; the GPU chooses among the variants of each part by measurement.

A part is a subprogram of a model.  Its first variant is the original by library operators (cuDNN, cuBLAS), the others
are derived programs, found by a search that is ordered by a profile or by a device's rates.  Equal parts of all models
and layers are one.  The bundle has no weights: the runner makes similar ones, the same for everything that is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from einnet_evaluation.models import MODELS, write
from einnet_explore.cost import CostModel, Device
from einnet_explore.cost.model import work
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.subprogram import anonymize
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.tuning_task import find_variants, search_subprogram, select_finalists
from einnet_explore.rules import Derivation
from einnet_explore.runtime.cuda.plan import cuda_plan, fused_launch, with_softmax_sums
from einnet_explore.runtime.cuda.steps import CudaPlan
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.limits import MemoryWatch

LIBRARY = "library"
"""The way that is a model's own operators, one call each."""

FINALISTS = 3
"""Derived ways of a part that are measured."""

SLACK = 4.0
"""A derived way is taken along if its estimate is below so many times the original's."""

SMALLER: Mapping[tuple[str, int], int] = {("longformer", 16): 1000}
"""Sizes that are not the published ones: torch holds all windows of a head at once."""

STORED = 4096
"""Weights of at most so many elements are in the bundle as they are: statistics and shifts are not like others."""

SHEET = Device("an H100 by its data sheet", 1, 6.7e13, 3.3e12, 5.5e12, 50 << 20, 2.5e-6, generated=0.3)
"""What orders a search without a profile: float32 outside tensor cores.  No figure is made of it."""


def by_sheet() -> Cost:
    """The cost of a program by ``SHEET``."""
    model = CostModel(SHEET)

    def seconds(program: Program) -> tuple[float, str]:
        found = model.program_cost(program)
        return found.seconds, found.how

    return seconds


@dataclass
class Collected:
    """Models and the parts that they share: what goes into the bundle.  *note* hears what is done."""

    cost: Cost
    seconds: float
    note: Callable[[str], object] = lambda _: None
    ways: dict[str, dict[str, Any]] = field(default_factory=dict)
    models: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, label: str, model: Model) -> None:
        """*model*, called *label*; a model without a plan is left out, and ``left_out`` has the reason."""
        self.note(label)
        try:
            told = [self._part(model, nodes, program, names) for nodes, program, names in parts_of(model)]
        except (ValueError, BackendError) as error:
            self.left_out[label] = " ".join(str(error).split())[:300]
            return
        by_torch = in_torch(model)
        used = {value for part in told for value in part["names"].values()} | set((by_torch or {}).get("arguments", ()))
        weights = {}
        for value, array in model.weights.items():
            if value in used and value not in weights:
                weights[value] = self._weight(array)
        self.models.append(
            {
                "name": label,
                "inputs": {v.name: list(model.shape(v.name)) for v in model.inputs},
                "outputs": [v.name for v in model.outputs],
                "weights": weights,
                "parts": told,
                "flops": sum(self.ways[part["way"]]["flops"] for part in told),
                "torch": by_torch,
            }
        )

    def _weight(self, array: np.ndarray) -> dict[str, Any]:
        if array.size <= STORED or array.dtype != np.float32:
            content = array.tobytes() + str((array.dtype, array.shape)).encode()
            name = f"weight {hashlib.sha256(content).hexdigest()[:16]}"
            self.arrays[name] = array
            return {"stored": name}
        return {"shape": list(array.shape), "mean": float(array.mean()), "deviation": float(array.std())}

    def _part(self, model: Model, nodes: Sequence[str], program: Program, names: Mapping[str, str]) -> dict[str, Any]:
        anon = anonymize(program)
        key = hashlib.sha256(anon.signature.encode()).hexdigest()[:12]
        if key not in self.ways:
            self.ways[key] = self._ways(anon.program)
        called = {new: names[old] for new, old in anon.names.items() if old in names}
        return {"nodes": list(nodes), "way": key, "names": called}

    def _ways(self, program: Program) -> dict[str, Any]:
        found: dict[str, CudaPlan] = {}
        first = library(program, self.cost)
        found[LIBRARY] = cuda_plan(first)
        for n, made in enumerate(derived(program, first, self.cost, self.seconds), 1):
            with_plan(found, f"derived {n}", lambda made=made: cuda_plan(made))  # type: ignore[misc]
        with_plan(found, "one kernel", lambda: fused(first))
        if (summed := with_softmax_sums(program)) != program:
            with_plan(found, "one pass", lambda: cuda_plan(fuse_eoperators(Derivation(summed)).end))
        return {
            "flops": sum(work(e.scope).flops for e in program.equations),
            "plans": {name: plan.to_json() for name, plan in found.items()},
        }


def with_plan(found: dict[str, CudaPlan], name: str, make: Callable[[], CudaPlan]) -> None:
    """Put the plan that *make* makes into *found*, unless none can be made or it is there already."""
    try:
        plan = make()
    except (BackendError, Refused):
        return
    if all(plan.steps != other.steps for other in found.values()):
        found[name] = plan


def parts_of(model: Model) -> list[tuple[tuple[str, ...], Program, dict[str, str]]]:
    """The parts of *model* in an order in which they can run: (nodes, program, the model's value of each name).

    Raises ValueError, naming the node, for one that is not understood.
    """
    split = partition(model)
    back = {model.identifiers[name]: name for name in model.identifiers}
    found = [(s.nodes, s.program, {n: back[n] for n in _shared(s.program)}) for s in split.subprograms]
    inside = {name for nodes, *_ in found for name in nodes}
    reasons = {s.node: s.why for s in split.skipped}
    for node in model.nodes:
        if node.name in inside or reasons.get(node.name, "").startswith("no output"):
            continue
        match express(node, model):
            case NotUnderstood(reason):
                raise ValueError(f"{model.path}: {node}: {reason}")
            case equations:
                program = assemble(equations, tuple(model.identifiers[n] for n in node.results))
                names = {n: back[n] for n in _shared(program)}
        found.append(((node.name,), program, names))
    return _ordered(model, found)


def _shared(program: Program) -> Iterable[str]:
    return (*(t.name for t in program.inputs), *program.outputs)


def _ordered(model: Model, found: list[Any]) -> list[Any]:
    """*found* so that what a part reads comes before it."""
    ready = {v.name for v in model.inputs} | set(model.weights)
    out, left = [], list(found)
    while left:
        now = [part for part in left if all(part[2][t.name] in ready for t in part[1].inputs if not t.weight)]
        if not now:
            raise ValueError(f"{model.path}: parts of {left[0][0][0]} and others read one another")
        out += now
        ready |= {part[2][name] for part in now for name in part[1].outputs}
        left = [part for part in left if all(part is not other for other in now)]
    return out


def library(program: Program, cost: Cost) -> Program:
    """*program* with as many library operators as it has, as it is; itself where it has none."""
    found, made = search_subprogram(program, cost, Settings(max_depth=0, seconds=5.0), MemoryWatch())
    named = [(-len(calls(made.states[s].program)), seconds, s) for seconds, s in found]
    return fuse_eoperators(made.derivation(min(named)[2])).end if named else fuse_eoperators(Derivation(program)).end


def calls(program: Program) -> tuple[Equation, ...]:
    """The equations of *program* that are calls of libraries."""
    return tuple(e for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW))


def derived(program: Program, first: Program, cost: Cost, seconds: float) -> Iterable[Program]:
    """The derived forms of *program* that are worth measuring in addition to *first*, cheapest first."""
    if not calls(first):
        return
    ranked = find_variants(program, cost, Settings(seconds=seconds)).variants
    for entry in select_finalists(ranked, FINALISTS, SLACK * cost(first)[0]):
        yield fuse_eoperators(entry.derivation()).end


def fused(program: Program) -> CudaPlan:
    """All of *program* as one kernel; raises Refused, and BackendError where a library is called."""
    if calls(program) or len(program.equations) < 2:
        raise BackendError("there is nothing to fuse")
    buffers = {t.name: t.shape for t in program.inputs}
    buffers |= {e.name: e.scope.shape for e in program.equations if e.name in program.outputs}
    step = fused_launch(program, buffers)
    inputs, weights = ([t.name for t in program.inputs if t.weight == is_one] for is_one in (False, True))
    return CudaPlan(buffers, tuple(inputs), tuple(weights), program.outputs, (step,))


def in_torch(model: Model) -> dict[str, Any] | None:
    """*model* as a function of ATen's operators, as text, and what it is called with; None without torch.

    Arguments are values of the model: weights first, then inputs.
    """
    if find_spec("torch") is None:
        return None
    import torch

    from einnet_evaluation.torch_engine import graph_module

    try:
        module = graph_module(torch, model).eval()
        zeros = tuple(torch.zeros(v.shape or ()) for v in model.inputs)
        made = torch.export.export(module, zeros)
    except Exception as error:  # whatever it does not know must not cost the others
        return {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    used = {name for node in model.nodes for name in node.reads} | {v.name for v in model.outputs}
    weights = {f"weight_{n}": name for n, name in enumerate(k for k in model.weights if k in used)}
    inputs = iter(model.inputs)
    arguments = [weights[str(s.target)] if s.target else next(inputs).name for s in made.graph_signature.input_specs]
    return {"text": made.graph_module.code.strip(), "arguments": arguments}


def collected(
    cost: Cost,
    seconds: float,
    quick: bool,
    note: Callable[[str], object] = lambda _: None,
    files: Iterable[Path] = (),
) -> Collected:
    """All models at batch 1 and 16; *quick*: a small one.  Where *files* are named, those models instead.

    Raises ModelError for a file that cannot be read.
    """
    found = Collected(cost, seconds, note)
    paths = tuple(files)
    for path in paths:
        found.add(path.stem, load_model(path, {}))
    if paths:
        return found
    wanted = [("fsrcnn", 1, 8)] if quick else [(m.name, batch, None) for batch in (1, 16) for m in MODELS]
    for name, batch, size in wanted:
        smaller = SMALLER.get((name, batch), size)
        found.add(f"{name}, batch {batch}", load_model(write(name, batch, smaller), {}))
    return found
