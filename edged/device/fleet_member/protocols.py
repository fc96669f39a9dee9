"""What a member of a fleet needs: a connection, the device that it runs on, and what that does in a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edged.domain.events import Event
    from edged.domain.federated.messages import RoundAnnouncement
    from edged.domain.federated.participation import MembershipRecord
    from edged.domain.federated.round_orders import FleetModelResult, RoundResult
    from edged.mqtt.client.message import ReceivedMessage


@dataclass(frozen=True)
class Condition:
    """How a device is: its version, and the fields of `DeviceState` of these names."""

    version: str
    idle: bool
    charged: bool
    cool: bool
    tags: tuple[str, ...] = ()
    arch: str = ""
    offset: int = 0


class FleetTransport(Protocol):
    """The connection to the fleet; see `MqttTransport` and `LocalTransport`."""

    @property
    def connected(self) -> bool:
        """Whether the connection is established."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message; return whether it was accepted."""

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a topic filter, retained messages included; `sink` gets them on the network thread."""

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""


class MemberHost(Protocol):
    """The device that a member runs on; see `DeviceHost`."""

    @property
    def record(self) -> MembershipRecord:
        """The membership record as it was last stored; may be read from any thread."""

    def store(self, record: MembershipRecord) -> None:
        """Store the membership record durably; raises StorageError when the disk refuses."""

    def between_runs(self, job: Callable[[], None]) -> None:
        """Call `job` on another thread as soon as no training run is in progress."""

    def event(self, event: Event) -> None:
        """Report an event of the contract."""


class RoundWork(Protocol):
    """What a device does in a round; see `RoundExecutor`.

    `train` and `evaluate` take long; the member calls them within `MemberHost.between_runs`.
    """

    def why_not(self) -> str:
        """Return what keeps the device from training now; empty when nothing does."""

    def new_samples(self, consumed: int) -> int:
        """Count labelled samples after a position in label order."""

    def bundle(self) -> str:
        """Return the fingerprint of the bundle that the device trains."""

    def state(self) -> Condition:
        """Return how the device is."""

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round and store an update."""

    def evaluate(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Evaluate the fleet's model on the device's holdout; return the qualities and what came of it.

        `standing` is fingerprint and file of the fleet's model that was judged before, where it is kept.
        """
