"""Generated substitutions of matrix programs: minimal, proved for all sizes; false ones are refuted."""

import pytest

from benchmarks.substitutions import Term, apply, candidates, enumerated, inputs, kept, main, renamed, verdict


def term(op: str, *args: Term) -> Term:
    made = apply(op, *args)
    assert made is not None
    return made


def test_substitutions_of_two_operators_are_minimal_and_proved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--operators", "2"]) == 1  # relu(relu(a)) and relu(a·a) need the sign of a value
    *unproved, last = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition(": ")[2] for line in unproved] == ["relu(relu(a)) = relu(a)", "relu(mul(a, a)) = mul(a, a)"]
    assert last.startswith("42 proved, 2 unproved")
    found = {(one.text, other.text) for one, other in kept(candidates(enumerated(2)))}
    assert ("transpose(transpose(a))", "a") in found and ("add(b, a)", "add(a, b)") in found
    assert ("top(rows(a, b))", "a") in found and ("matmul(scale(s, a), d)", "matmul(a, scale(s, d))") in found


def test_what_follows_from_others_is_dropped() -> None:
    a, b, s = (inputs()[name] for name in "abs")
    same = term("add", a, b), term("add", b, a)
    with_part = term("relu", same[0]), term("relu", same[1])
    both = term("mul", term("relu", a), b), term("mul", b, term("relu", a))
    plain = term("mul", a, b), term("mul", b, a)
    identified = term("mul", term("scale", s, a), a), term("mul", a, term("scale", s, a))
    assert list(kept([same, with_part, plain, both, identified])) == [same, plain]
    assert renamed(same) == renamed((term("add", b, a), term("add", a, b)))


def test_false_substitutions_are_refuted() -> None:
    a, b, d = (inputs()[name] for name in "abd")
    assert verdict(term("add", a, b), term("add", b, a)) == "proved"
    assert verdict(term("add", a, b), term("add", a, a)) == "refuted"
    square = term("matmul", term("transpose", a), b), term("matmul", term("transpose", b), a)
    assert verdict(*square) == "refuted"
    assert apply("add", a, d) is None and apply("top", a) is None


@pytest.mark.slow
def test_substitutions_of_three_operators_are_proved() -> None:
    found = list(kept(candidates(enumerated(3))))
    kinds = [verdict(one, other) for one, other in found]
    assert kinds.count("proved") >= 1_000
    assert all("relu" in one.text for (one, _), kind in zip(found, kinds, strict=True) if kind != "proved")
