"""Answers that reading a model finds, remembered from run to run in one document for each graph.

An answer says which nodes of a model are searched together, or which new spelling of nodes could not be proved.  None
says that two programs are equal, so a wrong document can make a plan slower, and never wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.tuning_context import TuningHistory


@dataclass(slots=True)
class ReadingMemory:
    """The answers about the model with the digest *key* in *history*, by question; without a history, of this run."""

    history: TuningHistory | None = None
    key: str = ""
    _answers: dict[str, list[int]] = field(default_factory=dict, init=False)
    _saved: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        found = self.history.get("reading", self.key) if self.history else None
        for question, answer in found.items() if isinstance(found, dict) else ():
            if isinstance(answer, list) and all(type(n) is int and n >= 0 for n in answer):
                self._answers[question] = answer
        self._saved = len(self._answers)

    def numbers(self, question: str, about: str, find: Callable[[], Iterable[int]]) -> frozenset[int]:
        """Return the numbers that answer *question* about a text: those of an earlier run, or what *find* returns."""
        key = _key(question, about)
        if key not in self._answers:
            self._answers[key] = sorted(find())
        return frozenset(self._answers[key])

    def holds(self, question: str, about: str, find: Callable[[], bool]) -> bool:
        """Return whether *question* is true of a text, by an earlier run or by *find*."""
        return bool(self.numbers(question, about, lambda: (0,) * find()))

    def is_proved(self, question: str, about: str, prove: Callable[[], bool]) -> bool:
        """Return what *prove* returns; only that it failed is remembered, so nothing holds without a proof."""
        key = _key(question, about)
        if key in self._answers:
            return False
        if prove():
            return True
        self._answers[key] = []
        return False

    def save(self) -> None:
        """Write the answers, if there are new ones."""
        if self.history is not None and len(self._answers) > self._saved:
            self.history.record(self._answers, "reading", self.key)
            self._saved = len(self._answers)


def _key(question: str, about: str) -> str:
    return f"{question} {hashlib.blake2b(about.encode(), digest_size=10).hexdigest()}"


def graph_digest(model: Model) -> str:
    """Return a digest of the graph of *model*, without the elements of its weights."""
    return hashlib.sha256(model.graph_proto.SerializeToString(deterministic=True)).hexdigest()
