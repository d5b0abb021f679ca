r"""Sums of products of bytes, or of bfloat16, in 32 bits, as kernels in C: on AVX512-VNNI or AVX512-BF16 if possible.

The instruction for bytes multiplies unsigned by signed ones.  Of two operands that are both one or the other, one is
packed with its sign bit flipped, :math:`p = x + l` with :math:`l = \pm 128`:

.. math::  \sum_k a_k b_k = \sum_k p_k b_k - l \sum_k b_k

The sums of rows or columns are by-products of packing.  All sums of bytes are exact: the type of the result has been
checked.  Constant operands are packed once.

Other sums of products than those of matrices, such as convolutions, are matrix products of elements that are read
several times: :math:`X[h + r, w + s]` is the element of row (h, w) and step (r, s), whose places add up to its own.
Columns are packed in panels.  Rows are read where they are, four neighbouring factors of the sum at a time; where these
are apart, as channels are in images, from a copy with padding in which four of them are next to one another.  Rows of
bfloat16, two factors at a time, are always copied: their elements may be rounded ones of ``float32``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from importlib.resources import files
from itertools import product as cartesian
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.indices import substitute
from einnet_explore.analysis.products import TensorContraction, match_integer_product
from einnet_explore.codegen.language.dialects import C
from einnet_explore.codegen.language.values import type_of
from einnet_explore.codegen.preparation import prepare
from einnet_explore.codegen.product_epilogue import EPILOGUE, ProductEpilogue
from einnet_explore.codegen.sum_of_products import split_epilogue
from einnet_explore.ir import FLOAT32, Access, Iterator, Scalar, Scope, Tensor, as_index, element_type
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.c_kernels import (
    EOPERATOR_FLAGS,
    INTERFACE_DECLARATIONS,
    LAUNCH_DECLARATIONS,
    NATIVE,
    SPACE_DECLARATIONS,
    VECTOR_MATH_DECLARATIONS,
)
from einnet_explore.runtime.matrix_products import merge_strides
from einnet_explore.support.errors import NoKernel, Refused

_LANES = 16
"""Columns of a vector, as in the text in C."""


def _group(dtype: str) -> int:
    """The number of neighbouring factors of a sum that an instruction takes: 32 bits of them."""
    return 4 if dtype in ("int8", "uint8") else 2


MAX_PRODUCTS = 1 << 12
"""Matrices of one kernel; their places are numbers in its text."""

MAX_BYTES = (1 << 31) - 1
"""Bytes of an operand: places are 32-bit numbers."""

VNNI_SPEEDUP = 3.7
"""Products of bytes with AVX512-VNNI that take as long as one of float32."""

PACKING_ROWS = 32
"""Rows of a product that take as long as packing a panel of columns."""

GATHERED_BYTES = 8
"""Bytes of an interleaved copy that take as long as one that is found by a table."""

MIN_SHARED_PRODUCTS = 1 << 18
"""Products of two elements from which on several threads share a kernel."""


class RowMode(IntEnum):
    """Where a kernel finds the rows: packed beforehand, in the operand, in an interleaved copy, or in copied rows."""

    PACKED = 0
    IN_PLACE = 1
    INTERLEAVED = 2
    GATHERED = 3


@dataclass(frozen=True)
class LineCopy:
    """A copy [outer, planes / spread, inner, line, spread] of a tensor [outer, planes, inner, line], with padding.

    *outer_places* and *inner_places* are those of the lines, *plane* is the number of places in a padded plane.
    """

    spread: int
    planes: int
    line: int
    outer_places: tuple[int, ...]
    inner_places: tuple[int, ...]
    plane: int
    size: int
    fill: int | None

    @property
    def lines(self) -> int:
        """Lines of *spread* planes."""
        return len(self.outer_places) * -(-self.planes // self.spread) * len(self.inner_places)


@dataclass(frozen=True)
class ProductOperand:
    """Elements of a tensor: those of row or column `i` and step `s` are at ``start + outer[i] + steps[s]``.

    *starts* are those of distinct matrices, and *numbers* say which one each product takes.  Where a read is outside of
    the tensor, *pads* are elements before and after each dimension, of *value*, and places are those of a padded copy.
    A negative step adds nothing.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    outer: Array
    steps: Array
    pads: tuple[tuple[int, int], ...] = ()
    value: int = 0

    @property
    def is_signed(self) -> bool:
        """Whether its integers may be negative."""
        return self.dtype == "int8"

    @property
    def stored(self) -> str:
        """The NumPy type of its elements as kernels take them: bytes are unsigned, bfloat16 is its bits."""
        return {"int8": "uint8", "bfloat16": "uint16"}.get(self.dtype, self.dtype)

    @property
    def depth(self) -> int:
        """The number of steps that add something."""
        return int(np.count_nonzero(self.steps >= 0))

    @property
    def spacing(self) -> int:
        """2 if most elements of a step are two apart; else 1."""
        apart = np.diff(self.outer)
        return 2 if np.count_nonzero(apart == 2) > np.count_nonzero(apart == 1) else 1

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The shape of the padded copy; empty without one."""
        return tuple(before + n + after for n, (before, after) in zip(self.shape, self.pads, strict=False))

    def matrices(self, array: Array) -> Array:
        """All matrices of *array*, as [matrix, row or column, step], in their bits.

        Elements of ``float32`` are rounded to bfloat16.  Where a step is negative, they mean nothing.
        """
        held = array.reshape(self.shape)
        held = np.pad(held, self.pads, constant_values=self.value) if self.pads else held
        held = held.astype(ml_dtypes.bfloat16) if self.dtype == FLOAT32 else held
        places = np.asarray(self.starts)[:, None, None] + self.outer[:, None] + np.maximum(self.steps, 0)
        flat: Array = np.ascontiguousarray(held).view(f"uint{8 * held.itemsize}").reshape(-1)
        found: Array = flat[places]
        return found


@dataclass(frozen=True)
class PackedProduct:
    """A kernel for sums of products of bytes or of bfloat16: *rows* times *columns*.

    Operands in *packed* never change.  The results of product `n`, row `i` and column `j` are at
    ``places[n] + i by_row + j by_column``.  Steps of rows that are not packed are those of *copy*, where there is one;
    *epilogue* is what is computed of the sums.
    """

    scope: Scope
    rows: ProductOperand
    columns: ProductOperand
    packed: frozenset[str]
    places: tuple[int, ...]
    by_row: int
    by_column: int
    mode: RowMode
    epilogue: ProductEpilogue
    copy: LineCopy | None = None
    threads: int = 1
    spans: tuple[tuple[int, int], ...] = ()
    """The steps of four factors, from the first to the last, at which each row may read elements; all if empty."""
    compiler = "C"

    @cached_property
    def key(self) -> str:
        """The key of the compiled kernel in the cache directory."""
        parts = (self.text, *EOPERATOR_FLAGS, *compiled.compilation_target()[1:], compiled.c_compiler())
        return "i" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:39]

    @cached_property
    def function(self) -> compiled.CompiledFunction:
        """The compiled function; raises BackendError where there is no C compiler, or its first run fails."""
        compiled.use_threads(self.threads)
        known = compiled.load_stored(self.key)
        if known is not None:
            return known
        return compiled.build_c(self.text, self.key, list(zip(self.shapes, self.dtypes, strict=True)), EOPERATOR_FLAGS)

    def write_object(self, path: Path, name: str, cpu: str) -> None:
        """Compile to an object file; raises BackendError as ``function`` does."""
        flags = [flag for flag in EOPERATOR_FLAGS if flag != NATIVE]
        compiled.write_c_object(self.text, path, name, [*flags, f"-march={cpu}", f"-D{EPILOGUE}={name}_{EPILOGUE}"])

    @property
    def is_integer(self) -> bool:
        """True for products of bytes."""
        return self.group == 4

    @property
    def group(self) -> int:
        """Neighbouring factors of a sum that an instruction takes."""
        return _group(self.rows.dtype)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return tuple(dict.fromkeys((self.rows.tensor, self.columns.tensor, *self.epilogue.inputs)))

    def arguments(self, constants: Arrays) -> Sequence[tuple[str, Array | None]]:
        """Return the arguments before the result: tensors (None), and arrays that are made of them or say places.

        The constants of the epilogue in ``float32`` are last, under the name of the columns.
        """
        made: list[tuple[str, Array | None]] = []
        for operand in (self.rows, self.columns):
            name = operand.tensor
            if name in self.packed:
                made += [(name, array) for array in self._pack(operand, constants[name])[: 1 + self.is_integer]]
            else:
                made += [(name, None), (name, operand.outer), (name, operand.steps[: self._table_size(operand)])]
        made += [(name, None) for name in self.epilogue.inputs]
        if self.epilogue.single_constants:
            made.append((self.columns.tensor, self.epilogue.constants(constants, self.width)))
        return made

    def _table_size(self, operand: ProductOperand) -> int:
        """The number of steps whose places the kernel reads: one for four where rows have them together."""
        if operand is self.rows and self.mode in (RowMode.IN_PLACE, RowMode.INTERLEAVED):
            return len(operand.steps)
        return operand.depth

    @property
    def length(self) -> int:
        """Steps of the packed operands, a multiple of *group*."""
        return len(self.columns.steps)

    @property
    def width(self) -> int:
        """Columns of a panel: such that few are empty, and of those that change 32 or 64; 32 of bfloat16."""
        n = len(self.columns.outer)
        vectors = (2,) if not self.is_integer else (4, 3, 2, 1) if self.columns.tensor in self.packed else (4, 2)
        return _LANES * min(vectors, key=lambda v: -(-n // (_LANES * v)) * v)

    @property
    def tile(self) -> int:
        """Rows that are multiplied together, such that the sums stay in registers."""
        return 6 if self.width > 3 * _LANES else 8

    def _pack(self, operand: ProductOperand, array: Array) -> tuple[Array, Array]:
        """The elements of a constant *operand* in the layout of the kernel, and their sums, which bytes alone have."""
        flip, _ = self._flips[operand is self.columns]
        given = operand.matrices(array)
        given ^= given.dtype.type(flip)
        signed = np.int8 if (operand is self.rows) == self._unsigned_columns and self.is_integer else given.dtype
        count, size, steps = given.shape
        size = self._packed_size(operand)
        full = np.zeros((count, size, self.length), given.dtype)
        full[:, : given.shape[1], :steps] = np.where(operand.steps >= 0, given, 0)
        sums = full.view(signed).sum(axis=2, dtype=np.int32)
        if operand is self.columns:
            by_group = full.reshape(count, size // self.width, self.width, -1, self.group)
            full = np.ascontiguousarray(by_group.transpose(0, 1, 3, 2, 4))
        return full.reshape(-1), sums.reshape(-1)

    def _packed_size(self, operand: ProductOperand) -> int:
        size = len(operand.outer)
        return size if operand is self.rows else -(-size // self.width) * self.width

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arguments, the result last."""
        given: list[tuple[int, ...]] = []
        for operand in (self.rows, self.columns):
            if operand.tensor in self.packed:
                total = len(operand.starts) * self._packed_size(operand)
                given += [(total * self.length,), (total,)][: 1 + self.is_integer]
            else:
                given += [operand.shape, operand.outer.shape, (self._table_size(operand),)]
        own = self.epilogue.single_constants
        return (*given, *self.epilogue.shapes, *([own] if own else []), self.scope.shape)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types of the arguments; bytes are unsigned, and bfloat16 is its bits."""
        given: list[str] = []
        for operand in (self.rows, self.columns):
            if operand.tensor in self.packed:
                given += ["uint8", "int32"] if self.is_integer else ["uint16"]
            else:
                given += [operand.stored, "int32", "int32"]
        own = [FLOAT32] if self.epilogue.single_constants else []
        return (*given, *self.epilogue.dtypes, *own, element_type(self.scope))

    @property
    def _flips(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The flipped bit and the number that it adds, of rows and of columns; at most one operand is flipped."""
        if not self.is_integer:
            return (0, 0), (0, 0)
        return _flips(self.rows.is_signed, self.columns.is_signed, self.rows.tensor in self.packed)

    @property
    def row_flip(self) -> int:
        """The flipped bit of rows."""
        return self._flips[0][0]

    @property
    def _unsigned_columns(self) -> bool:
        return self.is_integer and self.columns.is_signed == bool(self._flips[1][0])

    @property
    def work(self) -> int:
        """Products of two elements that take as long as the kernel: those of padding too, and packing."""
        rows = len(self.rows.outer) + (0 if self.columns.tensor in self.packed else PACKING_ROWS)
        return len(self.places) * rows * self._packed_size(self.columns) * self.length

    @property
    def rearranged_bytes(self) -> int:
        """Bytes that it reads and writes besides: to copy rows, to interleave them, and to transpose results."""
        copied = 0 if self.copy is None else self.copy.size * (2 if self.copy.spread > 1 else 1)
        if self.mode == RowMode.GATHERED:
            copied = len(self.rows.starts) * len(self.rows.outer) * self.length * GATHERED_BYTES
        transposed = self.by_column != 1
        return copied + transposed * prod(self.scope.shape) * type_of(element_type(self.scope)).bits // 8

    @property
    def shared(self) -> bool:
        """Whether several threads run the kernel."""
        return self.threads > 1 and self.work >= MIN_SHARED_PRODUCTS

    @cached_property
    def text(self) -> str:
        """The C source; raises NoKernel if there is none of the epilogue."""
        (row_flip, row_low), (column_flip, column_low) = self._flips
        rows, columns = self.rows, self.columns
        is_padded = bool(columns.pads) and columns.tensor not in self.packed
        shape = columns.padded_shape
        steps = columns.steps[: columns.depth]
        is_row = self.mode in (RowMode.IN_PLACE, RowMode.INTERLEAVED)
        numbers: dict[str, int | str] = {
            "IS_BFLOAT16": int(not self.is_integer),
            "GROUP": self.group,
            "ROW_ELEMENT": C.spell(type_of(rows.stored)),
            "COLUMN_ELEMENT": C.spell(type_of(columns.stored)),
            "ROUNDED_ROWS": int(rows.dtype == FLOAT32),
            "ROUNDED_COLUMNS": int(columns.dtype == FLOAT32),
            "SUMMED": int(self.is_integer),
            "DIRECT": int(self._is_direct),
            "M": len(rows.outer),
            "N": len(columns.outer),
            "K": columns.depth,
            "LENGTH": self.length,
            "COLUMNS": self.width,
            "BY_ROW": self.by_row,
            "BY_COLUMN": self.by_column,
            "ALL_A": len(rows.starts),
            "PRODUCTS_ALL": len(self.places),
            "ROW_MODE": int(self.mode),
            "PACKED_COLUMNS": int(columns.tensor in self.packed),
            "ROW_STEPS_PACKED": int(not is_row or bool((np.diff(rows.steps) == self.group).all())),
            "ROW_IS_CONTIGUOUS": int(not is_row and bool((np.diff(rows.steps[: rows.depth]) == 1).all())),
            "COLUMN_STEPS_PACKED": int((np.diff(steps) == 1).all()),
            "COLUMN_SPACING": columns.spacing,
            "UNSIGNED_COLUMNS": int(self._unsigned_columns),
            "ROW_FLIP": row_flip,
            "ROW_LOW": row_low,
            "COLUMN_FLIP": column_flip,
            "COLUMN_LOW": column_low,
            "SHARED": int(self.shared),
            "PAD": int(is_padded),
            "PADDED_SIZE": prod(shape) if is_padded else 0,
            "MORE": len(self.epilogue.inputs) + bool(self.epilogue.single_constants),
            "ALIGNED": len(self._aligned),
            "COPY_SIZE": len(rows.starts) * len(rows.outer) * self.length if self.mode == RowMode.GATHERED else 0,
            "FILLED": 0,
            "FILL": 0,
            "TILE": self.tile,
            "SKIPS": int(bool(self.spans)),
        }
        tiles = [self.spans[n : n + self.tile] for n in range(0, len(self.spans), self.tile)]
        tables: dict[str, Iterable[int]] = {
            "MATRICES_A": rows.starts,
            "MATRICES_B": columns.starts,
            "PRODUCTS_A": rows.numbers,
            "PRODUCTS_B": columns.numbers,
            "PRODUCTS_Y": self.places,
            "FIRST_STEPS": [min(first for first, _ in rows_of_tile) for rows_of_tile in tiles] or [0],
            "STOP_STEPS": [max(stop for _, stop in rows_of_tile) for rows_of_tile in tiles] or [0],
            "ALIGNED_INPUTS": [*map(self.epilogue.inputs.index, self._aligned)] or [0],
        }
        if (copy := self.copy) is not None:
            numbers |= {
                "SPREAD": copy.spread,
                "PLANES": copy.planes,
                "LINE": copy.line,
                "INNER": len(copy.inner_places),
                "LINES": copy.lines,
            }
            numbers |= {"PLANE_PADDED": copy.plane, "COPY_SIZE": copy.size, "FILLED": int(copy.fill is not None)}
            numbers |= {"FILL": ((copy.fill or 0) & 255) ^ row_flip}
            tables |= {"OUTER_PLACES": copy.outer_places, "INNER_PLACES": copy.inner_places}
        if is_padded:
            numbers |= {"SIZE": prod(columns.shape), "ROW_SIZE": columns.shape[-1], "RANK": len(shape)}
            numbers |= {"PAD_VALUE": columns.value & 255}
            befores = [before for before, _ in columns.pads]
            tables |= {"SIZES": columns.shape, "BEFORE": befores, "PADDED_STRIDES": row_major_strides(shape)}
        source = files("einnet_explore.runtime").joinpath("integer_products.c").read_text(encoding="utf-8")
        defined = (f"#define {name} {value}" for name, value in numbers.items())
        held = (f"static const long long {name}[] = {{{', '.join(map(str, t))}}};" for name, t in tables.items())
        try:
            finish = self.epilogue.text(self.pitch, self.width, self._aligned)
        except Refused as error:
            raise NoKernel(f"no kernel in C: {error}") from error
        kinds = [C.spell(type_of(kind)) for kind in (self.epilogue.sum_type, element_type(self.scope))]
        types = f"typedef {kinds[0]} Sum;\ntypedef {kinds[1]} Result;"
        given = (VECTOR_MATH_DECLARATIONS, INTERFACE_DECLARATIONS, LAUNCH_DECLARATIONS, SPACE_DECLARATIONS)
        return "\n".join((*given, types, finish, *defined, *held, source))

    @property
    def _is_direct(self) -> bool:
        """Whether sums are the results, and stand next to one another as these do."""
        lows = [low for _, low in self._flips]
        is_sum = self.epilogue.is_identity and element_type(self.scope) == self.epilogue.sum_type
        return is_sum and self.by_column == 1 and not any(lows)

    @property
    def _aligned(self) -> tuple[str, ...]:
        """The inputs of the epilogue that are bytes where the results are, if they are transposed with them."""
        return self.epilogue.aligned if self.by_row == 1 and self.by_column != 1 else ()

    @property
    def pitch(self) -> int:
        """Elements from one row of results to the next where the epilogue writes them."""
        return self.by_row if self.by_column == 1 else self.width


