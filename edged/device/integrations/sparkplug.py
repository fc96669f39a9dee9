"""The daemon as an edge node of Sparkplug B: which figures are metrics, and which commands it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any

from edged import __version__
from edged.clock import Clock
from edged.config import Config
from edged.device.commands.inbox import CommandInbox
from edged.device.events import Extension
from edged.device.reports import StreamMetrics
from edged.errors import StorageError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.sparkplug.edge_node import Declared, Execute, SparkplugDevice, SparkplugNode
from edged.mqtt.sparkplug.payload import BOOLEAN, DOUBLE, INT64, STRING, MetricValue, SparkplugTopic
from edged.mqtt.topics import Topics
from edged.storage.models.registry import Registry

NUMBER = "sparkplug_session"
MAX_HISTORY = 10_000  # changes kept while the broker is away, sent as historical; the oldest are dropped
COMMANDS = ("train", "rollback", "pause", "resume")

# Name and type of each metric, and where its value is in `StreamMetrics`.
FIGURES = (
    ("Model/Version", INT64, "model"),
    ("Model/Quality", DOUBLE, "live.mean"),
    ("Model/Labelled", INT64, "live.labelled"),
    ("Samples/Count", INT64, "ingest.samples"),
    ("Samples/Rate", DOUBLE, "ingest.per_s"),
    ("Samples/Waiting", INT64, "ingest.waiting"),
    ("Samples/Quarantined", INT64, "quarantine"),
    ("Samples/Predicted", INT64, "predictions"),
    ("Sensors/Stuck", INT64, "ingest.stuck"),
    ("Labels/Share", DOUBLE, "labels.share"),
    ("Buffer/Rows", INT64, "buffer.rows"),
    ("Buffer/Bytes", INT64, "buffer.bytes"),
    ("Buffer/Evicted", INT64, "buffer.evicted"),
    ("Training/Runs", INT64, "training.runs"),
    ("Training/Failures", INT64, "training.failures"),
    ("Training/Running", BOOLEAN, "training.running"),
    ("Training/New Labels", INT64, "training.new"),
    ("Latency/p50", DOUBLE, "latency.p50_ms"),
    ("Latency/p99", DOUBLE, "latency.p99_ms"),
    ("Outbox/Pending", INT64, "outbox.pending"),
    ("Outbox/Dropped", INT64, "outbox.dropped"),
)
PREDICTION = (
    ("Prediction/Key", STRING, "key"),
    ("Prediction/Label", STRING, "label"),
    ("Prediction/Confidence", DOUBLE, "confidence"),
)
VERSION = "Properties/Version"
DECLARED = tuple(Declared(name, kind) for name, kind, _ in (*FIGURES, *PREDICTION))
OF_NODE = Declared(VERSION, STRING)
PATIENCE = 2.0  # seconds for taking leave

log = get_logger("edged.sparkplug")


class StreamFigures(Extension):
    """Tells metrics and the newest prediction of a stream, and hands commands to those who carry them out.

    Commands go to `inbox` as if they had come on `request/<command>`; the answer goes where all do. `prefix`
    begins the names of their metrics.
    """

    def __init__(self, inbox: CommandInbox, topics: Topics, prefix: str) -> None:
        self._inbox, self._topics, self._prefix = inbox, topics, prefix
        self._newest: bytes | None = None
        self._sink: SparkplugNode | SparkplugDevice | None = None

    def names(self, config: Config, commands: Collection[str]) -> list[str]:
        """The metrics of those `commands` that need no signature: a host of Sparkplug cannot sign."""
        unsigned = config.commands.unsigned().intersection(commands)
        return [f"{self._prefix}{name.capitalize()}" for name in COMMANDS if name in unsigned]

    def predicted(self, payloads: list[bytes]) -> None:
        """Note the newest of these predictions for the next `report`."""
        if payloads:
            self._newest = payloads[-1]

    def metrics(self, metrics: StreamMetrics) -> None:
        """Report what has changed of the stream's metrics, and the newest prediction."""
        changed = {name: _typed(attrgetter(path)(metrics), kind) for name, kind, path in FIGURES}
        newest, self._newest = self._newest, None
        if newest is not None:
            prediction = json.loads(newest)
            changed |= {name: _typed(prediction.get(field), kind) for name, kind, field in PREDICTION}
        if self._sink is not None:
            self._sink.report(changed)

    def execute(self, command: str) -> None:
        """Hand over a command, named by its metric, as if it had come on its topic."""
        topic = self._topics.request(command.removeprefix(self._prefix).lower())
        self._inbox.receive(ReceivedMessage(topic, b"{}", 0, 0, False, False, 0, time.monotonic()))


