"""Tensors that hold values: which index reads an element of a value from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.algebra.regions import always
from einnet_explore.algebra.substitute import substitute_domain
from einnet_explore.ir import Access, Apply, Bound, Index, Iterator, Scalar, Tensor, as_index
from einnet_explore.stash.reading import Pass
from einnet_explore.stash.uses import Use, Value, constant


@dataclass(frozen=True)
class Held:
    """*tensor*[*own*] is *use*, where *domain* holds; where *padded*, also outside the tensor's box."""

    tensor: Tensor
    use: Use
    own: tuple[Iterator, ...]
    domain: tuple[Bound, ...] = ()
    padded: bool = False

    def index(self, use: Use, where: tuple[Bound, ...] = ()) -> tuple[Index, ...] | None:
        """Where *tensor* holds what *use* reads in the domain *where*, its sign aside; None where it does not."""
        to = self.layout(use)
        if to is None:
            return None
        box = self.tensor.reach if self.padded else self.tensor.box
        inside = (Bound(i, lo, hi) for i, (lo, hi) in zip(to.values(), box, strict=True))
        kept = () if self.padded else substitute_domain(self.domain, to)
        if not all(always(b, where) for b in (*inside, *kept)):
            return None
        return tuple(to.values())

    def layout(self, use: Use) -> dict[Iterator, Index] | None:
        """As ``index``, by traversal, wherever that lies."""
        found = {x: i for one, wanted in zip(self.use.at, use.at, strict=True) for x, i in _solved(one, wanted)}
        to = {x: found.get(x, as_index(x.lo)) for x in self.own}
        if any(x not in found and x.extent > 1 for x in self.own) or self.use.moved(to).at != use.at:
            return None
        return to

    def read(self, use: Use, where: tuple[Bound, ...] = ()) -> Scalar | None:
        """*use*, in the domain *where*, as a read of *tensor*; None where that does not hold it."""
        index = self.index(use, where)
        if index is None:
            return None
        access = Access(self.tensor, index)
        return access if use.sign == self.use.sign else Apply("neg", (access,))


def held(read: Pass) -> Iterable[tuple[str, Held]]:
    """What the equations and the given inputs of *read* hold, with their names."""
    for equation in read.program.equations:
        scope = equation.scope
        term = read.terms[equation.name]
        if isinstance(term, Use):
            yield equation.name, Held(equation.tensor, term, scope.traversals, scope.domain)
        if equation.name in read.guarded:
            guarded = read.guarded[equation.name]
            yield equation.name, Held(equation.tensor, guarded, scope.traversals, (), True)


def given(read: Pass, before: Pass) -> Iterable[tuple[str, Held]]:
    """What the inputs of *read* hold that are results of *before*."""
    made = {e.name: e for e in before.program.equations}
    for tensor in read.program.inputs:
        if tensor.name in read.given:
            scope = made[tensor.name].scope
            term = read.terms[tensor.name]
            if isinstance(term, Use):
                yield tensor.name, Held(tensor, term, scope.traversals, scope.domain)
            if tensor.name in read.guarded:
                guarded = read.guarded[tensor.name]
                yield tensor.name, Held(tensor, guarded, scope.traversals, (), True)


def holds(one: Held, value: Value, box: Iterable[tuple[int, int]]) -> bool:
    """Whether *one* holds *value* all over *box*."""
    own = tuple(Iterator(f"x{n}", lo, hi) for n, (lo, hi) in enumerate(box))
    at = tuple(map(constant, own))
    return one.use.value is value and one.index(Use(1, value, at)) is not None


def _solved(one: Index, wanted: Index) -> Iterable[tuple[Iterator, Index]]:
    """The iterator that *one* is, up to sign and offset, and what it has to be for *one* to be *wanted*."""
    match one.terms:
        case ((Iterator() as x, (1 | -1) as k),):
            yield x, (wanted - one.const) * k
