"""Python functions over NumPy arrays as one kernel each: a call with traced arrays records a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import cached_property, update_wrapper
from traceback import extract_tb
from typing import overload

import numpy as np

from einnet_explore.codegen.elementwise import Functor, build_functor
from einnet_explore.codegen.fusion.operations import TypedProgram
from einnet_explore.codegen.language.values import BOOL
from einnet_explore.equivalence.program_diff import inline_equations
from einnet_explore.ir import Program
from einnet_explore.runtime.array_trace import ARRAY_TYPES, ArrayType, Trace
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.cuda.fused import FusedDeviceProgram
from einnet_explore.runtime.fused import FusedProgram, Shapes, check_outputs, overlap
from einnet_explore.support.errors import BackendError, Refused


class FusedFunction:
    """A Python function over arrays that runs as one kernel; see ``fuse``."""

    _reduces = True

    def __init__(self, function: Callable[..., object], threads: int = 1) -> None:
        if threads < 1:
            raise BackendError(f"threads={threads}, expected at least 1")
        self.function, self.threads = function, threads
        self._programs: dict[object, FusedProgram] = {}
        update_wrapper(self, function)

    def program(self, *shapes: tuple[int, ...], dtype: str | tuple[str, ...] = "float32", **options: object) -> Program:
        """The program that the function is for arrays of *shapes*; raises Refused with the line.

        *dtype* is one for all arrays or one for each.  ``argmax`` and ``argmin`` read inputs that hold 0, 1, 2, ….
        """
        names = self._names(len(shapes))
        kinds = [np.dtype(dtype)] * len(names) if isinstance(dtype, str) else list(map(np.dtype, dtype))
        if len(kinds) != len(names):
            raise Refused(f"{len(kinds)} types for {len(names)} arrays")
        types = {n: (k, k) for n, k in zip(names, kinds, strict=True)}
        return self._trace(dict(zip(names, shapes, strict=True)), types, options).program

    def __call__(
        self, *values: object, out: Array | tuple[Array, ...] | None = None, **options: object
    ) -> Array | tuple[Array, ...]:
        """The function's results, in new arrays or in *out*; see ``fuse``."""
        if wrong := [name for name, v in options.items() if not isinstance(v, Hashable)]:
            raise Refused(f"{wrong[0]} is a {type(options[wrong[0]]).__name__}: a keyword argument is a constant")
        names = self._names(len(values))
        typed = {n: _array(n, v) for n, v in zip(names, values, strict=True)}
        arrays = {n: a for n, (a, _) in typed.items()}
        types = {n: (kind, a.dtype) for n, (a, kind) in typed.items()}
        on_device = _are_on_device(arrays)
        key = (on_device, tuple(types.values()), tuple(sorted(options.items())))
        if key not in self._programs:
            kind = FusedDeviceProgram if on_device else FusedProgram
            self._programs[key] = kind(lambda s: self._trace(s, types, options), "float64", self.threads)
        kernel = self._programs[key]
        if out is None:
            made: Mapping[str, Array] = kernel(arrays)
        else:
            made = {f"out_{n}": a for n, a in enumerate(out if isinstance(out, tuple) else (out,))}
            _fill(kernel, arrays, made)
        results = tuple(made[f"out_{n}"] for n in range(len(made)))
        return results[0] if len(results) == 1 else results

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function).parameters)

    def _names(self, count: int) -> tuple[str, ...]:
        known = self._parameters
        return tuple(f"in_{known[n] if n < len(known) else n}" for n in range(count))

    def _trace(
        self, shapes: Shapes, types: Mapping[str, tuple[ArrayType, np.dtype]], options: Mapping[str, object]
    ) -> TypedProgram:
        if empty := [name for name, shape in shapes.items() if 0 in shape]:
            raise Refused(f"{empty[0]} has no elements")
        trace = Trace({name: (tuple(shape), *types[name]) for name, shape in shapes.items()}, self._reduces)
        try:
            found = self.function(*trace.arguments, **options)
            return trace.program(found if isinstance(found, tuple) else (found,))
        except (Refused, TypeError, AttributeError) as error:
            raise Refused(f"{self._place(error)}: {error}") from error

    def _place(self, error: Exception) -> str:
        """The last line of the user's file that led to *error*."""
        code = getattr(self.function, "__code__", None)
        if code is None:  # a built-in function or a ufunc
            return f"{getattr(self.function, '__name__', 'the function')}, which has no Python source"
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename == code.co_filename]
        return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"


