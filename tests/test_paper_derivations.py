"""Every transformation in a figure of EinNet is found by one call of ``ee.search``, at sizes of our own."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Access, EOperatorKind, Iterator, Program, map_accesses, scopes
from einnet_explore.rules import BATCH_MERGING, EXPRESSION_SPLITTING
from einnet_explore.strategies.candidate import Candidate
from einnet_explore.syntax import parse
from tests.strategies import inputs_for


def slow(*cases: tuple[int, ...]) -> list[object]:
    """*cases* that ``make test`` leaves out: they take as long as those before and show the same for other sizes."""
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def found(program: Program, wanted: Callable[[Candidate], bool], **options: object) -> Candidate:
    """The first candidate that is *wanted*; it is proved and computes the same numbers."""
    run = ee.live_search(program, budget=None, **options)
    seen = 0
    for _ in run:
        if len(run.candidates) > seen:
            seen = len(run.candidates)
            if wanted(candidate := run.candidates[-1]):
                assert run.verdict(candidate) == "proved"
                inputs = inputs_for(program)
                want, got = (evaluate(p, inputs, outputs_only=True) for p in (program, candidate.program))
                for name, value in want.items():  # floats, rounded in another order, where there are functions
                    compare = np.testing.assert_allclose if value.dtype.kind == "f" else np.testing.assert_array_equal
                    compare(got[name], value)
                return candidate
    raise AssertionError(f"not among {len(run.candidates)} candidates")


def calls(candidate: Candidate) -> list[tuple[str, dict[str, object]]]:
    return [(e.via.operator, dict(e.via.attributes)) for e in candidate.operators if e.via]


def sizes(candidate: Candidate) -> list[tuple[str, list[int]]]:
    """The library calls by name with their sizes, for products in whichever order of their operands."""
    return sorted(
        (name, sorted(n for k, n in by.items() if isinstance(n, int) and n > 1 and k not in ("ta", "tb")))
        for name, by in calls(candidate)
    )


def rules(candidate: Candidate) -> list[str]:
    return [step.match.rule.name for step in candidate.derivation.steps]


def merges(candidate: Candidate) -> list[str]:
    return sorted(name for name in rules(candidate) if name.endswith("_merging") and name != "traversal_merging")


def layouts(candidate: Candidate) -> list[str]:
    """The layout eOperators that run."""
    return [e.name for e in candidate.program.equations if e.via and e.via.eoperator_kind == EOperatorKind.LAYOUT]


def siblings(h: int, w: int, c: int, f: int, g: int) -> Program:
    return parse(f"""
        tensor A[1, {c}, {h}, {w}] pad [0, 0, 1, 1]
        tensor K[{f}, {c}, 3, 3] weight
        tensor L[{g}, {c}, 1, 1] weight
        Y[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:3, s:3] A[n, c, h+r-1, w+s-1] * K[f, c, r, s]
        Z[n:1, f:{g}, h:{h}, w:{w}] = sum[c:{c}, r:1, s:1] A[n, c, h+r, w+s] * L[f, c, r, s]
        R[n:1, f:{f}, h:{h}, w:{w}] = relu(Y[n, f, h, w])
        output R, Z
    """)


@pytest.mark.parametrize(("h", "w", "c", "f", "g"), [(7, 6, 20, 12, 16), (6, 5, 18, 10, 24), (5, 9, 16, 14, 7)])
def test_fig3_convolutions_of_two_sizes_are_one_product(h: int, w: int, c: int, f: int, g: int) -> None:
    """The Conv3x3 is a product with nine times its channels, next to the Conv1x1's; OffsetReduce and ReLU are fused."""
    program = siblings(h, w, c, f, g)
    candidate = found(program, lambda c_: sizes(c_) == [("Matmul", sorted((h * w, c, 9 * f + g)))] and _relu_fused(c_))
    assert merges(candidate) == ["sibling_merging"]
    names = rules(candidate)
    assert names.index("operator_matching") < names.index("sibling_merging") < names.index("expression_fusion")


def _relu_fused(candidate: Candidate) -> bool:
    (scope,) = (e.scope for e in candidate.program.equations if e.name == "R")
    return any(inner.summations for _, inner in scopes(scope))


