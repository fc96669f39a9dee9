"""Virtual devices on a broker: each with a connection and a member of its own, all with one pool of hands."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from edged.clock import SystemClock
from edged.config import FleetConfig, MqttConfig
from edged.device.fleet_member import Member
from edged.device.fleet_member.adapter import MqttTransport
from edged.domain.federated.messages import FleetTopics
from edged.domain.federated.participation import MembershipRecord
from edged.mqtt.client.session import Session
from edged.storage.models.fleet_models import FleetModels
from edged.storage.models.sent_updates import ROUNDS, SentUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from edged.fleet.simulation.virtual_device import VirtualDevice

RESEND = 20.0


class CountingTransport(MqttTransport):
    """A device's line that counts the bytes of its updates, by round."""

    def __init__(self, session: Session, topics: FleetTopics, sent: dict[int, int]) -> None:
        super().__init__(session)
        self._up, self._sent = f"{topics.base}/up/", sent

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Hand a message over; False when it was refused."""
        if topic.startswith(self._up):
            number = int(topic.removeprefix(self._up).split("/")[0])
            self._sent[number] = self._sent.get(number, 0) + len(payload)
        return super().publish(topic, payload, retain=retain)


class DevicePool:
    """Devices that take part until `stop`.

    Parameters
    ----------
    devices
        What they are made of.
    broker
        Host and port.
    fleet
        Its name.
    workers
        How many of them train at a time.
    """

    def __init__(
        self, devices: Sequence[VirtualDevice], broker: tuple[str, int], fleet: str, workers: int
    ) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="hands")
        self._sessions: list[Session] = []
        self._members: list[Member] = []
        host, port = broker
        settings = FleetConfig(name=fleet, resend=RESEND, min_new_samples=0)
        for device in devices:
            self._add(device, MqttConfig(host=host, port=port), settings)

    def _add(self, device: VirtualDevice, mqtt: MqttConfig, config: FleetConfig) -> None:
        topics = FleetTopics(config.name, mqtt.root)
        session = Session(mqtt, client_id=f"edged-sim-{device.name}", clean=True)
        line = CountingTransport(session, topics, device.log.sent)
        member = Member(
            device.name, config, topics=topics, line=line, work=device, between=self._between,
            models=FleetModels(device.folder), kept=SentUpdates(device.folder, ROUNDS),
            memory=MembershipRecord(),
            remember=lambda _: None, notify=lambda _event, _fields: None, clock=SystemClock(),
        )  # fmt: skip
        line.follow(topics.round, member.round_came)
        line.follow(topics.ack("+"), member.receipts_came)
        self._sessions.append(session)
        self._members.append(member)

    def _between(self, action: Callable[[], None]) -> None:
        self._pool.submit(action)

    def __enter__(self) -> Self:
        for member, session in zip(self._members, self._sessions, strict=True):
            member.start()
            session.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for member in self._members:
            member.stop()
        for session in self._sessions:
            session.stop(1.0)
