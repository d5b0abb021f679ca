"""Families: derived at one size, proved for all, taken at any that the guards allow."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import einnet_explore as ee
from einnet_explore.cli import main
from einnet_explore.equivalence.certificate import certify
from einnet_explore.equivalence.linear_space import Undecided
from einnet_explore.parametric.assumptions import find_sizes
from einnet_explore.parametric.conjecture import Replay, default_sizes, record_steps
from einnet_explore.parametric.family import Family, FamilyDerivation, family, load_family
from einnet_explore.parametric.step_proofs import prove_legal
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import TextError
from tests.lab_kit import ROOT

CONVOLUTION = """param H >= 3, C, F
tensor A[H, C] pad [1, 0]
tensor K[3, F, C] weight
Y[h:H, f:F] = sum[c:C, r:3] A[h+r-1, c] * K[r, f, c]
"""
IMAGE = """param H, W, C, F
tensor A[H, W, C] pad [1, 1, 0]
tensor K[3, 3, F, C] weight
Y[h:H, w:W, f:F] = sum[c:C, r:3, s:3] A[h+r-1, w+s-1, c] * K[r, s, f, c]
"""
DOT = """param H, W
tensor A[H, W]
tensor B[H, W]
Y[] = sum[h:H, w:W] A[h, w] * B[h, w]
"""
LINE = "param C\ntensor A[C]\ntensor B[C]\nY[] = sum[c:C] A[c] * B[c]\n"


@pytest.fixture(scope="module")
def convolution() -> FamilyDerivation:
    return family(CONVOLUTION).derive(target="Matmul", budget=None, max_depth=6)


def lifted(made: Family, sizes: dict[str, int], **params: object) -> FamilyDerivation:
    """One substitution at *sizes*, for all."""
    session = ee.explore(made.at(**sizes))
    session.apply("variable_substitution", "0", **params)
    return made.lift(session.derivation, sizes)


def test_a_convolution_is_a_product_and_a_sum_of_offsets_for_all_sizes(convolution: FamilyDerivation) -> None:
    assert convolution.proof.kind == "proved"
    assert convolution.proof.means == ("isl",)
    assert convolution.guards == ("H >= 3", "C >= 1", "F >= 1")
    assert convolution.inferred == ()
    assert convolution.proof.rules[0] == "start"
    assert len(convolution.proof.verdicts) == len(convolution.schemas) == len(convolution.steps) + 1
    shown = convolution.text()
    assert "via Matmul(b=1, m=H, n=3*F, k=C, tb=1)" in shown
    assert "K1[n:3*F, k:C] = K[n // F, n % F, k] via View(offset=0, strides=(C, 1))" in shown
    assert "proved for all sizes (isl)" in repr(convolution.prove())
    assert r"\sum_{0 \leq r < 3}" in convolution.latex() and r"n{=}3\,F," in convolution.latex()
    assert r"\text{operator\_matching}" in convolution.align()


@pytest.mark.parametrize("sizes", [{"H": 3, "C": 1, "F": 1}, {"H": 7, "C": 5, "F": 2}, {"H": 64, "C": 32, "F": 48}])
def test_an_instance_is_an_ordinary_program_that_is_equal(convolution: FamilyDerivation, sizes: dict[str, int]) -> None:
    instance = convolution.instantiate(**sizes)
    assert dict(instance.sizes) == sizes
    assert instance.start == convolution.family.at(**sizes)
    assert instance.certificate.kind == "proved"
    assert "for all sizes with H >= 3, C >= 1, F >= 1" in instance.certificate.detail
    assert certify(instance.start, instance.program).kind == "proved"
    assert ee.parse(ee.text(instance.program)) == instance.program


def test_sizes_outside_the_guards_are_refused(convolution: FamilyDerivation) -> None:
    with pytest.raises(Refused, match=r"^H = 2 breaks the guard H >= 3$"):
        convolution.instantiate(H=2, C=4, F=4)
    with pytest.raises(Refused, match=r"^no value of F is given, expected those of H, C, F$"):
        convolution.instantiate(H=3, C=4)
    with pytest.raises(Refused, match=r"^a value of G is given"):
        convolution.family.at(H=3, C=4, F=1, G=1)
    bounded = family("param H >= 2, H <= 8, H % 3 == 1\ntensor A[H]\nY[h:H] = 2 * A[h]")
    with pytest.raises(Refused, match=r"^H = 10 breaks the guard H <= 8$"):
        bounded.at(H=10)
    with pytest.raises(Refused, match=r"^H = 5 breaks the guard H % 3 == 1: 5 % 3 is 2$"):
        bounded.at(H=5)
    assert bounded.at(H=7).equations[0].scope.shape == (7,)


KINDS = {
    "strided": (
        """param H % 2 == 0, C, F
