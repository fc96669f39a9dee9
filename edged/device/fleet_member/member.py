"""A member of a fleet: follows rounds, sends updates until a receipt names them, judges the fleet's models.

One thread owns all of this. The network thread and the learning thread leave what they have in its queue.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from edged import __version__
from edged.clock import Clock
from edged.config import FleetConfig
from edged.device.events import Events, Extension
from edged.device.fleet_member.local_rounds import LocalRounds
from edged.device.fleet_member.round_executor import RoundExecutor
from edged.device.fleet_member.traffic import FleetTransport, ModelFetcher, UpdateSender
from edged.device.learning.trainer_slot import StoppedRunError
from edged.device.live_pipeline import LivePipeline
from edged.domain.events import (
    FleetAccepted,
    FleetDeclined,
    FleetFailed,
    FleetModelJudged,
    FleetRefused,
    FleetTrained,
)
from edged.domain.federated.messages import (
    LARGEST_MODEL,
    STOPPED,
    DeviceState,
    Evaluation,
    FleetTopics,
    RoundAnnouncement,
)
from edged.domain.federated.participation import BUDGET_USED, DAY_SECONDS, MembershipRecord, stranger
from edged.domain.federated.round_orders import FleetModelResult, RoundResult
from edged.errors import EdgedError, RejectedUpdateError, StorageError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.signing import Keys
from edged.storage.models.bundle_archive import ActiveBundle
from edged.storage.models.fleet import FleetModels, SentUpdates

R = TypeVar("R")

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 30.0  # until something that has failed is tried again
TRIES = 3
STATE_SECONDS = 60.0  # between two messages on the device's state; changes are published at once

log = get_logger("edged.member")


class Member(Extension):
    """Takes part in the rounds of a fleet for the device with this name.

    `work` trains and judges between training runs; models and updates are stored in the directory `state`.
    """

    def __init__(
        self,
        device: str,
        config: FleetConfig,
        *,
        topics: FleetTopics,
        transport: FleetTransport,
        work: RoundExecutor,
        state: Path,
        clock: Clock,
    ) -> None:
        self._device, self._config, self._topics = device, config, topics
        self._transport, self._work, self._clock = transport, work, clock
        self._models = FleetModels(state)
        self._record = work.record
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._round: RoundAnnouncement | None = None
        self._updates = SentUpdates(state)
        self._sender = UpdateSender(device, topics, transport, self._updates)
        self._fetcher = ModelFetcher(topics, transport)
        self._busy = False
        self._failures: dict[str, int] = {}
        self._not_before = 0.0
        self._declined: tuple[str, str] = ("", "")
        self._published: tuple[float, DeviceState | None] = (float("-inf"), None)
        self._thread = threading.Thread(target=self._loop, name="fleet", daemon=True)

    # ---- start and stop --------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe to rounds and receipts, and resume what an earlier process has left.

        Call it before the session is started.
        """
        self._transport.follow(self._topics.round, self._receive_round)
        self._transport.follow(self._topics.ack("+"), self._receive_receipts)
        self._queue.put(self._resume)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop, and tell the fleet that this device takes part in nothing for now."""
        self._queue.put(None)
        self._thread.join(timeout)
        self._publish_state(STOPPED)

    # ---- on the network thread -------------------------------------------------------------

    def _receive_round(self, delivery: ReceivedMessage) -> None:
        self._queue.put(lambda: self._follow(delivery.payload))

    def _receive_receipts(self, delivery: ReceivedMessage) -> None:
        self._queue.put(lambda: self._acknowledge(delivery.payload))

    def _receive_part(self, delivery: ReceivedMessage) -> None:
        self._queue.put(lambda: self._add_part(delivery.topic, delivery.payload))

    # ---- the member's thread ---------------------------------------------------------------

    def _loop(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                item = self._nothing
            if item is None:
                return
            try:
                item()
                self._look()
            except RejectedUpdateError as problem:
                log.warning("fleet_message_refused", reason=problem.reason, problem=problem.line())
            except EdgedError as problem:
                log.warning("fleet_held", problem=problem.line(), remedy="tried again")
            except Exception:
                log.exception("fleet_failed")

    def _nothing(self) -> None:
        pass

    def _look(self) -> None:
        self._store()
        self._publish_state()  # before the update: who has that in hands looks at the state next
        if not self._budget_used():
            self._transferred(self._sender.send(self._clock.monotonic()))
        self._decide()
        self._publish_state()

    def _store(self) -> None:
        """Store the record if it has changed."""
        if self._record != self._work.record:
            self._work.store(self._record)

    def _change(self, record: MembershipRecord) -> None:
        self._record = record
        self._store()

    def _resume(self) -> None:
        """Resume sending updates that have no receipt yet: of each round the newest."""
        record = self._record
        for pending in self._sender.resume(record.settled, self._clock.monotonic()):
            record = record.trained(pending.about)
        self._change(record)

    # ---- rounds ----------------------------------------------------------------------------

    def _follow(self, payload: bytes) -> None:
        announced = RoundAnnouncement.read(payload)
        strange = stranger(announced, self._topics.fleet, self._work.bundle())
        if strange:
            log.warning("fleet_round_not_ours", reason=strange)
            self._round = None
            return
        if self._config.keys and announced.opened < self._record.opened:
            log.warning("fleet_round_old", round=announced.round, remedy="a signed message was sent again")
            return
        if announced.opened != self._record.opened:
            self._change(self._record.following(announced))
        self._round, self._not_before = announced, 0.0

    def _left(self) -> float:
        """Bytes that the device may still fetch and send for the fleet today."""
        budget = 0 if self._round is None else self._round.daily_bytes
        return self._record.left(budget, int(self._clock.now() // DAY_SECONDS))

    def _budget_used(self, needed: int = 1) -> bool:
        return self._left() < needed

    def _transferred(self, size: int) -> None:
        if size and self._round is not None and self._round.daily_bytes:
            self._change(self._record.transferred(size, int(self._clock.now() // DAY_SECONDS)))

    def _decide(self) -> None:
        announced = self._round
        if (
            announced is None
            or self._busy
            or self._clock.monotonic() < self._not_before
            or self._budget_used()
        ):
            return
        trains, judges = self._trains(announced), self._judges(announced)
        if not (trains or judges):
            return
        model = self._models.path(announced.base.hash)
        if model is None:
            self._fetch(announced)
        elif trains and self._willing(announced):
            self._start_training(announced, model)
        elif judges:
            self._start_judging(announced, model)

    def _trains(self, announced: RoundAnnouncement) -> bool:
        return (
            self._config.train
            and announced.state == "open"
            and announced.names(self._device)
            and announced.id not in self._record.rounds
            and self._failures.get(announced.id, 0) < TRIES
        )

    def _judges(self, announced: RoundAnnouncement) -> bool:
        """Return whether to judge the round's model: that of a closed round is for the devices it names."""
        named = announced.state != "closed" or announced.names(self._device)
        digest = announced.base.hash
        new = digest != self._record.judged and self._failures.get(digest, 0) < TRIES
        return named and new

    def _willing(self, announced: RoundAnnouncement) -> bool:
        reason = self._why_not()
        if reason:
            self._decline(announced, reason)
        return not reason

    def _decline(self, announced: RoundAnnouncement, reason: str) -> None:
        """Report once why the device takes no part in a round."""
        if self._declined != (announced.id, reason):
            self._declined = (announced.id, reason)
            self._work.event(FleetDeclined(announced.round, reason))

    def _why_not(self) -> str:
        if not self._config.train:
            return "it does not train in rounds: fleet.train is false"
        if self._budget_used():
            return BUDGET_USED
        if self._work.new_samples(self._record.consumed) == 0:
            return "too few new labelled samples: at least 1 needed"
        return self._work.why_not()

    # ---- training and judging, between two training runs -----------------------------------

    def _start_training(self, announced: RoundAnnouncement, model: Path) -> None:
        self._run(lambda: self._work.train(announced, model), self._trained, announced.id)

    def _start_judging(self, announced: RoundAnnouncement, model: Path) -> None:
        before = self._record.judged
        path = self._models.path(before)
        standing = None if path is None else (before, path)
        digest = announced.base.hash
        self._run(
            lambda: self._work.judge(announced.round, announced.id, (digest, model), standing),
            lambda found: self._judged(announced, found),
            digest,
        )

    def _run(self, work: Callable[[], R], done: Callable[[R], None], blamed: str) -> None:
        """Have `work` called between two training runs, and `done` with its result on the member's thread.

        `blamed` names the round or the model that an error is counted against. A run that was stopped, or an
        error that no part of edged raises by design, counts against neither.
        """

        def job() -> None:
            try:
                found = work()
            except EdgedError as error:
                problem = None if isinstance(error, StoppedRunError) else error
                self._queue.put(lambda: self._failed(blamed, problem))
            except BaseException:
                self._queue.put(lambda: self._failed(blamed, None))
                raise
            else:
                self._queue.put(lambda: done(found))

        self._busy = True
        self._work.between_runs(job)

    def _failed(self, name: str, problem: EdgedError | None) -> None:
        """A job has ended without a result; without a problem nothing is to blame."""
        self._busy = False
        self._not_before = self._clock.monotonic() + AGAIN_SECONDS
        if problem is None:
            return
        if not isinstance(problem, StorageError):  # of a disk no round is to blame
            self._failures[name] = self._failures.get(name, 0) + 1
        announced = self._round
        self._work.event(FleetFailed(None if announced is None else announced.round, problem.line()))
        if name == (announced and announced.base.hash):
            self._models.remove(name)  # perhaps it came damaged

    def _trained(self, found: RoundResult) -> None:
        self._busy = False
        self._publish_state()
        number, about = found.number, found.about
        window = self._round.window if self._round is not None else 0.0
        self._sender.add(number, about, self._clock.monotonic() + window * random.random())
        self._work.event(FleetTrained(about.round, found.samples, found.steps, found.bytes, found.norm))
        self._change(self._record.trained(about))

    def _acknowledge(self, payload: bytes) -> None:
        for update, refused in self._sender.acknowledge(payload):
            ended = update.about.round, update.sendings
            self._work.event(FleetAccepted(*ended) if refused is None else FleetRefused(*ended, refused))
            self._change(self._record.done_with(update.number))

    # ---- the fleet's model -----------------------------------------------------------------

    def _fetch(self, announced: RoundAnnouncement) -> None:
        base = announced.base
        if base.bytes <= LARGEST_MODEL:
            if self._budget_used(base.bytes):
                self._decline(
                    announced, f"its model has {base.bytes} bytes, more than today's budget has left"
                )
                return
            self._fetcher.request(base, self._clock.monotonic(), self._receive_part)
            return
        self._failures[base.hash] = self._failures[announced.id] = TRIES
        reason = f"its model has {base.bytes} bytes, at most {LARGEST_MODEL} are taken"
        self._work.event(FleetFailed(announced.round, reason))

    def _add_part(self, topic: str, payload: bytes) -> None:
        self._transferred(len(payload))
        blob = self._fetcher.add(topic, payload, self._clock.monotonic())
        if blob is not None:
            digest = topic.split("/")[-2]
            self._models.put(digest, blob, keep=(self._record.judged, self._record.standing))

    def _judged(self, announced: RoundAnnouncement, found: FleetModelResult) -> None:
        self._busy = False
        self._publish_state()
        taken, reason = found.taken, found.reason
        self._work.event(FleetModelJudged(announced.round, announced.base.hash, taken, reason))
        before, model = found.before, found.model
        if announced.config.evaluate and before is not None and model is not None:
            report = Evaluation(
                self._device, announced.round, announced.id, announced.base.hash,
                found.samples_judged, before, model, found.standing, taken, reason[:900],
            )  # fmt: skip
            self._transport.publish(self._topics.evaluation(announced.round, self._device), report.payload())
        self._change(self._record.tried(announced.base.hash))

    # ---- what the fleet hears --------------------------------------------------------------

    def _publish_state(self, why_not: str | None = None) -> None:
        """Publish the device's state if anything but its samples has changed, or from time to time."""
        record, now = self._record, self._clock.monotonic()
        reason = self._why_not() if why_not is None else why_not
        state = DeviceState(
            device=self._device,
            at=self._clock.now(),
            bundle=self._work.bundle(),
            version=__version__,
            samples=self._work.new_samples(record.consumed),
            ready=not reason,
            why_not=reason[:200],
            idle=self._work.idle and not self._busy,
            last_round=record.last_round,
            tags=tuple(self._config.tags),
        )
        at, published = self._published
        same = published is not None and published == replace(
            state, at=published.at, samples=published.samples
        )
        if same and now - at < STATE_SECONDS:
            return
        if self._transport.publish(self._topics.state(self._device), state.payload(), retain=True):
            self._published = now, state


def membership(
    pipeline: LivePipeline, fleet: FleetConfig, bundles: ActiveBundle, session: Session, events: Events
) -> Member | LocalRounds:
    """Make what takes part in rounds: over `session`, or without a name of a fleet for a local program."""
    config, work = pipeline.config, RoundExecutor(pipeline, fleet, bundles, events)
    if fleet.name is None:
        return LocalRounds(fleet, work, config.storage.dir)
    topics = FleetTopics(fleet.name, config.mqtt.root)
    return Member(
        config.device.id,
        fleet,
        topics=topics,
        transport=FleetTransport(session, topics, Keys(fleet.keys) if fleet.keys else None),
        work=work,
        state=config.storage.dir,
        clock=pipeline.clock,
    )
