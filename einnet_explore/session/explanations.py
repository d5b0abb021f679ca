"""Explanations: why rules are refused, why a search did not follow a derivation or a move, and answers of a quiz.

A quiz shows a derivation step by step without its rules.  Its answers are computed: every rule that makes the shown
program is right, hints are computed from the two programs, and a wrong guess is answered by the rule's refusal or by
the program that the rule makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from itertools import islice
from math import prod

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.operand_rounding import certify_step
from einnet_explore.ir import Path, Program, scopes, show_path
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import ALL_RULES, FEWER_PRODUCTS, INTER_RULES, RULES, Derivation, Match, Refused, Rule, Step
from einnet_explore.rules.base import places
from einnet_explore.session.comparison import changed_paths
from einnet_explore.strategies.engine import MIN_IMPROVEMENT, Search
from einnet_explore.strategies.events import Found, MatchRefused, Pruned
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.strategies.options import Cost, Options
from einnet_explore.strategies.program_search import ProgramSearch, search_program
from einnet_explore.support.wording import GREEN, RED, count_noun, hue_style
from einnet_explore.syntax import latex, text
from einnet_explore.viz.tables import DisplayedAsTable, TextTable, format_parameters
from einnet_explore.viz.views import _CHANGED_COLOUR, Formula, formula_figure, mathtext_lines

SIGNS = {"right": "✓", "wrong": "✗", "shown": "→"}

TRIED = 32
"""Matches of a rule that are tried."""

PROBE_EVENTS = 60
"""Events of a search after which a rewrite does not count as one that unblocks it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a rule does not apply at a place."""

    rule: str
    at: Path
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """A step worth taking, None if there is none, and the reason *why*."""

    match: Match[object] | None
    why: str

    def __str__(self) -> str:
        return self.why if self.match is None else f"{self.match.title} at {show_path(self.match.at)}: {self.why}"


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

    Raises LookupError for an unknown name, state or scope, ValueError for a text that is no path.
    """
    program, options = search.states[state].program, search.options
    path = program.path(at)
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


@dataclass(frozen=True, slots=True)
class Blocker:
    """An equation for which a search found no implementation, why, and a step after which it finds one."""

    equation: str
    why: str
    unblock: Match[object] | None

    def __str__(self) -> str:
        step = self.unblock
        if step is None:
            return f"no candidate, because of {self.equation}: {self.why}"
        params = format_parameters(step)
        place = f"{show_path(step.at)} with {params}" if params else show_path(step.at)
        return (
            f"no candidate, because of {self.equation}: {self.why}. "
            f"Apply {step.rule.name} at {place} and search from there"
        )


def blockers(search: Search | ProgramSearch, refused: Iterable[MatchRefused]) -> Iterable[Blocker]:
    """Yield the equations of the start for which *search* refused an eOperator, each once."""
    reasons: dict[int, str] = {}
    for each in refused:
        if each.state == 0 and each.target == "eOperator":
            reasons.setdefault(each.at[0], each.why)
    program = search.start
    for n, why in sorted(reasons.items()):
        if n < len(program.equations):
            yield Blocker(program.equations[n].name, why, _unblocking_step(program, n, search.cost, search.options))


@lru_cache(64)
def _unblocking_step(program: Program, n: int, cost: Cost, options: Options) -> Match[object] | None:
    """Return a step at equation *n* from which a search finds a candidate at once; None if no rule has one."""
    for rule in ALL_RULES:
        if rule in options.rules or rule in FEWER_PRODUCTS:
            continue
        for at, _ in places(program):
            if at[0] != n:
                continue
            for match in islice(rule.matches(program, at), TRIED):
                probe = search_program(match.apply(program).after, cost, replace(options, max_depth=1, ahead=0))
                if any(isinstance(event, Found) for event in islice(probe.run(), PROBE_EVENTS)):
                    return match
    return None


def unexpanded_reason(search: Search | ProgramSearch, state: int) -> str:
    """Return why no moves were made from *state* (yet): the depth, or the end of the run; empty if they were."""
    at, options = search.states[state], search.options
    if state in search.expanded or at.phase == "converging":
        return ""
    far = "" if at.distance is None else f", {count_noun(at.distance, 'iterator')} from the nearest target"
    here = f"it is {count_noun(at.depth, 'choice')} from the start{far}"
    if at.depth >= options.max_depth:
        return f"{here}: the search goes to depth {options.max_depth}"
    if not state and options.starts:
        return "the search started from other programs"
    if search.complete:
        return ""
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


