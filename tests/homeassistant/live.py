"""Home Assistant itself reads what a device announces: `make test-homeassistant`.

`EDGED_HOMEASSISTANT` names the interpreter (CPython 3.13) of an environment with the package `homeassistant`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from edged.domain.home_assistant import digest
from edged.signing import new_pair
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

HOME = Path(__file__).with_name("home.py")
CLASSES = {"features": ["a", "b"], "label": "y", "classes": ["ok", "worn"]}
PRESS = {"name": "Presse 7 µ"}

NOTHING = (None, "unavailable")
UNKNOWN = (*NOTHING, "unknown")


class Home:
    """A Home Assistant in a child process."""

    def __init__(self, port: int, folder: Path) -> None:
        python = os.environ.get("EDGED_HOMEASSISTANT")
        if python is None:
            pytest.fail("EDGED_HOMEASSISTANT names no interpreter: run `make test-homeassistant`")
        folder.mkdir()
        self.log = folder / "log"
        # Neither our packages nor our path are its business.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, str(HOME), str(port), str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment, cwd=folder,
            )  # fmt: skip

    def ask(self, **order: Any) -> dict[str, Any]:
        """One order and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self.log.read_text()[-2000:]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def entity(self, name: str, key: str | None = None, root: str = "edged/rig") -> dict[str, Any] | None:
        """What it knows of one entity of the main device, or of a key; None without it."""
        entities: dict[str, dict[str, Any]] = self.ask(do="states")["entities"]
        if key is None:
            return entities.get(f"edged:{root}/{name}")
        mark = digest(key)
        return entities.get(f"edged:{root}/{name}_{mark}") or entities.get(f"edged:{root}:{mark}/{name}")

    def state(self, name: str, key: str | None = None, root: str = "edged/rig") -> str | None:
        """Return the state of one entity; None without it."""
        entity = self.entity(name, key, root)
        return None if entity is None else entity["state"]

    def becomes(self, name: str, state: Any, key: str | None = None) -> None:
        """Wait until an entity has a state."""
        wait_until(lambda: self.state(name, key) == state, 30)

    def call(
        self, service: str, name: str, key: str | None = None, root: str = "edged/rig", **data: Any
    ) -> None:
        """Call a service for an entity, as a dashboard does."""
        wait_until(lambda: self.state(name, key, root) not in NOTHING, 30)
        entity = self.entity(name, key, root)
        assert entity is not None
        self.ask(do="call", service=service, entity=entity["entity"], data=data)

    def problems(self) -> list[str]:
        """What its MQTT integration did not like so far.

        Once a device is taken back that has an entity which is off by default, Home Assistant clears the
        topic itself, and is surprised.
        """
        found: list[str] = self.ask(do="states")["problems"]
        return [line for line in found if "No device components to cleanup" not in line]

    def stop(self) -> None:
        """In good order, or not."""
        if self._process.poll() is None:
            self.ask(do="stop")
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(20)


@pytest.fixture
def home(make_broker: MakeBroker, tmp_path: Path) -> Iterator[tuple[Home, int]]:
    """With the port of its broker."""
    broker = make_broker()
    home = Home(broker.port, tmp_path / "home")
    yield home, broker.port
    home.stop()


def press(folder: Path, port: int, stream: dict[str, Any] | None = None, **sections: Any) -> Device:
    """A device that Home Assistant knows, and that trains on command."""
    sections = {"discovery": PRESS, "training": {"new_labels": 0}} | sections
    return Device(folder, port, stream or CLASSES, **sections)


def feed(listener: Listener, count: int, key: str = "all", *, labels: bool = True, seed: int = 0) -> None:
    """Send samples, `worn` where the first feature is above 0."""
    for a, b in np.random.default_rng(seed).normal(size=(count, 2)):
        label = {"y": "worn" if a > 0 else "ok"} if labels else {}
        listener.send(f"sensors/{key}", {"a": a, "b": b} | label)


def send(listener: Listener, a: float, key: str = "all") -> None:
    listener.send(f"sensors/{key}", {"a": a, "b": 0.0})


def stored(listener: Listener, count: int) -> None:
    """Wait until so many samples are stored."""
    listener.wait(lambda: any(state["rows"] == count for state in listener.messages["state/buffer"][-1:]))


def labels_of(device: Device) -> list[Any]:
    """The labels in the sample log, in the order of the samples."""
    with sqlite3.connect(f"file:{device.state / 'samples.db'}?mode=ro", uri=True) as database:
        return [row[0] for row in database.execute("SELECT y FROM samples ORDER BY offset")]


def trained(listener: Listener, home: Home) -> None:
    """Let a person press the button once there are labels, until a model serves that was trained."""
    feed(listener, 200)
    stored(listener, 200)
    home.becomes("prediction", home.state("prediction", "all"), "all")
    home.call("button.press", "train")
    home.becomes("untrained", "off")
    home.becomes("training", "off")


