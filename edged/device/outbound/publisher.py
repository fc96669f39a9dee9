"""What leaves the device and by which way: at once or not at all, or through the outbox."""

from __future__ import annotations

import json
import threading
import time
from collections import abc
from dataclasses import replace

from edged.clock import Clock
from edged.config import Config
from edged.device.events import Listener
from edged.device.outbound.store_and_forward import StoreAndForward
from edged.device.outbound.weight_updates import WeightUpdate, WeightUpdates
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage, extended
from edged.errors import EdgedError, StorageError
from edged.logs import get_logger
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.journal.journal import Sequence
from edged.storage.models.registry import Registry
from edged.storage.outbox.queue import DATABASE, Outbox
from edged.storage.outbox.tables import OutboxBacklog

PATIENCE = 10.0  # seconds that predictions wait for a busy broker
PUBLISHED = "weights_published"  # name of the registry's value

log = get_logger("edged.publishing")


class OutboundRouter(Listener):
    """Sends states while there is a connection, and everything else as the configuration wants it.

    `boot` is the number of the daemon's start; `number` numbers its messages. `forwarder` has those that must
    arrive: start and stop it with the stream.
    """

    def __init__(
        self,
        config: Config,
        *,
        topics: Topics,
        session: Session,
        registry: Registry,
        updates: WeightUpdates,
        clock: Clock,
        boot: int,
        number: Sequence,
    ) -> None:
        self._config = config
        self._topics = topics
        self._session = session
        self._registry = registry
        self._updates = updates
        self._updating = threading.Lock()
        self._clock = clock
        self._boot = boot
        self._number = number
        self._unpublished = 0
        self.silent = False
        """Whether predictions are kept back."""

        self.forwarder = self._open()

    def _open(self) -> StoreAndForward:
        config, outbox = self._config.outbox, None
        path = self._config.storage.dir / DATABASE
        try:
            outbox = Outbox.open(
                path, max_bytes=config.max_bytes, max_age=config.constants.max_age, clock=self._clock
            )
        except StorageError as problem:
            log.error("outbox_unavailable", problem=problem.line())
        return StoreAndForward(outbox, session=self._session, rate=config.constants.rate, clock=self._clock)

    def connection_changed(self) -> None:
        """Try again what waits for the broker."""
        self.forwarder.wake()

    # ---- sending -------------------------------------------------------------------------------

    def now(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        """What is said again at each connection, and worth nothing without one."""
        return self._session.connected and self._session.publish(topic, payload, qos=qos, retain=retain)

    def deliver(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        """Publish a message that must arrive: now, or later through the outbox."""
        self.forwarder.deliver(kind, topic, payload)

    def predicted(self, payloads: list[bytes]) -> None:
        """Publish a batch of predictions as the section `serving` says."""
        serving, topic = self._config.serving, self._topics.predictions
        if not serving.publish or self.silent:
            return
        if serving.must_deliver:
            for payload in payloads:
                more = b',"boot":%d,"seq":%d}' % (self._boot, self._number())
                self.deliver(MessageKind.PREDICTION, topic, extended(payload, more))
            return
        self._wait_for_room(serving.constants.qos, len(payloads))
        for payload in payloads:
            if not self._session.publish(topic, payload, qos=serving.constants.qos):
                self._unpublished += 1

    def _wait_for_room(self, qos: int, count: int) -> None:
        """While the broker takes them, predictions wait for room rather than being dropped."""
        session, deadline = self._session, self._clock.monotonic() + PATIENCE
        while session.room(qos) < count and session.connected and self._clock.monotonic() < deadline:
            time.sleep(0.002)

    def champion_changed(self, version: int) -> None:
        """Publish the weights of the new champion, where `weights.every` is 0."""
        if self._config.weights.every == 0:
            self._send_weights(version)

    def weights_if_new(self) -> None:
        """The champion's weights, unless they were the last to be published: by schedule."""
        version = self._registry.champion()
        if version is not None and version != self._registry.get_value(PUBLISHED):
            self._send_weights(version)

    def _send_weights(self, version: int) -> None:
        try:
            with self._updating:
                self.update(self._updates.update(version))
                self._registry.set_value(PUBLISHED, version)
        except EdgedError as problem:
            log.warning("weights_not_published", version=version, problem=problem.line())

    def update(self, update: WeightUpdate, chunks: abc.Sequence[int] | None = None) -> None:
        """All chunks of an update, or those of these numbers, and its manifest after them."""
        numbers = range(len(update.chunks)) if chunks is None else chunks
        parts = [(str(number), update.chunks[number]) for number in numbers]
        parts.append(("manifest", json.dumps(update.manifest()).encode()))
        parcels = [
            OutboxMessage(MessageKind.WEIGHTS, self._topics.weights(update.about.version, name), part)
            for name, part in parts
        ]
        self.forwarder.store(parcels)

    # ---- saying how it stands ------------------------------------------------------------------

    def outbox(self) -> OutboxBacklog:
        """Count what the broker does not have yet, and what was given up."""
        waiting = self.forwarder.outstanding()
        dropped = waiting.dropped + self._session.dropped + self._unpublished
        return replace(waiting, dropped=dropped)
