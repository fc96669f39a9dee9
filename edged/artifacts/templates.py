"""Small networks as ONNX models, made with numpy alone."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 17
IR_VERSION = 8

Activation = Literal["relu", "tanh", "sigmoid"]
_OPERATORS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (64, 32),
    *,
    activation: Activation = "relu",
    output: str = "logits",
    seed: int = 0,
) -> onnx.ModelProto:
    """A multilayer perceptron `x (batch, inputs)` → `output (batch, outputs)`, float32.

    Without hidden layers it is a linear model. Parameters are `layer1.weight (out, in)`,
    `layer1.bias (out,)` and so on, initialised from `seed` after He et al. 2015.

    Raises
    ------
    ConfigError
        When a size is below 1 or the activation unknown.
    """
    network = _Network(activation, seed)
    network.chain([inputs, *hidden, outputs], output)
    return network.model("mlp", inputs, outputs)


def autoencoder(
    inputs: int,
    hidden: Sequence[int] = (32,),
    code: int = 8,
    *,
    activation: Activation = "relu",
    seed: int = 0,
) -> onnx.ModelProto:
    """An autoencoder `x (batch, inputs)` → `reconstruction (batch, inputs)`, float32.

    `hidden` are the encoder's layers, the decoder mirrors them; the code of `code` values is linear.
    Parameters are named and initialised as by `mlp`, numbered from the input on.

    Raises
    ------
    ConfigError
        When a size is below 1 or the activation unknown.
    """
    network = _Network(activation, seed)
    network.chain([inputs, *hidden, code], "code")
    network.chain([code, *reversed(hidden), inputs], "reconstruction")
    return network.model("autoencoder", inputs, inputs)


class _Network:
    """Dense layers one after the other; the last of each chain is linear."""

    def __init__(self, activation: str, seed: int) -> None:
        if activation not in _OPERATORS:
            raise ConfigError(f"unknown activation {activation!r}", remedy=f"one of {', '.join(_OPERATORS)}")
        self._operator = _OPERATORS[activation]
        # He initialisation doubles the variance only where half of the values are cut off.
        self._gain = 2.0 if activation == "relu" else 1.0
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._parameters: list[onnx.TensorProto] = []
        self._current = "x"
        self._layers = 0

    def chain(self, sizes: Sequence[int], output: str) -> None:
        if min(sizes) < 1:
            raise ConfigError(f"layer sizes {list(sizes)} must all be at least 1")
        for fan_in, fan_out in pairwise(sizes[:-1]):
            self._dense(fan_in, fan_out, f"layer{self._layers + 1}", self._gain)
            self._activate()
        self._dense(sizes[-2], sizes[-1], output, 1.0)

    def _dense(self, fan_in: int, fan_out: int, output: str, gain: float) -> None:
        self._layers += 1
        layer = f"layer{self._layers}"
        weight = self._rng.standard_normal((fan_out, fan_in)) * np.sqrt(gain / fan_in)
        self._parameter(f"{layer}.weight", weight.astype(np.float32))
        self._parameter(f"{layer}.bias", np.zeros(fan_out, np.float32))
        inputs = [self._current, f"{layer}.weight", f"{layer}.bias"]
        self._nodes.append(helper.make_node("Gemm", inputs, [output], name=layer, transB=1))
        self._current = output

    def _activate(self) -> None:
        name = f"layer{self._layers}.{self._operator.lower()}"
        self._nodes.append(helper.make_node(self._operator, [self._current], [name], name=name))
        self._current = name

    def _parameter(self, name: str, value: np.ndarray) -> None:
        self._parameters.append(numpy_helper.from_array(value, name))

    def model(self, name: str, inputs: int, outputs: int) -> onnx.ModelProto:
        take = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", inputs])
        give = helper.make_tensor_value_info(self._current, onnx.TensorProto.FLOAT, ["batch", outputs])
        graph = helper.make_graph(self._nodes, name, [take], [give], self._parameters)
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION, producer_name="edged")
