"""Figures: SVG for notebooks, and SVG, PDF, PNG or TikZ files for papers."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

from einnet_explore.support.errors import Refused
from einnet_explore.support.storage import write_atomically
from einnet_explore.viz.pictures import Picture

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
        return replace(self, svg=_scale_svg(self.svg, _pixels(width)))


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
    """Return the figure of a picture made of shapes."""
    return Figure(picture.svg(), says, picture)


def _with_standard_fonts(svg: str) -> str:
    """Return *svg* with its fonts replaced by Matplotlib's, so that files are equal on every machine."""
    return _FAMILY.sub(lambda found: f"font-family='DejaVu Sans{' Mono' if 'monospace' in found[2] else ''}'", svg)


@lru_cache(1)
def _converter() -> Any:
    """Return the library that converts SVG, with Matplotlib's fonts registered."""
    if importlib.util.find_spec("vl_convert") is None or importlib.util.find_spec("matplotlib") is None:
        raise Refused("PDF and PNG need vl-convert-python and matplotlib: pip install 'einnet-explore[notebook]'")
    import matplotlib as mpl
    import vl_convert

    vl_convert.register_font_directory(str(Path(mpl.get_data_path()) / "fonts" / "ttf"))
    return vl_convert
