"""Losses as ONNX graphs."""
