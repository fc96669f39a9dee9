"""A device's part in a round: trained with real engines, clipped, noised, coded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.federated.privacy import norm
from edged.domain.federated.settings import Encoding, RoundSettings
from edged.domain.training.weight_deltas import decode, difference
from edged.engines.portable.engine import PortableEngine
from edged.errors import NoDataError, RefusedError
from edged.fleet.simulation.shared import Unthrottled
from edged.trainer.fleet_training import CarriedState, RoundContribution, RoundTrainer
from edged.trainer.task import EngineFactory
from tests.device.learning_rig import Workshop, task
from tests.installed import KINDS

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle

    Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

FREE = RoundSettings(epochs=None, steps=60, learning_rate=0.01, clip_norm=100.0)


@dataclass(frozen=True)
class RecordingFactory(EngineFactory):
    """Opens engines, and keeps which of them were to be anchored."""

    anchored: list[bool] = field(default_factory=list)

    def open(self, *, anchored: bool = False) -> Engine:
        self.anchored.append(anchored)
        return super().open(anchored=anchored)


class Bench:
    """One device's data, and its part in rounds with engines of one kind."""

    def __init__(self, folder: Path, bundle: Bundle, kind: Callable[[Bundle], Engine]) -> None:
        self.shop, self.bundle = Workshop(folder, bundle), bundle
        self.shop.feed(*task(600))
        self.engine = kind(bundle)
        self.base = self.engine.parameters()
        self.shop.trainee(self.engine)
        self.engines = RecordingFactory(self.engine.name, bundle)
        self.part = RoundTrainer(self.shop.task, self.engines, self.shop.round_data(), Unthrottled())

    @property
    def proximal(self) -> list[bool]:
        return self.engines.anchored

    def train(
        self, config: RoundSettings, carried: CarriedState | None = None, seed: int = 0, **more: Any
    ) -> RoundContribution:
        return self.part.train_round(
            self.base, config, carried or CarriedState(), rng=np.random.default_rng(seed), **more
        )


@pytest.fixture(params=KINDS)
def bench(tmp_path: Path, bundle: Bundle, request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(tmp_path / "state", bundle, request.param)
    yield made
    made.shop.log.close()


def test_a_device_is_held_to_the_other_side_of_where_it_has_moved(bench: Bench) -> None:
    config = replace(FREE, dynamic=5.0)
    first = bench.train(config)
    assert bench.proximal == [True]
    moved = decode(first.coded)
    assert {n: v.tolist() for n, v in first.carried.moved.items()} == {
        n: v.tolist() for n, v in moved.items()
    }
    again = bench.train(config, first.carried)
    along = sum(float((decode(again.coded)[name] * moved[name]).sum()) for name in moved)
    assert along < 0.5 * norm(moved) ** 2  # it is pulled back
    for name, value in again.carried.moved.items():
        np.testing.assert_allclose(value, moved[name] + decode(again.coded)[name], rtol=0, atol=1e-6)
    assert bench.train(FREE, again.carried).carried.moved == {}


def test_a_round_improves_the_base_on_the_device_and_leaves_its_own_engine_alone(bench: Bench) -> None:
    made = bench.train(FREE)
    assert made.before is not None
    assert made.after is not None
    assert made.after.loss < made.before.loss
    assert made.after.metric > made.before.metric
    assert made.steps == 60
    assert made.samples == 600 - len(bench.shop.log.holdout_window(1000))
    assert made.coded.keys() <= set(bench.bundle.trainable)
    own = bench.engine.parameters()
    assert all(np.array_equal(own[name], value) for name, value in bench.base.items())


def test_epochs_are_passes_over_all_samples(bench: Bench) -> None:
    made = bench.train(RoundSettings(epochs=2, batch_size=50, clip_norm=9.0))
    assert made.steps == -(-2 * made.samples // 50)


def test_the_norm_is_bounded_and_what_coding_left_out_comes_with_the_next_round(bench: Bench) -> None:
    small = RoundSettings(
        epochs=None, steps=60, learning_rate=0.01, clip_norm=0.25, encoding=Encoding("int8", 1.0)
    )
    made = bench.train(small)
    assert made.moved > 0.25
    assert made.norm <= 0.25 * 1.02
    assert norm(decode(made.coded)) == pytest.approx(made.norm)
    again = bench.train(small, made.carried)
    exact = RoundSettings(
        epochs=None, steps=60, learning_rate=0.01, clip_norm=0.25, encoding=Encoding("float32")
    )
    wanted = decode(bench.train(exact).coded)
    twice = {name: decode(made.coded)[name] + decode(again.coded)[name] for name in wanted}
    once = {name: 2 * decode(made.coded)[name] for name in wanted}
    double = {name: 2 * value for name, value in wanted.items()}
    assert norm(difference(twice, double)) < norm(difference(once, double))


def test_noise_is_of_the_size_that_was_asked_for_and_never_the_same(bench: Bench) -> None:
    quiet = RoundSettings(
        epochs=None, steps=1, learning_rate=1e-6, clip_norm=1.0, encoding=Encoding("float32")
    )
    loud = RoundSettings(**{**quiet.__dict__, "noise": 0.5})
    one, other = (decode(bench.train(loud, seed=seed).coded) for seed in (1, 2))
    count = sum(value.size for value in one.values())
    assert norm(one) == pytest.approx(0.5 * count**0.5, rel=0.2)
    assert norm(difference(one, other)) > 0.5
    assert norm(decode(bench.train(quiet).coded)) < 0.1
    with pytest.raises(RefusedError, match="clip_norm"):
        bench.train(RoundSettings(**{**loud.__dict__, "clip_norm": 0.0}))


def test_personal_layers_are_trained_and_stay(bench: Bench) -> None:
    last = bench.bundle.trainable[-1]
    config = RoundSettings(**{**FREE.__dict__, "personal": (last,)})
    made = bench.train(config)
    assert last not in made.coded
    assert set(made.carried.personal) == {last}
    assert not np.array_equal(made.carried.personal[last], bench.base[last])
    further = bench.train(config, made.carried)
    assert further.before is not None
    assert made.before is not None
    assert further.before != made.before  # it began with the personal layers of the round before


def test_a_proximal_term_holds_to_the_base(bench: Bench) -> None:
    free = bench.train(FREE)
    held = bench.train(RoundSettings(**{**FREE.__dict__, "proximal": 10.0}))
    assert bench.proximal[-1]
    assert held.moved < 0.7 * free.moved


def test_time_that_is_up_makes_do_with_the_steps_made(bench: Bench) -> None:
    made = bench.train(RoundSettings(**{**FREE.__dict__, "steps": 5000}), seconds=0.0)
    assert 1 <= made.steps < 5000


def test_a_device_without_labels_has_nothing_to_give(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    engine = PortableEngine(bundle)
    shop.trainee(engine)
    part = RoundTrainer(shop.task, EngineFactory("portable", bundle), shop.round_data(), Unthrottled())
    with pytest.raises(NoDataError):
        part.train_round(engine.parameters(), FREE, CarriedState(), rng=np.random.default_rng())
    shop.log.close()
