r"""Operator matching (EinNet §5.1): tensor maps, then iterator maps by group, then attributes on flattened strides.

A scope :math:`L_{\vec x} \sum_{\vec y} A[\tau_A]\,B[\tau_B]` matches an operator when its iterators can be given to the
operator's, group by group (``IteratorTable``).  Several iterators are merged into one, :math:`m = t_1 T_2 + t_2`;
composite indices (``sh*h + dh*r - ph``) take one dimension of the source as it is, and their coefficients solve the
attributes.
Iterators of extent 1 are constants: they belong to no group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from einnet_explore.ir import Attribute, Index, Iterator, Scope
from einnet_explore.operators.form import Form, Unmatched, comparable, tensor_maps
from einnet_explore.operators.maps import iterator_maps
from einnet_explore.operators.operands import Layout, laid_out, read_back
from einnet_explore.operators.operator import Attributes, Operator
from einnet_explore.operators.solving import Assignment, names, solve


@dataclass(frozen=True, slots=True)
class OperatorMatch:
    """One way in which a scope is an operator.

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
        """Whether a composite index of the operator is one here, too, or it has none; else this is a contraction."""
        pattern, given = self.operator.pattern, dict(self.iterators)
        dimensions = [pattern.operands[p].dimensions[d] for p, d in pattern.windows]
        numbers = self.operator.numbers(dict(self.attributes))
        return not dimensions or any(
            sum(len(given[name]) for name in dimension.iterators) > 1
            or any(given[name] and k.value(numbers) != 1 for name, k in dimension.terms)
            for dimension in dimensions
        )

    @property
    def solved(self) -> int:
        """How many of the iterators stand in composite indices."""
        return sum(len(xs) for name, xs in self.iterators if name not in self.operator.pattern.merged)

    @property
    def kept(self) -> frozenset[int]:
        """The numbers of the accesses (-1 for the result) that need no eOperator."""
        free = {a for a, layout in zip(self.operands, self.layouts, strict=True) if layout.free}
        return frozenset((*free, -1) if self.output_free else free)


def match(scope: Scope, operator: Operator, limit: int = 16, direct: bool = False) -> tuple[OperatorMatch, ...]:
    """The ways in which *scope* is *operator*, those that keep more layouts first, at most *limit*.

    A way is left out if another one has more iterators in composite indices (nobody means a convolution whose taps are
    channels), or keeps the layout of every tensor that it keeps, and of more.  *direct* takes only ways in which the
    operator is called on the scope's own tensors, or views of them, dimension by dimension: no layout eOperator, no
    ``A[m, m + k]`` (which strides express, but no table of iterators).  Raises Unmatched with every reason if there is
    none.
    """
    form = comparable(scope, operator)
    found: dict[tuple[object, ...], OperatorMatch] = {}
    reasons: dict[str, None] = {}
    for operands in tensor_maps(form, operator.pattern):
        try:
            for iterators in iterator_maps(form, operator, operands):
                try:
                    way = fit(scope, operator, operands, iterators)
                except Unmatched as reason:
                    reasons.setdefault(str(reason))
                    continue
                if direct and (why := _indirect(form, way)):
                    reasons.setdefault(why)
                    continue
                if not way.composite and len(way.kept) <= len(operands):
                    reasons.setdefault(f"no index is composite, and {operator.name} would need other layouts")
                    continue
                found.setdefault((way.operands, way.iterators), way)
        except Unmatched as reason:
            reasons.setdefault(str(reason))
    if not found:
        raise Unmatched(f"no {operator.name}: " + ("; ".join(reasons) or "no dimension can be its composite index"))
    solved = max(w.solved for w in found.values())
    best = [w for w in found.values() if w.solved == solved]
    ways = [w for w in best if not any(w.kept < other.kept for other in best)]
    return tuple(sorted(ways, key=lambda w: -len(w.kept))[:limit])


def fit(
    scope: Scope,
    operator: Operator,
    operands: tuple[int, ...],
    iterators: Assignment,
    flags: Attributes | None = None,
) -> OperatorMatch:
    """*scope* as *operator* with the tensor map *operands* and the iterator map *iterators*, attributes solved.

    *flags* fixes the operands' orders (``ta``, ``tb``) instead of taking the best ones.  Raises Unmatched where it does
    not fit.
    """
    form, pattern = comparable(scope, operator), operator.pattern
    if sorted(operands) != list(range(len(form.reads))):
        raise Unmatched(f"the tensor map {list(operands)} does not number the {len(form.reads)} operands")
    _assigned(form, operator, operands, iterators)
    numbers = {f"|{name}|": prod(x.extent for x in iterators.get(name, ())) for name in pattern.iterators}
    windows = solve(form, operator, operands, iterators, numbers)
    if (divisor := pattern.divisor.value(numbers)) != form.divisor:
        raise Unmatched(f"the body is divided by {form.divisor:g}, {operator.name} divides by {divisor}")
    attributes: dict[str, Attribute] = {name: numbers[f"|{name}|"] for name in pattern.iterators}
    attributes |= {name: numbers[name] for name in pattern.attributes}
    layouts = list[Layout]()
    numbered = tuple(attributes.items())
    for p, a in enumerate(operands):
        own = tuple((name, tuple(iterators.get(name, ()))) for name in pattern.operands[p].names)
        wanted = None if flags is None else tuple((f, flags.get(f, 0)) for f, _ in pattern.operands[p].variants)
        layout, chosen = laid_out(operator, p, windows.get(p, form.reads[a]), own, numbered, wanted)
        layouts.append(layout)
        attributes |= chosen
    index, free = read_back(form, operator, iterators, attributes)
    return OperatorMatch(
        operator,
        tuple(operands),
        tuple((name, tuple(iterators.get(name, ()))) for name in pattern.iterators),
        tuple(attributes.items()),
        tuple(layouts),
        index,
        form.scale,
        free,
    )


def _indirect(form: Form, way: OperatorMatch) -> str:
    """Why *way* is more than a call on the scope's own tensors; empty if it is that."""
    whose = {x: name for name, xs in way.iterators for x in xs}
    merged = way.operator.pattern.merged
    for a, layout in zip(way.operands, way.layouts, strict=True):
        if not layout.free:
            return layout.why
        read = form.reads[a]
        for d, index in enumerate(read.index):
            mixed = sorted({whose[x] for x in index.iterators} & merged)
            if len(mixed) > 1:
                return f"dimension {d} of {read!r} mixes {' and '.join(mixed)}"
        for x in form.summations:
            at = [d for d, index in enumerate(read.index) if x in index.iterators]
            if len(at) > 1:
                return f"{whose[x]} stands in dimensions {' and '.join(map(str, at))} of {read!r}"
    return ""


def _assigned(form: Form, operator: Operator, operands: tuple[int, ...], iterators: Assignment) -> None:
    """Every iterator is given once, to an iterator of its own group."""
    given = [x for xs in iterators.values() for x in xs]
    if sorted(given, key=repr) != sorted(form.iterators, key=repr):
        raise Unmatched(f"the iterator map gives {names(given)}; the scope has {names(form.iterators)}")
    for name, xs in iterators.items():
        if name not in operator.pattern.iterators:
            raise Unmatched(f"{operator.name} has no iterator {name}, only {', '.join(operator.pattern.iterators)}")
        for x in xs:
            want, have = operator.table.of(name), form.group(x, operands)
            if want != have:
                raise Unmatched(f"{x.name} is {have}, {name} of {operator.name} is {want}")
        if len(xs) > 1 and name not in operator.pattern.merged:
            raise Unmatched(f"{name} of {operator.name} takes one iterator, given {names(xs)}")
