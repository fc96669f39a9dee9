"""Announcing the device to Home Assistant, again when that starts, and taking it back when switched off."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from edged import __version__
from edged.device.events import Extension
from edged.domain.home_assistant import BIRTH, AnnouncedDevice, announcement, topic
from edged.errors import StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.config import Config
    from edged.host.scheduler import Scheduler
    from edged.mqtt.client.message import ReceivedMessage
    from edged.mqtt.client.session import Session
    from edged.storage.models.registry import Registry

log = get_logger("edged.discovery")

ANNOUNCED = "discovery"


class HomeAssistantDiscovery(Extension):
    """The retained message by which Home Assistant knows this device and its `commands`.

    The registry remembers where the device is announced; the thread of `scheduler` can wait for the disk.
    """

    def __init__(
        self,
        config: Config,
        *,
        session: Session,
        registry: Registry,
        commands: Collection[str],
        scheduler: Scheduler,
    ) -> None:
        self._session = session
        self._registry = registry
        self._scheduler = scheduler
        wanted = config.discovery
        self._topic = topic(wanted.prefix, config.device.id) if wanted.enabled else None
        self._filters = [f"{wanted.prefix}/status"] if wanted.enabled else []
        self._device = AnnouncedDevice(
            id=config.device.id,
            name=wanted.name or config.device.id,
            root=config.topic_root,
            task=config.stream.resolved_task,
            version=__version__,
            commands=config.commands.unsigned().intersection(commands),
        )
        before = registry.get_value(ANNOUNCED)
        self._leftover = before if before != self._topic else None

    def start(self) -> None:
        """Listen for the birth of Home Assistant."""
        self._session.subscribe(self._filters, 1, self.receive)

    def online(self) -> None:
        """After each connection: announce, and take back what an earlier configuration had announced."""
        if self._leftover is not None:
            self._send(self._leftover, b"", self._taken_back)
        self._announce()

    def receive(self, delivery: ReceivedMessage) -> None:
        """Home Assistant has started, or ends."""
        if delivery.payload == BIRTH:
            self._announce()
        self._session.ack([delivery])

    def _announce(self) -> None:
        if self._topic is not None:
            payload = json.dumps(announcement(self._device), separators=(",", ":"), ensure_ascii=False)
            self._send(self._topic, payload.encode(), self._remember)

    def _send(self, place: str, payload: bytes, done: Callable[[], None]) -> None:
        self._session.publish(place, payload, qos=1, retain=True, on_done=lambda: self._scheduler.soon(done))

    def _taken_back(self) -> None:
        self._leftover = None
        self._remember()

    def _remember(self) -> None:
        """Store what has to be taken back one day; if the disk refuses it, the next announcement does."""
        if self._leftover is not None:
            return
        try:
            if self._registry.get_value(ANNOUNCED) != self._topic:
                self._registry.set_value(ANNOUNCED, self._topic)
        except StorageError as problem:
            log.warning("discovery_not_remembered", problem=problem.line())
