"""The standard network of a stream, and the request for its bundle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from edged.bundles.graph.naming import Naming
from edged.bundles.graph.templates import autoencoder, cnn1d, experts, gru, mlp
from edged.bundles.losses.named import CrossEntropy, ExpertsCrossEntropy, ValueLoss
from edged.bundles.losses.objective import Loss
from edged.bundles.request import BuildRequest
from edged.bundles.source.standardise import Statistics
from edged.domain.bundle_contents import MIX_WEIGHTS
from edged.domain.child_orders import StandardBundleOrder, StandardNetwork
from edged.domain.training.optimizers import Optimizer


def request_of(order: StandardBundleOrder) -> BuildRequest:
    """Return the request that an order of the daemon stands for."""
    network = order.network
    return BuildRequest(
        model=_network(network),
        loss=_loss(network, order.label_smoothing),
        freeze=[MIX_WEIGHTS] if network.kind == "experts" else [],
        naming=Naming(context=network.context),
        optimizer=Optimizer.of(order.optimizer, **(order.options or {})),
        standardise=_statistics(order),
        engine=order.engine,
        seed=network.seed,
    )


def _loss(network: StandardNetwork, smoothing: float) -> Loss:
    if network.kind == "experts":
        return ExpertsCrossEntropy(smoothing=smoothing, logits=("expert1", "expert2"))
    if network.task == "classify":
        return CrossEntropy(smoothing=smoothing)
    return ValueLoss("l1" if network.change_of else "mse")


def _network(network: StandardNetwork) -> onnx.ModelProto:
    """The network with random weights; where it learns a change, it begins with none."""
    made = _drawn(network)
    if network.change_of:
        last = made.graph.node[-1].input
        for tensor in made.graph.initializer:
            if tensor.name in last:
                zeros = np.zeros(tuple(tensor.dims), np.float32)
                tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))
    return made


def _drawn(network: StandardNetwork) -> onnx.ModelProto:
    features, hidden, seed = network.features, network.hidden, network.seed
    if network.kind == "autoencoder":
        # The code must be narrower than the input, or nothing has to be learned.
        code = min(hidden[-1] if hidden else 8, max(1, features // 2))
        return autoencoder(features, hidden[:-1], code, seed=seed)
    if network.kind == "experts":
        measured = features // (1 + len(network.context))
        return experts(features, measured, network.outputs, hidden, seed=seed)
    output = "logits" if network.task == "classify" else "y"
    if network.kind == "mlp":
        return mlp(features, network.outputs, hidden, output=output, seed=seed)
    rows, channels = network.window
    make = cnn1d if network.kind == "cnn1d" else gru
    return make((rows, channels), network.outputs, hidden, output=output, seed=seed)


def _statistics(order: StandardBundleOrder) -> Statistics:
    network, reconstruct = order.network, order.network.task == "reconstruct"
    targets = network.outputs if network.task in ("regress", "forecast") else None
    found = Statistics.identity(network.features, targets, reconstruct=reconstruct)
    if order.statistics is not None:
        given = Statistics.of(order.statistics, reconstruct=reconstruct)
        if given.target_mean is None:
            given = replace(given, target_mean=found.target_mean, target_scale=found.target_scale)
        found = given
    return replace(found, change_of=network.change_of)
