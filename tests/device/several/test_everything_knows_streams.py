"""Whatever a device tells and takes, with three streams: none of them is taken for another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from edged.mqtt.sparkplug.payload import BOOLEAN, REBIRTH, Metric, Payload
from edged.workbench.demo.broker import free_port
from tests.device.several.plant import WIDTH, Plant, ask, feed, ids, plant_running
from tests.device.several.test_web import get
from tests.formats import wire
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto


class SparkplugHost:
    """A host of Sparkplug that keeps what it hears, in order; and what Home Assistant would."""

    def __init__(self, port: int) -> None:
        self.heard: list[tuple[str, Payload]] = []
        self.discovered: dict[str, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2)
        self._client.on_message = self._take
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([("spBv1.0/plant/#", 1), ("homeassistant/#", 1)])
        self._client.loop_start()

    def _take(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            if message.topic.startswith("homeassistant/"):
                self.discovered[message.topic] = json.loads(message.payload or b"{}")
            elif "CMD/" not in message.topic:
                self.heard.append((message.topic, wire.read(bytes(message.payload))))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until the condition holds; it is looked at after every message."""
        with self._changed:
            assert self._changed.wait_for(condition, 60), [topic for topic, _ in self.heard]

    def topics(self) -> list[str]:
        """Kind and place of each message of Sparkplug, such as `DBIRTH/rig/a`."""
        return [topic.removeprefix("spBv1.0/plant/") for topic, _ in self.heard]

    def value(self, device: str, name: str) -> Any:
        """The newest value of a metric of a device, whose births give its alias."""
        alias, value = None, None
        for topic, payload in self.heard:
            if topic.endswith(f"/rig/{device}"):
                alias = next((m.alias for m in payload.metrics if m.name == name), alias)
                found = [m.value for m in payload.metrics if m.alias == alias]
                value = found[-1] if found and alias is not None else value
        return value

    def command(self, kind: str, metric: str) -> None:
        """Set a metric to true: `kind` is NCMD/rig or DCMD/rig/<device>."""
        payload = wire.write([Metric(metric, True, datatype=BOOLEAN)], ts=1.7e9, seq=None)
        self._client.publish(f"spBv1.0/plant/{kind}", payload, qos=1)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def test_each_stream_is_a_sparkplug_device_below_one_edge_node(tmp_path: Path, broker: Mosquitto) -> None:
    host = SparkplugHost(broker.port)
    plant = Plant(tmp_path, broker.port, sparkplug={"group": "plant"})
    with plant_running(plant, broker.port) as listener:
        births = [f"DBIRTH/rig/{name}" for name in "abc"]
        host.wait(lambda: set(births) <= set(host.topics()))
        assert host.topics()[0] == "NBIRTH/rig"
        first = {m.name: m.value for m in host.heard[0][1].metrics}
        assert REBIRTH in first
        assert "Model/Version" not in first
        aliases = [
            m.alias for topic, payload in host.heard if "BIRTH" in topic for m in payload.metrics if m.alias
        ]
        assert len(aliases) == len(set(aliases))  # unique in the whole node
        for name, count in (("a", 3), ("b", 5)):
            feed(listener, name, count)
        host.wait(lambda: [host.value(name, "Samples/Count") for name in "abc"] == [3, 5, 0])
        # A command of one device is none of another.
        host.command("DCMD/rig/b", "Device Control/Pause")
        listener.wait(lambda: listener.messages["b/state/training"][-1]["on_hold"])
        assert not listener.messages["a/state/training"][-1]["on_hold"]
        before = len(host.heard)
        host.command("NCMD/rig", REBIRTH)
        host.wait(lambda: set(births) <= set(host.topics()[before:]))
        # Streams that go and come are devices that die and are born; the node lives on.
        before = len(host.heard)
        c = plant.values["streams"].pop()
        plant.reload()
        host.wait(lambda: "DDEATH/rig/c" in host.topics()[before:])
        plant.values["streams"].append(c)
        plant.reload()
        host.wait(lambda: "DBIRTH/rig/c" in host.topics()[before:])
        feed(listener, "c", 2)
        host.wait(lambda: host.value("c", "Samples/Count") == 2)
        assert not any(topic.startswith("N") for topic in host.topics()[before:])
    host.wait(lambda: host.topics()[-1] == "NDEATH/rig")
    told = [(topic, payload.seq) for topic, payload in host.heard if "/NDEATH/" not in topic]
    for (_, earlier), (topic, later) in pairwise(told):  # message numbers are those of the whole node
        assert later == (0 if "/NBIRTH/" in topic else ((earlier or 0) + 1) % 256)
    host.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_metrics_home_assistant_http_backup_wipe_and_audit_know_streams(
    tmp_path: Path, broker: Mosquitto
) -> None:
    port = free_port()
    host = SparkplugHost(broker.port)
    plant = Plant(tmp_path, broker.port, web={"listen": f"127.0.0.1:{port}"}, discovery={})
    counts = {"a": 3, "b": 5, "c": 7}
    with plant_running(plant, broker.port) as listener:
        for name, count in counts.items():
            feed(listener, name, count)
        listener.wait(lambda: {name: len(ids(listener, name)) for name in "abc"} == counts)
        # Commands and metrics at the topics of each.
        wait_until(lambda: [ask(listener, "status", n)["data"]["samples"] for n in "abc"] == [3, 5, 7])
        for name, count in counts.items():
            listener.wait(
                lambda topic=f"{name}/metrics", count=count: any(  # type: ignore[misc]
                    told["ingest"]["samples"] == count for told in listener.messages[topic]
                )
            )
        assert ask(listener, "pause", "b", what="training")["status"] == "ok"

        # Home Assistant: a device each, above them that of edged.
        def topics() -> set[str]:
            found = [one for one in host.discovered.values() if one]
            return {str(c.get("command_topic", "")) for one in found for c in one["components"].values()}

        host.wait(lambda: {f"edged/rig/{name}/request/train" for name in "abc"} <= topics())
        # Prometheus, and a model each in the inference protocol.
        wait_until(lambda: get(port, "/v2/health/ready")[0] == 200)
        text = get(port, "/metrics")[1]
        assert all(
            f'edged_samples_total{{stream="{name}"}} {count}' in text for name, count in counts.items()
        )
        request = {"inputs": [{"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": [1.0, 0.0]}]}
        assert {get(port, f"/v2/models/{name}/infer", request)[0] for name in "abc"} == {200}
        # The command line tells of each.
        told = plant.cli("status", str(plant.path))["streams"]
        assert {name: line["samples"] for name, line in told.items()} == counts
        copy = tmp_path / "plant"
        plant.cli("backup", str(plant.path), str(copy))
    # Wiped is one stream alone; a backup brings all of them back.
    plant.cli("wipe", str(plant.path), "--all", "--yes", "--stream", "b")
    told = plant.cli("status", str(plant.path))["streams"]
    assert {name: line["samples"] for name, line in told.items()} == {**counts, "b": 0}
    paused = [
        name
        for name in "abc"
        for entry in plant.cli("audit", str(plant.path), "--stream", name)["log"]
        if entry.get("command") == "pause"
    ]
    assert paused == ["b"]
    plant.cli("restore", str(plant.path), str(copy), "--replace")
    told = plant.cli("status", str(plant.path))["streams"]
    assert {name: line["samples"] for name, line in told.items()} == counts
    host.close()
