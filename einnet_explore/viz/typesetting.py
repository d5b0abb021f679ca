"""Formulas broken into lines of a given width, at operators and scopes; the widths are Matplotlib's.

.. code-block:: text

    a bracket whose content does not fit on the rest of the line is opened here, and its parts continue on further
    lines, indented by one step for each bracket that is open; a part that fits is not broken
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Literal, TypeAlias

from einnet_explore.ir import Equation, Scope
from einnet_explore.support.errors import Refused
from einnet_explore.syntax.latex_printer import BREAK, CLOSE, OPEN, breakable_formula, unbroken

FontSet: TypeAlias = Literal["cm", "stix", "dejavusans"]
"""Computer Modern; STIX, which matches Times and Libertine; DejaVu Sans, for slides."""

INDENT = 1.0
"""Indentation of each open bracket, in sizes of the font."""

SPARE = 1.07
"""TeX sets formulas a little wider than Matplotlib."""


@dataclass(frozen=True, slots=True)
class FormulaLine:
    """A line of a formula, *indent* steps from the left: for Matplotlib and for LaTeX."""

    indent: int
    mathtext: str
    tex: str


@dataclass(slots=True)
class _Group:
    """The content of a bracket: a line may end between two parts; a part has strings and inner brackets."""

    parts: list[list[tuple[str, str] | _Group]] = field(default_factory=lambda: [[]])

    def flat(self) -> tuple[str, str]:
        pieces = [_flat(piece) for part in self.parts for piece in part]
        return "".join(a for a, _ in pieces), "".join(b for _, b in pieces)


def _flat(piece: tuple[str, str] | _Group) -> tuple[str, str]:
    return piece.flat() if isinstance(piece, _Group) else piece


def broken_lines(it: Equation | Scope, wide: float, size: float, fonts: FontSet) -> list[FormulaLine]:
    """Break *it* into lines that are at most *wide* at font *size*; raises Refused if a part of it is wider."""
    lines = list(_Filler(wide, size, fonts).lines(_parsed(it)))
    widest = max(line.indent * INDENT * size + formula_width(line.mathtext, size, fonts) for line in lines)
    if widest > wide:
        name = "the scope" if isinstance(it, Scope) else f"the formula of {it.name}"
        raise Refused(f"width: {name} needs {widest / wide:.2f} times the width, or smaller letters")
    return lines


def broken_tex(it: Equation | Scope, wide: float, size: float) -> list[str]:
    """Return the ``broken_lines`` of *it* in LaTeX, for Computer Modern and each line of amsmath's environments."""
    return [
        (rf"\hspace{{{line.indent * INDENT:g}em}}" if line.indent else "") + in_text_style(line.tex)
        for line in broken_lines(it, wide, size, "cm")
    ]


_REDUCTIONS = re.compile(r"(\\(?:sum|prod|max|min))_")


def in_text_style(tex: str) -> str:
    """Return *tex* with signs of the size of letters, as they were measured, and with limits below them."""
    return r"\textstyle " + _REDUCTIONS.sub(r"\1\\limits_", tex)


def _parsed(it: Equation | Scope) -> _Group:
    mathtext, tex = (_pieces(breakable_formula(it, dialect)) for dialect in ("mathtext", "amsmath"))
    root = _Group()
    stack = [root]
    for (mark, here), (same, there) in zip(mathtext, tex, strict=True):
        assert mark == same, f"{mark!r} and {same!r} in {it}"
        if mark == OPEN:
            inner = _Group()
            stack[-1].parts[-1].append(inner)
            stack.append(inner)
        elif mark == BREAK:
            stack[-1].parts.append([])
        else:
            stack.pop()
        stack[-1].parts[-1].append((here, there))
    return root


def _pieces(shown: str) -> list[tuple[str, str]]:
    """Split *shown* at its marks; each piece has the mark before it."""
    found = re.split(f"([{OPEN}{BREAK}{CLOSE}])", f"{BREAK}{shown}")[1:]
    return list(zip(found[::2], found[1::2], strict=True))


