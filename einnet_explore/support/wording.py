"""Text for people: names and messages from outside made printable, counts, durations, colours."""

GREEN, AMBER, RED = "#00a040", "#c08000", "#e0002d"


def printable(text: str) -> str:
    """*text* without what moves a cursor: names in files are whatever their writers wished; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def count_noun(number: int, one: str, many: str = "") -> str:
    """``1 step``, ``2 steps``: so many of what is called *one*; *many* is its plural where that is not formed by s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def format_seconds(value: float) -> str:
    """Return *value* seconds with three significant digits in s, ms, µs or ns."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def hue_style(hue: str) -> str:
    """*hue* as the colour of words, mixed with that of the words around: dark where these are dark, light where light.

    No one colour can be read well on white and on near-black, and what a notebook shows is not told which it is on.
    """
    return f"color:color-mix(in srgb, {hue} 60%, currentColor)"
