"""What every engine must do, run over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import CorruptError, NonFiniteError, TrainingError
from tests.engines.bundles import batches, classifier

if TYPE_CHECKING:
    from pathlib import Path

    from edged.domain.protocols import Engine
    from edged.storage.bundles import Bundle

RATE = LearningRate(0.02, warmup=7, total=25)


@pytest.fixture(params=["native", "portable"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["adamw", "sgd"])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    return classifier(tmp_path / "b", optimizer=request.param)


@pytest.fixture
def engine(name: str, bundle: Bundle) -> Engine:
    opened = open_engine(name, bundle)
    opened.begin(LearningRate(0.05))
    return opened


def state(engine: Engine) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def loss_of(path: Path, x: np.ndarray, y: np.ndarray) -> float:
    logits = InferenceModel(path).predict(x).astype(np.float64)
    return float((np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean())


def test_it_says_its_name(engine: Engine, name: str) -> None:
    assert engine.name == name


def test_it_learns(engine: Engine) -> None:
    x, y = batches(1, 256)[0]
    before = engine.evaluate(x, y)
    for batch in batches(300, seed=1):
        assert engine.step(*batch).applied
    assert engine.evaluate(x, y) < 0.5 * before
    engine.check()


def test_it_starts_with_the_parameters_of_the_base_model(engine: Engine, bundle: Bundle) -> None:
    x, y = batches(1)[0]
    assert list(engine.parameters()) != []
    assert set(engine.parameters()) == {*bundle.trainable, *bundle.frozen}
    assert engine.evaluate(x, y) == pytest.approx(loss_of(bundle.inference_model, x, y), abs=1e-5)


def test_evaluation_changes_nothing(engine: Engine) -> None:
    x, y = batches(1)[0]
    before = state(engine)
    assert engine.evaluate(x, y) == engine.evaluate(x, y)
    assert state(engine) == before


def test_the_loss_of_a_step_is_the_loss_before_it(engine: Engine) -> None:
    x, y = batches(1)[0]
    before = engine.evaluate(x, y)
    assert engine.step(x, y).loss == pytest.approx(before, rel=1e-5)


def test_batches_of_every_size_take_turns(engine: Engine) -> None:
    for rows in (1, 16, 64, 1, 7, 3, 5, 64, 2, 1):
        x, y = batches(1, rows, seed=rows)[0]
        before = engine.evaluate(x, y)
        assert engine.step(x, y).loss == pytest.approx(before, rel=1e-5)


def test_frozen_parameters_stay(engine: Engine) -> None:
    for batch in batches(5):
        engine.step(*batch)
    np.testing.assert_array_equal(engine.parameters()["input.mean"], np.zeros(5))


def test_accumulated_gradients_are_added_up(name: str, tmp_path: Path) -> None:
    """Two half batches at half the rate are one whole batch, for plain gradient descent."""
    (x, y), bundle = batches(1)[0], classifier(tmp_path / "b", optimizer="sgd")
    whole, halves = open_engine(name, bundle), open_engine(name, bundle)
    whole.begin(LearningRate(0.1))
    halves.begin(LearningRate(0.05))
    whole.step(x, y)
    before = state(halves)
    assert not halves.step(x[:16], y[:16], apply=False).applied
    assert state(halves) == before
    assert halves.step(x[16:], y[16:]).applied
    for parameter, value in whole.parameters().items():
        np.testing.assert_allclose(halves.parameters()[parameter], value, atol=1e-6)


def test_gradients_are_gone_after_an_update(name: str, tmp_path: Path) -> None:
    bundle, (first, second) = classifier(tmp_path / "b", optimizer="sgd"), batches(2)
    one, two = open_engine(name, bundle), open_engine(name, bundle)
    for engine in (one, two):
        engine.begin(LearningRate(0.1))
    one.step(*first, apply=False)
    one.step(*first)
    two.set_parameters(one.parameters())
    one.step(*second)
    two.step(*second)
    for parameter, value in one.parameters().items():
        np.testing.assert_allclose(two.parameters()[parameter], value, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("apply", [True, False])
def test_a_loss_that_is_not_finite_changes_nothing(
    name: str, tmp_path: Path, value: float, apply: bool
) -> None:
    engine = open_engine(name, classifier(tmp_path / "b", standardise=False))
    good, bad = batches(2)
    bad[0][3, 1] = value
    engine.step(*good)
    before = state(engine)
    step = engine.step(*bad, apply=apply)
    assert not step.applied
    assert not np.isfinite(step.loss)
    assert state(engine) == before
    # Nothing of the bad gradients is left for the next update.
    assert engine.step(*good).applied
    engine.check()


def overflowing(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
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


def test_careful_steps_look_at_the_gradients(name: str, tmp_path: Path) -> None:
    engine = open_engine(name, classifier(tmp_path / "b", standardise=False))
    x, y = overflowing(engine)
    before = state(engine)
    step = engine.step(x, y, careful=True)
    assert np.isfinite(step.loss)
    assert not step.applied
    assert state(engine) == before


def test_check_sees_frozen_parameters(engine: Engine) -> None:
    engine.set_parameters({"input.scale": np.array([1, 1, np.nan, 1, 1], np.float32)})
    with pytest.raises(NonFiniteError, match=r"input\.scale"):
        engine.check()


def test_check_sees_trainable_parameters(engine: Engine) -> None:
    engine.set_parameters({"layer2.bias": np.array([1, np.inf, 1], np.float32)})
    with pytest.raises(NonFiniteError, match=r"layer2\.bias"):
        engine.check()


def test_parameters_are_copies(engine: Engine) -> None:
    before = state(engine)
    for value in engine.parameters().values():
        value.fill(1)
    assert state(engine) == before


def test_overwritten_frozen_parameters_count_at_once_everywhere(engine: Engine, tmp_path: Path) -> None:
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


def test_the_export_is_the_judged_model(engine: Engine, tmp_path: Path) -> None:
    for batch in batches(30):
        engine.step(*batch)
    before = state(engine)
    engine.export(tmp_path / "m.onnx")
    x, y = batches(1, 64, seed=9)[0]
    assert loss_of(tmp_path / "m.onnx", x, y) == pytest.approx(engine.evaluate(x, y), abs=1e-5)
    assert engine.step(*batches(1)[0]).applied
    assert state(engine) != before


def test_wrong_parameters_are_refused_and_none_is_changed(engine: Engine) -> None:
    before = state(engine)
    with pytest.raises(TrainingError, match=r"layer9\.bias: the model has no such parameter"):
        engine.set_parameters({"input.mean": np.ones(5, np.float32), "layer9.bias": np.ones(5, np.float32)})
    with pytest.raises(TrainingError, match=r"input.mean: has shape \(4,\), the model takes \(5,\)"):
        engine.set_parameters({"input.scale": np.ones(5, np.float32), "input.mean": np.ones(4, np.float32)})
    assert state(engine) == before


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64])
def test_a_batch_of_the_wrong_type_is_refused_in_one_line(engine: Engine, dtype: type) -> None:
    x, y = batches(1)[0]
    with pytest.raises(
        TrainingError, match=r"refuses a batch \(input .*\[32, 5\], label int64\[32\]\)"
    ) as caught:
        engine.step(x.astype(dtype), y)
    assert "\n" not in caught.value.line()


def test_a_batch_of_the_wrong_shape_is_refused_and_the_engine_lives(engine: Engine) -> None:
    x, y = batches(1)[0]
    for wrong in ((x[:, :4], y), (x, y[:5]), (x, y[:, None]), (x[:0], y[:0])):
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.step(*wrong)
    for wrong in ((x[:, :4], y), (x, y[:5]), (x, y[:, None])):
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.evaluate(*wrong)
    assert engine.step(x, y).applied


def test_rows_that_are_views_of_other_arrays(engine: Engine) -> None:
    x, y = batches(1)[0]
    expected = engine.evaluate(x, y)
    assert engine.evaluate(np.asfortranarray(x), y) == expected
    assert engine.evaluate(np.repeat(x, 2, axis=0)[::2], y) == expected


def test_the_rate_follows_the_schedule(name: str, tmp_path: Path) -> None:
    """With plain gradient descent and the same batch, a step is as long as its rate."""
    bundle, (x, y) = classifier(tmp_path / "b", optimizer="sgd"), batches(1)[0]

    def length(rate: LearningRate, at_step: int) -> float:
        engine = open_engine(name, bundle)
        engine.begin(rate, at_step=at_step)
        before = engine.parameters()["layer2.bias"]
        engine.step(x, y)
        return float(np.linalg.norm(engine.parameters()["layer2.bias"] - before))

    full = length(LearningRate(0.1), 0)
    assert length(LearningRate(0.1, warmup=4), 1) == pytest.approx(full / 2, rel=1e-3)
    assert length(LearningRate(0.1, total=10), 5) == pytest.approx(full / 2, rel=1e-3)
    assert length(LearningRate(0.1, total=10), 10) == 0


def halfway(name: str, bundle: Bundle, saved: Path) -> Engine:
    """Ten steps, saved; and the same engine after ten more."""
    engine = open_engine(name, bundle)
    engine.begin(RATE)
    engine.set_parameters({"input.mean": np.full(5, 0.1, np.float32)})
    for batch in batches(20)[:10]:
        engine.step(*batch)
    saved.mkdir()
    engine.save(saved)
    for batch in batches(20)[10:]:
        engine.step(*batch)
    return engine


def test_a_fresh_engine_goes_on_bit_by_bit(name: str, bundle: Bundle, tmp_path: Path) -> None:
    straight = halfway(name, bundle, tmp_path / "saved")
    resumed = open_engine(name, bundle)
    resumed.restore(tmp_path / "saved")
    for batch in batches(20)[10:]:
        resumed.step(*batch)
    assert state(resumed) == state(straight)
    # The moments and the rate are the same too: one more step still agrees.
    for engine in (straight, resumed):
        engine.step(*batches(1, seed=5)[0])
    assert state(resumed) == state(straight)


def test_the_same_engine_can_go_back(name: str, bundle: Bundle, tmp_path: Path) -> None:
    engine = halfway(name, bundle, tmp_path / "saved")
    after = state(engine)
    engine.restore(tmp_path / "saved")
    assert state(engine) != after
    for batch in batches(20)[10:]:
        engine.step(*batch)
    assert state(engine) == after


def test_accumulated_gradients_do_not_outlive_going_back(name: str, bundle: Bundle, tmp_path: Path) -> None:
    engine = halfway(name, bundle, tmp_path / "saved")
    after = state(engine)
    engine.step(*batches(1, seed=8)[0], apply=False)
    engine.restore(tmp_path / "saved")
    for batch in batches(20)[10:]:
        engine.step(*batch)
    assert state(engine) == after


@pytest.mark.parametrize("damage", ["cut", "empty", "missing"])
def test_a_damaged_save_is_refused_and_the_engine_stays_as_it_was(
    name: str, bundle: Bundle, tmp_path: Path, damage: str
) -> None:
    engine = halfway(name, bundle, tmp_path / "saved")
    before = state(engine)
    files = ["checkpoint", "engine.json"] if name == "native" else ["state.safetensors", "engine.json"]
    for file in files:
        (tmp_path / file).mkdir()
        for other in files:
            content = (tmp_path / "saved" / other).read_bytes()
            kept = {"cut": 20, "empty": 0, "missing": 0}[damage] if other == file else len(content)
            if other != file or damage != "missing":
                (tmp_path / file / other).write_bytes(content[:kept])
        with pytest.raises(CorruptError) as caught:
            engine.restore(tmp_path / file)
        assert str(tmp_path / file) in caught.value.where
        assert state(engine) == before
    assert engine.step(*batches(1)[0]).applied


@pytest.mark.parametrize("pair", [("native", "portable"), ("portable", "native")], ids="-to-".join)
def test_a_checkpoint_of_one_engine_goes_on_in_the_other(
    pair: tuple[str, str], bundle: Bundle, tmp_path: Path
) -> None:
    first, second = pair
    straight = halfway(first, bundle, tmp_path / "saved")
    other = open_engine(second, bundle)
    other.restore(tmp_path / "saved")
    for batch in batches(20)[10:]:
        other.step(*batch)
    for parameter, value in straight.parameters().items():
        np.testing.assert_allclose(other.parameters()[parameter], value, atol=1e-6, err_msg=parameter)
    # And back again, with moments, number of updates and rate.
    (tmp_path / "again").mkdir()
    other.save(tmp_path / "again")
    straight.restore(tmp_path / "again")
    for engine in (straight, other):
        engine.step(*batches(1, seed=5)[0])
    for parameter, value in straight.parameters().items():
        np.testing.assert_allclose(other.parameters()[parameter], value, atol=1e-6, err_msg=parameter)


def test_a_checkpoint_before_the_first_step_goes_on_in_the_other_too(
    name: str, bundle: Bundle, tmp_path: Path
) -> None:
    engine, other = open_engine(name, bundle), open_engine("portable", bundle)
    engine.save(tmp_path)
    other.restore(tmp_path)
    assert state(other) == state(engine)


def test_saving_where_nothing_can_be_written_is_one_clear_line(engine: Engine, tmp_path: Path) -> None:
    for act in (engine.save, lambda path: engine.export(path / "m.onnx")):
        with pytest.raises(TrainingError, match="No such file or directory") as caught:
            act(tmp_path / "nowhere")
        assert "\n" not in caught.value.line()
