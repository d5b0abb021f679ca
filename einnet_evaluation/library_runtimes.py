"""OpenVINO, ncnn and MNN, for benchmarks only: each opens an ONNX model on given inputs as a call in this process.

All compute in float32 on CPUs with a given number of threads.  They are optional extras, imported where they are used.
Converters run in processes of their own, since they print and may crash.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from einnet_explore.onnx_import.model import Model
from einnet_explore.runtime.arrays import Array, Arrays
from einnet_explore.runtime.hosts import compile_in_openvino

CONVERSION_SECONDS = 300
"""Time limit of a model's conversion."""

MAX_REASON_LENGTH = 300
"""Characters of a converter's output that are quoted if it fails."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A call that runs a model and returns its outputs, and a description."""

    call: Callable[[], Arrays]
    said: str


def open_in_openvino(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    """Return *model* in OpenVINO, with the options that plans use."""
    import openvino

    with _model_file(model) as path:
        request = compile_in_openvino(path, threads).create_infer_request()
    for value in model.inputs:
        request.set_tensor(value.name, openvino.Tensor(np.ascontiguousarray(feeds[value.name]), shared_memory=True))
    results = {value.name: request.get_output_tensor(n) for n, value in enumerate(model.outputs)}

    def call() -> Arrays:
        request.infer()
        return {name: tensor.data for name, tensor in results.items()}

    return OpenModel(call, f"OpenVINO {version('openvino')}, f32, latency")


def open_in_ncnn(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    """Return *model* in ncnn, whose arrays have no batch dimension."""
    import ncnn

    net = ncnn.Net()
    net.opt.num_threads = threads
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    with _model_file(model) as path:
        shapes = ",".join(_pnnx_shape(name, feeds[name]) for name in (value.name for value in model.inputs))
        _convert("pnnx", [_pnnx_path(), path.name, f"inputshape={shapes}", "fp16=0"], path.with_suffix(".ncnn.bin"))
        # These functions report failures by their results and by text on the standard error stream.
        if net.load_param(str(path.with_suffix(".ncnn.param"))) or net.load_model(str(path.with_suffix(".ncnn.bin"))):
            raise ValueError("ncnn cannot load the converted model: it has a layer that ncnn does not know")
    given = {
        f"in{n}": np.ascontiguousarray(array[0] if array.ndim > 1 and len(array) == 1 else array)
        for n, array in enumerate(feeds[value.name] for value in model.inputs)
    }
    matrices = {name: ncnn.Mat(array) for name, array in given.items()}

    def call() -> Arrays:
        extractor = net.create_extractor()
        for name, matrix in matrices.items():
            extractor.input(name, matrix)
        return {value.name: _extracted(extractor, f"out{n}", value) for n, value in enumerate(model.outputs)}

    return OpenModel(call, f"ncnn {version('ncnn')}, float32")


def _extracted(extractor: Any, name: str, value: Any) -> Array:
    failed, matrix = extractor.extract(name)
    array = np.array(matrix, copy=False)
    if failed or (value.shape is not None and array.size != np.prod(value.shape)):
        raise ValueError(f"ncnn: output {value.name}: found shape {array.shape}, expected {value.shape}")
    return array if value.shape is None else array.reshape(value.shape)


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
    with _model_file(model) as path:
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
def _model_file(model: Model) -> Generator[Path]:
    """Write *model* as read, with its sizes set, to a file in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model.original, path)
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
