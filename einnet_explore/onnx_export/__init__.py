"""ONNX out: programs as standard operators and local functions made of them."""
