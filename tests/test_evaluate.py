"""Evaluation against a pointwise reference, exact on integers of any size."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.interpreter.grid import IllegalRead
from einnet_explore.ir import (
    Apply,
    Bound,
    Compare,
    Const,
    Equation,
    Iterator,
    Program,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
    program,
)
from tests.pointwise import pointwise
from tests.strategies import inputs_for, programs, scopes_

INF = float("inf")


def x(name: str, hi: int, lo: int = 0) -> Iterator:
    return Iterator(name, lo, hi)


def same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and all(p == q for p, q in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True))


def conv(n: int, h: int, w: int, c: int, f: int, k: int) -> Scope:
    p = k // 2
    image = Tensor("A", (n, h, w, c), ((0, 0), (p, p), (p, p), (0, 0)))
    kernel = Tensor("K", (k, k, f, c))
    N, H, W, F, C, R, S = x("n", n), x("h", h), x("w", w), x("f", f), x("c", c), x("r", k), x("s", k)
    return Scope((N, H, W, F), (C, R, S), mul(image[N, H + R - p, W + S - p, C], kernel[R, S, F, C]))


@given(scopes_(), st.sampled_from([1 << 25, 40, 3]))
def test_equals_the_pointwise_meaning(scope: Scope, limit: int) -> None:
    inputs = inputs_for(scope)
    assert same(evaluate(scope, inputs, limit=limit), pointwise(scope, inputs))


@given(scopes_(), st.sampled_from([10**5, 10**10, 10**30]))
def test_integers_of_any_size_are_exact(scope: Scope, scale: int) -> None:
    inputs = {name: np.asarray(a.astype(object) * scale + 1) for name, a in inputs_for(scope).items()}
    expected = pointwise(scope, inputs)
    assert same(evaluate(scope, inputs), expected)
    if scale < 10**18:
        assert same(evaluate(scope, {name: a.astype(np.int64) for name, a in inputs.items()}), expected)


@given(scopes_(depth=2))
def test_floats_agree_where_they_are_exact(scope: Scope) -> None:
    inputs = inputs_for(scope)
    expected = np.asarray(evaluate(scope, inputs), np.float64)
    got = evaluate(scope, inputs, np.float64)
    assert got.dtype == np.float64
    assert np.allclose(got, expected, rtol=1e-12)
    assert evaluate(scope, inputs, np.float32).dtype == np.float32


@given(programs())
def test_program_evaluates_its_equations_in_order(drawn: Program) -> None:
    inputs = inputs_for(drawn)
    got = evaluate(drawn, inputs)
    held: dict[str, Any] = dict(inputs)
    for equation in drawn.equations:
        held[equation.name] = pointwise(equation.scope, held)
        assert same(got[equation.name], held[equation.name])
    assert list(evaluate(drawn, inputs, outputs_only=True)) == list(drawn.outputs)


@pytest.mark.parametrize("shape", [(1, 7, 7, 12, 10, 3), (2, 5, 3, 4, 1, 5), (1, 4, 6, 3, 2, 1)])
@pytest.mark.parametrize("limit", [1 << 25, 500])
def test_convolution_equals_numpy(shape: tuple[int, ...], limit: int) -> None:
    scope = conv(*shape)
    _, h, w, _, _, k = shape
    p = k // 2
    inputs = inputs_for(scope)
    image = np.pad(inputs["A"], ((0, 0), (p, p), (p, p), (0, 0)))
    expected = sum(
        np.einsum("nhwc,fc->nhwf", image[:, r : r + h, s : s + w], inputs["K"][r, s])
        for r in range(k)
        for s in range(k)
    )
    assert np.array_equal(evaluate(scope, inputs, limit=limit), expected)
    assert np.array_equal(evaluate(scope, inputs, np.float32, limit=limit), expected)


def test_transposed_convolution_golden() -> None:
    """The published engine's golden: k4 s2 p1, two by two, iota inputs (the weight counts f, r, s, c)."""
    image = Tensor("A", (1, 2, 2, 3))
    kernel = Tensor("K", (4, 4, 2, 3), ((2, 2), (2, 2), (0, 0), (0, 0)))
    n, y, z, c, h, w, f = x("n", 1), x("y", 4), x("z", 4), x("c", 2), x("h", 2), x("w", 2), x("f", 3)
    scope = Scope((n, y, z, c), (h, w, f), mul(image[n, h, w, f], kernel[y + 1 - 2 * h, z + 1 - 2 * w, c, f]))
    iota = np.arange(96).reshape(3, 4, 4, 2).transpose(1, 2, 3, 0)
    got = evaluate(scope, {"A": np.arange(12).reshape(1, 2, 2, 3), "K": iota})
    assert got.ravel().tolist() == [
        *(190, 193, 740, 755, 770, 785, 592, 604, 992, 1016, 2704, 2770, 2836, 2902, 1832, 1874),
        *(1184, 1208, 3232, 3298, 3364, 3430, 2168, 2210, 1114, 1135, 2660, 2711, 2762, 2813, 1624, 1654),
    ]  # fmt: skip


