"""Networks that are timed: small ones as on a device, made with numpy and `onnx.helper` alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.templates import IR_VERSION, OPSET, mlp
from edged.bundles.source.standardise import Statistics

MLP = (64, (128, 64), 6)
CNN1D, CNN2D = (9, 128), (1, 28, 28)
STEPS, FEATURES, HIDDEN = 128, 9, 64


@dataclass(frozen=True)
class Model:
    """A classifier: how to make it, what it is, sizes of an input row, number of classes."""

    name: str
    what: str
    make: Callable[[], onnx.ModelProto]
    row: tuple[int, ...]
    classes: int
    statistics: Statistics | None = None

    def batches(self, rows: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `(count, rows, d)` float32 and labels `(count, rows)` int64 that can be learned."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((count, rows, int(np.prod(self.row)))).astype(np.float32)
        return x, np.abs(x[:, :, 0] * 3).astype(np.int64) % self.classes


class Graph:
    """Nodes and parameters of a network that begins at `x (batch, *row)` and ends at `logits`."""

    def __init__(self, row: tuple[int, ...], classes: int) -> None:
        self._row, self._classes = row, classes
        self._rng = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []

    def add(self, operator: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> str:
        """Append a node; the name of its last output."""
        made = [f"{operator.lower()}{len(self._nodes)}.{i}" for i in range(outputs)]
        name = f"{operator.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, inputs, made, name=name, **attributes))
        return made[-1]

    def weight(self, name: str, shape: tuple[int, ...], fan_in: int) -> str:
        """A parameter, uniform within 1/√fan_in as PyTorch begins."""
        bound = 1 / np.sqrt(fan_in)
        value = self._rng.uniform(-bound, bound, shape).astype(np.float32)
        self._tensors.append(numpy_helper.from_array(value, name))
        return name

    def sizes(self, *values: int) -> str:
        """A constant vector of int64."""
        value = numpy_helper.from_array(np.array(values, np.int64))
        return self.add("Constant", [], value=value)

    def conv(self, x: str, name: str, fan_in: int, fan_out: int, kernel: tuple[int, ...]) -> str:
        """Convolution that keeps the size, then ReLU."""
        area = fan_in * int(np.prod(kernel))
        inputs = [
            x,
            self.weight(f"{name}.weight", (fan_out, fan_in, *kernel), area),
            self.weight(f"{name}.bias", (fan_out,), area),
        ]
        pads = [size // 2 for size in kernel] * 2
        return self.add("Relu", [self.add("Conv", inputs, kernel_shape=kernel, pads=pads)])

    def head(self, x: str, fan_in: int) -> onnx.ModelProto:
        """The last dense layer, and with it the model."""
        weight = self.weight("head.weight", (self._classes, fan_in), fan_in)
        inputs = [x, weight, self.weight("head.bias", (self._classes,), fan_in)]
        self._nodes.append(helper.make_node("Gemm", inputs, ["logits"], name="head", transB=1))
        take = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *self._row])
        give = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", self._classes])
        graph = helper.make_graph(self._nodes, "timed", [take], [give], self._tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def convolutional(
    row: tuple[int, ...], channels: tuple[int, int, int], size: int, classes: int
) -> onnx.ModelProto:
    """Three convolutions with ReLU, the first two pooled by 2, then the mean over all places."""
    graph, dims = Graph(row, classes), len(row) - 1
    kernel, two = (size,) * dims, [2] * dims
    x = graph.conv("x", "conv1", row[0], channels[0], kernel)
    x = graph.conv(graph.add("MaxPool", [x], kernel_shape=two, strides=two), "conv2", *channels[:2], kernel)
    x = graph.conv(graph.add("MaxPool", [x], kernel_shape=two, strides=two), "conv3", *channels[1:], kernel)
    mean = graph.add("Flatten", [graph.add("GlobalAveragePool", [x])])
    return graph.head(mean, channels[2])


def recurrent(operator: str) -> onnx.ModelProto:
    """LSTM or GRU over `(batch, time, features)`, the last state classified, as PyTorch exports it."""
    gates, outputs = {"LSTM": (4, 3), "GRU": (3, 2)}[operator]
    graph = Graph((STEPS, FEATURES), MLP[2])
    rows = graph.add("Slice", [graph.add("Shape", ["x"]), graph.sizes(0), graph.sizes(1)])
    shape = graph.add("Concat", [graph.sizes(1), rows, graph.sizes(HIDDEN)], axis=0)
    inputs = [
        graph.add("Transpose", ["x"], perm=[1, 0, 2]),
        graph.weight("rnn.weight_ih", (1, gates * HIDDEN, FEATURES), HIDDEN),
        graph.weight("rnn.weight_hh", (1, gates * HIDDEN, HIDDEN), HIDDEN),
        graph.weight("rnn.bias", (1, 2 * gates * HIDDEN), HIDDEN),
        "",
        *(graph.add("ConstantOfShape", [shape]) for _ in range(outputs - 1)),
    ]
    extra = {"linear_before_reset": 1} if operator == "GRU" else {}
    last = graph.add(operator, inputs, outputs, hidden_size=HIDDEN, **extra)
    state = last if operator == "GRU" else last.replace(".2", ".1")
    return graph.head(graph.add("Squeeze", [state, graph.sizes(0)]), HIDDEN)


MODELS = {
    model.name: model
    for model in (
        Model(
            "mlp",
            "mlp 64-128-64-6, inputs standardised in the graph",
            lambda: mlp(MLP[0], MLP[2], MLP[1]),
            (MLP[0],),
            MLP[2],
            Statistics.identity(MLP[0]),
        ),
        Model(
            "cnn1d",
            "1-D CNN, 9×128 windows, 105,000 parameters",
            lambda: convolutional(CNN1D, (64, 128, 96), 5, 6),
            CNN1D,
            6,
        ),
        Model(
            "cnn2d",
            "2-D CNN, 1×28×28 images, 94,000 parameters",
            lambda: convolutional(CNN2D, (32, 64, 128), 3, 10),
            CNN2D,
            10,
        ),
        Model("lstm", "LSTM 9 → 64 over 128 steps", lambda: recurrent("LSTM"), (STEPS, FEATURES), 6),
        Model("gru", "GRU 9 → 64 over 128 steps", lambda: recurrent("GRU"), (STEPS, FEATURES), 6),
    )
}
