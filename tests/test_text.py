"""The parser: meaning of the text form, and refusals with places and numbers."""

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Compare,
    Const,
    Instance,
    Iterator,
    Scope,
    Tensor,
    accesses,
    as_index,
)
from einnet_explore.syntax import TextError, load_text, parse, parse_index, parse_scope, text
from einnet_explore.syntax.expressions import find_read_outside
from tests.strategies import programs, scopes_

CONV = """
# a comment
tensor A[1, 7, 7, 512] pad [0, 1, 1, 0]          # padding a dimension
tensor K[3, 3, 512, 512] weight
Y[n:1, h:7, w:7, f:512] = sum[c:512, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
"""

TRANSPOSED = """
tensor A[2, 6, 5, 9]
tensor K[4,4,3,9] weight pad [(10,10),(10,10),0,0]
Y[n:2, y:12, x:10, c:3] = sum[h:6, w:5, f:9] A[n, h, w, f] * K[y+1-2*h, x+1-2*w, c, f]
"""

P, Q = Iterator("i", 0, 6), Iterator("j", -2, 5)


def body(expression: str) -> object:
    """The body of a scope over i:6 and j:-2..5 that reads A and s."""
    tensors = {"A": Tensor("A", (6,), ((2, 9),)), "B": Tensor("B", (6, 7)), "s": Tensor("s", ())}
    return parse_scope(f"{{[i:6, j:-2..5] {expression}}}", tensors).body


A = Tensor("A", (6,), ((2, 9),))


def test_convolution_is_parsed() -> None:
    it = parse(CONV)
    n, h, w, f = (Iterator(x, 0, e) for x, e in zip("nhwf", (1, 7, 7, 512), strict=True))
    c, r, s = (Iterator(x, 0, e) for x, e in zip("crs", (512, 3, 3), strict=True))
    a = Tensor("A", (1, 7, 7, 512), ((0, 0), (1, 1), (1, 1), (0, 0)))
    k = Tensor("K", (3, 3, 512, 512), weight=True)
    assert it.inputs == (a, k)
    assert it.outputs == ("Y",)
    assert it.equations[0].scope == Scope(
        (n, h, w, f), (c, r, s), Apply("*", (a[n, h + r - 1, w + s - 1, c], k[r, s, f, c]))
    )


def test_transposed_convolution_needs_no_special_form() -> None:
    it = parse(TRANSPOSED)
    (weight,) = (t for t in it.inputs if t.weight)
    assert weight.reach == ((-10, 14), (-10, 14), (0, 3), (0, 9))
    assert [i.bounds for i in tuple(accesses(it.equations[0].scope.body))[1].index[:2]] == [(-9, 12), (-7, 10)]
    assert parse(text(it)) == it


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("i", as_index(P)),
        ("2*i + j*3 - 1", P * 2 + Q * 3 - 1),
        ("i // 2 + i % 2 * 4", P // 2 + (P % 2) * 4),
        ("i / 2", P // 2),
        ("-(i - 2*(j + 1))", Q * 2 + 2 - P),
        ("(i + j) % (2 * 3)", (P + Q) % 6),
        ("--3", as_index(3)),
    ],
)
def test_indices_are_parsed(written: str, meant: object) -> None:
    assert parse_index(written, {"i": P, "j": Q}) == meant


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("A[i] - A[0] - 1", Apply("-", (Apply("-", (A[P,], A[0,])), Const(1)))),
        ("2 * A[i] * 3", Apply("*", (Const(6), A[P,]))),
        ("A[i] * (A[0] * A[1])", Apply("*", (A[P,], A[0,], A[1,]))),
        ("A[i] / A[0] * A[1]", Apply("*", (Apply("/", (A[P,], A[0,])), A[1,]))),
        ("1.5e-3", Const(0.0015)),
        (".5", Const(0.5)),
        ("3.", Const(3.0)),
        ("-inf", Const(float("-inf"))),
        ("-A[i] * 2", Apply("*", (Const(2), Apply("neg", (A[P,],))))),
        ("- -2", Const(2)),
        ("s[]", Access(Tensor("s", ()), ())),
        ("maximum(A[i], 0)", Apply("maximum", (A[P,], Const(0)))),
        (
            "where(i - j <= 3, A[i-j], -1)",
            Apply("where", (Compare("<=", P - Q, as_index(3)), A[P - Q,], Const(-1))),
        ),
    ],
)
def test_scalars_are_parsed(written: str, meant: object) -> None:
    assert body(written) == meant


