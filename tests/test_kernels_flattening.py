"""Flattening: an expression as a table of numbers, those of PlaidML's document among them."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from einnet_explore.analysis.flattening import (
    AddressColumn,
    FlattenedScope,
    IteratorRow,
    are_neighbours,
    flat_address,
    flatten_scope,
)
from einnet_explore.codegen.preparation import collapse_dimensions, fold_decided
from einnet_explore.ir import (
    COMPARISONS,
    Apply,
    Bound,
    Compare,
    Const,
    Iterator,
    Scope,
    Tensor,
    accesses,
    as_index,
)
from einnet_explore.operators import expressions as ops
from einnet_explore.syntax import parse
from tests.strategies import scopes_

PLAIDML = """
tensor D[32, 224, 224, 64] pad [0, 1, 1, 0]
tensor K[3, 3, 64, 64] weight
O[n:32, x:224, y:224, co:64] = sum[ci:64, i:3, j:3] D[n, x+i-1, y+j-1, ci] * K[i, j, co, ci]
"""
PRINTED = """
             Range         O         D         K
      ci        64         0         1         1
      co        64         1         0        64
       i         3         0     14336     12288
       j         3         0        64      4096
       n        32   3211264   3211264         0
       x       224     14336     14336         0
       y       224        64        64         0
     off                   0    -14400         0
