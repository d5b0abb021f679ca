"""Saved form of a widget: the HTML that a notebook shows where the widget's kernel is gone.

Front ends prefer the live widget to every other format of an output, also where its model is lost, so the saved form
is an output of its own, below the widget.  The widget's page hides it while the widget is alive.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape

CLASS = "ein-saved"

_WIDGET = "> .jp-OutputArea-output.lm-Panel"

STYLE = (
    # JupyterLab and Notebook write an error in place of a widget whose model is lost.
    f".jp-OutputArea-child:has({_WIDGET}):not(:has(.ein)):has(+ .jp-OutputArea-child .{CLASS}) {{ display: none; }}\n"
    # The live widget needs a moment to load: until then the saved form is invisible.  It keeps its height, since
    # notebooks attach outputs anew while they scroll.
    f".{CLASS} {{ animation: {CLASS} 0s 0.6s backwards; }}\n"
    f"@keyframes {CLASS} {{ from {{ opacity: 0; }} }}\n"
    f"@media print {{ .{CLASS} {{ animation: none; }} }}"
)


def saved_form(key: str, label: str, picture: Mapping[str, str]) -> dict[str, str]:
    """Return *picture* as the saved form of the widget *key*; pages without scripts and styles can show it."""
    html = (
        f"<div class='{CLASS} {CLASS}-{key}'><style>{STYLE}</style>"
        f"<p><em>{escape(label[:1].upper() + label[1:])}, as it was saved. With a kernel, run the cell again for the "
        "interactive one.</em></p>"
        f"{as_html(picture)}</div>"
    )
    others = {format: data for format, data in picture.items() if format != "image/svg+xml"}  # the HTML contains it
    return {"text/plain": "", **others, "text/html": html}


def as_html(picture: Mapping[str, str]) -> str:
    """Return *picture* as HTML: its HTML, else its SVG as an image, which sanitisers keep, else its text."""
    if html := picture.get("text/html"):
        return html
    if svg := picture.get("image/svg+xml"):
        source = base64.b64encode(svg.encode()).decode()
        return f"<img alt='{escape(picture.get('text/plain', ''))}' src='data:image/svg+xml;base64,{source}'>"
    return f"<pre>{escape(picture.get('text/plain', ''))}</pre>"


def sections(parts: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Return the HTML of titled pictures, one below the other."""
    return "".join(f"<h4>{escape(title)}</h4>{as_html(picture)}" for title, picture in parts)
