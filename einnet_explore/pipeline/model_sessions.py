"""Sessions of ONNX Runtime for a model, or for some of its nodes as a model of their own."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TypeAlias

import onnx
import onnxruntime
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import helper, numpy_helper

from einnet_explore.onnx_import.model import Model, ModelNode, copy_message, list_nodes, replace_contents
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.onnx_fragment import (
    ONNXRUNTIME_ERRORS,
    Waiting,
    onnxruntime_message,
    opset_imports,
    register_custom_ops,
    session_options,
)
from einnet_explore.runtime.onnx_weights import (
    MIN_DECLARED_BYTES,
    NO_WEIGHTS,
    is_declared,
    open_lent,
)
from einnet_explore.support.errors import Refused
from einnet_explore.support.storage import temporary_folder

MIN_MAPPED_BYTES = 16 << 20
"""Bytes of weights from which on a session is reopened from files, whose weights are mapped."""

Border: TypeAlias = "tuple[tuple[str, ...], tuple[str, ...]]"
"""The names of the values that enter nodes of a model, and of those that leave them."""


def describe_nodes(nodes: Collection[ModelNode]) -> str:
    """Describe *nodes* in a message."""
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(f"{node.name} ({node.op})" for node in nodes)


class ModelRegions:
    """A model that declares weights, whose elements are *arrays*, indexed for the extraction of submodels."""

    def __init__(self, proto: onnx.ModelProto, arrays: Arrays = NO_WEIGHTS) -> None:
        self.proto, self.arrays = proto, arrays
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

    def border(self, nodes: Collection[ModelNode]) -> Border:
        """Return the values that *nodes* read from elsewhere (no weights), and their results that are used there."""
        made = {name for node in nodes for name in node.results}
        own = {node.name for node in nodes}
        reads = dict.fromkeys(name for node in nodes for name in node.reads)
        needed = {name for node in self.nodes if node.name not in own for name in node.reads} | set(self.outputs)
        inputs = tuple(name for name in reads if name not in made and not self.constant(name))
        return inputs, tuple(name for node in nodes for name in node.results if name in needed)

    def extract(self, nodes: Collection[ModelNode]) -> onnx.ModelProto:
        """Return *nodes*, in the order of the model, as a model from border to border, which declares weights."""
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
    weights: Arrays = NO_WEIGHTS,
) -> onnxruntime.InferenceSession:
    """Open *model* (or its path) in ONNX Runtime with all graph optimisations; raises Refused if that fails.

    It is lent those of *weights* that it declares.  *adjust* may change the options.  Messages name *nodes*, or *whole*
    for a model that is no part of another.
    """
    kernels = isinstance(model, onnx.ModelProto) and bool(opset_imports(model.graph.node))
    options = session_options(threads, waiting)
    if kernels:
        register_custom_ops(options)
    adjust(options)
    try:
        return open_lent(model, options, weights)
    except ONNXRUNTIME_ERRORS as error:
        where = describe_nodes(nodes) if nodes else whole
        raise Refused(f"{where}: ONNX Runtime refuses: {onnxruntime_message(error)}") from error


def run_session(
    session: onnxruntime.InferenceSession,
    outputs: Collection[str],
    feeds: Mapping[str, Array],
    stop: float = math.inf,
) -> Sequence[Array]:
    """Return *outputs* of *session* for *feeds*; raises Refused if the run fails, TimeoutError if it runs until *stop*.

    *stop* is a time of ``perf_counter``; the run ends after the node that is computed then.
    """
    if stop == math.inf:
        return _run(session, outputs, feeds, None)
    options = onnxruntime.RunOptions()
    timer = threading.Timer(stop - perf_counter(), setattr, (options, "terminate", True))
    timer.start()
    try:
        return _run(session, outputs, feeds, options)
    except Refused:
        if perf_counter() > stop:
            raise TimeoutError("the budget was reached") from None
        raise
    finally:
        timer.cancel()


def _run(
    session: onnxruntime.InferenceSession,
    outputs: Collection[str],
    feeds: Mapping[str, Array],
    options: onnxruntime.RunOptions | None,
) -> Sequence[Array]:
    try:
        return session.run(outputs, feeds, options)  # type: ignore[no-any-return]
    except ONNXRUNTIME_ERRORS as error:
        raise Refused(f"ONNX Runtime fails: {onnxruntime_message(error)}") from error


def subgraph_session(
    model: Model | onnx.ModelProto,
    node_names: Iterable[str],
    threads: int = 1,
    adjust: Callable[[onnxruntime.SessionOptions], object] = lambda options: None,
    rewrite: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda proto: proto,
) -> onnxruntime.InferenceSession:
    """Open a session of the nodes called *node_names*, unchanged: the original of a subprogram.

    Its inputs and outputs are the values that cross the group's border; it holds its weights.  *adjust* may change the
    options, and *rewrite* the nodes.  Raises Refused, with the nodes, if one is unknown, a border value has no known
    type, or ONNX Runtime refuses.
    """
    whole = (model.graph_proto, model.weights) if isinstance(model, Model) else (model,)
    regions = ModelRegions(*whole)
    nodes = regions.named(node_names)
    proto = rewrite(regions.extract(nodes))
    return open_session(proto, threads, nodes=nodes, adjust=adjust, weights=regions.arrays)


def is_quantised(nodes: Iterable[ModelNode]) -> bool:
    """Whether ONNX Runtime may compute *nodes* otherwise than as they are defined: by operators on quantised values."""
    return any(node.op == "DequantizeLinear" for node in nodes)


def keep_definitions(options: onnxruntime.SessionOptions) -> None:
    """Let a session compute nodes between ``DequantizeLinear`` and ``QuantizeLinear`` in floating point."""
    options.add_session_config_entry("session.disable_quant_qdq", "1")


def without_optimisations(options: onnxruntime.SessionOptions) -> None:
    """Set the *options* of a session that computes every node as it stands."""
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


_TRANSFORMED_INPUTS: Mapping[str, tuple[int, ...]] = MappingProxyType({"DFT": (0,), "STFT": (0, 2)})
"""The real inputs of Fourier transforms."""


def with_precise_transforms(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return *proto* with Fourier transforms in double precision.

    ONNX Runtime's error for lengths that are no power of 2 is of the order of 1e-4 of the largest result.
    """
    if not any(node.op_type in _TRANSFORMED_INPUTS and not node.domain for node in proto.graph.node):
        return proto
    out = copy_message(proto)
    nodes: list[onnx.NodeProto] = []
    for node in out.graph.node:
        reals = _TRANSFORMED_INPUTS.get(node.op_type, ()) if not node.domain else ()
        source, result = (node.input[0], node.output[0]) if reals else ("", "")
        for n in reals:
            if n < len(node.input) and node.input[n]:
                name = f"{result}/double{n}"
                nodes.append(helper.make_node("Cast", [node.input[n]], [name], to=onnx.TensorProto.DOUBLE))
                node.input[n] = name
        nodes.append(node)
        if reals:
            node.output[0] = f"{result}/double"
            nodes.append(helper.make_node("CastLike", [node.output[0], source], [result]))
    replace_contents(out.graph.node, [copy_message(node) for node in nodes])
    return out


