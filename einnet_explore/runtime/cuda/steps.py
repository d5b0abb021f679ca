"""A program for a GPU as plain values: buffers, and steps over them, which JSON carries to where nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

Shape: TypeAlias = tuple[int, ...]

PRECISIONS: Mapping[str, int] = {"float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
"""What libraries may round factors to before they multiply, with its significant bits; all sums are in float32."""

MAX_FLOAT32_ERROR = 1e-4
"""The largest error allowed in float32, relative to the largest output."""


@dataclass(frozen=True, slots=True)
class View:
    """Elements of the buffer *name*: from element *offset* on, of *shape*, with *strides* in elements."""

    name: str
    offset: int
    shape: Shape
    strides: Shape


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """One kernel: CUDA C *text* that defines *entry*, and what it is called with: buffers by name, typed numbers."""

    entry: str
    text: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[str | tuple[float, str], ...]
    op: str = "launch"


@dataclass(frozen=True, slots=True)
class CudaProduct:
    """*out* = *left* @ *right*, batched: what cuBLAS does."""

    out: View
    left: View
    right: View
    op: str = "product"


@dataclass(frozen=True, slots=True)
class Convolution:
    """*out* = a convolution or its transpose of *data* by *weights*, as ONNX defines both: what cuDNN does."""

    kind: str
    out: View
    data: View
    weights: View
    strides: Shape
    dilations: Shape
    pads: Shape
    output_padding: Shape
    group: int
    op: str = "convolution"


Step: TypeAlias = CudaLaunch | CudaProduct | Convolution


@dataclass(frozen=True)
class CudaPlan:
    """What is done, in order; *buffers* (shapes by name) are all that is read and written, of elements of *dtype*.

    *inputs* and *weights* are filled before; the first *once* steps read weights only and are done a single time.
    """

    buffers: Mapping[str, Shape]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Step, ...]
    once: int = 0
    dtype: str = "float32"
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Those of buffers that have another one."""
    precision: str = "float32"
    """One of ``PRECISIONS``: how libraries may multiply.  Our own kernels compute in float32 whatever it is."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")

    @property
    def by_library(self) -> bool:
        """Whether a library multiplies anything in it: else every precision is the same."""
        return any(not isinstance(step, CudaLaunch) for step in self.steps)

    @property
    def agreement(self) -> float:
        """The error that is allowed: rounded factors lose one part in ``2^bits`` each, and eight such are a bound."""
        bits = PRECISIONS[self.precision] if self.by_library else PRECISIONS["float32"]
        half = 2.0**-11 if "float16" in self.dtypes.values() else 0.0
        return max(MAX_FLOAT32_ERROR, 8 * 2.0**-bits if bits < PRECISIONS["float32"] else 0.0, 2 * half)

    @property
    def numerics(self) -> str:
        """What the precision does to the last digits, in a sentence."""
        bits = PRECISIONS[self.precision]
        if not self.by_library or bits == PRECISIONS["float32"]:
            return "float32: factors are multiplied as they are"
        return (
            f"{self.precision}: cuBLAS and cuDNN round factors to {bits} significant bits (2^-{bits} each); sums are "
            f"float32, results may differ by {self.agreement:.1e} of the largest"
        )

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        return asdict(self)


def cuda_plan_from_json(told: Mapping[str, Any]) -> CudaPlan:
    """The plan that ``to_json`` told; raises ValueError for a step or a precision of an unknown kind."""
    return CudaPlan(
        {name: tuple(shape) for name, shape in told["buffers"].items()},
        tuple(told["inputs"]),
        tuple(told["weights"]),
        tuple(told["outputs"]),
        tuple(map(_step, told["steps"])),
        told["once"],
        told["dtype"],
        told["dtypes"],
        told["precision"],
    )


def _step(told: Mapping[str, Any]) -> Step:
    match told:
        case {"op": "launch", "entry": entry, "text": text, "grid": grid, "block": block, "arguments": arguments}:
            given = tuple(a if isinstance(a, str) else (a[0], a[1]) for a in arguments)
            return CudaLaunch(entry, text, tuple(grid), tuple(block), given)
        case {"op": "product", "out": out, "left": left, "right": right}:
            return CudaProduct(_view(out), _view(left), _view(right))
        case {"op": "convolution"}:
            out, data, weights = (_view(told[k]) for k in ("out", "data", "weights"))
            strides, dilations, pads, extra = (
                tuple(told[k]) for k in ("strides", "dilations", "pads", "output_padding")
            )
            return Convolution(told["kind"], out, data, weights, strides, dilations, pads, extra, told["group"])
        case _:
            raise ValueError(f"step {told.get('op')!r}: expected launch, product or convolution")


def _view(told: Mapping[str, Any]) -> View:
    return View(told["name"], told["offset"], tuple(told["shape"]), tuple(told["strides"]))
