"""What an experiment has measured, kept in a file beside its tables: interrupted, it goes on where it was.

The file is JSON with every sample.  What was measured with other options, on another processor or with other libraries
is not gone on with: rows of one table have one origin.  It is not lost either, but kept beside the new file.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from einnet_explore.runtime.keys import device_name, library_versions
from einnet_explore.support.storage import write_atomically

E = TypeVar("E")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


def busy_notes(loads: Sequence[float]) -> Iterable[str]:
    """What is to be said of rows that were measured under these *loads*: nothing where there were cores for all."""
    cores = os.cpu_count() or 1
    if many := sum(load > cores for load in loads):
        yield (
            f"The machine was busy for {many} of {len(loads)} measurements: a load of up to {max(loads):.1f} on "
            f"{cores} cores, where equal engines may differ more than twofold. Measure again on a quiet one."
        )


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """The file at *path* (None: nothing is kept) of results that were measured with *options*."""

    path: Path | None
    options: Mapping[str, Any]

    def load(self) -> list[Any]:
        """The results that can be gone on with; none where the file is not there, broken, or of another origin."""
        found = self._found()
        return list(found["results"]) if found is not None and found.get("origin") == self._origin else []

    def write(self, results: list[Any]) -> None:
        """Keep *results*, plain JSON values, whole or not at all; raises OSError.

        A file of another origin, or that holds something else, is before that called ``….other.json``, or with the
        first number that makes this a new name.
        """
        if self.path is None:
            return
        found = self._found()
        if self.path.exists() and (found is None or found.get("origin") != self._origin):
            names = (self.path.with_suffix(f".other{n or ''}{self.path.suffix}") for n in (0, *range(2, 10_000)))
            self.path.replace(next(name for name in names if not name.exists()))
        write_atomically(str(self.path), json.dumps({"origin": self._origin, "results": results}, indent=1) + "\n")

    def _found(self) -> dict[str, Any] | None:
        """What the file holds; None where that is nothing that was written here."""
        try:
            found = json.loads(self.path.read_text()) if self.path else None
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("results"), list) else None

    @property
    def _origin(self) -> Any:
        return json.loads(json.dumps({**self.options, "processor": device_name(), "libraries": library_versions()}))


@dataclass(slots=True)
class ResumableExperiment(ABC, Generic[E, K, R]):
    """The measurements that *effort* asks for; *note* hears of each before it begins, *done* after it.

    ``results`` and ``failures`` (why one could not be measured) hold what is done when this is interrupted; the
    results are in the file *out* as well.  ``earlier`` is what that file holds of earlier runs of the same effort,
    wanted now or not.
    """

    effort: E
    note: Callable[[str], object] = lambda _: None
    done: Callable[[], object] = lambda: None
    results: dict[K, R] = field(default_factory=dict)
    failures: dict[K, str] = field(default_factory=dict)
    out: Path | None = None
    earlier: dict[K, R] = field(default_factory=dict)

    @abstractmethod
    def wanted(self) -> Iterable[K]:
        """What is to be measured, in order."""

    @abstractmethod
    def measure(self, key: K) -> R:
        """Measure one; raises ValueError or RuntimeError where it cannot be."""

    @abstractmethod
    def called(self, key: K) -> str:
        """What is noted of one."""

    @abstractmethod
    def place(self, key: K) -> Any:
        """Where one stands in the tables: what they are sorted by."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """What results depend on besides *K*, in plain JSON values: with other options they are not gone on with."""

    @abstractmethod
    def to_json(self, key: K, result: R) -> Any:
        """One result in plain JSON values."""

    @abstractmethod
    def from_json(self, told: Any) -> tuple[K, R] | None:
        """What ``to_json`` wrote; None where that is nothing any more."""

    @property
    def shown(self) -> dict[K, R]:
        """All that was measured, in this run and before it, in the order of the tables."""
        return dict(sorted((self.earlier | self.results).items(), key=lambda one: self.place(one[0])))

    @property
    def results_file(self) -> ResultsFile:
        """The file."""
        return ResultsFile(self.out, self.options)

    def resume(self, again: bool = False) -> int:
        """Take over what the file *out* holds; how much of it is wanted, and not measured again.

        With *again* all of it is, and stands as it was until then.
        """
        self._reread()
        if not again:
            self.results |= {key: self.earlier[key] for key in self.wanted() if key in self.earlier}
        return len(self.results)

    def run(self) -> None:
        """Measure all that is wanted and not in ``results``."""
        for key in self.wanted():
            if key in self.results or key in self.failures:
                continue
            self.note(self.called(key))
            try:
                self.results[key] = self.measure(key)
                self._reread()  # what another run has measured meanwhile is in the file alone
                self.results_file.write([self.to_json(*one) for one in self.shown.items()])
            except (ValueError, RuntimeError) as problem:
                self.failures[key] = str(problem)
            self.done()

    def _reread(self) -> None:
        self.earlier |= dict(one for told in self.results_file.load() if (one := self.from_json(told)) is not None)
