"""Any ONNX model, brought into the form that bundles are made from."""
