"""The device as its member of the fleet uses it: its trainer, its gate, and the member's record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edged.config.fleet import FleetConfig
from edged.device.events import Events
from edged.device.live_pipeline import LivePipeline
from edged.domain.events import Event
from edged.domain.federated.messages import RoundAnnouncement
from edged.domain.federated.participation import MembershipRecord
from edged.domain.federated.round_orders import (
    FitRequest,
    FleetModelResult,
    RoundResult,
    TrainedWeights,
    TrainFrom,
    TrainRound,
    TryFleetModel,
)
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import TrainingOrder
from edged.domain.training.training_run import RunCause, RunEnd
from edged.engines.model_parameters import initial_parameters
from edged.errors import EdgedError
from edged.logs import get_logger
from edged.storage.models.bundle_archive import ActiveBundle

R = TypeVar("R", bound="Message")

FRESH_SECONDS = 30.0  # that it is remembered which bundle trains
LOCAL = "local"  # in the registry: source of a model that a program on this machine offered
RECORD = "fleet"  # name of the registry's value

log = get_logger("edged.member")


class RoundExecutor:
    """Trains in rounds and judges the fleet's models.

    The trainer of `pipeline` trains and judges, its rollout brings the fleet's model into service. `train`
    and `evaluate` take long; the member calls them within `between_runs`.
    """

    def __init__(
        self, pipeline: LivePipeline, fleet: FleetConfig, bundles: ActiveBundle, events: Events
    ) -> None:
        self._pipeline, self._fleet, self._bundles, self._events = pipeline, fleet, bundles, events
        self._clock, self._registry = pipeline.clock, pipeline.registry
        self._scheduler = pipeline.scheduler
        self._record = MembershipRecord.from_json(self._registry.get_value(RECORD) or {})
        self._fingerprint, self._read_at = "", float("-inf")

    @property
    def record(self) -> MembershipRecord:
        """The membership record as it was last stored."""
        return self._record

    def store(self, record: MembershipRecord) -> None:
        """Store the membership record durably.

        Raises StorageError when the disk refuses.
        """
        self._registry.set_value(RECORD, record.to_json())
        self._record = record

    def between_runs(self, job: Callable[[], None]) -> None:
        """Call `job` on the learning thread, after the present training run."""
        self._pipeline.worker.between_runs(job)

    def event(self, event: Event) -> None:
        """Report an event of the contract."""
        log.info(event.name, **event.to_json())
        self._events.event(event)

    def why_not(self) -> str:
        """Return what keeps the device from training now; empty when nothing does."""
        return ", ".join(self._scheduler.held_back())

    def new_samples(self, consumed: int) -> int:
        """Count labelled samples after a position in label order."""
        return self._pipeline.reader.labelled_since(consumed)

    def bundle(self) -> str:
        """Return the fingerprint of the bundle that the device trains."""
        now = self._clock.monotonic()
        if now - self._read_at > FRESH_SECONDS:  # to open one reads it whole
            self._fingerprint, self._read_at = self._bundles.open().fingerprint, now
        return self._fingerprint

    @property
    def idle(self) -> bool:
        """True while no training run of the device's own is in progress."""
        return self._scheduler.progress is None

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round and store an update.

        Raises EdgedError when the trainer fails or is stopped; see `TrainerClient.run`.
        """
        left = announced.deadline - self._clock.now()
        # The clock of this device or of the coordinator may be wrong.
        seconds = min(self._fleet.budget, left) if left > 1.0 else self._fleet.budget
        run = self._start("fleet_round", announced.round, announced.id)
        result = self._run(TrainRound(run, announced, model, seconds))
        self._registry.end_run(run, self._clock.now(), "done", result)
        return result

    def initial_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the trainable weights that the device's bundle begins with."""
        bundle = self._bundles.open()
        initial = initial_parameters(bundle)
        return {name: initial[name] for name in bundle.trainable}

    def train_from(self, settings: FitRequest, digest: str, model: Path, trained: Path) -> TrainedWeights:
        """Train from the weights `digest` in the file `model`; the new weights lie in the file `trained`.

        Raises EdgedError when the trainer fails or is stopped; see `TrainerClient.run`.
        """
        run = self._start("fleet_round", settings.round, None)
        result = self._run(TrainFrom(run, settings, model, digest, trained, self._fleet.budget))
        self._registry.end_run(run, self._clock.now(), "done", result)
        return result

    def judge(
        self,
        number: int,
        token: str | None,
        model: tuple[str, Path],
        standing: tuple[str, Path] | None = None,
        *,
        offer: bool = True,
    ) -> FleetModelResult:
        """Evaluate weights on the holdout in the round `number`; if offered, put them to the gate.

        `token` is the id of a round over MQTT. `model` is fingerprint and file of the weights, `standing`
        those of the fleet's model that was judged before, where it is kept.

        Raises EdgedError when the trainer fails or is stopped; see `TrainerClient.run`.
        """
        (digest, file), (before, kept) = model, standing or (None, None)
        order = TryFleetModel(
            self._start("fleet_model", number, token),
            id=token or LOCAL,
            model=file,
            hash=digest,
            standing=kept,
            standing_hash=before,
            adopt=offer and self._adopts,
        )
        result = self._run(order)
        taken, reason = self._decided(result) if offer else (False, "it was not offered")
        result = replace(result, taken=taken, reason=reason)
        self._registry.end_run(order.run, self._clock.now(), "done", result)
        return result

    @property
    def _adopts(self) -> bool:
        return not self._pipeline.config.model.keys  # the models of a fleet bear no signature

    def _decided(self, result: FleetModelResult) -> tuple[bool, str]:
        if result.candidate is not None:
            judged, served = self._pipeline.rollout.consider(result.candidate)
            if served is not None:
                self._pipeline.record_champion(served.version)
            return served is not None, "; ".join(judged.verdict.reasons)
        if result.serves:
            return True, "it serves already"
        return False, "model.keys is set, and models of a fleet bear no signature"

    def _start(self, kind: str, number: int, token: str | None) -> int:
        cause = RunCause(round=number, id=token)
        return self._registry.begin_run(kind, self._clock.now(), cause)

    def _run(self, order: TrainingOrder[R]) -> R:
        started = time.monotonic()
        try:
            return self._scheduler.client.run(order)
        except EdgedError as problem:
            end = RunEnd(order.run, outcome="failed", error=problem.line())
            self._registry.end_run(order.run, self._clock.now(), end.outcome, end)
            raise
        finally:
            self._scheduler.spend(time.monotonic() - started)
