"""A second connection, for what must not wait behind messages that are not acknowledged, or for those."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from edged.mqtt.client.session import Session

if TYPE_CHECKING:
    from edged.config import MqttConfig
    from edged.mqtt.client.message import ReceivedMessage
    from edged.mqtt.client.subscriptions import Sink

CONFIRM_SECONDS = 5.0
DRAIN_SECONDS, QUIET_SECONDS = 10.0, 0.3  # for what the broker still has for a connection that ends
WAITING = 20
SIDE = 1 << 32  # added to the numbers of connections of the second session


class SideConnection:
    """Moves a subscription from the main session to a session of its own, and back.

    For a moment both sessions are subscribed: the id of a command tells that it came twice, that of a message
    does so where it has one.

    The main session is subscribed to the `filters` already; `client_id` is another than its own. `commands`:
    what comes are commands, of which it counts how they were published. `peers`: those of other streams, with
    which messages that are not acknowledged are counted together; it adds itself.
    """

    def __init__(
        self,
        config: MqttConfig,
        main: Session,
        filters: Sequence[str],
        *,
        client_id: str,
        commands: bool,
        peers: list[SideConnection],
    ) -> None:
        self._as_published = commands
        self._peers = peers
        peers.append(self)
        self._received = self._acked = self._epoch = 0
        self._config = config.model_copy(update={"receive_maximum": WAITING})
        self._main = main
        self._filters = filters
        self._client_id = client_id
        self._session: Session | None = None
        self._ending: Session | None = None
        self._came = self._owed = 0  # messages over the second session, and those not acknowledged

    def open(self, sink: Sink) -> None:
        """Receive commands on a connection of their own and deliver them to `sink`. Safe to call twice."""
        if self._session is not None:
            return
        session = Session(self._config, client_id=self._client_id)
        session.subscribe(self._filters, 1, partial(self._receive, sink), as_published=self._as_published)
        session.start()
        self._session = session
        # Also at the start: who sees the birth of the main session may send a command at once.
        session.wait_ready(CONFIRM_SECONDS)
        self._main.unsubscribe(self._filters)

    def close(self, sink: Sink | None = None) -> None:
        """Stop the connection; with `sink` the main session receives commands again and delivers them there.

        Safe to call twice.
        """
        session, self._session = self._session, None
        if session is None:
            return
        self._ending = session
        if sink is not None:
            self._main.subscribe(self._filters, 1, sink, as_published=self._as_published)
            self._main.wait_ready(CONFIRM_SECONDS)
            session.unsubscribe_at_broker(self._filters)
            if not self._as_published:
                self._drain(session)
        session.stop()
        self._ending, self._owed = None, 0

    def _drain(self, session: Session) -> None:
        """Let the broker send what it has kept for `session`: nobody else would get it."""
        until, seen = time.monotonic() + DRAIN_SECONDS, -1
        while session.connected and time.monotonic() < until and (self._owed or seen != self._came):
            seen = self._came
            time.sleep(QUIET_SECONDS)

    def _receive(self, sink: Sink, delivery: ReceivedMessage) -> None:
        self._came += 1
        self._owed += delivery.qos > 0
        delivery.epoch += SIDE  # so that it cannot be mistaken for one of the main session
        sink(delivery)

    @property
    def in_flight(self) -> int:
        """How many messages the broker sends before it waits; 0 where, of all streams, it soon does."""
        most = self._main.in_flight
        return most if 2 * sum(peer.unacknowledged for peer in self._peers) < most else 0

    @property
    def unacknowledged(self) -> int:
        """Messages of this stream on the main connection that are not acknowledged."""
        return self._received - self._acked

    def count(self, delivery: ReceivedMessage) -> None:
        """Count a message that came over the main connection; on the network thread."""
        if delivery.epoch != self._epoch:
            self._epoch, self._received, self._acked = delivery.epoch, 0, 0
        self._received += delivery.qos > 0

    def leave(self) -> None:
        """Count no longer among the others."""
        self._peers.remove(self)

    @property
    def apart(self) -> bool:
        """Whether it is open."""
        return self._session is not None

    def drop(self) -> None:
        """Reconnect, so that the broker delivers again what is not acknowledged."""
        self._main.drop()
        if (session := self._session) is not None:
            session.drop()

    @property
    def connected(self) -> bool:
        """Whether the main session is connected."""
        return self._main.connected

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Publish over the main session; see `Session.publish`."""
        return self._main.publish(topic, payload, qos=qos, retain=retain)

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge each message on the connection that it came over; on the ingest thread."""
        self._acked += sum(delivery.qos > 0 and delivery.epoch == self._epoch for delivery in deliveries)
        self.acknowledge(deliveries)

    def acknowledge(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge each message on the connection that it came over."""
        here = [delivery for delivery in deliveries if delivery.epoch >= SIDE]
        self._main.ack([delivery for delivery in deliveries if delivery.epoch < SIDE])
        if here and (session := self._session or self._ending) is not None:
            for delivery in here:
                delivery.epoch -= SIDE
            session.ack(here)
            self._owed -= sum(delivery.qos > 0 for delivery in here)
