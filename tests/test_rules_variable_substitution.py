"""Variable substitution: Φ is inverted, verified, and refused with the points that collide."""

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from einnet_explore.analysis.regions import bijection, hull
from einnet_explore.ir import Index, Iterator, Program, as_index
from einnet_explore.rules import VARIABLE_SUBSTITUTION, Refused
from einnet_explore.rules import variable_substitution as module
from einnet_explore.syntax import parse
from tests.rules_kit import Steps, assert_equal, check_rule, contractions, refuses
from tests.strategies import indices, programs

CONV = parse("""
    tensor A[6, 2] pad [1, 0]
    tensor K[3, 2]
    Y[h:6, q:2] = sum[r:3, c:2] A[h+r-1, c] * K[r, c]
""")
BAND = parse("tensor A[20] pad [20]\nY[x:4, y:3] = sum[u:4, v:2] A[x+y+u+v] * A[x+4]")


@given(programs(equations=2))
def test_substitution_keeps_the_value(program: Program) -> None:
    check_rule(VARIABLE_SUBSTITUTION, program)


@given(contractions(reductions=("sum", "max", "min")))
def test_it_keeps_the_value_of_contractions(program: Program) -> None:
    check_rule(VARIABLE_SUBSTITUTION, program)


@given(contractions(), st.data())
def test_any_phi_is_refused_or_right(program: Program, data: st.DataObject) -> None:
    """For any Φ that a user writes, the law holds or is refused."""
    scope = program.scope_at((0,))
    group = data.draw(st.sampled_from((scope.traversals, scope.summations)))
    count = data.draw(st.integers(1, len(group) + 1))
    phi = tuple((f"z{n}", data.draw(indices(group))) for n in range(count))
    try:
        after = program.replace_at((0,), module.rewrite(scope, module.Substitution(phi)))
    except Refused:
        return
    assert_equal(program, after)


@given(st.data())
def test_inferred_inverse_is_correct_or_the_map_is_refused(data: st.DataObject) -> None:
    """Φ⁻¹ ∘ Φ = id on X, the image's bounds hold exactly on Φ(X), and what is refused collides or has no inverse."""
    source = tuple(Iterator(n, lo := data.draw(st.integers(-2, 2)), lo + data.draw(st.integers(1, 4))) for n in "xyz")
    forward = tuple(data.draw(indices(source)) for _ in range(data.draw(st.integers(1, 4))))
    names = tuple(f"t{n}" for n in range(len(forward)))
    points = [
        dict(zip(source, p, strict=True))
        for p in ((a, b, c) for a in range(source[0].lo, source[0].hi) for b in range(source[1].lo, source[1].hi)
                  for c in range(source[2].lo, source[2].hi))
    ]  # fmt: skip
    image = {tuple(f.evaluate(p.__getitem__) for f in forward): p for p in points}
    if len(image) < len(points):
        with pytest.raises(ValueError, match="is not injective"):
            bijection(source, names, forward)
        return
    try:
        phi = bijection(source, names, forward)
    except ValueError as why:
        event(str(why).split()[0])  # "no inverse was found": that is allowed, a wrong inverse is not
        return
    assert len(image) == len(points)
    for z, p in image.items():
        at = dict(zip(phi.target, z, strict=True))
        assert {x: b.evaluate(at.__getitem__) for x, b in phi.to_target.items()} == p
        assert all(x.lo <= at[x] < x.hi for x in phi.target)
    inside = 0
    box: list[tuple[int, ...]] = [()]
    for x in phi.target:
        box = [(*p, v) for p in box for v in range(x.lo, x.hi)]
    for z in box[:4000]:
        at = dict(zip(phi.target, z, strict=True))
        holds = all(b.lo <= b.index.evaluate(at.__getitem__) < b.hi for b in phi.image)
        assert holds == (z in image)
        inside += holds
    assert inside == len(points) or len(box) > 4000


@pytest.mark.parametrize(
    ("phi", "shape"),
    [
        ({"t": "h+3", "q": "q"}, (6, 2)),
        ({"t": "-h", "q": "q"}, (6, 2)),
        ({"q": "q", "h": "h"}, (2, 6)),
        ({"p": "h % 4", "d": "h // 4", "q": "q"}, (4, 2, 2)),
        ({"t": "2*h+q"}, (12,)),
        ({"t": "h+q", "q": "q"}, (7, 2)),
        ({"t": "3*h"}, (16, 2)),
        ({"t": "6*q+h"}, (12,)),
    ],
)
def test_substituted_traversals_have_the_shape_of_the_image(phi: dict[str, str], shape: tuple[int, ...]) -> None:
    steps = Steps(CONV).do(VARIABLE_SUBSTITUTION, (0,), phi=phi)
    assert steps.end.scope_at((0, 0)).shape == shape


def test_iterators_outside_phi_are_unchanged() -> None:
    steps = Steps(CONV).do(VARIABLE_SUBSTITUTION, (0,), phi={"t": "h-2"})
    assert [repr(x) for x in steps.end.scope_at((0, 0)).traversals] == ["t", "q"]


def test_summations_are_replaced_in_place() -> None:
    steps = Steps(BAND).do(VARIABLE_SUBSTITUTION, (0,), phi={"k": "2*u+v"})
    assert [(k.name, k.extent) for k in steps.end.scope_at((0,)).summations] == [("k", 8)]


def test_an_inverse_may_be_given() -> None:
    message = "no inverse of Φ = (x+y, x-y) was found: give one"
    refuses(VARIABLE_SUBSTITUTION, BAND, (0,), message, phi={"a": "x+y", "b": "x-y"})
    inverse = {"x": "(a+b)//2", "y": "(a-b)//2"}
    steps = Steps(BAND).do(VARIABLE_SUBSTITUTION, (0,), phi={"a": "x+y", "b": "x-y"}, inverse=inverse)
    assert steps.end.scope_at((0, 0)).shape == (6, 6)


