"""Results files of experiments: an interrupted experiment resumes from its file.

The file is JSON with every sample.  An experiment resumes only from results with the same options, processor and
library versions, so that all rows of a table have one origin; a file of another origin is renamed, not overwritten.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from einnet_explore.runtime.profile_store import device_name, library_versions
from einnet_explore.support.storage import write_atomically

E = TypeVar("E")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


def busy_notes(loads: Sequence[float]) -> Iterable[str]:
    """Yield a warning if *loads* of the machine during measurements exceeded its cores."""
    cores = os.cpu_count() or 1
    if many := sum(load > cores for load in loads):
        yield (
            f"The machine was busy for {many} of {len(loads)} measurements: a load of up to {max(loads):.1f} on "
            f"{cores} cores, where equal engines may differ more than twofold. Measure again on a quiet one."
        )


@dataclass(frozen=True, slots=True)
class ResultsFile:
    """The file at *path* (None: no file) of results measured with *options*."""

    path: Path | None
    options: Mapping[str, Any]

    def load(self) -> list[Any]:
        """Return the results to resume from; none if the file is missing, broken, or of another origin."""
        found = self._found()
        return list(found["results"]) if found is not None and found.get("origin") == self._origin else []

    def write(self, results: list[Any]) -> None:
        """Write *results* (JSON values) atomically; raise OSError.

        An existing file of another origin is renamed to ``….other.json``, with a number if that exists.
        """
        if self.path is None:
            return
        found = self._found()
        if self.path.exists() and (found is None or found.get("origin") != self._origin):
            names = (self.path.with_suffix(f".other{n or ''}{self.path.suffix}") for n in (0, *range(2, 10_000)))
            self.path.replace(next(name for name in names if not name.exists()))
        write_atomically(str(self.path), json.dumps({"origin": self._origin, "results": results}, indent=1) + "\n")

    def _found(self) -> dict[str, Any] | None:
        """Return the contents of the file, None if it is not a results file."""
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
    """The measurements of *effort*; calls *note* before and *done* after each measurement.

    ``results`` and ``failures`` (reasons) are valid after an interrupt; results are also in the file *out*.
    ``earlier`` are that file's results of earlier runs of the same effort.
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
        """Return the keys to measure, in order."""

    @abstractmethod
    def measure(self, key: K) -> R:
        """Measure *key*; raise ValueError or RuntimeError if that fails."""

    @abstractmethod
    def called(self, key: K) -> str:
        """Return the display name of *key*."""

    @abstractmethod
    def place(self, key: K) -> Any:
        """Return the sort key of *key* in the tables."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """Options that results depend on, as JSON values; results of other options are not resumed."""

    @abstractmethod
    def to_json(self, key: K, result: R) -> Any:
        """Convert one result to JSON values."""

    @abstractmethod
    def from_json(self, value: Any) -> tuple[K, R] | None:
        """Convert JSON values to a result, None if it is no longer valid."""

    @property
    def shown(self) -> dict[K, R]:
        """All results of this and earlier runs, in the order of the tables."""
        return dict(sorted((self.earlier | self.results).items(), key=lambda one: self.place(one[0])))

    @property
    def results_file(self) -> ResultsFile:
        """The results file."""
        return ResultsFile(self.out, self.options)

    def resume(self, again: bool = False) -> int:
        """Load the file *out*; return the number of wanted results that need no measurement.

        With *again* every result is measured again, and the old ones remain until then.
        """
        self._reread()
        if not again:
            self.results |= {key: self.earlier[key] for key in self.wanted() if key in self.earlier}
        return len(self.results)

    def run(self) -> None:
        """Measure all wanted keys that have no result."""
        for key in self.wanted():
            if key in self.results or key in self.failures:
                continue
            self.note(self.called(key))
            try:
                self.results[key] = self.measure(key)
                self._reread()  # another run may have written results meanwhile
                self.results_file.write([self.to_json(*one) for one in self.shown.items()])
            except (ValueError, RuntimeError) as problem:
                self.failures[key] = str(problem)
            self.done()

    def _reread(self) -> None:
        self.earlier |= dict(one for value in self.results_file.load() if (one := self.from_json(value)) is not None)