tensor A[H, C] pad [1, 0]
tensor K[3, F, C] weight
Y[h:H//2, f:F] = sum[c:C, r:3] A[2*h+r-1, c] * K[r, f, c]""",
        "Matmul",
        "digits",
    ),
    "any window": (
        """param H >= 3, R, C
tensor A[H+R, C]
tensor K[R, C] weight
Y[h:H] = sum[c:C, r:R] A[h+r, c] * K[r, c]""",
        "Matmul",
        "isl",
    ),
    "a band": (
        """param B, M, K, W
tensor A[B, M, K]
tensor C[B, M, K] pad [0, W, 0]
Y[b:B, m:M, w:2*W+1] = sum[k:K] A[b, m, k] * C[b, m+w-W, k]""",
        "G2BMM",
        "",  # the operator says just that
    ),
    "pooling": (
        """param C, H % 2 == 0, W % 2 == 0
tensor A[C, H, W]
Y[c:C, h:H//2, w:W//2] = max[r:2, s:2] A[c, 2*h+r, 2*w+s]""",
        "MaxPool2d",
        "isl",
    ),
    "heads": (
        """param T, D
tensor Q[T, 8*D]
tensor K[T, 8*D]
S[g:8, i:T, j:T] = sum[d:D] Q[i, D*g+d] * K[j, D*g+d]""",
        "Matmul",
        "digits",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_derivations_of_every_kind_are_proved_for_all_sizes(kind: str) -> None:
    text, target, means = KINDS[kind]
    derived = family(text).derive(target=target, budget=None, max_depth=2)
    assert derived.proof.kind == "proved", derived.proof
    assert derived.proof.means == ((means,) if means else ())
    assert f"via {target}(" in derived.text() or f"via Batch{target}(" in derived.text()
    sizes = {p.name: p.modulus * (p.first + 2) + p.residue for p in derived.ground.parameters}
    instance = derived.instantiate(**sizes)
    assert certify(instance.start, instance.program).kind == "proved"


def test_default_sizes_satisfy_assumptions_and_are_well_separated() -> None:
    ground = family("param H >= 99, W >= 99, C % 7 == 3, F <= 6\ntensor A[H, W, C, F]\nY[i:H] = A[i, 0, 0, 0]").ground
    assert default_sizes(ground) == {"H": 99, "W": 104, "C": 24, "F": 6}


def test_a_remainder_that_a_step_needs_is_inferred_and_guarded() -> None:
    derived = lifted(family(LINE), {"C": 24}, phi={"a": "c//4", "b": "c%4"})
    assert derived.inferred == ("C % 4 == 0",)
    assert derived.proof.kind == "proved"
    assert "Y[] = sum[a:C//4, b:4] A[4*a+b] * B[4*a+b]" in derived.text()
    assert derived.instantiate(C=8).program.equations[0].scope.summations[0].extent == 2
    with pytest.raises(Refused, match=r"C = 26 breaks the guard C % 4 == 0: 26 % 4 is 2"):
        derived.instantiate(C=26)


def test_a_least_size_that_a_step_needs_is_inferred() -> None:
    # Above 5 the two readings are one; below, the first reads A[h] and the second nothing.
    made = family("param H\ntensor A[9]\nY[h:9] = where(h < H, A[h], 0)")
    other = family("param H\ntensor A[9]\nY[h:9] = where(h < H + 5, A[h], 0)")
    found = made.equals(other)
    assert found.kind == "refuted"
    larger = family("param H >= 9\ntensor A[9]\nY[h:9] = where(h < H, A[h], 0)")
    assert larger.equals(other).kind == "proved"


def test_products_of_sizes_and_iterators_are_solved_digit_by_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    derived = lifted(family(DOT), {"H": 11, "W": 17}, phi={"m": "17*h+w"})
    assert derived.proof.kind == "proved"
    assert derived.proof.means == ("digits",)
    assert "sum[m:H*W] A[m // W, m % W] * B[m // W, m % W]" in derived.text()
    assert certify(derived.family.at(H=1, W=3), derived.instantiate(H=1, W=3).program).ok


FLAT = "param H, W\ntensor A[H*W]\nY[] = sum[h:H, w:W] A[W*h+w]"
ROWS = """param H, W
tensor A[H*W] pad [W]
Y[h:H, w:W] = A[W*h+w-W] + A[W*h+w+W]"""
BY_ROWS = ROWS.replace("Y[h:H, w:W] = A[W*h+w-W]", "T[h:-1..H+1, w:W] = A[W*h+w]\nY[h:H, w:W] = T[h-1, w]").replace(
    "A[W*h+w+W]", "T[h+1, w]"
)


def test_z3_proves_pairs_beyond_mixed_radix_splits() -> None:
    pytest.importorskip("z3", reason="products of sizes and iterators need z3-solver")
    found = family(ROWS).equals(family(BY_ROWS))
    assert found.kind == "proved" and "z3" in found.means
    whole = family("param H, W\ntensor A[H*W]\nY[] = sum[m:H*W] A[m]")
    assert family(FLAT).equals(whole).means == ("digits",)
    # One more column: elements at the ends of rows are counted twice.
    wider = FLAT.replace("A[H*W]", "A[H*W+1]").replace("w:W]", "w:W+1]")
    twice = family(wider).equals(family("param H, W\ntensor A[H*W+1]\nY[] = sum[m:H*W+1] A[m]"))
    assert twice.kind == "refuted" and dict(twice.sizes)["H"] > 1


def test_missing_z3_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    found = family(ROWS).equals(family(BY_ROWS))
    assert found.kind == "unproved"
    assert "z3 is not installed" in found.why
    derived = family(IMAGE).derive(target="Matmul", budget=None, max_depth=1)
    assert derived.proof.kind == "unproved" and "z3 is not installed" in derived.proof.verdicts[1].why
    # At one size it is still proved, as ever.
    assert derived.instantiate(H=3, W=5, C=2, F=1).certificate.method == "term relation"


def test_an_image_convolution_as_one_product_is_proved_for_all_sizes() -> None:
    pytest.importorskip("z3", reason="products of sizes and iterators need z3-solver")
    derived = family(IMAGE).derive(target="Matmul", budget=None, max_depth=1)
    assert derived.proof.kind == "proved" and "z3" in derived.proof.means
    assert "m=H*W" in derived.text()
    instance = derived.instantiate(H=3, W=5, C=2, F=2)
    assert certify(instance.start, instance.program).ok


def test_a_wrong_step_is_refuted_at_a_size() -> None:
    right = family("param H >= 3\ntensor A[H]\nY[] = sum[h:H] A[h]")
    wrong = family("param H >= 3\ntensor A[H]\nY[] = sum[h:11] where(h < H, A[h], 0)")
    found = right.equals(wrong)
    assert found.kind == "refuted"
    assert dict(found.sizes) == {"H": 12}  # the least at which it is wrong
    assert "A[11] occurs 1 time before and 0 times after" in str(found)
    assert found.certificate is not None and not found.certificate.ok


def test_functions_and_maxima_of_all_sizes() -> None:
    rows = """param N, D
tensor Q[N, D]
tensor K[N, D]
S[i:N, j:N] = sum[d:D] Q[i, d] * K[j, d]
M[i:N] = max[j:N] S[i, j]
Z[i:N] = sum[j:N] exp(S[i, j] - M[i])
Y[i:N, j:N] = exp(S[i, j] - M[i]) / Z[i]
"""
    turned = rows.replace("S[i:N, j:N] =", "S[j:N, i:N] =").replace("S[i, j]", "S[j, i]")
    assert family(rows).equals(family(turned)).kind == "proved"
    assert family(rows).equals(family(turned.replace("max[j:N]", "max[j:N-1+1-1+1]"))).kind == "proved"
    assert family(rows).equals(family(turned.replace("- M[i]) / Z", "- M[j]) / Z"))).kind != "proved"


def test_printed_family_is_parsed_to_an_equal_family(convolution: FamilyDerivation) -> None:
    again = family(convolution.text())
    assert convolution.family.equals(again).kind == "proved"
    assert family(family(IMAGE).text()).text() == family(IMAGE).text()


def test_a_derivation_from_elsewhere_is_refused() -> None:
    session = ee.explore(family(LINE).at(C=24))
    with pytest.raises(ValueError, match="the derivation starts at another program than the family at"):
        family(LINE).lift(session.derivation, {"C": 23})
    with pytest.raises(ValueError, match=r"the second family has the parameters H, W, expected those of the first: C"):
        family(LINE).equals(family(DOT))


def test_a_derivation_that_does_not_carry_over_is_refused() -> None:
    # Halves of 92: a remainder modulo 46 is more than is looked for.
    with pytest.raises(Refused, match=r"step 1, variable_substitution, does not carry over to C = 93: .*46"):
        lifted(family(LINE), {"C": 92}, phi={"a": "c//46", "b": "c%46"})


def test_a_search_that_finds_nothing_says_so() -> None:
    with pytest.raises(ValueError, match=r"the search at C = 11 found no program with Conv2d"):
        family(LINE).derive(target="Conv2d", budget=None, max_depth=0)


def test_a_step_at_a_place_that_is_not_there_is_not_followed() -> None:
    session = ee.explore(family(LINE).at(C=24))
    session.apply("variable_substitution", "0", phi={"a": "c//4", "b": "c%4"})
    (step,) = record_steps(session.derivation)
    with pytest.raises(Refused, match=r"step 1, variable_substitution: path '5': expected an equation number"):
        Replay(lambda _: session.derivation.start, [replace(step, at=(5,))], {"C": 24}).at({"C": 24})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("param H >=\n", "f.ein:1:11: found the end of the text, expected '(', '-', a name or an integer"),
        ("tensor A[3]\nY[h:3] = A[h]", "f.ein:1:1: found no parameter, expected a line such as: param H >= 3"),
        ("param H % 0 == 0", "f.ein:1:11: found the modulus 0, expected a positive integer"),
        ("param H % 2 == 2", "f.ein:1:16: found the remainder 2 modulo 2, expected one below 2"),
        ("param H >= 9, H <= 3", "f.ein:1:15: found no number with H >= 9 and H <= 3, expected at least one"),
        (
            "param H % 2 == 0\nparam H % 4 == 1",
            "f.ein:2:7: found H % 4 == 1, which no number with H % 2 == 0 has",
        ),
        ("param β\n", "f.ein:1:7: found the parameter β, expected letters from a to z, digits and underscores"),
        (
            "param H\ntensor A[Q]\nY[h:H] = A[h]",
            "f.ein:2:10: found unknown parameter Q, expected one of H (at H = 1)",
        ),
        (
            "param H >= 3\ntensor A[H]\nY[h:H] = A[h+1]",
            "f.ein:3:12: index h+1 of A reaches [1, 3], expected within [0, 3) (at H = 3)",
        ),
        (
            "param H >= 2\ntensor A[H//2]\nY[h:H//2] = A[h]",
            "f.ein:2:10: found 3 / 2, expected a whole number: assume a remainder with param (at H = 3)",
        ),
        (
            "param H\ntensor A[H % 2]\nY[i:H] = A[i]",
            "f.ein:2:10: found a remainder of parameters, expected a polynomial of them (at H = 1)",
        ),
        (
            "param H\ntensor A[H]\nY[H:H] = A[H]",
            "f.ein:3:3: found the iterator H, which is a parameter, expected another name (at H = 1)",
        ),
        (
            "param H\ntensor A[H-2]\nY[i:H] = A[i]",
            "f.ein:2:10: found -1, expected a number that is not negative (at H = 1)",
        ),
    ],
)
def test_mistakes_have_a_line_and_a_column(text: str, expected: str) -> None:
    with pytest.raises(TextError) as raised:
        family(text, "f.ein")
    assert str(raised.value) == expected


