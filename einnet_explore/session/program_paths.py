"""Paths between programs: how one became the other, as a derivation."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import onnx

from einnet_explore.analysis.equations import with_interface_of
from einnet_explore.equivalence.certificate import Certificate, certify
from einnet_explore.ir import Program
from einnet_explore.onnx_import.contrib_operators import expand_contrib_operators
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.model_programs import model_programs
from einnet_explore.rules import Derivation
from einnet_explore.strategies.candidate import save_record, to_record
from einnet_explore.strategies.path_search import PathSearch, run_for
from einnet_explore.support.errors import Refused
from einnet_explore.support.json_values import JsonObject
from einnet_explore.support.wording import count_noun
from einnet_explore.syntax import load_text
from einnet_explore.viz.tables import DisplayedAsTable, TextTable, step_table
from einnet_explore.viz.views import Steps


@dataclass(frozen=True, slots=True, repr=False)
class ProgramPath(DisplayedAsTable):
    """How one program becomes another.

    *derivation* leads from the first to the second, up to names; None if none was found.  *certificates* are those of
    its steps, or of the two programs as a whole if there is no derivation.  *known* are the numbers of programs that
    were reached from the first and from the second; *complete* tells whether these are all that the rules reach.
    """

    derivation: Derivation | None
    certificates: tuple[Certificate, ...]
    known: tuple[int, int]
    seconds: float
    complete: bool = False

    def __bool__(self) -> bool:
        """Whether a derivation was found, with every step proved."""
        return self.derivation is not None and all(found.kind == "proved" for found in self.certificates)

    @property
    def differs(self) -> bool:
        """Whether the two programs are not equal."""
        return self.derivation is None and self.certificates[0].kind == "false"

    def summary(self) -> str:
        """Return what was found, in one line."""
        if self.derivation is not None:
            kinds = ", ".join(dict.fromkeys(found.kind for found in self.certificates)) or "the same up to names"
            return f"{count_noun(len(self.derivation.steps), 'step')} in {self.seconds:.1f} s: {kinds}"
        whole = f"as a whole: {self.certificates[0]}"
        if self.differs:
            return f"the programs differ; {whole}"
        first, second = self.known
        reached = f"{first:,} programs from the first and {second:,} from the second"
        if self.complete:
            return f"no derivation: all that the rules reach was tried, {reached}; {whole}"
        return f"no derivation in {self.seconds:.1f} s, a larger budget may find one; reached: {reached}; {whole}"

    def table(self) -> TextTable:
        """Return one row for each step."""
        if self.derivation is None:
            return TextTable((), (), self.summary())
        steps = step_table(self.derivation, [found.kind for found in self.certificates])
        return TextTable(steps.head, steps.rows, self.summary())

    def to_json(self) -> JsonObject:
        """Return the document that ``einnet-explore path --json`` writes."""
        return {
            "kind": "path" if self else "different" if self.differs else "unproved" if self.derivation else "none",
            "record": None if self.derivation is None else self.to_record(),
            "certificate": self.certificates[0].to_json() if self.derivation is None else None,
            "reached": list(self.known),
            "complete": self.complete,
            "seconds": self.seconds,
        }

    def to_latex(self, environment: str = "align*", width: str | None = None, points: float = 10.0) -> str:
        """Return every program and the rule of every step, as ``ee.show``; raises ValueError without a derivation."""
        return Steps(self._found()).to_latex(environment, width, points)

    def to_record(self, **meta: object) -> JsonObject:
        """Return the derivation as a record, which both checkers replay; raises ValueError without a derivation."""
        return to_record(self._found(), self.certificates, **meta)

    def save(self, file: str | PathLike[str]) -> None:
        """Write the record to *file*; ``ee.load`` reads it."""
        save_record(file, self.to_record())

    def _found(self) -> Derivation:
        if self.derivation is None:
            raise ValueError(self.summary())
        return self.derivation


def _programs(*given: ProgramLike) -> tuple[Program, Program]:
    models, programs = list[Model](), list[Program]()
    for each in given:
        if isinstance(each, Program):
            programs.append(each)
        elif isinstance(each, onnx.ModelProto) or Path(each).suffix == ".onnx":
            models.append(load_model(each, rewrite=expand_contrib_operators))
        else:
            programs.append(load_text(each))
    match models, programs:
        case [first, second], []:
            return model_programs(first, second)
        case [], [before, after]:
            return before, after
    raise Refused("found a model and a program, expected two of one kind")


def path(first: ProgramLike, second: ProgramLike, budget: float = 20.0) -> ProgramPath:
    """Look for a derivation from *first* to *second*, the shortest that a search from both ends finds.

    Both are programs or paths of ``.ein`` files, or both are ONNX models: paths of ``.onnx`` files or protocol buffers.
    The search takes at most *budget* seconds, or until Ctrl-C; a shorter path is looked for as long as the first one
    took.  Inputs and outputs correspond by name, or by position if no name is common.  Programs that differ are
    reported at once, with a counterexample.  In a session on *first*, ``session.goto(found.derivation)`` shows the
    steps.  Raises Refused if inputs or outputs differ, or a node of a model has no expression; ModelError for a file
    that is no model.
    """
    began = perf_counter()
    first, second = _programs(first, second)
    second = with_interface_of(second, first)
    search = PathSearch(first, second)
    whole = certify(first, second)
    found = None if whole.kind == "false" else run_for(search, budget)
    seconds = perf_counter() - began
    steps = () if found is None else found.steps
    proofs = (whole,) if found is None else tuple(certify(step.before, step.after) for step in steps)
    return ProgramPath(found, proofs, search.known, seconds, search.complete)


ProgramLike: TypeAlias = "Program | str | PathLike[str] | onnx.ModelProto"
