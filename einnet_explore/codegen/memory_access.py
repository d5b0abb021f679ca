"""Positions in memory, for kernels that read and write whole arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einnet_explore.analysis.flattening import flat_address, row_major_strides
from einnet_explore.codegen.language import I64, Expr, Type, lowering
from einnet_explore.ir import Access, Index, Iterator, Scope, Table, Tensor

FIRST_BLOCK = ":first"
"""The parameter with the number of the first block of a launch."""


def tensor_name(source: Tensor | Table | Scope) -> str:
    """Return the name of the tensor that is read."""
    assert isinstance(source, Tensor)
    return source.name


def flat_read(access: Access) -> Access:
    """Return *access* as a read of flat memory; conditions around it already exclude positions outside."""
    place = flat_address(access)
    least, most = place.bounds
    return Access(Tensor(tensor_name(access.source), (most + 1 - least,), origin=(least,)), (place,))


def flat_index(index: Iterable[Index], shape: tuple[int, ...]) -> Index:
    """Return the position of element *index*, counted from 0, in an array of *shape*."""
    return sum((i * stride for i, stride in zip(index, row_major_strides(shape), strict=True)), Index())


def element_address(
    shape: tuple[int, ...], index: tuple[Index, ...], at: Mapping[Iterator, Expr], kind: Type = I64
) -> Expr:
    """Return the position of element *index* in an array of *shape* for iterators of the values *at*."""
    return lowering.lower_index(flat_index(index, shape), at, kind)


def add_offset(value: Expr, number: int) -> Expr:
    """Return *value* + *number*, as a subtraction if *number* is negative."""
    return value + number if number >= 0 else value - -number
