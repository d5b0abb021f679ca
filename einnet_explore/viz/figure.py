"""Pictures as values, printed as SVG or TikZ, and figures: SVG for notebooks, SVG, PDF, PNG or TikZ files for papers.

Lengths are SVG pixels, and y grows downwards.  In TikZ a pixel is 0.75 bp, as in CSS, so both have the same size.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import pairwise
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from einnet_explore.support.errors import Refused
from einnet_explore.support.storage import write_atomically
from einnet_explore.syntax.latex_printer import latex_words
from einnet_explore.viz.typesetting import FontSet, in_text_style, outline

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

FONT = "font-family='Helvetica, Arial, sans-serif'"
SERIF_FONT = "font-family='Times New Roman, Times, STIXGeneral, serif'"


def replace_illegal_characters(text: str) -> str:
    """Replace characters that XML cannot represent, such as control characters in names."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def escape_xml(text: str) -> str:
    """Escape *text* for XML."""
    return escape(replace_illegal_characters(text))


def text_width(text: str, size: float) -> float:
    """Estimate the width of *text* in a sans-serif font of *size* pixels."""
    return 0.58 * size * len(text)


def _svg_head(width: float, height: float) -> str:
    """Return the start of an SVG document with a white background and an arrow head; it shrinks with its container."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' style='max-width:100%;height:auto'>"
        "<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8' orient='auto'>"
        "<path d='M0,0 L8,4 L0,8 z' fill='#666666'/></marker></defs>"
        f"<rect width='{width:.0f}' height='{height:.0f}' fill='white'/>"
    )


_LENGTH = re.compile(r"\s(width|height)=['\"]([\d.]+)(pt|px)?['\"]")
_PIXELS_PER_POINT = 4 / 3
_GAP_PIXELS = 24.0


def join_svgs(svgs: Iterable[str]) -> str:
    """Return one SVG with *svgs* from left to right, each in its size."""
    x, height, placed = 0.0, 0.0, list[str]()
    for svg in svgs:
        lengths = {
            name: float(number) * (_PIXELS_PER_POINT if unit == "pt" else 1)
            for name, number, unit in _LENGTH.findall(svg[: svg.index(">")])
        }
        placed.append(svg.replace("<svg ", f"<svg x='{x:.0f}' ", 1))
        x, height = x + lengths["width"] + _GAP_PIXELS, max(height, lengths["height"])
    return f"{_svg_head(max(x - _GAP_PIXELS, 0), height)}{''.join(placed)}</svg>"


Point: TypeAlias = "tuple[float, float]"


@dataclass(frozen=True, slots=True)
class ShapeStyle:
    """Fill colour, outline colour and outline thickness; ``none`` is no fill or no outline."""

    fill: str = "none"
    stroke: str = "none"
    thick: float = 1.0


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle by its upper left corner."""

    x: float
    y: float
    wide: float
    high: float
    look: ShapeStyle
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Ellipse:
    """An ellipse by its centre."""

    x: float
    y: float
    rx: float
    ry: float
    look: ShapeStyle
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Polyline:
    """Straight lines between points, closed if filled."""

    points: tuple[Point, ...]
    look: ShapeStyle


@dataclass(frozen=True, slots=True)
class Curve:
    """A smooth curve through points with vertical ends."""

    points: tuple[Point, ...]
    look: ShapeStyle
    arrow: bool = False


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text at its base line; *anchor* is start, middle or end; *halo* is the width of its white outline."""

    x: float
    y: float
    text: str
    size: float
    anchor: str = "start"
    halo: float = 0.0


@dataclass(frozen=True, slots=True)
class MathLine:
    """A formula at its base line, for Matplotlib and for LaTeX, in a font of *size* pixels."""

    x: float
    y: float
    mathtext: str
    tex: str
    size: float
    fonts: FontSet = "stix"


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """Shapes of one item, with its tooltip *title*."""

    kind: str
    title: str
    shapes: tuple[Shape, ...]


Shape: TypeAlias = "Rectangle | Ellipse | Polyline | Curve | TextLine | MathLine | ShapeGroup"


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes in drawing order; *serif* text has serifs."""

    wide: float
    high: float
    shapes: tuple[Shape, ...]
    serif: bool = False

    def svg(self) -> str:
        """Return the picture as an SVG document."""
        drawn = "".join([_svg_head(self.wide, self.high), *map(_svg, self.shapes), "</svg>"])
        return drawn.replace(FONT, SERIF_FONT) if self.serif else drawn

    def scaled(self, factor: float) -> Picture:
        """Return the picture *factor* times as large, text and lines too."""
        shapes = tuple(_scaled(shape, factor) for shape in self.shapes)
        return replace(self, wide=self.wide * factor, high=self.high * factor, shapes=shapes)

    def tikz(self) -> str:
        """Return the picture as a ``tikzpicture``, which needs only the package ``tikz``."""
        lines = (line for shape in self.shapes for line in _tikz(shape))
        head = r"\begin{tikzpicture}[x=0.75bp, y=-0.75bp, every node/.style={inner sep=0pt, font=\sffamily}]"
        drawn = "\n".join([head, *(f"  {line}" for line in lines), r"\end{tikzpicture}"]) + "\n"
        return drawn.replace(r"\sffamily", r"\rmfamily") if self.serif else drawn