class NodeOfStreams:
    """The edge node of a device with several streams, each of which is a Sparkplug device below it.

    `registry` keeps the number of the session. `metrics` and `commands` are the node's own.
    """

    def __init__(
        self,
        config: Config,
        registry: Registry,
        clock: Clock,
        metrics: Sequence[Declared] = (),
        commands: Collection[str] = (),
        execute: Execute | None = None,
    ) -> None:
        section = config.sparkplug
        if section is None:
            raise ValueError("there is no section sparkplug")
        self._registry = registry
        self._session: int | None = None
        self.node = SparkplugNode(
            config.mqtt,
            client_id=f"{config.client_id}-sparkplug",
            place=SparkplugTopic(section.group, "", section.node or config.device.id),
            metrics=[*metrics, OF_NODE],
            commands=commands,
            next_session=self.next_session,
            execute=execute,
            clock=clock,
            history=MAX_HISTORY,
            aliases=section.aliases,
        )
        self.node.report({VERSION: __version__})

    def start(self) -> None:
        """Connect the edge node to its broker."""
        self.node.start()

    def stop(self) -> None:
        """Say that we go, and end the connection."""
        self.node.stop(PATIENCE)

    def next_session(self) -> int:
        """Count a session and store its number; log a warning if that fails."""
        if self._session is None:
            self._session = int(self._registry.get_value(NUMBER, -1))
        self._session += 1
        try:
            self._registry.set_value(NUMBER, self._session)
        except StorageError as problem:
            log.warning("sparkplug_session_not_kept", problem=problem.line())
        return self._session


class EdgeNode(NodeOfStreams, StreamFigures):
    """The only stream of a device as an edge node."""

    def __init__(
        self,
        config: Config,
        *,
        registry: Registry,
        inbox: CommandInbox,
        topics: Topics,
        commands: Collection[str],
        clock: Clock,
    ) -> None:
        StreamFigures.__init__(self, inbox, topics, "Node Control/")
        super().__init__(config, registry, clock, DECLARED, self.names(config, commands), self.execute)
        self._sink = self.node


class StreamOfNode(StreamFigures):
    """One of several streams as a Sparkplug device below the device's edge node."""

    def __init__(
        self,
        config: Config,
        edge: NodeOfStreams,
        *,
        inbox: CommandInbox,
        topics: Topics,
        commands: Collection[str],
    ) -> None:
        super().__init__(inbox, topics, "Device Control/")
        self._name, self._node = config.name, edge.node
        self._commands = self.names(config, commands)
        self._device: SparkplugDevice | None = None

    def start(self) -> None:
        """Publish the birth of the stream's device, once that of the node is out."""
        self._sink = self._device = self._node.add(self._name, DECLARED, self._commands, self.execute)

    def stop(self) -> None:
        """Publish the death of the stream's device."""
        if self._device is not None:
            self._device.stop()


def _typed(value: Any, kind: int) -> MetricValue:
    if kind == BOOLEAN:
        return value is not None
    if value is None:
        return None
    return str(value) if kind == STRING else int(value) if kind == INT64 else float(value)
