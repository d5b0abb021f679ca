"""OpenVINO, ncnn and MNN, for benchmarks only: each opens an ONNX model on given inputs as a call in this process.

All compute in float32 on CPUs with a given number of threads.  They are optional extras, imported where they are used.
Converters run in processes of their own, since they print and may crash.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx

from einnet_explore.onnx_import.model import Model
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.hosts import compile_in_openvino

CONVERSION_SECONDS = 300
"""Time limit of a model's conversion."""

MAX_REASON_LENGTH = 300
"""Characters of a converter's output that are quoted if it fails."""


Shape: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A call that runs a model and returns its outputs, and a description."""

    call: Callable[[], Arrays]
    said: str


def open_in_openvino(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    """Return *model* in OpenVINO, with the options that plans use."""
    import openvino

    with _model_file(model.original) as path:
        request = compile_in_openvino(path, threads).create_infer_request()
    for value in model.inputs:
        request.set_tensor(value.name, openvino.Tensor(np.ascontiguousarray(feeds[value.name]), shared_memory=True))
    results = {value.name: request.get_output_tensor(n) for n, value in enumerate(model.outputs)}

    def call() -> Arrays:
        request.infer()
        return {name: tensor.data for name, tensor in results.items()}

    return OpenModel(call, f"OpenVINO {version('openvino')}, f32, latency")


def open_in_ncnn(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    """Return *model* in ncnn, whose arrays have no batch dimension: the samples of a batch run one after the other.

    That is done where all inputs and outputs have the same first dimension and the model does not run as it is.
    """
    names, shapes = [value.name for value in model.outputs], [value.shape for value in model.outputs]
    arrays = {value.name: feeds[value.name] for value in model.inputs}
    samples = _batch_size([*(array.shape for array in arrays.values()), *shapes])
    said = f"ncnn {version('ncnn')}, float32"
    try:
        run = _ncnn_call(_ncnn_net(model.original, arrays, threads), arrays, shapes)
        run()
        return OpenModel(lambda: dict(zip(names, run(), strict=True)), said)
    except ValueError:
        if samples == 1:
            raise
    each = [{name: array[n : n + 1] for name, array in arrays.items()} for n in range(samples)]
    net = _ncnn_net(_with_one_sample(model.original, arrays), each[0], threads)
    runs = [_ncnn_call(net, one, [None if shape is None else (1, *shape[1:]) for shape in shapes]) for one in each]

    def call() -> Arrays:
        found = zip(*(run() for run in runs), strict=True)
        return {name: np.concatenate(parts) for name, parts in zip(names, found, strict=True)}

    return OpenModel(call, f"{said}, one sample after the other")


def _ncnn_net(proto: onnx.ModelProto, arrays: Arrays, threads: int) -> Any:
    """Return *proto*, converted for inputs of the shapes of *arrays*."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    with _model_file(proto) as path:
        shapes = ",".join(_pnnx_shape(name, array) for name, array in arrays.items())
        _convert("pnnx", [_pnnx_path(), path.name, f"inputshape={shapes}", "fp16=0"], path.with_suffix(".ncnn.bin"))
        # These functions report failures by their results and by text on the standard error stream.
        if net.load_param(str(path.with_suffix(".ncnn.param"))) or net.load_model(str(path.with_suffix(".ncnn.bin"))):
            raise ValueError("ncnn cannot load the converted model: it has a layer that ncnn does not know")
    return net


def _ncnn_call(net: Any, arrays: Arrays, shapes: Sequence[Shape | None]) -> Callable[[], list[Array]]:
    """Return a call of *net* on *arrays* that returns outputs of *shapes*; it raises ValueError if they differ."""
    import ncnn

    given = [np.ascontiguousarray(a[0] if a.ndim > 1 and len(a) == 1 else a) for a in arrays.values()]
    matrices = [(f"in{n}", ncnn.Mat(array), array) for n, array in enumerate(given)]  # a matrix does not own its array

    def call() -> list[Array]:
        extractor = net.create_extractor()
        for name, matrix, _ in matrices:
            extractor.input(name, matrix)
        return [_extracted(extractor, f"out{n}", shape) for n, shape in enumerate(shapes)]

    return call


