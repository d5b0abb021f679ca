"""How expressions and derivations show themselves in a notebook: in LaTeX, with an SVG and a text beside it.

Everything here is a function of a value; nothing holds state.  A notebook that is read without a kernel, or where
nothing typesets LaTeX, still has the SVG and the text.

Formulas as SVG without TeX: by Matplotlib's mathtext where it is installed, else the text form as it stands.

What a rule says of itself, as a page of a notebook.
"""

from __future__ import annotations

import importlib.util
import io
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any, TypeVar, overload

from einnet_explore import rules
from einnet_explore.ir import Path, Program, Scope, show_path
from einnet_explore.rules import Derivation, Rule
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.syntax import align, latex, notation, text
from einnet_explore.viz.figure import Figure
from einnet_explore.viz.graph_figures import graph_figure
from einnet_explore.viz.pictures import escape_xml, replace_illegal_characters
from einnet_explore.viz.tables import step_table

_FONT_POINTS = 12
"""Points."""


def formula_figure(lines: Sequence[str], fallback: str) -> Figure:
    """*lines* in mathtext below one another; *fallback* as plain text where they cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is not None:
        try:
            return Figure(_mathtext(lines))
        except (RuntimeError, ValueError):  # mathtext does not know something that a name holds
            pass
    return text_figure(fallback)


def _mathtext(lines: Sequence[str]) -> str:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Page

    with mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "einnet", "mathtext.fontset": "cm"}):
        page = Page(figsize=(1, 1))
        for n, line in enumerate(lines):
            page.text(0, -n * 2.4 * _FONT_POINTS / 72, f"${line}$", fontsize=_FONT_POINTS, va="top")
        written = io.StringIO()
        page.savefig(written, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    drawn = written.getvalue()
    return replace_illegal_characters(drawn[drawn.index("<svg") :])


def text_figure(text: str) -> Figure:
    """*text* as it stands."""
    lines = text.rstrip("\n").split("\n")
    wide, high = 7.3 * max(map(len, lines)) + 16, 17 * len(lines) + 12
    font = "font-size='12' font-family='monospace' xml:space='preserve'"
    rows = "".join(f"<text x='8' y='{20 + 17 * n}' {font}>{escape_xml(line)}</text>" for n, line in enumerate(lines))
    return Figure(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide:.0f}' height='{high}' viewBox='0 0 {wide:.0f} {high}'>"
        f"<rect width='100%' height='100%' fill='white'/>{rows}</svg>"
    )


ALIGN_ENVIRONMENTS = ("align", "align*", "aligned", "flalign", "flalign*")
"""Environments of ``amsmath`` in which a derivation may stand."""

_CHANGED_COLOUR = "teal"
"""What the last step put in: dark enough on white, light enough on black."""


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression as a notebook shows it; *title* stands in front of it."""

    program: Program | Scope
    title: str = ""
    marks: tuple[Path, ...] = ()

    def latex(self) -> str:
        """The LaTeX, without dollar signs; marked sub-terms are coloured."""
        shown = latex(self.program, marks=dict.fromkeys(self.marks, _CHANGED_COLOUR))
        return rf"{self.title}\quad {shown}" if self.title else shown

    def figure(self) -> Figure:
        """The formula as a picture, without TeX."""
        lines = mathtext_lines(
            latex(self.program, dialect="mathtext", marks=dict.fromkeys(self.marks, _CHANGED_COLOUR))
        )
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
        if environment not in ALIGN_ENVIRONMENTS:
            raise ValueError(f"environment {environment!r}: expected one of {', '.join(ALIGN_ENVIRONMENTS)}")
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
        return formula_figure(lines, repr(step_table(self.derivation)))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {
            "text/latex": self.latex(),
            "image/svg+xml": self.figure().svg,
            "text/plain": repr(step_table(self.derivation)),
        }


_Displayable = TypeVar("_Displayable")


@overload
def show(it: Derivation) -> Steps: ...
@overload
def show(it: Program | Scope | Candidate) -> Formula: ...
@overload
def show(it: _Displayable) -> _Displayable: ...
def show(it: object) -> object:
    """Return *it* as a notebook shows it: an expression in LaTeX, or all the steps of a derivation.

    A scope has no name, and is given none: it stands there as it would inside an expression.  A value that shows
    itself, such as a session or a run, is returned as it is.  Raises TypeError for a value that cannot be shown.
    """
    match it:
        case Derivation():
            return Steps(it)
        case Candidate():
            return Formula(it.program)
        case Scope() | Program():
            return Formula(it)
    if any(hasattr(type(it), name) for name in ("_repr_mimebundle_", "_repr_html_")):
        return it
    raise TypeError(
        f"cannot show {reprlib.repr(it)} of type {type(it).__name__}: expected a Program, Scope, Candidate, "
        "Derivation, Session or Run, or another value that shows itself in a notebook"
    )


_MATH = re.compile(r"^\.\. math::(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
_ROLE = re.compile(r":math:`([^`]*)`")
_CODE = re.compile(r"``([^`]*)``")


@dataclass(frozen=True, slots=True)
class RulePage:
    """The law of *rule* and the words of the module that it stands in, as Markdown."""

    rule: Rule[Any]

    @property
    def words(self) -> str:
        """The docstring of the rule's module; empty for a rule that is no module of the library's."""
        module = f"{rules.__name__}.{self.rule.name}"
        found = import_module(module) if self.rule.name.isidentifier() and find_spec(module) is not None else None
        return cleandoc(found.__doc__ or "") if found is not None else ""

    def markdown(self) -> str:
        """The words as Markdown, with formulae between dollar signs; where they give no law, the rule's."""
        told = _CODE.sub(r"`\1`", _ROLE.sub(r"$\1$", _MATH.sub(_display, self.words)))
        heading, _, rest = told.partition("\n")
        law = "" if _MATH.search(self.words) else f"$$\n{self.rule.law}\n$$\n\n"
        return f"**{heading or self.rule.name}**\n\n{law}{rest.lstrip()}"

    def __repr__(self) -> str:
        return f"{self.rule.name}: {self.rule.law}\n\n{self.words}".rstrip("\n")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/markdown": self.markdown(), "text/plain": repr(self)}


def _display(found: re.Match[str]) -> str:
    return f"$$\n{cleandoc(found[1]).strip()}\n$$\n\n"


def rule_page(rule: Rule[Any]) -> RulePage:
    """What *rule* says of itself."""
    return RulePage(rule)
