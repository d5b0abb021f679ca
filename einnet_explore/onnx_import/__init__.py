"""ONNX in: checked models with static shapes, and the canonical expressions of their nodes."""