class ElementwiseFunction(FusedFunction):
    """A Python function of the elements at one position; see ``elementwise``."""

    _reduces = False

    def functor(self, *dtypes: str, numbers: int = 0, **options: object) -> Functor:
        """The function as a functor, for kernels as OneFlow's: ``aligned_kernel(functor, length)``.

        *dtypes* are those of the arguments; the last *numbers* of them are single numbers.  Raises Refused for several
        results, and where NumPy computes a part in another type than the whole.
        """
        names = self._names(len(dtypes))
        kinds = {n: np.dtype(k) for n, k in zip(names, dtypes, strict=True)}
        shapes = {n: () if len(names) - k <= numbers else (2,) for k, n in enumerate(names)}
        made = self._trace(shapes, {n: (k, k) for n, k in kinds.items()}, options)
        if len(made.program.outputs) != 1:
            raise Refused(f"{len(made.program.outputs)} results: a functor has one")
        stored = {n: t.stored for n, t in made.types.items()}
        (output,) = made.program.outputs
        scope = inline_equations(made.program, ())[output]
        found = replace(build_functor(scope, output, kinds=stored), name=getattr(self.function, "__name__", "function"))
        for equation in made.program.equations:
            kind = made.types[equation.name]
            if kind.computed != found.computed and kind.stored != BOOL:
                raise Refused(
                    f"{equation.name} is computed in {kind.computed!r}, and the functor in {found.computed!r}"
                )
        return found

    def _trace(
        self, shapes: Shapes, types: Mapping[str, tuple[ArrayType, np.dtype]], options: Mapping[str, object]
    ) -> TypedProgram:
        given = dict.fromkeys(shape for shape in shapes.values() if shape)
        if len(given) > 1:
            raise Refused(f"arrays of shapes {', '.join(map(str, given))}: an element-wise function takes one shape")
        return super()._trace(shapes, types, options)


def _array(name: str, value: object) -> tuple[Array, ArrayType]:
    """Return *value* as an array, and its type; that of a Python number is ``int`` or ``float``."""
    if isinstance(value, int | float) and not isinstance(value, bool | np.generic):
        if isinstance(value, float):
            return np.asarray(value), float
        if not -(1 << 63) <= value < 1 << 63:
            raise Refused(f"{name} is {value}: expected an integer of at most 64 bits")
        return np.asarray(value, np.int32 if -(1 << 31) <= value < 1 << 31 else np.int64), int
    array: Array = value if _is_on_device(value) else np.asarray(value)  # type: ignore[assignment]
    if array.dtype not in ARRAY_TYPES:
        raise Refused(f"{name} is {array.dtype}: expected one of {', '.join(map(str, ARRAY_TYPES))}")
    return array, array.dtype


def _is_on_device(value: object) -> bool:
    return hasattr(value, "__cuda_array_interface__")


def _are_on_device(arrays: Mapping[str, Array]) -> bool:
    """Whether the arrays are CuPy's; raises BackendError if some are and others, which are no numbers, are not."""
    there = [name for name, a in arrays.items() if _is_on_device(a)]
    here = [name for name, a in arrays.items() if a.ndim and name not in there]
    if there and here:
        raise BackendError(f"{there[0]} is on a GPU and {here[0]} is not: expected all arrays in one memory")
    return bool(there)


def _fill(kernel: FusedProgram, arrays: Mapping[str, Array], outs: Mapping[str, Array]) -> None:
    """Write the results to *outs*; those that overlap an argument are computed apart first, as NumPy does."""
    check_outputs(outs)
    apart = {
        name: np.empty_like(out) if any(overlap(out, a) for a in arrays.values()) else out for name, out in outs.items()
    }
    kernel.bind(arrays, apart)()
    for name, out in outs.items():
        if apart[name] is not out:
            out[...] = apart[name]


@overload
def fuse(function: Callable[..., object], *, threads: int = 1) -> FusedFunction: ...
@overload
def fuse(*, threads: int = 1) -> Callable[[Callable[..., object]], FusedFunction]: ...
def fuse(
    function: Callable[..., object] | None = None, *, threads: int = 1
) -> FusedFunction | Callable[[Callable[..., object]], FusedFunction]:
    """Make *function* over NumPy arrays one kernel on this CPU, or over CuPy arrays one on their GPU (a decorator).

    Positional arguments are arrays of bool, int32, int64, float16, bfloat16 (of ``ml_dtypes``), float32 or float64, of
    any strides, and numbers; keyword arguments are constants, for example axes.  The function uses operators, ufuncs,
    ``where``, ``clip``, ``astype``, and reductions (``sum``, ``max``, ``mean``, ``var``, ``argmax``, ``any``, …) with
    *axis* and *keepdims*.  It returns an array or a tuple of arrays, of the types that NumPy gives.  Integers wrap
    around, as in NumPy; values of 16 bits are computed in ``float32``, and results rounded.  A kernel is made for each
    type and layout, and used again; *threads* share its work.  ``out=`` takes arrays for the results, which may overlap
    arguments but not one another.  Raises Refused, with the line, for what has no kernel; BackendError for results in
    *out* of other shapes or types.

    >>> @fuse
    ... def softmax(x):
    ...     e = np.exp(x - x.max(axis=-1, keepdims=True))
    ...     return e / e.sum(axis=-1, keepdims=True)
    >>> softmax(np.zeros((2, 4)))[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    if function is None:
        return lambda f: FusedFunction(f, threads)
    return FusedFunction(function, threads)


def elementwise(function: Callable[..., object], *, threads: int = 1) -> ElementwiseFunction:
    """Make *function* of elements one kernel over arrays of one shape, and numbers (a decorator).

    It is ``fuse`` for functions of the elements at one position, like OneFlow's ``Unary``, ``Binary`` and ``Ternary``,
    of any number of arguments.  ``out=`` may be an argument.  ``functor(*dtypes)`` is the same as a functor, whose
    kernels for GPUs load and store packs of elements.  *threads* share its work.  Raises Refused for reductions and for
    other shapes.

    >>> @elementwise
    ... def leaky(x, slope):
    ...     return np.where(x > 0, x, slope * x)
    >>> leaky(np.array([-2.0, 3.0]), 0.25).tolist()
    [-0.5, 3.0]
    """
    return ElementwiseFunction(function, threads)
