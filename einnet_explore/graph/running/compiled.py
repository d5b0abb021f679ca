"""A compiled program in the place of some of a model's nodes: called with the model's values, or written among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from einnet_explore.backends.fragment import Writer, imports, tensor_of
from einnet_explore.backends.program import CompiledProgram
from einnet_explore.graph.reading.model import Model, Node
from einnet_explore.graph.running.regions import Array, PlanError, Regions


@dataclass(frozen=True, eq=False)
class ByValue:
    """*program* as a plan calls it; *names* gives the model's value for each of its inputs and outputs."""

    program: CompiledProgram
    names: Mapping[str, str]

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """The values that leave the group from those that enter it; raises PlanError where an engine fails."""
        given = {name: arrays[self.names[name]] for name in self.program.contexts.inputs}
        try:
            made = self.program.run(given)
        except Exception as error:  # every engine has classes of its own for its failures
            makes = ", ".join(self.names[name] for name in self.program.program.outputs)
            raise PlanError(f"the program of {makes}: {type(error).__name__}: {error}") from error
        return {self.names[name]: array for name, array in made.items()}

    def write(self, model: Model, nodes: Sequence[Node], outputs: Sequence[str], prefix: str) -> Writer | None:
        """The program as nodes that read and make the model's values; None where it has to be called.

        It has to be where a session cannot run one of its kernels, a value is not of single precision (programs are),
        or the group, which makes *outputs* for others, is not given all of them.
        """
        program = self.program.program
        values = [self.names[name] for name in (*self.program.contexts.inputs, *program.outputs)]
        known = [model.values[value].dtype if value in model.values else None for value in values]
        if any(dtype != np.float32 for dtype in known) or not set(outputs) <= set(values):
            return None
        return self.program.write(self.names, prefix)


def spliced(
    regions: Regions, parts: Sequence[tuple[Sequence[Node], Writer | None]], opset: Sequence[onnx.OperatorSetIdProto]
) -> onnx.ModelProto:
    """The model of *regions* made of *parts*, first to last: its own nodes, and what was written in place of others."""
    graph = regions.proto.graph
    protos: list[onnx.NodeProto] = []
    weights: dict[str, onnx.TensorProto] = {}
    for nodes, written in parts:
        protos += [node.proto for node in nodes] if written is None else written.nodes
        weights |= {name: tensor_of(name, array) for name, array in written.weights.items()} if written else {}
    reads = {name for nodes, written in parts if written is None for node in nodes for name in node.reads}
    reads |= set(regions.outputs)
    made = {name for node in protos for name in node.output}
    joined = helper.make_graph(
        protos,
        graph.name or "plan",
        [regions.infos[name] for name in regions.inputs],
        [regions.infos[name] for name in regions.outputs],
        initializer=[*(w for name, w in regions.weights.items() if name in reads), *weights.values()],
        sparse_initializer=[w for name, w in regions.sparse.items() if name in reads],
        value_info=[v for v in graph.value_info if v.name in made and v.name not in regions.outputs],
    )
    return helper.make_model(
        joined,
        functions=list(regions.proto.functions),
        opset_imports=[*opset, *imports(protos)],
        ir_version=regions.proto.ir_version,
    )
