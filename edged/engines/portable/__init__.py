"""Training by a step graph on any onnxruntime."""
