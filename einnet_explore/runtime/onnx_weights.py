"""Weights of ONNX models apart from their graphs, which declare them without their elements.

A declared weight is external data of no file.  Sessions are lent the array, so nothing is serialised or parsed, and
kernels read it in place.

Weights of kernels lie in large pages: with 4 KiB pages, a kernel that reads megabytes of weights misses the TLB on
every page, and hardware prefetching stops at every page boundary.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from einnet_explore.runtime.arrays import ALIGNMENT, Array, Arrays, aligned, aligned_empty
from einnet_explore.support.limits import large_blocks_returned, return_free_memory

DOMAIN = "einnet"
"""The domain of the operators that run kernels."""

MIN_DECLARED_BYTES = 1 << 10
"""Bytes of a weight from which on it is declared: fewer are written into the graph, where shape inference sees them."""

MIN_FREED_BYTES = 4 << 20
"""Bytes of lent weights from which on freed memory is returned to the system while a session is opened.

ONNX Runtime copies weights several times meanwhile.
"""

NO_WEIGHTS: Arrays = MappingProxyType({})

LENT = "lent"
"""The location of weights that are lent to a session; there is no such file."""


def weight_proto(name: str, array: Array) -> onnx.TensorProto:
    """Return *array* as a weight of a graph: declared if ``is_lendable``, else with its elements."""
    if not is_lendable(array):
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    made = TensorProto(name=name, dims=array.shape, data_type=kind, data_location=TensorProto.EXTERNAL)
    made.external_data.add(key="location", value=LENT)
    return made


def is_lendable(array: Array) -> bool:
    """Return whether *array* is declared in graphs, and lent to sessions."""
    return array.nbytes >= MIN_DECLARED_BYTES and array.dtype.kind in "fiub"


def without_elements(proto: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    """Return a copy of *proto* that declares its weights, whose elements are *arrays*."""
    bare = onnx.ModelProto()
    _copy_fields(proto, bare, "graph")
    _copy_fields(proto.graph, bare.graph, "initializer")
    for tensor in proto.graph.initializer:
        given = tensor.name in arrays and is_lendable(arrays[tensor.name])
        bare.graph.initializer.append(weight_proto(tensor.name, arrays[tensor.name]) if given else tensor)
    return bare


def _copy_fields(source: Message, target: Message, but: str) -> None:
    """Copy the fields of a protocol buffer *but* one: memory of a field that is cleared is kept until all is freed."""
    for described, value in source.ListFields():
        name = described.name
        if name == but:
            continue
        if isinstance(value, Message):
            getattr(target, name).CopyFrom(value)
        elif isinstance(value, str | bytes | int | float):
            setattr(target, name, value)
        else:
            getattr(target, name).extend(value)


def declare_as_inputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of *proto* with inputs in place of the weights that it declares, for tools that read elements."""
    bare = onnx.ModelProto()
    _copy_fields(proto, bare, "graph")
    _copy_fields(proto.graph, bare.graph, "initializer")
    inputs = {value.name for value in proto.graph.input}
    for weight in proto.graph.initializer:
        if not is_declared(weight):
            bare.graph.initializer.append(weight)
        elif weight.name not in inputs:
            bare.graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    return bare


def restore_declared(bare: onnx.ModelProto, proto: onnx.ModelProto) -> None:
    """Make what ``declare_as_inputs`` of *proto* made inputs of *bare* declared weights again."""
    inputs = {value.name for value in proto.graph.input}
    declared = [weight for weight in proto.graph.initializer if is_declared(weight)]
    made = {weight.name for weight in declared} - inputs
    kept = [value for value in bare.graph.input if value.name not in made]
    del bare.graph.input[:]
    bare.graph.input.extend(kept)
    bare.graph.initializer.extend(declared)


