"""Writing results: JSON to standard output or a file, progress to a terminal's standard error only."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from einnet_explore.storage import write_atomically


def write_json(where: str, document: Mapping[str, Any]) -> None:
    """One JSON document to standard output (``-``) or to a file, whole or not at all."""
    text = json.dumps(document, indent=1) + "\n"
    if where == "-":
        sys.stdout.write(text)
    else:
        write_atomically(where, text)


def progress(total: int | None = None, unit: str = "states") -> tqdm[Any]:
    """A progress bar on standard error; silent unless that is a terminal."""
    return tqdm(total=total, unit=f" {unit}", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False)


def table(rows: Sequence[Sequence[object]]) -> str:
    """Rows as columns of text; the first row is the heading, numbers are flush right."""
    cells = [[str(c) for c in row] for row in rows]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]))]
    right = [all(_numeric(row[n]) for row in cells[1:]) for n in range(len(widths))]
    return "\n".join(
        "  ".join(
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or cell[0] in "-+."


def seconds(value: float) -> str:
    """A time with three figures and a unit."""
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