def _scaled(shape: Shape, k: float) -> Shape:
    """Return *shape* with every length, those of its style and its text too, *k* times as large."""

    def point(p: Point) -> Point:
        return p[0] * k, p[1] * k

    def style(look: ShapeStyle) -> ShapeStyle:
        return replace(look, thick=look.thick * k)

    match shape:
        case Rectangle(x, y, wide, high, look):
            return replace(shape, x=x * k, y=y * k, wide=wide * k, high=high * k, look=style(look))
        case Ellipse(x, y, rx, ry, look):
            return replace(shape, x=x * k, y=y * k, rx=rx * k, ry=ry * k, look=style(look))
        case Polyline(points, look) | Curve(points, look):
            return replace(shape, points=tuple(map(point, points)), look=style(look))
        case TextLine(x, y, _, size, _, halo):
            return replace(shape, x=x * k, y=y * k, size=size * k, halo=halo * k)
        case MathLine(x, y, _, _, size):
            return replace(shape, x=x * k, y=y * k, size=size * k)
        case ShapeGroup(_, _, shapes):
            return replace(shape, shapes=tuple(_scaled(each, k) for each in shapes))


def _svg(shape: Shape) -> str:
    match shape:
        case Rectangle(x, y, wide, high, look, tip):
            return _element(f"rect x='{x:.1f}' y='{y:.1f}' width='{wide:.1f}' height='{high:.1f}'", "rect", look, tip)
        case Ellipse(x, y, rx, ry, look, tip) if rx == ry:
            return _element(f"circle cx='{x:.1f}' cy='{y:.1f}' r='{rx:.1f}'", "circle", look, tip)
        case Ellipse(x, y, rx, ry, look, tip):
            return _element(f"ellipse cx='{x:.1f}' cy='{y:.1f}' rx='{rx:.1f}' ry='{ry:.1f}'", "ellipse", look, tip)
        case Polyline(points, look):
            line = " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
            return _element(f"path d='M{line}{'' if look.fill == 'none' else ' z'}'", "path", look, "")
        case Curve(points, look, arrow):
            curve = "".join(f" C{' '.join(f'{x:.1f},{y:.1f}' for x, y in bend)}" for bend in _bends(points))
            head = " marker-end='url(#arrow)'" if arrow else ""
            return f"<path d='M{points[0][0]:.1f},{points[0][1]:.1f}{curve}' {_svg_style(look)}{head}/>"
        case TextLine(x, y, text, size, anchor, halo):
            white = f" stroke='white' stroke-width='{halo:g}' paint-order='stroke'" if halo else ""
            at = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='{size:g}'"
            return f"<text {at} {FONT}{white}>{escape_xml(text)}</text>"
        case MathLine(x, y, mathtext, _, size, fonts):
            move = f"translate({x:.1f} {y:.1f}) scale({size:g})"
            return f"<path transform='{move}' d='{outline(mathtext, fonts).path}'/>"
        case ShapeGroup(kind, title, shapes):
            inside = "".join(map(_svg, shapes))
            return f"<g class='{escape_xml(kind)}'><title>{escape_xml(title)}</title>{inside}</g>"


def _element(inside: str, tag: str, look: ShapeStyle, tip: str) -> str:
    end = f"><title>{escape_xml(tip)}</title></{tag}>" if tip else "/>"
    return f"<{inside} {_svg_style(look)}{end}"


