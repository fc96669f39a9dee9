"""A network that grows layer by layer: ONNX nodes and seeded parameters, made with numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edged.bundles.graph.writer import NodeWriter, constant_node
from edged.errors import ConfigError

# Of everything that is trained; stock onnxruntime has it from 1.19 on.
OPSET = 21
IR_VERSION = 10
INPUT = "x"
# The producer of these networks, whose weights are random; a bundle's inference model has another one.
UNTRAINED = "edged model new"
GAIN = 2.0  # of the variance, where half of the values are cut off by the Relu behind


class Network:
    """Layers one after the other, from input `x (batch, inputs)` on.

    Each takes what the one before it gave (`current`). Parameters are numbered in the order of the layers
    and initialised from `seed` after He et al. 2015.

    Raises ConfigError when a size is below 1.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._to = NodeWriter()
        self._parameters: list[onnx.TensorProto] = []
        self._layers = 0
        self.current = INPUT

    def add(self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Write one node; the name of its output, which is now the current one."""
        name = output or f"{operator.lower()}{len(self._to.nodes)}"
        self.current = self._to.add(operator, inputs, name, **attributes)
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """A tensor that is no parameter: nothing trains it, nothing takes it for weights."""
        self._to.copy(constant_node(name, value))
        return name

    # ---- layers ------------------------------------------------------------------------------

    def dense(self, fan_in: int, fan_out: int, output: str = "") -> None:
        """`(batch, fan_in)` → `(batch, fan_out)`: without a name for its output a hidden layer, activated."""
        check_sizes(fan_in, fan_out)
        layer = self._begin()
        weight = self._drawn(f"{layer}.weight", (fan_out, fan_in), fan_in, 1.0 if output else GAIN)
        inputs = [self.current, weight, self._zeros(f"{layer}.bias", fan_out)]
        self._node("Gemm", inputs, output or layer, layer, transB=1)
        if not output:
            self._activate(layer)

    def convolve(self, channels: int, filters: int, kernel: int, axes: int = 1) -> None:
        """`(batch, channels, …)` → `(batch, filters, …)` over `axes` axes, activated; `kernel` is odd."""
        check_sizes(channels, filters)
        layer, size = self._begin(), [kernel] * axes
        weight = self._drawn(f"{layer}.weight", (filters, channels, *size), channels * kernel**axes, GAIN)
        inputs = [self.current, weight, self._zeros(f"{layer}.bias", filters)]
        self._node("Conv", inputs, layer, layer, kernel_shape=size, pads=[kernel // 2] * (2 * axes))
        self._activate(layer)

    def recur(self, channels: int, units: int) -> None:
        """`(time, batch, channels)` → `(time, batch, units)`, a GRU (Cho et al. 2014) as PyTorch has it."""
        check_sizes(channels, units)
        layer = self._begin()
        inputs = [
            self.current,
            self._drawn(f"{layer}.weight_ih", (1, 3 * units, channels), channels, 1.0),
            self._drawn(f"{layer}.weight_hh", (1, 3 * units, units), units, 1.0),
            self._zeros(f"{layer}.bias", 1, 6 * units),
        ]
        self._node("GRU", inputs, layer, layer, hidden_size=units, linear_before_reset=1)
        # (time, directions, batch, units): there is one direction
        self.add("Squeeze", [layer, self.constant(f"{layer}.direction", np.array([1], np.int64))])

    def _begin(self) -> str:
        self._layers += 1
        return f"layer{self._layers}"

    def _node(self, operator: str, inputs: Sequence[str], output: str, name: str, **attributes: Any) -> None:
        self.current = self._to.add(operator, inputs, output, **attributes)
        self._to.nodes[-1].name = name

    def _activate(self, layer: str) -> None:
        self.add("Relu", [self.current], f"{layer}.relu")

    def _drawn(self, name: str, shape: tuple[int, ...], fan_in: int, gain: float) -> str:
        return self.parameter(name, self._rng.standard_normal(shape) * np.sqrt(gain / fan_in))

    def _zeros(self, name: str, *shape: int) -> str:
        return self.parameter(name, np.zeros(shape))

    def parameter(self, name: str, value: NDArray[np.float64]) -> str:
        """A parameter of this name, in float32."""
        self._parameters.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    # ---- the whole ---------------------------------------------------------------------------

    def model(self, name: str, inputs: int, outputs: int) -> onnx.ModelProto:
        """The finished model: its output is the current tensor, `(batch, outputs)`."""
        rows = helper.make_tensor_value_info(INPUT, onnx.TensorProto.FLOAT, ["batch", inputs])
        result = helper.make_tensor_value_info(self.current, onnx.TensorProto.FLOAT, ["batch", outputs])
        graph = helper.make_graph(self._to.nodes, name, [rows], [result], self._parameters)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name=UNTRAINED)


def check_sizes(*sizes: int) -> None:
    """ConfigError unless all are at least 1."""
    if min(sizes, default=1) < 1:
        raise ConfigError(f"layer sizes {list(sizes)} must all be at least 1")
