"""Factoring across expressions: the products that algebra leaves, proved, at several sizes; else the start is kept."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.analysis.padding import sliding_windows
from einnet_explore.analysis.products import MAX_FACTORS, cheapest_tree, multiplications, tree_leaves
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Const, Iterator, Program, Scope, add, as_index, padded, scopes, terms
from einnet_explore.ir import program as read_whole
from einnet_explore.rules import (
    BOUNDARY_TIGHTENING,
    COMMON_FACTOR,
    DISTRIBUTIVITY,
    EXPRESSION_EXTRACTION,
    LIKE_TERMS,
    PADDING_EXCHANGE,
    TRAVERSAL_FACTORING,
    Derivation,
)
from einnet_explore.rules.boundaries import Tightening
from einnet_explore.rules.traversal_factoring import Position
from einnet_explore.strategies import factoring
from einnet_explore.strategies.factoring import MAX_TERMS, factorings, multiplied_out, products_at_run_time
from einnet_explore.syntax import parse
from tests.rules_kit import check_rule, contractions, refuses


def best(program: Program) -> Derivation:
    """The last factoring, which has the fewest products; every step and the whole are proved."""
    *_, derivation = factorings(program)
    assert {certify(step.before, step.after).kind for step in derivation.steps} == {"proved"}
    assert certify(program, derivation.end).kind == "proved"
    return derivation


def agree(start: Program, end: Program) -> None:
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.integers(-3, 4, t.shape) for t in start.inputs}
    want, got = evaluate(start, arrays, np.float64), evaluate(end, arrays, np.float64)
    for name in start.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-12, atol=1e-9)


def row_sums(n: int, o: int, k: int) -> tuple[Program, int]:
    text = f"""tensor x[{n}, {k}]
    tensor W[{o}, {k}] weight
    T[n:{n}, o:{o}] = sum[k:{k}] x[n, k] * W[o, k] * 0.5
    Y[n:{n}] = sum[o:{o}] T[n, o] * 1.5
    output Y"""
    return parse(text), n * k


def attention(b: int, m: int, k: int) -> tuple[Program, int]:
    text = f"""tensor Q[{b}, {m}, {k}]
    tensor K[{b}, {m}, {k}]
    tensor V[{b}, {m}, {k}]
    S[b:{b}, i:{m}, j:{m}] = sum[k:{k}] Q[b, i, k] * K[b, j, k]
    Y[b:{b}, i:{m}, d:{k}] = sum[j:{m}] S[b, i, j] * V[b, j, d]
    output Y"""
    return parse(text), 2 * b * m * k * k


def absorption(m: int, k: int, r: int) -> tuple[Program, int]:
    text = f"""tensor x[1, {k}]
    tensor c[{m}, {r}]
    tensor Wq[{k}, {k}] weight
    tensor Wk[{r}, {k}] weight
    A[n:1, k:{k}] = sum[i:{k}] x[n, i] * Wq[i, k]
    B[m:{m}, k:{k}] = sum[i:{r}] c[m, i] * Wk[i, k]
    S[n:1, m:{m}] = sum[k:{k}] A[n, k] * B[m, k]
    output S"""
    return parse(text), k * r + m * r


def pooled(c: int, f: int, h: int) -> tuple[Program, int]:
    text = f"""tensor x[{c}, {2 * h}, {2 * h}]
    tensor W[{f}, {c}] weight
    C[f:{f}, h:{2 * h}, w:{2 * h}] = sum[c:{c}] x[c, h, w] * W[f, c]
    Y[f:{f}, h:{h}, w:{h}] = sum[r:2, s:2] 0.25 * C[f, 2*h+r, 2*w+s]
    output Y"""
    return parse(text), f * h * h * c + 4 * c * h * h


def mean_of_convolution(c: int, f: int, h: int) -> tuple[Program, int]:
    text = f"""tensor x[{c}, {h}, {h}] pad [0, 1, 1]
    tensor W[{f}, {c}, 3, 3] weight
    C[f:{f}, h:{h}, w:{h}] = sum[c:{c}, r:3, s:3] x[c, h+r-1, w+s-1] * W[f, c, r, s]
    Y[f:{f}] = sum[h:{h}, w:{h}] 0.25 * C[f, h, w]
    output Y"""
    return parse(text), 9 * c * h * h + 9 * c * f


def upsampled(c: int, f: int, h: int) -> tuple[Program, int]:
    text = f"""tensor x[{c}, {h}, {h}]
    tensor W[{f}, {c}] weight
    U[c:{c}, h:{2 * h}, w:{2 * h}] = x[c, h//2, w//2]
    Y[f:{f}, h:{2 * h}, w:{2 * h}] = sum[c:{c}] U[c, h, w] * W[f, c]
    output Y"""
    return parse(text), f * h * h * c + f * 4 * h * h


def factorisation_machine(n: int, d: int) -> tuple[Program, int]:
    text = f"""tensor v[{n}, {d}]
    G[i:{n}, j:{n}] = sum[d:{d}] v[i, d] * v[j, d]
    Y[z:1] = sum[i:{n}, j:{n}] G[i, j]
    output Y"""
    return parse(text), n * d + d


COLLAPSES = {
    "row sums": (row_sums, [(4, 9, 7), (16, 5, 12), (3, 33, 8)]),
    "linear attention": (attention, [(1, 12, 4), (2, 17, 3), (3, 9, 4)]),
    "absorption": (absorption, [(20, 12, 5), (33, 9, 4), (7, 24, 6)]),
    "pool through a convolution": (pooled, [(6, 8, 3), (5, 9, 2), (8, 8, 4)]),
    "mean of a convolution": (mean_of_convolution, [(3, 4, 6), (2, 5, 7), (4, 3, 5)]),
    "convolution of an upsampling": (upsampled, [(6, 8, 3), (5, 4, 4), (9, 7, 2)]),
    "factorisation machine": (factorisation_machine, [(10, 4), (7, 6), (25, 3)]),
}


@pytest.mark.parametrize("name", COLLAPSES)
def test_collapse_reaches_the_products_of_algebra(name: str) -> None:
    build, sizes = COLLAPSES[name]
    for size in sizes:
        start, least = build(*size)
        end = best(start).end
        assert products_at_run_time(end) <= least
        agree(start, end)


@pytest.mark.parametrize("name", COLLAPSES)
def test_one_public_search_finds_the_collapse(name: str) -> None:
    build, sizes = COLLAPSES[name]
    start, least = build(*sizes[0])
    run = ee.search(start, max_depth=2)
    scaled = least + sum(
        prod(e.scope.shape) for e in start.equations if e.name in start.outputs
    )  # a library scales apart
    found = [c for c in run.candidates if products_at_run_time(c.program) <= scaled]
    assert found and {certify(step.before, step.after).kind for step in found[0].derivation.steps} == {"proved"}
    agree(start, found[0].program)


def test_mean_of_two_padded_convolutions_sums_windows_first() -> None:
    c, k, f, h = 3, 12, 4, 6
    start = parse(
        f"""tensor x[{c}, {h}, {h}] pad [0, 1, 1]
    tensor W[{k}, {c}, 3, 3] weight
    tensor V[{f}, {k}, 3, 3] weight
    T[k:{k}, h:{h}, w:{h}] = sum[c:{c}, r:3, s:3] x[c, h+r-1, w+s-1] * W[k, c, r, s]
    U[f:{f}, h:{h}, w:{h}] = sum[k:{k}, r:3, s:3] {{[k:{k}, h:{h}, w:{h}] T[k, h, w]}} pad [0, 1, 1][k, h+r-1, w+s-1]
      * V[f, k, r, s]
    Y[f:{f}] = sum[h:{h}, w:{h}] U[f, h, w]
    output Y""".replace("\n      *", " *")
    )
    end = best(start).end
    # Of rows, then of columns, for each pair of places in both windows; then one product with both weights.
    assert products_at_run_time(end) == 27 * c * h * (h + 2) + 81 * c * h + 81 * c * f
    agree(start, end)


def test_equal_intermediates_are_shared() -> None:
    derivation = best(factorisation_machine(10, 4)[0])
    assert len(derivation.end.equations) == 2 and derivation.steps[-1].match.rule.name == "common_subexpression"


def test_products_of_weights_are_computed_beforehand() -> None:
    end = best(absorption(20, 12, 5)[0]).end
    folded = next(e for e in end.equations if e.scope.shape == (12, 5))
    assert all(t.weight for t in end.inputs if t.name in repr(folded.scope))


@pytest.mark.parametrize(
    "text",
    [
        # The present order is the cheaper one: few rows, many features.
        "S[i:3, j:4] = sum[k:9] Q[i, k] * K[j, k]\nY[i:3, d:9] = sum[j:4] S[i, j] * V[j, d]\noutput Y",
        # A function between two products ends the region.
        "S[i:3, j:4] = sum[k:9] Q[i, k] * K[j, k]\nR[i:3, j:4] = relu(S[i, j])\n"
        "Y[i:3, d:9] = sum[j:4] R[i, j] * V[j, d]\noutput Y",
        # A maximum is no sum.
        "S[i:3, j:4] = sum[k:9] Q[i, k] * K[j, k]\nY[i:3] = max[j:4] S[i, j]\noutput Y",
        # The caller sees the intermediate.
        "S[i:3, j:4] = sum[k:9] Q[i, k] * K[j, k]\nY[i:3] = sum[j:4] S[i, j]\noutput S, Y",
    ],
)
def test_program_without_gain_is_unchanged(text: str) -> None:
    start = parse(f"tensor Q[3, 9]\ntensor K[4, 9]\ntensor V[4, 9]\n{text}")
    assert not list(factorings(start))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=4, max_size=11))
def test_matrix_chain_gets_the_optimal_order(sizes: list[int]) -> None:
    """The recurrence over intervals is the oracle; the chain is written as one product after the other."""
    count = len(sizes) - 1
    lines = [f"tensor A{n}[{a}, {b}]" for n, (a, b) in enumerate(pairwise(sizes))]
    left = "A0"
    for n in range(1, count):
        lines.append(f"P{n}[i:{sizes[0]}, j:{sizes[n + 1]}] = sum[k:{sizes[n]}] {left}[i, k] * A{n}[k, j]")
        left = f"P{n}"
    start = parse("\n".join([*lines, f"output {left}"]))
    least = {(n, n): 0 for n in range(count)}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            least[i, j] = min(
                least[i, k] + least[k + 1, j] + prod((sizes[i], sizes[k + 1], sizes[j + 1])) for k in range(i, j)
            )
    found = [products_at_run_time(d.end) for d in factorings(start)]
    assert min([products_at_run_time(start), *found]) <= least[0, count - 1]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_sum_of_a_product_gets_the_fewest_multiplications(data: st.DataObject) -> None:
    """The oracle contracts pairs of tensors in every order, as ``opt_einsum`` does for its optimal path."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=6))
    names = range(len(sizes))
    operands = data.draw(st.lists(st.sets(st.sampled_from(names), min_size=1, max_size=3), min_size=3, max_size=8))
    kept = frozenset(data.draw(st.sets(st.sampled_from(sorted(frozenset().union(*operands))), max_size=3)))

    def points(indices: frozenset[int]) -> int:
        return prod(sizes[n] for n in indices)

    def fewest(left: tuple[frozenset[int], ...]) -> int:
        summed = (read & (kept | frozenset().union(*left[:n], *left[n + 1 :])) for n, read in enumerate(left))
        return 0 if len(left) == 1 else fewest_pairs(tuple(sorted(summed, key=sorted)))

    @cache
    def fewest_pairs(left: tuple[frozenset[int], ...]) -> int:
        pairs = ((n, m) for n in range(len(left)) for m in range(n))
        return min(
            points(left[n] | left[m])
            + fewest((*(read for k, read in enumerate(left) if k not in (n, m)), left[n] | left[m]))
            for n, m in pairs
        )

    reads = tuple(frozenset(Iterator(f"i{n}", 0, sizes[n]) for n in read) for read in operands)
    outputs = frozenset(Iterator(f"i{n}", 0, sizes[n]) for n in kept)
    tree = cheapest_tree(reads, outputs)
    assert sorted(tree_leaves(tree)) == list(range(len(reads)))
    assert multiplications(tree, reads, outputs) <= fewest(tuple(map(frozenset, operands)))


def test_order_of_twelve_factors_is_the_most_that_is_compared() -> None:
    xs = [Iterator(f"x{n}", 0, 2 + 3 * n % 7) for n in range(MAX_FACTORS + 1)]
    reads = [frozenset(pair) for pair in pairwise(xs)]
    assert len(tree_leaves(cheapest_tree(reads, frozenset((xs[0], xs[-1]))))) == MAX_FACTORS
    with pytest.raises(ValueError, match=f"{MAX_FACTORS + 1} factors: expected 2 to {MAX_FACTORS}"):
        cheapest_tree([*reads, reads[0]], frozenset())


# The rules


def test_traversal_factoring_keeps_every_value() -> None:
    start = parse("tensor x[3, 4]\ntensor W[5, 3]\nY[f:5, h:7, z:2] = sum[c:3] W[f, c] * x[c, h//2]")
    assert check_rule(TRAVERSAL_FACTORING, start) == 1
    (match,) = TRAVERSAL_FACTORING.matches(start, (0,))
    assert TRAVERSAL_FACTORING.encode(match.params) == {"divisors": {"z": 2, "h": 2}}
    agree(start, match.apply(start).after)


@pytest.mark.parametrize(
    ("text", "divisors", "why"),
    [
        ("Y[h:6] = sum[c:3] x[c, h//2] * x[c, h//3]", {"h": 2}, "h is read finer than h // 2"),
        ("Y[h:6] = sum[c:3] x[c, h//2]", {"h": 4}, "h is read finer than h // 4"),
        ("Y[h:6] = sum[c:3] x[c, h//2]", {"h": 1}, "expected at least 2"),
        ("Y[h:6] = sum[c:3] x[c, h//2]", {}, "no traversal is divided"),
        ("Y[h:6] = sum[c:3] x[c, h//2]", {"c": 2}, "c is no traversal of this scope"),
    ],
)
def test_traversal_factoring_refuses(text: str, divisors: dict[str, int], why: str) -> None:
    refuses(TRAVERSAL_FACTORING, parse(f"tensor x[3, 4]\n{text}"), (0,), why, divisors=divisors)


def test_a_sum_at_positions_of_a_window_is_computed_once_for_each_position() -> None:
    start = parse("tensor x[4, 9] pad [0, 1]\ntensor a[4]\nY[h:4, f:2, r:3] = sum[c:4] a[c] * x[c, 2*h+r-1]")
    assert check_rule(TRAVERSAL_FACTORING, start) == 2  # f, which is not read, and the positions
    match = next(m for m in TRAVERSAL_FACTORING.matches(start, (0,)) if isinstance(m.params, Position))
    assert TRAVERSAL_FACTORING.encode(match.params) == {"position": "2*h+r-1"}
    after = match.apply(start).after
    assert after == parse(
        "tensor x[4, 9] pad [0, 1]\ntensor a[4]\n"
        "Y[h:4, f:2, r:3] = {[f:2, t1:-1..8] sum[c:4] a[c] * x[c, t1]}[f, 2*h+r-1]"
    )
    agree(start, after)


@pytest.mark.parametrize(
    ("text", "position", "why"),
    [
        ("Y[h:2, r:3] = sum[c:3] x[c, h+r] * x[r, 0]", "h+r", "r is read finer than h+r"),
        ("Y[h:2, r:3] = sum[c:3] x[c, h+r]", "2*h+2*r", "no sum of traversals with a coefficient of 1"),
        ("Y[h:2, r:3] = sum[c:3] x[c, h+r]", "h+c", "no sum of traversals with a coefficient of 1"),
        ("Y[h:2, r:3 | 0 <= h+r < 3] = sum[c:3] x[c, h+r]", "h+r", "the scope has a domain"),
    ],
)
def test_positions_are_refused(text: str, position: str, why: str) -> None:
    refuses(TRAVERSAL_FACTORING, parse(f"tensor x[3, 4]\n{text}"), (0,), why, position=position)


def test_of_a_nested_sum_only_what_is_read_is_computed() -> None:
    start = parse("tensor A[6, 4]\ntensor b[6]\nY[i:3] = b[i] + {[j:6] max[k:4] A[j, k]}[2*i]")
    assert check_rule(TRAVERSAL_FACTORING, start) == 1
    (match,) = TRAVERSAL_FACTORING.matches(start, (0,))
    after = match.apply(start).after
    assert after == parse("tensor A[6, 4]\ntensor b[6]\nY[i:3] = b[i] + {[i:3] max[k:4] A[2*i, k]}[i]")
    assert certify(start, after).kind == "proved"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("A[2*i, 0]", "access 0 reads tensor A, not a scope"),
        ("{[j:6 | 0 <= j < 5] sum[k:4] A[j, k]}[2*i]", "the nested scope has a domain: 0 <= j < 5"),
        ("{[j:6] sum[k:4] A[j, k]} pad [1][2*i+2]", "leaves the box of the nested scope, [(0, 6)]"),
        ("b[i]", "access 1: the body has 1 accesses"),
    ],
)
def test_selection_is_refused(body: str, why: str) -> None:
    start = parse(f"tensor A[6, 4]\ntensor b[6]\nY[i:3] = {body}")
    refuses(TRAVERSAL_FACTORING, start, (0,), why, selected=int(body == "b[i]"))


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        # Two windows are one larger window; the coefficients may differ.
        ("tensor x[9]\ntensor v[3] weight\nY[h:5] = sum[r:3, s:3] x[h+r+s] * w[r] * v[s]", ["r+s"]),
        ("tensor x[15]\ntensor v[2] weight\nY[h:4] = sum[r:3, s:2] x[3*h+r+2*s] * w[r] * v[s]", ["r+2*s"]),
        (
            "tensor x[9]\ntensor v[3] weight\nY[h:5] = sum[s:3] {[t:7] sum[r:3] x[t+r] * w[r]}[h+s] * v[s]",
            ["r+s"],
        ),
        # The places of a window on an upsampling, in each phase.
        ("tensor x[4] pad [1]\nY[h:4, p:2] = sum[r:3] x[h+(p+r+1)//2-1] * w[r]", ["(p+r+1)//2"]),
    ],
)
def test_like_terms_are_added_first(text: str, positions: list[str]) -> None:
    start = parse(f"tensor w[3] weight\n{text}")
    assert check_rule(LIKE_TERMS, start) == 1
    (match,) = LIKE_TERMS.matches(start, (0,))
    assert [index.replace(" ", "") for index in LIKE_TERMS.encode(match.params)["positions"]] == positions
    assert certify(start, match.apply(start).after).kind == "proved"


