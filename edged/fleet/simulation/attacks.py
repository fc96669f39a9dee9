"""Virtual devices that do harm: their updates are falsified."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edged.trainer.fleet_training import RoundTrainer
from edged.trainer.trainer import Trainer

if TYPE_CHECKING:
    from edged.domain.protocols import RoundData, RunControl
    from edged.domain.training.weight_deltas import Coded
    from edged.trainer.fleet_training import RoundContribution
    from edged.trainer.task import EngineFactory, LearningTask

Attack = Literal["flip", "scale", "noise"]

SCALED = 10.0


class HarmfulTrainer(Trainer):
    """The trainer of a device whose updates point the other way or anywhere, or are far too large."""

    def __init__(self, attack: Attack, *parts: Any, seed: int) -> None:
        self._attack = attack
        super().__init__(*parts, seed=seed)

    def _round_trainer(
        self, task: LearningTask, engines: EngineFactory, data: RoundData, control: RunControl
    ) -> RoundTrainer:
        return HarmfulRoundTrainer(self._attack, task, engines, data, control)


class HarmfulRoundTrainer(RoundTrainer):
    """Trains in rounds as other devices do, and falsifies the update."""

    def __init__(self, attack: Attack, *parts: Any) -> None:
        super().__init__(*parts)
        self._attack = attack
        self._factor = np.float32({"flip": -1.0, "scale": SCALED, "noise": 1.0}[attack])

    def train_round(self, *args: Any, rng: np.random.Generator, **kwargs: Any) -> RoundContribution:
        """Train as other devices do, then falsify the update."""
        made = super().train_round(*args, rng=rng, **kwargs)
        coded = {name: self._falsified(part, rng) for name, part in made.coded.items()}
        return replace(made, coded=coded, norm=made.norm * abs(float(self._factor)))

    def _falsified(self, part: Coded, rng: np.random.Generator) -> Coded:
        if self._attack == "noise":  # as large as it was, in another direction
            signs = rng.choice(np.array([-1, 1], part.values.dtype), part.values.shape)
            return replace(part, values=part.values * signs)
        if part.scale is None:
            return replace(part, values=part.values * self._factor)
        return replace(part, scale=np.asarray(part.scale * self._factor, np.float32))
