"""Models for several sizes: each plan at its own sizes, other sizes in chunks or by the original operators.

.. code-block:: text

    If(sizes of the inputs = those of the first plan, first plan, If(…, second plan, … If(chunks, Loop, original)))

Along a dimension in which the model is independent (``pipeline.batch_independence``), a size can be divided into chunks
that have plans; the last one may exceed the size, and its rows beyond it are copies of the last row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.onnx_import.load import convert_opset, inline_functions
from einnet_explore.onnx_import.model import Model, Shape, copy_message, opset, replace_contents, walk_graphs
from einnet_explore.pipeline.batch_independence import Independence
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, slots=True)
class Chunking:
    """The sizes of a dimension that run in *chunks*, given for each size as sizes of plans, in order.

    *shapes* are those of all inputs, at any size; *independence* has the place of the dimension in inputs and outputs.
    """

    shapes: Mapping[str, Shape]
    independence: Independence
    chunks: Mapping[int, tuple[int, ...]]

    def shapes_at(self, size: int) -> dict[str, Shape]:
        """Return the shapes of the inputs at a *size* of the dimension."""
        axes = self.independence.inputs.items()
        return {
            name: tuple(size if (name, n) in axes else old for n, old in enumerate(shape))
            for name, shape in self.shapes.items()
        }


def chunk_starts(chunks: Sequence[int]) -> list[int]:
    """Return the first row of each of *chunks*."""
    return list(accumulate(chunks, initial=0))[:-1]


LOOP_OPSET = 13
"""The first operator set in which a loop may collect a sequence of chunks."""


def with_declared_sizes(model: Model) -> onnx.ModelProto:
    """Return the original of *model* with the declared dimensions of its inputs."""
    proto = model.original
    for value in proto.graph.input:
        if value.name not in model.dynamic:
            continue
        for dim, size in zip(value.type.tensor_type.shape.dim, model.dynamic[value.name], strict=True):
            dim.Clear()
            if isinstance(size, int):
                dim.dim_value = size
            elif size is not None:
                dim.dim_param = size
    return proto


def dispatch_sizes(
    model: Model,
    plans: Sequence[tuple[Mapping[str, Shape], onnx.ModelProto]],
    chunkings: Sequence[Chunking] = (),
) -> onnx.ModelProto:
    """Return a model of the declared sizes of *model*: each plan at its shapes (by input), the original at others.

    Sizes of *chunkings* run in chunks by the plans, unless the operator set is older than ``LOOP_OPSET``.  Raises
    Refused if the plans and the original cannot have the same operator sets.
    """
    original = with_declared_sizes(model)
    if not plans:
        return original
    if opset(plans[0][1]) != opset(original):
        original = convert_opset(model.path, original)
    protos = [*(inline_functions(model.path, proto) for _, proto in plans), original]
    names = _FreshNames.of(protos)
    top = _Nodes(names)
    dynamic = sorted(model.dynamic)
    sizes = top.add("Concat", *(top.add("Shape", name) for name in dynamic), axis=0)
    chosen = _branch(original.graph, {}, names)
    graphs = {tuple(sorted(shapes.items())): proto.graph for (shapes, _), proto in zip(plans, protos, strict=False)}
    for chunking in chunkings if opset(original) >= LOOP_OPSET else ():
        chosen = _Chunks(model, chunking, graphs, names).choice(sizes, chosen)
    for (shapes, _), proto in reversed(list(zip(plans, protos[:-1], strict=True))):
        here = _Nodes(names)
        test = here.are_equal(sizes, here.constant([size for name in dynamic for size in shapes[name]]))
        chosen = here.choice(test, _branch(proto.graph, {name: shapes[name] for name in dynamic}, names), chosen)
    chosen.node[-1].output[:] = [value.name for value in original.graph.output]
    given = [value for value in original.graph.input if value.name not in {w.name for w in original.graph.initializer}]
    nodes, weights = [*top.nodes, *chosen.node], [*top.weights, *chosen.initializer]
    graph = helper.make_graph(nodes, "sizes", given, list(original.graph.output), weights)
    version = max(proto.ir_version for proto in protos)
    return helper.make_model(graph, opset_imports=_common_opsets(protos), ir_version=version)


@dataclass
class _FreshNames:
    """Names of values that no model has."""

    taken: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, protos: Iterable[onnx.ModelProto]) -> _FreshNames:
        graphs = [graph for proto in protos for graph in walk_graphs(proto.graph)]
        made = {name for graph in graphs for node in graph.node for name in node.output}
        values = {v.name for graph in graphs for v in (*graph.input, *graph.initializer)}
        return cls(made | values | {w.values.name for graph in graphs for w in graph.sparse_initializer})

    def fresh(self, stem: str) -> str:
        name = stem
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name


@dataclass(slots=True)
class _Nodes:
    """Nodes and constants of a graph in the making, with names that no model has."""

    names: _FreshNames
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        result = self.names.fresh(op)
        self.nodes.append(helper.make_node(op, list(inputs), [result], **attributes))
        return result

    def constant(self, values: object) -> str:
        """Add integers, and return their name."""
        self.weights.append(numpy_helper.from_array(np.array(values, np.int64), self.names.fresh("integers")))
        return self.weights[-1].name

    def are_equal(self, sizes: str, wanted: str) -> str:
        """Return the name of the truth value whether all *sizes* are those *wanted*."""
        each = self.add("Cast", self.add("Equal", sizes, wanted), to=TensorProto.INT32)
        return self.add("Cast", self.add("ReduceMin", each, keepdims=0), to=TensorProto.BOOL)

    def choice(self, test: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.GraphProto:
        """Return a branch of these nodes that is *then* if *test* holds."""
        outputs = [copy_message(value) for value in otherwise.output]
        for value in outputs:
            value.name = self.names.fresh(value.name)
        node = helper.make_node("If", [test], [v.name for v in outputs], then_branch=then, else_branch=otherwise)
        return helper.make_graph([*self.nodes, node], "other sizes", [], outputs, self.weights)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The writer of a loop over the chunks of *chunking*, which *graphs* run, by the shapes of their inputs."""

    model: Model
    chunking: Chunking
    graphs: Mapping[tuple[tuple[str, Shape], ...], onnx.GraphProto]
    names: _FreshNames

    def choice(self, sizes: str, otherwise: onnx.GraphProto) -> onnx.GraphProto:
        """Return a branch that runs chunks if *sizes*, those of all dynamic inputs, have some."""
        here, axes = _Nodes(self.names), self.chunking.independence.inputs
        places = [(name, n) for name in sorted(self.model.dynamic) for n in range(len(self.chunking.shapes[name]))]
        is_size = [axes.get(name) == n for name, n in places]
        others = [0 if own else self.chunking.shapes[name][n] for own, (name, n) in zip(is_size, places, strict=True)]
        most = max(self.chunking.chunks) + 1
        table = [self.chunking.chunks.get(n, ()) for n in range(most)] + [()]
        n = here.add("Gather", sizes, here.constant(is_size.index(True)))
        wanted = here.add("Add", here.add("Mul", here.constant(is_size), n), here.constant(others))
        row = here.add("Min", n, here.constant(most))
        count = here.add("Gather", here.constant([len(chunks) for chunks in table]), row)
        has_chunks = here.add("Greater", count, here.constant(0))
        test = here.add("And", here.are_equal(sizes, wanted), has_chunks)
        return here.choice(test, self._loop(n, count, row, table, otherwise.output), otherwise)

    def _loop(
        self,
        n: str,
        count: str,
        row: str,
        table: Sequence[tuple[int, ...]],
        outputs: Iterable[onnx.ValueInfoProto],
    ) -> onnx.GraphProto:
        """Return a branch that runs the *count* chunks in a *row* of *table* and joins the results for *n* elements."""
        here, infos = _Nodes(self.names), [copy_message(value) for value in outputs]
        longest = max(map(len, table))
        own, starts = (
            here.add("Gather", here.constant([[*cells, *[0] * (longest - len(cells))] for cells in rows]), row)
            for rows in (table, list(map(chunk_starts, table)))
        )
        kinds = [value.type.tensor_type.elem_type for value in infos]
        found = [here.add("SequenceEmpty", dtype=kind) for kind in kinds]
        fixed = [n, own, starts]
        unread = [self.names.fresh("unread") for _ in fixed]
        joined = [self.names.fresh("chunks") for _ in found]
        body = self._body(kinds)
        here.nodes.append(helper.make_node("Loop", [count, "", *fixed, *found], [*unread, *joined], body=body))
        for info, sequence, value in zip(infos, joined, self.model.outputs, strict=True):
            batch = self.chunking.independence.outputs[value.name]
            if batch is None:
                info.name = here.add("SequenceAt", sequence, here.constant(0))
                continue
            whole, end = (
                here.add("ConcatFromSequence", sequence, axis=batch.axis),
                here.add("Mul", n, here.constant([batch.step])),
            )
            info.name = here.add("Slice", whole, here.constant([0]), end, here.constant([batch.axis]))
        return helper.make_graph(here.nodes, "chunks", [], infos, here.weights)

    def _body(self, kinds: Sequence[int]) -> onnx.GraphProto:
        """Return the body of the loop: one chunk, whose results are appended to a sequence for each output.

        The number of elements, the chunks and their starts do not change.  They are inputs of the loop, since ONNX
        Runtime 1.31 crashes where it folds branches in branches whose loops read values around them.
        """
        here, fresh = _Nodes(self.names), self.names.fresh
        number, going, *fixed = map(fresh, ("number", "going", "elements", "sizes of chunks", "starts"))
        n, chunks, starts = fixed
        size, start = here.add("Gather", chunks, number), here.add("Gather", starts, number)
        least, *sizes = sorted({c for row in self.chunking.chunks.values() for c in row})
        made = self._plan(least, n, start)
        for c in sizes:
            inner = _Nodes(self.names)
            made = inner.choice(inner.add("Equal", size, inner.constant(c)), self._plan(c, n, start), made)
        here.nodes += made.node
        before = [fresh("chunks before") for _ in kinds]
        after = [here.add("SequenceInsert", old, new.name) for old, new in zip(before, made.output, strict=True)]
        still, *same = (here.add("Identity", value) for value in (going, *fixed))
        given, results = (
            [helper.make_tensor_sequence_value_info(v, kind, None) for v, kind in zip(values, kinds, strict=True)]
            for values in (before, after)
        )
        return helper.make_graph(
            here.nodes,
            "chunk",
            [
                helper.make_tensor_value_info(number, TensorProto.INT64, []),
                helper.make_tensor_value_info(going, TensorProto.BOOL, []),
                *_integers(fixed),
                *given,
            ],
            [helper.make_tensor_value_info(still, TensorProto.BOOL, []), *_integers(same), *results],
            [*here.weights, *made.initializer],
        )

    def _plan(self, chunk: int, n: str, start: str) -> onnx.GraphProto:
        """Return the plan of size *chunk* as a branch that reads the rows from *start*, the last one of *n* again."""
        here, shapes = _Nodes(self.names), self.chunking.shapes_at(chunk)
        last = here.add("Sub", n, here.constant(1))
        rows = here.add("Min", here.add("Add", here.constant(range(chunk)), start), last)
        read = {
            name: here.add("Gather", name, rows, axis=axis) for name, axis in self.chunking.independence.inputs.items()
        }
        graph = self.graphs[tuple(sorted(shapes.items()))]
        branch = _branch(graph, {name: shapes[name] for name in self.model.dynamic}, self.names, read)
        replace_contents(branch.node, [*here.nodes, *branch.node])
        branch.initializer.extend(here.weights)
        for value in branch.output:
            value.type.tensor_type.ClearField("shape")  # the branches of other sizes have others
        return branch