@settings(deadline=None, max_examples=25)
@given(contractions(reductions=("sum",)))
def test_like_terms_keep_every_value(program: Program) -> None:
    check_rule(LIKE_TERMS, program)


@pytest.mark.parametrize(
    ("body", "positions", "why"),
    [
        ("sum[r:3, s:2] x[h+r+s] * w[r] * v[s]", ["h"], "expected sums over the summations of the scope"),
        ("sum[r:3, s:2] x[h+r+s] * w[r] * v[s]", ["r"], "no factor is read at [r] alone, next to others"),
        ("sum[r:3, s:2] x[h+r+s]", ["r+s"], "no factor is read at [r+s] alone, next to others"),
        ("max[r:3, s:2] x[h+r+s] * w[r] * v[s]", ["r+s"], "the scope takes the max"),
        ("x[h] * w[0]", ["h"], "the scope sums nothing, expected a plain sum of a product"),
        ("sum[r:3, s:2] x[h+r+s] * z[r] * v[s]", ["r+s"], "adding first needs finite paddings"),
        ("sum[r:2] q[(h+r)//3] * w[r]", ["(h+r)//3"], "a position that no term has would be read"),
    ],
)
def test_like_terms_are_refused(body: str, positions: list[str], why: str) -> None:
    start = parse(f"tensor x[9]\ntensor w[3]\ntensor v[2]\ntensor q[2]\ntensor z[3] pad [1] value inf\nY[h:5] = {body}")
    refuses(LIKE_TERMS, start, (0,), why, positions=positions)


