"""The original of a subprogram: what is replaced, by the names of its program without names, and ready to run.

Programs without their names: equal layers of a model are searched and measured once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from einnet_explore.ir import Equation, Program, Scope, map_tensors
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.partition import Subprogram
from einnet_explore.pipeline.submodels import random_inputs, subgraph_session
from einnet_explore.pipeline.tuning_task import OriginalOpener
from einnet_explore.runtime.outputs import Arrays
from einnet_explore.syntax import text


@dataclass(frozen=True, slots=True)
class AnonymousProgram:
    """A program whose tensors are called by their positions, and the original name of each.

    Two layers of a model that differ in names only have equal programs here.
    """

    program: Program
    names: Mapping[str, str]

    @property
    def signature(self) -> str:
        """The program's text: the key under which results about it are remembered."""
        return text(self.program)


def anonymize(program: Program) -> AnonymousProgram:
    """*program* with its inputs called ``x1, x2, …`` (weights ``w1, …``) and its equations ``y1, y2, …``."""
    to: dict[str, str] = {}
    for tensor in program.inputs:
        stem = "w" if tensor.weight else "x"
        to[tensor.name] = f"{stem}{1 + sum(name[0] == stem for name in to.values())}"
    for n, equation in enumerate(program.equations, 1):
        to[equation.name] = f"y{n}"
    renamed = Program(
        tuple(replace(t, name=to[t.name]) for t in program.inputs),
        tuple(Equation(to[e.name], _renamed(e.scope, to), e.via) for e in program.equations),
        tuple(to[name] for name in program.outputs),
    )
    return AnonymousProgram(renamed, {new: old for old, new in to.items()})


def _renamed(scope: Scope, to: Mapping[str, str]) -> Scope:
    return map_tensors(scope, lambda tensor: replace(tensor, name=to[tensor.name]))


def model_values(model: Model, subprogram: Subprogram, anon: AnonymousProgram) -> dict[str, str]:
    """The value of *model* for each tensor that *anon*, the program of *subprogram*, shares with it."""
    back = {model.identifiers[name]: name for name in (*subprogram.inputs, *subprogram.outputs)}
    return {new: back[old] for new, old in anon.names.items() if old in back}


def open_original(
    model: Model, subprogram: Subprogram, anon: AnonymousProgram, threads: int
) -> tuple[OriginalOpener, Arrays]:
    """The original of *subprogram*, opened where it has to be run, and its weights, by the names of *anon*."""
    names = model_values(model, subprogram, anon)
    wanted = [names[name] for name in anon.program.outputs]

    @cache
    def opened() -> tuple[Callable[[], Arrays], Arrays]:
        session = subgraph_session(model, subprogram.nodes, threads)
        feeds = random_inputs(session, 0)
        inputs = {t.name: feeds[names[t.name]] for t in anon.program.inputs if not t.weight}
        return lambda: dict(zip(anon.program.outputs, session.run(wanted, feeds), strict=True)), inputs

    return opened, {t.name: model.weights[names[t.name]] for t in anon.program.inputs if t.weight}


def operator_digest(model: Model, nodes: Collection[str]) -> str:
    """A digest of how the *nodes* of *model* are written: operators, attributes and who reads whom, without names.

    Equal programs may be written by different operators, for which runtimes have different kernels.
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
    """A digest of *arrays*: their names and every element."""
    digest = hashlib.blake2b(digest_size=20)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
