r"""Layouts worth trying for an intermediate: those in which its sources are stored or its readers walk.

.. math::  T[\vec x] = f(S[\tau(\vec x)]) \Rightarrow \Phi = \tau, \qquad
           g(\vec y) = h(T[\pi(\vec y)]) \Rightarrow \Phi = \pi^{-1}

Where these are no bijections (windows, sums) the order alone is taken.  Blocked layouts come from readers that divide.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from einnet_explore.algebra.bijection import bijection
from einnet_explore.algebra.substitute import fresh
from einnet_explore.ir import Access, Equation, Index, Iterator, Program, Scope, Tensor, accesses, as_index, scopes

Phi: TypeAlias = "tuple[tuple[str, Index], ...]"
"""New traversals in order: a name, and an index in the old ones."""

MOST = 4
"""Layouts of one tensor that are tried, the one that it has among them."""


def layouts(program: Program, equation: Equation) -> tuple[Phi, ...]:
    """The layouts of the result of *equation*, the one that it has first; only that one for an output."""
    xs = equation.scope.traversals
    found = {tuple(map(as_index, xs)): _phi(xs, tuple(map(as_index, xs)))}
    if equation.name not in program.outputs:
        for forward in (*_as_sources(equation.scope), *_as_readers(program, equation)):
            whole = (*forward, *(as_index(x) for x in xs if not any(x in i.iterators for i in forward)))
            if whole not in found and _box(xs, whole):
                found[whole] = _phi(xs, whole)
    return tuple(found.values())[:MOST]


def _as_sources(scope: Scope) -> Iterable[tuple[Index, ...]]:
    for access in accesses(scope.body):
        if isinstance(access.source, Tensor):
            mine = [i for i in access.index if any(x in scope.traversals for x in i.iterators)]
            if not any(x in scope.summations for i in mine for x in i.iterators):
                yield tuple(i - i.const for i in mine)
            yield _order(scope.traversals, mine)


def _as_readers(program: Program, equation: Equation) -> Iterable[tuple[Index, ...]]:
    xs = equation.scope.traversals
    for reader in program.equations:
        for _, scope in scopes(reader.scope):
            for access in accesses(scope.body):
                if isinstance(access.source, Tensor) and access.source.name == equation.name:
                    walked = (*scope.traversals, *scope.summations)
                    if (inverse := _inverse(xs, walked, access)) is not None:
                        yield inverse
                    yield _walk(xs, walked, access)


def _inverse(xs: tuple[Iterator, ...], walked: tuple[Iterator, ...], access: Access) -> tuple[Index, ...] | None:
    """The reader's iterators, in its order, by the tensor's dimensions; None unless each is read once."""
    moving = [(x, i) for x, i in zip(xs, access.index, strict=True) if i.iterators]
    own = tuple(y for y in walked if any(y in i.iterators for _, i in moving))
    if not own:
        return None
    try:
        phi = bijection(own, tuple(x.name for x, _ in moving), tuple(i for _, i in moving))
    except ValueError:
        return None
    if phi.image or any((z.lo, z.hi) != (x.lo, x.hi) for z, (x, _) in zip(phi.target, moving, strict=True)):
        return None
    return phi.backward


def _walk(xs: tuple[Iterator, ...], walked: tuple[Iterator, ...], access: Access) -> tuple[Index, ...]:
    """The dimensions in the order in which the reader's iterators first move them."""
    place = {y: n for n, y in enumerate(walked)}
    first = [min((place[y] for y in i.iterators), default=len(place)) for i in access.index]
    return tuple(as_index(xs[d]) for d in sorted(range(len(xs)), key=first.__getitem__))


def _order(xs: tuple[Iterator, ...], indices: Iterable[Index]) -> tuple[Index, ...]:
    """The traversals in the order in which *indices* name them."""
    return tuple(as_index(x) for x in dict.fromkeys(x for i in indices for x in i.iterators) if x in xs)


def _box(xs: tuple[Iterator, ...], forward: tuple[Index, ...]) -> bool:
    try:
        phi = bijection(xs, tuple(f"z{n}" for n in range(len(forward))), forward)
    except ValueError:
        return False
    return not phi.image


def _phi(xs: tuple[Iterator, ...], forward: tuple[Index, ...]) -> Phi:
    names: list[str] = []
    for index in forward:
        single = index.single
        used = (*names, *(x.name for x in xs))
        names.append(single.name if single is not None and single.name not in names else fresh("z", used))
    return tuple(zip(names, forward, strict=True))
