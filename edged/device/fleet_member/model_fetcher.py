"""A model of the fleet on its way to the device, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.domain.federated.messages import FleetTopics, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.device.fleet_member.protocols import FleetTransport
    from edged.domain.federated.settings import BaseModelInfo
    from edged.mqtt.client.message import ReceivedMessage

SILENT_SECONDS = 60.0  # without a part that is still missing, until it is requested again


class ModelFetcher:
    """Fetches the models of a fleet, one at a time."""

    def __init__(self, topics: FleetTopics, transport: FleetTransport) -> None:
        self._topics, self._transport = topics, transport
        self._base: BaseModelInfo | None = None
        self._pattern = ""
        self._parts: dict[int, bytes] = {}
        self._since = 0.0

    def request(self, base: BaseModelInfo, now: float, sink: Callable[[ReceivedMessage], None]) -> None:
        """Request this model and no other; request it again if its parts do not come.

        `sink` gets each part, on the network thread, and hands it to `add` on the member's.
        """
        if self._base == base and now - self._since <= SILENT_SECONDS:
            return
        other = self._base is not None
        self.close()
        if other:
            return  # the broker must have heard of the end before it keeps sending what it has
        self._base, self._pattern, self._since = base, self._topics.model(base.hash, "+"), now
        self._transport.follow(self._pattern, sink)

    def add(self, topic: str, payload: bytes, now: float) -> bytes | None:
        """Add a part that came; return the complete model with the last one.

        Raises RejectedUpdateError when the parts together are not as large as was announced.
        """
        *_, digest, number = topic.split("/")
        base = self._base
        if base is None or base.hash != digest or not number.isdecimal() or int(number) >= base.parts:
            return None
        self._parts[int(number)], self._since = payload, now
        if len(self._parts) < base.parts:
            return None
        parts = [self._parts[n] for n in range(base.parts)]
        self.close()
        return joined(parts, base)

    def close(self) -> None:
        """Unsubscribe and drop the received parts."""
        if self._base is not None:
            self._transport.leave(self._pattern)
        self._base, self._parts = None, {}
