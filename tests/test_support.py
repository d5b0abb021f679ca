"""Supports against evaluation: outside the interval the value is the constant, whatever the inputs are."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.algebra import measure
from einnet_explore.algebra.evaluate import evaluate
from einnet_explore.algebra.support import Support, narrowed, neutral_outside, support, zero_outside
from einnet_explore.ir import Apply, Bound, Compare, Const, Iterator, Scope, Tensor, add, as_index, mul
from tests.pointwise import index_at, points
from tests.strategies import indices, inputs_for, iterators, scopes_

INF = float("inf")


def x(name: str, hi: int, lo: int = 0) -> Iterator:
    return Iterator(name, lo, hi)


def sound(scope: Scope) -> None:
    for seed in range(2):
        inputs = inputs_for(scope, seed)
        value = evaluate(scope, inputs)
        for axis, t in enumerate(scope.traversals):
            found = support(scope, t)
            assert t.lo <= found.lo and found.hi <= t.hi
            outside = [n for n in range(t.extent) if not found.lo <= n + t.lo < found.hi]
            assert np.all(value.take(outside, axis) == found.constant)
        for y in scope.summations:
            found = support(scope, y)
            plain = Scope((*scope.traversals, *scope.summations), (), scope.body)
            if not scope.domain:
                outside = [n for n in range(y.extent) if not found.lo <= n + y.lo < found.hi]
                inner = evaluate(plain, inputs).take(outside, plain.traversals.index(y))
                assert np.all(inner == found.constant)
            if neutral_outside(scope, y, found.lo, found.hi) and not found.empty:
                cut = Iterator(y.name, found.lo, found.hi)
                assert np.array_equal(evaluate(_cut(scope, y, cut), inputs), value)


def _cut(scope: Scope, y: Iterator, cut: Iterator) -> Scope:
    body = Scope((*scope.traversals, *scope.summations), (), scope.body)
    sums = tuple(cut if z == y else z for z in scope.summations)
    return replace(scope, summations=sums, body=body[(*scope.traversals, *sums)])


@given(scopes_())
def test_support_is_sound(scope: Scope) -> None:
    sound(scope)


@given(scopes_(polynomial=True, quotients=False))
def test_support_is_sound_on_polynomials(scope: Scope) -> None:
    sound(scope)


@given(st.data(), st.lists(iterators(), min_size=1, max_size=3, unique_by=lambda y: y.name), st.integers(-6, 6))
def test_narrowed_is_necessary(data: st.DataObject, over: list[Iterator], lo: int) -> None:
    bound = Bound(data.draw(indices(over)), lo, lo + data.draw(st.integers(0, 5)))
    for y in over:
        first, last = narrowed(bound, y)
        for point in points(tuple(over)):
            if bound.lo <= index_at(bound.index, point) < bound.hi:
                assert first <= point[y] < last


h, r, c, t = x("h", 7), x("r", 3), x("c", 4), x("t", 8, -1)
PADDED = Tensor("A", (7, 4), ((1, 1), (0, 0)))
WEIGHT = Tensor("K", (3, 4))


def test_convolution_relaxed_and_tightened() -> None:
    """Fig. 3: the inner scope over t in [-1, 8) is zero outside [0, 7)."""
    inner = Scope((r, t), (c,), mul(PADDED[t, c], WEIGHT[r, c]))
    assert support(inner, t) == Support(0, 7, 0)
    assert support(inner, r) == Support(0, 3, 0)
    assert zero_outside(inner.body, t, 0, 7)
    assert not zero_outside(inner.body, t, 0, 6)
    assert not zero_outside(inner.body, t, 1, 7)


def test_supports_pass_through_nested_scopes() -> None:
    inner = Scope((r, t), (c,), mul(PADDED[t, c], WEIGHT[r, c]))
    wide = x("h", 20, -8)
    outer = Scope((wide,), (r,), replace(inner, padding=((0, 0), (9, 14)))[r, wide + r - 1])
    assert support(outer, wide) == Support(-1, 8, 0)
    valued = replace(inner, padding=((0, 0), (9, 14)), value=5)
    assert support(replace(outer, body=valued[r, wide + r - 1]), wide) == Support(-2, 9, 15)
    never_padded = replace(outer, traversals=(h,), body=replace(inner, value=5)[r, h + r - 1])
    assert support(never_padded, h) == Support(0, 7, 0)
    relaxed = Scope((t,), (), replace(inner, value=5)[0, t])
    assert support(relaxed, t) == Support(0, 7, 0)


def test_sums_take_the_hull_and_products_the_intersection() -> None:
    wide = x("w", 12, -3)
    at = [Tensor("A", (4,), ((9, 9),))[(wide - n,)] for n in (0, 2)]
    assert support(Scope((wide,), (), add(*at)), wide) == Support(0, 6, 0)
    assert support(Scope((wide,), (), mul(*at)), wide) == Support(2, 4, 0)
    assert support(Scope((wide,), (), add(Const(3), *at)), wide) == Support(0, 6, 3)
    assert support(Scope((wide,), (), Apply("relu", (mul(*at),))), wide) == Support(2, 4, 0)
    assert support(Scope((wide,), (), Apply("exp", (mul(*at),))), wide) == Support(2, 4, 1)
    assert support(Scope((wide,), (), Apply("-", (at[0], Const(1)))), wide) == Support(0, 4, -1)


def test_infinite_padding() -> None:
    wide = x("w", 12, -6)
    read = Tensor("A", (4,), ((9, 9),), -INF)[(wide + r - 1,)]
    pool = Scope((wide,), (r,), read, "max")
    assert support(pool, wide) == Support(-1, 5, -INF)
    summed = Scope((r,), (wide,), read, "max")
    assert neutral_outside(summed, wide, -1, 5)
    assert not neutral_outside(summed, wide, 0, 5)
    zero = Tensor("B", (2,), ((9, 9),))[(wide,)]
    assert not zero_outside(mul(zero, read), wide, 0, 2)


def test_zero_times_what_need_not_be_finite_is_unknown() -> None:
    wide = x("w", 6, -3)
    zero, other = Tensor("B", (2,), ((9, 9),))[(wide,)], Tensor("A", (9,))[(wide + 3,)]
    assert zero_outside(mul(zero, other), wide, 0, 2)
    assert not zero_outside(mul(zero, Apply("log", (other,))), wide, 0, 2)


def test_where_narrows() -> None:
    wide = x("w", 12)
    read = Tensor("A", (12,))[(wide,)]
    low = Compare("<", as_index(wide), as_index(5))
    assert support(Scope((wide,), (), Apply("where", (low, read, Const(0)))), wide) == Support(0, 5, 0)
    assert support(Scope((wide,), (), Apply("where", (low, Const(7), read))), wide) == Support(5, 12, 7)
    equal = Compare("==", wide * 2, as_index(8))
    assert support(Scope((wide,), (), Apply("where", (equal, read, Const(0)))), wide) == Support(4, 5, 0)


def test_domains() -> None:
    read = Tensor("A", (7,))[(h,)]
    domain = (Bound(2 * h, 3, 9),)
    assert support(Scope((h,), (), read, domain=domain, value=4), h) == Support(2, 5, 4)
    two = Tensor("B", (3,), ((0, 9),))[(h,)]
    assert support(Scope((h,), (), two, domain=domain), h) == Support(2, 3, 0)
    assert support(Scope((h,), (), two, domain=domain, value=4), h) == Support(2, 5, 4)


@pytest.mark.parametrize(("monoid", "constant"), [("sum", 10), ("prod", 32), ("max", 2), ("min", 2)])
def test_the_constant_is_reduced(monoid: str, constant: float) -> None:
    wide, five = x("w", 6), x("k", 5)
    read = Tensor("A", (3,), ((0, 9),), 2)[(wide,)]
    assert support(Scope((wide,), (five,), read, monoid), wide) == Support(0, 3, constant)


def test_quotients_are_opened() -> None:
    wide = x("w", 20)
    read = Tensor("A", (3,), ((0, 9),))[((wide + 1) // 2,)]
    assert support(Scope((wide,), (), read), wide) == Support(0, 5, 0)


def test_an_iterator_of_another_scope_is_refused() -> None:
    with pytest.raises(ValueError, match="q is no iterator of the scope over h"):
        support(Scope((h,), (), Const(1)), x("q", 2))


def matmul(m: int, n: int, k: int) -> Scope:
    M, N, K = x("m", m), x("n", n), x("k", k)
    return Scope((M, N), (K,), mul(Tensor("A", (m, k))[M, K], Tensor("B", (k, n))[K, N]))


def test_measures_of_a_matrix_product() -> None:
    scope = matmul(8, 16, 32)
    assert measure.flops(scope) == 2 * 8 * 16 * 32
    assert measure.elements(scope) == 8 * 32 + 32 * 16 + 8 * 16
    assert measure.intensity(scope) == pytest.approx(8192 / 896)
    assert measure.bytes_moved(scope) == 4 * 896
    assert measure.bytes_moved(scope, 2) == 2 * 896


def test_measures_count_nested_scopes_once() -> None:
    inner = matmul(4, 4, 8)
    i, j = inner.traversals
    outer = Scope((i, j), (), Apply("relu", (add(inner[i, j], inner[j, i], Tensor("C", (4, 4))[i, j]),)))
    assert measure.flops(outer) == 2 * 128 + 16 * 3
    assert measure.elements(outer) == 32 + 32 + 16 + 16


def test_layout_is_bound_by_memory_and_moves_what_it_reads() -> None:
    i = x("i", 4)
    scope = Scope((i,), (), Tensor("A", (100, 4))[0, i])
    assert measure.intensity(scope) == 0
    assert measure.elements(scope) == 404
    assert measure.bytes_moved(scope) == 4 * 8
    assert measure.intensity(Scope((x("z", 0),), (), Const(1))) == 0
