"""Text for people: names and messages from outside made printable, counts, durations, colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

GREEN, AMBER, RED = "#00a040", "#c08000", "#e0002d"


def printable(text: str) -> str:
    """Replace control characters except line breaks, so that names from files cannot move the cursor."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def count_noun(number: int, one: str, many: str = "") -> str:
    """Return ``1 step``, ``2 steps``; *many* is an irregular plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def suggest(given: str, known: Iterable[str]) -> str:
    """Return a question that names the one of *known* that is most similar to *given*; empty if none is."""
    return "".join(f"; did you mean {name}?" for name in get_close_matches(given, known, 1))


def format_seconds(value: float) -> str:
    """Return *value* seconds with three significant digits in s, ms, µs or ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def hue_style(hue: str) -> str:
    """Return *hue* as a text colour, mixed with the surrounding colour, so that it suits dark and light pages.

    No single colour is legible on both white and near-black, and notebook output does not know its background.
    """
    return f"color:color-mix(in srgb, {hue} 60%, currentColor)"


def align_right(rows: Sequence[Sequence[str]]) -> str:
    """Return *rows* as lines of text, every column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(c.rjust(n) for c, n in zip(row, widths, strict=True)).rstrip() for row in rows)
