"""Parsing of a user's request: model, device, threads, budget, runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from einnet_explore.ir import Program
from einnet_explore.onnx_import.load import load_model
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.exported import library_forms, program_model
from einnet_explore.pipeline.numerics import check_level
from einnet_explore.pipeline.tuning_context import Settings
from einnet_explore.runtime.cuda import execution
from einnet_explore.runtime.device_profile import PROFILE_PREFIX
from einnet_explore.support.errors import BackendError

NOTHING: Mapping[str, tuple[int, ...]] = {}

RUNTIMES = ("plan", "onnxruntime")
"""Runtimes of the optimised model: our plan, or ONNX Runtime alone on the exported file."""


def read_model(model: str | Path | Model | Program, shapes: Mapping[str, tuple[int, ...]] = NOTHING) -> Model:
    """Return *model*, read from a file if it is a path; programs are exported first."""
    match model:
        case Model():
            return model
        case Program():
            return load_model(program_model(list(islice(library_forms(model), 2))[-1], {}), shapes)
        case _:
            return load_model(model, shapes)


def make_settings(
    device: str, threads: int | None, max_depth: int, runtime: str = "plan", numerics: str = "approximate"
) -> Settings:
    """Return the settings of tuning; raises ValueError for an unknown device, runtime or numerics level."""
    check_device(device)
    if runtime not in RUNTIMES:
        raise ValueError(f"target runtime {runtime!r}: expected one of {', '.join(RUNTIMES)}")
    return Settings(threads or len(os.sched_getaffinity(0)), max_depth, runtime=runtime, numerics=check_level(numerics))


def check_device(device: str) -> None:
    """Raise ValueError, with the reason, unless *device* can be used."""
    if device == "cuda":
        try:
            execution.require_cuda()
        except BackendError as error:
            raise ValueError(
                f"device 'cuda': {error}; plans of whole models run on CPUs, expected cpu (for a GPU see "
                "python -m benchmarks.gpu bundle)"
            ) from None
        raise ValueError(
            "device 'cuda': found a GPU, but plans of whole models run on CPUs; expected cpu (python -m benchmarks.gpu "
            "bundle OUT.zip --model FILE.onnx searches, and run in it measures and chooses on the GPU)"
        )
    if device.startswith(PROFILE_PREFIX):
        raise ValueError(
            f"device {device!r}: whole models are measured where they run; a profile orders the candidates of derive, "
            f"and of python -m benchmarks.gpu bundle OUT.zip --model FILE.onnx --device {device}, which the device "
            "then measures; expected cpu"
        )
    if device != "cpu":
        raise ValueError(f"device {device!r}: found no such device, expected cpu")


def parse_budget(budget: float | str | None) -> float | None:
    """Return seconds: ``60``, ``60.0`` and ``"60s"`` are sixty; raises ValueError unless they are positive."""
    if budget is None:
        return None
    try:
        value = float(str(budget).removesuffix("s"))
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ValueError(f"budget {budget!r}: expected a positive number of seconds, such as 60 or '60s'")
    return value
