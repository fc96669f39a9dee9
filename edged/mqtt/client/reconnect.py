"""When a connection is lost: what is wrong, when to connect again, and with which version of MQTT."""

from __future__ import annotations

import random
import time
from typing import Literal

from edged.logs import get_logger
from edged.mqtt.client.connection import TAKEN_OVER, refusal_remedy

Protocol = Literal["5", "3.1.1"]

FIRST = 0.2
STABLE_SECONDS = 10.0
TWIN_FIRST, TWIN_LONGEST = 15.0, 300.0
SILENT_CLOSES = 2
PATIENCE = 2.0
LONGEST_PATIENCE = 30.0
SUSPICIOUS = 3  # connections in a row that broke soon

log = get_logger("edged.mqtt")


class Backoff:
    """Exponential backoff with full jitter (Brooker, AWS Architecture Blog, 2015).

    A connection has to last `STABLE_SECONDS` seconds to be forgiven: a broker that takes us and throws us
    out at once must not make us spin. Where another client uses our name, each of the two throws the
    other out: then the pauses are long, between half of 15, 30, 60 ... 300 seconds and the whole.
    """

    def __init__(self, longest: float, rng: random.Random | None = None) -> None:
        self._longest = longest
        self._rng = rng or random.Random()
        self._attempt = 0
        self._twins = 0
        self._taken_over = False

    def record_takeover(self) -> None:
        """Record that another client has our name; call it before `record_end`."""
        self._taken_over = True
        self._twins += 1

    def record_end(self, lasted: float) -> None:
        """Record a connection that ended after `lasted` seconds; 0 if it was never established."""
        if lasted >= STABLE_SECONDS:
            self._attempt = 0
        if lasted >= TWIN_LONGEST:
            self._twins = int(self._taken_over)

    def delay(self) -> float:
        """Seconds to wait before the next attempt."""
        if self._taken_over:
            self._taken_over = False
            bound = min(TWIN_LONGEST, TWIN_FIRST * 2.0 ** min(self._twins - 1, 32))
            return self._rng.uniform(bound / 2, bound)
        bound = min(self._longest, FIRST * 2.0 ** min(self._attempt, 32))
        self._attempt += 1
        return self._rng.uniform(0.0, bound)


class ProtocolChoice:
    """Speaks the configured version; from 5 it falls back to 3.1.1 where the broker refuses 5.

    Some brokers refuse with a reason, others close or never answer: when that has happened twice in a
    row the other version is tried, until one is accepted. `patience` is how long to wait for an
    answer, in seconds; it grows, so that a slow link gets through in the end.

    >>> choice = ProtocolChoice("5"); choice.refused(); choice.protocol
    True
    '3.1.1'
    """

    def __init__(self, preferred: Protocol) -> None:
        self.protocol: Protocol = preferred
        self.patience = PATIENCE
        self._fixed = preferred == "3.1.1"
        self._proven = False
        self._silent = 0
        self._refused: set[Protocol] = set()

    @property
    def exhausted(self) -> bool:
        """Whether the broker has refused each version that can be tried, since it accepted one."""
        return self._fixed or len(self._refused) > 1

    def accepted(self) -> bool:
        """The broker took us; True when that is the first time with this version."""
        news = not self._proven
        self._proven = True
        self._silent = 0
        self._refused.clear()
        self.patience = PATIENCE
        return news

    def refused(self) -> bool:
        """The broker does not speak this version; True when another one will be tried for the first time."""
        if self._fixed:
            return False
        self._refused.add(self.protocol)
        self.protocol = "3.1.1" if self.protocol == "5" else "5"
        self._proven = False
        self._silent = 0
        return not self.exhausted

    def closed_silently(self) -> None:
        """The broker gave no answer: the other version will be tried if that happens again."""
        self.patience = min(LONGEST_PATIENCE, 2.0 * self.patience)
        self._silent += 1
        if not self._proven and self._silent >= SILENT_CLOSES:
            self.refused()


class ConnectionState:
    """What is wrong with the connection: logged once, and readable on any thread."""

    def __init__(self, host: str, port: int, client_id: str) -> None:
        self._where = {"host": host, "port": port}
        self._client_id = client_id
        self._logged: tuple[str, str] | None = None
        self._problem: str | None = None
        self.failure: tuple[str, str] | None = None  # the first that is final: reason and remedy
        self._online = False
        self._twin = ""
        self._twin_until = 0.0
        self._since = 0.0
        self._short = 0

    @property
    def problem(self) -> str | None:
        """What is wrong and what to do, in one line; None when all is well.

        That another client uses our name stays a problem for a while after we are connected again.
        """
        if not self._online:
            if self._problem is None:
                return "not connected yet"
            suspicion = f"; {self._twin}" if time.monotonic() < self._twin_until else ""
            return f"no connection to the broker: {self._problem}{suspicion}"
        return self._twin if time.monotonic() < self._twin_until else None

    def complain(self, event: str, reason: str, remedy: str, *, final: bool = True) -> None:
        """Log a problem once, not at every attempt, until it changes or is over.

        It is not `final` while an attempt in another way is to follow.
        """
        level = log.debug if self._logged == (event, reason) else log.warning
        self._logged = (event, reason)
        level(event, reason=reason, remedy=remedy, **self._where)
        self._problem = f"{reason} ({remedy})" if remedy else reason
        if final and self.failure is None:
            self.failure = reason, remedy

    def connected(self) -> None:
        """Record that the broker has accepted the connection."""
        self._online, self._logged, self._problem, self.failure = True, None, None, None
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
        self._short = self._short + 1 if now - self._since < STABLE_SECONDS else 0
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
