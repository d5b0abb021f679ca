"""Parsers of argument values; their errors name the value found and the value expected."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from einnet_explore.support.limits import parse_bytes

if TYPE_CHECKING:
    from einnet_explore.onnx_import.size_ranges import Sizes


def parse_shapes(arguments: list[str]) -> dict[str, tuple[int, ...]]:
    """Parse ``NAME=1,3,224,224`` arguments to shapes by name; raise ValueError for any other form."""
    out: dict[str, tuple[int, ...]] = {}
    for name, shape in parse_ranged_shapes(arguments).items():
        out[name] = tuple(size for size in shape if isinstance(size, int))
        if len(out[name]) < len(shape):
            raise ValueError(
                f"--shape {name}: found several sizes of a dimension, expected one: ranges are for optimize on a CPU"
            )
    return out


def parse_domains(arguments: list[str]) -> dict[str, str]:
    """Parse ``NAME=0,1`` arguments to the texts of domains by name; raise ValueError for any other form."""
    found = {}
    for text in arguments:
        name, equals, domain = text.rpartition("=")
        if not equals or not name or not domain:
            raise ValueError(f"--domain {text}: found no numbers after a name, expected NAME=0,1 or NAME=0..1")
        found[name] = domain
    return found


def parse_ranged_shapes(arguments: list[str]) -> dict[str, tuple[Sizes, ...]]:
    """Parse arguments like ``NAME=1..8,3,224,224``, or ``1+4+16`` for sizes of a dimension; raise ValueError."""
    out: dict[str, tuple[Sizes, ...]] = {}
    for text in arguments:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(_SIZES.fullmatch(part.strip()) for part in parts):
            raise ValueError(
                f"--shape {text}: found no list of sizes after a name, expected NAME=1,3,224,224, or 1..8 or 1+4+16 "
                "for the sizes of a dimension"
            )
        out[name] = tuple(_parse_sizes(part, f"--shape {text}") for part in parts)
    return out


_SIZES = re.compile(r"\d+(\.\.\d+)?(\+\d+(\.\.\d+)?)*")


def _parse_sizes(text: str, where: str) -> Sizes:
    """Parse the sizes of a dimension: ``8``, ``1..8`` or ``1..4+16``; raises ValueError for an empty range."""
    found: list[int | range] = []
    for part in text.split("+"):
        low, dots, high = part.partition("..")
        if dots and int(high) < int(low):
            raise ValueError(f"{where}: found the empty range {part.strip()}, expected the smaller size first")
        found.append(range(int(low), int(high) + 1) if dots else int(low))
    return found[0] if len(found) == 1 else tuple(found)


def parse_call(text: str) -> tuple[str, dict[str, int]]:
    """Parse a call such as ``Matmul,m=196,n=288`` to the operator, empty if none is named, and its attributes."""
    first, *rest = words = [word.strip() for word in text.split(",")]
    operator = "" if "=" in first else first
    found = [word.partition("=") for word in (rest if operator else words)]
    if not all(name.isidentifier() and value.isdecimal() for name, _, value in found):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a call such as m=196,n=288 or Matmul,m=196")
    return operator, {name: int(value) for name, _, value in found}


def parse_natural(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _parse_integer(text, 0)


def parse_count(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _parse_integer(text, 1)


def parse_memory(text: str) -> int:
    """Parse an amount of memory, such as 512M, to bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_seconds(text: str) -> float:
    """Parse a positive number of seconds, with or without a final s."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a positive number of seconds")
    return value


def _parse_integer(text: str, minimum: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a whole number from {minimum}")
    return number