def _with_one_sample(proto: onnx.ModelProto, inputs: Iterable[str]) -> onnx.ModelProto:
    """Return *proto* with a first dimension of 1 of *inputs* and all outputs, and unknown shapes between them."""
    one, names = onnx.ModelProto(), {*inputs}
    one.CopyFrom(proto)
    del one.graph.value_info[:]
    for value in (*(v for v in one.graph.input if v.name in names), *one.graph.output):
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_value = 1
    return one


def _batch_size(shapes: Sequence[Shape | None]) -> int:
    """Return the first dimension of *shapes* if it is the same in all of them, else 1."""
    found = {shape[0] if shape else 1 for shape in shapes}
    return found.pop() if len(found) == 1 else 1


def _extracted(extractor: Any, name: str, shape: Shape | None) -> Array:
    failed, matrix = extractor.extract(name)
    if failed or matrix.empty():  # its conversion to an array would crash
        raise ValueError(f"ncnn: {name}: found no result, expected shape {shape}")
    array = np.array(matrix, copy=False)
    if shape is not None and array.size != np.prod(shape):
        raise ValueError(f"ncnn: {name}: found shape {array.shape}, expected {shape}")
    return array if shape is None else array.reshape(shape)


def _pnnx_path() -> str:
    """Return the converter's program; its Python module would import torch."""
    found = importlib.util.find_spec("pnnx")
    assert found is not None and found.submodule_search_locations
    return str(Path(found.submodule_search_locations[0]) / "pnnx")


_PNNX_TYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


def _pnnx_shape(name: str, array: Array) -> str:
    if array.dtype.name not in _PNNX_TYPES:
        raise ValueError(f"input {name}: found {array.dtype}, expected one of {', '.join(_PNNX_TYPES)} for pnnx")
    return f"[{','.join(map(str, array.shape))}]{_PNNX_TYPES[array.dtype.name]}"


_MNN_CONVERTER = "import sys, _tools; _tools.mnnconvert(sys.argv)"
"""The command ``mnnconvert`` without its log, which installs packages and reports to a server."""


def open_in_mnn(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    """Return *model* in MNN; its Winograd convolutions are less exact than those of the others."""
    import MNN.expr
    import MNN.nn

    options = {"backend": 0, "numThread": threads, "precision": "high"}
    manager = MNN.nn.create_runtime_manager((options,))
    names = [[value.name for value in values] for values in (model.inputs, model.outputs)]
    with _model_file(model.original) as path:
        made = path.with_suffix(".mnn")
        flags = ["-f", "ONNX", "--modelFile", str(path), "--MNNModel", str(made), "--bizCode", "einnet"]
        _convert("mnnconvert", [sys.executable, "-c", _MNN_CONVERTER, *flags], made)
        module = MNN.nn.load_module_from_file(str(made), *names, runtime_manager=manager)
    given = [_mnn_input(MNN.expr, feeds[name]) for name in names[0]]

    def call() -> Arrays:
        found = module.forward(given)
        return {name: _mnn_output(MNN.expr, one) for name, one in zip(names[1], found, strict=True)}

    return OpenModel(call, f"MNN {version('mnn')}, precision high")


def _mnn_input(expr: Any, array: Array) -> Any:
    kinds = {"float32": expr.float, "int32": expr.int, "int64": expr.int}
    if array.dtype.name not in kinds:
        raise ValueError(f"MNN: found an input of {array.dtype}, expected one of {', '.join(kinds)}")
    made = expr.placeholder(list(array.shape), expr.NCHW, kinds[array.dtype.name])
    made.write(np.ascontiguousarray(array, np.int32 if array.dtype.kind == "i" else np.float32))
    return made


def _mnn_output(expr: Any, made: Any) -> Array:
    packed = made.data_format == expr.NC4HW4
    array: Array = (expr.convert(made, expr.NCHW) if packed else made).read()
    return array


@contextmanager
def _model_file(proto: onnx.ModelProto) -> Generator[Path]:
    """Write *proto* to a file in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(proto, path)
        yield path


def _convert(name: str, command: Sequence[str], made: Path) -> None:
    """Run a converter that writes *made*; raise ValueError with the end of its output if it fails."""
    try:
        done = subprocess.run(
            command, cwd=made.parent, capture_output=True, text=True, timeout=CONVERSION_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{name} did not convert the model within {CONVERSION_SECONDS} seconds") from None
    if done.returncode or not made.exists():
        said = " ".join(f"{done.stdout} {done.stderr}".split())[-MAX_REASON_LENGTH:]
        raise ValueError(f"{name} wrote no model and ended with code {done.returncode}: {said}")
