"""Tokens of printed programs, and the tokens that two programs do not have in common.

A token without inner tokens is a *leaf*: the name of an iterator or tensor, a number, a sign or a bracket.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TypeAlias

from einnet_explore.ir import Program
from einnet_explore.syntax.latex_printer import END, NAMED, TOKEN, tokens_of

COMPARED = 100_000
"""Pairs of leaves up to which the best common subsequence is found; beyond, common blocks are."""

TENSOR_WEIGHT = 8
"""Iterators and signs for which the name of one tensor is kept in place."""

_LEAF = re.compile(f"{TOKEN}([^{NAMED}]?)[^{NAMED}]*{NAMED}([^{TOKEN}{END}]*){END}")
_Leaf: TypeAlias = "tuple[str, str]"
"""The kind of a leaf, and its text."""


def changed_tokens(before: Program, after: Program) -> tuple[list[int], list[int]]:
    """Return the numbers of the leaves of *before* that *after* does not have in this order, and the reverse.

    Leaves are numbered as ``tokens_of`` prints them.
    """
    lines = [tokens_of(program).split("\n") for program in (before, after)]
    numbers, leaves = zip(*map(_leaves_of_others, lines, reversed(lines)), strict=True)
    common = _common(*leaves)
    known = {a for a, _ in common}, {b for _, b in common}
    old, new = ([n for k, n in enumerate(side) if k not in of] for side, of in zip(numbers, known, strict=True))
    return old, new


def _leaves_of_others(lines: list[str], known: list[str]) -> tuple[list[int], list[_Leaf]]:
    """Return the numbers of the leaves of the *lines* that are not *known*, and the leaves."""
    numbers, leaves, before = list[int](), list[_Leaf](), 0
    plain = set(map(_unnamed, known))
    for line in lines:
        found = _LEAF.findall(line)
        if _unnamed(line) not in plain:
            numbers += range(before, before + len(found))
            leaves += found
        before += len(found)
    return numbers, leaves


def _unnamed(line: str) -> str:
    return re.sub(f"{TOKEN}[^{NAMED}]*{NAMED}", TOKEN, line)


def _common(one: Sequence[_Leaf], other: Sequence[_Leaf]) -> list[tuple[int, int]]:
    """Return the positions of a common subsequence, one of the largest weight unless both are long."""
    if len(one) * len(other) > COMPARED:
        blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
        return [(b.a + k, b.b + k) for b in blocks for k in range(b.size)]
    best = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one) - 1, -1, -1):
        row, below, weight = best[i], best[i + 1], TENSOR_WEIGHT if one[i][0] == "t" else 1
        for j in range(len(other) - 1, -1, -1):
            row[j] = below[j + 1] + weight if one[i] == other[j] else max(below[j], row[j + 1])
    found, i, j = list[tuple[int, int]](), 0, 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif best[i + 1][j] >= best[i][j + 1]:
            i += 1
        else:
            j += 1
    return found
