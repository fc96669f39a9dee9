"""Sparkplug B: metrics of edge nodes and their devices, by name, or by the alias that a birth gave them.

Senders report what has changed only. So the last values of each device are kept: a data message with one
feature or more is a reading of all of them, a label holds until it changes, an id counts for its message
only. Births tell names and first values, and are no readings. Historical values are put together among
themselves: a moment that does not have all features is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from edged.clock import Clock, SystemClock
from edged.config import StreamConfig
from edged.domain.protocols import MessagePublisher
from edged.domain.stream.sample import Decoded
from edged.errors import RejectedSampleError
from edged.logs import get_logger
from edged.mqtt.codecs.objects import ReadingFields, check_size
from edged.mqtt.field_access import parse_time
from edged.mqtt.sparkplug.payload import (
    BDSEQ,
    BOOLEAN,
    REBIRTH,
    SEQUENCE,
    Metric,
    Payload,
    SparkplugTopic,
    SparkplugWire,
    parse_topic,
    signed,
)

MOST_READINGS = 1000
MOST_DEVICES = 1000  # births that are remembered, of the devices heard last
PATIENCE = 10.0  # seconds between two requests to the same edge node for a birth that is missing
GAP_PATIENCE = 60.0  # ... for a birth because a message is missing

log = get_logger("edged.sparkplug")

Values = dict[str, Any]


@dataclass(slots=True)
class _Birth:
    """What a birth told of the metrics that the stream takes: `names` by alias, with their types."""

    names: dict[int, str] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    values: Values = field(default_factory=dict)


@dataclass(slots=True)
class _Node:
    """An edge node: the number of its newest message and of its session, and when a birth was asked for."""

    seq: int | None = None
    bdseq: Any = None
    asked: float = float("-inf")


class SparkplugCodec:
    """Decodes all messages of a stream's edge nodes; data messages are readings.

    Without a field for it the key is `group/node` or `group/node/device`.

    Features, label, key and id of the stream are names of metrics. `clock`, the system's when absent, gives
    the timestamps of requests for births, which `publisher` publishes; without it there are none.
    """

    def __init__(
        self, stream: StreamConfig, clock: Clock | None = None, publisher: MessagePublisher | None = None
    ) -> None:
        self._largest = stream.max_payload
        # Each moment brings all features: no more numbers than a raw array of that size would hold.
        self._most = max(1, min(MOST_READINGS, stream.max_payload // (4 * stream.width)))
        self._clock = clock or SystemClock()
        self._publisher = publisher
        self._wire = SparkplugWire("stream.codec")
        self._reading = ReadingFields(stream).reading
        self._key_is_topic = stream.key is None
        self._id = stream.id
        self._features = frozenset(stream.names)
        self._wanted = self._features | {
            name for name in (stream.label_path, stream.key_spec, stream.id) if name
        }
        self._births: OrderedDict[tuple[str, str, str], _Birth] = OrderedDict()
        self._nodes: OrderedDict[tuple[str, str], _Node] = OrderedDict()

    def decode(self, topic: str, payload: bytes) -> Decoded:
        """The readings in a message, oldest first; none in births, deaths, commands and states.

        Raises RejectedSampleError: `not_sparkplug`, `no_birth` where the names of metrics are not known, or
        as for any codec.
        """
        check_size(payload, self._largest)
        place = parse_topic(topic)
        if place is None or place.kind in ("NCMD", "DCMD"):
            return []
        if place.kind not in _KINDS or place.kind.startswith("D") != bool(place.device):
            raise RejectedSampleError("not_sparkplug", f"{topic[:80]!r} is no topic of Sparkplug B")
        data = self._wire.read(payload)
        if place.kind.endswith("DEATH"):
            self._died(place, data)
            return []
        self._follow(place, data)
        if place.kind.endswith("BIRTH"):
            self._born(place, data)
            return []
        return self._readings(topic, place, data)

    # ---- births and deaths -----------------------------------------------------------------

    def _born(self, place: SparkplugTopic, data: Payload) -> None:
        if not place.device:
            self._forget(place)
            self._node(place).bdseq = _bdseq(data)
        birth = _Birth()
        for metric in data.metrics:
            if metric.name in self._wanted:
                birth.values[metric.name] = metric.value
                birth.types[metric.name] = metric.datatype
                if metric.alias is not None:
                    birth.names[metric.alias] = metric.name
        self._births[place.group, place.node, place.device] = birth
        while len(self._births) > MOST_DEVICES:
            self._births.popitem(last=False)

    def _died(self, place: SparkplugTopic, data: Payload) -> None:
        if place.device:
            self._births.pop((place.group, place.node, place.device), None)
            self._follow(place, data)
            return
        # The will of an earlier session may come after the birth of the next.
        if _bdseq(data) == self._node(place).bdseq:
            self._forget(place)

    def _forget(self, place: SparkplugTopic) -> None:
        for key in [key for key in self._births if key[:2] == (place.group, place.node)]:
            del self._births[key]

    # ---- what is missing -------------------------------------------------------------------

    def _node(self, place: SparkplugTopic) -> _Node:
        node = self._nodes.setdefault((place.group, place.node), _Node())
        self._nodes.move_to_end((place.group, place.node))
        while len(self._nodes) > MOST_DEVICES:
            self._nodes.popitem(last=False)
        return node

    def _follow(self, place: SparkplugTopic, data: Payload) -> None:
        """Note the number of a message; ask a node whose birth we heard for another when one is missing."""
        node = self._node(place)
        expected, node.seq = node.seq, data.seq
        if place.kind == "NBIRTH" or expected is None or data.seq is None:
            return
        if data.seq != (expected + 1) % SEQUENCE and (place.group, place.node, "") in self._births:
            self._ask(place, node, GAP_PATIENCE, "a message is missing")

    def _ask(self, place: SparkplugTopic, node: _Node, patience: float, reason: str) -> None:
        now = self._clock.now()
        if abs(now - node.asked) < patience:
            return
        node.asked = now
        metric = Metric(REBIRTH, True, datatype=BOOLEAN, ts=now)
        target = SparkplugTopic(place.group, "NCMD", place.node)
        log.info("sparkplug_rebirth_requested", group=place.group, node=place.node, reason=reason)
        if self._publisher is not None:
            self._publisher.publish(target.name, self._wire.write([metric], ts=now, seq=None))

    # ---- data ------------------------------------------------------------------------------

    def _readings(self, topic: str, place: SparkplugTopic, data: Payload) -> Decoded:
        who = (place.group, place.node, place.device)
        birth = self._births.get(who)
        if birth is None:
            self._ask(place, self._node(place), PATIENCE, "the birth is missing")
            raise RejectedSampleError("no_birth", f"the birth of {'/'.join(filter(None, who))} was not heard")
        self._births.move_to_end(who)
        name = "/".join(filter(None, who)) if self._key_is_topic else topic
        return [
            self._reading(name, message, None if at is None else parse_time(at))
            for at, message in self._messages(birth, data)
        ]

    def _messages(self, birth: _Birth, data: Payload) -> list[tuple[float | None, Values]]:
        """The fields of each reading, with its time."""
        past, live = self._moments(birth, data)
        if len(past) + len(live) > self._most:
            raise RejectedSampleError("shape", f"more than {self._most} moments")
        messages = [(at, changed) for at, changed in past if self._features & changed.keys()]
        for at, changed in live:
            birth.values |= changed
            if self._features & changed.keys():
                message = dict(birth.values)
                if self._id is not None and self._id not in changed:
                    message[self._id] = None
                messages.append((at, message))
        return messages

    def _moments(self, birth: _Birth, data: Payload) -> tuple[list[Any], list[Any]]:
        """What has changed at each moment, historical values and live ones, by time."""
        past: dict[float | None, Values] = {}
        live: dict[float | None, Values] = {}
        for metric in data.metrics:
            name = metric.name or birth.names.get(-1 if metric.alias is None else metric.alias)
            if name is None or name not in self._wanted:
                continue
            value = metric.value
            if type(value) is int:
                value = signed(value, metric.datatype or birth.types.get(name, 0))
            at = data.ts if metric.ts is None else metric.ts
            (past if metric.historical else live).setdefault(at, {})[name] = value
        return _by_time(past), _by_time(live)


_KINDS = frozenset(("NBIRTH", "NDEATH", "NDATA", "DBIRTH", "DDEATH", "DDATA"))


def _by_time(moments: dict[float | None, Values]) -> list[tuple[float | None, Values]]:
    return sorted(moments.items(), key=lambda moment: moment[0] or 0.0)


def _bdseq(data: Payload) -> Any:
    return next((metric.value for metric in data.metrics if metric.name == BDSEQ), None)
