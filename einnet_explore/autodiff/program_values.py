r"""Value numbering of a program and the costs of its values: the demanded box, operations and bytes of each.

Values are independent of naming and nesting of equations.

.. math::  \text{operations}(v) = |\text{box}(v)| \cdot \text{operations of its definition}

A value's box is the hull of its reads, propagated from the outputs; operations are counted as in ``analysis.counts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from einnet_explore.analysis.indices import substitute_domain, substitute_index
from einnet_explore.analysis.regions import always_holds
from einnet_explore.autodiff.common_parts import EntryGroups, Reads, grouped_entries, reachable_values
from einnet_explore.autodiff.values import Term, Use, Value, Values, index_span, lone_index, substitute_iterators
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Box,
    Compare,
    Const,
    Equation,
    Index,
    Iterator,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
)


@dataclass(frozen=True)
class ProgramValues:
    """A program with the value of each equation.

    *terms*: the value inside the equation's box and domain, over its traversals; *guarded*: the value for reads
    outside, if there are such reads; *given*: the inputs that are another program's results.
    """

    program: Program
    terms: Mapping[str, Term]
    guarded: Mapping[str, Use]
    given: frozenset[str] = frozenset()

    @property
    def roots(self) -> tuple[tuple[Equation, Term], ...]:
        """The outputs' equations and terms."""
        return tuple((e, self.terms[e.name]) for e in self.program.equations if e.name in self.program.outputs)


def read_program(values: Values, program: Program, before: ProgramValues | None = None) -> ProgramValues:
    """Number the values of *program* in *values*; an input named like a result of *before* is that result.

    Raises ValueError if such an input, or a common input, has another shape.
    """
    reader = _Reader(values)
    given = set()
    if before is not None:
        made = {e.name: e for e in before.program.equations}
        shapes = {t.name: t.shape for t in before.program.inputs} | {n: e.scope.shape for n, e in made.items()}
        for tensor in program.inputs:
            if shapes.get(tensor.name, tensor.shape) != tensor.shape:
                raise ValueError(
                    f"{tensor.name} has shape {list(tensor.shape)} backward, expected {list(shapes[tensor.name])}"
                )
            if tensor.name in made:
                given.add(tensor.name)
                reader.made[tensor.name] = made[tensor.name].scope
                reader.terms[tensor.name] = before.terms[tensor.name]
    for equation in program.equations:
        reader.terms[equation.name] = reader.scope(equation.scope)
        reader.made[equation.name] = equation.scope
    return ProgramValues(program, reader.terms, reader.guarded, frozenset(given))


class _Reader:
    def __init__(self, values: Values) -> None:
        self.values = values
        self.made: dict[str, Scope] = {}
        self.terms: dict[str, Term] = {}
        self.guarded: dict[str, Use] = {}
        self._scopes: dict[Scope, Term] = {}

    def scope(self, scope: Scope) -> Term:
        """Return the value of *scope* inside its box and domain, over its traversals."""
        if scope not in self._scopes:
            body = self.scalar(scope.body, scope)
            own = {x: x.name for x in (*scope.traversals, *scope.summations)}
            self._scopes[scope] = self.values.reduction(body, scope.summations, scope.reduce, own)
        return self._scopes[scope]

    def scalar(self, body: Scalar, scope: Scope) -> Term:
        """Return the value of *body*, a part of the body of *scope*."""
        own = {x: x.name for x in (*scope.traversals, *scope.summations)}
        match body:
            case Const():
                return body
            case Access():
                return self._access(body, scope)
            case Apply("+", args):
                return self.values.total([(1, self.scalar(a, scope)) for a in args], own)
            case Apply("-", (a, b)):
                return self.values.total([(1, self.scalar(a, scope)), (-1, self.scalar(b, scope))], own)
            case Apply("neg", (a,)):
                return self.values.total([(-1, self.scalar(a, scope))], own)
            case Apply("*", args):
                return self.values.product([(1, self.scalar(a, scope)) for a in args], own)
            case Apply("/", (a, b)):
                return self.values.product([(1, self.scalar(a, scope)), (-1, self.scalar(b, scope))], own)
            case Apply(op, args):
                read = [
                    Compare(a.op, _without_fixed_iterators(a.left), _without_fixed_iterators(a.right))
                    if isinstance(a, Compare)
                    else self.scalar(a, scope)
                    for a in args
                ]
                return self.values.function(op, read, own)
            case Compare():
                raise ValueError(f"comparison {body!r} outside the condition of where")

    def _access(self, access: Access, scope: Scope) -> Term:
        index = tuple(map(_without_fixed_iterators, access.index))
        match access.source:
            case Tensor(name) if name in self.made:
                return self._at(self.made[name], self.terms[name], index, scope, name)
            case Tensor() | Table() as source:
                return self.values.leaf(source, index)
            case Scope() as inner:
                return self._at(inner, self.scope(inner), index, scope, None)

    def _at(self, inner: Scope, term: Term, index: tuple[Index, ...], outer: Scope, name: str | None) -> Term:
        """Return *term*, the value of *inner*, read at *index*: inlined inside its domain, else guarded."""
        to = dict(zip(inner.traversals, index, strict=True))
        domain = tuple(outer.domain)
        inside = (Bound(i, x.lo, x.hi) for x, i in to.items())
        if all(always_holds(b, domain) for b in (*inside, *substitute_domain(inner.domain, to))):
            return substitute_iterators(term, to)
        guarded = self.values.guard(inner, term)
        if name is not None:
            self.guarded[name] = guarded
        return guarded.substitute(to)


