r"""Sums of products of narrow elements in 32 bits, as kernels in C: of bytes in integers, of bfloat16 in float32.

The instructions of AVX512-VNNI and AVX512-BF16 add four or two products to each sum.  Factors that are rounded to
bfloat16 are rounded when they are packed, constant ones once.  Each product of two is exact in float32.  The
instruction takes numbers below :math:`2^{-126}` for 0.  Functions of a sum are applied to each block of results.

VNNI multiplies unsigned by signed bytes.  Of two operands that are both one or the other, one is packed with
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
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from itertools import product as cartesian
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np

from einnet_explore.analysis.flattening import row_major_strides, view_strides
from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.analysis.products import (
    TensorContraction,
    match_matrix_product,
    match_window_product,
    multiplies_bytes,
)
from einnet_explore.codegen.language.dialects import C, ExpressionPrinter, IdentifierTable
from einnet_explore.codegen.language.lowering import flat_read, lower_scalar, tensor_name
from einnet_explore.codegen.language.values import F32, I64, Expr, Var
from einnet_explore.codegen.language.values import Array as KernelArray
from einnet_explore.codegen.preparation import prepare
from einnet_explore.codegen.sum_of_products import SUM_RESULT, normalize_ranges, split_epilogue
from einnet_explore.ir import (
    FLOAT32,
    Access,
    Apply,
    Iterator,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    element_type,
    factors,
    map_accesses,
    mul,
)
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.c_kernels import EOPERATOR_FLAGS, NATIVE, VECTOR_MATH_DECLARATIONS
from einnet_explore.runtime.matrix_products import merge_strides

_COLUMNS = 32
"""Columns of a panel, as in the text in C."""

_ELEMENTS = {"int8": "uint8_t", "uint8": "uint8_t", "bfloat16": "uint16_t", "float32": "float"}
"""The element types of operands, and their types in C."""

MAX_PRODUCTS = 1 << 12
"""Matrices of one kernel; their places are numbers in its text."""

MAX_ELEMENTS = (1 << 31) - 1
"""Elements of an operand: places are 32-bit numbers."""

MIN_SHARED_PRODUCTS = 1 << 18
"""Products of two elements from which on several threads share a kernel."""


@dataclass(frozen=True)
class NarrowProduct:
    """A *scope* that sums products of narrow elements of two tensors, and the *epilogue* on that (``SumOfProducts``).

    The sum, *product*, has no iterators of one value.
    """

    scope: Scope
    product: TensorContraction
    epilogue: Scalar = SUM_RESULT[()]


def match_narrow_product(scope: Scope) -> NarrowProduct | None:
    """Return *scope* as a sum that this module computes; None if it is none.

    It sums products of bytes in ``int32``, or products of factors in bfloat16 in ``float32``, which may be rounded to
    it; scalar functions of the sum, of other tensors and of the traversals may follow.
    """
    if multiplies_bytes(scope):
        product = match_matrix_product(scope) or match_window_product(scope)
        return None if product is None else NarrowProduct(scope, product)
    found = split_epilogue(scope)
    if found is None:
        return None
    core, epilogue = normalize_ranges(*found)
    if element_type(scope) != FLOAT32 or not all(map(_is_side, accesses(epilogue))):
        return None
    reads = tuple(map(_bfloat16_read, factors(core.body)))
    if len(reads) != 2 or any(a is None or a.source.value != 0 for a in reads):
        return None
    plain = replace(core, body=mul(*filter(None, reads)))
    product = match_matrix_product(plain) or match_window_product(plain)
    return None if product is None else NarrowProduct(scope, product, epilogue)


def _is_side(access: Access) -> bool:
    """Whether *access*, of an epilogue, reads the sum, or elements of a tensor of ``float32``."""
    source = access.source
    return isinstance(source, Tensor) and source.dtype == FLOAT32 and is_inside_box(access.index, source.box)


def _bfloat16_read(factor: Scalar) -> Access | None:
    """The read of a tensor whose elements are those of *factor*, perhaps rounded to bfloat16; else None."""
    match factor:
        case Apply("bfloat16", (Access(Tensor(dtype="float32")) as read,)) | (Access(Tensor(dtype="bfloat16")) as read):
            return read
    return None


@dataclass(frozen=True)
class PackedOperand:
    """Elements of a tensor: those of row or column `i` and step `s` are at ``start + outer[i] + steps[s]``.

    *starts* are those of distinct matrices, and *numbers* say which one each product takes.  Where a read is outside of
    the tensor, *pads* are elements before and after each dimension, of *value*, and places are those of a padded copy.
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
        """The NumPy type of its elements as the kernel takes them: bytes are unsigned, bfloat16 is its bits."""
        return {"int8": "uint8", "bfloat16": "uint16"}.get(self.dtype, self.dtype)

    @property
    def has_packed_steps(self) -> bool:
        """Whether the elements of a sum are next to one another."""
        return bool((np.diff(self.steps) == 1).all())

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
        """All matrices of *array*, as [matrix, row or column, step], in ``uint8``, or ``uint16`` for bfloat16."""
        held = array.reshape(self.shape)
        held = np.pad(held, self.pads, constant_values=self.value) if self.pads else held
        held = held.astype(ml_dtypes.bfloat16) if self.dtype == FLOAT32 else held
        places = np.asarray(self.starts)[:, None, None] + self.outer[:, None] + self.steps
        flat: Array = np.ascontiguousarray(held).view(f"uint{8 * held.itemsize}").reshape(-1)
        found: Array = flat[places]
        return found


