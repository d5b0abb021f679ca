"""Guess the rule: a derivation is shown step by step without its rules, and guesses are explained.

Answers are computed: every rule that makes the shown program is right, hints are computed from the two programs, and a
wrong guess is answered by the rule's refusal or by the program that the rule makes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import islice
from math import prod

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program, scopes, show_path
from einnet_explore.operators.library import OPERATORS
from einnet_explore.rules import INTER_RULES, RULES, Derivation, Match, Rule, Step
from einnet_explore.session.comparison import changed_paths
from einnet_explore.session.explanations import refusal_reason
from einnet_explore.strategies.instantiation import matching_rule
from einnet_explore.support.wording import GREEN, RED, count_noun, hue_style
from einnet_explore.syntax import latex, text
from einnet_explore.viz.tables import TextTable, format_parameters
from einnet_explore.viz.views import _CHANGED_COLOUR, Formula, formula_figure, mathtext_lines

SIGNS = {"right": "✓", "wrong": "✗", "shown": "→"}

TRIED = 32
"""Matches of a guessed rule that are tried."""


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
                return f"look at the scope {show_path(step.match.at)}"
            case 1:
                pairs = zip(_sizes(step.before).items(), _sizes(step.after).values(), strict=True)
                return ", ".join(f"{what} {old} → {new}" for (what, old), new in pairs)
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
    return f"{match.rule.name} at {show_path(match.at)}{shown}, {certify(step.before, step.after)}"


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
