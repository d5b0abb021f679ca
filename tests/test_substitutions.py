"""Generated substitutions of matrices and images: minimal, proved for all sizes; false ones are refuted."""

from pathlib import Path

import pytest

from benchmarks.substitutions import (
    LANGUAGES,
    Term,
    apply,
    candidates,
    enumerated,
    inputs,
    kept,
    main,
    renamed,
    verdict,
)

MATRICES = LANGUAGES["matrices"]
IMAGES = LANGUAGES["images"]


def term(op: str, *args: Term) -> Term:
    made = apply(op, *args)
    assert made is not None
    return made


def test_substitutions_of_two_operators_are_minimal_and_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "verdicts.txt"
    arguments = ["matrices", "--operators", "2", "--save", str(saved)]
    assert main(arguments) == 1  # relu(a·a) needs the sign of a value
    *unproved, last = capsys.readouterr().out.splitlines()[2:]
    assert [line.partition(": ")[2] for line in unproved] == ["relu(mul(a, a)) = mul(a, a)"]
    assert last.startswith("30 proved, 1 unproved")
    verdicts = saved.read_text()
    assert "proved: transpose(transpose(a)) = a\n" in verdicts and "proved: top(rows(a, b)) = a\n" in verdicts
    assert "proved: matmul(scale(s, a), d) = matmul(a, scale(s, d))\n" in verdicts
    saved.write_text(verdicts.replace("unproved: relu(mul(a, a))", "proved: relu(mul(a, a))"))
    main(arguments)  # it goes on from what is saved
    assert capsys.readouterr().out.splitlines()[-1].startswith("31 proved")
    assert saved.read_text().count("\n") == verdicts.count("\n")


def test_substitutions_of_convolutions_are_found_and_proved() -> None:
    found = {f"{one.text} = {other.text}": (one, other) for one, other in kept(candidates(enumerated(2, IMAGES)))}
    for law in (
        "conv(x, enlarge(p)) = conv(x, p)",
        "strided(scale(s, x), k) = strided(x, scale(s, k))",
        "scale(s, valid(x, k)) = valid(x, scale(s, k))",
        "conv(halved(x), p) = halved(conv(x, p))",
        "maxima(relu(x)) = relu(maxima(x))",
    ):
        assert verdict(*found[law]) == "proved", law


def test_convolutions_of_joined_channels_are_proved() -> None:
    x, y, k, kl = (inputs(IMAGES)[name] for name in "xykl")
    joined = term("conv", term("channels", x, y), term("operands", k, kl))
    assert verdict(joined, term("add", term("conv", x, k), term("conv", y, kl))) == "proved"
    assert verdict(joined, term("add", term("conv", x, kl), term("conv", y, k))) == "refuted"
    results = term("conv", x, term("results", k, kl))
    assert verdict(results, term("channels", term("conv", x, k), term("conv", x, kl))) == "proved"
    assert apply("valid", x, inputs(IMAGES)["p"]) is None and apply("matmul", x, k) is None


def test_what_follows_from_others_is_dropped() -> None:
    a, b, s = (inputs(MATRICES)[name] for name in "abs")
    same = term("add", a, b), term("add", b, a)
    with_part = term("relu", same[0]), term("relu", same[1])
    both = term("mul", term("relu", a), b), term("mul", b, term("relu", a))
    plain = term("mul", a, b), term("mul", b, a)
    identified = term("mul", term("scale", s, a), a), term("mul", a, term("scale", s, a))
    k, kl = (inputs(IMAGES)[name] for name in "kl")
    of_kernels = term("mul", k, kl), term("mul", kl, k)
    assert list(kept([same, with_part, plain, both, identified, of_kernels])) == [same, plain]
    assert renamed(same) == renamed((term("add", b, a), term("add", a, b)))


def test_operands_are_the_smallest_of_their_values() -> None:
    texts = {each.text for each in enumerated(2, MATRICES)}
    assert "transpose(transpose(a))" in texts and "relu(add(a, b))" in texts
    assert "relu(add(b, a))" not in texts  # add(b, a) = add(a, b) is a substitution of its own


def test_false_substitutions_are_refuted() -> None:
    a, b, d = (inputs(MATRICES)[name] for name in "abd")
    assert verdict(term("add", a, b), term("add", b, a)) == "proved"
    assert verdict(term("add", a, b), term("add", a, a)) == "refuted"
    square = term("matmul", term("transpose", a), b), term("matmul", term("transpose", b), a)
    assert verdict(*square) == "refuted"
    assert apply("add", a, d) is None and apply("top", a) is None


@pytest.mark.slow
def test_substitutions_of_three_operators_are_proved() -> None:
    found = list(kept(pair for language in LANGUAGES.values() for pair in candidates(enumerated(3, language))))
    kinds = [verdict(one, other) for one, other in found]
    assert kinds.count("proved") >= 500
    unproved = [one.text for (one, _), kind in zip(found, kinds, strict=True) if kind != "proved"]
    assert all("relu" in each or "maxima" in each for each in unproved)
