r"""Batch merging (Table 1, expression merging; §4.2, Fig. 15): equal expressions of different tensors become one.

.. math::
   \mathop{L}_{\vec x} f(A_1[\tau], B_1[\sigma]) \;\sim\; \mathop{L}_{\vec x} f(A_2[\tau], B_2[\sigma])
   \;\Longrightarrow\;
   M = \mathop{L}_{b, \vec x} f(A[b, \tau], B[b, \sigma]), \qquad A[i, \cdot] = A_i,\; B[i, \cdot] = B_i

The results are the parts ``M[i, ·]``.  New equations stack the operands, except for slices of one tensor at equal
distances: the merged expression reads them in place, at an index in b.  A common operand is one at distance 0.
An equation that a library operator runs may be merged as well; the result is matched again (a BatchMatmul).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations

from einnet_explore.analysis.canonical_keys import canonical_key, numbering
from einnet_explore.analysis.concatenation import Source, stack_tensors, strided_index
from einnet_explore.analysis.equations import (
    equations_to_merge,
    exchange_equations,
    find_equation,
    fresh_names,
    is_generated,
    require_free_operands,
    resolve_access,
    whole_equation,
)
from einnet_explore.analysis.indices import fresh_name, substitute_index
from einnet_explore.ir import (
    Access,
    Box,
    Equation,
    Iterator,
    Path,
    Program,
    Scope,
    Tensor,
    accesses,
    map_accesses,
)
from einnet_explore.rules.base import Rule, accepted, explain_equation, refusals_of, refusing
from einnet_explore.support.errors import Refused

ORDERS = 4
"""Up to so many operands every order of them is tried: 4! = 24."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The equations to merge with the one at the path, in the order of the batch."""

    others: tuple[str, ...]


def propose(program: Program, at: Path) -> Iterable[Batch]:
    """Propose the later equations that compute the same of other tensors or slices: all together, then each alone."""
    if len(at) != 1 or is_generated(base := program.equations[at[0]]):
        return
    outline = tuple(what for _, what, _ in _compared_parts(base.scope, base.scope))
    alone: list[str] = []
    together: list[str] = []
    for other in program.equations[at[0] + 1 :]:
        if outline != tuple(what for _, what, _ in _compared_parts(other.scope, other.scope)):
            continue
        if accepted(_merge, program, at, Batch((other.name,))):
            alone.append(other.name)
            if accepted(_merge, program, at, Batch((*together, other.name))):
                together.append(other.name)
    if len(together) > 1:
        yield Batch(tuple(together))
    yield from (Batch((name,)) for name in alone)


def _merge(program: Program, at: Path, params: Batch) -> Program:
    """Apply the law; refuses also siblings, and element-wise expressions, whose operands would be copied."""
    merged = rewrite(program, at, params)
    base = program.equations[at[0]]
    if len([e for e in merged.equations if e.name not in program.names()]) > 1:
        for other in (find_equation(program, name) for name in params.others):
            if common := _regions_read(program, base.scope) & _regions_read(program, other.scope):
                both = ", ".join(sorted({name for name, _ in common}))
                raise Refused(f"{base.name} and {other.name} both read {both}: they are siblings")
    return require_free_operands(program, merged, at)


def rewrite(program: Program, at: Path, params: Batch) -> Program:
    """Apply the law; refuses with the ranges, shapes or index maps that differ, or with a dependence."""
    with refusing():
        base = whole_equation(program, at)
        equations = equations_to_merge(program, (base.name, *params.others))
        columns = [accesses(base.scope.body), *(_matching_accesses(base, other) for other in equations[1:])]
    rows = list(zip(*columns, strict=True))
    if all(len(set(row)) == 1 for row in rows):
        raise Refused(f"{', '.join(e.name for e in equations)} are equal: one of them is enough")
    b = Iterator(_batch_name(base.scope), 0, len(equations))
    operands = {row: _read_in_place(program, row, b) for row in rows}
    with refusing():
        stacks = dict.fromkeys(_sources(row) for row in rows if operands[row] is None)
    *names, whole = fresh_names(program, *("B" for _ in stacks), "M")
    made = {row: Equation(name, stack_tensors(program, row, b)) for name, row in zip(names, stacks, strict=True)}
    reads = [operands[row] or made[_sources(row)].tensor[(b, *row[0].index)] for row in rows]
    one = Equation(whole, _batched_scope(base.scope, b, reads))
    parts = {e.name: replace(e, scope=_part(e.scope, one, n), via=None) for n, e in enumerate(equations)}
    with refusing():
        return exchange_equations(program, parts, (*made.values(), one))


def _regions_read(program: Program, scope: Scope) -> set[tuple[str, Box]]:
    """Return the regions of tensors that *scope* reads, by the ranges of its indices."""
    found = (resolve_access(program, access) for access in accesses(scope.body))
    return {(a.source.name, tuple(i.bounds for i in a.index)) for a in found if isinstance(a.source, Tensor)}


def _batch_name(scope: Scope) -> str:
    used = [x.name for x in (*scope.traversals, *scope.summations)]
    return "b" if "b" not in used else fresh_name("b", used)


