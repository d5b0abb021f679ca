"""Contractions beside one another: groups are joined where these may become one (Fig. 3, Fig. 15)."""

from __future__ import annotations

from itertools import combinations
from math import prod

from einnet_explore.graph.reading.assemble import assemble
from einnet_explore.graph.units import Units
from einnet_explore.ir import Equation, tensors
from einnet_explore.rules import SIBLING_MERGING
from einnet_explore.rules.sibling_merging import Siblings


def join_siblings(units: Units) -> None:
    """Join the groups of contractions that read one value, where sibling merging accepts two of their expressions."""
    readers: dict[str, dict[int, None]] = {}
    for n in sorted(units.understood):
        if units.contractions(group := units.of[n]):
            for name in units.model.nodes[n].reads:
                if name not in units.model.weights:
                    readers.setdefault(name, {})[group] = None
    for groups in readers.values():
        for one, other in combinations(groups, 2):
            a, b = units.of[one], units.of[other]
            if a != b and mergeable(_equations(units, a), _equations(units, b)):
                units.join_beside(a, b)


def mergeable(one: tuple[Equation, ...], other: tuple[Equation, ...]) -> bool:
    """Whether sibling merging accepts an equation of *one* with one of *other*, over what is no weight.

    Where one reads a result of the other they are not beside one another.
    """
    if _reads(one, other) or _reads(other, one):
        return False
    program = assemble((*one, *other), tuple(e.name for e in (*one, *other)))
    weights = {t.name for t in program.inputs if t.weight}
    ours, theirs = ({e.name for e in equations} for equations in (one, other))
    for n, equation in enumerate(program.equations):
        for match in SIBLING_MERGING.matches(program, (n,)):
            params: Siblings = match.params
            together = {equation.name, *params.others}
            if params.tensor not in weights and together & ours and together & theirs:
                return True
    return False


def _reads(one: tuple[Equation, ...], other: tuple[Equation, ...]) -> bool:
    """Whether *one* reads a result of *other*."""
    made = {e.name for e in other}
    return any(t.name in made for e in one for t in tensors(e.scope))


def join_parallel(units: Units) -> None:
    """Join with siblings what follows them in parallel: equal sizes, one beside the other, no activation in between."""
    for group in [g for g in units.members if len(units.contractions(g)) > 1]:
        after = [n for n in sorted(units.understood) if units.kind(n) == "contraction" and _follows(n, group, units)]
        for one, other in combinations(after, 2):
            apart = not units.before[one] & units.before[other] and not units.dependent(one, other)
            if apart and _sizes(one, units) == _sizes(other, units):
                # The sum of both may be with either: then that one has to come second.
                for first, second in ((one, other), (other, one)):
                    if units.join(group, first):
                        units.join(group, second)
                        break


def _follows(n: int, group: int, units: Units) -> bool:
    """Whether node *n*, outside, reads what a contraction of *group* computes, through no activation."""
    inside = units.members[units.of[group]]
    waiting, found = list(units.before[n] & inside) if n not in inside else [], False
    while waiting:
        match units.kind(m := waiting.pop()):
            case "contraction":
                found = True
            case "activation":
                return False
            case _:
                waiting.extend(units.before[m] & inside)
    return found


def _sizes(n: int, units: Units) -> tuple[list[int], ...]:
    """How many elements node *n* reads and computes, whatever their layout."""
    node = units.model.nodes[n]
    return tuple(sorted(prod(units.model.shape(name)) for name in names) for names in (node.reads, node.results))


def _equations(units: Units, group: int) -> tuple[Equation, ...]:
    return tuple(e for n in sorted(units.members[group]) for e in units.understood.get(n, ()))