def test_windows_are_summed_along_one_dimension_after_the_other() -> None:
    start = parse("tensor x[2, 12, 14] pad [0, 1, 2]\nY[c:2, r:3, s:5] = sum[h:12, w:12] x[c, h+r-1, w+s-2]")
    *_, found = factorings(start)
    assert products_at_run_time(found.end) == 2 * 3 * 12 * 16 + 2 * 3 * 5 * 12
    agree(start, found.end)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("where(j - i <= 1, where(i < j + 2, A[i, j], 0), 0) * g[j]", 3),
        ("g[j] * where(j - i > 2, A[i, j], 0)", 6),
        ("(where(j - i <= 1, where(j - i >= -1, A[i, j], 0), 0) + 1) * g[j]", None),
        ("exp(where(j - i == 1, A[i, j], 0)) * g[j]", None),
        ("where(j - i <= 1, where(j - i >= -1, A[i, j], 0), 1) * g[j]", None),
        ("where(j - i <= 1, where(j - i >= -1, A[i, j], 0), 0) * h[j]", None),
    ],
)
def test_condition_that_is_a_factor_confines_a_sum_to_a_window(body: str, count: int | None) -> None:
    start = parse(f"tensor A[9, 9]\ntensor g[9]\ntensor h[9] pad [1] value inf\nY[i:9] = sum[j:9] {body}")
    found = sliding_windows(start.scope_at((0,)))
    assert [n for _, _, n in found] == ([] if count is None else [count])
    if found:
        after = BOUNDARY_TIGHTENING.rewrite(start, (0,), Tightening(window=found))
        assert certify(start, after).kind == "proved"
        agree(start, after)


