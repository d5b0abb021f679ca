r"""Batch merging (Table 1, expression merging; §4.2, Fig. 15): equal expressions of different tensors become one.

.. math::
   \mathop{L}_{\vec x} f(A_1[\tau], B_1[\sigma]) \;\sim\; \mathop{L}_{\vec x} f(A_2[\tau], B_2[\sigma])
   \;\Longrightarrow\;
   M = \mathop{L}_{b, \vec x} f(A[b, \tau], B[b, \sigma]), \qquad A[i, \cdot] = A_i,\; B[i, \cdot] = B_i

The results are the parts ``M[i, ·]``.  New equations stack the operands.  The stack of equally spaced parts of one
tensor is a view of it, and an operand that all expressions share is not stacked.
An equation that a library operator runs may be merged as well; the result is matched again (a BatchMatmul).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.concatenation import stack_tensors
from einnet_explore.analysis.equations import (
    check_operands_free,
    equations_to_merge,
    exchange_equations,
    fresh_names,
    is_generated,
    resolve_access,
    whole_equation,
)
from einnet_explore.analysis.indices import fresh_name
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
    as_index,
    map_accesses,
)
from einnet_explore.rules.base import Rule, accepted, explain_equation, refusals_of, refusing

ORDERS = 4
"""Up to so many operands every order of them is tried: 4! = 24."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The equations to merge with the one at the path, in the order of the batch."""

    others: tuple[str, ...]


def propose(program: Program, at: Path) -> Iterable[Batch]:
    """Propose the later equations that compute the same of other tensors: all together, then each alone."""
    if len(at) != 1 or is_generated(base := program.equations[at[0]]):
        return
    mine = _regions_read(program, base.scope)
    outline = tuple(what for _, what, _ in _compared_parts(base.scope, base.scope))
    alone: list[str] = []
    together: list[str] = []
    for other in program.equations[at[0] + 1 :]:
        if outline != tuple(what for _, what, _ in _compared_parts(other.scope, other.scope)):
            continue
        if not mine & _regions_read(program, other.scope) and accepted(_merge, program, at, Batch((other.name,))):
            alone.append(other.name)
            if accepted(_merge, program, at, Batch((*together, other.name))):
                together.append(other.name)
    if len(together) > 1:
        yield Batch(tuple(together))
    yield from (Batch((name,)) for name in alone)


def _merge(program: Program, at: Path, params: Batch) -> Program:
    """Apply the law; refuses also element-wise expressions whose operands would be copied."""
    merged = rewrite(program, at, params)
    if all(y.extent == 1 for y in program.scope_at(at).summations):
        check_operands_free(program, merged)
    return merged


def rewrite(program: Program, at: Path, params: Batch) -> Program:
    """Apply the law; refuses with the ranges, shapes or index maps that differ, or with a dependence."""
    with refusing():
        base = whole_equation(program, at)
        equations = equations_to_merge(program, (base.name, *params.others))
        orders = [_match_accesses(base, other) for other in equations[1:]]
    columns = [tuple(a.source for a in accesses(base.scope.body))]
    for other, order in zip(equations[1:], orders, strict=True):
        sources = [a.source for a in accesses(other.scope.body)]
        columns.append(tuple(sources[n] for n in order))
    b = Iterator(_batch_name(base.scope), 0, len(equations))
    rows = list(zip(*columns, strict=True))
    unequal = [row for row in dict.fromkeys(rows) if any(source != row[0] for source in row)]
    *names, whole = fresh_names(program, *("B" for _ in unequal), "M")
    made = {row: Equation(name, stack_tensors(program, row, b)) for name, row in zip(names, unequal, strict=True)}
    one = Equation(whole, _batched_scope(base.scope, b, [made.get(row) for row in rows]))
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


def _match_accesses(base: Equation, other: Equation) -> tuple[int, ...]:
    """Return the number of the corresponding access of *other* for every access of *base*; raises ValueError."""
    for equation in (base, other):
        if is_generated(equation) and equation.via is not None:
            raise ValueError(f"{equation.name} is run as {equation.via.operator}: there is nothing to merge")
    for what, mine, theirs in _compared_parts(base.scope, other.scope):
        if mine != theirs:
            raise ValueError(f"{base.name} {what} {_shown(mine)}, {other.name} {_shown(theirs)}")
    want = canonical_key(_without_tensor_names(base.scope, tuple(range(len(list(accesses(base.scope.body)))))))
    count = len(list(accesses(other.scope.body)))
    orders = permutations(range(count)) if count <= ORDERS else (tuple(range(count)),)
    for order in orders:
        if canonical_key(_without_tensor_names(other.scope, order)) == want:
            return order
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


def _without_tensor_names(scope: Scope, order: tuple[int, ...]) -> Scope:
    """Return *scope* with tensors named by numbers of accesses: scopes equal up to tensors have equal keys."""
    place = {number: n for n, number in enumerate(order)}
    count = iter(range(len(order)))

    def change(access: Access) -> Access:
        box, n = access.source.box, place[next(count)]
        origin = tuple(lo for lo, _ in box)
        value = access.source.value if access.source.padding else 0
        return Access(Tensor(f"{n}", access.source.shape, value=value, origin=origin), access.index)

    value = scope.value if scope.domain else 0
    return replace(scope, body=map_accesses(scope.body, change), padding=(), value=value)


def _batched_scope(base: Scope, b: Iterator, operands: list[Equation | None]) -> Scope:
    """Return the expression of *base* at every b: stacked operands are read at b, common ones as before."""
    waiting = iter(operands)

    def change(access: Access) -> Access:
        made = next(waiting)
        return access if made is None else Access(made.tensor, (as_index(b), *access.index))

    value = base.value if base.domain else 0
    body = map_accesses(base.body, change)
    return replace(base, traversals=(b, *base.traversals), body=body, padding=(), value=value)


def _part(scope: Scope, whole: Equation, n: int) -> Scope:
    body = whole.tensor[(n, *scope.traversals)]
    return replace(scope, summations=(), reduce="sum", domain=(), body=body)


def explain(program: Program, base: Equation, at: Path) -> str:
    """Return why no other equation makes a batch with *base*: the difference, for each one that reduces as it does."""
    reasons: list[str] = []
    for other in program.equations[at[0] + 1 :]:
        if bool(other.scope.summations) == bool(base.scope.summations):
            refused = refusals_of(_merge, program, at, Batch((other.name,)))
            reasons += refused
            if not refused:
                both = ", ".join(
                    sorted(name for name, _ in _regions_read(program, base.scope) & _regions_read(program, other.scope))
                )
                reasons.append(f"{base.name} and {other.name} both read {both}: they are siblings")
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
