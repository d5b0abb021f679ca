"""Random ONNX graphs: a grammar over the operators that are read, and some that are not.

A graph grows node by node: an operator is proposed on existing values with random attributes, and is kept if ONNX's
checker for this operator set and ONNX's shape inference accept it.  Therefore ONNX decides which graphs are legal.
Shapes are small and odd; broadcasting, scalars, dynamic dimensions, unused outputs, outputs that other nodes read, and
names with quotes, blanks and line breaks occur.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from benchmarks.soak.growing import LARGEST, Fruitless, Growing, Proposal, Shape
from benchmarks.soak.operators import PROPOSALS

OPSETS = tuple(range(11, 22))

SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8, 9)


@dataclass(frozen=True)
class Drawn:
    """A model, the shapes to give its dynamic inputs, and the number of its operators."""

    model: onnx.ModelProto
    shapes: Mapping[str, Shape]
    operators: tuple[str, ...]


def graph(rng: random.Random, longest: int = 9) -> Drawn:
    """A graph of 1 to *longest* proposals."""
    g = Growing(rng, rng.choice(OPSETS))
    for _ in range(rng.choice([1, 1, 2])):
        rank = rng.choice([0, 1, 2, 2, 3, 4, 4, 4, 5])
        shape = tuple(rng.choice(SIZES) for _ in range(rank))
        while prod(shape) > LARGEST // 2:
            shape = tuple(max(1, n // 2) for n in shape)
        g.inputs[name := g.name()] = shape
        g.values[name] = shape
    kinds = list(PROPOSALS)
    wanted, tries = rng.randint(1, longest), 0
    while len(g.nodes) < wanted and tries < 12 * longest:
        tries += 1
        grow(g, PROPOSALS[rng.choice(kinds)])
    return finished(g)


def grow(g: Growing, proposal: Proposal) -> bool:
    """Add what *proposal* makes, if ONNX takes it."""
    weights = dict(g.weights)
    try:
        op, reads, attributes = proposal(g)
        outputs = attributes.get("_outputs", 1)
        shown = {k: v for k, v in attributes.items() if k != "_outputs"}
        names = [g.name() for _ in range(outputs)]
        made = helper.make_node(op, list(reads), names, "" if g.rng.random() < 0.3 else g.name(), **shown)
        shapes = inferred(g, made)
    except (Fruitless, ValueError, onnx.checker.ValidationError, shape_inference.InferenceError, RuntimeError):
        g.weights = weights
        return False
    if any(shape is None or not 0 < prod(shape) <= LARGEST for shape in shapes.values()):
        g.weights = weights
        return False
    g.nodes.append(made)
    g.values |= {name: shape for name, shape in shapes.items() if shape is not None}
    return True


def inferred(g: Growing, node: onnx.NodeProto) -> dict[str, Shape | None]:
    """The shapes of what *node* computes, by ONNX's inference; raises where ONNX finds it illegal."""
    reads = {n: g.values[n] for n in node.input if n in g.values}
    model = helper.make_model(
        helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in reads.items()],
            [onnx.ValueInfoProto(name=name) for name in node.output],
            [numpy_helper.from_array(g.weights[n], n) for n in dict.fromkeys(node.input) if n in g.weights],
        ),
        opset_imports=[helper.make_opsetid("", g.opset)],
        ir_version=8,
    )
    onnx.checker.check_node(node, _context(g.opset))
    shaped = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    found: dict[str, Shape | None] = {}
    for value in shaped.graph.output:
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        known = tensor.HasField("shape") and None not in dims and tensor.elem_type == TensorProto.FLOAT
        found[value.name] = tuple(d for d in dims if d is not None) if known else None
    return found


def _context(opset: int) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = 8
    context.opset_imports = {"": opset}
    return context


def finished(g: Growing) -> Drawn:
    """The model of *g*: what nothing reads is an output, now and then something else too."""
    rng = g.rng
    if not g.nodes:
        name = g.name()
        g.nodes.append(helper.make_node("Relu", [next(iter(g.inputs))], [name]))
        g.values[name] = g.inputs[next(iter(g.inputs))]
    read = {name for node in g.nodes for name in node.input}
    made = [name for node in g.nodes for name in node.output]
    outputs = [name for name in made if name not in read or rng.random() < 0.1]
    dynamic = {name for name in g.inputs if rng.random() < 0.15}
    inputs = []
    for name, shape in g.inputs.items():
        dims: list[Any] = [
            f"d{n}_{size}" if name in dynamic and rng.random() < 0.6 else size for n, size in enumerate(shape)
        ]
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    needed = {n for n in g.weights if n in read}
    made_graph = helper.make_graph(
        g.nodes if rng.random() < 0.8 else rng.sample(g.nodes, len(g.nodes)),  # in any order: we sort
        "fuzz",
        inputs,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None if dynamic else g.values[n]) for n in outputs],
        [numpy_helper.from_array(w, n) for n, w in g.weights.items() if n in needed],
    )
    model = helper.make_model(
        made_graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=8 if g.opset < 21 else 10
    )
    return Drawn(model, {n: g.inputs[n] for n in dynamic}, tuple(node.op_type for node in g.nodes))
