"""Whole programs: every equation given its engine and place once, then run with a call each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.backends import blas, library, tvm_cpu
from einnet_explore.backends.errors import BackendError
from einnet_explore.ir import Equation, Program, Scope, tensors
from einnet_explore.operators import OPERATORS, Operator

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CompiledProgram:
    """A program that runs.  Its arrays are its own: results are copied out, inputs are copied in."""

    program: Program
    threads: int
    engines: Mapping[str, str]
    """What runs each equation: ``view``, ``onnxruntime``, ``matmul``, ``tvm`` or ``constant``."""
    inputs: Mapping[str, Array] = field(repr=False)
    outputs: Mapping[str, Array] = field(repr=False)
    calls: tuple[Callable[[], object], ...] = field(repr=False)

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """The outputs for *inputs*; raises BackendError for one that is missing or has another shape."""
        for name, place in self.inputs.items():
            if name not in inputs:
                raise BackendError(f"input {name} is missing, given {', '.join(inputs) or 'none'}")
            array = np.asarray(inputs[name])
            if array.shape != place.shape:
                raise BackendError(f"input {name} has shape {list(array.shape)}, expected {list(place.shape)}")
            np.copyto(place, array, casting="unsafe")
        self.execute()
        return {name: place.copy() for name, place in self.outputs.items()}

    def execute(self) -> None:
        """Compute the outputs from what the input arrays hold now: what ``run`` does, without copies."""
        blas.set_threads(self.threads)
        for call in self.calls:
            call()


def compile_program(
    program: Program,
    threads: int = 1,
    dtype: npt.DTypeLike = np.float32,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    operators: Sequence[Operator] = OPERATORS,
    tune: bool = False,
) -> CompiledProgram:
    """Compile *program* for this CPU.

    Equations that only depend on *constants* (arrays by input name) are evaluated here, once.  An equation whose
    ``via`` is None is run as a matrix product where it is one and as a generated kernel otherwise.  *tune* measures the
    applicable schedules of every kernel.  Raises BackendError, which names the equation, where an engine refuses.
    """
    if np.dtype(dtype) != np.float32:
        raise BackendError(f"dtype {np.dtype(dtype)}: programs run in float32")
    given = constants or {}
    arrays = {t.name: _input(t.name, t.shape, given) for t in program.inputs}
    known = {name for name in arrays if name in given}
    views: dict[str, Scope] = {}
    engines: dict[str, str] = {}
    calls: list[Callable[[], object]] = []
    blas.set_threads(threads)
    for equation in program.equations:
        placed = _placed(equation, arrays, views, operators, threads, tune, known)
        arrays[equation.name], engines[equation.name] = placed.array, placed.engine
        if placed.engine == "view":
            views[equation.name] = library.through_views(equation.scope, views)
        if all(t.name in known for t in tensors(equation.scope)):
            known.add(equation.name)
            engines[equation.name] = "constant"
            if placed.call is not None:
                _first_run(equation, placed.call)
        elif placed.call is not None:
            calls.append(placed.call)
    return CompiledProgram(
        program,
        threads,
        engines,
        {t.name: arrays[t.name] for t in program.inputs if t.name not in given},
        {name: arrays[name] for name in program.outputs},
        tuple(calls),
    )


def _input(name: str, shape: tuple[int, ...], given: Mapping[str, npt.ArrayLike]) -> Array:
    place = tvm_cpu.aligned_empty(shape)
    if name not in given:
        place[...] = 0
        return place
    array = np.asarray(given[name])
    if array.shape != shape:
        raise BackendError(f"constant {name} has shape {list(array.shape)}, expected {list(shape)}")
    np.copyto(place, array, casting="unsafe")
    return place


def _placed(
    equation: Equation,
    arrays: Mapping[str, Array],
    views: Mapping[str, Scope],
    operators: Sequence[Operator],
    threads: int,
    tune: bool,
    known: set[str],
) -> library.Placed:
    missing = [t.name for t in tensors(equation.scope) if t.name not in arrays]
    if missing:
        raise BackendError(f"equation {equation.name} reads {', '.join(missing)}, which nothing before it defines")
    try:
        return library.place(equation, arrays, views, operators, threads, tune, known)
    except BackendError as error:
        raise BackendError(f"equation {equation.name}: {error}") from error
    except Exception as error:
        via = equation.via.operator if equation.via else "no operator"
        raise BackendError(f"equation {equation.name} ({via}): {type(error).__name__}: {error}") from error


def _first_run(equation: Equation, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        raise BackendError(f"equation {equation.name}: {type(error).__name__}: {error}") from error
