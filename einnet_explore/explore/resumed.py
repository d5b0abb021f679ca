"""What an experiment has measured, kept in a file beside its tables: interrupted, it goes on where it was.

The file is JSON with every sample.  What was measured with other options, on another processor or with other libraries
is not gone on with: rows of one table have one origin.  It is not lost either, but kept beside the new file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from einnet_explore.backends.profiles import device, libraries
from einnet_explore.storage import write_atomically


def busy(loads: Sequence[float]) -> Iterable[str]:
    """What is to be said of rows that were measured under these *loads*: nothing where there were cores for all."""
    cores = os.cpu_count() or 1
    if many := sum(load > cores for load in loads):
        yield (
            f"The machine was busy for {many} of {len(loads)} measurements: a load of up to {max(loads):.1f} on "
            f"{cores} cores, where equal engines may differ more than twofold. Measure again on a quiet one."
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """The file at *path* (None: nothing is kept) of results that were measured with *options*."""

    path: Path | None
    options: Mapping[str, Any]

    def read(self) -> list[Any]:
        """The results that can be gone on with; none where the file is not there, broken, or of another origin."""
        found = self._found()
        return list(found["results"]) if found is not None and found.get("origin") == self._origin else []

    def write(self, results: list[Any]) -> None:
        """Keep *results*, plain JSON values, whole or not at all; raises OSError.

        A file of another origin gets the name ``….other.json`` before that.
        """
        if self.path is None:
            return
        found = self._found()
        if found is not None and found.get("origin") != self._origin:
            self.path.replace(self.path.with_suffix(f".other{self.path.suffix}"))
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
        return json.loads(json.dumps({**self.options, "processor": device(), "libraries": libraries()}))
