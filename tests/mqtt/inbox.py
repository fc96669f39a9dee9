"""Where tests collect deliveries and wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage
    from edged.mqtt.client.session import Session

PATIENCE = 20.0


class Inbox:
    """A sink that keeps what it gets; with a session it acknowledges, too."""

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._changed = threading.Condition()
        self.deliveries: list[ReceivedMessage] = []

    def __call__(self, delivery: ReceivedMessage) -> None:
        with self._changed:
            self.deliveries.append(delivery)
            self._changed.notify_all()
        if self._session is not None:
            self._session.ack([delivery])

    def wait(self, count: int) -> list[ReceivedMessage]:
        """The first `count` deliveries, or an error."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.deliveries) >= count, PATIENCE):
                raise TimeoutError(f"{len(self.deliveries)} of {count} messages came")
            return self.deliveries[:count]

    def payloads(self, count: int) -> list[bytes]:
        """The payloads of the first `count` deliveries."""
        return [delivery.payload for delivery in self.wait(count)]


class Log:
    """Log events as they come, from any thread, in place of structlog's processors."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.events: list[dict[str, object]] = []

    def __call__(self, _logger: object, level: str, event: MutableMapping[str, Any]) -> str:
        with self._changed:
            self.events.append({**event, "level": level})
            self._changed.notify_all()
        return ""

    def wait(self, event: str, **fields: object) -> dict[str, object]:
        """The first event of that name with these fields."""
        found: list[dict[str, object]] = []

        def there() -> bool:
            found[:] = self.named(event, **fields)
            return bool(found)

        with self._changed:
            if not self._changed.wait_for(there, PATIENCE):
                raise TimeoutError(f"no {event} {fields} in {self.events}")
        return found[0]

    def named(self, event: str, **fields: object) -> list[dict[str, object]]:
        """All events of that name with these fields so far."""
        wanted = {"event": event, **fields}.items()
        return [entry for entry in self.events if wanted <= entry.items()]


class Gate:
    """A callback that can be awaited."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self._then = then
        self._calls = threading.Semaphore(0)

    def __call__(self) -> None:
        self._then()
        self._calls.release()

    def wait(self) -> None:
        """Wait for one more call."""
        if not self._calls.acquire(timeout=PATIENCE):
            raise TimeoutError("the callback was not called")


class ConnectionGates:
    """A listener of a session: `made` and `lost` can be awaited."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.made, self.lost = Gate(then), Gate()
        self._fresh = False

    def online(self) -> None:
        self._fresh = True
        self.made()

    def connection_changed(self) -> None:
        if not self._fresh:
            self.lost()
        self._fresh = False