def _without_fixed_iterators(index: Index) -> Index:
    """Replace iterators of extent 1 in *index* by their value."""
    return index.substitute(lone_index) if any(x.extent == 1 for x in index.iterators) else index


ITEM_BYTES = 4
"""Bytes of an element (float32)."""


@dataclass(frozen=True)
class Demand:
    """The half-open range of each parameter over which a value is read."""

    value: Value
    box: Box

    @property
    def points(self) -> int:
        """The number of elements."""
        return prod(hi - lo for lo, hi in self.box)

    def holds(self, other: Demand) -> bool:
        """Whether this contains *other*."""
        return all(a <= c and d <= b for (a, b), (c, d) in zip(self.box, other.box, strict=True))


def demands(read: ProgramValues, reads: Reads) -> Mapping[int, Demand]:
    """Return the demand for every value of *read*, propagated from the outputs by *reads*, by value number."""
    boxes: dict[int, Box] = {}
    roots = [(equation.scope.domain, term) for equation, term in read.roots if isinstance(term, Use)]
    for domain, use in roots:
        _widen(boxes, use.value, use.at, domain)
    order = reachable_values((use.value for _, use in roots), reads)
    for value in order:
        box = boxes[value.number]
        if value.kind == "guard":
            box = _intersect(box, value.scope.box)
        to = {x: Iterator(x.name, a, b) for x, (a, b) in zip(value.scope.traversals, box, strict=True)}
        domain = substitute_domain(value.scope.domain, to)
        for use in reads(value):
            _widen(boxes, use.value, tuple(substitute_index(i, to) for i in use.at), domain)
    return {value.number: Demand(value, boxes[value.number]) for value in order}


def demand_operations(values: Values, demand: Demand, parts: EntryGroups) -> int:
    """Return the operations to compute *demand*, without those of its reads."""
    value = demand.value
    match value.kind:
        case "leaf" | "guard":
            return 0
        case "function":
            return demand.points
        case "reduction":
            return demand.points * prod(y.extent for y in value.scope.summations)
        case "sum" | "product":
            marks = [mark for mark, _ in grouped_entries(values, value, parts.get(value.number, ()))]
            return demand.points * (len(marks) - (1 if 1 in marks else 0))


def _intersect(box: Box, other: Box) -> Box:
    """Intersect the demand of a guarded value with its box; the whole box if that is empty."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True))
    return other if any(a >= b for a, b in both) else both


def _widen(boxes: dict[int, Box], value: Value, index: tuple[Index, ...], domain: tuple[Bound, ...]) -> None:
    read = tuple(index_span(i, domain) for i in index)
    known = boxes.get(value.number, read)
    boxes[value.number] = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, read, strict=True))
