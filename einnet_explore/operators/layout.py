r"""Strides of accesses and views, and the operands of a library call as layouts of the scope's tensors.

An access is one affine address, :math:`\sum_x s_x\,x + o` (EinNet §5.1, Fig. 8 c-d).  An operand is the tensor itself,
a view that the operator takes, or gathered by an eOperator; the scope's value is read from the call's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.analysis.indices import open_views
from einnet_explore.ir import REDUCTIONS, Access, Attribute, Index, IndexLike, Iterator, Scope, Tensor, as_index
from einnet_explore.operators.form import ScopeForm
from einnet_explore.operators.operator import Attributes, Operator
from einnet_explore.operators.pattern import Dimension
from einnet_explore.support.errors import Refused
from einnet_explore.support.limits import MEMO_ENTRIES


def strides_of(scope: Scope) -> tuple[int, ...]:
    """Return the strides of *scope* as a view of the tensor that it reads; raises Refused if it is no view."""
    match scope:
        case Scope(summations=(), body=Access(source=Tensor()) as access, domain=()):
            pass
        case Scope(summations=()):
            raise Refused("a view reads one tensor and nothing else")
        case _:
            raise Refused(f"a view has no summations, found {len(scope.summations)}")
    for d, (i, (lo, hi)) in enumerate(zip(access.index, access.source.box, strict=True)):
        first, last = i.bounds
        if first < lo or last >= hi:
            where = f"dimension {d} is read in [{first}, {last}], the elements lie in [{lo}, {hi})"
            raise Refused(f"a view stays inside its source: {where}")
    at = flat_address(access)
    if not at.affine:
        raise Refused(f"the flat address {at!r} is not affine")
    return tuple(at.coefficient(x) for x in scope.traversals)


def is_packed(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether the elements lie one after another in row-major order (extents of 1 have any stride)."""
    return all(n == 1 or s == want for n, s, want in zip(shape, strides, row_major_strides(shape), strict=True))


def is_leading(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether each row is packed and rows do not overlap, as operators with leading dimensions require."""
    rows = [s for n, s in zip(shape[:-1], strides[:-1], strict=True) if n > 1]
    return (shape[-1] == 1 or strides[-1] == 1) and all(s >= shape[-1] for s in rows[-1:]) and all(s >= 0 for s in rows)


Assignment = Mapping[str, tuple[Iterator, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """An operand of the call: *scope* has the operand's canonical box and reads the source.

    *same*: it is the source itself.  *free*: it is the source or a view that the operator takes; otherwise an eOperator
    has to gather it.
    """

    scope: Scope
    same: bool
    free: bool


@lru_cache(MEMO_ENTRIES)
def lay_out_operand(
    operator: Operator,
    operand: int,
    read: Access,
    iterators: tuple[tuple[str, tuple[Iterator, ...]], ...],
    numbered: tuple[tuple[str, Attribute], ...],
    flags: tuple[tuple[str, Attribute], ...] | None,
) -> tuple[Layout, dict[str, Attribute]]:
    """Return the operand in its best order, or in that of *flags*, and the attributes that select it.

    The result is cached: it depends only on the operand's own iterators, which many iterator maps share.
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
    """Return the operator's iterator of each dimension, and *read* expressed in these."""
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
    except Refused:
        return Layout(gathered, same=False, free=False)
    straight = tuple(x.single for x in index) == tuple(own) and read.source.shape == gathered.shape
    if straight and isinstance(read.source, Tensor) and not any(lo for lo, _ in read.source.box):
        # A tensor that the operator may read beyond its padding is not what the operator reads.
        around = zip(read.source.reach, gathered.reach, strict=True)
        if all(lo <= first and last <= hi for (lo, hi), (first, last) in around):
            return Layout(gathered, same=True, free=True)
    usable = is_packed(strides, gathered.shape) or (operator.strided and is_leading(strides, gathered.shape))
    return Layout(gathered, same=False, free=usable)


@lru_cache(MEMO_ENTRIES)
def _split(merged: Iterator, parts: tuple[Iterator, ...]) -> Mapping[Iterator, Index]:
    """Return the digits of *merged* in the mixed radix of *parts*, each in its own range."""
    out: dict[Iterator, Index] = {}
    rest = as_index(merged)
    for x in reversed(parts):
        out[x] = rest % x.extent + x.lo
        rest = rest // x.extent
    return out


@lru_cache(MEMO_ENTRIES)
def _merge(parts: tuple[Iterator, ...]) -> Index:
    """Return the number whose digits are *parts*, counted from 0: the inverse of ``_split``."""
    total = Index()
    for x in parts:
        total = total * x.extent + (x - x.lo)
    return total


def locate_result(
    form: ScopeForm, operator: Operator, iterators: Assignment, attributes: Attributes
) -> tuple[tuple[Index, ...], bool]:
    """Return the index of the scope's value in the call's result, and whether reading it there is free."""
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
