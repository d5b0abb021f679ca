"""Element-wise kernels run on arrays by OpenCL or C, planned by length, types and addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from einnet_explore.codegen.elementwise import A100, Gpu, elementwise_host_kernel, grid_stride_kernel, plan_launch
from einnet_explore.codegen.functor import Functor
from einnet_explore.runtime import c_kernels, opencl
from einnet_explore.support.errors import BackendError, Refused

ENGINES = ("opencl", "c", "c blocks")
"""``c blocks`` runs the GPU's kernel with its blocks and threads as loops: for tests, and to look at."""

_PARTS = 1 << 15
"""Elements below which a CPU's threads are not woken for."""


@dataclass(frozen=True)
class Elementwise:
    """*functor* on arrays, by one of ``ENGINES``; *gpu* is whose number of blocks is launched."""

    functor: Functor
    engine: str = "opencl"
    gpu: Gpu = A100

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise BackendError(f"engine {self.engine!r}: expected one of {', '.join(ENGINES)}")

    def __call__(self, result: npt.NDArray[Any], *operands: npt.NDArray[Any], threads: int = 1) -> None:
        """Fill *result* from *operands*: arrays of as many elements, then scalars as arrays of one.

        The result may be an operand.  Raises BackendError for arrays that do not fit, and what compiling raises.
        """
        f = self.functor
        walked = operands[: len(f.operands)]
        sizes = [a.size for a in (result, *walked)]
        if len(operands) != len(f.operands) + len(f.scalars) or len(set(sizes)) > 1:
            raise BackendError(
                f"functor {f.name}: {len(operands)} arrays of {sizes[1:]} elements into {sizes[0]}, expected "
                f"{len(f.operands)} of as many and {len(f.scalars)} of one"
            )
        if any(a.size != 1 for a in operands[len(walked) :]):
            raise BackendError(f"functor {f.name}: scalars of {[a.size for a in operands[len(walked) :]]} elements")
        if any(_crosses(result, a) for a in walked):
            raise BackendError(f"functor {f.name}: the result overlaps an operand and does not begin where it does")
        if any(np.may_share_memory(result, a) for a in operands[len(walked) :]):
            raise BackendError(f"functor {f.name}: the result overlaps a scalar, which every thread reads")
        try:
            self._run(result, operands, threads)
        except Refused as error:
            raise BackendError(str(error)) from None

    def _run(self, result: npt.NDArray[Any], operands: tuple[npt.NDArray[Any], ...], threads: int) -> None:
        f = self.functor
        if self.engine == "c":
            parts = max(1, min(threads, result.size // _PARTS))
            share = -(-result.size // parts)
            c_kernels.load_c_kernel(_host(f))(result, *operands, result.size, share, grid=(parts, 1, 1), threads=parts)
            return
        addresses = [a.ctypes.data for a in (result, *operands[: len(f.operands)])]
        launch = plan_launch(result.size, f.kinds, addresses, self.gpu)
        # What the text depends on, and no more: one kernel serves all lengths.
        made = _device(f, replace(launch, packs=0, tail=min(launch.tail, 1), blocks=1))
        grid = (launch.blocks, 1, 1)
        run: Any = opencl.load_opencl_kernel(made) if self.engine == "opencl" else c_kernels.load_c_kernel(made)
        run(result, *operands, launch.packs, launch.tail, grid=grid)


_host = lru_cache(maxsize=512)(elementwise_host_kernel)
_device = lru_cache(maxsize=512)(grid_stride_kernel)


def _crosses(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    same = a.ctypes.data == b.ctypes.data and a.itemsize == b.itemsize
    return not same and bool(np.may_share_memory(a, b))
