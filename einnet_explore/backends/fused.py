"""Programs as one fused kernel each, run on this CPU.

A call with other shapes or strides looks up what it looked up before; sizes that meet the recorded equalities use the
kernel that is there, all others are analysed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.backends.errors import BackendError
from einnet_explore.backends.fused_launch import Code, Launch, code
from einnet_explore.ir import Program
from einnet_explore.kernels.fusion import Fused, FusionError, fuse, served
from einnet_explore.kernels.fusion.flat import Flat, flatten

Array = npt.NDArray[Any]
Shapes = Mapping[str, tuple[int, ...]]


class FusedProgram:
    """A program as one kernel on this CPU, for arrays of any shape that meets what was recorded.

    *program* is a program, or a function that makes one from the inputs' shapes by name (where numbers in it follow the
    sizes).  A program serves other shapes too, where no recorded equality is broken: FusionError says which one is.
    *dtype* is float32 or float64.  *analyses* and *kernels* count what was not known before.
    """

    def __init__(
        self,
        program: Program | Callable[[Shapes], Program],
        dtype: npt.DTypeLike = "float32",
        threads: int = 1,
    ) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise BackendError(f"dtype {self.dtype}: a fused kernel computes in float32 or float64")
        self.threads = threads
        self.analyses = 0
        self._make = program if callable(program) else None
        self._fused: list[Fused] = []
        self._known: dict[object, tuple[Launch, tuple[str, ...]]] = {}
        self._programs: dict[object, Fused] = {}
        self._code: dict[object, Code] = {}
        if isinstance(program, Program):
            self._analysed(program)

    @property
    def kernels(self) -> int:
        """How many different texts were compiled or found."""
        return len({known.text for known, _ in self._known.values()})

    def _analysed(self, program: Program) -> Fused:
        self.analyses += 1
        self._fused.append(fuse(program))
        return self._fused[-1]

    def fused(self, shapes: Shapes) -> Fused:
        """The analysis that serves inputs of *shapes*; raises FusionError where none does."""
        if self._make is None:
            served(self._fused[0], shapes)
            return self._fused[0]
        key = tuple(sorted((k, tuple(v)) for k, v in shapes.items()))
        if key not in self._programs:
            self._programs[key] = self._analysed(self._make(shapes))
        found = self._programs[key]
        if wrong := [t for t in found.program.inputs if tuple(shapes.get(t.name, ())) != t.shape]:
            raise FusionError(f"{wrong[0].name} has shape {list(wrong[0].shape)}, given {shapes.get(wrong[0].name)}")
        return found

    def launch(self, arrays: Mapping[str, Array], outs: Mapping[str, Array] | None = None) -> Launch:
        """The kernel for arrays like these; *outs* as `bind`'s, contiguous ones if not given."""
        return self._launch(arrays, outs)[0]

    def bind(self, arrays: Mapping[str, Array], outs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that reads *arrays* (by input) where they are now and writes *outs* (by output), without checks.

        Raises BackendError for a missing array, another dtype, an array between elements, and for outputs that overlap
        one another or an input; FusionError for shapes that do not belong together.
        """
        _apart(arrays, outs)
        return self._launch(arrays, outs)[0].bind(arrays, outs, self.threads)

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, in new arrays; raises as ``bind`` does."""
        found, names = self._launch(arrays, None)
        shapes = _outputs(found.flat)
        outs = {name: np.empty(shapes[name], self.dtype) for name in names}
        found.bind(arrays, outs, self.threads)()
        return outs

    def _launch(self, arrays: Mapping[str, Array], outs: Mapping[str, Array] | None) -> tuple[Launch, tuple[str, ...]]:
        given = (*arrays.items(), *(outs.items() if outs is not None else ()))
        key = tuple((name, a.shape, a.strides, a.dtype) for name, a in given)
        if key not in self._known:
            self._known[key] = self._found(arrays, outs)
        return self._known[key]

    def _found(self, arrays: Mapping[str, Array], outs: Mapping[str, Array] | None) -> tuple[Launch, tuple[str, ...]]:
        fused = self.fused({name: a.shape for name, a in arrays.items()})
        shapes = {t.name: arrays[t.name].shape for t in fused.program.inputs}
        wanted = _outputs(flatten(fused, shapes, {}, squash=False))
        strides = {t.name: _steps(t.name, arrays[t.name], self.dtype) for t in fused.inputs}
        for name, shape in wanted.items():
            if outs is None:
                strides[name] = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
            elif name not in outs or outs[name].shape != shape:
                found = list(outs[name].shape) if name in outs else "none"
                raise BackendError(f"output {name} has shape {list(shape)}, given is {found}")
            else:
                strides[name] = _steps(name, outs[name], self.dtype)
        flat = flatten(fused, shapes, strides)
        # An analysis is used again as long as it serves, and so is its text for calls that need no other.
        key = (id(fused), flat.signature)
        if key not in self._code:
            self._code[key] = code(flat, self.dtype)
        return Launch(flat, *self._code[key], self.dtype), tuple(wanted)


def _outputs(flat: Flat) -> dict[str, tuple[int, ...]]:
    """The shape of every output, in the program's order."""
    known = flat.fused.known
    extents = flat.sizes
    return {n: tuple(extents[x] for x in known[n].scope.traversals) for n in flat.fused.program.outputs}


def _steps(name: str, array: Array, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The strides of *array* in elements."""
    if array.dtype != dtype:
        raise BackendError(f"{name} is {array.dtype}, expected {dtype}")
    if not array.flags.aligned or any(s % dtype.itemsize for s in array.strides):
        raise BackendError(f"{name} lies between elements: strides of {array.strides} bytes at {array.ctypes.data:#x}")
    return tuple(s // dtype.itemsize for s in array.strides)


def _apart(arrays: Mapping[str, Array], outs: Mapping[str, Array]) -> None:
    for n, (name, out) in enumerate(outs.items()):
        for other, array in (*arrays.items(), *list(outs.items())[:n]):
            if np.may_share_memory(out, array):
                raise BackendError(f"output {name} overlaps {other}")
        if not out.flags.writeable:
            raise BackendError(f"output {name} cannot be written")
