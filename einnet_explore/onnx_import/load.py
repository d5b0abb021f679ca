"""Loader of ONNX models: read, inline local functions, set shapes, check, fold, convert the operator set.

Folding turns nodes that depend on no input, and computations of shapes, into weights.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, count
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import external_data_helper, helper, inliner, numpy_helper, version_converter
from onnx.reference import ReferenceEvaluator

from einnet_explore.checker.bundle import MANIFEST
from einnet_explore.onnx_import.contrib_operators import expand_unregistered_operators
from einnet_explore.onnx_import.expression_weights import with_expression_weights
from einnet_explore.onnx_import.fourier import FOURIER
from einnet_explore.onnx_import.model import (
    ONNX_DOMAINS,
    Array,
    Model,
    ModelError,
    ModelNode,
    ModelValue,
    Shape,
    check_header,
    check_memory,
    check_names,
    check_sizes,
    check_weights,
    copy_message,
    list_nodes,
    make_identifiers,
    opset,
    replace_contents,
    topological_order,
)
from einnet_explore.onnx_import.resizing import RESIZE
from einnet_explore.onnx_import.shapes import MAX_KNOWN_ELEMENTS, graph_values, infer_static_shapes, set_input_shapes
from einnet_explore.onnx_import.widening import narrow_types, widen
from einnet_explore.runtime.arrays import ALIGNMENT
from einnet_explore.runtime.onnx_fragment import ONNXRUNTIME_ERRORS
from einnet_explore.runtime.onnx_weights import (
    DOMAIN,
    NO_WEIGHTS,
    LargePages,
    declare_as_inputs,
    is_declared,
    is_lendable,
    lies_in_large_pages,
    read_names,
    restore_declared,
    weight_proto,
    without_elements,
)

FunctionKey: TypeAlias = "tuple[str, str, str]"
"""Domain, name and overload of an operator or function."""

MAX_INLINED_NODES = 1_000_000
"""Limit for small malicious files: thirty nested functions of two calls each inline to a billion nodes."""


def inline_functions(file: str, proto: onnx.ModelProto, max_nodes: int = MAX_INLINED_NODES) -> onnx.ModelProto:
    """Return *proto* with its local functions inlined.

    Raises ModelError for recursive functions, for more than *max_nodes* nodes, and for a node outside functions that
    refers to an attribute of a function call.
    """
    if proto.functions:
        proto = _inline(file, proto, max_nodes)
    for node in _with_subgraphs(proto.graph.node):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                raise ModelError(
                    f"{file}: node {node.name} ({node.op_type}): found attribute {attribute.name} that refers to "
                    f"{attribute.ref_attr_name}, expected a value: the node is not in a function"
                )
    return proto


def _inline(file: str, proto: onnx.ModelProto, max_nodes: int) -> onnx.ModelProto:
    calls = {(f.domain, f.name, f.overload): _calls(f.node) for f in proto.functions}
    try:
        order = tuple(
            TopologicalSorter({key: called.keys() & calls.keys() for key, called in calls.items()}).static_order()
        )
    except CycleError as cycle:
        names = " <- ".join(f"{domain}.{name}" for domain, name, _ in cycle.args[1])
        raise ModelError(f"{file}: found functions that call one another in a circle, {names}, expected none") from None
    size: dict[FunctionKey, int] = {}
    for key in order:
        size[key] = _size(calls[key], size)
    if (found := _size(_calls(proto.graph.node), size)) > max_nodes:
        raise ModelError(f"{file}: found functions that come to {found:.3g} nodes, expected at most {max_nodes}")
    try:
        return inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError) as error:
        raise ModelError(f"{file}: found functions that fit no call: {str(error).splitlines()[0]}") from None


def _size(calls: Counter[FunctionKey], known: dict[FunctionKey, int]) -> int:
    return sum(count * known.get(key, 1) for key, count in calls.items())


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[FunctionKey]:
    """Count the calls of each operator or function by *nodes* and their subgraphs."""
    return Counter((node.domain, node.op_type, node.overload) for node in _with_subgraphs(nodes))


def walk_nodes(proto: onnx.ModelProto) -> Iterable[onnx.NodeProto]:
    """Return the nodes of *proto* and of its functions, with all their subgraphs."""
    return _with_subgraphs([*proto.graph.node, *(node for function in proto.functions for node in function.node)])


def _with_subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterable[onnx.NodeProto]:
    """Yield *nodes* and the nodes of their subgraphs."""
    waiting = list(nodes)
    while waiting:
        yield (node := waiting.pop())
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node


MAX_INTEGER, MAX_INTEGER_ELEMENTS = 4096, 64
"""Limits of ``integers_of``: larger integers, and the elements of larger integer tensors, are left out."""


def integers_of(proto: onnx.ModelProto) -> set[int]:
    """Return the integers of a model: attributes, elements of small integer tensors, and sizes of weights.

    Next to them, as sizes of inputs, operators may change their form.
    """
    attributes = [a for node in walk_nodes(proto) for a in node.attribute]
    weights = [*proto.graph.initializer, *(a.t for a in attributes if a.HasField("t"))]
    kinds = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    small = (t for t in weights if t.data_type in kinds and prod(t.dims) <= MAX_INTEGER_ELEMENTS)
    found = {n for t in weights for n in t.dims} | {a.i for a in attributes} | {n for a in attributes for n in a.ints}
    return {n for n in found.union(*(numpy_helper.to_array(t).flat for t in small)) if n <= MAX_INTEGER}


TARGET_OPSET = 21
"""The opset that ONNX's converter converts older models to."""

