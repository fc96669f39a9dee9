"""Tools for ONNX graphs: edit, templates, shapes, writer."""