def test_body_with_terms_of_nested_scopes_equals_numpy() -> None:
    i, j, k = x("i", 3), x("j", 4), x("k", 5)
    a, b = Tensor("A", (3, 5)), Tensor("B", (5, 4))
    inner = Scope((i, j), (k,), mul(a[i, k], b[k, j]))
    outer = Scope((j,), (i,), Apply("-", (mul(Const(2), inner[i, j]), add(a[i, i], Const(7)))))
    inputs = inputs_for(outer)
    expected = (2 * (inputs["A"] @ inputs["B"]) - np.diagonal(inputs["A"])[:3, None] - 7).sum(0)
    assert np.array_equal(evaluate(outer, inputs), expected)


def test_infinite_padding_makes_floats() -> None:
    y, k = x("y", 4), x("k", 3)
    pool = Scope((y,), (k,), Tensor("A", (4,), ((1, 1),), -INF)[(y + k - 1,)], reduce="max")
    got = evaluate(pool, {"A": [3, -1, -4, -5]})
    assert got.dtype == np.float64
    assert got.tolist() == [3, 3, -1, -4]
    big = evaluate(pool, {"A": [2**53 + 1, 0, 2**70, 1]})
    assert big.tolist() == [2**53 + 1, 2**70, 2**70, 2**70]


@pytest.mark.parametrize(("monoid", "neutral"), [("sum", 0), ("prod", 1), ("max", -INF), ("min", INF)])
def test_an_empty_reduction_is_neutral(monoid: str, neutral: float) -> None:
    y, k = x("y", 2), x("k", 0)
    a = Tensor("A", (2, 3))
    assert evaluate(Scope((y,), (k,), a[y, k], monoid), {"A": np.ones((2, 3))}).tolist() == [neutral] * 2
    assert evaluate(Scope((y,), (k,), Const(5), monoid), {}).tolist() == [neutral] * 2


@pytest.mark.parametrize(("monoid", "value"), [("sum", 15), ("prod", 125), ("max", 5), ("min", 5)])
def test_an_unused_summation_counts(monoid: str, value: int) -> None:
    assert evaluate(Scope((x("y", 2),), (x("k", 3),), Const(5), monoid), {}).tolist() == [value] * 2


def test_empty_ranges_have_empty_or_padding_values() -> None:
    y, k = x("y", 0), x("k", 3)
    assert evaluate(Scope((y,), (k,), Tensor("A", (4,))[(y + k,)]), {"A": [1, 2, 3, 4]}).shape == (0,)
    z = x("z", 2)
    assert evaluate(Scope((z,), (), Tensor("E", (0,), ((0, 2),), 9)[(z,)]), {"E": np.zeros(0)}).tolist() == [9, 9]


def test_an_illegal_read_shows_its_numbers() -> None:
    y, k = x("y", 4), x("k", 3)
    scope = Scope((y,), (k,), Tensor("A", (4,), ((1, 0),))[(y + k - 1,)])
    with pytest.raises(IllegalRead, match=r"A\[k\+y-1\] at k=2, y=3 reads \[4\], outside its reach \[-1, 4\)"):
        evaluate(scope, {"A": [1, 2, 3, 4]})
    nested = Scope((y,), (), Scope((k,), (), Const(1))[(y,)])
    with pytest.raises(IllegalRead, match=r"the scope over k\[y\] at y=3 reads \[3\], outside its reach \[0, 3\)"):
        evaluate(nested, {})
    assert issubclass(IllegalRead, IndexError)


def test_reads_that_are_not_made_are_legal() -> None:
    y = x("y", 4)
    read = Tensor("A", (4,))[(y + 2,)]
    inside = Compare("<", as_index(y), as_index(2))
    assert evaluate(Scope((y,), (), Apply("where", (inside, read, Const(-1)))), {"A": [1, 2, 3, 4]}).tolist() == [
        *(3, 4, -1, -1)
    ]  # fmt: skip
    outside = Compare(">=", as_index(y), as_index(2))
    assert evaluate(Scope((y,), (), Apply("where", (outside, Const(-1), read))), {"A": [1, 2, 3, 4]}).tolist() == [
        *(3, 4, -1, -1)
    ]  # fmt: skip
    domain = (Bound(as_index(y), 0, 2),)
    assert evaluate(Scope((y,), (), read, domain=domain, value=8), {"A": [1, 2, 3, 4]}).tolist() == [3, 4, 8, 8]
    with pytest.raises(IllegalRead, match="y=2"):
        evaluate(Scope((y,), (), read, domain=(Bound(as_index(y), 0, 3),)), {"A": [1, 2, 3, 4]})


@pytest.mark.parametrize("limit", [1 << 25, 2])
@pytest.mark.parametrize("monoid", ["sum", "max"])
def test_the_domain_decides_after_the_reduction(limit: int, monoid: str) -> None:
    y, k = x("y", 4), x("k", 5)
    a = Tensor("A", (4, 5))
    inputs = {"A": np.arange(20).reshape(4, 5)}
    scope = Scope((y,), (k,), a[y, k], monoid, domain=(Bound(as_index(y), 1, 3),), value=-7)
    best = inputs["A"].sum(1) if monoid == "sum" else inputs["A"].max(1)
    assert evaluate(scope, inputs, limit=limit).tolist() == [-7, best[1], best[2], -7]


