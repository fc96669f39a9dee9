"""The coordinator: rounds are opened, updates taken, models made, tried, and announced.

One thread does everything; the network has its own, which only fills a queue. Where the fleet
is, is durable before it is published, so that `kill -9` at any moment continues the same round.
"""

from __future__ import annotations

import json
import secrets
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

from edged import logs
from edged.clock import Clock, SystemClock
from edged.domain.federated.messages import BaseModelInfo, FleetTopics, RoundAnnouncement
from edged.domain.json_fields import json_ready
from edged.domain.training.weight_coding import fingerprint
from edged.errors import RejectedUpdateError, TrainingError
from edged.fleet.config import CoordinatorConfig, load
from edged.fleet.coordinator.channel import Announcer, Inbox
from edged.fleet.coordinator.control import Control, ControlReader, Order
from edged.fleet.coordinator.devices import FleetDevices, choose
from edged.fleet.coordinator.journal import NAMED, CoordinatorJournal, RoundRecord
from edged.fleet.coordinator.models import advanced, begun
from edged.fleet.coordinator.status import (
    ROUNDS,
    CoordinatorStatus,
    StatusPublisher,
    rollout_status,
)
from edged.fleet.coordinator.updates import RoundReports, UpdateAdmission
from edged.fleet.rules.admission import LATE
from edged.fleet.rules.aggregation import aggregate
from edged.fleet.rules.layout import Layout
from edged.fleet.rules.rounds import (
    FleetState,
    awaiting_approval,
    due,
    ended,
    extended,
    finished,
    opened,
    trial,
)
from edged.fleet.rules.verdict import StageVerdict, judge
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.signing import Unsealer
from edged.storage.files.atomic import DISK, Disk

BATCH = 256
TICK = 0.5
STATUS_SECONDS = 2.0
STATES_SECONDS = 10.0  # after a start, in which devices' retained states come, before canaries are chosen

log = get_logger("edged.fleet")


