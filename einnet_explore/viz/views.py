"""Displays: expressions, derivations and rules in notebooks, and derivations as HTML pages.

A notebook shows LaTeX with an SVG and a text fallback.  The SVG is drawn by Matplotlib's mathtext if it is installed,
otherwise it shows the text form; it is displayed where no kernel runs or LaTeX is not typeset.
"""

from __future__ import annotations

import importlib.util
import io
import re
import reprlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import TypeVar, overload

from einnet_explore import rules
from einnet_explore.equivalence.operand_rounding import certify_step
from einnet_explore.ir import Path, Program, Scope, show_path
from einnet_explore.rules import Derivation, Rule
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.syntax import align, latex, text
from einnet_explore.syntax.latex_printer import escape_latex, latex_words
from einnet_explore.viz.figure import (
    PIXELS_PER_UNIT,
    Figure,
    escape_xml,
    pixels,
    replace_illegal_characters,
    text_width,
)
from einnet_explore.viz.graph_figures import graph_figure
from einnet_explore.viz.tables import step_table
from einnet_explore.viz.typesetting import broken_tex

_FONT_POINTS = 12


def formula_figure(lines: Sequence[str], fallback: str) -> Figure:
    """Draw *lines* in mathtext; draw *fallback* as plain text if that fails."""
    if importlib.util.find_spec("matplotlib") is not None:
        try:
            return Figure(_mathtext(lines))
        except (RuntimeError, ValueError):  # a name contains a character that mathtext does not support
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
    """Draw *text* in a monospace font."""
    lines = text.rstrip("\n").split("\n")
    wide, high = 7.3 * max(map(len, lines)) + 16, 17 * len(lines) + 12
    font = "font-size='12' font-family='monospace' xml:space='preserve'"
    rows = "".join(f"<text x='8' y='{20 + 17 * n}' {font}>{escape_xml(line)}</text>" for n, line in enumerate(lines))
    return Figure(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide:.0f}' height='{high}' viewBox='0 0 {wide:.0f} {high}'>"
        f"<rect width='100%' height='100%' fill='white'/>{rows}</svg>"
    )


ALIGN_ENVIRONMENTS = ("align", "align*", "aligned", "flalign", "flalign*")
"""Environments of ``amsmath`` for derivations."""

_CHANGED_COLOUR = "teal"
"""Colour of new sub-terms, readable on white and on black."""


@dataclass(frozen=True, slots=True)
class Formula:
    """Display of an expression, preceded by *title*."""

    program: Program | Scope
    title: str = ""
    marks: tuple[Path, ...] = ()

    def latex(self, width: str | None = None, points: float = 10.0) -> str:
        """Return LaTeX without dollar signs; marked sub-terms are coloured.

        With a *width*, a length such as ``"3.3in"``, it is ``aligned`` and without colours, and its lines are broken at
        operators and scopes so that letters of this many *points* fit.  Raises Refused for a width that is none or
        less than a part of the formula needs, and without Matplotlib, which measures it.
        """
        if width is not None:
            parts = self.program.equations if isinstance(self.program, Program) else (self.program,)
            broken = [line for it in parts for line in broken_tex(it, pixels(width), points * PIXELS_PER_UNIT["pt"])]
            lines = [f"& {line}" for line in ([self.title] if self.title else []) + broken]
            return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"
        shown = latex(self.program, marks=dict.fromkeys(self.marks, _CHANGED_COLOUR))
        return rf"{self.title}\quad {shown}" if self.title else shown

    def figure(self) -> Figure:
        """Return the formula as a picture."""
        lines = mathtext_lines(
            latex(self.program, dialect="mathtext", marks=dict.fromkeys(self.marks, _CHANGED_COLOUR))
        )
        if self.title:
            lines[0] = rf"{self.title}:\ \ {lines[0]}"
        return formula_figure(lines, text(self.program))

    def __str__(self) -> str:
        return text(self.program).rstrip("\n")

    def _repr_latex_(self) -> str:
        return f"$\\displaystyle {self.latex()}$"

    def _repr_svg_(self) -> str:
        return self.figure().svg

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/latex": self._repr_latex_(), "image/svg+xml": self._repr_svg_(), "text/plain": str(self)}


def mathtext_lines(shown: str) -> list[str]:
    """Split *shown* into lines with explicit operator spacing, which Matplotlib does not add."""
    return shown.replace(r"{\mathbf{L}} ", r"{\mathbf{L}}\ ").split("\n")


