"""Exercises of lessons, graded automatically: values are compared, programs are certified against the solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from html import escape
from math import isclose
from numbers import Real
from typing import Any

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import Derivation
from einnet_explore.session.session import Session
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.support.wording import GREEN, RED, hue_style
from einnet_explore.syntax import TextError, parse

TOLERANCE = 0.01
"""Relative error of a right answer that is no whole number."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Whether an answer is right, and why."""

    right: bool
    why: str

    def __repr__(self) -> str:
        return f"{'right' if self.right else 'wrong'}: {self.why}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        sign, colour = ("✓ right", GREEN) if self.right else ("✗ wrong", RED)
        return {"text/html": f"<b style='{hue_style(colour)}'>{sign}</b>: {escape(self.why)}", "text/plain": repr(self)}


class Exercise:
    """A *question* with its *solution*, which ``grade`` compares with an answer.

    If the solution is a program, every program of the same value is right (``ee.equal``); an answer may be a program,
    its text, a session, a derivation or a candidate.  Numbers may differ by one percent, unless they are whole;
    sequences are compared element by element, sets in any order, texts without their case.  *objection* returns what is
    wrong with an answer that has the right value, such as a program of another form than the question asks for, and an
    empty text if nothing is.  *why* explains the solution.
    """

    def __init__(
        self,
        question: str,
        solution: object,
        hint: str = "",
        why: str = "",
        objection: Callable[[Any], str] | None = None,
    ) -> None:
        self.question = question
        self._solution = solution
        self._hint = hint
        self._why = why
        self._objection = objection

    def grade(self, answer: object) -> Grade:
        """Return whether *answer* is right, and why: a counterexample for programs, the direction for numbers."""
        given = answer
        if isinstance(self._solution, Program):
            try:
                given = _program(answer)
            except (TextError, TypeError) as error:
                return Grade(False, str(error))
        wrong = _difference(given, self._solution) or (self._objection(given) if self._objection else "")
        return Grade(False, wrong) if wrong else Grade(True, self._why or "equal to the solution")

    def hint(self) -> str:
        """Return a hint."""
        return self._hint or "there is no hint"

    def reveal(self) -> object:
        """Return the solution."""
        return self._solution

    def __repr__(self) -> str:
        return f"Exercise: {self.question}"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/markdown": f"**Exercise.** {self.question}", "text/plain": repr(self)}


def _program(answer: object) -> Program:
    """Return the program that *answer* is, names or ends at; raises TextError, and TypeError for other values."""
    match answer:
        case Program():
            return answer
        case str():
            return parse(answer)
        case Session() | Candidate():
            return answer.program
        case Derivation():
            return answer.end
        case _:
            kinds = "a program, its text, a session, a derivation or a candidate"
            raise TypeError(f"found {type(answer).__name__}, expected {kinds}")


def _difference(answer: object, solution: object) -> str:
    """Return what is wrong with *answer*; empty if it has the value of *solution*."""
    match solution:
        case Program():
            assert isinstance(answer, Program)
            verdict = certify(solution, answer)
            said = "another value" if verdict.kind == "false" else "not certified"
            return "" if verdict.ok else f"{said}: {verdict.counterexample or verdict.detail}"
        case bool() | None:
            return "" if answer is solution else f"not {answer}"
        case Real():
            return _numeric_difference(answer, float(solution), isinstance(solution, int))
        case str():
            same = isinstance(answer, str) and answer.strip().casefold() == solution.casefold()
            return "" if same else f"not {answer!r}"
        case AbstractSet():
            return _set_difference(answer, solution)
        case Sequence():
            if not isinstance(answer, Sequence) or isinstance(answer, str) or len(answer) != len(solution):
                return f"found {answer!r}, expected {len(solution)} values"
            parts = (_difference(a, s) for a, s in zip(answer, solution, strict=True))
            return next((f"value {n}: {part}" for n, part in enumerate(parts, 1) if part), "")
        case _:
            return "" if answer == solution else f"not {answer!r}"


def _numeric_difference(answer: object, solution: float, whole: bool) -> str:
    if not isinstance(answer, Real) or isinstance(answer, bool):
        return f"found {answer!r}, expected a number"
    number = float(answer)
    if number == solution or (not whole and isclose(number, solution, rel_tol=TOLERANCE)):
        return ""
    return f"{answer} is too {'small' if number < solution else 'large'}"


def _set_difference(answer: object, solution: AbstractSet[object]) -> str:
    if isinstance(answer, str) or not isinstance(answer, (Sequence, AbstractSet)):
        return f"found {answer!r}, expected a set"
    found = set(answer)
    if extra := found - solution:
        return f"not {', '.join(sorted(map(str, extra)))}"
    missing = len(solution - found)
    return f"{missing} of {len(solution)} are missing" if missing else ""
