r"""Expression splitting (Table 1; §4.2): one expression becomes independent ones, the inverse of merging.

.. math::
   \mathop{L}_{x}^{X} f \;\Longrightarrow\; \mathop{L}_{x}^{X_1} f \;\sim\; \mathop{L}_{x}^{X_2} f
   \quad (X \subseteq X_1 \cup X_2), \qquad
   \sum_{y}^{Y} f \;\Longrightarrow\; \sum_{y}^{Y_1} f \;\sim\; \sum_{y}^{Y_2} f, \qquad
   \sum_y (f + g) \;\Longrightarrow\; \sum_y f \;\sim\; \sum_y g

A new equation combines the parts.  Along a traversal, each part covers its range and is read as 0 elsewhere.  Along a
summation, the monoid combines the parts; terms of a sum are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from einnet_explore.analysis.equations import exchange_equations, fresh_names, is_generated, whole_equation
from einnet_explore.analysis.indices import join_names, with_iterators
from einnet_explore.ir import (
    Access,
    Equation,
    Iterator,
    Path,
    Program,
    Quotient,
    Remainder,
    Scope,
    Tensor,
    accesses,
    add,
    combined,
    padded,
    terms,
)
from einnet_explore.rules.base import Rule, explain_equation, refusing
from einnet_explore.support.errors import Refused

PARTS = 8
"""Parts of one proposal, at most."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the range of *iterator*; the values *cuts* begin all parts but the first."""

    iterator: Iterator
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """Make an expression of the terms with the numbers *terms*."""

    terms: tuple[int, ...]


Splitting: TypeAlias = Cut | Terms


def propose(program: Program, at: Path) -> Iterable[Splitting]:
    """Propose cuts suggested by digits, concatenated operands and readers of slices; and each term of a sum."""
    if len(at) != 1 or is_generated(equation := program.equations[at[0]]):
        return
    scope = equation.scope
    if len(found := terms(scope.body)) > 1 and scope.reduce == "sum":
        yield from (Terms((n,)) for n in range(len(found) if len(found) > 2 else 1))
    seen: set[Cut] = set()
    for x, places in (
        *_digit_cuts(scope),
        *_concatenation_cuts(program, scope),
        *_slice_cuts(program, equation),
        *_group_cuts(scope),
    ):
        cut = Cut(x, tuple(sorted({p for p in places if x.lo < p < x.hi})))
        if 0 < len(cut.cuts) < PARTS and cut not in seen:
            seen.add(cut)
            yield cut


def _digit_cuts(scope: Scope) -> Iterable[tuple[Iterator, Iterable[int]]]:
    """Yield iterators that an index divides, cut so that each part has one quotient."""
    for access in accesses(scope.body):
        for i in access.index:
            for atom, _ in i.terms:
                match atom:
                    case Quotient(numerator, d) | Remainder(numerator, d):
                        for x in numerator.iterators:
                            if numerator == x + numerator.const:
                                yield x, (p for p in range(x.lo + 1, x.hi) if (p + numerator.const) % d == 0)
                    case _:
                        pass


def _concatenation_cuts(program: Program, scope: Scope) -> Iterable[tuple[Iterator, Iterable[int]]]:
    """Yield iterators along which an operand is concatenated of parts."""
    made = {e.name: e.scope for e in program.equations}
    for access in accesses(scope.body):
        if isinstance(access.source, Tensor) and (whole := made.get(access.source.name)) is not None:
            for d, i in enumerate(access.index):
                if len(i.iterators) == 1 and i == (x := i.iterators[0]) + i.const:
                    yield x, [p - i.const for p in _starts(whole, d)]


def _starts(whole: Scope, d: int) -> Iterable[int]:
    """Return where the terms of *whole* begin and end along its traversal *d*."""
    z = whole.traversals[d]
    for part in terms(whole.body):
        if isinstance(part, Access):
            for i, (lo, hi) in zip(part.index, part.source.box, strict=True):
                if i == z + i.const:
                    yield from (lo - i.const, hi - i.const)


