"""Traced arrays: operators and functions of NumPy record the equations of a program, with NumPy's result types.

Types follow NumPy 2 (NEP 50): Python numbers take the type of the arrays that they meet.  Integers wrap around, as in
NumPy.  Values of 16 bits are computed in ``float32``; results, and arrays that are converted to them, are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from einnet_explore.analysis.flattening import row_major_strides
from einnet_explore.codegen.fusion.operations import TypedProgram, ValueType, arithmetic_type
from einnet_explore.codegen.language.values import type_of
from einnet_explore.ir import (
    Access,
    Apply,
    Const,
    Equation,
    Iterator,
    Program,
    Scalar,
    Scope,
    Tensor,
    add,
    as_index,
    mul,
    walk_scalar,
)
from einnet_explore.ir.scalar_functions import REAL_FUNCTIONS
from einnet_explore.runtime.arrays import Array
from einnet_explore.support.errors import Refused

Axes: TypeAlias = "int | tuple[int, ...] | None"

ArrayType: TypeAlias = "np.dtype | type[int] | type[float]"
"""The type of an array, or of a Python number, which takes the type of what it meets."""

_SHORT_FLOATS = (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16))

ARRAY_TYPES = (*(np.dtype(n) for n in ("bool", "int32", "int64", "float32", "float64")), *_SHORT_FLOATS)
"""The types of arrays."""

_BOOL, _INT64 = np.dtype("bool"), np.dtype("int64")


def _is_floating(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype in _SHORT_FLOATS


def value_type(dtype: np.dtype, computed: np.dtype | None = None) -> ValueType:
    """Return the types of an array of *dtype* whose arithmetic is of *computed* (by default its own)."""
    return ValueType(arithmetic_type((computed or dtype).name), type_of(dtype.name))


def _apply(op: str) -> Callable[..., Scalar]:
    return lambda *args: Apply(op, args)


def _not(a: Scalar) -> Scalar:
    return Apply("-", (Const(1), a))


def _not_equal(a: Scalar, b: Scalar) -> Scalar:
    return _not(Apply("equal", (a, b)))


def _power(a: Scalar, b: Scalar) -> Scalar:
    return Apply("*", (a, a)) if b == Const(2) else Apply("pow", (a, b))


def _is_finite(a: Scalar) -> Scalar:
    return Apply("equal", (Apply("-", (a, a)), Const(0)))  # ∞ - ∞ is no number


def _sign(a: Scalar) -> Scalar:
    negative = Apply("select", (Apply("less", (a, Const(0))), Const(-1), a))
    return Apply("select", (Apply("less", (Const(0), a)), Const(1), negative))


_UFUNCS: Mapping[object, Callable[..., Scalar]] = {
    np.add: _apply("+"),
    np.subtract: _apply("-"),
    np.multiply: _apply("*"),
    np.divide: _apply("/"),
    np.power: _power,
    np.negative: _apply("neg"),
    np.positive: lambda a: a,
    np.square: lambda a: Apply("*", (a, a)),
    np.reciprocal: lambda a: Apply("/", (Const(1), a)),
    np.absolute: _apply("abs"),
    np.fabs: _apply("abs"),
    np.sign: _sign,
    np.exp: _apply("exp"),
    np.exp2: lambda a: Apply("pow", (Const(2), a)),
    np.log: _apply("log"),
    np.sqrt: _apply("sqrt"),
    np.tanh: _apply("tanh"),
    np.maximum: _apply("maximum"),
    np.minimum: _apply("minimum"),
    np.less: _apply("less"),
    np.less_equal: _apply("less_equal"),
    np.greater: lambda a, b: Apply("less", (b, a)),
    np.greater_equal: lambda a, b: Apply("less_equal", (b, a)),
    np.equal: _apply("equal"),
    np.not_equal: _not_equal,
    np.isnan: lambda a: _not_equal(a, a),
    np.isfinite: _is_finite,
    np.isinf: lambda a: Apply("-", (Apply("equal", (a, a)), _is_finite(a))),
}
"""Functions of numbers."""

_TRUTH_UFUNCS: Mapping[object, Callable[..., Scalar]] = {
    np.add: _apply("maximum"),
    np.multiply: _apply("minimum"),
    np.logical_and: _apply("minimum"),
    np.bitwise_and: _apply("minimum"),
    np.logical_or: _apply("maximum"),
    np.bitwise_or: _apply("maximum"),
    np.logical_xor: _not_equal,
    np.bitwise_xor: _not_equal,
    np.logical_not: _not,
    np.invert: _not,
}
"""Functions of truth values, which are 0 or 1, where they differ from those of numbers."""

_LOGICAL_UFUNCS = (np.logical_and, np.logical_or, np.logical_xor, np.logical_not)
"""Functions of whether their arguments are not 0."""

_NUMBER_ARITHMETIC = (np.add, np.subtract, np.multiply, np.divide, np.power, np.negative, np.positive, np.absolute)
"""Functions whose value at Python numbers is a Python number."""


class Trace:
    """The equations of one call, in order, and the types of all values.

    *inputs* maps names to shapes, types, and the types of the elements in memory.  Without *reduces*, reductions are
    refused.
    """

    def __init__(self, inputs: Mapping[str, tuple[tuple[int, ...], ArrayType, np.dtype]], reduces: bool = True) -> None:
        self.reduces = reduces
        self.equations: list[Equation] = []
        self.types = {name: value_type(stored) for name, (_, _, stored) in inputs.items()}
        self.positions: dict[int, Tensor] = {}
        self._made: dict[tuple[Scope, ValueType], str] = {}
        self.tensors = {name: Tensor(name, shape) for name, (shape, _, _) in inputs.items()}
        self.arguments = tuple(
            TracedArray(self, self.tensors[name], kind, is_argument=True) for name, (_, kind, _) in inputs.items()
        )

    def program(self, results: Iterable[object]) -> TypedProgram:
        """Return the program of *results*, named ``out_0``, ``out_1``, …"""
        outputs = [self._elementwise(lambda a: a, (v,), output=f"out_{n}") for n, v in enumerate(results)]
        inputs = (*self.tensors.values(), *self.positions.values())
        program = Program(inputs, tuple(self.equations), tuple(v.tensor.name for v in outputs))
        tables: Mapping[str, Array] = {t.name: np.arange(n, dtype=_INT64) for n, t in self.positions.items()}
        return TypedProgram(program, self.types, tables)

    def record(
        self,
        axes: tuple[Iterator, ...],
        over: tuple[Iterator, ...],
        body: Scalar,
        by: str,
        kind: ValueType,
        output: str = "",
    ) -> Tensor:
        """Record an equation and return its result; a value that is there already is not computed again."""
        if not output and kind.stored.dtype in _SHORT_FLOATS:
            kind = ValueType(kind.computed, kind.computed)  # no value is rounded between
        if over and not self.reduces:
            raise Refused(f"a {by} over several positions is not element-wise: use ee.fuse")
        scope = Scope(axes, over, body, by)
        name = output or self._made.setdefault((scope, kind), f"value_{len(self.equations)}")
        if name not in self.types:
            self.equations.append(Equation(name, scope))
            self.types[name] = kind
        return Tensor(name, scope.shape)

    def call(self, ufunc: np.ufunc, values: tuple[object, ...]) -> TracedArray:
        """Return the values of *ufunc*, broadcast as in NumPy; raises Refused for other ufuncs and types."""
        if ufunc is np.power and type_of_operand(values[0]) == _BOOL and isinstance(values[1], int) and values[1] == 2:
            return self.call(np.square, values[:1])  # as NumPy does, whose type is another
        found = ufunc.resolve_dtypes((*map(type_of_operand, values), None))
        if ufunc in _LOGICAL_UFUNCS:
            found = (_BOOL,) * len(found)
        loop, result = found[0], found[-1]
        if set(found[:-1]) != {loop} or not {loop, result} <= set(ARRAY_TYPES):
            made = ", ".join(map(str, found[:-1]))
            raise Refused(f"np.{ufunc.__name__} of {made} makes {result}: it has no kernel")
        function = (_TRUTH_UFUNCS.get(ufunc) if loop == _BOOL else None) or _UFUNCS.get(ufunc)
        if function is None:
            raise Refused(f"np.{ufunc.__name__} of {loop} has no kernel")
        if loop == _BOOL:
            values = tuple(map(self.truth, values))
        if ufunc is np.power and loop.kind == "i":
            function, values = _whole_power(values)
        kind: ArrayType = result
        if ufunc in _NUMBER_ARITHMETIC and not any(isinstance(type_of_operand(v), np.dtype) for v in values):
            kind = _number_type(loop)
        return self._elementwise(function, values, loop, kind)

    def convert(self, value: object, dtype: np.dtype) -> TracedArray:
        """Return *value* as *dtype*; fractions are truncated."""
        if dtype == _BOOL:
            return self._elementwise(lambda a: a, (self.truth(value),))
        if dtype in _SHORT_FLOATS:
            return self._elementwise(_apply(dtype.name), (value,), np.dtype("float32"), dtype)
        return self._elementwise(lambda a: a, (value,), dtype)

    def truth(self, value: object) -> object:
        """Return whether *value* is not 0."""
        if not isinstance(value, TracedArray):
            return bool(value)
        return value if value.kind == _BOOL else self.call(np.not_equal, (value, 0))

    def where(self, condition: object, yes: object, no: object) -> TracedArray:
        """Return *yes* where *condition* holds, else *no*."""
        dtype = np.result_type(*(_representative(v) for v in (yes, no)))
        return self._elementwise(_apply("select"), (self.truth(condition), yes, no), dtype)

    def first_position(self, array: TracedArray, best: str, axes: tuple[int, ...], keepdims: bool) -> TracedArray:
        """Return the first position of the extremum over *axes*, counted in memory order; a NaN is the extremum."""
        extremum = array.reduce(best, axes, True)

        def is_found(a: Scalar, b: Scalar) -> Scalar:
            return Apply("maximum", (Apply("equal", (a, b)), _not_equal(a, a)))

        found = self._elementwise(is_found, (array, extremum), _loop_type(array.kind), _BOOL)
        every = _iterators(array.shape)
        strides = row_major_strides(tuple(array.shape[a] for a in axes))
        place = add(*(mul(Const(k), self._position(every[a])) for a, k in zip(axes, strides, strict=True)))
        body = Apply("select", (found.read(every), place, Const(prod(array.shape[a] for a in axes))))
        places = self.record(_without(every, array.ones), (), body, "sum", value_type(_INT64))
        return TracedArray(self, places, _INT64, array.ones).reduce("min", axes, keepdims)

    def _position(self, along: Iterator) -> Scalar:
        if along.extent == 1:
            return Const(0)
        name = f"positions_{along.extent}"
        self.types[name] = value_type(_INT64)
        return self.positions.setdefault(along.extent, Tensor(name, (along.extent,)))[(along,)]

    def _elementwise(
        self,
        function: Callable[..., Scalar],
        values: Iterable[object],
        loop: np.dtype | None = None,
        result: ArrayType | None = None,
        output: str = "",
    ) -> TracedArray:
        """Return *function* of *values*, computed in *loop* (by default their type), as *result* or *loop*."""
        given = tuple(values)
        dtype = loop or np.result_type(*(_representative(v) for v in given))
        kind = result or dtype
        operands = [self._operand(v, dtype) for v in given]
        shapes = [v.shape for v in operands if isinstance(v, TracedArray)]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise Refused(f"shapes {', '.join(map(str, shapes))} do not broadcast") from None
        axes = _iterators(shape)
        body = function(*(v.read(axes[len(axes) - v.ndim :]) if isinstance(v, TracedArray) else v for v in operands))
        if dtype.kind in "ib" and (
            real := [part.op for part in walk_scalar(body) if isinstance(part, Apply) and part.op in REAL_FUNCTIONS]
        ):
            raise Refused(f"{real[0]} of {dtype} has no kernel")
        arrays = [v for v in operands if isinstance(v, TracedArray)]
        ones = () if output else _common_ones(arrays, len(shape))
        tensor = self.record(_without(axes, ones), (), body, "sum", value_type(_loop_type(kind), dtype), output)
        return TracedArray(self, tensor, kind, ones)

    def _operand(self, value: object, dtype: np.dtype) -> TracedArray | Const:
        match value:
            case TracedArray() if value.trace is self:
                if (
                    value.kind is int
                    and dtype.kind == "i"
                    and self.types[value.tensor.name].stored.size > dtype.itemsize
                ):
                    raise Refused(f"a Python integer that is too large for {dtype}")
                return value
            case np.generic() | int() | float():
                return _constant(value, dtype)
        raise Refused(f"{type(value).__name__} is not traced: pass it as a positional argument")


def type_of_operand(value: object) -> ArrayType:
    """Return the type of an operand of a ufunc; raises Refused for what is not traced."""
    match value:
        case TracedArray():
            return value.kind
        case np.generic():
            return value.dtype
        case bool():
            return _BOOL
        case int() | float():
            return int if isinstance(value, int) else float
    raise Refused(f"{type(value).__name__} is not traced: pass it as a positional argument")


def _representative(value: object) -> np.dtype | float:
    """Return a type, or a Python number, that NumPy promotes like *value*."""
    kind = type_of_operand(value)
    return kind if isinstance(kind, np.dtype) else kind()


def _loop_type(kind: ArrayType) -> np.dtype:
    return kind if isinstance(kind, np.dtype) else np.dtype(kind)


def _number_type(dtype: np.dtype) -> ArrayType:
    """Return the Python type of arithmetic of Python numbers alone; raises Refused for integers, which have no size."""
    if dtype.kind == "i":
        raise Refused("arithmetic of Python integers alone: pass one as a keyword argument (a constant) or as np.int64")
    return float


def _constant(value: np.generic | float, dtype: np.dtype) -> Const:
    """Return *value* as a constant of *dtype*; raises Refused if it is no number of that type."""
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, bool | int | float):
        raise Refused(f"{value!r} is no number of type {dtype}")
    if dtype.kind == "i" and isinstance(number, int):
        limits = np.iinfo(dtype)
        if not limits.min <= number <= limits.max:
            raise Refused(f"Python integer {number} out of bounds for {dtype}")
        if float(number) != number:
            raise Refused(f"the integer {number} has too many digits for a constant: pass it as an argument")
    return Const(float(number))


def _whole_power(values: tuple[object, ...]) -> tuple[Callable[..., Scalar], tuple[object, ...]]:
    """Return a power of integers as products, which wrap as NumPy's; raises Refused unless the exponent is known."""
    base, exponent = values
    if isinstance(exponent, TracedArray) or not isinstance(exponent, int | np.integer) or not 0 <= exponent <= 64:
        raise Refused("a power of integers needs a constant exponent from 0 to 64")
    count = int(exponent)
    return lambda a: mul(*[a] * count) if count else Const(1), (base,)