WINDOWS = """param W, K, C
tensor A[W, C]
tensor B[K, C]
Y[i:W-K+1] = sum[k:K, c:C] A[i+k, c] * B[k, c]
"""
GROUPS = """param C, G
tensor A[C]
Y[g:2*G] = sum[c:C//(2*G)] A[g*(C//(2*G))+c]
"""
TURNED = "param H, W\ntensor A[H, W]\nY[i:H, j:W] = A[j, i] * A[i, j]\n"


def split(made: Family) -> FamilyDerivation:
    """The sum over the windows apart from that over channels, found where one derives usually."""
    sizes = default_sizes(made.ground)
    session = ee.explore(made.at(**sizes))
    session.apply("summation_splitting", "0", outer=["k"])
    return made.lift(session.derivation, sizes)


def test_an_inequality_between_parameters_is_enough_for_windows() -> None:
    made = family(WINDOWS, assume=["W >= K"])
    assert made.guards == ("W >= 1", "K >= 1", "C >= 1", "W >= K")
    assert family(made.text()).ground == made.ground
    found = split(made)
    assert (found.proof.kind, found.inferred) == ("proved", ())
    instance = found.instantiate(W=4, K=4, C=2)
    assert certify(instance.start, instance.program).kind == "proved"
    with pytest.raises(Refused, match=r"^W = 3, K = 4, C = 1 breaks the guard W >= K$"):
        found.instantiate(W=3, K=4, C=1)
    assert prove_legal(family(WINDOWS).ground, family(WINDOWS).schema).kind == "unproved"
    for weaker in ("W + 1 >= K", "W >= C"):
        assert split(family(WINDOWS, assume=[weaker])).proof.kind != "proved"
    for stronger in ("W > 2*K", "K < W", "K + C <= W"):
        assert split(family(WINDOWS, assume=[stronger])).proof.kind == "proved"


