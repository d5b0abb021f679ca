"""What candidates of a model's subprograms are estimated by and run with, on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from einnet_explore.cost import CostModel, cpu_default
from einnet_explore.ir import Program
from einnet_explore.pipeline.exported import onnxruntime_compiler
from einnet_explore.pipeline.tuning_task import ProgramCompiler, Settings
from einnet_explore.runtime.device_rates import peak_flops, stream_bandwidth
from einnet_explore.runtime.epilogues import compile_measured
from einnet_explore.runtime.implementation_choice import ProfileStore
from einnet_explore.strategies.options import Cost
from einnet_explore.support.errors import BackendError


@dataclass
class Implementations:
    """The means that *settings* ask for; times are looked up, and kept, in *store*."""

    settings: Settings
    store: ProfileStore

    @cached_property
    def model(self) -> CostModel:
        """The roofline of this machine, with what *store* knew when it was first asked."""
        threads = self.settings.threads
        device = cpu_default(threads)
        try:
            bandwidth, flops = stream_bandwidth(threads), peak_flops(threads)
        except BackendError:
            bandwidth, flops = 0.0, 0.0  # what measures them does not run here: the usual figures stand
        most = max(device.memory_bandwidth, bandwidth)
        here = replace(device, memory_bandwidth=most, peak_flops=flops or device.peak_flops)
        return CostModel(here, self.store.lookup(threads))

    @property
    def cost(self) -> Cost:
        """The estimate that orders candidates before they are measured."""

        def estimate(program: Program) -> tuple[float, str]:
            found = self.model.program_cost(program)
            return found.seconds, found.how

        return estimate

    @property
    def engine(self) -> ProgramCompiler:
        """What runs candidates."""
        threads = self.settings.threads
        if self.settings.runtime == "onnxruntime":
            return onnxruntime_compiler(threads)
        return lambda program, constants: compile_measured(program, threads, constants, self.store).run
