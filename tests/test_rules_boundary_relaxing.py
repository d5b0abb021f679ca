"""Boundary relaxing: wider ranges and dropped bounds, where only constants are added."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.ir import Bound, Iterator, Program, Scope, Tensor, as_index, program
from einnet_explore.rules import BOUNDARY_RELAXING, RULES, Refused
from einnet_explore.rules import boundaries as module
from einnet_explore.rules.base import places
from einnet_explore.syntax import parse
from tests.rules_kit import Steps, assert_equal, check_rule, contractions, refuses, walks
from tests.strategies import programs


@given(programs(equations=2))
def test_relaxing_keeps_the_value(start: Program) -> None:
    check_rule(BOUNDARY_RELAXING, start)


@given(
    walks(tuple(r for r in RULES if r.name in ("summation_splitting", "variable_substitution", "boundary_relaxing")))
)
def test_it_keeps_the_value_of_what_substitutions_leave(walk: tuple[Program, Program]) -> None:
    start, now = walk
    assert_equal(start, now)
    check_rule(BOUNDARY_RELAXING, now)


@given(contractions(reductions=("sum", "max", "min", "prod")), st.data())
def test_any_wider_range_is_refused_or_right(start: Program, data: st.DataObject) -> None:
    x = data.draw(st.sampled_from(start.scope_at((0,)).summations))
    wider = module.Wider(((x, x.lo - data.draw(st.integers(0, 3)), x.hi + data.draw(st.integers(0, 3))),))
    try:
        after = BOUNDARY_RELAXING.rewrite(start, (0,), wider)
    except Refused:
        return
    assert_equal(start, after)


@given(walks(tuple(r for r in RULES if r.name in ("summation_splitting", "variable_substitution"))), st.data())
def test_any_dropped_bound_is_refused_or_right(walk: tuple[Program, Program], data: st.DataObject) -> None:
    start, now = walk
    at, _ = data.draw(st.sampled_from(list(places(now))))
    bounds = tuple(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True)))
    try:
        after = BOUNDARY_RELAXING.rewrite(now, at, module.Unbound(data.draw(st.integers(0, 1)), bounds, wrap=True))
    except Refused:
        return
    assert_equal(start, after)


def test_a_window_is_padded_to_an_even_one() -> None:
    start = parse("tensor A[9] pad [1]\ntensor K[3] weight\nY[h:9] = sum[r:3] A[h+r-1] * K[r]")
    steps = Steps(start).find(BOUNDARY_RELAXING, (0,), ranges={"r": [0, 4]})
    first, second = (a.source for a in steps.end.scope_at((0,)).body.args)  # type: ignore[union-attr]
    assert (first.padding, second.padding) == (((1, 2),), ((0, 1),))  # both are copied: they are read further out now


def test_padding_that_reaches_needs_no_copy() -> None:
    start = parse("tensor A[9] pad [4]\ntensor K[3] weight pad [2]\nY[h:9] = sum[r:3] A[h+r-1] * K[r]")
    after = Steps(start).do(BOUNDARY_RELAXING, (0,), ranges={"r": [-2, 5]}).end
    assert all(isinstance(a.source, Tensor) for a in after.scope_at((0,)).body.args)  # type: ignore[union-attr]


def test_a_nested_traversal_grows_into_its_padding() -> None:
    start = parse("tensor A[4] pad [3]\nY[h:4] = sum[r:3] {[z:4] A[z] * A[z+1]} pad [1] [h+r-1]")
    after = Steps(start).do(BOUNDARY_RELAXING, (0, 0), ranges={"z": [-1, 5]}).end.scope_at((0, 0))
    assert (after.box, after.padding) == (((-1, 5),), ())
    far = Steps(start).do(BOUNDARY_RELAXING, (0, 0), ranges={"z": [-2, 7]}).end.scope_at((0, 0))
    assert far.shape == (9,)


def test_a_bound_whose_violation_yields_the_value_anyway_is_dropped() -> None:
    x, z = Iterator("x", 0, 6), Iterator("z", 0, 6)
    source = Tensor("A", (3,), ((1, 2),))
    inner = Scope((z,), (), source[(z - 1,)], domain=(Bound(as_index(z), 1, 4),))
    start = program(Scope((x,), (), inner[(x,)]))
    assert Steps(start).find(BOUNDARY_RELAXING, (0,), access=0, bounds=[0]).end.scope_at((0, 0)).domain == ()
    seven = program(Scope((x,), (), replace(inner, value=7)[(x,)]))
    refuses(BOUNDARY_RELAXING, seven, (0,), "reads reach [0, 5], outside 1 <= z < 4", access=0, bounds=[0])
    assert list(BOUNDARY_RELAXING.matches(seven, (0,))) == []


def test_a_copy_with_the_monoids_neutral_element_is_not_taken_for_zero() -> None:
    """Freed of its bound, the maximum would read a copy that is padded with -inf, not the 0 that the domain yields."""
    x, z, k = Iterator("x", 0, 4), Iterator("z", 0, 4), Iterator("k", 0, 2)
    inner = Scope((z,), (k,), Tensor("A", (2, 2))[z - 1, k], "max", domain=(Bound(as_index(z), 1, 3),))
    start = program(Scope((x,), (), inner[(x,)]))
    message = "reads reach [0, 3], outside 1 <= z < 3"
    refuses(BOUNDARY_RELAXING, start, (0,), message, access=0, bounds=[0], wrap=True)


def test_tensors_are_copied_only_if_that_is_allowed() -> None:
    x, z = Iterator("x", 1, 3), Iterator("z", 0, 4)
    inner = Scope((z,), (), Tensor("A", (2,))[(z - 1,)], domain=(Bound(as_index(z), 1, 3),))
    start = program(Scope((x,), (), inner[(x,)]))
    message = "A is read at [-1, 2] in dimension 0, outside [0, 2)"
    refuses(BOUNDARY_RELAXING, start, (0,), message, access=0, bounds=[0])
    Steps(start).find(BOUNDARY_RELAXING, (0,), access=0, bounds=[0], wrap=True)


NESTED = parse("tensor A[4] pad [3]\nY[h:4] = sum[r:3] {[z:4] A[z] + 1} pad [1] [h+r-1]")


@pytest.mark.parametrize(
    ("at", "params", "message"),
    [
        ((0,), {"ranges": {}}, "no range is given"),
        ((0,), {"ranges": {"h": [-1, 4]}}, "h is a traversal of the whole equation: its result keeps [0, 4)"),
        ((0,), {"ranges": {"r": [1, 4]}}, "[1, 4) is not wider than r ∈ [0, 3)"),
        ((0,), {"ranges": {"r": [0, 3]}}, "[0, 3) is not wider than r ∈ [0, 3)"),
        ((0,), {"ranges": {"q": [0, 3]}}, "no iterator is called 'q' here: there are {h, r}"),
        ((0,), {"ranges": {"r": [4, 2]}}, "[4, 2) is not wider than r ∈ "),
        ((0,), {"ranges": {"r": 4}}, "ranges: r: found 4, expected an array"),
        ((0,), {"ranges": {"r": [0, 4]}}, "adds r ∈ [3, 4), where the body is not known to be the neutral 0 of sum"),
        ((0, 0), {"ranges": {"z": [0, 5]}}, "adds z ∈ [4, 5), where the result is 1, but 0 in the padding"),
        ((0,), {"access": 2, "bounds": [0]}, "access 2: the body has 1 accesses"),
        ((0, 0), {"access": 0, "bounds": [0]}, "access 0 reads tensor A, which has no domain"),
        ((0,), {"access": 0, "bounds": []}, "no bound is given"),
        ((0,), {"access": 0, "bounds": [1]}, "bound 1: the domain has 0 bounds"),
        ((0,), {"access": 0}, "the parameter 'bounds' is missing"),
    ],
)
def test_wrong_ranges_are_refused(at: tuple[int, ...], params: dict[str, object], message: str) -> None:
    refuses(BOUNDARY_RELAXING, NESTED, at, message, **params)


def test_ranges_where_the_body_is_not_neutral_are_refused() -> None:
    maximum = parse("tensor A[4] pad [3]\nY[h:2] = max[r:4] A[r] * A[h]")
    message = "adds r ∈ [4, 5), where the body is 0, not the neutral -inf of max"
    refuses(BOUNDARY_RELAXING, maximum, (0,), message, ranges={"r": [0, 5]})
    nested = parse("tensor A[4] pad [3]\nY[h:4] = {[z:4] A[z-1] / A[z]} pad [1] [h]")
    message = "adds z ∈ [4, 5), where the body is not constant"
    refuses(BOUNDARY_RELAXING, nested, (0, 0), message, ranges={"z": [0, 5]})
    with pytest.raises(Refused, match=r"q ∈ \[0, 2\) is no iterator of this scope"):
        BOUNDARY_RELAXING.rewrite(NESTED, (0,), module.Wider(((Iterator("q", 0, 2), 0, 3),)))
