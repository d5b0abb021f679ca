"""Sibling merging: one product in place of several with a shared operand, for every difference that it can bridge."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program, tensors
from einnet_explore.rules import SIBLING_MERGING, Refused
from einnet_explore.session.session import Session
from einnet_explore.syntax import parse, text
from tests.rules_kit import assert_equal, check_rule, refuses


def merge(program: Program, at: int = 0) -> Program:
    """Apply the first proposal at equation *at*; check its certificate and its text."""
    match = next(iter(SIBLING_MERGING.matches(program, (at,))))
    after = match.apply(program).after
    assert certify(program, after).kind == "proved"
    assert parse(text(after)) == after
    assert_equal(program, after)
    return after


def shapes(program: Program) -> dict[str, tuple[int, ...]]:
    return {e.name: e.scope.shape for e in program.equations}


QKV = parse("""
    tensor X[6, 4]
    tensor A[4, 5] weight
    tensor B[4, 2] weight
    tensor C[3, 4] weight
    Q[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
    K[m:6, n:2] = sum[k:4] B[k, n] * X[m, k]
    V[m:6, n:3] = sum[j:4] X[m, j] * C[n, j]
    output Q, K, V
""")


def test_three_products_of_one_input_become_one() -> None:
    after = merge(QKV)
    assert shapes(after) == {"K1": (4, 10), "M1": (6, 10), "Q": (6, 5), "K": (6, 2), "V": (6, 3)}
    assert [repr(e.scope.body) for e in after.equations[2:]] == ["M1[m, n]", "M1[m, n+5]", "M1[m, n+7]"]
    assert all(t.weight for t in tensors(after.equations[0].scope))
    proposed = [m.to_json()["params"] for m in SIBLING_MERGING.matches(QKV, (0,))]
    assert proposed == [
        {"others": ["K", "V"], "tensor": "X"},
        {"others": ["K"], "tensor": "X"},
        {"others": ["V"], "tensor": "X"},
    ]
    assert check_rule(SIBLING_MERGING, QKV) == 4


def test_merging_does_not_depend_on_names() -> None:
    renamed = parse(text(QKV).replace("[m, j]", "[m, i]").replace("[n, j]", "[n, i]").replace("j:4", "i:4"))
    assert program_key(merge(renamed)) == program_key(merge(QKV))


def conv(name: str, kernel: str, f: int, r: int, s: int, pad: tuple[int, int], stride: int = 1) -> str:
    """A convolution of A[1, 3, 6, 8], padded by 2 on each side, as ONNX nodes are read."""
    h, w = (-(-n // stride) for n in (6, 8))
    at = [f"{stride}*{x}+{y}-{p}" for x, y, p in (("h", "r", pad[0]), ("w", "s", pad[1]))]
    return (
        f"{name}[n:1, f:{f}, h:{h}, w:{w}] = sum[c:3, r:{r}, s:{s}] A[n, c, {at[0]}, {at[1]}] * {kernel}[f, c, r, s]\n"
    )


def siblings(one: str, other: str, k: str, j: str) -> Program:
    head = "tensor A[1, 3, 6, 8] pad [0, 0, 2, 2]\n"
    return parse(f"{head}tensor K[{k}] weight\ntensor J[{j}] weight\n{one}{other}output Y, Z")


@pytest.mark.parametrize(
    ("first", "second", "window"),
    [
        ((3, 3, (1, 1), 1), (1, 1, (0, 0), 1), (3, 3)),  # Fig. 3
        ((1, 1, (0, 0), 1), (3, 3, (1, 1), 1), (3, 3)),
        ((3, 3, (1, 1), 2), (1, 1, (0, 0), 2), (3, 3)),  # ResNet's downsampling
        ((1, 1, (0, 0), 1), (1, 1, (0, 0), 1), ()),  # Inception
        ((5, 5, (2, 2), 1), (3, 3, (1, 1), 1), (5, 5)),
        ((3, 1, (1, 0), 1), (1, 3, (0, 1), 1), (3, 3)),  # GCN
        ((1, 3, (0, 1), 1), (5, 1, (2, 0), 1), (3, 5)),
        ((3, 3, (1, 1), 1), (3, 3, (0, 2), 1), (4, 4)),  # the same window elsewhere
    ],
)
def test_convolutions_of_one_image_have_one_window(
    first: tuple[int, int, tuple[int, int], int],
    second: tuple[int, int, tuple[int, int], int],
    window: tuple[int, ...],
) -> None:
    program = siblings(
        conv("Y", "K", 4, *first),
        conv("Z", "J", 2, *second),
        f"4, 3, {first[0]}, {first[1]}",
        f"2, 3, {second[0]}, {second[1]}",
    )
    after = merge(program)
    whole = next(e for e in after.equations if e.name == "M1")
    assert whole.scope.shape[1] == 6
    assert tuple(y.extent for y in whole.scope.summations if y.extent > 1 and y.name[0] != "c") == window
    assert [e.name for e in after.equations if e.scope.summations] == ["M1"]


@given(st.data())
def test_any_two_convolutions_are_merged_or_refused_with_a_reason(data: st.DataObject) -> None:
    """Any two convolutions along one dimension with one stride: merged, or refused with a reason."""
    stride = data.draw(st.integers(1, 2))
    rows, heads = [], []
    for name, kernel in (("Y", "K"), ("Z", "J")):
        r, pad, f = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2)), data.draw(st.integers(1, 3))
        size = data.draw(st.integers(1, 4))
        heads.append(f"tensor {kernel}[{r}, {f}, 2] weight\n")
        rows.append(f"{name}[h:{size}, f:{f}] = sum[c:2, r:{r}] A[{stride}*h+r-{pad}, c] * {kernel}[r, f, c]\n")
    program = parse(f"tensor A[6, 2] pad [(2, 6), 0]\n{''.join(heads)}{''.join(rows)}output Y, Z")
    if not check_rule(SIBLING_MERGING, program):
        assert "is read at" in SIBLING_MERGING.explain(program, (0,))  # type: ignore[misc]


def test_free_traversals_become_one() -> None:
    program = parse("""
        tensor A[4, 5, 3]
        tensor K[3, 2, 3] weight
        tensor L[4, 3] weight
        Y[r:3, f:2, h:4, w:5] = sum[c:3] A[h, w, c] * K[r, f, c]
        Z[w:5, h:4, f:4] = sum[c:3] A[h, w, c] * L[f, c]
        output Y, Z
    """)
    after = merge(program)
    assert shapes(after)["M1"] == (10, 4, 5)
    assert [repr(e.scope.body) for e in after.equations[2:]] == ["M1[f+2*r, h, w]", "M1[f+6, h, w]"]


@pytest.mark.parametrize(
    ("tensors", "one", "other"),
    [
        (
            "A[4, 4]\nB[7]\nC[7]",
            "Y[m:4, t:1] = sum[i:4] A[m, i] * B[i+2*t+1]",
            "Z[m:4, t:1] = sum[i:4] A[m, i] * C[i+2*t+2]",
        ),
        (
            "A[2]\nB[3, 2, 4]",
            "Y[w:1, h:1] = sum[n:2] A[n] * B[h+2*w, h+n, w]",
            "Z[w:1..2, h:1] = sum[n:2] A[n] * B[h+2*w, h+n, w]",
        ),
        (
            "A[2, 2]\nB[8, 3]",
            "Y[h:2, n:1] = min[f:2] A[h, f] * B[3*f+4*n, 2*(f % 2)]",
            "Z[h:2, n:1..2] = min[f:2] A[h, f] * B[3*f+4*n, 2*(f % 2)]",
        ),
    ],
)  # fmt: skip
def test_index_may_have_a_summation_and_a_traversal_of_one_value(tensors: str, one: str, other: str) -> None:
    """A soak's finding: what was read at such an index lost the summation."""
    inputs = "".join(f"tensor {t}\n" for t in tensors.split("\n"))
    merge(parse(f"{inputs}{one}\n{other}\noutput Y, Z"))


@pytest.mark.parametrize(
    ("body", "merged"),
    [
        ("max[k:5] (A[i, k] + W[k, j])", "+(A[i, k], K1[k, j])"),
        ("min[k:5] (W[k, j] - A[i, k])", "-(K1[k, j], A[i, k])"),
        ("prod[k:5] (2 * A[i, k] + W[k, j])", "+(*(2, A[i, k]), K1[k, j])"),
        ("max[k:5] maximum(W[k, j], A[i, k])", "maximum(A[i, k], K1[k, j])"),
        ("sum[k:5] (A[i, k] - W[k, j]) * (A[i, k] - W[k, j])", "*(-(A[i, k], K1[k, j]), -(A[i, k], K1[k, j]))"),
        ("relu(A[i, 0] + W[1, j])", "relu(+(A[i, 0], K1[j]))"),
        ("where(j < 2, A[i, 0], 7)", None),
    ],
)
def test_any_function_of_a_shared_operand_and_another_merges(body: str, merged: str | None) -> None:
    lines = (f"{name}[i:6, j:{size}] = {body.replace('W', weight)}" for name, weight, size in ("YB4", "ZC3"))
    program = parse("\n".join(["tensor A[6, 5]", "tensor B[5, 4] weight", "tensor C[5, 3] weight", *lines]))
    if merged is None:
        refuses(SIBLING_MERGING, program, (0,), "j < 2 decides where A[i, 0] counts", others=["Z"], tensor="A")
        return
    after = merge(program)
    assert shapes(after)["M1"] == (6, 7)
    assert repr(after.equations[1].scope.body) == merged


def test_transposed_convolutions_of_one_input_become_one() -> None:
    program = parse("""
        tensor A[1, 3, 3]
        tensor K[3, 4, 2] weight pad [0, (4, 4), 0]
        tensor L[3, 4, 3] weight pad [0, (4, 4), 0]
        Y[n:1, y:6, c:2] = sum[h:3, f:3] A[n, h, f] * K[f, y+1-2*h, c]
        Z[n:1, y:6, c:3] = sum[h:3, f:3] A[n, h, f] * L[f, y+1-2*h, c]
        output Y, Z
    """)
    after = merge(program)
    assert after.equations[0].scope.shape == (3, 4, 5)
    assert repr(after.equations[1].scope.body) == "*(A[n, h, f], K1[f, -2*h+y+1, c])"


def test_the_shared_operand_may_be_the_weights() -> None:
    program = parse("""
        tensor X[6, 4]
        tensor Z[3, 4]
        tensor A[4, 5] weight
        P[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
        Q[m:3, n:5] = sum[k:4] Z[m, k] * A[k, n]
        output P, Q
    """)
    assert shapes(merge(program))["M1"] == (9, 5)


def test_calls_merge_through_views() -> None:
    """Library calls of two views of one tensor: the views count as the tensor, and the one no longer read goes."""
    program = parse("""
        tensor A[4, 5, 3]
        tensor K[3, 2] weight
        tensor L[3, 4] weight
        A1[m:20, k:3] = A[m//5, m%5, k] via View(offset=0, strides=(3, 1))
        Y[m:20, n:2] = sum[k:3] A1[m, k] * K[k, n] via Matmul(b=1, m=20, n=2, k=3)
        A2[k:3, n:20] = A[n//5, n%5, k] via View(offset=0, strides=(1, 3))
        Z[m:4, n:20] = sum[k:3] L[k, m] * A2[k, n] via Matmul(b=1, m=4, n=20, k=3, ta=1)
        output Y, Z
    """)
    after = merge(program, at=1)
    assert sorted(shapes(after)) == ["A1", "K1", "M1", "Y", "Z"]
    assert [e.via for e in after.equations if e.name != "A1"] == [None] * 4


def test_session_applies_sibling_merging() -> None:
    session = Session(QKV)
    assert "sibling_merging" in {m.rule.name for m in session.rules(at="Q")}
    session.apply("sibling_merging", at="Q", others=["K", "V"], tensor="X")
    assert session.check().kind == "proved"
    assert "others=['K', 'V']" in session.script()


REFUSED = """
    tensor X[6, 4] pad [1, 0]
    tensor A[4, 5] weight
    tensor B[4, 5] weight
    tensor D[3, 4, 5] weight
    tensor E[5] weight
    Q[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
    R[m:6, n:5] = sum[k:4] X[2*m-m, k] * B[k, n]
    S[m:3, n:5] = sum[k:4] X[2*m, k] * B[k, n]
    T[m:6, n:5] = max[k:4] X[m, k] * B[k, n]
    U[m:6, n:5] = sum[k:4] (X[m, k] + B[k, n])
    V[m:6, n:5] = sum[k:5] Q[m, k] * E[n]
    W[m:6, n:5] = sum[k:4, r:3] X[m+r-1, k] * D[r, k, n]
    N[m:7, n:5] = sum[k:4] X[m, k] * B[k, n]
    Y[m:6, n:5 | 0 <= m+n < 7] = sum[k:4] X[m, k] * B[k, n]
    O[m:6, n:5, i:2] = sum[k:4] X[m, k] * B[k, n]
    G[m:6, n:5] = X[m, 0] * E[n] via eOperator(kind="elementwise")
    J[m:6, n:5] = sum[k:4] (X[m, k] * B[k, n] + E[n])
    L[m:6, n:5] = sum[k:4] relu(X[m, k])
    output Q, R, S, T, U, V, W, N, Y, O, G, J, L
"""


@pytest.mark.parametrize(
    ("others", "tensor", "message"),
    [
        (["S"], "X", "Q and S do not read X alike: dimension 0 is read at m (m ∈ [0, 6)) and at 2*m (m ∈ [0, 3))"),
        (["T"], "X", "Q reduces by sum, T by max"),
        (["U"], "X", "Q computes *(shared[], own[]), U +(shared[], own[])"),
        (["V"], "X", "V reads Q, directly or through others: they are not independent"),
        (["W", "N"], "X", "together, X is read at [-1, 7] in dimension 0, outside [-1, 7)"),
        (["Y"], "X", "Y is computed only where 0 <= m+n < 7"),
        (["O"], "X", "O repeats its elements along i"),
        (["J"], "X", "X[m, k] is joined by B[k, n] and, at another place, by E[n]"),
        (["L"], "X", "relu(X[m, k]) has no operand that joins X[m, k]"),
        (["G"], "X", "G is run as eOperator: there is nothing to merge"),
        (["R"], "A", "R has no operand that reads A: it reads X, B"),
        (["R", "R"], "X", "Q, R, R names an equation twice"),
        (["H"], "X", "no equation is called 'H': there are Q, R, S"),
        ([], "X", "Q alone is nothing to merge"),
    ],
)
def test_expressions_that_read_differently_are_not_merged(others: list[str], tensor: str, message: str) -> None:
    refuses(SIBLING_MERGING, parse(REFUSED), (0,), message, others=others, tensor=tensor)


def test_infinite_padding_is_no_window() -> None:
    program = parse("""
        tensor X[6, 4] pad [1, 0] value -inf
        tensor A[3, 4, 5] weight
        tensor B[4, 5] weight
        Q[m:6, n:5] = sum[k:4, r:3] X[m+r-1, k] * A[r, k, n]
        R[m:6, n:5] = sum[k:4] X[m, k] * B[k, n]
        output Q, R
    """)
    message = "the windows differ along r, and 0 leaves out nothing: its padding is infinite"
    refuses(SIBLING_MERGING, program, (0,), message, others=["R"], tensor="X")
    largest = parse(text(program).replace("value -inf", "").replace("sum[", "max["))
    message = "the windows differ along r, and 0 leaves out nothing: it reduces by max"
    refuses(SIBLING_MERGING, largest, (0,), message, others=["R"], tensor="X")
    sums = parse(text(program).replace("value -inf", "").replace("*", "+"))
    message = "the windows differ along r, and 0 leaves out nothing: +(shared[], own[]) is no product"
    refuses(SIBLING_MERGING, sums, (0,), message, others=["R"], tensor="X")


def test_only_whole_equations_merge() -> None:
    nested = parse("""
        tensor X[6, 4]
        tensor A[4, 5] weight
        Q[m:6, n:5] = {[m:6, n:5] sum[k:4] X[m, k] * A[k, n]}[m, n]
        R[m:6, n:5] = sum[k:4] X[m, k] * A[k, n]
        output Q, R
    """)
    message = "0.0 is a scope inside an equation, expected an equation"
    refuses(SIBLING_MERGING, nested, (0, 0), message, others=["R"], tensor="X")
    assert not list(SIBLING_MERGING.matches(nested, (0, 0)))
    assert SIBLING_MERGING.explain(nested, (0, 0)) == message  # type: ignore[misc]
    assert SIBLING_MERGING.explain(nested, (0,)) == "no later equation shares an operand with Q, which reads X, A"  # type: ignore[misc]


def test_equations_that_stand_in_no_order_are_refused() -> None:
    """If a reader precedes the equation that it reads, the merged program has no order."""
    program = parse(
        """
        tensor X[4, 4]
        tensor W[4, 4] weight
        A[i:4, j:4] = sum[k:4] X[i, k] * W[k, j]
        B[i:4, j:4] = sum[k:4] A[i, k] * W[k, j]
        """
    )
    turned = replace(program, equations=program.equations[::-1])
    with pytest.raises(Refused, match="would read one another in a circle"):
        SIBLING_MERGING.match(turned, (0,), others=["A"], tensor="W").apply(turned)
