"""Attributes solved from coefficients, offsets and extents of matched indices (EinNet §5.1, step 3).

A composite index of the operator, ``sh*h + dh*r - ph``, is held against one dimension of the scope's source; the
coefficients of matched iterators, the constant and the extent are equations for the attributes.

How the operands of a library call come from a scope, and the scope's value from the call's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from einnet_explore.analysis.indices import open_views
from einnet_explore.ir import REDUCTIONS, Access, Attribute, Index, IndexLike, Iterator, Scope, Tensor, as_index
from einnet_explore.operators.form import ScopeForm
from einnet_explore.operators.layout import is_leading, is_packed, overlaps, strides_of
from einnet_explore.operators.operator import Attributes, Operator
from einnet_explore.operators.pattern import ONE, Dimension, Polynomial
from einnet_explore.support.errors import Refused

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
    form: ScopeForm, operator: Operator, operands: tuple[int, ...], iterators: Assignment, numbers: dict[str, int]
) -> dict[int, Access]:
    """Solve the attributes into *numbers*, which holds the extents already; raises Refused where they do not agree.

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
            raise Refused(
                f"{dimension!r} of {operator.name} is one affine dimension of its own, "
                f"{iterator_names(own.values())} stand in {where}"
            )
        start, stop = _given_range(read, at[0], [x for name, x in own.items() if name in pattern.traversals])
        here = "{} against {}", (dimension, index)
        todo += [Equality(dimension.coefficient(name), index.coefficient(x), *here) for name, x in own.items()]
        todo.append(Equality(dimension.const, index.substitute(lambda x: x.lo).const - start, *here))
        todo.append(Equality(dimension.extent or ONE, stop - start, "the extent of {}", (dimension,)))
        window = as_index(Iterator(_unused(f"i{d}", iterators), 0, stop - start)) + start
        out[p] = Access(read.source, tuple(window if j == at[0] else i for j, i in enumerate(read.index)))
    for p, read in out.items():
        if (mixed := next((i for i in read.index if overlaps(i)), None)) is not None:
            raise Refused(
                f"{mixed!r} is one more composite index than {pattern.operands[p].name} of {operator.name} has"
            )
    _unify(operator, todo, numbers)
    return out


def _unused(name: str, iterators: Assignment) -> str:
    taken = {x.name for own in iterators.values() for x in own}
    return next(n for n in (name + "_" * k for k in count()) if n not in taken)


def iterator_names(iterators: Iterable[Iterator]) -> str:
    """The iterators' names with their extents."""
    return ", ".join(f"{x.name}:{x.extent}" for x in iterators) or "none"


def _given_range(read: Access, at: int, outer: list[Iterator]) -> tuple[int, int]:
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
                    raise Refused(
                        f"{operator.name}: {e.left!r} = {e.left.value(known)}, needed is {e.right} "
                        f"({e.where}; {values})"
                    )
                continue
            try:
                found = e.left.solve(e.right, known)
            except ValueError as reason:
                raise Refused(f"{operator.name}: {reason} ({e.where})") from None
            if found is None:
                left.append(e)
                continue
            name, value = found
            if value < least.get(name, value):
                raise Refused(f"{operator.name}: {name} = {value} is below {least[name]} ({e.where})")
            known[name] = value
        if len(left) == len(todo):
            free = next(name for e in left for name in e.left.names if name not in known)
            known[free] = least.get(free, 1)
        todo = left
    for name, value in least.items():
        known.setdefault(name, value)


@dataclass(frozen=True, slots=True)
class Layout:
    """How one operand of the call comes from the scope: *scope* has the operand's canonical box and reads the source.

    *same*: it is the source itself.  *free*: it is the source or a view that the operator takes; otherwise an eOperator
    has to gather it, and *why* says why.
    """

    scope: Scope
    same: bool
    free: bool
    why: str = ""


@lru_cache(maxsize=1 << 13)
def lay_out_operand(
    operator: Operator,
    operand: int,
    read: Access,
    iterators: tuple[tuple[str, tuple[Iterator, ...]], ...],
    numbered: tuple[tuple[str, Attribute], ...],
    flags: tuple[tuple[str, Attribute], ...] | None,
) -> tuple[Layout, dict[str, Attribute]]:
    """The operand in its best order, or in the one that *flags* ask for, and the attributes that say so.

    It only depends on the operand's own iterators, which many iterator maps give in the same way.
    """
    pattern, attributes = operator.pattern.operands[operand], dict(numbered)
    orders: list[dict[str, Attribute]] = [{}, *(dict[str, Attribute]([(flag, 1)]) for flag, _ in pattern.variants)]
    if flags is not None:
        orders = [o for o in orders if all(value == o.get(f, 0) for f, value in flags)][:1]
    tried = list[tuple[Layout, dict[str, Attribute]]]()
    own, read = _rename_iterators(operator, operand, read, dict(iterators), attributes)
    for order in orders:
        tried.append((_gather(operator, operand, read, own, {**attributes, **order}), order))
        if tried[-1][0].same:
            break
    best, chosen = max(tried, key=lambda t: (t[0].same, t[0].free))
    shape = best.scope.shape
    if best.free and len(shape) > 1 < shape[-2] and (row := strides_of(best.scope)[-2]) != shape[-1]:
        return best, {**chosen, f"ld{pattern.name.lower()}": row}
    return best, chosen


