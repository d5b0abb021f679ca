"""Plans with a second host: it runs the nodes that no program replaces, on arrays that it shares with the kernels.

A model of which nothing is replaced is the host's as a whole.  Else the host runs the regions between the replaced
groups (``plan.execution_order``: as few as possible), and ONNX Runtime the kernels of the groups between them.  All
read and write the same memory, which values that are never needed at the same time share.

Steps run one after the other.  Threads of one that wait for work sleep, so they never take the cores of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from math import prod
from pathlib import Path

import numpy as np
import onnxruntime

from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.model_sessions import constant_array, open_session
from einnet_explore.pipeline.plan import ExecutionPlan, GroupRun, PlanModel, Segment, open_parts, order_parts
from einnet_explore.runtime.arrays import Array, aligned_empty
from einnet_explore.runtime.hosts import Binder, Host
from einnet_explore.runtime.onnx_fragment import ONNXRUNTIME_ERRORS, KernelTable, bind_session, onnxruntime_message
from einnet_explore.runtime.onnx_weights import with_elements
from einnet_explore.runtime.program import Buffer, plan_arena
from einnet_explore.support.errors import Refused


@dataclass(frozen=True, eq=False, kw_only=True)
class HostStep:
    """One step of a plan: the values that it reads and writes; *bind* makes its call on their arrays."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bind: Binder


@dataclass(frozen=True, eq=False)
class HostContext:
    """Arrays by value name, and the calls that compute them in order; used by one thread at a time."""

    arrays: Mapping[str, Array]
    calls: Sequence[Callable[[], None]]


@dataclass(frozen=True, eq=False)
class HostSteps:
    """The *steps* of a plan of *model*, and a context for each thread that runs them at the moment."""

    model: Model
    steps: Sequence[HostStep]
    constants: Mapping[str, Array]
    free: list[HostContext] = field(default_factory=list)

    def run(self, values: Mapping[str, Array]) -> Sequence[Array]:
        """Return the outputs of the model for the inputs in *values*; raises Refused for one of another shape."""
        try:
            context = self.free.pop()
        except IndexError:
            context = self.context()
        try:
            for value in self.model.inputs:
                given, place = values[value.name], context.arrays[value.name]
                if given.shape != place.shape:
                    raise Refused(f"input {value.name} has shape {list(given.shape)}, expected {list(place.shape)}")
                np.copyto(place, given)
            for call in context.calls:
                call()
            return [context.arrays[value.name].copy() for value in self.model.outputs]
        finally:
            self.free.append(context)

    def context(self) -> HostContext:
        """Return a new context; raises Refused if a value has no static shape, or a runtime refuses its array."""
        arrays = dict(self.constants)
        for value in self.model.inputs:
            arrays[value.name] = aligned_empty(*self._layout(value.name))
        buffers = self._buffers()
        arena = plan_arena(buffers)
        memory = aligned_empty((arena.size,), np.uint8)
        for name, buffer in buffers.items():
            shape, dtype = self._layout(name)
            begin = arena.offsets[name]
            arrays[name] = memory[begin : begin + buffer.size].view(dtype).reshape(shape)
        calls = []
        for step in self.steps:
            inputs, outputs = ({name: arrays[name] for name in names} for names in (step.inputs, step.outputs))
            calls.append(step.bind(inputs, outputs))
        return HostContext(arrays, calls)

    def _layout(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        value = self.model.values.get(name)
        if value is None or value.shape is None or value.dtype is None or value.dtype.kind not in "fiub":
            raise Refused(f"value {name}: found no static shape and type, expected a tensor of numbers")
        return value.shape, value.dtype

    def _buffers(self) -> dict[str, Buffer]:
        """Return the live ranges of the steps' results, those of the model's outputs up to the end."""
        last = {name: n for n, step in enumerate(self.steps) for name in step.inputs}
        last |= dict.fromkeys((value.name for value in self.model.outputs), len(self.steps))
        return {
            name: Buffer(self._bytes(name), n, last.get(name, n))
            for n, step in enumerate(self.steps)
            for name in step.outputs
        }

    def _bytes(self, name: str) -> int:
        shape, dtype = self._layout(name)
        return dtype.itemsize * prod(shape)


def build_hosted_plan(
    model: Model, replacements: Mapping[tuple[str, ...], GroupRun], threads: int, host: Host
) -> ExecutionPlan:
    """Return the plan of ``plan.build_plan`` in which *host* runs the nodes that are not replaced.

    A region that the host refuses stays in ONNX Runtime.  Raises Refused if it runs none, if a group has to be called,
    if a value between steps has no static shape, and as ``build_plan`` does.
    """
    if not replacements:
        return _hosted_whole(model, threads, host)
    parts = order_parts(model, replacements)
    regions = parts.regions
    steps: list[HostStep] = []
    hosted: list[str] = []
    refusal = Refused("no node is left for the host, expected one that is not replaced")
    for is_region, order in groupby(parts.order, lambda each: each[0] is None):
        part = parts.part(list(order))
        bind: Binder
        if is_region:
            nodes = [node for _, group in part.order for node in group]
            submodel = regions.extract(nodes)
            try:
                bind = host.open(with_elements(submodel, regions.arrays), threads)
                hosted += [node.name for node in nodes]
            except Refused as problem:
                refusal = problem
                session = open_session(submodel, threads, "sleep", nodes, weights=regions.arrays)
                bind = partial(_bind_session, session)
        else:
            bind = partial(_bind_session, open_parts(part, threads, "sleep"))
        steps.append(HostStep(inputs=part.border[0], outputs=part.border[1], bind=bind))
    if not hosted:
        raise refusal
    constants = {name: constant_array(regions, name) for name in regions.outputs if regions.constant(name)}
    return _plan(HostSteps(model, steps, constants), threads, host, hosted, parts.model_with)


def _hosted_whole(model: Model, threads: int, host: Host) -> ExecutionPlan:
    inputs = tuple(value.name for value in model.inputs)
    outputs = tuple(value.name for value in model.outputs if value.name not in inputs)
    bind = host.open(Path(model.path) if model.is_large else model.original, threads)
    original = PlanModel(model.original_proto, model.original_weights)
    steps = HostSteps(model, [HostStep(inputs=inputs, outputs=outputs, bind=bind)], {})
    return _plan(steps, threads, host, [node.name for node in model.nodes], lambda _: original)


def _bind_session(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Callable[[], None]:
    """Return a call of *session* on these arrays; it raises Refused if the run fails."""
    run = bind_session(session, inputs, outputs)

    def call() -> None:
        try:
            run()
        except ONNXRUNTIME_ERRORS as error:
            raise Refused(f"ONNX Runtime fails: {onnxruntime_message(error)}") from error

    return call


def _plan(
    steps: HostSteps,
    threads: int,
    host: Host,
    hosted: Sequence[str],
    model_with: Callable[[KernelTable], PlanModel],
) -> ExecutionPlan:
    """Return *steps*, which are bound once now, as a plan."""
    model = steps.model
    steps.free.append(steps.context())
    given, outputs = {value.name: value.dtype for value in model.inputs}, tuple(value.name for value in model.outputs)
    nodes = tuple(node.name for node in model.nodes)
    segment = Segment(nodes=nodes, inputs=tuple(given), outputs=outputs, run=steps.run)
    return ExecutionPlan(
        (segment,), given, outputs, {}, threads, model_with=model_with, host=str(host), hosted=tuple(hosted)
    )
