"""Gradients of ONNX graphs, judged by differences in double precision and by another differentiator."""
