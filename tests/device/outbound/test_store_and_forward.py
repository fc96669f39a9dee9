"""Messages that must arrive, with a real broker that goes and comes back."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.clock import SystemClock
from edged.config import MqttConfig
from edged.device.outbound.store_and_forward import LIVE, MEMORY_BYTES, StoreAndForward
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.mqtt.client.session import Session
from edged.storage.outbox.queue import DATABASE, Outbox
from edged.storage.outbox.tables import OutboxBacklog, waiting
from tests.mqtt.inbox import Inbox
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto

DAY = 86_400.0
MIB = 1024**2


class Later(SystemClock):
    """The machine's clock, some days ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Timed(Session):
    """Notes when something is published."""

    sent: list[float]

    def publish(self, topic: str, payload: bytes, **options: Any) -> bool:
        self.sent.append(time.monotonic())
        return super().publish(topic, payload, **options)


class Rig:
    """A device's forwarder, a broker that keeps sessions over restarts, and somebody who listens."""

    def __init__(self, folder: Path, broker: Mosquitto) -> None:
        self.path = folder / DATABASE
        self.broker = broker
        self.clock = Later()
        self.received = self._session("receiver")
        self.inbox = Inbox(self.received)
        self.received.subscribe(["d/#"], 1, self.inbox)
        self.received.start()
        assert self.received.wait_ready(20)
        self.device: tuple[Session, StoreAndForward] | None = None
        self.sent: list[float] = []

    def _session(self, name: str, **options: Any) -> Session:
        config = MqttConfig(host="127.0.0.1", port=self.broker.port).with_constants(reconnect_max=1.0)
        return Session(config, client_id=name, **options)

    def start(self, *, rate: float = 50.0, max_bytes: int = 64 * MIB) -> StoreAndForward:
        """A device with the outbox of the one before."""
        outbox = Outbox.open(self.path, max_bytes=max_bytes, max_age=7 * DAY, clock=self.clock)
        config = MqttConfig(host="127.0.0.1", port=self.broker.port).with_constants(reconnect_max=1.0)
        session = Timed(config, client_id="device", listener=self)
        session.sent = self.sent
        forwarder = StoreAndForward(outbox, session=session, rate=rate, clock=self.clock)
        self.device = session, forwarder
        forwarder.start()
        session.start()
        return forwarder

    def online(self) -> None: ...

    def connection_changed(self) -> None:
        if self.device is not None:
            self.device[1].wake()

    def stop(self) -> None:
        """An orderly end of the device."""
        if self.device is not None:
            session, forwarder = self.device
            session.stop(1.0)
            forwarder.stop()
            self.device = None

    def connected(self) -> bool:
        return self.device is not None and self.device[0].connected

    def counted(self) -> int:
        """Messages that were committed, those that were given up included."""
        on_disk = waiting(self.path)
        return on_disk.pending + on_disk.dropped

    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        """Everything that came, in its order: last topic level and values."""
        return [(d.topic[2:], json.loads(d.payload)) for d in list(self.inbox.deliveries)]


@pytest.fixture
def rig(make_broker: MakeBroker, tmp_path: Path) -> Iterator[Rig]:
    home = tmp_path / "broker"
    home.mkdir(mode=0o777)
    broker = make_broker(
        "allow_anonymous true", "persistence true", f"persistence_location {home}/", directory=home
    )
    made = Rig(tmp_path, broker)
    yield made
    made.stop()
    made.received.stop(1.0)


def deliver(forwarder: StoreAndForward, kind: MessageKind, numbers: range) -> None:
    for number in numbers:
        forwarder.deliver(kind, f"d/{kind.name.lower()}", b'{"seq":%d}' % number)


def seqs(rig: Rig, topic: str) -> list[int]:
    return [values["seq"] for name, values in rig.messages() if name == topic]


def test_what_is_raised_while_connected_arrives_at_once_and_never_touches_the_disk(rig: Rig) -> None:
    forwarder = rig.start()
    wait_until(rig.connected)
    for first in range(0, 1000, 50):
        deliver(forwarder, MessageKind.EVENT, range(first, first + 50))
        rig.inbox.wait(first + 50)
    assert rig.messages() == [("event", {"seq": number}) for number in range(1000)]
    wait_until(lambda: forwarder.outstanding() == OutboxBacklog(0, 0, 0))
    assert rig.counted() == 0


