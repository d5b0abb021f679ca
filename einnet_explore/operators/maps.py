"""Iterator maps worth trying (EinNet §5.1, step 2): composite indices first, then the rest of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations, product

from einnet_explore.ir import Access, Iterator, Scope, Table, Tensor, tensors
from einnet_explore.operators.digits import overlaps
from einnet_explore.operators.form import Form, Unmatched
from einnet_explore.operators.operator import Operator
from einnet_explore.operators.solving import Assignment, names

Fixed = Mapping[str, "Iterator | None"]


def iterator_maps(form: Form, operator: Operator, operands: tuple[int, ...]) -> Iterable[Assignment]:
    """Iterator maps under the tensor map *operands*; raises Unmatched where a group does not fit at all.

    Iterators that are merged stand in an order that keeps some tensor's layout: other orders keep none.
    """
    pattern, table = operator.pattern, operator.table
    groups = form.groups(operands)
    for key, found in groups.items():
        if not table.group(key):
            raise Unmatched(f"{operator.name} has no iterator in group {key}, where {names(found)} stand")
    why = "" if pattern.windows else "nothing"
    for fixed in _windows(form, operator, operands, pattern.windows, {}):
        taken = {x for x in fixed.values() if x is not None}
        choices: list[list[dict[str, tuple[Iterator, ...]]]] = []
        for key, own in table.groups:
            rest = [x for x in groups.get(key, ()) if x not in taken]
            merged = [name for name in own if name in pattern.merged]
            if rest and not merged:
                why = why or f"{operator.name} takes {len(own)} iterators in group {key}, left over: {names(rest)}"
                break
            choices.append([cut for order in _orders(form, rest) for cut in _cuts(order, merged)])
        else:
            why = "nothing"
            for choice in product(*choices):
                out: dict[str, tuple[Iterator, ...]] = {name: (x,) for name, x in fixed.items() if x is not None}
                for part in choice:
                    out |= part
                yield out
    if why != "nothing":
        raise Unmatched(why or f"no dimension of the operands can be {pattern.composite} of {operator.name}")


def _windows(
    form: Form,
    operator: Operator,
    operands: tuple[int, ...],
    windows: tuple[tuple[int, int], ...],
    done: Fixed,
    after: tuple[int, int] = (-1, -1),
) -> Iterable[Fixed]:
    """Which dimension of the source each composite index takes, in order, and so which iterators."""
    if not windows:
        yield done
        return
    (p, d), *rest = windows
    own = operator.pattern.operands[p].dimensions[d].iterators
    for j, index in enumerate(form.reads[operands[p]].index):
        if (after[0] == p and j <= after[1]) or not index.terms or not index.affine or len(index.terms) > len(own):
            continue
        if len(index.terms) > 1 and not overlaps(index) and _constant(form.reads[operands[p]]):
            continue
        for chosen in permutations(own, len(index.terms)):
            pairs = dict(zip(chosen, index.iterators, strict=True))
            if not set(own) & set(operator.pattern.traversals) <= set(pairs):
                continue
            if all(
                operator.table.of(name) == form.group(x, operands) and done.get(name, x) == x
                for name, x in pairs.items()
            ):
                new: Fixed = {**dict.fromkeys(own), **done, **pairs}
                yield from _windows(form, operator, operands, tuple(rest), new, (p, j))


def _constant(read: Access) -> bool:
    """Whether *read* is of weights alone: digits of their indices are a layout, made at compile time, and no window."""
    match read.source:
        case Tensor(weight=weight):
            return weight
        case Table():
            return True
        case Scope() as scope:
            return all(t.weight for t in tensors(scope))


def _orders(form: Form, group: list[Iterator]) -> list[tuple[Iterator, ...]]:
    """The orders of *group* by falling stride in each tensor where it occurs."""
    orders = [tuple(x for x in form.traversals if x in group)]
    for rank in form.ranks:
        orders.append(tuple(sorted((x for x in group if x in rank), key=lambda x: rank[x])))
    return list(dict.fromkeys(order for order in orders if len(order) == len(group)))


def _cuts(order: tuple[Iterator, ...], into: list[str]) -> Iterable[dict[str, tuple[Iterator, ...]]]:
    """Ways to give consecutive iterators to consecutive names; spare names come first and stay empty."""
    if len(order) <= len(into):
        yield {name: (x,) for name, x in zip(into[len(into) - len(order) :], order, strict=True)}
    elif len(into) == 1:
        yield {into[0]: order}
    else:
        for n in range(1, len(order) - len(into) + 2):
            for rest in _cuts(order[n:], into[1:]):
                yield {into[0]: order[:n], **rest}