@dataclass(frozen=True, slots=True)
class Steps:
    """Display of a derivation: the program after every step, with the rule and path of the step."""

    derivation: Derivation

    @property
    def _reasons(self) -> list[str]:
        return [f"{step.match.title} at {show_path(step.match.at)}" for step in self.derivation.steps]

    def latex(self, width: str | None = None, points: float = 10.0) -> str:
        """Return an ``align*`` block: the equations that each step added or changed, after its rule and path.

        With a *width*, its lines are broken as those of ``Formula.latex``.
        """
        if width is not None:
            return _broken_steps(self.derivation, pixels(width), points * PIXELS_PER_UNIT["pt"])
        return align([self.derivation.start, *(step.after for step in self.derivation.steps)], self._reasons)

    def to_latex(self, environment: str = "align*", width: str | None = None, points: float = 10.0) -> str:
        """Return ``latex`` in an *environment* of ``ALIGN_ENVIRONMENTS``; raise ValueError for another."""
        if environment not in ALIGN_ENVIRONMENTS:
            raise ValueError(f"environment {environment!r}: expected one of {', '.join(ALIGN_ENVIRONMENTS)}")
        return self.latex(width, points).replace("{align*}", f"{{{environment}}}")

    def graph(self) -> Figure:
        """Return the computation graph of the last program."""
        return graph_figure(self.derivation.end)

    def figure(self) -> Figure:
        """Return the steps as a picture: the equations that each step added or changed, after its rule and path."""
        lines = [rf"E_{{0}}:\ \ {line}" for line in mathtext_lines(latex(self.derivation.start, dialect="mathtext"))]
        for n, (step, reason) in enumerate(zip(self.derivation.steps, self._reasons, strict=True), 1):
            words = "".join(escape_latex(c) for c in reason).replace(" ", r"\ ")
            lines.append(rf"\Rightarrow\ \mathrm{{{words}}}:")
            lines += [
                rf"E_{{{n}}}:\ \ {line}"
                for line in mathtext_lines(latex(replace(step.after, equations=step.new_equations), "mathtext"))
            ]
        return formula_figure(lines, str(self))

    def __str__(self) -> str:
        return repr(step_table(self.derivation))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/latex": self.latex(), "image/svg+xml": self.figure().svg, "text/plain": str(self)}


def _broken_steps(derivation: Derivation, wide: float, size: float) -> str:
    """Return the steps as ``align*`` with lines that are at most *wide* at font *size*, as ``figures.derivation``."""
    lines = [line for equation in derivation.start.equations for line in broken_tex(equation, wide, size)]
    for n, step in enumerate(derivation.steps, 1):
        reason = f"{n}. {step.match.title.replace('_', ' ')} at {show_path(step.match.at)}"
        lines += [
            rf"\text{{{latex_words(words)}}}" for words in textwrap.wrap(reason, int(wide / text_width("x", size)))
        ]
        for equation in step.new_equations:
            lines += [rf"\hspace{{1.2em}}{line}" for line in broken_tex(equation, wide - 1.2 * size, size)]
    return "\\begin{align*}\n" + " \\\\\n".join(f"& {line}" for line in lines) + "\n\\end{align*}"


_Displayable = TypeVar("_Displayable")