_NO_SHAPES: Mapping[str, Shape] = MappingProxyType({})


def load_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    shapes: Mapping[str, Shape] = _NO_SHAPES,
    rewrite: Callable[[onnx.ModelProto], onnx.ModelProto] = lambda proto: proto,
    arrays: Mapping[str, Array] = NO_WEIGHTS,
) -> Model:
    """Read *model*, set the *shapes* of its dynamic inputs, check it and normalise it (see ``Model``).

    Elements of 16 bits become float32 (see ``widen``); each reader of a dequantised value has its own
    ``DequantizeLinear``.  *rewrite* returns an equal model for everything but
    ``Model.original``.  *arrays* has the weights that a model in memory declares, which the result shares.

    Raises ModelError for a file that is missing, truncated or not ONNX, an IR version or opset that is too new, names
    that are defined twice or never, a cycle, shapes that are missing, misnamed or contradictory, NaN weights,
    dimensions of size 0, a value larger than this machine's memory, and external data outside the model's folder.
    """
    file, proto = read_proto(model, arrays)
    check_header(file, proto)
    proto = inline_functions(file, proto)
    _sort(file, proto)
    dynamic = set_input_shapes(file, proto.graph, shapes)
    _lift_constants(file, proto)
    stored, types = proto, narrow_types(proto)
    proto = _widened(file, proto) if types else proto
    is_widened = proto is not stored
    given = _arrays(file, proto.graph, arrays)
    original = without_elements(proto, given)
    rewritten = rewrite(expand_unregistered_operators(proto))
    weights = given if rewritten is proto else _shared_arrays(file, rewritten.graph, given)
    large = {name: array for name, array in weights.items() if _is_data(array)}
    narrow = stored if is_widened else None
    proto = without_elements(rewritten, large)
    del rewritten, stored  # it has all elements: from here on, those of data are in arrays alone
    _check_valid(file, proto)
    check_weights(file, list_nodes(proto.graph), weights)
    proto.ir_version = max(proto.ir_version, _IR_OF_WEIGHTS)
    proto = convert_opset(file, fold_shape_computations(file, proto, large))
    proto, folded = fold_constants(file, proto, large)
    _drop_unread_outputs(proto)
    known = _model(file, _copy_dequantizations(proto), original, given, {**weights, **large}, folded)
    known = replace(with_expression_weights(known, (*RESIZE, *FOURIER)), dynamic=dynamic)
    return replace(known, stored=narrow, narrow=tuple(sorted(types))) if narrow is not None else known


def _is_data(array: Array) -> bool:
    """Whether shape inference and converters need no element of *array*, a weight: it is large, and no indices."""
    return is_lendable(array) and array.size > MAX_KNOWN_ELEMENTS and (array.dtype.kind == "f" or array.itemsize < 4)


def _drop_unread_outputs(proto: onnx.ModelProto) -> None:
    """Drop optional outputs that nothing reads from the nodes of *proto*, such as the mask of ``Dropout``."""
    graph, version, gone = proto.graph, opset(proto), set[str]()
    read = {*read_names(graph)}
    for node in graph.node:
        if read.issuperset(node.output) or node.domain or not onnx.defs.has(node.op_type, version, ""):
            continue
        for n, declared in enumerate(onnx.defs.get_schema(node.op_type, version).outputs[: len(node.output)]):
            if declared.option == onnx.defs.OpSchema.FormalParameterOption.Optional and node.output[n] not in read:
                gone.add(node.output[n])
                node.output[n] = ""
        while node.output and not node.output[-1]:
            del node.output[-1]
    replace_contents(graph.value_info, [value for value in graph.value_info if value.name not in gone])


