"""Programs as fragments of ONNX graphs in which generated kernels are custom ops.

The custom op (``custom_op.c``) calls a compiled kernel with the session's threads.  A library call and the kernel after
it then share one session: no Python call, no copy, no second thread pool.  A node names its kernel by a number in a
``KernelTable``: the address in this process, or a kernel in the library of a bundle.

Such a library holds the kernels and the custom op, and ONNX Runtime loads it without this package.  Every kernel is
compiled for several instruction sets.  The library chooses among them when it is registered, and reports a processor
that fits none.  It exports ``RegisterCustomOps`` only.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from itertools import count
from pathlib import Path
from struct import Struct
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state

from einnet_explore.ir import FLOAT32, Scope
from einnet_explore.runtime import compiled
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.kernel_shapes import Shape, flatten_shapes
from einnet_explore.runtime.measurement import SPIN_SECONDS
from einnet_explore.runtime.onnx_weights import DOMAIN, NO_WEIGHTS, open_lent, weight_proto

_LAUNCH, _SPACE = "__TVMBackendParallelLaunch", "__TVMBackendAllocWorkspace"
"""Variables of a compiled kernel for the runtime's functions; TVM sets them when it loads the kernel."""


API_VERSION = 17
"""The version of ONNX Runtime's C API that the custom op uses, as in ``custom_op.c``."""

INSTRUCTION_SETS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
"""Instruction sets, best first, named as compilers do: AVX-512, AVX2 with FMA, SSE4.2."""

_LINK_FLAGS = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,noexecstack")
_HEADERS_AT, _HEADER_SIZES = Struct("<Q"), Struct("<HH")
"""Fields of the header of an ELF file, at bytes 32 and 54."""

_VERSION_SCRIPT = "{ global: RegisterCustomOps; local: *; };\n"

ONNXRUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(c for c in vars(onnxruntime_pybind11_state).values() if isinstance(c, type) and issubclass(c, Exception)),
    *(EncodeError, MemoryError, RuntimeError, TypeError, ValueError),
)
"""Exceptions of ONNX Runtime when it opens or runs a session: a class for each kind of failure, and Python's own."""

_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+:\d+ [^()]*\([^()]*\)(?: const)? ")
"""What ONNX Runtime's messages say of its own source: a code, and a file, line and function."""


def onnxruntime_message(error: Exception) -> str:
    """Return what an exception of ``ONNXRUNTIME_ERRORS`` says, without what it says of ONNX Runtime's source."""
    return _CODE.sub("", str(error).strip())


Waiting: TypeAlias = Literal["spin", "sleep"]
"""The way in which a session's threads wait for work between two calls: in a loop, or asleep."""


def custom_ops_available() -> bool:
    """Return whether sessions can run kernels here: a C compiler built the operator, and ONNX Runtime accepts it."""
    return _custom_op_library() is not None


def register_custom_ops(options: onnxruntime.SessionOptions) -> None:
    """Let sessions made with *options* run kernels."""
    options.register_custom_ops_library(str(_custom_op_library()))


class SessionKernel(Protocol):
    """A compiled function of *scope*, stored under *key*; *shapes* are those of its arguments, the result last."""

    @property
    def scope(self) -> Scope: ...

    @property
    def key(self) -> str: ...

    @property
    def shapes(self) -> tuple[Shape, ...]: ...

    @property
    def threads(self) -> int: ...

    @property
    def compiler(self) -> str:
        """The compiler of its object file."""

    def write_object(self, path: Path, name: str, cpu: str) -> None:
        """Write it to *path* as an object file with the function *name*, for processors like *cpu*."""


class KernelTable(Protocol):
    """The kernels that a library of the custom op finds, by number."""

    def number(self, kernel: SessionKernel) -> int | None:
        """The number of the loaded *kernel*; None if no session can run it."""


class LoadedKernels:
    """Kernels that this process has loaded: their numbers are addresses, and the libraries are never unloaded."""

    def number(self, kernel: SessionKernel) -> int | None:
        file = compiled.kernel_file(kernel.key)
        if file is None or not custom_ops_available():
            return None
        library = ctypes.CDLL(str(file))
        if not all(slot.value for name in (_LAUNCH, _SPACE) if (slot := _slot(library, name)) is not None):
            return None  # loaded a second time, from a file that was replaced: nobody filled these in
        _take_over(library)
        return ctypes.cast(library[compiled.ENTRY_POINT], ctypes.c_void_p).value


