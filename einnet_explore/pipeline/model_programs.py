"""Two whole models as programs over common inputs and weights, for derivations from one to the other."""

from __future__ import annotations

from dataclasses import replace

from einnet_explore.analysis.equations import rename_tensors
from einnet_explore.ir import Equation, Program, Scope, Tensor, map_tensors
from einnet_explore.onnx_import.model import Model
from einnet_explore.onnx_import.node_call import assemble, extent_iterators
from einnet_explore.pipeline.subprogram import content_digest
from einnet_explore.pipeline.value_proofs import ModelEquations, match_interface, with_inputs_of
from einnet_explore.support.errors import Refused

SECOND = "second_"
"""The prefix of names in the second model."""


def model_programs(first: Model, second: Model) -> tuple[Program, Program]:
    """Return both models as programs; inputs, outputs and weights with equal elements have the names of *first*.

    Inputs correspond by name, or by position if no name is common.  Raises Refused for a node without an expression.
    """
    one, other = (_with_plain_inputs(_program_of(*each)) for each in ((first, ""), (second, SECOND)))
    pairs = {
        **match_interface("input", first.inputs, second.inputs),
        **match_interface("output", first.outputs, second.outputs),
    }
    names = {_tensor(second, theirs, SECOND): _tensor(first, mine) for mine, theirs in pairs.items()}
    known = {(a.shape, content_digest({"": a})): _tensor(first, name) for name, a in first.weights.items()}
    for name, array in second.weights.items():
        if twin := known.get((array.shape, content_digest({"": array}))):
            names[_tensor(second, name, SECOND)] = twin
    other = rename_tensors(other, names)
    other = replace(other, inputs=tuple(dict.fromkeys(other.inputs)))
    return with_inputs_of(one, other), with_inputs_of(other, one)


def _tensor(model: Model, value: str, prefix: str = "") -> str:
    return prefix + model.identifiers[value]


def _program_of(model: Model, prefix: str) -> Program:
    side = ModelEquations(model, prefix)
    for node in model.nodes:
        if node.name in side.opaque:
            raise Refused(f"{model.path}: {node}: {side.opaque[node.name]}; expected operators with an expression")
    return assemble(side.equations.values(), tuple(side.tensor(value.name) for value in model.outputs))


def _with_plain_inputs(program: Program) -> Program:
    """Return *program* with a padded copy of each input that is read beyond its shape: padding is no part of it."""
    padded = {t.name: replace(t, name=f"{t.name}__padded", weight=False) for t in program.inputs if t.padding}
    copies = [_copy(t) for t in program.inputs if t.padding]

    def read(t: Tensor) -> Tensor:
        return padded.get(t.name, t)

    equations = (Equation(e.name, map_tensors(e.scope, read)) for e in program.equations)
    plain = tuple(replace(t, padding=(), value=0.0) for t in program.inputs)
    return Program(plain, (*copies, *equations), program.outputs)


def _copy(t: Tensor) -> Equation:
    xs = extent_iterators(t.shape)
    plain = replace(t, padding=(), value=0.0)
    return Equation(f"{t.name}__padded", Scope(xs, (), plain[xs], padding=t.padding, value=t.value))
