"""Epilogues of products that a kernel computes block by block: what is computed of the sums, as a function in C.

The sums of a block are in memory, [row, column]; results are written where a kernel wants them.  A row and a column are
mixed-radix numbers of traversals, and so is the number of a matrix among several.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.analysis.indices import fresh_name, is_inside_box, substitute
from einnet_explore.codegen.fusion.operations import typed_program
from einnet_explore.codegen.language.dialects import C
from einnet_explore.codegen.language.lowering import flat_index, flat_read, lower_scalar, mixed_radix_split, tensor_name
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.rounding import RoundedSum, evaluate, rounded_sum
from einnet_explore.codegen.language.statements import (
    If,
    Kernel,
    Statement,
    Store,
    counted_loop,
    replace_expressions,
    walk_expression,
)
from einnet_explore.codegen.language.values import F32, I64, Array, Cast, Expr, Load, Var, cast, type_of
from einnet_explore.codegen.preparation import prepare
from einnet_explore.codegen.sum_of_products import SUM_RESULT
from einnet_explore.ir import (
    ELEMENT_TYPES,
    Access,
    Equation,
    Index,
    IndexLike,
    Iterator,
    Program,
    Scalar,
    Scope,
    Table,
    Tensor,
    accesses,
    as_index,
    element_type,
    map_accesses,
    map_tensors,
    tensors,
)
from einnet_explore.support.errors import Refused

EPILOGUE = "epilogue"
"""The function in C that ``finish`` calls; several kernels of one library need other names for it."""


@dataclass(frozen=True)
class ProductEpilogue:
    """The value *body* of the sums of *sum_type*, which it reads as ``SUM_RESULT``, at each point of *scope*.

    *matrices*, *rows* and *columns* are the traversals that number these.  *views* are scopes of tensors.
    """

    scope: Scope
    body: Scalar
    matrices: tuple[Iterator, ...]
    rows: tuple[Iterator, ...]
    columns: tuple[Iterator, ...]
    views: Mapping[str, Scope]
    sum_type: str = "int32"
    known: frozenset[str] = frozenset()
    """The tensors that never change."""

    @property
    def is_identity(self) -> bool:
        """Whether results are the sums."""
        return self.body == SUM_RESULT[()]

    def check(self) -> None:
        """Raise Refused if it reads something that is no element of a tensor."""
        for access in accesses(self._flat.body):
            if not isinstance(access.source, Tensor) or not is_inside_box(access.index, access.source.box):
                raise Refused(f"the epilogue reads {access!r}, expected an element of a tensor")

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The tensors that it reads, in the order of the function's arguments."""
        return tuple(t.name for t in self._operands)

    @cached_property
    def aligned(self) -> tuple[str, ...]:
        """The inputs of bytes that are only read at the place of the result."""
        at = {x: i for axis, group in self._axes.items() for x, i in _digits(axis, group).items()}
        here = flat_index((as_index(at[x]) for x in self.scope.traversals), self.scope.shape)
        places: dict[str, set[Index]] = {}
        for access in accesses(self._flat.body):
            places.setdefault(tensor_name(access.source), set()).add(flat_index(access.index, access.source.shape))
        return tuple(t.name for t in self._operands if places[t.name] == {here} and ELEMENT_TYPES[t.dtype].bits == 8)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Their shapes."""
        return tuple(t.shape for t in self._operands)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Their element types."""
        return tuple(t.dtype for t in self._operands)

    @property
    def _operands(self) -> tuple[Tensor, ...]:
        found = {t.name: t for t in tensors(self._flat)}
        return tuple(t for name, t in found.items() if name != self._sums)

    @cached_property
    def _sums(self) -> str:
        return fresh_name("S", {t.name for t in tensors(replace(self.scope, body=self.body))} | set(self.views))

    @cached_property
    def _axes(self) -> Mapping[Iterator, tuple[Iterator, ...]]:
        """The numbers of a matrix, a row and a column, and the traversals that are their digits."""
        groups = (self.matrices, self.rows, self.columns)
        return {Iterator(f"axis{n}", 0, prod(x.extent for x in g)): g for n, g in enumerate(groups)}

    @cached_property
    def _flat(self) -> Scope:
        """The epilogue over (matrix, row, column)."""
        axes = tuple(self._axes)
        at = {x: i for axis, group in self._axes.items() for x, i in _digits(axis, group).items()}
        sums = Tensor(self._sums, tuple(x.extent for x in axes), dtype=self.sum_type)
        body = map_accesses(self.body, lambda a: sums[axes] if a.source == SUM_RESULT else a)
        viewed = map_tensors(replace(self.scope, body=body, padding=()), lambda t: self.views.get(t.name, t))
        return Scope(axes, (), substitute(prepare(viewed).body, at))

    @cached_property
    def single_constants(self) -> tuple[int, ...]:
        """The shape of what ``constants`` returns; empty if all is computed as it is written."""
        return () if self._rounded is None else (4, prod(x.extent for x in self.columns))

    def constants(self, arrays: Mapping[str, np.ndarray[Any, Any]], width: int) -> npt.NDArray[np.float32]:
        """Return the constants with which a rounded sum is computed in ``float32``, as [4, column].

        They are 0 in panels of *width* columns in which it is computed in ``float64``.
        """
        assert self._rounded is not None
        shape = self.single_constants
        at: dict[Expr, np.ndarray[Any, Any]] = {_LEFT: np.zeros(1, np.int64), _COLUMN: np.arange(shape[1])}
        values = {
            load: np.broadcast_to(arrays[load.array.name].reshape(-1)[evaluate(load.index, at)], shape[1])
            for load in self._rounded.loads
        }
        made = np.array(np.broadcast_to(self._rounded.constants(values), shape))
        for left in range(0, shape[1], width):
            made[:, left : left + width] *= made[1, left : left + width].all()
        return made

    @cached_property
    def _rounded(self) -> RoundedSum | None:
        return None if self.is_identity else self._rounded_sum(self._value(1, ())[0])

    def _rounded_sum(self, value: Expr) -> RoundedSum | None:
        """A sum that is rounded in *value*, and computed in ``float32`` where its constants allow that."""

        def is_constant(e: Expr) -> bool:
            parts = list(walk_expression(e))
            loaded = {part.array.name for part in parts if isinstance(part, Load)}
            return loaded <= self.known and {p for p in parts if isinstance(p, Var)} <= {_LEFT, _COLUMN}

        found = (rounded_sum(part, is_constant) for part in walk_expression(value) if isinstance(part, Cast))
        return next(filter(None, found), None)

    def _value(self, width: int, aligned: Collection[str]) -> tuple[Expr, Sequence[Array]]:
        """The value of a result, and the arrays that it is computed of, see ``text``; the sums are the first one."""
        flat = self._flat
        operands = self._operands
        result = self._result
        whole = Program(tuple(dict.fromkeys(tensors(flat))), (Equation(result, flat),), (result,))
        typed = typed_program(whole)
        made = {e.name: e.scope for e in typed.program.equations}
        arrays = {t.name: Array(t.name, type_of(t.dtype), prod(t.shape), const=True) for t in operands}
        sums = Array(self._sums, type_of(self.sum_type), width, const=True)
        point = dict(zip(flat.traversals, (_MATRIX, _FIRST + _ROW, _LEFT + _COLUMN), strict=True))

        def value(scope: Scope, name: str, at: Mapping[Iterator, Expr]) -> Expr:
            kind = typed.types[name].computed if name in typed.types else F32

            def read(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
                assert isinstance(source, Tensor)
                is_block = source.name in aligned
                return cast(kind, arrays[source.name][_ROW * width + _COLUMN if is_block else where[0]])

            def known(access: Access) -> Access:
                source = access.source
                return flat_read(access) if isinstance(source, Tensor) and source.name in arrays else access

            def load(source: Tensor | Table | Scope, where: tuple[Expr, ...]) -> Expr:
                assert isinstance(source, Tensor)
                if source.name == self._sums:
                    return cast(kind, sums[_ROW * width + _COLUMN])
                if source.name in made:
                    inner = made[source.name]
                    return cast(kind, value(inner, source.name, dict(zip(inner.traversals, where, strict=True))))
                return read(source, where)

            return lower_scalar(map_accesses(scope.body, known), at, load, kind, I64)

        kind = type_of(element_type(flat))
        return cast(kind, value(made[result], result, point)), (sums, *arrays.values())

    @cached_property
    def _result(self) -> str:
        return fresh_name("Y", {t.name for t in tensors(self._flat)})

    def text(self, pitch: int, width: int, aligned: Collection[str] = ()) -> str:
        """Return the function ``finish``: rows of sums are *width* elements apart, rows of results *pitch*.

        Of *aligned* inputs it takes blocks like that of the sums, and ``constants`` after all inputs.  Raises Refused
        where it has no kernel in C.
        """
        if self.is_identity:
            return _COPY.format(width=width, pitch=pitch)
        value, (sums, *arrays) = self._value(width, aligned)
        rows, columns = Var("rows", I64), Var("columns", I64)
        out = Array(self._result, value.type, max(pitch, width))

        def results(what: Expr) -> Statement:
            store = Store(out, _ROW * pitch + _COLUMN, what)
            return counted_loop(_ROW, rows, counted_loop(_COLUMN, columns, store, hint="simd"))

        body = results(value)
        if (found := self._rounded_sum(value)) is not None:
            number, size = self.single_constants
            constants = Array(
                fresh_name("single", {a.name for a in (out, sums, *arrays)}), F32, number * size, const=True
            )
            offset, high, low, rest = (constants[_LEFT + _COLUMN + n * size] for n in range(number))
            in_single = found.in_single((offset, high, low, rest))
            quick = replace_expressions(value, lambda e: in_single if e == found.whole else None)
            body = If(constants[_LEFT + size].ne(0.0), (results(quick),), (body,))
            arrays = [*arrays, constants]
        params: tuple[Array | Var, ...] = (out, sums, *arrays, _MATRIX, _FIRST, rows, _LEFT, columns)
        kernel = Kernel(EPILOGUE, params, (body,))
        given = ", ".join(f"(const {C.spell(a.kind)} *)more[{n}]" for n, a in enumerate(arrays))
        name = entry_name(kernel)
        call = f"{name}(out, sums, {given + ', ' if given else ''}n, i, rows, j, columns, 1, 1, 1, 1);"
        return f"{emit(kernel, 'c')}\n{_HEAD}{{\n    {call}\n}}"


_MATRIX, _FIRST, _LEFT, _ROW, _COLUMN = (Var(name, I64) for name in ("n", "i", "j", "row", "column"))

_HEAD = """static void finish(const Sum *sums, Result *out, void **more, int n, int i, int rows, int j, int columns)
"""
_COPY = (
    _HEAD.replace("{", "{{")
    + """{{
    (void)more, (void)n, (void)i, (void)j;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) out[(long long)r * {pitch} + c] = sums[r * {width} + c];
}}"""
)


def _digits(number: Iterator, group: Sequence[Iterator]) -> dict[Iterator, IndexLike]:
    """The iterators of *group* as digits of *number*."""
    return {x: digit + x.lo for x, digit in mixed_radix_split(group, as_index(number)).items()}
