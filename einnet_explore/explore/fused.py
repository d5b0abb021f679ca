"""A fused program in words: its stages, what its sizes need, what it is expected to gain; and its kernels as text."""

from __future__ import annotations

from math import prod

from einnet_explore.kernels.fusion import Fused
from einnet_explore.kernels.fusion.cpu import cpu_kernel
from einnet_explore.kernels.fusion.diagram import summary
from einnet_explore.kernels.fusion.flat import Flat, flatten
from einnet_explore.kernels.fusion.gpu import gpu_kernel
from einnet_explore.kernels.fusion.paying import A100, CORE, verdict
from einnet_explore.kernels.source import emit, type_of


def packed(fused: Fused) -> Flat:
    """*fused* for contiguous arrays of the sizes that it was analysed with."""
    shapes = {t.name: t.shape for t in fused.program.inputs}
    outputs = {o.name: o.scope.shape for o in fused.operations if o.output}
    whole = {t.name: t.shape for t in fused.inputs} | outputs
    strides = {name: tuple(prod(shape[d + 1 :]) for d in range(len(shape))) for name, shape in whole.items()}
    return flatten(fused, shapes, strides)


def stages_text(fused: Fused) -> str:
    """The plan, the recorded equalities, the axes that are left for contiguous arrays, and both estimates."""
    flat = packed(fused)
    axes = " ".join(f"{x.name}:{flat.extents[x]}" for x in flat.order)
    lines = [summary(fused), f"equalities: {', '.join(fused.sizes.equalities) or 'none'}"]
    lines.append(f"axes of contiguous arrays: {axes or 'none'}")
    lines += [str(verdict(flat, target)) for target in (A100, CORE)]
    return "\n".join(lines)


def fused_text(fused: Fused, dialect: str, dtype: str = "float32") -> str:
    """The kernel for contiguous arrays in *dialect*: of blocks for ``cuda`` and ``opencl``, of points for ``c``.

    Raises KernelError for an unknown dialect or dtype.
    """
    flat, kind = packed(fused), type_of(dtype)
    return emit(cpu_kernel(flat, kind) if dialect == "c" else gpu_kernel(flat, kind), dialect)
