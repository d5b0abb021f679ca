"""Algorithm 1 (EinNet §6.3): the closure of a program under inter-expression rules, each member searched.

.. code-block:: text

    Q = {E0};  for E in Q:  Q += r(E) for every rule r between expressions;  Q += search(E)

Rules between expressions also meet what the search makes: Fig. 3 and Fig. 15 merge matrix products that convolutions
became.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import Any

from einnet_explore.algebra.keys import program_key
from einnet_explore.ir import Program
from einnet_explore.rules import BATCH_MERGING, EXPRESSION_SPLITTING, SIBLING_MERGING, Derivation, Match, Rule
from einnet_explore.search.candidate import Candidate
from einnet_explore.search.options import Cost
from einnet_explore.search.pieces import Limits, Pieces, compute_bound

__all__ = ["MERGES", "Limits", "between", "candidates", "closed", "compute_bound", "variants"]

MERGES: tuple[Rule[Any], ...] = (SIBLING_MERGING, BATCH_MERGING)


def closed(start: Derivation, rules: tuple[Rule[Any], ...] = MERGES, most: int = 12) -> Iterable[Derivation]:
    """*start* and, breadth first, at most *most* programs in all that *rules* make of it; none twice."""
    seen: set[Hashable] = {program_key(start.end)}
    queue = [start]
    for member in queue:
        yield member
        if len(queue) >= most:
            continue
        for match in between(member.end, rules):
            if len(queue) >= most:
                break
            longer = member.then(match)
            key = program_key(longer.end)
            if key not in seen:
                seen.add(key)
                queue.append(longer)


def between(program: Program, rules: Iterable[Rule[Any]]) -> Iterable[Match[Any]]:
    """The legal matches of *rules* at whole equations, those of library operators among them."""
    for rule in rules:
        for n in range(len(program.equations)):
            yield from rule.matches(program, (n,))


def variants(program: Program, cost: Cost, limits: Limits | None = None) -> Iterable[Derivation]:
    """The members of Q, lazily: *program* itself, its closure, then what searching and merging on makes of these.

    The closure's members may still be searched; those of the searches are instantiated throughout.
    """
    yield from _members(program, Pieces(cost, limits or Limits()))


def candidates(program: Program, cost: Cost, limits: Limits | None = None) -> Iterable[Candidate]:
    """Algorithm 1 whole: executable programs, each with its derivation from *program* and its cost."""
    pieces = Pieces(cost, limits or Limits())
    for member in _members(program, pieces):
        pieces.share(compute_bound(member.end))
        for derivation in pieces.combined(member):
            seconds, how = cost(derivation.end)
            yield Candidate(0, derivation, seconds, how)


def _members(program: Program, pieces: Pieces) -> Iterable[Derivation]:
    seen: set[Hashable] = set()
    members: list[Derivation] = []
    for member in _expressions(program, pieces.limits):
        if (key := program_key(member.end)) not in seen:
            seen.add(key)
            members.append(member)
            yield member
    several = [member for member in members if len(compute_bound(member.end)) > 1]
    for n, member in enumerate(several):
        pieces.share(compute_bound(member.end), last=n == len(several) - 1)
        for done in _merged_on(member, pieces):
            if pieces.late:
                return
            if (key := program_key(done.end)) not in seen:
                seen.add(key)
                yield done


def _merged_on(member: Derivation, pieces: Pieces) -> Iterable[Derivation]:
    """*member* as it is run best, and what merging makes of the library calls that its expressions become."""
    for n, whole in enumerate(pieces.combined(member)):
        if not n:
            yield whole
        elif pieces.late:  # looking for what merges takes its time, too, where there are many expressions
            return
        for merged in islice(closed(whole, most=pieces.limits.members), 1, None):
            yield from islice(pieces.combined(merged), 1)


def _expressions(program: Program, limits: Limits) -> Iterable[Derivation]:
    """The closure under merging, and then that of every way to split one of the program's expressions."""
    start = Derivation(program)
    yield from closed(start, most=limits.members)
    for match in islice(between(program, (EXPRESSION_SPLITTING,)), limits.members):
        yield start.then(match)