def test_reduction_takes_all_that_follows() -> None:
    it = parse("tensor A[6] Y[] = max[i:6] A[i] - A[5-i] * 2")
    i = Iterator("i", 0, 6)
    t = it.inputs[0]
    assert it.equations[0].scope == Scope(
        (), (i,), Apply("-", (t[i,], Apply("*", (Const(2), t[5 - i,])))), reduce="max"
    )


def test_nested_scope_with_its_own_iterators() -> None:
    it = parse("""
        tensor A[7, 4] tensor K[3, 4]
        Y[h:7] = sum[r:3]
            {[r:3, t:-1..8 | 0 <= t-r < 7, 0 <= t < 9] sum[c:4] A[t-r, c] * K[r, c]} pad [0, (0, 2)] value -inf [r, h+r]
    """)
    scope = it.equations[0].scope
    (read,) = accesses(scope.body)
    r, t = Iterator("r", 0, 3), Iterator("t", -1, 8)
    assert isinstance(read.source, Scope)
    assert read.source.traversals == (r, t)
    assert read.source.domain == (Bound(t - r, 0, 7), Bound(as_index(t), 0, 9))
    assert read.source.reach == ((0, 3), (-1, 10))
    assert read.source.value == float("-inf")


def test_equations_read_results_with_their_origin_and_padding() -> None:
    it = parse("tensor A[4] T[i:-1..3] = A[i+1] pad [(1, 0)] value 5 Y[i:5] = T[i-2] Z[i:4] = relu(A[i])")
    assert it.equations[1].scope.body == it.equations[0].tensor[Iterator("i", 0, 5) - 2,]
    assert it.equations[0].tensor.reach == ((-2, 3),)
    assert it.outputs == ("Y", "Z")
    assert parse("tensor A[4] output T, Y T[i:4] = A[i] Y[i:4] = T[i]").outputs == ("T", "Y")


def test_via_is_parsed_with_its_attributes() -> None:
    it = parse('tensor A[4] Y[i:4] = A[i] via Conv(s=(2,), p=(1, -1), e=(), ta="N", k=-3) Z[i:4] = A[i] via eOperator')
    assert it.equations[0].via == Instance("Conv", (("s", (2,)), ("p", (1, -1)), ("e", ()), ("ta", "N"), ("k", -3)))
    assert it.equations[1].via == Instance("eOperator")


def test_quoted_names_are_parsed() -> None:
    it = parse('tensor "x.1/w"[3] tensor "max"[3] "output"[i:3] = "x.1/w"[i] * "max"[i]')
    assert [t.name for t in it.inputs] == ["x.1/w", "max"]
    assert it.outputs == ("output",)
    assert parse(text(it)) == it


def test_words_that_begin_like_keywords_are_names() -> None:
    it = parse("tensor weights[3] weight tensor inform[3] padded[summed:3] = weights[summed] * inform[summed]")
    assert it.equations[0].name == "padded"


def test_everything_is_plain_text_inside() -> None:
    it = parse("tensor A[3] Y[i:3] = max[j:3] where(i < j, A[i], 0) via M(x=1)")
    equation = it.equations[0]
    assert isinstance(equation.scope.body, Apply)
    assert isinstance(equation.scope.body.args[0], Compare)
    names = (equation.name, equation.scope.reduce, equation.scope.traversals[0].name, equation.scope.body.args[0].op)
    assert {type(x) for x in names} == {str}