def test_people_see_what_the_device_says(home: tuple[Home, int], tmp_path: Path) -> None:
    """Prediction, confidence, quality and health; a button trains; switched off, all of it is gone."""
    assistant, port = home
    device = press(tmp_path, port)
    with running(device, port) as listener:
        assistant.becomes("untrained", "on")
        assert assistant.state("quality") == "unknown"
        trained(listener, assistant)
        send(listener, 2.5)
        assistant.becomes("prediction", "worn", "all")
        assert float(str(assistant.state("confidence", "all"))) > 60
        send(listener, -2.5)
        assistant.becomes("prediction", "ok", "all")
        wait_until(lambda: assistant.state("quality") not in UNKNOWN, 30)
        assert 0 <= float(str(assistant.state("quality"))) <= 100
        assistant.becomes("version", str(listener.messages["state/model"][-1]["version"]))
        assert [assistant.state(name) for name in ("problem", "connection", "automatic")] == [
            "off",
            "on",
            "on",
        ]
        wait_until(lambda: assistant.state("last_training") != "unknown", 30)
        known = assistant.ask(do="states")
        assert [entry["name"] for entry in known["devices"]] == ["Presse 7 µ"]
        prediction = assistant.entity("prediction", "all")
        assert prediction is not None
        assert prediction["attributes"]["options"] == ["ok", "worn"]
        assert prediction["entity"] == "sensor.presse_7_m_prediction"
        samples = assistant.entity("samples")
        assert samples is not None
        assert not samples["enabled"]
        assert known["problems"] == [], assistant.log.read_text()
        assert device.stop() == 0
        assistant.becomes("connection", "off")
        assert assistant.state("prediction", "all") == assistant.state("version") == "unavailable"
    values = yaml.safe_load(device.path.read_text()) | {"discovery": None}
    device.path.write_text(yaml.safe_dump(values))
    with running(device, port):
        wait_until(lambda: assistant.ask(do="states")["entities"] == {}, 30)
    assert assistant.problems() == []
    left = Listener(port, "edged/rig/state")
    assert not [name for name in left.messages if name.startswith(("prediction", "labelling"))]
    left.close()


