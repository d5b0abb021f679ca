"""Unfused baseline: one kernel an operation, timed against the fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.fusion import program_operations
from einnet_explore.ir import Equation, Program, tensors
from einnet_explore.runtime.fused import FusedProgram
from einnet_explore.runtime.measurement import Timing, time_calls

Array = npt.NDArray[Any]


def split_operations(program: Program) -> tuple[Program, ...]:
    """A program for each operation of *program*, in order; together they compute what it does."""
    made = []
    for operation in program_operations(program):
        equation = Equation(operation.name, operation.scope)
        made.append(Program(tuple(dict.fromkeys(tensors(operation.scope))), (equation,), (operation.name,)))
    return tuple(made)


def bind_unfused(
    program: Program, arrays: Mapping[str, Array], outs: Mapping[str, Array], threads: int = 1
) -> Callable[[], None]:
    """A call that computes *program* by a kernel an operation; temporaries are allocated here."""
    held = dict(arrays)
    calls = []
    for one in split_operations(program):
        (name,) = one.outputs
        kernel = FusedProgram(one, next(iter(arrays.values())).dtype if arrays else "float32", threads)
        given = {t.name: held[t.name] for t in one.inputs}
        held[name] = outs[name] if name in outs else np.empty(one.equations[0].scope.shape, kernel.dtype)
        calls.append(kernel.bind(given, {name: held[name]}))

    def run() -> None:
        for call in calls:
            call()

    return run


def compare_with_unfused(
    program: Program, arrays: Mapping[str, Array], threads: int = 1, rounds: int = 7, seconds: float = 0.1
) -> Mapping[str, Timing]:
    """Times of ``fused`` and ``apart`` for *arrays*, run in turn: the smaller one is what to take here."""
    kernel = FusedProgram(program, next(iter(arrays.values())).dtype if arrays else "float32", threads)
    outs = kernel(arrays)
    calls = {"fused": kernel.bind(arrays, outs), "apart": bind_unfused(program, arrays, dict(outs), threads)}
    return time_calls(calls, rounds=rounds, min_seconds=seconds)
