"""What the device does in a round of its fleet, by its trainer and its gate."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from edged import __version__
from edged.errors import EdgedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from pathlib import Path

    from edged.config.fleet import FleetConfig
    from edged.device.pipeline import LivePipeline
    from edged.domain.federated.messages import RoundAnnouncement
    from edged.storage.models.installed_bundles import ActiveBundle

Message = dict[str, Any]

FRESH_SECONDS = 30.0  # that it is remembered which bundle trains
CHARGED = 50.0  # percent of a battery from which on it counts as charged, where no guard says

log = get_logger("edged.membership")


class RoundExecutor:
    """Trains in rounds and judges the fleet's models; see `protocols.RoundWork`.

    Parameters
    ----------
    pipeline
        Its trainer trains and judges, its rollout brings the fleet's model into service.
    fleet
        The section `fleet`.
    bundles
        Knows the bundle that the device trains.
    """

    def __init__(self, pipeline: LivePipeline, fleet: FleetConfig, bundles: ActiveBundle) -> None:
        self._pipeline, self._fleet, self._bundles = pipeline, fleet, bundles
        self._clock, self._registry = pipeline.clock, pipeline.registry
        self._scheduler = pipeline.scheduler
        self._fingerprint, self._read_at = "", float("-inf")

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

    def state(self) -> Message:
        """Return the fields `version`, `idle`, `charged` and `cool` of the device's state."""
        now, guards = self._scheduler.conditions(), self._pipeline.config.training
        least = CHARGED if guards.min_battery is None else guards.min_battery
        hot = guards.max_temperature is not None and (now.temperature_c or -273.0) > guards.max_temperature
        return {
            "version": __version__,
            "idle": self._scheduler.progress is None,
            "charged": now.on_battery is not True or (now.battery_percent or 0.0) >= least,
            "cool": not hot and not now.board,
        }

    def train(self, announced: RoundAnnouncement, model: Path) -> Message:
        """Train in the round and keep an update; return its `number`, `about` and figures.

        Raises
        ------
        EdgedError
            When the trainer fails or is stopped; see `TrainerClient.run`.
        """
        left = announced.deadline - self._clock.now()
        order = {
            "round": json.loads(announced.payload()),
            "model": str(model),
            # What comes after the deadline is taken into a later round; a clock may be wrong, too.
            "seconds": min(self._fleet.budget, left) if left > 1.0 else self._fleet.budget,
        }
        result = self._run("fleet_round", announced, order)
        told = ("samples", "steps", "norm", "moved", "before", "after", "bytes", "seconds")
        self._registry.end_run(
            result["run"], self._clock.now(), "done", {name: result[name] for name in told}
        )
        return result

    def judge(self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None) -> Message:
        """Evaluate the fleet's model on the device's holdout, and serve it if the gate accepts it.

        Returns
        -------
        The trainer's result, with `taken` and `reason`: whether the device took the model, and if not, why.

        Raises
        ------
        EdgedError
            When the trainer fails or is stopped; see `TrainerClient.run`.
        """
        digest, path = standing or (None, None)
        order = {
            "id": announced.id,
            "model": str(model),
            "hash": announced.base.hash,
            "standing": None if path is None else str(path),
            "standing_hash": digest,
            "personal": list(announced.config.personal),
            "adopt": self._fleet.adopt,
        }
        result = self._run("fleet_model", announced, order)
        taken, reason = self._decided(result)
        told = {"share": result["share"], "taken": taken, "reason": reason}
        self._registry.end_run(result["run"], self._clock.now(), "done", told)
        return result | told

    def _decided(self, result: Message) -> tuple[bool, str]:
        rollout = self._pipeline.rollout
        if result["candidate"] is not None:
            served = rollout.consider(result)
            if served is not None:
                self._pipeline.worker.crowned(served)
            return served is not None, "; ".join(map(str, rollout.told.get("reasons", ())))
        if result["share"] == 0.0:
            return False, "the device's own weights do better on its holdout"
        if result["serves"]:
            return True, "it serves already"
        if not self._fleet.adopt:
            return False, "fleet.adopt is false"
        return False, "there is no holdout to choose by"

    def _run(self, kind: str, announced: RoundAnnouncement, order: Message) -> Message:
        run = self._registry.begin_run(
            kind, self._clock.now(), {"round": announced.round, "id": announced.id}
        )
        started = time.monotonic()
        try:
            return self._scheduler.process.run(
                {"run": run, **order}, lambda message: log.debug("trainer", **message)
            )
        except EdgedError as problem:
            self._registry.end_run(run, self._clock.now(), "failed", {"error": problem.line()})
            raise
        finally:
            self._scheduler.spend(time.monotonic() - started)
