"""Writer of passes: expressions from values, reading available tensors, and placement of nested reductions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from einnet_explore.analysis.indices import fresh_name, substitute, substitute_domain, substitute_index
from einnet_explore.autodiff.available_tensors import AvailableTensor, AvailableTensors
from einnet_explore.autodiff.common_parts import EntryGroup, EntryGroups, grouped_entries
from einnet_explore.autodiff.values import (
    Entries,
    Term,
    Use,
    Value,
    Values,
    index_span,
    lone_index,
    substitute_iterators,
)
from einnet_explore.equivalence.reads import illegal_reads
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Index,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    add,
    as_index,
    mul,
    tensors,
)
from einnet_explore.support.errors import Refused


@dataclass(frozen=True)
class Placement:
    """A placement: *use* over the traversals *own* inside *domain*, read at *index*."""

    own: tuple[Iterator, ...]
    domain: tuple[Bound, ...]
    use: Use
    index: tuple[Index, ...]


def placements(use: Use, domain: tuple[Bound, ...]) -> Iterable[Placement]:
    """Yield the placements of the value of *use*, in a scope with *domain*, best first.

    First over the box of its indices, which other readers may share.  That box may contain points that are not read and
    points with illegal reads; the points of *use* itself contain none.
    """
    own = fresh_iterators(use.value.names, use.at, domain)
    shifted = tuple(Iterator(x.name, 0, x.extent) for x in own)
    there = tuple(lone_index(z) + x.lo for x, z in zip(own, shifted, strict=True))
    index = tuple(i - x.lo for i, x in zip(use.at, own, strict=True))
    yield Placement(shifted, (), Use(1, use.value, there), index)
    standing, relevant = _free_iterators(use, domain)
    to = {x: Iterator(x.name, 0, x.extent) + x.lo for x in standing}
    yield Placement(
        tuple(Iterator(x.name, 0, x.extent) for x in standing),
        substitute_domain(relevant, to),
        Use(1, use.value, tuple(substitute_index(i, to) for i in use.at)),
        tuple(x - x.lo for x in standing),
    )


def fresh_iterators(names: Sequence[str], at: Sequence[Index], domain: tuple[Bound, ...] = ()) -> tuple[Iterator, ...]:
    """Return an iterator for each of the indices *at*, over its range in *domain*, with distinct names from *names*."""
    taken: list[str] = []
    for name in names:
        taken.append(name if name not in taken else fresh_name(name, taken))
    return tuple(Iterator(name, *index_span(i, domain)) for name, i in zip(taken, at, strict=True))


def _free_iterators(use: Use, domain: tuple[Bound, ...]) -> tuple[tuple[Iterator, ...], tuple[Bound, ...]]:
    """Return the iterators that *use* depends on, directly or through bounds of *domain*, and these bounds."""
    own = dict.fromkeys(x for i in use.at for x in i.iterators)
    linked: list[Bound] = []
    rest = list(domain)
    while found := [b for b in rest if own.keys() & set(b.index.iterators)]:
        linked += found
        rest = [b for b in rest if b not in found]
        own |= dict.fromkeys(x for b in found for x in b.index.iterators)
    return tuple(own), tuple(linked)


class PassWriter:
    """Writer of expressions that read *stashed* tensors, and the program's equations from their original positions.

    *inputs*: the program's, by name.  *made*: the tensors of its equations, with their positions.
    """

    def __init__(
        self,
        values: Values,
        parts: EntryGroups,
        inputs: Mapping[str, Tensor],
        stashed: Sequence[AvailableTensor],
        made: Iterable[tuple[int, AvailableTensor]],
        names: Iterable[str] = (),
    ) -> None:
        self.values = values
        self.parts = parts
        self.inputs = inputs
        self.available = AvailableTensors(values, parts, stashed, made)
        self.lifted: list[Equation] = []
        """Reductions inside other expressions, which get equations of their own; none is called like one of *names*."""
        self._used = {*names, *inputs}

    def equation(self, equation: Equation, term: Term, position: int) -> Equation:
        """Rewrite *equation*, which computes *term*, to read stashed tensors; unchanged if its reads are."""
        try:
            return self._rewrite(equation, term, position) if self.available.touches(term) else equation
        except Refused:
            return equation

    def _rewrite(self, equation: Equation, term: Term, position: int) -> Equation:
        assert isinstance(term, Use)
        self.available.root = term.value
        scope = equation.scope
        self.available.domain = scope.domain
        if (found := self.available.find_read(term, position)) is not None:
            new = replace(scope, summations=(), body=found, reduce="sum")
        elif term.value.kind == "reduction":
            new = self._write_reduction(scope, term, position)
        else:
            new = replace(scope, summations=(), body=self._write_definition(term, position), reduce="sum")
        before, after = ({t.name for t in tensors(made)} for made in (scope, new))
        return equation if before == after else replace(equation, scope=new, via=None)

    def definition(self, value: Value, own: tuple[Iterator, ...], at: tuple[Index, ...], position: int) -> Scope:
        """Return *value*[*at*] over *own* by its definition; raises Refused if a part cannot be computed."""
        self.available.root, self.available.domain = value, ()
        scope = Scope(own, (), Const(0))
        use = Use(1, value, at)
        if value.kind == "reduction":
            return self._write_reduction(scope, use, position)
        return replace(scope, body=self._write_definition(use, position))

    def write(self, term: Term, position: int) -> Scalar:
        """Return *term* as an expression."""
        if isinstance(term, Const):
            return term
        found = self.available.find_read(term, position)
        if found is not None:
            return found
        return signed_body(self._write_definition(replace(term, sign=1), position), term.sign)

    def _write_definition(self, use: Use, position: int) -> Scalar:
        """Write *use* by its definition."""
        value = use.value
        to = dict(zip(value.scope.traversals, use.at, strict=True))
        match value.kind:
            case "leaf":
                body = value.scope.body
                assert isinstance(body, Access)
                source = body.source
                read = Access(source if isinstance(source, Table) else self.inputs[_tensor_name(source)], use.at)
                return signed_body(read, use.sign)
            case "function":
                written: Scalar = self._write_function(substitute(value.scope.body, to), position)
            case "sum" | "product":
                entries = self._entries(use, position)
                if value.kind == "sum":
                    return self._write_sum(tuple((mark * use.sign, t) for mark, t in entries), position)
                written = self._write_product(entries, position)
            case "reduction":
                written = self._lift(use, position)
            case "guard":
                written = self._write_guard(use, position)
        return signed_body(written, use.sign)

    def _entries(self, use: Use, position: int) -> Entries:
        """Return the entries of *use* with the parts that are available or depend on a stashed tensor."""
        to = dict(zip(use.value.scope.traversals, use.at, strict=True))
        parts: list[EntryGroup] = []
        for part in self.parts.get(use.value.number, ()):
            here = part.use.substitute(to)
            free = not any(part.taken & other.taken for other in parts)
            if free and (self.available.touches(here) or self.available.find_read(here, position) is not None):
                parts.append(part)
        return tuple((mark, substitute_iterators(t, to)) for mark, t in grouped_entries(self.values, use.value, parts))

    def _write_sum(self, entries: Entries, position: int) -> Scalar:
        signed = [self._split_sign(t, mark, position) for mark, t in entries]
        plus, minus = ([body for sign, body in signed if sign == turn] for turn in (1, -1))
        if not plus:
            plus, minus = [Apply("neg", (minus[0],))], minus[1:]
        out = add(*plus)
        for body in minus:
            out = Apply("-", (out, body))
        return out

    def _split_sign(self, term: Term, sign: int, position: int) -> tuple[int, Scalar]:
        """Return *term* as an expression without its sign, and the sign times *sign*."""
        match self.write(term, position):
            case Apply("neg", (body,)):
                return -sign, body
            case Const(value) if value < 0:
                return -sign, Const(-value)
            case body:
                return sign, body

    def _write_product(self, entries: Entries, position: int) -> Scalar:
        signed = [(mark, *self._split_sign(t, 1, position)) for mark, t in entries]
        above, below = ([body for mark, _, body in signed if mark == way] for way in (1, -1))
        out = mul(*above)
        if below:
            out = Apply("/", (out, mul(*below)))
        return out if prod(sign for _, sign, _ in signed) > 0 else Apply("neg", (out,))

    def _write_function(self, body: Scalar, position: int) -> Scalar:
        match body:
            case Apply(op, args):
                return Apply(
                    op,
                    tuple(a if isinstance(a, Compare) else self.write(self.values.term(a), position) for a in args),
                )
        raise ValueError(f"{body!r} is no function")

    def _write_reduction(self, scope: Scope, use: Use, position: int) -> Scope:
        """Write the *use* of a reduction in the box of *scope*."""
        made = use.value.scope
        taken = {x.name for x in scope.traversals}
        sums: list[Iterator] = []
        for y, name in zip(made.summations, use.value.summed, strict=True):
            free = name if name not in taken else fresh_name(name, taken)
            taken.add(free)
            sums.append(Iterator(free, y.lo, y.hi))
        to = dict(zip(made.traversals, use.at, strict=True)) | {
            y: as_index(z) for y, z in zip(made.summations, sums, strict=True)
        }
        inner = substitute_iterators(self.values.term(made.body), to)
        if use.sign < 0:
            inner = replace(inner, sign=-inner.sign) if isinstance(inner, Use) else Const(-inner.value)
        return replace(scope, summations=tuple(sums), body=self.write(inner, position), reduce=made.reduce)

    def _lift(self, use: Use, position: int) -> Scalar:
        """Write the *use* of a reduction as a read of a new equation."""
        for place in placements(use, self.available.domain):
            with self.available.within(place.domain):
                scope = self._write_reduction(Scope(place.own, (), Const(0), domain=place.domain), place.use, position)
            if not (wrong := tuple(illegal_reads(self.available.pad_reads(scope)))):
                break
        else:
            raise Refused(wrong[0])
        name = next(n for k in range(1, len(self._used) + 2) if (n := f"sum{k}") not in self._used)
        self._used.add(name)
        self.lifted.append(Equation(name, scope))
        one = AvailableTensor(self.lifted[-1].tensor, place.use, place.own, place.domain)
        self.available.add(one)
        return Access(one.tensor, place.index)

    def _write_guard(self, use: Use, position: int) -> Scalar:
        made = use.value.scope
        own = fresh_iterators(use.value.names, tuple(map(as_index, made.traversals)))
        to = {x: lone_index(y) for x, y in zip(made.traversals, own, strict=True)}
        domain = substitute_domain(made.domain, to)
        with self.available.within(domain):
            body = self.write(substitute_iterators(self.values.term(made.body), to), position)
        pads = {
            x: (max(0, x.lo - lo), max(0, hi - x.hi))
            for x, (lo, hi) in zip(own, (index_span(i, self.available.domain) for i in use.at), strict=True)
        }
        args = dict(zip(own, use.at, strict=True))
        match body:
            case Access(Tensor(name) as tensor, index) if not domain and self.available.stashes(name):
                order = tuple(x for i in index if (x := i.single) is not None)
                plain = (
                    len(order) == len(index)
                    and set(order) == set(own)
                    and tensor.box == tuple((x.lo, x.hi) for x in order)
                )
                if plain and self.available.widen(name, tuple(pads[x] for x in order), made.value):
                    return Access(tensor, tuple(args[x] for x in order))
        ordered = tuple(own[n] for n in use.value.order)
        padding = tuple(pads[x] for x in ordered)
        inner = Scope(ordered, (), body, "sum", domain, padding if any(map(any, padding)) else (), made.value)
        return Access(inner, tuple(args[x] for x in ordered))


def signed_body(body: Scalar, sign: int) -> Scalar:
    """Return *sign* · *body* without a double negation."""
    match body:
        case _ if sign > 0:
            return body
        case Apply("neg", (inner,)):
            return inner
    return Apply("neg", (body,))


def _tensor_name(source: Tensor | Table | Scope) -> str:
    assert isinstance(source, Tensor)
    return source.name
