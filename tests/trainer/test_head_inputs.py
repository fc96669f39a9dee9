"""Inputs of a network's last layer, read off its outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.__main__ import build_standard
from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.federated.settings import LastLayer
from edged.domain.standard_bundle import StandardBundleOrder, StandardNetwork
from edged.engines.model_parameters import initial_parameters
from edged.errors import RefusedError
from edged.fleet.simulation.shared import Unthrottled
from edged.storage.models.bundles import Bundle
from edged.trainer.head_inputs import HeadInputs
from edged.trainer.steps import InterruptedRunError

if TYPE_CHECKING:
    import onnx

LAYER = LastLayer("layer2.weight", "layer2.bias", 3)


def built(folder: Path, model: onnx.ModelProto) -> Bundle:
    return build(
        model, folder / "bundle", loss="cross_entropy", engine="portable", standardise=Statistics.identity(5)
    )


@pytest.mark.parametrize("hidden", [3, 7, 64])
def test_they_are_what_the_layers_below_answer(tmp_path: Path, hidden: int) -> None:
    bundle = built(tmp_path, mlp(5, 3, (hidden,)))
    values = {n: v + np.float32(0.1) for n, v in initial_parameters(bundle).items() if n.startswith("layer")}
    x = np.random.default_rng(0).normal(size=(1500, 5)).astype(np.float32)
    found = HeadInputs(bundle, values, LAYER).read(x, Unthrottled())
    expected = np.maximum(x @ values["layer1.weight"].T + values["layer1.bias"], 0)
    assert found.shape == (1500, hidden)
    assert np.abs(found - expected).max() <= 1e-5


def test_a_network_that_does_not_end_with_the_layer_is_refused(tmp_path: Path) -> None:
    network = StandardNetwork("classify", 5, 3, "experts", (1, 5), (8,))
    build_standard(StandardBundleOrder(network, tmp_path / "bundle"))
    bundle = Bundle.open(tmp_path / "bundle")
    values = initial_parameters(bundle)
    bias = next(name for name in bundle.trainable if values[name].shape == (3,))
    head = LastLayer(bias.replace("bias", "weight"), bias, 3)
    with pytest.raises(RefusedError, match="its output is not that of the layer"):
        HeadInputs(bundle, {}, head).check(np.ones((2, 5), np.float32))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (LastLayer("layer9.weight", "layer2.bias", 3), "has no parameter layer9.weight"),
        (LastLayer("layer1.weight", "layer2.bias", 3), "are no layer of 3 outputs"),
    ],
)
def test_a_layer_that_is_none_is_refused(tmp_path: Path, layer: LastLayer, told: str) -> None:
    with pytest.raises(RefusedError, match=told):
        HeadInputs(built(tmp_path, mlp(5, 3, (7,))), {}, layer)


def test_it_stops_when_it_is_told_to(tmp_path: Path) -> None:
    throttle = Unthrottled()
    throttle.stopping = True
    with pytest.raises(InterruptedRunError, match="input 0 of 64"):
        HeadInputs(built(tmp_path, mlp(5, 3, (64,))), {}, LAYER).read(np.ones((4, 5), np.float32), throttle)
