"""Library operators in ONNX Runtime: as nodes of a larger session, or each as a session of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from einnet_explore.backends.fragment import Shape, Writer, session
from einnet_explore.operators import OnnxNode

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class NodeCall:
    """*node* on the tensors *reads*, of *shapes*, giving a tensor of *shape*; *fixed* are those that never change."""

    node: OnnxNode
    reads: tuple[str, ...]
    shapes: tuple[Shape, ...]
    shape: Shape
    threads: int
    fixed: Mapping[str, Array] = field(default_factory=dict, repr=False)
    engine = "onnxruntime"

    def bind(self, arrays: Mapping[str, Array], out: Array) -> Callable[[], object]:
        """A call that reads *arrays* (canonical shapes, any strides) and writes *out*, which is packed.

        What is *fixed* ONNX Runtime has packed once.
        """
        binding = self._session.io_binding()
        gathered: list[tuple[Array, Array]] = []
        held = [out]
        for name, value in zip(self._fed, _values(len(self._fed)), strict=True):
            array = arrays[name]
            packed = array if array.flags.c_contiguous else np.empty(array.shape, array.dtype)
            if packed is not array:
                gathered.append((packed, array))
            held.append(packed)
            binding.bind_input(value, "cpu", 0, np.float32, list(packed.shape), packed.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, list(self.shape), out.ctypes.data)
        run = self._session.run_with_iobinding

        def call(held: Sequence[Array] = tuple(held)) -> None:  # the binding knows addresses only
            del held
            for packed, array in gathered:
                np.copyto(packed, array)
            run(binding)

        return call

    def write(self, writer: Writer, makes: str) -> bool:
        """Add the node, with its operands' reshapes and transposes, to *writer*."""
        values = []
        for name, shape, order in zip(self.reads, self.node.shapes, self.node.permutations, strict=True):
            value = writer.shaped(name, shape)
            values.append(writer.add("Transpose", [value], perm=list(order)) if order else value)
        attributes: dict[str, Any] = dict(self.node.attributes)
        if self.node.output == self.shape:
            writer.add(self.node.op_type, values, makes, **attributes)
        else:
            writer.reshape(writer.add(self.node.op_type, values, **attributes), self.shape, makes)
        return True

    @property
    def _fed(self) -> tuple[str, ...]:
        return tuple(name for name in dict.fromkeys(self.reads) if name not in self.fixed)

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        numbered = dict(zip(dict.fromkeys(self.reads), (f"t{n}" for n in range(len(self.reads))), strict=False))
        same = NodeCall(self.node, tuple(numbered[n] for n in self.reads), self.shapes, self.shape, self.threads)
        fixed = {numbered[name]: array for name, array in self.fixed.items()}
        if fixed:
            return _alone(same, fixed)
        return _shared(self.node, same.reads, self.shapes, self.shape, self.threads)


def _values(number: int) -> tuple[str, ...]:
    return tuple(f"x{n}" for n in range(number))


@cache
def _shared(
    node: OnnxNode, reads: tuple[str, ...], shapes: tuple[Shape, ...], shape: Shape, threads: int
) -> onnxruntime.InferenceSession:
    return _alone(NodeCall(node, reads, shapes, shape, threads), {})


def _alone(call: NodeCall, fixed: Mapping[str, Array]) -> onnxruntime.InferenceSession:
    fed = tuple(name for name in dict.fromkeys(call.reads) if name not in fixed)
    shapes = {**dict(zip(call.reads, call.shapes, strict=True)), "y": call.shape}
    writer = Writer({**dict(zip(fed, _values(len(fed)), strict=True)), "y": "y"}, shapes, fixed)
    call.write(writer, "y")
    return session(writer.model(fed, ["y"]), call.threads, spinning=False)
