"""Post-optimisation: adjacent eOperators become one kernel (EinNet §6.3, Fig. 11).

A chain of memory-bound equations reads and writes memory once for every link.  Substituting an intermediate into its
only reader (expression fusion) and merging what then only re-indexes leaves one kernel that reads the inputs and
writes the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from einnet_explore.algebra.measure import reads_once
from einnet_explore.ir import EOPERATOR, VIEW, Access, Equation, Program, Scope, accesses, scopes
from einnet_explore.rules import EOPERATOR_GENERATION, EXPRESSION_FUSION, TRAVERSAL_MERGING, Derivation, Match
from einnet_explore.rules.base import places

GENERATED = (EOPERATOR, VIEW)
"""What is run by a kernel of ours or by no kernel at all."""


def fuse(derivation: Derivation) -> Derivation:
    """*derivation* continued until no eOperator can be fused into another, each step a rule like any other."""
    while (match := next(iter(_pairs(derivation.end)), None)) is not None:
        derivation = derivation.then(match)
        reader = match.at[0] - 1 if _before(match, derivation) else match.at[0]
        derivation = _generate(_merge(derivation, reader), reader)
    return derivation


def _before(match: Match[Any], derivation: Derivation) -> bool:
    # The intermediate stood in front of its reader, so the reader has moved up by one.
    return len(derivation.end.equations) <= match.at[0] or derivation.end.equations[match.at[0]].via is not None


def _pairs(program: Program) -> Iterable[Match[Any]]:
    by_name = {e.name: e for e in program.equations}
    for n, reader in enumerate(program.equations):
        if reader.via is not None and reader.via.operator == EOPERATOR:
            for match in EXPRESSION_FUSION.matches(program, (n,)):
                source = by_name[match.params.tensor]
                if worth(source, reader):
                    yield match


def worth(source: Equation, reader: Equation) -> bool:
    """Whether *reader* may compute *source*'s elements itself without computing any of them twice.

    So it is when the source only re-indexes, or when the reader reads each element in one place and sums nothing.
    """
    if source.via is None or source.via.operator not in GENERATED:
        return False
    if not source.scope.summations and isinstance(source.scope.body, Access):
        return not isinstance(source.scope.body.source, Scope)
    reads = [a for _, scope in scopes(reader.scope) for a in accesses(scope.body) if a.source == source.tensor]
    return len(reads) == 1 and reads[0] in accesses(reader.scope.body) and reads_once(reader.scope, reads[0])


def _merge(derivation: Derivation, reader: int) -> Derivation:
    """Merge, inside equation *reader*, every scope without a summation into what reads it."""
    while True:
        for at, scope in places(derivation.end):
            if at[0] == reader:
                inner = list(accesses(scope.body))
                for match in TRAVERSAL_MERGING.matches(derivation.end, at):
                    source = inner[TRAVERSAL_MERGING.encode(match.params)["access"]].source
                    if isinstance(source, Scope) and not source.summations:
                        derivation = derivation.then(match)
                        break
                else:
                    continue
                break
        else:
            return derivation


def _generate(derivation: Derivation, reader: int) -> Derivation:
    for match in EOPERATOR_GENERATION.matches(derivation.end, (reader,)):
        return derivation.then(match)
    return derivation
