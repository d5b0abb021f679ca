r"""Sums of products of 8-bit integers in 32 bits, as kernels in C: on AVX512-VNNI where the processor has it.

Its instruction multiplies unsigned by signed bytes.  Of two operands that are both one or the other, one is packed with
its sign bit flipped, :math:`p = x + l` with :math:`l = \pm 128`:

.. math::  \sum_k a_k b_k = \sum_k p_k b_k - l \sum_k b_k

The sums of rows or columns are by-products of packing.  All sums are exact: the type of the result has been checked.
Constant operands are packed once.

Other sums of products than those of matrices, such as convolutions, are matrix products of elements that are read
several times: :math:`X[h + r, w + s]` is the element of column (h, w) and step (r, s), whose places add up to its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from itertools import product as cartesian
from math import prod
from pathlib import Path

import numpy as np

from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.products import (
    TensorContraction,
    match_matrix_product,
    match_window_product,
    multiplies_bytes,
)
from einnet_explore.codegen.preparation import prepare
from einnet_explore.ir import Access, Iterator, Scope, Tensor
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.c_kernels import NATIVE
from einnet_explore.runtime.matrix_products import merge_strides

_FLAGS = ("-O3", NATIVE, "-fvisibility=hidden")
_COLUMNS, _GROUP = 32, 4
"""Columns of a panel, and neighbouring factors of a sum, as in the text in C."""

MAX_PRODUCTS = 1 << 12
"""Matrices of one kernel; their places are numbers in its text."""

MAX_BYTES = (1 << 31) - 1
"""Bytes of an operand: places are 32-bit numbers."""

MIN_SHARED_PRODUCTS = 1 << 18
"""Products of two elements from which on several threads share a kernel."""


def match_integer_product(scope: Scope) -> TensorContraction | None:
    """Return *scope* as a sum of products of bytes in ``int32`` that this module computes; None if it is none."""
    return match_matrix_product(scope) or match_window_product(scope) if multiplies_bytes(scope) else None


@dataclass(frozen=True)
class ByteOperand:
    """Bytes of a tensor: those of row or column `i` and step `s` are at ``start + outer[i] + steps[s]``.

    *starts* are those of distinct matrices, and *numbers* say which one each product takes.  Where a read is outside of
    the tensor, *pads* are elements before and after each dimension, of *value*, and places are those of a padded copy.
    """

    tensor: str
    shape: tuple[int, ...]
    is_signed: bool
    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    outer: Array
    steps: Array
    pads: tuple[tuple[int, int], ...] = ()
    value: int = 0

    @property
    def has_packed_steps(self) -> bool:
        """Whether the bytes of a sum are next to one another."""
        return bool((np.diff(self.steps) == 1).all())

    @property
    def spacing(self) -> int:
        """2 if most bytes of a step are two apart; else 1."""
        apart = np.diff(self.outer)
        return 2 if np.count_nonzero(apart == 2) > np.count_nonzero(apart == 1) else 1

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape of the padded copy; empty without one."""
        return tuple(before + n + after for n, (before, after) in zip(self.shape, self.pads, strict=False))

    def matrices(self, array: Array) -> Array:
        """All matrices of *array*, as [matrix, row or column, step], in ``uint8``."""
        held = array.reshape(self.shape)
        held = np.pad(held, self.pads, constant_values=self.value) if self.pads else held
        places = np.asarray(self.starts)[:, None, None] + self.outer[:, None] + self.steps
        flat: Array = np.ascontiguousarray(held).view(np.uint8).reshape(-1)
        found: Array = flat[places]
        return found


