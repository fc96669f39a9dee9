from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.native.engine import NativeEngine
from edged.errors import BundleError, NonFiniteError, TrainingError
from edged.storage.models.bundles import Bundle
from tests.engines.bundles import batches, classifier, overflowing
from tests.installed import needs_native

pytestmark = needs_native


@pytest.fixture(params=["adamw", "sgd"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> NativeEngine:
    engine = NativeEngine(classifier(tmp_path / "b", engine="native", optimizer=request.param))
    engine.begin(LearningRate(0.05))
    return engine


def test_without_care_a_bad_gradient_is_noticed_by_check(tmp_path: Path) -> None:
    engine = NativeEngine(classifier(tmp_path / "b", engine="native", standardise=False))
    assert engine.step(*overflowing(engine)).applied
    with pytest.raises(NonFiniteError, match=r"weights are no longer finite: layer1"):
        engine.check()


def test_adamw_follows_its_formula(tmp_path: Path) -> None:
    """Upstream's defaults: betas 0.9 and 0.999, epsilon 1e-6 added before the bias correction, no decay."""
    engine = NativeEngine(classifier(tmp_path / "b", engine="native", standardise=False))
    plain = NativeEngine(classifier(tmp_path / "s", engine="native", optimizer="sgd", standardise=False))
    engine.begin(LearningRate(0.01))
    plain.begin(LearningRate(1.0))
    weight = engine.parameters()["layer2.weight"].astype(np.float64)
    m = v = np.zeros_like(weight)
    for t, (x, y) in enumerate(batches(5), start=1):
        plain.set_parameters(engine.parameters())
        before = plain.parameters()["layer2.weight"]
        plain.step(x, y)
        gradient = (before - plain.parameters()["layer2.weight"]).astype(np.float64)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        rate = 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        weight = weight - rate * m / (np.sqrt(v) + 1e-6)
        engine.step(x, y)
    np.testing.assert_allclose(engine.parameters()["layer2.weight"], weight, atol=1e-5)


def test_open_engine_gives_the_native_one(tmp_path: Path) -> None:
    assert open_engine("native", classifier(tmp_path / "b", engine="native"), 2).name == "native"


def test_damaged_artifacts_are_one_clear_line(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b", engine="native")
    bundle.training_model.write_bytes(b"\x08\x08garbage")
    with pytest.raises(BundleError, match="the training artifacts cannot be loaded") as caught:
        NativeEngine(Bundle.open(tmp_path / "b", verify=False))
    assert "\n" not in caught.value.line()


def test_errors_of_the_runtime_are_told_in_a_readers_words(engine: NativeEngine, tmp_path: Path) -> None:
    x, y = batches(1)[0]
    nowhere = tmp_path / "nowhere"
    lines = []
    for act in (
        lambda: engine.step(x[:, :4], y),
        lambda: engine.step(x, y[:5]),
        lambda: engine.step(x.astype(np.float64), y),
        lambda: engine.save(nowhere),
        lambda: engine.export(nowhere / "m.onnx"),
    ):
        with pytest.raises(TrainingError) as caught:
            act()
        lines.append(caught.value.line())
    assert "index: 1 Got: 4 Expected: 5" in lines[0]
    assert "The shape of logit and label does not match" in lines[1]
    assert "Actual: (tensor(double)) , expected: (tensor(float))" in lines[2]
    assert "No such file or directory" in lines[3]
    assert "No such file or directory" in lines[4]
    for line in lines:
        assert not any(noise in line for noise in ("::", ".cc:", "ONNXRuntimeError"))
