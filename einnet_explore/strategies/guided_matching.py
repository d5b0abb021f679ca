r"""Converging derivation guided by the expression distance, step by step (EinNet §6.1, Table 2).

If several iterators of a scope correspond to one iterator of the operator, a variable substitution joins two of them:

.. math::  z = (a - lo_a)\,|b| + (b - lo_b)

Every substitution lowers the expression distance; if none is left, the scope is matched.  A search matches at once
instead (``strategies.engine``): matching joins the iterators of a group by strides, with the same operator and
attributes as result, and without intermediate programs.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise

from einnet_explore.ir import Iterator, Path, Program, Scope
from einnet_explore.operators.form import expression_distance, read_form
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import TRAVERSAL_MERGING, VARIABLE_SUBSTITUTION, Derivation, Match
from einnet_explore.rules.traversal_merging import Merging
from einnet_explore.rules.variable_substitution import Substitution, join_iterators
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.support.errors import Refused
from einnet_explore.support.wording import count_noun

ATTEMPTS = 64
"""Ways to join iterators that are tried, each until the distance is 0."""


def guided_matching(program: Program, at: Path, operator: Operator) -> Derivation:
    """Return the steps from the scope at *at* of *program* to a call of *operator*, each one nearer to it.

    Raises Refused if the two are not comparable, or if joining iterators does not lead to a match.
    """
    distance = expression_distance(program.scope_at(at), operator).total
    for joined, inner in islice(_joined(Derivation(program), at, operator), ATTEMPTS):
        for match in matching_rule((operator,)).matches(joined.end, inner):
            return joined.then(match)
    away = f"the scope is {count_noun(distance, 'iterator')} away from {operator.name}"
    raise Refused(f"{away}, and joining iterators of one group leads to no match")


def _joined(derivation: Derivation, at: Path, operator: Operator) -> Iterable[tuple[Derivation, Path]]:
    """Yield the continuations of *derivation* that leave no surplus iterators at *at*, and the scope's path there."""
    distance = expression_distance(derivation.end.scope_at(at), operator)
    if all(len(row.found) <= len(row.expected) for row in distance.groups):
        yield derivation, at  # an iterator that is still missing has one value
        return
    for params in _joins(derivation.end.scope_at(at), operator):
        joined, inner = _join(derivation, at, params)
        if expression_distance(joined.end.scope_at(inner), operator).total < distance.total:
            yield from _joined(joined, inner, operator)


def _joins(scope: Scope, operator: Operator) -> Iterable[Substitution]:
    """Yield substitutions that join two iterators of a group that has too many, neighbours in an operand.

    Those that share no index with another group (as ``h`` and ``r`` do in the window ``h + r``) come first.
    """
    form, distance = read_form(scope), expression_distance(scope, operator)
    origin = {part: index.iterators[0] for part, index in form.back}
    indices = [index.iterators for read in form.reads for index in read.index]
    pairs = dict[tuple[Iterator, Iterator], None]()
    for row in distance.groups:
        if len(row.found) > len(row.expected) > 0:
            group = form.groups(distance.operands)[row.group]
            alone = [x for x in group if all(set(found) <= set(group) for found in indices if x in found)]
            for parts in (alone, group):
                orders = (sorted(parts, key=rank.__getitem__) for rank in form.ranks if set(parts) <= rank.keys())
                for order in orders:
                    pairs |= dict.fromkeys(pairwise(dict.fromkeys(origin.get(x, x) for x in order)))
    return (join_iterators(scope, pair) for pair in pairs)


def _join(derivation: Derivation, at: Path, params: Substitution) -> tuple[Derivation, Path]:
    """Append *params* at *at*; return also the path of the scope that has the new iterator.

    Traversals are substituted in a nested scope.  Where *at* was nested by the step before, it then only re-indexes,
    and its reader is merged with it.
    """
    joined = derivation.then(Match(VARIABLE_SUBSTITUTION, at, params))
    if joined.end.scope_at(at).summations:
        return joined, at
    if any(step.match.at == at[:-1] for step in derivation.steps):
        return joined.then(Match(TRAVERSAL_MERGING, at[:-1], Merging(0))), at
    return joined, (*at, 0)
