"""What follows when something happens in one part of a running device, and others have to hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.device.assembly import Assembly
    from edged.mqtt.client.message import ReceivedMessage


class Reactions:
    """Handed to the parts when they are made; itself it finds them later, when all are there."""

    def __init__(self, device: Assembly) -> None:
        self._device = device

    # What is made later than those who ask for it.

    def paused(self) -> list[str]:
        """What commands have paused."""
        return self._device.steering.pauses.paused()

    def settings(self) -> dict[str, Any]:
        """What commands have set."""
        return self._device.steering.settings.state()

    def command(self, delivery: ReceivedMessage) -> None:
        """A command came by another way than its topic."""
        self._device.control.receive(delivery)

    def rest(self, times: int) -> int:
        """Have training pause for so many times the labels of a run."""
        return self._device.learner.rest(times)
