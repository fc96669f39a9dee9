"""A connection for commands alone, while messages fill the main one and are not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from edged.mqtt.client.session import Session

if TYPE_CHECKING:
    from edged.config import MqttConfig
    from edged.mqtt.client.message import ReceivedMessage
    from edged.mqtt.client.subscriptions import Sink

CONFIRM_SECONDS = 5.0
WAITING = 20


class CommandConnection:
    """Moves a subscription from the main session to a session of its own, and back.

    For a moment both sessions are subscribed: the id of a command tells that it came twice.

    The main session is subscribed to the `filters` already; `client_id` is another than its own.
    """

    def __init__(self, config: MqttConfig, main: Session, filters: Sequence[str], *, client_id: str) -> None:
        self._config = config.model_copy(update={"receive_maximum": WAITING})
        self._main = main
        self._filters = filters
        self._client_id = client_id
        self._session: Session | None = None

    def open(self, sink: Sink) -> None:
        """Receive commands on a connection of their own and deliver them to `sink`. Safe to call twice."""
        if self._session is not None:
            return
        session = Session(self._config, client_id=self._client_id)
        session.subscribe(self._filters, 1, partial(self._receive, sink), as_published=True)
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
        if sink is not None:
            self._main.subscribe(self._filters, 1, sink, as_published=True)
            self._main.wait_ready(CONFIRM_SECONDS)
            session.unsubscribe(self._filters)
        session.stop()

    def _receive(self, sink: Sink, delivery: ReceivedMessage) -> None:
        # Connections of the main session have positive numbers: so the two cannot be mistaken for each other.
        delivery.epoch = -delivery.epoch
        sink(delivery)

    def acknowledge(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge each message on the connection that it came over."""
        here = [delivery for delivery in deliveries if delivery.epoch < 0]
        self._main.ack([delivery for delivery in deliveries if delivery.epoch >= 0])
        if here and (session := self._session) is not None:
            for delivery in here:
                delivery.epoch = -delivery.epoch
            session.ack(here)
