r"""Algorithm 1 (EinNet §6.3): the closure of a program under inter-expression rules, with a search of each member.

.. code-block:: text

    Q = {E0};  for E in Q:  Q += r(E) for every rule r between expressions;  Q += search(E)

Members are also the factorings of the program (``factoring.py``), its products of scaled bytes as products of integers
(``integer_forms.py``), what laws of functions make of it
(``simplification.py``), and its vertical fusions (``vertical_fusion.py``).
Rules between expressions also apply to results of the searches: Fig. 3 and Fig. 15 merge matrix products that
convolutions became.  Results are post-optimised: eOperators are fused and inverse layouts cancel (Fig. 11, Fig. 14).

Searches advance in rounds of growing numbers of states.  After each round, the variants found so far are combined, so
that a search which is stopped early has candidates, and nothing depends on a clock.

Derivations of different expressions are independent, so each distinct expression is searched once, as a program of its
own whose tensors are named by position.  Its cheapest *variants* are combined with those of the others,

.. math::
   c(v_1, \dots, v_n) = \sum_i c(v_i) - \sum_{i \to j} \text{layouts of } v_i \text{ and } v_j \text{ that cancel}

for expressions i → j, where j reads the result of i, directly or through element-wise equations and reductions of rows:
the layout eOperators in between cancel if one is the inverse of the other.  The cheapest combinations come first, then
the cheapest with layouts that cancel (Fig. 14), then those whose library calls may merge (Fig. 3, Fig. 15): estimates
order programs of one kind well, and of different kinds badly.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations, islice, product, zip_longest
from typing import TypeAlias

import numpy as np

from einnet_explore.analysis.counts import compute_bound
from einnet_explore.analysis.equations import constant_tensors, tensor_names
from einnet_explore.analysis.flattening import view_strides
from einnet_explore.analysis.products import multiplies_bytes
from einnet_explore.analysis.regions import always_holds
from einnet_explore.ir import Access, Bound, Equation, Instance, Program, Scope, Tensor, accesses, map_tensors, tensors
from einnet_explore.rules import (
    BATCH_MERGING,
    CONTRACTION_ORDER,
    EOPERATOR_GENERATION,
    EXPRESSION_FUSION,
    EXPRESSION_SPLITTING,
    INTER_RULES,
    SIBLING_MERGING,
    Derivation,
    Match,
    Rule,
)
from einnet_explore.rules.base import places
from einnet_explore.strategies.engine import Search, StateTable
from einnet_explore.strategies.events import Found, MatchRefused, Pruned, Reached, Searched, SearchEvent, State
from einnet_explore.strategies.factoring import factorings, products_at_run_time
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.integer_forms import integer_forms
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.simplification import FUNCTION_RULES, simplifications
from einnet_explore.strategies.vertical_fusion import traffic, vertical_fusions

PostOptimisation = Callable[[Derivation], Derivation]
"""What is done to an executable program: it returns the derivation with further steps, or as it is."""

Calls: TypeAlias = "tuple[Instance, ...]"

MAX_MEMBERS = 12
"""Programs of a closure under merging, and splits of the start program."""

MERGES = (SIBLING_MERGING, BATCH_MERGING)
"""The rules that merge expressions."""

MAX_FACTORINGS = 3
"""Factorings across expressions that become members, those with the fewest products."""

MAX_SIMPLIFICATIONS = 2
"""Simplifications across functions that become members, those with the least work."""

MAX_FUSIONS = 6
"""Vertical fusions that become members, those with the least traffic."""

MERGING_CHOICES = 24
"""Combinations of variants that are tried because their library calls may merge."""

PROMISING = 2.0
"""What merging made is post-optimised if it costs at most this multiple of the best candidate."""

FIRST_STATES, GROWTH = 100, 4
"""States of each expression's search in the first round, and the factor from one round to the next."""

VARIANTS_PER_KIND = 6
"""Variants of an expression that are kept for the same library operators."""

MAX_CHOICES = 20_000
"""At most so many combinations are looked at, however many expressions there are."""