@dataclass(slots=True)
class _Filler:
    """Lines that are filled up to a width."""

    wide: float
    size: float
    fonts: FontSet
    mathtext: str = ""
    tex: str = ""
    indent: int = 0
    open: int = 0

    def lines(self, root: _Group) -> Iterable[FormulaLine]:
        yield from self._put(root, 1)
        if self.mathtext.strip():
            yield self._line(0)

    def _line(self, following: int) -> FormulaLine:
        """Return the line, and begin the *following* one with this indentation."""
        line = FormulaLine(self.indent, _trimmed(self.mathtext), _trimmed(self.tex))
        self.mathtext, self.tex, self.indent = "", "", following
        return line

    def _put(self, group: _Group, indent: int) -> Iterable[FormulaLine]:
        done = 0
        while done < len(group.parts):
            parts = group.parts[done:]
            fitting = self._count_fitting(parts)
            if not fitting and self.mathtext.strip():
                yield self._line(indent)
                fitting = self._count_fitting(parts)
            if fitting:
                self._add(_Group(parts[:fitting]).flat())
                done += fitting
                continue
            part = parts[0]
            for n, piece in enumerate(part):
                if isinstance(piece, _Group):
                    self.open += 1
                    yield from self._put(piece, indent + 1)
                    self.open -= 1
                    continue
                if n and not self._fits(_Group([part[n : n + 3]]).flat()):  # a bracket that closes, and what it opens
                    yield self._line(indent)
                self._add(piece)
            done += 1

    def _count_fitting(self, parts: list[list[tuple[str, str] | _Group]]) -> int:
        """Return how many of *parts* fit on the line; widths are measured from an estimate on, as each takes long."""
        flat = [_Group([part]).flat()[0] for part in parts]
        room = self.wide / (ESTIMATED_WIDTH * self.size) - _count_symbols(self.mathtext)
        count = max(1, bisect_right(list(accumulate(map(_count_symbols, flat))), room))
        while count and not self._fits(_Group(parts[:count]).flat()):
            count -= 1
        while 0 < count < len(parts) and self._fits(_Group(parts[: count + 1]).flat()):
            count += 1
        return count

    def _add(self, piece: tuple[str, str]) -> None:
        self.mathtext += piece[0]
        self.tex += piece[1]

    def _fits(self, piece: tuple[str, str]) -> bool:
        line = _trimmed(self.mathtext + piece[0])
        brackets = 0.4 * self.size * self.open  # those that have to be closed yet
        wide = self.wide - self.indent * INDENT * self.size - brackets
        return not line or formula_width(line, self.size, self.fonts) <= wide


ESTIMATED_WIDTH = 0.4
"""Width of a symbol of a formula, in sizes of the font, as it is estimated before it is measured."""


def _count_symbols(mathtext: str) -> int:
    return len(re.findall(r"\\\w+|[^\s{}_^]", mathtext))


def _trimmed(line: str) -> str:
    """Remove the spaces around a line."""
    return re.sub(r"(\\[,;]|\\qquad|\s)+$", "", line).lstrip()


def formula_width(mathtext: str, size: float, fonts: FontSet) -> float:
    """Return the width of a formula at font *size*, in its unit, also if a document sets it in Computer Modern."""
    return SPARE * max(outline(mathtext, each).wide for each in (fonts, "cm")) * size


@dataclass(frozen=True, slots=True)
class Outline:
    """The outline of a formula at font size 1, as an SVG path with its width, ascent and descent; y grows downwards."""

    path: str
    wide: float
    ascent: float
    descent: float


_UNITS = 100.0


@lru_cache(1 << 14)
def outline(mathtext: str, fonts: FontSet) -> Outline:
    """Return the outline of *mathtext*; raises Refused without Matplotlib, and for a formula that it cannot draw."""
    try:
        import matplotlib as mpl
        from matplotlib.font_manager import FontProperties
        from matplotlib.textpath import text_to_path
    except ImportError:
        raise Refused("formulas as pictures or of a given width need matplotlib: pip install '.[notebook]'") from None
    shown = f"${mathtext}$"
    with mpl.rc_context({"mathtext.fontset": fonts}):
        font = FontProperties(size=_UNITS)
        try:
            wide, high, descent = text_to_path.get_text_width_height_descent(shown, font, ismath=True)
            points, codes = text_to_path.get_text_path(font, shown, ismath=True)
        except (RuntimeError, ValueError) as why:
            raise Refused(f"Matplotlib cannot draw the formula {unbroken(mathtext)}: {why}") from None
    return Outline(_path(points, codes), wide / _UNITS, (high - descent) / _UNITS, descent / _UNITS)


def _path(vertices: Iterable[Iterable[float]], codes: Iterable[int]) -> str:
    """Return Matplotlib's path, at ``_UNITS`` with y upwards, as the path of an SVG at font size 1."""
    points = iter([f"{x / _UNITS:.3f},{-y / _UNITS:.3f}" for x, y in vertices])
    parts, left = list[str](), 0
    for code, point in zip(codes, points, strict=True):
        if code == _CLOSED:
            parts.append("z")
            continue
        if not left:
            letter, left = _LETTERS[int(code)]
            parts.append(letter)
        parts.append(point)
        left -= 1
    return " ".join(parts)


_CLOSED = 79
_LETTERS = {1: ("M", 1), 2: ("L", 1), 3: ("Q", 2), 4: ("C", 3)}
"""Matplotlib's codes: the command of SVG, and its number of points."""