def generator(c: int, f: int, g: int, h: int, k: int) -> Program:
    """Two transposed convolutions with stride 2 and windows of k, each before an activation."""
    p, size = (k - 2) // 2, (2 * h, 4 * h)
    return parse(f"""
        tensor X[1, {c}, {h}, {h}]
        tensor L[{f}, {c}, {k}, {k}] weight pad [0, 0, {size[0]}, {size[0]}]
        tensor M[{g}, {f}, {k}, {k}] weight pad [0, 0, {size[1]}, {size[1]}]
        Z[n:1, c:{f}, y:{size[0]}, x:{size[0]}] = sum[f:{c}, h:{h}, w:{h}] X[n, f, h, w] * L[c, f, y-2*h+{p}, x-2*w+{p}]
        R[n:1, c:{f}, y:{size[0]}, x:{size[0]}] = relu(Z[n, c, y, x])
        U[n:1, c:{g}, y:{size[1]}, x:{size[1]}] =
            sum[f:{f}, h:{size[0]}, w:{size[0]}] R[n, f, h, w] * M[c, f, y-2*h+{p}, x-2*w+{p}]
        T[n:1, c:{g}, y:{size[1]}, x:{size[1]}] = tanh(U[n, c, y, x])
        output T
    """)


@pytest.mark.parametrize(
    ("c", "f", "g", "h", "k"),
    [(32, 24, 8, 4, 4), *slow((20, 16, 6, 3, 4), (28, 18, 9, 3, 6))],
)
def test_fig11_overlap_adds_and_activations_are_fused(c: int, f: int, g: int, h: int, k: int) -> None:
    """Two products and two eOperators run; the layouts of the weights are evaluated at compile time."""
    wanted = sorted([("Matmul", sorted((h * h, f * k * k, c))), ("Matmul", sorted((4 * h * h, g * k * k, f)))])
    candidate = found(generator(c, f, g, h, k), lambda c_: sizes(c_) == wanted and c_.eoperators == 2, max_depth=2)
    assert rules(candidate).count("expression_fusion") >= 2


ATTENTION = """
tensor Q[{b}, {m}, {k}]
tensor K[{b}, {m}, {k}] pad [0, {p}, 0]
tensor V[{b}, {m}, {n}] pad [0, {p}, 0]
S[b:{b}, m:{m}, w:{x}] = sum[k:{k}] Q[b, m, k] * K[b, m+{d}*w-{p}, k]
M[b:{b}, m:{m}] = max[w:{x}] S[b, m, w]
E[b:{b}, m:{m}, w:{x}] = exp(S[b, m, w] - M[b, m])
D[b:{b}, m:{m}] = sum[w:{x}] E[b, m, w]
P[b:{b}, m:{m}, w:{x}] = E[b, m, w] / D[b, m]
Y[b:{b}, m:{m}, n:{n}] = sum[w:{x}] P[b, m, w] * V[b, m+{d}*w-{p}, n]
output Y
"""


def are_dense_bands(candidate: Candidate) -> bool:
    return [(name, by.get("d")) for name, by in calls(candidate)] == [("G2BMM", 1), ("GBMM", 1)]


@pytest.mark.parametrize(
    ("b", "m", "k", "n", "half", "d"),
    [
        (1, 48, 16, 12, 6, 4),
        (2, 36, 12, 10, 4, 3),
        (3, 40, 16, 16, 5, 2),
        *slow((4, 30, 12, 12, 3, 5)),
        (5, 42, 14, 12, 4, 6),
        *slow((8, 28, 12, 16, 6, 2), (12, 36, 12, 16, 4, 3)),
    ],
)
def test_fig14_dilated_attention_is_two_dense_bands_whose_layouts_cancel(
    b: int, m: int, k: int, n: int, half: int, d: int
) -> None:
    program = parse(ATTENTION.format(b=b, m=m, k=k, n=n, x=2 * half + 1, d=d, p=half * d))
    candidate = found(program, lambda c: are_dense_bands(c) and len(layouts(c)) <= 4, max_depth=3)
    assert [by["b"] for _, by in calls(candidate)] == [b * d, b * d]
    # Queries, keys, values and the result are reordered; nothing between the products is.
    assert not {"S", "M", "E", "D", "P"} & {*layouts(candidate)}


