"""Printers: the text form holds every program exactly, LaTeX looks as in the paper and is understood by its readers."""

import re
from dataclasses import replace

import graphviz
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from einnet_explore.ir import (
    Access,
    Apply,
    Bound,
    Const,
    Equation,
    Instance,
    Iterator,
    Program,
    Scope,
    Tensor,
    accesses,
    as_index,
    program,
    scopes,
    tensors,
)
from einnet_explore.ir.scalar_functions import FUNCTIONS
from einnet_explore.syntax import align, latex, parse, parse_index, parse_scope, text
from einnet_explore.syntax.computation_graph import dot
from tests.strategies import inputs_for, programs, scopes_

ALL = (*FUNCTIONS, "/")

CONV = """
tensor A[1, 7, 7, 512] pad [0, 1, 1, 0]
tensor K[3, 3, 512, 512] weight
Y[n:1, h:7, w:7, f:512] = sum[c:512, r:3, s:3] A[n, h+r-1, w+s-1, c] * K[r, s, f, c]
"""

NESTED = """
tensor A[1, 7, 7, 512] pad [0, 1, 1, 0]
tensor K[3, 3, 512, 512] weight
Y[n:1, h:7, w:7, f:512] = sum[r:3, s:3]
    {[r:3, s:3, n:1, t:-1..8, u:-1..8, f:512] sum[c:512] A[n, t, u, c] * K[r, s, f, c]}[r, s, n, h+r-1, w+s-1, f]
"""

INSTANTIATED = """
tensor A[1, 7, 7, 512] pad [0, 1, 1, 0]
tensor K[3, 3, 512, 512] weight
A1[m:49, k:512] = A[0, m // 7, m % 7, k] via View()
K1[k:512, n:4608] = K[n // 1536, n // 512 % 3, n % 512, k]
T1[m:49, n:4608] = sum[k:512] A1[m, k] * K1[k, n] via Matmul(m=49, n=4608, k=512, ta="N")
T2[r:3, s:3, t:7, u:7, f:512] = T1[7*t+u, 1536*r+512*s+f] pad [0, 0, 1, 1, 0] via View()
Y[n:1, h:7, w:7, f:512] = sum[r:3, s:3] T2[r, s, h+r-1, w+s-1, f] via eOperator()
"""

WIDE = """
tensor A[9] pad [2] value -inf
tensor "gate_1"[9]
P[i:9 | 1 <= i < 8] = max[r:3] A[i+r-1] pad [(1, 2)] value -1
Q[i:4] = prod[r:2] where(2*i < r+1, -A[i] * (P[i // 2] - 0.5), 1e-9) / sqrt(exp(pow(A[i % 3 + 1], 2)))
R[] = min[i:9] maximum(abs("gate_1"[8-i]), rsqrt(sigmoid(A[i] + -2 * P[i] + inf)))
output Q, R
"""


@settings(max_examples=60)
@given(programs(via=True, functions=ALL))
def test_text_holds_every_program(it: Program) -> None:
    assert parse(text(it)) == it


@given(scopes_(functions=ALL))
def test_text_holds_every_scope_and_every_index(it: Scope) -> None:
    assert parse_scope(text(it), {t.name: t for t in tensors(it)}) == it
    for _, scope in scopes(it):
        names = {x.name: x for x in (*scope.traversals, *scope.summations)}
        for access in accesses(scope.body):
            assert all(parse_index(text(i), names) == i for i in access.index)


@pytest.mark.parametrize("value", [0, 3, -2, 0.1, 1e-300, -2.5e17, 2**53 + 1, float("inf"), float("-inf"), 1 / 3])
def test_text_holds_every_number(value: float) -> None:
    i = Iterator("i", 0, 3)
    it = program(Scope((i,), (), Apply("pow", (Tensor("A", (3,))[i,], Const(value))), padding=((1, 0),), value=value))
    assert parse(text(it)) == it


@pytest.mark.parametrize("case", [CONV, NESTED, INSTANTIATED, WIDE], ids=["conv", "nested", "instantiated", "wide"])
def test_text_form_of_cases_is_unchanged(case: str, snapshot: SnapshotAssertion) -> None:
    it = parse(case)
    assert parse(text(it)) == it
    assert text(it) == snapshot


def test_transposed_convolution_of_the_interface() -> None:
    written = (
        "tensor K[4, 4, 3, 9] weight pad [10, 10, 0, 0]\n"
        "tensor A[2, 6, 5, 9]\n"
        "Y[n:2, y:12, x:10, c:3] = sum[h:6, w:5, f:9] A[n, h, w, f] * K[-2*h+y+1, -2*w+x+1, c, f]\n"
    )
    assert text(parse(written)) == written


