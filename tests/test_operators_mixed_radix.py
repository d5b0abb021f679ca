"""Mixed-radix split of dimensions: the view has the same elements, and only windows are split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.analysis.padding import excess
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Access, Iterator, Program, Scope, Tensor, as_index, mul, program
from einnet_explore.operators.form import overlaps, split_digits
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.matching import match_operator
from einnet_explore.support.errors import Refused


def reader(read: Access) -> Program:
    """Every element that *read* yields, iterators by name."""
    own = tuple(sorted({x for i in read.index for x in i.iterators}, key=lambda x: x.name))
    return program(Scope(own, (), read))


@st.composite
def reads(draw: st.DrawFn) -> Access:
    """One dimension read at g·(x + k·y) + p + c, and one at an iterator of its own."""
    g, k = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    x, y = (Iterator(name, lo := draw(st.integers(-1, 1)), lo + draw(st.integers(2, 4))) for name in "xy")
    p, z = Iterator("p", 0, draw(st.integers(2, g + 1))), Iterator("z", 0, 2)
    index = x * g + y * g * k + p + draw(st.integers(-4, 4))
    size = draw(st.integers(1, 12))
    lo, hi = index.bounds
    padding = ((max(0, -lo), max(0, hi + 1 - size)), (0, 0))
    source = Tensor("A", (size, 2), padding if any(padding[0]) else (), draw(st.sampled_from([0, 0, 3])))
    return Access(source, (as_index(index), as_index(z)))


@given(reads())
def test_digits_read_the_same_elements(read: Access) -> None:
    seen = split_digits(read)
    before, after = reader(read), reader(seen)
    assert not excess(after.equations[0].scope)
    held = {"A": np.arange(1, 1 + 2 * read.source.shape[0]).reshape(read.source.shape)}
    np.testing.assert_array_equal(evaluate(before, held)["Y"], evaluate(after, held)["Y"])


def test_a_dilated_window_is_a_plain_one_and_a_residue() -> None:
    """B[2m + 2j + p - 2] of 8 elements is {L_{i,q} B[2i + q]}[m + j - 1, p] with 4 rows, padded by one."""
    m, j, p = Iterator("m", 0, 4), Iterator("j", 0, 3), Iterator("p", 0, 2)
    read = split_digits(Tensor("B", (8,), ((2, 2),))[m * 2 + j * 2 + p - 2,])
    assert read.index == (m + j - 1, as_index(p))
    assert isinstance(read.source, Scope)
    assert read.source.box == ((0, 4), (0, 2)) and read.source.padding == ((1, 1), (0, 0))


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("2*m+r", "a strided window is one of an operator"),
        ("4*m+2*p+q", "digits that do not overlap are a layout"),
        ("m+2*j+2*r", "the low digit m reaches beyond the radix"),
    ],
)
def test_indices_without_separate_digits_are_not_split(index: str, why: str) -> None:
    own = {"m": Iterator("m", 0, 4), "j": Iterator("j", 0, 3), "r": Iterator("r", 0, 3)}
    own |= {"p": Iterator("p", 0, 2), "q": Iterator("q", 0, 2)}
    total = as_index(0)
    for term in index.split("+"):
        *k, name = term.split("*")
        total = total + own[name] * int((k or ["1"])[0])
    read = Tensor("B", (40,))[total,]
    assert split_digits(read) is read, why


def test_sums_of_iterators_with_shared_values_overlap() -> None:
    x, y = Iterator("x", 0, 3), Iterator("y", 0, 4)
    assert overlaps(x + y) and overlaps(x + y * 2) and not overlaps(x + y * 3) and not overlaps(as_index(x))


def test_digits_of_a_weight_are_no_window() -> None:
    """K[2p + q] with q < 2 is a layout of K, made at compile time; the same index of an activation is a window."""
    ranges = {"p": 2, "q": 2, "f": 3, "c": 2}
    p, q, f, c = (Iterator(name, 0, n) for name, n in ranges.items())
    image, other = Tensor("K", (4, 2)), Tensor("A", (3, 2, 2))
    conv1d = next(o for o in OPERATORS if o.name == "Conv1d")
    scope = Scope((p, f), (q, c), mul(image[p * 2 + q, c], other[f, q, c]))
    assert any(dict(way.attributes)["sh"] == 2 for way in match_operator(scope, conv1d))
    weight = Tensor("K", (4, 2), weight=True)
    with pytest.raises(Refused):
        match_operator(Scope((p, f), (q, c), mul(weight[p * 2 + q, c], other[f, q, c])), conv1d)
