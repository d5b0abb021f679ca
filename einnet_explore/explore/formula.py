"""Formulas as SVG without TeX: by Matplotlib's mathtext where it is installed, else the text form as it stands."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence

from einnet_explore.explore.figure import Figure
from einnet_explore.explore.svg import escaped, legal

SIZE = 12
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
            page.text(0, -n * 2.4 * SIZE / 72, f"${line}$", fontsize=SIZE, va="top")
        written = io.StringIO()
        page.savefig(written, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    drawn = written.getvalue()
    return legal(drawn[drawn.index("<svg") :])


def text_figure(text: str) -> Figure:
    """*text* as it stands."""
    lines = text.rstrip("\n").split("\n")
    wide, high = 7.3 * max(map(len, lines)) + 16, 17 * len(lines) + 12
    font = "font-size='12' font-family='monospace' xml:space='preserve'"
    rows = "".join(f"<text x='8' y='{20 + 17 * n}' {font}>{escaped(line)}</text>" for n, line in enumerate(lines))
    return Figure(
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide:.0f}' height='{high}' viewBox='0 0 {wide:.0f} {high}'>"
        f"<rect width='100%' height='100%' fill='white'/>{rows}</svg>"
    )
