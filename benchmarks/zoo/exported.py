"""Real architectures: transformers' models with random weights, exported by torch, and models that packages ship.

transformers, onnxscript and torch are the extra ``zoo``; they are imported where they are used, and no file is
downloaded.  Widths are those of published models; layers, vocabularies and images are fewer or smaller.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from benchmarks.zoo.parts import Kind
from einnet_explore.pipeline.torch_modules import export_module

TOKENS, WORDS = 128, 1000

Inputs = Mapping[str, tuple[int, ...]]
"""Shapes of a model's inputs; those of names that end in ``ids`` are numbers of words."""


def _exported(kind: str, config: str, inputs: Inputs, options: Mapping[str, Any], part: str = "") -> onnx.ModelProto:
    """Return the first output of transformers' class *kind*, or of its *part*, as an ONNX model.

    Raises ValueError if a package of the extra ``zoo`` is missing.
    """
    for package in ("torch", "onnxscript", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise ValueError(f"found no Python package {package}, expected it for {kind}: pip install '.[zoo]'")
    import torch
    import transformers

    torch.manual_seed(0)
    settings = getattr(transformers, config)(**options, attn_implementation="eager")
    model = getattr(transformers, kind)(settings).eval()
    inner = getattr(model, part) if part else model

    class First(torch.nn.Module):  # a cache or a tuple of hidden states is no output
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *arguments: Any) -> Any:
            return self.inner(**dict(zip(inputs, arguments, strict=True)), return_dict=True, **uncached)[0]

    uncached = {"use_cache": False} if getattr(settings, "use_cache", False) else {}
    given = tuple(
        torch.randint(0, WORDS, shape) if name.endswith("ids") else torch.randn(shape) for name, shape in inputs.items()
    )
    return export_module(First().eval(), given, [*inputs])


def _packaged(package: str, path: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model that an installed *package* ships, its first input set to *shape*."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"found no Python package {package}, expected it for {path}")
    proto = onnx.load(str(Path(spec.submodule_search_locations[0]) / path))
    weights = {weight.name for weight in proto.graph.initializer}
    first = next(value for value in proto.graph.input if value.name not in weights)
    for place, size in zip(first.type.tensor_type.shape.dim, shape, strict=True):
        place.dim_value = size
    return proto


def _light(name: str) -> Callable[[], onnx.ModelProto]:
    return partial(_packaged, "onnx", f"backend/test/data/light/light_{name}.onnx", (1, 3, 224, 224))


def _reader(name: str, *shape: int) -> Callable[[], onnx.ModelProto]:
    return partial(_packaged, "rapidocr_onnxruntime", f"models/ch_{name}_infer.onnx", shape)


_TEXT: Inputs = {"input_ids": (1, TOKENS)}
_VISION = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}
_BERT = {"num_hidden_layers": 4, "vocab_size": WORDS}
_GPT2 = {"n_layer": 4, "vocab_size": WORDS}
_LLAMA = {
    "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": WORDS,
}  # fmt: skip
_WHISPER = {
    "encoder_layers": 4, "d_model": 384, "encoder_attention_heads": 6, "encoder_ffn_dim": 1536,
    "max_source_positions": 500, "decoder_layers": 1, "vocab_size": WORDS, "pad_token_id": 0,
}  # fmt: skip
_CONVNEXT = {"depths": [1, 1, 3, 1]}
_SWIN = {"depths": [2, 2], "num_heads": [3, 6], "image_size": 112}
_MAMBA = {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": WORDS}
_YOLOS = {**_VISION, "image_size": [128, 128], "num_detection_tokens": 20}


def _image(side: int) -> Inputs:
    return {"pixel_values": (1, 3, side, side)}


EXPORTED: tuple[Kind, ...] = (
    Kind("bert", "BERT, 4 layers, 128 tokens", partial(_exported, "BertModel", "BertConfig", _TEXT, _BERT)),
    Kind("gpt2", "GPT-2, 4 layers, 128 tokens", partial(_exported, "GPT2LMHeadModel", "GPT2Config", _TEXT, _GPT2)),
    Kind(
        "llama", "Llama, 4 layers, grouped heads", partial(_exported, "LlamaForCausalLM", "LlamaConfig", _TEXT, _LLAMA)
    ),
    Kind("vit_s", "ViT-S, 4 layers", partial(_exported, "ViTModel", "ViTConfig", _image(224), _VISION)),
    Kind(
        "whisper", "Whisper tiny's encoder",
        partial(_exported, "WhisperModel", "WhisperConfig", {"input_features": (1, 80, 1000)}, _WHISPER, "encoder"),
    ),
    Kind(
        "segformer", "SegFormer-b0, 256²",
        partial(_exported, "SegformerForSemanticSegmentation", "SegformerConfig", _image(256), {}),
    ),
    Kind(
        "convnext_t", "ConvNeXt-T, 6 blocks",
        partial(_exported, "ConvNextModel", "ConvNextConfig", _image(224), _CONVNEXT)
    ),
    Kind(
        "mobilenet_v2", "MobileNetV2, 224²",
        partial(_exported, "MobileNetV2ForImageClassification", "MobileNetV2Config", _image(224), {}),
    ),
    Kind(
        "mamba", "Mamba, 2 layers, 16 tokens",
        partial(_exported, "MambaForCausalLM", "MambaConfig", {"input_ids": (1, 16)}, _MAMBA),
    ),
    Kind("swin_t", "Swin-T's first stages, 112²", partial(_exported, "SwinModel", "SwinConfig", _image(112), _SWIN)),
    Kind("yolos", "YOLOS-S, 4 layers, 128²", partial(_exported, "YolosModel", "YolosConfig", _image(128), _YOLOS)),
    *(
        Kind(f"light_{name}", f"{name} of the onnx package", _light(name))
        for name in ("resnet50", "vgg19", "squeezenet", "densenet121", "inception_v2", "shufflenet")
    ),
    Kind("ocr_detector", "text detector of PP-OCRv4, 320²", _reader("PP-OCRv4_det", 1, 3, 320, 320)),
    Kind("ocr_recogniser", "text recogniser of PP-OCRv4", _reader("PP-OCRv4_rec", 1, 3, 48, 320)),
    Kind("ocr_classifier", "text direction classifier of PP-OCR", _reader("ppocr_mobile_v2.0_cls", 1, 3, 48, 192)),
)  # fmt: skip
