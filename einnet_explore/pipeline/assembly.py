"""From derived subprograms to one plan: adjacent ones joined and post-optimised, weights folded, all compiled.

One program of a plan.

Work on weights alone, done once for the whole model: equal derivations of one array share their result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from einnet_explore.analysis.equations import weight_only
from einnet_explore.ir import VIEW, Equation, Program, Tensor, tensors
from einnet_explore.onnx_export.export import Replacement
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.exported import exported_plan
from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.joining import Piece, join_adjacent
from einnet_explore.pipeline.originals import anonymize
from einnet_explore.pipeline.outcome import step_certificates
from einnet_explore.pipeline.plan import ExecutionPlan, ProgramCall, build_plan
from einnet_explore.pipeline.post.fusing import fuse_eoperators
from einnet_explore.pipeline.post.layouts import Price, assign_layouts
from einnet_explore.pipeline.tuning_task import Settings
from einnet_explore.rules import Derivation
from einnet_explore.runtime.epilogues import compile_measured
from einnet_explore.runtime.outputs import Array, Arrays
from einnet_explore.runtime.profile_store import Store
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.strategies.candidate import combined_verdict, replay, steps_to_json
from einnet_explore.support.errors import BackendError, Refused


@dataclass(frozen=True, slots=True)
class PlanProgram:
    """A program of the plan: *piece*, what post-optimisation did to make it, and how well that is proved.

    *certificate* is ``none`` where nothing was done.
    """

    piece: Piece
    derivation: Derivation
    certificate: str

    def to_json(self) -> dict[str, Any]:
        """One entry of ``programs`` in the JSON of ``optimize``."""
        program = self.piece.program
        folded = weight_only(program)
        run = [e.via for e in program.equations if e.via and e.name not in folded]
        return {
            "nodes": list(self.piece.nodes),
            "operators": [v.operator for v in run if v.is_library_call],
            "eoperators": sum(v.is_eoperator for v in run),
            "certificate": self.certificate,
            "steps": [step.match.to_json() for step in self.derivation.steps],
        }


@dataclass
class WeightFolder:
    """The folded weights of one model, by how they were made of which arrays."""

    threads: int = 1
    held: dict[tuple[str, tuple[int, ...]], Array] = field(default_factory=dict)
    shared: int = 0
    """How many results were used again."""
    _sources: list[Arrays] = field(default_factory=list)

    def fold(self, program: Program, constants: Arrays) -> tuple[Program, Arrays]:
        """*program* without its equations of weights only, and *constants* with what the others read of them.

        Views stay, since they take no memory; outputs stay, since somebody has to write them.  Raises BackendError
        where one cannot be evaluated.
        """
        known = weight_only(program)
        folded = {e.name: e for e in program.equations if e.name in known and e.name not in program.outputs}
        plain = {name for name, e in folded.items() if e.via is not None and e.via.operator == VIEW}
        rest = tuple(e for e in program.equations if e.name not in folded or e.name in plain)
        read = {t.name for e in rest for t in tensors(e.scope)}
        arrays = dict(constants)
        weights: dict[str, Tensor] = {}
        for name in (n for n in folded if n in read and n not in plain):
            arrays[name] = self._folded(_closure(program, name), constants)
            weights[name] = replace(folded[name].tensor, weight=True)
        inputs = (*program.inputs, *weights.values())
        needed = tuple(t for t in inputs if t.name in read or not t.weight)
        return (
            replace(program, inputs=needed, equations=rest),
            {t.name: arrays[t.name] for t in needed if t.name in arrays},
        )

    def _folded(self, program: Program, constants: Arrays) -> Array:
        """The one output of *program*, a function of *constants*."""
        given = {t.name: constants[t.name] for t in program.inputs}
        key = anonymize(program).signature, tuple(map(id, given.values()))
        if key in self.held:
            self.shared += 1
            return self.held[key]
        made = compile_program(program, self.threads, constants=given).run({})
        self._sources.append(given)  # an array that is let go might give its identity to another
        found = made[program.outputs[0]]
        self.held[key] = np.ascontiguousarray(found).reshape(found.shape)  # rank 0 would become rank 1
        return self.held[key]


def _closure(program: Program, name: str) -> Program:
    """What of *program* the equation called *name* needs, with it as the only output."""
    needed = {name}
    kept: list[Equation] = []
    for e in reversed(program.equations):
        if e.name in needed:
            kept.insert(0, e)
            needed |= {t.name for t in tensors(e.scope)}
    return Program(_in_order(program.inputs, kept), tuple(kept), (name,))


def _in_order(inputs: Iterable[Tensor], equations: Iterable[Equation]) -> tuple[Tensor, ...]:
    """The *inputs* that *equations* read, in the order in which they do: equal work has equal text."""
    held = {t.name: t for t in inputs}
    return tuple(
        held[name] for name in dict.fromkeys(t.name for e in equations for t in tensors(e.scope)) if name in held
    )


@dataclass
class Assembler:
    """Makes plans of *model* from pieces; what was made once is not made again.

    Compiled programs, which have copies of their weights, are let go with the last plan that they are in.
    """

    model: Model
    settings: Settings
    rough: Price
    exact: Price
    store: Store = field(default_factory=Store)
    memory: TuningHistory | None = None
    folder: WeightFolder = field(init=False)
    _post: dict[Program, Derivation] = field(default_factory=dict)
    _proofs: dict[Program, str] = field(default_factory=dict)
    _runs: WeakValueDictionary[tuple[object, ...], CompiledProgram] = field(default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        self.folder = WeightFolder(self.settings.threads)

    def together(self, pieces: Sequence[Piece], proved: bool = True) -> tuple[PlanProgram, ...]:
        """*pieces* joined where they are adjacent and post-optimised; those that are not proved equal stay apart.

        What is only to be measured need not be *proved*: many are tried, and of each one nearly all the time is that.
        """
        out: list[PlanProgram] = []
        for piece in join_adjacent(self.model, pieces):
            derivation = self._optimised(piece.program)
            kind = self._verdict(piece.program) if proved else "none"
            if kind == "false":
                out += [self._as_it_is(p) for p in pieces if set(p.nodes) <= set(piece.nodes)]
            else:
                out.append(PlanProgram(replace(piece, program=derivation.end), derivation, kind))
        return tuple(out)

    def apart(self, pieces: Iterable[Piece]) -> tuple[PlanProgram, ...]:
        """*pieces* as they are."""
        return tuple(map(self._as_it_is, pieces))

    @staticmethod
    def _as_it_is(piece: Piece) -> PlanProgram:
        return PlanProgram(piece, Derivation(piece.program), "none")

    def _optimised(self, program: Program) -> Derivation:
        if program not in self._post:
            known = self._remembered(program)
            self._post[program] = self._derived(program) if known is None else known
        return self._post[program]

    def _derived(self, program: Program) -> Derivation:
        found = fuse_eoperators(assign_layouts(fuse_eoperators(Derivation(program)), self.rough, self.exact))
        if self.memory is not None:
            self.memory.put(steps_to_json(found), "post", *self._key(program))
        return found

    def _remembered(self, program: Program) -> Derivation | None:
        """What an earlier run made of *program*, its steps applied again; None where none did, or they do not apply."""
        steps = None if self.memory is None else self.memory.get("post", *self._key(program))
        try:
            return None if steps is None else replay(program, steps)
        except Refused:
            return None

    def _key(self, program: Program) -> tuple[str, Settings]:
        return repr(program), replace(self.settings, seconds=0.0)

    def _verdict(self, program: Program) -> str:
        if program not in self._proofs:
            self._proofs[program] = combined_verdict(step_certificates(self._optimised(program)))
        return self._proofs[program]

    def replacements(self, parts: Iterable[PlanProgram]) -> tuple[Replacement, ...]:
        """*parts* with the arrays of their weights, work on weights alone done: what a plan or an export takes."""
        out = []
        for part in parts:
            piece = part.piece
            weights = {t.name: self.model.weights[piece.names[t.name]] for t in piece.program.inputs if t.weight}
            program, constants = self.folder.fold(piece.program, weights)
            names = {k: v for k, v in piece.names.items() if k not in weights}
            out.append(Replacement(piece.nodes, program, names, constants))
        return tuple(out)

    def plan(self, parts: Iterable[PlanProgram]) -> ExecutionPlan:
        """The plan with *parts* in it; raises Refused."""
        with _planning():
            runs = {r.nodes: ProgramCall(self._compiled(r), r.names) for r in self.replacements(parts)}
            return build_plan(self.model, runs, self.settings.threads)

    def export(self, parts: Iterable[PlanProgram]) -> ExecutionPlan:
        """The exported model with *parts* in it, in one session; raises Refused."""
        with _planning():
            return exported_plan(self.model, self.replacements(parts), self.settings.threads)

    def _compiled(self, replacement: Replacement) -> CompiledProgram:
        key = replacement.program, *((name, id(array)) for name, array in sorted(replacement.constants.items()))
        made = self._runs.get(key)
        if made is None:
            made = compile_measured(replacement.program, self.settings.threads, replacement.constants, self.store)
            self._runs[key] = made
        return made


@contextmanager
def _planning() -> Generator[None, None, None]:
    """What is not compiled or finds no memory makes no plan: raises Refused then, as for what cannot be run."""
    try:
        yield
    except BackendError as error:
        raise Refused(str(error)) from error
    except MemoryError as error:
        raise Refused(f"not enough memory: {error}") from error
