"""Boundary tightening: constant positions are removed, and sums move with their windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Bound, Iterator, Program, Scope, Tensor, as_index, program
from einnet_explore.rules import BILINEAR_SUBSTITUTION, BOUNDARY_TIGHTENING, RULES, Refused
from einnet_explore.rules import boundaries as module
from einnet_explore.rules.base import places
from einnet_explore.syntax import parse
from tests.rules_kit import Steps, assert_equal, check_rule, contractions, refuses, walks
from tests.strategies import indices, programs

INTRA = tuple(r for r in RULES if r.name != "eoperator_generation")


@given(programs(equations=2))
def test_tightening_keeps_the_value(start: Program) -> None:
    check_rule(BOUNDARY_TIGHTENING, start)


@given(contractions(reductions=("sum", "max", "min", "prod")))
def test_it_keeps_the_value_of_contractions(start: Program) -> None:
    check_rule(BOUNDARY_TIGHTENING, start)


@given(walks(INTRA))
def test_it_keeps_the_value_anywhere_in_a_derivation(walk: tuple[Program, Program]) -> None:
    """All five rules at random, and tightening after that."""
    start, now = walk
    assert_equal(start, now)
    check_rule(BOUNDARY_TIGHTENING, now)


@given(walks(INTRA))
def test_every_tightening_computes_fewer_points(walk: tuple[Program, Program]) -> None:
    """Every proposal computes fewer points, so clean-ups that apply it until nothing is left end."""
    now = walk[1]
    for at, scope in places(now):
        for match in BOUNDARY_TIGHTENING.matches(now, at):
            after = match.apply(now).after.scope_at(at)
            assert points(after) < points(scope)


def points(scope: Scope) -> int:
    total = 1
    for x in (*scope.traversals, *scope.summations):
        total *= x.extent
    return total


@given(walks(INTRA), st.data())
def test_any_narrower_range_is_refused_or_right(walk: tuple[Program, Program], data: st.DataObject) -> None:
    start, now = walk
    at, scope = data.draw(st.sampled_from(list(places(now))))
    x = data.draw(st.sampled_from((*scope.traversals, *scope.summations)))
    lo, hi = sorted((data.draw(st.integers(x.lo, x.hi)), data.draw(st.integers(x.lo, x.hi))))
    try:
        after = BOUNDARY_TIGHTENING.rewrite(now, at, module.Tightening(ranges=((x, lo, max(hi, lo + 1)),)))
    except Refused:
        return
    assert_equal(start, after)


@given(contractions(), st.data())
def test_any_window_is_refused_or_right(start: Program, data: st.DataObject) -> None:
    scope = start.scope_at((0,))
    h = data.draw(st.sampled_from(scope.summations))
    window = (h, data.draw(indices(scope.traversals)), data.draw(st.integers(1, 4)))
    try:
        after = BOUNDARY_TIGHTENING.rewrite(start, (0,), module.Tightening(window=(window,)))
    except Refused:
        return
    assert_equal(start, after)


def test_a_summation_shrinks_to_what_is_not_padding() -> None:
    start = parse("tensor A[2] pad [3]\ntensor K[3]\nY[h:1] = sum[r:3] A[h+r-1] * K[r]")
    steps = Steps(start).find(BOUNDARY_TIGHTENING, (0,), ranges={"r": [1, 3]})
    assert list(BOUNDARY_TIGHTENING.matches(steps.end, (0,))) == []


def test_removed_positions_become_padding() -> None:
    start = parse("tensor A[4] pad [(2, 5)]\nY[h:9] = {[z:-2..7] A[z] * 3} [h-2]")
    after = Steps(start).find(BOUNDARY_TIGHTENING, (0, 0), ranges={"z": [0, 4]}).end.scope_at((0, 0))
    assert (after.box, after.padding, after.value) == (((0, 4),), ((2, 3),), 0)


def test_padding_keeps_its_constant() -> None:
    start = parse("tensor A[4] pad [2] value 5\nY[h:6] = {[z:-1..5] A[z] + 1} [h-1]")
    after = Steps(start).find(BOUNDARY_TIGHTENING, (0, 0), ranges={"z": [0, 4]}).end.scope_at((0, 0))
    assert (after.value, after.padding) == (6, ((1, 1),))
    other = parse("tensor A[4] pad [2] value 5\nY[h:6] = {[z:-1..5] A[z] + 1} pad [1] [h-1]")
    assert list(BOUNDARY_TIGHTENING.matches(other, (0, 0))) == []
    message = "cuts away z ∈ [-1, 0), where the result is 6, but 0 in the padding"
    refuses(BOUNDARY_TIGHTENING, other, (0, 0), message, ranges={"z": [0, 5]})


def test_a_sum_of_constants_is_counted() -> None:
    start = parse("tensor A[4] pad [2] value 5\nY[h:6] = {[z:-1..5] sum[k:3] A[z]} [h-1]")
    after = Steps(start).find(BOUNDARY_TIGHTENING, (0, 0), ranges={"z": [0, 4]}).end.scope_at((0, 0))
    assert after.value == 15


def test_a_domain_is_a_boundary() -> None:
    x, z = Iterator("x", 0, 6), Iterator("z", 0, 6)
    inner = Scope((z,), (), Tensor("A", (6,))[(z,)], domain=(Bound(as_index(z), 2, 5),), value=4)
    start = program(Scope((x,), (), inner[(x,)]))
    after = Steps(start).find(BOUNDARY_TIGHTENING, (0, 0), ranges={"z": [2, 5]}).end.scope_at((0, 0))
    assert (after.domain, after.value, after.padding) == ((), 4, ((2, 1),))


@pytest.mark.parametrize(("stride", "k", "taps"), [(2, 4, 2), (2, 3, 2), (3, 5, 2), (4, 9, 3), (1, 3, 3)])
@pytest.mark.parametrize("sign", [1, -1])
def test_summation_shrinks_to_a_moving_window(stride: int, k: int, taps: int, sign: int) -> None:
    h, reach = 5, 30
    index = f"y+1-{stride}*h" if sign > 0 else f"{stride}*h-y+1"
    start = parse(
        f"""
        tensor K[{k}] pad [{reach}]
        Y[y:9] = sum[h:{h}] {{[h:{h}, r:{k}] K[r] * K[h-2]}} pad [0, {reach}] [h, {index}]
    """
    )
    (match,) = [m for m in BOUNDARY_TIGHTENING.matches(start, (0,)) if m.params.window]
    ((_, _, n),) = match.params.window
    assert n == taps
    after = Steps(start).do(BOUNDARY_TIGHTENING, (0,), **match.to_json()["params"]).end
    assert [j.extent for j in after.scope_at((0,)).summations] == [taps]


def test_a_window_may_be_longer_but_not_shorter() -> None:
    start = parse("tensor T[5, 3] pad [9]\nY[y:9] = sum[h:5] T[h, y-2*h]".replace("pad [9]", "pad [9, 9]"))
    Steps(start).do(BOUNDARY_TIGHTENING, (0,), window={"h": ["y//2", 2]})
    Steps(start).do(BOUNDARY_TIGHTENING, (0,), window={"h": ["y//2+1", 4]})
    message = "window h = y // 2 - [0, 1) misses the term at (h=0, y=2)"
    refuses(BOUNDARY_TIGHTENING, start, (0,), message, window={"h": ["y//2", 1]})


def test_a_window_is_proposed_only_where_no_tensor_must_be_copied() -> None:
    start = parse("tensor T[5, 3] pad [0, 9]\nY[y:9] = sum[h:5] T[h, y-2*h]")
    assert list(BOUNDARY_TIGHTENING.matches(start, (0,))) == []
    after = Steps(start).do(BOUNDARY_TIGHTENING, (0,), window={"h": ["y//2", 2]}).end
    assert isinstance(after.scope_at((0,)).body.source, Scope)  # type: ignore[union-attr]


START = parse("tensor A[4] pad [3]\nY[h:4] = sum[r:3] {[z:-1..5] A[z]} [h+r-1] * A[h]")


@pytest.mark.parametrize(
    ("at", "params", "message"),
    [
        ((0,), {}, "neither a range nor a window is given"),
        ((0,), {"ranges": {"h": [0, 3]}}, "h is a traversal of the whole equation: its result keeps [0, 4)"),
        ((0,), {"ranges": {"r": [0, 4]}}, "[0, 4) is not narrower than r ∈ [0, 3)"),
        ((0,), {"ranges": {"r": [0, 3]}}, "[0, 3) is not narrower than r ∈ [0, 3)"),
        ((0,), {"ranges": {"r": [0, 2]}}, "cuts away r ∈ [2, 3), where the body is not known to be the neutral 0"),
        ((0, 0), {"ranges": {"z": [0, 3]}}, "cuts away z ∈ [3, 5), where the body is not constant"),
        ((0,), {"window": {"r": ["h", 0]}}, "window r = h - [0, 0): expected some terms and a base of other iterators"),
        ((0,), {"window": {"r": ["r", 3]}}, "window r = r - [0, 3): expected some terms and a base of other iterators"),
        ((0,), {"window": {"h": ["r", 3]}}, "h is not summed here"),
        ((0,), {"window": {"r": "h"}}, "window: r: found 'h', expected an array"),
    ],
)  # fmt: skip
def test_wrong_ranges_and_windows_are_refused(at: tuple[int, ...], params: dict[str, object], message: str) -> None:
    refuses(BOUNDARY_TIGHTENING, START, at, message, **params)


def test_unknown_iterators_are_refused() -> None:
    q = Iterator("q", 0, 2)
    with pytest.raises(Refused, match=r"q ∈ \[0, 2\) is no iterator of this scope"):
        BOUNDARY_TIGHTENING.rewrite(START, (0,), module.Tightening(ranges=((q, 0, 1),)))
    with pytest.raises(Refused, match="q is not summed here"):
        BOUNDARY_TIGHTENING.rewrite(START, (0,), module.Tightening(window=((q, as_index(0), 1),)))


PHASES = """
    tensor A[2, {h}]
    tensor K[2, 3, {k}] pad [0, 0, {reach}] weight
    Y[f:3, y:{out}] = {{[f:3, y1:{s}, y2:{rows}] sum[c:2, h:{h}]
        A[c, h] * K[c, f, y1+{s}*y2-{s}*h+1]}}[f, y % {s}, y // {s}]"""


@pytest.mark.parametrize(("h", "s", "k", "taps"), [(4, 2, 4, 2), (5, 3, 6, 2), (4, 2, 5, 3)])
def test_phases_of_a_transposed_convolution_are_filters(h: int, s: int, k: int, taps: int) -> None:
    start = parse(PHASES.format(h=h, s=s, k=k, out=s * h, rows=h, reach=s * h))
    inner = start.scope_at((0, 0))
    found = module.phased(inner)
    assert found is not None and [n for _, _, n in found.window] == [taps]
    assert all(not match.params.window for match in BOUNDARY_TIGHTENING.matches(start, (0, 0)))
    after = Steps(start).do(BOUNDARY_TIGHTENING, (0, 0), **BOUNDARY_TIGHTENING.encode(found)).end
    (tap,) = (y for y in after.scope_at((0, 0)).summations if y.extent == taps and y.name != "c")
    y2 = after.scope_at((0, 0)).traversals[2]
    filters = [m.params for m in BILINEAR_SUBSTITUTION.matches(after, (0, 0))]
    assert (y2, tap) in {(p.traversal, p.summation) for p in filters}


def test_a_window_that_stays_inside_its_data_is_no_phase() -> None:
    padded = parse("tensor T[5, 3] pad [9, 9]\nY[y:9] = sum[h:5] T[h, y-2*h]")
    assert module.phased(padded.scope_at((0,))) is None  # proposed as it is
    still = parse("tensor A[4]\ntensor K[3]\nY[h:2] = sum[r:3] A[h+r] * K[r]")
    assert module.phased(still.scope_at((0,))) is None  # nothing moves


def test_windows_that_are_proposed_are_legal_together() -> None:
    program = parse(
        "tensor A[1, 2, 1] pad [(4, 0), (0, 1), (2, 0)]\ntensor B[1, 1] pad [(3, 0), (4, 2)]\n"
        "Y[f:-2..-1, c:-1..1, r:-1..2 | -8 <= 3*f+3*r < -6] = sum[w:2, n:3] "
        "A[f-n, c+2, 2*c] * A[(r+w) % 5-4, (2*r) % 3, -((2*n+2*r+2) % 3)] * B[f-w, 2*f+3*n]"
    )
    steps = [match.apply(program) for match in BOUNDARY_TIGHTENING.matches(program, (0,))]
    assert steps and all(certify(program, step.after).kind == "proved" for step in steps)
