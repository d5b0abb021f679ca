"""Compiled programs: one implementation an equation, run as one ONNX Runtime session or by a call each.

Called one by one, equations share an arena.  A buffer is live from the step that writes it to the last step that reads
it.  Buffers are placed by size, the largest first, each in the smallest gap between the buffers that are live at the
same time (*greedy by size*: Y. Pisarchyk and J. Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from einnet_explore.analysis.counts import is_transposed_for
from einnet_explore.analysis.equations import require_ranges
from einnet_explore.codegen.language.values import type_of
from einnet_explore.codegen.wide_values import with_wide_values
from einnet_explore.ir import Equation, Program, Scope, Tensor, tensors
from einnet_explore.operators.library import OPERATORS
from einnet_explore.operators.operator import Operator
from einnet_explore.runtime.arrays import ALIGNMENT, Array, aligned, aligned_empty, require_elements
from einnet_explore.runtime.implementations import (
    BoundEquation,
    Implementation,
    ImplementationChooser,
    ViewCall,
    first_implementation,
    implementations_of,
    view_call,
)
from einnet_explore.runtime.onnx_fragment import (
    LOADED_KERNELS,
    ONNXRUNTIME_ERRORS,
    FragmentWriter,
    KernelTable,
    bind_session,
    onnx_session,
    onnxruntime_message,
)
from einnet_explore.runtime.onnx_weights import LargePages
from einnet_explore.support.errors import BackendError, Refused


@dataclass(frozen=True, slots=True)
class Buffer:
    """*size* bytes that are written at step *first* and read up to step *last*."""

    size: int
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Return whether a step needs both; a step's result never overlaps its operands."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """The offset of each buffer, the bytes of all, and the bytes that they would need without reuse."""

    offsets: Mapping[str, int]
    size: int
    separate: int


def plan_arena(buffers: Mapping[str, Buffer]) -> Arena:
    """The arena of *buffers*: those that meet do not overlap, and each begins at a multiple of ``ALIGNMENT``."""
    room = {name: -(-b.size // ALIGNMENT) * ALIGNMENT for name, b in buffers.items()}
    offsets: dict[str, int] = {}
    for name in sorted(buffers, key=lambda n: (-room[n], buffers[n].first)):
        taken = sorted((offsets[n], offsets[n] + room[n]) for n in offsets if buffers[n].meets(buffers[name]))
        best, least, free = 0, None, 0
        for begin, end in taken:
            gap = begin - free
            if gap >= room[name] and (least is None or gap < least):
                best, least = free, gap
            free = max(free, end)
        offsets[name] = free if least is None else best
    size = max((offsets[name] + room[name] for name in offsets), default=0)
    return Arena(offsets, size, sum(room.values()))


_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def set_blas_threads(threads: int) -> bool:
    """Let NumPy's OpenBLAS use *threads* threads; return False if NumPy has another library."""
    setter = _blas_thread_setter()
    if setter is None:
        return False
    setter(threads)
    return True


@lru_cache(maxsize=1)
def _blas_thread_setter() -> Callable[[int], object] | None:
    # NumPy's wheels bring OpenBLAS along; it is loaded already, so this opens no second copy.
    root = Path(np.__file__).parent
    for folder in (root.parent / "numpy.libs", root / ".dylibs"):
        for library in sorted(folder.glob("*openblas*")):
            try:
                loaded = ctypes.CDLL(str(library))
            except OSError:
                continue
            for name in _SETTERS:
                if hasattr(loaded, name):
                    return loaded[name]
    return None