def search_program(
    start: Program, cost: Cost, options: Options, post: PostOptimisation | None = None, states: int | None = None
) -> Search | ProgramSearch:
    """Return the search of *start*: Algorithm 1 where several expressions matter, else that of the one expression.

    Expressions are worth a search if they are compute-bound; where none is, if they may merge.  Without rules *between*
    expressions, or with one of them among the rules inside, all expressions are searched as one.  *post* and *states*
    are those of ``ProgramSearch``.
    """
    separate = options.between and not any(rule in INTER_RULES for rule in options.rules)
    roots = [derivation.end for derivation in options.starts] or [start]
    if separate and any(_has_several(root, options) for root in roots):
        return ProgramSearch(start, cost, options, post or (lambda derivation: derivation), states)
    inside = {rule.name for rule in (*options.rules, EOPERATOR_GENERATION, matching_rule(options.targets))}
    if outside := [name for name in options.must_use if name not in inside]:
        used = ", ".join(sorted(inside))
        raise ValueError(f"must_use: a search of one expression does not use {outside[0]}, only {used}")
    return Search(start, cost, replace(options, between=()))


def _has_several(start: Program, options: Options) -> bool:
    found = len(compute_bound(start, options.fixed))
    merges = not found and any(True for _ in matches_between(start, merging_rules(options)))
    return found > 1 or merges or bool(derive_across(start, options))


def merging_rules(options: Options) -> tuple[Rule[object], ...]:
    """Return the rules of *options* that make one expression of several."""
    return tuple(rule for rule in options.between if rule in MERGES)


