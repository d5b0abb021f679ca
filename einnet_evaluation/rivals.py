"""Runtimes to compare with, by name: what each needs, and how it opens an ONNX model.

``RIVALS["openvino"].start(model, feeds, threads)`` returns a call of any model that ``load_model`` reads.  Missing
runtimes and models that a runtime cannot convert raise ValueError with the reason.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from einnet_evaluation.library_runtimes import OpenModel, open_in_mnn, open_in_ncnn, open_in_openvino
from einnet_explore.onnx_import.model import Model
from einnet_explore.pipeline.plan import build_plan
from einnet_explore.runtime.arrays import Arrays

Opener: TypeAlias = "Callable[[Model, Arrays, int], OpenModel]"


@dataclass(frozen=True, slots=True)
class Rival:
    """A runtime: its name, the modules that it needs, the extra that installs them, and a function that opens a model.

    *open* takes a model, its inputs and the number of threads.
    """

    name: str
    modules: tuple[str, ...]
    extra: str
    open: Opener

    @property
    def install(self) -> str:
        """The command that installs the runtime."""
        return f"pip install '.[{self.extra}]'"

    def why_missing(self) -> str | None:
        """Return why the runtime cannot be used here, None if it is installed."""
        missing = [module for module in self.modules if importlib.util.find_spec(module) is None]
        if not missing:
            return None
        found = " and ".join(missing)
        return f"found no Python package {found}, expected it for the engine {self.name}: {self.install}"

    def start(self, model: Model, feeds: Arrays, threads: int) -> OpenModel:
        """Return *model* on *feeds*; raise ValueError if the runtime is missing, or does not convert or run it."""
        if why := self.why_missing():
            raise ValueError(why)
        return self.open(model, feeds, threads)


def _onnxruntime(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    plan = build_plan(model, {}, threads)
    return OpenModel(lambda: plan.run(feeds), "all graph optimisations")


def _torch(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    from einnet_evaluation.torch_engine import torch_engine

    return torch_engine(model, feeds, threads)


def _torch_compile(model: Model, feeds: Arrays, threads: int) -> OpenModel:
    from einnet_evaluation.torch_engine import torch_engine

    return torch_engine(model, feeds, threads, compiled=True)


ORT, TORCH, COMPILED = "onnxruntime", "torch", "torch.compile"
OPENVINO, NCNN, MNN_CPU = "openvino", "ncnn", "mnn"

RIVALS: Mapping[str, Rival] = {
    rival.name: rival
    for rival in (
        Rival(ORT, (), "", _onnxruntime),
        Rival(TORCH, ("torch",), "torch", _torch),
        Rival(COMPILED, ("torch",), "torch", _torch_compile),
        Rival(OPENVINO, ("openvino",), "rivals", open_in_openvino),
        Rival(NCNN, ("ncnn", "pnnx"), "rivals", open_in_ncnn),
        Rival(MNN_CPU, ("MNN",), "rivals", open_in_mnn),
    )
}
"""Every runtime to compare with, by name."""


def installed(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of *names* that are not names of a missing runtime."""
    return tuple(name for name in names if name not in RIVALS or RIVALS[name].why_missing() is None)
