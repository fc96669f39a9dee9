"""The device's part in a fleet that learns together, wired: only where the section `fleet` is configured."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from edged import __version__
from edged.device.events import Extension
from edged.device.fleet_member import Member
from edged.device.fleet_member.local_transport import LocalTransport
from edged.device.fleet_member.protocols import Condition
from edged.domain.federated.messages import FleetTopics
from edged.domain.federated.participation import MembershipRecord
from edged.domain.training.trainer_messages import TrainRound, TryFleetModel
from edged.errors import EdgedError
from edged.storage.models.fleet_models import FleetModels
from edged.storage.models.sent_updates import ROUNDS, SentUpdates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.clock import Clock
    from edged.config import Config
    from edged.config.fleet import FleetConfig
    from edged.device.events import Events
    from edged.device.learning.scheduler import TrainingScheduler
    from edged.device.learning.worker import TrainingWorker
    from edged.device.promotion.rollout import Rollout
    from edged.domain.federated.messages import RoundAnnouncement
    from edged.domain.training.message import Message
    from edged.domain.training.trainer_messages import TrainingOrder
    from edged.domain.training.training_run import FleetModelResult, RoundResult
    from edged.mqtt.client.message import ReceivedMessage
    from edged.mqtt.client.session import Session
    from edged.storage.models.bundles import Bundle
    from edged.storage.models.registry import Registry

    R = TypeVar("R", bound=Message)

MEMORY = "fleet"  # name of the registry's value that outlives restarts
FRESH_SECONDS = 30.0  # that it is remembered which bundle trains
CHARGED = 50.0  # percent of a battery from which on it counts as charged, where no guard says


class MqttTransport:
    """The device's own session as the line to its fleet: every message is taken as it comes."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def connected(self) -> bool:
        """Whether it stands."""
        return self._session.connected

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Hand a message over; False when it was refused."""
        return self._session.publish(topic, payload, qos=1, retain=retain)

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Take what is published on a filter, and what is kept there."""

        def taken(delivery: ReceivedMessage) -> None:
            sink(delivery)
            self._session.ack([delivery])

        self._session.subscribe([pattern], 1, taken, kept_again=True)

    def leave(self, pattern: str) -> None:
        """No longer."""
        self._session.unsubscribe([pattern])


