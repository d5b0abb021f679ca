"""Normal spelling of a model: what exporters write as parts of one operator becomes that operator.

* Nodes of one operator, on the same operands but for weights, whose results are concatenated, become one node with
  concatenated weights.
* A node that pads joins its only reader, if that is an operator with padding.
* A vector that is added before a softmax which does not depend on it is dropped, such as the bias of the keys.
* Element-wise nodes that scale and shift the channels of a product with a weight, such as a normalisation, become part
  of the weight and of a bias.
* Operands of commutative nodes are in the order of the model, weights last.

Nothing is assumed of the operators: each candidate is a small model, and it counts if it is proved equal to the nodes
that it replaces.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product

import numpy as np
import onnx
from onnx import helper, numpy_helper

from einnet_explore.analysis.canonical_keys import program_key
from einnet_explore.equivalence.program_diff import inline_equations
from einnet_explore.equivalence.slices import slice_scope
from einnet_explore.interpreter.evaluation import evaluate
from einnet_explore.ir import Equation, scopes, tensors
from einnet_explore.onnx_import import express
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model, ModelNode, copy_message
from einnet_explore.onnx_import.node_call import NotUnderstood, assemble
from einnet_explore.pipeline.folded_weights import with_elements
from einnet_explore.pipeline.value_proofs import open_sweep
from einnet_explore.rules import CANCELLATION
from einnet_explore.runtime.arrays import Array
from einnet_explore.strategies.rounding_levels import Level, allowed_rules

MAX_PASSES = 4
"""Passes over a model, in each of which a node is replaced once at most."""


@dataclass(frozen=True, slots=True)
class _Replacement:
    """New *nodes* in place of *old* ones, of both of which the last one computes the same value, and new weights."""

    old: tuple[ModelNode, ...]
    nodes: tuple[onnx.NodeProto, ...]
    weights: Mapping[str, Array] = field(default_factory=dict)


def with_normal_spelling(model: Model, numerics: Level = "approximate") -> Model:
    """Return *model* with parts of operators joined, as far as *numerics* admits; ``original`` stays.

    At the level ``exact``, nothing is multiplied into weights, and nothing that is added is dropped.
    """
    refused = set[tuple[str, ...]]()
    for _ in range(MAX_PASSES):
        found, taken = list[_Replacement](), set[str]()
        shifts = _without_shifts(model) if allowed_rules((CANCELLATION,), numerics) else ()
        scaled = () if numerics == "exact" else _folded_scalings(model)
        candidates = (_joined_parts(model), _joined_paddings(model), shifts, scaled, _ordered_operands(model))
        for each in chain.from_iterable(candidates):
            names = tuple(node.name for node in each.old)
            if taken.isdisjoint(names) and names not in refused:
                if _is_proved(model, each):
                    found.append(each)
                    taken.update(names)
                elif not each.weights:
                    refused.add(names)
        if not found:
            return model
        made = load_model(_with_replacements(model, found))
        folded = (*model.folded, *made.folded)
        model = replace(
            made, path=model.path, original=model.original, folded=folded, narrow=model.narrow, stored=model.stored
        )
    return model


def _readers(model: Model) -> Mapping[str, list[ModelNode]]:
    """Return the nodes that read each value; an output of the model has one more."""
    found: dict[str, list[ModelNode]] = {}
    for node in model.nodes:
        for name in node.reads:
            found.setdefault(name, []).append(node)
    for value in model.outputs:
        found.setdefault(value.name, []).append(model.nodes[-1])
    return found


def _joined_parts(model: Model) -> Iterable[_Replacement]:
    """Yield one node for the parts of each concatenation, with weights concatenated along each axis that fits."""
    makers, readers = {name: node for node in model.nodes for name in node.results}, _readers(model)
    for last in model.nodes:
        parts = [makers[name] for name in last.inputs if name in makers]
        if last.op != "Concat" or len({part.name for part in parts}) < max(2, len(last.inputs)):
            continue
        alone = all(len(part.results) == 1 and len(readers[part.results[0]]) == 1 for part in parts)
        if not alone or len({_call(part) for part in parts}) > 1 or len({len(part.inputs) for part in parts}) > 1:
            continue
        operands = list(zip(*(part.inputs for part in parts), strict=True))
        ways = [_concatenations(model, names) for names in operands]
        for n, arrays in enumerate(product(*ways)):
            weights = {f"{last.name}/joined_{n}_{p}": array for p, array in enumerate(arrays) if array is not None}
            if weights:
                name = f"{last.name}/joined_{n}_"
                inputs = [names[0] if f"{name}{p}" not in weights else f"{name}{p}" for p, names in enumerate(operands)]
                node = copy_message(parts[0].proto)
                del node.input[:], node.output[:]
                node.input.extend(inputs)
                node.output.extend(last.outputs)
                node.name = last.name
                yield _Replacement((*parts, last), (node,), weights)


def _call(node: ModelNode) -> tuple[object, ...]:
    attributes = sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.proto.attribute)
    return node.op, node.domain, tuple(attributes)


def _concatenations(model: Model, names: tuple[str, ...]) -> list[Array | None]:
    """Return the arrays that the weights called *names* may be in one node; None for one operand of all parts."""
    if len(set(names)) == 1:
        return [None]
    if not all(name in model.weights for name in names):
        return []
    arrays = [model.weights[name] for name in names]
    axes = [
        axis
        for axis in range(arrays[0].ndim)
        if len({(*a.shape[:axis], *a.shape[axis + 1 :]) for a in arrays}) == 1 and len({a.ndim for a in arrays}) == 1
    ]
    return [np.concatenate(arrays, axis) for axis in axes]


def _joined_paddings(model: Model) -> Iterable[_Replacement]:
    """Yield the only reader of each constant padding of zeros with this padding as its own."""
    readers = _readers(model)
    for pad in model.nodes:
        found = readers.get(pad.outputs[0], []) if pad.op == "Pad" else []
        amounts = model.weights.get(pad.inputs[1]) if len(pad.inputs) > 1 else None
        if len(found) != 1 or amounts is None or len(pad.inputs) > 3 or "pads" not in _attributes(found[0]):
            continue
        (reader,) = found
        rank = len(amounts) // 2
        given = {a.name: helper.get_attribute_value(a) for a in reader.proto.attribute}
        before = given.get("pads", [0] * 2 * (rank - 2))
        spatial = [*amounts[2:rank], *amounts[rank + 2 :]]
        if rank < 3 or given.get("auto_pad", b"NOTSET") != b"NOTSET" or min(spatial) < 0 or len(before) != len(spatial):
            continue
        node = copy_message(reader.proto)
        others = [a for a in node.attribute if a.name != "pads"]
        del node.attribute[:]
        pads = [int(a + b) for a, b in zip(before, spatial, strict=True)]
        node.attribute.extend([*others, helper.make_attribute("pads", pads)])
        inputs = [pad.inputs[0] if name == pad.outputs[0] else name for name in reader.inputs]
        del node.input[:]
        node.input.extend(inputs)
        yield _Replacement((pad, reader), (node,))


BEFORE_SOFTMAX = ("MatMul", "Mul", "Div", "Add", "Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze")
"""Operators through which a vector that is added is followed to a softmax."""


def _without_shifts(model: Model) -> Iterable[_Replacement]:
    """Yield the nodes from each vector of weights that is added up to the softmax behind it, without the vector."""
    makers, readers = {name: node for node in model.nodes for name in node.results}, _readers(model)
    waiting: list[tuple[ModelNode, ...]] = [(node,) for node in model.nodes if node.op == "Softmax"]
    while waiting:
        path = waiting.pop()
        for name in dict.fromkeys(path[0].inputs):
            node = makers.get(name)
            if node is None or len(readers[name]) != 1 or len(node.results) != 1:
                continue
            if (nodes := _without_shift(model, node, path)) is not None:
                yield _Replacement((node, *path), nodes)
            weighted = node.op == "MatMul" and not model.weights.keys().isdisjoint(node.inputs)
            if node.op in BEFORE_SOFTMAX and not weighted:
                waiting.append((node, *path))


def _without_shift(model: Model, node: ModelNode, path: tuple[ModelNode, ...]) -> tuple[onnx.NodeProto, ...] | None:
    """Return *node* and *path* after it without the vector of weights that *node* adds; None if it adds none."""
    vectors = {name for name in node.inputs if name in model.weights and _is_vector(model.weights[name])}
    first, *rest = (copy_message(each.proto) for each in path)
    match node.op, [name for name in node.inputs if name not in vectors]:
        case "Add", [operand] if model.shape(operand) == model.shape(node.results[0]):
            inputs = [operand if name == node.results[0] else name for name in first.input]
            del first.input[:]
            first.input.extend(inputs)
            return first, *rest
        case "Gemm" | "Conv", _ if len(node.inputs) == 3 and node.inputs[2] in vectors:
            plain = copy_message(node.proto)
            del plain.input[2:]
            return plain, first, *rest
    return None


def _is_vector(array: Array) -> bool:
    return array.size == max(array.shape, default=1) > 1


def _folded_scalings(model: Model) -> Iterable[_Replacement]:
    """Yield each product with a weight, and the longest chain after it that scales and shifts, as one product.

    The candidates are the weight scaled along one of its axes, and the bias that the operator may have.
    """
    readers = _readers(model)
    for node in model.nodes:
        if not _is_biased_product(model, node):
            continue
        chain, found = [node], None
        while (longer := _next_of_chain(model, chain, readers)) is not None:
            chain = longer
            if (affine := _scale_and_shift(model, chain)) is None:
                break
            found = tuple(chain), affine
        if found is not None:
            yield from _scaled_products(model, *found)


def _is_biased_product(model: Model, node: ModelNode) -> bool:
    """Whether *node* has an operand, a weight, and a bias that is optional and a weight if it is there."""
    if node.domain or not onnx.defs.has(node.op) or len(node.results) != 1:
        return False
    operands = onnx.defs.get_schema(node.op).inputs
    is_optional = [each.option == onnx.defs.OpSchema.FormalParameterOption.Optional for each in operands]
    first, *others = (name for name in node.inputs if name)
    weights = [model.weights[name] for name in others if name in model.weights]
    floats = len(weights) == len(others) > 0 and all(array.dtype.kind == "f" for array in weights)
    return is_optional == [False, False, True] and floats and first not in model.weights


def _next_of_chain(
    model: Model, chain: list[ModelNode], readers: Mapping[str, list[ModelNode]]
) -> list[ModelNode] | None:
    """Return *chain* and the only reader of its result, if this reads nothing else but weights; else None."""
    name = chain[-1].results[0]
    found = readers.get(name, [])
    if len(found) != 1 or found[0] is chain[-1] or len(found[0].results) != 1 or found[0].reads.count(name) != 1:
        return None
    (reader,) = found
    static = model.is_static(reader.results[0]) and model.shape(reader.results[0]) == model.shape(name)
    weights = all(other == name or other in model.weights for other in reader.reads)
    return [*chain, reader] if static and weights else None


def _scale_and_shift(model: Model, chain: Sequence[ModelNode]) -> tuple[Array, Array] | None:
    """Return the scales and shifts of the channels (the second axis) by which *chain* continues its first node.

    None if its other nodes do not scale and shift, as evaluated at two elements of each channel.
    """
    equations = list[Equation]()
    for node in chain[1:]:
        match express(node, model):
            case NotUnderstood():
                return None
            case made:
                equations += made
    if any(y.extent > 1 for e in equations for _, scope in scopes(e.scope) for y in scope.summations):
        return None
    start, end = (model.identifiers[node.results[0]] for node in (chain[0], chain[-1]))
    scope = inline_equations(assemble(tuple(equations), (end,)), ())[end]
    if len(scope.shape) < 2:
        return None
    weights = {model.identifiers[name]: name for node in chain[1:] for name in node.reads if name in model.weights}
    arrays = {name: model.weights[value].astype(np.float64) for name, value in weights.items()}

    def channels(x: float, last: bool) -> Array:
        """Return the results of a constant *x* at the first or *last* element of each channel."""
        window = tuple(
            (lo, hi) if n == 1 else (hi - 1, hi) if last else (lo, lo + 1) for n, (lo, hi) in enumerate(scope.box)
        )
        constant = with_elements(slice_scope(scope, window), {start: x})
        return evaluate(constant, {t.name: arrays[t.name] for t in tensors(constant)}, np.float64).reshape(-1)

    with np.errstate(all="ignore"):
        shift = channels(0.0, last=False)
        scale = channels(1.0, last=False) - shift
        tried = [(channels(x, last), scale * x + shift) for x in (-1.3, 0.0, 3.1) for last in (False, True)]
    return (scale, shift) if all(np.allclose(*each, rtol=1e-9, atol=1e-12) for each in tried) else None


def _scaled_products(model: Model, chain: tuple[ModelNode, ...], affine: tuple[Array, Array]) -> Iterable[_Replacement]:
    """Yield the first node of *chain* with its weight scaled along each axis that fits, and its bias."""
    (scale, shift), node, last = affine, chain[0], chain[-1]
    weight, *biases = (model.weights[name] for name in node.inputs[1:] if name)
    before = biases[0] if biases else np.zeros(1)
    if before.size not in (1, scale.size):
        return
    for axis in (n for n, size in enumerate(weight.shape) if size == scale.size):
        along = [-1 if n == axis else 1 for n in range(weight.ndim)]
        names = f"{last.name}/scaled_{axis}", f"{last.name}/shifted_{axis}"
        arrays = weight * scale.reshape(along), before.reshape(-1) * scale + shift
        made = copy_message(node.proto)
        del made.input[:], made.output[:]
        made.input.extend((node.inputs[0], *names))
        made.output.extend(last.outputs)
        made.name = last.name
        yield _Replacement(chain, (made,), dict(zip(names, (a.astype(weight.dtype) for a in arrays), strict=True)))


COMMUTATIVE = ("Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor")
"""Operators whose operands may be in any order."""


def _ordered_operands(model: Model) -> Iterable[_Replacement]:
    """Yield commutative nodes of two operands in the order of the model: inputs, results of nodes, weights."""
    places = model.places
    for node in model.nodes:
        inputs = sorted(node.inputs, key=lambda name: places.get(name, len(places)))
        if node.op in COMMUTATIVE and not node.domain and len(inputs) == 2 and inputs != list(node.inputs):
            proto = copy_message(node.proto)
            del proto.input[:]
            proto.input.extend(inputs)
            yield _Replacement((node,), (proto,))


def _attributes(node: ModelNode) -> Iterable[str]:
    """Return the names of the attributes that the operator of *node* may have."""
    return onnx.defs.get_schema(node.op).attributes if not node.domain and onnx.defs.has(node.op) else ()


def _is_proved(model: Model, new: _Replacement) -> bool:
    """Return whether the new node is proved equal to the old ones, as two small models."""
    (output,) = new.old[-1].results
    made = {name for node in new.old for name in node.results}
    read = dict.fromkeys(name for node in new.old for name in node.reads if name not in made)
    inputs = [name for name in read if name not in model.weights]
    if not all(model.is_static(name) for name in (*inputs, output)):
        return False
    weights = {name: model.weights[name] for name in read if name in model.weights}
    one, other = (
        _small_model(model, nodes, inputs, output, {**weights, **new.weights})
        for nodes in ([node.proto for node in new.old], [*new.nodes])
    )
    try:
        before, after = load_model(one), load_model(other)
        if _expression_key(before) == _expression_key(after):
            return True
        sweep = open_sweep(before, after)
        if output not in sweep.candidates(output):
            return False
        for _ in sweep.run():
            pass
        return sweep.are_equal(output, output)
    except ValueError:
        return False


def _expression_key(model: Model) -> Hashable:
    """Return the key of the expressions of *model*: of equal ones up to names and the order of operands, if there are.

    A node without an expression equals nothing.
    """
    equations = [express(node, model) for node in model.nodes]
    understood = [each for found in equations if not isinstance(found, NotUnderstood) for each in found]
    if any(isinstance(found, NotUnderstood) for found in equations):
        return object()
    return program_key(assemble(understood, tuple(model.identifiers[value.name] for value in model.outputs)))


def _small_model(
    model: Model, nodes: list[onnx.NodeProto], inputs: list[str], output: str, weights: Mapping[str, Array]
) -> onnx.ModelProto:
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(model.dtype(name)), model.shape(name))
        for name in (*inputs, output)
    ]
    read = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items() if name in read]
    graph = helper.make_graph(nodes, "part", values[:-1], values[-1:], tensors)
    return helper.make_model(graph, opset_imports=model.proto.opset_import, ir_version=model.proto.ir_version)


def _with_replacements(model: Model, found: Iterable[_Replacement]) -> onnx.ModelProto:
    """Return the model with new nodes in place of old ones, at the place of the last of them."""
    proto = copy_message(model.proto)
    new = {each.old[-1].name: each for each in found}
    gone = {node.name for each in new.values() for node in each.old}
    nodes = list[onnx.NodeProto]()
    for node in proto.graph.node:
        nodes.extend(new[node.name].nodes if node.name in new else [node] if node.name not in gone else [])
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    for each in new.values():
        proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in each.weights.items())
    read = {name for node in nodes for name in node.input} | {value.name for value in proto.graph.output}
    kept = [weight for weight in proto.graph.initializer if weight.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    return proto