@dataclass(slots=True, eq=False)
class ProgramSearch(StateTable):
    """Algorithm 1 as a stream of events; its states are the members of Q.

    *post* post-optimises the cheapest combinations and what merges; *most* bounds the states of each expression's
    search.
    """

    cost: Cost
    options: Options
    post: PostOptimisation
    most: int | None = None
    complete: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    expanded: set[int] = field(default_factory=set, init=False)
    _searches: dict[Program, ExpressionSearch] = field(default_factory=dict, init=False)
    _seen: set[Hashable] = field(default_factory=set, init=False)
    _combined: dict[int, tuple[tuple[ExpressionVariant, ...], ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.restrict(self.options)

    @property
    def size(self) -> int:
        """The number of states, those of the expressions' searches included."""
        return len(self.states) + sum(len(each.search.states) for each in self._searches.values())

    def run(self) -> Iterable[SearchEvent]:
        """Yield members of Q: the closure of the program, then round by round what searching and merging make of it.

        Members that multiply bytes are searched first, then those of which nothing is left to search, such as vertical
        fusions, and of others those with the fewest products: then fewer results of the rest are post-optimised.
        """
        members = list[State]()
        for event in self._closure():
            members.append(event.state)
            yield event
        if self.options.starts and all(start.steps for start in self.options.starts):
            del members[0]  # the program is none of the starts
        members.sort(key=self._order)
        states = FIRST_STATES
        while True:
            states = states if self.most is None else min(states, self.most)
            for member in members:
                yield from self._search(member, states)
                yield from self._candidates(member, states)
            if all(each.ended for each in self._searches.values()) or states == self.most:
                break
            states *= GROWTH
        self.complete = all(each.search.complete for each in self._searches.values())
        self.ended = not self.complete and all(each.ended for each in self._searches.values())

    def _order(self, member: State) -> tuple[bool, bool, int]:
        is_open = bool(self._worthwhile(member.program))
        return not _has_products_of_bytes(member), is_open, products_at_run_time(member.program)

    def _closure(self) -> Iterable[Reached]:
        """The members that follow the program, or the ends of the *starts*."""
        first = self.reached(0, (), self.start, 0, "start", None)
        self._seen.add(self.identity(0, (), self.start))
        yield Reached(first)
        roots = [first] if not all(start.steps for start in self.options.starts) or not self.options.starts else []
        for start in self.options.starts:
            for event in self._member(first, tuple(step.match for step in start.steps), start.end):
                roots.append(event.state)
                yield event
        for root in roots:
            yield from self._following(root)

    def _following(self, root: State) -> Iterable[Reached]:
        """Factorings and fusions; the closure under merging, breadth first; every split of one of the expressions."""
        for derivation in derive_across(root.program, self.options):
            matches = tuple(step.match for step in derivation.steps)
            yield from self._member(root, matches, derivation.end)
        yield from self._merged(root)
        if EXPRESSION_SPLITTING in self.options.between:
            for match in islice(matches_between(root.program, (EXPRESSION_SPLITTING,)), MAX_MEMBERS):
                yield from self._member(root, (match,), match.apply(root.program).after)

    def _merged(self, first: State) -> Iterable[Reached]:
        """Yield the closure of *first* under merging, the rules in turn: at most ``MAX_MEMBERS``, none twice."""
        queue = [first]
        for member in queue:
            if len(queue) >= MAX_MEMBERS:
                return
            proposals = (matches_between(member.program, (rule,)) for rule in merging_rules(self.options))
            for match in filter(None, chain.from_iterable(zip_longest(*proposals))):
                for event in self._member(member, (match,), match.apply(member.program).after):
                    queue.append(event.state)
                    yield event
                if len(queue) >= MAX_MEMBERS:
                    return

    def _member(self, parent: State, matches: tuple[Match[object], ...], program: Program) -> Iterable[Reached]:
        """The *program* that *matches* make of *parent*, unless it is known."""
        key = self.identity(parent.id, matches, program)
        if key in self._seen or self.is_forbidden(parent.id, program):
            self.pruned += 1
            return
        self._seen.add(key)
        yield Reached(self.reached(parent.id, matches, program, parent.depth + 1, "explorative", None))

    def _search(self, member: State, states: int) -> Iterable[SearchEvent]:
        """Advance the searches of the expressions of *member* to *states* states."""
        for n in self._worthwhile(member.program):
            name = member.program.equations[n].name
            each = self._expression(member.program, n)
            for event in each.advance(states):
                match event:
                    case Pruned():
                        self.pruned += 1
                    case MatchRefused(0, at):
                        yield replace(event, state=member.id, at=(at[0] + n, *at[1:]))
                yield Searched(member.id, name, len(each.search.states))

    def _worthwhile(self, program: Program) -> tuple[int, ...]:
        """The numbers of the expressions worth a search: where none of the start is compute-bound, all that sum."""
        if compute_bound(self.start, self.options.fixed):
            return compute_bound(program, self.options.fixed)
        return tuple(n for n, e in enumerate(program.equations) if e.via is None and e.scope.summations)

    def _expression(self, program: Program, n: int) -> ExpressionSearch:
        alone = standalone(program, n)
        if alone not in self._searches:
            search = Search(alone, self.cost, self._alone())
            search.tracked = self.tracked
            self._searches[alone] = ExpressionSearch(search)
        return self._searches[alone]

    def _alone(self) -> Options:
        """The options of a search of one expression: what is said of the whole program is looked at here."""
        return replace(self.options, fixed=frozenset(), must_use=(), forbid=(), starts=())

    def _missing(self, state: State) -> frozenset[str]:
        """The rules that a candidate must use, and that were not used on the way to *state*."""
        return frozenset(self.options.must_use) - self.used(state.id)

    def _candidates(self, member: State, states: int) -> Iterable[SearchEvent]:
        """Yield the best combinations of the variants of *member*, and the results of merging their library calls."""
        numbers = self._worthwhile(member.program)
        variants = tuple(self._expression(member.program, n).variants() for n in numbers)
        if self._combined.get(member.id) == variants:
            return
        self._combined[member.id] = variants
        several = len(numbers) > 1
        choices, cheapest = rank_choices(
            member.program,
            numbers,
            variants,
            self.cost,
            self.options.combinations,
            MERGING_CHOICES if several else 0,
            self._missing(member),
        )
        for rank, choice in enumerate(choices):
            found = self._run(member, numbers, choice)
            if found is None:
                continue
            yield from self._priced(found)
            if rank < cheapest:
                yield from self._post_optimised(found)
            if several:
                for event in self._merged(found):
                    yield event
                    yield from self._search(event.state, states)
                    yield from self._best(event.state)

    def _best(self, member: State) -> Iterable[SearchEvent]:
        """Yield the cheapest combination of the variants of *member*."""
        numbers = self._worthwhile(member.program)
        variants = [self._expression(member.program, n).variants() for n in numbers]
        for choice in rank_choices(member.program, numbers, variants, self.cost, 1, 0, self._missing(member))[0]:
            if (found := self._run(member, numbers, choice)) is not None:
                is_promising = self.cost(found.program)[0] <= PROMISING * self.best
                yield from self._priced(found)
                if is_promising:
                    yield from self._post_optimised(found)

    def _run(self, member: State, numbers: tuple[int, ...], choice: tuple[ExpressionVariant, ...]) -> State | None:
        """*member* with its expressions run as in *choice*, the rest generated; None if known or if that is refused."""
        derivation = Derivation(member.program)
        # From the last on: what an expression becomes stands where it stood.
        for n, variant in sorted(zip(numbers, choice, strict=True), key=lambda pair: -pair[0]):
            for step in variant.derivation.steps:
                at = (step.match.at[0] + n, *step.match.at[1:])
                derivation = derivation.then(replace(step.match, at=at))
        rest = Search(derivation.end, self.cost, replace(self._alone(), max_depth=0, ahead=0))
        for event in rest.run():
            if isinstance(event, Found):
                steps = (*derivation.steps, *rest.derivation(event.state.id).steps)
                return self._executable(member, Derivation(member.program, steps)) if steps else member
        return None

    def _executable(self, parent: State, derivation: Derivation) -> State | None:
        """The executable program at the end of *derivation* from *parent*; None if it is known."""
        matches = tuple(step.match for step in derivation.steps)
        key = self.identity(parent.id, matches, derivation.end)
        if key in self._seen or self.is_forbidden(parent.id, derivation.end):
            self.pruned += 1
            return None
        self._seen.add(key)
        is_candidate = self.tracked <= self.used(parent.id, matches)  # otherwise it may be merged to one
        phase = "converging" if is_candidate else "explorative"
        return self.reached(parent.id, matches, derivation.end, parent.depth, phase, 0)

    def _post_optimised(self, state: State) -> Iterable[Found]:
        """Yield the candidate that post-optimisation makes of *state*, if it is a new one."""
        derivation = self.post(Derivation(state.program))
        if derivation.steps and (after := self._executable(state, derivation)) is not None:
            yield from self._priced(after)

    def _priced(self, state: State) -> Iterable[Found]:
        """Yield *state* as a candidate, if it uses the rules that it must."""
        if self._missing(state):
            return
        seconds, how = self.cost(state.program)
        self.priced(state.depth, seconds)
        improved = seconds < self.best
        self.best = min(self.best, seconds)
        yield Found(state, seconds, how, improved)


def _has_products_of_bytes(member: State) -> bool:
    return any(multiplies_bytes(equation.scope) for equation in member.program.equations)


def derive_across(program: Program, options: Options) -> tuple[Derivation, ...]:
    """Return factorings, forms in integers, simplifications across expressions, and vertical fusions of least traffic.

    Nothing is derived without the rules for it among those between expressions, from equations that are fixed, and
    from one expression with nested scopes: these are steps on the way to a product, which factoring would undo.
    """
    nested = len(program.equations) == 1 and any(len(at) > 1 for at, _ in places(program))
    if options.fixed or EXPRESSION_FUSION not in options.between or nested:
        return ()
    return _derived_across(program, options.between, options.rules)


@lru_cache(16)  # asked for once to choose the search, and once by it
def _derived_across(
    program: Program, between: tuple[Rule[object], ...], rules: tuple[Rule[object], ...]
) -> tuple[Derivation, ...]:
    factored = tuple(factorings(program)) if CONTRACTION_ORDER in between else ()
    integers = tuple(integer_forms(program)) if CONTRACTION_ORDER in between else ()
    laws = tuple(rule for rule in FUNCTION_RULES if rule in between)
    simplified = tuple(simplifications(program, laws)) if laws else ()
    fusions = vertical_fusions(program, (*between, *rules))
    fused = sorted(fusions, key=lambda found: (traffic(found.end), len(found.end.equations)))
    return (*factored[-MAX_FACTORINGS:], *integers, *simplified[-MAX_SIMPLIFICATIONS:], *fused[:MAX_FUSIONS])


def matches_between(program: Program, rules: Iterable[Rule[object]]) -> Iterable[Match[object]]:
    """Yield the legal matches of *rules* at whole equations, instantiated ones included, at those that sum first."""
    numbers = sorted(range(len(program.equations)), key=lambda n: not program.equations[n].scope.summations)
    for rule in rules:
        for n in numbers:
            yield from rule.matches(program, (n,))


@dataclass(frozen=True, slots=True)
class ExpressionVariant:
    """One variant of an expression: its cost, its library calls, its derivation."""

    seconds: float
    calls: Calls
    derivation: Derivation
    used: frozenset[str] = frozenset()


@dataclass(slots=True)
class ExpressionSearch:
    """The search of one expression, in instalments, and the variants that it has found so far."""

    search: Search
    ended: bool = False
    _events: Generator[SearchEvent] = field(init=False)
    _found: dict[tuple[Calls, frozenset[str]], tuple[float, int]] = field(default_factory=dict)
    _variants: tuple[ExpressionVariant, ...] | None = None

    def __post_init__(self) -> None:
        self._events = (event for event in self.search.run())

    def advance(self, states: int) -> Iterable[SearchEvent]:
        """Continue the search until it has *states* states or ends; yield its events."""
        while not self.ended and len(self.search.states) < states:
            event = next(self._events, None)
            self.ended = event is None
            if isinstance(event, Found):
                kind = _library_calls(event.state.program), self.search.used(event.state.id)
                self._found[kind] = min(self._found.get(kind, (float("inf"), 0)), (event.seconds, event.state.id))
                self._variants = None
            if event is not None:
                yield event

    def variants(self) -> tuple[ExpressionVariant, ...]:
        """The cheapest variants: the best of each choice of operators first, then others of these."""
        if self._variants is None:
            ranked: list[tuple[int, ExpressionVariant]] = []
            count: dict[tuple[tuple[str, ...], frozenset[str]], int] = {}
            for (calls, used), (seconds, state) in sorted(self._found.items(), key=lambda item: item[1]):
                kind = tuple(call.operator for call in calls), used
                count[kind] = count.get(kind, 0) + 1
                if count[kind] <= VARIANTS_PER_KIND:
                    derivation = self.search.derivation(state)
                    ranked.append((count[kind], ExpressionVariant(seconds, calls, derivation, used)))
            self._variants = tuple(variant for _, variant in sorted(ranked, key=lambda pair: pair[0]))
        return self._variants


def _library_calls(program: Program) -> Calls:
    """The library calls of *program*, with their attributes."""
    return tuple(e.via for e in program.equations if e.via and e.via.is_library_call)


def standalone(program: Program, n: int) -> Program:
    """Return equation *n* as a program of its own, with tensors named by position.

    A tensor that is known at compile time is a weight.
    """
    constant = constant_tensors(program)
    scope = program.equations[n].scope
    to = {
        t.name: replace(t, name=f"{'w' if t.name in constant else 'x'}{k}", weight=t.name in constant)
        for k, t in enumerate(dict.fromkeys(tensors(scope)), 1)
    }
    return Program(tuple(to.values()), (Equation("y", map_tensors(scope, lambda t: to[t.name])),), ("y",))


def rank_choices(
    program: Program,
    numbers: Sequence[int],
    variants: Sequence[tuple[ExpressionVariant, ...]],
    cost: Cost,
    cheapest: int,
    merging: int,
    needed: frozenset[str] = frozenset(),
) -> tuple[tuple[tuple[ExpressionVariant, ...], ...], int]:
    """Return combinations of one of *variants* for each of the equations *numbers*, best first.

    These are the *cheapest*, as many with layouts that cancel, and the *merging* whose library calls may merge most;
    combinations that use the *needed* rules come first.
    The second result counts them without the last.
    """
    some = limit_choices(variants)
    choices = np.array(list(product(*(range(len(each)) for each in some))), dtype=np.intp)
    if not len(choices):
        return (), 0
    seconds, saving, alike = np.zeros(len(choices)), np.zeros(len(choices)), np.zeros(len(choices), dtype=np.int64)
    for n, each in enumerate(some):
        seconds += np.array([variant.seconds for variant in each])[choices[:, n]]
    for (a, b), operand in _edges(program, numbers).items():
        saved = np.array([[_cancelled_seconds(one, other, operand, cost) for other in some[b]] for one in some[a]])
        saving += saved[choices[:, a], choices[:, b]]
    for a, b in combinations(range(len(some)), 2):
        akin = np.array([[_mergeable_pairs(one.calls, other.calls) for other in some[b]] for one in some[a]])
        alike += akin[choices[:, a], choices[:, b]]
    lacking = np.array([bool(needed and needed - _used(some, choice)) for choice in choices])
    order = [int(k) for k in np.lexsort((seconds - saving, lacking))]
    first = dict.fromkeys((*order[:cheapest], *[k for k in order if saving[k]][:cheapest]))
    most = [int(k) for k in np.lexsort((seconds, -alike)) if alike[k]][:merging]
    order = list(dict.fromkeys((*first, *most)))
    return tuple(tuple(each[w] for each, w in zip(some, choices[k], strict=True)) for k in order), len(first)


def _used(variants: Sequence[Sequence[ExpressionVariant]], choice: Iterable[int]) -> frozenset[str]:
    return frozenset().union(*(each[w].used for each, w in zip(variants, choice, strict=True)))


def limit_choices(variants: Sequence[tuple[ExpressionVariant, ...]]) -> list[tuple[ExpressionVariant, ...]]:
    """Return the first of the *variants* of each expression, at most ``MAX_CHOICES`` combinations in all.

    With many expressions, two variants of each would be too many: then only the first expressions have two.
    """
    few, left = max(2, int(MAX_CHOICES ** (1 / max(1, len(variants))))), MAX_CHOICES
    some = list[tuple[ExpressionVariant, ...]]()
    for each in variants:
        some.append(each[: max(1, min(few, left))])
        left //= max(1, len(some[-1]))
    return some


def _edges(program: Program, numbers: Sequence[int]) -> Mapping[tuple[int, int], int]:
    """The pairs of places in *numbers* whose second reads the first's result, with the number of that operand."""
    place = {program.equations[n].name: k for k, n in enumerate(numbers)}
    made = {e.name: e for e in program.equations}
    found: dict[tuple[int, int], int] = {}
    for b, n in enumerate(numbers):
        for operand, name in enumerate(tensor_names(program.equations[n].scope)):
            source = name
            while source in made and source not in place and len(own := _pointwise_sources(made[source].scope)) == 1:
                source = own[0]
            if (a := place.get(source)) is not None and a != b:
                found.setdefault((a, b), operand)
    return found


def _pointwise_sources(scope: Scope) -> tuple[str, ...]:
    """The tensors of the same box that *scope* reads at its own point only; none if it sums or has a domain."""
    if scope.summations or scope.domain:
        return ()
    read = {a.source.name: a for a in accesses(scope.body) if isinstance(a.source, Tensor)}
    return tuple(name for name, a in read.items() if a.source.box == scope.box and _is_point(a, scope))


def _is_point(access: Access, scope: Scope) -> bool:
    return tuple(i.single for i in access.index) == scope.traversals


def _cancelled_seconds(one: ExpressionVariant, other: ExpressionVariant, operand: int, cost: Cost) -> float:
    """The seconds of layout eOperators that cancel where *other* reads the result of *one* as its *operand*."""
    last = one.derivation.end.equations[-1]
    program = other.derivation.end
    name = program.inputs[operand].name
    first = [e for e in program.equations if any(_is_of(a, name) for a in accesses(e.scope.body))]
    if last.via is None or not last.via.is_eoperator or (moved := _movement(last)) is None:
        return 0.0
    saved = 0.0
    for equation in first:
        if (read := _movement(equation)) is None or (through := _composed(read, last, moved)) is None:
            return saved
        if view_strides(replace(equation.scope, body=through)) is None:
            return saved
        saved += _seconds(program, equation, cost)
    return saved + _seconds(one.derivation.end, last, cost)


def _is_of(access: Access, name: str) -> bool:
    return isinstance(access.source, Tensor) and access.source.name == name


def _movement(equation: Equation) -> Access | None:
    """The access of an equation that only re-indexes a tensor."""
    match equation.scope:
        case Scope(summations=(), body=Access(Tensor()) as access, domain=()):
            return access
    return None


def _composed(read: Access, made: Equation, moved: Access) -> Access | None:
    """*read*, of the tensor that *made* makes by *moved*, as a read of the latter's source; None outside its box."""
    box = made.scope.box
    if not all(always_holds(Bound(i, lo, hi)) for i, (lo, hi) in zip(read.index, box, strict=True)):
        return None
    to = dict(zip(made.scope.traversals, read.index, strict=True))
    return Access(moved.source, tuple(i.substitute(lambda x: to[x]) for i in moved.index))


def _seconds(program: Program, equation: Equation, cost: Cost) -> float:
    return cost(replace(program, equations=(equation,)))[0] if equation.via and equation.via.is_eoperator else 0.0


def _mergeable_pairs(one: Calls, other: Calls) -> int:
    """Count the pairs of calls of two expressions that are one operator with at most one different attribute."""
    return sum(a.operator == b.operator and _differing(a, b) <= 1 for a, b in product(one, other))


def _differing(a: Instance, b: Instance) -> int:
    return len({name for name, _ in {*a.attributes} ^ {*b.attributes}})