def original_session(
    model: Model,
    threads: int,
    adjust: Callable[[onnxruntime.SessionOptions], object] = lambda options: None,
    rewrite: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda proto: proto,
) -> onnxruntime.InferenceSession:
    """Open the whole *model* as it was read; *adjust* may change the options, *rewrite* the nodes.  Raises Refused."""
    proto = rewrite(model.original_proto)
    return open_session(proto, threads, adjust=adjust, whole=model.path, weights=model.original_weights)


@dataclass(slots=True, eq=False, weakref_slot=True)
class ReopenedSession:
    """The session of the whole *model*, which the next run after ``rest`` opens again.

    ONNX Runtime copies weights several times when it opens a model.  So the optimised graph of a large one is written
    to temporary files at the second opening, whose weights this and later openings only map into memory.
    """

    model: Model
    threads: int
    _session: onnxruntime.InferenceSession | None = None
    _openings: int = 0
    _file: Path | None = None

    def open(self) -> onnxruntime.InferenceSession:
        """Return the session, opened if it is not open; raises Refused if ONNX Runtime refuses the model."""
        session = self._session
        if session is None:
            self._session = session = self._open()
        return session

    def rest(self) -> None:
        """Drop the session; a run in progress keeps it."""
        self._session = None

    def make_room(self) -> None:
        """Prepare for another session to be opened: open this one before, or drop it if the next run only maps it."""
        if self._is_mapped:
            self.rest()
        else:
            self.open()

    @property
    def _is_mapped(self) -> bool:
        return self._file is not None and self._file.exists()

    def _open(self) -> onnxruntime.InferenceSession:
        self._openings += 1
        if self._openings == 2 and _is_worth_a_file(self.model):
            self._file = self._write()
        if self._file is not None:
            with suppress(Refused):
                return open_session(str(self._file), self.threads, adjust=without_optimisations)
            self._file = None
        return original_session(self.model, self.threads)

    def _write(self) -> Path | None:
        """Write the optimised graph and its weights to files that are deleted with this object; None if that fails."""
        try:
            folder = temporary_folder()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            file, weights = folder / "model.onnx", folder / "weights"
            original_session(self.model, self.threads, partial(_write_optimised, file=file, weights=weights))
            graph = onnx.load_model(file, load_external_data=False).graph
            ends = [int(entry["offset"]) + int(entry["length"]) for entry in map(_external_data, graph.initializer)]
            return file if max(ends, default=0) <= weights.stat().st_size else None
        except (Refused, OSError, ValueError, KeyError, DecodeError):
            return None


