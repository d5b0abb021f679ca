r"""Moves of a search, and clean-ups.

A *local* rule depends only on the scope at its path, and on whether that scope is a whole equation.  Most scopes do not
change in a step, so the parameters that the rule proposes and the rewritten scope are cached by the scope, or by its
*outline*, the scope without the bodies of nested scopes, if the rule does not read these: their boxes, domains and
paddings are enough.  Scopes of one outline have the same matches, although a rewrite of one scope changes the values of
all scopes around it.

Clean-ups are rewrites that only simplify, applied to a normal form and not counted as choices:

* *relaxing* drops a bound of a nested scope that no reader violates;
* *merging* inlines a scope that only re-indexes another scope;
* *tightening* removes constant parts.

Each strictly lowers (number of bounds, number of scopes, number of computed points), so they terminate.  Merging is
restricted to scopes that only re-index a scope: merging more would undo the choice before (a split, a substitution).
If no choice follows, scopes that only re-index a tensor are merged as well.

``inline_injective`` inlines elementwise (injective) equations into their readers:

.. math::
   \mathop{L}_{\vec y} \textstyle\sum g(T[\pi(\vec y)]) \;\circ\; T = \mathop{L}_{\vec x} f(\vec x)
   \;\mapsto\; \mathop{L}_{\vec y} \textstyle\sum g(f(\pi(\vec y)))

for any index map :math:`\pi` (permuted, negated, strided), if *T* has no summation.  Every step is a match of
expression inlining, traversal merging or dead equation, so the result is a derivation with certificates.  Source: the
tensor auto-inliner of "Common Subexpression Elimination" (TVM); EinNet §4.1 for traversal merging.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from einnet_explore.analysis.canonical_keys import canonical_key
from einnet_explore.analysis.equations import equation_number
from einnet_explore.ir import (
    Access,
    Box,
    Equation,
    Iterator,
    Padding,
    Path,
    Program,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    map_accesses,
    replace_at,
    scopes,
    tensors,
    with_body,
)
from einnet_explore.rules import (
    BOUNDARY_RELAXING,
    BOUNDARY_TIGHTENING,
    DEAD_EQUATION,
    EXPRESSION_INLINING,
    SUMMATION_SPLITTING,
    TRAVERSAL_MERGING,
    VARIABLE_SUBSTITUTION,
    Derivation,
    Match,
    Refused,
    Rule,
)
from einnet_explore.rules.base import keeps_types
from einnet_explore.rules.boundaries import Unbound
from einnet_explore.rules.traversal_merging import Merging
from einnet_explore.support.limits import MEMO_ENTRIES

STEM = "?"
"""The first letter of the tensors that stand for hidden bodies; no name in a program starts with it."""


@dataclass(frozen=True, slots=True)
class Outline:
    """*scope* without the bodies of *hidden*: the n-th is the scope whose body reads the tensor ``?n``."""

    scope: Scope
    hidden: tuple[Scope, ...]

    def fill(self, scope: Scope) -> Scope:
        """*scope*, made from the outline, with the hidden bodies in place; its paddings and values stay."""
        if (number := stub_number(scope)) is not None:
            full = self.hidden[number]
            if scope.padding == full.padding and scope.value == full.value:
                return full
            return Scope(
                full.traversals, full.summations, full.body, full.reduce, full.domain, scope.padding, scope.value
            )
        return with_body(scope, map_accesses(scope.body, self._fill_access))

    def _fill_access(self, access: Access) -> Access:
        source = access.source
        return Access(self.fill(source), access.index) if isinstance(source, Scope) else access


@lru_cache(MEMO_ENTRIES)
def outline(scope: Scope, levels: int) -> Outline:
    """The outline of *scope* that keeps the bodies of *levels* levels of nested scopes.

    Nested scopes that are equal but for names are not hidden, since an outline cannot tell which of them comes first.
    """
    found = dict.fromkeys(_below(scope, levels))
    if len(found) > 1:
        # Canonical orders compare what is read: the names of hidden bodies keep the order of the bodies.
        keys: dict[Scope, Any] = {source: canonical_key(source) for source in found}
        if len(set(keys.values())) < len(found):
            return Outline(scope, ())
        found = dict.fromkeys(sorted(found, key=lambda source: keys[source]))
    if not found:
        return Outline(scope, ())
    make = stub if len(found) == 1 else _named_stub
    stubs = {source: make(source, n) for n, source in enumerate(found)}
    return Outline(_hide(scope, levels, stubs), tuple(found))


def _below(scope: Scope, levels: int) -> Iterable[Scope]:
    """The scopes read by *scope* below so many levels."""
    for access in accesses(scope.body):
        if isinstance(access.source, Scope):
            if levels:
                yield from _below(access.source, levels - 1)
            else:
                yield access.source


def _hide(scope: Scope, levels: int, stubs: Mapping[Scope, Scope]) -> Scope:
    def swap(access: Access) -> Access:
        source = access.source
        if not isinstance(source, Scope):
            return access
        return Access(_hide(source, levels - 1, stubs) if levels else stubs[source], access.index)

    return with_body(scope, map_accesses(scope.body, swap))


def _named_stub(scope: Scope, n: int) -> Scope:
    """Return *scope* with a read of the tensor ``?n`` as body."""
    return with_body(scope, _hidden_body(n))


def stub(scope: Scope, n: int) -> Scope:
    """Return stub *n* of a nested scope that is compared with no other: any names of iterators do."""
    return _named_stub(scope, n) if scope.domain else _unnamed_stub(scope.box, scope.padding, scope.value, n)


def stub_number(scope: Scope) -> int | None:
    """Return the number of a stub; None if *scope* is none."""
    match scope.body:
        case Access(Tensor(name)) if name.startswith(STEM):
            return int(name[len(STEM) :])
    return None


@lru_cache(MEMO_ENTRIES, typed=True)  # 0 and 0.0 stay apart
def _unnamed_stub(box: Box, padding: Padding, value: float, n: int) -> Scope:
    traversals = tuple([Iterator(f"z{d}", lo, hi) for d, (lo, hi) in enumerate(box)])
    return Scope(traversals, (), _hidden_body(n), padding=padding, value=value)


@lru_cache(1 << 6)
def _hidden_body(n: int) -> Access:
    return Access(Tensor(f"{STEM}{n}", ()), ())


Move: TypeAlias = "tuple[Match[object], Program]"
T = TypeVar("T")

LEVELS_READ: dict[Rule[object], int] = {
    SUMMATION_SPLITTING: 0,
    VARIABLE_SUBSTITUTION: 0,
    BOUNDARY_TIGHTENING: 0,
    TRAVERSAL_MERGING: 1,
    BOUNDARY_RELAXING: 1,
}
"""How many levels of nested scopes a local rule reads the bodies of; a rule that is not here reads all of them."""


class LazySequence(Generic[T]):
    """The items of *source*, computed on demand and kept; threads may share it.

    After an interrupt the computation restarts behind the known items: *source* yields the same items on every call.
    """

    __slots__ = ("_known", "_lock", "_rest", "_source")

    def __init__(self, source: Callable[[], Iterable[T]]) -> None:
        self._source = source
        self._rest: Generator[T, None, None] | None = None
        self._known: list[T] = []
        self._lock = threading.RLock()

    def __iter__(self) -> Generator[T, None, None]:
        n = 0
        while self.reaches(n):
            yield self._known[n]
            n += 1

    def __getitem__(self, n: int) -> T:
        return self._known[n]

    def reaches(self, n: int) -> bool:
        """Whether there is an item *n*; computes it if necessary."""
        while len(self._known) <= n:
            with self._lock:
                if len(self._known) > n:
                    break
                if self._rest is None:
                    self._rest = (item for item in islice(self._source(), len(self._known), None))
                try:
                    self._known.append(next(self._rest))
                except StopIteration:
                    return False
                except BaseException:
                    self._rest = None
                    raise
        return True


LocalMoves: TypeAlias = "LazySequence[tuple[object, Scope]]"
Position: TypeAlias = Literal["equation", "nested"]


def position_of(at: Path) -> Position:
    """Return whether the scope at *at* is a whole equation or nested in one."""
    return "equation" if len(at) == 1 else "nested"


def rule_moves(rule: Rule[object], program: Program, at: Path, scope: Scope) -> Iterable[Move]:
    """Yield each legal match of *rule* at *at*, where *scope* stands, with the program that it leads to."""
    if rule.local:
        for params, new in local_moves(rule, scope, position_of(at)):
            yield Match(rule, at, params), program.replace_at(at, new)
    else:
        for match in rule.matches(program, at):
            yield match, match.apply(program).after


@lru_cache(MEMO_ENTRIES)
def local_moves(rule: Rule[object], scope: Scope, position: Position) -> LocalMoves:
    """Return the parameters that a local *rule* proposes for *scope* at *position*, and the rewritten scopes."""
    if (levels := LEVELS_READ.get(rule)) is None or not (outlined := outline(scope, levels)).hidden:
        return computed_moves(rule, scope, position)
    shared = computed_moves(rule, outlined.scope, position)
    return LazySequence(lambda: ((params, outlined.fill(new)) for params, new in shared))


@lru_cache(MEMO_ENTRIES)
def computed_moves(rule: Rule[object], scope: Scope, position: Position) -> LocalMoves:
    """Return ``local_moves`` of a scope that is an outline already."""
    program, at = host_program(scope, position)
    return LazySequence(lambda: ((p, rule.rewrite(program, at, p).scope_at(at)) for p in rule.propose(program, at)))


def host_program(scope: Scope, position: Position) -> tuple[Program, Path]:
    """Return a program with *scope* as its equation, or one level below, and the path to it."""
    if position == "equation":
        return Program((), (Equation("Y", scope),), ("Y",)), (0,)
    reader = Scope(scope.traversals, (), scope[tuple(map(as_index, scope.traversals))])
    return Program((), (Equation("Y", reader),), ("Y",)), (0, 0)


Moves: TypeAlias = "tuple[tuple[Match[object], ...], Program]"
Sources: TypeAlias = "tuple[type, ...]"
CleanUp: TypeAlias = "tuple[Rule[object], object, Scope]"
ScopeMove: TypeAlias = "tuple[tuple[Rule[object], Path, object], Scope]"


CLEAN_UPS: frozenset[Rule[object]] = frozenset((BOUNDARY_RELAXING, TRAVERSAL_MERGING, BOUNDARY_TIGHTENING))


def clean(program: Program, final: bool = False, rules: Iterable[Rule[object]] = CLEAN_UPS) -> Moves:
    """Return the matches that clean up *program*, and the result.

    If the program is *final*, that is, no choice follows, scopes that only re-index a tensor are merged as well.  Only
    clean-up rules among *rules* are applied.
    """
    done, allowed = list[Match[object]](), CLEAN_UPS.intersection(rules)
    sources = (Scope, Tensor, Table) if final else (Scope,)
    equations = list(program.equations)
    for n, equation in enumerate(equations):
        if equation.via is None:
            scope = equation.scope
            while (found := _find_move(scope, sources, allowed)) is not None:
                (rule, below, params), scope = found
                done.append(Match(rule, (n, *below), params))
            if scope is not equation.scope:
                equations[n] = Equation(equation.name, scope)
    return tuple(done), Program(program.inputs, tuple(equations), program.outputs) if done else program


@lru_cache(MEMO_ENTRIES)
def _find_move(root: Scope, sources: Sources, allowed: frozenset[Rule[object]]) -> ScopeMove | None:
    """Return the first clean-up of a scope of the equation *root*, as (rule, path, parameters), and its result."""
    for below, scope in scopes(root):
        if (found := _find_clean_up(scope, position_of((0, *below)), sources, allowed)) is not None:
            rule, params, new = found
            return (rule, below, params), replace_at(root, below, new)
    return None


@lru_cache(MEMO_ENTRIES)
def _find_clean_up(
    scope: Scope, position: Position, sources: Sources, allowed: frozenset[Rule[object]]
) -> CleanUp | None:
    """Return the next clean-up of *scope* itself and its result; scopes that re-index *sources* are merged."""
    found = find_joint_clean_up(scope, position, sources, allowed)
    return find_tightening(scope, position, allowed) if found is None else found


def find_joint_clean_up(
    scope: Scope, position: Position, sources: Sources, allowed: frozenset[Rule[object]]
) -> CleanUp | None:
    """Return the next clean-up that changes *scope* and a scope that it reads, and its result."""
    read = list(accesses(scope.body))
    if BOUNDARY_RELAXING in allowed and any(isinstance(a.source, Scope) and a.source.domain for a in read):
        for params, new in local_moves(BOUNDARY_RELAXING, scope, position):
            if isinstance(params, Unbound):
                return BOUNDARY_RELAXING, params, new
    if TRAVERSAL_MERGING in allowed and any(_is_reindexing(a, sources) for a in read):
        for params, new in local_moves(TRAVERSAL_MERGING, scope, position):
            if isinstance(params, Merging) and _is_reindexing(read[params.access], sources):
                return TRAVERSAL_MERGING, params, new
    return None


def find_tightening(scope: Scope, position: Position, allowed: frozenset[Rule[object]]) -> CleanUp | None:
    """Return the first removal of a constant part of *scope*, and its result."""
    tightened = local_moves(BOUNDARY_TIGHTENING, scope, position) if BOUNDARY_TIGHTENING in allowed else ()
    for params, new in tightened:
        return BOUNDARY_TIGHTENING, params, new
    return None


def _is_reindexing(access: Access, sources: Sources) -> bool:
    """Whether *access* reads a scope that only re-indexes one of *sources*."""
    match access.source:
        case Scope(summations=(), body=Access(source)):
            return isinstance(source, sources)
    return False


def merge_scopes(derivation: Derivation, name: str) -> Derivation:
    """Merge every nested scope without a summation, in the equation called *name*, into its reader."""
    while (match := next(iter(_mergeable_scopes(derivation.end, name)), None)) is not None:
        derivation = derivation.then(match)
    return derivation


def _mergeable_scopes(program: Program, name: str) -> Iterable[Match[object]]:
    n = equation_number(program, name)
    for path, params in _mergings(program.equations[n].scope) if program.equations[n].via is None else ():
        match = Match(TRAVERSAL_MERGING, (n, *path), params)
        if keeps_types(match, program):
            yield match


@lru_cache(MEMO_ENTRIES)  # a step leaves most equations as they are
def _mergings(root: Scope) -> LazySequence[tuple[Path, object]]:
    """Return the paths below *root*, and the parameters, of mergings of scopes that sum nothing."""
    return LazySequence(lambda: _find_mergings(root))


def _find_mergings(root: Scope) -> Iterable[tuple[Path, object]]:
    for path, scope in scopes(root):
        merge = [isinstance(a.source, Scope) and not a.source.summations for a in accesses(scope.body)]
        for params, _ in local_moves(TRAVERSAL_MERGING, scope, position_of((0, *path))) if any(merge) else ():
            if isinstance(params, Merging) and merge[params.access]:
                yield path, params


def inline_injective(program: Program, keep: Iterable[str] = ()) -> Derivation:
    """Inline every equation without summations into its readers, and remove equations without readers.

    An equation in *keep* is not inlined, nor is one into a reader that reads it beyond its box, which traversal merging
    refuses.
    """
    derivation = Derivation(program)
    stay = set(keep)
    for n in range(len(program.equations)):
        for name in _injective(derivation.end, n, stay):
            try:
                derivation = _inline_equation(derivation, n, name)
            except Refused:
                continue
    for equation in reversed(program.equations):
        number = next(n for n, e in enumerate(derivation.end.equations) if e.name == equation.name)
        if equation.name not in stay:
            for match in DEAD_EQUATION.matches(derivation.end, (number,)):
                derivation = derivation.then(match)
    return derivation


def _injective(program: Program, n: int, stay: set[str]) -> tuple[str, ...]:
    """Return the equations that can be inlined into equation *n*, the last one first."""
    read = {t.name for t in tensors(program.equations[n].scope)}
    plain = [e.name for e in program.equations if not e.scope.summations and e.name in read and e.name not in stay]
    return tuple(reversed(plain))


def _inline_equation(derivation: Derivation, n: int, name: str) -> Derivation:
    """Inline *name* into equation *n*; raises Refused if a read cannot be merged."""
    source = next(e.scope for e in derivation.end.equations if e.name == name)
    derivation = derivation.then(EXPRESSION_INLINING.match(derivation.end, (n,), tensor=name))
    while (found := _only_access(derivation.end.equations[n].scope, source)) is not None:
        path, number = found
        derivation = derivation.then(TRAVERSAL_MERGING.match(derivation.end, (n, *path), access=number))
    return derivation


def _only_access(scope: Scope, source: Scope) -> tuple[tuple[int, ...], int] | None:
    for path, reader in scopes(scope):
        for number, access in enumerate(accesses(reader.body)):
            if isinstance(access, Access) and access.source == source:
                return path, number
    return None
