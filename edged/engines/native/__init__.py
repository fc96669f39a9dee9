"""Training by onnxruntime-training."""
