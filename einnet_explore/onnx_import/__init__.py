"""ONNX import: checked models with static shapes, and canonical expressions of their nodes."""
