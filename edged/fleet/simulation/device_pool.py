"""Virtual devices on a broker: a connection for each, and a few threads that do their work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from edged.clock import SystemClock
from edged.config import MqttConfig
from edged.device.fleet_member.member import Member
from edged.device.fleet_member.mqtt_transport import MqttTransport
from edged.domain.federated.messages import FleetTopics
from edged.domain.federated.participation import MembershipRecord
from edged.mqtt.client.session import Session

if TYPE_CHECKING:
    from typing_extensions import Self

    from edged.domain.events import Event
    from edged.fleet.simulation.virtual_device import VirtualDevice


class CountingTransport(MqttTransport):
    """A device's connection that counts the bytes of its updates, by round."""

    def __init__(self, session: Session, topics: FleetTopics, sent: dict[int, int]) -> None:
        super().__init__(session)
        self._up, self._sent = f"{topics.base}/up/", sent

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message at QoS 1; return whether the session accepted it."""
        if topic.startswith(self._up):
            number = int(topic.removeprefix(self._up).split("/")[0])
            self._sent[number] = self._sent.get(number, 0) + len(payload)
        return super().publish(topic, payload, retain=retain)


class PooledHost:
    """The `MemberHost` of a virtual device: work runs on a thread pool, the record stays in memory."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.record = MembershipRecord()

    def store(self, record: MembershipRecord) -> None:
        """Keep the membership record in memory."""
        self.record = record

    def between_runs(self, job: Callable[[], None]) -> None:
        """Call `job` on a thread of the pool: there are no other training runs."""
        self._pool.submit(job)

    def event(self, event: Event) -> None:
        """Ignore the event: the simulation reports what devices measure."""


class DevicePool:
    """Virtual devices that take part in a fleet while the context lasts; `workers` train at a time."""

    def __init__(self, devices: Sequence[VirtualDevice], broker: tuple[str, int], workers: int) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="hands")
        self._sessions: list[Session] = []
        self._members: list[Member] = []
        host, port = broker
        for device in devices:
            self._add(device, MqttConfig(host=host, port=port))

    def _add(self, device: VirtualDevice, mqtt: MqttConfig) -> None:
        topics = FleetTopics(device.fleet.name, mqtt.root)
        session = Session(mqtt, client_id=f"edged-sim-{device.name}", clean=True)
        transport = CountingTransport(session, topics, device.log.sent)
        member = Member(
            device.name, device.fleet, topics=topics, transport=transport,
            work=device, host=PooledHost(self._pool), state=device.folder, clock=SystemClock(),
        )  # fmt: skip
        self._sessions.append(session)
        self._members.append(member)

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
