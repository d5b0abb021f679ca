"""What names are spelt as in emitted text: nothing that a user wrote gets there as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from einnet_explore.kernels.source.dialects import RESERVED, RESERVED_FORM

LONGEST = 40
"""Characters of a name that are kept."""


@dataclass
class Names:
    """Identifiers by name: letters, digits and single underscores only, none reserved, none twice."""

    given: dict[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """The identifier of *name*, the same each time."""
        if name not in self.given:
            stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:LONGEST].rstrip("_")
            stem = stem if stem[:1].isalpha() else f"v{stem}"
            stem = f"v_{stem}" if RESERVED_FORM.fullmatch(stem) else stem
            taken = {*self.given.values(), *RESERVED}
            n, made = 1, stem
            while made in taken:
                n, made = n + 1, f"{stem}_{n}"
            self.given[name] = made
        return self.given[name]
