"""Certificates: why a program computes what another did, or where it does not.

Only what changed is compared.  Equations are aligned by name and taken in order; one that is proved to mean the same in
both programs is read as a tensor by those that follow.  What else the two sides of an equation read is put into them,
as far as they have nothing in common: the outermost first, so that both end where they meet.  Inside an equation the
smallest sub-scopes that differ are compared first (``agreement``).  Scopes are compared as multisets of terms
(``tally``: a proof); where that theory does not reach they are evaluated on random integers (``exact``).

One certificate for a chain of steps: equality is transitive.

From a program to one that is far from it there may be no proof within reach, although each step between them has one:
the terms of both ends at once are too many.  A chain of proved steps is a proof that its ends are equal, if every step
starts from the program in which the step before it ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from typing import TypeAlias

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.analysis.equations import read_by
from einnet_explore.equivalence import sampling
from einnet_explore.equivalence.assumptions import infinite_results, join_axioms
from einnet_explore.equivalence.program_diff import (
    EquationDefinitions,
    interface_mismatch,
    outermost_names,
    prove_scopes_equal,
)
from einnet_explore.equivalence.reads import illegal_read
from einnet_explore.equivalence.term_multiset import Witness
from einnet_explore.equivalence.verdict import UNDECIDED_TEXT, Certificate, CertificateKind, weakest_certificate
from einnet_explore.ir import Program, Scope

MAX_EXACT_POINTS = 20_000_000
"""Grid points up to which two programs are evaluated whole; larger ones are evaluated in slices."""


def certify(
    before: Program, after: Program, *, exact_elements: int | None = MAX_EXACT_POINTS, seed: int = 0
) -> Certificate:
    """Whether *after* computes every output of *before*, and reads nothing beyond its reach.

    *exact_elements* bounds the grid points that an evaluation may cost before it is done in slices; *seed* is that of
    its random inputs.  Where it is None nothing is evaluated: what is not proved counts as false.
    """
    if before == after:
        return Certificate("proved", "identical")
    if (wrong := interface_mismatch(before, after)) is not None:
        return Certificate("false", "structure", counterexample=wrong)
    known = set(before.equations)
    for number, equation in enumerate(after.equations):
        if equation not in known and (found := illegal_read(equation.scope)) is not None:
            return Certificate("false", "illegal read", str(number), 0, f"{equation.name}: {found}")
    result = _outputs(before, after, exact_elements, seed)
    if result.kind == "exact":
        # Evaluated over equations that were taken as given; these may hold what a proof needs (a symmetry, say).
        proof = _outputs(before, after, None, seed)
        return proof if proof.kind == "proved" else result
    return result


def _outputs(before: Program, after: Program, points: int | None, seed: int) -> Certificate:
    """Compare what both programs define, in the order of *before*.

    Of every equation it is shown that both sides are one function of what they read, whatever that holds; what the
    side of *before* reads has been shown to be the same in both programs, so by induction the results are.
    Where *points* is None nothing is evaluated: what is not proved counts as false.
    """
    others = {e.name: e.scope for e in after.equations}
    both = _AlignedPrograms(before, after, points, seed)
    known: set[str] = set()
    changed = {e.name for e in before.equations} | others.keys()
    results: list[Certificate] = []
    for number, equation in enumerate(before.equations):
        name, scope, other = equation.name, equation.scope, others.get(equation.name)
        if other is None or other.box != scope.box:
            continue
        if other != scope or not changed.isdisjoint(read_by(scope)):
            found = both.compare(name, number, known, whole=name in before.outputs)
            if found is not None and not found.ok:
                if name in before.outputs:
                    return found
                continue
            results += [found] if found else []
        known.add(name)
        changed.discard(name)
    return weakest_certificate(results)


class _AlignedPrograms:
    """Two programs in which equations of one name are compared."""

    def __init__(self, before: Program, after: Program, points: int | None, seed: int) -> None:
        self._given = infinite_results((before.equations, after.equations))
        self._left, self._right = EquationDefinitions(before), EquationDefinitions(after)
        self._points, self._seed = points, seed

    def compare(self, name: str, number: int, kept: Set[str], *, whole: bool) -> Certificate | None:
        """Whether *name* is the same function of what is *kept*, or of less; None where it says the same.

        What is kept is put in where that may help; all of it where the result has to be known (*whole*), else only what
        one of the sides does not read: readers that need more put in the result itself.
        """
        kept = frozenset(kept)
        while True:
            one, other = self._left.scope(name, kept), self._right.scope(name, kept)
            if one == other:
                return None
            mine, theirs = set(read_by(one)), set(read_by(other))
            if hiding := kept & self._hiding(mine, theirs):
                kept -= hiding
                continue
            found = prove_scopes_equal(one, other, one.box, (number,), self._given)
            if isinstance(found, Certificate):
                return found
            # What only one of the two reads is no common ground: it is looked into before anything is evaluated.
            # So is what may be infinite, for which no random integers stand.
            if odd := kept & ((mine ^ theirs) | (mine & theirs & self._given.infinite)):
                kept -= outermost_names(odd, (self._left, mine), (self._right, theirs))
                continue
            settled = _certify_by_evaluation(found, one, other, number, self._points, self._seed)
            free = kept & (mine | theirs)
            if settled.ok or not whole or not free:
                return settled
            # What it was compared over is no longer taken as given.
            kept -= free

    def _hiding(self, mine: Set[str], theirs: Set[str]) -> Set[str]:
        """What one side reads alone that is made of what the other side reads."""
        return {
            n
            for definitions, own, others in ((self._left, mine, theirs), (self._right, theirs, mine))
            for n in own - others
            if not others.isdisjoint(definitions.made_of(n))
        }


def _certify_by_evaluation(
    why: str | Witness, before: Scope, after: Scope, number: int, points: int | None, seed: int
) -> Certificate:
    """What remains where there is no proof: a decisive witness, or evaluation (not where *points* is None)."""
    decisive = isinstance(why, Witness) and why.decisive
    if points is None or decisive:
        return Certificate("false", "term relation", str(number), 0, str(why), "" if decisive else UNDECIDED_TEXT)
    hints = (why.element, tuple(at for _, at in why.term)) if isinstance(why, Witness) else (None, ())
    sample = sampling.compare_on_samples(before, after, points, seed, *hints)
    if sample.error is not None:
        return Certificate("false", "evaluation", str(number), sample.elements, sample.error, str(why))
    if sample.differs is not None:
        element, expected, found = sample.differs
        told = f"element {list(element)} is {found}, expected {expected}"
        return Certificate("false", "evaluation", str(number), sample.elements, told, str(why))
    return Certificate("exact", "evaluation", str(number), sample.elements, None, str(why))


Link: TypeAlias = "tuple[Program, Program, Certificate]"
"""The programs before and after a step, and what is known of the two."""


def compose_certificates(chain: Sequence[Link]) -> Certificate:
    """What the certificates of all steps of *chain* say of its two ends.

    The certificate names every program on the way by ``known_as``, and an axiom that a step needs.  Raises ValueError
    where a step starts from another program than the one in which the step before it ended.
    """
    if not chain:
        return Certificate("proved", "identical")
    programs = tuple(map(program_hash, (chain[0][0], *(after for _, after, _ in chain))))
    for n, (before, _, _) in enumerate(chain):
        if program_hash(before) != programs[n]:
            raise ValueError(
                f"step {n} starts from {program_hash(before)[:12]}, the step before ended in {programs[n][:12]}"
            )
    certificates = [certificate for _, _, certificate in chain]
    for n, found in enumerate(certificates):
        if not found.ok:
            return Certificate("false", found.method, found.at, found.elements, f"step {n}: {found.counterexample}")
    proved = sum(found.kind == "proved" for found in certificates)
    kind: CertificateKind = "proved" if proved == len(chain) else "exact"
    steps = f"{len(chain)} step{'' if len(chain) == 1 else 's'}, {proved} proved"
    needed = join_axioms(found.detail for found in certificates)
    elements = sum(found.elements for found in certificates)
    return Certificate(kind, "composition", "", elements, None, ", ".join(filter(None, (steps, needed))), programs)


def certify_chain(chain: Sequence[Link], seed: int = 0) -> Certificate:
    """Whether the end of *chain* computes what its start does.

    By the two programs alone where that is a proof; else by the steps, if all are proved; else the ends are evaluated,
    with *seed* for the random inputs.
    """
    if len(chain) <= 1:
        return chain[0][2] if chain else Certificate("proved", "identical")
    (start, _, _), (_, end, _) = chain[0], chain[-1]
    whole = certify(start, end, exact_elements=None)
    if whole.detail != UNDECIDED_TEXT:
        return whole
    steps = compose_certificates(chain)
    return steps if steps.kind == "proved" else certify(start, end, seed=seed)


def program_hash(program: Program) -> str:
    """SHA-256 of the canonical key of *program*: one for programs that differ in names of iterators and order only."""
    return hashlib.sha256(repr(program_key(program)).encode()).hexdigest()


__all__ = [
    "MAX_EXACT_POINTS",
    "UNDECIDED_TEXT",
    "Certificate",
    "CertificateKind",
    "certify",
]
