"""Tables read at an index: by cases, or as an expression of constants where no table may stand."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import prod

from einnet_explore.ir import Apply, Compare, Const, Index, Iterator, Scalar, Scope, Table, as_index


def select_entry(table: Table, index: tuple[Index, ...]) -> Scalar:
    """``table[index]`` as nested ``where`` over what of *index* is not known; equal branches are one."""
    if not table.shape:
        return Const(_plain(table.entries[0]))
    first, *rest = index
    lo, hi = first.bounds
    rows = _rows(table)
    found = [select_entry(rows[n], tuple(rest)) for n in range(lo, hi + 1)]
    out = found[-1]
    for n, value in reversed(list(enumerate(found[:-1], lo))):
        if value != out:
            out = Apply("where", (Compare("==", first, as_index(n)), value, out))
    return out


def table_scope(table: Table) -> Scope:
    """*table* as a scope that lists it."""
    at = tuple(Iterator(f"z{n + 1}", 0, extent) for n, extent in enumerate(table.shape))
    return Scope(at, (), table[at])


def table_entries(table: Table) -> dict[tuple[int, ...], Fraction]:
    """The entries of *table* by their indices."""
    return dict(zip(product(*map(range, table.shape)), table.entries, strict=True))


def _rows(table: Table) -> tuple[Table, ...]:
    count, *rest = table.shape
    size = prod(rest)
    return tuple(Table(tuple(rest), table.entries[n * size : (n + 1) * size]) for n in range(count))


def _plain(x: Fraction) -> float:
    return int(x) if x.denominator == 1 else float(x)