def test_after_days_away_everything_comes_in_order_of_priority_exactly_once(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start(rate=20_000)
    for first in range(0, 5000, 500):
        deliver(forwarder, MessageKind.METRICS, range(first, first + 500))
        deliver(forwarder, MessageKind.EVENT, range(first, first + 500))
        wait_until(lambda first=first: forwarder.outstanding().pending == 2 * (first + 500))  # type: ignore[misc]
    forwarder.store(
        [OutboxMessage(MessageKind.WEIGHTS, f"d/weights/{part}", b'{"seq":%d}' % part) for part in range(3)]
    )
    rig.stop()
    rig.clock.ahead = 3 * DAY
    forwarder = rig.start(rate=20_000)
    assert (forwarder.outstanding().pending, forwarder.outstanding().dropped) == (10_003, 0)
    rig.broker.start()
    rig.inbox.wait(10_003)
    wait_until(lambda: forwarder.outstanding().pending == 0)
    late = {"historical": True}
    expected = [("event", {"seq": number} | late) for number in range(5000)]
    expected += [(f"weights/{part}", {"seq": part}) for part in range(3)]
    expected += [("metrics", {"seq": number} | late) for number in range(5000)]
    assert rig.messages() == expected
    rig.stop()
    forwarder = rig.start()
    assert forwarder.outstanding().pending == 0, "and nothing is left to be sent again"


def test_a_live_message_does_not_wait_for_late_ones(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start(rate=50)
    deliver(forwarder, MessageKind.EVENT, range(1000))
    wait_until(lambda: rig.counted() == 1000)
    rig.broker.start()
    rig.inbox.wait(5)
    delays = []
    for number in range(10):
        raised = time.monotonic()
        deliver(forwarder, MessageKind.PREDICTION, range(number, number + 1))
        wait_until(lambda number=number: len(seqs(rig, "prediction")) > number)  # type: ignore[misc]
        delays.append(time.monotonic() - raised)
    assert max(delays) < 1.0
    assert forwarder.outstanding().pending > 900, "while the late ones keep their pace"
    assert all("historical" not in values for name, values in rig.messages() if name == "prediction")
    assert seqs(rig, "event") == list(range(len(seqs(rig, "event"))))


def test_the_rate_of_late_messages_is_kept(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start(rate=100)
    deliver(forwarder, MessageKind.EVENT, range(200))
    wait_until(lambda: rig.counted() == 200)
    began = time.monotonic()
    rig.broker.start()
    wait_until(lambda: forwarder.outstanding().pending == 0)
    assert len(rig.sent) == 200
    assert rig.sent[-1] - began > (200 - 10) / 100, "but for a tenth of a second's worth at once"


def test_an_orderly_restart_in_the_middle_sends_nothing_twice(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start(rate=1000)
    deliver(forwarder, MessageKind.EVENT, range(600))
    wait_until(lambda: rig.counted() == 600)
    rig.broker.start()
    for count in (50, 250):
        rig.inbox.wait(count)
        rig.stop()
        rig.start(rate=1000)
    rig.inbox.wait(600)
    assert seqs(rig, "event") == list(range(600))


def test_a_broker_that_hangs_gets_each_message_once_and_all_are_safe_meanwhile(rig: Rig) -> None:
    forwarder = rig.start(rate=1000)
    wait_until(rig.connected)
    deliver(forwarder, MessageKind.EVENT, range(5))
    wait_until(lambda: forwarder.outstanding().pending == 0)
    os.kill(rig.broker.pid, signal.SIGSTOP)
    try:
        deliver(forwarder, MessageKind.EVENT, range(5, 5 + LIVE + 50))
        assert rig.connected(), "nobody has noticed yet"
        wait_until(lambda: rig.counted() == LIVE + 50)
    finally:
        os.kill(rig.broker.pid, signal.SIGCONT)
    rig.inbox.wait(LIVE + 55)
    wait_until(lambda: forwarder.outstanding().pending == 0)
    assert sorted(seqs(rig, "event")) == list(range(LIVE + 55))
    wait_until(lambda: rig.counted() == 0)


def test_what_goes_while_the_box_is_full_is_counted_exactly(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start(rate=20_000, max_bytes=MIB)
    for number in range(3000):
        forwarder.deliver(MessageKind.METRICS, "d/metrics", b'{"seq":%d,"x":"%s"}' % (number, b"x" * 600))
        if number % 200 == 0:
            forwarder.deliver(MessageKind.EVENT, "d/event", b'{"seq":%d}' % number)
            wait_until(lambda number=number: rig.counted() == number + number // 200 + 2)  # type: ignore[misc]
    wait_until(lambda: rig.counted() == 3015)
    waits = waiting(rig.path)
    assert waits.dropped > 1500
    assert sum(file.stat().st_size for file in rig.path.parent.glob("outbox.db*")) <= MIB
    rig.broker.start()
    rig.inbox.wait(waits.pending)
    assert seqs(rig, "event") == list(range(0, 3000, 200))
    assert seqs(rig, "metrics") == list(range(3000 - waits.pending + 15, 3000))


def test_without_a_disk_messages_wait_in_memory_bounded_and_counted(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start()
    assert forwarder._outbox is not None  # noqa: SLF001
    forwarder._outbox.close()  # every attempt to write is refused from now on  # noqa: SLF001
    for number in range(3000):
        forwarder.deliver(MessageKind.METRICS, "d/metrics", b'{"seq":%d,"x":"%s"}' % (number, b"x" * 1000))
        forwarder.deliver(MessageKind.EVENT, "d/event", b'{"seq":%d}' % number)
    waits = forwarder.outstanding()
    assert waits.pending + waits.dropped == 6000
    assert waits.bytes <= MEMORY_BYTES
    rig.broker.start()
    rig.inbox.wait(waits.pending)
    assert seqs(rig, "event") == list(range(3000)), "the events are all there"
    assert seqs(rig, "metrics") == list(range(6000 - waits.pending, 3000))


def test_a_disk_that_hangs_holds_nobody_up(rig: Rig) -> None:
    rig.broker.stop()
    forwarder = rig.start()
    count = 5000
    with closing(sqlite3.connect(rig.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # commits wait for this one
        assert forwarder._outbox is not None  # noqa: SLF001
        forwarder._outbox._db.execute("PRAGMA busy_timeout = 60000").fetchone()  # noqa: SLF001
        began = time.monotonic()
        for number in range(count):
            deliver(forwarder, MessageKind.EVENT, range(number, number + 1))
            if number == count // 2:
                wait_until(lambda: forwarder._writing)  # noqa: SLF001
        assert (forwarder.outstanding().pending, forwarder.outstanding().dropped) == (count, 0)
        assert time.monotonic() - began < 30
        other.execute("ROLLBACK")
    wait_until(lambda: rig.counted() == count)
    rig.stop()
    left = rig.start().outstanding()
    assert (left.pending, left.dropped) == (count, 0)
