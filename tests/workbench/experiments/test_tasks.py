"""Every task and many networks, from recorded data to a bundle that answers like the winner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import numpy_helper

from edged.config.loader import load
from edged.domain.judging.metrics import regression
from edged.engines.inference import InferenceModel
from edged.storage.models.bundles import Bundle
from tests.commands import edged, two_classes
from tests.workbench.evaluation.test_report import Page
from tests.zoo import ZOO

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.faults


def run(
    folder: Path, stream: dict[str, Any], recipe: dict[str, Any], arrays: dict[str, Array], **keys: Any
) -> tuple[dict[str, Any], Bundle]:
    """The report of one recipe, and the bundle that was written, which a device would take."""
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]  # its stub takes every keyword for a flag
    file = {"name": "rig", "stream": stream, "seeds": 1, "recipes": [recipe]} | keys
    (folder / "recipes.yaml").write_text(yaml.safe_dump(file))
    answer = edged(
        "recipe", "run", folder / "recipes.yaml", "--data", folder / "data.npz", "-o", folder / "out",
        "--write", folder / "rig.yaml", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    Page((folder / "out" / "report.html").read_text())
    config = load(folder / "rig.yaml", {})
    assert config.model.bundle is not None
    bundle = Bundle.open(config.model.bundle)
    bundle.check_schema(config.stream.to_schema())
    return answer.json, bundle


def weights(path: Path) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}


def test_regression_in_its_own_units_with_replay(tmp_path: Path) -> None:
    x, _ = two_classes(1500)
    y = 400 + 30 * x[:, 0] - 10 * x[:, 1] ** 2
    recipe = {"hidden": [32], "learning_rate": 0.01, "replay_share": 0.5, "epochs": 20, "batch": 32}
    report, bundle = run(tmp_path, {"features": 4}, recipe, {"X": x, "y": y})
    answers = InferenceModel(bundle.inference_model).predict(x[900:1200]).astype(np.float64)
    found = regression(y[900:1200, None].astype(np.float64), answers)
    told = report["ranking"][0]["validation"]
    assert found["mae"] == pytest.approx(told["mae"]["mean"], rel=1e-4)
    assert told["r2"]["mean"] > 0.9
    assert load(tmp_path / "rig.yaml", {}).training.new_share == 0.5


def test_a_forecast_leaves_out_what_reaches_over(tmp_path: Path) -> None:
    t = np.arange(1200)
    x = np.stack([np.sin(t / 9), np.cos(t / 9), np.sin(t / 4)], axis=1).astype(np.float32)
    stream = {"features": 3, "target": "forecast", "forecast": [0, 1], "horizon": 5}
    report, _ = run(tmp_path, stream, {"hidden": [32], "learning_rate": 0.01}, {"X": x})
    assert report["gap"] == 5
    assert sum(report["rows"].values()) == 1200 - 5 - 2 * 5
    assert report["ranking"][0]["validation"]["r2"]["mean"] > 0.95


def test_a_reconstruction_is_judged_by_what_it_is_for(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    code = rng.normal(size=(1500, 2))
    x = (code @ rng.normal(size=(2, 8)) * np.geomspace(0.01, 1000, 8)).astype(np.float32)
    y = (np.arange(1500) > 900) & (rng.random(1500) < 0.1)
    x[y] = x[y][:, ::-1] * np.geomspace(0.0001, 10_000, 8)
    stream = {"features": 8, "target": "reconstruct"}
    recipe = {"hidden": [16, 2], "learning_rate": 0.01}
    report, _ = run(tmp_path, stream, recipe, {"X": x, "y": y}, metric="auroc")
    assert report["higher_is_better"]
    assert report["ranking"][0]["validation"]["auroc"]["mean"] > 0.9


def test_windows_of_a_recurrent_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat(rng.integers(0, 2, 100), 32)
    x = (np.sin(np.arange(3200) * (0.3 + 0.6 * y))[:, None] + rng.normal(0, 0.1, (3200, 2))).astype(
        np.float32
    )
    stream = {"features": 2, "classes": 2, "window": {"size": 16, "stride": 8}}
    recipe = {"network": "gru", "hidden": [8], "learning_rate": 0.02, "epochs": 15}
    report, _ = run(tmp_path, stream, recipe, {"X": x, "y": y})
    assert report["gap"] == 1
    assert report["ranking"][0]["validation"]["accuracy"]["mean"] > 0.8


def test_what_is_frozen_keeps_its_values(tmp_path: Path) -> None:
    given = tmp_path / "given.onnx"
    made = edged(
        "model", "new", "mlp", "--inputs", 4, "--outputs", 2, "--hidden", "8", "--seed", 7, "-o", given
    )
    assert made.code == 0, made.err
    x, y = two_classes(600)
    recipe = {"model": "given.onnx", "freeze": "layer1.*", "epochs": 2}
    report, bundle = run(tmp_path, {"features": 4, "classes": 2}, recipe, {"X": x, "y": y})
    before, after = weights(given), weights(bundle.inference_model)
    assert (after["layer1.weight"] == before["layer1.weight"]).all()
    assert (after["layer2.weight"] != before["layer2.weight"]).any()
    assert report["ranking"][0]["parameters"] == 8 * 2 + 2


@pytest.mark.parametrize(
    "name", ["mlp_dropout", "cnn_batchnorm", "cnn_frozen_batchnorm", "transformer", "lstm"]
)
def test_a_model_from_elsewhere_takes_its_trained_weights_along(tmp_path: Path, name: str) -> None:
    entry = ZOO[name]
    onnx.save(entry.make(True), str(tmp_path / "given.onnx"))
    x, y = entry.batch(entry.bundle(tmp_path / "bundle"), 400)
    stream = {"features": x.shape[1], "classes": int(y.max()) + 1}
    recipe = {"model": "given.onnx", "epochs": 3, "freeze": list(entry.freeze), "learning_rate": 0.01}
    report, bundle = run(tmp_path, stream, recipe, {"X": x, "y": y})
    answers = InferenceModel(bundle.inference_model).predict(x[240:320]).argmax(axis=1)
    told = report["ranking"][0]["validation"]["accuracy"]["mean"]
    assert float((answers == y[240:320]).mean()) == pytest.approx(told, abs=1e-6)
