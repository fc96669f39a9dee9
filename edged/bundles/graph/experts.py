"""The standard network for classes: two experts in one graph, and the mixture of what they say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from edged.bundles.graph.network import INPUT, Network, check_sizes
from edged.domain.model_files import EXPERTS, FLOOR, MIX_WEIGHTS

if TYPE_CHECKING:
    import onnx


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
    half = [max(1, size // 2) for size in hidden]
    for number, (seen, sizes) in enumerate(((features, [measured, *hidden]), (INPUT, [inputs, *half])), 1):
        network.current = seen
        for before, after in pairwise(sizes):
            network.dense(before, after)
        network.dense(sizes[-1], classes, f"expert{number}")
        parts.append(_likelihood(network, f"expert{number}"))
    network.add("Concat", parts, EXPERTS, axis=1)
    shape = network.constant("mix.shape", np.array([0, len(parts), classes], np.int64))
    weights = network.parameter(MIX_WEIGHTS, np.full((1, len(parts), 1), 1 / len(parts)))
    weighted = network.add("Mul", [network.add("Reshape", [EXPERTS, shape]), weights])
    axis = network.constant("mix.axis", np.array([1], np.int64))
    network.add("ReduceSum", [weighted, axis], "logits", keepdims=0)
    model = network.model("experts", inputs, classes)
    each = helper.make_tensor_value_info(EXPERTS, TensorProto.FLOAT, ["batch", len(parts) * classes])
    model.graph.output.append(each)
    return model


def _likelihood(network: Network, logits: str) -> str:
    """log(p + FLOOR) of each class, less its mean over the classes."""
    share = network.add("Softmax", [logits], axis=1)
    floor = network.constant(f"{logits}.floor", np.array(FLOOR, np.float32))
    log = network.add("Log", [network.add("Add", [share, floor])])
    return network.add("Sub", [log, network.add("ReduceMean", [log], axes=[1], keepdims=1)], f"{logits}.log")