def _copy_dequantizations(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Give each reader of a dequantised value its own ``DequantizeLinear``: readers can then compute in integers."""
    graph = proto.graph
    made = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear" and not node.domain}
    if not made:
        return proto
    infos = {value.name: value for value in graph.value_info}
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    read, nodes = {value.name for value in graph.output}, list[onnx.NodeProto]()
    for node in graph.node:
        for n, name in enumerate(node.input):
            if name in made and name in read and name in infos:
                copy, info = copy_message(made[name]), copy_message(infos[name])
                copy.output[0] = info.name = next(new for k in count(1) if (new := f"{name}/{k}") not in taken)
                taken.add(info.name)
                node.input[n] = info.name
                nodes.append(copy)
                graph.value_info.append(info)
            read.add(name)
        nodes.append(node)
    replace_contents(graph.node, nodes)
    return proto


def _widened(file: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return widen(proto)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{file}: found {_line(error)}, expected the elements of 16-bit tensors") from None


def _model(
    file: str,
    proto: onnx.ModelProto,
    original: onnx.ModelProto,
    given: Mapping[str, Array],
    weights: Mapping[str, Array],
    folded: tuple[onnx.NodeProto, ...],
) -> Model:
    _sort(file, proto)
    weights = _shared_arrays(file, proto.graph, weights)
    proto = without_elements(proto, weights)
    graph = proto.graph
    nodes, values = list_nodes(graph), graph_values(graph)
    inputs = tuple(values[v.name] for v in graph.input if v.name not in weights)
    check_memory(file, values.values())
    check_sizes(file, inputs, nodes, values)
    return Model(
        file,
        proto,
        original,
        inputs,
        tuple(values[v.name] for v in graph.output),
        nodes,
        MappingProxyType(weights),
        MappingProxyType(given),
        MappingProxyType(values),
        make_identifiers(values),
        folded,
    )


def _shared_arrays(file: str, graph: onnx.GraphProto, given: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights of *graph* by name: those of *given* that have the same name and bytes, and copies of others.

    Those that *graph* declares are *given*.  The copies are in large pages.
    """
    pages, made = LargePages(), dict[str, Array]()
    for name, array in _elements(file, graph, given):
        other = given.get(name)
        is_same = other is not None and (other is array or _have_equal_bytes(other, array))
        made[name] = other if other is not None and is_same else pages.copy(array)
    return made


def _have_equal_bytes(one: Array, other: Array) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape) or one.dtype.hasobject:
        return False
    mine, theirs = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    return np.array_equal(mine, theirs)


def _arrays(file: str, graph: onnx.GraphProto, declared: Mapping[str, Array]) -> dict[str, Array]:
    """Return the weights of *graph*, in large pages, by name: copies, but for those *declared* that lie there."""
    pages = LargePages(sum(weight.ByteSize() + ALIGNMENT for weight in graph.initializer if not is_declared(weight)))
    every = _elements(file, graph, declared)
    return {name: array if lies_in_large_pages(array) else pages.copy(array) for name, array in every}


def _elements(file: str, graph: onnx.GraphProto, declared: Mapping[str, Array]) -> Iterable[tuple[str, Array]]:
    """Yield the name and the elements of each weight of *graph*; *declared* has those that it declares."""
    for weight in graph.initializer:
        try:
            yield weight.name, declared[weight.name] if is_declared(weight) else numpy_helper.to_array(weight)
        except (KeyError, TypeError, ValueError) as error:
            found = f"type {weight.data_type}" if isinstance(error, KeyError) else f"other elements ({_line(error)})"
            raise ModelError(
                f"{file}: weight {weight.name}: found {found}, expected the elements of a tensor of its shape"
            ) from None


