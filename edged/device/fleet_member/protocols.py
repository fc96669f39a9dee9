"""What a member of a fleet needs from its device: a connection, and hands that train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.domain.federated.messages import RoundAnnouncement
    from edged.domain.training.training_run import FleetModelResult, RoundResult
    from edged.mqtt.client.message import ReceivedMessage


@dataclass(frozen=True)
class Condition:
    """How a device is: its version, and the fields of `DeviceState` of these names."""

    version: str
    idle: bool
    charged: bool
    cool: bool


class FleetTransport(Protocol):
    """The connection to the fleet."""

    @property
    def connected(self) -> bool:
        """Whether it stands."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Hand a message over; False when it was refused."""

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Take what is published on a filter, and what is kept there."""

    def leave(self, pattern: str) -> None:
        """No longer."""


class RoundWork(Protocol):
    """What a device does in a round; `train` and `judge` are called between two runs."""

    def why_not(self) -> str:
        """What keeps it from training now; empty when nothing does."""

    def new_samples(self, consumed: int) -> int:
        """Labelled ones after a position in label order."""

    def bundle(self) -> str:
        """Fingerprint of what it trains."""

    def state(self) -> Condition:
        """How the device is."""

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round and keep an update."""

    def judge(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Try the fleet's model here; what came of it."""