@dataclass(frozen=True, slots=True)
class Question:
    """One step without its rule: *before*, *after* (new parts are coloured), and the rules to choose from."""

    number: int
    before: Program
    after: Program
    choices: tuple[str, ...]

    @property
    def _formulae(self) -> tuple[Formula, Formula]:
        return (
            Formula(self.before, f"E_{{{self.number - 1}}}"),
            Formula(self.after, f"E_{{{self.number}}}", changed_paths(self.before, self.after)),
        )

    def latex(self) -> str:
        """Return both programs, an arrow between them."""
        before, after = self._formulae
        return rf"$${before.latex()}$$ $$\Downarrow\ ?$$ $${after.latex()}$$"

    def svg(self) -> str:
        """Return both programs as a picture, without TeX."""
        lines = mathtext_lines(latex(self.before, dialect="mathtext"))
        lines.append(r"\Downarrow\ ?")
        marks = dict.fromkeys(changed_paths(self.before, self.after), _CHANGED_COLOUR)
        lines += mathtext_lines(latex(self.after, dialect="mathtext", marks=marks))
        return formula_figure(lines, repr(self)).svg

    def __repr__(self) -> str:
        question = f"which rule is it? {', '.join(self.choices)}"
        return f"{text(self.before)}  =>  ?\n{text(self.after)}{question}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/latex": self.latex(), "image/svg+xml": self.svg(), "text/plain": repr(self)}


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a guess was right, and why."""

    question: int
    rule: str
    right: bool
    why: str
    shown: bool = False
    """Whether the answer was revealed instead of guessed."""

    @property
    def verdict(self) -> str:
        """``right``, ``wrong`` or ``shown``."""
        return "shown" if self.shown else "right" if self.right else "wrong"

    def __repr__(self) -> str:
        return f"{self.verdict}: {self.why}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        sign = {"right": "✓ right", "wrong": "✗ wrong", "shown": "→ shown"}[self.verdict]
        colour = {"right": hue_style(GREEN), "wrong": hue_style(RED), "shown": ""}[self.verdict]
        return {"text/html": f"<b style='{colour}'>{sign}</b>: {escape(self.why)}", "text/plain": repr(self)}


class Quiz:
    """The steps of *derivation*, one question each; a right guess leads to the next.

    The choices are *rules* (None: those of a session) and the rules of the derivation.  Raises ValueError for a
    derivation without steps.
    """

    def __init__(self, derivation: Derivation, rules: Iterable[Rule[object]] | None = None) -> None:
        if not derivation.steps:
            raise ValueError("the derivation has 0 steps: there is nothing to guess")
        chosen = (*RULES, *INTER_RULES, matching_rule(OPERATORS)) if rules is None else tuple(rules)
        used = (step.match.rule for step in derivation.steps)
        self.rules: dict[str, Rule[object]] = {rule.name: rule for rule in (*chosen, *used)}
        self.steps = derivation.steps
        self.answers: list[Answer] = []
        self._hints = [0] * len(self.steps)

    @property
    def number(self) -> int:
        """The number of the current question, from 1; the number of steps + 1 when all are answered."""
        return 1 + sum(answer.right for answer in self.answers)

    @property
    def over(self) -> bool:
        """Whether every step was guessed."""
        return self.number > len(self.steps)

    @property
    def _step(self) -> Step:
        if self.over:
            n = len(self.steps)
            raise ValueError("the only step is guessed" if n == 1 else f"all {n} steps are guessed")
        return self.steps[self.number - 1]

    def question(self) -> Question:
        """Return the current question; raises ValueError if every step was guessed."""
        step = self._step
        return Question(self.number, step.before, step.after, tuple(self.rules))

    def hint(self) -> str:
        """Return the next hint: the place, the change of the sizes, the law.

        Raises ValueError if every step was guessed.
        """
        step, n = self._step, self.number - 1
        hint = min(self._hints[n], 2)
        self._hints[n] += 1
        match hint:
            case 0:
                name = step.before.equations[step.match.at[0]].name
                return f"look at the scope {show_path(step.match.at)}, in {name}"
            case 1:
                pairs = zip(_sizes(step.before).items(), _sizes(step.after).values(), strict=True)
                changed = [f"{what} {old:,} → {new:,}" for (what, old), new in pairs if old != new]
                return ", ".join(changed) or f"the numbers of {', '.join(_sizes(step.before))} stay"
            case _:
                return f"its law: {step.match.rule.law}"

    def guess(self, rule: str) -> Answer:
        """Answer whether *rule* makes this step.

        Every rule that makes the same program at the same place is right.  Raises LookupError, with the known rules,
        for an unknown one, and ValueError if every step was guessed.
        """
        step, known = self._step, self.rules.get(rule)
        if known is None:
            raise LookupError(f"no rule is called {rule!r}: there are {', '.join(self.rules)}")
        answer = Answer(self.number, rule, *_judge(step, known))
        self.answers.append(answer)
        return answer

    def reveal(self) -> Answer:
        """Return the answer and go to the next question; raises ValueError if every step was guessed."""
        step = self._step
        answer = Answer(self.number, step.match.rule.name, True, _reason(step, step.match), shown=True)
        self.answers.append(answer)
        return answer

    def score(self) -> TextTable:
        """Return one row for each question: the guesses and the number of hints."""
        rows = []
        for n in range(1, min(self.number, len(self.steps)) + 1):
            mine = [a for a in self.answers if a.question == n]
            guessed = ", ".join(f"{a.rule} {SIGNS[a.verdict]}" for a in mine)
            rows.append((str(n), guessed, str(self._hints[n - 1])))
        at_once = sum(
            a.verdict == "right" and sum(b.question == a.question for b in self.answers) == 1 for a in self.answers
        )
        shown = sum(a.shown for a in self.answers)
        guessed = f"{self.number - 1 - shown} of {len(self.steps)} guessed, {at_once} at once"
        caption = f"{guessed}, {shown} shown" if shown else guessed
        return TextTable(("step", "guesses", "hints"), tuple(rows), caption)

    def __repr__(self) -> str:
        steps, guesses = count_noun(len(self.steps), "step"), count_noun(len(self.answers), "guess", "guesses")
        return f"<Quiz: {self.number - 1} of {steps} guessed, {guesses}>"


def _judge(step: Step, rule: Rule[object]) -> tuple[bool, str]:
    """Return whether *rule* makes *step*, and the reason."""
    at = step.match.at
    if rule == step.match.rule:
        return True, _reason(step, step.match)
    ways = list(islice(rule.matches(step.before, at), TRIED))
    if not ways:
        return False, f"{rule.name} does not apply at {show_path(at)}: {refusal_reason(rule, step.before, at)}"
    wanted = program_key(step.after)
    made = [(way, way.apply(step.before).after) for way in ways]
    same = next((way for way, after in made if program_key(after) == wanted), None)
    if same is not None:
        return True, f"{_reason(step, same)} (the derivation has it as {step.match.rule.name})"
    first, after = made[0]
    with_these = f" ({format_parameters(first)})" if format_parameters(first) else ""
    count = f"in {'more than ' if len(ways) == TRIED else ''}{count_noun(len(ways), 'way')}"
    known = set(_lines(step.before))
    instead = [line for line in _lines(after) if line not in known]
    return False, (
        f"{rule.name} applies at {show_path(at)}, {count}, "
        f"but makes another program: the first{with_these} is {'; '.join(instead)}"
    )


def _reason(step: Step, match: Match[object]) -> str:
    params = format_parameters(match)
    shown = f" ({params})" if params else ""
    return f"{match.title} at {show_path(match.at)}{shown}, {certify_step(match.rule.name, step.before, step.after)}"


def _lines(program: Program) -> list[str]:
    return [line for line in text(program).split("\n") if line]


def _sizes(program: Program) -> dict[str, int]:
    """Count equations, scopes, summations, bounds and points of *program*."""
    found = [scope for equation in program.equations for _, scope in scopes(equation.scope)]
    return {
        "equations": len(program.equations),
        "equations with a chosen operator": sum(equation.via is not None for equation in program.equations),
        "scopes": len(found),
        "summations": sum(len(scope.summations) for scope in found),
        "bounds of domains": sum(len(scope.domain) for scope in found),
        "points computed": sum(prod(x.extent for x in (*scope.traversals, *scope.summations)) for scope in found),
    }
