"""Prefix splitting: a sum up to a position in blocks, and the chunked form of linear attention by search."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from rules_kit import assert_equal

import einnet_check
import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Iterator, Program
from einnet_explore.rules import PREFIX_SPLITTING, Refused
from einnet_explore.rules.prefix_splitting import Blocks
from einnet_explore.strategies.candidate import to_record
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


def assert_splits(program: Program, length: int) -> None:
    """Every divisor of *length* that leaves two blocks is proposed; each step keeps the values and is proved."""
    matches = list(PREFIX_SPLITTING.matches(program, (0,)))
    assert [m.params.size for m in matches] == [g for g in range(2, length // 2 + 1) if length % g == 0]
    for match in matches:
        after = match.apply(program).after
        assert_equal(program, after)
        assert certify(program, after).kind == "proved"


@given(st.data())
def test_prefix_splitting_keeps_every_value(data: DataObject) -> None:
    length = data.draw(st.sampled_from([4, 6, 8, 12]))
    shift, stride = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([1, 2]))
    positions = (length - 1 - shift) // stride + 1
    condition = data.draw(st.sampled_from(["s <= {}", "s < {} + 1", "{} >= s", "{} + 1 > s"]))
    holds = condition.format(f"{stride}*t+{shift}")
    body = data.draw(st.sampled_from(["A[s, c]", "relu(A[s, c] - B[t, 0])", "relu(A[s, c]) * A[t, 0]"]))
    program = ee.parse(f"""
    tensor A[{length}, 3]
    tensor B[{positions}, {length}]
    Y[t:{positions}, c:3] = sum[s:{length}] where({holds}, {body}, 0) * B[t, s]
    """)
    assert_splits(program, length)


@pytest.mark.parametrize("condition", ["s < t", "s <= t - 1", "s >= t", "t <= s", "s > t", "t + 1 <= s", "-s < -t"])
@pytest.mark.parametrize("length", [4, 6, 12])
def test_sums_before_and_from_a_position_are_split(condition: str, length: int) -> None:
    program = ee.parse(f"""
    tensor A[{length}, 3]
    tensor B[{length}, {length}]
    Y[t:{length}, c:3] = sum[s:{length}] where({condition}, relu(A[s, c]), 0) * B[t, s]
    """)
    assert_splits(program, length)


@pytest.mark.parametrize("condition", ["s < t", "s >= t", "s > t"])
def test_other_masks_have_the_products_of_the_causal_one(condition: str) -> None:
    causal = attention(256, 16, 16)
    start = ee.parse(ee.text(causal).replace("s <= t", condition))
    (*_, best), (*_, known) = factorings(start), factorings(causal)
    assert products_at_run_time(best.end) <= products_at_run_time(known.end)
    assert certify(start, best.end).kind == "proved"


@pytest.mark.parametrize(
    ("body", "params", "why"),
    [
        ("A[s] * B[t, s]", {"summation": "s", "size": 2}, "no factor is 0 where s is beyond an index"),
        ("where(t == s, A[s], 0)", {"summation": "s", "size": 2}, "no factor is 0 where s is beyond an index"),
        ("where(2*s <= t, A[s], 0)", {"summation": "s", "size": 2}, "no factor is 0 where s is beyond an index"),
        ("where(t <= s, A[s], 0)", {"summation": "s", "size": 3}, r"blocks of 3 do not divide s in \[0, 8\) into"),
        ("where(t - 2 <= s, A[s], 0)", {"summation": "s", "size": 2}, "outside"),
        ("where(s <= t, A[s], 1)", {"summation": "s", "size": 2}, "no factor is 0 where s is beyond an index"),
        ("where(s <= t, A[s], 0)", {"summation": "s", "size": 3}, r"blocks of 3 do not divide s in \[0, 8\) into"),
        ("where(s <= t, A[s], 0)", {"summation": "s", "size": 8}, "into two or more whole ones"),
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


def gated(length: int, depth: int, width: int, heads: str = "") -> Program:
    at = f"{heads.partition(':')[0]}, " if heads else ""
    sizes, over = (f"{heads.partition(':')[2]}, ", f"{heads}, ") if heads else ("", "")
    return ee.parse(f"""
    tensor L[{sizes}{length}]
    tensor C[{sizes}{length}, {depth}]
    tensor B[{sizes}{length}, {depth}]
    tensor X[{sizes}{length}, {width}]
    D[{over}t:{length}, s:{length}] = L[{at}t] - L[{at}s]
    E[{over}t:{length}, s:{length}] = exp(D[{at}t, s])
    S[{over}t:{length}, s:{length}] = sum[d:{depth}] C[{at}t, d] * B[{at}s, d]
    M[{over}t:{length}, s:{length}] = where(s <= t, E[{at}t, s] * S[{at}t, s], 0)
    Y[{over}t:{length}, v:{width}] = sum[s:{length}] M[{at}t, s] * X[{at}s, v]
    output Y
    """)


@pytest.mark.parametrize(
    ("length", "depth", "width", "heads"), [(64, 16, 16, ""), (96, 8, 24, ""), (64, 8, 8, "h:3"), (4096, 64, 64, "")]
)
def test_gated_attention_is_factored_into_chunks(length: int, depth: int, width: int, heads: str) -> None:
    """Decay costs a product for each element of V, of the scores in a block and of the result, and few exponentials."""
    start, plain = gated(length, depth, width, heads), attention(length, depth, width)
    (*_, best) = factorings(start)
    (*_, least) = factorings(plain)
    count = int(heads.partition(":")[2] or 1)
    assert products_at_run_time(best.end) <= count * 1.15 * products_at_run_time(least.end)
    assert [step.match.rule.name for step in best.steps].count("recentring") == 2
    assert all(certify(step.before, step.after).kind == "proved" for step in best.steps)
    assert certify(start, best.end).kind == "proved"
    exponentials = [e for e in best.end.equations if e.scope.summations and "exp" in repr(e.scope.body)]
    assert not exponentials, "an exponential is computed again for every element of a sum"


SCORES = "S[t:64, s:64] = sum[d:8] C[t, d] * B[s, d]"


@pytest.mark.parametrize(
    ("scores", "masked"),
    [
        (SCORES, "where(s <= t, exp(L[t, 0] - L[s, 0]), 0) * S[t, s]"),
        (SCORES, "exp(L[t, 0] - L[s, 0]) * where(t >= s, S[t, s], 0)"),
        (SCORES, "exp(where(s <= t, L[t, 0] - L[s, 0], -inf)) * S[t, s]"),
        (SCORES.replace(" * B", " * exp(L[t, d] - L[s, d]) * B"), "where(s < t + 1, S[t, s], 0)"),
    ],
)
def test_masks_and_gates_may_be_written_in_any_place(scores: str, masked: str) -> None:
    inputs = "\n".join(f"tensor {name}[64, 8]" for name in "LCBX")
    end = "Y[t:64, v:8] = sum[s:64] M[t, s] * X[s, v]"
    start = ee.parse("\n".join((inputs, scores, f"M[t:64, s:64] = {masked}", end, "output Y")))
    (*_, best) = factorings(start)
    assert 2 * products_at_run_time(best.end) < products_at_run_time(start)
    assert [step.match.rule.name for step in best.steps].count("recentring") == 2
    assert certify(start, best.end).kind == "proved"
    record = json.loads(json.dumps(to_record(best)))
    assert [step.why for step in einnet_check.check(record) if step.why is not None] == []


@pytest.mark.parametrize("condition", ["s - t <= 3", "s - t < -5", "s - t >= -2", "s - t > 4"])
def test_masks_with_an_offset_are_divided_into_blocks(condition: str) -> None:
    """Rows in no whole block are computed as before; the others take the products of the causal mask."""
    start, causal = (
        ee.parse(
            f"""tensor C[128, 4]\ntensor B[128, 4]\ntensor X[128, 4]
    S[t:128, s:128] = sum[d:4] C[t, d] * B[s, d]\nM[t:128, s:128] = where({mask}, S[t, s], 0)
    Y[t:128, v:4] = sum[s:128] M[t, s] * X[s, v]\noutput Y"""
        )
        for mask in (condition, "s <= t")
    )
    (*_, best), (*_, chunked) = factorings(start), factorings(causal)
    (size,) = (s.match.params.size for s in best.steps if s.match.rule is PREFIX_SPLITTING)
    assert products_at_run_time(best.end) <= products_at_run_time(chunked.end) + 2 * size * 128 * 10
    record = json.loads(json.dumps(to_record(best)))
    assert [step.why for step in einnet_check.check(record) if step.why is not None] == []
    assert certify(start, best.end).kind == "proved"


@pytest.mark.parametrize(("length", "depth"), [(67, 16), (101, 8), (254, 16), (4001, 64)])
@pytest.mark.parametrize("program", [attention, gated, lambda n, d, v: gated(n, d, v, "h:2")])
def test_lengths_without_divisors_have_a_rest(
    program: Callable[[int, int, int], Program], length: int, depth: int
) -> None:
    """The rest, less than a block, is computed as before: at most g·n·(2·d + 1) more products for blocks of g."""
    start = program(length, depth, depth)
    (*_, best) = factorings(start)
    (size,) = (s.match.params.size for s in best.steps if s.match.rule is PREFIX_SPLITTING)
    whole = length - length % size
    (*_, chunked) = factorings(program(whole, depth, depth))
    heads = 2 if len(start.inputs[-1].shape) == 3 else 1
    rest = heads * ((length - whole) * length * (2 * depth + 2) + length * depth)
    assert products_at_run_time(best.end) <= 1.05 * (products_at_run_time(chunked.end) + rest)
    assert certify(start, best.end).kind == "proved"
    assert all(certify(step.before, step.after).kind == "proved" for step in best.steps)


@pytest.mark.parametrize("decay", [1e-3, 1.0, 80.0])
def test_chunks_do_not_overflow_where_the_quadratic_form_does_not(decay: float) -> None:
    """Without centres, exp(L[t]) exp(-L[s]) overflows in double precision from a total decay of 709 on."""
    start = gated(64, 4, 4)
    (*_, best) = factorings(start)
    generator = np.random.default_rng(0)
    inputs = {name: generator.normal(size=(64, 4)) for name in "CBX"} | {"L": -np.cumsum(generator.random(64)) * decay}
    with np.errstate(over="ignore"):  # in a branch that is not taken
        want, got = (ee.evaluate(program, inputs, float)["Y"] for program in (start, best.end))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_short_lengths_are_not_divided() -> None:
    assert not list(factorings(attention(4, 16, 16)))


def test_the_search_keeps_the_chunked_form() -> None:
    start = attention(512, 32, 32)
    best = min(ee.search(start, budget=60).candidates, key=lambda c: c.seconds)
    sizes = [dict(e.via.attributes) for e in best.operators if "Matmul" in e.via.operator]
    assert len(sizes) > 2 and 5 * sum(np.prod([a[x] for x in "bmnk"]) for a in sizes) < products_at_run_time(start)
    assert certify(start, best.program).kind == "proved"


@pytest.mark.parametrize("length", [257, pytest.param(256, marks=pytest.mark.slow)])
def test_a_search_finds_gated_chunks_that_both_checkers_prove(length: int) -> None:
    start = gated(length, 16, 16)
    run = ee.search(start, budget=None)
    for _ in run:
        if len(run.candidates) == 2:
            break
    best = min(run.candidates, key=lambda c: c.seconds)
    assert "recentring" in {step.match.rule.name for step in best.derivation.steps}
    assert sum("Matmul" in e.via.operator for e in best.operators) > 2
    assert run.verdict(best) == "proved"
    record = json.loads(json.dumps(to_record(best.derivation)))
    assert [step.why for step in einnet_check.check(record) if step.why is not None] == []


def test_an_exponential_is_computed_once_for_several_reads() -> None:
    """A softmax by its parts: the quotient moves behind the second product, the exponential stays."""
    start = ee.parse("""
    tensor S[64, 64]
    tensor V[64, 16]
    m[i:64] = max[j:64] S[i, j]
    D[i:64, j:64] = S[i, j] - m[i]
    E[i:64, j:64] = exp(D[i, j])
    z[i:64] = sum[j:64] E[i, j]
    R[i:64, j:64] = E[i, j] / z[i]
    Y[i:64, v:16] = sum[j:64] R[i, j] * V[j, v]
    output Y
    """)
    for found in factorings(start):
        assert sum("exp" in repr(e.scope.body) for e in found.end.equations) == 1
        assert certify(start, found.end).kind == "proved"


BLOCKS_OF_7 = Blocks(Iterator("s", 0, 91), 7)


@pytest.mark.parametrize("score", ["S[t, s]", "exp(L[t] - L[s]) * S[t, s]"])
def test_chunks_are_proved_for_all_lengths_and_sizes_of_chunks(score: str) -> None:
    family = ee.family(f"""param W >= 2, R >= 2, D, V
tensor L[W*R]
tensor C[W*R, D]
tensor B[W*R, D]
tensor X[W*R, V]
S[t:W*R, s:W*R] = sum[d:D] C[t, d] * B[s, d]
M[t:W*R, s:W*R] = where(s <= t, {score}, 0)
Y[t:W*R, v:V] = sum[s:W*R] M[t, s] * X[s, v]
output Y
""")
    sizes = {"W": 13, "R": 7, "D": 17, "V": 19}
    chunks = (f for f in factorings(family.at(**sizes)) if any(s.match.params == BLOCKS_OF_7 for s in f.steps))
    derived = family.lift(next(chunks), sizes)
    assert derived.proof.kind == "proved"
    other = {"W": 3, "R": 4, "D": 2, "V": 5}
    chunked = derived.instantiate(**other)
    assert certify(family.at(**other), chunked.program).kind == "proved"
    assert any((0, 3) in e.scope.box for e in chunked.program.equations)
