"""A device in a fleet: behind the rules of deploy/mosquitto, all signed, and known to Home Assistant."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
import yaml

from edged.bundles.graph.templates import mlp
from edged.domain.home_assistant import digest
from edged.signing import new_pair, sign_command
from edged.storage.models.signatures import sign_bundle
from tests.building import build
from tests.deploy.site import Guest, Site
from tests.running_device import Device

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "deploy" / "sign-command.sh"
ROOT = "edged/press-7"
CONFIG = "homeassistant/device/press-7/main-edged/config"
START = 60.0


class Watcher(Guest):
    """Someone who keeps the newest message of each topic and waits longer for a device than for a broker."""

    def last(self) -> dict[str, bytes]:
        return dict(self.came)

    def until(self, condition: Callable[[dict[str, bytes]], Any], seconds: float = START) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.last()), seconds), self.last().keys()

    def json(self, topic: str) -> Any:
        return json.loads(self.last()[f"{ROOT}/{topic}"])


class Fleet:
    """A site, one device in it, an operator who watches, and Home Assistant's client."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder)
        self.site.start()
        self.key = folder / "fleet.key"
        new_pair(self.key)
        keys = self.site.keys
        tls = {
            "ca_file": str(keys / "broker-ca.pem"),
            "cert_file": str(keys / "devices" / "press-7.pem"),
            "key_file": str(keys / "devices" / "press-7.key"),
        }
        self.device = Device(
            folder,
            0,
            {"topic": "sensors/press-7/#", "features": ["a", "b"], "label": "y", "classes": 2},
            device={"id": "press-7"},
            mqtt={"host": "localhost", "port": self.site.devices, "reconnect_max": "1s", "tls": tls},
            commands={"keys": [f"{self.key}.pub"], "require_signed": ["rollback"]},
            discovery={"name": "Presse 7 µ"},
            training={"engine": "portable"},
            model={"bundle": str(self._signed_bundle(folder)), "keys": [f"{self.key}.pub"]},
        )
        self.operator = self.guest("operator", "edged/#")
        self.home = self.guest("homeassistant", "homeassistant/#")

    def _signed_bundle(self, folder: Path) -> Path:
        path = build(mlp(2, 2, [8]), folder / "signed", loss="cross_entropy").path
        sign_bundle(path, self.key)
        return path

    def guest(self, name: str, topic: str) -> Watcher:
        keys = self.site.keys
        guest = Watcher(self.site.operators, ca=keys / "broker-ca.pem", certificate=keys / "operators" / name)
        guest.subscribe(topic)
        return guest

    def learn(self) -> None:
        """Enough labelled samples for a training run, and until it has ended."""
        keys = self.site.keys
        stem = keys / "operators" / "sensors"
        with Guest(self.site.operators, ca=keys / "broker-ca.pem", certificate=stem) as sensors:
            for a, b in np.random.default_rng(0).normal(size=(120, 2)):
                reading = {"a": a, "b": b, "y": int(a > 0)}
                assert sensors.publish("sensors/press-7/all", json.dumps(reading).encode()) == "Success"
        self.operator.until(lambda last: json.loads(last.get(f"{ROOT}/state/training", b"{}")).get("last"))

    def request(self, command: str, payload: bytes) -> dict[str, Any]:
        """Send it and wait for the answer."""
        place = f"{ROOT}/response/{command}"
        before = [topic for topic, _ in self.operator.came].count(place)
        assert self.operator.publish(f"{ROOT}/request/{command}", payload) == "Success"
        self.operator.until(lambda _: [topic for topic, _ in self.operator.came].count(place) > before)
        answer: dict[str, Any] = self.operator.json(f"response/{command}")
        return answer

    def signed(self, command: str, device: str = "press-7", **fields: Any) -> bytes:
        return sign_command(
            command, device, fields, self.key, now=time.time(), transaction=os.urandom(8).hex()
        )

    def close(self) -> None:
        if self.device.process is not None and self.device.process.poll() is None:
            self.device.stop()
        self.operator.close()
        self.home.close()
        self.site.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Running, and trained once."""
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        fleet.device.start()
        fleet.operator.until(lambda last: f"{ROOT}/status" in last)
        fleet.learn()
        yield fleet
    finally:
        fleet.close()


# --- behind the broker's rules ---


def test_the_device_is_connected_by_its_certificate(fleet: Fleet) -> None:
    assert fleet.operator.json("status")["state"] == "online"
    assert "certificate" not in fleet.device.log.read_text()
    fleet.operator.until(lambda last: json.loads(last[f"{ROOT}/state/buffer"])["rows"] == 120)


# --- signed commands ---


def test_a_command_that_must_be_signed(fleet: Fleet) -> None:
    answer = fleet.request("rollback", b'{"transaction": "t1"}')
    assert (answer["reason"], answer["transaction"]) == ("refused", "t1")
    assert "must be signed" in answer["error"]
    payload = fleet.signed("rollback", version=99)
    told = fleet.request("rollback", payload)
    assert "version 99" in told["error"]
    assert fleet.request("rollback", payload) == told  # the same command again: the same answer
    assert "does not fit" in fleet.request("rollback", fleet.signed("rollback", "press-8"))["error"]
    assert "does not fit" in fleet.request("rollback", fleet.signed("train"))["error"]


def test_a_command_signed_by_a_shell_script(fleet: Fleet) -> None:
    command = [str(SCRIPT), str(fleet.key), "press-7", "train", '{"steps": 5}']
    done = subprocess.run(command, capture_output=True, check=True, timeout=20)
    answer = fleet.request("train", done.stdout.rstrip(b"\n"))
    assert (answer["status"], answer["transaction"]) == ("ok", json.loads(done.stdout)["transaction"])


# --- Home Assistant ---

# What Home Assistant requires of a device discovery payload: its documentation of the MQTT integration,
# "Device discovery payload", and of the platforms (2025.4); `make test-homeassistant` asks the program.
REQUIRED = {
    "sensor": {"state_topic"},
    "binary_sensor": {"state_topic"},
    "button": {"command_topic"},
    "event": {"state_topic", "event_types"},
    "select": {"command_topic", "options"},
    "switch": {"command_topic"},
}
ALLOWED = {
    "sensor": {"options", "unit_of_measurement", "state_class", "suggested_display_precision"},
    "binary_sensor": set[str](),
    "button": {"payload_press"},
    "event": set[str](),
    "select": {"command_template"},
    "switch": {"payload_on", "payload_off", "state_on", "state_off"},
}
COMMON = {
    "platform", "unique_id", "name", "icon", "entity_category", "value_template", "state_topic",
    "device_class", "availability", "enabled_by_default", "json_attributes_topic", "json_attributes_template",
}  # fmt: skip
KEY = digest("press-7")


def discovered(fleet: Fleet) -> dict[str, Any]:
    """The announcement once the device has a key: that of its samples."""
    fleet.home.until(lambda last: f"prediction_{KEY}".encode() in last.get(CONFIG, b""))
    message: dict[str, Any] = json.loads(fleet.home.last()[CONFIG])
    return message


def test_the_announcement_keeps_to_the_published_rules(fleet: Fleet) -> None:
    message = discovered(fleet)
    assert set(message) <= {"device", "origin", "components", "availability", "availability_mode", "qos"}
    assert message["device"]["identifiers"] == ["edged:edged/press-7"]
    assert message["device"]["name"] == "Presse 7 µ"
    assert message["origin"]["name"]
    ids = [component["unique_id"] for component in message["components"].values()]
    assert len(set(ids)) == len(ids)
    for component in message["components"].values():
        platform = component["platform"]
        assert REQUIRED[platform] <= set(component)
        assert set(component) <= COMMON | ALLOWED[platform] | REQUIRED[platform]
        if component.get("device_class") == "enum":
            assert component["options"]
            assert not {"state_class", "unit_of_measurement"} & set(component)
    assert len(json.dumps(message)) < 16384


def rendered(message: dict[str, Any], last: dict[str, bytes]) -> dict[str, str]:
    """What the templates make of what the device has published, by name of the entity."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701  no HTML
    environment.globals["as_datetime"] = lambda ts: datetime.fromtimestamp(ts, timezone.utc)
    environment.filters["to_json"] = json.dumps

    def render(component: dict[str, Any]) -> str:
        payload = json.loads(last[component["state_topic"]])
        return environment.from_string(component["value_template"]).render(value_json=payload)

    readers = {name: c for name, c in message["components"].items() if "value_template" in c}
    return {name.removesuffix(f"_{KEY}"): render(component) for name, component in readers.items()}


