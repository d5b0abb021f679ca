"""Values and their uses: a function of parameters, read at indices, with a sign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from einnet_explore.algebra.regions import reach
from einnet_explore.algebra.substitute import at
from einnet_explore.ir import Access, Apply, Bound, Const, Index, Iterator, Scalar, Scope, Tensor, as_index

Kind: TypeAlias = Literal["leaf", "function", "sum", "product", "reduction", "guard"]
Term: TypeAlias = "Const | Use"
Entries: TypeAlias = "tuple[tuple[int, Term], ...]"
"""The terms of a sum with their signs, or the factors of a product, where -1 means divided by."""

Called: TypeAlias = "Mapping[Iterator, str]"
"""What iterators are called, in the order in which they are written."""
GROUPS = ("sum", "product")
"""The kinds of flat values."""


@dataclass(frozen=True, eq=False)
class Value:
    """One function.  *scope* defines it: its traversals are the parameters, it reads the values called ``#number``.

    *names* are what the parameters were called where it was found first (*summed*: its summations), and *order* is the
    order in which they were written there.
    """

    number: int
    kind: Kind
    scope: Scope
    names: tuple[str, ...]
    order: tuple[int, ...]
    summed: tuple[str, ...] = ()

    @property
    def tensor(self) -> Tensor:
        """What the definitions of other values read."""
        return Tensor(f"#{self.number}", (1,) * len(self.scope.traversals))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.number}>"


@dataclass(frozen=True)
class Use:
    """*sign* · *value*[*at*]."""

    sign: int
    value: Value
    at: tuple[Index, ...]

    def moved(self, to: dict[Iterator, Index]) -> Use:
        """The use with iterators replaced."""
        return replace(self, at=tuple(at(i, to) for i in self.at))


def constant(x: Iterator) -> Index:
    """*x* as an index: its value if it has only one."""
    return as_index(x.lo if x.extent == 1 else x)


def span(index: Index, domain: tuple[Bound, ...] = ()) -> tuple[int, int]:
    """The half-open range of what *index* is where *domain* holds.

    It is exact: digits of one iterator go together, and what is computed beyond that reads beyond its sources.
    """
    lo, hi = reach(index, domain)
    return (lo, hi + 1) if lo <= hi else (index.bounds[0], index.bounds[1] + 1)  # a domain that holds nowhere


def called(value: Value) -> Called:
    """What the parameters of *value* are called."""
    return {value.scope.traversals[n]: value.names[n] for n in value.order}


def moved(term: Term, to: dict[Iterator, Index]) -> Term:
    """*term* with iterators replaced."""
    return term.moved(to) if isinstance(term, Use) else term


def scalar(term: Term) -> Scalar:
    """*term* as the body of a definition reads it."""
    if isinstance(term, Const):
        return term
    read = Access(term.value.tensor, term.at)
    return read if term.sign > 0 else Apply("neg", (read,))
