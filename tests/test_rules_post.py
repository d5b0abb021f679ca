"""The rules of post-optimisation: they keep every value, say why not, and are proved."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einnet_explore as ee
from einnet_explore.equivalence.certificate import certify
from einnet_explore.ir import Program
from einnet_explore.rules import (
    COMMON_SUBEXPRESSION,
    DEAD_EQUATION,
    EXPRESSION_INLINING,
    POST_RULES,
    STORAGE_LAYOUT,
    Refused,
    rule,
)
from tests.rules_kit import assert_equal, check_rule
from tests.strategies import programs

CHAIN = """tensor x[4, 6]
a[i:4, j:6] = x[i, j] * 2
b[j:6, i:4] = a[i, j]
c[i:4, j:6] = b[j, i] + a[i, j]
d[i:4, j:6] = 2 * x[i, j]
y[i:4, j:6] = c[i, j] * d[i, j] + b[j, i]
output y"""


def proved(before: Program, after: Program) -> None:
    assert_equal(before, after)
    assert certify(before, after).kind == "proved"


@given(programs())
@settings(max_examples=40)
def test_every_proposal_keeps_every_value(program: Program) -> None:
    for law in POST_RULES:
        check_rule(law, program)


def test_rules_are_found_by_name() -> None:
    assert [rule(law.name) for law in POST_RULES] == list(POST_RULES)


def test_inlining_leaves_the_intermediate_for_others() -> None:
    start = ee.parse(CHAIN)
    after = EXPRESSION_INLINING.match(start, (2,), tensor="b").apply(start).after
    assert [e.name for e in after.equations] == ["a", "b", "c", "d", "y"]
    proved(start, after)
    with pytest.raises(Refused, match="c does not read d"):
        EXPRESSION_INLINING.match(start, (2,), tensor="d").apply(start)
    with pytest.raises(Refused, match="no equation is called 'nobody': there are a, b"):
        EXPRESSION_INLINING.match(start, (2,), tensor="nobody").apply(start)
    with pytest.raises(Refused, match="tensor"):
        EXPRESSION_INLINING.match(start, (2,))
    nested = EXPRESSION_INLINING.match(start, (2,), tensor="b").apply(start).after
    with pytest.raises(Refused, match="expected an equation"):
        EXPRESSION_INLINING.match(nested, (2, 0), tensor="a").apply(nested)
    assert "re-indexes" in EXPRESSION_INLINING.explain(ee.parse("tensor x[3]\na[i:3] = x[i]*2\ny[i:3] = a[i]"), (1,))


def test_common_subexpression_is_computed_once() -> None:
    start = ee.parse(CHAIN)
    (match,) = COMMON_SUBEXPRESSION.matches(start, (3,))
    assert COMMON_SUBEXPRESSION.encode(match.params) == {"tensor": "a"}
    after = match.apply(start).after
    assert [e.name for e in after.equations] == ["a", "b", "c", "y"]
    proved(start, after)
    with pytest.raises(Refused, match="c and a compute different values"):
        COMMON_SUBEXPRESSION.match(start, (2,), tensor="a").apply(start)
    with pytest.raises(Refused, match="y is no equation before c"):
        COMMON_SUBEXPRESSION.match(start, (2,), tensor="y").apply(start)
    assert "no earlier equation" in COMMON_SUBEXPRESSION.explain(start, (2,))


def test_readers_that_look_further_widen_the_padding() -> None:
    start = ee.parse(
        """tensor x[6]
a[i:6] = x[i] * 2
b[i:6] = x[i] * 2 pad [1]
y[i:6] = a[i] + b[i+1] + b[i-1]
output y"""
    )
    (match,) = COMMON_SUBEXPRESSION.matches(start, (1,))
    after = match.apply(start).after
    assert after.equations[0].scope.padding == ((1, 1),)
    proved(start, after)


def test_values_outside_that_differ_are_refused() -> None:
    start = ee.parse(
        """tensor x[6]
