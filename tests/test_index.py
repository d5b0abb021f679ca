"""Index arithmetic: every simplification keeps the value, bounds hold, and equal functions are found equal."""

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.ir import Index, Iterator, Quotient, Remainder, Tensor, as_index
from tests.pointwise import index_at, points

i, j, k = Iterator("i", 0, 12), Iterator("j", 0, 5), Iterator("k", -3, 4)
big = Iterator("i", 0, 7500)

# An index as it is written: it is built (and simplified) by arithmetic, and evaluated here without any.
Written = tuple[Any, ...]


def written(over: list[Iterator]) -> st.SearchStrategy[Written]:
    leaves = st.sampled_from([("x", x) for x in over]) | st.tuples(st.just("c"), st.integers(-9, 9))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("+"), inner, inner),
            st.tuples(st.just("-"), inner, inner),
            st.tuples(st.just("*"), inner, st.integers(-4, 6)),
            st.tuples(st.just("/"), inner, st.sampled_from([1, 2, 3, 4, 6, 8])),
            st.tuples(st.just("%"), inner, st.sampled_from([1, 2, 3, 4, 6, 8])),
        ),
        max_leaves=6,
    )


def build(tree: Written, leaf: Callable[[Iterator], Any] = as_index) -> Any:
    match tree:
        case "x", x:
            return leaf(x)
        case "c", c:
            return c if leaf is not as_index else as_index(c)
        case "+", a, b:
            return build(a, leaf) + build(b, leaf)
        case "-", a, b:
            return build(a, leaf) - build(b, leaf)
        case "*", a, n:
            return build(a, leaf) * n
        case "/", a, n:
            return build(a, leaf) // n
        case "%", a, n:
            return build(a, leaf) % n
    raise AssertionError(tree)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Iterator], Written]:
    ranges = st.tuples(st.integers(-5, 3), st.integers(1, 7))
    over = [
        Iterator(n, lo, lo + e)
        for n, (lo, e) in zip("abc", draw(st.lists(ranges, min_size=1, max_size=3)), strict=False)
    ]
    return over, draw(written(over))


@given(cases())
def test_building_keeps_the_value_and_bounds_hold(case: tuple[list[Iterator], Written]) -> None:
    over, tree = case
    index = build(tree)
    lo, hi = index.bounds
    values = set()
    for point in points(tuple(over)):
        value = build(tree, point.__getitem__)
        assert index_at(index, point) == value
        assert index.evaluate(point.__getitem__) == value
        values.add(value)
    assert lo <= min(values) and max(values) <= hi
    if index.affine:
        assert (lo, hi) == (min(values), max(values))


@given(cases())
def test_the_form_is_normal(case: tuple[list[Iterator], Written]) -> None:
    index = build(case[1])
    check_form(index)
    # Rebuilding an index from its own terms changes nothing.
    assert index.substitute(lambda x: x) == index
    total = as_index(index.const)
    for atom, c in reversed(index.terms):
        total = total + atom * c
    assert total == index
    assert hash(total) == hash(index)


def check_form(index: Index) -> None:
    assert all(c for _, c in index.terms)
    assert len({a for a, _ in index.terms}) == len(index.terms)
    for atom, _ in index.terms:
        match atom:
            case Quotient(numerator, d) | Remainder(numerator, d):
                assert d > 1
                lo, hi = numerator.bounds
                assert lo // d != hi // d  # else it is no digit
                check_form(numerator)


@given(cases(), st.randoms(use_true_random=False))
def test_simplification_does_not_depend_on_names(case: tuple[list[Iterator], Written], rng: random.Random) -> None:
    over, tree = case
    names = rng.sample("pqrs", len(over))
    to = {x: Iterator(name, x.lo, x.hi) for x, name in zip(over, names, strict=True)}
    renamed = build(tree).substitute(to.__getitem__)
    back = {y: x for x, y in to.items()}
    assert as_index(build(tree, lambda x: as_index(to[x]))) == renamed
    assert renamed.substitute(back.__getitem__) == build(tree)


@given(cases(), st.data())
def test_substitution_keeps_the_value(case: tuple[list[Iterator], Written], data: st.DataObject) -> None:
    over, tree = case
    index = build(tree)
    inner = [Iterator("p", -2, 2), Iterator("q", 0, 3)]
    # Each iterator becomes an index that stays within its range.
    to = {x: build(data.draw(written(inner))) % x.extent + x.lo for x in over}
    new = index.substitute(to.__getitem__)
    for point in points(tuple(inner)):
        assert index_at(new, point) == index_at(index, {x: index_at(e, point) for x, e in to.items()})


