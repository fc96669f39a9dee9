from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.native import NativeEngine
from edged.errors import BundleError, NonFiniteError, TrainingError
from edged.storage.bundles import Bundle
from tests.engines.bundles import batches, classifier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["adamw", "sgd"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> NativeEngine:
    engine = NativeEngine(classifier(tmp_path / "b", optimizer=request.param))
    engine.begin(LearningRate(0.05))
    return engine


def state(engine: NativeEngine) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def test_it_learns(engine: NativeEngine) -> None:
    x, y = batches(1, 256)[0]
    before = engine.evaluate(x, y)
    for batch in batches(300, seed=1):
        assert engine.step(*batch).applied
    assert engine.evaluate(x, y) < 0.5 * before
    engine.check()


def test_evaluation_changes_nothing(engine: NativeEngine) -> None:
    x, y = batches(1)[0]
    before = state(engine)
    assert engine.evaluate(x, y) == engine.evaluate(x, y)
    assert state(engine) == before


def test_the_loss_of_a_step_is_the_loss_before_it(engine: NativeEngine) -> None:
    x, y = batches(1)[0]
    before = engine.evaluate(x, y)
    assert engine.step(x, y).loss == pytest.approx(before, rel=1e-5)


def test_frozen_parameters_stay(engine: NativeEngine) -> None:
    for batch in batches(5):
        engine.step(*batch)
    np.testing.assert_array_equal(engine.parameters()["input.mean"], np.zeros(5))


def test_accumulated_gradients_are_added_up(tmp_path: Path) -> None:
    """Two half batches at half the rate are one whole batch, for plain gradient descent."""
    (x, y), bundle = batches(1)[0], classifier(tmp_path / "b", optimizer="sgd")
    whole, halves = NativeEngine(bundle), NativeEngine(bundle)
    whole.begin(LearningRate(0.1))
    halves.begin(LearningRate(0.05))
    whole.step(x, y)
    before = state(halves)
    assert not halves.step(x[:16], y[:16], apply=False).applied
    assert state(halves) == before
    assert halves.step(x[16:], y[16:]).applied
    for name, value in whole.parameters().items():
        np.testing.assert_allclose(halves.parameters()[name], value, atol=1e-6)


def test_gradients_are_gone_after_an_update(tmp_path: Path) -> None:
    bundle, (first, second) = classifier(tmp_path / "b", optimizer="sgd"), batches(2)
    one, two = NativeEngine(bundle), NativeEngine(bundle)
    for engine in (one, two):
        engine.begin(LearningRate(0.1))
    one.step(*first)
    two.set_parameters(one.parameters())
    one.step(*second)
    two.step(*second)
    assert state(one) == state(two)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_changes_nothing(tmp_path: Path, value: float) -> None:
    engine = NativeEngine(classifier(tmp_path / "b", standardise=False))
    good, bad = batches(2)
    bad[0][3, 1] = value
    engine.step(*good)
    before = state(engine)
    step = engine.step(*bad)
    assert not step.applied
    assert not np.isfinite(step.loss)
    assert state(engine) == before
    # Nothing of the bad gradients is left for the next update.
    assert engine.step(*good).applied
    engine.check()


def overflowing(engine: NativeEngine) -> tuple[np.ndarray, np.ndarray]:
    """A batch whose loss is finite while the gradients of the first layer overflow."""
    parameters = engine.parameters()
    engine.set_parameters(
        {
            "layer1.weight": np.full_like(parameters["layer1.weight"], 1e-30),
            "layer2.weight": np.array([[3e38], [-3e38], [0]], np.float32).repeat(16, 1) * np.float32(0.1),
        }
    )
    x, y = batches(1)[0]
    return np.abs(x) * np.float32(1e8), y


def test_careful_steps_look_at_the_gradients(tmp_path: Path) -> None:
    engine = NativeEngine(classifier(tmp_path / "b", standardise=False))
    x, y = overflowing(engine)
    before = state(engine)
    step = engine.step(x, y, careful=True)
    assert np.isfinite(step.loss)
    assert not step.applied
    assert state(engine) == before


def test_without_care_a_bad_gradient_is_noticed_by_check(tmp_path: Path) -> None:
    engine = NativeEngine(classifier(tmp_path / "b", standardise=False))
    assert engine.step(*overflowing(engine)).applied
    with pytest.raises(NonFiniteError, match=r"weights are no longer finite: layer1"):
        engine.check()


def test_check_sees_frozen_parameters(engine: NativeEngine) -> None:
    engine.set_parameters({"input.scale": np.array([1, 1, np.nan, 1, 1], np.float32)})
    with pytest.raises(NonFiniteError, match=r"input\.scale"):
        engine.check()


def test_parameters_are_copies(engine: NativeEngine) -> None:
    before = state(engine)
    for value in engine.parameters().values():
        value.fill(1)
    assert state(engine) == before


def test_overwritten_frozen_parameters_count_at_once_everywhere(engine: NativeEngine, tmp_path: Path) -> None:
    """Training, judging and the export see raw data as standardised as soon as the statistics are set."""
    x, y = batches(1)[0]
    mean, std = np.array([100, -50, 3, 0, 1e4], np.float32), np.array([10, 5, 0.1, 1, 1000], np.float32)
    raw = (x * std + mean).astype(np.float32)
    plain = engine.evaluate(x, y)
    engine.set_parameters({"input.mean": mean, "input.scale": np.float32(1) / std})
    assert engine.evaluate(raw, y) == pytest.approx(plain, abs=1e-3)
    assert engine.step(raw, y).loss == pytest.approx(plain, abs=1e-3)
    engine.export(tmp_path / "m.onnx")
    assert loss_of(tmp_path / "m.onnx", raw, y) == pytest.approx(engine.evaluate(raw, y), abs=1e-5)


def loss_of(path: Path, x: np.ndarray, y: np.ndarray) -> float:
    logits = InferenceModel(path).predict(x).astype(np.float64)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean())


