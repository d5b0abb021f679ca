"""From derived subprograms to one plan: adjacent ones joined and post-optimised, weights folded, all compiled.

Two subprograms are adjacent if one reads the other's result or both read one value.  They are joined, so that fusion
and layouts cross their old borders, if no path between them leads through a third node (every program stays convex) and
if they agree on the padding of the tensors that they share.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Literal, TypeAlias
from weakref import WeakValueDictionary

import networkx as nx

from einnet_explore.analysis.equations import union_padding, weight_only
from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.codegen.wide_values import with_wide_values
from einnet_explore.equivalence.verdict import UNSOUND_KINDS
from einnet_explore.ir import VIEW, Equation, Program, Scope, Tensor, map_tensors, tensors
from einnet_explore.onnx_export.export import Replacement
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.hosted_plan import build_hosted_plan
from einnet_explore.pipeline.layouts import Price, post_optimise
from einnet_explore.pipeline.plan import ExecutionPlan, ProgramCall, build_plan, exported_plan
from einnet_explore.pipeline.subprogram import anonymize, step_certificates
from einnet_explore.pipeline.tuning_context import Settings, TuningHistory
from einnet_explore.rules import Derivation
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.hosts import Host
from einnet_explore.runtime.implementation_choice import compile_measured
from einnet_explore.runtime.onnx_weights import LargePages
from einnet_explore.runtime.profile_store import TimeStore
from einnet_explore.runtime.program import CompiledProgram, compile_program
from einnet_explore.strategies.candidate import combined_verdict, replay, steps_to_json
from einnet_explore.support.errors import BackendError, Refused
from einnet_explore.support.json_values import JsonObject


@dataclass(frozen=True, slots=True)
class Piece:
    """A program that replaces *nodes*; *names* maps its inputs (weights too) and outputs to values of the model."""

    nodes: tuple[str, ...]
    program: Program
    names: Mapping[str, str]

    @property
    def reads(self) -> tuple[str, ...]:
        """The values that it reads, without weights."""
        return tuple(self.names[t.name] for t in self.program.inputs if not t.weight)

    @property
    def makes(self) -> tuple[str, ...]:
        """The values that it computes."""
        return tuple(self.names[name] for name in self.program.outputs)


def join_adjacent(model: Model, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Join adjacent *pieces*, which are in an executable order, as far as possible."""
    graph = _graph(model, pieces)
    members: dict[int, tuple[int, ...]] = {n: (n,) for n in range(len(pieces))}
    made: dict[tuple[int, ...], Piece] = {(n,): piece for n, piece in enumerate(pieces)}
    for one, other in _adjacent(pieces):
        a, b = members[one], members[other]
        if a == b or not _convex(graph, a[0], b[0]):
            continue
        both = tuple(sorted((*a, *b)))
        if (piece := join_programs(model, [pieces[n] for n in both])) is not None:
            made[both] = piece
            nx.contracted_nodes(graph, both[0], (b if both[0] == a[0] else a)[0], self_loops=False, copy=False)
            members |= dict.fromkeys(both, both)
    return tuple(made[key] for key in dict.fromkeys(members.values()))


def _graph(model: Model, pieces: Sequence[Piece]) -> nx.DiGraph:
    """Return the graph of the model with every piece as one vertex, its number."""
    unit: dict[str, int | str] = {node.name: node.name for node in model.nodes}
    unit |= {name: n for n, piece in enumerate(pieces) for name in piece.nodes}
    maker = {value: unit[node.name] for node in model.nodes for value in node.results}
    graph = nx.DiGraph()
    graph.add_nodes_from(unit.values())
    for node in model.nodes:
        before = {maker[value] for value in node.reads if value in maker}
        graph.add_edges_from((b, unit[node.name]) for b in before - {unit[node.name]})
    return graph


def _adjacent(pieces: Sequence[Piece]) -> Iterable[tuple[int, int]]:
    """Yield the numbers of adjacent pieces: first producer and consumer, then consumers of one value."""
    makers = {value: n for n, piece in enumerate(pieces) for value in piece.makes}
    readers: dict[str, list[int]] = {}
    for n, piece in enumerate(pieces):
        for value in piece.reads:
            readers.setdefault(value, []).append(n)
    yield from ((makers[value], n) for value, found in readers.items() if value in makers for n in found)
    yield from ((found[0], n) for found in readers.values() for n in found[1:])


def _convex(graph: nx.DiGraph, a: int, b: int) -> bool:
    """Whether no path between two vertices leads over a third."""
    for source, target in ((a, b), (b, a)):
        others = set(graph.successors(source)) - {target}
        if any(nx.has_path(graph, third, target) for third in others):
            return False
    return True