@settings(deadline=None, max_examples=25)
@given(contractions(reductions=("sum",)), st.data())
def test_padding_of_a_sum_moves_to_its_factors(program: Program, data: st.DataObject) -> None:
    scope = program.equations[0].scope
    pads = tuple(data.draw(st.tuples(st.integers(0, 2), st.integers(0, 2))) for _ in scope.traversals)
    wide = tuple(Iterator(x.name, x.lo - a, x.hi + b) for x, (a, b) in zip(scope.traversals, pads, strict=True))
    body = add(scope.body, Const(2)) if data.draw(st.booleans()) else scope.body
    start = read_whole(Scope(wide, (), padded(replace(scope, body=body), pads)[tuple(map(as_index, wide))]))
    check_rule(PADDING_EXCHANGE, start)
    for match in PADDING_EXCHANGE.matches(start, (0,)):
        assert certify(start, match.apply(start).after).kind == "proved"
    assert bool(list(PADDING_EXCHANGE.matches(start, (0,)))) == any(map(any, pads))


@pytest.mark.parametrize(
    ("inner", "why"),
    [
        ("[i:3] max[k:4] A[i, k]} pad [1]", "the scope takes the max"),
        ("[i:3] A[i, 0] * A[i, 1]} pad [1]", "all factors of the scope depend on the padded dimensions"),
        ("[i:3] sum[k:4] A[i, k]} pad [1] value 2", "the scope is 2 around its box, expected 0"),
        ("[i:3 | 0 <= i < 2] sum[k:4] A[i, k]} pad [1]", "reads no padded scope without conditions"),
        ("[i:3] sum[k:4] A[i, k] * B[i]} pad [1]", "reads an infinite padding"),
    ],
)
def test_padding_that_moves_to_no_factor_is_refused(inner: str, why: str) -> None:
    start = parse(f"tensor A[3, 4]\ntensor B[3] pad [1] value inf\nY[z:5] = {{{inner}[z-1]")
    refuses(PADDING_EXCHANGE, start, (0,), why, access=0, direction="factors")


