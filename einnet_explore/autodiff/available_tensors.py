"""Available tensors: values stored in stashed tensors, inputs and earlier equations, and the indices to read them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from einnet_explore.analysis.equations import union_padding
from einnet_explore.analysis.indices import substitute_domain
from einnet_explore.analysis.regions import always_holds
from einnet_explore.autodiff.common_parts import EntryGroups
from einnet_explore.autodiff.program_values import ProgramValues
from einnet_explore.autodiff.values import Term, Use, Value, Values, lone_index
from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Index,
    Iterator,
    Padding,
    Scalar,
    Scope,
    Tensor,
    as_index,
    map_tensors,
)


@dataclass(frozen=True)
class AvailableTensor:
    """A stored value: *tensor*[*own*] equals *use* inside *domain*; if *padded*, also outside the tensor's box."""

    tensor: Tensor
    use: Use
    own: tuple[Iterator, ...]
    domain: tuple[Bound, ...] = ()
    padded: bool = False

    def index(self, use: Use, where: tuple[Bound, ...] = ()) -> tuple[Index, ...] | None:
        """Return the index of *tensor* that holds *use* in the domain *where*, up to sign; None if there is none."""
        to = self.layout(use)
        if to is None:
            return None
        box = self.tensor.reach if self.padded else self.tensor.box
        inside = (Bound(i, lo, hi) for i, (lo, hi) in zip(to.values(), box, strict=True))
        kept = () if self.padded else substitute_domain(self.domain, to)
        if not all(always_holds(b, where) for b in (*inside, *kept)):
            return None
        return tuple(to.values())

    def layout(self, use: Use) -> dict[Iterator, Index] | None:
        """Return the index by traversal, also outside the box."""
        found = {
            x: i for one, wanted in zip(self.use.at, use.at, strict=True) for x, i in _solve_for_iterator(one, wanted)
        }
        to = {x: found.get(x, as_index(x.lo)) for x in self.own}
        if any(x not in found and x.extent > 1 for x in self.own) or self.use.substitute(to).at != use.at:
            return None
        return to

    def read_of(self, use: Use, where: tuple[Bound, ...] = ()) -> Scalar | None:
        """Return *use*, in the domain *where*, as a read of *tensor*; None if the tensor does not hold it."""
        index = self.index(use, where)
        if index is None:
            return None
        access = Access(self.tensor, index)
        return access if use.sign == self.use.sign else Apply("neg", (access,))


def available_in(read: ProgramValues) -> Iterable[tuple[str, AvailableTensor]]:
    """Yield the values stored by the equations and the shared inputs of *read*, with their names."""
    for equation in read.program.equations:
        scope = equation.scope
        term = read.terms[equation.name]
        if isinstance(term, Use):
            yield equation.name, AvailableTensor(equation.tensor, term, scope.traversals, scope.domain)
        if equation.name in read.guarded:
            guarded = read.guarded[equation.name]
            yield equation.name, AvailableTensor(equation.tensor, guarded, scope.traversals, (), True)


def shared_inputs(read: ProgramValues, before: ProgramValues) -> Iterable[tuple[str, AvailableTensor]]:
    """Yield the inputs of *read* that are results of *before*."""
    made = {e.name: e for e in before.program.equations}
    for tensor in read.program.inputs:
        if tensor.name in read.given:
            scope = made[tensor.name].scope
            term = read.terms[tensor.name]
            if isinstance(term, Use):
                yield tensor.name, AvailableTensor(tensor, term, scope.traversals, scope.domain)
            if tensor.name in read.guarded:
                guarded = read.guarded[tensor.name]
                yield tensor.name, AvailableTensor(tensor, guarded, scope.traversals, (), True)


def is_available(one: AvailableTensor, value: Value, box: Iterable[tuple[int, int]]) -> bool:
    """Whether *one* holds *value* everywhere in *box*."""
    own = tuple(Iterator(f"x{n}", lo, hi) for n, (lo, hi) in enumerate(box))
    at = tuple(map(lone_index, own))
    return one.use.value is value and one.index(Use(1, value, at)) is not None


