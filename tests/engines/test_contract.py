"""What every engine must do with every model of the zoo that it supports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.domain.protocols import Anchor, LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.errors import TrainingError
from tests.engines.comparison import apart, loss_of, state
from tests.zoo import BOTH, supported

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle
    from tests.engines.conftest import ZooBundle
    from tests.zoo import Entry

PAIRS = [(engine, entry) for engine in BOTH for entry in supported(engine)]
# Where a training step sees another network than evaluation does, the two losses differ.
ALIKE = [pair for pair in PAIRS if not pair[1].modes]

every = pytest.mark.parametrize(("name", "entry"), PAIRS, ids=lambda part: getattr(part, "name", part))
alike = pytest.mark.parametrize(("name", "entry"), ALIKE, ids=lambda part: getattr(part, "name", part))


def running(bundle: Bundle, name: str, rate: float = 0.01) -> Engine:
    engine = open_engine(name, bundle)
    engine.begin(LearningRate(rate, warmup=3, total=400))
    return engine


def train(engine: Engine, entry: Entry, bundle: Bundle, steps: range, rows: int = 16) -> None:
    for seed in steps:
        assert engine.step(*entry.batch(bundle, rows, seed)).applied


@every
def test_it_begins_with_the_base_model(name: str, entry: Entry, zoo_bundle: ZooBundle) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    engine, (x, y) = open_engine(name, bundle), entry.batch(bundle, 16)
    assert engine.name == name
    assert set(engine.parameters()) == {*bundle.trainable, *bundle.frozen}
    assert engine.evaluate(x, y) == pytest.approx(loss_of(bundle.inference_model, entry.loss, x, y), rel=1e-5)


@every
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_loss_falls(name: str, entry: Entry, optimizer: str, zoo_bundle: ZooBundle) -> None:
    bundle = zoo_bundle(entry, optimizer, name)
    engine, unseen = running(bundle, name, 0.02 if optimizer == "adamw" else 0.2), entry.batch(bundle, 256)
    before = engine.evaluate(*unseen)
    train(engine, entry, bundle, range(1, 251))
    assert engine.evaluate(*unseen) < 0.9 * before
    engine.check()


@every
def test_evaluation_changes_nothing(name: str, entry: Entry, zoo_bundle: ZooBundle) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    engine, batch = running(bundle, name), entry.batch(bundle, 16)
    train(engine, entry, bundle, range(1, 3))
    before = state(engine)
    assert engine.evaluate(*batch) == engine.evaluate(*batch)
    assert state(engine) == before


@alike
def test_the_loss_of_a_step_is_the_loss_before_it_for_batches_of_every_size(
    name: str, entry: Entry, zoo_bundle: ZooBundle
) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    engine = running(bundle, name)
    for rows in (1, 16, 64, 1, 7, 2):
        batch = entry.batch(bundle, rows, seed=rows)
        before = engine.evaluate(*batch)
        assert engine.step(*batch).loss == pytest.approx(before, rel=1e-5, abs=1e-6)


@every
def test_only_what_is_trained_changes(name: str, entry: Entry, zoo_bundle: ZooBundle) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    engine = running(bundle, name)
    before = state(engine)
    train(engine, entry, bundle, range(1, 4))
    after = state(engine)
    statistics = {parameter for parameter in bundle.frozen if entry.modes and ".running_" in parameter}
    changed = {parameter for parameter in after if after[parameter] != before[parameter]}
    assert changed == {*bundle.trainable, *statistics}


@alike
def test_accumulated_gradients_are_added_up(name: str, entry: Entry, zoo_bundle: ZooBundle) -> None:
    """Two half batches at half the rate are one whole batch, for plain gradient descent."""
    bundle = zoo_bundle(entry, "sgd", name)
    x, y = entry.batch(bundle, 32)
    whole, halves = open_engine(name, bundle), open_engine(name, bundle)
    whole.begin(LearningRate(0.1))
    halves.begin(LearningRate(0.05))
    whole.step(x, y)
    before = state(halves)
    assert not halves.step(x[:16], y[:16], apply=False).applied
    assert state(halves) == before
    assert halves.step(x[16:], y[16:]).applied
    assert apart(halves, whole) < 1e-5
    # Nothing of them is left for the next update.
    halves.set_parameters(whole.parameters())
    halves.begin(LearningRate(0.1))
    for engine in (whole, halves):
        engine.step(*entry.batch(bundle, 16, seed=2))
    assert apart(halves, whole) < 1e-5


@every
@pytest.mark.parametrize("apply", [True, False])
def test_a_row_of_nan_changes_nothing(name: str, entry: Entry, zoo_bundle: ZooBundle, apply: bool) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    engine, plain = running(bundle, name), running(bundle, name)
    for one in (engine, plain):
        train(one, entry, bundle, range(1, 3))
    x, y = entry.batch(bundle, 16, seed=3)
    x[5] = np.nan
    before = state(engine)
    if entry.tokens and name == "native":
        # It is no row of the table, which upstream's graph itself refuses.
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.step(x, y, apply=apply, careful=True)
    else:
        assert not engine.step(x, y, apply=apply, careful=True).applied
    assert state(engine) == before
    # Neither in what is not seen: moments, rate and gradients go on as if it had not been.
    for one in (engine, plain):
        train(one, entry, bundle, range(4, 6))
    assert state(engine) == state(plain)


@pytest.mark.parametrize("entry", supported("portable"), ids=lambda entry: entry.name)
def test_nothing_but_nan_changes_nothing_and_ends_nothing(entry: Entry, zoo_bundle: ZooBundle) -> None:
    """The largest of nothing but NaN has no place, which ends a run; natively it is outside of memory."""
    bundle = zoo_bundle(entry, "adamw", "portable")
    engine, (x, y) = PortableEngine(bundle), entry.batch(bundle, 4)
    before = state(engine)
    nothing = np.full_like(x, np.nan)
    assert not engine.step(nothing, y).applied
    assert state(engine) == before
    assert engine.step(x, y).applied
    assert state(engine) != before
    engine.check()


@every
def test_parameters_that_are_put_in_come_out_and_count(
    name: str, entry: Entry, zoo_bundle: ZooBundle
) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    trained, engine, batch = running(bundle, name), running(bundle, name), entry.batch(bundle, 16)
    train(trained, entry, bundle, range(1, 6))
    engine.set_parameters(trained.parameters())
    assert state(engine) == state(trained)
    assert engine.evaluate(*batch) == trained.evaluate(*batch)


@every
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_saved_and_restored_it_goes_on_bit_by_bit(
    name: str, entry: Entry, optimizer: str, zoo_bundle: ZooBundle, tmp_path: Path
) -> None:
    bundle = zoo_bundle(entry, optimizer, name)
    straight, fresh = running(bundle, name), open_engine(name, bundle)
    train(straight, entry, bundle, range(1, 6))
    straight.save(tmp_path)
    saved = state(straight)
    train(straight, entry, bundle, range(6, 11))
    fresh.restore(tmp_path)
    assert state(fresh) == saved
    train(fresh, entry, bundle, range(6, 11))
    assert state(fresh) == state(straight)
    # The same engine can go back too.
    straight.restore(tmp_path)
    assert state(straight) == saved


@every
def test_an_export_holds_the_engines_parameters_and_predicts_with_them(
    name: str, entry: Entry, zoo_bundle: ZooBundle, tmp_path: Path
) -> None:
    bundle = zoo_bundle(entry, "adamw", name)
    engine, (x, y) = running(bundle, name), entry.batch(bundle, 64)
    train(engine, entry, bundle, range(1, 11))
    before = state(engine)
    engine.export(tmp_path / "m.onnx")
    assert state(engine) == before
    held = {
        tensor.name: numpy_helper.to_array(tensor).tobytes()
        for tensor in onnx.load(str(tmp_path / "m.onnx")).graph.initializer
    }
    assert {parameter: held[parameter] for parameter in before} == before
    judged = engine.evaluate(x, y)
    assert loss_of(tmp_path / "m.onnx", entry.loss, x, y) == pytest.approx(judged, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("entry", supported("portable"), ids=lambda entry: entry.name)
def test_rows_of_weight_0_are_padding(entry: Entry, zoo_bundle: ZooBundle) -> None:
    bundle = zoo_bundle(entry, "adamw", "portable")
    short, padded = PortableEngine(bundle), PortableEngine(bundle)
    x, y = entry.batch(bundle, 16)
    weights = (np.arange(16) < 5).astype(np.float32)
    one, other = short.step(x[:5], y[:5]), padded.step(x, y, weights=weights)
    assert other.loss == pytest.approx(one.loss, rel=1e-5)
    assert apart(padded, short) < 1e-5


@pytest.mark.parametrize("entry", supported("portable"), ids=lambda entry: entry.name)
def test_an_anchor_holds_back(entry: Entry, zoo_bundle: ZooBundle) -> None:
    bundle = zoo_bundle(entry, "sgd", "portable")
    plain, anchored = (PortableEngine(bundle) for _ in range(2))
    start, (x, y) = plain.parameters(), entry.batch(bundle, 16)
    anchored.guide(Anchor({parameter: start[parameter] for parameter in bundle.trainable}, strength=5.0))
    for engine in (plain, anchored):
        engine.begin(LearningRate(0.1))
        for _ in range(20):
            assert engine.step(x, y).applied
    free, held = (
        np.sqrt(sum(float(((engine.parameters()[n] - start[n]) ** 2).sum()) for n in bundle.trainable))
        for engine in (plain, anchored)
    )
    assert 0 < held < free
