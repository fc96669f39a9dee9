"""The device as a member of its fleet; made only if section `fleet` is configured."""

from __future__ import annotations

from edged.config.fleet import FleetConfig
from edged.device.events import Events, Extension
from edged.device.fleet_member.local_rounds import LocalRounds
from edged.device.fleet_member.member import Member
from edged.device.fleet_member.round_executor import RoundExecutor
from edged.device.fleet_member.transports import FleetTransport
from edged.device.live_pipeline import LivePipeline
from edged.domain.federated.messages import FleetTopics
from edged.mqtt.client.session import Session
from edged.signing import Keys
from edged.storage.models.bundle_archive import ActiveBundle


class Membership(Extension):
    """Lets the device take part in the rounds of its fleet.

    Rounds come over `session`, or with `fleet.flower` from a program on this machine.

    Attributes
    ----------
    local_rounds
        Serves the program on this machine; None where rounds come over MQTT.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        fleet: FleetConfig,
        bundles: ActiveBundle,
        session: Session,
        events: Events,
    ) -> None:
        config = pipeline.config
        work = RoundExecutor(pipeline, fleet, bundles, events)
        self.local_rounds: LocalRounds | None = None
        self._member: Member | None = None
        if fleet.name is None:
            self.local_rounds = LocalRounds(fleet, work, config.storage.dir)
            return
        topics = FleetTopics(fleet.name, config.mqtt.root)
        self._member = Member(
            config.device.id,
            fleet,
            topics=topics,
            transport=FleetTransport(session, topics, Keys(fleet.keys) if fleet.keys else None),
            work=work,
            state=config.storage.dir,
            clock=pipeline.clock,
        )

    def start(self) -> None:
        """Subscribe to rounds and receipts, and start the member's thread."""
        if self._member is not None:
            self._member.start()

    def stop(self) -> None:
        """Stop the member, or let requests of the program fail."""
        if self._member is not None:
            self._member.stop()
        if self.local_rounds is not None:
            self.local_rounds.stop()
