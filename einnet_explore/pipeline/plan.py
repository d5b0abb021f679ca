r"""Execution plans: compiled programs replace groups of a model's nodes, ONNX Runtime runs the others.

The nodes that stay run in as few sessions as the replaced groups allow: with

.. math::  s(n) = \max_{p \to n} \begin{cases} s(p) & p \text{ stays} \\ s(p) + 1 & p \text{ is replaced} \end{cases}

(groups take the largest *s* before them, -1 if there is none), all nodes of one *s* run in one session.  The longest
alternation along a path forces that many, so fewer are impossible.

If a session can run every compiled program (``runtime.onnx_fragment``), there is one session: original nodes and
programs are written into one graph, in which ONNX Runtime lays out memory and shares its threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from einnet_explore.onnx_export.export import Replacement, rewrite_graph
from einnet_explore.onnx_import.load import restore_folded_nodes
from einnet_explore.onnx_import.model import Model, ModelNode
from einnet_explore.pipeline.model_sessions import (
    Border,
    ModelRegions,
    ReopenedSession,
    constant_array,
    describe_nodes,
    open_session,
    run_session,
)
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.kernel_shapes import without_reshapes
from einnet_explore.runtime.onnx_fragment import (
    LOADED_KERNELS,
    FragmentWriter,
    KernelTable,
    Waiting,
    opset_imports,
    share_equal_weights,
)
from einnet_explore.runtime.onnx_weights import (
    DOMAIN,
    LARGE_PAGE_BYTES,
    LargePages,
    content_bytes,
    is_declared,
    lies_in_large_pages,
    weight_proto,
    with_elements,
)
from einnet_explore.runtime.program import CompiledProgram
from einnet_explore.support.errors import Refused


def check_disjoint(groups: Iterable[Collection[ModelNode]]) -> None:
    """Raise Refused if a group is empty or shares a node with another."""
    seen: set[str] = set()
    for nodes in groups:
        if not nodes:
            raise Refused("a group holds no node, expected at least one")
        if twice := seen & {node.name for node in nodes}:
            raise Refused(f"node {', '.join(sorted(twice))}: found in two groups, expected one")
        seen |= {node.name for node in nodes}


def execution_order(
    regions: ModelRegions, groups: Sequence[Collection[ModelNode]]
) -> list[tuple[int | None, tuple[ModelNode, ...]]]:
    """Return the groups (by number) and, between them, the nodes that stay (None) in as few sets as possible, in order.

    Raises Refused if a group is not convex.
    """
    member = {node.name: n for n, nodes in enumerate(groups) for node in nodes}
    maker = {name: node.name for node in regions.nodes for name in node.results}
    unit: dict[str, int | str] = {node.name: member.get(node.name, node.name) for node in regions.nodes}
    before: dict[int | str, set[int | str]] = {u: set() for u in unit.values()}
    for node in regions.nodes:
        found = {unit[maker[name]] for name in node.reads if name in maker}
        before[unit[node.name]] |= found - {unit[node.name]}
    try:
        order = tuple(TopologicalSorter(before).static_order())
    except CycleError as error:
        cycle = " <- ".join(_describe_unit(u, groups) for u in error.args[1])
        raise Refused(f"found a cycle {cycle}, expected convex groups") from None
    rank: dict[int | str, int] = {}
    for u in order:
        stays = [rank[p] for p in before[u] if isinstance(p, str)]
        replaced = [rank[p] for p in before[u] if isinstance(p, int)]
        rank[u] = (
            max((*stays, *replaced), default=-1) if isinstance(u, int) else max((0, *stays, *(r + 1 for r in replaced)))
        )
    live = _needed_nodes(regions)
    out: list[tuple[int | None, tuple[ModelNode, ...]]] = []
    place = {node.name: n for n, node in enumerate(regions.nodes)}
    for s in range(-1, max(rank.values(), default=-1) + 1):
        # A group with no original node before it must not wait for a session.
        staying = [u for u in order if isinstance(u, str) and rank[u] == s and u in live]
        nodes = sorted(staying, key=place.__getitem__)
        if nodes:
            out.append((None, regions.named(nodes)))
        out.extend((u, tuple(groups[u])) for u in order if isinstance(u, int) and rank[u] == s)
    return out


def _needed_nodes(regions: ModelRegions) -> set[str]:
    """Return the nodes that some output needs."""
    needed = set(regions.outputs)
    live = set()
    for node in reversed(regions.nodes):
        if not needed.isdisjoint(node.results):
            live.add(node.name)
            needed.update(node.reads)
    return live


def _describe_unit(unit: int | str, groups: Sequence[Collection[ModelNode]]) -> str:
    return unit if isinstance(unit, str) else "{" + ", ".join(node.name for node in groups[unit]) + "}"


@dataclass(frozen=True, eq=False)
class ProgramCall:
    """A compiled *program* in a plan; *names* maps its inputs and outputs to values of the model."""

    program: CompiledProgram
    names: Mapping[str, str]

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the values that leave the group from those that enter it; raises Refused if an engine fails."""
        given = {name: arrays[self.names[name]] for name in self.program.contexts.inputs}
        try:
            made = self.program.run(given)
        except Exception as error:  # every engine has classes of its own for its failures
            makes = ", ".join(self.names[name] for name in self.program.program.outputs)
            raise Refused(f"the program of {makes}: {type(error).__name__}: {error}") from error
        return {self.names[name]: array for name, array in made.items()}

    def write(
        self, model: Model, nodes: Sequence[ModelNode], outputs: Sequence[str], prefix: str, table: KernelTable
    ) -> FragmentWriter:
        """Return the program as nodes that read and write the model's values; raises Refused if it has to be called.

        It has to be called if a session cannot run one of its kernels, a value has another type than in the program, or
        the program does not compute all *outputs* of the group.
        """
        program = self.program.program
        types = {t.name: t.dtype for t in (*program.inputs, *(e.tensor for e in program.equations))}
        used = (*self.program.contexts.inputs, *program.outputs)
        values = [self.names[name] for name in used]
        for name, value in zip(used, values, strict=True):
            found = model.values[value].dtype if value in model.values else None
            if found != np.dtype(types[name]):
                raise Refused(f"value {value} is {found}, expected {types[name]} as in the program")
        if missing := set(outputs) - set(values):
            raise Refused(f"the program does not compute {', '.join(sorted(missing))}")
        written = self.program.write(self.names, prefix, table)
        if written is None:
            raise Refused("a session cannot run a kernel of the program")
        return written