def _svg_style(look: ShapeStyle) -> str:
    line = "" if look.stroke == "none" else f" stroke='{look.stroke}' stroke-width='{look.thick:g}'"
    return f"fill='{look.fill}'{line}"


def _bends(points: tuple[Point, ...]) -> Iterable[tuple[Point, Point, Point]]:
    """Yield a cubic curve (two control points at half height, and the end) for each pair of points."""
    for (ax, ay), (bx, by) in pairwise(points):
        middle = (ay + by) / 2
        yield (ax, middle), (bx, middle), (bx, by)


def _tikz(shape: Shape) -> Iterable[str]:
    match shape:
        case Rectangle(x, y, wide, high, look, _):
            yield rf"\path{_style(look)} ({x:.1f},{y:.1f}) rectangle ({x + wide:.1f},{y + high:.1f});"
        case Ellipse(x, y, rx, ry, look, _):
            yield rf"\path{_style(look)} ({x:.1f},{y:.1f}) ellipse [x radius={rx:.1f}, y radius={ry:.1f}];"
        case Polyline(points, look):
            line = " -- ".join(f"({x:.1f},{y:.1f})" for x, y in points)
            yield rf"\path{_style(look)} {line}{'' if look.fill == 'none' else ' -- cycle'};"
        case Curve(points, look, arrow):
            start = f"({points[0][0]:.1f},{points[0][1]:.1f})"
            bends = (
                f" .. controls ({a[0]:.1f},{a[1]:.1f}) and ({b[0]:.1f},{b[1]:.1f}) .. ({c[0]:.1f},{c[1]:.1f})"
                for a, b, c in _bends(points)
            )
            yield rf"\path{_style(look, '->, ' if arrow else '')} {start}{''.join(bends)};"
        case TextLine(x, y, text, size, anchor, halo):
            where = {"start": "base west", "middle": "base", "end": "base east"}[anchor]
            white = ", fill=white" if halo else ""
            font = rf"font=\sffamily\fontsize{{{0.75 * size:g}}}{{{0.9 * size:g}}}\selectfont"
            if text:
                yield rf"\node[anchor={where}, {font}{white}] at ({x:.1f},{y:.1f}) {{{latex_words(text)}}};"
        case MathLine(x, y, _, tex, size, _):
            font = rf"font=\fontsize{{{0.75 * size:g}}}{{{0.9 * size:g}}}\selectfont"
            yield rf"\node[anchor=base west, {font}] at ({x:.1f},{y:.1f}) {{${in_text_style(tex)}$}};"
        case ShapeGroup(_, _, shapes):
            for inside in shapes:
                yield from _tikz(inside)


def _style(look: ShapeStyle, more: str = "") -> str:
    parts = [] if look.fill == "none" else [f"fill={_colour(look.fill)}"]
    if look.stroke != "none":
        parts += [f"draw={_colour(look.stroke)}", f"line width={0.75 * look.thick:g}bp"]
    return f"[{more}{', '.join(parts)}]"


def _colour(name: str) -> str:
    """Return a TikZ colour for a colour name or ``#rrggbb``."""
    if not name.startswith("#"):
        return name
    red, green, blue = (int(name[n : n + 2], 16) for n in (1, 3, 5))
    return f"{{rgb,255:red,{red};green,{green};blue,{blue}}}"


_FAMILY = re.compile(r"font-family=(['\"])(.*?)\1")

