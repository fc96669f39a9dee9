"""The device as a member of its fleet; made only if section `fleet` is configured."""

from __future__ import annotations

from edged.config.fleet import FleetConfig
from edged.device.events import Events, Extension
from edged.device.fleet_member.local_transport import LocalTransport
from edged.device.fleet_member.member import Member
from edged.device.fleet_member.round_executor import DeviceHost, RoundExecutor
from edged.device.fleet_member.transports import FleetTransport, MqttTransport, SignedTransport
from edged.device.live_pipeline import LivePipeline
from edged.domain.events import Event
from edged.domain.federated.messages import FleetTopics
from edged.mqtt.client.session import Session
from edged.signing import Keys
from edged.storage.models.installed_bundles import ActiveBundle


class Membership(Extension):
    """Lets the device take part in the rounds of its fleet.

    `session` connects it to the fleet, unless another program carries its messages (`fleet.flower`).

    Attributes
    ----------
    local_transport
        Where another program hands rounds in; None where they come over MQTT.
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
        topics = FleetTopics(fleet.name, config.mqtt.root)
        work = RoundExecutor(pipeline, fleet, bundles)
        host = DeviceHost(pipeline.registry, pipeline.worker, events)
        self.local_transport = LocalTransport(fleet, topics, work, host) if fleet.flower else None
        remote: FleetTransport = MqttTransport(session)
        if fleet.keys:
            remote = SignedTransport(remote, topics, Keys(fleet.keys))
        self._member = Member(
            config.device.id,
            fleet,
            topics=topics,
            transport=self.local_transport or remote,
            work=work,
            host=host,
            state=config.storage.dir,
            clock=pipeline.clock,
        )

    def start(self) -> None:
        """Subscribe to rounds and receipts, and start the member's thread."""
        self._member.start()

    def stop(self) -> None:
        """Stop the member; it reports to the fleet that the device takes part in nothing for now."""
        self._member.stop()

    def event(self, event: Event) -> None:
        """Let the local transport hear how rounds go."""
        if self.local_transport is not None:
            self.local_transport.event(event)
