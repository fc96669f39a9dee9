"""Two daemons side by side with different values of the same keys, and how they differ to the outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.config import MqttConfig
from edged.domain.federated.messages import RoundSettings
from edged.engines.model_parameters import initial_parameters
from edged.mqtt import weight_encoding
from edged.mqtt.client.session import Session
from edged.storage.models.bundles import Bundle
from edged.workbench.demo.broker import free_port
from tests.building import build
from tests.coordinator import Coordinator
from tests.device.web.client import TOKENS, Client, rows, token_files
from tests.faults.plant import trainer_of
from tests.formats import wire
from tests.mosquitto import Mosquitto
from tests.mqtt.inbox import Inbox
from tests.running_device import Device, Listener, running, wait_until
from tests.steered import ask, data

if TYPE_CHECKING:
    from edged.domain.federated.messages import DeviceState

pytestmark = pytest.mark.slow

ROWS = 300
PAUSE = {"what": "serving"}
BOTH: dict[str, dict[str, Any]] = {
    "stream": {"features": 2, "classes": ["low", "high"], "label": "y"},
    "model": {"bundle": "bundle"},
    "training": {"new_labels": 10**6, "every": None, "engine": "portable"},
    "gate": {"min_gain": 10.0},
    "labels": {"request_share": 0.5},
    "mqtt": {"host": "127.0.0.1"},
    "storage": {"commit_delay": "500ms"},
    "fleet": {"name": "plant"},
    "install": {},
    "discovery": {},
    "sparkplug": {"group": "plant"},
    "log": {},
    "web": {},
}
TIGHT: dict[str, dict[str, Any]] = {
    "stream": {"max_rate": 100},
    "training": {"priority": "idle"},
    "labels": {"requests_per_day": 5},
    "fleet": {"budget": "20ms"},
    "install": {"max_bytes": "64KiB"},
    "discovery": {"prefix": "home"},
    "mqtt": {"client_id": "mine"},
    "sparkplug": {"node": "press", "aliases": False},
    "web": {
        "model_name": "press-model",
        "allowed_hosts": ["press.example"],
        "tokens": {"infer": "infer.token", "control": "control.token", "scrape": "scrape.token"},
    },
}  # fmt: skip


@dataclass
class Site:
    """A daemon that has answered `ROWS` samples."""

    device: Device
    listener: Listener
    client: Client

    @property
    def infer(self) -> str:
        """Path of inference requests."""
        return f"/v2/models/{'press-model' if self.name == 'tight' else self.name}/infer"

    @property
    def name(self) -> str:
        """Of the device."""
        return self.listener.root.rpartition("/")[2]


def make(folder: Path, broker: int, name: str, keys: dict[str, dict[str, Any]]) -> tuple[Device, Client]:
    """The device of this name, with the sections of `BOTH` and these keys."""
    folder = folder / name
    folder.mkdir()
    token_files(folder)
    build(
        mlp(2, 2, (8,)), folder / "bundle", loss="cross_entropy", standardise=Statistics.identity(2),
        engine="portable",
    )  # fmt: skip
    sections = {section: values | keys.get(section, {}) for section, values in BOTH.items()}
    port = free_port()
    sections |= {"device": {"id": name}}
    sections["mqtt"] |= {"port": broker}
    sections["web"] |= {"listen": f"127.0.0.1:{port}"}
    sections["stream"] |= {"topic": f"{name}/#"}
    return Device(folder, broker, sections.pop("stream"), **sections), Client(port)


def feed(listener: Listener) -> None:
    """Samples in rounds, the second half labelled: whether the first feature is above 0."""
    name = listener.root.rpartition("/")[2]
    for i, x in enumerate(np.random.default_rng(0).normal(size=(ROWS, 2)).round(3).tolist(), 1):
        label = {} if i <= ROWS // 2 else {"y": "high" if x[0] > 0 else "low"}
        listener.send(f"{name}/a", {"x": x} | label)
        if i % 50 == 0:
            listener.wait(lambda i=i: len(listener.messages["predictions"]) == i)  # type: ignore[misc]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """For both."""
    lines = ("allow_anonymous true", "log_type notice")  # which tell who connects
    made = Mosquitto(tmp_path_factory.mktemp("broker"), free_port(), lines)
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def coordinator(broker: Mosquitto) -> Iterator[Coordinator]:
    """What both tell their fleet."""
    made = Coordinator(broker.port)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sites(
    tmp_path_factory: pytest.TempPathFactory, broker: Mosquitto, coordinator: Coordinator
) -> Iterator[tuple[Site, Site]]:
    """With the keys of `TIGHT`, and without; they run until the last test."""
    folder = tmp_path_factory.mktemp("devices")
    first, second = (
        make(folder, broker.port, name, keys) for name, keys in (("tight", TIGHT), ("loose", {}))
    )
    with (
        running(first[0], broker.port, "edged/tight") as one,
        running(second[0], broker.port, "edged/loose") as other,
    ):
        for listener in (one, other):
            feed(listener)
        yield Site(first[0], one, first[1]), Site(second[0], other, second[1])


def test_messages_are_taken_no_faster_than_configured(sites: tuple[Site, Site]) -> None:
    """100 at once and 100 a second: the last round of 50 begins when 200 or more have been acknowledged."""
    took = [
        sent[-1]["ts"] - sent[0]["ts"] for sent in (site.listener.messages["predictions"] for site in sites)
    ]
    assert took[0] > 0.9
    assert took[1] < took[0]


def test_labels_are_requested_as_often_a_day_as_configured(sites: tuple[Site, Site]) -> None:
    tight, loose = sites
    loose.listener.wait(lambda: len(loose.listener.events("label_requested")) > 30)
    tight.listener.wait(lambda: len(tight.listener.events("label_requested")) >= 5)
    assert len(tight.listener.events("label_requested")) == 5


def test_a_trainer_runs_in_the_scheduling_class_of_its_priority(sites: tuple[Site, Site]) -> None:
    idle = []
    for site in sites:
        assert data(site.listener, "train", steps=5)["outcome"] == "done"
        assert site.device.process is not None
        trainer = trainer_of(site.device.process.pid)
        assert trainer is not None
        idle.append(os.sched_getscheduler(trainer) == os.SCHED_IDLE)
    assert idle == [True, False]


def told(coordinator: Coordinator, name: str) -> list[DeviceState]:
    """The states of a device."""
    return [state for state in coordinator.states if state.device == name]


def test_a_round_trains_for_no_longer_than_configured(
    sites: tuple[Site, Site], coordinator: Coordinator
) -> None:
    base = coordinator.model(initial_parameters(Bundle.open(sites[0].device.folder / "bundle")))
    coordinator.wait(lambda: all(told(coordinator, name)[-1].ready for name in ("tight", "loose")))
    settings = RoundSettings(epochs=500, batch_size=16)
    coordinator.announce(1, base, told(coordinator, "tight")[-1].bundle, settings)
    for site in sites:
        site.listener.wait(lambda site=site: site.listener.events("fleet_trained"), 60)  # type: ignore[misc]
    tight, loose = (site.listener.events("fleet_trained")[0]["steps"] for site in sites)
    assert 0 < tight < loose


def test_connections_have_the_names_that_are_configured(sites: tuple[Site, Site], broker: Mosquitto) -> None:
    connected = broker.log.read_text(encoding="utf-8")
    assert " as mine " in connected
    assert " as edged-tight " not in connected
    assert " as edged-loose " in connected


def test_an_edge_node_has_the_name_and_names_its_metrics_as_configured(
    sites: tuple[Site, Site], broker: Mosquitto
) -> None:
    inbox, host = Inbox(), Session(MqttConfig(host="127.0.0.1", port=broker.port), client_id="host")
    host.subscribe(["spBv1.0/plant/+/+/#"], 1, inbox)
    host.start()
    assert host.wait_ready(20)
    for site in sites:  # a node tells what changed
        site.listener.send(f"{site.name}/a", {"x": [0.5, 0.5]})
    for name, named in (("press", True), ("loose", False)):
        told = f"spBv1.0/plant/NDATA/{name}"
        wait_until(lambda told=told: any(d.topic == told for d in inbox.deliveries))  # type: ignore[misc]
        metrics = [m for d in inbox.deliveries if d.topic == told for m in wire.read(d.payload).metrics]
        assert {bool(m.name) for m in metrics} == {named}
    host.stop(1.0)
    assert {d.topic.split("/")[3] for d in inbox.deliveries} == {"press", "loose"}


def test_announcements_to_home_assistant_begin_as_configured(
    sites: tuple[Site, Site], broker: Mosquitto
) -> None:
    for site, prefix in zip(sites, ("home", "homeassistant"), strict=True):
        home = Listener(broker.port, prefix)
        home.wait(lambda home=home, name=site.name: any(name in topic for topic in home.messages))  # type: ignore[misc]
        home.close()


def test_a_bundle_may_be_as_large_as_configured(sites: tuple[Site, Site]) -> None:
    content = b"x" * 100_000
    manifest = weight_encoding.manifest(content, weight_encoding.split(content, 20_000)).to_json()
    tight, loose = (
        ask(site.listener, "bundle.install", transfer="t", manifest=manifest)["status"] for site in sites
    )
    assert (tight, loose) == ("error", "ok")


def test_the_device_answers_under_the_names_that_are_configured(sites: tuple[Site, Site]) -> None:
    tight, loose = (site.client("GET", "/v2/health/ready", Host="press.example").status for site in sites)
    assert (tight, loose) == (200, 421)


def test_each_token_opens_and_closes_its_scope(sites: tuple[Site, Site]) -> None:
    asked: dict[str, tuple[str, str, Any]] = {
        "infer": ("POST", "", rows([[1.0, 2.0]])),
        "control": ("POST", "/api/commands/pause", PAUSE),
        "scrape": ("GET", "/metrics", None),
    }
    found = {
        (site.name, scope, bool(token)): client(method, path or site.infer, body).status
        for scope, (method, path, body) in asked.items()
        for site in sites
        for token, client in ((False, site.client), (True, site.client.using(TOKENS[scope])))
    }
    assert {key: status == 200 for key, status in found.items()} == {
        ("tight", "infer", False): False, ("tight", "infer", True): True,
        ("tight", "control", False): False, ("tight", "control", True): True,
        ("tight", "scrape", False): False, ("tight", "scrape", True): True,
        ("loose", "infer", False): True, ("loose", "infer", True): False,
        ("loose", "control", False): False, ("loose", "control", True): False,
        ("loose", "scrape", False): True, ("loose", "scrape", True): False,
    }, found  # fmt: skip
