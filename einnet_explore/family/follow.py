"""The same derivation at other sizes: each step's rule and place again, its numbers as the sizes ask for.

A step is followed if what it leaves differs from the original's in integers only.  Its parameters are tried as they
were, with every number that is one of the sizes (or one more, one less, a product of two) moved along, and then among
what the rule proposes.  Whether the result is right is no question here: it is proved afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

from einnet_explore.family.schema import integers
from einnet_explore.ir import Path, Program, read_path
from einnet_explore.operators import OPERATORS
from einnet_explore.rules import ALL_RULES, Derivation, Match, Refused, Rule
from einnet_explore.search.instantiation import matching_rule

_NUMBER = re.compile(r"\d+")
_SMALL = 3
"""Numbers below this are never taken for sizes: they number accesses and bounds, or are offsets."""


class NotFollowed(Exception):
    """At other sizes a step of the derivation does not apply; the message says which, and why."""


@dataclass(frozen=True, slots=True)
class Original:
    """A step that was found: its rule, its place, its parameters as JSON, and what it leaves without its integers."""

    rule: str
    at: Path
    params: str
    skeleton: Program


def original(derivation: Derivation) -> tuple[Original, ...]:
    """The steps of *derivation* as they are to be followed."""
    out = []
    for step in derivation.steps:
        told = step.match.to_json()
        params = {k: v for k, v in told["params"].items() if k != "attributes"}  # solved anew from the scope
        out.append(Original(told["rule"], read_path(told["at"]), json.dumps(params), integers(step.after)[0]))
    return tuple(out)


def follow(
    start: Program, steps: Sequence[Original], found: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[Program, ...]:
    """The programs from *start*, at *sizes*, along *steps* that were found at other ones.  Raises NotFollowed."""
    known: dict[str, Rule[Any]] = {rule.name: rule for rule in (*ALL_RULES, matching_rule(OPERATORS))}
    programs = [start]
    for n, step in enumerate(steps):
        programs.append(_next(programs[-1], known[step.rule], step, found, sizes, n))
    return tuple(programs)


def _next(
    program: Program, rule: Rule[Any], step: Original, found: Mapping[str, int], sizes: Mapping[str, int], n: int
) -> Program:
    why = "it has another form there"
    try:
        program.scope_at(step.at)
    except LookupError as error:
        raise NotFollowed(f"step {n}, {rule.name}: {error}") from None
    for params in _ways(program, rule, step, found, sizes):
        try:
            after = Match(rule, step.at, params()).apply(program).after
        except (Refused, LookupError, TypeError, ValueError) as error:
            why = str(error)
            continue
        if integers(after)[0] == step.skeleton:
            return after
    at = ", ".join(f"{name} = {value}" for name, value in sizes.items())
    raise NotFollowed(f"step {n}, {rule.name}, does not carry over to {at}: {why}")


def _ways(
    program: Program, rule: Rule[Any], step: Original, found: Mapping[str, int], sizes: Mapping[str, int]
) -> Iterable[Any]:
    for text in dict.fromkeys((_moved(step.params, found, sizes), step.params)):
        yield lambda text=text: rule.decode(program, step.at, json.loads(text))
    shape, numbers = _shape(step.params)
    proposed = []
    for params in rule.propose(program, step.at):
        told = json.dumps({k: v for k, v in rule.encode(params).items() if k != "attributes"})
        its_shape, its_numbers = _shape(told)
        if its_shape == shape:
            proposed.append((sum(a != b for a, b in zip(numbers, its_numbers, strict=True)), params))
    for _, params in sorted(proposed, key=lambda way: way[0]):
        yield lambda params=params: params


def _shape(params: str) -> tuple[str, list[int]]:
    return _NUMBER.sub("#", params), [int(n) for n in _NUMBER.findall(params)]


def _moved(params: str, found: Mapping[str, int], sizes: Mapping[str, int]) -> str:
    """*params* with every number that is recognised as one of the sizes in *found* as it is at *sizes*."""
    known: dict[int, int] = {}
    for off in (0, 1, -1, 2, -2):
        for name, n in found.items():
            known.setdefault(n + off, sizes[name] + off)
    for a, b in combinations_with_replacement(found, 2):
        known.setdefault(found[a] * found[b], sizes[a] * sizes[b])

    def moved(number: re.Match[str]) -> str:
        n = int(number[0])
        return str(known[n] if n >= _SMALL and n in known else n)

    # Numbers that are part of a name (``t11``) are not numbers.
    return re.sub(r"(?<![\w])\d+(?!\w)", moved, params)
