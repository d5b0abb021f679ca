"""Count the states and find the candidates of a search by strategy ``paper``, without running it.

*Explorative* derivation visits the nodes of ``ScopeGraph``, level by level.  Without the fingerprint, a search visits a
state once for each path to it, and the numbers of paths are computed level by level along the edges of the graph.

*Converging* derivation of a state is composed of that of its parts.  A match of a nested scope leaves a read of its
result in place, and the matches of different states often leave the same.  A program whose equations are all
instantiated is a tree of *calls*; equal ones are one call, since the tensors that it reads are named by their calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import perf_counter, process_time
from typing import TypeAlias

from einnet_evaluation.scope_graph import ScopeGraph
from einnet_explore.analysis.canonical_keys import canonical_key, program_key
from einnet_explore.ir import Access, Equation, Instance, Program, Scope, Tensor, map_tensors, tensors
from einnet_explore.operators.form import check_body
from einnet_explore.operators.operator import Operator
from einnet_explore.rules import EOPERATOR_GENERATION
from einnet_explore.rules.base import accepted
from einnet_explore.strategies.instantiation import matching_rule, scope_distance
from einnet_explore.strategies.moves import Position, host_program

Completions: TypeAlias = "Counter[int]"
"""The calls that converging derivation of an equation ends in, with the number of ways to each."""

STEM = "call "
"""The first letters of the results of calls; no tensor of a case starts with it."""


@dataclass(frozen=True, slots=True)
class Call:
    """An instantiated equation; the tensors that it reads are inputs, or named by the *operands*."""

    equation: Equation
    operands: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Convergence:
    """Converging derivation of nodes of *graph*, each once."""

    graph: ScopeGraph
    start: Program
    operators: tuple[Operator, ...]
    calls: list[Call] = field(default_factory=list)
    _call_of: dict[Hashable, int] = field(default_factory=dict)
    _completions: dict[tuple[int, bool], Completions] = field(default_factory=dict)
    _instances: dict[tuple[int, bool], Instance | None] = field(default_factory=dict)
    _nested: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    _reaches: dict[int, bool] = field(default_factory=dict)
    _comparables: dict[int, tuple[Operator, ...]] = field(default_factory=dict)

    def generated(self, node: int, is_output: bool = True) -> Completions:
        """Return the call of *node* as an eOperator after clean-ups; nothing if eOperator generation refuses it."""
        node = self.graph.cleaned(node)
        via = self.instance(node, is_output)
        return Counter() if via is None else Counter((self._call(self.graph.scope(node), via),))

    def instantiated(self, node: int) -> int:
        """Return the call of *node* as it is, which eOperator generation accepts."""
        via = self.instance(node, is_output=True)
        assert via is not None
        return self._call(self.graph.scope(node), via)

    def matched(self, node: int, is_output: bool = True) -> Completions:
        """Return the calls to which an operator match of *node*, or of a scope nested in it, leads."""
        found: Completions = Counter()
        for call, left, ways in self._matches(node, "equation"):
            for done, more in ((call, 1),) if call is not None else self._finished(left, is_output).items():
                found[done] += ways * more
        for left, ways in self._nested_matches(node):
            for done, more in self._finished(left, is_output).items():
                found[done] += ways * more
        return found

    def is_near(self, node: int) -> bool:
        """Return whether *node* or a scope nested in it has expression distance 0 to an operator."""
        if (known := self._reaches.get(node)) is None:
            known = any(self.is_near(below) for _, below in self.graph.nested(node))
            if not known and (comparable := self._comparable(node)):
                known = scope_distance(self.graph.fresh_scope(node), comparable) == 0
            self._reaches[node] = known
        return known

    def program(self, call: int) -> Program:
        """Return the program of *call*, with the names of the start program's inputs and output."""
        equations: dict[int, Equation] = {}

        def place(number: int) -> None:
            if number not in equations:
                for operand in self.calls[number].operands:
                    place(operand)
                equations[number] = self.calls[number].equation

        place(call)
        last = equations.pop(call)
        (output,) = self.start.outputs
        return Program(self.start.inputs, (*equations.values(), Equation(output, last.scope, last.via)), (output,))

    def instance(self, node: int, is_output: bool) -> Instance | None:
        """Return how eOperator generation runs *node* as it is; None if it refuses it."""
        key = node, is_output
        if key not in self._instances:
            program = Program((), (Equation("Y", self.graph.fresh_scope(node)),), ("Y",) if is_output else ())
            legal = accepted(EOPERATOR_GENERATION.rewrite, program, (0,), None)
            self._instances[key] = EOPERATOR_GENERATION.rewrite(program, (0,), None).equations[0].via if legal else None
        return self._instances[key]

    def _finished(self, node: int, is_output: bool) -> Completions:
        """The calls that *node* leads to after a match: an eOperator, or another match if that is refused."""
        node = self.graph.cleaned(node)
        key = node, is_output
        if (known := self._completions.get(key)) is None:
            known = self.generated(node, is_output) or self.matched(node, is_output)
            self._completions[key] = known
        return known

    def _nested_matches(self, node: int) -> Iterable[tuple[int, int]]:
        """The nodes that the matches of scopes nested in *node* leave, with the number of ways to each."""
        for place, below in self.graph.nested(node):
            if below not in self._nested:
                own = [(left, ways) for _, left, ways in self._matches(below, "nested")]
                self._nested[below] = (*own, *self._nested_matches(below))
            for left, ways in self._nested[below]:
                yield self.graph.swap(node, place, left), ways

    def _matches(self, node: int, position: Position) -> Iterable[tuple[int | None, int, int]]:
        """The calls or the nodes that matches of *node* itself leave, with the number of ways to each."""
        if not (comparable := self._comparable(node)):
            return
        program, at = host_program(self.graph.fresh_scope(node), position)
        for match in matching_rule(comparable).matches(program, at):
            *made, last = match.apply(program).after.equations
            for operands, ways in self._operands(made):
                scope = last.scope if position == "equation" else _only_nested(last.scope)
                scope = _renamed(scope, operands)
                if last.via is not None:
                    yield self._call(scope, last.via), -1, ways
                else:
                    yield None, self.graph.add(scope), ways

    def _comparable(self, node: int) -> tuple[Operator, ...]:
        """The operators whose body is that of *node*."""
        outline = self.graph.nodes[node][0]
        if outline not in self._comparables:
            scope = self.graph.outlines[outline].scope
            self._comparables[outline] = tuple(o for o in self.operators if accepted(check_body, scope, o))
        return self._comparables[outline]

    def _operands(self, made: list[Equation]) -> Iterable[tuple[dict[str, Tensor], int]]:
        """Every way to instantiate the equations *made*: the results by name, and the number of ways to them."""
        found: list[tuple[dict[str, Tensor], int]] = [({}, 1)]
        for equation in made:
            found = [
                ({**known, equation.name: self.calls[call].equation.tensor}, ways * more)
                for known, ways in found
                for call, more in self._calls_of(_renamed(equation.scope, known), equation.via).items()
            ]
        return found

    def _calls_of(self, scope: Scope, via: Instance | None) -> Completions:
        if via is not None:
            return Counter((self._call(scope, via),))
        return self._finished(self.graph.add(scope), is_output=False)

    def _call(self, scope: Scope, via: Instance) -> int:
        key = via, canonical_key(scope)
        if key not in self._call_of:
            number = self._call_of[key] = len(self.calls)
            operands = sorted(int(t.name[len(STEM) :]) for t in tensors(scope) if t.name.startswith(STEM))
            self.calls.append(Call(Equation(f"{STEM}{number}", scope, via), tuple(operands)))
        return self._call_of[key]


