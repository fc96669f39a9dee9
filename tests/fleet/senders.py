"""Devices that say all a fleet's device says and train nothing: their updates are drawn from their names."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.config import MqttConfig
from edged.domain.arrays import Floats
from edged.domain.federated.messages import (
    DeviceState,
    FleetTopics,
    Receipts,
    RoundAnnouncement,
    UpdateHeader,
)
from edged.domain.training.weight_coding import code, decode
from edged.mqtt import weight_encoding
from edged.mqtt.client.session import Session

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage

    Payloads = list[tuple[str, bytes]]

SHAPES = {"w": (12, 8), "b": (12,)}
FLEET = "plant"


def base_weights(shapes: dict[str, tuple[int, ...]] | None = None) -> dict[str, Floats]:
    """The model that a test begins with."""
    rng = np.random.default_rng(7)
    return {n: rng.normal(size=s).astype(np.float32) for n, s in (shapes or SHAPES).items()}


def change_of(
    device: str, number: int, shapes: dict[str, tuple[int, ...]], size: float = 0.01
) -> tuple[dict[str, Floats], int]:
    """What a device has learned in a round, and its samples: always the same."""
    rng = np.random.default_rng(zlib.crc32(f"{device}/{number}".encode()))
    change = {name: (size * rng.laplace(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    return change, int(rng.integers(50, 500))


def update_of(
    told: RoundAnnouncement, device: str, change: dict[str, Floats], samples: int
) -> tuple[UpdateHeader, bytes]:
    """As it is sent."""
    blob = weight_encoding.pack_coded(code(change, "int8"))
    return UpdateHeader(device, told.round, told.id, told.base.hash, samples, len(blob), "0" * 64), blob


class Senders:
    """Devices over a few connections. They send in each round that names them, until they are answered.

    Parameters
    ----------
    port
        Of the broker.
    names
        Of the devices.
    messages
        Makes what a device sends in a round; the update from its name when absent.
    hold
        Devices that do not send before `release` is called.
    resend
        Seconds after which a device that was not answered sends again.
    """

    def __init__(
        self,
        port: int,
        names: Sequence[str],
        *,
        messages: Callable[[RoundAnnouncement, str], Payloads] | None = None,
        hold: Sequence[str] = (),
        resend: float = 1.0,
        connections: int = 4,
        shapes: dict[str, tuple[int, ...]] | None = None,
        on_round: Callable[[Senders, RoundAnnouncement], None] | None = None,
    ) -> None:
        self.topics, self._names, self._shapes = FleetTopics(FLEET), list(names), shapes or SHAPES
        self._messages, self._held, self._resend = messages or self._drawn, set(hold), resend
        self._on_round = on_round
        self._lock = threading.Condition()
        self._open: dict[tuple[int, str], RoundAnnouncement] = {}
        self._sent: dict[tuple[str, str], tuple[RoundAnnouncement, float]] = {}
        self.rounds: list[RoundAnnouncement] = []
        self.accepted: dict[str, set[str]] = {}
        self.refused: dict[str, dict[str, str]] = {}
        self.sent = 0
        self._closing = threading.Event()
        config = MqttConfig(host="127.0.0.1", port=port)
        self._sessions = [
            Session(config, client_id=f"senders-{self._names[0]}-{n}", clean=True, backlog=20_000)
            for n in range(connections)
        ]
        self._sessions[0].subscribe([self.topics.round, self.topics.ack("+")], 1, self._heard)
        for session in self._sessions:
            session.start()
        for session in self._sessions:
            assert session.wait_ready(20) or session.connected
        self._thread = threading.Thread(target=self._insist, daemon=True)
        self._thread.start()

    def _drawn(self, told: RoundAnnouncement, device: str) -> Payloads:
        update, blob = update_of(told, device, *change_of(device, told.round, self._shapes))
        return list(update.messages(self.topics, blob))

    def _heard(self, delivery: ReceivedMessage) -> None:
        self._sessions[0].ack([delivery])
        with self._lock:
            if delivery.topic.startswith(self.topics.round):
                self.rounds.append(RoundAnnouncement.read(delivery.payload))
                self._begin(self.rounds[-1])
            else:
                receipts = Receipts.read(delivery.payload)
                self.accepted.setdefault(receipts.id, set()).update(receipts.accepted)
                self.refused.setdefault(receipts.id, {}).update(receipts.refused)
                for device in (*receipts.accepted, *receipts.refused):
                    self._sent.pop((receipts.id, device), None)
            self._lock.notify_all()

    def _begin(self, told: RoundAnnouncement) -> None:
        if told.state == "open" and (told.round, told.id) not in self._open:
            self._open[told.round, told.id] = told
            for device in self._names:
                if told.names(device):
                    self._sent[told.id, device] = told, 0.0

    def _insist(self) -> None:
        done = 0
        while not self._closing.wait(0.02):
            with self._lock:
                now = time.monotonic()
                due = [
                    (told, device)
                    for (_, device), (told, at) in self._sent.items()
                    if at <= now and device not in self._held
                ]
                for told, device in due:
                    jitter = 0.5 + zlib.crc32(device.encode()) / 2**32
                    self._sent[told.id, device] = told, now + self._resend * jitter
                news, done = self.rounds[done:], len(self.rounds)
            for told in news:
                if self._on_round is not None:
                    self._on_round(self, told)
            for told, device in due:
                for topic, payload in self._messages(told, device):
                    self.publish(device, topic, payload)

    def publish(self, device: str, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Send as a device, over its connection."""
        session = self._sessions[zlib.crc32(device.encode()) % len(self._sessions)]
        session.publish(topic, payload, qos=1, retain=retain)
        self.sent += 1

    def states(self, **fields: Any) -> None:
        """Say of all devices that they are ready."""
        for name in self._names:
            values: dict[str, Any] = {
                "device": name, "at": time.time(), "bundle": "f00", "version": "1", "samples": 100,
                "ready": True, "why_not": "", "idle": True, "last_round": 0,
            } | fields  # fmt: skip
            self.publish(name, self.topics.state(name), DeviceState(**values).payload(), retain=True)

    def release(self) -> None:
        """Let those send that were held."""
        with self._lock:
            self._held.clear()

    def hold(self) -> None:
        """Let no device send before the next `release`."""
        with self._lock:
            self._held.update(self._names)

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Until `condition()` holds; it is looked at after every message."""
        with self._lock:
            assert self._lock.wait_for(condition, seconds), self.summary()

    def wait_state(self, state: str, number: int, seconds: float = 30.0) -> RoundAnnouncement:
        """Until a round is in a state; as it was told."""

        def found() -> list[RoundAnnouncement]:
            return [told for told in self.rounds if (told.state, told.round) == (state, number)]

        self.wait(found, seconds)
        return found()[-1]

    def answered(self, number: int = 1) -> int:
        """Devices whose update for a round was accepted."""
        return sum(len(self.accepted.get(token, ())) for n, token in self._open if n == number)

    def summary(self) -> str:
        """What has come, for a failing test."""
        told = [(r.round, r.state) for r in self.rounds]
        accepted = {token[:6]: len(names) for token, names in self.accepted.items()}
        return f"rounds {told}, accepted {accepted}, refused {self.refused}, waiting {len(self._sent)}"

    def close(self) -> None:
        """Disconnect."""
        self._closing.set()
        self._thread.join(10)
        for session in self._sessions:
            session.stop(0.5)


def expected_model(
    base: dict[str, Floats],
    names: Sequence[str],
    number: int = 1,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> dict[str, Floats]:
    """The mean of all updates, by numpy."""
    drawn = [change_of(name, number, shapes or SHAPES) for name in sorted(names)]
    total = sum(samples for _, samples in drawn)
    out = {}
    for name, value in base.items():
        decoded = [decode(code({name: change[name]}, "int8"))[name] for change, _ in drawn]
        weighed = [c.astype(np.float64) * n for c, (_, n) in zip(decoded, drawn, strict=True)]
        out[name] = (value + np.sum(weighed, axis=0) / total).astype(np.float32)
    return out
