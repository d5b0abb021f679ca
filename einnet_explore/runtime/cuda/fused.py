"""Programs as one fused CUDA kernel each, for CuPy arrays; NVRTC compiles the text when it is first called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from einnet_explore.codegen.fusion.frame import FusedLayout, slot_name, slot_sizes
from einnet_explore.codegen.fusion.gpu import FUSED_THREADS, gpu_blocks, gpu_kernel
from einnet_explore.codegen.language.printer import emit, entry_name
from einnet_explore.codegen.language.values import Array as KernelArray
from einnet_explore.codegen.language.values import type_of
from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.cuda.device import cupy_package
from einnet_explore.runtime.cuda.execution import load_cuda_text
from einnet_explore.runtime.fused import FusedLaunch, FusedProgram


@dataclass(frozen=True)
class FusedDeviceLaunch(FusedLaunch):
    """One kernel for one signature of CuPy arrays."""

    def bind(self, arrays: Mapping[str, Array], outs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that reads *arrays* where they are now and writes *outs*; temporaries are allocated here."""
        cupy, fused = cupy_package(), self.flat.fused
        blocks = gpu_blocks(self.flat)
        if not blocks:
            return lambda: None
        held = {name: cupy.asarray(a) for name, a in {**fused.tables, **arrays}.items()} | dict(outs)
        for n, size in enumerate(slot_sizes(self.flat)):
            kind = fused.slot_type(n, type_of(self.dtype)).dtype
            held[slot_name(n)] = cupy.empty(size * max(1, self.flat.points), kind)
        arguments = tuple(
            held[p.name] if isinstance(p, KernelArray) else p.kind.dtype.type(self.flat.numbers[p.name])
            for p in self.kernel.params
        )

        def call() -> None:
            self.function((blocks, 1, 1), (FUSED_THREADS, 1, 1), arguments)

        return call


class FusedDeviceProgram(FusedProgram):
    """A program as one kernel on the current CUDA device, for CuPy arrays; see ``FusedProgram``."""

    def _compiled(self, flat: FusedLayout) -> FusedLaunch:
        kernel = gpu_kernel(flat, type_of(self.dtype))
        text = emit(kernel, "cuda")
        return FusedDeviceLaunch(flat, kernel, text, load_cuda_text(entry_name(kernel), text), self.dtype)

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        made: Array = cupy_package().empty(shape, dtype)
        return made
