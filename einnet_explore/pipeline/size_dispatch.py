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

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.analysis.batches import BatchAxis
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
        axes = self.independence.inputs
        return {
            name: BatchAxis(axes[name], size).single(shape) if name in axes else shape
            for name, shape in self.shapes.items()
        }


def chunk_starts(chunks: Sequence[int]) -> list[int]:
    """Return the first row of each of *chunks*."""
    return list(accumulate(chunks, initial=0))[:-1]


LOOP_OPSET = 13
"""The first operator set in which a loop may collect a sequence of chunks."""


def with_declared_sizes(model: Model) -> onnx.ModelProto:
    """Return the original of *model* with the declared dimensions of its inputs."""
    proto = copy_message(model.original)
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
    sizes = names.fresh("sizes")
    nodes, weights = _concatenate_sizes(sorted(model.dynamic), sizes, names), list[onnx.TensorProto]()
    chosen = _branch(original.graph, {}, names)
    graphs = {tuple(sorted(shapes.items())): proto.graph for (shapes, _), proto in zip(plans, protos, strict=False)}
    for chunking in chunkings if opset(original) >= LOOP_OPSET else ():
        chosen = _Chunks(model, chunking, graphs, names).choice(sizes, chosen)
    for (shapes, _), proto in reversed(list(zip(plans, protos[:-1], strict=True))):
        wanted = [size for name in sorted(model.dynamic) for size in shapes[name]]
        weights.append(numpy_helper.from_array(np.array(wanted, np.int64), names.fresh("sizes of a plan")))
        test = names.fresh("has the sizes of a plan")
        nodes += _compare_sizes(sizes, weights[-1].name, test, names)
        branch = _branch(proto.graph, {name: shapes[name] for name in model.dynamic}, names)
        chosen = _choice(test, branch, chosen, names)
    *first, choice = chosen.node
    choice.output[:] = [value.name for value in original.graph.output]
    nodes += first
    weights += chosen.initializer
    given = [value for value in original.graph.input if value.name not in {w.name for w in original.graph.initializer}]
    graph = helper.make_graph([*nodes, choice], "sizes", given, list(original.graph.output), weights)
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


def _concatenate_sizes(inputs: Sequence[str], sizes: str, names: _FreshNames) -> list[onnx.NodeProto]:
    """Return nodes that make *sizes*, those of *inputs* one after the other."""
    each = [names.fresh(f"sizes of {name}") for name in inputs]
    shapes = [helper.make_node("Shape", [name], [own]) for name, own in zip(inputs, each, strict=True)]
    return [*shapes, helper.make_node("Concat", each, [sizes], axis=0)]


