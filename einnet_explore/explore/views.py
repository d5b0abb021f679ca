r"""How values show themselves in a notebook: tables, and expressions in LaTeX with an SVG and a text beside it.

Everything here is a function of a value; nothing holds state.  A notebook that is read without a kernel, or where
nothing typesets LaTeX, still has the SVG and the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from einnet_explore.explore.figure import Figure
from einnet_explore.explore.figures import graph_figure
from einnet_explore.explore.formula import formula_figure
from einnet_explore.ir import EOPERATOR, VIEW, Access, Path, Program, Scope, Tensor, accesses, map_accesses, show_path
from einnet_explore.render import align, latex, notation, text
from einnet_explore.render.notation import words
from einnet_explore.rules import Derivation, Match
from einnet_explore.search.candidate import Candidate

ENVIRONMENTS = ("align", "align*", "aligned", "flalign", "flalign*")
"""Environments of ``amsmath`` in which a derivation may stand."""

CHANGED = "teal"
"""What the last step put in: dark enough on white, light enough on black."""

_BLANK = Tensor("", ())


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head, and a line below them."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in (self.head, *self.rows)]
        return "\n".join(line.rstrip() for line in [*lines, *([self.caption] if self.caption else [])])

    def _repr_html_(self) -> str:
        left = "style='text-align:left;vertical-align:top;padding:.3em .7em;line-height:1.3'"
        head = "".join(f"<th {left} scope='col'>{escape(cell)}</th>" for cell in self.head)
        body = "".join(
            "<tr>" + "".join(f"<td {left}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        below = f"<div>{escape(self.caption)}</div>" if self.caption else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"

    def to_latex(self) -> str:
        """A ``tabular`` with the rules of the package ``booktabs``."""
        lines = (" & ".join(map(words, row)) + r" \\" for row in (self.head, *self.rows))
        head, *rows = lines
        return "\n".join(
            [rf"\begin{{tabular}}{{{'l' * len(self.head)}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule",
             r"\end{tabular}"]
        )  # fmt: skip

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": self._repr_html_(), "text/plain": repr(self)}


class Matches(tuple[Match[Any], ...]):
    """Matches that a notebook shows as a table."""

    __slots__ = ()

    def table(self) -> Table:
        """One row a match: its number here, the rule, the place, the parameters."""
        return Table(
            ("", "rule", "at", "parameters"),
            tuple((str(n), m.rule.name, show_path(m.at), said(m)) for n, m in enumerate(self)),
            "" if self else "no legal match",
        )

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.table()._repr_mimebundle_()


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression as a notebook shows it; *title* stands in front of it."""

    program: Program
    title: str = ""
    marks: tuple[Path, ...] = ()

    def latex(self) -> str:
        """The LaTeX, without dollar signs; marked sub-terms are coloured."""
        shown = latex(self.program, marks=dict.fromkeys(self.marks, CHANGED))
        return rf"{self.title}\quad {shown}" if self.title else shown

    def figure(self) -> Figure:
        """The formula as a picture, without TeX."""
        lines = mathtext_lines(latex(self.program, dialect="mathtext", marks=dict.fromkeys(self.marks, CHANGED)))
        if self.title:
            lines[0] = rf"{self.title}:\ \ {lines[0]}"
        return formula_figure(lines, text(self.program))

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex()}$"

    def _repr_svg_(self) -> str:
        return self.figure().svg

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/latex": self._repr_latex_(),
            "image/svg+xml": self._repr_svg_(),
            "text/plain": text(self.program).rstrip("\n"),
        }


def mathtext_lines(shown: str) -> list[str]:
    """Lines for Matplotlib, which spaces no operators."""
    return shown.replace(r"{\mathbf{L}} ", r"{\mathbf{L}}\ ").split("\n")


