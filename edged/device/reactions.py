"""What follows when something happens in one part of a running device, and others have to hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.training.guards import FlashWear

if TYPE_CHECKING:
    from edged.device.assembly import Assembly
    from edged.mqtt.client.message import ReceivedMessage


class Reactions:
    """Handed to the parts when they are made; itself it finds them later, when all are there."""

    def __init__(self, device: Assembly) -> None:
        self._device = device
        self._wear = FlashWear(0.0)

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

    def worn(self) -> bool:
        """Whether trainings have written more than they may."""
        rate = self._device.config.training.max_write_rate
        if rate is None:
            return False
        self._wear.rate = rate
        return self._wear.worn(self._device.learner.written, self._device.clock.monotonic())

    def rest(self, times: int) -> int:
        """Have training pause for so many times the labels of a run."""
        return self._device.learner.rest(times)

    def online(self) -> None:
        """The broker has taken our connection."""
        self._device.events.online()
        self._device.events.connection_changed()
