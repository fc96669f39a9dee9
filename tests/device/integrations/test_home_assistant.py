"""What a device leaves at a real broker for Home Assistant, and takes back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion

from edged.domain.home_assistant import digest, topic
from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from tests.conftest import MakeBroker

pytestmark = pytest.mark.slow

STREAM = {"features": ["a", "b"], "label": "y", "classes": ["ok", "worn"]}
MAIN = topic("homeassistant", "edged/rig")


class Retained:
    """What a broker retains, as somebody sees who subscribes to everything."""

    def __init__(self, port: int) -> None:
        self.now: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self._changed = threading.Condition()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("#", qos=1)
        self._client.loop_start()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.counts[message.topic] = self.counts.get(message.topic, 0) + 1
            if message.payload:
                self.now[message.topic] = json.loads(message.payload)
            else:
                self.now.pop(message.topic, None)
            self._changed.notify_all()

    def until(self, condition: Any, seconds: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.now), seconds), sorted(self.now)

    def below(self, start: str) -> set[str]:
        with self._changed:
            return {name for name in self.now if name.startswith(start)}

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def seen(make_broker: MakeBroker) -> Iterator[tuple[Retained, int]]:
    """With the port of its broker."""
    broker = make_broker()
    retained = Retained(broker.port)
    yield retained, broker.port
    retained.close()


def device(folder: Path, port: int, **sections: Any) -> Device:
    return Device(folder, port, STREAM, training={"new_labels": 0}, discovery={}, **sections)


@contextmanager
def changed(one: Device, port: int, **sections: Any) -> Iterator[Listener]:
    """The device with other sections in its configuration."""
    one.path.write_text(yaml.safe_dump(yaml.safe_load(one.path.read_text()) | sections))
    with running(one, port) as listener:
        yield listener


def send(listener: Listener, key: str, count: int = 3) -> None:
    for number in range(count):
        listener.send(f"sensors/{key}", {"a": number, "b": 0, "y": "ok"})


def state(kind: str, key: str) -> str:
    return f"edged/rig/state/{kind}/{digest(key)}"


def test_all_of_it_is_taken_back(seen: tuple[Retained, int], tmp_path: Path) -> None:
    """With another prefix what was announced under the first one, without discovery everything."""
    retained, port = seen
    one = device(tmp_path, port)
    with running(one, port) as listener:
        send(listener, "pump")
        retained.until(
            lambda now: {MAIN, state("prediction", "pump"), state("labelling", "pump")} <= set(now)
        )
    with changed(one, port, discovery={"prefix": "home"}):
        retained.until(lambda now: topic("home", "edged/rig") in now and MAIN not in now)
    with changed(one, port, discovery=None):
        retained.until(lambda now: not any(name.startswith("home") for name in now))
        retained.until(lambda now: state("prediction", "pump") not in now)
        retained.until(lambda now: state("labelling", "pump") not in now)


def test_keys_become_devices_and_go_with_their_samples(seen: tuple[Retained, int], tmp_path: Path) -> None:
    retained, port = seen
    one = device(tmp_path, port)
    places = [topic("homeassistant", "edged/rig", key) for key in ("pump", "fan")]
    with running(one, port) as listener:
        send(listener, "pump")
        retained.until(lambda now: f"prediction_{digest('pump')}" in now.get(MAIN, {}).get("components", {}))
        send(listener, "fan")
        retained.until(lambda now: set(places) <= set(now))
        gone = retained.now[MAIN]["components"][f"prediction_{digest('pump')}"]
        assert gone == {"platform": "sensor"}
        listener.request("wipe", confirm="rig", what=["samples"])
        retained.until(lambda now: not set(places) & set(now))
        retained.until(lambda now: not any("/state/prediction/" in name for name in now))
    assert b"pump" not in b"".join(path.read_bytes() for path in one.state.glob("state.db*"))


def test_a_restart_repeats_what_is_known_and_calls_the_predictions_old(
    seen: tuple[Retained, int], tmp_path: Path
) -> None:
    retained, port = seen
    one = device(tmp_path, port)
    place = state("prediction", "pump")
    with running(one, port) as listener:
        send(listener, "pump", 60)
        retained.until(lambda now: now.get(place, {}).get("label") == "ok" and not now[place]["silent"])
        retained.until(lambda now: now["edged/rig/state/quality"]["labelled"])
        listener.wait(lambda: listener.messages["state/buffer"][-1]["rows"] == 60)
        before = one.cli("status", str(one.path))["model"]["quality"]
    with running(one, port) as listener:
        retained.until(lambda now: now[place]["silent"])
        listener.wait(lambda: listener.messages["state/quality"])
        assert listener.messages["state/quality"][-1]["accuracy"] == round(before["accuracy"], 4)
        send(listener, "pump", 1)
        retained.until(lambda now: not now[place]["silent"])


def test_a_flood_of_samples_is_a_trickle_of_states(seen: tuple[Retained, int], tmp_path: Path) -> None:
    retained, port = seen
    with running(device(tmp_path, port), port) as listener:
        for key in range(100):
            send(listener, f"key{key}", 50)
        listener.wait(lambda: listener.messages["state/buffer"][-1]["rows"] == 5000, 60)
        retained.until(lambda now: sum("/state/prediction/" in name for name in now) == 32)
        told = sum(count for name, count in retained.counts.items() if "/state/prediction/" in name)
        assert told < 32 * 20
        assert listener.messages["state/buffer"][-1]["outbox"]["dropped"] == 0


def test_train_with_nothing_new_says_so(seen: tuple[Retained, int], tmp_path: Path) -> None:
    """It promotes no second model like the first; labels that have changed, or steps, are something new."""
    _, port = seen
    with running(device(tmp_path, port), port) as listener:
        for number in range(60):
            listener.send("sensors/pump", {"a": number % 7, "b": 0, "y": "ok" if number % 2 else "worn"})
        listener.wait(lambda: any(state["rows"] == 60 for state in listener.messages["state/buffer"]))

        def train(**fields: Any) -> dict[str, Any]:
            number = len(listener.messages["response/train"])
            listener.publish("edged/rig/request/train", json.dumps({"transaction": f"t{number}", **fields}))

            def answers() -> list[dict[str, Any]]:
                return [
                    one for one in listener.messages["response/train"]
                    if one["transaction"] == f"t{number}" and one["state"] != "accepted"
                ]  # fmt: skip

            listener.wait(answers, 60)
            return answers()[0]

        assert train()["data"]["verdict"]["promoted"]
        again = train()
        assert (again["state"], again["reason"]) == ("refused", "refused")
        assert "nothing new to learn" in again["error"]
        assert len(listener.events("model_promoted")) == 1
        assert train(steps=5)["state"] == "successful"
        newest = listener.messages["predictions"][-1]["id"]
        oldest = listener.messages["predictions"][0]["id"]
        labels = [{"id": oldest, "label": "ok"}, {"id": newest, "label": "worn"}]
        assert listener.request("label", labels=labels)["status"] == "ok"
        assert train()["state"] == "successful"