def _compare_sizes(sizes: str, wanted: str, result: str, names: _FreshNames) -> list[onnx.NodeProto]:
    """Return nodes that make *result*, whether *sizes* are those *wanted*."""
    same, numbers, least = (names.fresh(f"{result}: {what}") for what in ("each", "numbers", "least"))
    return [
        helper.make_node("Equal", [sizes, wanted], [same]),
        helper.make_node("Cast", [same], [numbers], to=TensorProto.INT32),
        helper.make_node("ReduceMin", [numbers], [least], keepdims=0),
        helper.make_node("Cast", [least], [result], to=TensorProto.BOOL),
    ]


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The writer of a loop over the chunks of *chunking*, which *graphs* run, by the shapes of their inputs."""

    model: Model
    chunking: Chunking
    graphs: Mapping[tuple[tuple[str, Shape], ...], onnx.GraphProto]
    names: _FreshNames

    def choice(self, sizes: str, otherwise: onnx.GraphProto) -> onnx.GraphProto:
        """Return a branch that runs chunks if *sizes*, those of all dynamic inputs, have some."""
        axes, dynamic = self.chunking.independence.inputs, sorted(self.model.dynamic)
        is_here = [n == axes.get(name) for name in dynamic for n in range(len(self.chunking.shapes[name]))]
        others = [0 if here else size for here, size in zip(is_here, self._flat(dynamic), strict=True)]
        most = max(self.chunking.chunks) + 1
        rows = [self.chunking.chunks.get(n, ()) for n in range(most)] + [()]
        longest = max(map(len, rows))
        tables = {
            "numbers of chunks": [len(row) for row in rows],
            "chunks": [[*row, *[0] * (longest - len(row))] for row in rows],
            "starts": [[*chunk_starts(row), *[0] * (longest - len(row))] for row in rows],
        }
        weights = {key: self._weight(key, values) for key, values in tables.items()}
        n, row, count, fits, some, test = map(self.names.fresh, ("size", "row", "chunk count", "fits", "some", "test"))
        wanted, moved = self.names.fresh("wanted sizes"), self.names.fresh("moved sizes")
        constants = [
            self._weight("place", is_here.index(True)), self._weight("last row", most), self._weight("none", 0),
            self._weight("places", [int(here) for here in is_here]), self._weight("other sizes", others),
        ]  # fmt: skip
        place, last, none, places, rest = (each.name for each in constants)
        nodes = [
            helper.make_node("Gather", [sizes, place], [n]),
            helper.make_node("Mul", [places, n], [moved]),
            helper.make_node("Add", [moved, rest], [wanted]),
            *_compare_sizes(sizes, wanted, fits, self.names),
            helper.make_node("Min", [n, last], [row]),
            helper.make_node("Gather", [weights["numbers of chunks"].name, row], [count]),
            helper.make_node("Greater", [count, none], [some]),
            helper.make_node("And", [fits, some], [test]),
        ]
        loop = self._loop(n, count, row, weights["chunks"].name, weights["starts"].name, otherwise.output)
        chosen = _choice(test, loop, otherwise, self.names)
        replace_contents(chosen.node, [*nodes, *chosen.node])
        chosen.initializer.extend([*weights.values(), *constants])
        return chosen

    def _loop(
        self, n: str, count: str, row: str, chunks: str, starts: str, outputs: Iterable[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """Return a branch that runs *count* chunks of an input of size *n* and joins their results."""
        fresh, results = self.names.fresh, self.chunking.independence.outputs
        number, going, still = fresh("number"), fresh("going"), fresh("still going")
        size, start, own, all_starts = fresh("chunk size"), fresh("start"), fresh("own chunks"), fresh("own starts")
        sizes = sorted({c for row_ in self.chunking.chunks.values() for c in row_})
        made = self._of_size(sizes[-1], n, start)
        for c in sizes[-2::-1]:
            test, wanted = fresh("is this size"), self._weight("this size", c)
            made = _choice(test, self._of_size(c, n, start), made, self.names)
            replace_contents(made.node, [helper.make_node("Equal", [size, wanted.name], [test]), *made.node])
            made.initializer.append(wanted)
        infos = [copy_message(value) for value in outputs]
        kinds = [value.type.tensor_type.elem_type for value in infos]
        before, after = [fresh("chunks before") for _ in infos], [fresh("chunks after") for _ in infos]
        body = [
            helper.make_node("Gather", [own, number], [size]),
            helper.make_node("Gather", [all_starts, number], [start]),
            helper.make_node("Identity", [going], [still]),
            *made.node,
            *(
                helper.make_node("SequenceInsert", [old, value.name], [new])
                for old, value, new in zip(before, made.output, after, strict=True)
            ),
        ]
        given = [
            helper.make_tensor_value_info(number, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            *(helper.make_tensor_sequence_value_info(v, kind, None) for v, kind in zip(before, kinds, strict=True)),
        ]
        carried = [helper.make_tensor_sequence_value_info(v, kind, None) for v, kind in zip(after, kinds, strict=True)]
        inner = helper.make_graph(
            body,
            "chunk",
            given,
            [helper.make_tensor_value_info(still, TensorProto.BOOL, []), *carried],
            list(made.initializer),
        )
        empty, full = [fresh("no chunks") for _ in infos], [fresh("all chunks") for _ in infos]
        nodes = [
            helper.make_node("Gather", [chunks, row], [own]),
            helper.make_node("Gather", [starts, row], [all_starts]),
            *(helper.make_node("SequenceEmpty", [], [v], dtype=kind) for v, kind in zip(empty, kinds, strict=True)),
            helper.make_node("Loop", [count, "", *empty], full, body=inner),
        ]
        weights = list[onnx.TensorProto]()
        for info, sequence, name in zip(infos, full, (value.name for value in self.model.outputs), strict=True):
            info.name = fresh(info.name)
            batch = results[name]
            if batch is None:
                weights.append(self._weight("first", 0))
                nodes.append(helper.make_node("SequenceAt", [sequence, weights[-1].name], [info.name]))
                continue
            joined, end = fresh("joined"), fresh("end")
            mine = [self._weight(*each) for each in (("from", [0]), ("axis", [batch.axis]), ("step", [batch.step]))]
            weights += mine
            nodes += [
                helper.make_node("ConcatFromSequence", [sequence], [joined], axis=batch.axis),
                helper.make_node("Mul", [n, mine[2].name], [end]),
                helper.make_node("Slice", [joined, mine[0].name, end, mine[1].name], [info.name]),
            ]
        return helper.make_graph(nodes, "chunks", [], infos, weights)

    def _of_size(self, chunk: int, n: str, start: str) -> onnx.GraphProto:
        """Return the plan of size *chunk* as a branch that reads the rows from *start*, the last one of *n* again."""
        shapes = self.chunking.shapes_at(chunk)
        graph = self.graphs[tuple(sorted(shapes.items()))]
        numbers, one = self._weight("numbers of rows", list(range(chunk))), self._weight("one", 1)
        beyond, last, rows = map(self.names.fresh, ("rows from start", "last row of all", "rows of the chunk"))
        first = [
            helper.make_node("Add", [numbers.name, start], [beyond]),
            helper.make_node("Sub", [n, one.name], [last]),
            helper.make_node("Min", [beyond, last], [rows]),
        ]
        read = {}
        for name, axis in self.chunking.independence.inputs.items():
            read[name] = self.names.fresh(f"chunk of {name}")
            first.append(helper.make_node("Gather", [name, rows], [read[name]], axis=axis))
        branch = _branch(graph, {name: shapes[name] for name in self.model.dynamic}, self.names, read)
        replace_contents(branch.node, [*first, *branch.node])
        branch.initializer.extend([numbers, one])
        for value in branch.output:
            value.type.tensor_type.ClearField("shape")  # the branches of other sizes have others
        return branch

    def _flat(self, inputs: Iterable[str]) -> list[int]:
        return [size for name in inputs for size in self.chunking.shapes[name]]

    def _weight(self, name: str, values: object) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(values, np.int64), self.names.fresh(name))


def _choice(test: str, then: onnx.GraphProto, otherwise: onnx.GraphProto, names: _FreshNames) -> onnx.GraphProto:
    """Return a branch that is *then* if *test* holds."""
    outputs = [copy_message(value) for value in otherwise.output]
    for value in outputs:
        value.name = names.fresh(value.name)
    node = helper.make_node("If", [test], [v.name for v in outputs], then_branch=then, else_branch=otherwise)
    return helper.make_graph([node], "other sizes", [], outputs)


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