LOADED_KERNELS = LoadedKernels()


@dataclass
class LibraryKernels:
    """Kernels of a library, by numbers that are made of their keys: equal kernels are compiled once."""

    kernels: dict[int, SessionKernel] = field(default_factory=dict)

    def number(self, kernel: SessionKernel) -> int:
        """Return the number of *kernel*, which becomes one of the library's."""
        number = int.from_bytes(hashlib.sha256(kernel.key.encode()).digest()[:7])
        self.kernels.setdefault(number, kernel)
        return number

    def write(self, path: Path, sets: Sequence[str] = INSTRUCTION_SETS, flags: Sequence[str] = ()) -> None:
        """Compile all kernels for *sets* and write the library to *path*; *flags* go to the compiler of the custom op.

        Raises BackendError without a C compiler, and if a compiler refuses a kernel.
        """
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            objects = list(self._write_objects(here, sets))
            source, exports = here / "library.c", here / "exports.map"
            source.write_text(custom_op_text(*self._table(sets)))
            exports.write_text(_VERSION_SCRIPT)
            names = (f"-ffile-prefix-map={folder}=.", f"-Wl,--version-script={exports}")
            compiled.run_c_compiler(
                "-O2", "-fPIC", *_LINK_FLAGS, *names, *flags, str(source), *objects, "-o", str(path), "-lm"
            )
        path.write_bytes(_move_headers_to_end(path.read_bytes()))

    def _write_objects(self, folder: Path, sets: Sequence[str]) -> Iterable[str]:
        for number, kernel in self.kernels.items():
            for cpu in sets:
                name = _entry_name(number, cpu)
                path = folder / f"{name}.o"
                kernel.write_object(path, name, cpu)
                yield str(path)

    def _table(self, sets: Sequence[str]) -> Iterable[str]:
        """The C text of the table of kernels."""
        for number in self.kernels:
            for cpu in sets:
                yield f"int {_entry_name(number, cpu)}(void *, const Any *, int32_t, Any *);"
        yield f"enum {{ SETS = {len(sets)}, KERNELS = {len(self.kernels)} }};"
        yield f'#define SET_NAMES "{", ".join(sets)}"'
        yield "static int supports(int set)\n{\n    __builtin_cpu_init();"
        yield from (f'    if (set == {n}) return !!__builtin_cpu_supports("{cpu}");' for n, cpu in enumerate(sets))
        yield "    return 0;\n}"
        yield "static const struct { int64_t number; Entry entries[SETS]; } kernels[KERNELS + 1] = {"
        for number in self.kernels:
            yield f"    {{ {number}, {{ {', '.join(_entry_name(number, cpu) for cpu in sets)} }} }},"
        yield "    { 0 }\n};"


def _move_headers_to_end(library: bytes) -> bytes:
    """Move the program headers of an ELF file to its end.

    The loader reads them first, so it refuses a file that was cut off; otherwise it would crash on the missing pages.
    """
    start, size, count = *_HEADERS_AT.unpack_from(library, 32), *_HEADER_SIZES.unpack_from(library, 54)
    padded = library + bytes(-len(library) % 8)
    moved = padded + library[start : start + size * count]
    return moved[:32] + _HEADERS_AT.pack(len(padded)) + moved[40:]


def _entry_name(number: int, cpu: str) -> str:
    return f"{compiled.ENTRY_POINT_PREFIX}k{number}_{cpu.replace('-', '_')}"


def _take_over(library: ctypes.CDLL) -> None:
    """Let the kernel in *library* take threads from the session in which it runs, or outside of one from TVM's pool."""
    path = _custom_op_library()
    assert path is not None
    ours = ctypes.CDLL(str(path))
    launch = ctypes.cast(ours["einnet_launch"], ctypes.c_void_p).value
    slot = _slot(library, _LAUNCH)
    if slot is not None and slot.value != launch:
        ours["einnet_pool"](ctypes.c_void_p(slot.value))
        slot.value = launch