@dataclass(frozen=True)
class PackedProduct:
    """A kernel for sums of products: *rows* times *columns*, of which those in *packed* never change.

    The results of product `n`, row `i` and column `j` are at ``places[n] + i by_row + j``.  *epilogue* is applied to
    them, and reads *traversals*, of which a step to the next column moves those *along*.
    """

    scope: Scope
    rows: PackedOperand
    columns: PackedOperand
    packed: frozenset[str]
    places: tuple[int, ...]
    by_row: int
    epilogue: Scalar = SUM_RESULT[()]
    traversals: tuple[Iterator, ...] = ()
    along: tuple[Iterator, ...] = ()
    threads: int = 1
    compiler = "C"

    @property
    def engine(self) -> str:
        """The engine's name: ``integers`` or ``bfloat16``."""
        return "bfloat16" if self.has_floats else "integers"

    @property
    def has_floats(self) -> bool:
        """Whether it multiplies numbers of bfloat16; else bytes."""
        return self.rows.stored != "uint8"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return (self.rows.tensor, self.columns.tensor, *(t.name for t in self.sides))

    @cached_property
    def sides(self) -> tuple[Tensor, ...]:
        """The tensors that the epilogue reads."""
        reads = (a.source for a in accesses(self.epilogue) if a.source != SUM_RESULT)
        return tuple({t.name: t for t in reads if isinstance(t, Tensor)}.values())

    @property
    def _group(self) -> int:
        """Neighbouring factors of a sum, as in the text in C."""
        return 2 if self.has_floats else 4

    def arguments(self, constants: Arrays) -> Sequence[tuple[str, Array | None]]:
        """Return the arguments before the result: tensors (None), and arrays that are made of them or say places."""
        made: list[tuple[str, Array | None]] = []
        for operand in (self.rows, self.columns):
            name = operand.tensor
            if name in self.packed:
                made += [(name, array) for array in self._pack(operand, constants[name])]
            else:
                made += [(name, None), (name, operand.outer), (name, operand.steps)]
        return [*made, *((t.name, None) for t in self.sides)]

    def _pack(self, operand: PackedOperand, array: Array) -> Iterable[Array]:
        """The elements of a constant *operand* in the layout of the kernel, and the sums of integers."""
        flip, _ = self._flips[operand is self.columns]
        given = operand.matrices(array)
        given ^= given.dtype.type(flip)
        count, size, steps = given.shape
        size = size if operand is self.rows else -(-size // _COLUMNS) * _COLUMNS
        full = np.zeros((count, size, -(-steps // self._group) * self._group), given.dtype)
        full[:, : given.shape[1], :steps] = given
        packed = full
        if operand is self.columns:
            by_group = full.reshape(count, size // _COLUMNS, _COLUMNS, -1, self._group)
            packed = np.ascontiguousarray(by_group.transpose(0, 1, 3, 2, 4))
        yield packed.reshape(-1)
        if not self.has_floats:
            signed = np.int8 if (operand is self.rows) == self._unsigned_columns else np.uint8
            yield full.view(signed).sum(axis=2, dtype=np.int32).reshape(-1)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arguments, the result last."""
        given: list[tuple[int, ...]] = []
        padded = -(-len(self.rows.steps) // self._group) * self._group
        for operand in (self.rows, self.columns):
            size = len(operand.outer)
            if operand.tensor in self.packed:
                size = size if operand is self.rows else -(-size // _COLUMNS) * _COLUMNS
                total = len(operand.starts) * size
                given += [(total * padded,), (total,)][: 1 if self.has_floats else 2]
            else:
                given += [operand.shape, operand.outer.shape, operand.steps.shape]
        return (*given, *(t.shape for t in self.sides), self.scope.shape)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types of the arguments."""
        given: list[str] = []
        for operand in (self.rows, self.columns):
            if operand.tensor in self.packed:
                given += ["uint16"] if self.has_floats else ["uint8", "int32"]
            else:
                given += [operand.stored, "int32", "int32"]
        result = "float32" if self.has_floats else "int32"
        return (*given, *(t.dtype for t in self.sides), result)

    @cached_property
    def _flips(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The flipped bit and the number that it adds, of rows and of columns; at most one operand is flipped.

        It is that whose other one is constant, if there is one: the sums of this are known.
        """
        if self.has_floats or self.rows.is_signed != self.columns.is_signed:
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
        numbers: dict[str, int | str] = {
            "ROW_ELEMENT": _ELEMENTS[self.rows.dtype],
            "COLUMN_ELEMENT": _ELEMENTS[columns.dtype],
            "FLOATS": int(self.has_floats),
            "ROUNDED_ROWS": int(self.rows.dtype == FLOAT32),
            "ROUNDED_COLUMNS": int(columns.dtype == FLOAT32),
            "SIDES": -1 if self.epilogue == SUM_RESULT[()] else len(self.sides),
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
        source = files("einnet_explore.runtime").joinpath("packed_products.c").read_text(encoding="utf-8")
        defined = (f"#define {name} {value}" for name, value in numbers.items())
        held = (f"static const long long {name}[] = {{{', '.join(map(str, t))}}};" for name, t in tables.items())
        return "\n".join((VECTOR_MATH_DECLARATIONS, *defined, *held, *self._finish_text(), source))

    def _finish_text(self) -> Iterable[str]:
        """The function that applies the epilogue to neighbouring results of a row."""
        result = "float" if self.has_floats else "int"
        words = {f":{name}": name for name in ("y", "c", "all", "at", "sides", "place", "columns")}
        printer = ExpressionPrinter(C, IdentifierTable(words))
        index = {x: Var(f"{x.name} index", I64) for x in self.traversals}
        memory = {t.name: KernelArray(f"{t.name} side", F32, prod(t.shape)) for t in self.sides}
        total = KernelArray(":y", F32, _COLUMNS)[Var(":c", I64)]

        def read(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
            return memory[tensor_name(source)][where[0]] if where else total

        flat = map_accesses(self.epilogue, lambda a: a if a.source == SUM_RESULT else flat_read(a))
        value = printer.expr(lower_scalar(flat, index, read, F32, I64)) if self.has_floats else ""
        yield from printer.helpers.values()
        yield f"static void finish({result} *restrict all, void *const *sides, long long place, int columns)\n{{"
        yield f"    {result} *restrict y = all + place;\n    (void)sides, (void)y, (void)columns;"
        for n, t in enumerate(self.sides):
            yield f"    const float *restrict {printer.names.of(memory[t.name].name)} = sides[{n}];"
        varying = []
        moving = tuple(x for x in self.along if x.extent > 1)
        for x, stride in zip(self.traversals, row_major_strides(tuple(x.extent for x in self.traversals)), strict=True):
            name, inside = printer.names.of(index[x].name), x in moving
            place = f"place / {stride} % {x.extent}"
            if inside and len(moving) == 1:
                place += " + c"
            elif inside:
                place = f"(place + c) / {stride} % {x.extent}"
            line = f"const long long {name} = {place};"
            if inside:
                varying.append(line)
            else:
                yield f"    {line}"
        if value:
            yield f"    for (int c = 0; c < columns; c++) {{ {' '.join(varying)} y[c] = {value}; }}"
        yield "}"

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

    def operand(self, outer: Sequence[Iterator], steps: Sequence[Iterator], batch: Sequence[Iterator]) -> PackedOperand:
        """The operand whose rows or columns are the points of *outer*, in products that are those of *batch*."""
        firsts = [int(at) for at in self.start + self._offsets(batch)]
        starts = tuple(dict.fromkeys(firsts))
        source = self.access.source
        assert isinstance(source, Tensor)
        return PackedOperand(
            self.layout.source,
            self.layout.shape,
            source.dtype,
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


def packed_product(
    found: NarrowProduct, constants: Iterable[str], views: Mapping[str, Scope], threads: int = 1
) -> PackedProduct | None:
    """Return the kernel of *found*; None if its results are not packed along columns, or an operand is too large.

    Operands in *constants* never change; those in *views* are views of other tensors.
    """
    product, scope = found.product, found.product.scope
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
    if max(prod(a.shape), prod(b.shape), prod(b.padded_shape), prod(scope.shape)) > MAX_ELEMENTS:
        return None
    packed = frozenset({a.tensor, b.tensor} & set(constants)) if a.tensor != b.tensor else frozenset[str]()
    by_row = places[rows[-1]] if rows else 1
    own = () if found.epilogue == SUM_RESULT[()] else scope.traversals
    return PackedProduct(found.scope, a, b, packed, tuple(at), by_row, found.epilogue, own, columns, threads)


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
