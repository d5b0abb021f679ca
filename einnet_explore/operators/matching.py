r"""Operator matching (EinNet §5.1): tensor maps, then iterator maps by group, then attributes on flattened strides.

A scope :math:`L_{\vec x} \sum_{\vec y} A[\tau_A]\,B[\tau_B]` matches an operator if its iterators can be mapped to the
operator's, group by group (``IteratorTable``): composite indices first (step 2), then the rest of each group.  Several
iterators are merged into one, :math:`m = t_1 T_2 + t_2`.  Iterators of extent 1 are constants: they belong to no group.

A composite index of the operator, ``sh*h + dh*r - ph``, is compared with one dimension of the scope's source; the
coefficients of matched iterators, the constant and the extent are equations for the attributes (step 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, permutations, product
from math import prod

from einnet_explore.analysis.products import multiplies_bytes
from einnet_explore.ir import Access, Attribute, Index, Iterator, Scope, Table, Tensor, as_index, tensors
from einnet_explore.operators.form import ScopeForm, comparable_form, overlaps, tensor_maps
from einnet_explore.operators.layout import Assignment, Layout, lay_out_operand, locate_result
from einnet_explore.operators.operator import Attributes, Operator
from einnet_explore.operators.pattern import ONE, Dimension, Polynomial
from einnet_explore.support.errors import Refused

Fixed = Mapping[str, "Iterator | None"]


def iterator_maps(form: ScopeForm, operator: Operator, operands: tuple[int, ...]) -> Iterable[Assignment]:
    """Yield iterator maps under the tensor map *operands*; raises Refused if a group cannot fit.

    Merged iterators are in an order that keeps some tensor's layout: other orders keep none.
    """
    pattern, table = operator.pattern, operator.table
    groups = form.groups(operands)
    for key, found in groups.items():
        if not table.group(key):
            raise Refused(f"{operator.name} has no iterator in group {key}, where {iterator_names(found)} stand")
    why = "" if pattern.windows else "nothing"
    for fixed in _windows(form, operator, operands, pattern.windows, {}):
        taken = {x for x in fixed.values() if x is not None}
        choices: list[list[dict[str, tuple[Iterator, ...]]]] = []
        for key, own in table.groups:
            rest = [x for x in groups.get(key, ()) if x not in taken]
            merged = [name for name in own if name in pattern.merged]
            if rest and not merged:
                why = (
                    why
                    or f"{operator.name} takes {len(own)} iterators in group {key}, left over: {iterator_names(rest)}"
                )
                break
            choices.append([cut for order in _merge_orders(form, rest) for cut in _divide_order(order, merged)])
        else:
            why = "nothing"
            for choice in product(*choices):
                out: dict[str, tuple[Iterator, ...]] = {name: (x,) for name, x in fixed.items() if x is not None}
                for part in choice:
                    out |= part
                yield out
    if why != "nothing":
        raise Refused(why or f"no dimension of the operands can be {pattern.composite} of {operator.name}")


def _windows(
    form: ScopeForm,
    operator: Operator,
    operands: tuple[int, ...],
    windows: tuple[tuple[int, int], ...],
    done: Fixed,
    after: tuple[int, int] = (-1, -1),
) -> Iterable[Fixed]:
    """Yield the iterators of composite indices, for each choice of a source dimension for each composite index.

    Where other iterators than the index's own stand with a traversal, it takes that alone: a window of one tap.
    """
    if not windows:
        yield done
        return
    (p, d), *rest = windows
    own = operator.pattern.operands[p].dimensions[d].iterators
    for j, index in enumerate(form.reads[operands[p]].index):
        if (after[0] == p and j <= after[1]) or not index.terms or not index.affine:
            continue
        groups = {x: form.group(x, operands) for x in index.iterators}
        if not {*groups.values()} <= {operator.table.of(name) for name in own}:
            found = _one_tap(operator, own, groups, done)
        elif len(index.terms) > 1 and not overlaps(index) and _constant(form.reads[operands[p]]):
            continue
        else:
            found = _own_iterators(operator, own, groups, done)
        for new in found:
            yield from _windows(form, operator, operands, tuple(rest), new, (p, j))


def _one_tap(operator: Operator, own: Sequence[str], groups: Mapping[Iterator, str], done: Fixed) -> Iterable[Fixed]:
    """Yield the choices of an iterator of an index for the only traversal among the operator's *own*."""
    walked = [name for name in own if name in operator.pattern.traversals]
    for x, group in groups.items():
        if len(walked) == 1 < len(own) and group == operator.table.of(walked[0]) and x not in done.values():
            yield {**dict.fromkeys(own), **done, walked[0]: x}