def join_programs(model: Model, pieces: Sequence[Piece]) -> Piece | None:
    """Join *pieces*, in an executable order: shared values are named as in the model, other names are made unique.

    Returns None if readers of one value expect different padding constants.
    """
    nodes = tuple(name for piece in pieces for name in piece.nodes)
    inside = set(nodes)
    if (shared := _shared(model, pieces)) is None:
        return None
    equations: list[Equation] = []
    for piece in pieces:
        own = {e.name for e in piece.program.equations} | {t.name for t in piece.program.inputs}
        stem = model.identifiers[piece.makes[0]]
        # No identifier of the model has two underscores in a row.
        called = {
            name: model.identifiers[piece.names[name]] if name in piece.names else f"{stem}__{name}" for name in own
        }
        equations.extend(_renamed(e, called, shared) for e in piece.program.equations)
    made = {e.name for e in equations}
    read = {value for node in model.nodes if node.name not in inside for value in node.reads}
    read |= {value.name for value in model.outputs}
    values = {model.identifiers[value]: value for piece in pieces for value in piece.names.values()}
    outputs = tuple(model.identifiers[value] for piece in pieces for value in piece.makes if value in read)
    used = dict.fromkeys(t.name for e in equations for t in tensors(e.scope) if t.name not in made)
    program = Program(tuple(shared[name] for name in used), tuple(equations), outputs)
    names = {name: values[name] for name in (*used, *outputs)}
    return Piece(nodes, program, names)


def _shared(model: Model, pieces: Sequence[Piece]) -> dict[str, Tensor] | None:
    """Return every value that crosses a border as one tensor; None if padding constants differ."""
    found: dict[str, Tensor] = {}
    for piece in pieces:
        made = {e.name: e for e in piece.program.equations}
        border = [*piece.program.inputs, *(made[name].tensor for name in piece.program.outputs if name in made)]
        for tensor in border:
            new = replace(tensor, name=model.identifiers[piece.names[tensor.name]])
            old = found.setdefault(new.name, new)
            if old.padding and new.padding and old.value != new.value:
                return None
            if tensor.name in made and (domain := made[tensor.name].scope).domain and domain.value != old.value:
                return None
            value = old.value if old.padding else new.value
            found[new.name] = replace(old, padding=union_padding(old.padding, new.padding), value=value)
    return found


def _renamed(e: Equation, called: Mapping[str, str], shared: Mapping[str, Tensor]) -> Equation:
    name = called[e.name]
    scope = _reading(e.scope, called, shared)
    if name in shared:
        scope = replace(scope, padding=shared[name].padding, value=shared[name].value)
    return Equation(name, scope, e.via)


def _reading(scope: Scope, called: Mapping[str, str], shared: Mapping[str, Tensor]) -> Scope:
    def change(tensor: Tensor) -> Tensor:
        new = called[tensor.name]
        return shared.get(new, replace(tensor, name=new))

    return map_tensors(scope, change)


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

    def to_json(self) -> JsonObject:
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
    """Work on weights alone, done once for the whole model: equal derivations of one array share their result.

    A result is freed with the last plan that reads it.
    """

    threads: int = 1
    arrays: WeakValueDictionary[tuple[str, tuple[int, ...]], Array] = field(default_factory=WeakValueDictionary)
    shared: int = 0
    """Results that were used again."""
    _sources: list[Arrays] = field(default_factory=list)
    _pages: LargePages = field(default_factory=LargePages)

    def fold(self, program: Program, constants: Arrays) -> tuple[Program, Arrays]:
        """Evaluate the equations of *program* that read only weights; return the rest and its constants.

        Views of elements in their order stay, since they take no memory, and so do outputs.  Constants of arithmetic in
        ``float64`` are of that type.  Raises BackendError if one cannot be evaluated.
        """
        program = with_wide_values(program)
        known = weight_only(program)
        folded = {e.name: e for e in program.equations if e.name in known and e.name not in program.outputs}
        plain = {name for name, e in folded.items() if _is_in_order(e)}
        rest = tuple(e for e in program.equations if e.name not in folded or e.name in plain)
        read = {t.name for e in rest for t in tensors(e.scope)}
        arrays = dict(constants)
        weights: dict[str, Tensor] = {}
        for name in (n for n in folded if n in read and n not in plain):
            arrays[name] = self._evaluate(_needed_part(program, name), constants)
            weights[name] = replace(folded[name].tensor, weight=True)
        inputs = (*program.inputs, *weights.values())
        needed = tuple(t for t in inputs if t.name in read or not t.weight)
        return (
            replace(program, inputs=needed, equations=rest),
            {t.name: arrays[t.name] for t in needed if t.name in arrays},
        )

    def _evaluate(self, program: Program, constants: Arrays) -> Array:
        """Evaluate the one output of *program*, a function of *constants*."""
        given = {t.name: constants[t.name] for t in program.inputs}
        key = anonymize(program).signature, tuple(map(id, given.values()))
        known = self.arrays.get(key)
        if known is not None:
            self.shared += 1
            return known
        made = compile_program(program, self.threads, constants=given)
        self._sources.append(given)  # a freed array might pass its id on to another
        self.arrays[key] = found = self._pages.copy(made.contexts.constants[program.outputs[0]])
        return found