def _read_in_place(program: Program, row: tuple[Access, ...], b: Iterator) -> Access | None:
    """Return the read that is the n-th of *row* at b = n: of slices of one tensor at equal distances."""
    if len(set(row)) == 1:
        return row[0]
    resolved = [resolve_access(program, access) for access in row]
    index = strided_index(resolved, b)
    return Access(resolved[0].source, index) if index is not None else None


def _sources(row: tuple[Access, ...]) -> tuple[Source, ...]:
    """Return what the accesses of *row* read; raises ValueError if they read it at different indices."""
    for access in row[1:]:
        if access.index != row[0].index:
            raise ValueError(f"{row[0]!r} and {access!r} are no slices of one tensor at equal distances")
    return tuple(access.source for access in row)


def _matching_accesses(base: Equation, other: Equation) -> tuple[Access, ...]:
    """Return the accesses of *other* that correspond to those of *base*, in its iterators; raises ValueError."""
    for equation in (base, other):
        if is_generated(equation) and equation.via is not None:
            raise ValueError(f"{equation.name} is run as {equation.via.operator}: there is nothing to merge")
    for what, mine, theirs in _compared_parts(base.scope, other.scope):
        if mine != theirs:
            raise ValueError(f"{base.name} {what} {_shown(mine)}, {other.name} {_shown(theirs)}")
    want = _outline(base.scope, tuple(range(len(accesses(base.scope.body)))))
    theirs = accesses(other.scope.body)
    orders = permutations(range(len(theirs))) if len(theirs) <= ORDERS else (tuple(range(len(theirs))),)
    for order in orders:
        if canonical_key(outline := _outline(other.scope, order)) == canonical_key(want):
            ours = {n: y for y, n in numbering(want).items()}
            to = dict(zip(other.scope.traversals, base.scope.traversals, strict=True))
            to |= {y: ours[n] for y, n in numbering(outline).items()}
            found = (theirs[n] for n in order)
            return tuple(Access(a.source, tuple(substitute_index(i, to) for i in a.index)) for a in found)
    reads = [", ".join(map(repr, accesses(e.scope.body))) for e in (base, other)]
    raise ValueError(f"{base.name} computes another expression than {other.name}: {reads[0]} against {reads[1]}")


def _compared_parts(mine: Scope, theirs: Scope) -> Iterable[tuple[str, object, object]]:
    """Describe in words, from coarse to fine, what must be equal in both scopes."""
    yield "traverses", mine.box, theirs.box
    yield "reduces by", mine.reduce, theirs.reduce
    spans = [tuple(sorted((y.lo, y.hi) for y in s.summations)) for s in (mine, theirs)]
    yield "sums over", spans[0], spans[1]
    boxes = [tuple(sorted(a.source.box for a in accesses(s.body))) for s in (mine, theirs)]
    yield "reads tensors of", boxes[0], boxes[1]


def _shown(value: object) -> str:
    match value:
        case (int(lo), int(hi)):
            return f"[{lo}, {hi})"
        case tuple():
            return " × ".join(map(_shown, value)) or "nothing"
    return str(value)


def _outline(scope: Scope, order: tuple[int, ...]) -> Scope:
    """Return *scope* with tensors named by numbers of accesses, and read without offsets.

    Scopes that are equal up to tensors, and up to where slices begin, have equal keys.
    """
    place = {number: n for n, number in enumerate(order)}
    count = iter(range(len(order)))

    def change(access: Access) -> Access:
        box, n = access.source.box, place[next(count)]
        origin = tuple(lo for lo, _ in box)
        value = access.source.value if access.source.padding else 0
        index = tuple(i - i.const for i in access.index)
        return Access(Tensor(f"{n}", access.source.shape, value=value, origin=origin), index)

    value = scope.value if scope.domain else 0
    return replace(scope, body=map_accesses(scope.body, change), padding=(), value=value)


def _batched_scope(base: Scope, b: Iterator, reads: Iterable[Access]) -> Scope:
    """Return the expression of *base* at every b, where its accesses are *reads*."""
    waiting = iter(reads)
    value = base.value if base.domain else 0
    body = map_accesses(base.body, lambda _: next(waiting))
    return replace(base, traversals=(b, *base.traversals), body=body, padding=(), value=value)


def _part(scope: Scope, whole: Equation, n: int) -> Scope:
    body = whole.tensor[(n, *scope.traversals)]
    return replace(scope, summations=(), reduce="sum", domain=(), body=body)


def explain(program: Program, base: Equation, at: Path) -> str:
    """Return why no other equation makes a batch with *base*: the difference, for each one that reduces as it does."""
    reasons: list[str] = []
    for other in program.equations[at[0] + 1 :]:
        if bool(other.scope.summations) == bool(base.scope.summations):
            reasons += refusals_of(_merge, program, at, Batch((other.name,)))
    kind = "has a summation" if base.scope.summations else "is element-wise"
    return "; ".join(reasons) or f"no equation after {base.name} {kind}"


BATCH_MERGING = Rule(
    name="batch_merging",
    law=r"\mathop{L}_{\vec x} f(A_1[\tau]) \sim \mathop{L}_{\vec x} f(A_2[\tau]) \Longrightarrow"
    r" \mathop{L}_{b, \vec x} f(A[b, \tau]), \qquad A[i, \cdot] = A_i",
    propose=propose,
    rewrite=rewrite,
    explain=explain_equation(explain),
)