def _own_iterators(
    operator: Operator, own: Sequence[str], groups: Mapping[Iterator, str], done: Fixed
) -> Iterable[Fixed]:
    """Yield the choices of the operator's *own* iterators, all its traversals among them, for those of an index."""
    for chosen in permutations(own, len(groups)) if len(groups) <= len(own) else ():
        pairs = dict(zip(chosen, groups, strict=True))
        if set(own) & set(operator.pattern.traversals) <= set(pairs) and all(
            operator.table.of(name) == groups[x] and done.get(name, x) == x for name, x in pairs.items()
        ):
            yield {**dict.fromkeys(own), **done, **pairs}


def _constant(read: Access) -> bool:
    """Whether *read* reads weights alone: digits of their indices are a layout, made at compile time."""
    match read.source:
        case Tensor(weight=weight):
            return weight
        case Table():
            return True
        case Scope() as scope:
            return all(t.weight for t in tensors(scope))


def _merge_orders(form: ScopeForm, group: list[Iterator]) -> list[tuple[Iterator, ...]]:
    """Return the orders of *group* by falling stride in each tensor that all of it indexes."""
    orders = [tuple(x for x in form.traversals if x in group)]
    for rank in form.ranks:
        orders.append(tuple(sorted((x for x in group if x in rank), key=lambda x: rank[x])))
    return list(dict.fromkeys(order for order in orders if len(order) == len(group)))


def _divide_order(order: tuple[Iterator, ...], into: list[str]) -> Iterable[dict[str, tuple[Iterator, ...]]]:
    """Yield ways to assign consecutive iterators to consecutive names; spare names come first, empty."""
    if len(order) <= len(into):
        yield {name: (x,) for name, x in zip(into[len(into) - len(order) :], order, strict=True)}
    elif len(into) == 1:
        yield {into[0]: order}
    else:
        for n in range(1, len(order) - len(into) + 2):
            for rest in _divide_order(order[n:], into[1:]):
                yield {into[0]: order[:n], **rest}


@dataclass(frozen=True, slots=True)
class OperatorMatch:
    """A way to run a scope as an operator.

    Operand *p* of the operator is the scope's access ``operands[p]``, laid out as ``layouts[p]``.  The scope's value at
    its traversals is ``scale`` times the call's result at ``index``.
    """

    operator: Operator
    operands: tuple[int, ...]
    iterators: tuple[tuple[str, tuple[Iterator, ...]], ...]
    attributes: tuple[tuple[str, Attribute], ...]
    layouts: tuple[Layout, ...]
    index: tuple[Index, ...]
    scale: float
    output_free: bool

    @property
    def composite(self) -> bool:
        """Whether some index that may be composite is so here; otherwise the match is a plain contraction."""
        pattern, given = self.operator.pattern, dict(self.iterators)
        dimensions = [pattern.operands[p].dimensions[d] for p, d in pattern.windows]
        numbers = self.operator.numbers(dict(self.attributes))
        return not dimensions or any(
            sum(len(given[name]) for name in dimension.iterators) > 1
            or any(given[name] and k.value(numbers) != 1 for name, k in dimension.terms)
            for dimension in dimensions
        )

    @property
    def composite_iterators(self) -> int:
        """The number of iterators in composite indices."""
        return sum(len(xs) for name, xs in self.iterators if name not in self.operator.pattern.merged)

    @property
    def free_accesses(self) -> frozenset[int]:
        """The numbers of the accesses (-1 for the result) that need no eOperator."""
        free = {a for a, layout in zip(self.operands, self.layouts, strict=True) if layout.free}
        return frozenset((*free, -1) if self.output_free else free)


def match_operator(scope: Scope, operator: Operator, limit: int = 16) -> tuple[OperatorMatch, ...]:
    """Return the ways to run *scope* as *operator*, those that keep more layouts first, at most *limit*.

    A way is omitted if another one has more iterators in composite indices (a convolution whose taps are channels is of
    no use), or keeps the layouts that it keeps and more.  Without composite indices, windows have one tap (a Conv1x1):
    of such ways, the one that keeps most layouts.  Raises Refused with every reason if there is none, and for products
    of bytes, which operators of libraries do not sum in ``int32``.
    """
    if multiplies_bytes(scope):
        raise Refused(f"no {operator.name}: it computes in floating point, and the expression sums products of bytes")
    form = comparable_form(scope, operator)
    found: dict[tuple[object, ...], OperatorMatch] = {}
    one_tap: list[OperatorMatch] = []
    reasons: dict[str, None] = {}
    for operands in tensor_maps(form, operator.pattern):
        try:
            for iterators in iterator_maps(form, operator, operands):
                try:
                    way = fit_operator(scope, operator, operands, iterators)
                except Refused as reason:
                    reasons.setdefault(str(reason))
                    continue
                if not way.composite and len(way.free_accesses) <= len(operands):
                    reasons.setdefault(f"no index is composite, and {operator.name} would need other layouts")
                    if _slides(form, operator, operands, iterators):
                        one_tap.append(way)
                    continue
                found.setdefault((way.operands, way.iterators), way)
        except Refused as reason:
            reasons.setdefault(str(reason))
    if not found and one_tap:
        return (max(one_tap, key=lambda w: len(w.free_accesses)),)
    if not found:
        raise Refused(f"no {operator.name}: " + ("; ".join(reasons) or "no dimension can be its composite index"))
    solved = max(w.composite_iterators for w in found.values())
    best = [w for w in found.values() if w.composite_iterators == solved]
    ways = [w for w in best if not any(w.free_accesses < other.free_accesses for other in best)]
    return tuple(sorted(ways, key=lambda w: -len(w.free_accesses))[:limit])