def read_proto(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto, arrays: Mapping[str, Array] = NO_WEIGHTS
) -> tuple[str, onnx.ModelProto]:
    """Return the name of *model* for messages, and the model with its weights; raises ModelError.

    A model in memory may declare weights whose elements are *arrays*; the result declares those that are data.
    """
    match model:
        case onnx.ModelProto():
            copy = copy_message(model)
            for weight in copy.graph.initializer:
                if is_declared(weight) and weight.name in arrays and not _is_data(arrays[weight.name]):
                    weight.CopyFrom(numpy_helper.from_array(arrays[weight.name], weight.name))
            return "<model>", _require_no_external_data("<model>", copy, arrays)
        case bytes():
            return "<bytes>", _require_no_external_data("<bytes>", _parse("<bytes>", model))
        case _:
            path = Path(model)
            if (path / MANIFEST).is_file():
                raise ModelError(_describe_bundle(path, path))
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise
            except IsADirectoryError:
                raise ModelError(f"{path}: found a folder, expected an ONNX model") from None
            except OSError as error:
                raise ModelError(f"{path}: cannot be read: {error.strerror}, expected an ONNX model") from None
            proto = _parse(str(path), data)
            if any(node.domain == DOMAIN for node in walk_nodes(proto)):
                raise ModelError(_describe_bundle(path, path.parent))
            try:
                onnx.load_external_data_for_model(proto, str(path.parent))
            except (OSError, ValueError, onnx.checker.ValidationError) as error:
                raise ModelError(f"{path}: external data: found {_line(error)}, expected the weights' file") from None
            return str(path), proto


def _describe_bundle(path: Path, folder: Path) -> str:
    return (
        f"{path}: found kernels of a bundle, which are not compared or optimised, expected the original model; "
        f"einnet-explore check {folder} checks the bundle"
    )


def _require_no_external_data(
    file: str, proto: onnx.ModelProto, arrays: Mapping[str, Array] = NO_WEIGHTS
) -> onnx.ModelProto:
    """Return *proto*, which has no folder; raise ModelError if it has external data but *arrays*, which needs one."""
    inside = (t for n in walk_nodes(proto) for a in n.attribute for t in (a.t, *a.tensors))
    outside = (weight for weight in proto.graph.initializer if weight.name not in arrays)
    for tensor in chain(outside, inside):
        if external_data_helper.uses_external_data(tensor):
            raise ModelError(
                f"{file}: external data: found tensor {tensor.name} in a file of its own, expected the "
                "path of the model, or a model that contains its weights"
            )
    return proto


def _parse(file: str, data: bytes) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{file}: found an empty file, expected an ONNX model")
    try:
        return onnx.load_model_from_string(data)
    except DecodeError:
        # An ONNX file starts with the tag of its IR version.
        found = "a truncated or damaged ONNX file" if data[0] == 0x08 else "a file that is not ONNX"
        raise ModelError(f"{file}: found {found}, expected an ONNX model") from None


def _sort(file: str, proto: onnx.ModelProto) -> None:
    """Check the names of *proto*, sort its nodes topologically and name them uniquely."""
    nodes = list_nodes(proto.graph)
    check_names(file, proto.graph, nodes)
    copies = []
    for node in topological_order(file, nodes):
        copies.append(copy_message(node.proto))
        copies[-1].name = node.name
    replace_contents(proto.graph.node, copies)


def _lift_constants(file: str, proto: onnx.ModelProto) -> None:
    graph = proto.graph
    kept = []
    for node in list_nodes(graph):
        attributes = node.attributes
        if node.op != "Constant" or node.domain or not attributes.keys() <= _CONSTANTS.keys() or not attributes:
            kept.append(node.proto)
            continue
        kind, value = next(iter(attributes.items()))
        tensor = onnx.TensorProto()
        if kind == "value":
            tensor.CopyFrom(value)
        else:
            is_list = kind.endswith("s")
            tensor.CopyFrom(
                helper.make_tensor("", _CONSTANTS[kind], [len(value)] if is_list else [], value if is_list else [value])
            )
        tensor.name = node.outputs[0]
        graph.initializer.append(tensor)
    replace_contents(graph.node, kept)


_CONSTANTS = {
    "value": onnx.TensorProto.UNDEFINED,
    "value_float": onnx.TensorProto.FLOAT,
    "value_floats": onnx.TensorProto.FLOAT,
    "value_int": onnx.TensorProto.INT64,
    "value_ints": onnx.TensorProto.INT64,
}