def _rename_iterators(
    operator: Operator, operand: int, read: Access, iterators: Assignment, attributes: Attributes
) -> tuple[dict[Dimension, Iterator], Access]:
    """The operator's own iterator of each dimension, and *read* by these: the same in any order of the dimensions."""
    pattern = operator.pattern.operands[operand]
    numbers = operator.numbers(attributes)
    taken = {x.name for parts in iterators.values() for x in parts}
    windows = {x.name.rstrip("_"): x for i in read.index for x in i.iterators if x.name not in taken}
    own = {
        d: Iterator(d.single, 0, numbers[f"|{d.single}|"]) if d.single else windows[f"i{pattern.dimensions.index(d)}"]
        for d in operator.dimensions(operand, attributes)
    }
    to: dict[Iterator, IndexLike] = {}
    for new in own.values():
        to.update(_split(new, tuple(iterators.get(new.name, ()))))
    return own, open_views(Access(read.source, tuple(i.substitute(lambda x: to.get(x, x)) for i in read.index)))


def _gather(
    operator: Operator, operand: int, read: Access, by: Mapping[Dimension, Iterator], attributes: Attributes
) -> Layout:
    pattern = operator.pattern.operands[operand]
    own = [by[d] for d in operator.dimensions(operand, attributes)]
    index = read.index
    padding = operator.padding(operand, attributes)
    neutral = REDUCTIONS[operator.pattern.reduce]
    if padding and read.source.value != neutral:
        raise Refused(
            f"{operator.name} reads {neutral:g} outside {pattern.name}, the source is {read.source.value:g} there"
        )
    gathered = Scope(tuple(own), (), read, padding=padding, value=neutral if padding else 0)
    try:
        strides = strides_of(gathered)
    except Refused as why:
        return Layout(gathered, False, False, f"{pattern.name}: {why}")
    straight = tuple(x.single for x in index) == tuple(own) and read.source.shape == gathered.shape
    if straight and isinstance(read.source, Tensor) and not any(lo for lo, _ in read.source.box):
        # A tensor that the operator may read beyond its padding is not what the operator reads.
        around = zip(read.source.reach, gathered.reach, strict=True)
        if all(lo <= first and last <= hi for (lo, hi), (first, last) in around):
            return Layout(gathered, True, True)
    if is_packed(strides, gathered.shape) or (operator.strided and is_leading(strides, gathered.shape)):
        return Layout(gathered, False, True)
    return Layout(gathered, False, False, f"{pattern.name}: strides {list(strides)} of shape {list(gathered.shape)}")


@lru_cache(maxsize=4096)
def _split(merged: Iterator, parts: tuple[Iterator, ...]) -> Mapping[Iterator, Index]:
    """The digits of *merged* in the mixed radix of *parts*, each in its own range."""
    out: dict[Iterator, Index] = {}
    rest = as_index(merged)
    for x in reversed(parts):
        out[x] = rest % x.extent + x.lo
        rest = rest // x.extent
    return out


@lru_cache(maxsize=4096)
def _merge(parts: tuple[Iterator, ...]) -> Index:
    """The number whose digits are *parts*, counted from 0: the inverse of ``_split``."""
    total = Index()
    for x in parts:
        total = total * x.extent + (x - x.lo)
    return total


def locate_result(
    form: ScopeForm, operator: Operator, iterators: Assignment, attributes: Attributes
) -> tuple[tuple[Index, ...], bool]:
    """Where the scope's value stands in the call's result, and whether reading it there is free."""
    present = [x for x in operator.pattern.traversals if not operator.absent(x, attributes)]
    back = dict(form.back)
    index = tuple(_merge(tuple(iterators.get(x, ()))).substitute(lambda x: back.get(x, x)) for x in present)
    numbers = operator.numbers(attributes)
    result = Tensor("T", tuple(numbers[f"|{x}|"] for x in present))
    scope = form.scope
    try:
        return index, is_packed(strides_of(Scope(scope.traversals, (), Access(result, index))), scope.shape)
    except Refused:
        return index, False