@overload
def show(it: Derivation) -> Steps: ...
@overload
def show(it: Program | Scope | Candidate) -> Formula: ...
@overload
def show(it: _Displayable) -> _Displayable: ...
def show(it: object) -> object:
    """Return the notebook display of *it*: an expression in LaTeX, or all steps of a derivation.

    A scope is displayed without a name.  A value with its own notebook display, such as a session or a run, is returned
    unchanged.  Raises TypeError for any other value.
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
        "Derivation, Session or Run, or another value with a notebook display"
    )


_MATH = re.compile(r"^\.\. math::(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
_ROLE = re.compile(r":math:`([^`]*)`")
_CODE = re.compile(r"``([^`]*)``")


@dataclass(frozen=True, slots=True)
class RulePage:
    """Display of a rule: its law and its documentation, as Markdown."""

    rule: Rule[object]

    @property
    def words(self) -> str:
        """The docstring of the rule's ``rewrite`` if it has a law, else of the module with the rule's name."""
        own = self.rule.rewrite.__doc__ or ""
        if ".. math::" in own:
            return cleandoc(own)
        module = f"{rules.__name__}.{self.rule.name}"
        found = import_module(module) if self.rule.name.isidentifier() and find_spec(module) is not None else None
        return cleandoc(found.__doc__ or "") if found is not None else ""

    def markdown(self) -> str:
        """Return the docstring as Markdown with formulas between dollar signs, preceded by the law if it has none."""
        converted = _CODE.sub(r"`\1`", _ROLE.sub(r"$\1$", _MATH.sub(_display, self.words)))
        heading, _, rest = converted.partition("\n")
        law = "" if _MATH.search(self.words) else f"$$\n{self.rule.law}\n$$\n\n"
        return f"**{heading or self.rule.name}**\n\n{law}{rest.lstrip()}"

    def __repr__(self) -> str:
        return f"{self.rule.name}: {self.rule.law}\n\n{self.words}".rstrip("\n")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/markdown": self.markdown(), "text/plain": repr(self)}


def _display(found: re.Match[str]) -> str:
    return f"$$\n{cleandoc(found[1]).strip()}\n$$\n\n"


def rule_page(rule: Rule[object]) -> RulePage:
    """Return the display of *rule*, one of the library's or yours: its law as a formula and its module's words."""
    return RulePage(rule)


_STYLESHEET = """
body { font: 15px/1.5 Helvetica, Arial, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: white; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .3rem; } p { margin: .3rem 0; }
pre { background: #f6f6f3; padding: .6rem .8rem; margin: .4rem 0; white-space: pre-wrap; overflow-wrap: anywhere;
  font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }
pre > span { display: block; padding-left: 2rem; text-indent: -2rem; }
.new { background: #fdf0b8; } .old { opacity: .6; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 14px; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.proved { color: #1b7a3d; } .exact { color: #9a6a00; } .false { color: #b00020; }
details { margin: .3rem 0; font-size: 13px; } summary { cursor: pointer; color: #555; }
.pair { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
.pair.halves { flex-wrap: nowrap; } .halves figure { flex: 1 1 50%; min-width: 0; }
figure { margin: .5rem 0; max-width: 100%; } figcaption { font-weight: bold; font-size: 13px; }
svg { max-width: 100%; height: auto; background: white; }
@media (prefers-color-scheme: dark) { body { background: #1c1c1c; color: #ddd; } pre { background: #2a2a2a; }
  .new { background: #4a4320; } td, th { border-color: #444; } summary { color: #aaa; }
  .proved { color: #6fcf8f; } .exact { color: #e0b050; } .false { color: #ff7b86; } }
"""


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return an HTML page without scripts and external references."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>"
        f"<style>{_STYLESHEET}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>\n"
    )


def derivation_page(derivation: Derivation, title: str, certificates: Sequence[str] = ()) -> str:
    """Return the page of *derivation*: every program, with the rule, parameters and certificate of its step.

    *certificates* are the verdicts on the steps, if they are known.
    """
    kinds = certificates or [certify_step(s.match.rule.name, s.before, s.after).kind for s in derivation.steps]
    graphs = [_figure(derivation.start, "before" if derivation.steps else "")]
    if derivation.steps:
        graphs.append(_figure(derivation.end, "after"))
    parts = [f"<div class='pair'>{''.join(graphs)}</div>", "<h2>Start</h2>", _program(derivation.start)]
    for n, (step, kind) in enumerate(zip(derivation.steps, kinds, strict=True), 1):
        parts += [
            f"<h2>{n}. {escape(step.match.title.replace('_', ' '))} at {escape(show_path(step.match.at))}</h2>",
            f"<p>{_params(step.match.forwards.to_json()['params'])} <b class='{kind}'>{kind}</b></p>",
            _program(step.after, step.before),
        ]
    return html_page(title, parts)


def _figure(program: Program, caption: str) -> str:
    captioned = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f"<figure>{captioned}{graph_figure(program).svg}</figure>"


def _params(params: Mapping[str, object]) -> str:
    return "; ".join(f"{escape(name)} = <code>{escape(_value(value))}</code>" for name, value in params.items())


def _value(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{k}: {_value(v)}" for k, v in value.items())
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return str(value)


def _program(program: Program, before: Program | None = None) -> str:
    """Return *program* as text with lines that are not in *before* highlighted, and as collapsed LaTeX."""
    known = set(text(before).splitlines()) if before else set()
    lines = [
        f"<span class='{'old' if line in known else 'new' if before else ''}'>{escape(line)}</span>"
        for line in text(program).splitlines()
    ]
    folded = f"<details><summary>LaTeX</summary><pre>{escape(latex(program))}</pre></details>"
    return f"<pre>{''.join(lines)}</pre>{folded}"
