"""Known indices as functions of places: what is recognised reads the elements that the array says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Scope, Tensor
from einnet_explore.onnx_import.known_arrays import index_of_digits, select_by_index
from einnet_explore.onnx_import.node_call import as_indices, extent_iterators
from einnet_explore.support.errors import Refused

LENGTH = 64


def gathered(table: np.ndarray) -> np.ndarray:
    """What the recognised index reads from a vector; raises Refused."""
    xs = extent_iterators(table.shape)
    source = Tensor("x", (LENGTH,), padding=((500, 500),))
    scope = Scope(xs, (), select_by_index(table, as_indices(xs), lambda index: source[(index,)]))
    return evaluate(scope, {"x": np.arange(1.0, LENGTH + 1)}, np.float64)


ROWS = np.arange(3)[:, None]
PLACES = np.arange(9)

TABLES = {
    "halves rounded up, less the row": np.maximum((PLACES + 1) // 2 + 1 - ROWS, 0),
    "halves rounded down, clamped at both ends": np.clip(PLACES // 2 - 1 + 2 * ROWS, 0, 5),
    "digits of a shifted place, after another first one": np.array([5, 4, 5, 10, 11, 16, 17, 22, 23]),
    "remainders of an odd row": (np.arange(18) % 9) % 2 + 3 * (np.arange(18) // 9),
    "halves of an odd row, by rows of another step": (np.arange(27) % 9) // 2 + 7 * ((np.arange(27) // 9) % 2),
}


@pytest.mark.parametrize("name", TABLES)
def test_indices_of_transposed_convolutions_are_recognised(name: str) -> None:
    table = TABLES[name]
    assert np.array_equal(gathered(table), table + 1)


def test_indices_without_an_order_are_refused() -> None:
    table = np.random.default_rng(0).permutation(LENGTH).reshape(8, 8)
    with pytest.raises(Refused, match="affine neither in digits of its places nor in pieces"):
        gathered(table)


@given(st.data())
def test_recognised_indices_read_the_elements_of_the_table(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 12))
    at = np.indices((rows, columns))
    table = np.full((rows, columns), data.draw(st.integers(-3, 6)))
    for place in (at[0], at[1], at[1]):
        radix, step = data.draw(st.integers(1, 4)), data.draw(st.integers(-3, 4))
        table = table + step * ((place + data.draw(st.integers(0, 2))) // radix)
    table = np.clip(table, data.draw(st.integers(0, 4)), data.draw(st.integers(8, LENGTH - 1)))
    if data.draw(st.booleans()):
        table[data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))] = 7
    try:
        found = gathered(table)
    except Refused:
        return
    assert np.array_equal(found, table + 1)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=18), st.data())
def test_digits_have_the_known_values(values: list[int], data: st.DataObject) -> None:
    line = np.array(values * data.draw(st.integers(1, 3)))
    known = np.array([True, *data.draw(st.lists(st.booleans(), min_size=len(line) - 1, max_size=len(line) - 1))])
    (x,) = extent_iterators(line.shape)
    index = index_of_digits(line, as_indices((x,))[0], known)
    if index is not None:
        source = Tensor("x", (LENGTH,), padding=((5000, 5000),))
        read = evaluate(Scope((x,), (), source[(index,)]), {"x": np.arange(float(LENGTH))}, np.float64)
        assert np.array_equal(read[known], line[known])
