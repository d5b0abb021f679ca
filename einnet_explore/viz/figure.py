"""What notebooks show as a picture, and papers take as a file: SVG, PDF, PNG or TikZ."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from einnet_explore.support.errors import Refused
from einnet_explore.support.storage import write_atomically
from einnet_explore.viz.pictures import Picture

_FAMILY = re.compile(r"font-family=(['\"])(.*?)\1")

PIXELS_PER_UNIT = {"px": 1.0, "pt": 96 / 72.27, "bp": 96 / 72, "mm": 96 / 25.4, "cm": 96 / 2.54, "in": 96.0}
"""A unit of length in pixels; pt is TeX's."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture as SVG, in words, and as shapes where it was made of such; notebooks show it, ``save`` writes it."""

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
        """The picture as PDF, its text as text, in a font that goes with it; raises Refused without the library."""
        converter = _converter()
        points = _sized(self.svg, _width(self.svg) / PIXELS_PER_UNIT["bp"])  # the library takes pixels for points
        made: bytes = converter.svg_to_pdf(_embedded(points))
        return made

    def png(self, scale: float = 2.0) -> bytes:
        """The picture in pixels, *scale* to one of the SVG's; raises Refused without the library."""
        made: bytes = _converter().svg_to_png(_embedded(self.svg), scale=scale)
        return made

    def tikz(self) -> str:
        """The picture as a ``tikzpicture``; raises Refused for one that was not made of shapes."""
        if self.picture is None:
            raise Refused("this figure has no TikZ form: its SVG was drawn by a library; save it as PDF")
        return self.picture.tikz()

    def save(self, path: str | PathLike[str], width: str | None = None) -> None:
        """Write the picture, whole or not at all, as what *path* ends with: .svg, .pdf, .png, .tex or .tikz.

        *width*, as ``"3.3in"``, scales it (TikZ pictures are scaled where they are used).  Raises Refused for
        another ending, for no length, and where a form cannot be had.
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
        """The same picture as wide as *width* says; raises Refused where that is no length above 0."""
        return replace(self, svg=_sized(self.svg, _pixels(width)))


def _width(svg: str) -> float:
    """The width of *svg* in pixels; its points are CSS's."""
    found = re.search(r"\bwidth=(['\"])([0-9.]+)(px|pt|)\1", svg.split(">", 1)[0])
    return float(found[2]) * (PIXELS_PER_UNIT["bp"] if found[3] == "pt" else 1) if found else 0.0


def _sized(svg: str, wide: float) -> str:
    """*svg* made *wide* pixels wide."""
    head, rest = svg.split(">", 1)
    box = re.search(r"viewBox=(['\"])([^'\"]*)\1", head)
    if box is None:
        raise Refused("this figure cannot be scaled: its SVG has no viewBox")
    across, up = map(float, box[2].split()[2:])
    bare = re.sub(r"\b(width|height)=(['\"])[^'\"]*\2", "", head)
    return f"{bare} width='{wide:.2f}' height='{wide * up / across:.2f}'>{rest}"


def _pixels(width: str) -> float:
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
    """A figure of shapes."""
    return Figure(picture.svg(), says, picture)


def _embedded(svg: str) -> str:
    """*svg* with text in the one font that is always at hand, so that pictures look the same on every machine."""
    return _FAMILY.sub(lambda found: f"font-family='DejaVu Sans{' Mono' if 'monospace' in found[2] else ''}'", svg)


@cache
def _converter() -> Any:
    """The library that converts SVG, with Matplotlib's fonts."""
    if importlib.util.find_spec("vl_convert") is None or importlib.util.find_spec("matplotlib") is None:
        raise Refused("PDF and PNG need vl-convert-python and matplotlib: pip install 'einnet-explore[notebook]'")
    import matplotlib as mpl
    import vl_convert

    vl_convert.register_font_directory(str(Path(mpl.get_data_path()) / "fonts" / "ttf"))
    return vl_convert