@dataclass(frozen=True, eq=False)
class ExecutionStep:
    """The tensor *name*, of *shape* and *dtype*, and the implementation that computes it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    implementation: Implementation

    @property
    def nbytes(self) -> int:
        """The bytes of the tensor."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class ExecutionContext:
    """Arrays, and the calls that compute the outputs from the inputs; used by one thread at a time.

    *memory* has all that is computed, in bytes, unless a session has it.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    calls: Sequence[Callable[[], object]]
    memory: Array = field(default_factory=lambda: np.empty(0, np.uint8))

    def execute(self) -> None:
        """Compute the outputs."""
        for call in self.calls:
            call()


@dataclass(frozen=True, eq=False)
class BoundProgram:
    """Runs of a program on arrays of its own *context*, read and written in place, as by the nodes of a plan."""

    context: ExecutionContext

    def __call__(self) -> Mapping[str, Array]:
        """Compute the outputs and return the arrays that hold them until the next call."""
        self.context.execute()
        return self.context.outputs


@dataclass(frozen=True, eq=False)
class ContextPool:
    """Contexts of the *steps* of a program, one for each thread that runs it at the moment.

    Kernels, sessions and *constants* are shared.  *inputs* are shapes by name, *types* those of inputs.  Constants that
    no step reads are dropped: those of which others were made.
    """

    steps: tuple[ExecutionStep, ...]
    inputs: Mapping[str, tuple[int, ...]]
    types: Mapping[str, np.dtype]
    constants: dict[str, Array]
    outputs: tuple[str, ...]
    threads: int
    arena: Arena = field(init=False)
    free: list[ExecutionContext] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arena", plan_arena(self._buffers()))
        self.free_constants()

    def free_constants(self) -> None:
        """Drop the constants that no step reads any more."""
        read = {*self.outputs, *(name for step in self.steps for name in step.implementation.reads)}
        for name in self.constants.keys() - read:
            self.constants.pop(name, None)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs for *inputs*, in a context that nobody else uses."""
        try:
            context = self.free.pop()
        except IndexError:
            context = self.context()
        try:
            for name, place in context.inputs.items():
                np.copyto(place, inputs[name], casting="unsafe")
            context.execute()
            return {name: array.copy() for name, array in context.outputs.items()}
        finally:
            self.free.append(context)

    def context(self) -> ExecutionContext:
        """A new context, whose inputs hold zeros; raises BackendError, naming the equation, where an engine refuses."""
        memory = aligned_empty((self.arena.size,), np.uint8)
        inputs = {name: aligned_empty(shape, self.types[name]) for name, shape in self.inputs.items()}
        for array in inputs.values():
            array[...] = 0
        arrays = {**inputs, **self.constants}
        calls: list[Callable[[], object]] = []
        if any(step.implementation.engine == "matmul" for step in self.steps):
            calls.append(lambda: set_blas_threads(self.threads))
        for step in self.steps:
            match step.implementation:
                case ViewCall() as implementation:
                    view = implementation.view(arrays)
                    assert view is not None, f"{step.name} is no view in this context"
                    arrays[step.name] = view
                case implementation:
                    begin = self.arena.offsets[step.name]
                    end = begin + step.nbytes
                    arrays[step.name] = memory[begin:end].view(step.dtype).reshape(step.shape)
                    try:
                        calls.append(implementation.bind(arrays, arrays[step.name]))
                    except Exception as error:  # every engine has classes of its own for its failures
                        raise BackendError(f"equation {step.name}: {type(error).__name__}: {error}") from error
        return ExecutionContext(inputs, {name: arrays[name] for name in self.outputs}, calls, memory)

    def _buffers(self) -> dict[str, Buffer]:
        """The live ranges: a view keeps its source alive, and outputs live to the end; inputs are not in the arena."""
        shown: dict[str, str] = {}
        last: dict[str, int] = {}
        for n, step in enumerate(self.steps):
            for name in step.implementation.reads:
                last[shown.get(name, name)] = n
            if isinstance(step.implementation, ViewCall):
                shown[step.name] = shown.get(step.implementation.reads[0], step.implementation.reads[0])
        last |= {shown.get(name, name): len(self.steps) for name in self.outputs}
        return {
            step.name: Buffer(step.nbytes, n, last.get(step.name, n))
            for n, step in enumerate(self.steps)
            if step.name not in shown
        }