class Coordinator:
    """The coordinator of one fleet; `run` until the last round, or until `stop` is called.

    `session` connects it to the broker; it makes one when absent.

    Raises StorageError when its directory cannot be used; ConfigError when there is no initial model.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        clock: Clock | None = None,
        disk: Disk = DISK,
        session: Session | None = None,
    ) -> None:
        self._config, self._clock = config, clock or SystemClock()
        self._pace = config.round
        self._topics = FleetTopics(config.fleet, config.mqtt.root)
        self.journal = CoordinatorJournal(config.dir, disk=disk)
        self._reader = ControlReader(config.dir)
        self._unsealer = None if config.key is None else Unsealer(config.key)
        self.course = begun(config, self.journal)
        self.layout = Layout.of(self.journal.weights(self.course.standing.hash))
        self.reports = RoundReports(self.journal, self.course)
        self._devices = FleetDevices(config, self._reader)
        self._inbox = Inbox(config.broker.constants.receive_maximum)
        self._stopping, self._connected = threading.Event(), threading.Event()
        name = config.mqtt.client_id or f"edged-fleet-{config.fleet}"
        self._session = session or Session(config.broker, client_id=name, listener=self)
        self._session.subscribe(self._topics.of_devices, 1, self._enqueue)
        self._announcer = Announcer(self._session, self._topics, self.journal, config.key)
        self.admission = UpdateAdmission(self.journal, self.layout, self.course, self._reader)
        self._began: float | None = None  # when it was connected first
        self._published = 0.0
        self._publisher = StatusPublisher(self._announcer)

    def _enqueue(self, delivery: ReceivedMessage) -> None:
        if not self._inbox.put(delivery):
            self._session.ack([delivery])  # gone: who sent it sends it again

    def online(self) -> None:
        """Have `turn` publish the round and its model again: the broker may have lost them."""
        self._connected.set()
        self._inbox.wake()

    def connection_changed(self) -> None:
        """Do nothing: the session sends later what it accepts while it is offline."""

    # Running.

    def run(self) -> None:
        """Coordinate until the last round is done or `stop` is called."""
        self._session.start()
        log.info("fleet_running", fleet=self._config.fleet, round=self.course.number, phase=self.course.phase)
        try:
            while not self._stopping.is_set() and not finished(self.course, self._pace):
                self.turn()
            self._publish_status(again=True)
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect from the broker and close the files; `run` does it itself."""
        self._session.stop()
        self.admission.close()
        self.reports.close()
        self.journal.close()

    def stop(self) -> None:
        """Let `run` return. From any thread, or from a signal's handler."""
        self._stopping.set()
        self._inbox.wake()

    def turn(self) -> None:
        """Process the messages that have arrived, and do what is due."""
        deliveries = self._inbox.receive(BATCH, TICK)
        for delivery in deliveries:
            self._receive(delivery)
        receipts = self.admission.commit()
        self.reports.commit()
        self._session.ack(deliveries)
        self._announcer.receipts(receipts)
        if self._connected.is_set():
            self._connected.clear()
            self._began = self._began or self._clock.now()
            self._announcer.announce(self.course, again=True)
        self.advance(self._clock.now())
        self._publish_status()

    def _receive(self, delivery: ReceivedMessage) -> None:
        try:
            kind, device, number, part = self._topics.sender(delivery.topic)
            payload = self._opened_payload(delivery)
            if kind == "up":
                self.admission.receive(device, number, part, payload)
            elif kind == "state":
                self._devices.receive(device, payload)
            else:
                self._reader.check(device)
                self.reports.receive(device, number, payload, self.course)
        except RejectedUpdateError as problem:
            if problem.reason != LATE:  # a report that comes when the model is judged already
                self.admission.count(problem)
            log.debug("fleet_message_refused", topic=delivery.topic, problem=problem.line())

    def _opened_payload(self, delivery: ReceivedMessage) -> bytes:
        """Return the opened payload, sealed or not; RejectedUpdateError when it cannot be opened."""
        if self._unsealer is None:
            return delivery.payload
        try:
            return self._unsealer.open(delivery.payload, delivery.topic.encode())
        except ValueError as problem:
            raise RejectedUpdateError("sealed", str(problem)) from None

    # What is due.

    def advance(self, now: float) -> None:
        """Open, close, evaluate or extend a round if that is due at this moment."""
        course, control = self.course, self._control
        order = None if control.order is None or control.order.token == course.order else control.order
        if course.phase in ("trial", "approval") and not self._has_states(now):
            return
        if order is not None:
            self._carry_out(order, now)
        elif course.phase in ("waiting", "done"):
            if now >= course.until and not control.paused:
                self._open(now)
        elif course.phase == "trial":
            self._evaluate(now)
        elif course.phase == "open":
            self._lead(now)

    def _lead(self, now: float) -> None:
        """Close, extend or give up the round that is open, if that is due."""
        what = due(self.course, self.admission.accepted, self._pace, now)
        if what == "close":
            self._close(now)
        elif what == "extend":
            self._extend(now)
        elif what == "abandon":
            self._abandon(now, f"too few updates: {self.admission.accepted} of {self._pace.least}")

    def _has_states(self, now: float) -> bool:
        """Return whether devices have had time to send their states, from which canaries are chosen."""
        if self._config.rollout.canaries is None:
            return True
        return self._began is not None and now - self._began >= STATES_SECONDS

    @property
    def _control(self) -> Control:
        return self._reader.read()

    def _carry_out(self, order: Order, now: float) -> None:
        """End the present phase as an operator wishes, once; nothing, if it has ended by itself."""
        course = self.course = replace(self.course, order=order.token)
        log.info("fleet_order", what=order.what, round=order.round, phase=order.phase, by=order.by)
        if (order.round, order.phase) != (course.number, course.phase):
            self.journal.store(course)
        elif order.what == "abandon":
            self._abandon(now, f"abandoned by {order.by or 'the operator'}")
        else:
            self.course = replace(course, approved_by=order.by)
            self._next_stage(now)

    def _abandon(self, now: float, reason: str) -> None:
        """End the round without a model."""
        log.warning("round_abandoned", round=self.course.number, reason=reason)
        self._finish_round(self.course.standing.hash, now, StageVerdict(accepted=False, reason=reason))

    def _transition(self, course: FleetState) -> None:
        """Persist the new state, then announce it."""
        self.journal.store(course)
        self.course = course
        self.admission.turn(course)
        self.reports.turn(course)
        self._announcer.announce(course)
        self._publish_status(again=True)

    def _open(self, now: float) -> None:
        token = secrets.token_hex(16)
        devices: tuple[str, ...] | None = None
        if not self._config.choose.everyone:
            ready = self._devices.ready(self.course, now)
            if not self._devices.suffices(len(ready), now):
                self._devices.log_waiting(len(ready), self.course, now)
                return
            devices = choose(ready, self._pace.devices, token)
        announced = RoundAnnouncement(
            self._config.fleet, self.course.number + 1, token, "open", self.course.bundle,
            self.course.standing, now, now + self._pace.deadline, self._pace.window, devices,
            self._config.settings, None if self._unsealer is None else self._unsealer.public,
            self._config.rollout.device_bytes or 0,
        )  # fmt: skip
        log.info("round_opened", round=announced.round, devices=None if devices is None else len(devices))
        self._transition(opened(self.course, announced, self._pace))

    def _extend(self, now: float) -> None:
        asked = self.course.asked
        ready = [] if asked is None else self._devices.ready(self.course, now)
        fresh = [name for name in ready if name not in (asked or ())]
        missing = self._pace.devices - self.admission.accepted
        more = choose(fresh, missing, secrets.token_hex(4))
        log.warning(
            "round_extended", round=self.course.number, updates=self.admission.accepted, more=len(more)
        )
        self._transition(extended(self.course, more, self._pace, now))

    def _close(self, now: float) -> None:
        """Aggregate; the model is durable before anything says that the round is closed."""
        if not self._has_states(now):
            return
        began, number, standing = time.monotonic(), self.course.number, self.course.standing
        updates = self.admission.updates()
        try:
            change = aggregate(self._config.reduce, updates, self.layout)
            weights = advanced(self.journal.weights(standing.hash), change, self.layout)
        except TrainingError as problem:
            log.error("round_failed", round=number, devices=len(updates), problem=problem.line())
            self._finish_round(standing.hash, now, StageVerdict(accepted=False, reason=problem.line()))
            return
        source = {
            "round": number, "parent": standing.hash, "devices": len(updates),
            "samples": sum(update.samples for update in updates), "refused": dict(self.admission.refused),
            "made": now,
        }  # fmt: skip
        model = self.journal.add(weights, fingerprint(weights), source)
        seconds = time.monotonic() - began
        log.info("round_closed", round=number, seconds=round(seconds, 3), devices=len(updates))
        if not self._config.stages:
            self._finish_round(model.hash, now, None)
            return
        asked = tuple(sorted({*self.admission.contributors, *(self.course.asked or ())}))
        self.course = replace(self.course, asked=asked)
        self._begin_stage(model, 0, now)

    def _begin_stage(self, model: BaseModelInfo, stage: int, now: float) -> None:
        named = self._devices.of_stage(self.course, stage, now)
        if named == ():
            log.warning("rollout_without_canaries", round=self.course.number)
            stage += 1
            named = self._devices.of_stage(self.course, stage, now)
        log.info("rollout_stage", round=self.course.number, stage=self._config.stage_name(stage))
        until = now + self._config.gate.wait
        self._transition(trial(self.course, model, named, stage, until, self.course.asked))

    def _next_stage(self, now: float) -> None:
        announced, stage = self.course.round, self.course.stage + 1
        if announced is None or stage >= len(self._config.stages):  # the configuration has fewer stages now
            model = self.course.standing if announced is None else announced.base
            self._finish_round(model.hash, now, None)
        else:
            self._begin_stage(announced.base, stage, now)

    def _evaluate(self, now: float) -> None:
        announced = self.course.round
        if announced is None:
            return
        reports = self.reports.of(announced.base.hash)
        named = announced.devices
        asked = set(self._devices.judges(self.course, now) if named is None else named)
        asked.difference_update(self._control.excluded)
        awaited = asked - self._devices.absent() - {report.device for report in reports}
        if awaited and now < self.course.until:
            return
        verdict = judge(reports, len(asked), self._config.gate)
        log.info(
            "model_judged", round=self.course.number, stage=self.course.stage, accepted=verdict.accepted,
            reason=verdict.reason, dissenters=list(verdict.dissenters[:20]),
        )  # fmt: skip
        if verdict.accepted and self._config.waits_for_approval(self.course.stage):
            log.info("rollout_waits_for_approval", round=self.course.number, stage=self.course.stage)
            self._transition(awaiting_approval(self.course, now))
            return
        if verdict.accepted and self.course.stage + 1 < len(self._config.stages):
            self._next_stage(now)
            return
        self._finish_round(announced.base.hash, now, verdict)

    def _finish_round(self, digest: str, now: float, verdict: StageVerdict | None) -> None:
        accepted = verdict is None or verdict.accepted
        before = self.course.standing
        model = self.journal.base(digest) if accepted else before
        course = ended(self.course, model, self._pace, now)
        self.journal.record(RoundRecord.of(self.course, course, digest, now, verdict))
        log.info("round_done", round=course.number, accepted=accepted, version=course.version)
        self._transition(course)
        self.journal.prune_models({model.hash, before.hash}, self._config.keep)

    # For `edged fleet status`.

    def _publish_status(self, *, again: bool = False) -> None:
        moment = time.monotonic()
        if not again and moment - self._published < STATUS_SECONDS:
            return
        self._published = moment
        status = self._status()
        self.journal.publish_status(json.dumps(json_ready(status.to_json()), indent=1).encode())
        if self._session.connected:
            self._publisher.publish(status, self.journal.lineage[-ROUNDS:])

    def _status(self) -> CoordinatorStatus:
        course, now = self.course, self._clock.now()
        return CoordinatorStatus(
            fleet=self._config.fleet,
            at=now,
            connected=self._session.connected,
            phase=course.phase,
            round=course.number,
            version=course.version,
            model=course.standing.hash,
            until=course.until,
            updates=self.admission.accepted,
            wanted=self._pace.devices,
            asked=None if course.asked is None else len(course.asked),
            refused=dict(self.admission.refused),
            devices=len(self._devices.states),
            ready=len(self._devices.ready(course, now)),
            paused=self._control.paused,
            excluded=tuple(self._control.excluded),
            waits_for=self._devices.waits_for(course, now),
            why_not=dict(list(self._devices.reasons(course, now).items())[:NAMED]),
            rollout=rollout_status(course, self.reports, self._config),
        )


def run(path: Path) -> None:
    """Coordinate as the configuration at `path` says, until the last round, SIGTERM or SIGINT."""
    config = load(path)
    logs.configure(config.log.level)
    coordinator = Coordinator(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.stop())
    coordinator.run()
