"""A device's part in a round: trained with real engines, clipped, coded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.federated.messages import RoundSettings
from edged.domain.training.weight_coding import decode, difference
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.errors import NoDataError, RefusedError, UnavailableError
from edged.trainer.fleet_rounds import RoundContribution, norm
from edged.trainer.task import EngineFactory, in_place, quality
from tests.device.learning_rig import Workshop, task
from tests.installed import needs_native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edged.storage.models.bundles import Bundle

    Weights = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]

FREE = RoundSettings(epochs=None, steps=60, learning_rate=0.01, clip_norm=100.0)


class Bench:
    """One device's data, and its part in rounds."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self.shop, self.bundle = Workshop(folder, bundle), bundle
        self.shop.feed(*task(600))
        self.engine = PortableEngine(bundle)
        self.base = self.engine.parameters()
        self.shop.trainee(self.engine)
        engines = EngineFactory(self.engine.name, bundle)
        self.part = self.shop.round_trainer(engines)

    def train(self, config: RoundSettings, residual: Weights | None = None, **more: Any) -> RoundContribution:
        return self.part.train_round(self.base, config, residual or {}, rng=np.random.default_rng(0), **more)


@pytest.fixture
def bench(tmp_path: Path, bundle: Bundle) -> Iterator[Bench]:
    made = Bench(tmp_path / "state", bundle)
    yield made
    made.shop.log.close()


def test_a_round_improves_the_base_on_the_device_and_leaves_its_own_engine_alone(bench: Bench) -> None:
    made = bench.train(FREE)
    window, task_ = bench.shop.log.holdout_window(1000), bench.shop.task
    found = []
    change = decode(made.coded)
    moved = {name: value + change.get(name, np.float32(0)) for name, value in bench.base.items()}
    for weights in ({}, moved):
        with in_place(weights, bench.engine):
            found.append(quality(bench.engine, window, task_))
    before, after = found
    assert before is not None
    assert after is not None
    assert after.loss < before.loss
    assert after.metric > before.metric
    assert made.steps == 60
    assert made.samples == 600 - len(bench.shop.log.holdout_window(1000))
    assert made.coded.keys() <= set(bench.bundle.trainable)
    own = bench.engine.parameters()
    assert all(np.array_equal(own[name], value) for name, value in bench.base.items())


def test_epochs_are_passes_over_all_samples(bench: Bench) -> None:
    made = bench.train(RoundSettings(epochs=2, batch_size=50, clip_norm=9.0))
    assert made.steps == -(-2 * made.samples // 50)


def test_the_norm_is_bounded_and_what_coding_left_out_comes_with_the_next_round(bench: Bench) -> None:
    small = RoundSettings(epochs=None, steps=60, learning_rate=0.01, clip_norm=0.25)
    made = bench.train(small)
    assert bench.train(FREE).norm > 1
    assert made.norm == pytest.approx(0.25, rel=0.02)
    assert norm(decode(made.coded)) == pytest.approx(made.norm)
    again = bench.train(small, made.residual)
    sent = decode(made.coded)
    assert any(value.any() for value in made.residual.values())
    wanted = {name: value + made.residual[name] for name, value in sent.items()}
    twice = {name: sent[name] + decode(again.coded)[name] for name in wanted}
    once = {name: 2 * sent[name] for name in wanted}
    double = {name: 2 * value for name, value in wanted.items()}
    assert norm(difference(twice, double)) < norm(difference(once, double))


def test_a_model_of_another_network_is_refused(bench: Bench) -> None:
    for base, told in (
        ({"w": np.zeros(3, np.float32)}, "no such parameter"),
        ({name: value[:1] for name, value in bench.base.items()}, "has shape"),
        ({name: value + np.float32(np.nan) for name, value in bench.base.items()}, "not finite"),
        ({}, "leaves it out"),
    ):
        bench.base = base
        with pytest.raises(RefusedError, match=told):
            bench.train(FREE)


def test_time_that_is_up_makes_do_with_the_steps_made(bench: Bench) -> None:
    made = bench.train(replace(FREE, steps=5000), seconds=0.0)
    assert 1 <= made.steps < 5000


def test_a_proximal_term_holds_weights_near_the_base(bench: Bench) -> None:
    random = np.random.default_rng
    free, held = (bench.part.fit(bench.base, FREE, rng=random(0), mu=mu) for mu in (0.0, 100.0))
    assert 0 < norm(held.change) < 0.2 * norm(free.change)


@needs_native
def test_the_native_engine_refuses_a_proximal_term(tmp_path: Path, bundles: dict[str, Bundle]) -> None:
    bundle = bundles["native"]
    shop = Workshop(tmp_path, bundle)
    shop.feed(*task(100))
    engine = open_engine("native", bundle)
    shop.trainee(engine)
    part = shop.round_trainer(EngineFactory("native", bundle))
    with pytest.raises(UnavailableError, match=r"engine native: .*anchor.*training\.engine to portable"):
        part.fit(engine.parameters(), FREE, rng=np.random.default_rng(0), mu=0.1)
    shop.log.close()


def test_a_device_without_labels_has_nothing_to_give(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    engine = PortableEngine(bundle)
    shop.trainee(engine)
    part = shop.round_trainer(EngineFactory("portable", bundle))
    with pytest.raises(NoDataError):
        part.train_round(engine.parameters(), FREE, {}, rng=np.random.default_rng())
    shop.log.close()
