r"""Combinations of the variants of a program's expressions, in the order in which they are worth trying.

.. math::
   c(v_1, \dots, v_n) = \sum_i c(v_i) - \sum_{i \to j} \text{layouts of } v_i \text{ and } v_j \text{ that cancel}

Expressions i → j, where j reads the result of i, directly or through element-wise equations and reductions of rows: the
layout eOperators in between cancel if one is the inverse of the other.  The cheapest combinations come first, then the
cheapest with layouts that cancel (Fig. 14), then those whose library calls may merge (Fig. 3, Fig. 15): estimates order
programs of one kind well, and of different kinds badly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from einnet_explore.analysis.flattening import view_strides
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import Access, Bound, Equation, Instance, Program, Scope, Tensor, accesses
from einnet_explore.strategies.expression_searches import Calls, ExpressionVariant, operands
from einnet_explore.strategies.options import Cost

MAX_CHOICES = 20_000
"""At most so many combinations are looked at, however many expressions there are."""


def rank_choices(
    program: Program,
    numbers: Sequence[int],
    variants: Sequence[tuple[ExpressionVariant, ...]],
    cost: Cost,
    cheapest: int,
    merging: int,
) -> tuple[tuple[tuple[ExpressionVariant, ...], ...], int]:
    """Return combinations of one of *variants* for each of the equations *numbers*, best first.

    These are the *cheapest*, as many with layouts that cancel, and the *merging* whose library calls may merge most.
    The second result counts them without the last.
    """
    some = limit_choices(variants)
    choices = np.array(list(product(*(range(len(each)) for each in some))), dtype=np.intp)
    if not len(choices):
        return (), 0
    seconds, saving, alike = np.zeros(len(choices)), np.zeros(len(choices)), np.zeros(len(choices), dtype=np.int64)
    for n, each in enumerate(some):
        seconds += np.array([variant.seconds for variant in each])[choices[:, n]]
    for (a, b), operand in _edges(program, numbers).items():
        saved = np.array([[cancelled_seconds(one, other, operand, cost) for other in some[b]] for one in some[a]])
        saving += saved[choices[:, a], choices[:, b]]
    for a, b in combinations(range(len(some)), 2):
        akin = np.array([[_mergeable_pairs(one.calls, other.calls) for other in some[b]] for one in some[a]])
        alike += akin[choices[:, a], choices[:, b]]
    order = [int(k) for k in np.argsort(seconds - saving, kind="stable")]
    first = dict.fromkeys((*order[:cheapest], *[k for k in order if saving[k]][:cheapest]))
    most = [int(k) for k in np.lexsort((seconds, -alike)) if alike[k]][:merging]
    order = list(dict.fromkeys((*first, *most)))
    return tuple(tuple(each[w] for each, w in zip(some, choices[k], strict=True)) for k in order), len(first)


def limit_choices(variants: Sequence[tuple[ExpressionVariant, ...]]) -> list[tuple[ExpressionVariant, ...]]:
    """Return the first of the *variants* of each expression, at most ``MAX_CHOICES`` combinations in all.

    With many expressions, two variants of each would be too many: then only the first expressions have two.
    """
    few, left = max(2, int(MAX_CHOICES ** (1 / max(1, len(variants))))), MAX_CHOICES
    some = list[tuple[ExpressionVariant, ...]]()
    for each in variants:
        some.append(each[: max(1, min(few, left))])
        left //= max(1, len(some[-1]))
    return some


def _edges(program: Program, numbers: Sequence[int]) -> Mapping[tuple[int, int], int]:
    """The pairs of places in *numbers* whose second reads the first's result, with the number of that operand."""
    place = {program.equations[n].name: k for k, n in enumerate(numbers)}
    made = {e.name: e for e in program.equations}
    found: dict[tuple[int, int], int] = {}
    for b, n in enumerate(numbers):
        for operand, name in enumerate(operands(program, n)):
            source = name
            while source in made and source not in place and len(own := _pointwise_sources(made[source].scope)) == 1:
                source = own[0]
            if (a := place.get(source)) is not None and a != b:
                found.setdefault((a, b), operand)
    return found


def _pointwise_sources(scope: Scope) -> tuple[str, ...]:
    """The tensors of the same box that *scope* reads at its own point only; none if it sums or has a domain."""
    if scope.summations or scope.domain:
        return ()
    read = {a.source.name: a for a in accesses(scope.body) if isinstance(a.source, Tensor)}
    return tuple(name for name, a in read.items() if a.source.box == scope.box and _is_point(a, scope))


def _is_point(access: Access, scope: Scope) -> bool:
    return tuple(i.single for i in access.index) == scope.traversals


def cancelled_seconds(one: ExpressionVariant, other: ExpressionVariant, operand: int, cost: Cost) -> float:
    """The seconds of layout eOperators that cancel where *other* reads the result of *one* as its *operand*."""
    last = one.derivation.end.equations[-1]
    program = other.derivation.end
    name = program.inputs[operand].name
    first = [e for e in program.equations if any(_is_of(a, name) for a in accesses(e.scope.body))]
    if last.via is None or not last.via.is_eoperator or (moved := _movement(last)) is None:
        return 0.0
    saved = 0.0
    for equation in first:
        if (read := _movement(equation)) is None or (through := _composed(read, last, moved)) is None:
            return saved
        if view_strides(replace(equation.scope, body=through)) is None:
            return saved
        saved += _seconds(program, equation, cost)
    return saved + _seconds(one.derivation.end, last, cost)


def _is_of(access: Access, name: str) -> bool:
    return isinstance(access.source, Tensor) and access.source.name == name


def _movement(equation: Equation) -> Access | None:
    """The access of an equation that only re-indexes a tensor."""
    match equation.scope:
        case Scope(summations=(), body=Access(Tensor()) as access, domain=()):
            return access
    return None


def _composed(read: Access, made: Equation, moved: Access) -> Access | None:
    """*read*, of the tensor that *made* makes by *moved*, as a read of the latter's source; None outside its box."""
    box = made.scope.box
    if not all(always_holds(Bound(i, lo, hi)) for i, (lo, hi) in zip(read.index, box, strict=True)):
        return None
    to = dict(zip(made.scope.traversals, read.index, strict=True))
    return Access(moved.source, tuple(i.substitute(lambda x: to[x]) for i in moved.index))


def _seconds(program: Program, equation: Equation, cost: Cost) -> float:
    return cost(replace(program, equations=(equation,)))[0] if equation.via and equation.via.is_eoperator else 0.0


def _mergeable_pairs(one: Calls, other: Calls) -> int:
    """Count the pairs of calls of two expressions that are one operator with at most one different attribute."""
    return sum(a.operator == b.operator and _differing(a, b) <= 1 for a, b in product(one, other))


def _differing(a: Instance, b: Instance) -> int:
    return len({name for name, _ in {*a.attributes} ^ {*b.attributes}})
