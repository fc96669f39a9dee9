"""A whole training step as one ONNX graph."""