def test_the_export_is_the_judged_model(engine: NativeEngine, tmp_path: Path) -> None:
    for batch in batches(30):
        engine.step(*batch)
    engine.export(tmp_path / "m.onnx")
    x, y = batches(1, 64, seed=9)[0]
    assert loss_of(tmp_path / "m.onnx", x, y) == pytest.approx(engine.evaluate(x, y), abs=1e-5)


def test_training_goes_on_after_an_export(engine: NativeEngine, tmp_path: Path) -> None:
    engine.export(tmp_path / "m.onnx")
    before = state(engine)
    assert engine.step(*batches(1)[0]).applied
    assert state(engine) != before


def test_wrong_parameters_are_refused_and_none_is_changed(engine: NativeEngine) -> None:
    before = state(engine)
    with pytest.raises(TrainingError, match=r"layer9\.bias: the model has no such parameter"):
        engine.set_parameters({"input.mean": np.ones(5, np.float32), "layer9.bias": np.ones(5, np.float32)})
    with pytest.raises(TrainingError, match=r"input.mean: has shape \(4,\), the model takes \(5,\)"):
        engine.set_parameters({"input.scale": np.ones(5, np.float32), "input.mean": np.ones(4, np.float32)})
    assert state(engine) == before


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64])
def test_a_batch_of_the_wrong_type_is_refused_in_one_line(engine: NativeEngine, dtype: type) -> None:
    x, y = batches(1)[0]
    with pytest.raises(
        TrainingError, match=r"refuses a batch \(input .*\[32, 5\], label int64\[32\]\)"
    ) as caught:
        engine.step(x.astype(dtype), y)
    assert "\n" not in caught.value.line()


def test_a_batch_of_the_wrong_shape_is_refused_and_the_engine_lives(engine: NativeEngine) -> None:
    x, y = batches(1)[0]
    for wrong in ((x[:, :4], y), (x, y[:5]), (x, y[:, None])):
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.step(*wrong)
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.evaluate(*wrong)
    assert engine.step(x, y).applied


def test_rows_that_are_views_of_other_arrays(engine: NativeEngine) -> None:
    x, y = batches(1)[0]
    expected = engine.evaluate(x, y)
    assert engine.evaluate(np.asfortranarray(x), y) == expected
    assert engine.evaluate(np.repeat(x, 2, axis=0)[::2], y) == expected


def test_the_rate_follows_the_schedule(tmp_path: Path) -> None:
    """With plain gradient descent and the same batch, a step is as long as its rate."""
    bundle, (x, y) = classifier(tmp_path / "b", optimizer="sgd"), batches(1)[0]

    def length(rate: LearningRate, at_step: int) -> float:
        engine = NativeEngine(bundle)
        engine.begin(rate, at_step=at_step)
        before = engine.parameters()["layer2.bias"]
        engine.step(x, y)
        return float(np.linalg.norm(engine.parameters()["layer2.bias"] - before))

    full = length(LearningRate(0.1), 0)
    assert length(LearningRate(0.1, warmup=4), 1) == pytest.approx(full / 2, rel=1e-3)
    assert length(LearningRate(0.1, total=10), 5) == pytest.approx(full / 2, rel=1e-3)
    assert length(LearningRate(0.1, total=10), 10) == 0


def test_adamw_follows_its_formula(tmp_path: Path) -> None:
    """Upstream's defaults: betas 0.9 and 0.999, epsilon 1e-6 added before the bias correction, no decay."""
    engine = NativeEngine(classifier(tmp_path / "b", standardise=False))
    plain = NativeEngine(classifier(tmp_path / "s", optimizer="sgd", standardise=False))
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
    assert open_engine("auto", classifier(tmp_path / "b"), 2).name == "native"


def test_damaged_artifacts_are_one_clear_line(tmp_path: Path) -> None:
    bundle = classifier(tmp_path / "b")
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
