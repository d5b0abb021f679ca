"""From derived subprograms to one plan: adjacent ones joined and post-optimised, weights folded, all compiled."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from einnet_explore.analysis.equations import weight_only
from einnet_explore.equivalence.verdict import UNSOUND_KINDS
from einnet_explore.ir import VIEW, Equation, Program, Tensor, tensors
from einnet_explore.onnx_export.export import Replacement
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.exported import exported_plan
from einnet_explore.pipeline.history import TuningHistory
from einnet_explore.pipeline.joining import Piece, join_adjacent
from einnet_explore.pipeline.plan import ExecutionPlan, ProgramCall, build_plan
from einnet_explore.pipeline.post.fusing import fuse_eoperators
from einnet_explore.pipeline.post.layouts import Price, assign_layouts
from einnet_explore.pipeline.subprogram import anonymize
from einnet_explore.pipeline.trial import step_certificates
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.epilogues import compile_measured
from einnet_explore.runtime.profile_store import TimeStore
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.strategies.candidate import combined_verdict, replay, steps_to_json
from einnet_explore.support.errors import BackendError, Refused


class PlanForm(StrEnum):
    """The form of a plan: subprograms joined or separate, run by us or as an exported file by ONNX Runtime."""

    JOINED = "joined"
    SEPARATE = "apart"
    EXPORTED = "exported"
    EXPORTED_SEPARATE = "exported apart"

    @property
    def is_joined(self) -> bool:
        """Whether adjacent subprograms are joined."""
        return self in (PlanForm.JOINED, PlanForm.EXPORTED)

    @property
    def is_exported(self) -> bool:
        """Whether ONNX Runtime runs the exported file."""
        return self in (PlanForm.EXPORTED, PlanForm.EXPORTED_SEPARATE)


Proof: TypeAlias = Literal["required", "skipped"]
"""Whether post-optimisation has to be proved; plans that are only measured on trial need no proof."""


@dataclass(frozen=True, slots=True)
class PlanProgram:
    """A program of the plan: the *piece*, the post-optimisation that made it, and the *certificate* of that.

    *certificate* is ``none`` if nothing was done.
    """

    piece: Piece
    derivation: Derivation
    certificate: str

    def to_json(self) -> dict[str, Any]:
        """Return one entry of ``programs`` in the JSON of ``optimize``."""
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
    """Work on weights alone, done once for the whole model: equal derivations of one array share their result."""

    threads: int = 1
    arrays: dict[tuple[str, tuple[int, ...]], Array] = field(default_factory=dict)
    shared: int = 0
    """Results that were used again."""
    _sources: list[Arrays] = field(default_factory=list)

    def fold(self, program: Program, constants: Arrays) -> tuple[Program, Arrays]:
        """Evaluate the equations of *program* that read only weights; return the rest and its constants.

        Views stay, since they take no memory, and so do outputs.  Raises BackendError if one cannot be evaluated.
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
        """Evaluate the one output of *program*, a function of *constants*."""
        given = {t.name: constants[t.name] for t in program.inputs}
        key = anonymize(program).signature, tuple(map(id, given.values()))
        if key in self.arrays:
            self.shared += 1
            return self.arrays[key]
        made = compile_program(program, self.threads, constants=given).run({})
        self._sources.append(given)  # a freed array might pass its id on to another
        found = made[program.outputs[0]]
        self.arrays[key] = np.ascontiguousarray(found).reshape(found.shape)  # rank 0 would become rank 1
        return self.arrays[key]


def _closure(program: Program, name: str) -> Program:
    """Return the part of *program* that equation *name* needs, with it as the only output."""
    needed = {name}
    kept: list[Equation] = []
    for e in reversed(program.equations):
        if e.name in needed:
            kept.insert(0, e)
            needed |= {t.name for t in tensors(e.scope)}
    return Program(_in_order(program.inputs, kept), tuple(kept), (name,))


def _in_order(inputs: Iterable[Tensor], equations: Iterable[Equation]) -> tuple[Tensor, ...]:
    """Return the *inputs* that *equations* read, in the order of reading, so that equal work has equal text."""
    known = {t.name: t for t in inputs}
    return tuple(
        known[name] for name in dict.fromkeys(t.name for e in equations for t in tensors(e.scope)) if name in known
    )


