"""Gradients of ONNX graphs: reverse-mode differentiation by writing the backward pass as standard nodes.

`reverse` walks the graph, `rules` has one vector-Jacobian product for each operator, `tape` collects the
nodes, and `shapes` measures what the rules need to know of the tensors.
"""
