"""ONNX export: programs as standard operators and local functions of standard operators."""
