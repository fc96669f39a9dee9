"""ONNX files as bytes: find and patch parameters without the package onnx."""