PIXELS_PER_UNIT = {"px": 1.0, "pt": 96 / 72.27, "bp": 96 / 72, "mm": 96 / 25.4, "cm": 96 / 2.54, "in": 96.0}
"""Pixels in each unit of length; pt is TeX's point."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture as SVG, as text, and as shapes if it consists of shapes; notebooks display it, ``save`` writes it."""

    svg: str
    says: str = "(figure)"
    picture: Picture | None = None

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"image/svg+xml": self.svg, "text/plain": self.says}

    def __repr__(self) -> str:
        return self.says

    def pdf(self) -> bytes:
        """Return the picture as PDF with selectable text and an embedded font; raise Refused without the library."""
        converter = _converter()
        points = _scale_svg(self.svg, _width(self.svg) / PIXELS_PER_UNIT["bp"])  # the library takes pixels as points
        made: bytes = converter.svg_to_pdf(_with_standard_fonts(points))
        return made

    def png(self, scale: float = 2.0) -> bytes:
        """Return the picture as PNG, *scale* pixels for each pixel of the SVG; raise Refused without the library."""
        made: bytes = _converter().svg_to_png(_with_standard_fonts(self.svg), scale=scale)
        return made

    def tikz(self) -> str:
        """Return the picture as a ``tikzpicture``; raise Refused for a picture that does not consist of shapes."""
        if self.picture is None:
            raise Refused("this figure has no TikZ form: its SVG was drawn by a library; save it as PDF")
        return self.picture.tikz()

    def save(self, path: str | PathLike[str], width: str | None = None) -> None:
        """Write the picture atomically in the format of the suffix of *path*: .svg, .pdf, .png, .tex or .tikz.

        *width*, such as ``"3.3in"``, scales the SVG (TikZ pictures are scaled in the document).  Raises Refused for
        another suffix, an invalid width, and a format that is not available.
        """
        kinds: Mapping[str, Callable[[Figure], bytes | str]] = {
            ".svg": lambda figure: figure.svg,
            ".pdf": Figure.pdf,
            ".png": Figure.png,
            ".tex": Figure.tikz,
            ".tikz": Figure.tikz,
        }
        kind = Path(path).suffix.lower()
        if kind not in kinds:
            raise Refused(f"{path}: found the ending {kind or '(none)'}, expected one of {', '.join(kinds)}")
        write_atomically(path, kinds[kind](self if width is None else self.scaled(width)))

    def scaled(self, width: str) -> Figure:
        """Return the picture scaled to *width*; raise Refused unless that is a positive length."""
        return replace(self, svg=_scale_svg(self.svg, pixels(width)))


def _width(svg: str) -> float:
    """Return the width of *svg* in pixels; its points are CSS points."""
    found = re.search(r"\bwidth=(['\"])([0-9.]+)(px|pt|)\1", svg.split(">", 1)[0])
    return float(found[2]) * (PIXELS_PER_UNIT["bp"] if found[3] == "pt" else 1) if found else 0.0


def _scale_svg(svg: str, wide: float) -> str:
    """Return *svg* scaled to *wide* pixels."""
    head, rest = svg.split(">", 1)
    box = re.search(r"viewBox=(['\"])([^'\"]*)\1", head)
    if box is None:
        raise Refused("this figure cannot be scaled: its SVG has no viewBox")
    across, up = map(float, box[2].split()[2:])
    bare = re.sub(r"\b(width|height)=(['\"])[^'\"]*\2", "", head)
    return f"{bare} width='{wide:.2f}' height='{wide * up / across:.2f}'>{rest}"


def pixels(width: str) -> float:
    """Return a width such as ``"3.3in"`` in pixels; raise Refused unless it is a positive length, as a text."""
    if not isinstance(width, str):
        raise Refused(f"width {width!r}: expected a text such as '3.3in'")
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]+)\s*", width)
    try:
        wide = float(found[1]) * PIXELS_PER_UNIT[found[2]] if found else 0.0
    except (KeyError, ValueError):
        wide = 0.0
    if wide <= 0:
        raise Refused(
            f"width {width!r}: expected a number above 0 and one of {', '.join(PIXELS_PER_UNIT)}, as in '3.3in'"
        )
    return wide


def figure_from_picture(picture: Picture, says: str) -> Figure:
    """Return the figure of a picture made of shapes."""
    return Figure(picture.svg(), says, picture)


def _with_standard_fonts(svg: str) -> str:
    """Return *svg* with its fonts replaced by Matplotlib's, so that files are equal on every machine."""

    def standard(found: re.Match[str]) -> str:
        serif = "STIXGeneral" if "STIXGeneral" in found[2] else "DejaVu Sans"
        return f"font-family='{'DejaVu Sans Mono' if 'monospace' in found[2] else serif}'"

    return _FAMILY.sub(standard, svg)


@lru_cache(1)
def _converter() -> ModuleType:
    """Return the library that converts SVG, with Matplotlib's fonts registered."""
    if importlib.util.find_spec("vl_convert") is None or importlib.util.find_spec("matplotlib") is None:
        raise Refused("PDF and PNG need vl-convert-python and matplotlib: pip install '.[notebook]'")
    import matplotlib as mpl
    import vl_convert

    vl_convert.register_font_directory(str(Path(mpl.get_data_path()) / "fonts" / "ttf"))
    return vl_convert