def heads(b: int, m: int, k: int, half: int, d: int) -> Program:
    tensors, equations = "", ""
    for h in "uv":
        tensors += f"tensor Q{h}[{b}, {m}, {k}]\n"
        tensors += f"tensor K{h}[{b}, {m}, {k}] pad [0, {half * d}, 0]\n"
        tensors += f"tensor V{h}[{b}, {m}, {k}] pad [0, {half * d}, 0]\n"
        window = f"m+{d}*w-{half * d}"
        equations += f"S{h}[b:{b}, m:{m}, w:{2 * half + 1}] = sum[k:{k}] Q{h}[b, m, k] * K{h}[b, {window}, k]\n"
        equations += f"Y{h}[b:{b}, m:{m}, n:{k}] = sum[w:{2 * half + 1}] S{h}[b, m, w] * V{h}[b, {window}, n]\n"
    return parse(f"{tensors}{equations}output Yu, Yv")


@pytest.mark.parametrize(
    ("b", "m", "k", "half", "d"),
    [(1, 48, 16, 6, 4), *slow((2, 36, 12, 4, 3)), (1, 30, 14, 5, 2)],
)
def test_fig14_dense_bands_of_two_heads_are_merged(b: int, m: int, k: int, half: int, d: int) -> None:
    candidate = found(heads(b, m, k, half, d), are_dense_bands, max_depth=3)
    assert [by["b"] for _, by in calls(candidate)] == [2 * b * d, 2 * b * d]
    assert merges(candidate) == ["batch_merging", "batch_merging"]


def separable(h: int, w: int, c: int, f: int, k: int) -> Program:
    p = k // 2
    return parse(f"""
        tensor X[1, {c}, {h}, {w}] pad [0, 0, {p}, {p}]
        tensor A[{f}, {c}, {k}, 1] weight
        tensor B[{f}, {f}, 1, {k}] weight
        tensor C[{f}, {c}, 1, {k}] weight
        tensor D[{f}, {f}, {k}, 1] weight
        P[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:{k}, s:1] X[n, c, h+r-{p}, w+s] * A[f, c, r, s] pad [0, 0, 0, {p}]
        Q[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{f}, r:1, s:{k}] P[n, c, h+r, w+s-{p}] * B[f, c, r, s]
        R[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{c}, r:1, s:{k}] X[n, c, h+r, w+s-{p}] * C[f, c, r, s] pad [0, 0, {p}, 0]
        S[n:1, f:{f}, h:{h}, w:{w}] = sum[c:{f}, r:{k}, s:1] R[n, c, h+r-{p}, w+s] * D[f, c, r, s]
        Y[n:1, f:{f}, h:{h}, w:{w}] = Q[n, f, h, w] + S[n, f, h, w]
    """)


@pytest.mark.parametrize(
    ("h", "w", "c", "f", "k"),
    [(8, 7, 20, 9, 3), *slow((9, 6, 24, 7, 5), (6, 6, 18, 10, 3))],
)
def test_fig15_four_convolutions_are_two_products(h: int, w: int, c: int, f: int, k: int) -> None:
    """The first two products share their input, the last two make a batch."""
    wanted = sorted([("Matmul", sorted((2 * k * f, h * w, c))), ("BatchMatmul", sorted((2, k * f, h * w, f)))])
    candidate = found(separable(h, w, c, f, k), lambda c_: sizes(c_) == wanted, max_depth=2)
    assert merges(candidate) == ["batch_merging", "sibling_merging"]


def convolution(h: int, w: int, c: int, f: int, r: int, s: int, step: int = 1) -> Program:
    return parse(f"""
        tensor A[1, {h}, {w}, {c}] pad [0, ({r // 2}, {r}), ({s // 2}, {s}), 0]
        tensor K[{r}, {s}, {f}, {c}] weight
        Y[n:1, h:{-(-h // step)}, w:{-(-w // step)}, f:{f}] =
            sum[c:{c}, r:{r}, s:{s}] A[n, {step}*h+r-{r // 2}, {step}*w+s-{s // 2}, c] * K[r, s, f, c]
    """)


def is_conv(candidate: Candidate, **attributes: int) -> bool:
    return any(name == "Conv2d" and attributes.items() <= by.items() for name, by in calls(candidate))


SIZES = [(7, 6, 16, 8), (5, 8, 12, 10), (6, 9, 20, 6)]


@pytest.mark.parametrize(("h", "w", "c", "f"), SIZES)
def test_fig5_a_convolution_is_a_product_and_an_offset_reduction(h: int, w: int, c: int, f: int) -> None:
    candidate = found(
        convolution(h, w, c, f, 3, 3),
        lambda c_: sizes(c_) == [("Matmul", sorted((h * w, 9 * f, c)))],
        target="Matmul",
        max_depth=2,
    )
    (last,) = (e for e in candidate.program.equations if e.name == "Y")
    assert last.via is not None and last.via.eoperator_kind == EOperatorKind.REDUCTION
    assert [y.extent for y in last.scope.summations] == [3, 3]