"""


def table_of(text: str) -> FlattenedScope:
    return flatten_scope(parse(text).equations[-1].scope)


def test_flattened_table_is_that_of_the_document() -> None:
    table = table_of(PLAIDML)
    words = [line.split() for line in PRINTED.strip().lower().splitlines()]
    shown = [line.lower().split() for line in repr(table).splitlines()]
    assert shown[: len(words)] == words
    assert [line.split() for line in repr(table).splitlines()[len(words) :]] == [
        ["0", "<=", "i+x-1", "<", "224"],
        ["0", "<=", "j+y-1", "<", "224"],
    ]


def test_a_matrix_read_along_its_diagonals() -> None:
    i, j = Iterator("i", 0, 16), Iterator("j", 0, 1)
    read = Tensor("M", (16, 16))[i, as_index(i) + j]
    assert repr(flat_address(read)) == "17*i+j"
    (column,) = flatten_scope(Scope((i, j), (), read)).inputs
    assert (column.coefficients, column.offset) == ((17, 1), 0)


def test_the_iterators_are_counted_from_zero() -> None:
    table = table_of("tensor A[9] pad [2]\nY[x:-1..4] = sum[r:2..4] A[2*x - r + 3]")
    assert table.rows == (IteratorRow("r", 2, False), IteratorRow("x", 5, True))
    assert table.columns == (AddressColumn("O", (0, 1)), AddressColumn("A", (-1, 2), -1, (0, 0)))
    assert [repr(c) for c in table.constraints] == ["0 <= -r+2*x+3 < 9"]


def test_only_equal_reads_share_a_column() -> None:
    table = table_of("tensor A[8]\nY[x:7] = A[x] * A[x] + A[x+1]")
    assert [c.name for c in table.columns] == ["O", "A", "A.2"]
    assert [c.offset for c in table.columns] == [0, 0, 1]


def test_nonlinear_index_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x // 2, where A is read, is no polynomial"):
        table_of("tensor A[8]\nY[x:16] = A[x // 2]")


def test_domains_are_constraints() -> None:
    scope = parse("tensor A[8]\nY[x:8, y:8] = A[x]").equations[0].scope
    x, y = scope.traversals
    bound = Bound(as_index(x) + y, 2, 9)
    assert flatten_scope(replace(scope, domain=(bound,))).constraints == (bound,)


def test_shown_as_latex_and_html() -> None:
    table = table_of(PLAIDML)
    bundle = table._repr_mimebundle_()
    assert bundle["text/latex"].count("{") == bundle["text/latex"].count("}")
    assert r"\mathrm{n} & 32 & 3211264 & 3211264 & 0" in bundle["text/latex"]
    assert r"0 \le i+x-1 < 224" in bundle["text/latex"]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", bundle["text/html"])
    assert cells[:5] == ["ci", "64", "0", "1", "1"] and cells[-5:] == ["off", "", "0", "-14400", "0"]
    assert "0 &lt;= i+x-1 &lt; 224" in bundle["text/html"]


def test_collapsing_merges_contiguous_rows_but_not_constrained_ones() -> None:
    matmul = table_of("tensor A[4, 5, 6]\ntensor B[4, 5, 6]\nY[n:4, h:5, w:6] = A[n, h, w] + B[n, h, w]")
    assert matmul.merge_neighbours().ranges == (120,)
    conv = flatten_scope(ops.conv2d(N=2, H=5, W=6, C=3, F=4, R=3, S=3, padding=1).equations[0].scope)
    names = {r.name for r in conv.merge_neighbours().rows}
    assert {x.name for c in conv.constraints for x in c.index.iterators} <= names


def test_neighbours_are_whole_rows() -> None:
    assert are_neighbours([(12, 4), (3, 1)], 3) and not are_neighbours([(12, 4), (4, 1)], 3)


@given(scopes_(depth=1, quotients=False, domains=False, functions=()))
def test_the_table_gives_every_address(scope: Scope) -> None:
    table = flatten_scope(scope)
    iterators = sorted((*scope.traversals, *scope.summations), key=lambda x: x.name)
    rng = np.random.default_rng(0)
    for _ in range(5):
        at = {x: int(rng.integers(x.lo, x.hi)) for x in iterators}
        counted = [at[x] - x.lo for x in iterators]
        for access, column in zip(dict.fromkeys(accesses(scope.body)), table.inputs, strict=True):
            found = column.offset + sum(k * c for k, c in zip(column.coefficients, counted, strict=True))
            assert found == flat_address(access).evaluate(at.__getitem__)


@given(scopes_(depth=1, quotients=False, domains=False, functions=()))
def test_squashing_agrees_with_the_backends(scope: Scope) -> None:
    assume(scope.traversals)
    before, after = (
        flatten_scope(scope).merge_neighbours(),
        flatten_scope(collapse_dimensions(scope)).merge_neighbours(),
    )
    assert sorted(n for n in before.ranges if n != 1) == sorted(n for n in after.ranges if n != 1)


@given(st.integers(2, 5), st.integers(2, 5), st.integers(2, 5), st.data())
def test_squashed_tables_reach_the_same_addresses(a: int, b: int, c: int, data: st.DataObject) -> None:
    text = f"tensor A[{a}, {b}, {c}]\ntensor B[{b}, {c}]\nY[x:{a}] = sum[y:{b}, z:{c}] A[x, y, z] * B[y, z]"
    full, small = table_of(text), table_of(text).merge_neighbours()
    assert len(small.rows) == 2

    def addresses(table: FlattenedScope, column: int) -> list[int]:
        found = [table.columns[column].offset]
        for k, n in zip(table.columns[column].coefficients, table.ranges, strict=True):
            found = [f + k * i for f in found for i in range(n)]
        return sorted(found)

    column = data.draw(st.integers(0, 2))
    assert addresses(full, column) == addresses(small, column)


@pytest.mark.parametrize("op", COMPARISONS)
def test_conditions_are_decided_exactly_where_all_values_agree(op: str) -> None:
    for lo, extent, c in product(range(-3, 3), range(1, 4), range(-3, 4)):
        x = Iterator("x", lo, lo + extent)
        choice = Apply("where", (Compare(op, as_index(x), as_index(c)), Const(1), Const(0)))
        outcomes = {COMPARISONS[op](value, c) for value in range(x.lo, x.hi)}
        assert fold_decided(choice) == (Const(int(*outcomes)) if len(outcomes) == 1 else choice), (x, c)