def test_expression_extraction_is_the_inverse_of_fusion() -> None:
    start = parse(
        "tensor A[4, 5]\ntensor B[5, 6]\nY[i:4] = sum[k:6] relu({[i:4, k:6] sum[j:5] A[i, j] * B[j, k]}[i, k])"
    )
    assert check_rule(EXPRESSION_EXTRACTION, start) == 1
    (match,) = EXPRESSION_EXTRACTION.matches(start, (0, 0))
    step = match.apply(start)
    assert len(step.after.equations) == 2 and certify(step.before, step.after).kind == "proved"
    refuses(EXPRESSION_EXTRACTION, start, (0,), "Y is an expression already")
    plain = parse("tensor A[4]\nY[i:4] = {[i:4] A[i] * 2}[i] + 1")
    refuses(EXPRESSION_EXTRACTION, plain, (0, 0), "the nested scope sums nothing")

    summed = parse("tensor A[4]\ntensor x[4]\nY[z:1] = sum[i:4] x[i] * {[i:4] A[i] * A[i]}[i]")
    assert check_rule(EXPRESSION_EXTRACTION, summed) == 1


TENSORS = """tensor x[4, 5, 5] pad [0, 1, 1]
tensor K[4, 4, 3, 3]
tensor W[4, 4]
tensor A[4, 2]
tensor B[2, 4]
tensor g[4]
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        # One to one: x W + x (A B).
        (
            "{[f:4,h:5,w:5] sum[c:4] x[c,h,w]*W[c,f]}[f,h,w] + 2*{[f:4,h:5,w:5] sum[c:4,r:2] x[c,h,w]*A[c,r]*B[r,f]}"
            "[f,h,w]",
            "sum[c:4] x[c, h, w] * {[f:4, c:4] W[c, f] + 2 *",
        ),
        # The second term reads the centre of the first one's window.
        (
            "{[f:4,h:5,w:5] sum[c:4,r:3,s:3] x[c,h+r-1,w+s-1]*K[f,c,r,s]}[f,h,w]"
            " + -1*{[f:4,h:5,w:5] sum[c:4] x[c,h,w]*W[f,c]}[f,h,w]",
            "0 <= r-1 < 1, 0 <= s-1 < 1] W[f, c]",
        ),
        # A residual addition reads one channel.
        ("{[f:4,h:5,w:5] sum[c:4] x[c,h,w]*W[f,c]}[f,h,w] + x[f,h,w]", "| 0 <= c-f < 1] 1}"),
        # A factor without summations.
        ("g[f]*x[f,h,w] + 3*g[f]*g[f]", "g[f] * {"),
    ],
)
def test_common_factor_keeps_every_value(body: str, found: str) -> None:
    start = parse(f"{TENSORS}Y[f:4, h:5, w:5] = {body}")
    step = COMMON_FACTOR.match(start, (0,), terms=[0, 1], factors=[0, 0]).apply(start)
    assert certify(step.before, step.after).kind == "proved"
    agree(step.before, step.after)
    assert found in ee.text(step.after)
    check_rule(COMMON_FACTOR, start)


@pytest.mark.parametrize(
    ("body", "params", "why"),
    [
        ("sum[c:4] x[c,h,w]*W[f,c] + g[f]", {}, "the scope has summations"),
        ("x[f,h,w] + {[f:4] sum[c:4] W[f,c]}[f]", {}, "have different sources"),
        ("x[f,h,w] + x[f,h,w]*g[f]", {"terms": [0, 2]}, "terms 0 and 2: expected two of the 2 terms"),
        ("x[f,h,w] + x[f,h,w]*g[f]", {"terms": [0, 0]}, "terms 0 and 0: expected two of the 2 terms"),
        ("x[f,h,w] + x[f,h,w]*g[f]", {"factors": [0, 2]}, "factor 2: the term has 2"),
        ("x[f,h,w] + x[f,w,h]*g[f]", {}, "are different elements"),
        ("{[f:4,h:5] sum[u:3,v:3] x[f,h,u+v]*g[f]}[f,h] + x[f,h,w]", {}, "has no one solution for u, v"),
        ("{[f:4,h:5,w:5] sum[r:2] x[f,h+r,w]*A[f,r]}[f,h,w] + x[f,h-1,w]", {}, "r = -1 ∈ [-1, -1] leaves [0, 2)"),
        ("g[f] + x[f,h,w]", {"factors": [0]}, "found 1 items, expected 2"),
    ],
)
def test_common_factor_refuses(body: str, params: dict[str, list[int]], why: str) -> None:
    start = parse(f"{TENSORS}Y[f:4, h:5, w:5] = {body}")
    refuses(COMMON_FACTOR, start, (0,), why, **{"terms": [0, 1], "factors": [0, 0], **params})


def test_terms_are_summed_on_their_own() -> None:
    start = parse(f"{TENSORS}Y[f:4] = sum[c:4, r:2] (A[f,r] - g[c]) * (W[f,c] + 1)")
    assert check_rule(DISTRIBUTIVITY, start) == 1
    step = DISTRIBUTIVITY.match(start, (0,), direction="terms").apply(start)
    assert certify(step.before, step.after).kind == "proved"
    assert "4 * {[f:4] sum[r:2] A[f, r]}[f]" in ee.text(step.after)  # c is not read: its extent is a factor
    for body, why in (
        ("sum[c:4] W[f,c]", "1 terms: expected 2 to 16"),
        ("max[c:4] W[f,c] + g[c]", "takes the max"),
        ("W[f,f] + g[f]", "a sum of products already"),
    ):
        refuses(DISTRIBUTIVITY, parse(f"{TENSORS}Y[f:4] = {body}"), (0,), why, direction="terms")


def unrolled_recurrence(steps: int, width: int, states: int) -> Program:
    """A state-space model of so many steps, each an expression; only the last state is read."""
    lines = [f"tensor a[{steps}, {width}, {states}]", f"tensor b[{steps}, {width}]", f"tensor c[{steps}, {states}]"]
    lines.append(f"H0[d:{width}, s:{states}] = b[0, d] * c[0, s]")
    for n in range(1, steps):
        lines.append(f"H{n}[d:{width}, s:{states}] = a[{n}, d, s] * H{n - 1}[d, s] + b[{n}, d] * c[{n}, s]")
    lines.append(f"Y[d:{width}] = sum[s:{states}] H{steps - 1}[d, s] * c[0, s]")
    return parse("\n".join([*lines, "output Y"]))


def test_what_is_multiplied_out_has_a_bounded_number_of_terms() -> None:
    """Each step of a recurrence adds a term, and factoring compares all pairs of terms."""

    def term_counts(steps: int) -> list[int]:
        found = multiplied_out(unrolled_recurrence(steps, 3, 2))
        return [max(sum(len(terms(s.body)) for _, s in scopes(e.scope)) for e in d.end.equations) for d in found]

    short, long = term_counts(8), term_counts(MAX_TERMS + 20)
    assert len(short) > 7
    assert MAX_TERMS - 3 < max(long) <= MAX_TERMS


CONCATENATION = """tensor A[4, 9]
tensor x[9, 8]
tensor z[9, 8]
tensor B[4, 9]
P[i:4, j:8] = sum[k:9] A[i, k] * x[k, j]
Q[i:4, j:8] = sum[k:9] {0}[i, k] * z[k, j]
Y[i:4, j:{1}] = {{[i:4, j:8] P[i, j]}} pad [0, (0, {2})][i, j] + {{[i:4, j:8] Q[i, j]}} pad [0, ({3}, {4})][i, j{5}]
output Y"""


def test_padding_of_independent_terms_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    start = parse(CONCATENATION.format("B", 16, 8, 8, 0, "-8"))
    monkeypatch.setattr(factoring, "_paddings", lambda _: pytest.fail("padding was moved"))
    assert not list(factorings(start))


def test_padding_moves_where_terms_have_a_common_factor() -> None:
    start = parse(CONCATENATION.format("A", 12, 4, 0, 4, ""))
    end = best(start).end
    assert products_at_run_time(end) < products_at_run_time(start)
    agree(start, end)