@pytest.mark.parametrize(
    ("h", "w", "c", "f", "window", "step", "piece", "pieces"),
    [
        (12, 10, 16, 6, 5, 1, 3, 4),
        (9, 11, 14, 8, 9, 1, 3, 9),
        (12, 14, 16, 6, 5, 2, 4, 4),
        *slow((10, 12, 12, 7, 7, 1, 3, 9), (8, 9, 20, 5, 4, 1, 2, 4)),
    ],
)
def test_fig6_windows_are_split_into_pieces_of_any_size(
    h: int, w: int, c: int, f: int, window: int, step: int, piece: int, pieces: int
) -> None:
    """A window is padded to a multiple of the piece; each piece is some channels of one convolution."""
    candidate = found(
        convolution(h, w, c, f, window, window, step),
        lambda c_: is_conv(c_, f=pieces * f, r=piece, s=piece, sh=step, sw=step, dh=1, dw=1, g=1, c=c, n=1),
        target="Conv2d",
        max_depth=4,
    )
    assert len(candidate.operators) == 1


@pytest.mark.parametrize(("h", "w", "c", "f"), SIZES)
@pytest.mark.parametrize("form", ["f", "i", "k", "n", "p"])
def test_fig7_forms_of_a_convolution(h: int, w: int, c: int, f: int, form: str) -> None:
    """(f) Conv1x1 with nine times the channels; (i) im2col; (k) an input replicated for groups; (n, p) smaller ones."""
    conv = {"g": 1, "c": c, "n": 1, "h": h, "w": w, "dh": 1, "dw": 1}
    wanted: dict[str, Callable[[Candidate], bool]] = {
        "f": lambda c_: is_conv(c_, f=9 * f, r=1, s=1, **conv),
        "i": lambda c_: sizes(c_) == [("Matmul", sorted((h * w, f, 9 * c)))],
        "k": lambda c_: is_conv(c_, **(conv | {"g": 9}), f=f, r=1, s=1),
        "n": lambda c_: is_conv(c_, f=3 * f, r=1, s=3, **conv),
        "p": lambda c_: is_conv(c_, f=3 * f, r=3, s=1, **conv),
    }
    target = "Matmul" if form == "i" else "Conv2d"
    assert len(found(convolution(h, w, c, f, 3, 3), wanted[form], target=target, max_depth=2).operators) == 1


@pytest.mark.parametrize("reduce", ["max", "min", "prod"])
@pytest.mark.parametrize(("count", "m", "k"), [(2, 9, 12), (3, 5, 8), (4, 7, 6)])
def test_reductions_of_parts_of_one_tensor_are_one(reduce: str, count: int, m: int, k: int) -> None:
    """Expression merging (§4.2) of what does not sum: parts at equal distances are a view, nothing is copied."""
    parts = "".join(f"P{n}[m:{m}, k:{k}] = X[{n}, m, k]\n" for n in range(count))
    reduced = "".join(f"Y{n}[m:{m}] = {reduce}[k:{k}] P{n}[m, k]\n" for n in range(count))
    outputs = ", ".join(f"Y{n}" for n in range(count))
    program = parse(f"tensor X[{count}, {m}, {k}]\n{parts}{reduced}output {outputs}")
    candidate = found(program, lambda c: merges(c) == ["batch_merging"] and c.eoperators == 1)
    assert any(e.scope.reduce == reduce and e.scope.shape == (count, m) for e in candidate.program.equations)


@pytest.mark.parametrize(
    ("reduce", "body"),
    [("max", "A[m, k] + W[k, n]"), ("min", "W[k, n] - A[m, k]"), ("max", "A[m, k] * W[k, n]"),
     ("prod", "A[m, k] * W[k, n]"), ("prod", "1 + relu(A[m, k] - W[k, n])")],
)  # fmt: skip
@pytest.mark.parametrize(("m", "k", "n", "o"), [(6, 3, 5, 4), (40, 32, 24, 56), (8, 3, 3, 6)])
def test_siblings_that_do_not_sum_are_merged(reduce: str, body: str, m: int, k: int, n: int, o: int) -> None:
    program = parse(f"""
        tensor A[{m}, {k}]
        tensor B[{k}, {n}] weight
        tensor C[{k}, {o}] weight
        Y[m:{m}, n:{n}] = {reduce}[k:{k}] ({body.replace("W", "B")})
        Z[m:{m}, n:{o}] = {reduce}[k:{k}] ({body.replace("W", "C")})
        output Y, Z
    """)
    candidate = found(program, lambda c: merges(c) == ["sibling_merging"])
    assert any(e.scope.reduce == reduce and e.scope.shape == (m, n + o) for e in candidate.program.equations)


