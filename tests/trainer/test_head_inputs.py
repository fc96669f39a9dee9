"""What enters a network's last layer, or that of each of its experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.__main__ import build_standard
from edged.bundles.build import build
from edged.bundles.graph.network import Network
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.federated.head_statistics import spread
from edged.domain.federated.settings import LastLayer
from edged.domain.standard_bundle import StandardBundleOrder, StandardNetwork
from edged.engines.inference import InferenceModel
from edged.engines.model_parameters import base_of, initial_parameters
from edged.errors import RefusedError
from edged.fleet.simulation.shared import Unthrottled
from edged.storage.models.bundles import Bundle
from edged.trainer.head_inputs import HeadInputs
from edged.trainer.steps import InterruptedRunError

if TYPE_CHECKING:
    import onnx

LAYER = LastLayer("layer2.weight", "layer2.bias", 3, 4)


def built(folder: Path, model: onnx.ModelProto, **options: Any) -> Bundle:
    return build(
        model, folder / "bundle", loss="cross_entropy", engine="portable", standardise=Statistics.identity(5),
        **options,
    )  # fmt: skip


def standard(folder: Path, network: StandardNetwork) -> Bundle:
    build_standard(StandardBundleOrder(network, folder / "bundle"))
    return Bundle.open(folder / "bundle")


def moved(bundle: Bundle) -> dict[str, np.ndarray]:
    """The parameters of the layers, each a little off, so that no bias is 0."""
    return {n: v + np.float32(0.1) for n, v in initial_parameters(bundle).items() if n.startswith("layer")}


@pytest.mark.parametrize("ort_format", [False, True])
@pytest.mark.parametrize("hidden", [4, 7, 64])
def test_they_are_what_the_layers_below_answer(tmp_path: Path, hidden: int, ort_format: bool) -> None:
    bundle = built(tmp_path, mlp(5, 3, (hidden,)), ort_format=ort_format)
    assert bundle.inference_model.suffix == (".ort" if ort_format else ".onnx")
    values = moved(bundle)
    x = np.random.default_rng(0).normal(size=(1500, 5)).astype(np.float32)
    found = HeadInputs(bundle, values, replace(LAYER, units=hidden)).read(x, Unthrottled())
    expected = np.maximum(x @ values["layer1.weight"].T + values["layer1.bias"], 0)
    assert found.shape == (1500, hidden)
    assert np.abs(found - expected).max() <= 1e-5
    few = HeadInputs(bundle, values, LAYER).read(x, Unthrottled())
    assert (few == found[:, spread(hidden, 4)]).all()


def test_each_expert_of_a_mixture_has_its_own(tmp_path: Path) -> None:
    network = StandardNetwork("classify", 10, 3, "experts", (1, 5), (8,), context=(3.0,))
    bundle = standard(tmp_path, network)
    values, x = moved(bundle), np.random.default_rng(0).normal(size=(300, 10)).astype(np.float32)
    for number, (body, end, seen) in enumerate(((1, 2, x[:, :5]), (3, 4, x))):
        units = len(values[f"layer{body}.bias"])
        layer = LastLayer(f"layer{end}.weight", f"layer{end}.bias", 3, units)
        reader = HeadInputs(bundle, values, layer, number)
        reader.check()
        found = reader.read(x, Unthrottled())
        expected = np.maximum(seen @ values[f"layer{body}.weight"].T + values[f"layer{body}.bias"], 0)
        assert np.abs(found - expected).max() <= 1e-5
        with pytest.raises(RefusedError, match="its output is not that of the layer"):
            HeadInputs(bundle, values, layer, 1 - number).check()


@pytest.mark.parametrize("change", [(), (4, 0)])
def test_numbers_are_brought_to_the_units_of_the_layer(tmp_path: Path, change: tuple[int, ...]) -> None:
    task: Any = "forecast" if change else "regress"
    bundle = standard(tmp_path, StandardNetwork(task, 5, 2, "mlp", (1, 5), (8,), change_of=change))
    rng, values = np.random.default_rng(0), dict(initial_parameters(bundle))
    values["target.mean"], values["target.scale"] = (
        np.array(part, np.float32) for part in ((100.0, -3.0), (0.1, 7.0))
    )
    x = rng.normal(size=(50, 5)).astype(np.float32)
    reader = HeadInputs(bundle, values, LastLayer("layer2.weight", "layer2.bias", 2, 8))
    reader.check()
    weight, bias = values["layer2.weight"], values["layer2.bias"]
    made = reader.read(x, Unthrottled()) @ weight.T + bias
    path = tmp_path / "model.onnx"
    path.write_bytes(bytes(base_of(bundle).with_parameters(values)))
    assert np.abs(reader.targets(InferenceModel(path).predict(x), x) - made).max() <= 1e-4


@pytest.mark.parametrize("activation", ["Tanh", "Softmax"])
def test_a_network_that_does_not_end_with_the_layer_is_refused(tmp_path: Path, activation: str) -> None:
    network = Network(0)
    network.dense(5, 4)
    network.dense(4, 3, "scores")
    network.add(activation, ["scores"], "logits")
    bundle = built(tmp_path, network.model("ends", 5, 3))
    with pytest.raises(RefusedError, match="its output is not that of the layer"):
        HeadInputs(bundle, {}, LAYER).check()


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (replace(LAYER, weight="layer9.weight"), "has no parameter layer9.weight"),
        (replace(LAYER, weight="layer1.weight"), "are no layer of 3 outputs"),
        (replace(LAYER, units=8), "has 7 inputs, not 8"),
    ],
)
def test_a_layer_that_is_none_is_refused(tmp_path: Path, layer: LastLayer, told: str) -> None:
    with pytest.raises(RefusedError, match=told):
        HeadInputs(built(tmp_path, mlp(5, 3, (7,))), {}, layer)


def test_it_stops_when_it_is_told_to(tmp_path: Path) -> None:
    throttle = Unthrottled()
    throttle.stopping = True
    with pytest.raises(InterruptedRunError, match="row 0 of 4"):
        HeadInputs(built(tmp_path, mlp(5, 3, (64,))), {}, LAYER).read(np.ones((4, 5), np.float32), throttle)
