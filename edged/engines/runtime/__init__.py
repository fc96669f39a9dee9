"""Sessions of onnxruntime, execution providers, and the learning-rate schedule."""