@pytest.mark.parametrize("body", ["max[k:{k}] (X[m+{at}, k] + W[k, n])", "sum[k:{k}] X[m+{at}, k] * W[k, n]"])
@pytest.mark.parametrize(("count", "m", "k", "o"), [(2, 24, 12, 32), *slow((3, 15, 8, 40), (4, 7, 16, 6))])
def test_slices_of_one_tensor_become_one_expression_in_place(body: str, count: int, m: int, k: int, o: int) -> None:
    rows = (f"Y{n}[m:{m}, n:{o}] = {body.format(k=k, at=n * m)}\n" for n in range(count))
    outputs = ", ".join(f"Y{n}" for n in range(count))
    program = parse(f"tensor X[{count * m}, {k}]\ntensor W[{k}, {o}]\n{''.join(rows)}output {outputs}")
    candidate = found(program, lambda c: merges(c) == ["batch_merging"] and c.eoperators + len(c.operators) == 1)
    assert all(e.via is not None for e in candidate.program.equations)
    if candidate.operators:
        assert sizes(candidate) == [("Matmul", sorted((count * m, k, o)))]


@pytest.mark.parametrize(("count", "m", "k"), [(2, 9, 12), (3, 5, 8), (4, 7, 6)])
def test_element_wise_siblings_are_merged_where_nothing_is_copied(count: int, m: int, k: int) -> None:
    parts = "".join(f"P{n}[m:{m}, k:{k}] = X[{n}, m, k]\n" for n in range(count))
    activated = "".join(f"Y{n}[m:{m}, k:{k}] = relu(P{n}[m, k])\n" for n in range(count))
    outputs = ", ".join(f"Y{n}" for n in range(count))
    program = parse(f"tensor X[{count}, {m}, {k}]\n{parts}{activated}output {outputs}")
    found(program, lambda c: merges(c) == ["batch_merging"] and c.eoperators == 1)
    apart = parse("tensor A[9]\ntensor B[9]\nY[m:9] = relu(A[m])\nZ[m:9] = relu(B[m])\noutput Y, Z")
    assert not list(BATCH_MERGING.matches(apart, (0,)))
    assert BATCH_MERGING.explain is not None
    assert "would be copied, and nothing is summed" in BATCH_MERGING.explain(apart, (0,))


@pytest.mark.parametrize(("m", "k", "cut"), [(9, 12, 4), (6, 5, 2), (7, 8, 3)])
@pytest.mark.parametrize("body", ["max[k:{k}] A[m, k]", "min[k:{k}] A[m, k]", "prod[k:{k}] A[m, k]", "relu(A[m, 0])"])
def test_expression_without_summation_is_split_at_the_parts_that_are_read(m: int, k: int, cut: int, body: str) -> None:
    """A cut traversal is proved: of the parts that are added, at most one is not 0 at any point."""
    program = parse(f"""
        tensor A[{m}, {k}]
        Y[m:{m}] = {body.format(k=k)}
        P[m:{cut}] = Y[m]
        Q[m:{m - cut}] = Y[m+{cut}]
        output P, Q
    """)
    cuts = [
        match for match in EXPRESSION_SPLITTING.matches(program, (0,)) if match.to_json()["params"]["cuts"] == [cut]
    ]
    assert len(cuts) == 1
    after = cuts[0].apply(program).after
    assert certify(program, after).kind == "proved"
    wrong = next(e for e in after.equations if e.name == "P2")
    (x,) = wrong.scope.traversals
    shifted = replace(
        wrong, scope=replace(wrong.scope, body=map_accesses(wrong.scope.body, lambda a: _turned(a, x, m)))
    )
    broken = replace(after, equations=tuple(shifted if e is wrong else e for e in after.equations))
    assert certify(program, broken).kind == "false"


def _turned(access: Access, x: Iterator, m: int) -> Access:
    return replace(access, index=tuple(m - 1 - i if x in i.iterators else i for i in access.index))
