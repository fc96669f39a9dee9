"""Layers of networks, written as ONNX nodes with seeded weights in PyTorch's shapes and names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUT, OUTPUT = "x", "output"


class Network:
    """A graph that grows layer by layer from input `x (batch, *row)` to `output (batch, outputs)`.

    Every layer takes the name of a tensor and gives the name of its result. Weights are uniform in
    ±1/√fan_in, as PyTorch initialises them, drawn from one generator in the order of the layers.
    """

    def __init__(self, *row: int, seed: int = 0, opset: int = 17) -> None:
        self._row, self._opset = row, opset
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []

    def model(self, name: str, outputs: int) -> onnx.ModelProto:
        """The finished model; the last layer must have written `output`."""
        take = helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *self._row])
        give = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", outputs])
        graph = helper.make_graph(self._nodes, name, [take], [give], self._tensors)
        opset = [helper.make_opsetid("", self._opset)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)

    # ---- tensors and nodes -------------------------------------------------------------------

    def add(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Write one node; the name of its first output."""
        name = output or f"{operator.lower()}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def add_many(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Write one node with several outputs, named after the first."""
        self._nodes.append(
            helper.make_node(operator, list(inputs), list(outputs), name=outputs[0], **attributes)
        )

    def tensor(self, name: str, value: Any) -> str:
        """An initializer: float32 ones are parameters, the others sizes, axes and the like."""
        self._tensors.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def sizes(self, *values: int) -> str:
        """An int64 vector."""
        return self.tensor(f"sizes.{len(self._tensors)}", np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A float32 scalar, which is no parameter."""
        return self.tensor(f"number.{len(self._tensors)}", np.float32(value))

    def weight(self, name: str, shape: Sequence[int], fan_in: int) -> str:
        """A parameter with random values."""
        bound = 1 / np.sqrt(fan_in)
        return self.tensor(name, self._rng.uniform(-bound, bound, shape).astype(np.float32))

    # ---- layers ------------------------------------------------------------------------------

    def dense(self, x: str, layer: str, fan_in: int, fan_out: int, output: str = "") -> str:
        """x·Wᵀ + b, x of shape (batch, fan_in)."""
        weight = self.weight(f"{layer}.weight", (fan_out, fan_in), fan_in)
        return self.add(
            "Gemm", [x, weight, self.weight(f"{layer}.bias", (fan_out,), fan_in)], output, transB=1
        )

    def project(self, x: str, layer: str, fan_in: int, fan_out: int) -> str:
        """x·W + b along the last axis, whatever is before it."""
        product = self.add("MatMul", [x, self.weight(f"{layer}.weight", (fan_in, fan_out), fan_in)])
        return self.add("Add", [product, self.weight(f"{layer}.bias", (fan_out,), fan_in)])

    def conv(
        self,
        x: str,
        layer: str,
        channels: tuple[int, int],
        kernel: Sequence[int],
        group: int = 1,
        stride: int = 1,
    ) -> str:
        """Convolution that keeps the size, or divides it by the stride; from, to in `channels`."""
        per_group = channels[0] // group
        fan_in = per_group * int(np.prod(kernel))
        inputs = [
            x,
            self.weight(f"{layer}.weight", (channels[1], per_group, *kernel), fan_in),
            self.weight(f"{layer}.bias", (channels[1],), fan_in),
        ]
        pads, strides = [size // 2 for size in kernel] * 2, [stride] * len(kernel)
        return self.add("Conv", inputs, kernel_shape=kernel, pads=pads, strides=strides, group=group)

    def pool(self, x: str, operator: str, axes: int, size: int = 2) -> str:
        """MaxPool or AveragePool over windows that touch but do not overlap."""
        return self.add(operator, [x], kernel_shape=[size] * axes, strides=[size] * axes)

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self.add("Relu", [x])

    def relu6(self, x: str) -> str:
        """min(max(x, 0), 6)."""
        return self.add("Clip", [x, self.number(0), self.number(6)])

    def gelu(self, x: str) -> str:
        """x·Φ(x), the way exporters write it."""
        erf = self.add("Erf", [self.add("Div", [x, self.number(np.sqrt(2))])])
        doubled = self.add("Mul", [x, self.add("Add", [erf, self.number(1)])])
        return self.add("Mul", [doubled, self.number(0.5)])

    def silu(self, x: str) -> str:
        """x·σ(x)."""
        return self.add("Mul", [x, self.add("Sigmoid", [x])])

    def layer_norm(self, x: str, layer: str, width: int) -> str:
        """Layer normalisation over the last axis."""
        scale = self.tensor(f"{layer}.weight", np.ones(width, np.float32))
        shift = self.tensor(f"{layer}.bias", np.zeros(width, np.float32))
        return self.add("LayerNormalization", [x, scale, shift], axis=-1, epsilon=1e-5)

    def batch_norm(self, x: str, layer: str, channels: int, momentum: float = 0.9) -> str:
        """Batch normalisation as exported for inference; no two of its parameters are the same."""
        values = {
            "weight": 1 + 0.1 * self._rng.standard_normal(channels),
            "bias": 0.1 * self._rng.standard_normal(channels),
            "running_mean": 0.1 * self._rng.standard_normal(channels),
            "running_var": self._rng.uniform(0.5, 1.5, channels),
        }
        names = [self.tensor(f"{layer}.{name}", value.astype(np.float32)) for name, value in values.items()]
        return self.add("BatchNormalization", [x, *names], epsilon=1e-5, momentum=momentum)

    def group_norm(self, x: str, layer: str, shape: tuple[int, ...], groups: int) -> str:
        """Group normalisation the way PyTorch exports it: an instance normalisation of the groups."""
        ones, zeros = (
            self.add("Constant", [], value=numpy_helper.from_array(np.full(groups, value, np.float32)))
            for value in (1, 0)
        )
        grouped = self.add("Reshape", [x, self.sizes(0, groups, -1)])
        normal = self.add("InstanceNormalization", [grouped, ones, zeros], epsilon=1e-5)
        flat = (shape[0], *(1 for _ in shape[1:]))
        scale = self.tensor(f"{layer}.weight", np.ones(flat, np.float32))
        shift = self.tensor(f"{layer}.bias", np.zeros(flat, np.float32))
        back = self.add("Reshape", [normal, self.sizes(-1, *shape)])
        return self.add("Add", [self.add("Mul", [back, scale]), shift])

    def dropout(self, x: str, ratio: float) -> str:
        """Dropout as exported in training mode."""
        training = self.tensor(f"training.{len(self._tensors)}", np.array(True))
        output = f"dropout.{len(self._nodes)}"
        self.add_many("Dropout", [x, self.number(ratio), training], [output, f"{output}.mask"], seed=1)
        return output

    def attention(self, x: str, layer: str, length: int, width: int, heads: int) -> str:
        """Softmax attention of x (batch, length, width) to itself (Vaswani et al. 2017)."""
        query, key, value = (
            self._heads(self.project(x, f"{layer}.{name}", width, width), length, width, heads)
            for name in ("query", "key", "value")
        )
        scores = self.add("MatMul", [query, self.add("Transpose", [key], perm=[0, 1, 3, 2])])
        scaled = self.add("Mul", [scores, self.number(1 / np.sqrt(width / heads))])
        mixed = self.add("MatMul", [self.add("Softmax", [scaled], axis=-1), value])
        together = self.add("Transpose", [mixed], perm=[0, 2, 1, 3])
        joined = self.add("Reshape", [together, self.sizes(-1, length, width)])
        return self.project(joined, f"{layer}.out", width, width)

    def _heads(self, x: str, length: int, width: int, heads: int) -> str:
        parted = self.add("Reshape", [x, self.sizes(-1, length, heads, width // heads)])
        return self.add("Transpose", [parted], perm=[0, 2, 1, 3])

    def recurrent(
        self,
        x: str,
        operator: str,
        fan_in: int,
        hidden: int,
        *,
        both_ways: bool = False,
        time_first: bool = False,
    ) -> list[str]:
        """A recurrent layer over x (batch, time, fan_in) as PyTorch exports it; its outputs, states first.

        With `time_first` x is (time, batch, fan_in), which is PyTorch's default.
        """
        gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator]
        outputs, ways = ["states", "last", "cell"][: 3 if operator == "LSTM" else 2], 1 + both_ways
        inputs = [
            x if time_first else self.add("Transpose", [x], perm=[1, 0, 2]),
            self.weight("rnn.weight_ih", (ways, gates * hidden, fan_in), hidden),
            self.weight("rnn.weight_hh", (ways, gates * hidden, hidden), hidden),
            self.weight("rnn.bias", (ways, 2 * gates * hidden), hidden),
            "",
            *[self._initial_state(x, int(time_first), ways, hidden) for _ in outputs[1:]],
        ]
        extra: dict[str, Any] = {"linear_before_reset": 1} if operator == "GRU" else {}
        extra |= {"direction": "bidirectional"} if both_ways else {}
        self.add_many(operator, inputs, outputs, hidden_size=hidden, **extra)
        return outputs

    def _initial_state(self, x: str, axis: int, ways: int, hidden: int) -> str:
        """Zeros (ways, batch, hidden)."""
        rows = self.add("Slice", [self.add("Shape", [x]), self.sizes(axis), self.sizes(axis + 1)])
        shape = self.add("Concat", [self.sizes(ways), rows, self.sizes(hidden)], axis=0)
        return self.add("ConstantOfShape", [shape])


def in_precision(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """The model with inputs, outputs and weights of another precision; it is changed."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return model