def _integers(names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    """Return a number, and two lists of numbers, of these *names*."""
    return [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape)
        for name, shape in zip(names, ([], [None], [None]), strict=True)
    ]


NOTHING: Mapping[str, str] = {}


def _branch(
    graph: onnx.GraphProto, shapes: Mapping[str, Shape], names: _FreshNames, read: Mapping[str, str] = NOTHING
) -> onnx.GraphProto:
    """Return *graph* as a branch, whose results have new names.

    It reads the model's inputs, or the values *read* in their place, as arrays of *shapes*.
    """
    branch = copy_message(graph)
    made = {name for node in graph.node for name in node.output}
    results = {value.name: names.fresh(value.name) for value in graph.output}
    new = {name: result for name, result in results.items() if name in made}
    first = list[onnx.NodeProto]()
    for name, shape in shapes.items():
        new[name], sizes = names.fresh(name), names.fresh(f"shape of {name}")
        branch.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), sizes))
        first.append(helper.make_node("Reshape", [read.get(name, name), sizes], [new[name]]))
    for each in walk_graphs(branch):
        for node in each.node:
            node.input[:] = [new.get(name, name) for name in node.input]
            node.output[:] = [new.get(name, name) for name in node.output]
        for value in (*each.output, *each.value_info):
            value.name = new.get(value.name, value.name)
    unmade = [name for name in results if name not in made]
    copies = [helper.make_node("Identity", [new.get(name, name)], [results[name]]) for name in unmade]
    for value, name in zip(branch.output, results.values(), strict=True):
        value.name = name
    replace_contents(branch.node, [*first, *branch.node, *copies])
    del branch.input[:]
    return branch


def _common_opsets(protos: Iterable[onnx.ModelProto]) -> list[onnx.OperatorSetIdProto]:
    versions: dict[str, int] = {}
    for entry in (entry for proto in protos for entry in proto.opset_import):
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if versions.setdefault(domain, entry.version) != entry.version:
            raise Refused(
                f"operator set {domain or 'ai.onnx'}: found version {versions[domain]} in a plan and {entry.version} "
                "in the model of other sizes, expected one that both can have"
            )
    return [helper.make_opsetid(domain, version) for domain, version in versions.items()]
