"""Small networks as ONNX models, made with numpy alone, and the layers that they are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.writer import NodeWriter, constant_node
from edged.domain.bundle_contents import EXPERTS, FLOOR, MIX_WEIGHTS
from edged.errors import ConfigError

# Of everything that is trained; stock onnxruntime has it from 1.19 on.
OPSET = 21
IR_VERSION = 10
INPUT = "x"
# The producer of these networks, whose weights are random; a bundle's inference model has another one.
UNTRAINED = "edged model new"
GAIN = 2.0  # of the variance, where half of the values are cut off by the Relu behind
KERNEL, POOL = 5, 4  # moments that a filter sees, and that are made one
IMAGE_KERNEL, IMAGE_POOL = 3, 2  # rows and columns of pixels that a filter sees, and that are made one
CODE = 64  # units between the convolutions and the output


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


# ---- networks ---------------------------------------------------------------------------------


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (64, 32),
    *,
    output: str = "logits",
    seed: int = 0,
) -> onnx.ModelProto:
    """A multilayer perceptron `x (batch, inputs)` → `output (batch, outputs)`, float32.

    Without hidden layers it is a linear model. Parameters are `layer1.weight (out, in)`,
    `layer1.bias (out,)` and so on, initialised from `seed` after He et al. 2015.

    Raises ConfigError when a size is below 1.
    """
    network = Network(seed)
    _chain(network, [inputs, *hidden, outputs], output)
    return network.model("mlp", inputs, outputs)


def autoencoder(
    inputs: int,
    hidden: Sequence[int] = (32,),
    code: int = 8,
    *,
    seed: int = 0,
) -> onnx.ModelProto:
    """An autoencoder `x (batch, inputs)` → `reconstruction (batch, inputs)`, float32.

    `hidden` are the encoder's layers, the decoder mirrors them; the code of `code` values is linear.
    Parameters are named and initialised as by `mlp`, numbered from the input on.

    Raises ConfigError when a size is below 1.
    """
    network = Network(seed)
    _chain(network, [inputs, *hidden, code], "code")
    _chain(network, [code, *reversed(hidden), inputs], "reconstruction")
    return network.model("autoencoder", inputs, inputs)


def cnn1d(
    window: tuple[int, int],
    outputs: int,
    filters: Sequence[int] = (32, 32),
    *,
    output: str = "logits",
    seed: int = 0,
) -> onnx.ModelProto:
    """Convolutions over time: `x (batch, rows·channels)` → `output (batch, outputs)`, float32.

    `window` is `(rows, channels)`. A layer of filters over 5 moments for each of `filters`, behind each the
    largest of 4 moments while there are enough; then a dense layer of 64. Parameters are named and
    initialised as by `mlp`.

    Raises ConfigError when a size is below 1, or there are no filters.
    """
    if not filters:
        raise ConfigError("a cnn1d needs layers", where="--hidden", remedy="such as 32,64")
    size, channels = window
    network = _on_windows(window, filters, seed, order=[0, 2, 1])
    length = size
    for before, after in zip([channels, *filters], filters, strict=False):
        network.convolve(before, after, KERNEL)
        if length >= 2 * POOL:
            network.add("MaxPool", [network.current], kernel_shape=[POOL], strides=[POOL])
            length //= POOL
    network.add("Flatten", [network.current])
    network.dense(filters[-1] * length, CODE)
    network.dense(CODE, outputs, output)
    return network.model("cnn1d", size * channels, outputs)


def cnn2d(
    image: tuple[int, int, int],
    outputs: int,
    filters: Sequence[int] = (16, 32),
    *,
    seed: int = 0,
) -> onnx.ModelProto:
    """Convolutions over images: `x (batch, channels·height·width)` → `logits (batch, outputs)`, float32.

    `image` is `(channels, height, width)`, the order of the numbers in a row. A layer of 3 × 3 filters for
    each of `filters`, behind each the largest of 2 × 2 pixels while there are enough; then a dense layer of
    64. Parameters are named and initialised as by `mlp`.

    Raises ConfigError when a size is below 1, or there are no filters.
    """
    if not filters:
        raise ConfigError("a cnn2d needs layers", where="--hidden", remedy="such as 16,32")
    check_sizes(*image, *filters)
    channels, *sides = image
    network = Network(seed)
    network.add(
        "Reshape", [network.current, network.constant("image.shape", np.array([0, *image], np.int64))]
    )
    for before, after in zip([channels, *filters], filters, strict=False):
        network.convolve(before, after, IMAGE_KERNEL, axes=2)
        if min(sides) >= 2 * IMAGE_POOL:
            network.add("MaxPool", [network.current], kernel_shape=[IMAGE_POOL] * 2, strides=[IMAGE_POOL] * 2)
            sides = [side // IMAGE_POOL for side in sides]
    network.add("Flatten", [network.current])
    network.dense(filters[-1] * sides[0] * sides[1], CODE)
    network.dense(CODE, outputs, "logits")
    return network.model("cnn2d", math.prod(image), outputs)


def gru(
    window: tuple[int, int],
    outputs: int,
    hidden: Sequence[int] = (64,),
    *,
    output: str = "logits",
    seed: int = 0,
) -> onnx.ModelProto:
    """Gated recurrent layers: `x (batch, rows·channels)` → `output (batch, outputs)`, float32.

    `window` is `(rows, channels)`. One layer for each of `hidden`; the last layer's mean over time is what
    the output is computed from. Parameters are `layer1.weight_ih`, `layer1.weight_hh` and `layer1.bias` in
    ONNX's order of gates.

    Raises ConfigError when a size is below 1, or there are no layers.
    """
    if not hidden:
        raise ConfigError("a gru needs layers", where="--hidden", remedy="such as 64")
    size, channels = window
    network = _on_windows(window, hidden, seed, order=[1, 0, 2])
    for before, after in zip([channels, *hidden], hidden, strict=False):
        network.recur(before, after)
    time = network.constant("window.time", np.array([0], np.int64))
    network.add("ReduceMean", [network.current, time], keepdims=0)
    network.dense(hidden[-1], outputs, output)
    return network.model("gru", size * channels, outputs)


def _chain(network: Network, sizes: Sequence[int], output: str) -> None:
    check_sizes(*sizes)
    for i in range(1, len(sizes)):
        network.dense(sizes[i - 1], sizes[i], output if i == len(sizes) - 1 else "")


def _on_windows(window: tuple[int, int], layers: Sequence[int], seed: int, *, order: list[int]) -> Network:
    """A network that begins with flat windows as `(batch, rows, channels)`, their axes in this order."""
    check_sizes(*window, *layers)
    network = Network(seed)
    shape = network.constant("window.shape", np.array([0, *window], np.int64))
    network.add("Transpose", [network.add("Reshape", [network.current, shape])], perm=order)
    return network


def experts(
    inputs: int, measured: int, classes: int, hidden: Sequence[int] = (256,), *, seed: int = 0
) -> onnx.ModelProto:
    """Two experts on `x (batch, inputs)`, whose first `measured` columns are features, the rest context.

    Each is a multilayer perceptron, initialised from `seed`. The first, with `hidden` layers, sees the
    features alone; the second sees all columns, and its layers are half as wide.

    Outputs: `logits (batch, classes)`, the log-linear mixture Σ w·ℓ of both, and
    `experts (batch, 2·classes)`, the ℓ themselves: log(p + 1e-4) less its mean over the classes. The w
    are the initialiser `mix.weights (1, 2, 1)`, 1/2 each; nothing trains them with the rest.

    Raises ConfigError when a size is below 1.
    """
    check_sizes(inputs, measured, classes, *hidden)
    network, parts = Network(seed), []
    ends = [network.constant(f"features.{name}", np.array([value], np.int64))
            for name, value in (("first", 0), ("end", measured), ("axis", 1))]  # fmt: skip
    features = network.add("Slice", [INPUT, *ends], "features")
    classes_axis = network.constant("mix.axis", np.array([1], np.int64))
    half = [max(1, size // 2) for size in hidden]
    for number, (seen, sizes) in enumerate(((features, [measured, *hidden]), (INPUT, [inputs, *half])), 1):
        network.current = seen
        for before, after in pairwise(sizes):
            network.dense(before, after)
        network.dense(sizes[-1], classes, f"expert{number}")
        parts.append(_likelihood(network, f"expert{number}", classes_axis))
    network.add("Concat", parts, EXPERTS, axis=1)
    shape = network.constant("mix.shape", np.array([0, len(parts), classes], np.int64))
    weights = network.parameter(MIX_WEIGHTS, np.full((1, len(parts), 1), 1 / len(parts)))
    weighted = network.add("Mul", [network.add("Reshape", [EXPERTS, shape]), weights])
    network.add("ReduceSum", [weighted, classes_axis], "logits", keepdims=0)
    model = network.model("experts", inputs, classes)
    each = helper.make_tensor_value_info(EXPERTS, TensorProto.FLOAT, ["batch", len(parts) * classes])
    model.graph.output.append(each)
    return model


def _likelihood(network: Network, logits: str, axis: str) -> str:
    """log(p + FLOOR) of each class, less its mean over the classes."""
    share = network.add("Softmax", [logits], axis=1)
    floor = network.constant(f"{logits}.floor", np.array(FLOOR, np.float32))
    log = network.add("Log", [network.add("Add", [share, floor])])
    return network.add("Sub", [log, network.add("ReduceMean", [log, axis], keepdims=1)], f"{logits}.log")