def _check_valid(file: str, proto: onnx.ModelProto) -> None:
    """Run ONNX's checker, and require inputs and outputs to be tensors."""
    values = (("input", v) for v in proto.graph.input), (("output", v) for v in proto.graph.output)
    for what, value in chain(*values):
        if (kind := value.type.WhichOneof("value")) not in (None, "tensor_type"):
            found = str(kind).removesuffix("_type").replace("_", " ")
            raise ModelError(f"{file}: {what} {value.name}: found a value of type {found}, expected a tensor")
    if proto.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        return
    try:
        _check(proto)
    except onnx.checker.ValidationError as error:
        message = str(error)
        blamed = next(
            (
                n
                for n in list_nodes(proto.graph)
                if any(
                    f"{text} " in f"{message} "
                    for text in (f"name: {n.name}", f"({n.name})", f"Op registered for {n.op}")
                )
            ),
            None,
        )
        where = f"{file}: {blamed}" if blamed else file
        raise ModelError(f"{where}: found {_line(error)}, expected a valid ONNX model") from None


def _check(proto: onnx.ModelProto) -> None:
    shaped = declare_as_inputs(proto)
    for value in shaped.graph.output:
        # The checker requires shapes of outputs, which are inferred later.
        value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(shaped)


def convert_opset(file: str, proto: onnx.ModelProto) -> onnx.ModelProto:
    """Convert *proto* to opset 21; return it unchanged if it is newer or the conversion fails."""
    if opset(proto) >= TARGET_OPSET:
        return proto
    if _has_same_operators(proto):
        same = copy_message(proto)
        for entry in same.opset_import:
            if entry.domain in ONNX_DOMAINS:
                entry.version = TARGET_OPSET
        same.ir_version = max(same.ir_version, _IR_OF_OPSET)
        return same
    try:
        converted = version_converter.convert_version(declare_as_inputs(proto), TARGET_OPSET)
        _check(converted)
        restore_declared(converted, proto)
    except (RuntimeError, onnx.checker.ValidationError, version_converter.ConvertError):
        return proto
    converted.ir_version = max(converted.ir_version, _IR_OF_OPSET)
    _lift_constants(file, converted)
    if opset(proto) < _RESIZE_MODES_SINCE_OPSET:
        _add_resize_modes(converted)
    return converted


def _has_same_operators(proto: onnx.ModelProto) -> bool:
    """Return whether all operators of *proto* are ONNX's and have the same definition in opset 21."""
    own = opset(proto)
    return (
        own > 0
        and not proto.functions
        and all(
            node.domain in ONNX_DOMAINS and _since(node.op_type, own) == _since(node.op_type, TARGET_OPSET) is not None
            for node in walk_nodes(proto)
        )
    )


@lru_cache(1 << 10)
def _since(operator: str, version: int) -> int | None:
    """Return the opset that defines *operator* as opset *version* has it, or None if that has no such operator."""
    try:
        return int(onnx.defs.get_schema(operator, version).since_version)
    except onnx.defs.SchemaError:
        return None


_RESIZE_MODES_SINCE_OPSET = 11
"""The opset that adds Resize's attributes for sample positions; before, samples start at the first element."""


def _add_resize_modes(proto: onnx.ModelProto) -> None:
    """Set the older opsets' sample positions on every Resize of *proto*, which the converter omits."""
    weights = {weight.name: weight for weight in proto.graph.initializer}
    for node in walk_nodes(proto):
        if node.op_type != "Resize" or node.domain:
            continue
        known = weights.get(node.input[2])
        scales = None if known is None else numpy_helper.to_array(known)
        shrinks = scales is not None and scales.size > 0 and scales.max() <= 1
        node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
        node.attribute.append(helper.make_attribute("nearest_mode", "ceil" if shrinks else "floor"))


_IR_OF_OPSET = 10

_IR_OF_WEIGHTS = 4
"""The first IR version in which a weight need not be a graph input; earlier, inference ignores folded weights."""


def _line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__).rstrip(".")


_MAX_SHAPE_ELEMENTS = 4096
"""Larger integer results are data, not shape computations."""

_MAX_ARRAY_ELEMENTS = 1 << 60
"""Limit of NumPy arrays, broadcast ones included."""

_FROM_SIZES = ("ConstantOfShape", "EyeLike", "OneHot", "Range")
"""Operators that may compute floating-point numbers from sizes alone: initial states, positions."""


MAX_FOLDED_BYTES = 1 << 30
"""Limit of a model's weights with the folded ones: a protocol buffer is smaller than 2 GiB, and inference copies it."""