def test_a_strided_convolution_offers_its_residues_once_they_fit() -> None:
    program = parse("tensor A[9] pad [1]\ntensor K[4]\nY[h:4] = sum[r:4] A[2*h+r-1] * K[r]")
    steps = Steps(program).find(VARIABLE_SUBSTITUTION, (0,), phi={"r1": "r % 2", "r2": "r // 2"})
    assert repr(steps.end.scope_at((0,)).body) == "*(A[2*h+r1+2*r2-1], K[r1+2*r2])"


def test_contiguous_iterators_merge() -> None:
    program = parse("tensor A[3, 2, 4]\ntensor B[3, 2]\nY[q:4] = sum[a:3, b:2] A[a, b, q] * B[a, b]")
    found = [m.to_json()["params"]["phi"] for m in VARIABLE_SUBSTITUTION.matches(program, (0,))]
    assert {"a1": "2*a+b"} in found
    apart = parse("tensor A[3, 2, 4]\ntensor B[2, 3]\nY[q:4] = sum[a:3, b:2] A[a, b, q] * B[b, a]")
    assert list(VARIABLE_SUBSTITUTION.matches(apart, (0,))) == []


def test_proposals_do_not_depend_on_names() -> None:
    """Residues of ``z1`` and ``z2`` are also taken together, although both are named after ``z``."""
    upsampled = (
        "tensor A[2, 2]\ntensor B[6, 6]\nY[{0}:4, {1}:4] = sum[h:2, w:2] A[h, w] * B[{0} - 2*h + 2, {1} - 2*w + 2]"
    )
    found = []
    for names in (("x", "y"), ("z1", "z2"), ("z2", "z")):
        scope = parse(upsampled.format(*names)).scope_at((0,))
        found.append([tuple(i.single is None for _, i in p.phi) for p in module.propose(scope)])
    assert found[0] == found[1] == found[2]
    assert (True,) * 4 in found[0]


@pytest.mark.parametrize("names", ["nx", "xn", "ab", "ba"])
def test_iterators_of_one_value_do_not_prevent_an_inverse(names: str) -> None:
    one, several, last = Iterator(names[0], 0, 1), Iterator(names[1], 0, 2), Iterator("z", 0, 3)
    phi = bijection((one, several, last), ("t",), (3 * one + 3 * several + last,))
    assert phi.points == (6, 6)


def test_moving_elements_proposes_nothing() -> None:
    program = parse("tensor A[4, 4]\nY[x:4, y:4] = A[y, x]")
    assert list(VARIABLE_SUBSTITUTION.matches(program, (0,))) == []


@pytest.mark.parametrize(
    ("phi", "message"),
    [
        ({"t": "h+q"}, "Φ is not injective: (h=0, q=1) and (h=1, q=0) both give (t=1)"),
        ({"t": "h // 2"}, "Φ is not injective: (h=0, q=0) and (h=1, q=0) both give (t=0, q=0)"),
        ({"h": "h", "q": "q"}, "Φ only renames {h, q}"),
        ({"r": "h"}, "new iterators need new names: r is taken"),
        ({"q": "h"}, "new iterators need new names: q is taken"),
        ({"t": "h+r"}, "Φ mixes traversals {h} with summations {r}"),
        ({"t": "3"}, "Φ reads no iterator"),
        ({"t": "r+c", "c": "c"}, "Φ reaches 6 of the 8 points of t:[0, 4) x c:[0, 2): 0 <= -c+t < 3 fails"),
        ({"t": "r // 2", "p": "r % 2"}, "Φ reaches 6 of the 8 points of t:[0, 2) x p:[0, 2) x c:[0, 2)"),
    ],
)
def test_substitutions_without_an_inverse_are_refused(phi: dict[str, str], message: str) -> None:
    refuses(VARIABLE_SUBSTITUTION, CONV, (0,), message, phi=phi)


def test_wrong_inverses_are_refused() -> None:
    wrong = "Φ⁻¹ does not lead back to h: at (h=0, q=0), t differs from it"
    refuses(VARIABLE_SUBSTITUTION, CONV, (0,), wrong, phi={"t": "h+1"}, inverse={"h": "t"})
    short = "the inverse has 1 indices, expected 2"
    refuses(VARIABLE_SUBSTITUTION, CONV, (0,), short, phi={"t": "h+1", "q": "q"}, inverse=["t"])
    stranger = "no iterator is called 'z' here: there are {h, q}"
    refuses(VARIABLE_SUBSTITUTION, CONV, (0,), stranger, phi={"t": "h+1", "q": "q"}, inverse={"z": "t"})
    refuses(VARIABLE_SUBSTITUTION, CONV, (0,), "the parameter 'phi' is missing")


def test_unknown_iterators_are_refused() -> None:
    stranger = module.Substitution((("t", as_index(Iterator("z", 0, 3))),))
    with pytest.raises(Refused, match=r"\{z\} is no iterator of this scope"):
        module.rewrite(CONV.scope_at((0,)), stranger)


def test_hull_and_number_of_points_of_an_image_are_computed() -> None:
    h, r = Iterator("h", 0, 7), Iterator("r", 0, 3)
    assert hull(("t",), (h + r - 1,)) == (Iterator("t", -1, 8),)
    assert bijection((h, r), ("r", "t"), (as_index(r), h + r - 1)).points == (21, 27)
    assert Index() == as_index(0)
