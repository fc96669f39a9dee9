"""The daemon as an edge node of Sparkplug B: which figures are metrics, and which commands it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from edged import __version__
from edged.device.events import Extension
from edged.errors import StorageError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.sparkplug.edge_node import Declared, SparkplugNode
from edged.mqtt.sparkplug.payload import BOOLEAN, DOUBLE, INT64, STRING, SparkplugTopic

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import Config
    from edged.device.commands.inbox import CommandInbox
    from edged.device.reports import StreamMetrics
    from edged.mqtt.topics import Topics
    from edged.storage.models.registry import Registry

NUMBER = "sparkplug_session"
COMMANDS = {
    f"Node Control/{command.capitalize()}": command for command in ("train", "rollback", "pause", "resume")
}

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
PATIENCE = 2.0  # seconds for taking leave

log = get_logger("edged.sparkplug")


class EdgeNode(Extension):
    """Tells metrics and the newest prediction, and hands commands to those who carry them out.

    The registry keeps the number of the session. Commands go to `inbox` as if they had come on
    `request/<command>`; the answer goes where all do.
    """

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
        section = config.sparkplug
        if section is None:
            raise ValueError("there is no section sparkplug")
        self._registry, self._inbox, self._topics = registry, inbox, topics
        self._number: int | None = None
        self._newest: bytes | None = None
        unsigned = config.commands.unsigned().intersection(commands)  # a host of Sparkplug cannot sign
        declared = [Declared(name, kind) for name, kind, _ in (*FIGURES, *PREDICTION)]
        self._node = SparkplugNode(
            config.mqtt,
            client_id=f"{config.client_id}-sparkplug",
            place=SparkplugTopic(section.group, "", section.node or config.device.id),
            metrics=[*declared, Declared(VERSION, STRING)],
            commands=[metric for metric, command in COMMANDS.items() if command in unsigned],
            backend=self,
            clock=clock,
            history=section.history,
            aliases=section.aliases,
        )
        self._node.report({VERSION: __version__})

    def start(self) -> None:
        """Connect the edge node to its broker."""
        self._node.start()

    def stop(self) -> None:
        """Say that we go, and end the connection."""
        self._node.stop(PATIENCE)

    def predicted(self, payloads: list[bytes]) -> None:
        """Note the newest of these predictions for the next `report`."""
        if payloads:
            self._newest = payloads[-1]

    def metrics(self, metrics: StreamMetrics) -> None:
        """Report what has changed of the daemon's metrics, and the newest prediction."""
        changed = {name: _typed(attrgetter(path)(metrics), kind) for name, kind, path in FIGURES}
        newest, self._newest = self._newest, None
        if newest is not None:
            prediction = json.loads(newest)
            changed |= {name: _typed(prediction.get(field), kind) for name, kind, field in PREDICTION}
        self._node.report(changed)

    def execute(self, command: str) -> None:
        """Hand over a command, named by its metric, as if it had come on its topic."""
        topic = self._topics.request(COMMANDS[command])
        self._inbox.receive(ReceivedMessage(topic, b"{}", 0, 0, False, False, 0, time.monotonic()))

    def next_session(self) -> int:
        """Count a session and store its number; log a warning if that fails."""
        number = self._number
        if number is None:
            number = int(self._registry.get_value(NUMBER, -1))
        self._number = number + 1
        try:
            self._registry.set_value(NUMBER, self._number)
        except StorageError as problem:
            log.warning("sparkplug_session_not_kept", problem=problem.line())
        return self._number


def _typed(value: Any, kind: int) -> Any:
    if kind == BOOLEAN:
        return value is not None
    if value is None:
        return None
    return str(value) if kind == STRING else int(value) if kind == INT64 else float(value)
