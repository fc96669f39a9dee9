"""What both engines make of batches, parameters and files that are not right, and of unusual settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.errors import CorruptError, NonFiniteError, TrainingError
from tests.engines.bundles import batches, classifier, halfway, overflowing
from tests.engines.comparison import loss_of, state

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle

RATE = LearningRate(0.02, warmup=7, total=25)


@pytest.fixture(params=["native", "portable"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["adamw", "sgd"])
def bundle(request: pytest.FixtureRequest, name: str, tmp_path: Path) -> Bundle:
    return classifier(tmp_path / "b", optimizer=request.param, engine=name)


@pytest.fixture
def engine(name: str, bundle: Bundle) -> Engine:
    opened = open_engine(name, bundle)
    opened.begin(LearningRate(0.05))
    return opened


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("apply", [True, False])
def test_a_loss_that_is_not_finite_changes_nothing(
    name: str, tmp_path: Path, value: float, apply: bool
) -> None:
    engine = open_engine(name, classifier(tmp_path / "b", standardise=False, engine=name))
    good, bad = batches(2)
    bad[0][3, 1] = value
    engine.step(*good)
    before = state(engine)
    step = engine.step(*bad, apply=apply)
    assert not step.applied
    # Of an infinite row some processors leave a finite loss (ARM64), but none finite gradients.
    assert np.isinf(value) or not np.isfinite(step.loss)
    assert state(engine) == before
    # Nothing of the bad gradients is left for the next update.
    assert engine.step(*good).applied
    engine.check()


def test_careful_steps_look_at_the_gradients(name: str, tmp_path: Path) -> None:
    engine = open_engine(name, classifier(tmp_path / "b", standardise=False, engine=name))
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
    assert loss_of(tmp_path / "m.onnx", "cross_entropy", raw, y) == pytest.approx(
        engine.evaluate(raw, y), abs=1e-5
    )


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
    bundle, (x, y) = classifier(tmp_path / "b", optimizer="sgd", engine=name), batches(1)[0]

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


def test_accumulated_gradients_do_not_outlive_going_back(name: str, bundle: Bundle, tmp_path: Path) -> None:
    engine = halfway(open_engine(name, bundle), RATE, tmp_path / "saved")
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
    engine = halfway(open_engine(name, bundle), RATE, tmp_path / "saved")
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


def test_saving_where_nothing_can_be_written_is_one_clear_line(engine: Engine, tmp_path: Path) -> None:
    for act in (engine.save, lambda path: engine.export(path / "m.onnx")):
        with pytest.raises(TrainingError, match="No such file or directory") as caught:
            act(tmp_path / "nowhere")
        assert "\n" not in caught.value.line()
