"""A device in its fleet: rounds are followed, updates are sent until a receipt names them, models are tried.

One thread owns all of this. The network thread and the learning thread leave what they have in its queue.
"""

from __future__ import annotations

import queue
import random
import threading
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from edged.device.fleet_member.fetching import ModelFetcher
from edged.device.fleet_member.sending import UpdateSender
from edged.device.learning.trainer_client import StoppedRunError
from edged.domain.federated.evaluation import Evaluation, Mixed
from edged.domain.federated.messages import DeviceState, FleetTopics, RoundAnnouncement
from edged.domain.federated.participation import DeviceRules, MembershipRecord, stranger, terms
from edged.domain.federated.settings import RoundSettings
from edged.errors import EdgedError, RejectedUpdateError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.clock import Clock
    from edged.config import FleetConfig
    from edged.device.fleet_member.protocols import FleetTransport, RoundWork
    from edged.domain.training.training_run import FleetModelResult, RoundResult
    from edged.mqtt.client.message import ReceivedMessage
    from edged.storage.models.fleet_models import FleetModels
    from edged.storage.models.sent_updates import SentUpdates

Fields = dict[str, Any]
T = TypeVar("T")

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 30.0  # until something that has failed is tried again
TRIES = 3

log = get_logger("edged.member")


class Member:
    """The part of one device.

    Parameters
    ----------
    device
        Its name.
    config
        The section `fleet`.
    topics, line, work
        Where the fleet talks, over what, and what it has done here.
    between
        Carries something out between two training runs.
    models, kept
        Where models and updates lie.
    memory, remember
        What is known from before, and where it is kept durably.
    notify
        Told `(event, fields)`.
    """

    def __init__(
        self,
        device: str,
        config: FleetConfig,
        *,
        topics: FleetTopics,
        line: FleetTransport,
        work: RoundWork,
        between: Callable[[Callable[[], None]], None],
        models: FleetModels,
        kept: SentUpdates,
        memory: MembershipRecord,
        remember: Callable[[MembershipRecord], None],
        notify: Callable[[str, Fields], None],
        clock: Clock,
    ) -> None:
        self._device, self._config, self._topics = device, config, topics
        self._line, self._work, self._between = line, work, between
        self._models, self._notify, self._clock = models, notify, clock
        self._memory, self._remember = memory, remember
        self._own = DeviceRules(
            clip_norm=config.clip_norm,
            noise=config.noise,
            personal=tuple(config.personal),
            epsilon=config.epsilon,
            delta=config.delta,
        )
        self._round: RoundAnnouncement | None = None
        self._sending = UpdateSender(device, config, topics, line, kept)
        self._fetching = ModelFetcher(topics, line, self._part_came)
        self._unkept = False  # whether memory is newer than what is on the disk
        self._busy = False
        self._failures: dict[str, int] = {}
        self._not_before = 0.0
        self._declined: tuple[str, str] = ("", "")
        self._told: tuple[float, Fields] = (float("-inf"), {})
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="fleet", daemon=True)

    # ---- what other threads call -----------------------------------------------------------

    def start(self) -> None:
        """Take up what an earlier process has left, and begin."""
        self._queue.put(self._take_up)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End; the fleet is told that this device does not take part for now."""
        self._queue.put(None)
        self._thread.join(timeout)
        self._tell_state("the daemon has stopped")

    def round_came(self, delivery: ReceivedMessage) -> None:
        """A message on the topic of rounds."""
        self._queue.put(lambda: self._follow(delivery.payload))

    def receipts_came(self, delivery: ReceivedMessage) -> None:
        """A message with receipts."""
        self._queue.put(lambda: self._settle(delivery.payload))

    @property
    def judged(self) -> str:
        """Fingerprint of the fleet's model that was tried last."""
        return self._memory.judged

    # ---- the thread ------------------------------------------------------------------------

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
        self._keep()
        self._tell_state()  # before the update: who has that in hands looks at the state next
        self._sending.send(self._clock.monotonic())
        self._decide()
        self._tell_state()

    def _keep(self) -> None:
        """Nothing is sent before it is known durably what it has cost."""
        if self._unkept:
            self._remember(self._memory)
            self._unkept = False

    def _changed(self, memory: MembershipRecord) -> None:
        self._memory, self._unkept = memory, memory != self._memory or self._unkept
        self._keep()

    def _take_up(self) -> None:
        """Updates that were kept and have no receipt yet: of each round the newest."""
        memory = self._memory
        for waiting in self._sending.take_up(memory.settled, self._clock.monotonic()):
            memory = memory.trained(waiting.number, waiting.about)
        self._changed(memory)

    # ---- rounds ----------------------------------------------------------------------------

    def _follow(self, payload: bytes) -> None:
        announced = RoundAnnouncement.read(payload)
        strange = stranger(announced, self._config.name, self._work.bundle())
        if strange:
            log.warning("fleet_round_not_ours", reason=strange)
            self._round = None
            return
        self._round, self._not_before = announced, 0.0

    def _decide(self) -> None:
        announced = self._round
        if announced is None or self._busy or self._clock.monotonic() < self._not_before:
            return
        trains, tries = self._trains(announced), self._tries(announced)
        if not (trains or tries):
            return
        model = self._models.path(announced.base.hash)
        if model is None:
            self._fetch(announced)
        elif trains and self._willing(announced):
            asked = replace(announced, config=terms(announced.config, self._own))
            self._do(announced.id, lambda: self._work.train(asked, model), self._trained)
        elif tries:
            asked = replace(announced, config=terms(announced.config, self._own))
            standing, before = self._models.path(self._memory.judged), self._memory.judged
            known = None if standing is None else (before, standing)
            self._do(
                announced.base.hash,
                lambda: self._work.judge(asked, model, known),
                lambda found: self._judged(announced, found),
            )

    def _trains(self, announced: RoundAnnouncement) -> bool:
        return (
            self._config.train
            and announced.state == "open"
            and announced.names(self._device)
            and announced.id not in self._memory.rounds
            and self._failures.get(announced.id, 0) < TRIES
        )

    def _tries(self, announced: RoundAnnouncement) -> bool:
        """A closed round has a model that its devices try; the others' is the one that the fleet has."""
        named = announced.state != "closed" or announced.names(self._device)
        wanted = self._config.adopt or (self._config.report and announced.config.evaluate)
        digest = announced.base.hash
        new = digest != self._memory.judged and self._failures.get(digest, 0) < TRIES
        return named and wanted and new

    def _willing(self, announced: RoundAnnouncement) -> bool:
        reason = self._why_not(announced.config)
        if reason and self._declined != (announced.id, reason):
            self._declined = (announced.id, reason)
            self._event("fleet_declined", {"round": announced.round, "reason": reason})
        return not reason

    def _why_not(self, config: RoundSettings) -> str:
        if not self._config.train:
            return "it does not train in rounds: fleet.train is false"
        new = self._work.new_samples(self._memory.consumed)
        if new < self._config.min_new_samples:
            return f"too few new labelled samples: {self._config.min_new_samples} needed"
        own = self._own
        if own.epsilon is not None:
            refusal = self._memory.ledger.refusal(terms(config, own).noise, own.epsilon, own.delta)
            if refusal:
                return refusal
        return self._work.why_not()

    def _do(self, name: str, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Have something done between two runs, and go on with what came of it on this thread."""
        self._busy = True

        def act() -> None:
            try:
                found = work()
            except StoppedRunError:
                self._queue.put(self._free)
            except EdgedError as problem:
                self._queue.put(lambda problem=problem: self._failed(name, problem))  # type: ignore[misc]
            except BaseException:
                self._queue.put(self._free)
                raise
            else:
                self._queue.put(lambda: self._succeeded(found, then))

        self._between(act)

    def _free(self) -> None:
        self._busy = False
        self._not_before = self._clock.monotonic() + AGAIN_SECONDS

    def _succeeded(self, found: T, then: Callable[[T], None]) -> None:
        self._busy = False
        self._tell_state()
        then(found)

    def _failed(self, name: str, problem: EdgedError) -> None:
        self._free()
        if not isinstance(problem, StorageError):  # of a disk no round is to blame
            self._failures[name] = self._failures.get(name, 0) + 1
        announced = self._round
        fields = {"round": announced.round if announced is not None else None, "reason": problem.line()}
        self._event("fleet_failed", fields)
        if name == (announced and announced.base.hash):
            self._models.remove(name)  # perhaps it came damaged

    # ---- what was trained ------------------------------------------------------------------

    def _trained(self, found: RoundResult) -> None:
        number, about = found.number, found.about
        window = self._round.window if self._round is not None else 0.0
        self._sending.add(number, about, self._clock.monotonic() + window * random.random())
        self._event(
            "fleet_trained",
            {
                "round": about.round,
                "samples": found.samples,
                "steps": found.steps,
                "bytes": found.bytes,
                "norm": found.norm,
            },
        )
        self._changed(self._memory.trained(number, about))

    def _settle(self, payload: bytes) -> None:
        for sent, refused in self._sending.settle(payload):
            told: Fields = {"round": sent.about.round, "sendings": sent.sendings}
            if refused is None:
                self._event("fleet_accepted", told)
            else:
                self._event("fleet_refused", told | {"reason": refused})
            self._changed(self._memory.done_with(sent.number))

    # ---- the fleet's model -----------------------------------------------------------------

    def _fetch(self, announced: RoundAnnouncement) -> None:
        base = announced.base
        if base.bytes <= self._config.max_bytes:
            self._fetching.want(base, self._clock.monotonic())
            return
        self._failures[base.hash] = self._failures[announced.id] = TRIES
        reason = f"its model has {base.bytes} bytes, fleet.max_bytes is {self._config.max_bytes}"
        self._event("fleet_failed", {"round": announced.round, "reason": reason})

    def _part_came(self, delivery: ReceivedMessage) -> None:
        self._queue.put(lambda: self._part(delivery.topic, delivery.payload))

    def _part(self, topic: str, payload: bytes) -> None:
        blob = self._fetching.part(topic, payload, self._clock.monotonic())
        if blob is not None:
            digest = topic.split("/")[-2]
            self._models.put(digest, blob, keep=(self._memory.judged, self._memory.standing))

    def _judged(self, announced: RoundAnnouncement, found: FleetModelResult) -> None:
        share, taken, reason = found.share, found.taken, found.reason
        self._event(
            "fleet_model",
            {"round": announced.round, "model": announced.base.hash, "share": share, "taken": taken,
             "reason": reason},
        )  # fmt: skip
        before, model, mixed = found.before, found.model, found.mixed
        if self._config.report and announced.config.evaluate and before is not None and model is not None:
            report = Evaluation(
                self._device, announced.round, announced.id, announced.base.hash,
                found.samples_judged, before, model, found.standing,
                None if mixed is None or share is None else Mixed(share, mixed.loss, mixed.metric),
                taken, reason[:900],
            )  # fmt: skip
            self._line.publish(self._topics.evaluation(announced.round, self._device), report.payload())
        self._changed(self._memory.tried(announced.base.hash))

    # ---- what others are told --------------------------------------------------------------

    def _tell_state(self, why_not: str | None = None) -> None:
        memory, now = self._memory, self._clock.monotonic()
        config = self._round.config if self._round is not None else RoundSettings()
        reason = self._why_not(config) if why_not is None else why_not
        fields = {
            **asdict(self._work.state()),
            "bundle": self._work.bundle(),
            "ready": not reason,
            "why_not": reason[:200],
            "last_round": memory.last_round,
        }
        if fields["ready"] and self._busy:
            fields["idle"] = False
        at, told = self._told
        if fields == told and now - at < self._config.state_every:
            return
        samples = self._work.new_samples(memory.consumed)
        state = DeviceState(device=self._device, at=self._clock.now(), samples=samples, **fields)
        if self._line.publish(self._topics.state(self._device), state.payload(), retain=True):
            self._told = now, fields

    def _event(self, what: str, fields: Fields) -> None:
        log.info(what, **fields)
        self._notify(what, fields)