@pytest.mark.parametrize(
    "legal",
    [
        "tensor A[7] Y[h:9 | 0 <= h-1 < 7] = A[h-1]",
        "tensor A[7] Y[h:9 | 0 <= h-2 < 6] = A[h-1]",
        "tensor A[7] Y[h:9, r:3 | 1 <= h < 8, 0 <= h-r < 7] = A[h-r] * A[h-1]",
        "tensor A[4] Y[h:9 | 0 <= h+1 < 7] = A[(h+1) // 2 - (h+1) // 7]",
        "tensor A[3] Y[i:9 | 0 <= 2*i < 6] = A[i]",
        "tensor A[5] Y[i:9, j:9 | 0 <= i + j < 5, 0 <= i - j < 1] = A[2*j]",
        "tensor A[9000] Y[i:9000, j:9000 | 0 <= i + j < 9000] = A[i+j] + A[8999-i-j]",
        "tensor A[7] Y[h:9] = where(h < 7, A[h], 0)",
        "tensor A[2] pad [(1, 3)] Y[i:6] = A[i-1]",
    ],
)
def test_legal_reads_within_a_domain_are_parsed(legal: str) -> None:
    assert parse(text(parse(legal))) == parse(legal)


@given(scopes_(), st.data())
def test_reads_are_decided_exactly(scope: Scope, data: st.DataObject) -> None:
    """Interval halving says the same as looking at every point."""
    (index, *_) = (*(i for a in accesses(scope.body) for i in a.index), as_index(0))
    lo = data.draw(st.integers(index.bounds[0] - 1, index.bounds[1]))
    hi = data.draw(st.integers(lo + 1, index.bounds[1] + 2))
    over = dict.fromkeys((*scope.traversals, *scope.summations))
    points = (dict(zip(over, p, strict=True)) for p in product(*(range(x.lo, x.hi) for x in over)))
    inside = (p for p in points if all(b.lo <= b.index.evaluate(p.__getitem__) < b.hi for b in scope.domain))
    stays = all(lo <= index.evaluate(p.__getitem__) < hi for p in inside)
    assert (find_read_outside(index, lo, hi, scope.domain) is None) == stays


