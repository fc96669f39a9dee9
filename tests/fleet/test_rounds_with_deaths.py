"""A fleet over a real broker in which daemons and coordinator are killed: every round ends."""

from __future__ import annotations

import heapq
import itertools
import queue
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.federated.messages import FleetTopics, RoundAnnouncement
from edged.engines.model_parameters import initial_parameters
from edged.fleet.coordinator.journal import RoundRecord, read_lineage
from tests.building import build
from tests.fleet.senders import FLEET
from tests.running_device import Device

if TYPE_CHECKING:
    from tests.fleet.conftest import MakeSite, Site
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
DEVICE: dict[str, Any] = {
    "training": {"every": None, "new_labels": 0, "engine": "portable", "max_write_rate": None},
    "gate": {"probation": 0, "min_holdout": 5},
    "fleet": {"name": FLEET},
}
DEADLINE, WAIT = 20.0, 10.0
LONGEST = 3 * DEADLINE + 3 * WAIT + 30.0  # seconds of a round, with a restart of the coordinator


def sections(devices: int, rounds: int) -> dict[str, Any]:
    """Return a coordinator's configuration: canaries, two further stages, and a mean that bears liars."""
    return {
        "round": {"devices": max(2, devices // 2), "quorum": 0.5, "deadline": f"{DEADLINE:g}s",
                  "window": "500ms", "rounds": rounds},
        "choose": {"min_samples": 1, "idle": False, "patience": "2s"},
        "train": {"steps": 5, "learning_rate": 0.01, "clip_norm": 1.0},
        "reduce": {"how": "trimmed_mean"},
        "gate": {"stages": [0.3, 1.0], "wait": f"{WAIT:g}s", "reports": 0.3},
        "rollout": {"canaries": {"devices": ["d1", "d2"]}},
    }  # fmt: skip


class Plant:
    """Daemons and a coordinator at one broker, and what kills them: `seed` draws when."""

    def __init__(self, site: Site, devices: dict[str, Device], port: int, seed: int) -> None:
        self.draw, self._site, self._devices = random.Random(seed), site, devices
        self._rng = np.random.default_rng(seed)
        self.killed = self.restarts = 0
        self._dead: set[str] = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._said: queue.SimpleQueue[mqtt.MQTTMessage] = queue.SimpleQueue()
        self._topics = FleetTopics(FLEET)
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = lambda _client, _data, message: self._said.put(message)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([(self._topics.round, 1), (self._topics.state("+"), 1)])
        self._client.loop_start()

    def start(self) -> None:
        """Start everything, and wait until each device has told its state."""
        for device in self._devices.values():
            device.start()
        there: set[str] = set()
        while there != set(self._devices):
            there.add(self._said.get(timeout=120).topic.rpartition("/")[2])
        for name in self._devices:
            self.feed(name, 60)
        self._site.spawn()

    def feed(self, name: str, count: int) -> None:
        """Send labelled samples to a device."""
        for row in self._rng.normal(size=(count, 6)).tolist():
            payload = f'{{"x": {row}, "y": {int(np.argmax(row[:3]))}}}'
            self._client.publish(f"sensors/{name}/a", payload, qos=1)

    def live(self, rounds: int) -> list[RoundRecord]:
        """Let things happen until the last round is done; return all rounds."""
        newest, until = 0, time.monotonic() + 2 * LONGEST
        while len(read_lineage(self._site.dir)) < rounds:
            told = self._next(until)
            if told is not None and told.round > newest:
                newest, until = told.round, time.monotonic() + 2 * LONGEST
                self._begin()
        assert self._site.process is not None
        assert self._site.process.wait(60) == 0
        return read_lineage(self._site.dir)

    def _next(self, until: float) -> RoundAnnouncement | None:
        """Do what is due, or return the next message on a round."""
        moment = self._due[0][0] if self._due else time.monotonic() + 5.0
        try:
            message = self._said.get(timeout=max(0.0, moment - time.monotonic()))
        except queue.Empty:
            assert time.monotonic() < until, (self._site.folder / "log").read_text()[-3000:]
            if self._due:
                heapq.heappop(self._due)[2]()
            return None
        return RoundAnnouncement.read(bytes(message.payload)) if message.topic == self._topics.round else None

    def _begin(self) -> None:
        """Feed a new round's devices, and draw who is to die in it."""
        for name in self._devices.keys() - self._dead:
            self.feed(name, 2)
        if self.draw.random() < 0.4:
            self._later(lambda: self._kill(self.draw.choice(sorted(self._devices))))
        if self.draw.random() < 0.06:
            self._later(self._kill_coordinator)

    def _later(self, what: Callable[[], None], seconds: float = 3.0) -> None:
        at = time.monotonic() + seconds * self.draw.random()
        heapq.heappush(self._due, (at, next(self._order), what))

    def _kill(self, name: str) -> None:
        if name not in self._dead:
            self._devices[name].stop(signal.SIGKILL)
            self._dead.add(name)
            self.killed += 1
            self._later(lambda: self._revive(name), self.draw.choice([1.0, 30.0]))

    def _revive(self, name: str) -> None:
        self._devices[name].start()
        self._dead.discard(name)

    def _kill_coordinator(self) -> None:
        process = self._site.process
        assert process is not None
        process.kill()
        process.wait(10)
        self._site.spawn()
        self.restarts += 1

    def close(self) -> None:
        """End all daemons."""
        self._client.disconnect()
        self._client.loop_stop()
        for device in self._devices.values():
            if device.process is not None and device.process.poll() is None:
                device.stop(signal.SIGKILL)


@pytest.mark.parametrize(
    ("devices", "rounds"),
    [pytest.param(5, 12, marks=pytest.mark.full), pytest.param(20, 200, marks=pytest.mark.faults)],
)
@pytest.mark.timeout(4 * 3600)
def test_every_round_ends_though_devices_and_coordinator_are_killed(
    broker: Mosquitto, make_site: MakeSite, tmp_path: Path, devices: int, rounds: int
) -> None:
    bundle = build(
        mlp(6, 3, (16,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(6),
        engine="portable",
    )  # fmt: skip
    site = make_site(
        broker.port, initial_parameters(bundle), model=str(bundle.path), **sections(devices, rounds)
    )
    made: dict[str, Device] = {}
    for name in [f"d{n}" for n in range(devices)]:
        folder = tmp_path / name
        folder.mkdir()
        own = {"device": {"id": name}, "model": {"bundle": str(bundle.path)}, "report": {"every": "60s"}}
        made[name] = Device(folder, broker.port, STREAM | {"topic": f"sensors/{name}/#"}, **DEVICE, **own)
    with ExitStack() as stack:
        plant = Plant(site, made, broker.port, seed=rounds)
        stack.callback(plant.close)
        plant.start()
        ended = plant.live(rounds)
    took = sorted(entry.seconds for entry in ended)
    accepted = sum(entry.accepted for entry in ended)
    print(  # noqa: T201  for `-s`, which `make test-faults` sets
        f"{devices} devices, {len(ended)} rounds, {accepted} accepted, {plant.killed} devices killed,"
        f" {plant.restarts} restarts of the coordinator; a round took {took[len(took) // 2]:.1f} s in the"
        f" median, {took[-1]:.1f} s at most"
    )
    assert [entry.round for entry in ended] == list(range(1, rounds + 1))
    assert all(entry.reason for entry in ended)
    assert took[-1] <= LONGEST
    assert accepted
    assert plant.killed