def _renamed(scope: Scope, tensors_by_name: dict[str, Tensor]) -> Scope:
    """*scope* with other tensors in place of those of these names."""
    return map_tensors(scope, lambda t: tensors_by_name.get(t.name, t)) if tensors_by_name else scope


def _only_nested(reader: Scope) -> Scope:
    """The scope that *reader* re-indexes."""
    assert isinstance(reader.body, Access) and isinstance(reader.body.source, Scope)
    return reader.body.source


@dataclass(frozen=True, slots=True)
class LevelCount:
    """The states at *depth*, reached by as many moves and no fewer, and the candidates that no smaller depth has.

    *reached*: distinct states; *pruned*: moves to a state that another path reached; *paths*: paths of this length;
    *candidates*: new candidates with their cost; *ways*: all ways of converging derivation from these states to a
    candidate; *near* and *near_ways* are these without converging derivation, when only states with a scope at distance
    0 are matched.  *seconds* are processor time: of explorative derivation, and of converging derivation.
    """

    depth: int
    reached: int
    pruned: int
    paths: int
    candidates: tuple[tuple[float, Program], ...]
    ways: int
    near: tuple[tuple[float, Program], ...]
    near_ways: int
    seconds: tuple[float, float]


@dataclass(slots=True, eq=False)
class StateCount:
    """The levels of a search of *start*, a program of one equation, for *operators*; *cost* prices candidates.

    A state is a node, or ``~node`` if eOperator generation made it an instance.
    """

    start: Program
    operators: tuple[Operator, ...]
    cost: Callable[[Program], tuple[float, str]]
    graph: ScopeGraph = field(default_factory=ScopeGraph)
    _convergence: Convergence = field(init=False)
    _edges: dict[int, list[int]] = field(default_factory=dict, init=False)
    _end: float = field(default=inf, init=False)

    def __post_init__(self) -> None:
        self._convergence = Convergence(self.graph, self.start, self.operators)

    def levels(self, max_depth: int, limit: float = inf) -> Iterable[LevelCount]:
        """Yield the counts of each depth to *max_depth* that *limit* seconds are enough for."""
        self._end = perf_counter() + limit
        with suppress(TimeoutError):
            yield from self._levels(max_depth)

    def _levels(self, max_depth: int) -> Iterable[LevelCount]:
        (equation,) = self.start.equations
        level, paths, pruned = [self.graph.add(equation.scope)], Counter[int](), 0
        paths[level[0]] = 1
        seen, guided, near = set(level), Candidates(self), Candidates(self)
        for depth in range(max_depth + 1):
            began = process_time()
            if depth:
                level, pruned = self._next_level(level, seen)
                paths = self._next_paths(paths)
            explored = process_time()
            self._converge(level, guided, near)
            seconds = explored - began, process_time() - explored
            yield LevelCount(depth, len(level), pruned, paths.total(), *guided.take(), *near.take(), seconds)

    def _within_limit(self, level: list[int]) -> Iterable[int]:
        """Yield the states of *level*; raises TimeoutError when the time is over."""
        for state in level:
            if perf_counter() > self._end:
                raise TimeoutError
            yield state

    def program(self, call: int) -> Program:
        """Return the program of a call."""
        return self._convergence.program(call)

    def _next_level(self, level: list[int], seen: set[int]) -> tuple[list[int], int]:
        """The new states after *level*, and the number of moves to others."""
        after, pruned = list[int](), 0
        for state in self._within_limit(level):
            self._edges[state] = self._successors(state)
            for new in self._edges[state]:
                if new in seen:
                    pruned += 1
                else:
                    seen.add(new)
                    after.append(new)
        return after, pruned

    def _successors(self, state: int) -> list[int]:
        if state < 0:
            return []
        after = list(self.graph.moves(state, "equation"))
        return after if self._convergence.instance(state, is_output=True) is None else [*after, ~state]

    def _next_paths(self, paths: Counter[int]) -> Counter[int]:
        """The number of paths one move longer to each state."""
        longer: Counter[int] = Counter()
        for state, ways in paths.items():
            for new in self._edges[state]:
                longer[new] += ways
        return longer

    def _converge(self, level: list[int], guided: Candidates, near: Candidates) -> None:
        converging = self._convergence
        for state in self._within_limit(level):
            if state < 0:
                done, more = Counter((converging.instantiated(~state),)), Counter[int]()
            else:
                done, more = converging.generated(state), converging.matched(state)
            guided.add(done)
            near.add(done)
            guided.add(more)
            if more and converging.is_near(state):
                near.add(more)


@dataclass(slots=True, eq=False)
class Candidates:
    """The candidates found so far, and those since ``take``."""

    count: StateCount
    _seen: set[int] = field(default_factory=set)
    _keys: set[Hashable] = field(default_factory=set)
    _new: list[tuple[float, Program]] = field(default_factory=list)
    _ways: int = 0

    def add(self, calls: Completions) -> None:
        """Add the programs of *calls*."""
        self._ways += calls.total()
        for call in calls:
            if call not in self._seen:
                self._seen.add(call)
                program = self.count.program(call)
                key = program_key(program)
                if key not in self._keys:
                    self._keys.add(key)
                    self._new.append((self.count.cost(program)[0], program))

    def take(self) -> tuple[tuple[tuple[float, Program], ...], int]:
        """Return the candidates and the number of ways since the last call."""
        new, ways = tuple(self._new), self._ways
        self._new, self._ways = [], 0
        return new, ways
