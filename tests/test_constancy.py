"""Constant propagation is sound: where a bound is violated, the body has the constant."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.analysis.padding import Constancy, confined_range, constancy
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Bound, Iterator, Scope, Tensor, mul
from tests.pointwise import index_at, points
from tests.strategies import indices, inputs_for, iterators, scopes_


def sound(scope: Scope) -> None:
    known = constancy(scope.body)
    if known is None or scope.domain:
        return
    over = (*scope.traversals, *scope.summations)
    body = evaluate(Scope(over, (), scope.body), inputs_for(scope, 0))
    for point in points(over):
        inside = known.bounds is not None and all(b.lo <= index_at(b.index, point) < b.hi for b in known.bounds)
        if not inside:
            assert math.isclose(body[tuple(point[x] - x.lo for x in over)], known.value, rel_tol=1e-9)


@given(scopes_())
def test_constants_are_sound(scope: Scope) -> None:
    sound(scope)


@given(scopes_(polynomial=True, quotients=False))
def test_constants_of_polynomials_are_sound(scope: Scope) -> None:
    sound(scope)


@given(st.data(), st.lists(iterators(), min_size=1, max_size=3, unique_by=lambda y: y.name), st.integers(-6, 6))
def test_confined_range_contains_all_points_of_the_bound(data: st.DataObject, over: list[Iterator], lo: int) -> None:
    bound = Bound(data.draw(indices(over)), lo, lo + data.draw(st.integers(0, 5)))
    for y in over:
        found = confined_range(bound, y)
        if found is not None:
            for point in points(tuple(over)):
                if bound.lo <= index_at(bound.index, point) < bound.hi:
                    assert found[0] <= point[y] < found[1]


def test_padding_makes_a_product_zero() -> None:
    t, r = Iterator("t", -1, 8), Iterator("r", 0, 3)
    product = mul(Tensor("A", (7,), ((1, 1),))[(t,)], Tensor("K", (3,))[(r,)])
    assert constancy(product) == Constancy((Bound(t + 0, 0, 7),), 0)


def test_zero_times_infinite_padding_is_unknown() -> None:
    t = Iterator("t", -1, 8)
    zero, infinite = Tensor("A", (7,), ((1, 1),)), Tensor("B", (7,), ((1, 1),), value=-np.inf)
    assert constancy(mul(zero[(t,)], infinite[(t,)])) is None
