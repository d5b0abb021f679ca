"""Operator matching: every match computes what the scope does, the attributes are solved, refusals say why."""

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.algebra.certificate import certify
from einnet_explore.algebra.evaluate import evaluate
from einnet_explore.ir import (
    VIEW,
    Access,
    Apply,
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
    tensors,
)
from einnet_explore.operators import (
    OPERATORS,
    Operator,
    Unmatched,
    canonical_matches,
    distance,
    expressions,
    match,
    stride_equations,
)
from einnet_explore.rules.base import Refused
from einnet_explore.search.instantiation import matching_rule, nearest

NAMED = {operator.name: operator for operator in OPERATORS}
MATMUL = NAMED["Matmul"]


def one(name: str, extent: int, lo: int = 0) -> Iterator:
    return Iterator(name, lo, lo + extent)


def inputs(p: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {t.name: rng.integers(-50, 50, t.shape) for t in p.inputs}


def check(before: Program, *operators: str, at: tuple[int, ...] = (0,), more: tuple[Operator, ...] = ()) -> list[Program]:
    """Every proposal is accepted, survives JSON, means what it says and computes the same; the programs it gives."""
    known = (*OPERATORS, *more)
    targets = tuple(o for o in known if o.name in operators)
    rule = matching_rule(targets)
    held = inputs(before)
    want = evaluate(before, held)
    found = []
    for proposal in rule.matches(before, at):
        assert rule.match(before, at, **json.loads(json.dumps(proposal.to_json()["params"]))) == proposal
        after = proposal.apply(before).after
        got = evaluate(after, held)
        for name in before.outputs:
            assert np.allclose(want[name], got[name], rtol=1e-12, atol=0), (proposal, after)
        for equation in after.equations:
            assert canonical_matches(equation, known) is None
        found.append(after)
    return found


def calls(p: Program) -> list[tuple[str, dict[str, object]]]:
    return [(e.via.operator, dict(e.via.attributes)) for e in p.equations if e.via]


@st.composite
def contractions(draw: st.DrawFn) -> Scope:
    """Two operands whose dimensions are iterators in any order, with offsets, strides and other ranges."""
    groups = {key: draw(st.integers(0, 2)) for key in ("YYY", "YNY", "NYY")} | {"YYN": draw(st.integers(1, 2))}
    own: dict[str, list[Iterator]] = {}
    for key, count in groups.items():
        own[key] = [
            one(f"{key.lower()}{i}", draw(st.integers(1, 4)), draw(st.integers(-2, 2))) for i in range(count)
        ]
    reads = []
    for p, name in enumerate("AB"):
        mine = draw(st.permutations([x for key, xs in own.items() if key[p] == "Y" for x in xs]))
        index, shape, pads = [], [], []
        for x in mine:
            k, pad = draw(st.sampled_from([1, 1, 1, 2])), draw(st.sampled_from([0, 0, 1]))
            index.append(x * k - x.lo * k - pad + draw(st.integers(0, 1)))
            shape.append(max(1, index[-1].bounds[1] + 1 - draw(st.integers(0, 1))))
            pads.append((max(0, -index[-1].bounds[0]), max(0, index[-1].bounds[1] + 1 - shape[-1])))
        padding = tuple(pads) if any(map(any, pads)) else ()
        reads.append(Access(Tensor(name, tuple(shape), padding), tuple(map(as_index, index))))
    traversals = draw(st.permutations([x for key in ("YYY", "YNY", "NYY") for x in own[key]]))
    return Scope(tuple(traversals), tuple(own["YYN"]), mul(*draw(st.permutations(reads))))


@given(contractions())
def test_every_contraction_is_a_matmul(scope: Scope) -> None:
    if all(x.extent == 1 for x in scope.summations):
        with pytest.raises(Unmatched, match="Matmul reduces over k, the scope over nothing"):
            match(scope, MATMUL)
        return
    found = check(program(scope), "Matmul")
    assert found
    for after in found:
        (call,) = [c for c in calls(after) if "Matmul" in c[0]]
        sizes = {key: call[1][name] for key, name in (("YYY", "b"), ("YYN", "k"))}
        assert sizes["YYN"] == prod(x.extent for x in scope.summations)
        assert (call[0] == "BatchMatmul") == (sizes["YYY"] != 1)


@given(contractions())
def test_a_match_is_certified(scope: Scope) -> None:
    before = program(scope)
    for proposal in list(matching_rule((MATMUL,)).matches(before, (0,)))[:1]:
        assert certify(before, proposal.apply(before).after).kind in ("proved", "exact")


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [None, 3])
def test_matmul_is_one_call(transpose_a: bool, transpose_b: bool, batch: int | None) -> None:
    before = expressions.matmul(5, 7, 3, batch, transpose_a, transpose_b)
    (after,) = check(before, "Matmul")
    want = {"b": batch or 1, "m": 5, "n": 7, "k": 3} | ({"ta": 1} if transpose_a else {})
    want |= {"tb": 1} if transpose_b else {}
    assert calls(after) == [("Matmul" if batch is None else "BatchMatmul", want)]