def _slot(library: ctypes.CDLL, name: str) -> ctypes.c_void_p | None:
    try:
        return ctypes.c_void_p.in_dll(library, name)
    except ValueError:
        return None


def custom_op_text(*tables: str) -> str:
    """The C source of the custom op, the text of *tables*, and the functions that find kernels in them.

    Without tables, they find kernels that this process has loaded.
    """
    sources = resources.files(__package__)
    end = sources.joinpath("kernel_library.c" if tables else "loaded_kernels.c").read_text()
    return "\n".join((sources.joinpath("custom_op.c").read_text(), *tables, end))


@lru_cache(maxsize=1)
def _custom_op_library() -> Path | None:
    source = custom_op_text()
    try:
        path = compiled.c_library(source)
        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    except OSError:
        return None
    except ONNXRUNTIME_ERRORS:
        return None
    return path


OPSET, IR_VERSION = 21, 10


@dataclass
class FragmentWriter:
    """Writer of a part of an ONNX graph: *nodes* in order and the *weights* that they read, by value name.

    *names* gives the values of tensors outside of it; all other values begin with *prefix*.  Tensors in *constants*
    become weights where they are read.  Kernels are those of *table*.  Tensors have the element types in *types*, and
    ``float32`` without one.
    """

    names: Mapping[str, str]
    shapes: Mapping[str, Shape]
    constants: Mapping[str, Array]
    prefix: str = ""
    table: KernelTable = LOADED_KERNELS
    types: Mapping[str, str] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._new = count()

    def value(self, tensor: str) -> str:
        """The value of *tensor* in its own shape."""
        return self.value_in_shape(tensor, self.shapes[tensor])

    def value_in_shape(self, tensor: str, shape: Shape) -> str:
        """The value of *tensor* seen in *shape*, which has as many elements."""
        name = self.names.get(tensor, f"{self.prefix}{tensor}")
        if tensor in self.constants:
            seen = f"{self.prefix}{tensor} {'x'.join(map(str, shape))}"
            self.weights[seen] = np.ascontiguousarray(self.constants[tensor]).reshape(shape)
            return seen
        return name if shape == self.shapes[tensor] else self.reshape(name, shape)

    def add(self, op: str, values: Sequence[str], makes: str | None = None, **attributes: Any) -> str:
        """Add a node of *op* on *values* that makes the tensor *makes*, or a new value; return the value's name."""
        target = self.output_value(makes)
        self.nodes.append(helper.make_node(op, list(values), [target], **attributes))
        return target

    def add_kernel(self, kernel: SessionKernel, reads: Sequence[tuple[str, Array | None]], makes: str) -> bool:
        """Add *kernel* on the tensors *reads*, which makes the tensor *makes*; return whether a session can run it.

        An array is read in place of the tensor that it was made of.
        """
        number = self.table.number(kernel)
        if number is None:
            return False
        values = [self.value(name) if array is None else self.weight(name, array) for name, array in reads]
        shapes = [self.shapes[name] if array is None else array.shape for name, array in reads]
        result = self.type_of(makes)
        types = [*(self.type_of(name) if array is None else str(array.dtype) for name, array in reads), result]
        attributes: dict[str, Any] = {
            "kernel": number,
            "threads": kernel.threads,
            "types": list(map(onnx_type, types)),
            "shapes": flatten_shapes([*shapes, kernel.scope.shape]),
            "views": flatten_shapes(kernel.shapes),
        }
        target = self.output_value(makes)
        op_type = "Kernel" if result == FLOAT32 else f"Kernel_{result}"
        self.nodes.append(
            helper.make_node(op_type, values, [target], name=f"kernel of {target}", domain=DOMAIN, **attributes)
        )
        return True

    def type_of(self, tensor: str) -> str:
        """The element type of *tensor*."""
        return self.types.get(tensor, FLOAT32)

    def weight(self, tensor: str, array: Array) -> str:
        """The value of *array*, which is made of *tensor*."""
        seen = f"{self.prefix}{tensor} {'x'.join(map(str, array.shape))} {next(self._new)}"
        self.weights[seen] = array
        return seen

    def reshape(self, value: str, shape: Shape, makes: str | None = None) -> str:
        """*value* in *shape*: free in ONNX Runtime."""
        sizes = f"{self.prefix}shape {'x'.join(map(str, shape))}"
        self.weights[sizes] = np.array(shape, np.int64)
        # Else 0 means the size that is there; operator sets before 14 do not have the attribute.
        zero = {"allowzero": 1} if 0 in shape else {}
        return self.add("Reshape", [value, sizes], makes, **zero)

    def output_value(self, tensor: str | None) -> str:
        """The value that a node makes for *tensor*: a new one for None."""
        if tensor is None:
            return f"{self.prefix}{next(self._new)}"
        return self.names.get(tensor, f"{self.prefix}{tensor}")

    def model(self, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        """A model of the written nodes with these inputs and outputs; it declares the *weights*."""

        def infos(tensors: Sequence[str]) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(self.output_value(t), onnx_type(self.type_of(t)), list(self.shapes[t]))
                for t in tensors
            ]

        graph = helper.make_graph(
            self.nodes, "program", infos(inputs), infos(outputs), [weight_proto(n, a) for n, a in self.weights.items()]
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET), *opset_imports(self.nodes)], ir_version=IR_VERSION
        )