def _slides(form: ScopeForm, operator: Operator, operands: tuple[int, ...], iterators: Assignment) -> bool:
    """Return whether every window of *operator* sums taps and slides over an iterator of more than one value.

    There are at least two (with a single window of one tap, the operator is a matrix product), and they do not slide
    over weights.
    """
    pattern = operator.pattern
    data = [form.reads[operands[p]].source for p, _ in pattern.windows]
    if any(isinstance(source, Tensor) and source.weight for source in data):
        return False
    names = [pattern.operands[p].dimensions[d].iterators for p, d in pattern.windows]
    return len(names) > 1 and all(
        any(name in pattern.summations for name in window)
        and any(x.extent > 1 for name in window if name in pattern.traversals for x in iterators.get(name, ()))
        for window in names
    )


def fit_operator(
    scope: Scope, operator: Operator, operands: tuple[int, ...], iterators: Assignment, flags: Attributes | None = None
) -> OperatorMatch:
    """Fit *operator* to *scope* by the tensor map *operands* and the iterator map *iterators*; solve attributes.

    *flags* fixes the operands' orders (``ta``, ``tb``) instead of taking the best ones.  Raises Refused where it does
    not fit.
    """
    form, pattern = comparable_form(scope, operator), operator.pattern
    if sorted(operands) != list(range(len(form.reads))):
        raise Refused(f"the tensor map {list(operands)} does not number the {len(form.reads)} operands")
    _check_assignment(form, operator, operands, iterators)
    numbers = {f"|{name}|": prod(x.extent for x in iterators.get(name, ())) for name in pattern.iterators}
    windows = solve(form, operator, operands, iterators, numbers)
    if (divisor := pattern.divisor.value(numbers)) != form.divisor:
        raise Refused(f"the body is divided by {form.divisor:g}, {operator.name} divides by {divisor}")
    attributes: dict[str, Attribute] = {name: numbers[f"|{name}|"] for name in pattern.iterators}
    attributes |= {name: numbers[name] for name in pattern.attributes}
    layouts, numbered = list[Layout](), tuple(attributes.items())
    given = {name: tuple(iterators.get(name, ())) for name in pattern.iterators}
    for p, a in enumerate(operands):
        own = tuple((name, given[name]) for name in pattern.operands[p].names)
        wanted = None if flags is None else tuple((f, flags.get(f, 0)) for f, _ in pattern.operands[p].variants)
        layout, chosen = lay_out_operand(operator, p, windows.get(p, form.reads[a]), own, numbered, wanted)
        layouts.append(layout)
        attributes |= chosen
    index, free = locate_result(form, operator, iterators, attributes)
    return OperatorMatch(
        operator,
        tuple(operands),
        tuple(given.items()),
        tuple(attributes.items()),
        tuple(layouts),
        index,
        form.scale,
        free,
    )


def _check_assignment(form: ScopeForm, operator: Operator, operands: tuple[int, ...], iterators: Assignment) -> None:
    """Raise Refused unless every iterator is assigned once, within its group."""
    given = [x for xs in iterators.values() for x in xs]
    if len(given) != len(form.iterators) or set(given) != set(form.iterators):
        raise Refused(f"the iterator map gives {iterator_names(given)}; the scope has {iterator_names(form.iterators)}")
    for name, xs in iterators.items():
        if name not in operator.pattern.iterators:
            raise Refused(f"{operator.name} has no iterator {name}, only {', '.join(operator.pattern.iterators)}")
        for x in xs:
            want, have = operator.table.of(name), form.group(x, operands)
            if want != have:
                raise Refused(f"{x.name} is {have}, {name} of {operator.name} is {want}")
        if len(xs) > 1 and name not in operator.pattern.merged:
            raise Refused(f"{name} of {operator.name} takes one iterator, given {iterator_names(xs)}")


