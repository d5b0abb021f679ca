"""From derived subprograms to one plan: adjacent ones joined and post-optimised, weights folded, all compiled."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from einnet_explore.backends.epilogues import compile_measured
from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.program import CompiledProgram
from einnet_explore.backends.store import Store
from einnet_explore.graph.assembled import Assembled
from einnet_explore.graph.contest import Settings
from einnet_explore.graph.exporting import exported_plan
from einnet_explore.graph.folding import Folder
from einnet_explore.graph.joining import Piece, joined
from einnet_explore.graph.judging import certificates
from einnet_explore.graph.post.fusing import fuse
from einnet_explore.graph.post.layouts import Price, laid_out
from einnet_explore.graph.reading.model import Model
from einnet_explore.graph.remembered import Memory
from einnet_explore.graph.running.compiled import ByValue
from einnet_explore.graph.running.plan import Plan, PlanError, build_plan
from einnet_explore.graph.writing.export import Replacement
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation, Refused
from einnet_explore.search.candidate import verdict
from einnet_explore.search.replay import replay, told


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
    memory: Memory | None = None
    folder: Folder = field(init=False)
    _post: dict[Program, Derivation] = field(default_factory=dict)
    _proofs: dict[Program, str] = field(default_factory=dict)
    _runs: WeakValueDictionary[tuple[object, ...], CompiledProgram] = field(default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        self.folder = Folder(self.settings.threads)

    def together(self, pieces: Sequence[Piece], proved: bool = True) -> tuple[Assembled, ...]:
        """*pieces* joined where they are adjacent and post-optimised; those that are not proved equal stay apart.

        What is only to be measured need not be *proved*: many are tried, and of each one nearly all the time is that.
        """
        out: list[Assembled] = []
        for piece in joined(self.model, pieces):
            derivation = self._optimised(piece.program)
            kind = self._verdict(piece.program) if proved else "none"
            if kind == "false":
                out += [self._as_it_is(p) for p in pieces if set(p.nodes) <= set(piece.nodes)]
            else:
                out.append(Assembled(replace(piece, program=derivation.end), derivation, kind))
        return tuple(out)

    def apart(self, pieces: Iterable[Piece]) -> tuple[Assembled, ...]:
        """*pieces* as they are."""
        return tuple(map(self._as_it_is, pieces))

    @staticmethod
    def _as_it_is(piece: Piece) -> Assembled:
        return Assembled(piece, Derivation(piece.program), "none")

    def _optimised(self, program: Program) -> Derivation:
        if program not in self._post:
            known = self._remembered(program)
            self._post[program] = self._derived(program) if known is None else known
        return self._post[program]

    def _derived(self, program: Program) -> Derivation:
        found = fuse(laid_out(fuse(Derivation(program)), self.rough, self.exact))
        if self.memory is not None:
            self.memory.put(told(found), "post", *self._key(program))
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
            self._proofs[program] = verdict(certificates(self._optimised(program)))
        return self._proofs[program]

    def replacements(self, parts: Iterable[Assembled]) -> tuple[Replacement, ...]:
        """*parts* with the arrays of their weights, work on weights alone done: what a plan or an export takes."""
        out = []
        for part in parts:
            piece = part.piece
            weights = {t.name: self.model.weights[piece.names[t.name]] for t in piece.program.inputs if t.weight}
            program, constants = self.folder.fold(piece.program, weights)
            names = {k: v for k, v in piece.names.items() if k not in weights}
            out.append(Replacement(piece.nodes, program, names, constants))
        return tuple(out)

    def plan(self, parts: Iterable[Assembled]) -> Plan:
        """The plan with *parts* in it; raises PlanError."""
        with _planning():
            runs = {r.nodes: ByValue(self._compiled(r), r.names) for r in self.replacements(parts)}
            return build_plan(self.model, runs, self.settings.threads)

    def export(self, parts: Iterable[Assembled]) -> Plan:
        """The exported model with *parts* in it, in one session; raises ExportError and PlanError."""
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
    """What is not compiled or finds no memory makes no plan: raises PlanError then, as for what cannot be run."""
    try:
        yield
    except BackendError as error:
        raise PlanError(str(error)) from error
    except MemoryError as error:
        raise PlanError(f"not enough memory: {error}") from error
