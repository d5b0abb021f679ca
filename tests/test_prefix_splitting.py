"""Prefix splitting: a sum up to a position in blocks, and the chunked form of linear attention by search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from rules_kit import assert_equal

import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import PREFIX_SPLITTING, Refused
from einnet_explore.strategies.factoring import factorings, products_at_run_time


def attention(length: int, depth: int, width: int) -> Program:
    return ee.parse(f"""
    tensor Q[{length}, {depth}]
    tensor K[{length}, {depth}]
    tensor V[{length}, {width}]
    S[t:{length}, s:{length}] = sum[d:{depth}] Q[t, d] * K[s, d]
    M[t:{length}, s:{length}] = where(s <= t, S[t, s], 0)
    Y[t:{length}, v:{width}] = sum[s:{length}] M[t, s] * V[s, v]
    output Y
    """)


@given(st.data())
def test_prefix_splitting_keeps_every_value(data: DataObject) -> None:
    length = data.draw(st.sampled_from([4, 6, 8, 12]))
    shift, stride = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([1, 2]))
    positions = (length - 1 - shift) // stride + 1
    condition = data.draw(st.sampled_from(["s <= {}", "s < {} + 1", "{} >= s", "{} + 1 > s"]))
    holds = condition.format(f"{stride}*t+{shift}")
    program = ee.parse(f"""
    tensor A[{length}, 3]
    tensor B[{positions}, {length}]
    Y[t:{positions}, c:3] = sum[s:{length}] where({holds}, A[s, c], 0) * B[t, s]
    """)
    matches = list(PREFIX_SPLITTING.matches(program, (0,)))
    assert [m.params.size for m in matches] == [g for g in range(2, length // 2 + 1) if length % g == 0]
    for match in matches:
        after = match.apply(program).after
        assert_equal(program, after)
        assert certify(program, after).kind == "proved"


@pytest.mark.parametrize(
    ("body", "params", "why"),
    [
        ("A[s] * B[t, s]", {"summation": "s", "size": 2}, "no factor is 0 where s is greater than an index"),
        ("where(t <= s, A[s], 0)", {"summation": "s", "size": 2}, "no factor is 0 where s is greater than an index"),
        ("where(s <= t, A[s], 1)", {"summation": "s", "size": 2}, "no factor is 0 where s is greater than an index"),
        ("where(s <= t, A[s], 0)", {"summation": "s", "size": 3}, "blocks of 3 do not divide s in"),
        ("where(s <= t, A[s], 0)", {"summation": "t", "size": 2}, "t is no summation"),
        ("where(s <= t + 3, A[s], 0)", {"summation": "s", "size": 2}, "outside"),
    ],
)
def test_other_sums_are_refused(body: str, params: dict[str, object], why: str) -> None:
    program = ee.parse(
        f"tensor A[8]\ntensor B[8, 8]\nY[t:8] = sum[s:8] {body} + 0 * B[0, 0]".replace(" + 0 * B[0, 0]", "")
    )
    with pytest.raises(Refused, match=why):
        PREFIX_SPLITTING.match(program, (0,), **params).apply(program)


@pytest.mark.parametrize(("length", "depth", "width"), [(64, 16, 16), (96, 8, 24), (4096, 64, 64)])
def test_linear_attention_is_factored_into_chunks(length: int, depth: int, width: int) -> None:
    """By hand: in blocks of g, n·d·v·(2 + n/g²) products between blocks and n·g·(d + v + 1) in blocks."""
    start = attention(length, depth, width)
    (*_, best) = factorings(start)
    sizes = [g for g in range(2, length) if length % g == 0]
    by_hand = min(
        2 * length * depth * width + (length // g) ** 2 * depth * width + length * g * (depth + width + 1)
        for g in sizes
    )
    assert products_at_run_time(best.end) <= 1.1 * by_hand + length * width
    assert all(certify(step.before, step.after).kind == "proved" for step in best.steps)
    assert certify(start, best.end).kind == "proved"


def test_short_lengths_are_not_divided() -> None:
    assert not list(factorings(attention(4, 16, 16)))


def test_the_search_keeps_the_chunked_form() -> None:
    start = attention(512, 32, 32)
    best = min(ee.search(start, limit=60).start().wait().candidates, key=lambda c: c.seconds)
    sizes = [dict(e.via.attributes) for e in best.operators if "Matmul" in e.via.operator]
    assert len(sizes) > 2 and 5 * sum(np.prod([a[x] for x in "bmnk"]) for a in sizes) < products_at_run_time(start)
    assert certify(start, best.program).kind == "proved"