def test_every_template_reads_what_the_device_publishes(fleet: Fleet) -> None:
    wanted = ("metrics", "state/quality", f"state/prediction/{KEY}", f"state/labelling/{KEY}")
    fleet.operator.until(lambda last: all(f"{ROOT}/{name}" in last for name in wanted))
    fleet.operator.until(lambda last: json.loads(last[f"{ROOT}/state/quality"])["labelled"])
    last = fleet.operator.last()
    seen = rendered(discovered(fleet), last)
    states = {name: json.loads(last[f"{ROOT}/{name}"]) for name in ("state/model", "state/buffer", "metrics")}
    assert seen["version"] == str(states["state/model"]["version"])
    assert seen["samples"] == str(states["state/buffer"]["samples"])
    assert seen["outbox"].isdecimal()
    assert 0 <= float(seen["quality"]) <= 100
    trained = datetime.fromisoformat(seen["last_training"])
    assert abs(trained.timestamp() - time.time()) < 300
    assert seen["temperature"] == str(states["metrics"]["host"]["temperature_c"])
    assert (seen["problem"], seen["connection"], seen["automatic"]) == ("OFF", "ON", "ON")
    assert (seen["drift"], seen["wanted"], seen["label"]) == ("", "", "off")
    assert seen["prediction"] in ("0", "1", "None")


