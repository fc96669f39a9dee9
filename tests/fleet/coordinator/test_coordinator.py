"""Rounds over a real broker: opened, closed, tried, done; and what may happen to coordinator and broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.config import MqttConfig
from edged.domain.arrays import Floats
from edged.domain.federated.messages import Evaluation, FleetTopics, Quality, RoundAnnouncement, joined
from edged.domain.training.weight_coding import fingerprint
from edged.fleet.coordinator.journal import read_lineage
from edged.mqtt import weight_encoding
from edged.mqtt.control_client import Operator
from edged.storage.files.atomic import Disk
from tests.fleet.senders import FLEET, SHAPES, Senders, base_weights, change_of, expected_model, update_of

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.fleet.conftest import MakeSite, Site
    from tests.mosquitto import Mosquitto

    OnRound = Callable[[Senders, RoundAnnouncement], None]

NAMES = [f"d{n:03}" for n in range(30)]
ONE_ROUND = {"devices": len(NAMES), "rounds": 1, "window": 0}


def standing(site: Site) -> dict[str, Floats]:
    assert site.coordinator is not None
    return site.model(site.coordinator.course.standing.hash)


def assert_close(found: dict[str, Floats], expected: dict[str, Floats]) -> None:
    for name, value in expected.items():
        assert np.abs(found[name] - value).max() <= 1e-6, name


def test_rounds_follow_each_other_and_each_is_the_mean(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, round=ONE_ROUND | {"rounds": 3})
    devices = site.senders(NAMES)
    site.start()
    site.finish()
    model = base_weights()
    for number in (1, 2, 3):
        model = expected_model(model, NAMES, number)
    assert_close(standing(site), model)
    lineage = read_lineage(site.dir)
    assert [entry.version for entry in lineage] == [1, 2, 3]
    assert [entry.parent for entry in lineage[1:]] == [entry.model for entry in lineage[:-1]]
    assert [devices.answered(n) for n in (1, 2, 3)] == [30, 30, 30]


def test_a_model_with_numbers_that_are_not_finite_is_never_the_fleets(
    broker: Mosquitto, make_site: MakeSite
) -> None:
    huge = {name: np.full(shape, 3.4e38, np.float32) for name, shape in SHAPES.items()}

    def up(told: RoundAnnouncement, device: str) -> list[tuple[str, bytes]]:
        steps = {name: np.full(shape, 3e36, np.float32) for name, shape in SHAPES.items()}
        update, blob = update_of(told, device, steps, 100)
        return list(update.messages(FleetTopics(FLEET), blob))

    site = make_site(broker.port, huge, round=ONE_ROUND | {"rounds": 2}, train={"clip_norm": 1e38})
    devices = site.senders(NAMES, messages=up)
    site.start()
    site.finish()
    assert [entry.accepted for entry in read_lineage(site.dir)] == [False, False]
    assert "not finite" in read_lineage(site.dir)[0].reason
    assert [devices.answered(n) for n in (1, 2)] == [30, 30]
    np.testing.assert_array_equal(standing(site)["w"], huge["w"])


def test_what_is_retained_is_the_model(broker: Mosquitto, make_site: MakeSite) -> None:
    big = {"w": np.random.default_rng(0).normal(size=(300, 250)).astype(np.float32)}
    site = make_site(broker.port, big, round=ONE_ROUND | {"devices": 2}, train={"clip_norm": 10})
    site.start()
    devices = site.senders(["a", "b"], shapes={"w": (300, 250)})
    done = devices.wait_state("done", 1)
    site.finish()
    heard = {}
    with Operator(MqttConfig(host="127.0.0.1", port=broker.port)) as listener:
        listener.subscribe([f"{devices.topics.base}/#"])
        for delivery in listener.messages(time.monotonic() + 10):
            heard[delivery.topic] = delivery.payload
            if len(heard) == done.base.parts + 1:
                break
    parts = [heard[devices.topics.model(done.base.hash, part)] for part in range(done.base.parts)]
    assert done.base.parts > 1
    assert fingerprint(weight_encoding.unpack(joined(parts, done.base))) == done.base.hash
    assert RoundAnnouncement.read(heard[devices.topics.round]) == done


def test_devices_are_chosen_by_their_states(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, choose={"min_samples": 50}, round=ONE_ROUND | {"devices": 8})
    devices, others = site.senders(NAMES[:20]), site.senders(NAMES[20:])
    devices.states()
    others.states(idle=False)
    site.start()
    told = devices.wait_state("open", 1)
    assert told.devices is not None
    assert len(told.devices) == 10
    assert set(told.devices) <= set(NAMES[:20])
    site.finish()


def report(told: RoundAnnouncement, device: str, loss: float) -> Evaluation:
    quality = Quality(loss, 1.0)
    return Evaluation(
        device, told.round, told.id, told.base.hash, 9, Quality(1, 1), quality, Quality(1, 1), True, ""
    )


def reporting(
    losses: dict[int, float], asked: list[tuple[int, int]], everyone: Sequence[str] = NAMES
) -> OnRound:
    def on_round(devices: Senders, told: RoundAnnouncement) -> None:
        if told.state != "closed":
            return
        names = everyone if told.devices is None else told.devices
        asked.append((told.round, len(names)))
        for name in names:
            payload = report(told, name, losses[told.round]).payload()
            devices.publish(name, devices.topics.evaluation(told.round, name), payload)

    return on_round


def test_a_model_goes_to_few_then_to_all_or_back(broker: Mosquitto, make_site: MakeSite) -> None:
    gate = {"stages": [0.1, 1.0], "wait": "20s"}
    site = make_site(broker.port, round=ONE_ROUND | {"rounds": 3}, gate=gate)
    asked: list[tuple[int, int]] = []
    devices = site.senders(NAMES, on_round=reporting({1: 0.9, 2: 1.5, 3: 0.8}, asked))
    site.start()
    site.finish()
    assert asked == [(1, 5), (1, 30), (2, 5), (3, 5), (3, 30)]
    first, second, third = read_lineage(site.dir)
    assert [entry.accepted for entry in (first, second, third)] == [True, False, True]
    assert second.version == 1
    assert third.parent == first.model
    assert devices.wait_state("done", 2).base.hash == first.model
    assert first.numbers["global_loss_mean"] == pytest.approx(0.9)


def killed_at(site: Site, devices: Senders, count: int) -> None:
    process = site.spawn()
    devices.wait(lambda: devices.answered() >= count, 60)
    process.send_signal(signal.SIGKILL)
    process.wait(10)


@pytest.mark.slow
def test_killed_at_half_it_makes_the_same_model(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, round=ONE_ROUND)
    devices = site.senders(NAMES, hold=NAMES[15:])
    killed_at(site, devices, 15)
    devices.release()
    assert site.spawn().wait(60) == 0
    digest = devices.wait_state("done", 1).base.hash
    assert_close(site.model(digest), expected_model(base_weights(), NAMES))
    assert len({told.id for told in devices.rounds}) == 1


@pytest.mark.slow
def test_a_broker_that_dies_and_forgets_all_costs_nothing(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, round=ONE_ROUND)
    devices = site.senders(NAMES, hold=NAMES[15:])
    site.start()
    devices.wait(lambda: devices.answered() == 15)
    broker.kill()
    devices.release()
    broker.start()
    site.finish()
    assert_close(standing(site), expected_model(base_weights(), NAMES))
    assert len({told.id for told in devices.rounds}) == 1


class SlowDisk(Disk):
    """A disk that takes its time: with few updates in flight, about 1 ms for each."""

    def sync(self, path: Path) -> None:
        time.sleep(0.05)
        super().sync(path)


def slow_round(make_broker: MakeBroker, make_site: MakeSite, count: int) -> tuple[Site, Senders]:
    broker = make_broker("allow_anonymous true", "max_queued_messages 1000")
    names = [f"d{n:05}" for n in range(count)]
    mqtt = {"host": "127.0.0.1", "port": broker.port}
    site = make_site(broker.port, mqtt=mqtt, round=ONE_ROUND | {"devices": count})
    site.start(SlowDisk())
    devices = site.senders(names, resend=2.0)
    site.finish(300)
    return site, devices


def test_default_limits_and_a_slow_disk_lose_none_of_500(
    make_broker: MakeBroker, make_site: MakeSite
) -> None:
    site, devices = slow_round(make_broker, make_site, 500)
    devices.wait(lambda: devices.answered() == 500)
    assert read_lineage(site.dir)[0].accepted


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_default_limits_and_a_slow_disk_lose_none_of_10000(
    make_broker: MakeBroker, make_site: MakeSite
) -> None:
    _, devices = slow_round(make_broker, make_site, 10_000)
    devices.wait(lambda: devices.answered() == 10_000, 60)
    assert devices.sent > 10_000  # the broker did drop some


def test_the_same_update_again_is_acknowledged_again(broker: Mosquitto, make_site: MakeSite) -> None:
    site = make_site(broker.port, round=ONE_ROUND)
    devices = site.senders(NAMES, hold=NAMES[1:])
    coordinator = site.start()
    told = devices.wait_state("open", 1)
    devices.wait(lambda: devices.answered() == 1)
    devices.accepted.clear()
    update, blob = update_of(told, NAMES[0], *change_of(NAMES[0], 1, SHAPES))
    for topic, payload in update.messages(devices.topics, blob):
        devices.publish(NAMES[0], topic, payload)
    devices.wait(lambda: devices.answered() == 1)
    assert coordinator.admission.accepted == 1


def test_what_comes_late_is_refused_and_its_device_counts_in_the_next_round(
    broker: Mosquitto, make_site: MakeSite
) -> None:
    names = NAMES[:4]
    rounds = {"devices": 4, "quorum": 0.5, "deadline": "1s", "rounds": 2, "window": 0}
    site = make_site(broker.port, round=rounds | {"every": "1s"})
    devices = site.senders(names, hold=names[3:])
    coordinator = site.start()
    closed = devices.wait_state("done", 1)
    devices.release()
    devices.wait(lambda: devices.refused.get(closed.id) == {names[3]: "late"})
    site.finish()
    assert coordinator.admission.contributors == names
    expected = expected_model(expected_model(base_weights(), names[:3], 1), names, 2)
    assert_close(standing(site), expected)


def test_a_round_without_a_quorum_goes_on(broker: Mosquitto, make_site: MakeSite) -> None:
    rounds = {"devices": 4, "quorum": 1.0, "deadline": "500ms", "rounds": 1, "window": 0}
    site = make_site(broker.port, round=rounds)
    devices = site.senders(NAMES[:4], hold=NAMES[2:4])
    site.start()
    devices.wait(lambda: len({told.deadline for told in devices.rounds}) > 1 and devices.answered() >= 2)
    assert devices.answered() == 2
    devices.release()
    site.finish()
    devices.wait(lambda: devices.answered() >= 4)  # the last receipt may still be on its way


def test_one_coordinator_has_a_directory(broker: Mosquitto, make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site(broker.port, round=ONE_ROUND)
    site.start()
    done = subprocess.run(
        [sys.executable, "-m", "edged", "fleet", "run", str(site.path)],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "stop it first" in done.stderr
