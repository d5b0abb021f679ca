r"""Traversals cut where reads begin and end, and into the phases of their divisions.

.. math::  x + c = P u + q, \qquad 0 \le q < P
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

from einnet_explore.algebra.flatten import flat_address
from einnet_explore.algebra.indices import read_indices
from einnet_explore.algebra.substitute import substitute
from einnet_explore.ir import (
    Access,
    Apply,
    Compare,
    Const,
    Index,
    Iterator,
    Scalar,
    Scope,
    accesses,
    add,
    as_index,
)
from einnet_explore.kernels.source import KernelError

PHASES = 8
"""More phases than this are not written out."""

LANES = 16
"""Elements of the longest vector."""


@dataclass(frozen=True)
class Cut:
    """A traversal as `x = period·u + q - shift`: *ranges* of `u` (the last one exclusive) between two cuts."""

    x: Iterator
    period: int
    shift: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def first(self) -> int:
        """The least `u`."""
        return self.ranges[0][0]

    @property
    def extent(self) -> int:
        """How many `u` there are."""
        return self.ranges[-1][1] - self.ranges[0][0]

    def phases(self, at: tuple[int, int]) -> Iterable[tuple[Iterator, Index]]:
        """(u between two cuts, the value of the traversal) for every phase that lies in its range there."""
        u = Iterator(f"{self.x.name}'", *at)
        for q in range(self.period):
            value = as_index(u) * self.period + (q - self.shift)
            if self.x.lo <= value.bounds[0] and value.bounds[1] < self.x.hi:
                yield u, value


def ordered(scope: Scope) -> tuple[tuple[Iterator, ...], tuple[Iterator, ...]]:
    """The traversals with loops, outermost first, and those whose few values are written out inside of all.

    Where neighbours of the result lie apart in what is read (every second one), and a traversal of as many values as
    they are apart fills what lies between, that one goes inside: each line of memory is then read once.
    """
    reads = [flat for a in accesses(scope.body) if (flat := flat_address(a)).terms]
    *outer, last = scope.traversals
    apart = {abs(flat.coefficient(last)) for flat in reads}
    if len(reads) != 1 or len(apart) != 1 or not 1 < (k := apart.pop()) <= PHASES or last.extent < LANES:
        return scope.traversals, ()
    between = tuple(x for x in outer if x.extent == k and reads[0].coefficient(x) == 1)
    if not between:
        return scope.traversals, ()
    rest = sorted((x for x in outer if x not in between), key=lambda x: -abs(reads[0].coefficient(x)))
    return (*rest, last), between


def cut(x: Iterator, body: Scalar) -> Cut:
    found = {
        (atom.divisor, atom.numerator)
        for i in read_indices(body)
        for atom in i.divisions
        if x in atom.numerator.iterators
    }
    shift = 0
    for divisor, numerator in sorted(found, key=repr):
        rest = numerator - x
        if rest.terms or divisor > PHASES:
            raise KernelError(f"{numerator} is divided by {divisor}: expected one traversal, and at most {PHASES}")
        shift = rest.const
    period = lcm(*(divisor for divisor, _ in found))
    if period > PHASES:
        raise KernelError(f"{x.name} has {period} phases, expected at most {PHASES}")
    whole = Iterator(f"{x.name}'", (x.lo + shift) // period, (x.hi - 1 + shift) // period + 1)
    at = {whole.lo, whole.hi}
    for q in range(period):
        value = as_index(whole) * period + (q - shift)
        placed = substitute(body, {x: value})
        tests = [Compare(">=", value, as_index(x.lo)), Compare("<", value, as_index(x.hi)), *comparisons(placed)]
        at.update(turn for t in tests if (turn := _turn(t, whole)) is not None)
    return Cut(x, period, shift, tuple(pairwise(sorted(at))))


def comparisons(body: Scalar) -> Iterable[Compare]:
    """The conditions in *body*."""
    match body:
        case Compare():
            yield body
        case Apply(_, args):
            for a in args:
                yield from comparisons(a)
        case Access() | Const():
            pass


def _turn(test: Compare, u: Iterator) -> int | None:
    """Where *test* changes, as `u` grows, if it depends on nothing else."""
    rest = test.left - test.right
    k = rest.coefficient(u)
    if k == 0 or rest != as_index(u) * k + rest.const:
        return None
    # k·u + c ⋛ 0 changes at -c/k, for < and >= of a growing side there, else one further.
    turn = -(rest.const // k) if (test.op in (">=", "<")) == (k > 0) else -rest.const // k + 1
    return turn if u.lo < turn < u.hi else None


def decided(body: Scalar) -> Scalar:
    """*body* without the conditions that always hold, or never do, over the ranges of its iterators."""
    match body:
        case Apply("where", (Compare() as test, yes, no)):
            known = _known(test)
            return Apply("where", (test, decided(yes), decided(no))) if known is None else decided(yes if known else no)
        case Apply("+", args):
            return add(*map(decided, args))
        case Apply(op, args):
            return Apply(op, tuple(map(decided, args)))
        case Access() | Const() | Compare():
            return body


def _known(test: Compare) -> bool | None:
    least, most = (test.left - test.right).bounds
    match test.op:
        case ">=":
            return True if least >= 0 else False if most < 0 else None
        case ">":
            return True if least > 0 else False if most <= 0 else None
        case "<":
            return True if most < 0 else False if least >= 0 else None
        case "<=":
            return True if most <= 0 else False if least > 0 else None
        case "==":
            return True if least == most == 0 else False if least > 0 or most < 0 else None
    return None
