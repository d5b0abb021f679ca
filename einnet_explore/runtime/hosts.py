"""Hosts: installed runtimes, apart from ONNX Runtime, that can run the nodes of a model that no kernel replaces.

A host reads its inputs and writes its outputs where a plan keeps them, so nothing is copied between it and the kernels.
OpenVINO is one, if it is installed (the extra ``openvino``).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from einnet_explore.runtime.arrays import Array
from einnet_explore.runtime.profile_store import package_version
from einnet_explore.support.errors import Refused

Binder: TypeAlias = "Callable[[Mapping[str, Array], Mapping[str, Array]], Callable[[], None]]"
"""Returns a call of an open model that reads inputs where they are now and writes outputs, both by name; all are
packed.  Each call belongs to one thread at a time."""


@dataclass(frozen=True, slots=True)
class Host:
    """A runtime called *name*, of *version*.

    *open* takes a model (or its path) with static shapes and a number of threads; it raises Refused if the runtime
    does not run the model.  It computes in float32, whatever the processor prefers.
    """

    name: str
    version: str
    open: Callable[[onnx.ModelProto | Path, int], Binder] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def installed_hosts() -> tuple[Host, ...]:
    """Return the hosts that are installed here."""
    if importlib.util.find_spec("openvino") is None:
        return ()
    return (Host("OpenVINO", package_version("openvino"), open_in_openvino),)


def compile_in_openvino(model: onnx.ModelProto | Path, threads: int) -> Any:
    """Return *model*, or that at a path, compiled by OpenVINO for one call at a time; raises Refused.

    OpenVINO would compute in bfloat16 where the processor has it unless told otherwise.
    """
    options = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
    try:
        import openvino

        core = openvino.Core()
        read = core.read_model(model if isinstance(model, Path) else model.SerializeToString())
        return core.compile_model(read, "CPU", options)
    except Exception as error:  # it has no classes of its own for its failures
        raise Refused(f"OpenVINO refuses the model: {_reason(error)}") from error


def open_in_openvino(model: onnx.ModelProto | Path, threads: int) -> Binder:
    """Open *model* in OpenVINO, as ``Host.open`` does."""
    compiled = compile_in_openvino(model, threads)
    import openvino  # after it was found to work

    results = {name: n for n, output in enumerate(compiled.outputs) for name in output.names}

    def bind(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        try:
            request = compiled.create_infer_request()
            for name, array in inputs.items():
                request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
            for name, array in outputs.items():
                request.set_output_tensor(results[name], openvino.Tensor(array, shared_memory=True))
        except Exception as error:
            raise Refused(f"OpenVINO refuses an array: {_reason(error)}") from error

        def call() -> None:
            try:
                request.infer()
            except Exception as error:
                raise Refused(f"OpenVINO fails: {_reason(error)}") from error

        return call

    return bind


MAX_REASON_LENGTH = 300
"""Characters of OpenVINO's message that are quoted; it also lists the files of its source."""


def _reason(error: Exception) -> str:
    lines = (line for line in str(error).splitlines() if line and not line.startswith("Exception from"))
    return " ".join(lines)[:MAX_REASON_LENGTH] or type(error).__name__