a[i:6] = x[i] * 2 pad [1] value 1
b[i:6] = x[i] * 2 pad [1]
y[i:6] = a[i+1] + b[i+1]
output y"""
    )
    assert not list(COMMON_SUBEXPRESSION.matches(start, (1,)))
    with pytest.raises(Refused, match="a is 1 outside its box, expected 0"):
        COMMON_SUBEXPRESSION.match(start, (1,), tensor="a").apply(start)


def test_a_copy_is_its_source() -> None:
    start = ee.parse("tensor x[4]\na[i:4] = x[i] pad [1]\ny[i:4] = a[i-1] + x[i]\noutput y")
    (match,) = COMMON_SUBEXPRESSION.matches(start, (0,))
    after = match.apply(start).after
    assert [e.name for e in after.equations] == ["y"] and after.inputs[0].padding == ((1, 1),)
    proved(start, after)


def test_an_output_keeps_its_name() -> None:
    start = ee.parse("tensor x[4]\na[i:4] = x[i] + 1\ny[i:4] = x[i] + 1\nz[i:4] = a[i] * y[i]\noutput y, z")
    (match,) = COMMON_SUBEXPRESSION.matches(start, (1,))
    after = match.apply(start).after
    assert [e.name for e in after.equations] == ["y", "z"]
    proved(start, after)
    both = ee.parse("tensor x[4]\na[i:4] = x[i] + 1\ny[i:4] = x[i] + 1\noutput a, y")
    with pytest.raises(Refused, match="y is an output, and the equal a is needed outside too"):
        COMMON_SUBEXPRESSION.match(both, (1,), tensor="a").apply(both)


def test_dead_equation_is_removed_unless_it_is_read_or_an_output() -> None:
    start = ee.parse("tensor x[4]\na[i:4] = x[i] + 1\nb[i:4] = a[i] * 2\ny[i:4] = x[i] * 3\noutput y")
    with pytest.raises(Refused, match="a is read by b"):
        DEAD_EQUATION.match(start, (0,)).apply(start)
    with pytest.raises(Refused, match="y is an output"):
        DEAD_EQUATION.match(start, (2,)).apply(start)
    assert DEAD_EQUATION.explain(start, (0,)) == "a is read by b"
    after = DEAD_EQUATION.match(start, (1,)).apply(start).after
    proved(start, after)
    proved(start, DEAD_EQUATION.match(after, (0,)).apply(after).after)


@pytest.mark.parametrize(
    "phi",
    [
        {"j": "j", "i": "i"},
        {"j1": "j // 2", "i": "i", "j2": "j % 2"},
        {"ij": "6*i + j"},
        {"ji": "4*j + i"},
        {"i": "3 - i", "j": "j"},
    ],
)
def test_storage_layouts_keep_the_value(phi: dict[str, str]) -> None:
    start = ee.parse(CHAIN)
    match = STORAGE_LAYOUT.match(start, (0,), phi=phi)
    after = match.apply(start).after
    assert after.equations[0].scope.shape != (4, 6) or phi == {"i": "3 - i", "j": "j"}
    proved(start, after)
    assert STORAGE_LAYOUT.match(start, (0,), **STORAGE_LAYOUT.encode(match.params)).apply(start).after == after


def test_a_call_of_a_view_is_open_again_where_the_layout_of_its_source_changes() -> None:
    start = ee.parse("""
        tensor X[4, 6]
        tensor B[2, 3, 5]
        T[k:3, b:2, m:4] = 2 * X[m, 3*b+k] via eOperator(kind="elementwise")
        V[b:2, m:4, k:3] = T[k, b, m] via View(offset=0, strides=(4, 1, 8))
        Y[b:2, m:4, n:5] = sum[k:3] V[b, m, k] * B[b, k, n] via BatchMatmul(b=2, m=4, n=5, k=3, lda=1)
    """)
    after = STORAGE_LAYOUT.match(start, (0,), phi={"b": "b", "m": "m", "k": "k"}).apply(start).after
    assert [e.via for e in after.equations] == [None, None, None]
    assert_equal(start, after)


def test_a_copy_in_another_layout_for_some_readers() -> None:
    start = ee.parse(CHAIN)
    after = STORAGE_LAYOUT.match(start, (0,), phi={"j": "j", "i": "i"}, readers=["b"]).apply(start).after
    assert [e.name for e in after.equations] == ["a", "T1", "b", "c", "d", "y"]
    assert "T1[j, i]" in repr(after.equations[2]) and "a[i, j]" in repr(after.equations[3])
    proved(start, after)
    with pytest.raises(Refused, match="y does not read a, which b, c read"):
        STORAGE_LAYOUT.match(start, (0,), phi={"j": "j", "i": "i"}, readers=["y"]).apply(start)


def test_layouts_that_are_refused() -> None:
    start = ee.parse(CHAIN)
    for at, phi, why in (
        ((4,), {"j": "j", "i": "i"}, "y is an output, its layout is the caller's"),
        ((0,), {"i": "i", "j": "j"}, "leaves a as it is"),
        ((0,), {"i": "i", "j": "i + j"}, r"Φ reaches 24 of 36 points, expected a box"),
        ((0,), {"i": "i", "j": "j // 2"}, "not injective"),
    ):
        with pytest.raises(Refused, match=why):
            STORAGE_LAYOUT.match(start, at, phi=phi).apply(start)
    with pytest.raises(Refused, match="phi"):
        STORAGE_LAYOUT.match(start, (0,))
    assert not list(STORAGE_LAYOUT.matches(start, (0,))) and "give phi" in STORAGE_LAYOUT.explain(start, (0,))


def test_padding_moves_with_its_dimension_or_not_at_all() -> None:
    start = ee.parse("tensor x[4, 6]\na[i:4, j:6] = x[i, j] pad [1, 0]\ny[i:4, j:6] = a[i-1, j] + a[i, j]\noutput y")
    after = STORAGE_LAYOUT.match(start, (0,), phi={"j": "j", "i": "i"}).apply(start).after
    assert after.equations[0].scope.padding == ((0, 0), (1, 1))
    proved(start, after)
    with pytest.raises(Refused, match=r"i is padded by \(1, 1\): Φ must not split it"):
        STORAGE_LAYOUT.match(start, (0,), phi={"i1": "i // 2", "i2": "i % 2", "j": "j"}).apply(start)


@given(programs(), st.data())
@settings(max_examples=40)
def test_any_permutation_of_any_intermediate(program: Program, data: st.DataObject) -> None:
    for n, e in enumerate(program.equations):
        xs = e.scope.traversals
        order = data.draw(st.permutations(xs))
        if e.name not in program.outputs and tuple(order) != xs:
            after = STORAGE_LAYOUT.match(program, (n,), phi={x.name: x.name for x in order}).apply(program).after
            assert_equal(program, after)