_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _is_worth_a_file(model: Model) -> bool:
    """Whether *model* is large, and its session as fast with weights that are mapped from a file."""
    nbytes = sum(array.nbytes for array in model.original_weights.values())
    return nbytes >= MIN_MAPPED_BYTES and maps_files_as_fast()


def maps_files_as_fast() -> bool:
    """Whether mapped files are read as fast here as other memory.

    Where the system backs all memory by large pages, files that are mapped have none.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        return "[always]" not in _LARGE_PAGES.read_text()
    except OSError:
        return True


def _write_optimised(options: onnxruntime.SessionOptions, file: Path, weights: Path) -> None:
    """Let a session made with *options* write its graph to *file*, and elements to *weights* in the same folder."""
    options.optimized_model_filepath = str(file)
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights.name)
    least = str(MIN_DECLARED_BYTES)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", least)


def _external_data(tensor: onnx.TensorProto) -> Mapping[str, str]:
    """Return where the elements of *tensor* lie; raises KeyError or ValueError where a field is missing or wrong."""
    if not is_declared(tensor):
        return {"offset": "0", "length": "0"}
    return {entry.key: entry.value for entry in tensor.external_data}


def run_definition(
    model: Model,
    feeds: Mapping[str, Array],
    adjust: Callable[[onnxruntime.SessionOptions], object] = keep_definitions,
) -> dict[str, Array]:
    """Return the outputs of *model* for *feeds*, with quantised nodes as they are defined, or as *adjust* says.

    Fourier transforms are in double precision.
    """
    session = original_session(model, 1, adjust, with_precise_transforms)
    names = [value.name for value in model.outputs]
    return dict(zip(names, run_session(session, names, feeds), strict=True))


def constant_array(regions: ModelRegions, name: str) -> Array:
    """Return the weight *name*, an output of the model."""
    if name in regions.sparse:
        raise Refused(f"graph output {name}: found a sparse weight, expected a node's result")
    return regions.arrays[name] if name in regions.arrays else numpy_helper.to_array(regions.weights[name])