@dataclass(frozen=True)
class _Layout:
    """Where the elements of a tensor are: in the packed tensor *source* of *shape*, from *offset* on, by *strides*."""

    source: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class OperandRead:
    """A read of a tensor with a *layout*, whose elements are at *start* plus steps of iterators."""

    access: Access
    layout: _Layout
    pads: tuple[tuple[int, int], ...]
    start: int = field(init=False)
    by: Mapping[Iterator, int] = field(init=False)

    @property
    def dtype(self) -> str:
        """The element type of the tensor."""
        assert isinstance(self.access.source, Tensor)
        return self.access.source.dtype

    @property
    def group(self) -> int:
        """Neighbouring factors of a sum that an instruction takes."""
        return _group(self.dtype)

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

    def places(self, order: Sequence[Iterator]) -> Array:
        """The places of the points of *order*, from the lowest."""
        return offsets(self.by, order) - np.int32(self._lowest(order))

    def _lowest(self, summed: Iterable[Iterator]) -> int:
        """The least place of the points of *summed*: less than 0 where the operand is read backwards."""
        return sum(min(0, self.by.get(x, 0) * (x.extent - 1)) for x in summed)

    def operand(
        self,
        outer: Sequence[Iterator],
        steps: Array,
        batch: Sequence[Iterator],
        summed: Sequence[Iterator],
        copy: _Copy | None = None,
    ) -> ProductOperand:
        """The operand whose rows or columns are the points of *outer*, in products that are those of *batch*.

        *steps* are the places of *summed*, counted from the lowest.
        """
        by, start = (self.by, self.start + self._lowest(summed)) if copy is None else (copy.by, copy.start)
        firsts = [int(at) for at in start + offsets(by, batch)]
        starts = tuple(dict.fromkeys(firsts))
        source = self.access.source
        assert isinstance(source, Tensor)
        return ProductOperand(
            self.layout.source,
            self.layout.shape,
            self.dtype,
            starts,
            tuple(map(starts.index, firsts)),
            offsets(by, outer),
            steps,
            self.pads,
            int(source.value),
        )

    def steps(self, order: Sequence[Iterator], together: int) -> Array:
        """The places of the points of *order*, from the lowest; -1 after the last *together* to whole groups."""
        found = self.places(order).reshape(-1, together)
        return np.pad(found, ((0, 0), (0, -together % self.group)), constant_values=-1).reshape(-1)

    def spans(self, rows: Sequence[Iterator], order: Sequence[Iterator], together: int) -> tuple[tuple[int, int], ...]:
        """The first step of a group of points of *order*, and the one after the last, at which each of *rows* may read.

        At other steps it only reads padding.  Steps are those of ``steps``; nothing is returned where none is left out.
        """
        count = prod(x.extent for x in rows)
        first = np.zeros(count, np.int64)
        stop = np.full(count, len(self.steps(order, together)) // self.group)
        for i, (lo, hi), pads in zip(self.access.index, self.access.source.box, self.pads, strict=True):
            if any(pads) and {*i.iterators} <= {*rows, *order}:
                by = {x: i.coefficient(x) for x in i.iterators}
                at = offsets(by, order).reshape(-1, together)
                fours = np.pad(at, ((0, 0), (0, -together % self.group)), mode="edge").reshape(-1, self.group)
                starts, place = np.unique(offsets(by, rows) + i.evaluate(lambda x: x.lo), return_inverse=True)
                inside = ((starts[:, None, None] + fours >= lo) & (starts[:, None, None] + fours < hi)).any(-1)
                first = np.maximum(first, np.where(inside.any(1), inside.argmax(1), inside.shape[1])[place])
                stop = np.minimum(stop, (inside.shape[1] - inside[:, ::-1].argmax(1))[place])
        whole = not first.any() and (stop == stop.max()).all()
        return () if whole else tuple(zip(map(int, first), map(int, np.maximum(first, stop)), strict=True))

    def is_grouped(self, y: Iterator) -> bool:
        """Whether four steps of *y* are next to one another in the operand."""
        return not self.pads and self.by.get(y) == 1 and y.extent % self.group == 0

    def copies(self, y: Iterator) -> Iterable[_Copy]:
        """The copies in which four steps of *y* are next to one another."""
        if (made := self.interleaved(y)) is not None:
            yield made
        shape = self.layout.shape
        if self.by.get(y) == 1 and self.pads and self.layout.strides == row_major_strides(shape):
            padded = tuple(b + n + a for n, (b, a) in zip(shape, self.pads, strict=True))
            last = max(d for d, pads in enumerate(self.pads) if any(pads))  # dimensions after it are in its lines
            strides = row_major_strides(padded)[: last + 1]
            lines = _places((*shape[:last], 1), self.pads[: last + 1], strides)
            size = prod(padded) + self.group  # the last step reads beyond the last element
            copied = LineCopy(1, 1, prod(shape[last:]), (0,), lines, prod(padded), size, self.fill)
            groups = np.arange(-(-y.extent // self.group), dtype=np.int32) * np.int32(self.group)
            yield _Copy(copied, self.start, self.by, groups)

    @property
    def fill(self) -> int | None:
        """The elements around the tensor; None without padding."""
        assert isinstance(self.access.source, Tensor)
        return int(self.access.source.value) if self.pads else None

    def interleaved(self, y: Iterator) -> _Copy | None:
        """The copy in which four steps of *y* are next to one another; None if it is no dimension's only iterator."""
        own = [d for d, i in enumerate(self.access.index) if y in i.iterators]
        shape = self.layout.shape
        if len(own) != 1 or len(shape) != len(self.access.index) or own[0] == len(shape) - 1:
            return None
        (d,), pads = own, self.pads or ((0, 0),) * len(shape)
        index, (lo, _) = self.access.index[d], self.access.source.box[d]
        if index.single != y or y.lo != lo or any(pads[d]) or self.layout.strides != row_major_strides(shape):
            return None
        padded = [b + n + a for n, (b, a) in zip(shape, pads, strict=True)]
        last = next(
            (e for e in range(len(shape) - 1, d, -1) if any(pads[e])), d + 1
        )  # dimensions after it are one line
        fours, plane, line = -(-shape[d] // self.group), prod(padded[d + 1 :]), prod(shape[last:])
        inner = row_major_strides(tuple(padded[d + 1 :]))
        strides = (
            [s * fours * plane * self.group for s in row_major_strides(tuple(padded[:d]))]
            + [0]
            + [s * self.group for s in inner]
        )
        start, by = 0, dict[Iterator, int]()
        for e, (i, (low, _)) in enumerate(zip(self.access.index, self.access.source.box, strict=True)):
            start += (i.evaluate(lambda x: x.lo) - low + pads[e][0]) * strides[e]
            for x in set(i.iterators) - {y}:
                by[x] = by.get(x, 0) + i.coefficient(x) * strides[e]
        copied = LineCopy(
            self.group,
            shape[d],
            line,
            _places(shape[:d], pads[:d], row_major_strides(tuple(padded[:d]))),
            tuple(
                at + pads[last][0] * inner[last - d - 1]
                for at in _places(shape[d + 1 : last], pads[d + 1 : last], inner[: last - d - 1])
            ),
            plane,
            prod(padded[:d]) * fours * plane * self.group,
            self.fill,
        )
        groups = np.arange(-(-y.extent // self.group), dtype=np.int32) * np.int32(plane * self.group)
        return _Copy(copied, start, by, groups)


@dataclass(frozen=True)
class _Copy:
    """An interleaved copy, in which elements are at *start* plus steps of iterators, and four steps at *groups*."""

    made: LineCopy
    start: int
    by: Mapping[Iterator, int]
    groups: Array


def _places(shape: Sequence[int], pads: Sequence[tuple[int, int]], strides: Sequence[int]) -> tuple[int, ...]:
    """The places of the elements of a tensor in one with padding and *strides*."""
    total = np.zeros(1, np.int64)
    for n, (before, _), stride in zip(shape, pads, strides, strict=True):
        total = (total[:, None] + (np.arange(n) + before) * stride).reshape(-1)
    return tuple(map(int, total))


def offsets(by: Mapping[Iterator, int], iterators: Iterable[Iterator]) -> Array:
    """The offset of each point of *iterators*, in the order of writing."""
    total = np.zeros(1, np.int32)
    for x in iterators:
        total = (total[:, None] + np.arange(x.extent, dtype=np.int32) * np.int32(by.get(x, 0))).reshape(-1)
    return total


def _flips(rows: bool, columns: bool, packed_rows: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """The flipped bit and the number that it adds, of rows and of columns, which are signed or not.

    It is that whose other one is constant, if there is one: the sums of this are known.
    """
    if rows != columns:
        return (0, 0), (0, 0)
    flip = (128, 128 if rows else -128)
    return ((0, 0), flip) if packed_rows else (flip, (0, 0))


def integer_product(
    scope: Scope, constants: Iterable[str], views: Mapping[str, Scope], threads: int = 1
) -> PackedProduct | None:
    """Return the kernel of *scope*, sums of products of bytes and what is computed of them; None if there is none.

    Operands in *constants* never change; those in *views* are views of other tensors.
    """
    found = split_epilogue(scope)
    if found is None:
        return None
    core, epilogue = _without_units(*found)
    product = match_integer_product(core)
    return None if product is None else packed_product(scope, product, epilogue, constants, views, threads)


def packed_product(
    scope: Scope,
    product: TensorContraction,
    epilogue: Scalar,
    constants: Iterable[str],
    views: Mapping[str, Scope],
    threads: int,
) -> PackedProduct | None:
    """Return the kernel of *scope*: the sums *product* and their *epilogue*, see ``integer_product``."""
    reads = [read_operand(access, views) for access in (product.left, product.right)]
    sides = list(zip(reads, (product.m, product.n), strict=True))
    orders = (sides, sides[::-1])
    try:
        made = [_oriented(product, scope, epilogue, set(constants), views, threads, *order) for order in orders]
    except Refused:  # the epilogue reads outside of a tensor
        return None
    return min(filter(None, made), key=lambda m: m.work, default=None)


def _without_units(core: Scope, epilogue: Scalar) -> tuple[Scope, Scalar]:
    """*core* and its *epilogue* without traversals of one value."""
    ones = {x: as_index(x.lo) for x in core.traversals if x.extent == 1}
    kept = tuple(x for x in core.traversals if x not in ones) or core.traversals[-1:]
    at = {x: i for x, i in ones.items() if x not in kept}
    rest = replace(core, traversals=kept, body=substitute(core.body, at), padding=())
    return rest, substitute(epilogue, at)


def _oriented(
    product: TensorContraction,
    scope: Scope,
    epilogue: Scalar,
    constants: set[str],
    views: Mapping[str, Scope],
    threads: int,
    first: tuple[OperandRead | None, tuple[Iterator, ...]],
    second: tuple[OperandRead | None, tuple[Iterator, ...]],
) -> PackedProduct | None:
    """The kernel with rows of the *first* operand; None if an operand is not read so, or too large.

    Columns that change have packed results.
    """
    (a, ms), (b, ns) = first, second
    if a is None or b is None:
        return None
    known = constants & {a.layout.source, b.layout.source} if a.layout.source != b.layout.source else set[str]()
    core = product.scope
    places = dict(zip(core.traversals, row_major_strides(core.shape), strict=True))
    outer_rows, rows = merge_strides(ms, (places,))
    outer_columns, columns = merge_strides(ns, (places,))
    by_row, by_column = (places[group[-1]] if group else 1 for group in (rows, columns))
    batch = (*product.batch, *outer_rows, *outer_columns)
    # Columns of results that are apart are transposed, in registers if they are bytes.
    is_transposed = b.layout.source in known and a.group == 4
    if (by_column != 1 and not is_transposed) or prod(x.extent for x in batch) > MAX_PRODUCTS:
        return None
    found = _row_steps(
        a,
        product.k,
        a.layout.source in known,
        b.layout.source in known,
        a.dtype == b.dtype,
    )
    if found is None:
        return None
    mode, order, together, copy = found
    steps = a.steps(order, together)
    if copy is not None:
        steps = (offsets(copy.by, order[:-1])[:, None] + copy.groups).reshape(-1)
    elif mode == RowMode.IN_PLACE:
        steps = np.ascontiguousarray(steps[:: a.group])
    left = a.operand(rows, steps, batch, order, copy)
    right = b.operand(columns, b.steps(order, together), batch, order)
    if max(prod(left.shape), prod(right.shape), prod(right.padded_shape), prod(scope.shape)) > MAX_BYTES:
        return None
    at = (sum(n * places[x] for n, x in zip(point, batch, strict=True)) for point in points(batch))
    kind = "int32" if a.group == 4 else FLOAT32
    fixed = frozenset(constants)
    finish = ProductEpilogue(replace(core, summations=()), epilogue, batch, rows, columns, views, kind, fixed)
    finish.check()
    made = PackedProduct(
        scope,
        left,
        right,
        frozenset(known),
        tuple(at),
        by_row,
        by_column,
        mode,
        finish,
        copy.made if copy else None,
        threads,
    )
    is_zero = left.value == 0 and made.row_flip == 0
    return replace(made, spans=a.spans(rows, order, together)) if left.pads and is_zero else made


def _row_steps(
    rows: OperandRead, k: tuple[Iterator, ...], is_packed: bool, are_columns_packed: bool, flips: bool
) -> tuple[RowMode, tuple[Iterator, ...], int, _Copy | None] | None:
    """How *rows* are read, the order of the summations *k*, how many steps are padded together, and the copy."""
    plain = (k, prod(y.extent for y in k), None)
    if is_packed:
        return RowMode.PACKED, *plain
    is_whole = are_columns_packed or len(k) == 1
    last = k if is_whole and rows.group == 4 else ()  # panels of columns that change have the order of k
    orders = {y: (*(x for x in k if x != y), y) for y in last}
    if not flips and (grouped := next(filter(rows.is_grouped, last), None)) is not None:
        return RowMode.IN_PLACE, orders[grouped], grouped.extent, None
    copies = [(y, copy) for y in last for copy in rows.copies(y)]
    if copies:
        y, copy = min(copies, key=lambda found: -(-found[0].extent // rows.group) / found[0].extent)
        return RowMode.INTERLEAVED, orders[y], y.extent, copy
    return None if rows.pads else (RowMode.GATHERED, *plain)


def points(iterators: Sequence[Iterator]) -> Iterable[tuple[int, ...]]:
    """Yield the points of *iterators*, counted from 0."""
    return cartesian(*(range(x.extent) for x in iterators))


def read_operand(access: Access, views: Mapping[str, Scope]) -> OperandRead | None:
    """*access* as a read of a packed tensor, perhaps with padding; None for a view that is none of one tensor."""
    source = access.source
    assert isinstance(source, Tensor)
    pads = tuple(
        (max(0, lo - i.bounds[0]), max(0, i.bounds[1] + 1 - hi))
        for i, (lo, hi) in zip(access.index, source.box, strict=True)
    )
    kept = pads if any(map(any, pads)) else ()
    if source.name not in views:
        return OperandRead(access, _Layout(source.name, source.shape, row_major_strides(source.shape)), kept)
    shown = prepare(views[source.name])
    found = view_strides(shown)
    if found is None or not isinstance(shown.body, Access) or not isinstance(shown.body.source, Tensor):
        return None
    viewed = shown.body.source
    if found == (0, row_major_strides(source.shape)) and prod(viewed.shape) == prod(source.shape):
        return OperandRead(access, _Layout(viewed.name, source.shape, found[1]), kept)
    return None if kept else OperandRead(access, _Layout(viewed.name, viewed.shape, found[1], found[0]), ())
