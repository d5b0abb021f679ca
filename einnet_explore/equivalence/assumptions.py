r"""Assumptions of a comparison: axioms, and the results that may be infinite.

Inputs and the results of exponentials, logarithms, roots and reciprocals are assumed finite; a maximum over values
masked with :math:`-\infty` may be infinite.  Possibly infinite values are tracked by name, :math:`T_\infty`: they never
cancel, not even in part (:math:`5T - 4T`), never vanish in a product with 0, are not distributed over a sum
(:math:`T(a + b)` is :math:`\infty`, :math:`T a + T b` is NaN), and no exponential of them cancels.

The standalone checker ``einnet_check`` has the same theory, and its proofs must agree with these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import inf, isfinite, nextafter

from einnet_explore.interpreter.numbers import Number, simplest_fraction
from einnet_explore.ir import Access, Apply, Const, Equation, Scalar, Scope, Table, Tensor, accesses
from einnet_explore.ir.scalar_functions import ASSUMED_FINITE

EXPONENTIAL_AXIOM = "with the axiom exp(a + b) = exp(a) exp(b)"
"""The text of a proof that uses the exponential's functional equation."""

ROUNDING = "with constants rounded to 12 digits"
"""The text of a proof up to rounding: it equates constants that differ by floating-point constant folding."""

ROUNDED_OPERANDS = "with operands of products rounded to bfloat16"
"""The text of a step that is no equality: it rounds operands, which numerics of the level ``bf16`` allow."""

AXIOMS = (EXPONENTIAL_AXIOM, ROUNDING)


class Rounding:
    """Round constants, and record the largest relative *change*; equal to itself only."""

    __slots__ = ("change",)

    def __init__(self) -> None:
        self.change = 0.0

    def number(self, k: Number) -> Number:
        """Return the simple fraction next to *k*, or *k* in twelve digits."""
        near = simplest_fraction(k)
        if near != k:
            self.change = max(self.change, nextafter(float(abs(Fraction(near) / Fraction(k) - 1)), inf))
        return near


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The names of possibly infinite tensors, the axiom that may be used, and how constants are rounded, if at all.

    *may_round*: ``axioms`` also rounds constants.  *factored*: sums inside functions are compared without the factors
    that all their terms have.
    """

    infinite: frozenset[str] = frozenset()
    exponential: bool = False
    rounding: Rounding | None = None
    may_round: bool = True
    factored: bool = False

    @property
    def named(self) -> str:
        """The text of what a proof needs."""
        used = (self.exponential, self.rounding is not None)
        return ", ".join(axiom for axiom, is_used in zip(AXIOMS, used, strict=True) if is_used)

    def number(self, k: Number) -> Number:
        """Return the constant *k*, rounded if constants are."""
        return k if self.rounding is None else self.rounding.number(k)

    def endless(self, scope: Scope) -> bool:
        """Whether values of *scope* may be infinite."""
        constant, names = _infinite_sources(scope)
        return constant or not self.infinite.isdisjoint(names)

    def unsure(self, scalar: Scalar) -> bool:
        """Whether *scalar* may be infinite."""
        constant, names = _scalar_sources(scalar)
        return constant or not self.infinite.isdisjoint(names)

    def axioms(self, before: Iterable[Scope], after: Iterable[Scope]) -> Iterable[Assumptions]:
        """Yield these assumptions that may help to compare *before* with *after*, with fewest axioms first."""
        inside = [[_axiom_needs(scope) for scope in side] for side in (before, after)]
        exponential = any(e for side in inside for e, _ in side)
        folded = self.may_round and any(f for side in inside for _, f in side)
        factored = replace(self, factored=True) if any(_sums_in_functions(s.body) for s in (*before, *after)) else self
        if factored is not self:
            yield factored
        for given in dict.fromkeys((self, factored)):
            if exponential:
                yield replace(given, exponential=True)
            if folded:
                yield replace(given, rounding=Rounding())
            if exponential and folded:
                yield replace(given, exponential=True, rounding=Rounding())


NO_ASSUMPTIONS = Assumptions()
"""No tensor may be infinite, and there is no axiom."""


def infinite_results(programs: Iterable[Iterable[Equation]]) -> Assumptions:
    """Return assumptions with every equation that may be infinite in one of *programs*."""
    given = NO_ASSUMPTIONS
    for equations in programs:
        for equation in equations:
            if given.endless(equation.scope):
                given = replace(given, infinite=given.infinite | {equation.name})
    return given


def assume_infinite_tensors(scope: Scope) -> Assumptions:
    """Assume that all tensors that *scope* itself reads may be infinite, since their origin is unknown."""
    return Assumptions(frozenset(a.source.name for a in accesses(scope.body) if isinstance(a.source, Tensor)))


def join_axioms(axioms: Iterable[str]) -> str:
    """Join the axioms named in *axioms*, and rounded operands, into one text, each of them once."""
    said = list(axioms)
    return ", ".join(axiom for axiom in (*AXIOMS, ROUNDED_OPERANDS) if any(axiom in one for one in said))


_InfiniteSources = tuple[bool, frozenset[str]]
_NO_SOURCES: _InfiniteSources = (False, frozenset())


@lru_cache(1 << 14)
def _infinite_sources(scope: Scope) -> _InfiniteSources:
    """Return whether an infinite constant may be a value of *scope*, and the tensors whose elements may be."""
    outside = not isfinite(scope.value) and bool(scope.domain or scope.padding)
    return _union(((outside, frozenset()), _scalar_sources(scope.body)))


def _scalar_sources(body: Scalar) -> _InfiniteSources:
    match body:
        case Const(value):
            return not isfinite(value), frozenset()
        case Access(Tensor(name) as source):
            return not isfinite(source.value) and bool(source.padding), frozenset([name])
        case Access(Scope() as source):
            return _infinite_sources(source)
        case Apply("/", (a, Const(0))):
            return _union(((True, frozenset()), _scalar_sources(a)))
        case Apply("/", (a, _)):
            return _scalar_sources(a)
        case Apply(op, args) if op not in ASSUMED_FINITE:
            return _union(map(_scalar_sources, args))
    return _NO_SOURCES


def _union(parts: Iterable[_InfiniteSources]) -> _InfiniteSources:
    every = list(parts)
    return any(constant for constant, _ in every), frozenset[str]().union(*(names for _, names in every))


@lru_cache(1 << 14)
def _axiom_needs(scope: Scope) -> tuple[bool, bool]:
    """Return whether *scope* contains an exponential, and whether rounding changes one of its constants."""
    return _scalar_needs(scope.body)


@lru_cache(1 << 12)
def _sums_in_functions(body: Scalar, inside: bool = False) -> bool:
    """Whether *body* contains a scope with summations in a function that is no sum, product or quotient."""
    match body:
        case Access(Scope() as source):
            return (inside and bool(source.summations)) or _sums_in_functions(source.body, inside)
        case Apply(op, args):
            return any(_sums_in_functions(arg, inside or op not in ("+", "-", "*", "/", "neg")) for arg in args)
    return False


def _scalar_needs(body: Scalar) -> tuple[bool, bool]:
    match body:
        case Const(value):
            return False, isfinite(value) and simplest_fraction(value) != value
        case Access(Scope() as source):
            return _axiom_needs(source)
        case Access(Table() as source):
            return False, any(simplest_fraction(entry) != entry for entry in source.entries)
        case Apply(op, args):
            parts = list(map(_scalar_needs, args))
            return op == "exp" or any(e for e, _ in parts), any(f for _, f in parts)
    return False, False