@dataclass(frozen=True, slots=True)
class Equality:
    """The equation *left* = *right*; *words* and *asked* describe its origin in messages."""

    left: Polynomial
    right: int
    words: str
    asked: tuple[object, ...]

    @property
    def where(self) -> str:
        """The origin of the equation."""
        return self.words.format(*map(repr, self.asked))


def solve(
    form: ScopeForm, operator: Operator, operands: tuple[int, ...], iterators: Assignment, numbers: dict[str, int]
) -> dict[int, Access]:
    """Solve the attributes into *numbers*, which holds the extents already; raises Refused where they do not agree.

    Returns the accesses of operands with composite indices, in which that dimension is read at one iterator ``i0``,
    ``i1``, … (numbered by the operand's dimension) over the part of the source that is passed to the operator.  A
    window of one tap is read at its traversal alone: where that stands with other iterators, elements are replicated.
    """
    pattern = operator.pattern
    todo = [Equality(zero, 0, "{} == {}", sides) for sides, zero in zip(pattern.conditions, pattern.zeros, strict=True)]
    out: dict[int, Access] = {}
    replicated: set[int] = set()
    for p, d in pattern.windows:
        dimension = pattern.operands[p].dimensions[d]
        read = out.get(p, form.reads[operands[p]])
        own = {name: x for name in dimension.iterators for x in iterators.get(name, ())}
        at = [j for j, i in enumerate(read.index) if set(i.iterators) & set(own.values())]
        new = _unused(f"i{d}", iterators)
        if len(at) == 1 and read.index[at[0]].affine and set(read.index[at[0]].iterators) <= set(own.values()):
            outer = [x for name, x in own.items() if name in pattern.traversals]
            out[p], equalities = _read_window(read, at[0], dimension, own, outer, new)
        elif len(own) == 1 and at and set(own) < set(dimension.iterators) and set(own) <= set(pattern.traversals):
            out[p], equalities = _read_one_tap(read, dimension, own, new)
            replicated.add(p)
        else:
            where = ", ".join(repr(read.index[j]) for j in at) or "no dimension"
            raise Refused(
                f"{dimension!r} of {operator.name} is one affine dimension of its own, "
                f"{iterator_names(own.values())} stand in {where}"
            )
        todo += equalities
    for p, read in out.items():
        if p not in replicated and (mixed := next((i for i in read.index if overlaps(i)), None)) is not None:
            raise Refused(
                f"{mixed!r} is one more composite index than {pattern.operands[p].name} of {operator.name} has"
            )
    _unify(operator, todo, numbers)
    return out


def _read_window(
    read: Access, at: int, dimension: Dimension, own: Mapping[str, Iterator], outer: list[Iterator], new: str
) -> tuple[Access, list[Equality]]:
    """Return *read* with iterator *new* at index *at*, whose iterators are *own*, and the equalities with *dimension*.

    *outer* are the traversals among *own*.
    """
    index = read.index[at]
    start, stop = _given_range(read, at, outer)
    here = "{} against {}", (dimension, index)
    equalities = [Equality(dimension.coefficient(name), index.coefficient(x), *here) for name, x in own.items()]
    equalities.append(Equality(dimension.const, index.substitute(lambda x: x.lo).const - start, *here))
    equalities.append(Equality(dimension.extent or ONE, stop - start, "the extent of {}", (dimension,)))
    window = as_index(Iterator(new, 0, stop - start)) + start
    return Access(read.source, tuple(window if j == at else i for j, i in enumerate(read.index))), equalities


def _read_one_tap(
    read: Access, dimension: Dimension, own: Mapping[str, Iterator], new: str
) -> tuple[Access, list[Equality]]:
    """Return *read* with its one iterator of *own* named *new*, and the equalities that make *dimension* one tap."""
    ((name, x),) = own.items()
    wanted = (dimension.coefficient(name), 1), (dimension.const, 0), (dimension.extent or ONE, x.extent)
    moved = as_index(Iterator(new, 0, x.extent)) + x.lo
    index = tuple(i.substitute(lambda y: moved if y == x else y) for i in read.index)
    return Access(read.source, index), [Equality(*each, "{} with one tap", (dimension,)) for each in wanted]


def _unused(name: str, iterators: Assignment) -> str:
    taken = {x.name for own in iterators.values() for x in own}
    return next(n for n in (name + "_" * k for k in count()) if n not in taken)


def iterator_names(iterators: Iterable[Iterator]) -> str:
    """Return the iterators' names with their extents."""
    return ", ".join(f"{x.name}:{x.extent}" for x in iterators) or "none"


def _given_range(read: Access, at: int, outer: list[Iterator]) -> tuple[int, int]:
    """Return the part of the source's dimension passed to the operator: the box without unread ends.

    Less than a stride may remain unread at the end, as library operators allow.
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
