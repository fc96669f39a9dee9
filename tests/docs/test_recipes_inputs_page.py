"""The recipes of docs/recipes-inputs.md: messages of other systems become the samples that one expects.

They pass a real broker, the real way of ingest, and a sample log, or the device's own HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from edged.clock import VirtualClock
from edged.config import Config, MqttConfig
from edged.mqtt.client.session import Session
from tests.device.dock import Dock, running
from tests.device.web.test_ingest import SAMPLES, served
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

PAGE = (Path(__file__).parents[2] / "docs" / "recipes-inputs.md").read_text(encoding="utf-8")
NOW = 1_800_000_000.0
AT = 1_795_341_600.0  # 2026-11-22T10:00:00Z

Sample = tuple[str, float, list[float], float | None]
EXPECTED: dict[str, list[list[Sample]]] = {
    "zigbee2mqtt": [[
        ("zigbee2mqtt/pump", AT, [21.3, 43.1, 0, 1], None),
        ("zigbee2mqtt/pump", AT + 30, [21.3, 43.1, 1, 1], None),
    ]],
    "Home Assistant": [[("living room", NOW, [21.3, 0, 0, 0], 1.0)]],
    "ESPHome": [[
        ("node", NOW, [21.3, 0, 0, 1], None),
        ("node", NOW, [21.3, 0.75, 0, 0], None),
        ("node", NOW, [21.3, 0.75, 1, 0], None),
    ]],
    "Tasmota": [[("plug", NOW, [12, 0.087, 1], None)]],
    "Shelly": [[("shellyplus1pm-a1", NOW, [8.9, 237.5, 0.041, 27.7, 1], None)]],
    "OPC UA, Modbus, S7: EMQX Neuron": [[("modbus", 1650006388.943, [123, 0, 0, 1], None)]] * 2,
    "LoRaWAN: ChirpStack": [[("70b3d57ed0000001", AT + 0.1, [21.3, 1], None)]],
    "Telegraf": [
        [("a", 1650006388.0 + 10 * at, [idle], None) for at, idle in enumerate((98.1, 97.5, 96.0))],
        [("a", 1650006388.0, [98.1, 120], None)],
        [("press", 1597820490.0, [79.0, 1.2], None)],
    ],
    "Node-RED": [[("nodered/press", NOW, [41.5, 1480], None)]],
    "ROS 2": [[("robot", NOW, [12.4, 0], None)]],
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """A configuration of the page with the messages after it, and the samples that they become."""

    name: str
    values: dict[str, Any]
    kind: str
    messages: str
    expected: list[Sample]


def recipes() -> Iterator[Recipe]:
    for section in PAGE.split("\n## ")[1:]:
        name = section.partition("\n")[0]
        found = re.findall(r"```yaml\n(.*?)```\n```(mqtt|influx)\n(.*?)```", section, re.DOTALL)
        assert len(found) == len(EXPECTED[name]), name
        for (text, kind, messages), expected in zip(found, EXPECTED[name], strict=True):
            yield Recipe(name, yaml.safe_load(text), kind, messages, expected)


def approximately(samples: list[Sample]) -> list[Any]:
    return [(key, ts, pytest.approx(x, rel=1e-6), label) for key, ts, x, label in samples]


def test_every_section_is_tried_and_every_configuration_is_valid() -> None:
    assert {recipe.name for recipe in recipes()} == set(EXPECTED)
    for recipe in recipes():
        Config.model_validate({"device": {"id": "d"}, **recipe.values})


@pytest.mark.parametrize(
    "recipe", [one for one in recipes() if one.kind == "mqtt"], ids=lambda one: one.name.partition(":")[0]
)
def test_messages_become_samples(recipe: Recipe, broker: Mosquitto, tmp_path: Path) -> None:
    messages = [line.split(" ", 1) for line in recipe.messages.splitlines()]
    config = MqttConfig(host="127.0.0.1", port=broker.port)
    with ExitStack() as stack:
        dock = stack.enter_context(closing(Dock(tmp_path, recipe.values["stream"])))
        session, sender = (Session(config, client_id=name) for name in ("daemon", "sensors"))
        dock.close()
        dock.clock = VirtualClock(NOW)
        dock.open(session)
        session.subscribe(dock.stream.all_topics, 1, dock.ingestor.receive)
        for one in (session, sender):
            one.start()
            stack.callback(one.stop)
            assert one.wait_ready(20)
        with running(dock):
            for topic, payload in messages:
                sender.publish(topic, payload.encode(), qos=1)
            wait_until(lambda: dock.ingestor.received == len(messages) and not dock.ingestor.waiting)
        made = [
            (key, ts, x, label)
            for batch in dock.batches
            for key, ts, x, label in zip(
                batch.keys, batch.ts.tolist(), batch.x.tolist(), batch.labels, strict=True
            )
        ]
        assert made == approximately(recipe.expected)
        assert not dock.rejected
        assert dock.stored() == len(recipe.expected)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [one for one in recipes() if one.kind == "influx"])
def test_lines_over_http_become_samples(recipe: Recipe, broker: Mosquitto, tmp_path: Path) -> None:
    with served(broker, tmp_path, recipe.values["stream"]) as made:
        path, body = f"{SAMPLES}?topic=telegraf/a", recipe.messages.encode()
        assert made.new(path, body, content_type="text/plain; charset=utf-8") == approximately(
            recipe.expected
        )
