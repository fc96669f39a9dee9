"""Flower's grid in the place of a broker: what a coordinator publishes is carried to nodes, replies back.

A round that is open is a message `train` to each node that it names; a model that is tried, or is the
fleet's, a message `evaluate`. Nodes that have not said how they are, or not for long, get a `query`. One
thread owns the grid. What a node says counts under the name that it said first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edged.domain.federated.messages import (
    DeviceState,
    FleetTopics,
    Receipts,
    RoundAnnouncement,
    UpdateHeader,
)
from edged.errors import EdgedError, RejectedUpdateError
from edged.fleet.coordinator.devices import why_not
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged_flower.nodes import AbsenceBackoff, NodeNames

if TYPE_CHECKING:
    from edged.fleet.config import CoordinatorConfig

LOOK_SECONDS = 0.5
AGAIN_SECONDS = 60.0  # until a node that was not ready, or silent, is asked again
QUERY_SECONDS = 60.0
SLACK_SECONDS = 0.5  # between two clocks that look at one deadline

log = get_logger("edged.fleet")


@dataclass(frozen=True)
class PendingRequest:
    """A message under way: to which node, of what kind and round, and until when it is waited for."""

    node: int
    kind: str
    round: int
    until: float


class FlowerChannel:
    """Carries messages between a coordinator and the nodes of Flower's `grid`."""

    def __init__(self, grid: Any, config: CoordinatorConfig) -> None:
        self._grid, self._config = grid, config
        self._topics = FleetTopics(config.fleet, config.mqtt.root)
        self._nodes, self._absent = NodeNames(config.dir), AbsenceBackoff()
        self._sink: Callable[[ReceivedMessage], None] = lambda _: None
        self._lock = threading.RLock()
        self._round: RoundAnnouncement | None = None
        self._models: dict[str, dict[int, bytes]] = {}
        self._receipts: dict[str, bytes] = {}
        self._under_way: dict[str, PendingRequest] = {}
        self._carried: set[tuple[int, str, str]] = set()  # node, kind, and round or model
        self._due: dict[int, float] = {}  # when a node is to be asked how it is
        self._present: set[int] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="flower", daemon=True)

    @property
    def connected(self) -> bool:
        """Whether the channel was started and carries messages."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start to carry messages, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; messages under way are discarded."""
        self._ending.set()
        self._thread.join(10)

    def subscribe(self, patterns: Sequence[str], qos: int, sink: Callable[[ReceivedMessage], None]) -> None:  # noqa: ARG002  there is one sink, for all
        """Deliver messages of nodes to `sink`."""
        self._sink = sink

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Do nothing: nodes send again what this process loses."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:  # noqa: ARG002  all is kept
        """Store a message and send it to the nodes that it concerns."""
        kind, *levels = topic.removeprefix(f"{self._topics.base}/").split("/")
        with self._lock:
            if kind == "round":
                self._give_up()
                self._round = RoundAnnouncement.read(payload)
            elif kind == "model" and payload:
                self._models.setdefault(levels[0], {})[int(levels[1])] = payload
            elif kind == "model":
                self._models.pop(levels[0], None)
            elif kind == "ack":  # a status is for the fleet page, which needs a broker
                self._store(Receipts.read(payload))
        return True

    def _store(self, receipts: Receipts) -> None:
        """For each device, until the next message to it."""
        for device in receipts.accepted:
            self._receipts[device] = Receipts(receipts.id, (device,)).payload()
        for device, reason in receipts.refused.items():
            self._receipts[device] = Receipts(receipts.id, (), {device: reason}).payload()

    # The thread.

    def _loop(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            try:
                self._look()
            except EdgedError as problem:
                log.warning("fleet_node_message_refused", problem=problem.line())
            except Exception:
                log.exception("flower_grid_failed", remedy="tried again")

    def _look(self) -> None:
        present = set(map(int, self._grid.get_node_ids()))
        with self._lock:
            for node in self._present - present:
                self._withdraw(node)
                self._due.pop(node, None)
            self._present = present
            self._query(present)
            if self._round is not None:
                self._carry(self._round)
            under_way = list(self._under_way)
        replies = self._grid.pull_messages(under_way) if under_way else ()
        with self._lock:
            for reply in replies:
                asked = self._under_way.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None:
                    self._answered(asked, reply)
            self._give_up()

    def _busy(self) -> set[int]:
        return {asked.node for asked in self._under_way.values()}

    def _query(self, present: Collection[int]) -> None:
        now, busy = time.time(), self._busy()
        for node in present:
            if node not in busy and now >= self._due.get(node, 0.0):
                self._due[node] = now + AGAIN_SECONDS
                self._send(node, "query", {}, 0, QUERY_SECONDS)

    def _carry(self, told: RoundAnnouncement) -> None:
        kind = "train" if told.state == "open" else "evaluate"
        now, parts = time.time(), self._models.get(told.base.hash, {})
        left = told.deadline - now if told.state != "done" else self._config.gate.wait
        if left <= 0 or len(parts) < told.base.parts:
            return
        model = b"".join(parts[number] for number in sorted(parts))
        line, token = replace(told, window=0.0, devices=None).payload(), told.id + told.base.hash
        for node in self._present:
            name, what = self._nodes.name(node), (node, kind, token)
            if name is None or what in self._carried or not told.names(name):
                continue
            if self._absent.left_out(node, told.round):
                continue
            self._carried = {w for w in self._carried if w[:2] != (node, kind)} | {what}
            receipts = self._receipts.pop(name, b"")
            content = {"round": line, "receipts": receipts, "model": model, "seconds": left}
            self._send(node, kind, content, told.round, left)

    def _send(self, node: int, kind: str, content: dict[str, Any], number: int, seconds: float) -> None:
        from flwr.app import ConfigRecord, Message, RecordDict

        record = RecordDict({"edged": ConfigRecord(content)})
        message = Message(record, node, kind, ttl=seconds + AGAIN_SECONDS, group_id=str(number))
        for name in self._grid.push_messages([message]):
            self._under_way[name] = PendingRequest(node, kind, number, time.time() + seconds)

    # What came.

    def _answered(self, asked: PendingRequest, reply: Any) -> None:
        if reply.has_error():
            log.warning("fleet_node_failed", node=asked.node, kind=asked.kind, problem=reply.error.reason)
            self._silent(asked)
            return
        self._absent.answered(asked.node)
        said = reply.content["edged"]
        if "problem" in said or "declined" in said:
            reason = said.get("declined", said.get("problem"))
            log.info("fleet_node_declined", node=asked.node, round=asked.round, reason=str(reason)[:300])
        if "state" in said:
            self._state(asked.node, bytes(said["state"]))
        name = self._nodes.name(asked.node) or f"node-{asked.node}"
        if "update" in said:
            self._deliver(self._topics.up(_round_of(bytes(said["update"]), asked), name), said["update"])
        tried = self._round is not None and self._round.state == "closed"
        if "evaluation" in said and tried:  # of a model that is the fleet's already nobody judges
            self._deliver(self._topics.evaluation(asked.round, name), said["evaluation"])

    def _state(self, node: int, payload: bytes) -> None:
        state = DeviceState.read(payload)
        name = self._nodes.claimed(node, state.device)
        now = time.time()
        ready = not why_not(self._config.choose, state, state.bundle, now)
        self._due[node] = now + (self._config.choose.max_age / 2 if ready else AGAIN_SECONDS)
        self._deliver(self._topics.state(name), payload)

    def _give_up(self) -> None:
        """Drop the nodes whose time is over."""
        now = time.time() + SLACK_SECONDS
        for name in [name for name, asked in self._under_way.items() if asked.until <= now]:
            asked = self._under_way.pop(name)
            log.warning("fleet_node_silent", node=asked.node, kind=asked.kind, round=asked.round)
            self._silent(asked)

    def _silent(self, asked: PendingRequest) -> None:
        self._absent.silent(asked.node, asked.round)
        self._due[asked.node] = time.time() + AGAIN_SECONDS
        self._withdraw(asked.node)

    def _withdraw(self, node: int) -> None:
        """Its device is not chosen before it says again how it is."""
        name = self._nodes.name(node)
        if name is not None:
            self._deliver(self._topics.state(name), b"")

    def _deliver(self, topic: str, payload: bytes) -> None:
        self._sink(ReceivedMessage(topic, bytes(payload), 0, 0, False, False, 0, time.monotonic()))


def _round_of(payload: bytes, asked: PendingRequest) -> int:
    """The round of an update, which may be an earlier one; what cannot be read is refused by who takes it."""
    try:
        return UpdateHeader.read(payload)[0].round
    except RejectedUpdateError:
        return asked.round
