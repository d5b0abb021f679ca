"""Which names the text form takes as they are."""

import re

RESERVED = frozenset(
    ["tensor", "output", "weight", "pad", "value", "via", "where", "table", "inf", "sum", "max", "min", "prod"]
)
"""Words that name no tensor or equation unless they stand in double quotes."""

_NAME = re.compile(r"[^\W\d]\w*")


def is_word(name: str) -> bool:
    """Whether *name* is a word of letters, digits and underscores that does not start with a digit."""
    return _NAME.fullmatch(name) is not None
