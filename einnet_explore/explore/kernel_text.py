"""The kernels of a program's equations, as text: what ``show --kernel`` prints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from einnet_explore.backends.fused_blocks import gpu_launch
from einnet_explore.ir import Equation, Program, tensors
from einnet_explore.kernels import elementwise
from einnet_explore.kernels.fusion import FusionError, fuse
from einnet_explore.kernels.fusion.cpu import cpu_kernel
from einnet_explore.kernels.machine import this_machine
from einnet_explore.kernels.source import Kernel, KernelError, Type, emit, type_of
from einnet_explore.kernels.tiling import Hardware, processor, tiled

Maker: TypeAlias = "Callable[[Equation, Type, str], Kernel]"
"""The kernel of an equation over elements of a type in a dialect; raises KernelError where it makes none."""


@dataclass(frozen=True)
class KernelText:
    """The kernel of the equation *name* in one dialect, and where there is none, *why* not."""

    name: str
    text: str
    why: str = ""


def of_elements(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """An element-wise equation: packs in a grid-stride loop; neighbouring elements a block in C, for CPUs."""
    made = elementwise.functor(equation.scope, equation.name, kind)
    return elementwise.host_kernel(made) if dialect == "c" else elementwise.planned(made, prod(equation.scope.shape))


def of_tiles(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """A contraction in tiles of the size that the best-first search finds; for a core's caches in C."""
    hardware = processor(this_machine()) if dialect == "c" else Hardware()
    try:
        return tiled(equation.scope, hardware, kind=kind, name=equation.name).kernel
    except KernelError:
        raise
    except ValueError as error:
        raise KernelError(f"kernel {equation.name}: {error}") from None


def of_reductions(equation: Equation, kind: Type, dialect: str) -> Kernel:
    """Anything else, nested reductions too: stages at every point of a grid; sizes and strides are arguments in C."""
    inputs = tuple(dict.fromkeys(tensors(equation.scope)))
    shapes = {t.name: t.shape for t in inputs}
    try:
        fused = fuse(Program(inputs, (equation,), (equation.name,)))
        flat, kernel = gpu_launch(fused, shapes, kind.dtype)
        return replace(cpu_kernel(flat, kind) if dialect == "c" else kernel, name=equation.name)
    except FusionError as error:
        raise KernelError(f"kernel {equation.name}: {error}") from None


MAKERS: tuple[Maker, ...] = (of_elements, of_tiles, of_reductions)


def kernel_texts(
    program: Program, dialect: str, dtype: str = "float32", makers: tuple[Maker, ...] = MAKERS
) -> tuple[KernelText, ...]:
    """For each equation of *program* the kernel of the first of *makers* that makes one.

    All tensors have elements of *dtype*.  Raises KernelError for an unknown dtype, an unknown dialect, and where no
    equation has a kernel, with the reason of each.
    """
    kind = type_of(dtype)
    found = tuple(_text(e, kind, dialect, makers) for e in program.equations)
    if not any(k.text for k in found):
        raise KernelError("no kernel: " + "; ".join(k.why for k in found))
    return found


def _text(equation: Equation, kind: Type, dialect: str, makers: tuple[Maker, ...]) -> KernelText:
    why: list[str] = []
    for make in makers:
        try:
            return KernelText(equation.name, emit(make(equation, kind, dialect), dialect))
        except KernelError as error:
            why.append(str(error))
    return KernelText(equation.name, "", "; ".join(dict.fromkeys(why)))