@dataclass(frozen=True, slots=True)
class Steps:
    """A derivation as a notebook shows it: every program that a step led to, with its reason."""

    derivation: Derivation

    @property
    def _reasons(self) -> list[str]:
        return [f"{step.match.rule.name} at {show_path(step.match.at)}" for step in self.derivation.steps]

    def latex(self) -> str:
        """An ``align*`` block."""
        return align([self.derivation.start, *(step.after for step in self.derivation.steps)], self._reasons)

    def to_latex(self, environment: str = "align*") -> str:
        """The steps in an *environment* of ``amsmath``, one of ``ENVIRONMENTS``; raises ValueError for another."""
        if environment not in ENVIRONMENTS:
            raise ValueError(f"environment {environment!r}: expected one of {', '.join(ENVIRONMENTS)}")
        return self.latex().replace("{align*}", f"{{{environment}}}")

    def graph(self) -> Figure:
        """The program that the last step led to, as a computation graph."""
        return graph_figure(self.derivation.end)

    def figure(self) -> Figure:
        """The steps below one another as a picture, without TeX: what a step made or changed, after its reason."""
        lines = [rf"E_{{0}}:\ \ {line}" for line in mathtext_lines(latex(self.derivation.start, dialect="mathtext"))]
        for n, (step, reason) in enumerate(zip(self.derivation.steps, self._reasons, strict=True), 1):
            told = "".join(notation.escaped(c) for c in reason).replace(" ", r"\ ")
            known = set(step.before.equations)
            new = tuple(e for e in step.after.equations if e not in known)
            lines.append(rf"\Rightarrow\ \mathrm{{{told}}}:")
            lines += [
                rf"E_{{{n}}}:\ \ {line}"
                for line in mathtext_lines(
                    latex(replace(step.after, equations=new or step.after.equations), "mathtext")
                )
            ]
        return formula_figure(lines, repr(history(self.derivation)))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/latex": self.latex(),
            "image/svg+xml": self.figure().svg,
            "text/plain": repr(history(self.derivation)),
        }


def show(it: Program | Scope | Candidate | Derivation) -> Formula | Steps:
    """*it* as a notebook shows it: an expression in LaTeX, or all the steps of a derivation."""
    match it:
        case Derivation():
            return Steps(it)
        case Candidate():
            return Formula(it.program)
        case Scope():
            from einnet_explore.ir import program

            return Formula(program(it))
        case Program():
            return Formula(it)


def said(match: Match[Any]) -> str:
    """A match's parameters on one line."""
    params = match.to_json()["params"]
    match params:
        case {"operator": str(operator), "attributes": dict(attributes)}:
            return f"{operator} " + " ".join(f"{k}={v}" for k, v in attributes.items())
        case {"phi": dict(phi)}:
            new = [f"{name} = {index}" for name, index in phi.items() if name != index]
            return ", ".join(new) or "order " + ", ".join(phi)
    return ", ".join(f"{k} = {_value(v)}" for k, v in params.items())


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


def history(derivation: Derivation, certificates: Sequence[str] = ()) -> Table:
    """One row a step: what was done where, and its *certificates* where they are given."""
    rows = [("0", "start", "", "")] + [
        (str(n), step.match.rule.name, show_path(step.match.at), said(step.match))
        for n, step in enumerate(derivation.steps, 1)
    ]
    if not certificates:
        return Table(("E", "rule", "at", "parameters"), tuple(rows))
    proofs = ("", *certificates)
    return Table(
        ("E", "rule", "at", "parameters", "certificate"), tuple((*r, p) for r, p in zip(rows, proofs, strict=True))
    )


def candidates(found: Iterable[tuple[Candidate, str]], caption: str) -> Table:
    """One row a candidate, with its certificate beside it."""
    rows = tuple(
        (
            str(c.state),
            " + ".join(operator(e.via.operator, dict(e.via.attributes)) for e in c.operators if e.via) or "none",
            str(c.eoperators),
            str(len(c.derivation.steps)),
            seconds(c.seconds),
            certificate,
        )
        for c, certificate in found
    )
    return Table(("state", "library operators", "eOperators", "steps", "estimated", "certificate"), rows, caption)


def operator(name: str, attributes: dict[str, Any]) -> str:
    """``Matmul(m=49, n=4608, k=512)``: attributes that are 0 or 1 are left out, as most of them say nothing."""
    sizes = ", ".join(f"{k}={v}" for k, v in attributes.items() if v not in (0, 1))
    return f"{name}({sizes})" if name not in (EOPERATOR, VIEW) else name


def seconds(value: float) -> str:
    """A duration in the unit that leaves one to three digits before the point."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def changed(before: Program, after: Program) -> tuple[Path, ...]:
    """The paths in *after* of the smallest scopes that *before* does not have in the same place."""
    known = {e.name: e for e in before.equations}
    paths: list[Path] = []
    for n, equation in enumerate(after.equations):
        old = known.get(equation.name)
        if old is None or old.via != equation.via:
            paths.append((n,))
        elif old.scope != equation.scope:
            paths += [(n, *path) for path in _differing(old.scope, equation.scope)]
    return tuple(paths)


def _differing(old: Scope, new: Scope) -> Iterable[Path]:
    if _outline(old) != _outline(new):
        yield ()
        return
    for n, (a, b) in enumerate(zip(accesses(old.body), accesses(new.body), strict=True)):
        match a.source, b.source:
            case Scope() as one, Scope() as other if one != other:
                for path in _differing(one, other):
                    yield (n, *path)
            case one, other if one != other:
                yield ()
                return


def _outline(scope: Scope) -> Scope:
    """*scope* without what it reads."""
    return replace(scope, body=map_accesses(scope.body, lambda a: Access(_BLANK, a.index)))
