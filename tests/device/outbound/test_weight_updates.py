"""Updates of weights arrive whole and in order, also when the broker is killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.training.weight_coding import difference
from tests.running_device import wait_until
from tests.weights import Follower, Sender, big_bundle

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return big_bundle(tmp_path_factory.mktemp("bundles") / "wide", 160)


@pytest.fixture
def lasting(make_broker: MakeBroker, tmp_path: Path) -> Mosquitto:
    home = tmp_path / "broker"
    home.mkdir()
    lines = ("allow_anonymous true", "persistence true", f"persistence_location {home}/")
    return make_broker(*lines, directory=home)


def worst(one: Any, other: Any) -> float:
    return max(float(np.abs(value).max()) for value in difference(one, other).values())


def through_kills(broker: Mosquitto, sender: Sender, count: int, kills: int) -> Follower:
    """Publish `count` updates while the broker is killed `kills` times; what a follower has of them then."""
    follower = Follower(broker.port, sender)
    sender.start()
    every = count // kills
    for number in range(count):
        version = sender.model(number)
        sender.publishing.champion_changed(version)
        if number % every == every // 2:
            broker.kill()
            broker.start()
        follower.follow()
        if number % 4 == 0:
            caught_up(follower, version)
    caught_up(follower, count)
    return follower


def caught_up(follower: Follower, version: int) -> None:
    try:
        wait_until(lambda: version in follower.follow(), 60.0)
    except AssertionError:
        raise AssertionError(follower.state()) from None


@pytest.mark.slow
def test_the_newest_weights_arrive_whole_though_the_broker_is_killed(
    lasting: Mosquitto, bundle: Bundle, tmp_path: Path
) -> None:
    sender = Sender(tmp_path / "state", lasting.port, bundle, dtype="int8")
    follower = through_kills(lasting, sender, 12, 3)
    assert follower.order[-1] == 12
    assert follower.order == sorted(set(follower.order))
    assert follower.damaged == 0
    assert worst(sender.weights, follower.held) < 0.08
    follower.stop()
    sender.stop()


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_hundred_updates_of_a_megabyte_over_a_broker_that_is_killed_twenty_times(
    lasting: Mosquitto, tmp_path: Path
) -> None:
    sender = Sender(tmp_path / "state", lasting.port, big_bundle(tmp_path / "wide", 512))
    assert sum(value.nbytes for value in sender.weights.values()) > 1_000_000
    follower = through_kills(lasting, sender, 100, 20)
    assert follower.order[-1] == 100
    assert follower.order == sorted(set(follower.order))
    assert follower.damaged == 0
    assert worst(sender.weights, follower.held) < 1e-6
    follower.stop()
    sender.stop()


def test_by_schedule_an_update_is_sent_once_for_each_champion(
    lasting: Mosquitto, bundle: Bundle, tmp_path: Path
) -> None:
    sender = Sender(tmp_path / "state", lasting.port, bundle, dtype="int8")
    version = sender.model(0)
    sender.registry.set_champion(version, "first", 1.0)
    sender.publishing.weights_if_new()
    pending = sender.publishing.outbox().pending
    assert pending >= 2
    sender.publishing.weights_if_new()
    assert sender.publishing.outbox().pending == pending
    sender.registry.set_champion(sender.model(1), "second", 2.0)
    sender.publishing.weights_if_new()
    assert sender.publishing.outbox().pending > pending
    sender.stop()
