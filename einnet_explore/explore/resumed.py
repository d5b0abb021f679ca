"""What an experiment has measured, kept in a file beside its tables: interrupted, it goes on where it was.

The file is JSON with every sample.  What was measured with other options, on another processor or with other libraries
is not gone on with: rows of one table have one origin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from einnet_explore.backends.profiles import device, libraries
from einnet_explore.storage import write_atomically


@dataclass(frozen=True, slots=True)
class Kept:
    """The file at *path* (None: nothing is kept) of results that were measured with *options*."""

    path: Path | None
    options: Mapping[str, Any]

    def read(self) -> list[Any]:
        """The results that can be gone on with; none where the file is not there, broken, or of another origin."""
        try:
            found = json.loads(self.path.read_text()) if self.path else {}
        except (OSError, ValueError):
            return []
        same = isinstance(found, dict) and found.get("origin") == self._origin
        return list(found["results"]) if same and isinstance(found.get("results"), list) else []

    def write(self, results: list[Any]) -> None:
        """Keep *results*, plain JSON values, whole or not at all; raises OSError."""
        if self.path:
            write_atomically(str(self.path), json.dumps({"origin": self._origin, "results": results}, indent=1) + "\n")

    @property
    def _origin(self) -> Any:
        return json.loads(json.dumps({**self.options, "processor": device(), "libraries": libraries()}))