def with_elements(proto: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    """Return a copy of *proto* with the elements of the weights that it declares, which are *arrays*."""
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    for tensor in whole.graph.initializer:
        if is_declared(tensor):
            tensor.CopyFrom(numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return whole


def content_bytes(proto: onnx.ModelProto, arrays: Arrays) -> int:
    """Return the bytes of *proto* with the elements of the weights that it declares."""
    return int(proto.ByteSize()) + sum(arrays[t.name].nbytes for t in proto.graph.initializer if is_declared(t))


def is_declared(tensor: onnx.TensorProto) -> bool:
    """Return whether *tensor*, a weight, has its elements elsewhere."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def open_lent(
    model: onnx.ModelProto | bytes | str, options: onnxruntime.SessionOptions, weights: Arrays
) -> onnxruntime.InferenceSession:
    """Open *model* (or its content, or path) with *options*, and lend it those of *weights* that it declares.

    Weights that are not read in place are needed only here.  Raises an exception of ``ONNXRUNTIME_ERRORS``.
    """
    if not isinstance(model, onnx.ModelProto):
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    read = set(read_names(model.graph))
    lent = {
        tensor.name: onnxruntime.OrtValue.ortvalue_from_numpy(aligned(array := weights[tensor.name], array.dtype))
        for tensor in model.graph.initializer
        if is_declared(tensor) and tensor.name in read  # ONNX Runtime drops others, and refuses their arrays
    }
    options.add_external_initializers([*lent], [*lent.values()])  # copied
    names = _names_read_in_place(model.graph)
    in_place = {name: value for name, value in lent.items() if name in names}
    for name, value in in_place.items():
        options.add_initializer(name, value)
    is_large = sum(value.tensor_size_in_bytes() for value in lent.values()) >= MIN_FREED_BYTES
    if is_large:
        return_free_memory()
    with large_blocks_returned() if is_large else nullcontext():
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    if is_large:
        return_free_memory()
    session.lent_weights = in_place  # it knows addresses only
    return session


def read_names(graph: onnx.GraphProto) -> Iterable[str]:
    """Yield the names that nodes of *graph* and of graphs inside it read, and those of its outputs."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        yield from names_read_inside(node)


def names_read_inside(node: onnx.NodeProto) -> Iterable[str]:
    """Yield the names that the graphs inside *node* read, and those of their outputs."""
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            yield from read_names(inner)


def _names_read_in_place(graph: onnx.GraphProto) -> set[str]:
    """Return the names that only kernels and Gather read.

    Of other weights ONNX Runtime makes copies, in layouts of its own or, under the same name, transposed: an array that
    is read in place would take the place of the latter.
    """
    found, others = set[str](), {value.name for value in graph.output}
    for node in graph.node:
        (found if node.domain == DOMAIN or node.op_type == "Gather" else others).update(node.input)
        others.update(names_read_inside(node))
    return found - others


LARGE_PAGE_BYTES = 2 << 20
"""Bytes of a large page."""


@dataclass
class LargePages:
    """Memory in large pages for arrays that live about as long: small ones share a page.

    Pages are freed with the last of their arrays.  A view of an array keeps that array alive, not only its memory, so
    whoever remembers it by a weak reference finds it again.  The first pages have *expected_bytes* or more: arrays of
    that many bytes then lie one after the other, and the rest takes no memory.
    """

    expected_bytes: int = 0
    _rest: memoryview = field(default_factory=lambda: memoryview(bytearray()))
    """The unused bytes of the last pages."""

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """Return an uninitialised array that begins at a multiple of ``ALIGNMENT``, if the system has large pages."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.ndarray(shape, kind, aligned_empty((size,), np.uint8).data)
        room = self._rest if size <= self._rest.nbytes else _new_pages(max(size, self.expected_bytes))
        self.expected_bytes = 0
        rest = room[-(-size // ALIGNMENT) * ALIGNMENT :]
        if room is self._rest or rest.nbytes > self._rest.nbytes:
            self._rest = rest
        return np.ndarray(shape, kind, room[:size])  # its base is no array, which views would take for theirs

    def copy(self, array: Array) -> Array:
        """Return a copy of *array*; strings are copied elsewhere."""
        if array.dtype.hasobject:
            return array.copy()
        made = self.empty(array.shape, array.dtype)
        made[...] = array
        return made


def _new_pages(size: int) -> memoryview:
    """Return *size* bytes, rounded up to whole large pages."""
    whole = -(-size // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    memory = mmap.mmap(-1, whole + LARGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared has none
    memory.madvise(mmap.MADV_HUGEPAGE)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % LARGE_PAGE_BYTES
    return memoryview(memory)[start : start + whole]


def owner_of(array: Array) -> Array:
    """Return the array that *array* is a view of, or itself."""
    owner, base = array, array.base
    while base is not None and hasattr(base, "base"):  # also the owners of strided views, which are no arrays
        owner, base = base, base.base
    return owner


def lies_in_large_pages(array: Array) -> bool:
    """Return whether *array* is one of a ``LargePages``, or a view of one."""
    return isinstance(owner_of(array).base, mmap.mmap)
