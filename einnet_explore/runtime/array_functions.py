"""Python functions over NumPy arrays as one kernel each: a call with traced arrays records a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import update_wrapper
from math import prod
from traceback import extract_tb
from typing import TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from einnet_explore.ir import Access, Apply, Const, Equation, Index, Iterator, Program, Scalar, Scope, Tensor, as_index
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.fused import FusedProgram
from einnet_explore.support.errors import Refused

Axes: TypeAlias = "int | tuple[int, ...] | None"

_UFUNCS: Mapping[object, Callable[..., Scalar]] = {
    np.add: lambda a, b: Apply("+", (a, b)),
    np.subtract: lambda a, b: Apply("-", (a, b)),
    np.multiply: lambda a, b: Apply("*", (a, b)),
    np.divide: lambda a, b: Apply("/", (a, b)),
    np.power: lambda a, b: Apply("*", (a, a)) if b == Const(2) else Apply("pow", (a, b)),
    np.negative: lambda a: Apply("neg", (a,)),
    np.positive: lambda a: a,
    np.square: lambda a: Apply("*", (a, a)),
    np.reciprocal: lambda a: Apply("/", (Const(1), a)),
    np.absolute: lambda a: Apply("abs", (a,)),
    np.exp: lambda a: Apply("exp", (a,)),
    np.log: lambda a: Apply("log", (a,)),
    np.sqrt: lambda a: Apply("sqrt", (a,)),
    np.maximum: lambda a, b: Apply("maximum", (a, b)),
    np.minimum: lambda a, b: Apply("minimum", (a, b)),
    np.tanh: lambda a: Apply("tanh", (a,)),
}


class _Trace:
    """The equations of one call, in order."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.equations: list[Equation] = []

    def record(
        self, name: str, axes: tuple[Iterator, ...], over: tuple[Iterator, ...], body: Scalar, by: str
    ) -> Tensor:
        self.equations.append(Equation(name, Scope(axes, over, body, by)))
        return Tensor(name, tuple(i.extent for i in axes))

    def elementwise(self, name: str, function: Callable[..., Scalar], values: Iterable[object]) -> TracedArray:
        """The values of *function*, broadcast as in NumPy."""
        operands = [self._operand(v) for v in values]
        shapes = [v.shape for v in operands if isinstance(v, Tensor)]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise Refused(f"shapes {', '.join(map(str, shapes))} do not broadcast") from None
        axes = _iterators(shape)
        body = function(*(_read(v, axes[len(axes) - len(v.shape) :]) if isinstance(v, Tensor) else v for v in operands))
        return TracedArray(self, self.record(name, axes, (), body, "sum"))

    def apply(self, ufunc: np.ufunc, *values: object) -> TracedArray:
        return self.elementwise(self.fresh(), _UFUNCS[ufunc], values)

    def fresh(self) -> str:
        return f"value_{len(self.equations)}"

    def _operand(self, value: object) -> Tensor | Const:
        match value:
            case TracedArray() if value.trace is self:
                return value.tensor
            case np.generic() if np.result_type(value, self.dtype) != self.dtype:
                raise Refused(f"{value!r} with {self.dtype} arrays makes {np.result_type(value, self.dtype)} values")
            case np.integer() | np.floating() | int() | float():
                return Const(float(value))
        raise Refused(f"{type(value).__name__} is not traced: pass it as a positional argument")