def splice_model(
    regions: ModelRegions,
    parts: Sequence[tuple[Sequence[ModelNode], FragmentWriter | None]],
    opset: Sequence[onnx.OperatorSetIdProto],
    border: Border,
) -> PlanModel:
    """Build a model from *parts* of *regions*, in order: original nodes, or the nodes written in their place.

    *border* has the names of its inputs and outputs.
    """
    graph = regions.proto.graph
    protos: list[onnx.NodeProto] = []
    weights: dict[str, Array] = {}
    for nodes, written in parts:
        protos += [node.proto for node in nodes] if written is None else written.nodes
        weights |= {} if written is None else written.weights
    protos = without_reshapes(protos, _static_shapes(regions), {**_small_constants(regions), **weights}, border[1])
    reads = {name for nodes, written in parts if written is None for node in nodes for name in node.reads}
    reads |= set(border[1])
    needed = {*border[1], *(name for node in protos for name in node.input)}
    weights = {name: array for name, array in weights.items() if name in needed}
    made = {name for node in protos for name in node.output}
    joined = helper.make_graph(
        protos,
        graph.name or "plan",
        [regions.infos[name] for name in border[0]],
        [regions.infos[name] for name in border[1]],
        initializer=[
            *(w for name, w in regions.weights.items() if name in reads),
            *(weight_proto(name, array) for name, array in weights.items()),
        ],
        sparse_initializer=[w for name, w in regions.sparse.items() if name in reads],
        value_info=[v for v in graph.value_info if v.name in made and v.name not in border[1]],
    )
    proto = helper.make_model(
        joined,
        functions=list(regions.proto.functions),
        opset_imports=[*opset, *opset_imports(protos)],
        ir_version=regions.proto.ir_version,
    )
    return PlanModel(proto, {**{name: a for name, a in regions.arrays.items() if name in reads}, **weights})


def _static_shapes(regions: ModelRegions) -> dict[str, tuple[int, ...]]:
    """Return the shapes of values of *regions* whose dimensions are all numbers."""
    found = {}
    for name, info in regions.infos.items():
        dims = info.type.tensor_type.shape.dim
        if info.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[name] = tuple(d.dim_value for d in dims)
    return found


def _small_constants(regions: ModelRegions) -> dict[str, Array]:
    """Return the constants of *regions* whose elements are in the graph, as shapes are."""
    return {name: numpy_helper.to_array(w) for name, w in regions.weights.items() if not is_declared(w)}


