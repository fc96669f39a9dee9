"""What is wrong with the connection: told once in the log, and kept for whoever asks."""

from __future__ import annotations

import time

from edged.logs import get_logger
from edged.mqtt.client.connection import TAKEN_OVER, refusal_remedy
from edged.mqtt.client.reconnect import SETTLED, TWIN_FIRST, TWIN_LONGEST

SUSPICIOUS = 3  # connections in a row that broke soon

log = get_logger("edged.mqtt")


class ConnectionState:
    """Used by the network thread; `problem` may be asked for by any."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self._where = {"host": host, "port": port}
        self._client_id = client_id
        self._told: tuple[str, str] | None = None
        self._problem: str | None = None
        self._online = False
        self._twin = ""
        self._twin_until = 0.0
        self._since = 0.0
        self._short = 0

    @property
    def problem(self) -> str | None:
        """What is wrong and what to do, in one line; None when all is well.

        That another client uses our name is told for a while after we are connected again.
        """
        if not self._online:
            if self._problem is None:
                return "not connected yet"
            suspicion = f"; {self._twin}" if time.monotonic() < self._twin_until else ""
            return f"no connection to the broker: {self._problem}{suspicion}"
        return self._twin if time.monotonic() < self._twin_until else None

    def complain(self, event: str, reason: str, remedy: str) -> None:
        """Log a problem once, not at every attempt, until it changes or is over."""
        level = log.debug if self._told == (event, reason) else log.warning
        self._told = (event, reason)
        level(event, reason=reason, remedy=remedy, **self._where)
        self._problem = f"{reason} ({remedy})" if remedy else reason

    def connected(self) -> None:
        """Record that the broker has accepted the connection."""
        self._online, self._told, self._problem = True, None, None
        self._since = time.monotonic()

    def disconnected(self, reason: str) -> bool:
        """The connection was lost; True when another client has taken our name."""
        remedy, now = refusal_remedy(reason), time.monotonic()
        if reason == TAKEN_OVER:
            self._twin = f"another client calls itself {self._client_id} ({remedy})"
            self._twin_until = now + 2 * TWIN_LONGEST
            self.complain("mqtt_lost", f"{reason}: {self._client_id}", remedy)
            return True
        # Many brokers give no reason: then only the repetition tells.
        self._short = self._short + 1 if now - self._since < SETTLED else 0
        if self._short >= SUSPICIOUS:
            self._twin = (
                f"the connection breaks again and again: does another client call itself "
                f"{self._client_id}? ({refusal_remedy(TAKEN_OVER)})"
            )
            self._twin_until = now + TWIN_FIRST
        self.complain("mqtt_lost", reason, remedy)
        return False

    def record_end(self) -> None:
        """Record that the connection has ended."""
        self._online = False
        self._problem = self._problem or "it was lost; trying again"
