"""Layers one after the other on a grid, with shapes that follow by themselves."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Stack:
    """A network on `input (batch, *shape)`; every layer knows the shape that it is given."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.input = self.shape = shape
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.current = "input"

    @property
    def rank(self) -> int:
        return len(self.shape) - 1

    def weight(self, *shape: int) -> str:
        """A random parameter; its size keeps values in the network near 1."""
        name = f"w{sum(tensor.name.startswith('w') for tensor in self.weights)}"
        value = self.rng.standard_normal(shape) / math.sqrt(max(1, math.prod(shape[1:])))
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def add(self, operator: str, *more: str, **attributes: Any) -> Stack:
        """A node on the present tensor; shapes are followed by inference."""
        name = f"t{len(self.nodes)}"
        made = helper.make_node(operator, [self.current, *more], [name], name=f"n{name}", **attributes)
        self.nodes.append(made)
        self.current = name
        inferred = onnx.shape_inference.infer_shapes(self._model([]), strict_mode=True)
        found = next(v for v in inferred.graph.output if v.name == name).type.tensor_type.shape.dim
        self.shape = tuple(int(size.dim_value) for size in found[1:])
        return self

    def conv(self, filters: int, *kernel: int, group: int = 1, **attributes: Any) -> Stack:
        """A convolution with a bias."""
        weight = self.weight(filters, self.shape[0] // group, *kernel)
        return self.add("Conv", weight, self.weight(filters), group=group, **attributes)

    def model(self, outputs: int = 3) -> onnx.ModelProto:
        """The network with a dense layer behind it."""
        self.add("Flatten")
        self.add("Gemm", self.weight(outputs, self.shape[0]), self.weight(outputs), transB=1)
        return self._model([outputs])

    def _model(self, outputs: list[int]) -> onnx.ModelProto:
        take = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", *self.input])
        give = helper.make_tensor_value_info(
            self.current, TensorProto.FLOAT, ["batch", *outputs] if outputs else None
        )
        graph = helper.make_graph(self.nodes, "network", [take], [give], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