def _solve_for_iterator(one: Index, wanted: Index) -> Iterable[tuple[Iterator, Index]]:
    """Yield the iterator of *one*, up to sign and offset, and its value for *one* to equal *wanted*."""
    match one.terms:
        case ((Iterator() as x, (1 | -1) as k),):
            yield x, (wanted - one.const) * k


BEFORE_ALL = -1
"""The position of tensors that every equation may read."""


class AvailableTensors:
    """Available tensors: *stashed* ones, and those *made* by equations, with positions; *parts* of sums and
    products."""

    def __init__(
        self,
        values: Values,
        parts: EntryGroups,
        stashed: Sequence[AvailableTensor],
        made: Iterable[tuple[int, AvailableTensor]],
    ) -> None:
        self.values = values
        self.parts = parts
        self.pads: dict[str, tuple[Padding, float]] = {}
        """The padding of stashed tensors that is read, and its value."""
        self.root: Value | None = None
        """The value of the equation that is being written; its parts may be read from any other equation."""
        self.domain: tuple[Bound, ...] = ()
        """The domain of the scope that is being written, outside of which nothing is read."""
        self._stashed: dict[int, list[AvailableTensor]] = {}
        for one in stashed:
            self._stashed.setdefault(one.use.value.number, []).append(one)
        self._names = {one.tensor.name for one in stashed}
        self._touches: dict[int, bool] = {}
        self._made: dict[int, list[tuple[int, AvailableTensor]]] = {}
        for position, one in made:
            self._made.setdefault(one.use.value.number, []).append((position, one))

    @contextmanager
    def within(self, domain: tuple[Bound, ...]) -> Generator[None, None, None]:
        """Context in which expressions are written for *domain*."""
        outer, self.domain = self.domain, domain
        try:
            yield
        finally:
            self.domain = outer

    def add(self, one: AvailableTensor) -> None:
        """Make *one* available to all later equations."""
        self._made.setdefault(one.use.value.number, []).append((BEFORE_ALL, one))

    def stashes(self, name: str) -> bool:
        """Whether the tensor *name* is stashed."""
        return name in self._names

    def touches(self, term: Term) -> bool:
        """Whether *term* depends on a value of a stashed tensor."""
        if not isinstance(term, Use):
            return False
        number = term.value.number
        if number not in self._touches:
            split = (part.use for part in self.parts.get(number, ()))
            reads = (*self.values.reads(term.value), *split)
            self._touches[number] = number in self._stashed or any(map(self.touches, reads))
        return self._touches[number]

    def stored_indices(self, use: Use) -> Iterable[tuple[Index, ...]]:
        """Return the indices of reads of *use* from available tensors."""
        if use.value.kind == "leaf":
            yield use.at
        for _, one in self._made.get(use.value.number, ()):
            if (found := one.layout(use)) is not None:
                yield tuple(found.values())

    def find_read(self, use: Use, position: int) -> Scalar | None:
        """Read *use* from an available tensor."""
        number = use.value.number
        for one in self._stashed.get(number, ()):
            if (found := one.read_of(use, self.domain)) is not None:
                return found
        if use.value.kind == "guard" and any(r.value.number in self._stashed for r in self.values.reads(use.value)):
            return None
        for at, one in self._made.get(number, ()):
            if at < position or use.value is not self.root:
                found = one.read_of(use, self.domain)
                if found is not None:
                    return found
        return None

    def widen(self, name: str, padding: Padding, value: float) -> bool:
        """Extend the padding of *name* to *padding* with *value*; False if it has another value."""
        known, there = self.pads.get(name, ((), value))
        if there != value:
            return False
        self.pads[name] = union_padding(known, padding), value
        return True

    def pad_reads(self, scope: Scope) -> Scope:
        """Use the largest padding of each stashed tensor at all its reads in *scope*."""

        def wide(tensor: Tensor) -> Tensor:
            if tensor.name not in self._names or tensor.name not in self.pads:
                return tensor
            padding, value = self.pads[tensor.name]
            return replace(tensor, padding=padding, value=value)

        return map_tensors(scope, wide)
