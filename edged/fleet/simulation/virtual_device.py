"""One virtual device: its rows, its own model, and what it does in rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edged import __version__
from edged.device.fleet_member.protocols import Condition
from edged.domain.federated.personal_layers import fitting, only
from edged.domain.training.trainer_messages import TrainRound
from edged.domain.training.training_run import FleetModelResult
from edged.domain.training.weight_deltas import fingerprint
from edged.domain.training.weight_mixing import SHARES, best_share, mixed
from edged.fleet.simulation.partition import three_parts
from edged.fleet.simulation.shared import Unthrottled
from edged.mqtt.update_encoding import fleet_model
from edged.storage.models.sent_updates import PERSONAL, ROUNDS, SentUpdates
from edged.trainer.fleet_training import RoundTrainer
from edged.trainer.fleet_update import FleetUpdateTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.domain.federated.messages import Quality, RoundAnnouncement
    from edged.domain.training.training_run import RoundResult
    from edged.fleet.simulation.shared import SharedSetup
    from edged.trainer.fleet_training import RoundContribution

    Weights = Mapping[str, NDArray[np.float32]]

Attack = Literal["flip", "scale"]

LARGEST_MODEL = 1 << 30
SCALED = 10.0


@dataclass
class ModelReport:
    """What a device found of the fleet's model of a round, on rows that nothing was chosen by."""

    model: str
    share: float | None
    alone: Quality
    mixed: Quality


@dataclass
class DeviceLog:
    """What a device has done, for the report."""

    models: list[ModelReport] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes of its messages, by round, sent again or not."""


class MaliciousDevice(RoundTrainer):
    """A device that does harm: its updates point the other way, or are far too large."""

    def __init__(self, attack: Attack, *parts: Any) -> None:
        super().__init__(*parts)
        self._factor = np.float32(-1.0 if attack == "flip" else SCALED)

    def train_round(self, *args: Any, **kwargs: Any) -> RoundContribution:
        """Train as other devices do, then falsify the update."""
        made = super().train_round(*args, **kwargs)
        coded = {
            name: replace(part, values=part.values * self._factor)
            if part.scale is None
            else replace(part, scale=np.asarray(part.scale * self._factor, np.float32))
            for name, part in made.coded.items()
        }
        return replace(made, coded=coded, norm=made.norm * abs(float(self._factor)))


class VirtualDevice:
    """The `RoundWork` of a simulated device; between rounds it learns for itself from its own rows.

    `folder` keeps what must survive, `bench` is shared with the others, `rows` are of the recording, `seed`
    of its own learning, and `attack` is what it does to its updates, where it does harm.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        bench: SharedSetup,
        rows: NDArray[np.int64],
        *,
        seed: int,
        attack: Attack | None = None,
    ) -> None:
        self.name, self.folder, self.log, self.attack = name, folder, DeviceLog(), attack
        self._bench, self._seed = bench, seed
        self.learned, self.chosen_by, self.kept = three_parts(rows)
        self._sent = SentUpdates(folder, ROUNDS)
        self._data = bench.data(self.learned, self.chosen_by, bench.initial())
        parts = (bench.task, bench.engines, self._data, Unthrottled())
        trainer = RoundTrainer(*parts) if attack is None else MaliciousDevice(attack, *parts)
        self._part = FleetUpdateTrainer(name, folder, trainer, self._data, LARGEST_MODEL)

    # ---- what its member asks of it ----------------------------------------------------------

    def why_not(self) -> str:
        """Return no reason: it can always train."""
        return ""

    def new_samples(self, consumed: int) -> int:
        """Return how many rows it has, all from the start."""
        return max(0, len(self.learned) - consumed)

    def bundle(self) -> str:
        """Fingerprint of the bundle that it trains."""
        return self._bench.bundle.fingerprint

    def state(self) -> Condition:
        """Return its state, which is always good."""
        return Condition(version=__version__, idle=True, charged=True, cool=True)

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round and store an update."""
        return self._part.contribute(TrainRound(announced.round, announced, model, seconds=3600.0))

    def evaluate(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Mix the fleet's model with its own, note what that gives, and learn on by itself."""
        patterns = announced.config.personal
        other = self._fitting(model, announced.base.hash, patterns)
        tried = {share: self._ask(mixed(self._data.own, other, share)) for share in SHARES}
        share = best_share({share: found[0].loss for share, found in tried.items()})
        best = 0.0 if share is None else share
        before = None if standing is None else self._ask(self._fitting(standing[1], standing[0], patterns))[0]
        self.log.models.append(ModelReport(announced.base.hash, share, tried[1.0][1], tried[best][1]))
        self._data.own = mixed(self._data.own, other, best)
        serves = fingerprint(self._data.own) == announced.base.hash
        self._data.own = self._bench.trained(
            self._data.own, self.learned, announced.config, self._seed + announced.round
        )
        return FleetModelResult(
            run=announced.round,
            share=share,
            samples_judged=len(self.chosen_by),
            before=tried[0.0][0],
            model=tried[1.0][0],
            standing=before,
            mixed=tried[best][0],
            taken=best > 0.0 or serves,
            reason="" if best > 0.0 else "the device's own weights do better on its holdout",
        )

    # ---- its own -----------------------------------------------------------------------------

    def _ask(self, weights: Weights) -> list[Quality]:
        return self._bench.evaluate(weights, self.folder / "asked.onnx", self.chosen_by, self.kept)

    def _fitting(self, model: Path, digest: str, patterns: tuple[str, ...]) -> Weights:
        last = self._sent.newest()
        trained = {} if last is None else only(last.held(PERSONAL), patterns)
        shared = fleet_model(model, digest, LARGEST_MODEL)
        return fitting(shared, {**self._data.own, **trained}, self._bench.bundle.trainable, patterns)
