"""edged keeps a small ONNX model right where it runs."""

__version__ = "0.1.0"