def _slice_cuts(program: Program, equation: Equation) -> Iterable[tuple[Iterator, Iterable[int]]]:
    """Yield traversals of which other equations read only parts."""
    places: dict[Iterator, list[int]] = {}
    for reader in program.equations:
        for access in accesses(reader.scope.body):
            if access.source == equation.tensor:
                for x, i in zip(equation.scope.traversals, access.index, strict=True):
                    lo, hi = i.bounds
                    places.setdefault(x, []).extend((lo, hi + 1))
    return places.items()


def _group_cuts(scope: Scope) -> Iterable[tuple[Iterator, Iterable[int]]]:
    """Yield traversals that index every operand, such as groups: each value becomes an expression."""
    read = [{x for i in access.index for x in i.iterators} for access in accesses(scope.body)]
    for x in scope.traversals:
        if len(read) > 1 and all(x in inside for inside in read):
            yield x, range(x.lo + 1, x.hi)


def rewrite(program: Program, at: Path, params: Splitting) -> Program:
    """Apply the law; refuses a cut outside the range, and terms of a scope that is no sum."""
    with refusing():
        equation = whole_equation(program, at)
    if is_generated(equation) and equation.via is not None:
        raise Refused(f"{equation.name} is run as {equation.via.operator}: there is nothing to split")
    scope = equation.scope
    match params:
        case Cut(x, places):
            parts = _cut(scope, x, places)
        case Terms(first):
            parts = _apart(scope, first)
    names = fresh_names(program, *("P" for _ in parts))
    made = [Equation(name, part) for name, part in zip(names, parts, strict=True)]
    monoid = scope.reduce if isinstance(params, Cut) and params.iterator in scope.summations else "sum"
    body = combined(monoid, [e.tensor[scope.traversals] for e in made])
    whole = Equation(equation.name, replace(scope, summations=(), reduce="sum", body=body))
    return exchange_equations(program, {equation.name: whole}, made)


def _cut(scope: Scope, x: Iterator, places: tuple[int, ...]) -> list[Scope]:
    if x not in (*scope.traversals, *scope.summations):
        raise Refused(f"{x.name} ∈ [{x.lo}, {x.hi}) is no iterator of this scope")
    edges = (x.lo, *places, x.hi)
    if not places or any(a >= b for a, b in pairwise(edges)):
        raise Refused(f"cuts at {', '.join(map(str, places)) or 'nothing'} do not divide {x.name} ∈ [{x.lo}, {x.hi})")
    parts = []
    for lo, hi in pairwise(edges):
        part = with_iterators(scope, {x: Iterator(x.name, lo, hi)})
        around = tuple((lo - x.lo, x.hi - hi) if t == x else (0, 0) for t in scope.traversals)
        padding = padded(replace(part, padding=(), value=0), around)
        assert isinstance(padding, Scope)
        parts.append(padding)
    return parts


def _apart(scope: Scope, first: tuple[int, ...]) -> list[Scope]:
    found = terms(scope.body)
    if scope.reduce != "sum":
        raise Refused(f"a sum's terms are independent, the scope reduces by {scope.reduce}")
    if stray := [n for n in first if not 0 <= n < len(found)]:
        raise Refused(f"term {stray[0]}: the body has {len(found)} terms")
    rest = tuple(n for n in range(len(found)) if n not in first)
    if not first or not rest or len(set(first)) < len(first):
        raise Refused(f"both groups need terms: {list(first)} and {list(rest)} of {len(found)}")
    return [replace(scope, body=add(*(found[n] for n in group)), padding=(), value=0) for group in (first, rest)]


def explain(_: Program, equation: Equation, __: Path) -> str:
    """Return why nothing suggests a split of *equation*."""
    if is_generated(equation) and equation.via is not None:
        return f"{equation.name} is run as {equation.via.operator}: there is nothing to split"
    every = join_names((*equation.scope.traversals, *equation.scope.summations))
    return f"no index divides one of {every}, no operand is a concatenation, no reader reads only a part"


EXPRESSION_SPLITTING = Rule(
    name="expression_splitting",
    law=r"\mathop{L}_{x}^{X} f \Longrightarrow \mathop{L}_{x}^{X_1} f \sim \mathop{L}_{x}^{X_2} f"
    r" \quad (X \subseteq X_1 \cup X_2)",
    propose=propose,
    rewrite=rewrite,
    explain=explain_equation(explain),
)