_NOT_FOLDED = ("Bernoulli", "DequantizeLinear", "Dropout", "Multinomial", "QuantizeLinear", "Random")
"""Name prefixes of random operators, and of operators by which ONNX Runtime recognises integer kernels."""

_Foldable: TypeAlias = "Callable[[ModelNode, Sequence[ModelValue]], bool]"


def fold_shape_computations(file: str, proto: onnx.ModelProto, arrays: dict[str, Array]) -> onnx.ModelProto:
    """Infer shapes, and fold small integer or boolean results, as of ``Shape → Gather → Concat`` chains.

    *arrays* are as for ``fold_constants``.
    """
    return _fold(file, proto, _computes_shape, arrays)[0]


def fold_constants(
    file: str, proto: onnx.ModelProto, arrays: dict[str, Array]
) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    """Fold every node of *proto* that depends on weights only; return the model and the removed nodes.

    *arrays* are the weights that *proto* declares; large results are added to them.

    Nodes that draw random numbers, quantise, compute a graph output, or exceed ``MAX_FOLDED_BYTES`` are not folded, and
    those that compute an infinity only if nothing else reads it than folded nodes.
    """
    free = MAX_FOLDED_BYTES - sum(_nbytes(w) for w in proto.graph.initializer)

    def fits(node: ModelNode, results: Sequence[ModelValue]) -> bool:
        nonlocal free
        needed = sum(prod(v.shape or ()) * v.dtype.itemsize for v in results if v.dtype is not None)
        if not 0 < needed <= free or any(v.dtype is None or v.dtype.kind not in "iubf" for v in results):
            return _computes_shape(node, results)
        free -= needed
        return True

    folded, gone = _fold(file, proto, fits, arrays)
    read = {name for node in list_nodes(folded.graph) for name in node.reads}
    made = {name for node in gone for name in node.output}
    weights = folded.graph.initializer
    replace_contents(weights, [w for w in weights if w.name in read or w.name not in made])
    return folded, gone


def restore_folded_nodes(model: Model) -> onnx.ModelProto:
    """Return the graph of a file, with the nodes of every folded weight that is larger than their inputs.

    It declares weights of the model.  The caller drops nodes that no output needs.
    """
    out = copy_message(model.graph_proto)
    graph = out.graph
    maker = {name: n for n, node in enumerate(model.folded) for name in node.output if name}
    sizes = {w.name: _nbytes(w) for w in graph.initializer}
    restored: set[int] = set()
    for name in [name for name in sizes if name in maker]:
        nodes, sources, waiting = set[int](), set[str](), [name]
        while waiting:
            if (at := maker.get(source := waiting.pop())) is None:
                sources.add(source)
            elif at not in nodes:
                nodes.add(at)
                waiting += [i for i in model.folded[at].input if i]
        if sources <= sizes.keys() and sum(sizes[source] for source in sources) < sizes[name]:
            restored |= nodes
    made = {name for n in restored for name in model.folded[n].output}
    replace_contents(graph.initializer, [w for w in graph.initializer if w.name not in made])
    replace_contents(graph.node, [*(model.folded[n] for n in sorted(restored)), *graph.node])
    return out


def _fold(
    file: str, proto: onnx.ModelProto, foldable: _Foldable, arrays: dict[str, Array]
) -> tuple[onnx.ModelProto, tuple[onnx.NodeProto, ...]]:
    proto = infer_static_shapes(file, proto, arrays)
    gone: list[onnx.NodeProto] = []
    infinite: dict[str, Array] = {}
    while found := _fold_once(proto, foldable, arrays, infinite):
        gone += found
        proto = infer_static_shapes(file, proto, arrays)
    if infinite:
        unread = _drop_unread(proto.graph, infinite)
        gone = [node for node in gone if infinite.keys().isdisjoint(node.output) or unread.issuperset(node.output)]
    return proto, tuple(gone)


