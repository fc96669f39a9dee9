"""An edge node of Sparkplug B: birth, death, what changed, and commands (specification 3.0, sections 4 to 6).

MQTT allows one last will a connection, and the death of an edge node is one: hence a connection of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from edged.clock import Clock
from edged.config import MqttConfig
from edged.errors import RejectedSampleError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.mqtt.sparkplug.payload import (
    BDSEQ,
    BOOLEAN,
    INT64,
    REBIRTH,
    SEQUENCE,
    Metric,
    MetricValue,
    SparkplugTopic,
    SparkplugWire,
)

LARGEST_COMMAND = 64 * 1024
OF_ONE_MESSAGE = 200  # historical metrics

log = get_logger("edged.sparkplug")


class Declared(NamedTuple):
    """A metric that every birth names, with its type."""

    name: str
    datatype: int


class _Change(NamedTuple):
    name: str
    value: MetricValue
    ts: float


Execute = Callable[[str], None]
"""Executes a command, named by its metric; called on the network thread."""


class SparkplugDevice:
    """Metrics and commands of a device below an edge node, or of the `node` itself, whose name is empty."""

    def __init__(
        self,
        node: SparkplugNode,
        device: str,
        metrics: Sequence[Declared],
        commands: Sequence[str],
        execute: Execute | None,
        history: int,
        numbers: Iterable[int],
    ) -> None:
        self._node, self.device, self.execute = node, device, execute
        self._metrics, self.commands = tuple(metrics), tuple(commands)
        # Without numbers each message has the names of its metrics.
        self._aliases = dict(zip([*(m.name for m in metrics), *commands], numbers, strict=False))
        self._names = {alias: name for name, alias in self._aliases.items()}
        self._types = {metric.name: metric.datatype for metric in metrics}
        self._values: dict[str, MetricValue] = {}
        self.history: deque[_Change] = deque(maxlen=history)

    def kind(self, what: str) -> str:
        """The kind of a message, such as `NDATA` or `DDATA`."""
        return f"{'D' if self.device else 'N'}{what}"

    def birth(self, now: float) -> list[Metric]:
        """All metrics with names, aliases and types."""
        metrics = [
            Metric(m.name, self._values.get(m.name), self._aliases.get(m.name), now, m.datatype)
            for m in self._metrics
        ]
        return metrics + [
            Metric(name, False, self._aliases.get(name), now, BOOLEAN) for name in self.commands
        ]

    def update(self, values: Mapping[str, MetricValue], now: float) -> list[_Change]:
        """Store values of declared metrics; return those that have changed."""
        changes = [
            _Change(name, value, now)
            for name, value in values.items()
            if name in self._types and (name not in self._values or self._values[name] != value)
        ]
        self._values |= {change.name: change.value for change in changes}
        return changes

    def changed(self, change: _Change, *, historical: bool = False) -> Metric:
        """The metric of a change."""
        alias, datatype = self._aliases.get(change.name), self._types[change.name]
        return Metric(
            change.name if alias is None else "", change.value, alias, change.ts, datatype, historical
        )

    def wanted(self, metrics: Iterable[Metric]) -> Iterable[str]:
        """The names of those that a host has set to true, each once."""
        found = (
            m.name or self._names.get(-1 if m.alias is None else m.alias, "")
            for m in metrics
            if m.value is True
        )
        return dict.fromkeys(found)

    def report(self, values: Mapping[str, MetricValue]) -> None:
        """Publish the values that have changed; undeclared metrics are ignored."""
        self._node.report_of(self, values)

    def stop(self) -> None:
        """Publish that the device has ended (DDEATH)."""
        self._node.remove(self)


class SparkplugNode:
    """Edge node of Sparkplug B: publishes changed metrics, and later those that changed while it was offline.

    Its session is a clean one, as the specification wants, with another `client_id` than that of the daemon's
    main connection. `place` is its group and node, without a kind. The names of `metrics` must not change
    while it runs; `commands` are the metrics that a host may set to true. `next_session` counts a session and
    returns its number (`bdSeq`), which continues across restarts. As many changes as `history` says are kept
    while there is no connection. Without `aliases` each message has the
    names of its metrics. `born` tells whether the birth was published on the present connection.

    Raises ConfigError when protobuf is not installed.
    """

    def __init__(
        self,
        config: MqttConfig,
        *,
        client_id: str,
        place: SparkplugTopic,
        metrics: Sequence[Declared],
        commands: Collection[str],
        next_session: Callable[[], int],
        execute: Execute | None,
        clock: Clock,
        history: int,
        aliases: bool = True,
    ) -> None:
        self._wire = SparkplugWire("sparkplug")
        self._place, self._next_session, self._clock = place, next_session, clock
        self._kept = history
        self._numbers: Iterable[int] = itertools.count(1) if aliases else ()  # unique in the whole node
        self._own = SparkplugDevice(self, "", metrics, (REBIRTH, *commands), execute, history, self._numbers)
        self._devices: dict[str, SparkplugDevice] = {}
        self._lock = threading.Lock()
        self._session_number = self._seq = 0
        self.born, self._used = False, True
        self.session = Session(config, client_id=client_id, will=self._will, clean=True, listener=self)

    def add(
        self, name: str, metrics: Sequence[Declared], commands: Sequence[str], execute: Execute
    ) -> SparkplugDevice:
        """Have a device below this node; its birth is published now, or after that of the node."""
        part = SparkplugDevice(self, name, metrics, commands, execute, self._kept, self._numbers)
        with self._lock:
            self._devices[name] = part
            if self.born:
                self._send(part, "BIRTH", part.birth(self._clock.now()))
        self.session.subscribe([self._topic("DCMD", name)], 1, self._command)
        return part

    def remove(self, part: SparkplugDevice) -> None:
        """Have the device no more; its death is published."""
        with self._lock:
            if self._devices.get(part.device) is not part:
                return
            del self._devices[part.device]
            if self.born:
                self._send(part, "DEATH", ())
        self.session.unsubscribe([self._topic("DCMD", part.device)], self._command)

    # ---- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect in the background."""
        self.session.subscribe([self._topic("NCMD")], 1, self._command)
        self.session.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Publish the death, as the broker drops the will after an orderly end, and disconnect."""
        with self._lock:
            if self.born:
                self.session.publish(self._topic("NDEATH"), self._death(), qos=1)
            self.born = False
        self.session.stop(timeout)

    def _will(self) -> tuple[str, bytes, bool]:
        # A number that no birth has used is good for the next attempt, and costs no write.
        if self._used:
            self._session_number, self._used = self._next_session() % SEQUENCE, False
        return self._topic("NDEATH"), self._death(), False

    def _death(self) -> bytes:
        number = Metric(BDSEQ, self._session_number, datatype=INT64)
        return self._wire.write([number], ts=self._clock.now(), seq=None)

    def online(self) -> None:
        """Publish the births, and as historical data what has changed while there was no connection."""
        self._be_born()
        with self._lock:
            for part in (self._own, *self._devices.values()):
                while part.history:
                    changes = [part.history.popleft() for _ in range(min(OF_ONE_MESSAGE, len(part.history)))]
                    self._send(part, "DATA", [part.changed(change, historical=True) for change in changes])

    def connection_changed(self) -> None:
        """Keep changes as history from now on if the connection was lost."""
        if not self.session.connected:
            with self._lock:
                self.born = False

    def _be_born(self) -> None:
        """Publish all metrics with names, aliases and types; message numbers start again at 0."""
        with self._lock:
            now = self._clock.now()
            number = Metric(BDSEQ, self._session_number, ts=now, datatype=INT64)
            self._seq = 0
            self.born = self._used = True
            self._send(self._own, "BIRTH", [number, *self._own.birth(now)])
            for part in self._devices.values():
                self._send(part, "BIRTH", part.birth(now))

    # ---- what changes ----------------------------------------------------------------------

    def report(self, values: Mapping[str, MetricValue]) -> None:
        """Publish the values that have changed; undeclared metrics are ignored."""
        self.report_of(self._own, values)

    def report_of(self, part: SparkplugDevice, values: Mapping[str, MetricValue]) -> None:
        """Publish what has changed of the node itself or of one device."""
        with self._lock:
            changes = part.update(values, self._clock.now())
            if not self.born:
                part.history.extend(changes)
            elif changes:
                self._send(part, "DATA", [part.changed(change) for change in changes])

    def _send(self, part: SparkplugDevice, what: str, metrics: Sequence[Metric]) -> None:
        payload = self._wire.write(metrics, ts=self._clock.now(), seq=self._seq)
        self._seq = (self._seq + 1) % SEQUENCE
        self.session.publish(self._topic(part.kind(what), part.device), payload)

    def _topic(self, kind: str, device: str = "") -> str:
        return self._place._replace(kind=kind, device=device).name

    # ---- commands --------------------------------------------------------------------------

    def _command(self, delivery: ReceivedMessage) -> None:
        self.session.ack([delivery])
        if delivery.retain or len(delivery.payload) > LARGEST_COMMAND:
            log.warning("sparkplug_command_refused", reason="retained" if delivery.retain else "too large")
            return
        try:
            metrics = self._wire.read(delivery.payload).metrics
        except RejectedSampleError as problem:
            log.warning("sparkplug_command_refused", reason=problem.what)
            return
        parts = {self._topic(part.kind("CMD"), part.device): part for part in list(self._devices.values())}
        part = parts.get(delivery.topic, self._own)
        for name in part.wanted(metrics):
            if name == REBIRTH:
                self._be_born()
            elif name in part.commands and part.execute is not None:
                part.execute(name)
            else:
                log.warning("sparkplug_command_refused", reason=f"unknown: {name[:80]!r}")
