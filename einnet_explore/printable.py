"""Text that somebody else wrote, such as a name in a file, fit to be shown."""


def printable(text: str) -> str:
    """*text* without what moves a cursor: names in files are whatever their writers wished; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