@given(cases(), cases(), st.integers(1, 9))
def test_index_arithmetic_obeys_its_laws(
    one: tuple[list[Iterator], Written], two: tuple[list[Iterator], Written], d: int
) -> None:
    a, b = build(one[1]), build(two[1])
    assert a + b == b + a
    assert a - a == Index()
    assert _equal_values((a + b) - b, a)
    assert a * 0 == Index()
    assert (-a) * -1 == a
    lo, hi = (a % d).bounds
    assert lo >= 0 and hi < d
    assert _equal_values((a // d) * d + a % d, a)


def _equal_values(a: Index, b: Index) -> bool:
    over = tuple(dict.fromkeys((*a.iterators, *b.iterators)))
    return all(index_at(a, p) == index_at(b, p) for p in points(over))


@given(cases(), st.integers(2, 9))
def test_quotient_and_remainder_recombine(case: tuple[list[Iterator], Written], d: int) -> None:
    a = build(case[1])
    if a.affine:
        assert (a // d) * d + a % d == a
        assert a - (a // d) * d == a % d


def test_evaluation_works_elementwise() -> None:
    index = (3 * i - 2 * j) // 4 + i % 5
    at = {i: np.arange(12)[:, None], j: np.arange(5)[None]}
    expected = [[(3 * a - 2 * b) // 4 + a % 5 for b in range(5)] for a in range(12)]
    assert np.array_equal(index.evaluate(at.__getitem__), expected)  # type: ignore[arg-type]


m, n = Iterator("m", 0, 40), Iterator("n", 0, 3)

GOLDENS = [
    # the published engine's conformance cases
    (2500 * (big // 2500) + big % 2500, as_index(big)),
    (9 * (i // 3) + 3 * (i % 3), 3 * i),
    ((2 * i - 3 * j) + (3 * j + k), 2 * i + k),
    # carried digits
    ((5 * i + j) // 5, as_index(i)),
    ((5 * i + j) % 5, as_index(j)),
    ((5 * i + j + 5) // 5, i + 1),
    ((6 * i + 2 * n) % 6, 2 * n),
    ((6 * i + 2 * n + 1) // 6, as_index(i)),
    ((6 * i + 2 * n) // 2, 3 * i + n),
    ((15 * i + 3 * j + n) // 3 % 5, as_index(j)),
    (m // 4 // 5, m // 20),
    (m % 12 % 4, m % 4),
    (m % 12 // 4 * 4 + m % 4, m % 12),
    (m // 12 * 12 + m % 12 // 4 * 4 + m % 4, as_index(m)),
    (m // 20 * 5 + m // 4 % 5, m // 4),
    (m - 4 * (m // 4), m % 4),
    ((m + 8) // 4, m // 4 + 2),
    ((m + 8) % 4, m % 4),
    ((2 * m) % 8, 2 * (m % 4)),
    ((2 * m) // 8, m // 4),
    (m // 40, Index()),
    (m % 40, as_index(m)),
    (m // 1, as_index(m)),
    (m % 1, Index()),
    ((k + 3) // 7, Index()),
    (k % 7 - k % 7, Index()),
    # digits that recombine only once coefficients are taken modulo the divisor
    ((2 * (i // 2) - 2 * (i % 2)) // 3, i // 3 - i % 2),
    ((m - 7) % 7, m % 7),
]


@pytest.mark.parametrize(("found", "expected"), GOLDENS, ids=map(str, range(len(GOLDENS))))
def test_indices_simplify_to_the_expected_form(found: Index, expected: Index) -> None:
    assert found == expected


def test_irreducible_quotient_and_remainder_are_unchanged() -> None:
    assert (i // 2).terms == ((Quotient(as_index(i), 2), 1),)
    assert (i % 2).terms == ((Remainder(as_index(i), 2), 1),)


def test_properties_of_an_index_are_computed() -> None:
    index = 2 * i + j // 2 - 3
    assert index.coefficient(i) == 2
    assert index.coefficient(j) == 0
    assert index.iterators == (i, j)
    assert not index.affine and (2 * i + j).affine
    assert as_index(i).single == i
    assert (2 * i).single is None and (i + 1).single is None and (i // 2).single is None
    assert as_index(7).bounds == (7, 7)
    assert (2 * i - 3 * j).bounds == (-12, 22)
    assert (k // 2).bounds == (-2, 1)
    assert (k % 4).bounds == (0, 3)
    assert (Iterator("x", 5, 8) % 4).bounds == (1, 3)


def test_printed_index_evaluates_to_itself() -> None:
    assert repr(2 * i - j + 3) == "2*i-j+3"
    assert repr(Index()) == "0"
    assert repr(as_index(-4)) == "-4"
    for index in (3 - i, 2 * (i // 5) - i % 5, (2 * i - j) // 3, -(i // 2), (i // 2 + j) % 4, 5 - 3 * (i % 7)):
        assert eval(repr(index), {"i": i, "j": j}) == index


@pytest.mark.parametrize("d", [0, -3])
def test_division_needs_a_positive_integer(d: int) -> None:
    with pytest.raises(ValueError, match=f"an index is divided by {d}, expected a positive integer"):
        _ = i // d
    with pytest.raises(ValueError, match=f"an index is divided by {d}"):
        _ = i % d


def test_equal_indices_are_one_object() -> None:
    assert Iterator("i", 0, 12) is Iterator("i", 0, 12) and Iterator("i", lo=0, hi=12) == i
    assert (i + 2 * j) // 3 is (j + i + j) // 3
    assert i + 1 is not i + 2


def test_a_node_of_another_process_has_the_hash_of_this_one() -> None:
    write = (
        "import pickle, sys\n"
        "from einnet_explore.ir import Iterator, Tensor\n"
        "i, j = Iterator('i', 0, 12), Iterator('j', 0, 5)\n"
        "sys.stdout.buffer.write(pickle.dumps((Tensor('A', (12,), weight=True), (i + 2 * j) // 3)))"
    )
    there = subprocess.run(
        [sys.executable, "-c", write], env={**os.environ, "PYTHONHASHSEED": "1"}, stdout=subprocess.PIPE, check=True
    )
    tensor, index = pickle.loads(there.stdout)
    here = Tensor("A", (12,), weight=True)
    assert (tensor, hash(tensor)) == (here, hash(here))
    assert index is (i + 2 * j) // 3


def test_nodes_are_frozen_and_of_one_class_if_equal() -> None:
    with pytest.raises(FrozenInstanceError):
        i.lo = 1  # type: ignore[misc]
    assert Quotient(i + j, 2) != Remainder(i + j, 2)
    assert replace(Tensor("A", (12,)), shape=(5,)) == Tensor("A", (5,)) != Tensor("A", (12,))