def test_text_keeps_only_the_parentheses_it_needs() -> None:
    written = "{[i:4] (A[i] - (A[0] - A[1]) + A[2]) * -A[i] / (A[3] * A[1]) * (A[0] / A[1])}"
    assert text(parse_scope(written, {"A": Tensor("A", (4,))})) == written


def test_text_keeps_a_monoid_without_summations_and_empty_bounds() -> None:
    i = Iterator("i", 0, 3)
    scope = Scope((i,), (), Tensor("A", (3,))[i,], reduce="max", domain=(Bound(as_index(i), 2, 2),), value=7)
    assert text(scope) == "{[i:3 | 2 <= i < 2] max[] A[i]} value 7"
    assert parse(text(program(scope))) == program(scope)


def test_text_refuses_what_it_cannot_hold() -> None:
    i, a = Iterator("i", 0, 3), Tensor("A", (3,))
    scope = Scope((i,), (), a[i,])
    with pytest.raises(ValueError, match="Y reads A, which is neither an input nor an earlier equation"):
        text(Program((), (Equation("Y", scope),), ("Y",)))
    with pytest.raises(ValueError, match=r"Y reads A with padding \(\), defined with \(\(1, 1\),\); weight False, def"):
        text(Program((Tensor("A", (3,), ((1, 1),), weight=True),), (Equation("Y", scope),), ("Y",)))
    with pytest.raises(ValueError, match="iterator 'i j': expected a word"):
        text(Scope((Iterator("i j", 0, 3),), (), Const(1)))


@pytest.mark.parametrize("dialect", ["amsmath", "katex", "mathtext"])
@pytest.mark.parametrize("case", [CONV, NESTED, INSTANTIATED, WIDE], ids=["conv", "nested", "instantiated", "wide"])
def test_latex_of_cases_is_unchanged(case: str, dialect: str, snapshot: SnapshotAssertion) -> None:
    assert latex(parse(case), dialect) == snapshot  # type: ignore[arg-type]


def test_latex_with_ranges_and_marks(snapshot: SnapshotAssertion) -> None:
    assert latex(parse(NESTED), ranges="full") == snapshot
    assert latex(parse(NESTED), marks={(0, 0): "red"}) == snapshot


