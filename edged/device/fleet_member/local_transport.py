"""Fleet transport on this machine: another program carries the messages, such as Flower's SuperNode.

It takes the place of the broker. The newest message of each kind that the member publishes is kept until the
carrier asks for it; rounds, models and receipts are handed in.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from edged.config import FleetConfig
from edged.device.events import Listener
from edged.device.fleet_member.round_executor import DeviceHost, RoundExecutor
from edged.domain.events import Event, FleetAccepted, FleetDeclined, FleetFailed, FleetRefused
from edged.domain.federated.messages import Evaluation, FleetTopics, RoundAnnouncement, UpdateHeader, split
from edged.domain.federated.participation import stranger
from edged.errors import RefusedError
from edged.mqtt.client.message import ReceivedMessage

if TYPE_CHECKING:
    Sink = Callable[[ReceivedMessage], None]


class LocalTransport(Listener):
    """Fleet transport between one member and a program on the same machine.

    The record of `host` names the model of the fleet that was judged last.
    """

    connected = True

    def __init__(
        self, config: FleetConfig, topics: FleetTopics, work: RoundExecutor, host: DeviceHost
    ) -> None:
        self._config, self._topics = config, topics
        self._work, self._host = work, host
        self._lock = threading.Lock()
        self._sinks: dict[str, Sink] = {}
        self._model: tuple[str, bytes] = ("", b"")
        self._round: RoundAnnouncement | None = None
        self._state = b""
        self._parts: dict[int, tuple[UpdateHeader, bytes]] = {}
        self._evaluation: tuple[Evaluation, bytes] | None = None
        self._why_not = ""

    # ---- what the member calls -------------------------------------------------------------

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:  # noqa: ARG002  all is kept
        """Keep a message until the carrier asks for it."""
        kind, *_ = self._topics.sender(topic)
        with self._lock:
            if kind == "state":
                self._state = payload
            elif kind == "eval":
                self._evaluation = Evaluation.read(payload), payload
            else:
                update, piece = UpdateHeader.read(payload)
                if any(kept.sha256 != update.sha256 for kept, _ in self._parts.values()):
                    self._parts.clear()
                self._parts[update.part] = update, piece
        return True

    def follow(self, pattern: str, sink: Sink) -> None:
        """Pass what is handed in on a topic filter to `sink`, and a model that was handed in before."""
        with self._lock:
            self._sinks[pattern] = sink
            digest, blob = self._model
        if digest and pattern == self._topics.model(digest, "+"):
            self._parts_to(sink, digest, blob)

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""
        with self._lock:
            self._sinks.pop(pattern, None)

    def event(self, event: Event) -> None:
        """Drop an update that has its receipt; note why the member declines or fails in the round."""
        with self._lock:
            if isinstance(event, FleetAccepted | FleetRefused):
                self._parts = {n: kept for n, kept in self._parts.items() if kept[0].round != event.round}
            elif self._round is not None and isinstance(event, FleetDeclined | FleetFailed):
                self._why_not = event.reason if event.round == self._round.round else self._why_not

    # ---- what the carrier calls ------------------------------------------------------------

    def hand_in(self, announced: RoundAnnouncement, receipts: bytes, model: bytes) -> None:
        """Hand in a round with its model, and receipts for an earlier update, which may be empty.

        Raises RefusedError when the round is of another fleet or bundle, or the model has another size than
        the round says.
        """
        strange = stranger(announced, self._config.name, self._work.bundle())
        if strange:
            raise RefusedError(strange, where="round")
        base = announced.base
        if len(model) != base.bytes or len(split(model)) != base.parts:
            raise RefusedError(f"the model has {len(model)} bytes, {base.bytes} in its round")
        with self._lock:
            self._round, self._why_not = announced, ""
            self._model = base.hash, model
            sinks = dict(self._sinks)
        if receipts:
            sinks[self._topics.ack("+")](_delivery(self._topics.ack(announced.round), receipts))
        sinks[self._topics.round](_delivery(self._topics.round, announced.payload()))
        waiting = sinks.get(self._topics.model(base.hash, "+"))
        if waiting is not None:
            self._parts_to(waiting, base.hash, model)

    def _parts_to(self, sink: Sink, digest: str, blob: bytes) -> None:
        for number, part in enumerate(split(blob)):
            sink(_delivery(self._topics.model(digest, number), part))

    def state(self) -> bytes:
        """Return the device's state; empty before the member has published one."""
        with self._lock:
            return self._state

    def newest(self) -> bytes | None:
        """Return the newest update without receipt, of any round; its header line comes first."""
        with self._lock:
            return self._whole()

    def _whole(self) -> bytes | None:
        found = [self._parts[part] for part in sorted(self._parts)]
        if not found or len(found) != found[0][0].parts:
            return None
        line = json.dumps(asdict(replace(found[0][0], part=0, parts=1)), allow_nan=False)
        return line.encode() + b"\n" + b"".join(piece for _, piece in found)

    def update(self, token: str) -> bytes | None:
        """Return the update for round `token`; None as long as there is none.

        Raises RefusedError when the device trains in another round, or declines this one for now.
        """
        with self._lock:
            if any(update.id == token for update, _ in self._parts.values()):
                return self._whole()
            self._waits(token)
        return None

    def evaluation(self, token: str) -> bytes | None:
        """Return the evaluation of the model of round `token`; None as long as there is none.

        Raises RefusedError when the device is in another round, declines this one for now, or makes no
        report.
        """
        with self._lock:
            found = self._evaluation
            known = self._round is not None and found is not None and found[0].base == self._round.base.hash
            if found is not None and known and found[0].id == token:
                return found[1]
            self._waits(token)
            if self._round is not None:
                self._reports(self._round)
        return None

    def _reports(self, announced: RoundAnnouncement) -> None:
        if not announced.config.evaluate:
            raise RefusedError("no report is made: the round does not ask for one", where="round")
        if self._host.record.judged == announced.base.hash:
            raise RefusedError("this device has tried the model before", where="round")

    def _waits(self, token: str) -> None:
        if self._round is None or self._round.id != token:
            raise RefusedError("no such round was handed in", where="round")
        if self._why_not:
            raise RefusedError(self._why_not, where="round")


def _delivery(topic: str, payload: bytes) -> ReceivedMessage:
    return ReceivedMessage(topic, payload, 0, 0, False, False, 0, time.monotonic())
