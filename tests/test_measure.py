"""FLOPs, elements and intensity of expressions."""

import pytest

from einnet_explore.analysis import counts
from einnet_explore.ir import Apply, Const, Iterator, Scope, Tensor, add, mul


def x(name: str, hi: int, lo: int = 0) -> Iterator:
    return Iterator(name, lo, hi)


def matmul(m: int, n: int, k: int) -> Scope:
    M, N, K = x("m", m), x("n", n), x("k", k)
    return Scope((M, N), (K,), mul(Tensor("A", (m, k))[M, K], Tensor("B", (k, n))[K, N]))


def test_measures_of_a_matrix_product() -> None:
    scope = matmul(8, 16, 32)
    assert counts.flops(scope) == 2 * 8 * 16 * 32
    assert counts.elements(scope) == 8 * 32 + 32 * 16 + 8 * 16
    assert counts.intensity(scope) == pytest.approx(8192 / 896)
    assert counts.bytes_moved(scope) == 4 * 896
    assert counts.bytes_moved(scope, 2) == 2 * 896


def test_measures_count_nested_scopes_once() -> None:
    inner = matmul(4, 4, 8)
    i, j = inner.traversals
    outer = Scope((i, j), (), Apply("relu", (add(inner[i, j], inner[j, i], Tensor("C", (4, 4))[i, j]),)))
    assert counts.flops(outer) == 2 * 128 + 16 * 3
    assert counts.elements(outer) == 32 + 32 + 16 + 16


def test_layout_is_bound_by_memory_and_moves_what_it_reads() -> None:
    i = x("i", 4)
    scope = Scope((i,), (), Tensor("A", (100, 4))[0, i])
    assert counts.intensity(scope) == 0
    assert counts.elements(scope) == 404
    assert counts.bytes_moved(scope) == 4 * 8
    assert counts.intensity(Scope((x("z", 0),), (), Const(1))) == 0