def _is_in_order(equation: Equation) -> bool:
    """Whether *equation* is a view of elements that lie one after the other: of others, each program has a copy."""
    if equation.via is None or equation.via.operator != VIEW:
        return False
    found = view_strides(equation.scope)
    return found is not None and found[1] == row_major_strides(equation.scope.shape)


def _needed_part(program: Program, name: str) -> Program:
    """Return the part of *program* that equation *name* needs, with it as the only output."""
    needed = {name}
    kept: list[Equation] = []
    for e in reversed(program.equations):
        if e.name in needed:
            kept.insert(0, e)
            needed |= {t.name for t in tensors(e.scope)}
    return Program(_inputs_read(program.inputs, kept), tuple(kept), (name,))


def _inputs_read(inputs: Iterable[Tensor], equations: Iterable[Equation]) -> tuple[Tensor, ...]:
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
            derivation = self._post_optimise(piece.program)
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

    def _post_optimise(self, program: Program) -> Derivation:
        if program not in self._post:
            known = self._replay_remembered(program)
            self._post[program] = self._derive_post(program) if known is None else known
        return self._post[program]

    def _derive_post(self, program: Program) -> Derivation:
        found = post_optimise(Derivation(program), self.rough, self.exact)
        if self.memory is not None:
            self.memory.record(steps_to_json(found), "post", *self._key(program))
        return found

    def _replay_remembered(self, program: Program) -> Derivation | None:
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
            self._proofs[program] = combined_verdict(step_certificates(self._post_optimise(program)))
        return self._proofs[program]

    def replacements(self, parts: Iterable[PlanProgram]) -> Iterable[Replacement]:
        """Yield *parts* with folded weights, as a plan or an export takes them."""
        for part in parts:
            program, constants = self.folder.fold(part.piece.program, self._weights(part.piece))
            yield Replacement(part.piece.nodes, program, _border_names(part.piece), constants)

    def _weights(self, piece: Piece) -> dict[str, Array]:
        return {t.name: self.model.weights[piece.names[t.name]] for t in piece.program.inputs if t.weight}

    def plan(
        self, parts: Iterable[PlanProgram], form: PlanForm = PlanForm.JOINED, host: Host | None = None
    ) -> ExecutionPlan:
        """Return the plan with *parts*; in an exported *form*, the exported model in one session.

        *host*, if there is one, runs the nodes that are not replaced.  Raises Refused.
        """
        return self.export(parts) if form.is_exported else self._compiled_plan(parts, host)

    def _compiled_plan(self, parts: Iterable[PlanProgram], host: Host | None) -> ExecutionPlan:
        with _plan_errors():
            pieces = [part.piece for part in parts]
            runs = {piece.nodes: ProgramCall(self._compile(piece), _border_names(piece)) for piece in pieces}
            if host is not None:
                return build_hosted_plan(self.model, runs, self.settings.threads, host)
            return build_plan(self.model, runs, self.settings.threads)

    def export(self, parts: Iterable[PlanProgram]) -> ExecutionPlan:
        """Return the exported model with *parts*, in one session; raises Refused."""
        with _plan_errors():
            return exported_plan(self.model, partial(self.replacements, tuple(parts)), self.settings.threads)

    def _compile(self, piece: Piece) -> CompiledProgram:
        weights = self._weights(piece)
        key = piece.program, *((name, id(array)) for name, array in sorted(weights.items()))
        made = self._runs.get(key)
        if made is None:
            program, constants = self.folder.fold(piece.program, weights)
            made = compile_measured(program, self.settings.threads, constants, self.store)
            self._runs[key] = made
        return made


def _border_names(piece: Piece) -> dict[str, str]:
    """Return the values of the model by the names of the inputs and outputs of *piece*, without weights."""
    weights = {t.name for t in piece.program.inputs if t.weight}
    return {name: value for name, value in piece.names.items() if name not in weights}


@contextmanager
def _plan_errors() -> Generator[None, None, None]:
    """Raise Refused for a program that does not compile or finds no memory."""
    try:
        yield
    except BackendError as error:
        raise Refused(str(error)) from error
    except MemoryError as error:
        raise Refused(f"not enough memory: {error}") from error
