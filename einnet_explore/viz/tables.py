"""Tables: text tables that notebooks display, and result tables that are written as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Self, TypeAlias

from einnet_explore.ir import EOPERATOR, VIEW, Program, show_path
from einnet_explore.rules import Derivation, Match
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.support.wording import format_seconds
from einnet_explore.syntax.latex_printer import latex_words

if TYPE_CHECKING:
    import pandas


def data_frame(head: Sequence[str], rows: Iterable[Sequence[object]]) -> pandas.DataFrame:
    """Return *rows* as a data frame; raises ImportError without pandas, which this package does not install."""
    try:
        import pandas  # optional
    except ImportError as error:
        raise ImportError("data frames need pandas: pip install pandas") from error
    return pandas.DataFrame(list(rows), columns=list(head))


@dataclass(frozen=True, slots=True)
class TextTable:
    """A head, rows of text, and a caption below them; without a head, the caption alone is shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __repr__(self) -> str:
        if not self.head:
            return self.caption
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in (self.head, *self.rows)]
        return "\n".join(line.rstrip() for line in [*lines, *([self.caption] if self.caption else [])])

    def _repr_html_(self) -> str:
        left = "style='text-align:left;vertical-align:top;padding:.3em .7em;line-height:1.3;white-space:pre-line'"
        head = "".join(f"<th {left} scope='col'>{escape(cell)}</th>" for cell in self.head)
        body = "".join(
            "<tr>" + "".join(f"<td {left}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        below = f"<div>{escape(self.caption)}</div>" if self.caption else ""
        if not self.head:
            return below
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame of texts; raises ImportError without pandas."""
        return data_frame(self.head, self.rows)

    def to_latex(self) -> str:
        """Return a ``tabular`` for the package ``booktabs``."""
        lines = (" & ".join(map(latex_words, row)) + r" \\" for row in (self.head, *self.rows))
        head, *rows = lines
        return "\n".join(
            [rf"\begin{{tabular}}{{{'l' * len(self.head)}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule",
             r"\end{tabular}"]
        )  # fmt: skip

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}


class DisplayedAsTable:
    """A value that notebooks display as its ``table``."""

    __slots__ = ()

    def table(self) -> TextTable:
        """Return the table."""
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a data frame of texts; raises ImportError without pandas."""
        return self.table().to_pandas()

    def to_latex(self) -> str:
        """Return the table in LaTeX."""
        return self.table().to_latex()

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


class Matches(DisplayedAsTable, tuple[Match[object], ...]):
    """Matches, displayed as a table; *note* returns a line below it."""

    note: Callable[[], str]

    def __new__(cls, matches: Iterable[Match[object]] = (), note: Callable[[], str] = str) -> Self:
        """Return *matches* as a tuple."""
        made = super().__new__(cls, matches)
        made.note = note
        return made

    def table(self) -> TextTable:
        """Return a table with the number, rule, path and parameters of each match."""
        return TextTable(
            ("", "rule", "at", "parameters"),
            tuple((str(n), m.title, show_path(m.at), format_parameters(m)) for n, m in enumerate(self)),
            "; ".join(filter(None, ("" if self else "no legal match", self.note()))),
        )


def format_parameters(match: Match[object]) -> str:
    """Format the parameters of *match* on one line."""
    params = match.forwards.to_json()["params"]
    match params:
        case {"operator": str(operator), "attributes": dict(attributes)}:
            return f"{operator} " + " ".join(f"{k}={v}" for k, v in attributes.items())
        case {"phi": dict(phi)}:
            new = [f"{name} = {index}" for name, index in phi.items() if name != index]
            return ", ".join(new) or "order " + ", ".join(phi)
    # Commas separate the values of one parameter, as in ``iterator = h; cuts = 2, 4``.
    return "; ".join(f"{k} = {_value(v)}" for k, v in params.items())


def _value(value: object) -> str:
    match value:
        case dict():
            return ", ".join(
                f"{k} in [{v[0]}, {v[1]})" if isinstance(v, list) else f"{k}: {v}" for k, v in value.items()
            )
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def step_table(derivation: Derivation, certificates: Sequence[str] = ()) -> TextTable:
    """Return a table with the rule, path, parameters and, if given, certificate of each step."""
    rows = [("0", "start", "", "")] + [
        (str(n), step.match.title, show_path(step.match.at), format_parameters(step.match))
        for n, step in enumerate(derivation.steps, 1)
    ]
    if not certificates:
        return TextTable(("E", "rule", "at", "parameters"), tuple(rows))
    proofs = ("", *certificates)
    return TextTable(
        ("E", "rule", "at", "parameters", "certificate"), tuple((*r, p) for r, p in zip(rows, proofs, strict=True))
    )


def candidate_table(found: Iterable[tuple[Candidate, str]], caption: str) -> TextTable:
    """Return a table of candidates with their certificates."""
    rows = tuple(
        (
            str(c.state),
            format_calls(c.program) or "none",
            str(c.eoperators),
            str(len(c.derivation.steps)),
            format_seconds(c.seconds),
            certificate,
        )
        for c, certificate in found
    )
    return TextTable(("state", "library operators", "eOperators", "steps", "estimated", "certificate"), rows, caption)


def format_calls(program: Program) -> str:
    """Format the library calls of *program* with their sizes; an empty text if there are none."""
    calls = [e.via for e in program.equations if e.via and e.via.is_library_call]
    return " + ".join(format_operator(via.operator, dict(via.attributes)) for via in calls)


def format_operator(name: str, attributes: Mapping[str, object]) -> str:
    """Format a library call as ``Matmul(m=49, n=4608, k=512)``; attributes that are 0 or 1 are omitted."""
    sizes = ", ".join(f"{k}={v}" for k, v in attributes.items() if v not in (0, 1))
    return f"{name}({sizes})" if name not in (EOPERATOR, VIEW) else name


Cell: TypeAlias = "str | bool | int | float | None"


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A head, rows of values, and an explanatory *note*; *name* is the name of its files."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def column(self, name: str) -> tuple[Cell, ...]:
        """Return the values of a column."""
        n = self.head.index(name)
        return tuple(row[n] for row in self.rows)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame of values; raises ImportError without pandas."""
        return data_frame(self.head, self.rows)

    def csv(self) -> str:
        """Return the table as CSV (RFC 4180 with line feeds, seven significant digits); missing values are empty."""
        written = io.StringIO()
        table = csv.writer(written, lineterminator="\n")
        table.writerow(self.head)
        table.writerows([["" if c is None else _csv_cell(c) for c in row] for row in self.rows])
        return written.getvalue()

    def markdown(self) -> str:
        """Return a heading, the table with three significant digits, and the note."""
        heads = [name.replace("_", " ") for name in self.head]
        left = [any(isinstance(c, str) for c in column) for column in zip(*self.rows, strict=True)] or [True] * len(
            heads
        )
        rows = [
            heads,
            [":--" if text else "--:" for text in left],
            *([_cell_text(c) for c in row] for row in self.rows),
        ]
        body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"## {self.title}\n\n{body}\n" + (f"\n{self.note}\n" if self.note else "")


def _csv_cell(cell: Cell) -> str:
    match cell:
        case bool():
            return str(cell).lower()
        case float():
            return repr(float(f"{cell:.7g}"))
        case _:
            return str(cell)


def _cell_text(cell: Cell) -> str:
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
