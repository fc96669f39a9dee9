"""The coordinator's end of the broker: messages that arrive in a queue, and announcements that go out."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from edged.domain.federated.messages import FleetTopics, Receipts, split
from edged.domain.federated.signatures import signed
from edged.fleet.coordinator.journal import CoordinatorJournal
from edged.fleet.rules.rounds import FleetState
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.signing import sign

log = get_logger("edged.fleet")


class Inbox:
    """Deliveries, as the network thread puts them in: at most `limit`.

    Where it is full, the network thread waits, and so does the broker, whose own bound does not always hold:
    mosquitto 2.0.11 had a thousand messages under way where 256 were allowed.
    """

    PATIENCE = 5.0

    def __init__(self, limit: int) -> None:
        self._queue: queue.SimpleQueue[ReceivedMessage | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(limit)

    def put(self, delivery: ReceivedMessage) -> bool:
        """Add a delivery, from another thread; False if there was no room for `PATIENCE` seconds."""
        if not self._room.acquire(timeout=self.PATIENCE):
            return False
        self._queue.put(delivery)
        return True

    def wake(self) -> None:
        """Let `receive` return, as there is other work."""
        self._queue.put(None)

    def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        """Return waiting deliveries, at most `most`; none if none arrive within `timeout` seconds."""
        found: list[ReceivedMessage] = []
        try:
            delivery = self._queue.get(timeout=timeout)
            while delivery is not None:
                found.append(delivery)
                self._room.release()
                if len(found) == most:
                    break
                delivery = self._queue.get_nowait()
        except queue.Empty:
            pass
        return found


class Announcer:
    """Publishes through `session` what `journal` holds; rounds and receipts signed with the private `key`.

    Rounds and models are retained, and published again when the broker may have lost them. Raises ConfigError
    when `key` is no private key of Ed25519; UnavailableError without what signs.
    """

    def __init__(
        self, session: Session, topics: FleetTopics, journal: CoordinatorJournal, key: Path | None = None
    ) -> None:
        self._session, self._topics, self._journal, self._key = session, topics, journal, key
        if key is not None:
            sign(b"", key)
        self._published: set[str] = set()
        self._retained = set(journal.models())  # that an earlier process may have left at the broker

    def announce(self, course: FleetState, *, again: bool = False) -> None:
        """Publish the model of the round and then the round, and withdraw models that no device needs now.

        With `again` also what was published before.
        """
        wanted = {course.standing.hash} | ({course.round.base.hash} if course.round else set())
        if course.round is not None:
            for digest in sorted(wanted if again else wanted - self._published):
                self._publish_model(digest)
            payload = self._signed(self._topics.round, course.round.payload())
            self._send(self._topics.round, payload, retain=True)
            self._published = wanted
        for digest in sorted(self._retained - wanted):
            self._withdraw(digest)
        self._retained = wanted

    def _publish_model(self, digest: str) -> None:
        for number, part in enumerate(split(self._journal.blob(digest))):
            self._send(self._topics.model(digest, number), part, retain=True)

    def _withdraw(self, digest: str) -> None:
        """Remove a retained model from the broker."""
        for number in range(len(split(self._journal.blob(digest)))):
            self._send(self._topics.model(digest, number), b"", retain=True)

    def receipts(self, by_round: Sequence[tuple[int, Receipts]]) -> None:
        """Publish what became of updates; devices ask again for a lost receipt."""
        for number, receipts in by_round:
            topic = self._topics.ack(number)
            self._send(topic, self._signed(topic, receipts.payload()))

    def status(self, payload: bytes) -> None:
        """Publish the status, a JSON object, for all to read."""
        self._session.publish(
            self._topics.status, self._signed(self._topics.status, payload), qos=1, retain=True
        )

    def _signed(self, topic: str, payload: bytes) -> bytes:
        key = self._key
        return payload if key is None else signed(topic, payload, lambda message: sign(message, key))

    def _send(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if not self._session.publish(topic, payload, qos=1, retain=retain):
            log.warning(
                "fleet_not_told", topic=topic, remedy="edged reports it again when the broker is back"
            )