@contextmanager
def _refuse_memory_error(what: str) -> Generator[None, None, None]:
    """Raise BackendError, which names *what* was to be allocated, where memory runs out."""
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
    """The engine of each equation: ``view``, ``onnxruntime``, ``matmul``, ``tiled``, ``tvm``, ``c`` or ``constant``."""
    contexts: ContextPool = field(repr=False)

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The outputs for *inputs*.

        Raises BackendError for one that is missing or has another shape, and where memory runs out.
        """
        given = self._checked(inputs)
        with _refuse_memory_error("a run of the program"):
            if self._session is None:
                return self.contexts.run(given)
            feeds = {name: np.asarray(array, self.contexts.types[name]) for name, array in given.items()}
        try:
            found = self._session.run(self.program.outputs, feeds)
        except ONNXRUNTIME_ERRORS as error:
            raise BackendError(f"ONNX Runtime cannot run the program: {onnxruntime_message(error)}") from error
        return dict(zip(self.program.outputs, found, strict=True))

    __call__ = run

    def bind(self, inputs: Mapping[str, npt.ArrayLike]) -> Callable[[], Mapping[str, Array]]:
        """Return a call that runs on *inputs*, without copies unless the program is a session.

        Raises BackendError as ``run`` does.
        """
        if self._session is not None:
            return partial(self.run, inputs)
        given = self._checked(inputs)
        with _refuse_memory_error("a run of the program"):
            context = self.contexts.context()
            for name, place in context.inputs.items():
                np.copyto(place, given[name], casting="unsafe")
        return BoundProgram(context)

    def _checked(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """*inputs* as arrays; raises BackendError for one that is missing or has another shape."""
        given: dict[str, Array] = {}
        for name, shape in self.contexts.inputs.items():
            if name not in inputs:
                raise BackendError(f"input {name} is missing, given {', '.join(inputs) or 'none'}")
            array = np.asarray(inputs[name])
            if array.shape != shape:
                raise BackendError(f"input {name} has shape {list(array.shape)}, expected {list(shape)}")
            given[name] = require_elements(name, array, self.contexts.types[name])
        return given

    def execute(self) -> None:
        """Compute ``outputs`` from the arrays in ``inputs``, without copies; for one thread at a time."""
        self._context.execute()

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The arrays that ``execute`` reads."""
        return self._context.inputs

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The arrays that ``execute`` writes."""
        return self._context.outputs

    @property
    def calls(self) -> Sequence[Callable[[], object]]:
        """The calls of ``execute``: none if there are only views and constants."""
        return self._context.calls

    def write(
        self, names: Mapping[str, str], prefix: str, table: KernelTable = LOADED_KERNELS
    ) -> FragmentWriter | None:
        """The program as a part of an ONNX graph; None if a session cannot run an equation.

        *names* gives its inputs' and outputs' values there; all other values begin with *prefix*.  Kernels are those of
        *table*.
        """
        steps, outputs = self.contexts.steps, self.program.outputs
        shapes = {t.name: t.shape for t in self.program.inputs} | {
            e.name: e.scope.shape for e in self.program.equations
        }
        types = {t.name: t.dtype for t in (*self.program.inputs, *(e.tensor for e in self.program.equations))}
        writer = FragmentWriter(names, shapes, self.contexts.constants, prefix, table, types)
        needed = set(outputs)
        for step in reversed(steps):
            if step.name in needed:
                needed |= set(step.implementation.reads)
        made = {step.name for step in steps}
        for step in steps:
            if step.name in needed and not step.implementation.write(writer, step.name):
                return None
        for name in outputs:
            if name not in made:  # a constant, or an input
                writer.add("Identity", [writer.value(name)], name)
        self.contexts.free_constants()
        return writer

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession | None:
        used = {step.implementation.engine for step in self.contexts.steps} - {"view"}
        if not used or ("onnxruntime" not in used and self.threads == 1):
            return None  # kernels of one thread are called faster without
        inputs, outputs = tuple(self.contexts.inputs), self.program.outputs
        if not set(inputs).isdisjoint(outputs):
            return None
        made = {e.name: e.tensor.dtype for e in self.program.equations}
        if "bfloat16" in {*(made[name] for name in outputs), *map(str, self.contexts.types.values())}:
            return None  # ONNX Runtime takes no such arrays
        with _refuse_memory_error("the weights of a session"):
            writer = self.write({name: name for name in (*inputs, *outputs)}, "/")
        if writer is None:
            return None
        try:
            return onnx_session(writer.model(inputs, outputs), self.threads, writer.weights)
        except ONNXRUNTIME_ERRORS as error:
            raise BackendError(f"ONNX Runtime refuses the program: {onnxruntime_message(error)}") from error

    @cached_property
    @_refuse_memory_error("the arrays of the program")
    def _context(self) -> ExecutionContext:
        session = self._session
        if session is None:
            return self.contexts.context()
        made = {e.name: e.tensor for e in self.program.equations}
        inputs = {name: aligned_empty(shape, self.contexts.types[name]) for name, shape in self.contexts.inputs.items()}
        outputs = {name: aligned_empty(made[name].shape, made[name].dtype) for name in self.program.outputs}
        for array in inputs.values():
            array[...] = 0
        return ExecutionContext(inputs, outputs, (bind_session(session, inputs, outputs),))


def compile_program(
    program: Program,
    threads: int = 1,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    operators: Sequence[Operator] = OPERATORS,
    choose: ImplementationChooser = first_implementation,
) -> CompiledProgram:
    """Compile *program* for this CPU: its ``run(inputs)`` takes arrays by input name and returns those of the outputs.

    Arrays have the shapes and types of the program's tensors.  Nothing is derived or searched, as ``ee.optimize`` does.
    Equations that only depend on *constants* (arrays by input name, which must not change later: those that are aligned
    are not copied) are evaluated here, once, in ``float64`` for readers that compute in it.  An equation whose
    ``via`` is None is run as a matrix product where it is one and as a generated kernel otherwise; one that calls an
    operator needs that among *operators*.  *threads* share the work of each equation.  *choose* takes one
    of an equation's implementations.  Raises BackendError, which names the equation, where an engine refuses, where an
    integer may be beyond its type, and where memory runs out.
    """
    try:
        require_ranges(program, _integer_ranges(constants or {}))
    except Refused as error:
        raise BackendError(str(error)) from None
    set_blas_threads(threads)
    program = with_wide_values(program)
    compiler = _Compiler(program, threads, constants or {}, operators, choose)
    for n in range(len(program.equations)):
        compiler.compile(n)
    contexts = ContextPool(
        tuple(compiler.steps), compiler.inputs, compiler.types, compiler.constants, program.outputs, threads
    )
    return CompiledProgram(program, threads, compiler.engines, contexts)


def _integer_ranges(constants: Mapping[str, npt.ArrayLike]) -> Mapping[str, tuple[int, int]]:
    """The least and the largest element of each array of integers."""
    arrays = {name: np.asarray(given) for name, given in constants.items()}
    return {n: (int(a.min()), int(a.max())) for n, a in arrays.items() if a.size and a.dtype.kind in "iu"}


class _Compiler:
    """The steps of a program, equation by equation; ``constants`` are all arrays that never change."""

    def __init__(
        self,
        program: Program,
        threads: int,
        constants: Mapping[str, npt.ArrayLike],
        operators: Sequence[Operator],
        choose: ImplementationChooser,
    ) -> None:
        self.program, self.threads, self.operators, self.choose = program, threads, operators, choose
        self.inputs = {t.name: t.shape for t in program.inputs if t.name not in constants}
        self.types = {t.name: _numpy_type(t) for t in program.inputs}
        self.pages = LargePages()
        self.constants = {
            t.name: _aligned_constant(t.name, t.shape, constants[t.name], self.types[t.name])
            for t in program.inputs
            if t.name in constants
        }
        # Arrays of the right shapes and strides: nothing is written to those that are no constants.
        self.arrays = self.constants | {
            name: _allocate(f"input {name}", shape, self.types[name]) for name, shape in self.inputs.items()
        }
        self.views: dict[str, Scope] = {}
        self.engines: dict[str, str] = {}
        self.steps: list[ExecutionStep] = []

    def compile(self, n: int) -> None:
        """Add the step of equation *n*, or its value where it only depends on constants."""
        equation = self.program.equations[n]
        name, scope = equation.name, equation.scope
        if missing := [t.name for t in tensors(scope) if t.name not in self.arrays]:
            raise BackendError(f"equation {name} reads {', '.join(missing)}, which nothing before it defines")
        dtype = _numpy_type(equation.tensor)
        is_constant = all(t.name in self.constants for t in tensors(scope))
        with _refuse_memory_error(f"equation {name}"):
            out = self.pages.empty(scope.shape, dtype) if is_constant else aligned_empty(scope.shape, dtype)
        bound = BoundEquation(equation, self.arrays, out, self.threads, self.constants, self.views, self.operators)
        implementation = self._implementation(bound, self.program.equations[n + 1 :])
        self.engines[name] = implementation.engine
        if isinstance(implementation, ViewCall):
            out = self._view(bound, implementation)
        self.arrays[name] = out
        if is_constant:
            if not isinstance(implementation, ViewCall):
                _run_once(bound, implementation)
            self.constants[name], self.engines[name] = out, "constant"
        else:
            self.steps.append(ExecutionStep(name, scope.shape, dtype, implementation))

    def _implementation(self, bound: BoundEquation, later: Sequence[Equation]) -> Implementation:
        equation = bound.equation
        try:
            if not is_transposed_for(equation, *later) and (view := view_call(bound)) is not None:
                return view
            return self.choose(bound, implementations_of(bound))
        except BackendError as error:
            raise BackendError(f"equation {equation.name}: {error}") from error
        except Exception as error:  # every engine has classes of its own for its failures
            via = equation.via.operator if equation.via else "no operator"
            raise BackendError(f"equation {equation.name} ({via}): {type(error).__name__}: {error}") from error

    def _view(self, bound: BoundEquation, implementation: ViewCall) -> Array:
        """The array that *implementation* shows; a constant is stored as it is read, once."""
        name = bound.equation.name
        shown = implementation.view(self.arrays)
        assert shown is not None
        if all(read in self.constants for read in implementation.reads) and not shown.flags.c_contiguous:
            with _refuse_memory_error(f"constant {name}"):
                return self.pages.copy(shown)
        self.views[name] = bound.inlined
        return shown


def _numpy_type(tensor: Tensor) -> np.dtype:
    return type_of(tensor.dtype).dtype


def _allocate(what: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    with _refuse_memory_error(what):
        return aligned_empty(shape, dtype)


def _aligned_constant(name: str, shape: tuple[int, ...], given: npt.ArrayLike, dtype: np.dtype) -> Array:
    array = require_elements(name, np.asarray(given), dtype)
    if array.shape != shape:
        raise BackendError(f"constant {name} has shape {list(array.shape)}, expected {list(shape)}")
    with _refuse_memory_error(f"constant {name}"):
        return aligned(array, dtype)


def _run_once(bound: BoundEquation, implementation: Implementation) -> None:
    try:
        implementation.bind(bound.arrays, bound.out)()
    except Exception as error:  # every engine has classes of its own for its failures
        raise BackendError(f"equation {bound.equation.name}: {type(error).__name__}: {error}") from error
