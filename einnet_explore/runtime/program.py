"""Compiled programs: one implementation an equation, run as one ONNX Runtime session or by a call each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from einnet_explore.analysis.counts import is_transposed_for
from einnet_explore.ir import Equation, Program, Scope, tensors
from einnet_explore.operators import OPERATORS, Operator
from einnet_explore.runtime import execution, library_calls
from einnet_explore.runtime.arrays import aligned_empty
from einnet_explore.runtime.execution import ContextPool, ExecutionContext, ExecutionStep
from einnet_explore.runtime.implementations import Implementation, ViewCall
from einnet_explore.runtime.onnx_fragment import FragmentWriter, onnx_session
from einnet_explore.support.errors import BackendError

Array = npt.NDArray[Any]


@contextmanager
def _memory(what: str) -> Generator[None, None, None]:
    """Where memory runs out in it that is a BackendError: *what* was to be made, of how many bytes."""
    try:
        yield
    except MemoryError as error:
        raise BackendError(f"{what}: out of memory: {error}") from error


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A program that runs, from several threads at once if need be; results belong to the caller.

    A program with library calls or several threads is one ONNX Runtime session if custom ops are available; otherwise
    its equations are run by a call each, in execution contexts.
    """

    program: Program
    threads: int
    engines: Mapping[str, str]
    """What runs each equation: ``view``, ``onnxruntime``, ``matmul``, ``tiled``, ``tvm``, ``c`` or ``constant``."""
    contexts: ContextPool = field(repr=False)

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The outputs for *inputs*.

        Raises BackendError for one that is missing or has another shape, and where memory runs out.
        """
        given: dict[str, Array] = {}
        for name, shape in self.contexts.inputs.items():
            if name not in inputs:
                raise BackendError(f"input {name} is missing, given {', '.join(inputs) or 'none'}")
            array = np.asarray(inputs[name])
            if array.shape != shape:
                raise BackendError(f"input {name} has shape {list(array.shape)}, expected {list(shape)}")
            given[name] = array
        with _memory("a run of the program"):
            if self._session is None:
                return self.contexts.run(given)
            feeds = {name: np.asarray(array, np.float32) for name, array in given.items()}
        try:
            found = self._session.run(self.program.outputs, feeds)
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            raise BackendError(f"ONNX Runtime cannot run the program: {str(error).strip()}") from error
        return dict(zip(self.program.outputs, found, strict=True))

    def execute(self) -> None:
        """Compute ``outputs`` from what the arrays in ``inputs`` hold now, without copies; for one thread at a time."""
        self._own.execute()

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The arrays that ``execute`` reads."""
        return self._own.inputs

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The arrays that ``execute`` writes."""
        return self._own.outputs

    @property
    def calls(self) -> Sequence[Callable[[], object]]:
        """What ``execute`` does: nothing where there are only views and constants."""
        return self._own.calls

    def write(self, names: Mapping[str, str], prefix: str) -> FragmentWriter | None:
        """The program as a piece of an ONNX graph; None where a session cannot run some equation.

        *names* gives its inputs' and outputs' values there; all other values begin with *prefix*.
        """
        steps, outputs = self.contexts.steps, self.program.outputs
        shapes = {t.name: t.shape for t in self.program.inputs} | {
            e.name: e.scope.shape for e in self.program.equations
        }
        writer = FragmentWriter(names, shapes, self.contexts.constants, prefix)
        needed = set(outputs)
        for step in reversed(steps):
            if step.name in needed:
                needed |= set(step.way.reads)
        made = {step.name for step in steps}
        for step in steps:
            if step.name in needed and not step.way.write(writer, step.name):
                return None
        for name in outputs:
            if name not in made:  # a constant, or an input
                writer.add("Identity", [writer.value(name)], name)
        return writer

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession | None:
        used = {step.way.engine for step in self.contexts.steps} - {"view"}
        if not used or ("onnxruntime" not in used and self.threads == 1):
            return None  # kernels of one thread are called faster without
        inputs, outputs = tuple(self.contexts.inputs), self.program.outputs
        if not set(inputs).isdisjoint(outputs):
            return None
        with _memory("the weights of a session"):
            writer = self.write({name: name for name in (*inputs, *outputs)}, "/")
        if writer is None:
            return None
        try:
            return onnx_session(writer.model(inputs, outputs), self.threads)
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            raise BackendError(f"ONNX Runtime refuses the program: {str(error).strip()}") from error

    @cached_property
    @_memory("the arrays of the program")
    def _own(self) -> ExecutionContext:
        held = self._session
        if held is None:
            return self.contexts.context()
        binding = held.io_binding()
        shapes = {e.name: e.scope.shape for e in self.program.equations}
        inputs = {name: aligned_empty(shape) for name, shape in self.contexts.inputs.items()}
        outputs = {name: aligned_empty(shapes[name]) for name in self.program.outputs}
        for name, array in inputs.items():
            array[...] = 0
            binding.bind_input(name, "cpu", 0, np.float32, list(array.shape), array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, np.float32, list(array.shape), array.ctypes.data)
        return ExecutionContext(inputs, outputs, (lambda: held.run_with_iobinding(binding),))


def compile_program(
    program: Program,
    threads: int = 1,
    dtype: npt.DTypeLike = np.float32,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    operators: Sequence[Operator] = OPERATORS,
    tune: bool = False,
    choose: library_calls.ImplementationChooser = library_calls.first_implementation,
) -> CompiledProgram:
    """Compile *program* for this CPU.

    Equations that only depend on *constants* (arrays by input name) are evaluated here, once.  An equation whose
    ``via`` is None is run as a matrix product where it is one and as a generated kernel otherwise.  *tune* measures the
    applicable schedules of every kernel, *choose* takes one of an equation's engines.  Raises BackendError, which names
    the equation, where an engine refuses and where memory runs out.
    """
    if np.dtype(dtype) != np.float32:
        raise BackendError(f"dtype {np.dtype(dtype)}: programs run in float32")
    given = constants or {}
    fixed = {t.name: _constant(t.name, t.shape, given[t.name]) for t in program.inputs if t.name in given}
    inputs = {t.name: t.shape for t in program.inputs if t.name not in given}
    # Arrays of the right shapes and strides: nothing is written to those that are no constants.
    arrays = fixed | {name: _array(f"input {name}", shape) for name, shape in inputs.items()}
    views: dict[str, Scope] = {}
    names: dict[str, str] = {}
    steps: list[ExecutionStep] = []
    execution.set_blas_threads(threads)
    for n, equation in enumerate(program.equations):
        out = _array(f"equation {equation.name}", equation.scope.shape)
        moved = is_transposed_for(equation, *program.equations[n + 1 :])
        way = _way(equation, arrays, out, views, operators, threads, tune, fixed, choose, moved)
        names[equation.name] = way.engine
        match way:
            case ViewCall():
                views[equation.name] = library_calls.inline_views(equation.scope, views)
                shown = way.view(arrays)
                assert shown is not None
                out = shown
                if all(name in fixed for name in way.reads) and not out.flags.c_contiguous:
                    # What never changes is stored as it is read, once.
                    out = _constant(equation.name, out.shape, out)
                    del views[equation.name]
        arrays[equation.name] = out
        if all(t.name in fixed for t in tensors(equation.scope)):
            if way.engine != "view":
                _first_run(equation, way, arrays, out)
            fixed[equation.name], names[equation.name] = out, "constant"
        else:
            steps.append(ExecutionStep(equation.name, equation.scope.shape, way))
    return CompiledProgram(program, threads, names, ContextPool(tuple(steps), inputs, fixed, program.outputs, threads))


def _array(what: str, shape: tuple[int, ...]) -> Array:
    with _memory(what):
        return aligned_empty(shape)


def _constant(name: str, shape: tuple[int, ...], given: npt.ArrayLike) -> Array:
    array = np.asarray(given)
    if array.shape != shape:
        raise BackendError(f"constant {name} has shape {list(array.shape)}, expected {list(shape)}")
    place = _array(f"constant {name}", shape)
    np.copyto(place, array, casting="unsafe")
    return place


def _way(
    equation: Equation,
    arrays: Mapping[str, Array],
    out: Array,
    views: Mapping[str, Scope],
    operators: Sequence[Operator],
    threads: int,
    tune: bool,
    constants: Mapping[str, Array],
    choose: library_calls.ImplementationChooser,
    moved: bool,
) -> Implementation:
    missing = [t.name for t in tensors(equation.scope) if t.name not in arrays]
    if missing:
        raise BackendError(f"equation {equation.name} reads {', '.join(missing)}, which nothing before it defines")
    try:
        shown = None if moved else library_calls.view_call(equation, views, threads)
        if shown is not None and shown.view(arrays) is not None:
            return shown
        ways = library_calls.implementations_of(equation, arrays, out, views, operators, threads, tune, constants)
        return choose(equation, ways, arrays, out, constants)
    except BackendError as error:
        raise BackendError(f"equation {equation.name}: {error}") from error
    except Exception as error:
        via = equation.via.operator if equation.via else "no operator"
        raise BackendError(f"equation {equation.name} ({via}): {type(error).__name__}: {error}") from error


def _first_run(equation: Equation, way: Implementation, arrays: Mapping[str, Array], out: Array) -> None:
    try:
        way.bind(arrays, out)()
    except Exception as error:
        raise BackendError(f"equation {equation.name}: {type(error).__name__}: {error}") from error
