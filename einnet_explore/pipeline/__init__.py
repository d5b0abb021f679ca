"""From an ONNX model to an optimised plan: partition, tune, select, post-optimise, assemble (EinNet §6.3)."""