class TracedArray(NDArrayOperatorsMixin):
    """An array of a function that is being traced: operators, ufuncs and reductions record equations."""

    def __init__(self, trace: _Trace, tensor: Tensor) -> None:
        self.trace, self.tensor = trace, tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self.tensor.shape

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
        return self.trace.dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *values: object, **options: object) -> TracedArray:
        """The ufunc's values; raises Refused for other ufuncs, methods and options."""
        if "out" in options:
            raise Refused(f"np.{ufunc.__name__} in place, expected a new name for the result")
        if method != "__call__" or ufunc not in _UFUNCS:
            raise Refused(f"np.{ufunc.__name__}{'' if method == '__call__' else '.' + method} has no kernel")
        if options:
            raise Refused(f"np.{ufunc.__name__} with {', '.join(options)}")
        return self.trace.apply(ufunc, *values)

    def __array_function__(
        self, function: Callable[..., object], _: object, values: tuple[object, ...], options: dict[str, object]
    ) -> object:
        """The reduction's values; raises Refused for other functions."""
        name = {"amax": "max", "amin": "min"}.get(function.__name__, function.__name__)
        if name not in _REDUCTIONS or values[:1] != (self,):
            raise Refused(f"np.{function.__name__} has no kernel")
        return getattr(self, name)(*values[1:], **options)

    def __array__(self, *_: object, **__: object) -> Array:
        """Raise Refused: values are not known while a function is traced."""
        raise Refused("the values of an array are not known here")

    def __bool__(self) -> bool:
        """Raise Refused: values are not known while a function is traced."""
        raise Refused("a condition on values: they are not known here")

    def sum(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Sums over *axis*."""
        return self._reduce("sum", axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Maxima over *axis*."""
        return self._reduce("max", axis, keepdims)

    def min(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Minima over *axis*."""
        return self._reduce("min", axis, keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Products over *axis*."""
        return self._reduce("prod", axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> TracedArray:
        """Means over *axis*."""
        count = prod(self.shape[a] for a in self._axes(axis))
        return self.trace.apply(np.divide, self.sum(axis, keepdims), count)

    def var(self, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> TracedArray:
        """Variances over *axis*, in two passes as NumPy."""
        count = prod(self.shape[a] for a in self._axes(axis)) - ddof
        if count <= 0:
            raise Refused(f"a variance of {count + ddof} elements with ddof={ddof}")
        distance = self.trace.apply(np.subtract, self, self.mean(axis, True))
        squares = self.trace.apply(np.square, distance)
        return self.trace.apply(np.divide, squares.sum(axis, keepdims), count)

    def std(self, axis: Axes = None, ddof: int = 0, keepdims: bool = False) -> TracedArray:
        """Standard deviations over *axis*."""
        return self.trace.apply(np.sqrt, self.var(axis, ddof, keepdims))

    def _axes(self, axis: Axes) -> tuple[int, ...]:
        wanted = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        if wrong := [a for a in wanted if not -self.ndim <= a < self.ndim]:
            raise Refused(f"axis {wrong[0]} of an array with {self.ndim} axes")
        found = tuple(a % self.ndim for a in wanted)
        if len(set(found)) < len(found):
            raise Refused(f"axes {found}: one is there twice")
        return found

    def _reduce(self, by: str, axis: Axes, keepdims: bool) -> TracedArray:
        gone = self._axes(axis)
        every = _iterators(self.shape)
        over = tuple(every[a] for a in gone)
        ones = tuple(Iterator(f"o{a}", 0, 1) if a in gone else i for a, i in enumerate(every))
        axes = ones if keepdims else tuple(i for i in every if i not in over)
        return TracedArray(self.trace, self.trace.record(self.trace.fresh(), axes, over, _read(self.tensor, every), by))


_REDUCTIONS = ("sum", "max", "min", "prod", "mean", "var", "std")


def _iterators(shape: tuple[int, ...]) -> tuple[Iterator, ...]:
    return tuple(Iterator(f"i{n}", 0, size) for n, size in enumerate(shape))


def _read(tensor: Tensor, axes: tuple[Iterator, ...]) -> Access:
    """Read *tensor* at *axes*; an axis of size 1 has one element for all."""
    index: tuple[Index, ...] = tuple(as_index(0 if n == 1 else i) for n, i in zip(tensor.shape, axes, strict=True))
    return Access(tensor, index)


class FusedFunction:
    """A Python function over arrays that runs as one kernel; see ``fuse``."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function = function
        self._programs: dict[object, FusedProgram] = {}
        update_wrapper(self, function)

    def program(self, *shapes: tuple[int, ...], dtype: str = "float32", **options: object) -> Program:
        """The program that the function is for arrays of *shapes*; raises Refused with the line."""
        return self._trace(tuple(zip(self._names(len(shapes)), shapes, strict=True)), np.dtype(dtype), options)

    def __call__(
        self, *values: object, out: Array | tuple[Array, ...] | None = None, **options: object
    ) -> Array | tuple[Array, ...]:
        """The function's results, in new arrays or in *out*; see ``fuse``."""
        if wrong := [name for name, v in options.items() if not isinstance(v, Hashable)]:
            raise Refused(f"{wrong[0]} is a {type(options[wrong[0]]).__name__}: a keyword argument is a constant")
        names = self._names(len(values))
        dtype = next((v.dtype for v in values if isinstance(v, np.ndarray)), np.dtype("float64"))
        arrays = {
            n: np.asarray(v, dtype) if isinstance(v, int | float) and not isinstance(v, np.generic) else np.asarray(v)
            for n, v in zip(names, values, strict=True)
        }
        key = (dtype, tuple(sorted(options.items())))
        if key not in self._programs:
            self._programs[key] = FusedProgram(lambda s: self._trace(tuple(s.items()), dtype, options), dtype)
        kernel = self._programs[key]
        if out is None:
            made = kernel(arrays)
        else:
            given = out if isinstance(out, tuple) else (out,)
            made = {f"out_{n}": a for n, a in enumerate(given)}
            kernel.bind(arrays, made)()
        results = tuple(made[f"out_{n}"] for n in range(len(made)))
        return results[0] if len(results) == 1 else results

    def _names(self, count: int) -> tuple[str, ...]:
        known = list(inspect.signature(self.function).parameters)
        return tuple(f"in_{known[n] if n < len(known) else n}" for n in range(count))

    def _trace(
        self, shapes: tuple[tuple[str, tuple[int, ...]], ...], dtype: np.dtype, options: Mapping[str, object]
    ) -> Program:
        if empty := [name for name, shape in shapes if 0 in shape]:
            raise Refused(f"{empty[0]} has no elements")
        trace = _Trace(dtype)
        inputs = tuple(Tensor(name, tuple(shape)) for name, shape in shapes)
        try:
            found = self.function(*(TracedArray(trace, t) for t in inputs), **options)
            results = found if isinstance(found, tuple) else (found,)
            outputs = [trace.elementwise(f"out_{n}", lambda a: a, (v,)) for n, v in enumerate(results)]
        except (Refused, TypeError, AttributeError) as error:
            raise Refused(f"{self._place(error)}: {error}") from error
        return Program(inputs, tuple(trace.equations), tuple(v.tensor.name for v in outputs))

    def _place(self, error: Exception) -> str:
        """The last line of the user's file that led to *error*."""
        code = getattr(self.function, "__code__", None)
        if code is None:  # a built-in function or a ufunc
            return f"{getattr(self.function, '__name__', 'the function')}, which has no Python source"
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename == code.co_filename]
        return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"


def fuse(function: Callable[..., object]) -> FusedFunction:
    """Make *function* over NumPy arrays one kernel on this CPU (a decorator).

    Positional arguments are arrays of one type, float32 or float64, of any strides, and numbers; keyword arguments are
    constants, for example axes.  The function uses operators, the ufuncs of arithmetic, ``exp``, ``log``, ``sqrt``,
    ``tanh``, and ``sum``, ``prod``, ``max``, ``min``, ``mean``, ``var``, ``std`` with *axis* and *keepdims*.  It
    returns an array or a tuple of arrays.  A kernel is made for each type and layout, and used again.  ``out=`` takes
    arrays for the results.  Raises Refused, with the line, for what has no kernel; BackendError for types that differ
    and for results that overlap an argument.

    >>> @fuse
    ... def softmax(x):
    ...     e = np.exp(x - x.max(axis=-1, keepdims=True))
    ...     return e / e.sum(axis=-1, keepdims=True)
    >>> softmax(np.zeros((2, 4)))[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    return FusedFunction(function)
