"""A table of results: as CSV with seven significant digits, as Markdown with those that a reader wants."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TypeAlias

Cell: TypeAlias = "str | bool | int | float | None"


@dataclass(frozen=True, slots=True)
class Sheet:
    """Rows of values under a head; *name* is the file's, *note* says how to read them."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def column(self, name: str) -> tuple[Cell, ...]:
        """The values of one column."""
        n = self.head.index(name)
        return tuple(row[n] for row in self.rows)

    def csv(self) -> str:
        """RFC 4180, with a line feed at the ends of lines; what there is no value for is empty."""
        written = io.StringIO()
        table = csv.writer(written, lineterminator="\n")
        table.writerow(self.head)
        table.writerows([["" if c is None else _plain(c) for c in row] for row in self.rows])
        return written.getvalue()

    def markdown(self) -> str:
        """A heading, the table and the note."""
        heads = [name.replace("_", " ") for name in self.head]
        left = [any(isinstance(c, str) for c in column) for column in zip(*self.rows, strict=True)] or [True] * len(
            heads
        )
        rows = [heads, [":--" if text else "--:" for text in left], *([_shown(c) for c in row] for row in self.rows)]
        body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"## {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def _plain(cell: Cell) -> str:
    match cell:
        case bool():
            return str(cell).lower()
        case float():
            return repr(float(f"{cell:.7g}"))
        case _:
            return str(cell)


def _shown(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "yes" if cell else "no"
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:.3g}" if abs(cell) < 1000 else f"{cell:,.0f}"
        case str():
            return cell.replace("|", "\\|")
