"""Figures for papers and slides: one call each, in the width and the letters of the place where they stand.

>>> import einnet_explore as ee
>>> conv = ee.ops.conv2d(N=1, H=14, W=14, C=32, F=32, R=3, S=3, padding=1)
>>> ee.figures.expression(conv, style="ieee").save("conv.pdf")

``style`` is a key of ``STYLES``; ``width`` replaces its width.  Letters have 6 points or more (indices of indices have
4.5): formulas are broken over lines at operators and scopes, labels of graphs over words, and trees show the paths that
the caption names, with counts for the rest.  Colours differ in brightness too.  ``save`` writes SVG, PDF, PNG and TikZ;
a figure has its final size, so that a document includes it without scaling.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from einnet_explore.cost.model import CPU_DEFAULT, Device, program_seconds, work
from einnet_explore.ir import Equation, Program, show_path
from einnet_explore.rules import Derivation
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.strategies.events import State
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import count_noun, format_seconds
from einnet_explore.syntax.computation_graph import computation_graph
from einnet_explore.viz.figure import (
    PIXELS_PER_UNIT,
    Figure,
    MathLine,
    Picture,
    Polyline,
    Rectangle,
    Shape,
    ShapeStyle,
    TextLine,
    figure_from_picture,
    pixels,
    text_width,
)
from einnet_explore.viz.graph_figures import layout_graph
from einnet_explore.viz.tables import format_calls
from einnet_explore.viz.typesetting import INDENT, FontSet, broken_lines, outline

StyleName: TypeAlias = Literal["acm", "ieee", "slides", "poster"]


@dataclass(frozen=True, slots=True)
class Style:
    """The width of a figure, its sizes of letters in points, and its family of fonts."""

    width: str
    points: float
    small: float
    fonts: FontSet
    serif: bool

    @property
    def size(self) -> float:
        """The size of formulas and labels, in pixels."""
        return self.points * PIXELS_PER_UNIT["bp"]

    @property
    def note(self) -> float:
        """The size of notes, in pixels."""
        return self.small * PIXELS_PER_UNIT["bp"]


STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "acm": Style("3.33in", 9, 7.5, "stix", True),
        "ieee": Style("3.5in", 9, 7.5, "stix", True),
        "slides": Style("9in", 18, 14, "dejavusans", False),
        "poster": Style("15in", 28, 22, "dejavusans", False),
    }
)
"""A column of ACM's and of IEEE's articles, a slide of 10 inches, and a column of a poster."""

LEAST_POINTS = 6.0
"""The smallest letters."""

GREY, FAINT, DARK, LIGHT = "#5a5a5a", "#b4b4b4", "#1f4e79", "#a9c7e4"
"""Lines, faint lines, and two fills that differ in brightness."""


def _styled(style: StyleName | Style, width: str | None) -> tuple[Style, float]:
    """Return the style, and the width in pixels."""
    if isinstance(style, str) and style not in STYLES:
        raise ValueError(f"style {style!r}: expected one of {', '.join(STYLES)}")
    known = STYLES[style] if isinstance(style, str) else style
    return known, pixels(known.width if width is None else width)


def _figure(style: Style, wide: float, high: float, shapes: Iterable[Shape], says: str) -> Figure:
    return figure_from_picture(Picture(wide, high, tuple(shapes), style.serif), says)


def _program(it: object) -> Program:
    program = it.program if isinstance(it, Candidate) else it
    if not isinstance(program, Program):
        raise TypeError(f"found {type(it).__name__}, expected a program or a candidate")
    return program


class _Column:
    """Lines that are set below each other."""

    def __init__(self, style: Style, wide: float) -> None:
        self.style, self.wide, self.y = style, wide, 0.0
        self.shapes: list[Shape] = []

    def formula(self, equation: Equation, left: float = 0.0) -> None:
        """Set *equation*, broken over lines."""
        size, fonts = self.style.size, self.style.fonts
        for line in broken_lines(equation, self.wide - left, size, fonts):
            drawn = outline(line.mathtext, fonts)
            self.y += max(0.75, drawn.ascent) * size
            x = left + line.indent * INDENT * size
            self.shapes.append(MathLine(x, self.y, line.mathtext, line.tex, size, fonts))
            self.y += (max(0.2, drawn.descent) + 0.2) * size

    def note(self, text: str, left: float = 0.0) -> None:
        """Set a line of small letters, broken over words."""
        size = self.style.note
        for line in _wrapped(text, self.wide - left, size):
            self.y += 0.9 * size
            self.shapes.append(TextLine(left, self.y, line, size))
            self.y += 0.3 * size

    def gap(self, lines: float = 0.4) -> None:
        self.y += lines * self.style.size


def _wrapped(text: str, wide: float, size: float) -> list[str]:
    return textwrap.wrap(text, max(8, floor(wide / text_width("x", size)))) or [""]


def expression(it: Program | Candidate, style: StyleName | Style = "acm", width: str | None = None) -> Figure:
    """Return the equations of *it* as a figure.

    *style* is a key of ``STYLES`` or a ``Style``, and *width* a length such as ``"3.3in"`` in place of the style's.
    Raises TypeError for another value than a program or candidate, ValueError for an unknown style, Refused for a width
    that is none or less than a part of a formula needs.
    """
    look, wide = _styled(style, width)
    column = _Column(look, wide)
    program = _program(it)
    for equation in program.equations:
        column.formula(equation)
    return _figure(look, wide, column.y, column.shapes, f"expression of {count_noun(len(program.equations), 'line')}")


def derivation(it: Derivation | Candidate, style: StyleName | Style = "acm", width: str | None = None) -> Figure:
    """Return the steps of a derivation as a figure: each with its rule, and the equations that it made or changed.

    *style*, *width* and the errors are those of ``expression``; raises TypeError for another value than a derivation or
    a candidate.
    """
    look, wide = _styled(style, width)
    steps = it.derivation if isinstance(it, Candidate) else it
    if not isinstance(steps, Derivation):
        raise TypeError(f"found {type(it).__name__}, expected a derivation (session.derivation) or a candidate")
    column = _Column(look, wide)
    left = 1.2 * look.size
    for equation in steps.start.equations:
        column.formula(equation)
    for n, step in enumerate(steps.steps, 1):
        column.gap()
        column.note(f"{n}. {step.match.title.replace('_', ' ')} at {show_path(step.match.at)}")
        column.gap(0.15)
        for equation in step.new_equations:
            column.formula(equation, left)
    says = f"derivation of {count_noun(len(steps.steps), 'step')}"
    return _figure(look, wide, column.y, column.shapes, says)


class _States(Protocol):
    @property
    def states(self) -> Sequence[State]: ...


@runtime_checkable
class SearchResult(Protocol):
    """What a figure needs of a finished search, such as a ``Run``."""

    @property
    def search(self) -> _States: ...

    @property
    def candidates(self) -> Sequence[Candidate]: ...


def search_tree(
    run: SearchResult,
    to: Candidate | None = None,
    style: StyleName | Style = "acm",
    width: str | None = None,
    keep: int = 4,
) -> Figure:
    """Return the tree of *run* as an outline: the way *to* a candidate (default: the best) and to the cheapest.

    *keep* candidates are shown, with their operators and estimated times; ``+n`` counts the states below a state that
    are not.  *style* and *width* are those of ``expression``.  Raises ValueError for a search without candidates,
    TypeError for another value than a search.
    """
    look, wide = _styled(style, width)
    if not isinstance(run, SearchResult):
        raise TypeError(f"found {type(run).__name__}, expected a finished search, as of ee.search")
    states = run.search.states
    best = sorted(run.candidates, key=lambda c: c.seconds)
    if not best:
        raise ValueError("found a search without candidates, expected one to show the way to")
    shown = list(dict.fromkeys([to or best[0], *best]))[:keep]
    ends = {c.state: c for c in shown}
    way = set(_ancestors(states, shown[0].state))
    drawn = {state for c in shown for state in _ancestors(states, c.state)}
    hidden = Counter(next(a for a in _ancestors(states, s.id) if a in drawn) for s in states if s.id not in drawn)
    size, line = look.note, 1.35 * look.note
    y, shapes, at = 0.0, list[Shape](), dict[int, tuple[float, float]]()
    for state, depth in _outline(states, drawn):
        x = (depth + 0.5) * 1.1 * size
        y += line
        at[state] = x, y - 0.3 * size
        if state in ends or state == 0:
            shapes.append(_square(at[state], 0.34 * size, DARK if state in way else LIGHT))
        else:
            shapes.append(_square(at[state], 0.22 * size, DARK if state in way else GREY))
        more = f"  +{hidden[state]:,}" if hidden[state] else ""
        matches = states[state].matches
        name = matches[0].title.replace("_", " ") if matches else "start"
        left = x + 0.8 * size
        shapes.append(TextLine(left, y, _shortened(name, more, wide - left, size), size))
        if state in ends:
            y += line
            shapes.append(TextLine(left, y, _shortened(_told(ends[state]), "", wide - left, size), size))
    edges = [(s, s in way) for s in at if s]
    lines = (
        Polyline(
            (at[states[s].parent], (at[states[s].parent][0], at[s][1]), at[s]),
            ShapeStyle(stroke=DARK if on else FAINT, thick=1.6 if on else 0.8),
        )
        for s, on in sorted(edges, key=lambda edge: edge[1])
    )
    caption = (
        f"{len(drawn):,} of {count_noun(len(states), 'state')}: the ways to {count_noun(len(shown), 'candidate')} of "
        f"{len(best):,}. +n: further states below."
    )
    y += 0.6 * size
    for words in _wrapped(caption, wide, size):
        y += line
        shapes.append(TextLine(0, y, words, size))
    return _figure(look, wide, y + 0.4 * size, [*lines, *shapes], f"tree: {caption}")


def _ancestors(states: Sequence[State], state: int) -> Iterable[int]:
    """Yield *state* and its ancestors."""
    while state:
        yield state
        state = states[state].parent
    yield 0


def _outline(states: Sequence[State], drawn: set[int]) -> Iterable[tuple[int, int]]:
    """Yield the *drawn* states with their depths in the tree, depth first."""
    below: dict[int, list[int]] = {}
    for state in sorted(drawn - {0}, reverse=True):
        below.setdefault(states[state].parent, []).append(state)
    waiting = [(0, 0)]
    while waiting:
        state, depth = waiting.pop()
        yield state, depth
        waiting += [(child, depth + 1) for child in below.get(state, [])]


def _square(at: tuple[float, float], half: float, fill: str) -> Shape:
    return Rectangle(at[0] - half, at[1] - half, 2 * half, 2 * half, ShapeStyle(fill))


def _told(candidate: Candidate) -> str:
    return f"{format_calls(candidate.program) or 'generated kernels'}, {format_seconds(candidate.seconds)}"


def _shortened(text: str, more: str, wide: float, size: float) -> str:
    """Return *text* and *more*, with dots for the end of *text* if they are too wide together."""
    room = floor(wide / text_width("x", size)) - len(more)
    return (text if len(text) <= room else f"{text[: max(1, room - 2)]}..") + more


WRAPS = (None, 28, 20, 14, 10)
"""Characters of a line in a label of a graph: shorter lines if the graph is too wide."""

LABEL_PIXELS = 10.0
"""The smallest letters of a graph that is not scaled."""


def graph(
    it: Program | Candidate, style: StyleName | Style = "acm", width: str | None = None, title: str = ""
) -> Figure:
    """Return the computation graph of *it*, a program or a candidate, with a *title*.

    *style* and *width* are those of ``expression``.  Raises Refused if its letters would be smaller than 6 points.
    """
    look, wide = _styled(style, width)
    drawn = computation_graph(_program(it))
    least = LEAST_POINTS * PIXELS_PER_UNIT["bp"] / LABEL_PIXELS
    largest = look.size / LABEL_PIXELS
    tried = list[float]()
    for wrap in WRAPS:
        nodes = (replace(node, label=_wrapped_label(node.label, wrap)) for node in drawn.nodes)
        picture = layout_graph(replace(drawn, nodes=tuple(nodes)), title)
        tried.append(picture.wide)
        if picture.wide * least <= wide:
            picture = picture.scaled(min(wide / picture.wide, largest))
            says = f"computation graph of {count_noun(len(drawn.nodes), 'node')}"
            return figure_from_picture(replace(picture, serif=look.serif), says)
    needed = min(tried) * least / PIXELS_PER_UNIT["in"]
    raise Refused(
        f"width {width or look.width}: the graph needs at least {needed:.1f}in for letters of {LEAST_POINTS:g} points"
    )


def _wrapped_label(label: str, most: int | None) -> str:
    if most is None:
        return label
    return "\n".join(part for line in label.split("\n") for part in textwrap.wrap(line, most) or [""])


def comparison(
    seconds: Mapping[str, float], style: StyleName | Style = "acm", width: str | None = None, best: str | None = None
) -> Figure:
    """Return *seconds* by name as bars, each with its time and its ratio to the *best* one (default: the shortest).

    *style* and *width* are those of ``expression``.  Raises ValueError without times, for a time that is not positive,
    and if there is no *best*.
    """
    look, wide = _styled(style, width)
    if not seconds or min(seconds.values()) <= 0:
        raise ValueError(f"found the times {dict(seconds)}, expected at least one, and all above 0")
    chosen = min(seconds, key=lambda name: seconds[name]) if best is None else best
    if chosen not in seconds:
        raise ValueError(f"best {chosen!r}: expected one of {', '.join(seconds)}")
    size, line = look.note, 1.7 * look.note
    shown = {name: f"{format_seconds(t)}, {t / seconds[chosen]:.2f}x" for name, t in seconds.items()}
    left = min(0.45 * wide, max(text_width(name, size) for name in seconds) + size)
    room = wide - left - max(text_width(words, size) for words in shown.values()) - 0.8 * size
    shapes = list[Shape]()
    for n, (name, t) in enumerate(seconds.items()):
        y = (n + 0.5) * line
        bar = max(1.0, room * t / max(seconds.values()))
        fill = ShapeStyle(DARK if name == chosen else LIGHT, "black", 0.6)
        shapes += [
            TextLine(left - 0.5 * size, y + 0.35 * size, _shortened(name, "", left, size), size, "end"),
            Rectangle(left, y - 0.55 * size, bar, 1.1 * size, fill),
            TextLine(left + bar + 0.4 * size, y + 0.35 * size, shown[name], size),
        ]
    return _figure(look, wide, len(seconds) * line, shapes, f"times of {', '.join(seconds)}")


def roofline(
    programs: Mapping[str, Program | Candidate],
    style: StyleName | Style = "acm",
    width: str | None = None,
    seconds: Mapping[str, float] | None = None,
    device: Device = CPU_DEFAULT,
) -> Figure:
    """Return the roofline of *device* with a point for each of *programs*: operations a byte, and operations a second.

    Each tensor is read or written once by each equation that has it.  *seconds* are measured times by name; the others
    are estimates of the cost model.  *style* and *width* are those of ``expression``.  Raises TypeError unless
    *programs* are programs or candidates by name.  Source: S. Williams, A. Waterman, D. Patterson, Roofline, CACM
    52(4), 2009.
    """
    look, wide = _styled(style, width)
    if not isinstance(programs, Mapping):
        raise TypeError(
            f"found {type(programs).__name__}, expected programs or candidates by name: {{'best': run.best}}"
        )
    known = {name: _program(p) for name, p in programs.items()}
    points = {name: _intensity(program, (seconds or {}).get(name)) for name, program in known.items()}
    ridge = device.peak_flops / device.memory_bandwidth
    low = floor(log10(min([*(i for i, _ in points.values()), ridge / 10])))
    high = ceil(log10(max([*(i for i, _ in points.values()), ridge * 10])))
    top = ceil(log10(device.peak_flops))
    bottom = floor(log10(min([*(f for _, f in points.values()), device.memory_bandwidth * 10**low])))
    size = look.note
    left, right, above, below = 3.4 * size, wide - 1.3 * size, 0.8 * size, 0.62 * wide
    down = below + 2.8 * size

    def at(intensity: float, flops: float) -> tuple[float, float]:
        x = left + (right - left) * (log10(intensity) - low) / (high - low)
        return x, below - (below - above) * (log10(flops) - bottom) / (top - bottom)

    frame = ShapeStyle(stroke="black", thick=0.8)
    shapes: list[Shape] = [Polyline(((left, above), (left, below), (right, below)), frame)]
    for n in range(low, high + 1):
        x, _ = at(10.0**n, 10.0**bottom)
        shapes += [Polyline(((x, below), (x, below + 0.3 * size)), frame), _power(x, below + 1.3 * size, n, look, "x")]
    for n in range(bottom, top + 1):
        _, y = at(10.0**low, 10.0**n)
        shapes += [Polyline(((left - 0.3 * size, y), (left, y)), frame), _power(left, y + 0.3 * size, n, look, "y")]
    flat = device.peak_flops
    roof = [(10.0**low, device.memory_bandwidth * 10.0**low), (ridge, flat), (10.0**high, flat)]
    shapes.append(Polyline(tuple(at(*p) for p in roof), ShapeStyle(stroke=GREY, thick=1.6)))
    shapes.append(TextLine((left + right) / 2, below + 2.6 * size, "operations a byte", size, "middle"))
    shapes.append(TextLine(left + 0.4 * size, above + 0.4 * size, "operations a second", size))
    for number, (name, point) in enumerate(points.items(), 1):
        x, y = at(*point)
        shapes += [
            _square((x, y), 0.35 * size, DARK),
            TextLine(x + 0.6 * size, y + 0.35 * size, str(number), size, halo=2),
        ]
        kind = "" if seconds and name in seconds else " (estimated)"
        words = f"{number}: {name}, {point[1] / device.peak_flops:.0%} of the peak{kind}"
        for part in _wrapped(words, wide, size):
            down += 1.25 * size
            shapes.append(TextLine(0, down, part, size))
    return _figure(look, wide, down + 0.4 * size, shapes, f"roofline of {', '.join(points)}")


def _intensity(program: Program, seconds: float | None) -> tuple[float, float]:
    """Return floating-point operations a byte, and a second."""
    done = [work(equation.scope) for equation in program.equations]
    flops, nbytes = sum(one.flops for one in done), sum(one.nbytes for one in done)
    return max(flops, 1) / nbytes, max(flops, 1) / (program_seconds(program)[0] if seconds is None else seconds)


def _power(x: float, y: float, n: int, look: Style, axis: str) -> MathLine:
    """Return 10ⁿ below a tick, or left of it."""
    shown = rf"10^{{{n}}}"
    wide = outline(shown, look.fonts).wide * look.note
    return MathLine(x - wide / 2 if axis == "x" else x - wide - 0.5 * look.note, y, shown, shown, look.note, look.fonts)
