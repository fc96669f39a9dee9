"""Small networks that cut, join and turn a tensor `(batch, ...)` between two dense layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.engines.runtime import ort


class Shaped:
    """A network on `input (batch, 4)` whose first layer gives `h (batch, *row)`."""

    def __init__(self, *row: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        product = self.add("MatMul", "input", self.weight(4, math.prod(row)))
        self.add("Reshape", product, self.ints(0, *row), output="h")

    def tensor(self, value: Any) -> str:
        name = f"v{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        """A random parameter."""
        return self.tensor(self.rng.standard_normal(shape).astype(np.float32))

    def ints(self, *values: int) -> str:
        """An int64 vector."""
        return self.tensor(np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A scalar, which is no parameter."""
        return self.tensor(np.float32(value))

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        name = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=f"n{name}", **attributes))
        return name

    def split(self, x: str, *lengths: int, axis: int) -> list[str]:
        names = [f"t{len(self.nodes)}.{i}" for i in range(len(lengths))]
        given = [x, self.ints(*lengths)]
        self.nodes.append(helper.make_node("Split", given, names, name=f"n{names[0]}", axis=axis))
        return names

    def row(self, tensor: str) -> tuple[int, ...]:
        """What of a tensor's shape belongs to one row."""
        session = ort.session(self._model(tensor, None).SerializeToString())
        shape: tuple[int, ...] = session.run([tensor], {"input": np.ones((1, 4), np.float32)})[0].shape
        return shape[1:]

    def model(self, end: str) -> onnx.ModelProto:
        """The network with a dense layer from tensor `end` to `output (batch, 2)`."""
        width = math.prod(self.row(end))
        flat = self.add("Reshape", end, self.ints(-1, width))
        self.add("Gemm", flat, self.weight(width, 2), self.weight(2), output="output")
        return self._model("output", ["n", 2])

    def _model(self, output: str, shape: list[str | int] | None) -> onnx.ModelProto:
        take = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 4])
        give = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "shaped", [take], [give], self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
