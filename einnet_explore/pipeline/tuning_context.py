"""The settings of tuning, and how this machine estimates and runs the variants of a subprogram."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from einnet_explore.cost import CostModel, cpu_default
from einnet_explore.ir import Program
from einnet_explore.pipeline.exported import compile_in_onnxruntime
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.runtime.device_profile import peak_flops, stream_bandwidth
from einnet_explore.runtime.epilogues import compile_measured
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError

ProgramCompiler: TypeAlias = "Callable[[Program, Arrays], Callable[[Arrays], Arrays]]"
"""Compiles a program with the arrays of its weights to a function from inputs to outputs, both by name."""

OriginalOpener: TypeAlias = "Callable[[], tuple[Callable[[], Arrays], Arrays]]"
"""Opens the original of a subprogram: returns a function to its outputs by name, and the inputs that it runs on."""

OUT_OF_MEMORY = (MemoryError, Fail, RuntimeException)
"""Exceptions that mean out of memory: NumPy's, and those of ONNX Runtime, which raises them for other failures too."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Effort of the search and of the measurements of one subprogram, and the runtime of the result.

    *runtime* is ``plan`` (kernels, library calls and sessions in turn) or ``onnxruntime`` (one exported model).
    *numerics* bounds the rounding differences of a derivation (``pipeline.numerics``).  *states* bounds a search in
    place of *seconds*; a search bounded by states is deterministic.
    """

    threads: int = 1
    max_depth: int = 7
    seconds: float = 4.0
    finalists: int = 4
    runtime: str = "plan"
    numerics: str = "approximate"
    states: int | None = None


@dataclass(frozen=True, slots=True)
class TuningContext:
    """Everything that tuning tasks of one model share.

    *cost* orders variants before they are measured, *compiler* makes them runnable, *store* keeps measured times.
    """

    settings: Settings
    store: ProfileStore
    cost: Cost
    compiler: ProgramCompiler


@dataclass
class Implementations:
    """Cost model and compiler of this machine for *settings*; measured times are looked up, and kept, in *store*."""

    settings: Settings
    store: ProfileStore

    @cached_property
    def model(self) -> CostModel:
        """The roofline of this machine, with the times that *store* held at the first call."""
        threads = self.settings.threads
        device = cpu_default(threads)
        try:
            bandwidth, flops = stream_bandwidth(threads), peak_flops(threads)
        except BackendError:
            bandwidth, flops = 0.0, 0.0  # the benchmark kernels do not run here: the usual figures stand
        most = max(device.memory_bandwidth, bandwidth)
        here = replace(device, memory_bandwidth=most, peak_flops=flops or device.peak_flops)
        return CostModel(here, self.store.lookup(threads))

    @property
    def compiler(self) -> ProgramCompiler:
        """The compiler of variants for the runtime of *settings*."""
        threads = self.settings.threads
        if self.settings.runtime == "onnxruntime":
            return lambda program, constants: compile_in_onnxruntime(program, constants, threads)
        return lambda program, constants: compile_measured(program, threads, constants, self.store).run

    def cost(self, program: Program) -> tuple[float, str]:
        """Estimate the seconds of *program*, and say how they were found."""
        found = self.model.program_cost(program)
        return found.seconds, found.how

    def context(self, settings: Settings | None = None) -> TuningContext:
        """The context of tasks, with other *settings* (less time) where they are given."""
        return TuningContext(settings or self.settings, self.store, self.cost, self.compiler)
