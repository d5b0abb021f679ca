"""The evaluation models (EinNet §8), written as ONNX files with the same weights every time."""

from __future__ import annotations

import onnx

from einnet_explore.graph.models.builder import EvaluationModel
from einnet_explore.graph.models.infogan import INFOGAN
from einnet_explore.graph.models.resnet import RESNET18

MODELS: tuple[EvaluationModel, ...] = (INFOGAN, RESNET18)
"""Every evaluation model; one more is one more value."""

__all__ = ["MODELS", "EvaluationModel", "write"]


def write(name: str, batch: int = 1, models: tuple[EvaluationModel, ...] = MODELS) -> onnx.ModelProto:
    """The model *name* at *batch*, opset 21, IR 10; the same bytes every time.

    Raises ValueError on an unknown name or a batch below 1.
    """
    if batch < 1:
        raise ValueError(f"batch {batch}: expected at least 1")
    found = next((model for model in models if model.name == name), None)
    if found is None:
        raise ValueError(f"model {name!r}: expected one of {', '.join(model.name for model in models)}")
    return found.write(batch)
