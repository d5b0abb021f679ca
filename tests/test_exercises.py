"""Exercises grade values and programs, and say what is wrong."""

from typing import Any

import pytest

import einnet_explore as ee

PRODUCT = ee.parse("tensor A[4, 3]\ntensor B[3, 5]\nY[i:4, j:5] = sum[k:3] A[i, k] * B[k, j]")
SESSION = ee.explore(PRODUCT)


@pytest.mark.parametrize(
    ("solution", "right", "wrong", "why"),
    [
        (36, 36, 35, "35 is too small"),
        (36, 36, "many", "found 'many', expected a number"),
        (1.333, 4 / 3, 1.5, "1.5 is too large"),
        (True, True, False, "not False"),
        ("sibling_merging", " Sibling_merging ", "batch_merging", "not 'batch_merging'"),
        ((6, 62), [6, 62], (6, 64), "value 2: 64 is too large"),
        ((6, 62), (6, 62), 6, "found 6, expected 2 values"),
        ({"a", "b"}, ["b", "a"], {"a", "c"}, "not c"),
        ({"a", "b"}, {"a", "b"}, ["a"], "1 of 2 are missing"),
    ],
)
def test_values_are_compared(solution: object, right: object, wrong: object, why: str) -> None:
    exercise = ee.Exercise("?", solution, why="so it is")
    assert repr(exercise.grade(right)) == "right: so it is"
    assert repr(exercise.grade(wrong)) == f"wrong: {why}"
    assert exercise.reveal() == solution


def test_programs_are_certified() -> None:
    exercise = ee.Exercise("?", PRODUCT)
    SESSION.apply("operator_matching", at="Y", operator="Matmul")
    for answer in (PRODUCT, ee.text(PRODUCT), SESSION, SESSION.derivation, ee.search(PRODUCT, max_depth=1).best):
        assert exercise.grade(answer).right
    wrong = exercise.grade(ee.text(PRODUCT).replace("k:3]", "k:2]"))
    assert not wrong.right and wrong.why.startswith("another value: element [0, 0]")
    assert "expected" in exercise.grade("tensor A[4").why
    assert exercise.grade(3).why.startswith("found int, expected a program")


def test_an_objection_to_the_form_is_a_wrong_answer() -> None:
    def objection(program: Any) -> str:
        return "" if len(program.equations) > 1 else "one equation, expected more"

    exercise = ee.Exercise("?", PRODUCT, objection=objection)
    assert exercise.grade(PRODUCT).why == "one equation, expected more"
    assert exercise.grade(ee.text(PRODUCT) + "Z[i:4, j:5] = Y[i, j]\noutput Y").right


def test_exercises_and_grades_display_themselves() -> None:
    exercise = ee.Exercise("How many?", 3, hint="count")
    assert exercise._repr_mimebundle_()["text/markdown"] == "**Exercise.** How many?"
    assert exercise.hint() == "count" and ee.Exercise("?", 3).hint() == "there is no hint"
    assert "✓ right" in exercise.grade(3)._repr_mimebundle_()["text/html"]
    assert "✗ wrong" in exercise.grade(4)._repr_mimebundle_()["text/html"]
