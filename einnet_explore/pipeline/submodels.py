"""ONNX models in sessions: any set of a model's nodes from border to border, and programs in standard operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from einnet_explore.cost import program_seconds
from einnet_explore.ir import Program
from einnet_explore.onnx_export.lowering import EXPORT_OPSET, IR_VERSION, to_onnx
from einnet_explore.onnx_import.model import Model, ModelNode, list_nodes
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.onnx_fragment import (
    ONNXRUNTIME_ERRORS,
    Waiting,
    opset_imports,
    register_custom_ops,
    session_options,
)
from einnet_explore.strategies.engine import Search
from einnet_explore.strategies.events import Found
from einnet_explore.strategies.options import Options
from einnet_explore.support.errors import Refused


def describe_nodes(nodes: Collection[ModelNode]) -> str:
    """Describe *nodes* in a message."""
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(f"{node.name} ({node.op})" for node in nodes)


class ModelRegions:
    """A model, indexed for the extraction of submodels."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        graph = proto.graph
        self.nodes = list_nodes(graph)
        self.weights = {w.name: w for w in graph.initializer}
        self.sparse = {w.values.name: w for w in graph.sparse_initializer}
        self.inputs = tuple(v.name for v in graph.input if v.name not in self.weights)
        self.outputs = tuple(v.name for v in graph.output)
        self.infos = {v.name: v for v in (*graph.value_info, *graph.output, *graph.input)}

    def constant(self, name: str) -> bool:
        """Whether *name* is a weight."""
        return name in self.weights or name in self.sparse

    def named(self, names: Iterable[str]) -> tuple[ModelNode, ...]:
        """The nodes called *names*, in the order of the model; raises Refused for one that it does not have."""
        wanted = set(names)
        if unknown := wanted - {node.name for node in self.nodes}:
            raise Refused(f"node {', '.join(sorted(unknown))}: found no such node, expected one of the model's")
        return tuple(node for node in self.nodes if node.name in wanted)

    def border(self, nodes: Collection[ModelNode]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the values that *nodes* read from elsewhere (no weights), and their results that are used there."""
        made = {name for node in nodes for name in node.results}
        own = {node.name for node in nodes}
        reads = dict.fromkeys(name for node in nodes for name in node.reads)
        needed = {name for node in self.nodes if node.name not in own for name in node.reads} | set(self.outputs)
        inputs = tuple(name for name in reads if name not in made and not self.constant(name))
        return inputs, tuple(name for node in nodes for name in node.results if name in needed)

    def extract(self, nodes: Collection[ModelNode]) -> onnx.ModelProto:
        """Return *nodes*, in the order of the model, as a model from border to border."""
        inputs, outputs = self.border(nodes)
        if not outputs:
            raise Refused(f"{describe_nodes(nodes)}: found no value that is used elsewhere, expected one")
        reads = {name for node in nodes for name in node.reads} | set(outputs)
        if untyped := [name for name in inputs if name not in self.infos]:
            raise Refused(
                f"{describe_nodes(nodes)}: found no type for {', '.join(untyped)}, expected one from shape inference"
            )
        graph = helper.make_graph(
            [node.proto for node in nodes],
            self.proto.graph.name or "region",
            [self.infos[name] for name in inputs],
            [self.infos.get(name) or onnx.ValueInfoProto(name=name) for name in outputs],
            initializer=[w for name, w in self.weights.items() if name in reads],
            sparse_initializer=[w for name, w in self.sparse.items() if name in reads],
            value_info=[v for v in self.proto.graph.value_info if v.name in reads and v.name not in outputs],
        )
        return helper.make_model(
            graph,
            functions=list(self.proto.functions),
            opset_imports=list(self.proto.opset_import),
            ir_version=self.proto.ir_version,
        )


def open_session(
    model: onnx.ModelProto | bytes | str,
    threads: int,
    waiting: Waiting = "spin",
    nodes: Collection[ModelNode] = (),
    adjust: Callable[[onnxruntime.SessionOptions], object] = lambda options: None,
    whole: str = "the model",
) -> onnxruntime.InferenceSession:
    """Open *model* (or its path) in ONNX Runtime with all graph optimisations; raises Refused if that fails.

    *adjust* may change the options.  Messages name *nodes*, or *whole* for a model that is no part of another.
    """
    kernels = isinstance(model, onnx.ModelProto) and bool(opset_imports(model.graph.node))
    options = session_options(threads, waiting)
    if kernels:
        register_custom_ops(options)
    adjust(options)
    try:
        held = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
        return onnxruntime.InferenceSession(held, options, providers=["CPUExecutionProvider"])
    except ONNXRUNTIME_ERRORS as error:
        where = describe_nodes(nodes) if nodes else whole
        raise Refused(f"{where}: ONNX Runtime refuses: {str(error).strip()}") from error


def run_session(
    session: onnxruntime.InferenceSession, outputs: Collection[str], feeds: Mapping[str, Array]
) -> Sequence[Array]:
    """Return *outputs* of *session* for *feeds*; raises Refused if the run fails."""
    try:
        return session.run(outputs, feeds)  # type: ignore[no-any-return]
    except ONNXRUNTIME_ERRORS as error:
        raise Refused(f"ONNX Runtime fails: {str(error).strip()}") from error


def subgraph_session(
    model: Model | onnx.ModelProto, node_names: Iterable[str], threads: int = 1
) -> onnxruntime.InferenceSession:
    """Open a session of the nodes called *node_names*, unchanged: the original of a subprogram.

    Its inputs and outputs are the values that cross the group's border; it holds its weights.  Raises Refused, with the
    nodes, if one is unknown, a border value has no known type, or ONNX Runtime refuses.
    """
    regions = ModelRegions(_proto(model))
    nodes = regions.named(node_names)
    return open_session(regions.extract(nodes), threads, nodes=nodes)


def random_model_inputs(of: Model | onnx.ModelProto | onnxruntime.InferenceSession, seed: int = 0) -> dict[str, Array]:
    """Return arrays for every input, equal for equal *seed*: reals from N(0, 1), integers 0 and 1, truth values.

    Raises Refused for an input without static shape, or one that is no tensor of numbers.
    """
    rng = np.random.default_rng(seed)
    return {name: _random(name, dtype, shape, rng) for name, dtype, shape in _signature(of)}


def _random(name: str, dtype: np.dtype | None, shape: tuple[object, ...], rng: np.random.Generator) -> Array:
    sizes = [n for n in shape if isinstance(n, int)]
    if len(sizes) < len(shape):
        raise Refused(f"input {name}: found shape {list(shape)}, expected static dimensions")
    match dtype.kind if dtype is not None else "":
        case "f":
            return np.asarray(rng.standard_normal(sizes), dtype)  # of rank 0 it is an array too
        case "i" | "u":
            return np.asarray(rng.integers(0, 2, sizes), dtype)
        case "b":
            return np.asarray(rng.integers(0, 2, sizes), np.bool_)
    raise Refused(f"input {name}: found type {dtype or 'unknown'}, expected a tensor of numbers")


_ORT_TYPES: Mapping[str, str] = {"float": "float32", "double": "float64"}


def _signature(
    of: Model | onnx.ModelProto | onnxruntime.InferenceSession,
) -> Iterable[tuple[str, np.dtype | None, tuple[object, ...]]]:
    match of:
        case Model(inputs=inputs):
            for value in inputs:
                yield value.name, value.dtype, ("?",) if value.shape is None else value.shape
        case onnx.ModelProto():
            regions = ModelRegions(of)
            for name in regions.inputs:
                tensor = regions.infos[name].type.tensor_type
                dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim)
                yield name, _numpy(tensor.elem_type), dims
        case _:
            for entry in of.get_inputs():
                kind = entry.type.removeprefix("tensor(").removesuffix(")")
                try:
                    dtype = np.dtype(_ORT_TYPES.get(kind, kind))
                except TypeError:
                    dtype = None
                yield entry.name, dtype, tuple(entry.shape)


def _numpy(code: int) -> np.dtype | None:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(code))
    except KeyError:
        return None


def _proto(model: Model | onnx.ModelProto) -> onnx.ModelProto:
    return model.proto if isinstance(model, Model) else model


MAX_LIBRARY_FORMS = 4
"""Forms in library operators that are tried in addition to the program as written."""


def library_forms(program: Program) -> Iterable[Program]:
    """Yield *program* as written, then in library operators, cheapest first; nothing is derived.

    A program whose equations are all instantiated has no other form.
    """
    yield program
    if all(e.via for e in program.equations):
        return
    search = Search(program, program_seconds, Options(max_depth=0))
    found = sorted(((e.seconds, e.state.program) for e in search.run() if isinstance(e, Found)), key=lambda f: f[0])
    yield from (written for _, written in found[:MAX_LIBRARY_FORMS])


def program_model(program: Program, constants: Arrays) -> onnx.ModelProto:
    """Return *program* as an ONNX model with its own input and output names and its weights; raises Refused."""
    names = {t.name: t.name for t in program.inputs if t.name not in constants}
    shapes = {e.name: e.scope.shape for e in program.equations if e.name in program.outputs}
    made = to_onnx(program, names | {name: name for name in shapes}, constants, "v__")
    graph = helper.make_graph(
        made.nodes,
        "program",
        [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.shape) for t in program.inputs if t.name in names],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in program.outputs],
        initializer=made.initialisers,
    )
    imports = [helper.make_opsetid("", EXPORT_OPSET), *(helper.make_opsetid(f.domain, 1) for f in made.functions[:1])]
    return helper.make_model(graph, functions=made.functions, opset_imports=imports, ir_version=IR_VERSION)


def compile_in_onnxruntime(program: Program, constants: Arrays, threads: int) -> Callable[[Arrays], Arrays]:
    """Return *program* as a function that ONNX Runtime runs; raises Refused."""
    session = open_session(program_model(program, constants), threads)
    outputs = list(program.outputs)
    return lambda inputs: dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))
