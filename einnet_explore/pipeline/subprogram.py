"""One subprogram of a model: its nodes, its program (with and without names), and its original, ready to run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from einnet_explore.ir import Equation, Program, map_tensors
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.submodels import random_model_inputs, subgraph_session
from einnet_explore.pipeline.tuning_context import OriginalOpener
from einnet_explore.runtime.arrays import Arrays
from einnet_explore.syntax import text


@dataclass(frozen=True, slots=True)
class AnonymousProgram:
    """A program whose tensors are named by their positions, and the original *names*.

    Layers that differ only in names have equal programs here, so they are searched and measured once.
    """

    program: Program
    names: Mapping[str, str]

    @property
    def signature(self) -> str:
        """The program's text, the key of results about it."""
        return text(self.program)


def anonymize(program: Program) -> AnonymousProgram:
    """Rename the inputs of *program* to ``x1, x2, …`` (weights ``w1, …``) and its equations to ``y1, y2, …``."""
    to: dict[str, str] = {}
    for tensor in program.inputs:
        stem = "w" if tensor.weight else "x"
        to[tensor.name] = f"{stem}{1 + sum(name[0] == stem for name in to.values())}"
    for n, equation in enumerate(program.equations, 1):
        to[equation.name] = f"y{n}"
    renamed = Program(
        tuple(replace(t, name=to[t.name]) for t in program.inputs),
        tuple(
            Equation(to[e.name], map_tensors(e.scope, lambda t: replace(t, name=to[t.name])), e.via)
            for e in program.equations
        ),
        tuple(to[name] for name in program.outputs),
    )
    return AnonymousProgram(renamed, {new: old for old, new in to.items()})


@dataclass(frozen=True)
class Subprogram:
    """Nodes that other code may replace as one.

    *inputs* and *outputs* are value names of the model, in the order of ``program.inputs`` (weights among them,
    flagged) and ``program.outputs``; the program calls them by the model's identifiers.  *parts* are the subprograms
    that were joined into it, in an order in which they can run; empty if it was not joined.
    """

    nodes: tuple[str, ...]
    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[Subprogram, ...] = ()

    @cached_property
    def anonymous(self) -> AnonymousProgram:
        """The program without names."""
        return anonymize(self.program)

    def task_name(self, model: Model) -> str:
        """Name the tuning task: equal for layers of *model* with equal programs and equal ONNX operators."""
        return f"{self.anonymous.signature}\n{operator_digest(model, self.nodes)}"

    def value_names(self, model: Model) -> dict[str, str]:
        """Return the value of *model* for each input and output of the anonymous program."""
        back = {model.identifiers[name]: name for name in (*self.inputs, *self.outputs)}
        return {new: back[old] for new, old in self.anonymous.names.items() if old in back}


def open_original(model: Model, subprogram: Subprogram, threads: int) -> tuple[OriginalOpener, Arrays]:
    """Return an opener of the original of *subprogram* and its weights, by the names of the anonymous program."""
    program, names = subprogram.anonymous.program, subprogram.value_names(model)
    wanted = [names[name] for name in program.outputs]

    @lru_cache(1)
    def opener() -> tuple[Callable[[], Arrays], Arrays]:
        session = subgraph_session(model, subprogram.nodes, threads)
        feeds = random_model_inputs(session, 0)
        inputs = {t.name: feeds[names[t.name]] for t in program.inputs if not t.weight}
        return lambda: dict(zip(program.outputs, session.run(wanted, feeds), strict=True)), inputs

    return opener, {t.name: model.weights[names[t.name]] for t in program.inputs if t.weight}


def operator_digest(model: Model, nodes: Collection[str]) -> str:
    """Digest the operators, attributes and edges of *nodes* in *model*, without names.

    Equal programs may be written with different operators, for which runtimes have different kernels.
    """
    digest = hashlib.blake2b(digest_size=10)
    numbers = {"": ""}
    wanted = frozenset(nodes)
    for node in model.nodes:
        if node.name in wanted:
            for name in (*node.inputs, *node.outputs):
                numbers.setdefault(name, f"{'w' if name in model.weights else 'v'}{len(numbers)}")
            attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
            values = [[numbers[name] for name in names] for names in (node.inputs, node.outputs)]
            digest.update(repr((node.op, node.domain, attributes, values)).encode())
    return digest.hexdigest()


def content_digest(arrays: Arrays) -> str:
    """Digest the names and all elements of *arrays*."""
    digest = hashlib.blake2b(digest_size=20)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
