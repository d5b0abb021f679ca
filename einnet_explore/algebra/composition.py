"""One certificate for a chain of steps: equality is transitive.

From a program to one that is far from it there may be no proof within reach, although each step between them has one:
the terms of both ends at once are too many.  A chain of proved steps is a proof that its ends are equal, if every step
starts from the program in which the step before it ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

from einnet_explore.algebra.certificate import UNPROVED, Certificate, Kind, certify
from einnet_explore.algebra.given import only
from einnet_explore.algebra.keys import program_key
from einnet_explore.ir import Program

Link: TypeAlias = "tuple[Program, Program, Certificate]"
"""The programs before and after a step, and what is known of the two."""


def composed(chain: Sequence[Link]) -> Certificate:
    """What the certificates of all steps of *chain* say of its two ends.

    The certificate names every program on the way by ``known_as``, and an axiom that a step needs.  Raises ValueError
    where a step starts from another program than the one in which the step before it ended.
    """
    if not chain:
        return Certificate("proved", "identical")
    programs = tuple(map(known_as, (chain[0][0], *(after for _, after, _ in chain))))
    for n, (before, _, _) in enumerate(chain):
        if known_as(before) != programs[n]:
            raise ValueError(
                f"step {n} starts from {known_as(before)[:12]}, the step before ended in {programs[n][:12]}"
            )
    certificates = [certificate for _, _, certificate in chain]
    for n, found in enumerate(certificates):
        if not found.ok:
            return Certificate("false", found.method, found.at, found.elements, f"step {n}: {found.counterexample}")
    proved = sum(found.kind == "proved" for found in certificates)
    kind: Kind = "proved" if proved == len(chain) else "exact"
    steps = f"{len(chain)} step{'' if len(chain) == 1 else 's'}, {proved} proved"
    needed = only(found.detail for found in certificates)
    elements = sum(found.elements for found in certificates)
    return Certificate(kind, "composition", "", elements, None, ", ".join(filter(None, (steps, needed))), programs)


def end_to_end(chain: Sequence[Link], seed: int = 0) -> Certificate:
    """Whether the end of *chain* computes what its start does.

    By the two programs alone where that is a proof; else by the steps, if all are proved; else the ends are evaluated,
    with *seed* for the random inputs.
    """
    if len(chain) <= 1:
        return chain[0][2] if chain else Certificate("proved", "identical")
    (start, _, _), (_, end, _) = chain[0], chain[-1]
    whole = certify(start, end, exact_elements=None)
    if whole.detail != UNPROVED:
        return whole
    steps = composed(chain)
    return steps if steps.kind == "proved" else certify(start, end, seed=seed)


def known_as(program: Program) -> str:
    """SHA-256 of the canonical key of *program*: one for programs that differ in names of iterators and order only."""
    return hashlib.sha256(repr(program_key(program)).encode()).hexdigest()