def test_parameters_that_are_equal_are_one() -> None:
    swapped = TURNED.replace("A[j, i] * A[i, j]", "A[i, j] * A[j, i]")
    made = family(TURNED, assume=["H == W"])
    assert made.guards == ("H >= 1", "H == W") and made.at(H=3, W=3)
    assert made.equals(family(swapped, assume=["W == H"])).kind == "proved"
    assert prove_legal(family(TURNED).ground, family(TURNED).schema).kind == "unproved"
    with pytest.raises(Refused, match=r"^W = 4 breaks the guard H == W: it has to be 3$"):
        made.at(H=3, W=4)
    narrow = family(TURNED.replace("H, W\n", "H % 2 == 1, W % 3 == 0, W <= 20, W == H\n", 1))
    assert narrow.guards == ("W >= 1", "W <= 20", "W % 6 == 3", "W == H")
    double = family("param H >= 2, W <= 12, W == 2*H + 1, K, K == W\ntensor A[W]\nY[i:H] = A[2*i+1] + A[K-1]\n")
    assert double.guards == ("H >= 2", "W == 2*H + 1", "K == W", "W <= 12")
    assert double.ground.sizes((5,)) == {"H": 5, "W": 11, "K": 11}
    with pytest.raises(Refused, match=r"^H = 6, W = 13, K = 13 breaks the guard W <= 12$"):
        double.at(H=6, W=13, K=13)


