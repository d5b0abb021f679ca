r"""Sums of products of bfloat16 in float32, as kernels in C: on AVX512-BF16 where the processor has it.

Its instruction adds two products to each sum.  Factors that are rounded to bfloat16 are rounded when they are packed,
constant ones once.  Each product of two is exact in float32.  The instruction takes numbers below :math:`2^{-126}` for
0.  Functions of a sum are applied to each block of results.  Convolutions are products as in ``integer_products``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from math import prod

import numpy as np

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.analysis.indices import is_inside_box
from einnet_explore.analysis.products import (
    TensorContraction,
    match_matrix_product,
    match_window_product,
)
from einnet_explore.codegen.language.dialects import C, ExpressionPrinter, IdentifierTable
from einnet_explore.codegen.language.lowering import flat_read, lower_scalar, tensor_name
from einnet_explore.codegen.language.values import F32, I64, Expr, Var
from einnet_explore.codegen.language.values import Array as KernelArray
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
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.c_kernels import VECTOR_MATH_DECLARATIONS
from einnet_explore.runtime.integer_products import (
    MAX_PRODUCTS,
    MIN_SHARED_PRODUCTS,
    CompiledText,
    ProductOperand,
    points,
    read_operand,
)
from einnet_explore.runtime.matrix_products import merge_strides

_COLUMNS, _GROUP = 32, 2
"""Columns of a panel, and neighbouring factors of a sum, as in the text in C."""

_ELEMENTS = {"bfloat16": "uint16_t", "float32": "float"}
"""The element types of operands, and their types in C."""

MAX_ELEMENTS = (1 << 31) - 1
"""Elements of an operand: places are 32-bit numbers."""


@dataclass(frozen=True)
class Bfloat16Product:
    """A *scope* that sums products of bfloat16 of two tensors, and the *epilogue* on that (``SumOfProducts``).

    The sum, *product*, has no iterators of one value.
    """

    scope: Scope
    product: TensorContraction
    epilogue: Scalar = SUM_RESULT[()]


def match_bfloat16_product(scope: Scope) -> Bfloat16Product | None:
    """Return *scope* as a sum that this module computes; None if it is none.

    It sums products of factors in bfloat16 in ``float32``, which may be rounded to it; scalar functions of the sum, of
    other tensors and of the traversals may follow.
    """
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
    return None if product is None else Bfloat16Product(scope, product, epilogue)


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
class Bfloat16Kernel(CompiledText):
    """A kernel for sums of products: *rows* times *columns*, of which those in *packed* never change.

    The results of product `n`, row `i` and column `j` are at ``places[n] + i by_row + j``.  *epilogue* is applied to
    them, and reads *traversals*, of which a step to the next column moves those *along*.
    """

    scope: Scope
    rows: ProductOperand
    columns: ProductOperand
    packed: frozenset[str]
    places: tuple[int, ...]
    by_row: int
    epilogue: Scalar = SUM_RESULT[()]
    traversals: tuple[Iterator, ...] = ()
    along: tuple[Iterator, ...] = ()
    threads: int = 1
    compiler = "C"

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors that it reads."""
        return (self.rows.tensor, self.columns.tensor, *(t.name for t in self.sides))

    @cached_property
    def sides(self) -> tuple[Tensor, ...]:
        """The tensors that the epilogue reads."""
        reads = (a.source for a in accesses(self.epilogue) if a.source != SUM_RESULT)
        return tuple({t.name: t for t in reads if isinstance(t, Tensor)}.values())

    def arguments(self, constants: Arrays) -> Sequence[tuple[str, Array | None]]:
        """Return the arguments before the result: tensors (None), and arrays that are made of them or say places."""
        made: list[tuple[str, Array | None]] = []
        for operand in (self.rows, self.columns):
            name = operand.tensor
            if name in self.packed:
                made += [(name, self._pack(operand, constants[name]))]
            else:
                made += [(name, None), (name, operand.outer), (name, operand.steps)]
        return [*made, *((t.name, None) for t in self.sides)]

    def _pack(self, operand: ProductOperand, array: Array) -> Array:
        """The elements of a constant *operand* in the layout of the kernel."""
        given = operand.matrices(array)
        count, size, steps = given.shape
        size = size if operand is self.rows else -(-size // _COLUMNS) * _COLUMNS
        full = np.zeros((count, size, -(-steps // _GROUP) * _GROUP), given.dtype)
        full[:, : given.shape[1], :steps] = given
        if operand is self.columns:
            by_group = full.reshape(count, size // _COLUMNS, _COLUMNS, -1, _GROUP)
            full = np.ascontiguousarray(by_group.transpose(0, 1, 3, 2, 4))
        return full.reshape(-1)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arguments, the result last."""
        given: list[tuple[int, ...]] = []
        padded = -(-len(self.rows.steps) // _GROUP) * _GROUP
        for operand in (self.rows, self.columns):
            size = len(operand.outer)
            if operand.tensor in self.packed:
                size = size if operand is self.rows else -(-size // _COLUMNS) * _COLUMNS
                given.append((len(operand.starts) * size * padded,))
            else:
                given += [operand.shape, operand.outer.shape, operand.steps.shape]
        return (*given, *(t.shape for t in self.sides), self.scope.shape)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The element types of the arguments."""
        given: list[str] = []
        for operand in (self.rows, self.columns):
            if operand.tensor in self.packed:
                given.append("uint16")
            else:
                given += [operand.stored, "int32", "int32"]
        return (*given, *(t.dtype for t in self.sides), "float32")

    @property
    def shared(self) -> bool:
        """Whether several threads run the kernel."""
        products = len(self.places) * len(self.rows.outer) * len(self.columns.outer) * len(self.rows.steps)
        return self.threads > 1 and products >= MIN_SHARED_PRODUCTS

    @cached_property
    def text(self) -> str:
        """The C source."""
        columns = self.columns
        is_padded = bool(columns.pads) and columns.tensor not in self.packed
        shape = columns.padded_shape
        numbers: dict[str, int | str] = {
            "ROW_ELEMENT": _ELEMENTS[self.rows.dtype],
            "COLUMN_ELEMENT": _ELEMENTS[columns.dtype],
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
            "ROW_STEPS_PACKED": int((np.diff(self.rows.steps) == 1).all()),
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
            numbers |= {"PAD_VALUE": columns.value}
            befores = [before for before, _ in columns.pads]
            tables |= {"SIZES": columns.shape, "BEFORE": befores, "PADDED_STRIDES": row_major_strides(shape)}
        source = files("einnet_explore.runtime").joinpath("bfloat16_products.c").read_text(encoding="utf-8")
        defined = (f"#define {name} {value}" for name, value in numbers.items())
        held = (f"static const long long {name}[] = {{{', '.join(map(str, t))}}};" for name, t in tables.items())
        return "\n".join((VECTOR_MATH_DECLARATIONS, *defined, *held, *self._finish_text(), source))

    def _finish_text(self) -> Iterable[str]:
        """The function that applies the epilogue to neighbouring results of a row."""
        words = {f":{name}": name for name in ("y", "c", "all", "at", "sides", "place", "columns")}
        printer = ExpressionPrinter(C, IdentifierTable(words))
        index = {x: Var(f"{x.name} index", I64) for x in self.traversals}
        memory = {t.name: KernelArray(f"{t.name} side", F32, prod(t.shape)) for t in self.sides}
        total = KernelArray(":y", F32, _COLUMNS)[Var(":c", I64)]

        def read(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
            return memory[tensor_name(source)][where[0]] if where else total

        flat = map_accesses(self.epilogue, lambda a: a if a.source == SUM_RESULT else flat_read(a))
        value = printer.expr(lower_scalar(flat, index, read, F32, I64))
        yield from printer.helpers.values()
        yield "static void finish(float *restrict all, void *const *sides, long long place, int columns)\n{"
        yield "    float *restrict y = all + place;\n    (void)sides, (void)y, (void)columns;"
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
        yield f"    for (int c = 0; c < columns; c++) {{ {' '.join(varying)} y[c] = {value}; }}"
        yield "}"


def bfloat16_kernel(
    found: Bfloat16Product, constants: Iterable[str], views: Mapping[str, Scope], threads: int = 1
) -> Bfloat16Kernel | None:
    """Return the kernel of *found*; None if its results are not packed along columns, or an operand is too large.

    Operands in *constants* never change; those in *views* are views of other tensors.
    """
    product, scope = found.product, found.product.scope
    reads = [read_operand(access, views) for access in (product.left, product.right)]
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
    at = (sum(n * places[x] for n, x in zip(point, batch, strict=True)) for point in points(batch))
    a = first.operand(rows, first.places(product.k), batch, product.k)
    b = second.operand(columns, second.places(product.k), batch, product.k)
    if max(prod(a.shape), prod(b.shape), prod(b.padded_shape), prod(scope.shape)) > MAX_ELEMENTS:
        return None
    packed = frozenset({a.tensor, b.tensor} & set(constants)) if a.tensor != b.tensor else frozenset[str]()
    by_row = places[rows[-1]] if rows else 1
    own = () if found.epilogue == SUM_RESULT[()] else scope.traversals
    return Bfloat16Kernel(found.scope, a, b, packed, tuple(at), by_row, found.epilogue, own, columns, threads)