@dataclass(frozen=True)
class IntegerProduct:
    """A kernel for sums of products of bytes: *rows* times *columns*, of which those in *packed* never change.

    The results of product `n`, row `i` and column `j` are at ``places[n] + i by_row + j``.
    """

    scope: Scope
    rows: ByteOperand
    columns: ByteOperand
    packed: frozenset[str]
    places: tuple[int, ...]
    by_row: int
    threads: int = 1
    compiler = "C"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return (self.rows.tensor, self.columns.tensor)

    def arguments(self, constants: Arrays) -> Sequence[tuple[str, Array | None]]:
        """Return the arguments before the result: tensors (None), and arrays that are made of them or say places."""
        made: list[tuple[str, Array | None]] = []
        for operand in (self.rows, self.columns):
            name = operand.tensor
            if name in self.packed:
                made += [(name, array) for array in self._pack(operand, constants[name])]
            else:
                made += [(name, None), (name, operand.outer), (name, operand.steps)]
        return made

    def _pack(self, operand: ByteOperand, array: Array) -> tuple[Array, Array]:
        """The elements of a constant *operand* in the layout of the kernel, and their sums."""
        flip, _ = self._flips[operand is self.columns]
        signed = np.int8 if (operand is self.rows) == self._unsigned_columns else np.uint8
        given = operand.matrices(array) ^ np.uint8(flip)
        count, size, steps = given.shape
        size = size if operand is self.rows else -(-size // _COLUMNS) * _COLUMNS
        full = np.zeros((count, size, -(-steps // _GROUP) * _GROUP), np.uint8)
        full[:, : given.shape[1], :steps] = given
        sums = full.view(signed).sum(axis=2, dtype=np.int32)
        if operand is self.columns:
            by_group = full.reshape(count, size // _COLUMNS, _COLUMNS, -1, _GROUP)
            full = np.ascontiguousarray(by_group.transpose(0, 1, 3, 2, 4))
        return full.reshape(-1), sums.reshape(-1)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arguments, the result last."""
        given: list[tuple[int, ...]] = []
        padded = -(-len(self.rows.steps) // _GROUP) * _GROUP
        for operand in (self.rows, self.columns):
            size = len(operand.outer)
            if operand.tensor in self.packed:
                size = size if operand is self.rows else -(-size // _COLUMNS) * _COLUMNS
                total = len(operand.starts) * size
                given += [(total * padded,), (total,)]
            else:
                given += [operand.shape, operand.outer.shape, operand.steps.shape]
        return (*given, self.scope.shape)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types of the arguments; bytes are unsigned."""
        given: list[str] = []
        for operand in (self.rows, self.columns):
            given += ["uint8", "int32"] if operand.tensor in self.packed else ["uint8", "int32", "int32"]
        return (*given, "int32")

    @cached_property
    def _flips(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The flipped bit and the number that it adds, of rows and of columns; at most one operand is flipped.

        It is that whose other one is constant, if there is one: the sums of this are known.
        """
        if self.rows.is_signed != self.columns.is_signed:
            return (0, 0), (0, 0)
        flip = (128, 128 if self.rows.is_signed else -128)
        return ((0, 0), flip) if self.rows.tensor in self.packed else (flip, (0, 0))

    @property
    def _unsigned_columns(self) -> bool:
        return self.columns.is_signed == bool(self._flips[1][0])

    @property
    def shared(self) -> bool:
        """Whether several threads run the kernel."""
        products = len(self.places) * len(self.rows.outer) * len(self.columns.outer) * len(self.rows.steps)
        return self.threads > 1 and products >= MIN_SHARED_PRODUCTS

    @cached_property
    def text(self) -> str:
        """The C source."""
        (row_flip, row_low), (column_flip, column_low) = self._flips
        columns = self.columns
        is_padded = bool(columns.pads) and columns.tensor not in self.packed
        shape = columns.padded_shape
        numbers = {
            "M": len(self.rows.outer),
            "N": len(columns.outer),
            "K": len(self.rows.steps),
            "BY_ROW": self.by_row,
            "ALL_A": len(self.rows.starts),
            "PRODUCTS_ALL": len(self.places),
            "PACKED_ROWS": int(self.rows.tensor in self.packed),
            "PACKED_COLUMNS": int(columns.tensor in self.packed),
            "ROW_STEPS_PACKED": int(self.rows.has_packed_steps),
            "COLUMN_STEPS_PACKED": int(columns.has_packed_steps),
            "COLUMN_SPACING": columns.spacing,
            "UNSIGNED_COLUMNS": int(self._unsigned_columns),
            "ROW_FLIP": row_flip,
            "ROW_LOW": row_low,
            "COLUMN_FLIP": column_flip,
            "COLUMN_LOW": column_low,
            "SHARED": int(self.shared),
            "PAD": int(is_padded),
            "PADDED_SIZE": prod(shape) if is_padded else 0,
        }
        tables: dict[str, Iterable[int]] = {
            "MATRICES_A": self.rows.starts,
            "MATRICES_B": columns.starts,
            "PRODUCTS_A": self.rows.numbers,
            "PRODUCTS_B": columns.numbers,
            "PRODUCTS_Y": self.places,
        }
        if is_padded:
            numbers |= {"SIZE": prod(columns.shape), "ROW_SIZE": columns.shape[-1], "RANK": len(shape)}
            numbers |= {"PAD_VALUE": columns.value & 255}
            befores = [before for before, _ in columns.pads]
            tables |= {"SIZES": columns.shape, "BEFORE": befores, "PADDED_STRIDES": row_major_strides(shape)}
        source = files("einnet_explore.runtime").joinpath("integer_products.c").read_text(encoding="utf-8")
        defined = (f"#define {name} ({value})" for name, value in numbers.items())
        held = (f"static const long long {name}[] = {{{', '.join(map(str, t))}}};" for name, t in tables.items())
        return "\n".join((*defined, *held, source))

    @cached_property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        parts = (self.text, *_FLAGS, *compiled.compilation_target()[1:], compiled.c_compiler())
        return "i" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:39]

    @cached_property
    def function(self) -> compiled.CompiledFunction:
        """The compiled function; raises BackendError where there is no C compiler, or its first run fails."""
        compiled.use_threads(self.threads)
        known = compiled.load_stored(self.key)
        if known is not None:
            return known
        return compiled.build_c(self.text, self.key, list(zip(self.shapes, self.dtypes, strict=True)), _FLAGS)

    def write_object(self, path: Path, name: str, cpu: str) -> None:
        """Compile to an object file; raises BackendError as ``function`` does."""
        flags = [flag for flag in _FLAGS if flag != NATIVE]
        compiled.write_c_object(self.text, path, name, [*flags, f"-march={cpu}"])


@dataclass(frozen=True)
class _Layout:
    """Where the elements of a tensor are: in the packed tensor *source* of *shape*, from *offset* on, by *strides*."""

    source: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class _Read:
    """A read of a tensor with a *layout*, whose elements are at *start* plus steps of iterators."""

    access: Access
    layout: _Layout
    pads: tuple[tuple[int, int], ...]
    start: int = field(init=False)
    by: Mapping[Iterator, int] = field(init=False)

    def __post_init__(self) -> None:
        shape = tuple(b + n + a for n, (b, a) in zip(self.layout.shape, self.pads, strict=False))
        strides = row_major_strides(shape) if self.pads else self.layout.strides
        before = [b for b, _ in self.pads] or [0] * len(strides)
        by: dict[Iterator, int] = {}
        start = self.layout.offset
        for i, (lo, _), stride, b in zip(self.access.index, self.access.source.box, strides, before, strict=True):
            start += (i.evaluate(lambda x: x.lo) - lo + b) * stride
            for x in i.iterators:
                by[x] = by.get(x, 0) + i.coefficient(x) * stride
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "by", by)

    def operand(self, outer: Sequence[Iterator], steps: Sequence[Iterator], batch: Sequence[Iterator]) -> ByteOperand:
        """The operand whose rows or columns are the points of *outer*, in products that are those of *batch*."""
        firsts = [int(at) for at in self.start + self._offsets(batch)]
        starts = tuple(dict.fromkeys(firsts))
        source = self.access.source
        assert isinstance(source, Tensor)
        return ByteOperand(
            self.layout.source,
            self.layout.shape,
            source.dtype == "int8",
            starts,
            tuple(map(starts.index, firsts)),
            self._offsets(outer),
            self._offsets(steps),
            self.pads,
            int(source.value),
        )

    def _offsets(self, iterators: Iterable[Iterator]) -> Array:
        """The offset of each point of *iterators*, in the order of writing."""
        total = np.zeros(1, np.int32)
        for x in iterators:
            total = (total[:, None] + np.arange(x.extent, dtype=np.int32) * np.int32(self.by.get(x, 0))).reshape(-1)
        return total


def integer_product(
    product: TensorContraction, constants: Iterable[str], views: Mapping[str, Scope], threads: int = 1
) -> IntegerProduct | None:
    """Return the kernel of *product*; None if its results are not packed along columns, or an operand is too large.

    Operands in *constants* never change; those in *views* are views of other tensors.
    """
    scope = product.scope
    reads = [_read(access, views) for access in (product.left, product.right)]
    sides = list(zip(reads, (product.m, product.n), strict=True))
    if not scope.traversals or scope.traversals[-1] in product.m:
        sides.reverse()
    (first, ms), (second, ns) = sides
    strides = row_major_strides(scope.shape)
    places = dict(zip(scope.traversals, strides, strict=True))
    outer_rows, rows = merge_strides(ms, (places,))
    outer_columns, columns = merge_strides(ns, (places,))
    if first is None or second is None or first.pads or (columns and places[columns[-1]] != 1):
        return None
    batch = (*product.batch, *outer_rows, *outer_columns)
    if prod(x.extent for x in batch) > MAX_PRODUCTS:
        return None
    at = (sum(n * places[x] for n, x in zip(point, batch, strict=True)) for point in _points(batch))
    a, b = first.operand(rows, product.k, batch), second.operand(columns, product.k, batch)
    if max(prod(a.shape), prod(b.shape), prod(b.padded_shape), prod(scope.shape)) > MAX_BYTES:
        return None
    packed = frozenset({a.tensor, b.tensor} & set(constants)) if a.tensor != b.tensor else frozenset[str]()
    return IntegerProduct(scope, a, b, packed, tuple(at), places[rows[-1]] if rows else 1, threads)


def _points(iterators: Sequence[Iterator]) -> Iterable[tuple[int, ...]]:
    return cartesian(*(range(x.extent) for x in iterators))


def _read(access: Access, views: Mapping[str, Scope]) -> _Read | None:
    """*access* as a read of a packed tensor, perhaps with padding; None for a view that is none of one tensor."""
    source = access.source
    assert isinstance(source, Tensor)
    pads = tuple(
        (max(0, lo - i.bounds[0]), max(0, i.bounds[1] + 1 - hi))
        for i, (lo, hi) in zip(access.index, source.box, strict=True)
    )
    kept = pads if any(map(any, pads)) else ()
    if source.name not in views:
        return _Read(access, _Layout(source.name, source.shape, row_major_strides(source.shape)), kept)
    shown = prepare(views[source.name])
    found = view_strides(shown)
    if found is None or not isinstance(shown.body, Access) or not isinstance(shown.body.source, Tensor):
        return None
    viewed = shown.body.source
    if found == (0, row_major_strides(source.shape)) and prod(viewed.shape) == prod(source.shape):
        return _Read(access, _Layout(viewed.name, source.shape, found[1]), kept)
    return None if kept else _Read(access, _Layout(viewed.name, viewed.shape, found[1], found[0]), ())
