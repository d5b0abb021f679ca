"""A model for a GPU in parts, and the plans of each part, among which the GPU chooses by measurement.

A part is a subprogram of the model, or a single node that is in none.  Its first plan is the original by library
operators (cuDNN, cuBLAS); the others are of derived programs, or one kernel for all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from einnet_explore.cost import CostModel, Device
from einnet_explore.ir import EOPERATOR, VIEW, Equation, Program
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.pipeline.fusion import fuse_eoperators
from einnet_explore.pipeline.partition import partition
from einnet_explore.pipeline.reading_memory import ReadingMemory
from einnet_explore.pipeline.subprogram import anonymize
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.pipeline.variants import Variant, find_variants, search_subprogram, select_finalists
from einnet_explore.rules import Derivation
from einnet_explore.runtime.cuda.plan import cuda_plan, derive_softmax_sums, one_kernel_plan
from einnet_explore.runtime.cuda.steps import CudaPlan
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.limits import MemoryWatch
from einnet_explore.syntax import text

LIBRARY, ONE_KERNEL, ONE_PASS = "library", "one kernel", "one pass"
"""Names of plans: of a part's own operators, one call each, of a single kernel, and of softmax-weighted sums."""

MAX_DERIVED_PLANS = 5
"""Derived plans of a part that are measured."""

MAX_ESTIMATE_RATIO = 4.0
"""A derived plan is measured if its estimate is below this multiple of the library plan's."""

LIBRARY_SEARCH_SECONDS = 5.0
"""Most seconds in which a part's operators are matched with libraries'; nothing is derived."""

DATA_SHEET = Device("an H100 by its data sheet", 1, 6.7e13, 3.3e12, 5.5e12, 50 << 20, 2.5e-6, generated=0.3)
"""The rates that order a search without measured ones: float32 outside tensor cores.  No figure is made of it."""


def data_sheet_cost() -> Cost:
    """Return the cost of programs by ``DATA_SHEET``."""
    model = CostModel(DATA_SHEET)

    def seconds(program: Program) -> tuple[float, str]:
        found = model.program_cost(program)
        return found.seconds, found.how

    return seconds


@dataclass(frozen=True)
class ModelPart:
    """*nodes* of a model and their *program*, whose tensors are named by their positions.

    *names* are the model's values by the names of the program's inputs and outputs.
    """

    nodes: tuple[str, ...]
    program: Program
    names: dict[str, str]

    @cached_property
    def key(self) -> str:
        """A digest of the program, equal for equal parts of all models and layers."""
        return hashlib.sha256(text(self.program).encode()).hexdigest()[:12]


def split_into_parts(model: Model, memory: ReadingMemory | None = None) -> list[ModelPart]:
    """Return the parts of *model* in an order in which they can run; *memory* has answers of earlier runs.

    Raises ValueError, naming the node, for one that is not understood: a GPU runs all parts or none.
    """
    split = partition(model, memory, through_cache=False)
    found = [_part(model, s.nodes, s.program) for s in split.subprograms]
    inside = {name for part in found for name in part.nodes}
    reasons = {s.node: s.why for s in split.skipped}
    for node in model.nodes:
        if node.name in inside or reasons.get(node.name, "").startswith("no output"):
            continue
        match express(node, model):
            case NotUnderstood(reason):
                raise ValueError(f"{model.path}: {node}: {reason}")
            case equations:
                program = assemble(equations, tuple(model.identifiers[n] for n in node.results))
        found.append(_part(model, (node.name,), program))
    return _ordered(model, found)


def _part(model: Model, nodes: Sequence[str], program: Program) -> ModelPart:
    back = {identifier: value for value, identifier in model.identifiers.items()}
    anonymous = anonymize(program)
    shared = {*(t.name for t in program.inputs), *program.outputs}
    names = {new: back[old] for new, old in anonymous.names.items() if old in shared}
    return ModelPart(tuple(nodes), anonymous.program, names)


def _ordered(model: Model, found: list[ModelPart]) -> list[ModelPart]:
    """*found* so that a part comes after those whose outputs it reads."""
    ready = {v.name for v in model.inputs} | set(model.weights)
    ordered, left = list[ModelPart](), list(found)
    while left:
        now = [p for p in left if all(p.names[t.name] in ready for t in p.program.inputs if not t.weight)]
        if not now:
            raise ValueError(f"{model.path}: parts of {left[0].nodes[0]} and others read one another")
        ordered += now
        ready |= {part.names[name] for part in now for name in part.program.outputs}
        left = [part for part in left if all(part is not other for other in now)]
    return ordered


@dataclass(frozen=True)
class PartPlan:
    """One *plan* of a part, called *name*: it computes the end of *derivation*."""

    name: str
    derivation: Derivation
    plan: CudaPlan


def library_plan(program: Program, cost: Cost, seconds: float = LIBRARY_SEARCH_SECONDS) -> PartPlan:
    """Return the plan of *program* with as many library operators as are found in *seconds*.

    Raises BackendError if there is none.
    """
    settings = Settings(max_depth=0, seconds=seconds)
    found, made = search_subprogram(program, cost, settings, MemoryWatch())
    ranked = [(-len(library_calls(made.states[s].program)), seconds, s) for seconds, s in found]
    derivation = fuse_eoperators(made.derivation(min(ranked)[2]) if ranked else Derivation(program))
    return plan_part(LIBRARY, derivation)


def library_calls(program: Program) -> tuple[Equation, ...]:
    """Return the equations of *program* that are calls of libraries."""
    return tuple(e for e in program.equations if e.via and e.via.operator not in (EOPERATOR, VIEW))


def other_plans(program: Program, first: PartPlan, cost: Cost, settings: Settings) -> Iterable[PartPlan]:
    """Yield the plans of *program* that are worth measuring in addition to *first*, its library plan.

    These are derived programs, cheapest first, which a search with the effort of *settings* finds, and one kernel.
    """
    seen = [first.plan.steps]
    for name, derivation in _candidates(program, first, cost, settings):
        try:
            made = plan_part(name, derivation)
        except (BackendError, Refused):
            continue
        if made.plan.steps not in seen:
            seen.append(made.plan.steps)
            yield made


def plan_part(name: str, derivation: Derivation) -> PartPlan:
    """Return the plan called *name* of the end of *derivation*; raises BackendError or Refused if there is none."""
    return PartPlan(name, derivation, (one_kernel_plan if name == ONE_KERNEL else cuda_plan)(derivation.end))


def _candidates(program: Program, first: PartPlan, cost: Cost, settings: Settings) -> Iterable[tuple[str, Derivation]]:
    if library_calls(first.derivation.end):
        ranked = [replace(v, kind=_libraries(v)) for v in find_variants(program, cost, settings).variants]
        finalists = select_finalists(ranked, MAX_DERIVED_PLANS, MAX_ESTIMATE_RATIO * cost(first.derivation.end)[0])
        for n, variant in enumerate(finalists, 1):
            yield f"derived {n}", fuse_eoperators(variant.derivation())
    elif len(first.derivation.end.equations) > 1:
        yield ONE_KERNEL, first.derivation
    if (one_pass := derive_softmax_sums(program)).steps:
        yield ONE_PASS, fuse_eoperators(one_pass)


def _libraries(variant: Variant) -> frozenset[bool]:
    """Return of whether cuDNN and cuBLAS are called: no estimate knows for which sizes one of them is slow.

    On an H200, cuDNN took 60 times the estimate for convolutions of 11 rows in float32.
    """
    kind = variant.kind if isinstance(variant.kind, tuple) else ()
    return frozenset(name.startswith("Conv") for name in kind if isinstance(name, str))
