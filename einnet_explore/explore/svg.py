"""The few things that all our SVG pictures share."""

from __future__ import annotations

import re
from html import escape

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

FONT = "font-family='Helvetica, Arial, sans-serif'"


def legal(text: str) -> str:
    """*text* without what XML has no way to write: names in files may have any control character."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def escaped(text: str) -> str:
    """*text* as XML holds it."""
    return escape(legal(text))


def width_of(text: str, size: float) -> float:
    """About how wide *text* is in a sans-serif font of *size* pixels."""
    return 0.58 * size * len(text)


def opened(width: float, height: float) -> str:
    """The beginning of a picture on white, with an arrow head to use; it shrinks where it is shown narrower."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.0f} {height:.0f}' style='max-width:100%;height:auto'>"
        "<defs><marker id='arrow' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8' orient='auto'>"
        "<path d='M0,0 L8,4 L0,8 z' fill='#666666'/></marker></defs>"
        f"<rect width='{width:.0f}' height='{height:.0f}' fill='white'/>"
    )