def test_a_remainder_by_other_parameters() -> None:
    made = family(GROUPS, assume=["C % (2*G) == 0"])
    assert made.guards == ("G >= 1", "C % (2*G) == 0")
    assert prove_legal(made.ground, made.schema).kind == "proved"
    assert family(made.text()).equals(family(made.text())).kind == "proved"
    assert made.at(C=12, G=3) == ee.parse("tensor A[12]\nY[g:6] = sum[c:2] A[g*2+c]")
    other = GROUPS.replace("sum[c:C//(2*G)] A[g*(C//(2*G))+c]", "sum[c:C] where(c // (C//(2*G)) == g, A[c], 0)")
    pytest.importorskip("z3")
    assert made.equals(family(other, assume=["C % (2*G) == 0"])).kind == "proved"
    wrong = made.equals(family(other.replace("== g", "== g+1"), assume=["C % (2*G) == 0"]))
    assert wrong.kind == "refuted" and dict(wrong.sizes).keys() == {"C", "G"}
    with pytest.raises(Refused, match=r"^C = 7 breaks the guard C % \(2\*G\) == 0: 2\*G is 6$"):
        made.at(C=7, G=3)


@pytest.mark.parametrize(
    ("assume", "expected"),
    [
        (["W >= K", "W < K"], "'W < K':1:1: found W < K, which no sizes with W >= 1 and K >= 1 and C >= 1 and W >= K"),
        (["W + K >= 9", "K <= 3", "W <= 4"], "'W + K >= 9':1:1: found W + K >= 9, which no sizes with"),
        (["W == K", "K == 2*W + 1"], "'K == 2*W + 1':1:1: found K == 2*W + 1, expected a parameter that stands alone"),
        (["W == K", "W >= 4", "K <= 3"], "'W == K':1:1: found W == K, which no number with W >= 4 and K >= 1 and K <="),
        (["W + K == 8"], "'W + K == 8':1:1: found W + K == 8, expected a parameter that stands alone on one side"),
        (["W == 2*K", "W % 3 == 0"], "'W == 2*K':1:1: found W == 2*K with W % 3 == 0, expected one of the two"),
        (["W % (2*K) == 1"], "'W % (2*K) == 1':1:14: found the remainder 1 by several parameters, expected 0"),
        (["W % (2*W) == 0"], "'W % (2*W) == 0':1:1: found W % (2*W) == 0, expected one parameter, which is not tied"),
        (["W == Q"], "'W == Q':1:1: found unknown parameter Q, expected one of W, K, C"),
        (["W >= K // 2"], "'W >= K // 2':1:1: found W >= K // 2: a size is divided by what need not divide it"),
        (["W >="], "'W >=':1:5: found the end of the text, expected"),
        (["3 >= 2"], "'3 >= 2':1:1: found an assumption without a parameter, expected one such as H >= 3"),
    ],
)
def test_unsatisfiable_and_malformed_assumptions_are_refused(assume: list[str], expected: str) -> None:
    with pytest.raises(TextError) as raised:
        family(WINDOWS, assume=assume)
    assert str(raised.value).startswith(f"assumption {expected}")


