"""Explanations: why rules are refused, and why a search did not follow a derivation or a move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.ir import Path, Program, read_path, show_path
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import Derivation, Refused, Rule
from einnet_explore.strategies.engine import MIN_IMPROVEMENT, Search
from einnet_explore.strategies.events import MatchRefused, Pruned
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.program_search import ProgramSearch
from einnet_explore.support.wording import count_noun
from einnet_explore.viz.tables import DisplayedAsTable, TextTable


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a rule does not apply at a place."""

    rule: str
    at: Path
    why: str


class Refusals(DisplayedAsTable, tuple[Refusal, ...]):
    """Refusals that a notebook shows as a table."""

    __slots__ = ()

    def table(self) -> TextTable:
        """Return one row for each rule."""
        rows = tuple((r.rule, show_path(r.at), r.why) for r in self)
        return TextTable(("rule", "at", "refused because"), rows, "" if self else "every rule has a legal match")


def refusal_reason(rule: Rule[object], program: Program, at: Path) -> str:
    """Return why *rule* proposes nothing: its explanation, else its refusal of empty parameters."""
    if rule.explain is not None and (reason := rule.explain(program, at)):
        return reason
    try:
        rule.match(program, at).apply(program)
    except Refused as refusal:
        if not is_missing_parameter(refusal):
            return str(refusal)
    except (KeyError, TypeError, ValueError):
        pass
    return f"{rule.name} proposes no parameters for this scope"


def is_missing_parameter(error: Exception) -> bool:
    """Whether *error* is about a parameter that is missing."""
    return any(isinstance(each, KeyError) for each in (error, error.__cause__, error.__context__))


def unfollowed_reason(search: Search | ProgramSearch, derivation: Derivation) -> str:
    """Return how far *search* went along *derivation*, and why it went no further.

    Programs are compared by canonical keys.  Raises ValueError if *derivation* starts at a program that is no state of
    *search*.
    """
    options = search.options
    known = {program_key(s.program): s for s in reversed(search.states)}
    programs = [derivation.start, *(step.after for step in derivation.steps)]
    reached = [known.get(program_key(program)) for program in programs]
    if reached[0] is None:
        raise ValueError("the derivation starts from a program that is no state of this search")
    if (end := reached[-1]) is not None:
        return f"the search reached it: its end is state {end.id}"
    n, state = next((n, s) for n, s in reversed(list(enumerate(reached))) if s is not None)
    match = derivation.steps[n].match
    here = f"after {n} of {count_noun(len(derivation.steps), 'step')} it is state {state.id}"
    move = f"{match.rule.name} at {show_path(match.at)}"
    if match.rule.name not in {r.name for r in (*options.rules, *options.between, matching_rule(options.targets))}:
        return f"{here}; the search does not use {match.rule.name}"
    if state.phase == "converging":
        return f"{here}, which is finished: nothing follows {move}"
    if state.depth >= options.max_depth:
        far = count_noun(state.depth, "choice")
        return f"{here}, {far} from the start, so {move} goes beyond depth {options.max_depth}"
    if not search.complete:
        return f"{here}; the search ended before {move} was followed to its end"
    return f"{here}; {options.strategy} leaves out what follows {move} (docs/decisions/0004)"


def refusal_reason_at(search: Search | ProgramSearch, name: str, state: int, at: str) -> str:
    """Return why the rule or operator *name* does not apply at the scope *at* of *state*, or in how many ways it does.

    Raises LookupError for an unknown name, state or scope.
    """
    program, path, options = search.states[state].program, read_path(at), search.options
    program.scope_at(path)
    known = {rule.name: rule for rule in (*options.rules, *options.between, matching_rule(options.targets))}
    known |= {o.name: matching_rule((o,)) for o in (*OPERATORS, *options.targets)}
    if name not in known:
        raise LookupError(f"no rule or operator is called {name!r}: there are {', '.join(known)}")
    return applicability(name, known[name], program, path)


def applicability(name: str, rule: Rule[object], program: Program, at: Path) -> str:
    """Return in how many ways *rule*, called *name*, applies at *at*, or why it does not."""
    ways = sum(1 for _ in rule.matches(program, at))
    return f"{name} applies, in {count_noun(ways, 'way')}" if ways else refusal_reason(rule, program, at)


def end_text(search: Search | ProgramSearch) -> str:
    """Describe in a few words how *search* ended: complete, nothing cheaper, or not exhausted."""
    if search.complete:
        return "complete"
    if search.ended:
        return f"ended: nothing cheaper in {count_noun(search.options.patience, 'level')}"
    return "not exhausted"


def unexpanded_reason(search: Search | ProgramSearch, state: int) -> str:
    """Return why no moves were made from *state* (yet): the depth, or the end of the run; empty if they were."""
    at, options = search.states[state], search.options
    if state in search.expanded or at.phase == "converging":
        return ""
    far = "" if at.distance is None else f", {count_noun(at.distance, 'iterator')} from the nearest target"
    here = f"it is {count_noun(at.depth, 'choice')} from the start{far}"
    if at.depth >= options.max_depth:
        return f"{here}: the search goes to depth {options.max_depth}"
    if not search.ended:
        return f"{here}: the search has not come to it"
    return (
        f"{here}: the search ended before, since in {count_noun(options.patience, 'level')} "
        f"nothing got cheaper than {search.cheapest(at.depth):.3g} s by {MIN_IMPROVEMENT:.0%}"
    )


def pruning_reasons(
    search: Search | ProgramSearch, pruned: Iterable[Pruned], refused: Iterable[MatchRefused], state: int
) -> tuple[str, ...]:
    """Return why moves out of *state* were not followed: twins, refusals, or the end of the run."""
    twins = (f"{p.why}, reached by {search.path(p.twin)}" if p.twin else p.why for p in pruned if p.parent == state)
    refusals = (f"{r.target}: {r.why}" for r in refused if r.state == state)
    left = unexpanded_reason(search, state)
    return (*twins, *refusals, *((left,) if left else ()))
