"""Plans that run: ONNX Runtime where a model stays as it is, compiled programs where it was replaced."""
