"""The standard network for classes: two experts in one graph, and the mixture of what they say."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from edged.bundles.graph.network import INPUT, Network, check_sizes
from edged.domain.model_files import EXPERTS, MIX_WEIGHTS

if TYPE_CHECKING:
    import onnx

FAR = 5.0  # standard deviations beyond which the first expert sees no difference
MOST_PIECES = 384  # in all, of all features together
FLOOR = 1e-4  # added to probabilities: what an expert holds for impossible costs it no more than this


def experts(
    inputs: int, measured: int, classes: int, hidden: Sequence[int] = (128,), *, seed: int = 0
) -> onnx.ModelProto:
    """Two experts on `x (batch, inputs)`, whose first `measured` columns are features, the rest context.

    The first sees the features alone, each also in pieces: how far it reaches into each of 2 to 8 intervals
    between quantiles of a normal distribution (Gorishniy, Rubachev and Babenko 2022, "On embeddings for
    numerical features in tabular deep learning", section 3.2). The second sees all columns. Each is a
    multilayer perceptron with `hidden` layers, initialised from `seed`.

    Outputs: `logits (batch, classes)`, the log-linear mixture Σ w·ℓ of both, and
    `experts (batch, 2·classes)`, the ℓ themselves: log(p + 1e-4) less its mean over the classes. The w
    are the initialiser `mix.weights (1, 2, 1)`, 1/2 each; nothing trains them with the rest.

    Raises ConfigError when a size is below 1.
    """
    check_sizes(inputs, measured, classes, *hidden)
    network, parts = Network(seed), []
    for number, width in enumerate((_pieces(network, measured), inputs), 1):
        if number == 2:
            network.current = INPUT
        for before, after in zip([width, *hidden], hidden, strict=False):
            network.dense(before, after)
        network.dense(hidden[-1] if hidden else width, classes, f"expert{number}")
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


def _pieces(network: Network, features: int) -> int:
    """Let what follows see the features of the input, each near its mean and in pieces; how many numbers."""
    ends = [network.constant(f"features.{name}", np.array([value], np.int64))
            for name, value in (("first", 0), ("end", features), ("axis", 1))]  # fmt: skip
    far = [network.constant(f"features.{name}", np.array(value, np.float32))
           for name, value in (("low", -FAR), ("high", FAR))]  # fmt: skip
    near = network.add("Clip", [network.add("Slice", [INPUT, *ends]), *far], "features.near")
    count = int(np.clip(MOST_PIECES // features, 2, 8))
    edges = np.array([NormalDist().inv_cdf(share) for share in np.linspace(0.01, 0.99, count + 1)])
    first = network.constant("pieces.first", edges[:-1].astype(np.float32))
    scale = network.constant("pieces.scale", (1 / np.diff(edges)).astype(np.float32))
    limits = [network.constant(f"pieces.{name}", np.array(value, np.float32))
              for name, value in (("none", 0), ("whole", 1), ("two", 2))]  # fmt: skip
    shape = network.constant("pieces.shape", np.array([0, features * count], np.int64))
    each = network.add("Unsqueeze", [near, network.constant("pieces.axis", np.array([2], np.int64))])
    reached = network.add("Mul", [network.add("Sub", [each, first]), scale])
    within = network.add("Clip", [reached, *limits[:2]])
    centred = network.add("Sub", [network.add("Mul", [within, limits[2]]), limits[1]])
    network.add("Concat", [near, network.add("Reshape", [centred, shape])], "features", axis=1)
    return features * (1 + count)


def _likelihood(network: Network, logits: str) -> str:
    """log(p + FLOOR) of each class, less its mean over the classes."""
    share = network.add("Softmax", [logits], axis=1)
    floor = network.constant(f"{logits}.floor", np.array(FLOOR, np.float32))
    log = network.add("Log", [network.add("Add", [share, floor])])
    return network.add("Sub", [log, network.add("ReduceMean", [log], axes=[1], keepdims=1)], f"{logits}.log")
