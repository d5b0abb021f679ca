"""The evaluation models for a GPU, in parts (``pipeline.gpu_parts``); those of all models that are equal are one.

The bundle has no weights: the runner makes similar ones, the same for everything that is compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo import across as kinds
from einnet_evaluation.models import MODELS, write
from einnet_explore.cost.model import work
from einnet_explore.ir import Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.gpu_parts import ModelPart, library_plan, other_plans, split_into_parts
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.strategies.options import Cost

SMALLER: Mapping[tuple[str, int], int] = {("longformer", 16): 1000}
"""Sizes that are not the published ones: torch holds all windows of a head at once."""

ACROSS = ("causal_4096x64", "gated_2048x64", "linear_8x1024x64", "mean_64x64x56", "rows_128x1024x1024")
"""Programs of ``benchmarks.zoo.across`` whose operators are factored, or whose attention is cut into chunks."""

STORED = 4096
"""Weights of at most so many elements are in the bundle as they are: statistics and shifts are not like others."""


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
            told = [self._part(part) for part in split_into_parts(model)]
        except Exception as error:  # one that fails must not cost the others: the bundle names it
            self.left_out[label] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
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

    def _part(self, part: ModelPart) -> dict[str, Any]:
        if part.key not in self.ways:
            self.ways[part.key] = self._ways(part.program)
        return {"nodes": list(part.nodes), "way": part.key, "names": part.names}

    def _ways(self, program: Program) -> dict[str, Any]:
        first = library_plan(program, self.cost)
        plans = [first, *other_plans(program, first, self.cost, Settings(seconds=self.seconds))]
        return {
            "flops": sum(work(e.scope).flops for e in program.equations),
            "plans": {each.name: each.plan.to_json() for each in plans},
        }


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
    """All models at batch 1, those of ``ACROSS``, all at batch 16; *quick*: two small ones.

    Where *files* are named, those models instead.

    Raises ModelError for a file that cannot be read.
    """
    found = Collected(cost, seconds, note)
    paths = tuple(files)
    for path in paths:
        found.add(path.stem, load_model(path, {}))
    if paths:
        return found
    if quick:
        found.add("fsrcnn, batch 1", load_model(write("fsrcnn", 1, 8), {}))
        found.add("causal linear attention, 64x8", load_model(kinds.causal_attention(False, 64, 8), {}))
        return found
    for batch in (1, 16):
        for model in MODELS:
            size = SMALLER.get((model.name, batch))
            found.add(f"{model.name}, batch {batch}", load_model(write(model.name, batch, size), {}))
        for kind in kinds.ACROSS if batch == 1 else ():
            if kind.name in ACROSS:
                found.add(kind.title, load_model(kind.write(), {}))
    return found