def test_fig_5_inner_scope() -> None:
    """t1,t2 → m; r,s,f → n; c → k at distance 3; A and K are views (requirements, Fig. 3 and 5)."""
    t1, t2, r, s, f, c = (one(n, e) for n, e in (("t1", 5), ("t2", 6), ("r", 3), ("s", 3), ("f", 4), ("c", 7)))
    a, k = Tensor("A", (5, 6, 7)), Tensor("K", (3, 3, 4, 7), weight=True)
    scope = Scope((t1, t2, r, s, f), (c,), mul(a[t1, t2, c], k[r, s, f, c]))
    far = distance(scope, MATMUL)
    assert far.total == 3
    assert {row.group: row.mismatch for row in far.groups} == {"YYY": 0, "YNY": 1, "NYY": 2, "YYN": 0}
    way = match(scope, MATMUL)[0]
    assert dict(way.iterators) == {"b": (), "m": (t1, t2), "n": (r, s, f), "k": (c,)}
    assert dict(way.attributes) == {"b": 1, "m": 30, "n": 36, "k": 7, "tb": 1}
    assert way.direct and way.output_free
    after = check(program(scope), "Matmul")[0]
    assert [e.via.operator for e in after.equations if e.via] == [VIEW, VIEW, "Matmul", VIEW]


def test_fig_8() -> None:
    u, v, i, w = one("u", 6, 1), one("v", 5), one("i", 7), one("w", 4)
    x, y = Tensor("X", (7, 2, 5, 8)), Tensor("Y", (6, 7, 7, 4))
    scope = Scope((u, v, w), (i,), mul(x[u, 0, v, i + 1], y[u - 1, u, i, w]))
    (way,) = match(scope, MATMUL, direct=True)
    lines = stride_equations(scope, way)
    assert lines == (
        "l_A0 = l_X0", "l_A1 = l_X2", "l_A2 = l_X3", "offset of A = l_X3",
        "l_B0 = l_Y0 + l_Y1", "l_B1 = l_Y2", "l_B2 = l_Y3", "offset of B = -l_Y0",
    )  # fmt: skip
    assert dict(way.attributes) == {"b": 6, "m": 5, "n": 4, "k": 7, "lda": 8, "ldb": 4} or dict(way.attributes)["b"] == 6
    check(program(scope, "Z"), "Matmul")


def test_no_direct_matmuls() -> None:
    """``B[k, k]``, ``A[m, m + k]`` and ``A[m, n + k]`` are no matmul (conformance cases): the first two by layouts only."""
    m, n, k = one("m", 4), one("n", 5), one("k", 3)
    a, b, wide = Tensor("A", (4, 3)), Tensor("B", (3, 5)), Tensor("A", (4, 7))
    diagonal = Scope((m,), (k,), mul(a[m, k], Tensor("B", (3, 3))[k, k]))
    with pytest.raises(Unmatched, match=r"k stands in dimensions 0 and 1 of B\[k, k\]"):
        match(diagonal, MATMUL, direct=True)
    skewed = Scope((m, n), (k,), mul(wide[m, m + k], b[k, n]))
    with pytest.raises(Unmatched, match=r"dimension 1 of A\[m, k\+m\] mixes k and m"):
        match(skewed, MATMUL, direct=True)
    assert check(program(diagonal), "Matmul") and check(program(skewed), "Matmul")
    banded = Scope((m, n), (k,), mul(Tensor("A", (4, 7))[m, n + k], b[k, n]))
    with pytest.raises(Unmatched, match="dimension 1 of A|strides"):
        match(banded, MATMUL, direct=True)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@given(data=st.data())
def test_convolutions_are_matched_with_their_attributes(layout: str, data: st.DataObject) -> None:
    draw = data.draw
    r, s = draw(st.integers(2, 3)), draw(st.integers(1, 3))
    stride, dilation = ((draw(st.integers(1, 3)), draw(st.integers(1, 3))) for _ in "sd")
    pads = tuple(draw(st.integers(0, 2)) for _ in range(4))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    h, w = dilation[0] * (r - 1) + draw(st.integers(2, 5)), dilation[1] * (s - 1) + draw(st.integers(2, 5))
    c, f = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    before = expressions.conv2d(2, h, w, c, f, r, s, stride, dilation, pads, groups, layout)
    scope = before.equations[0].scope
    if any(x.extent == 1 for x in scope.traversals if x.name in "hw"):
        return  # a convolution of one row is not matched as one of two dimensions
    for after in check(before, "Conv2d", "Matmul"):
        for name, found in calls(after):
            if name == "Conv2d":
                assert found["sh"] == stride[0] and (found["dh"] == dilation[0])
                assert found["ph"] == pads[0] and found["r"] == r and found["s"] == s
                assert found["g"] * found["c"] == c and found["g"] * found["f"] == f
                if s > 1:
                    assert found["dw"] == dilation[1] and found["pw"] == pads[1]
                if layout == "NCHW":
                    assert all(e.via.operator in ("View", "Conv2d") for e in after.equations if e.via)
    assert any(name == "Conv2d" for after in check(before, "Conv2d") for name, _ in calls(after))
