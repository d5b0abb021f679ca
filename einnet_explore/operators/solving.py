r"""Attributes solved from coefficients, offsets and extents of matched indices (EinNet §5.1, step 3).

A composite index of the operator, ``sh*h + dh*r - ph``, is held against one dimension of the scope's source; the
coefficients of matched iterators, the constant and the extent are equations for the attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from einnet_explore.ir import Access, Iterator, as_index
from einnet_explore.operators.digits import overlaps
from einnet_explore.operators.form import Form, Unmatched
from einnet_explore.operators.operator import Operator
from einnet_explore.operators.pattern import ONE, Polynomial

MINUS = Polynomial((((), -1),))
Assignment = Mapping[str, tuple[Iterator, ...]]


@dataclass(frozen=True, slots=True)
class Equality:
    """*left* has to be *right*; *asked* are the things that ask for it, by words (most are never shown)."""

    left: Polynomial
    right: int
    words: str
    asked: tuple[object, ...]

    @property
    def where(self) -> str:
        """What asks for it."""
        return self.words.format(*map(repr, self.asked))


def solve(
    form: Form, operator: Operator, operands: tuple[int, ...], iterators: Assignment, numbers: dict[str, int]
) -> dict[int, Access]:
    """Solve the attributes into *numbers*, which holds the extents already; raises Unmatched where they do not agree.

    The accesses of operands with composite indices come back with that dimension read at one iterator ``i0``, ``i1``, …
    (the number of the operand's dimension, underscores where the scope has such names) that ranges over the part of the
    source that the operator is given.
    """
    pattern = operator.pattern
    todo = [Equality(left + MINUS * right, 0, "{} == {}", (left, right)) for left, right in pattern.conditions]
    out: dict[int, Access] = {}
    for p, d in pattern.windows:
        dimension = pattern.operands[p].dimensions[d]
        read = out.get(p, form.reads[operands[p]])
        own = {name: x for name in dimension.iterators for x in iterators.get(name, ())}
        at = [j for j, i in enumerate(read.index) if set(i.iterators) & set(own.values())]
        index = read.index[at[0]] if len(at) == 1 else None
        if index is None or not index.affine or set(index.iterators) - set(own.values()):
            where = ", ".join(repr(read.index[j]) for j in at) or "no dimension"
            raise Unmatched(
                f"{dimension!r} of {operator.name} is one affine dimension of its own, "
                f"{names(own.values())} stand in {where}"
            )
        start, stop = _given(read, at[0], [x for name, x in own.items() if name in pattern.traversals])
        here = "{} against {}", (dimension, index)
        todo += [Equality(dimension.coefficient(name), index.coefficient(x), *here) for name, x in own.items()]
        todo.append(Equality(dimension.const, index.substitute(lambda x: x.lo).const - start, *here))
        todo.append(Equality(dimension.extent or ONE, stop - start, "the extent of {}", (dimension,)))
        window = as_index(Iterator(_unused(f"i{d}", iterators), 0, stop - start)) + start
        out[p] = Access(read.source, tuple(window if j == at[0] else i for j, i in enumerate(read.index)))
    for p, read in out.items():
        if (mixed := next((i for i in read.index if overlaps(i)), None)) is not None:
            raise Unmatched(
                f"{mixed!r} is one more composite index than {pattern.operands[p].name} of {operator.name} has"
            )
    _unify(operator, todo, numbers)
    return out


def _unused(name: str, iterators: Assignment) -> str:
    taken = {x.name for own in iterators.values() for x in own}
    return next(n for n in (name + "_" * k for k in count()) if n not in taken)


def names(iterators: Iterable[Iterator]) -> str:
    """The iterators' names with their extents."""
    return ", ".join(f"{x.name}:{x.extent}" for x in iterators) or "none"


def _given(read: Access, at: int, outer: list[Iterator]) -> tuple[int, int]:
    """The part of the source's dimension that the operator is given: the box without what is never read.

    Less than a stride may stay unread at the end, as library operators allow.
    """
    (lo, hi), (first, last) = read.source.box[at], read.index[at].bounds
    start = max(lo, min(first, hi - 1))
    slack = max((abs(read.index[at].coefficient(x)) for x in outer), default=1)
    return start, hi if hi - (last + 1) < slack else max(last, start) + 1


def _unify(operator: Operator, todo: list[Equality], known: dict[str, int]) -> None:
    least = operator.pattern.attributes
    while todo:
        left: list[Equality] = []
        for e in todo:
            if all(name in known for name in e.left.names):
                if e.left.value(known) != e.right:
                    values = ", ".join(f"{name} = {known[name]}" for name in e.left.names)
                    raise Unmatched(
                        f"{operator.name}: {e.left!r} = {e.left.value(known)}, needed is {e.right} "
                        f"({e.where}; {values})"
                    )
                continue
            try:
                found = e.left.solve(e.right, known)
            except ValueError as reason:
                raise Unmatched(f"{operator.name}: {reason} ({e.where})") from None
            if found is None:
                left.append(e)
                continue
            name, value = found
            if value < least.get(name, value):
                raise Unmatched(f"{operator.name}: {name} = {value} is below {least[name]} ({e.where})")
            known[name] = value
        if len(left) == len(todo):
            free = next(name for e in left for name in e.left.names if name not in known)
            known[free] = least.get(free, 1)
        todo = left
    for name, value in least.items():
        known.setdefault(name, value)