ERRORS = [
    ("Y[i:3] = A[i]", "1:10: found unknown tensor A, expected a tensor declared before"),
    *(
        (wrong, f'{at}: found the reserved word max, expected another name, or "max" in double quotes')
        for wrong, at in [
            ("# tensor max[4]\ntensor max[3]\nY[i:3] = max[i]", "2:8"),  # its reader has a syntax error, too
            ("tensor A[3]\nmax[i:3] = A[i]", "2:1"),
            ("tensor A[3]\nmax[i:3] = A[i]\nY[i:3] = max[i]", "2:1"),
            ("tensor A[3]\nY[i:3] = A[i] output max", "2:22"),
        ]
    ),
    ("tensor B[3] Y[i:3] = A[i]", "1:22: found unknown tensor A, expected B"),
    ("tensor A[7]\nY[h:7] = sum[r:3] A[h+r-1]", "2:21: index h+r-1 of A reaches [-1, 7], expected within [0, 7)"),
    ("tensor A[7] Y[h:9 | 0 <= h-1 < 8] = A[h-1]", "1:39: index h-1 of A reaches [0, 7], expected within [0, 7)"),
    ("tensor A[7] Y[h:9 | 0 <= h < 8] = A[h//1 % 8]", "1:37: index h % 8 of A reaches [0, 7], expected within [0, 7)"),
    ("tensor A[3] Y[i:4] = {[j:3] A[j]}[i]", "1:35: index i of the scope reaches [0, 3], expected within [0, 3)"),
    ("tensor A[4] pad [1] Y[i:6] = A[i]", "1:32: index i of A reaches [0, 5], expected within [-1, 5)"),
    ("tensor A[3, 3] Y[i:3] = A[i]", "1:25: found 1 index of A, expected 2"),
    ("tensor A[3] Y[i:3] = A[]", "1:22: found 0 indices of A, expected 1"),
    ("tensor A[3] Y[i:3] = {[j:3] A[j]}[i, i]", "1:22: found 2 indices of the scope, expected 1"),
    ("tensor A[3] Y[i:3] = A[j]", "1:24: found unknown iterator j, expected i, or sum[j:3] in front"),
    ("tensor A[3, 4] Y[i:3] = A[i, j]", "1:30: found unknown iterator j, expected i, or sum[j:4] in front"),
    ("tensor A[3] Y[i:3] = A[i+j]", "1:26: found unknown iterator j, expected i, or sum[j:8] in front"),
    ("tensor A[3] Y[i:3] = relu(A)", "1:28: found ')', expected '[' and the indices of an element, as in A[i]"),
    ("A[3]\nY[i:3] = A[i]", "1:3: found '3', expected 'tensor' in front of A for an input, or an iterator"),
    ("tensor A[3] Y[] = A[j]", "1:21: found unknown iterator j, expected no iterator, for there are none"),
    ("tensor A[3] Y[i:3 | 0 <= c < 2] = sum[c:3] A[c]", "1:26: found unknown iterator c, expected i"),
    ("tensor A[3] Y[i:3, i:2] = A[i]", "1:20: found iterator i twice, expected another name"),
    ("tensor A[3] Y[i:3] = sum[i:2] A[i]", "1:26: found iterator i twice, expected another name"),
    ("tensor A[3] Y[i:0] = A[i]", "1:15: found the empty range [0, 0) of i, expected at least one value"),
    ("tensor A[3] Y[i:2..-1] = A[i]", "1:15: found the empty range [2, -1) of i, expected at least one value"),
    ("tensor A[3, 0] Y[i:3] = A[i, 0]", "1:10: found shape [3, 0] of A, expected sizes of at least 1"),
    ("tensor A[3] tensor A[4] Y[i:3] = A[i]", "1:20: found a second definition of A, expected another name"),
    ("tensor A[3] A[i:3] = A[i]", "1:13: found a second definition of A, expected another name"),
    ("tensor A[3] Y[i:3] = A[i] Y[i:3] = A[i]", "1:27: found a second definition of Y, expected another name"),
    ("tensor A[3] Y[i:3] = A[i] tensor Y[3]", "1:34: found a second definition of Y, expected another name"),
    ("tensor A[3] Y[i:3] = A[i] output Z", "1:34: found unknown output Z, expected one of A, Y"),
    ("tensor A[3] Y[i:3] = A[i] output Y, Y", "1:37: found output Y twice, expected it once"),
    ("input A[3] Y[i:3] = A[i]", "1:1: found 'input' before 'A', expected 'tensor', 'output' or an equation: NAME"),
    ("tensor A[3]", "1:1: found no equation, expected at least one"),
    ("", "1:1: found no equation, expected at least one"),
    ("tensor A[3] pad [1, 1] Y[i:3] = A[i]", "1:13: found padding for 2 dimensions, expected 1: the rank of A"),
    ("tensor A[3] Y[i:3] = A[i] pad []", "1:27: found padding for 0 dimensions, expected 1: the rank of the scope"),
    ("tensor A[3] weight weight Y[i:3] = A[i]", "1:20: found weight twice, expected it once"),
    ("tensor A[3] Y[i:3] = A[i] pad [1] pad [1]", "1:35: found pad twice, expected it once"),
    ("tensor A[3] Y[i:3] = A[i] value 1 value 2", "1:35: found value twice, expected it once"),
    ("tensor A[9] Y[i:3] = A[i * i]", "1:24: found the product of i and i, expected an integer factor"),
    ("tensor A[9] Y[i:3] = A[i // i]", "1:29: found divisor i, expected an integer"),
    ("tensor A[9] Y[i:3] = A[i // 0]", "1:29: found divisor 0, expected a positive integer"),
    ("tensor A[9] Y[i:3] = A[i % (1-3)]", "1:29: found divisor -2, expected a positive integer"),
    ("tensor A[3] Y[i:3] = softplus(A[i])", "1:22: found function softplus, expected one of relu, tanh"),
    ("tensor A[3] Y[i:3] = relu(A[i], 2)", "1:22: found 2 arguments of relu, expected 1"),
    (
        "tensor A[3] Y[i:3] = sum[c:2] {[j:3] A[i]}[i]",
        "1:40: found i, an iterator of an outer scope, expected the scope's own: j",
    ),
    (
        "tensor A[3] Y[h:3] = 2 * sum[c:3] A[c]",
        "1:26: found sum inside an expression, expected it in an equation or a scope of its own: "
        "{[...] sum[...] ...}[...]",
    ),
    ("tensor A[3] Y[i:3] = A[i] via M(s=\"\\q\")", "1:35: found \"\\q\", expected a string: Invalid \\escape"),
    ("tensor A[3] Y[i:3] = A[i] via M(s=\"\\ud800\")", "1:35: found '\\ud800' in a string, expected char"),
    ("tensor A[3] Y[i:3] = 0 * inf + A[i]", "1:22: found constants that make no number, expected"),
    ("tensor A[3] Y[i:3] = A[i] + inf + -inf", "1:22: found constants that make no number, expected"),
    (f"tensor A[3] Y[i:3] = 1{'0' * 400} * A[i]", "1:22: found 401 digits, expected a number that floating point can"),
    (f"tensor A[{'9' * 5000}] Y[i:3] = A[i]", "1:10: found 5000 digits, expected fewer"),
    ("tensor A[3\nY[i:3] = A[i]", "2:1: found 'Y', expected ',' or ']'"),
    ("tensor A[7]\nY[h:7] = sum[r:3] A[h+r", "2:24: found the end of the text, expected"),
    ("tensor A[3] Y[i:3] = A[i] $ 2", "1:27: found '$', expected"),
    ("tensor A[3] weightpad [1] Y[i:3] = A[i]", "1:24: found '1', expected ']', '|' or a name"),
    ("tensor A[3] Y[i, j] = A[i]", "1:16: found ',', expected ':' and the number of values of i, as in i:8"),
    (
        "tensor A[3]\nY[i:3] = 1 + max(A[i], 0)",
        "2:14: found max(, expected max[i:8] … over the values of an iterator, or maximum(a, b) of two values",
    ),
    ("tensor A[3]\nY[i:3] = sum(A[i])", "2:10: found sum(, expected sum[i:8] … over the values of an iterator"),
    ("tensor A[3] Y[i:3] = where(A[i], 1, 2)", "1:29: found '[', expected"),
    ("tensor A[3] Y[i:1.5] = A[i]", "1:18: found '.5', expected ',', '..', ']' or '|'"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), ERRORS, ids=range(len(ERRORS)))
