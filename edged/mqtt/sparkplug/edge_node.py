"""An edge node of Sparkplug B: birth, death, what changed, and commands (specification 3.0, sections 4 to 6).

MQTT allows one last will a connection, and the death of an edge node is one: hence a connection of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from edged.errors import RejectedSampleError
from edged.logs import get_logger
from edged.mqtt.client.session import Session
from edged.mqtt.sparkplug.payload import (
    BDSEQ,
    BOOLEAN,
    INT64,
    REBIRTH,
    SEQUENCE,
    Metric,
    SparkplugTopic,
    SparkplugWire,
)

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import MqttConfig
    from edged.mqtt.client.message import ReceivedMessage

LARGEST_COMMAND = 64 * 1024
OF_ONE_MESSAGE = 200  # historical metrics

log = get_logger("edged.sparkplug")


class Declared(NamedTuple):
    """A metric that every birth names, with its type."""

    name: str
    datatype: int


class _Change(NamedTuple):
    name: str
    value: Any
    ts: float


class NodeBackend(Protocol):
    """The device behind an edge node."""

    def next_session(self) -> int:
        """Count a session: its number (`bdSeq`), which continues across restarts."""

    def execute(self, command: str) -> None:
        """Execute a command, named by its metric; called on the network thread."""


class SparkplugNode:
    """Edge node of Sparkplug B: publishes changed metrics, and later those that changed while it was offline.

    Its session is a clean one, as the specification wants, with another `client_id` than that of the daemon's
    main connection. `place` is its group and node, without a kind. The names of `metrics` must not change
    while it runs; `commands` are the metrics that a host may set to true, which `backend` executes. As many
    changes as `history` says are kept while there is no connection. Without `aliases` each message has the
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
        backend: NodeBackend,
        clock: Clock,
        history: int,
        aliases: bool = True,
    ) -> None:
        self._wire = SparkplugWire("sparkplug")
        self._place = place
        self._metrics = tuple(metrics)
        self._commands = (REBIRTH, *commands)
        names = [*(m.name for m in metrics), *self._commands] if aliases else []
        self._aliases = {name: alias for alias, name in enumerate(names, 1)}
        self._types = {metric.name: metric.datatype for metric in metrics}
        self._backend, self._clock = backend, clock
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}
        self._history: deque[_Change] = deque(maxlen=history)
        self._session_number = self._seq = 0
        self.born, self._used = False, True
        self.session = Session(config, client_id=client_id, will=self._will, clean=True, listener=self)

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
            self._session_number, self._used = self._backend.next_session() % SEQUENCE, False
        return self._topic("NDEATH"), self._death(), False

    def _death(self) -> bytes:
        number = Metric(BDSEQ, self._session_number, datatype=INT64)
        return self._wire.write([number], ts=self._clock.now(), seq=None)

    def online(self) -> None:
        """Publish the birth, and as historical data what has changed while there was no connection."""
        self._be_born()
        with self._lock:
            while self._history:
                changes = [self._history.popleft() for _ in range(min(OF_ONE_MESSAGE, len(self._history)))]
                self._send("NDATA", [self._changed(change, historical=True) for change in changes])

    def connection_changed(self) -> None:
        """Keep changes as history from now on if the connection was lost."""
        if not self.session.connected:
            with self._lock:
                self.born = False

    def _be_born(self) -> None:
        """Publish all metrics with names, aliases and types; message numbers start again at 0."""
        with self._lock:
            now = self._clock.now()
            metrics = [Metric(BDSEQ, self._session_number, ts=now, datatype=INT64)]
            metrics += [
                Metric(m.name, self._values.get(m.name), self._aliases.get(m.name), now, m.datatype)
                for m in self._metrics
            ]
            metrics += [Metric(name, False, self._aliases.get(name), now, BOOLEAN) for name in self._commands]
            self._seq = 0
            self.born = self._used = True
            self._send("NBIRTH", metrics)

    # ---- what changes ----------------------------------------------------------------------

    def report(self, values: Mapping[str, Any]) -> None:
        """Publish the values that have changed; undeclared metrics are ignored."""
        now = self._clock.now()
        with self._lock:
            changes = [
                _Change(name, value, now)
                for name, value in values.items()
                if name in self._types and (name not in self._values or self._values[name] != value)
            ]
            self._values |= {change.name: change.value for change in changes}
            if not self.born:
                self._history.extend(changes)
            elif changes:
                self._send("NDATA", [self._changed(change) for change in changes])

    def _changed(self, change: _Change, *, historical: bool = False) -> Metric:
        alias, datatype = self._aliases.get(change.name), self._types[change.name]
        return Metric(
            change.name if alias is None else "", change.value, alias, change.ts, datatype, historical
        )

    def _send(self, kind: str, metrics: Sequence[Metric]) -> None:
        payload = self._wire.write(metrics, ts=self._clock.now(), seq=self._seq)
        self._seq = (self._seq + 1) % SEQUENCE
        self.session.publish(self._topic(kind), payload)

    def _topic(self, kind: str) -> str:
        return self._place._replace(kind=kind).name

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
        names = {alias: name for name, alias in self._aliases.items()}
        wanted = [
            m.name or names.get(-1 if m.alias is None else m.alias, "") for m in metrics if m.value is True
        ]
        for name in dict.fromkeys(wanted):
            if name == REBIRTH:
                self._be_born()
            elif name in self._commands:
                self._backend.execute(name)
            else:
                log.warning("sparkplug_command_refused", reason=f"unknown: {name[:80]!r}")
