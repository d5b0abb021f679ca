"""Guess the rule: a rule with the same result is right; a wrong guess is answered with the refusal of the rule."""

from xml.etree import ElementTree

import pytest

import einnet_explore as ee
from einnet_explore.ir import show_path
from einnet_explore.rules import ALL_RULES, Derivation
from einnet_explore.session.explanations import Quiz
from einnet_explore.strategies.instantiation import matching_rule

PHI = {"r": "r", "f": "f", "t": "h+r-1"}


def derivation() -> Derivation:
    """A convolution along one dimension, to a matrix product and what adds its parts."""
    session = ee.explore(
        ee.parse("""
        tensor A[6, 4] pad [1, 0]
        tensor K[3, 5, 4] weight
        Y[h:6, f:5] = sum[c:4, r:3] A[h+r-1, c] * K[r, f, c]
    """)
    )
    session.apply("summation_splitting", at="Y", outer=["r"])
    session.apply("variable_substitution", at="Y.0", phi=PHI)
    for match in ee.clean(session.program)[0]:
        session.apply(match)
    session.apply("operator_matching", at="Y.0", operator="Matmul")
    session.apply("eoperator_generation", at="Y")
    return session.derivation


def test_every_step_is_guessed_by_its_own_rule() -> None:
    steps = derivation().steps
    quiz = Quiz(derivation())
    for n, step in enumerate(steps, 1):
        assert (quiz.number, quiz.over) == (n, False)
        answer = quiz.guess(step.match.rule.name)
        assert answer.right and answer.question == n
        assert f"{step.match.rule.name} at {show_path(step.match.at)}" in answer.why and "proved" in answer.why
    assert quiz.over and quiz.score().caption == f"{len(steps)} of {len(steps)} guessed, {len(steps)} at once"
    for late in (quiz.question, quiz.hint, lambda: quiz.guess("summation_splitting")):
        with pytest.raises(ValueError, match=f"all {len(steps)} steps are guessed"):
            late()


def test_wrong_guess_is_answered_with_numbers_and_the_question_repeats() -> None:
    quiz = Quiz(derivation())
    fused = quiz.guess("expression_fusion")
    assert not fused.right and fused.why.startswith("expression_fusion does not apply at 0: ")
    dense = quiz.guess("eoperator_generation")
    assert "FLOP/element is not below 4" in dense.why
    assert quiz.number == 1
    assert quiz.guess("summation_splitting").right
    assert quiz.number == 2
    assert quiz.score().rows[0][1] == "expression_fusion ✗, eoperator_generation ✗, summation_splitting ✓"


def test_wrong_but_applicable_rule_shows_its_result() -> None:
    quiz = Quiz(derivation())
    other = quiz.guess("boundary_relaxing")
    assert not other.right
    assert other.why.startswith("boundary_relaxing applies at 0, in 1 way, but makes another program: the first ")
    assert "(ranges = r in [0, 4)) is Y[h:6, f:5] = sum[c:4, r:4]" in other.why and "tensor" not in other.why


def test_rule_that_results_in_the_same_program_is_a_right_guess() -> None:
    """A rule of another name that makes the same program at the same place is no wrong guess."""
    splitting, *rest = derivation().steps
    assert rest
    rule = splitting.match.rule
    twin = ee.Rule("twin", "", rule.propose, rule.rewrite, rule.encode, rule.decode, rule.local)
    answer = Quiz(derivation(), rules=(twin,)).guess("twin")
    assert answer.right and "(the derivation has it as summation_splitting)" in answer.why


def test_revealed_answer_is_no_guess() -> None:
    quiz = Quiz(derivation())
    quiz.guess("expression_fusion")
    answer = quiz.reveal()
    assert (answer.verdict, answer.rule, quiz.number) == ("shown", "summation_splitting", 2)
    assert repr(answer).startswith("shown: summation_splitting at 0 (outer = r)") and "→ shown" in str(
        answer._repr_mimebundle_()
    )
    quiz.guess("variable_substitution")
    assert quiz.score().rows[0][1] == "expression_fusion ✗, summation_splitting →"
    assert quiz.score().caption.endswith(" guessed, 1 at once, 1 shown")
    while not quiz.over:
        quiz.reveal()
    with pytest.raises(ValueError, match="steps are guessed"):
        quiz.reveal()


def test_hints_come_one_by_one() -> None:
    quiz = Quiz(derivation())
    assert quiz.hint() == "look at the scope 0, in Y"
    # 6·5·4·3 points, then 6·5·3 outside and 3·6·5·4 inside; what stays is no hint
    assert quiz.hint() == "scopes 1 → 2, points computed 360 → 450"
    assert quiz.hint() == quiz.hint() == f"its law: {quiz.steps[0].match.rule.law}"
    assert quiz.score().rows == (("1", "", "4"),)


def test_a_question_shows_no_reason() -> None:
    question = Quiz(derivation()).question()
    bundle = question._repr_mimebundle_()
    assert set(bundle) == {"text/latex", "image/svg+xml", "text/plain"}
    assert "splitting" not in bundle["text/latex"] and bundle["text/latex"].count("$$") == 6
    assert ElementTree.fromstring(bundle["image/svg+xml"]).tag.endswith("svg")
    assert set(question.choices) >= {"summation_splitting", "operator_matching", "sibling_merging"}
    assert ee.text(question.before) in bundle["text/plain"] and ee.text(question.after) in bundle["text/plain"]
    assert "teal" in bundle["text/latex"]


def test_quiz_without_steps_and_unknown_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="0 steps"):
        Quiz(Derivation(derivation().start))
    quiz = Quiz(derivation(), rules=())
    assert set(quiz.rules) == {step.match.rule.name for step in derivation().steps}
    with pytest.raises(LookupError, match="no rule is called 'magic': there are summation_splitting"):
        quiz.guess("magic")
    assert repr(quiz) == f"<Quiz: 0 of {len(quiz.steps)} steps guessed, 0 guesses>"


def test_answers_show_themselves() -> None:
    quiz = Quiz(derivation())
    wrong, right = quiz.guess("batch_merging"), quiz.guess("summation_splitting")
    assert "✗ wrong" in wrong._repr_mimebundle_()["text/html"] and repr(wrong).startswith("wrong: batch_merging")
    assert "✓ right" in right._repr_mimebundle_()["text/html"] and repr(right).startswith("right: summation_splitting")


@pytest.mark.parametrize("rule", [*ALL_RULES, matching_rule(ee.OPERATORS)], ids=lambda rule: rule.name)
def test_every_rule_has_a_page_of_its_own_words(rule: ee.Rule) -> None:  # type: ignore[type-arg]
    page = ee.rule_page(rule)
    shown = page.markdown()
    assert len(page.words.split()) > 30 and shown.startswith("**") and "$$" in shown
    assert ".. math::" not in shown and ":math:" not in shown and "``" not in shown
    assert shown.count("$$") % 2 == 0


def test_a_rule_of_ones_own_has_its_law_for_a_page() -> None:
    page = ee.rule_page(ee.scope_rule("my_rule", "a \\mapsto b", lambda scope: (), lambda scope, params: scope))
    assert page.words == "" and page.rule.law in page.markdown() and repr(page).startswith("my_rule: ")