def _fold_once(
    proto: onnx.ModelProto, foldable: _Foldable, arrays: dict[str, Array], infinite: dict[str, Array]
) -> list[onnx.NodeProto]:
    """Fold every node whose inputs are known; return the removed nodes.

    Results that are not finite are added to *infinite* instead of the weights.  Their nodes stay in the graph, and are
    among those returned: what selects or compares them may be finite, as the buckets of relative positions are.
    """
    graph = proto.graph
    values = graph_values(graph)
    known: dict[str, onnx.TensorProto | Array] = {w.name: w for w in graph.initializer}
    known |= infinite
    outputs = {v.name for v in graph.output}
    kept, gone, pages = [], [], LargePages()
    folds = False
    for node in list_nodes(graph):
        is_known = bool(node.results) and infinite.keys() >= {*node.results}
        skips = is_known or bool(outputs & {*node.results})
        results = None if skips else _results(node, values, known, proto, foldable, arrays)
        if results is None:
            kept.append(node.proto)
            continue
        gone.append(copy_message(node.proto))
        if not all(_is_finite(array) for array in results):
            infinite |= zip(node.results, results, strict=True)
            known |= infinite
            kept.append(node.proto)
            continue
        folds = True
        for name, array in zip(node.results, results, strict=True):
            if _is_data(array):
                arrays[name] = pages.copy(array)
            known[name] = weight = (
                weight_proto(name, array) if _is_data(array) else numpy_helper.from_array(array, name)
            )
            graph.initializer.append(weight)
    if folds:
        replace_contents(graph.node, kept)
    return gone


def _is_finite(array: Array) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _drop_unread(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """Drop the nodes whose results are all among *names* and read by no node that stays; return these results."""
    known, unread = {*names}, set[str]()
    read = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(list_nodes(graph)):
        if {*node.results} <= known and read.isdisjoint(node.results):
            unread.update(node.results)
            continue
        read.update(node.reads)
        kept.append(node.proto)
    replace_contents(graph.node, kept[::-1])
    return unread


def _computes_shape(node: ModelNode, results: Sequence[ModelValue]) -> bool:
    kinds = "iubf" if node.op in _FROM_SIZES else "iub"
    return (
        all(v.dtype is not None and v.dtype.kind in kinds for v in results)
        and sum(prod(v.shape or ()) for v in results) <= _MAX_SHAPE_ELEMENTS
    )


def _results(
    node: ModelNode,
    values: Mapping[str, ModelValue],
    known: Mapping[str, onnx.TensorProto | Array],
    proto: onnx.ModelProto,
    foldable: _Foldable,
    arrays: Mapping[str, Array],
) -> list[Array] | None:
    """Return the results of *node*, None if an input is unknown or the node must not be folded."""
    made = [v for name in node.results if (v := values.get(name)) is not None and v.shape is not None]
    if node.domain or node.captured or len(made) < len(node.results):
        return None
    if any(a.HasField("g") or a.graphs for a in node.proto.attribute):  # subgraphs may take unbounded time and memory
        return None
    if node.op in ("Shape", "Size"):
        source = values.get(node.inputs[0])
        if source is None or source.shape is None or prod(source.shape) > _MAX_ARRAY_ELEMENTS:
            return None
        feed: dict[str, Array] = {node.inputs[0]: np.broadcast_to(np.float32(0), source.shape)}
    elif node.reads and all(name in known for name in node.reads) and not node.op.startswith(_NOT_FOLDED):
        feed = {}
    else:
        return None
    if not foldable(node, made):
        return None
    feed = feed or {name: _array_of(name, known[name], arrays) for name in node.reads}
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feed.items()
    ]
    wanted = [onnx.ValueInfoProto(name=name) for name in node.results]
    graph = helper.make_graph([node.proto], "fold", types, wanted)
    single = helper.make_model(graph, opset_imports=list(proto.opset_import), ir_version=proto.ir_version)
    if _computes_shape(node, made) and all(_is_finite(array) for array in feed.values()):
        return _evaluate_by_reference(single, feed)
    return _evaluate_by_runtime(single, feed)


def _array_of(name: str, weight: onnx.TensorProto | Array, arrays: Mapping[str, Array]) -> Array:
    if isinstance(weight, np.ndarray):
        return weight
    return arrays[name] if is_declared(weight) else numpy_helper.to_array(weight)


def _evaluate_by_reference(single: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | None:
    try:
        return [np.asarray(a) for a in ReferenceEvaluator(single).run(None, dict(feed))]
    except Exception:  # the evaluator may raise anything; the node is not folded
        return None


def _evaluate_by_runtime(single: onnx.ModelProto, feed: Mapping[str, Array]) -> list[Array] | None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(single.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(a) for a in session.run(None, dict(feed))]
    except ONNXRUNTIME_ERRORS:  # the node is not folded
        return None


def _nbytes(weight: onnx.TensorProto) -> int:
    """Return the bytes of *weight* as raw data."""
    return int(prod(weight.dims) * helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize)