def test_family_is_refused_where_a_program_is_expected() -> None:
    with pytest.raises(TextError, match="1:1: found param, expected sizes that are numbers: this is a family"):
        ee.parse(CONVOLUTION)
    assert ee.parse("tensor param[2]\nY[i:2] = param[i]").inputs[0].name == "param"


def test_family_prints_a_proof_and_refuses_wrong_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "conv.ein"
    case.write_text(CONVOLUTION, encoding="utf-8")
    assert load_family(case).guards == ("H >= 3", "C >= 1", "F >= 1")
    command = ["family", str(case), "--target", "Matmul"]
    assert main([*command, "--assume", "H >= C", "--assume", "C > H", "--at", "H=7,C=4,F=2"]) == 2
    assert "assumption 'C > H':1:1: found C > H, which no sizes with" in capsys.readouterr().err
    assert main([*command, "--assume", "H >= C", "--at", "H=7,C=8,F=2"]) == 2
    assert "H = 7, C = 8, F = 2 breaks the guard H >= C" in capsys.readouterr().err
    assert main([*command, "--sizes", "H=11,C=17,F=23", "--at", "H=7,C=4,F=2"]) == 0
    said = capsys.readouterr().out
    assert "proved for H >= 3, C >= 1, F >= 1" in said
    assert "at H = 7, C = 4, F = 2: proved (composition)" in said
    assert main([*command, "--latex", "--at", "H=7,C=4,F=2"]) == 0
    latex = capsys.readouterr()
    assert latex.out.startswith(r"\begin{align*}") and latex.out.count("Rightarrow") > 2 and "proved for" in latex.err
    assert main([*command, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "proved" and document["inferred"] == []
    assert {step["kind"] for step in document["steps"]} == {"proved"}
    assert main([*command, "--at", "H=2,C=4,F=2"]) == 2
    assert "H = 2 breaks the guard H >= 3" in capsys.readouterr().err
    assert main([*command, "--at", "H=2,,"]) == 2
    assert "found '', expected a parameter and a number such as H=56" in capsys.readouterr().err
    assert main([*command, "--sizes", "H=3,H=4"]) == 2
    assert "found H twice, expected it once" in capsys.readouterr().err
    assert main(["derive", str(case)]) == 2
    assert "this is a family of programs" in capsys.readouterr().err


def test_the_family_that_the_text_form_shows() -> None:
    page = (ROOT / "docs" / "text-form.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```ein family\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    made = family(shown)
    assert made.guards == ("H >= 3", "W >= 3", "W <= 512", "C >= 1", "C % 4 == 0")
    assert made.equals(family(made.text())).kind == "proved"
    assert prove_legal(made.ground, made.schema).kind == "proved"
    (wrong,) = re.findall(r"^```text family\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    with pytest.raises(TextError) as raised:
        family(shown.replace("+ r - 1", "+ r"), "conv.ein")
    assert str(raised.value) == wrong


def test_an_instance_that_is_not_what_was_written_is_refused(convolution: FamilyDerivation) -> None:
    sizes = {"H": 5, "C": 2, "F": 3}
    other = family(CONVOLUTION.replace("A[h+r-1, c] *", "2 * A[h+r-1, c] *"))
    with pytest.raises(ValueError, match=r"the text at .* is another program: false"):
        replace(convolution, family=other).instantiate(**sizes)
    end = convolution.schemas[-1]
    calls = tuple(
        replace(e, via=replace(e.via, attributes=(("b", 1), ("m", 1), ("n", 1), ("k", 1))))
        if e.via and e.via.operator == "Matmul"
        else e
        for e in end.equations
    )
    wrong = replace(convolution, schemas=(*convolution.schemas[:-1], replace(end, equations=calls)))
    with pytest.raises(ValueError, match=r"T1: "):
        wrong.instantiate(**sizes)


SEVERAL = {
    "W >= K": "param W, K\ntensor A[W]\ntensor B[K]\nY[i:W-K+1] = sum[k:K] A[i+k] * B[k]\n",
    "H == W": "param H >= 2, W\ntensor A[H, W]\nY[i:H] = sum[j:W-1] A[j, i] * A[i, j+1]\n",
    "C % (2*G) == 0": GROUPS,
}


@pytest.mark.parametrize("guard", SEVERAL)
def test_proofs_with_several_parameters_hold_at_small_sizes(guard: str) -> None:
    """Each number and parameter of the text changed: what is proved equal nevertheless is equal at all small sizes."""
    shown = SEVERAL[guard]
    made = family(shown, assume=[guard])
    at = shown.index("Y[")
    proved = refuted = 0
    for found in re.finditer(r"\b(?:\d+|[A-Z](?!\[))", shown):
        for new in {*made.ground.names, f"({found[0]} + 1)", f"({found[0]} - 1)"} - {found[0]}:
            if found.start() < at:
                continue
            try:
                other = family(shown[: found.start()] + new + shown[found.end() :], assume=[guard])
                verdict = made.equals(other)
            except (TextError, Undecided):
                continue
            for sizes in (dict(zip(made.ground.names, ns, strict=True)) for ns in product(range(1, 7), repeat=2)):
                try:
                    one, two = made.at(**sizes), other.at(**sizes)
                except (Refused, TextError):
                    continue
                if not certify(one, two).ok:
                    refuted += 1
                    assert verdict.kind != "proved", (new, found, sizes)
            proved += verdict.kind == "proved"
    assert refuted >= 5, (proved, refuted)


AREA = "\ntensor A[H, W]\nY[h:H, w:W] = A[h, w]\n"


@pytest.mark.parametrize(
    "assumed",
    [
        "H, W\nparam H*H >= 2*W*W, H*H <= 2*W*W + 1", "H, W\nparam H*W >= 1000000, H <= 5",
        "W, C, H\nparam H == 2*W*C, H*H*H >= W*C*100000000", "H, W\nparam H*H*H >= W*W+7, H*H*H <= W*W+7",
        "H >= 9, W\nparam W % (2*H) == 0, W*W >= 99*H*H",
    ],
)  # fmt: skip
def test_products_that_leave_sizes_are_taken_with_sizes(assumed: str) -> None:
    ground = family(f"param {assumed}{AREA}").ground
    found = find_sizes(ground)
    assert found is not None
    ground.refuse(ground.sizes(found))


def test_assumptions_without_known_sizes_are_refused_with_and_without_z3(monkeypatch: pytest.MonkeyPatch) -> None:
    pell = f"param H, W\nparam H*H >= 61*W*W+1, H*H <= 61*W*W+1{AREA}"
    none = f"param H, W\nparam H*W*W <= 10, H*W >= 9, W >= 2, H >= 2{AREA}"
    if importlib.util.find_spec("z3"):
        with pytest.raises(TextError, match="not known: none of up to 4000 do, and z3 gives up"):
            family(pell)
        with pytest.raises(TextError, match="which no sizes with"):
            family(none)
    monkeypatch.setitem(sys.modules, "z3", None)
    for text in (pell, none):
        with pytest.raises(TextError, match=r"whether any sizes fulfil it is not known: .* z3 is not installed"):
            family(text)
