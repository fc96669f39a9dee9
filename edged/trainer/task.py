"""What a device learns, and the engines that learn it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.domain.training.batch_pool import LabelForm
from edged.domain.training.learner_state import MemoryRules
from edged.engines import open_engine
from edged.engines.runtime.ort import CPU

if TYPE_CHECKING:
    from edged.config import TrainingConfig
    from edged.domain.protocols import Engine
    from edged.domain.stream.schema import Schema
    from edged.storage.models.bundles import Bundle


@dataclass(frozen=True)
class LearningTask:
    """The bundle to train, the stream that it learns from, and the section `training`.

    `block` windows of a key share readings: 1 where samples do not overlap.
    """

    training: TrainingConfig
    schema: Schema
    bundle: Bundle
    block: int = 1

    @property
    def labels(self) -> LabelForm:
        """The form in which the bundle's loss takes labels."""
        return LabelForm(self.bundle.label_loss, self.bundle.output.width)

    @property
    def memory(self) -> MemoryRules:
        """Return the rules of what a learner of this task remembers."""
        training = self.training
        recent = min(training.recent, training.replay)
        return MemoryRules(training.replay, training.half_life, recent, training.average)


@dataclass(frozen=True)
class EngineFactory:
    """Opens engines of one kind on a bundle."""

    name: str
    bundle: Bundle
    threads: int = 1
    providers: Sequence[str] = CPU

    def open(self, *, anchored: bool = False) -> Engine:
        """Open an engine with the bundle's initial weights.

        Only the portable engine can be `anchored`: held to a base by `Engine.guide`.
        """
        name = "portable" if anchored else self.name
        return open_engine(name, self.bundle, self.threads, providers=self.providers)