@dataclass(frozen=True, eq=False)
class PlanModel:
    """A plan as one model, the *weights* that it declares, and why groups *stay* as they were in the model."""

    proto: onnx.ModelProto
    weights: Arrays = field(default_factory=dict)
    stay: Mapping[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def whole(self) -> onnx.ModelProto:
        """A copy of the model with the elements of all weights."""
        return with_elements(self.proto, self.weights)

    @property
    def lent_weights(self) -> Arrays:
        """The weights for a session: those that kernels read, if they fill a large page, are in large pages."""
        kernels = {name for node in self.proto.graph.node if node.domain == DOMAIN for name in node.input}
        read = {name: array for name, array in self.weights.items() if name in kernels}
        if sum(array.nbytes for array in read.values()) < LARGE_PAGE_BYTES:
            return self.weights
        pages = LargePages()
        return {**self.weights, **{n: a if lies_in_large_pages(a) else pages.copy(a) for n, a in read.items()}}


GroupRun: TypeAlias = "Callable[[Mapping[str, Array]], Mapping[str, Array]]"
"""Computes a group: the values that leave it from those that enter it, by value name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One step of a plan: its *nodes*, the values that it reads and writes, and those that are *dropped* after it."""

    nodes: tuple[str, ...]
    replaced: bool = False
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    run: Callable[[dict[str, Array]], Sequence[Array]] = field(repr=False)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExecutionPlan:
    """A model as segments in order.  ``run`` may be called from several threads at once."""

    segments: tuple[Segment, ...]
    inputs: Mapping[str, np.dtype | None]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array] = field(repr=False)
    threads: int = 1
    model_with: Callable[[KernelTable], PlanModel] = field(repr=False, kw_only=True)
    """Writes the plan as one model whose kernels are those of a table.

    It holds the compiled programs, with their weights: while this plan exists the next one does not compile them again.
    """
    host: str = ""
    """The host that runs *hosted* nodes; empty if ONNX Runtime runs all that are not replaced."""
    hosted: tuple[str, ...] = ()
    rest: Callable[[], None] = field(default=lambda: None, repr=False)
    """Frees the memory of a session that can be reopened: ONNX Runtime keeps the most that any run took."""
    make_room: Callable[[], None] = field(default=lambda: None, repr=False)
    """Prepares for another plan, with which this one is compared: the session is opened before, which takes twice its
    memory, or it rests until then, if the next run only maps its weights from a file."""

    @property
    def sessions(self) -> int:
        """The number of ONNX Runtime sessions."""
        return sum(not segment.replaced for segment in self.segments)

    def run(self, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
        """Return the outputs of the model by name; raises ValueError if an input is missing.

        An input of another type is converted; an array is freed as soon as no later segment reads it.
        """
        arrays: dict[str, Array] = dict(self.constants)
        for name, dtype in self.inputs.items():
            if name not in inputs:
                raise ValueError(f"input {name} is missing, given {', '.join(inputs) or 'none'}")
            arrays[name] = np.asarray(inputs[name], dtype)
        for segment in self.segments:
            arrays.update(zip(segment.outputs, segment.run(arrays), strict=True))
            for name in segment.dropped:
                del arrays[name]
        return {name: arrays[name] for name in self.outputs}


def build_plan(
    model: Model, replacements: Mapping[tuple[str, ...], GroupRun] | None = None, threads: int = 1
) -> ExecutionPlan:
    """Return the plan of *model* in which each group of nodes (by name) is run by its callable, others by ONNX Runtime.

    A callable maps the values that enter its group to those that leave it, by value name; it holds its weights.
    Without replacements the plan is one session on the model as it was read.  Raises Refused, naming nodes, for a group
    that is unknown, shares a node with another or is not convex, and for a region that ONNX Runtime refuses; a run
    raises it if a group lacks a result.
    """
    given = {v.name: v.dtype for v in model.inputs}
    names = tuple(v.name for v in model.outputs)
    if not replacements:
        session = ReopenedSession(model, threads)
        session.open()
        segment = _whole_segment(model, session, names)
        original = PlanModel(model.original_proto, model.original_weights)
        return ExecutionPlan(
            (segment,),
            given,
            names,
            {},
            threads,
            model_with=lambda _: original,
            rest=session.rest,
            make_room=session.make_room,
        )
    parts = order_parts(model, replacements)
    with suppress(Refused):  # groups that a session cannot run are called between sessions
        segment = _join_in_one_session(parts, threads)
        return ExecutionPlan((segment,), given, names, {}, threads, model_with=parts.model_with)
    segments, regions = [], parts.regions
    for group, nodes in parts.order:
        if group is None:
            segments.append(_session_segment(regions, nodes, threads))
        else:
            segments.append(_group_segment(model, regions, nodes, parts.runs[group]))
    constants = {name: constant_array(regions, name) for name in names if regions.constant(name)}
    return ExecutionPlan(_drop_unread(segments, names), given, names, constants, threads, model_with=parts.model_with)


@dataclass(frozen=True, eq=False)
class PlanParts:
    """The parts of a plan of *model* in order: replaced groups by number, and the nodes that stay (None).

    *border* has the values that enter and leave them.
    """

    model: Model
    regions: ModelRegions
    order: Sequence[tuple[int | None, tuple[ModelNode, ...]]]
    runs: Mapping[int, GroupRun]
    border: Border

    def part(self, order: Sequence[tuple[int | None, tuple[ModelNode, ...]]]) -> PlanParts:
        """Return those of the parts that are in *order*; raises Refused for a border value of unknown type."""
        border = self.regions.border([node for _, nodes in order for node in nodes])
        if untyped := [name for names in border for name in names if name not in self.regions.infos]:
            raise Refused(f"found no type for {', '.join(untyped)}, expected one from shape inference")
        return replace(self, order=order, border=border)

    def model_with(self, table: KernelTable) -> PlanModel:
        """Return the parts as one model; groups that a session cannot run with *table* stay as they were."""
        written: list[tuple[tuple[ModelNode, ...], FragmentWriter | None]] = []
        stay: dict[tuple[str, ...], str] = {}
        for group, nodes in self.order:
            try:
                written.append((nodes, self._write_group(group, nodes, table)))
            except Refused as why:
                written.append((nodes, None))
                stay[tuple(node.name for node in nodes)] = str(why)
        share_equal_weights(made for _, made in written if made is not None)
        made = splice_model(self.regions, written, self.regions.proto.opset_import, self.border)
        return replace(made, stay=stay)

    def _write_group(
        self, group: int | None, nodes: tuple[ModelNode, ...], table: KernelTable
    ) -> FragmentWriter | None:
        """Write the program of a replaced *group* as nodes; None for nodes that stay.  Raises Refused.

        Programs are written in ONNX's latest operators, which the model's own operator set may not have.
        """
        if group is None:
            return None
        run = self.runs[group]
        if not isinstance(run, ProgramCall):
            raise Refused(f"group {group} is a callable")
        prefix = f"{_free_prefix(self.regions)}{group}/"
        return run.write(self.model, nodes, self.regions.border(nodes)[1], prefix, table)


def order_parts(model: Model, replacements: Mapping[tuple[str, ...], GroupRun]) -> PlanParts:
    """Return the parts of the plan in which *replacements* run groups of nodes (by name).

    Raises Refused, naming nodes, for a group that is unknown, shares a node with another or is not convex.
    """
    regions = ModelRegions(model.graph_proto, model.weights)
    groups = tuple((regions.named(group), run) for group, run in replacements.items())
    check_disjoint(nodes for nodes, _ in groups)
    order = execution_order(regions, [nodes for nodes, _ in groups])
    runs = dict(enumerate(run for _, run in groups))
    return PlanParts(model, regions, order, runs, (regions.inputs, regions.outputs))


def _join_in_one_session(parts: PlanParts, threads: int) -> Segment:
    session = open_parts(parts, threads)
    feeds, outputs = tuple(v.name for v in session.get_inputs()), parts.regions.outputs

    def run_all(values: dict[str, Array]) -> Sequence[Array]:
        return run_session(session, outputs, {name: values[name] for name in feeds})

    nodes = tuple(node.name for _, group in parts.order for node in group)
    return Segment(nodes=nodes, inputs=feeds, outputs=outputs, run=run_all)


def open_parts(parts: PlanParts, threads: int, waiting: Waiting = "spin") -> onnxruntime.InferenceSession:
    """Open all *parts* in one session; raises Refused if a session cannot run some group."""
    made = parts.model_with(LOADED_KERNELS)
    if made.stay:
        raise Refused(next(iter(made.stay.values())))
    if made.proto.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise Refused(f"the plan's model has {made.proto.ByteSize()} bytes, more than {onnx.checker.MAXIMUM_PROTOBUF}")
    return open_session(made.proto, threads, waiting, weights=made.lent_weights)


def _free_prefix(regions: ModelRegions) -> str:
    """Return a prefix that no value name of the model has."""
    names = {name for node in regions.nodes for name in (*node.reads, *node.results)}
    prefix = "/"
    while any(name.startswith(prefix) for name in names):
        prefix += "/"
    return prefix


def _whole_segment(model: Model, held: ReopenedSession, outputs: tuple[str, ...]) -> Segment:
    feeds = tuple(v.name for v in held.open().get_inputs())

    def run(values: dict[str, Array]) -> Sequence[Array]:
        return held.open().run(outputs, {name: values[name] for name in feeds})  # type: ignore[no-any-return]

    return Segment(nodes=tuple(node.name for node in model.nodes), inputs=feeds, outputs=outputs, run=run)


def _session_segment(regions: ModelRegions, nodes: tuple[ModelNode, ...], threads: int) -> Segment:
    part = regions.extract(nodes)
    session = open_session(part, threads, waiting="sleep", nodes=nodes, weights=regions.arrays)
    feeds = tuple(v.name for v in part.graph.input)
    outputs = tuple(v.name for v in part.graph.output)

    def run(held: dict[str, Array]) -> Sequence[Array]:
        return run_session(session, outputs, {name: held[name] for name in feeds})

    return Segment(nodes=tuple(node.name for node in nodes), inputs=feeds, outputs=outputs, run=run)


def _group_segment(model: Model, regions: ModelRegions, nodes: tuple[ModelNode, ...], call: GroupRun) -> Segment:
    inputs, outputs = regions.border(nodes)
    types = tuple(model.values[name].dtype if name in model.values else None for name in outputs)
    # Compiled programs have a context for each thread; other callables may compute in arrays of their own.
    match call:
        case ProgramCall():
            alone: AbstractContextManager[object] = nullcontext()
        case _:
            alone = threading.Lock()

    def run(held: dict[str, Array]) -> Sequence[Array]:
        with alone:
            made = call({name: held[name] for name in inputs})
        if lacking := [name for name in outputs if name not in made]:
            raise Refused(
                f"{describe_nodes(nodes)}: found no result for {', '.join(lacking)}, which others read, expected one"
            )
        return [np.asarray(made[name], dtype) for name, dtype in zip(outputs, types, strict=True)]

    return Segment(nodes=tuple(node.name for node in nodes), replaced=True, inputs=inputs, outputs=outputs, run=run)


def _drop_unread(segments: Sequence[Segment], outputs: Collection[str]) -> tuple[Segment, ...]:
    """Return *segments* with the values dropped after each: no later segment reads them."""
    needed = set(outputs)
    out: list[Segment] = []
    for s in reversed(segments):
        gone = tuple(n for n in dict.fromkeys((*s.inputs, *s.outputs)) if n not in needed)
        needed |= set(s.inputs)
        out.insert(0, replace(s, dropped=gone))
    return tuple(out)


def export_model(model: Model, replacements: Iterable[Replacement]) -> PlanModel:
    """Return *model* with *replacements* in standard operators; raises Refused, also beyond 2 GiB."""
    made = PlanModel(*rewrite_graph(restore_folded_nodes(model), replacements, model.weights))
    if (size := content_bytes(made.proto, made.weights)) > onnx.checker.MAXIMUM_PROTOBUF:
        raise Refused(f"the model has {size} bytes, expected at most {onnx.checker.MAXIMUM_PROTOBUF}")
    return made


def exported_plan(model: Model, replacements: Callable[[], Iterable[Replacement]], threads: int) -> ExecutionPlan:
    """Return the exported model as a plan of one session; raises Refused.

    *replacements* are made again for a bundle: the plan does not hold their weights.
    """
    exported = export_model(model, replacements())
    session = open_session(exported.proto, threads, weights=exported.weights)
    types = {v.name: v.dtype for v in model.inputs}
    feeds = tuple(v.name for v in session.get_inputs())
    outputs = tuple(v.name for v in model.outputs)

    def run(held: dict[str, Array]) -> Sequence[Array]:
        return run_session(session, outputs, {name: held[name] for name in feeds})

    def model_with(_: KernelTable) -> PlanModel:
        return export_model(model, replacements())

    segment = Segment(nodes=tuple(node.name for node in model.nodes), inputs=feeds, outputs=outputs, run=run)
    given = {name: types[name] for name in feeds}
    return ExecutionPlan((segment,), given, outputs, {}, threads, model_with=model_with)
