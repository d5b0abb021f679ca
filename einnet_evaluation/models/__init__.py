"""The evaluation models (EinNet §8), written as ONNX files with the same weights every time."""

from __future__ import annotations

import onnx

from einnet_evaluation.models.builder import EvaluationModel
from einnet_evaluation.models.convolutional import CSRNET, DCGAN, FSRCNN, INFOGAN, RESNET18
from einnet_evaluation.models.gcn import GCN, GCN_HEADS
from einnet_evaluation.models.longformer import LONGFORMER

MODELS: tuple[EvaluationModel, ...] = (INFOGAN, DCGAN, FSRCNN, GCN, RESNET18, CSRNET, LONGFORMER)
"""The models of the paper's Fig. 12 (§7.2); one more is one more value."""

PARTS: tuple[EvaluationModel, ...] = (GCN_HEADS,)
"""Parts of them that are looked at by themselves."""

__all__ = ["MODELS", "PARTS", "EvaluationModel", "with_dynamic_batch", "write"]


def write(
    name: str, batch: int = 1, size: int | None = None, models: tuple[EvaluationModel, ...] = (*MODELS, *PARTS)
) -> onnx.ModelProto:
    """The model *name* at *batch* and *size* (default: the published one), opset 21, IR 10; the same bytes every time.

    Raises ValueError on an unknown name, a batch below 1, or a size that the model cannot have.
    """
    if batch < 1:
        raise ValueError(f"batch {batch}: expected at least 1")
    found = next((model for model in models if model.name == name), None)
    if found is None:
        raise ValueError(f"model {name!r}: expected one of {', '.join(model.name for model in models)}")
    if size is not None and not found.counts:
        raise ValueError(f"size {size}: the model {name} has only one, expected none")
    if size is not None and (size < found.step or size % found.step):
        raise ValueError(f"size {size}: expected a positive multiple of {found.step} {found.counts}")
    return found.write(batch, size or found.size)


def with_dynamic_batch(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """Return *proto* with a dynamic first dimension ``batch`` of all inputs and outputs, and its shapes by input."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    del made.graph.value_info[:]
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in proto.graph.input}
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return made, shapes
