"""Models as they come from elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def chain(
    operator: str = "Relu", *, opset: int = 17, ir_version: int = 8, batch: str | int = "n", **attributes: Any
) -> onnx.ModelProto:
    """`input (batch, 4)` → MatMul → `operator` → MatMul + bias → `output (batch, 2)`, nodes without names."""
    rng = np.random.default_rng(0)
    shapes = {"fc1.weight": (4, 4), "fc2.weight": (4, 2), "fc2.bias": (2,)}
    parameters = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["input", "fc1.weight"], ["hidden"]),
        helper.make_node(operator, ["hidden"], ["active"], **attributes),
        helper.make_node("MatMul", ["active", "fc2.weight"], ["product"]),
        helper.make_node("Add", ["product", "fc2.bias"], ["output"]),
    ]
    return model(nodes, parameters, batch=batch, opset=opset, ir_version=ir_version)


def model(
    nodes: list[onnx.NodeProto],
    parameters: list[onnx.TensorProto],
    *,
    batch: str | int = "n",
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model with `input (batch, 4)` and `output (batch, 2)`."""
    take = helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 4])
    give = helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, 2])
    graph = helper.make_graph(nodes, "elsewhere", [take], [give], parameters)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