@dataclass
class Assembler:
    """Assembles plans of *model* from derived programs; everything is derived, proved and compiled once.

    Compiled programs, which hold copies of their weights, are freed with the last plan that they are in.
    """

    model: Model
    settings: Settings
    rough: Price
    exact: Price
    store: TimeStore = field(default_factory=TimeStore)
    memory: TuningHistory | None = None
    _post: dict[Program, Derivation] = field(default_factory=dict)
    _proofs: dict[Program, str] = field(default_factory=dict)
    _runs: WeakValueDictionary[tuple[object, ...], CompiledProgram] = field(default_factory=WeakValueDictionary)

    @cached_property
    def folder(self) -> WeightFolder:
        """The folded weights of the model."""
        return WeightFolder(self.settings.threads)

    def assemble(self, pieces: Sequence[Piece], form: PlanForm, proof: Proof = "required") -> tuple[PlanProgram, ...]:
        """Return *pieces* as programs of a plan in *form*."""
        return self.together(pieces, proof) if form.is_joined else self.separate(pieces)

    def together(self, pieces: Sequence[Piece], proof: Proof = "required") -> tuple[PlanProgram, ...]:
        """Join adjacent *pieces* and post-optimise them; those with a step that is not known to hold stay separate."""
        out: list[PlanProgram] = []
        for piece in join_adjacent(self.model, pieces):
            derivation = self._optimised(piece.program)
            kind = self._verdict(piece.program) if proof == "required" else "none"
            if kind in UNSOUND_KINDS:
                out += self.separate(p for p in pieces if set(p.nodes) <= set(piece.nodes))
            else:
                out.append(PlanProgram(replace(piece, program=derivation.end), derivation, kind))
        return tuple(out)

    @staticmethod
    def separate(pieces: Iterable[Piece]) -> tuple[PlanProgram, ...]:
        """Return *pieces* as they are."""
        return tuple(PlanProgram(piece, Derivation(piece.program), "none") for piece in pieces)

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
        """Replay the derivation of an earlier run from *program*; None if there is none or a step does not apply."""
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
        """Return *parts* with folded weights, as a plan or an export takes them."""
        out = []
        for part in parts:
            piece = part.piece
            weights = {t.name: self.model.weights[piece.names[t.name]] for t in piece.program.inputs if t.weight}
            program, constants = self.folder.fold(piece.program, weights)
            names = {k: v for k, v in piece.names.items() if k not in weights}
            out.append(Replacement(piece.nodes, program, names, constants))
        return tuple(out)

    def plan(self, parts: Iterable[PlanProgram], form: PlanForm = PlanForm.JOINED) -> ExecutionPlan:
        """Return the plan with *parts*; in an exported *form*, the exported model in one session.

        Raises Refused.
        """
        return self.export(parts) if form.is_exported else self._compiled_plan(parts)

    def _compiled_plan(self, parts: Iterable[PlanProgram]) -> ExecutionPlan:
        with _plan_errors():
            runs = {r.nodes: ProgramCall(self._compiled(r), r.names) for r in self.replacements(parts)}
            return build_plan(self.model, runs, self.settings.threads)

    def export(self, parts: Iterable[PlanProgram]) -> ExecutionPlan:
        """Return the exported model with *parts*, in one session; raises Refused."""
        with _plan_errors():
            return exported_plan(self.model, self.replacements(parts), self.settings.threads)

    def _compiled(self, replacement: Replacement) -> CompiledProgram:
        key = replacement.program, *((name, id(array)) for name, array in sorted(replacement.constants.items()))
        made = self._runs.get(key)
        if made is None:
            made = compile_measured(replacement.program, self.settings.threads, replacement.constants, self.store)
            self._runs[key] = made
        return made


@contextmanager
def _plan_errors() -> Generator[None, None, None]:
    """Raise Refused for a program that does not compile or finds no memory."""
    try:
        yield
    except BackendError as error:
        raise Refused(str(error)) from error
    except MemoryError as error:
        raise Refused(f"not enough memory: {error}") from error
