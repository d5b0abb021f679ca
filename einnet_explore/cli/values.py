"""What is said in a command's arguments, as values; an error says what was found and what was expected."""

from __future__ import annotations

import argparse

from einnet_explore.support.limits import size


def parse_shapes(given: list[str]) -> dict[str, tuple[int, ...]]:
    """``NAME=1,3,224,224`` as names and shapes; raises ValueError on anything else."""
    out: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(p.strip().isdecimal() for p in parts):
            raise ValueError(f"--shape {text}: found no list of sizes after a name, expected NAME=1,3,224,224")
        out[name] = tuple(map(int, parts))
    return out


def parse_natural(text: str) -> int:
    """A whole number from 0."""
    return _number(text, 0)


def parse_count(text: str) -> int:
    """A whole number from 1."""
    return _number(text, 1)


def parse_memory(text: str) -> int:
    """An amount of memory in bytes, such as 512M."""
    try:
        return size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_seconds(text: str) -> float:
    """A positive number of seconds, with or without an s."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a positive number of seconds")
    return value


def _number(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from {least}")
    return number
