"""Builder of ONNX nodes with fresh names; it shares equal nodes and constants and omits operators without effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]

REDUCTION_OPERATORS = {"sum": "ReduceSum", "prod": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}

AXES_INPUT_SINCE_OPSET = {"ReduceSum": 13, "ReduceProd": 18, "ReduceMax": 18, "ReduceMin": 18}
"""The first operator set in which the axes of each reduction are an input; in older ones they are an attribute."""


@dataclass
class NodeBuilder:
    """Nodes of a local function or of a part of a graph, for elements of *dtype* in operator set *opset*.

    New values are named *prefix* + a number.
    """

    prefix: str
    dtype: np.dtype[Any]
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _made: dict[object, str] = field(default_factory=dict)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Return the result of *op*, added as a node unless an equal node exists."""
        key = (op, inputs, tuple(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = name = self._name()
            self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return self._made[key]

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """Return a constant tensor."""
        tensor = np.ascontiguousarray(np.asarray(array, dtype)).reshape(np.shape(array))
        key = (tensor.dtype.str, tensor.shape, tensor.tobytes())
        if key not in self._made:
            self._made[key] = name = self._name()
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(tensor)))
        return self._made[key]

    def number(self, value: float) -> str:
        """Return a constant scalar of type ``dtype``."""
        return self.constant(value, self.dtype)

    def reshape(self, name: str, old: Sequence[int], new: Sequence[int]) -> str:
        """Return *name* of shape *old* reshaped to *new*."""
        return name if tuple(old) == tuple(new) else self.emit("Reshape", name, self.constant(list(new)))

    def transpose(self, name: str, order: Sequence[int]) -> str:
        """Return *name* with its dimensions permuted by *order*."""
        return name if list(order) == sorted(order) else self.emit("Transpose", name, perm=tuple(order))

    def pad(self, name: str, pads: Sequence[tuple[int, int]], value: float) -> str:
        """Return *name* padded with *value*."""
        if not any(map(any, pads)):
            return name
        ends = [before for before, _ in pads] + [after for _, after in pads]
        return self.emit("Pad", name, self.constant(ends), self.number(value))

    def slice(self, name: str, shape: Sequence[int], runs: Sequence[tuple[int, int, int]]) -> str:
        """Return *name* sliced to the *runs* (start, step, count) of its dimensions."""
        cut = [d for d, (n, run) in enumerate(zip(shape, runs, strict=True)) if run != (0, 1, n)]
        if not cut:
            return name
        starts = [runs[d][0] for d in cut]
        steps = [runs[d][1] for d in cut]
        # An end before the first element is a large negative number, since -1 is the last element.
        ends = [
            end if end >= 0 else -shape[d] - 1
            for d, end in ((d, runs[d][0] + runs[d][1] * (runs[d][2] - 1) + np.sign(runs[d][1])) for d in cut)
        ]
        return self.emit("Slice", name, *map(self.constant, (starts, ends, cut, steps)))

    def reduce(self, monoid: str, name: str, axes: Iterable[int]) -> str:
        """Return *name* reduced over *axes*, which are removed."""
        kept, op = list(axes), REDUCTION_OPERATORS[monoid]
        if not kept:
            return name
        if self.opset >= AXES_INPUT_SINCE_OPSET[op]:
            return self.emit(op, name, self.constant(kept), keepdims=0)
        return self.emit(op, name, axes=tuple(kept), keepdims=0)

    def finish(self, name: str, output: str, existing: Iterable[str]) -> None:
        """Rename the value *name* to *output*, or copy it if it is one of *existing*, which keep their names."""
        if name in existing:
            self.nodes.append(helper.make_node("Identity", [name], [output]))
            return
        for node in self.nodes:
            for names in (node.input, node.output):
                for n, old in enumerate(names):
                    if old == name:
                        names[n] = output

    def _name(self) -> str:
        return f"{self.prefix}{len(self._made)}"
