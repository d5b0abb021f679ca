"""A program for a GPU as plain values, buffers and steps over them; as JSON, they run where only CuPy is installed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias

from einnet_explore.support.json_values import as_integer, as_integers, as_items, as_object, as_texts

Shape: TypeAlias = tuple[int, ...]

PRECISIONS: Mapping[str, int] = {"float32": 24, "tf32": 11, "float16": 11, "bfloat16": 8}
"""Types to which libraries may round factors before they multiply, and their significant bits; sums are float32."""

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
    """One kernel: CUDA C *text* that defines *entry*, and its arguments: buffers by name, typed numbers.

    *shared* bytes of shared memory are given at the launch, in addition to what the text declares.
    """

    entry: str
    text: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[str | tuple[float, str], ...]
    shared: int = 0
    op: str = "launch"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What a product's elements go through before they are stored: plus *bias*, an element a column; then ReLU."""

    bias: View | None = None
    relu: bool = False


NO_EPILOGUE = Epilogue()


@dataclass(frozen=True, slots=True)
class CudaProduct:
    """*out* = *epilogue* (*left* @ *right*), batched; run by cuBLAS."""

    out: View
    left: View
    right: View
    epilogue: Epilogue = NO_EPILOGUE
    op: str = "product"

    @property
    def factors(self) -> tuple[View, View]:
        """The operands that are multiplied."""
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class Convolution:
    """*out* = a convolution or its transpose of *data* by *weights*, as ONNX defines both; run by cuDNN."""

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

    @property
    def factors(self) -> tuple[View, View]:
        """The operands that are multiplied."""
        return self.data, self.weights


Step: TypeAlias = CudaLaunch | CudaProduct | Convolution


def agreement_in(precision: str) -> float:
    """The largest error allowed in *precision*, relative to the largest output.

    A rounded factor loses one part in ``2^bits``; eight such errors are a bound.
    """
    return MAX_FLOAT32_ERROR if precision == "float32" else max(MAX_FLOAT32_ERROR, 8 * 2.0 ** -PRECISIONS[precision])


@dataclass(frozen=True)
class CudaPlan:
    """Steps in order; all of them read and write *buffers* (shapes by name) with elements of *dtype*.

    The caller fills *inputs* and *weights*; the first *once* steps read weights only and run a single time.
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
    """The precision of libraries' products, one of ``PRECISIONS``.  Our own kernels always compute in float32."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")

    @property
    def by_library(self) -> bool:
        """Return whether a library multiplies in any step; otherwise every precision is the same."""
        return any(not isinstance(step, CudaLaunch) for step in self.steps)

    @property
    def agreement(self) -> float:
        """The largest error allowed, relative to the largest output; see ``agreement_in``."""
        half = 2.0**-11 if "float16" in self.dtypes.values() else 0.0
        return max(agreement_in(self.precision if self.by_library else "float32"), 2 * half)

    @property
    def numerics(self) -> str:
        """The effect of the precision on the last digits, in a sentence."""
        bits = PRECISIONS[self.precision]
        if not self.by_library or bits == PRECISIONS["float32"]:
            return "float32: factors are multiplied as they are"
        return (
            f"{self.precision}: cuBLAS and cuDNN round factors to {bits} significant bits (2^-{bits} each); sums are "
            f"float32, results may differ by {self.agreement:.1e} of the largest"
        )

    def to_json(self) -> dict[str, object]:
        """The plan as ``cuda_plan_from_json`` reads it."""
        return asdict(self)


def cuda_plan_from_json(plan: Mapping[str, object]) -> CudaPlan:
    """The plan that ``to_json`` wrote; raises ValueError for a step or a precision of an unknown kind."""
    return CudaPlan(
        {name: as_integers(shape) for name, shape in as_object(plan["buffers"]).items()},
        as_texts(plan["inputs"]),
        as_texts(plan["weights"]),
        as_texts(plan["outputs"]),
        tuple(_step(as_object(step)) for step in as_items(plan["steps"])),
        as_integer(plan["once"]),
        str(plan["dtype"]),
        {name: str(dtype) for name, dtype in as_object(plan["dtypes"]).items()},
        str(plan["precision"]),
    )


def _step(step: Mapping[str, object]) -> Step:
    match step.get("op"):
        case "launch":
            x, y, z = as_integers(step["grid"])
            across, down, deep = as_integers(step["block"])
            arguments = tuple(_argument(a) for a in as_items(step["arguments"]))
            grid, block, shared = (x, y, z), (across, down, deep), as_integer(step["shared"])
            return CudaLaunch(str(step["entry"]), str(step["text"]), grid, block, arguments, shared)
        case "product":
            out, left, right = (_view(as_object(step[key])) for key in ("out", "left", "right"))
            after = as_object(step["epilogue"])
            bias = None if after["bias"] is None else _view(as_object(after["bias"]))
            return CudaProduct(out, left, right, Epilogue(bias, bool(after["relu"])))
        case "convolution":
            out, data, weights = (_view(as_object(step[key])) for key in ("out", "data", "weights"))
            strides, dilations, pads = (as_integers(step[key]) for key in ("strides", "dilations", "pads"))
            extra, group = as_integers(step["output_padding"]), as_integer(step["group"])
            return Convolution(str(step["kind"]), out, data, weights, strides, dilations, pads, extra, group)
        case other:
            raise ValueError(f"step {other!r}: expected launch, product or convolution")


def _argument(argument: object) -> str | tuple[float, str]:
    match argument:
        case str():
            return argument
        case [int() | float() as value, str(dtype)]:
            return value, dtype
    raise ValueError(f"argument {argument!r}: expected a buffer, or a number and its type")


def _view(view: Mapping[str, object]) -> View:
    shape, strides = as_integers(view["shape"]), as_integers(view["strides"])
    return View(str(view["name"]), as_integer(view["offset"]), shape, strides)