def test_indices_and_bodies_are_printed_in_latex() -> None:
    i, j, a = Iterator("i", 0, 6), Iterator("j2", 0, 6), Tensor("T1", (3,), ((9, 99),))
    shown = r"\lfloor (i+j_{2}+1) / 3 \rfloor+3(i~\mathrm{mod}~4)-j_{2}"
    assert latex((i - 2 * j + 1) // 3 + 3 * (i % 4)) == shown
    assert latex(2 * (i // 4) - j // 2) == r"2\lfloor i / 4 \rfloor-\lfloor j_{2} / 2 \rfloor"
    assert latex(-i + 3) == "3-i"
    assert latex(as_index(0)) == "0"
    assert latex(Apply("+", (a[i,], Apply("neg", (Const(2),))))) == r"T_{1}[i] + \left(-2\right)"
    assert latex(Apply("*", (Const(-2), a[i,]))) == r"-2\,T_{1}[i]"
    assert latex(Scope((), (), Access(Tensor("a_b", ()), ()))) == r"\mathop{\mathbf{L}} \mathit{a\_b}[]"


def test_limits_in_latex_have_spaces() -> None:
    it = parse("tensor A[9]\nY[i:9, j:2 | 0 <= i % 3 < 2] = A[i]")
    assert r"0 \leq i~\mathrm{mod}~3 < 2" in latex(it)  # TeX puts no space around a binary operator there
    assert r"_{0 \leq i < 9}\;\mathop{" in latex(it, ranges="full")


def test_a_graph_lies_within_its_picture() -> None:
    it = parse("tensor A[4]\nX[i:4] = A[i]\nY[i:4] = X[i]\nZ[i:4] = X[i] + 1\noutput Y, Z")
    try:
        svg = graphviz.Source(dot(it)).pipe(format="svg", encoding="utf-8")
    except graphviz.ExecutableNotFound:
        pytest.skip("Graphviz is not installed")
    (width, across) = re.search(r'viewBox="0\S* 0\S* (\S+) .*?translate\((\S+) ', svg, re.DOTALL).groups()  # type: ignore[union-attr]
    points = [
        float(x) + float(across)
        for line in re.findall(r'<poly\w+ .*? points="(.*?)"', svg)[1:]
        for x in re.findall(r"(\S+),", line)
    ]
    assert min(points) >= 1 and max(points) <= float(width) - 1  # also what sticks out of an expression's box


def test_katex_names_every_scope_by_its_path() -> None:
    inner = Scope((i := Iterator("i", 0, 3),), (), Tensor("A", (3,))[i,])
    both = Scope((i,), (), Apply("*", (Tensor("B", (3,))[i,], inner[i,], replace(inner, reduce="max")[2 - i,])))
    shown = latex(program(both), "katex", marks={(0, 2): "blue"})
    assert [f"p={p}" in shown for p in ("0}", "0.0}", "0.1}", "0.2}", "1}{\\math")] == [True, False, True, True, False]
    assert r"\htmlData{p=0.2}{\textcolor{blue}{" in shown


def test_latex_refuses_unknown_words() -> None:
    with pytest.raises(ValueError, match="dialect 'html', expected amsmath, katex or mathtext"):
        latex(parse(CONV), "html")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ranges 'long', expected short or full"):
        latex(parse(CONV), ranges="long")  # type: ignore[arg-type]


def test_aligned_latex_of_steps_is_unchanged(snapshot: SnapshotAssertion) -> None:
    steps = [parse(CONV), parse(NESTED), parse(INSTANTIATED)]
    shown = align(steps, ["summation splitting & 100 %", "instantiate"])
    assert shown == snapshot
    assert shown.count(r" \\") == sum(1 for line in shown.splitlines()[1:-2])
    with pytest.raises(ValueError, match="3 programs have 1 reasons, expected one fewer than programs"):
        align(steps, ["split"])
    with pytest.raises(ValueError, match="no programs to align"):
        align([], [])
    with pytest.raises(ValueError, match="'mathtext' has no environments"):
        align(steps, ["a", "b"], "mathtext")


def test_align_shows_only_what_a_step_changed() -> None:
    start = parse("tensor A[3] T[i:3] = A[i] Y[i:3] = T[i]")
    run = replace(start.equations[1], via=Instance("eOperator"))
    shown = align([start, replace(start, equations=(start.equations[0], run))], ["run"])
    assert shown.count("T = ") == 1
    assert shown.count("Y = ") == 2


@settings(max_examples=40)
@given(programs(via=True, functions=ALL, equations=2), st.sampled_from(["short", "full"]))
def test_matplotlib_parses_mathtext(it: Program, ranges: str) -> None:
    mathtext = pytest.importorskip("matplotlib.mathtext")
    marks = {(0,): "red"}
    for line in latex(it, "mathtext", marks, ranges).splitlines():  # type: ignore[arg-type]
        width = mathtext.MathTextParser("path").parse(f"${line}$").width
        assert width > 0


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=8))
def test_matplotlib_parses_every_name(name: str) -> None:
    mathtext = pytest.importorskip("matplotlib.mathtext")
    it = Tensor(name, ())
    assert mathtext.MathTextParser("path").parse(f"${latex(it[()], 'mathtext')}$").width > 0


@given(programs(functions=ALL), st.sampled_from(["amsmath", "katex"]))
def test_latex_groups_are_balanced(it: Program, dialect: str) -> None:
    shown = latex(it, dialect)  # type: ignore[arg-type]
    bare = shown.replace(r"\{", "").replace(r"\}", "")
    depth = [bare[:n].count("{") - bare[:n].count("}") for n in range(len(bare) + 1)]
    assert min(depth) == depth[-1] == 0
    assert shown.count(r"\left") == shown.count(r"\right")
    assert shown.count(r"\begin") == shown.count(r"\end")


@given(programs(polynomial=True))
def test_polynomial_programs_are_polynomial(it: Program) -> None:
    for equation in it.equations:
        for _, scope in scopes(equation.scope):
            assert scope.reduce == "sum"
            assert scope.value == 0
            assert operations(scope.body) <= {"+", "-", "*", "neg"}


def operations(body: object) -> set[str]:
    match body:
        case Apply(op, args):
            return {op}.union(*map(operations, args))
    return set()


@given(programs())
def test_drawn_inputs_have_the_declared_shapes(it: Program) -> None:
    made = inputs_for(it, 3)
    assert {name: a.shape for name, a in made.items()} == {t.name: t.shape for t in it.inputs}
    assert all(abs(a).max(initial=0) <= 3 for a in made.values())
