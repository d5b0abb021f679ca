"""Quiz widget: expressions before and after a step, a button for each rule, hints, and answers to guesses."""

from __future__ import annotations

from typing import Any

from einnet_explore.session.explanations import Quiz
from einnet_explore.syntax.tokens import changed_tokens
from einnet_widgets.face import Face
from einnet_widgets.look import Shown, formula


class QuizView(Face):
    """The questions of *quiz* in turn, below its *goal*; each button is one call of the quiz."""

    def __init__(self, quiz: Quiz, goal: str = "") -> None:
        self.questions = quiz
        self.goal = goal
        self._hints: list[str] = []
        super().__init__(None, ("quiz",), "guess the rule")
        self._show()

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message of the front end; display its error, if any."""
        try:
            self._do(message)
        except (ValueError, LookupError) as error:
            said = str(error.args[0]) if isinstance(error, KeyError) else str(error)
            self.notice = {"text": said, "kind": "error", "code": ""}
        self._show()

    def _do(self, message: dict[str, Any]) -> None:
        self.notice = {}
        quiz = self.questions
        match message.get("do"):
            case "guess":
                if quiz.guess(message["rule"]).right:
                    self._hints = []
            case "hint":
                told = quiz.hint()
                if told not in self._hints:
                    self._hints.append(told)
            case "reveal":
                quiz.reveal()
                self._hints = []
            case "hush":
                pass
            case asked:
                raise ValueError(f"unknown request {asked!r} of the panel: reload the page")

    def _show(self) -> None:
        quiz = self.questions
        score = quiz.score()
        answers = [
            {"question": a.question, "rule": a.rule, "verdict": a.verdict, "why": a.why}
            for a in quiz.answers
            if a.question >= quiz.number - 1
        ]
        shown: Shown = {
            "goal": self.goal,
            "number": quiz.number,
            "of": len(quiz.steps),
            "over": quiz.over,
            "answers": answers,
            "hints": list(self._hints),
            "score": {"head": list(score.head), "rows": [list(row) for row in score.rows], "caption": score.caption},
            "before": None,
            "after": None,
            "choices": list(quiz.rules),
        }
        if not quiz.over:
            asked = quiz.question()
            _, new = changed_tokens(asked.before, asked.after)
            shown |= {"before": formula(asked.before), "after": {**formula(asked.after), "marks": {"new": new}}}
        self.quiz = shown

    def _picture(self) -> dict[str, str]:
        if self.questions.over:
            return self.questions.score()._repr_mimebundle_()
        return self.questions.question()._repr_mimebundle_()