def onnx_type(name: str) -> int:
    """The number that ONNX gives to the element type *name*."""
    return int(TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())))


SAMPLED_BYTES = 1 << 10
"""Bytes of a weight by which those are found that may equal it."""


def share_equal_weights(writers: Iterable[FragmentWriter]) -> None:
    """Let the nodes of *writers* read one weight in place of several with the same bytes, as equal layers have."""
    kept: dict[tuple[object, ...], list[tuple[str, Array]]] = {}
    for writer in writers:
        same: dict[str, str] = {}
        for name, array in writer.weights.items():
            content = array.reshape(-1).view(np.uint8)
            sample = content[:: max(1, content.size // SAMPLED_BYTES)].tobytes()
            alike = kept.setdefault((array.dtype, array.shape, sample), [])
            found = next((first for first, other in alike if np.array_equal(other, content)), None)
            if found is None:
                alike.append((name, content))
            else:
                same[name] = found
        writer.weights = {name: array for name, array in writer.weights.items() if name not in same}
        for node in writer.nodes:
            node.input[:] = [same.get(name, name) for name in node.input]


def opset_imports(nodes: Iterable[onnx.NodeProto]) -> list[onnx.OperatorSetIdProto]:
    """The operator sets that a model of *nodes* imports besides ONNX's."""
    return [helper.make_opsetid(DOMAIN, 1)] if any(node.domain == DOMAIN for node in nodes) else []


def session_options(threads: int, waiting: Waiting = "spin") -> onnxruntime.SessionOptions:
    """The options of a session with *threads* threads.

    Threads that spin take the cores from other work between two calls, by default for 32 ms: here for ``SPIN_SECONDS``,
    which is longer than what lies between two nodes that use them.
    """
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    made.inter_op_num_threads = 1
    made.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    made.log_severity_level = 4  # what fails raises with the same words
    if waiting == "sleep":
        made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    made.add_session_config_entry("session.intra_op.spin_duration_us", str(int(SPIN_SECONDS * 1e6)))
    return made


def onnx_session(
    model: onnx.ModelProto, threads: int, weights: Arrays = NO_WEIGHTS, waiting: Waiting = "spin"
) -> onnxruntime.InferenceSession:
    """*model*, which may hold kernels and declares *weights*, in ONNX Runtime."""
    options = session_options(threads, waiting)
    if opset_imports(model.graph.node):
        register_custom_ops(options)
    return open_lent(model, options, weights)


def bind_session(
    session: onnxruntime.InferenceSession, inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Callable[[], None]:
    """A call of *session* that reads *inputs* where they are now and writes *outputs*; all are packed."""
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data)

    def call(_arrays: object = (inputs, outputs)) -> None:  # the binding knows addresses only
        session.run_with_iobinding(binding)

    return call