def test_errors_say_where_what_and_what_was_expected(wrong: str, said: str) -> None:
    with pytest.raises(TextError) as caught:
        parse(wrong, "case.ein")
    assert str(caught.value).startswith(f"case.ein:{said}")
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{caught.value.source}:{caught.value.line}:{caught.value.column}: ")


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    with pytest.raises(TextError, match="nest too deeply"):
        parse("tensor A[3] Y[i:3] = " + "-" * 100_000 + "A[i]")


def test_text_is_loaded_from_a_file_with_errors_located(tmp_path: Path) -> None:
    case = tmp_path / "conv.ein"
    case.write_text(CONV)
    assert load_text(case) == parse(CONV)
    case.write_bytes(b"tensor A[3]\nY[i:3] = A[\xff]")
    with pytest.raises(TextError, match=r"conv\.ein:2:12: found byte 0xff, expected UTF-8"):
        load_text(case)
    with pytest.raises(FileNotFoundError):
        load_text(tmp_path / "none.ein")


@given(programs(equations=2), st.data())
def test_a_damaged_text_parses_or_is_refused_in_one_line(it: object, data: st.DataObject) -> None:
    written = text(it)  # type: ignore[arg-type]
    assert parse(str(it)) == it == parse(written)
    at = data.draw(st.integers(0, len(written) - 1))
    until = data.draw(st.integers(at, min(len(written), at + 4)))
    put = data.draw(st.text("[]{}()|*+-/%:=,.<ihA7 0", max_size=2))
    try:
        parse(written[:at] + put + written[until:])
        said = "expected"
    except TextError as error:
        said = str(error)
    assert "expected" in said
    assert "\n" not in said