class RoundExecutor:
    """What the device does in a round, by its trainer and its gate; see `protocols.Work`.

    Parameters
    ----------
    config, fleet
        The configuration, and its section `fleet`.
    clock, registry, learner, learning, succession
        The parts that it brings together.
    present_bundle
        The bundle that trains.
    labelled_since
        Counts labelled samples after a position in label order.
    """

    def __init__(
        self,
        config: Config,
        fleet: FleetConfig,
        *,
        clock: Clock,
        registry: Registry,
        learner: TrainingScheduler,
        learning: TrainingWorker,
        succession: Rollout,
        present_bundle: Callable[[], Bundle],
        labelled_since: Callable[[int], int],
    ) -> None:
        self._config, self._fleet, self._clock, self._registry = config, fleet, clock, registry
        self._learner, self._learning, self._succession = learner, learning, succession
        self._present_bundle, self._labelled_since = present_bundle, labelled_since
        self._fingerprint, self._read_at = "", float("-inf")

    def why_not(self) -> str:
        """What keeps it from training now; empty when nothing does."""
        return ", ".join(self._learner.held_back())

    def new_samples(self, consumed: int) -> int:
        """Labelled ones after a position in label order."""
        return self._labelled_since(consumed)

    def bundle(self) -> str:
        """Fingerprint of what it trains."""
        now = self._clock.monotonic()
        if now - self._read_at > FRESH_SECONDS:  # to open one reads it whole
            self._fingerprint, self._read_at = self._present_bundle().fingerprint, now
        return self._fingerprint

    def state(self) -> Condition:
        """How the device is."""
        now, guards = self._learner.conditions(), self._config.training
        least = CHARGED if guards.min_battery is None else guards.min_battery
        hot = guards.max_temperature is not None and (now.temperature_c or -273.0) > guards.max_temperature
        return Condition(
            version=__version__,
            idle=self._learner.progress is None,
            charged=now.on_battery is not True or (now.battery_percent or 0.0) >= least,
            cool=not hot and not now.board,
        )

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round and keep an update."""
        left = announced.deadline - self._clock.now()
        # What comes after the deadline is taken into a later round; a clock may be wrong, too.
        seconds = min(self._fleet.budget, left) if left > 1.0 else self._fleet.budget
        run = self._begin("fleet_round", announced)
        result = self._run(TrainRound(run, announced, model, seconds))
        self._registry.end_run(run, self._clock.now(), "done", result.record())
        return result

    def judge(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Try the fleet's model here; what came of it."""
        digest, path = standing or (None, None)
        order = TryFleetModel(
            self._begin("fleet_model", announced),
            id=announced.id,
            model=model,
            hash=announced.base.hash,
            standing=path,
            standing_hash=digest,
            personal=announced.config.personal,
            adopt=self._fleet.adopt,
        )
        result = self._run(order)
        taken, reason = self._decided(result)
        told = {"share": result.share, "taken": taken, "reason": reason}
        self._registry.end_run(order.run, self._clock.now(), "done", told)
        return replace(result, taken=taken, reason=reason)

    def _decided(self, result: FleetModelResult) -> tuple[bool, str]:
        if result.candidate is not None:
            judged, served = self._succession.consider(result.candidate)
            if served is not None:
                self._learning.crowned(served)
            return served is not None, "; ".join(judged.verdict.reasons)
        if result.share == 0.0:
            return False, "the device's own weights do better on its holdout"
        if result.serves:
            return True, "it serves already"
        if not self._fleet.adopt:
            return False, "fleet.adopt is false"
        return False, "there is no holdout to choose by"

    def _begin(self, kind: str, announced: RoundAnnouncement) -> int:
        about = {"round": announced.round, "id": announced.id}
        return self._registry.begin_run(kind, self._clock.now(), about)

    def _run(self, order: TrainingOrder[R]) -> R:
        started = time.monotonic()
        try:
            return self._learner.client.run(order)
        except EdgedError as problem:
            self._registry.end_run(order.run, self._clock.now(), "failed", {"error": problem.line()})
            raise
        finally:
            self._learner.spend(time.monotonic() - started)


class Membership(Extension):
    """The device in its fleet.

    Parameters
    ----------
    config, fleet
        The configuration, and its section `fleet`.
    work
        What the device does in a round.
    clock, registry, session
        Of the device.
    worker
        Carries something out between two training runs.
    events
        Hears what happens in the fleet.

    Attributes
    ----------
    post
        Where rounds are handed in; None where they come over MQTT.
    """

    def __init__(
        self,
        config: Config,
        fleet: FleetConfig,
        work: RoundExecutor,
        *,
        clock: Clock,
        registry: Registry,
        session: Session,
        worker: TrainingWorker,
        events: Events,
    ) -> None:
        self._topics = FleetTopics(fleet.name, config.mqtt.root)
        self.post = self._post(fleet, work) if fleet.flower else None
        self._line = self.post or MqttTransport(session)

        def told(event: str, fields: dict[str, Any]) -> None:
            if self.post is not None:
                self.post.heard(event, fields)
            events.event(event, fields)

        self._member = Member(
            config.device.id,
            fleet,
            topics=self._topics,
            line=self._line,
            work=work,
            between=worker.between,
            models=FleetModels(config.storage.dir),
            kept=SentUpdates(config.storage.dir, ROUNDS),
            memory=MembershipRecord.from_state(registry.get_value(MEMORY)),
            remember=lambda memory: registry.set_value(MEMORY, memory.state()),
            notify=told,
            clock=clock,
        )

    def _post(self, fleet: FleetConfig, work: RoundExecutor) -> LocalTransport:
        return LocalTransport(fleet, self._topics, bundle=work.bundle, judged=lambda: self._member.judged)

    def start(self) -> None:
        """Begin; call it before the session is started."""
        self._line.follow(self._topics.round, self._member.round_came)
        self._line.follow(self._topics.ack("+"), self._member.receipts_came)
        self._member.start()

    def stop(self) -> None:
        """Take part in nothing more."""
        self._member.stop()
