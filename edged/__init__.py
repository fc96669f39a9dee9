"""edged keeps a small ONNX model accurate where it runs."""

__version__ = "1.0.0rc2"
