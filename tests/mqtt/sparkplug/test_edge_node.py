"""An edge node of Sparkplug B at a real broker, watched by a host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from edged.clock import VirtualClock
from edged.config import MqttConfig, StreamConfig
from edged.domain.stream.sample import Reading
from edged.mqtt.codecs import sample_codec
from edged.mqtt.sparkplug.edge_node import Declared, SparkplugNode
from edged.mqtt.sparkplug.payload import (
    BOOLEAN,
    DOUBLE,
    INT64,
    REBIRTH,
    STRING,
    Metric,
    MetricValue,
    Payload,
    SparkplugTopic,
)
from tests.faults.proxy import Proxy
from tests.formats import wire
from tests.mqtt.inbox import PATIENCE, Gate, Inbox
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto
    from tests.mqtt.conftest import Connect

METRICS = (
    Declared("Temp", DOUBLE),
    Declared("Runs", INT64),
    Declared("On", BOOLEAN),
    Declared("Name", STRING),
)
VALUES: dict[str, MetricValue] = {"Temp": 1.5, "Runs": -7, "On": True, "Name": "m1"}
PLACE = "spBv1.0/plant/{}/press-7"


class Scene:
    """A node behind a network that can be cut, and a host that hears everything."""

    def __init__(self, broker: Mosquitto, connect: Connect) -> None:
        self.inbox = Inbox()
        self.host = connect("host", subscribe=("spBv1.0/#", self.inbox))
        self.broker = broker
        self.proxy = Proxy(broker.port)
        self.sessions = iter(range(254, 1000))
        self.trained = Gate()
        self.clock = VirtualClock(1.7e9)
        self.node: SparkplugNode | None = None

    def make(self, history: int = 100, *, aliases: bool = True, **config: Any) -> SparkplugNode:
        self.node = SparkplugNode(
            MqttConfig(host="127.0.0.1", port=self.proxy.port, keepalive=5, **config),
            client_id="press-7-sparkplug",
            place=SparkplugTopic("plant", "", "press-7"),
            metrics=METRICS,
            commands=["Node Control/Train"],
            next_session=self.next_session,
            execute=self.execute,
            clock=self.clock,
            history=history,
            aliases=aliases,
        )
        return self.node

    def next_session(self) -> int:
        return next(self.sessions)

    def execute(self, command: str) -> None:
        assert command == "Node Control/Train"
        self.trained()

    def start(self, **options: Any) -> SparkplugNode:
        node = self.make(**options)
        node.start()
        self.heard(1)
        return node

    def heard(self, count: int) -> list[tuple[str, Payload]]:
        """The first messages of the node, commands left out."""

        def those() -> list[Any]:
            return [d for d in self.inbox.deliveries if "/NCMD/" not in d.topic]

        wait_until(lambda: len(those()) >= count, PATIENCE)
        return [(d.topic.split("/")[2], wire.read(d.payload)) for d in those()]

    def command(self, *metrics: Metric, retain: bool = False) -> None:
        payload = wire.write(metrics, ts=self.clock.now(), seq=None)
        self.host.publish(PLACE.format("NCMD"), payload, qos=1, retain=retain)


@pytest.fixture
def scene(broker: Mosquitto, connect: Connect) -> Iterator[Scene]:
    """Not yet started."""
    scene = Scene(broker, connect)
    yield scene
    if scene.node is not None:
        scene.node.stop(1.0)
    scene.proxy.close()


def values(payload: Payload) -> dict[Any, Any]:
    """What is in a payload, by name or alias."""
    return {metric.name or metric.alias: metric.value for metric in payload.metrics}


def test_a_birth_tells_everything_and_data_what_has_changed(scene: Scene) -> None:
    node = scene.make()
    node.report(VALUES)
    node.start()
    scene.heard(2)
    scene.clock.step(1)
    node.report({**VALUES, "Runs": -8, "Unknown": 1})
    node.report({**VALUES, "Runs": -8})
    node.report({"Temp": None})
    (_, birth), (kind, history), (_, first), (_, second) = scene.heard(4)
    assert (birth.seq, history.seq, first.seq, second.seq, kind) == (0, 1, 2, 3, "NDATA")
    assert values(birth) == {**VALUES, "bdSeq": 254, REBIRTH: False, "Node Control/Train": False}
    assert {m.alias for m in birth.metrics} == {None, 1, 2, 3, 4, 5, 6}
    assert {m.historical for m in history.metrics} == {True}
    assert values(first) == {2: -8}
    assert values(second) == {1: None}
    delivery = scene.inbox.deliveries[0]
    assert (delivery.qos, delivery.retain) == (0, False)


def test_without_aliases_all_messages_have_names(scene: Scene) -> None:
    """For hosts that resolve none: `sparkplug.aliases: false`."""
    node = scene.make(aliases=False)
    node.report(VALUES)
    node.start()
    scene.heard(2)
    node.report({"Runs": -8})
    (_, birth), (_, history), (_, first) = scene.heard(3)
    assert {m.alias for payload in (birth, history, first) for m in payload.metrics} == {None}
    assert (values(history), values(first)) == (VALUES, {"Runs": -8})
    scene.command(Metric("Node Control/Train", True, datatype=BOOLEAN))
    scene.trained.wait()


@pytest.mark.parametrize("aliases", [True, False])
def test_what_it_tells_is_read_by_the_codec(scene: Scene, aliases: bool) -> None:
    node = scene.start(aliases=aliases)
    node.report(VALUES)
    scene.heard(2)
    codec = sample_codec(StreamConfig(features=["Temp", "Runs"], codec="sparkplug", topic="spBv1.0/#"))
    born, said = (codec.decode(d.topic, d.payload) for d in scene.inbox.deliveries[:2])
    assert born == []
    assert said == [Reading("plant/press-7", [1.5, -7.0], 1.7e9)]


def test_a_host_may_ask_for_another_birth_and_for_more(scene: Scene) -> None:
    node = scene.start()
    node.report(VALUES)
    scene.command(Metric(REBIRTH, True, datatype=BOOLEAN))
    (_, born), (_, said), (kind, again) = scene.heard(3)
    assert (kind, again.seq, said.seq) == ("NBIRTH", 0, 1)
    assert values(again) == {**values(born), **VALUES}
    scene.command(Metric("Node Control/Train", True, datatype=BOOLEAN))
    scene.trained.wait()
    alias = next(m.alias for m in born.metrics if m.name == "Node Control/Train")
    scene.command(Metric("", True, alias, datatype=BOOLEAN))
    scene.trained.wait()


def test_what_is_no_command_does_nothing(scene: Scene) -> None:
    calls = []
    scene.trained = Gate(lambda: calls.append(1))
    scene.command(Metric("Node Control/Train", True, datatype=BOOLEAN), retain=True)
    scene.inbox.wait(1)  # the broker has it
    scene.start()
    scene.command(Metric("Node Control/Train", False, datatype=BOOLEAN))
    scene.command(Metric("Node Control/Explode", True, datatype=BOOLEAN))
    scene.command(Metric("", True, 999, datatype=BOOLEAN))
    for payload in (b"\xff\xff", b"\x00" * 70_000):
        scene.host.publish(PLACE.format("NCMD"), payload, qos=1)
    scene.command(Metric("Node Control/Train", True, datatype=BOOLEAN))
    scene.trained.wait()
    assert calls == [1]


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_lost_connection_is_a_death_and_what_changed_meanwhile_is_historical(
    scene: Scene, protocol: str
) -> None:
    node = scene.start(protocol=protocol)
    node.report(VALUES)
    scene.heard(2)
    scene.proxy.close()
    wait_until(lambda: not node.born)
    scene.heard(3)
    scene.clock.step(5)
    node.report({"Runs": 1})
    scene.clock.step(5)
    node.report({"Runs": 2})
    scene.proxy = Proxy(scene.broker.port, port=scene.proxy.port)
    kinds = [kind for kind, _ in scene.heard(5)]
    assert kinds == ["NBIRTH", "NDATA", "NDEATH", "NBIRTH", "NDATA"]
    assert next(scene.sessions) == 256, "attempts that fail use no number"
    birth, _, death, again, late = (payload for _, payload in scene.heard(5))
    assert values(death) == {"bdSeq": values(birth)["bdSeq"]} == {"bdSeq": 254}
    assert (values(again)["bdSeq"], again.seq, late.seq) == (255, 0, 1)
    assert values(again)["Runs"] == 2
    assert [(m.value, m.ts, m.historical) for m in late.metrics] == [
        (1, 1.7e9 + 5, True), (2, 1.7e9 + 10, True)
    ]  # fmt: skip


def test_numbers_go_round_and_what_is_kept_is_bounded(scene: Scene) -> None:
    node = scene.make(history=300)
    for number in range(500):
        node.report({"Runs": number})
    node.start()
    scene.heard(3)
    for number in range(300):
        node.report({"Runs": -number})
    payloads = [payload for _, payload in scene.heard(303)]
    assert [p.seq for p in payloads] == [number % 256 for number in range(303)]
    late = [m.value for p in payloads[1:3] for m in p.metrics]
    assert late == list(range(200, 500))


def test_an_orderly_end_is_a_death_too(scene: Scene) -> None:
    scene.start().stop()
    (_, birth), (kind, death) = scene.heard(2)
    assert kind == "NDEATH"
    assert values(death) == {"bdSeq": values(birth)["bdSeq"]}


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_commands_of_before_the_connection_are_void(scene: Scene, protocol: str) -> None:
    calls: list[int] = []
    scene.trained = Gate(lambda: calls.append(1))
    scene.start(protocol=protocol).stop()
    train = Metric("Node Control/Train", True, datatype=BOOLEAN)
    scene.command(train)
    wait_until(lambda: any("/NCMD/" in d.topic for d in scene.inbox.deliveries))  # the broker has it
    scene.make(protocol=protocol).start()
    scene.heard(3)
    scene.command(train)
    scene.command(Metric(REBIRTH, True, datatype=BOOLEAN))
    assert [kind for kind, _ in scene.heard(4)] == ["NBIRTH", "NDEATH", "NBIRTH", "NBIRTH"]
    assert calls == [1]