def test_templates_on_a_device_that_knows_nothing_yet(fleet: Fleet) -> None:
    nothing = {"label": None, "confidence": None, "output": None, "untrained": False, "silent": True}
    states: dict[str, dict[str, Any]] = defaultdict(
        dict,
        {
            "status": {"state": "online"},
            "state/health": {"state": "ok", "reasons": []},
            "state/model": {"version": 0, "missing": "0 of 20 labels"},
            "state/quality": {"version": 0, "accuracy": None, "labelled": 0},
            "state/training": {"last": None, "running": False, "on_hold": False},
            "state/buffer": {"samples": 0, "rows": 0, "outbox": {"pending": 0}},
            "metrics": {"live": {"accuracy": None, "labelled": 0}, "host": {"temperature_c": None}},
            "events": {"event": "started"},
            f"state/prediction/{KEY}": nothing,
            f"state/labelling/{KEY}": {"label": None},
        },
    )
    last = {f"{ROOT}/{name}": json.dumps(values).encode() for name, values in states.items()}
    seen = rendered(discovered(fleet), last)
    assert {name for name, value in seen.items() if value == "None"} == {
        "quality", "last_training", "temperature", "prediction", "confidence",
    }  # fmt: skip
    assert (seen["untrained"], seen["drift"]) == ("ON", "")


def test_buttons_are_for_commands_that_need_no_signature(fleet: Fleet) -> None:
    components = discovered(fleet)["components"]
    buttons = {name for name, component in components.items() if component["platform"] == "button"}
    assert buttons == {"train", "label.undo"}
    for name in buttons:
        assert fleet.home.publish(
            components[name]["command_topic"], components[name]["payload_press"].encode()
        )


def test_it_announces_again_when_home_assistant_starts(fleet: Fleet) -> None:
    discovered(fleet)
    before = [topic for topic, _ in fleet.home.came].count(CONFIG)
    fleet.home.publish("homeassistant/status", b"offline")
    fleet.home.publish("homeassistant/status", b"online")
    fleet.home.until(lambda _: [topic for topic, _ in fleet.home.came].count(CONFIG) == before + 1)


def test_switched_off_it_takes_back_what_it_announced(fleet: Fleet) -> None:
    """The last test of this device, which is started again without discovery."""
    discovered(fleet)
    values = yaml.safe_load(fleet.device.path.read_text())
    del values["discovery"]
    fleet.device.path.write_text(yaml.safe_dump(values))
    assert fleet.device.stop() == 0
    fleet.device.start()
    fleet.home.until(lambda last: last[CONFIG] == b"")
    with fleet.guest("homeassistant", "homeassistant/#") as later:
        later.subscribe("edged/+/status")
        later.until(lambda last: f"{ROOT}/status" in last)
        assert CONFIG not in later.last()