class TracedArray(NDArrayOperatorsMixin):
    """An array of a function that is being traced: operators, ufuncs and reductions record equations.

    *kind* is its type, ``int`` or ``float`` for Python numbers.  Operators in place (``x += 1``, ``out=x``) change
    values that the function has made; those of an argument (*is_argument*) would change the caller's array: Refused.
    The axes *ones* have size 1 and are no dimensions of the tensor: reductions that keep them make values of loops.
    """

    def __init__(
        self, trace: Trace, tensor: Tensor, kind: ArrayType, ones: tuple[int, ...] = (), is_argument: bool = False
    ) -> None:
        self.trace, self.tensor, self.kind, self.ones, self.is_argument = trace, tensor, kind, ones, is_argument

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        sizes = list(self.tensor.shape)
        for axis in self.ones:
            sizes.insert(axis, 1)
        return tuple(sizes)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def dtype(self) -> np.dtype:
        """The element type."""
        return _loop_type(self.kind)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *values: object, **options: object) -> TracedArray:
        """The ufunc's values; raises Refused for other ufuncs, methods and options."""
        if method != "__call__" or ufunc not in {*_UFUNCS, *_TRUTH_UFUNCS}:
            raise Refused(f"np.{ufunc.__name__}{'' if method == '__call__' else '.' + method} has no kernel")
        out = options.pop("out", None)
        if options:
            raise Refused(f"np.{ufunc.__name__} with {', '.join(options)}")
        made = self.trace.call(ufunc, values)
        match out:
            case None:
                return made
            case (TracedArray() as target,):
                return target._assign(made, ufunc.__name__)
        raise Refused(f"np.{ufunc.__name__} into an array that is no value of this function")

    def _assign(self, made: TracedArray, by: str) -> TracedArray:
        if not isinstance(self.kind, np.dtype):  # Python numbers do not change
            return made
        if self.is_argument:
            raise Refused(f"np.{by} changes an argument in place: return the value, and pass out= to the call")
        if made.shape != self.shape:
            raise Refused(f"np.{by} makes shape {made.shape}, in place of {self.shape}")
        if not np.can_cast(made.dtype, self.kind, "same_kind"):
            raise Refused(f"np.{by} makes {made.dtype}, which is not cast to {self.kind} in place")
        same = made if made.kind == self.kind else self.trace.convert(made, self.kind)
        self.tensor, self.ones = same.tensor, same.ones
        return self

    def __array_function__(
        self, function: Callable[..., object], _: object, values: tuple[object, ...], options: dict[str, object]
    ) -> object:
        """The function's values; raises Refused for functions without a kernel."""
        name = {"amax": "max", "amin": "min"}.get(function.__name__, function.__name__)
        if name == "where" and len(values) == 3 and not options:
            return self.trace.where(*values)
        if name not in _METHODS or not values or values[0] is not self:
            raise Refused(f"np.{function.__name__} has no kernel")
        return getattr(self, name)(*values[1:], **options)

    def __array__(self, *_: object, **__: object) -> Array:
        """Raise Refused: values are not known while a function is traced."""
        raise Refused("the values of an array are not known here")

    def __bool__(self) -> bool:
        """Raise Refused: values are not known while a function is traced."""
        raise Refused("a condition on values: they are not known here; np.where chooses by values")

    def astype(self, dtype: npt.DTypeLike) -> TracedArray:
        """Elements as *dtype*; fractions are truncated."""
        wanted = np.dtype(dtype)
        if wanted not in ARRAY_TYPES:
            raise Refused(f"{wanted}: expected one of {', '.join(map(str, ARRAY_TYPES))}")
        return self.trace.convert(self, wanted)

    def clip(self, a_min: object = None, a_max: object = None) -> TracedArray:
        """Elements between *a_min* and *a_max*."""
        made = self
        for ufunc, limit in ((np.maximum, a_min), (np.minimum, a_max)):
            made = made if limit is None else self.trace.call(ufunc, (made, limit))
        return made

    def sum(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Sums over *axis*; those of integers and truth values are int64."""
        return self.reduce("sum", self._axes(axis), keepdims, _sum_type(self.dtype))

    def prod(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Products over *axis*; those of integers and truth values are int64."""
        return self.reduce("prod", self._axes(axis), keepdims, _sum_type(self.dtype))

    def max(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Maxima over *axis*."""
        return self.reduce("max", self._axes(axis), keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Minima over *axis*."""
        return self.reduce("min", self._axes(axis), keepdims)

    def any(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Whether an element over *axis* is not 0."""
        return self._truth().max(axis, keepdims)

    def all(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Whether no element over *axis* is 0."""
        return self._truth().min(axis, keepdims)

    def count_nonzero(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """The number of elements over *axis* that are not 0."""
        return self._truth().sum(axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> TracedArray:
        """The first position of the maximum along *axis*, or in memory order."""
        return self.trace.first_position(self, "max", self._axes(axis), keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> TracedArray:
        """The first position of the minimum along *axis*, or in memory order."""
        return self.trace.first_position(self, "min", self._axes(axis), keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Means over *axis*; those of integers and truth values are float64."""
        gone = self._axes(axis)
        dtype = self.dtype if _is_floating(self.dtype) else np.dtype("float64")
        total = self.reduce("sum", gone, keepdims, dtype)
        return self.trace.call(np.divide, (total, prod(self.shape[a] for a in gone)))

    def var(self, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> TracedArray:
        """Variances over *axis*, in two passes as NumPy."""
        count = prod(self.shape[a] for a in self._axes(axis)) - ddof
        if count <= 0:
            raise Refused(f"a variance of {count + ddof} elements with ddof={ddof}")
        distance = self.trace.call(np.subtract, (self, self.mean(axis, True)))
        squares = self.trace.call(np.square, (distance,))
        return self.trace.call(np.divide, (squares.sum(axis, keepdims), count))

    def std(self, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> TracedArray:
        """Standard deviations over *axis*."""
        return self.trace.call(np.sqrt, (self.var(axis, ddof, keepdims),))

    def reduce(self, by: str, axes: tuple[int, ...], keepdims: bool, dtype: np.dtype | None = None) -> TracedArray:
        """Reduce over *axes* by a monoid, in *dtype* (by default its own)."""
        kind = dtype or self.dtype
        every = _iterators(self.shape)
        over = tuple(every[a] for a in axes if a not in self.ones)
        kept = tuple(i for a, i in enumerate(every) if a not in axes and a not in self.ones)
        made = self.trace.record(kept, over, self.read(every), by if over else "sum", value_type(kind))
        left = [a for a in range(self.ndim) if keepdims or a not in axes]
        ones = tuple(n for n, a in enumerate(left) if a in axes or a in self.ones)
        return TracedArray(self.trace, made, kind, ones)

    def read(self, axes: tuple[Iterator, ...]) -> Access:
        """Return a read at *axes*; a dimension of size 1 has one element for all."""
        along = zip(self.tensor.shape, _without(axes, self.ones), strict=True)
        return Access(self.tensor, tuple(as_index(0 if n == 1 else i) for n, i in along))

    def _truth(self) -> TracedArray:
        made = self.trace.truth(self)
        assert isinstance(made, TracedArray)
        return made

    def _axes(self, axis: Axes) -> tuple[int, ...]:
        wanted = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        if wrong := [a for a in wanted if not -self.ndim <= a < self.ndim]:
            raise Refused(f"axis {wrong[0]} of an array with {self.ndim} axes")
        found = tuple(a % self.ndim for a in wanted)
        if len(set(found)) < len(found):
            raise Refused(f"axes {found}: one is there twice")
        return found


_METHODS = (
    "sum", "prod", "max", "min", "any", "all", "count_nonzero", "argmax", "argmin", "mean", "var", "std", "clip",
)  # fmt: skip
"""Functions of NumPy that are methods here."""


def _sum_type(dtype: np.dtype) -> np.dtype:
    return dtype if _is_floating(dtype) else _INT64


def _iterators(shape: tuple[int, ...]) -> tuple[Iterator, ...]:
    return tuple(Iterator(f"i{n}", 0, size) for n, size in enumerate(shape))


def _without(axes: tuple[Iterator, ...], ones: tuple[int, ...]) -> tuple[Iterator, ...]:
    return tuple(x for a, x in enumerate(axes) if a not in ones)


def _common_ones(arrays: list[TracedArray], rank: int) -> tuple[int, ...]:
    """Return the axes of a broadcast of *arrays* that are dimensions of none of their tensors, of one at least."""
    own = [{a + rank - v.ndim for a in range(v.ndim) if a not in v.ones} for v in arrays]
    found = {a + rank - v.ndim for v in arrays for a in v.ones}
    return tuple(sorted(found - set().union(*own)))