@pytest.mark.parametrize(
    ("op", "reference"),
    [
        ("tanh", math.tanh),
        ("exp", math.exp),
        ("sigmoid", lambda v: 1 / (1 + math.exp(-v))),
        ("erf", math.erf),
        ("log", math.log),
        ("sqrt", math.sqrt),
        ("rsqrt", lambda v: 1 / math.sqrt(v)),
    ],
)
@pytest.mark.parametrize("kind", [np.int64, object])
def test_real_functions_give_floats(op: str, reference: Any, kind: Any) -> None:
    y = x("y", 4)
    values = np.asarray([1, 2, 3, 40], kind)
    got = evaluate(Scope((y,), (), Apply(op, (Tensor("A", (4,))[(y,)],))), {"A": values})
    assert got.dtype == np.float64
    assert np.allclose(got, [reference(v) for v in (1, 2, 3, 40)], rtol=1e-14)


def test_division_is_real_and_integer_powers_are_exact() -> None:
    y = x("y", 3)
    a = Tensor("A", (3,))[(y,)]
    one = {"A": [3, -2, 5]}
    assert evaluate(Scope((y,), (), Apply("/", (a, Const(2)))), one).tolist() == [1.5, -1, 2.5]
    assert evaluate(Scope((y,), (), Apply("pow", (a, Const(50)))), one).tolist() == [3**50, 2**50, 5**50]
    assert evaluate(Scope((y,), (), Apply("pow", (a, Const(3)))), one).dtype == np.int64
    assert evaluate(Scope((y,), (), Apply("pow", (a, Const(-1)))), one).tolist() == [1 / 3, -0.5, 0.2]
    assert evaluate(Scope((y,), (), mul(Const(0.5), a)), one).tolist() == [1.5, -1, 2.5]


def test_sigmoid_does_not_overflow() -> None:
    y = x("y", 2)
    got = evaluate(Scope((y,), (), Apply("sigmoid", (Tensor("A", (2,))[(y,)],))), {"A": [-2000, 2000]})
    assert got.tolist() == [0, 1]


def test_wrong_arrays_are_refused() -> None:
    y, k = x("y", 2), x("k", 2)
    a = Tensor("A", (2,))
    scope = Scope((y,), (), a[(y,)])
    with pytest.raises(ValueError, match=r"A has shape \(2,\), its array \(3,\)"):
        evaluate(scope, {"A": [1, 2, 3]})
    with pytest.raises(ValueError, match="A has no array: given are B"):
        evaluate(scope, {"B": [1]})
    with pytest.raises(ValueError, match=r"exact evaluation needs integers: A holds 0\.5"):
        evaluate(scope, {"A": [1, 0.5]})
    with pytest.raises(ValueError, match="exact evaluation needs integers: A has type complex128"):
        evaluate(scope, {"A": [1j, 1]})
    with pytest.raises(ValueError, match="dtype int32: expected 'exact' or a floating type"):
        evaluate(scope, {"A": [1, 2]}, np.int32)
    with pytest.raises(ValueError, match="operator frob of 1 arguments"):
        evaluate(replace(scope, body=Apply("frob", (a[(y,)],))), {"A": [1, 2]})
    with pytest.raises(ValueError, match="A has 1 dimensions and is read with 2 indices"):
        evaluate(replace(scope, body=a[y, y]), {"A": [1, 2]})
    with pytest.raises(ValueError, match="comparison y < k outside the condition"):
        evaluate(replace(scope, summations=(k,), body=Compare("<", as_index(y), as_index(k))), {})
    wrong = Compare("<>", as_index(y), as_index(0))
    with pytest.raises(ValueError, match="comparison '<>'"):
        evaluate(replace(scope, body=Apply("where", (wrong, Const(0), Const(1)))), {})
    with pytest.raises(ValueError, match="k: no iterator of the scope"):
        evaluate(replace(scope, body=a[(k,)]), {"A": [1, 2]})
    with pytest.raises(ValueError, match="names k: only traversals may occur"):
        evaluate(replace(scope, summations=(k,), domain=(Bound(as_index(k), 0, 1),)), {"A": [1, 2]})


def test_a_program_needs_its_inputs() -> None:
    y = x("y", 2)
    with pytest.raises(ValueError, match="A has no array: given are none"):
        evaluate(program(Scope((y,), (), Tensor("A", (2,))[(y,)])), {})


def test_results_with_an_origin_are_read_where_they_are() -> None:
    y, z = x("y", 3, -2), x("z", 2)
    first = Equation("T", Scope((y,), (), Tensor("A", (5,))[(y + 2,)], padding=((0, 1),), value=4))
    second = Equation("Y", Scope((z,), (), first.tensor[(4 * z - 1,)]))
    drawn = Program((Tensor("A", (5,)),), (first, second), ("Y",))
    assert evaluate(drawn, {"A": [10, 11, 12, 13, 14]}, outputs_only=True)["Y"].tolist() == [11, 4]
