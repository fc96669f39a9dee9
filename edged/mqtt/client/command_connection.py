"""A connection for commands alone, while messages fill the main one and are not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.mqtt.client.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edged.config import MqttConfig
    from edged.mqtt.client.message import ReceivedMessage

CONFIRM_SECONDS = 5.0
WAITING = 20


class CommandConnection:
    """Moves a subscription from the main session to one of its own, and back.

    For a moment both have it; a command that comes twice then is recognised by its id.
    """

    def __init__(
        self, config: MqttConfig, main: Session, pattern: str, sink: Callable[[Any], None], *, client_id: str
    ) -> None:
        self._config = config.model_copy(update={"receive_maximum": WAITING})
        self._main = main
        self._pattern = pattern
        self._sink = sink
        self._client_id = client_id
        self._session: Session | None = None

    def open(self) -> None:
        """Have commands come over a connection of their own."""
        if self._session is not None:
            return
        session = Session(self._config, client_id=self._client_id)
        session.subscribe([self._pattern], 1, self._receive, as_published=True)
        session.start()
        self._session = session
        # Also at the start: who sees the birth of the main session may send a command at once.
        session.wait_ready(CONFIRM_SECONDS)
        self._main.unsubscribe([self._pattern])

    def close(self, *, for_good: bool = False) -> None:
        """Have them come over the main one again, unless that ends, too."""
        session, self._session = self._session, None
        if session is None:
            return
        if not for_good:
            self._main.subscribe([self._pattern], 1, self._sink, as_published=True)
            self._main.wait_ready(CONFIRM_SECONDS)
            session.unsubscribe([self._pattern])
        session.stop()

    def _receive(self, delivery: ReceivedMessage) -> None:
        # Connections of the main session have positive numbers: so the two cannot be mistaken for each other.
        delivery.epoch = -delivery.epoch
        self._sink(delivery)

    def acknowledge(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge each on the connection that it came over."""
        here = [delivery for delivery in deliveries if delivery.epoch < 0]
        self._main.ack([delivery for delivery in deliveries if delivery.epoch >= 0])
        if here and (session := self._session) is not None:
            for delivery in here:
                delivery.epoch = -delivery.epoch
            session.ack(here)