def test_an_automation_reacts_to_a_prediction(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    others = Listener(port, "alarm")
    with running(press(tmp_path, port), port) as listener:
        trained(listener, assistant)
        send(listener, -2.5)
        assistant.becomes("prediction", "ok", "all")
        entity = assistant.entity("prediction", "all")
        assert entity is not None
        automation = {
            "alias": "worn",
            "triggers": [{"trigger": "state", "entity_id": entity["entity"], "to": "worn"}],
            "actions": [{"action": "mqtt.publish", "data": {"topic": "alarm/bell", "payload": "1"}}],
        }
        assistant.ask(do="automate", automation=automation)
        send(listener, 2.5)
        others.wait(lambda: others.messages["bell"])
        assert len(others.messages["bell"]) == 1
    others.close()


def test_a_select_teaches_from_now_on(home: tuple[Home, int], tmp_path: Path) -> None:
    """What a person chooses on a dashboard is the label of the samples that follow, until it is off."""
    assistant, port = home
    device = press(tmp_path, port, CLASSES | {"label": None})
    with running(device, port) as listener:
        feed(listener, 3, labels=False)
        assistant.becomes("label", "off", "all")
        assistant.call("select.select_option", "label", "all", option="worn")
        assistant.becomes("label", "worn", "all")
        feed(listener, 4, labels=False)
        stored(listener, 7)
        assistant.call("select.select_option", "label", "all", option="off")
        assistant.becomes("label", "off", "all")
        feed(listener, 2, labels=False)
        stored(listener, 9)
        assert [label is not None for label in labels_of(device)] == [False] * 3 + [True] * 4 + [False] * 2
        assert assistant.problems() == []
    assert device.process is not None


def test_the_options_follow_open_classes(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    stream = {"features": ["a", "b"], "label": "y", "classes": ["ok", "worn"], "max_classes": 4}
    with running(press(tmp_path, port, stream), port) as listener:
        feed(listener, 10)
        assistant.becomes("label", "off", "all")
        assert listener.request("class.add", **{"class": "broken"})["status"] == "ok"

        def options() -> Any:
            entity = assistant.entity("label", "all")
            return None if entity is None else entity["attributes"].get("options")

        wait_until(lambda: options() == ["off", "ok", "worn", "broken"], 30)
        assistant.call("select.select_option", "label", "all", option="broken")
        assistant.becomes("label", "broken", "all")
        assert listener.request("class.remove", **{"class": "broken"})["status"] == "ok"
        wait_until(lambda: options() == ["off", "ok", "worn"], 30)
        assistant.becomes("label", "off", "all")
        assert assistant.problems() == []


def test_training_rests_by_a_switch(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    with running(press(tmp_path, port), port) as listener:
        assistant.becomes("automatic", "on")
        assistant.call("switch.turn_off", "automatic")
        assistant.becomes("automatic", "off")
        assert listener.messages["state/training"][-1]["on_hold"]
        assistant.call("switch.turn_on", "automatic")
        assistant.becomes("automatic", "on")


def test_each_of_several_keys_is_a_device(home: tuple[Home, int], tmp_path: Path) -> None:
    """The first key moves to a device of its own when a second one comes; names that are odd stay whole."""
    assistant, port = home
    device = press(tmp_path, port)
    odd = 'pumpe "2" {{ µ }}'
    with running(device, port) as listener:
        feed(listener, 5, "pump")
        wait_until(lambda: assistant.state("prediction", "pump") is not None, 30)
        feed(listener, 5, odd)
        wait_until(lambda: assistant.state("prediction", odd) is not None, 30)
        wait_until(lambda: len(assistant.ask(do="states")["devices"]) == 3, 30)
        devices = {entry["name"]: entry["via"] for entry in assistant.ask(do="states")["devices"]}
        assert devices == {
            "Presse 7 µ": None,
            "Presse 7 µ pump": "Presse 7 µ",
            f"Presse 7 µ {odd}": "Presse 7 µ",
        }
        assistant.becomes("label", "off", odd)
        assistant.call("select.select_option", "label", odd, option="worn")
        assistant.becomes("label", "worn", odd)
        assert assistant.state("label", "pump") == "off"
        assert assistant.problems() == []
        assert listener.request("wipe", confirm="rig", what=["samples"])["state"] in (
            "accepted",
            "successful",
        )
        wait_until(
            lambda: assistant.state("prediction", "pump") is assistant.state("prediction", odd) is None, 30
        )
        feed(listener, 5, odd)
        wait_until(lambda: assistant.state("prediction", odd) is not None, 30)
        assert len(assistant.ask(do="states")["devices"]) == 1


def test_a_restart_of_either_side(home: tuple[Home, int], tmp_path: Path) -> None:
    """Accuracy survives a restart of the device, all states one of Home Assistant."""
    assistant, port = home
    device = press(tmp_path, port)
    with running(device, port) as listener:
        trained(listener, assistant)
        wait_until(lambda: assistant.state("quality") not in UNKNOWN, 30)
        feed(listener, 50, seed=1)
        stored(listener, 250)
    accuracy = device.cli("status", str(device.path))["model"]["quality"]["accuracy"]
    quality = str(100 * round(accuracy, 4))
    assistant.becomes("connection", "off")
    with running(device, port) as listener:
        assistant.becomes("connection", "on")
        assistant.becomes("quality", quality)
        assistant.becomes("prediction", "unavailable", "all")  # nothing has come yet
        send(listener, 2.5)
        assistant.becomes("prediction", "worn", "all")
        assistant.stop()
        again = Home(port, tmp_path / "again")
        try:
            again.becomes("prediction", "worn", "all")
            again.becomes("quality", quality)
            assert again.problems() == []
        finally:
            again.stop()


def test_components_that_are_left_out_are_removed(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    device = press(tmp_path, port)
    with running(device, port):
        assistant.becomes("train", "unknown")
    key = tmp_path / "key"
    new_pair(key)
    values = device.values | {"commands": {"keys": [f"{key}.pub"], "require_signed": ["train", "pause"]}}
    device.path.write_text(yaml.safe_dump(values))
    with running(device, port):
        wait_until(lambda: assistant.entity("train") is None and assistant.entity("automatic") is None, 30)
        assert assistant.entity("rollback") is not None
    assert assistant.problems() == []


def test_names_that_are_alike_stay_apart(home: tuple[Home, int], tmp_path: Path) -> None:
    """`hall.x` and `hall__x`, and one id under two roots, are devices of their own."""
    assistant, port = home
    names = {"hall.x": "edged", "hall__x": "edged", "hall_x": "plant"}
    names |= {"hall_2e_x": "edged"}
    devices = []
    for name, root in names.items():
        folder = tmp_path / f"{root}-{name}"
        folder.mkdir()
        mqtt = {"host": "127.0.0.1", "port": port, "root": root}
        devices.append((press(folder, port, device={"id": name}, mqtt=mqtt, discovery={}), root))
    for device, _ in devices:
        device.start()
    try:
        for device, root in devices:
            place = f"{root}/{device.values['device']['id']}"
            wait_until(lambda place=place: assistant.state("connection", root=place) == "on", 90)  # type: ignore[misc]
        assert len(assistant.ask(do="states")["devices"]) == len(names)
        listener = Listener(port, "edged/hall.x")
        assistant.call("switch.turn_off", "automatic", root="edged/hall.x")
        wait_until(lambda: assistant.state("automatic", root="edged/hall.x") == "off")
        assert assistant.state("automatic", root="edged/hall__x") == "on"
        listener.close()
        gone, _ = devices[0]
        gone.stop()
        gone.path.write_text(yaml.safe_dump(gone.values | {"discovery": None}))
        gone.start()
        wait_until(lambda: assistant.state("connection", root="edged/hall.x") is None, 60)
        assert assistant.state("connection", root="edged/hall__x") == "on"
        assert assistant.problems() == []
    finally:
        for device, _ in devices:
            if device.process is not None and device.process.poll() is None:
                device.stop()


def test_late_messages_say_nothing_of_now(home: tuple[Home, int], tmp_path: Path) -> None:
    """Metrics and events from the outbox change no entity; a drift that is told now is an event."""
    assistant, port = home
    with running(press(tmp_path, port), port) as listener:
        assistant.becomes("connection", "on")
        late = {"ts": 1.0, "seq": 1, "boot": 1, "historical": True, "host": {"temperature_c": 99.0},
                "live": {"accuracy": 0.101}}  # fmt: skip
        listener.publish("edged/rig/metrics", json.dumps(late))
        drift = {"event": "drift_detected", "ts": time.time(), "seq": 2, "boot": 1, "level": "drift",
                 "source": "error", "detector": "adwin", "offset": 5, "features": []}  # fmt: skip
        listener.publish("edged/rig/events", json.dumps(drift | {"historical": True}))
        listener.publish("edged/rig/events", json.dumps(drift | {"level": "warning"}))
        wait_until(lambda: assistant.state("drift") not in UNKNOWN, 30)
        first = assistant.entity("drift")
        assert first is not None
        assert first["attributes"]["event_type"] == "warning"
        assert assistant.state("temperature") != "99.0"
        assert assistant.state("quality") == "unknown"
        listener.publish("edged/rig/events", json.dumps(drift | {"level": "warning"}))
        wait_until(lambda: assistant.state("drift") != first["state"], 30)  # a second one is told, too
        assert assistant.problems() == []


def test_a_label_request_is_an_event(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    labels = {"request_share": 1.0, "requests_per_day": 1000}
    with running(press(tmp_path, port, CLASSES | {"label": None}, labels=labels), port) as listener:
        feed(listener, 100, labels=False)
        listener.wait(lambda: listener.events("label_requested"))
        assistant.becomes("wanted", "unknown", "all")
        feed(listener, 100, labels=False, seed=1)
        wait_until(lambda: assistant.state("wanted", "all") not in UNKNOWN, 30)
        entity = assistant.entity("wanted", "all")
        assert entity is not None
        asked = {event["id"] for event in listener.events("label_requested")}
        assert entity["attributes"]["id"] in asked


def test_an_alarm_is_marked_as_normal(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    stream = {"features": ["a", "b"], "task": "reconstruct"}
    with running(press(tmp_path, port, stream), port) as listener:
        feed(listener, 200, labels=False)
        stored(listener, 200)
        assistant.call("button.press", "train")
        listener.wait(lambda: listener.events("model_promoted"), 60)
        feed(listener, 300, labels=False, seed=1)
        listener.wait(
            lambda: (listener.messages["metrics"] or [{}])[-1].get("anomaly", {}).get("threshold"), 60
        )
        assistant.becomes("alarm", "off", "all")
        for _ in range(12):
            listener.send("sensors/all", {"a": 60.0, "b": -60.0})
        assistant.becomes("alarm", "on", "all")
        assert float(str(assistant.state("prediction", "all"))) > 1
        assistant.call("button.press", "accept", "all")
        listener.wait(lambda: listener.messages["response/accept"])
        listener.send("sensors/all", {"a": 60.0, "b": -60.0})
        assistant.becomes("alarm", "off", "all")
        assert assistant.problems() == []


def test_a_regression_is_a_number(home: tuple[Home, int], tmp_path: Path) -> None:
    assistant, port = home
    stream = {"features": ["a", "b"], "label": "y", "task": "regress"}
    with running(press(tmp_path, port, stream), port) as listener:
        for a, b in np.random.default_rng(0).normal(size=(200, 2)):
            listener.send("sensors/all", {"a": a, "b": b, "y": 2 * a})
        stored(listener, 200)
        assistant.call("button.press", "train")
        listener.wait(lambda: listener.events("model_promoted"), 60)
        send(listener, 1.0)
        wait_until(lambda: assistant.state("prediction", "all") not in UNKNOWN, 30)
        float(str(assistant.state("prediction", "all")))
        assert assistant.entity("confidence", "all") is assistant.entity("label", "all") is None
        assert assistant.problems() == []
