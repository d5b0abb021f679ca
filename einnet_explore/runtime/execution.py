"""Programs run equation by equation: execution contexts with buffers in one planned arena.

A buffer is live from the step that writes it to the last step that reads it.  Buffers are placed by size, the largest
first, each in the smallest gap between the buffers that are live at the same time (*greedy by size*: Y. Pisarchyk and
J. Lee, Efficient Memory Management for Deep Neural Net Inference, 2020).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.runtime.arrays import ALIGNMENT, aligned_empty
from einnet_explore.runtime.implementations import Implementation, ViewCall
from einnet_explore.support.errors import BackendError


@dataclass(frozen=True, slots=True)
class Buffer:
    """*size* bytes that are written at step *first* and read up to step *last*."""

    size: int
    first: int
    last: int

    def meets(self, other: Buffer) -> bool:
        """Whether some step needs both; a step's results never lie on what it reads."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Arena:
    """Where each buffer begins, how many bytes there are in all, and how many there would be without reuse."""

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
    """Let NumPy's OpenBLAS use *threads* threads; False where NumPy was built with another library."""
    setter = _blas_thread_setter()
    if setter is None:
        return False
    setter(threads)
    return True


@lru_cache(maxsize=1)
def _blas_thread_setter() -> Any:
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
                    return getattr(loaded, name)
    return None


Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class ExecutionStep:
    """The tensor *name*, of *shape*, and the *way* it is made."""

    name: str
    shape: tuple[int, ...]
    way: Implementation


@dataclass(frozen=True, eq=False)
class ExecutionContext:
    """Arrays, and what computes the outputs from what the inputs hold now; used by one thread at a time."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    calls: Sequence[Callable[[], object]]

    def execute(self) -> None:
        """Compute the outputs."""
        for call in self.calls:
            call()


@dataclass(frozen=True, eq=False)
class ContextPool:
    """The *steps* of a program as contexts, one for each thread that runs it at the moment.

    Kernels, sessions and *constants* are shared.  *inputs* are shapes by name.
    """

    steps: tuple[ExecutionStep, ...]
    inputs: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Array]
    outputs: tuple[str, ...]
    threads: int
    arena: Arena = field(init=False)
    free: list[ExecutionContext] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arena", plan_arena(self._buffers()))

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
        inputs = {name: aligned_empty(shape) for name, shape in self.inputs.items()}
        for array in inputs.values():
            array[...] = 0
        arrays = {**inputs, **self.constants}
        calls: list[Callable[[], object]] = []
        if any(step.way.engine == "matmul" for step in self.steps):
            calls.append(lambda: set_blas_threads(self.threads))
        for step in self.steps:
            match step.way:
                case ViewCall() as way:
                    view = way.view(arrays)
                    assert view is not None, f"{step.name} is no view in this context"
                    arrays[step.name] = view
                case way:
                    begin = self.arena.offsets[step.name]
                    end = begin + 4 * int(np.prod(step.shape, dtype=np.int64))
                    arrays[step.name] = memory[begin:end].view(np.float32).reshape(step.shape)
                    try:
                        calls.append(way.bind(arrays, arrays[step.name]))
                    except Exception as error:  # every engine has classes of its own for its failures
                        raise BackendError(f"equation {step.name}: {type(error).__name__}: {error}") from error
        return ExecutionContext(inputs, {name: arrays[name] for name in self.outputs}, calls)

    def _buffers(self) -> dict[str, Buffer]:
        """What is live when: a view keeps what it shows alive, outputs live to the end; inputs lie elsewhere."""
        shown: dict[str, str] = {}
        last: dict[str, int] = {}
        for n, step in enumerate(self.steps):
            for name in step.way.reads:
                last[shown.get(name, name)] = n
            if isinstance(step.way, ViewCall):
                shown[step.name] = shown.get(step.way.reads[0], step.way.reads[0])
        last |= {shown.get(name, name): len(self.steps) for name in self.outputs}
        return {
            step.name: Buffer(4 * int(np.prod(step.shape, dtype=np.int64)), n, last.get(step.name, n))
            for n, step in enumerate(self.steps)
            if step.name not in shown
        }
