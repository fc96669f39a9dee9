"""`python -m edged.bundles`: build a standard bundle, or export a mixture, as the order on stdin asks for.

See `edged.domain.child_orders`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from edged.bundles import require
from edged.bundles.losses.objective import Given
from edged.bundles.source.standardise import Statistics
from edged.domain.child_orders import Done, MixtureOrder, StandardBundleOrder, StandardNetwork
from edged.domain.model_files import MIX_WEIGHTS
from edged.host.child_process import carry_out

if TYPE_CHECKING:
    import onnx


def build_standard(order: StandardBundleOrder) -> None:
    """Build what is ordered; EdgedError when it cannot be built."""
    require()
    # Imported here, so that a wrong order is answered before the heavy packages are loaded.
    from edged.bundles.build import build
    from edged.bundles.graph.naming import Naming
    from edged.domain.training.optimizers import Optimizer

    network = order.network
    build(
        network_of(network),
        order.out,
        loss=loss_of(network, order.label_smoothing),
        freeze=[MIX_WEIGHTS] if network.kind == "experts" else [],
        naming=Naming(context=network.context),
        optimizer=Optimizer.of(order.optimizer, **(order.options or {})),
        standardise=_statistics(order),
        engine=order.engine,
        seed=network.seed,
    )  # fmt: skip


def loss_of(network: StandardNetwork, smoothing: float) -> Given:
    """The loss that the network is trained with."""
    from edged.bundles.losses.named import CrossEntropy, ExpertsCrossEntropy

    if network.kind == "experts":
        return ExpertsCrossEntropy(smoothing=smoothing, logits=("expert1", "expert2"))
    if network.change_of:
        return "l1"
    return CrossEntropy(smoothing=smoothing) if network.task == "classify" else "mse"


def network_of(network: StandardNetwork) -> onnx.ModelProto:
    """The network as an ONNX model with random weights; where it learns a change, it begins with none."""
    made = _drawn(network)
    if network.change_of:
        _begin_with_no_change(made.graph)
    return made


def _begin_with_no_change(graph: onnx.GraphProto) -> None:
    """Let the last layer answer zero, whatever comes before it."""
    import numpy as np
    from onnx import numpy_helper

    for tensor in graph.initializer:
        if tensor.name in graph.node[-1].input:
            zeros = np.zeros(tuple(tensor.dims), np.float32)
            tensor.CopyFrom(numpy_helper.from_array(zeros, tensor.name))


def _drawn(network: StandardNetwork) -> onnx.ModelProto:
    from edged.bundles.graph.templates import autoencoder, cnn1d, experts, gru, mlp

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
    from edged.bundles.source.standardise import Statistics

    network, reconstruct = order.network, order.network.task == "reconstruct"
    targets = network.outputs if network.task in ("regress", "forecast") else None
    found = Statistics.identity(network.features, targets, reconstruct=reconstruct)
    if order.statistics is not None:
        given = Statistics.of(order.statistics, reconstruct=reconstruct)
        if given.target_mean is None:
            given = replace(given, target_mean=found.target_mean, target_scale=found.target_scale)
        found = given
    return replace(found, change_of=network.change_of)


def _carry_out(order: StandardBundleOrder | MixtureOrder) -> Done:
    if isinstance(order, StandardBundleOrder):
        build_standard(order)
    else:
        require()
        from edged.bundles.export.mixture import export_mixture

        export_mixture(order)
    return Done()


def main() -> int:
    """Carry out the order on stdin; the exit code."""
    return carry_out((StandardBundleOrder, MixtureOrder), _carry_out)


if __name__ == "__main__":
    sys.exit(main())
