"""One training run: what is learned, from which samples, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.judging.outputs import answers
from edged.domain.seeded_rng import is_holdout
from edged.domain.stream.schema import Schema
from edged.domain.training.batch_pool import LabelForm
from edged.domain.training.learner_state import SHORT_AFTER_DRIFT
from edged.domain.training.trainer_messages import BadSamples, RunProgress
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from edged.errors import NoDataError
from edged.mqtt import weight_encoding as wire
from tests.building import build
from tests.device.learning_rig import CLASSIFY, RecordingEngine, Workshop, losses, rows, task
from tests.installed import ENGINES

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue
    from edged.domain.training.training_run import RunResult
    from edged.storage.models.bundles import Bundle


def candidate(result: RunResult) -> InferenceModel:
    return InferenceModel(result.candidate / "model.onnx")


def accuracy(model: InferenceModel, schema: Schema, x: Any, labels: list[LabelValue | None]) -> float:
    return float((answers(schema, model.predict(x))[:, 0] == np.asarray(labels)).mean())


def values(result: RunResult, x: Any, y: Any) -> float:
    return float(np.abs(candidate(result).predict(x) - y).mean())


# ---- learning --------------------------------------------------------------------------------


def test_a_run_learns_and_hands_over_a_model(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, max_steps=300, steps=300)
    shop.feed(*task(600))
    result = shop.trainee().run(shop.request())
    before, after = losses(result)
    assert after < 0.5 * before
    assert accuracy(candidate(result), CLASSIFY, *task(500, seed=9)) > 0.85
    assert (result.steps, result.skipped, result.engine) == (300, 0, "portable")
    assert result.samples == shop.log.labelled_since(0)
    assert result.consumed == shop.log.last_seq()


def test_labels_of_few_samples_get_more_steps_each_once_the_share_is_known(
    tmp_path: Path, bundle: Bundle
) -> None:
    shop = Workshop(tmp_path, bundle, max_steps=500)
    trainee = shop.trainee()

    def steps(samples: int, every: int) -> int:
        x, labels = task(samples)
        shop.feed(x, [label if i % every == 0 else None for i, label in enumerate(labels)])
        made: int = trainee.run(shop.request()).steps
        return made

    assert steps(100, 1) == 60
    assert 160 < steps(200, 10) <= 240  # some of the twenty are held out
    assert steps(100, 1) == 60
    trainee = shop.trainee()  # it remembers how many samples had come
    assert steps(50, 1) == 60


def test_a_network_of_random_weights_is_trained_four_times_as_long_at_first(
    tmp_path: Path, bundle: Bundle
) -> None:
    for name, seed, first in (("random", 0, 240), ("given", None, 60)):
        shop = Workshop(tmp_path / name, replace(bundle, seed=seed), max_steps=500)
        trainee, made = shop.trainee(), []
        for _ in range(2):
            shop.feed(*task(100))
            made.append(trainee.run(shop.request()).steps)
        assert made == [first, 60]


def test_many_new_labels_are_learned_in_their_order(tmp_path: Path, bundle: Bundle) -> None:
    x, labels = task(3000)
    third = rows(x[:1000]), rows(x[2000:])
    for steps in (None, 300):
        shop = Workshop(tmp_path / str(steps), bundle, max_steps=300)
        engine = RecordingEngine(bundle)
        shop.feed(x, labels)
        result = shop.trainee(engine).run(shop.request(steps=steps))
        assert (result.steps, result.samples) == (300, shop.log.labelled_since(0))
        assert (result.consumed, result.last_offset) == (shop.log.last_seq(), 3000)
        first, last = rows(np.concatenate(engine.seen[:90])), rows(np.concatenate(engine.seen[-50:]))
        assert first & third[0]
        assert last & third[0], "the memory"
        assert bool(first & third[1]) == (steps is not None), "only where steps are given all come at once"
        assert shop.log.labelled_since(result.consumed) == 0
        made = [(told.step, told.steps) for told in shop.reported(RunProgress)]
        assert made == sorted(made)
        assert made[-1] == (300, 300)


def test_never_more_steps_are_made_than_a_run_may_make(tmp_path: Path, bundle: Bundle) -> None:
    for most in (3, 7):  # of five parts
        shop = Workshop(tmp_path / str(most), bundle, max_steps=most)
        engine = RecordingEngine(bundle)
        shop.feed(*task(3000))
        assert shop.trainee(engine).run(shop.request()).steps == most == len(engine.seen)


def test_a_drift_leaves_little_of_the_short_memory(tmp_path: Path, bundle: Bundle) -> None:
    left = {}
    for trigger in ("command", "drift"):
        shop = Workshop(tmp_path / trigger, bundle)
        trainee = shop.trainee()
        for asked in ("command", trigger):
            shop.feed(*task(600))
            trainee.run(replace(shop.request(), trigger=asked))
        generation = shop.checkpoints.latest()
        assert generation is not None
        left[trigger] = generation.arrays["recent_ids"]
    new = int((left["drift"] >= 600).sum())
    assert len(left["drift"]) == SHORT_AFTER_DRIFT + new < len(left["command"])
    assert left["drift"].tolist() == left["command"][-SHORT_AFTER_DRIFT - new :].tolist()


def test_the_probe_holds_what_the_trainer_itself_got(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(100))
    result = shop.trainee().run(shop.request())
    folder = Path(result.candidate)
    probe, expected = np.load(folder / "probe_input.npy"), np.load(folder / "probe_output.npy")
    assert probe.shape == (16, 5)
    np.testing.assert_allclose(candidate(result).predict(probe), expected, atol=1e-6)


def test_packed_weights_lie_beside_the_model(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, average=0.0)
    shop.feed(*task(100))
    engine = PortableEngine(bundle)
    trainee = shop.trainee(engine, with_weights=True)
    result = trainee.run(shop.request())
    tensors = wire.unpack((Path(result.candidate) / wire.FILE).read_bytes())
    for name, value in engine.parameters().items():
        np.testing.assert_array_equal(tensors[name], value)


def test_an_average_of_the_last_steps_is_served_not_where_the_last_one_went(
    tmp_path: Path, bundle: Bundle
) -> None:
    shop, engine = Workshop(tmp_path, bundle), PortableEngine(bundle)
    shop.feed(*task(100))
    trainee = shop.trainee(engine, with_weights=True)
    for _ in range(2):
        result = trainee.run(shop.request("command", steps=50))
        served = wire.unpack((Path(result.candidate) / wire.FILE).read_bytes())
        newest = shop.checkpoints.latest()
        assert newest is not None
        own = engine.parameters()
        for weight in bundle.trainable:
            np.testing.assert_array_equal(served[weight], newest.arrays[f"average/{weight}"])
            assert not np.array_equal(served[weight], own[weight])
        for name in set(own) - set(bundle.trainable):
            np.testing.assert_array_equal(served[name], own[name])


def test_progress_is_reported_with_the_run(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(100))
    shop.trainee().run(shop.request())
    last = shop.reported(RunProgress)[-1]
    assert (last.run, last.step, last.steps) == (1, 60, 60)
    assert last.loss is not None
    assert np.isfinite(last.loss)


@pytest.mark.parametrize("loss", ["mse", "l1"])
def test_regression_targets_in_their_own_units(tmp_path: Path, loss: str) -> None:
    statistics = Statistics.identity(5, 2)
    bundle = build(mlp(5, 2, (16,), output="y"), tmp_path / "b", loss=loss, standardise=statistics)
    schema = Schema((), 5, "regress", (), 2)
    shop = Workshop(tmp_path / "s", bundle, schema, max_steps=400, steps=400)
    x, _ = task(500)
    y = np.stack([3000 + 500 * x[:, 0], -2 + 0.1 * x[:, 1]], axis=1).astype(np.float32)
    shop.feed(x, [tuple(row) for row in y.tolist()])
    result = shop.trainee().run(shop.request())
    error = np.abs(candidate(result).predict(x) - y).mean(axis=0)
    assert error[0] < 100
    assert error[1] < 0.03


@pytest.mark.parametrize("name", ENGINES)
def test_a_change_is_learned_in_its_own_units(tmp_path: Path, name: str) -> None:
    """A large level that hardly moves: without a step the answer is the level, with some the level moves."""
    statistics = replace(Statistics.identity(5, 1), change_of=(2,))
    network = mlp(5, 1, (16,), output="y")
    bundle = build(network, tmp_path / "b", loss="l1", standardise=statistics, engine=name)
    schema = Schema((), 5, "forecast", targets=1, forecast=(2,))
    shop = Workshop(tmp_path / "s", bundle, schema, max_steps=400, steps=400)
    x, _ = task(500)
    x[:, 2] = 3000 + 500 * x[:, 2]
    y = x[:, 2] + 0.02 * x[:, 0]
    shop.feed(x, [float(value) for value in y])
    result = shop.trainee(open_engine(name, bundle)).run(shop.request())
    error = np.abs(candidate(result).predict(x)[:, 0] - y).mean()
    assert error < 0.3 * np.abs(y - x[:, 2]).mean()


def test_reconstruction_needs_no_labels(tmp_path: Path) -> None:
    bundle = build(autoencoder(5, (8,), 3), tmp_path / "b", loss="mse",
                   standardise=Statistics.identity(5, reconstruct=True))  # fmt: skip
    schema = Schema((), 5, "reconstruct", (), 5)
    shop = Workshop(tmp_path / "s", bundle, schema, max_steps=400, steps=400)
    rng = np.random.default_rng(0)
    x = (50 + 7 * rng.standard_normal((500, 2)) @ rng.standard_normal((2, 5))).astype(np.float32)
    shop.feed(x)
    result = shop.trainee().run(shop.request())
    assert values(result, x, x) < 0.3 * float(np.abs(x - x.mean(axis=0)).mean())


@pytest.mark.parametrize("outputs", [1, 2, 3])
def test_bce_with_logits(tmp_path: Path, outputs: int) -> None:
    classes = ("a", "b", "c")[: max(2, outputs)]
    bundle = build(mlp(5, outputs, (16,)), tmp_path / "b", loss="bce_with_logits",
                   standardise=Statistics.identity(5))  # fmt: skip
    schema = Schema((), 5, "classify", classes)
    bundle.check_schema(schema)
    shop = Workshop(tmp_path / "s", bundle, schema, max_steps=400, steps=400)
    x, labels = task(600)
    labels = [min(float(len(classes) - 1), v) for v in labels if isinstance(v, float)]
    shop.feed(x, labels)
    result = shop.trainee().run(shop.request())
    assert accuracy(candidate(result), schema, x, labels) > 0.85


def test_labels_take_the_form_of_the_loss() -> None:
    y = np.array([[0.0], [2.0]], np.float32)
    assert LabelForm("cross_entropy", 3).of(y).dtype == np.int64
    assert LabelForm("cross_entropy", 3).of(y).tolist() == [0, 2]
    assert LabelForm("bce_with_logits", 3).of(y).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert LabelForm("bce_with_logits", 1).of(np.array([[1.0]], np.float32)).tolist() == [[1]]
    assert LabelForm("mse", 1).of(y) is y


# ---- which samples ---------------------------------------------------------------------------


def test_holdout_samples_are_never_in_a_batch(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, replay=300)
    engine = RecordingEngine(bundle)
    trainee = shop.trainee(engine)
    held, seen = set(), set()
    for seed in range(3):
        x, labels = task(200, seed)
        offsets = shop.feed(x, labels)
        held |= rows(x[is_holdout(offsets, 0.1)])
        trainee.run(shop.request())
        seen |= engine.trained_on()
    assert len(held) > 30
    assert len(seen) > 400
    assert not held & seen


def test_late_labels_of_old_samples_are_learned_exactly_once(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, replay=0, max_steps=200, steps=200)
    engine = RecordingEngine(bundle)
    trainee = shop.trainee(engine)
    (old, late), (young, early) = task(100, 1), task(100, 2)
    offsets = shop.feed(old)
    shop.feed(young, early)
    first = trainee.run(shop.request())
    assert engine.trained_on() <= rows(young)
    shop.label(offsets, late)
    second = trainee.run(shop.request())
    held = int(is_holdout(offsets, 0.1).sum())
    assert engine.trained_on() <= rows(old)
    assert (second.samples, second.consumed) == (100 - held, first.consumed + 100)
    with pytest.raises(NoDataError):
        trainee.run(shop.request())
    shop.label(offsets, late)  # the same labels again make nothing new
    with pytest.raises(NoDataError):
        trainee.run(shop.request())


def test_labels_that_come_during_a_run_are_for_the_next(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, replay=0)
    shop.feed(*task(100, 1))
    came: list[int] = []

    def meanwhile() -> bool:
        if not came:
            came.extend(shop.feed(*task(100, 2)).tolist())
        return False

    trainee = shop.trainee(stopping=meanwhile)
    first = trainee.run(shop.request())
    second = trainee.run(shop.request())
    assert (first.last_offset or 0) < came[0] <= (second.first_offset or 0)
    assert first.samples + second.samples == shop.log.labelled_since(0)


def test_the_window_keeps_the_newest(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, window=50)
    offsets = shop.feed(*task(300))
    result = shop.trainee().run(shop.request())
    assert result.samples == 50
    assert result.last_offset == offsets[~is_holdout(offsets, 0.1)][-1]
    assert result.consumed == 300


def test_the_replay_memory_is_bounded_and_used(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, replay=50, recent=20)
    engine = RecordingEngine(bundle)
    trainee = shop.trainee(engine)
    first = task(200, 0)
    for seed in range(4):
        x, labels = first if seed == 0 else task(200, seed)
        shop.feed(x, labels)
        result = trainee.run(shop.request())
        assert 50 <= result.remembered == len(result.memory) == len(set(result.memory)) <= 70
        from_memory = engine.trained_on() - rows(x)
        if seed == 0:
            assert not from_memory
        else:
            assert 0 < len(from_memory) <= 70
    assert any(offset <= 200 for offset in result.memory)


def test_a_command_with_nothing_new_trains_on_the_memory(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, replay=80)
    engine = RecordingEngine(bundle)
    trainee = shop.trainee(engine)
    with pytest.raises(NoDataError):
        trainee.run(shop.request("command"))
    x, labels = task(200)
    offsets = shop.feed(x, labels)
    kept = trainee.run(shop.request()).memory
    engine.trained_on()
    result = trainee.run(shop.request("command", steps=40, learning_rate=0.001))
    assert engine.trained_on() <= rows(x[np.isin(offsets, kept)])
    assert (result.samples, result.first_offset, result.steps) == (0, None, 40)
    with pytest.raises(NoDataError):
        trainee.run(shop.request("schedule"))


def test_a_gradient_step_can_be_made_of_several_batches(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, accumulate=3)
    shop.feed(*task(200))
    engine = RecordingEngine(bundle)
    result = shop.trainee(engine).run(shop.request())
    assert len(engine.seen) == 3 * 60
    before, after = losses(result)
    assert after < before


# ---- bad samples -----------------------------------------------------------------------------


def test_nan_and_foreign_labels_never_reach_a_step(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, max_steps=200, steps=200)
    x, labels = task(200)
    x[10, 2], x[11, 0] = np.nan, np.inf
    labels[12:16] = [7.0, -1.0, 0.5, float(2**40)]
    offsets = shop.feed(x, labels)
    bad = [o for o in offsets[10:16].tolist() if not is_holdout(np.array([o]), 0.1)[0]]
    engine = RecordingEngine(bundle)
    result = shop.trainee(engine).run(shop.request())
    assert [list(m.offsets) for m in shop.reported(BadSamples)] == [bad]
    assert not engine.trained_on() & rows(x[10:16])
    assert not set(bad) & set(result.memory)
    assert all(np.isfinite(value).all() for value in engine.parameters().values())


def test_samples_with_an_infinite_loss_are_excluded(tmp_path: Path) -> None:
    bundle = build(mlp(5, 1, (8,)), tmp_path / "b", loss="mse")
    shop = Workshop(tmp_path / "s", bundle, Schema((), 5, "regress"), max_steps=100, steps=100)
    x, _ = task(200)
    y: list[LabelValue | None] = x[:, 0].tolist()
    y[50] = y[60] = 3e38
    offsets = shop.feed(x, y)
    bad = [o for o in offsets[[50, 60]].tolist() if not is_holdout(np.array([o]), 0.1)[0]]
    assert bad
    engine = PortableEngine(bundle)
    result = shop.trainee(engine).run(shop.request())
    assert 1 <= result.skipped <= len(bad)
    assert sorted(o for m in shop.reported(BadSamples) for o in m.offsets) == bad
    assert not set(bad) & set(result.memory)
    engine.check()
    before, after = losses(result)
    assert after < before or np.isinf(before)


@pytest.mark.parametrize("trained_before", [False, True])
def test_a_window_of_bad_samples_only_is_passed_over(
    tmp_path: Path, bundle: Bundle, trained_before: bool
) -> None:
    shop = Workshop(tmp_path, bundle, replay=0)
    trainee = shop.trainee()
    if trained_before:
        shop.feed(*task(100))
        trainee.run(shop.request())
    x, labels = task(50, 1)
    shop.feed(np.full_like(x, np.nan), labels)
    with pytest.raises(NoDataError):
        trainee.run(shop.request())
    assert shop.learner.state.consumed == shop.log.last_seq()
    shop.feed(*task(100, 2))
    result = trainee.run(shop.request())
    assert 0 < result.samples <= 100
    assert np.isfinite(candidate(result).predict(x)).all()


# ---- standardisation -------------------------------------------------------------------------


def test_the_standardisation_follows_a_shifted_input(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle, half_life=100)
    engine = PortableEngine(bundle)
    trainee = shop.trainee(engine)
    shop.feed(*task(300))
    trainee.run(shop.request())
    np.testing.assert_allclose(engine.parameters()["input.mean"], 0, atol=0.2)
    for seed in range(4):
        shop.feed(*task(300, seed, shift=20))
        trainee.run(shop.request())
    np.testing.assert_allclose(engine.parameters()["input.mean"], 20, atol=0.3)


def test_statistics_of_the_bundle_are_where_it_begins(tmp_path: Path) -> None:
    statistics = Statistics(np.full(5, 8, np.float32), np.full(5, 0.5, np.float32))
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss="cross_entropy", standardise=statistics)
    shop = Workshop(tmp_path / "s", bundle, half_life=100_000)
    engine = PortableEngine(bundle)
    shop.feed(*task(300))
    shop.trainee(engine).run(shop.request())
    np.testing.assert_allclose(engine.parameters()["input.mean"], 8, atol=0.1)


def test_a_class_that_comes_later_is_learned_on_an_output_that_waited_for_it(
    tmp_path: Path, bundle: Bundle
) -> None:
    shop = Workshop(tmp_path, bundle, steps=200, max_steps=200)
    trainee = shop.trainee()
    x, labels = task(600, 0)
    known = np.asarray(labels) != 2.0
    shop.feed(x[known], [label for label in labels if label != 2.0])
    later = task(400, 9)
    late = np.asarray(later[1]) == 2.0
    before = candidate(trainee.run(shop.request()))
    assert (answers(CLASSIFY, before.predict(later[0][late])) == 2.0).mean() < 0.05
    shop.feed(*task(300, 1))
    after = candidate(trainee.run(shop.request()))
    assert (answers(CLASSIFY, after.predict(later[0][late])) == 2.0).mean() > 0.4
