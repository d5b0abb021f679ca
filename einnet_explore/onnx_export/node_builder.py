"""ONNX nodes as they are written: fresh names, constants and equal nodes once, operators that do nothing left out."""

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
"""Since which operator set the axes of a reduction are an input; before, they are an attribute."""


@dataclass
class NodeBuilder:
    """Nodes of a local function or of a stretch of a graph, for elements of *dtype* in operator set *opset*.

    Every value that is made is called *prefix* and a number.
    """

    prefix: str
    dtype: np.dtype[Any]
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _made: dict[object, str] = field(default_factory=dict)

    def emit(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The result of *op*; an equal node that exists already is used again."""
        key = (op, inputs, tuple(sorted(attributes.items())))
        if key not in self._made:
            self._made[key] = name = self._name()
            self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return self._made[key]

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike = np.int64) -> str:
        """A constant tensor."""
        held = np.ascontiguousarray(np.asarray(array, dtype)).reshape(np.shape(array))
        key = (held.dtype.str, held.shape, held.tobytes())
        if key not in self._made:
            self._made[key] = name = self._name()
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(held)))
        return self._made[key]

    def number(self, value: float) -> str:
        """A scalar of the body's type."""
        return self.constant(value, self.dtype)

    def reshape(self, name: str, old: Sequence[int], new: Sequence[int]) -> str:
        """*name* in shape *new*."""
        return name if tuple(old) == tuple(new) else self.emit("Reshape", name, self.constant(list(new)))

    def transpose(self, name: str, order: Sequence[int]) -> str:
        """*name* with its dimensions in *order*."""
        return name if list(order) == sorted(order) else self.emit("Transpose", name, perm=tuple(order))

    def pad(self, name: str, pads: Sequence[tuple[int, int]], value: float) -> str:
        """*name* with *value* around it."""
        if not any(map(any, pads)):
            return name
        ends = [before for before, _ in pads] + [after for _, after in pads]
        return self.emit("Pad", name, self.constant(ends), self.number(value))

    def slice(self, name: str, shape: Sequence[int], runs: Sequence[tuple[int, int, int]]) -> str:
        """Of every dimension the run (start, step, count)."""
        cut = [d for d, (n, run) in enumerate(zip(shape, runs, strict=True)) if run != (0, 1, n)]
        if not cut:
            return name
        starts = [runs[d][0] for d in cut]
        steps = [runs[d][1] for d in cut]
        # An end before the first element is written as far below 0: -1 would be the last element.
        ends = [
            end if end >= 0 else -shape[d] - 1
            for d, end in ((d, runs[d][0] + runs[d][1] * (runs[d][2] - 1) + np.sign(runs[d][1])) for d in cut)
        ]
        return self.emit("Slice", name, *map(self.constant, (starts, ends, cut, steps)))

    def reduce(self, monoid: str, name: str, axes: Iterable[int]) -> str:
        """The reduction over *axes*, which go."""
        kept, op = list(axes), REDUCTION_OPERATORS[monoid]
        if not kept:
            return name
        if self.opset >= AXES_INPUT_SINCE_OPSET[op]:
            return self.emit(op, name, self.constant(kept), keepdims=0)
        return self.emit(op, name, axes=tuple(kept), keepdims=0)

    def finish(self, name: str, output: str, given: Iterable[str]) -> None:
        """Call the value *name* by the name *output*; *given* are the names that were there before."""
        if name in given:
            self.nodes.append(helper.make_node("Identity", [name], [output]))
            return
        for node in self.nodes:
            for names in (node.input, node.output):
                for n, old in enumerate(names):
                    if old == name:
                        names[n] = output

    def _name(self) -> str:
        return f"{self.prefix}{len(self._made)}"
