"""Models as PyTorch writes them: with its classic exporter and with dynamo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.bundles.inspect import verify
from edged.bundles.source.standardise import Statistics
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError
from tests.building import build

EXPORTED = Path(__file__).parent / "exported"
TRAINABLE = [
    "mlp_classic",
    "mlp_fixed",
    "mlp_dynamo",
    "norm_classic",
    "norm_dynamo",
    "window_classic",
    "window_dynamo",
]


@pytest.mark.parametrize("name", TRAINABLE)
def test_it_becomes_a_bundle_that_predicts_as_before_and_trains(tmp_path: Path, name: str) -> None:
    bundle = build(EXPORTED / f"{name}.onnx", tmp_path / "b", loss="cross_entropy")
    known = np.load(EXPORTED / f"{name}.npz")
    rows = known["x"].reshape(len(known["x"]), -1)
    np.testing.assert_allclose(InferenceModel(bundle.inference_model).predict(rows), known["y"], atol=1e-5)
    before, after = verify(tmp_path / "b").loss
    assert after < before


def test_windows_are_trained_from_flat_rows(tmp_path: Path) -> None:
    bundle = build(EXPORTED / "window_classic.onnx", tmp_path / "b", loss="cross_entropy")
    assert bundle.input.width == 32
    engine = PortableEngine(bundle)
    rows, labels = np.zeros((6, 32), np.float32), np.zeros(6, np.int64)
    assert engine.step(rows, labels).applied
    engine.export(tmp_path / "m.onnx")
    assert InferenceModel(tmp_path / "m.onnx").predict(rows).shape == (6, 3)


def test_windows_cannot_be_standardised_yet_and_it_is_said(tmp_path: Path) -> None:
    statistics = Statistics.identity(32)
    with pytest.raises(BundleError, match="do not fit the model's input"):
        build(EXPORTED / "window_classic.onnx", tmp_path / "b", loss="mse", standardise=statistics)


@pytest.mark.parametrize(
    ("name", "operator"), [("batchnorm_classic", "BatchNormalization"), ("pooled_classic", "AveragePool")]
)
def test_what_the_native_engine_would_do_wrong_silently_is_refused(
    tmp_path: Path, name: str, operator: str
) -> None:
    with pytest.raises(BundleError, match=rf"node \S+: operator {operator} "):
        build(EXPORTED / f"{name}.onnx", tmp_path / "b", loss="cross_entropy", engine="native")
    # Behind it everything can be trained.
    assert build(EXPORTED / f"{name}.onnx", tmp_path / "b", loss="cross_entropy", train=["3.*"]).trainable
