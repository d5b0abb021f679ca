"""Operator matching: every match preserves the value, attributes are solved, refusals state reasons."""

import json
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import (
    VIEW,
    Access,
    Apply,
    Bound,
    Const,
    Iterator,
    Program,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
    program,
)
from einnet_explore.operators import expressions
from einnet_explore.operators.form import expression_distance
from einnet_explore.operators.library import OPERATORS, check_canonical
from einnet_explore.operators.matching import match_operator
from einnet_explore.operators.operator import Operator
from einnet_explore.strategies.instantiation import matching_rule, nearest_distance
from einnet_explore.support.errors import Refused
from einnet_explore.syntax import parse

NAMED = {operator.name: operator for operator in OPERATORS}
MATMUL = NAMED["Matmul"]


def one(name: str, extent: int, lo: int = 0) -> Iterator:
    return Iterator(name, lo, lo + extent)


def inputs(p: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {t.name: rng.integers(-50, 50, t.shape) for t in p.inputs}


def check(
    before: Program, *operators: str, at: tuple[int, ...] = (0,), more: tuple[Operator, ...] = ()
) -> list[Program]:
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
            check_canonical(equation, known)
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
        own[key] = [one(f"{key.lower()}{i}", draw(st.integers(1, 4)), draw(st.integers(-2, 2))) for i in range(count)]
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
        with pytest.raises(Refused, match="Matmul reduces over k, the scope over nothing"):
            match_operator(scope, MATMUL)
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
def test_product_of_any_layout_is_one_call(transpose_a: bool, transpose_b: bool, batch: int | None) -> None:
    before = expressions.matmul(5, 7, 3, batch, transpose_a, transpose_b)
    (after,) = check(before, "Matmul")
    want = {"b": batch or 1, "m": 5, "n": 7, "k": 3} | ({"ta": 1} if transpose_a else {})
    want |= {"tb": 1} if transpose_b else {}
    assert calls(after) == [("Matmul" if batch is None else "BatchMatmul", want)]


def test_fig_5_inner_scope_is_a_product_at_distance_3() -> None:
    """t1,t2 → m; r,s,f → n; c → k at distance 3; A and K are views (requirements, Fig. 3 and 5)."""
    t1, t2, r, s, f, c = (one(n, e) for n, e in (("t1", 5), ("t2", 6), ("r", 3), ("s", 3), ("f", 4), ("c", 7)))
    a, k = Tensor("A", (5, 6, 7)), Tensor("K", (3, 3, 4, 7), weight=True)
    scope = Scope((t1, t2, r, s, f), (c,), mul(a[t1, t2, c], k[r, s, f, c]))
    far = expression_distance(scope, MATMUL)
    assert far.total == 3
    assert {row.group: row.mismatch for row in far.groups} == {"YYY": 0, "YNY": 1, "NYY": 2, "YYN": 0}
    way = match_operator(scope, MATMUL)[0]
    assert dict(way.iterators) == {"b": (), "m": (t1, t2), "n": (r, s, f), "k": (c,)}
    assert dict(way.attributes) == {"b": 1, "m": 30, "n": 36, "k": 7, "tb": 1}
    assert way.output_free and all(layout.free for layout in way.layouts)
    after = check(program(scope), "Matmul")[0]
    assert [e.via.operator for e in after.equations if e.via] == [VIEW, VIEW, "Matmul", VIEW]


def test_one_row_has_no_leading_dimension() -> None:
    """A dimension of extent 1 has no stride to speak of: no ``lda``, and a result that is packed stays a view."""
    for after in check(
        expressions.conv_transpose2d(N=1, H=2, W=2, in_channels=6, out_channels=5, R=4, S=4, stride=2, padding=1),
        "Matmul",
    ):
        assert not {"lda", "ldb"} & dict(calls(after)[-2][1]).keys()
        assert calls(after)[-1] == (VIEW, {"offset": 0, "strides": (80, 20, 5, 1)})


def test_fig_8_matches_a_batched_product_with_a_leading_dimension() -> None:
    u, v, i, w = one("u", 6, 1), one("v", 5), one("i", 7), one("w", 4)
    x, y = Tensor("X", (7, 2, 5, 8)), Tensor("Y", (6, 7, 7, 4))
    scope = Scope((u, v, w), (i,), mul(x[u, 0, v, i + 1], y[u - 1, u, i, w]))
    way = match_operator(scope, MATMUL)[0]
    assert dict(way.attributes) == {"b": 6, "m": 5, "n": 4, "k": 7, "lda": 8}
    check(program(scope, "Z"), "Matmul")


def test_strides_lay_out_diagonals_and_skews() -> None:
    """``B[k, k]`` and ``A[m, m + k]`` become operands of a matrix product."""
    m, n, k = one("m", 4), one("n", 5), one("k", 3)
    a, b, wide = Tensor("A", (4, 3)), Tensor("B", (3, 5)), Tensor("A", (4, 7))
    diagonal = Scope((m,), (k,), mul(a[m, k], Tensor("B", (3, 3))[k, k]))
    skewed = Scope((m, n), (k,), mul(wide[m, m + k], b[k, n]))
    assert check(program(diagonal), "Matmul") and check(program(skewed), "Matmul")


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
    before = expressions.conv2d(
        N=2, H=h, W=w, C=c, F=f, R=r, S=s,
        stride=stride, dilation=dilation, padding=pads, groups=groups, layout=layout,
    )  # fmt: skip
    scope = before.equations[0].scope
    if any(x.extent == 1 for x in scope.traversals if x.name in "hw"):
        return  # a convolution of one row is not matched as one of two dimensions
    want = {"n": 2, "sh": stride[0], "ph": pads[0], "r": r, "s": s, "g": groups, "c": c // groups, "f": f // groups}
    want |= {"dh": dilation[0]} | ({"dw": dilation[1], "pw": pads[1]} if s > 1 else {})
    found = [after for after in check(before, "Conv2d") if any(want.items() <= had.items() for _, had in calls(after))]
    assert found


def test_a_convolution_in_its_own_layout_is_one_call() -> None:
    uneven = expressions.conv2d(
        N=2, H=7, W=9, C=4, F=3, R=3, S=3, stride=(2, 1), padding=(1, 2, 1, 0), layout="NCHW"
    )  # fmt: skip
    (after,) = check(uneven, "Conv2d")
    (name, attributes) = calls(after)[0]
    assert len(after.equations) == 1 and name == "Conv2d"
    assert (attributes["sh"], attributes["sw"], attributes["ph"], attributes["pw"]) == (2, 1, 1, 2)
    (after,) = check(
        expressions.conv2d(N=2, H=7, W=9, C=4, F=6, R=3, S=3, groups=2, layout="NCHW", padding=1), "Conv2d"
    )
    assert [e.via.operator for e in after.equations if e.via] == [VIEW, VIEW, "Conv2d", VIEW]


def test_transposed_kernel_layout_is_a_layout_of_a_convolution() -> None:
    n, f, c, h, w, r, s = (one(*x) for x in (("n", 2), ("f", 3), ("c", 4), ("h", 5), ("w", 6), ("r", 3), ("s", 3)))
    a, k = Tensor("A", (2, 4, 5, 6), ((0, 0), (0, 0), (1, 1), (1, 1))), Tensor("K", (4, 3, 3, 3), weight=True)
    scope = Scope((n, f, h, w), (c, r, s), mul(a[n, c, h + r - 1, w + s - 1], k[c, f, r, s]))
    (after,) = check(program(scope), "Conv2d")
    assert [e.via.operator for e in after.equations if e.via] == ["eOperator", "Conv2d"]


@pytest.mark.parametrize(
    ("before", "name", "want"),
    [
        (
            expressions.conv_transpose2d(
                N=2, H=3, W=4, in_channels=5, out_channels=3, R=4, S=3, stride=(2, 3), padding=(1, 0), layout="NCHW"
            ),
            "ConvTranspose2d",
            {"n": 2, "c": 5, "f": 3, "h": 3, "w": 4, "sh": 2, "sw": 3, "ph": 1, "pw": 0, "R": 4, "S": 3},
        ),
        (
            expressions.conv_transpose2d(N=2, H=3, W=4, in_channels=5, out_channels=3, R=4, S=3, stride=2, padding=1),
            "ConvTranspose2d",
            {"sh": 2, "pw": 1},
        ),
        (expressions.g2bmm(2, 11, 2, 5, dilation=3), "G2BMM", {"b": 2, "m": 11, "w": 5, "k": 5, "d": 3, "W": 2}),
        (expressions.gbmm(2, 11, 2, 5, dilation=3), "GBMM", {"b": 2, "m": 11, "w": 5, "n": 5, "d": 3, "W": 2}),
        (
            expressions.max_pool2d(N=2, H=7, W=9, C=3, R=3, S=2, stride=2, padding=1),
            "MaxPool2d",
            {"c": 3, "r": 3, "s": 2, "sh": 2, "ph": 1},
        ),
        (
            expressions.average_pool2d(N=2, H=7, W=9, C=3, R=3, S=2, stride=2, padding=1),
            "AveragePool2d",
            {"r": 3, "s": 2, "sw": 2},
        ),
        (
            expressions.depthwise_conv2d(N=2, H=7, W=9, C=3, R=3, S=3, padding=1),
            "Conv2d",
            {"g": 3, "c": 1, "f": 1, "ph": 1},
        ),
        (expressions.binary("-", 3, 4), "Sub", {"i": 12}),
    ],
)
def test_operators_are_found_with_their_attributes(before: Program, name: str, want: dict[str, int]) -> None:
    found = check(before, name)
    assert any(called == name and want.items() <= had.items() for after in found for called, had in calls(after))


def test_a_band_that_is_not_centred_is_refused() -> None:
    b, m, w, k = one("b", 2), one("m", 11), one("w", 5), one("k", 3)
    wide = Tensor("B", (2, 11, 3), ((0, 0), (9, 9), (0, 0)))
    for shift in (-2, 1):
        scope = Scope((b, m, w), (k,), mul(Tensor("A", (2, 11, 3))[b, m, k], wide[b, m + 3 * w - 6 + shift, k]))
        with pytest.raises(Refused, match=f"= -6, needed is {shift - 6} .*W = 2, d = 3"):
            match_operator(scope, NAMED["G2BMM"])
    even = Scope((b, m, one("w", 4)), (k,), mul(Tensor("A", (2, 11, 3))[b, m, k], wide[b, m + one("w", 4) * 3, k]))
    with pytest.raises(Refused, match="no integer solution for W"):
        match_operator(even, NAMED["G2BMM"])


def test_padding_value_must_be_neutral_for_the_reduction() -> None:
    h, r = one("h", 5), one("r", 3)
    n, c = one("n", 2), one("c", 2)
    padded = Tensor("A", (2, 2, 5, 5), ((0, 0), (0, 0), (1, 1), (0, 0)), 4)
    scope = Scope((n, c, h, one("w", 5)), (r,), padded[n, c, h + r - 1, one("w", 5)], "max")
    with pytest.raises(Refused, match="MaxPool2d reads -inf outside X, the source is 4 there"):
        match_operator(scope, NAMED["MaxPool2d"])


def test_scopes_with_other_bodies_do_not_match() -> None:
    x, y = one("x", 3), one("y", 4)
    a, b = Tensor("A", (3, 4)), Tensor("B", (3, 4))
    with pytest.raises(Refused, match="Matmul has 2 operands, the body reads 1"):
        expression_distance(Scope((x,), (y,), a[x, y]), MATMUL)
    with pytest.raises(Refused, match=r"combines operands by \*, the body by \+"):
        expression_distance(Scope((x,), (y,), add(a[x, y], b[x, y])), MATMUL)
    with pytest.raises(Refused, match="reduces by sum, the scope by max"):
        expression_distance(Scope((x,), (y,), mul(a[x, y], b[x, y]), "max"), MATMUL)
    with pytest.raises(Refused, match="no single operation over accesses"):
        expression_distance(Scope((x,), (y,), Apply("+", (a[x, y], Const(1)))), MATMUL)
    z, u, v, r, s = (one(*e) for e in (("z", 2), ("u", 3), ("v", 3), ("r", 2), ("s", 2)))
    quarter = Apply("/", (Tensor("A", (3, 2, 4, 4))[x, z, u + r, v + s], Const(3)))
    averaged = Scope((x, z, u, v), (r, s), quarter)
    with pytest.raises(Refused, match="the body is divided by 3, AveragePool2d divides by 4"):
        match_operator(averaged, NAMED["AveragePool2d"])


def test_constant_factors_stay_with_the_reader() -> None:
    m, n, k = one("m", 3), one("n", 4), one("k", 5)
    scope = Scope((m, n), (k,), mul(Const(3), Tensor("A", (3, 5))[m, k], Tensor("B", (5, 4))[k, n]))
    (after,) = check(program(scope), "Matmul")
    assert [e.via.operator if e.via else None for e in after.equations] == ["Matmul", None]


def test_several_constant_factors_stay_with_the_reader() -> None:
    m, n, k = one("m", 3), one("n", 4), one("k", 5)
    product = mul(Const(0.1), Const(0.3), Tensor("A", (3, 5))[m, k], Tensor("B", (5, 4))[k, n])
    (after,) = check(program(Scope((m, n), (k,), product)), "Matmul")
    assert [e.via.operator if e.via else None for e in after.equations] == ["Matmul", None]


def test_a_nested_padded_scope_with_nested_operands() -> None:
    """{Σ_c {relu A}·K} inside a reader that reads its padding: the operand becomes an equation, the padding stays."""
    t, f, c, h, r, u, v = (one(*x) for x in (("t", 5), ("f", 3), ("c", 4), ("h", 5), ("r", 3), ("u", 5), ("v", 4)))
    rectified = Scope((u, v), (), Apply("relu", (Tensor("A", (5, 4))[u, v],)))
    inner = Scope(
        (r, t, f), (c,), mul(rectified[t, c], Tensor("K", (3, 3, 4))[r, f, c]), padding=((0, 0), (1, 1), (0, 0))
    )
    before = program(Scope((h, f), (r,), inner[r, h + r - 1, f]))
    found = check(before, "Matmul", at=(0, 0))
    assert found
    for after in found:
        _, attributes = next(call for call in calls(after) if call[0] == "Matmul")
        assert {attributes["m"], attributes["n"]} == {5, 9} and attributes["k"] == 4
        assert certify(before, after).kind in ("proved", "exact")
    assert nearest_distance(before, (MATMUL,)) == 1


def test_operands_that_only_reindex_are_read_through() -> None:
    m, n, k, u, v = one("m", 3), one("n", 4), one("k", 5), one("u", 5), one("v", 3)
    turned = Scope((u, v), (), Tensor("A", (3, 5))[v, u])
    before = program(Scope((m, n), (k,), mul(turned[k, m], Tensor("B", (5, 4))[k, n])))
    (after,) = check(before, "Matmul")
    assert calls(after) == [("Matmul", {"b": 1, "m": 3, "n": 4, "k": 5})]
    beyond = Scope((u, v), (), Tensor("A", (3, 5))[v, u], padding=((1, 0), (0, 0)))
    padded = program(Scope((m, n), (k,), mul(beyond[k - 1, m], Tensor("B", (5, 4))[k, n])))
    assert all(len(p.equations) == 3 for p in check(padded, "Matmul"))


def test_a_user_matches_an_operator_of_their_own() -> None:
    ger = Operator("Ger", "Y[m, n] = X[m] * Z[n]")
    three = Operator("Bilinear", "Y[m] = sum[i, j] X[m, i] * W[i, j] * Z[m, j]")
    m, n, i, j, k = one("p", 3), one("q", 4, -1), one("i", 2), one("j", 5), one("k", 2)
    outer = Scope((m, n), (), mul(Tensor("A", (4,))[n + 1,], Tensor("B", (3,))[m,]))
    (after, *_) = check(program(outer), "Ger", more=(ger,))
    assert "Ger" in [name for name, _ in calls(after)]
    form = Scope((m,), (j, i, k), mul(
        Tensor("W", (5, 2, 2))[j, i, k], Tensor("Z", (2, 3, 2))[i, m, k], Tensor("X", (3, 5))[m, j]
    ))  # fmt: skip
    found = check(program(form), "Bilinear", more=(three,))
    sizes = [dict(had) for after in found for name, had in calls(after) if name == "Bilinear"]
    assert {"m": 3, "i": 5, "j": 4} in sizes


def test_the_rule_refuses_with_the_numbers() -> None:
    before = expressions.matmul(3, 4, 5)
    rule = matching_rule(OPERATORS)
    params = next(iter(rule.matches(before, (0,)))).to_json()["params"]

    def refused(**change: object) -> str:
        with pytest.raises(Refused) as said:
            rule.match(before, (0,), **{**params, **change}).apply(before)
        return str(said.value)

    assert "unknown operator 'Gemm', expected one of Matmul" in refused(operator="Gemm")
    assert "the tensor map [0, 0] does not number the 2 operands" in refused(operands=[0, 0])
    assert "the scope has no iterator x, only m, n, k" in refused(iterators={"m": ["x"]})
    assert "the iterator map gives m:3; the scope has m:3, n:4, k:5" in refused(iterators={"m": ["m"]})
    assert "n is NYY, m of Matmul is YNY" in refused(iterators={"m": ["n"], "n": ["m"], "k": ["k"]})
    assert "Matmul has no iterator z" in refused(iterators={"z": ["m"], "n": ["n"], "k": ["k"]})
    assert "Matmul is given {'m': 4}, the scope has" in refused(attributes={"m": 4})
    with pytest.raises(ValueError, match="operator_matching needs 'operands'"):
        rule.match(before, (0,), operator="Matmul")
    done = next(iter(rule.matches(before, (0,)))).apply(before).after
    assert not list(rule.matches(done, (0,)))
    with pytest.raises(Refused, match="equation Y is run by Matmul"):
        rule.match(done, (0,), **params).apply(done)


def test_a_domain_is_no_library_call() -> None:
    m, k = one("m", 3), one("k", 5)
    scope = Scope((m,), (k,), mul(Tensor("A", (3, 5))[m, k], Tensor("B", (5,))[k,]), domain=(Bound(as_index(m), 1, 3),))
    with pytest.raises(Refused, match="the scope is restricted to a domain: 1 <= m < 3"):
        expression_distance(scope, MATMUL)
    assert nearest_distance(program(scope), OPERATORS) is None


def test_windows_have_names_that_the_scope_does_not_have() -> None:
    before = parse(
        "tensor A[6, 5, 2, 8] pad [0, 0, 1, 1] value -inf\n"
        "Y[r0:2, i0:6, i1:5, i2:2, i3:4] = max[r1:4] A[i0, i1, 2*i2+r0-1, 2*i3+r1-1]"
    )
    found = check(before, "MaxPool2d")
    assert found and all(certify(before, after).kind == "proved" for after in found)
