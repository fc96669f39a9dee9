"""What a run draws its batches from: new and remembered samples, and how often each of them is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.model_files import model_in
from edged.domain.training.batch_pool import BatchPool, Remembered
from edged.domain.training.caches import KeyCache, RowCache
from edged.domain.training.early_stopping import validation
from edged.domain.training.pseudo_labels import PseudoLabels
from edged.trainer.hard_examples import hardness
from edged.trainer.pseudo_labels import pseudo_labels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from edged.config import TrainingConfig
    from edged.domain.protocols import Engine, Model, Samples, Unlabelled
    from edged.domain.stream.sample import Window
    from edged.domain.stream.schema import Schema
    from edged.domain.training.learner_state import LearnerState


@dataclass(frozen=True)
class SampledRows:
    """A pool, and the rows of it by which early stopping judges: in no batch, and none without it."""

    pool: BatchPool
    spared: NDArray[np.int64]


class BatchSampler:
    """Makes the pool of each run."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        schema: Schema,
        samples: Samples,
        labels_for: Callable[[NDArray[np.float32]], NDArray[Any]],
        load_model: Callable[[Path], Model],
        champion: Callable[[], Path | None],
        pseudo: float,
        unlabelled: Unlabelled | None,
    ) -> None:
        self._config, self._schema, self._samples = config, schema, samples
        self._labels_for, self._load_model, self._champion = labels_for, load_model, champion
        self._pseudo_share, self._unlabelled = pseudo, unlabelled
        self._rows, self._keys = RowCache(samples), KeyCache(samples)

    def remembered(self, state: LearnerState) -> Window:
        """The rows of what is remembered."""
        return self._rows.rows(state.remembered(), self._samples.relabelled())

    def pool(self, new: Window, remembered: Window, state: LearnerState, engine: Engine) -> SampledRows:
        """The pool of a run; what is drawn for it at random stays in `state`, for a run taken up again."""
        parts = Remembered(remembered, state.recent.ids, state.memory.ids)
        pool = BatchPool(new, parts, self._labels_for, set(state.excluded))
        self._weigh(pool, remembered, state, engine)
        spared = self._spare(pool, state)
        self._add_pseudo_labels(pool, state)
        return SampledRows(pool, spared)

    def _weigh(self, pool: BatchPool, remembered: Window, state: LearnerState, engine: Engine) -> None:
        """How often each sample is drawn, where not all alike."""
        config = self._config
        if config.key_share < 1.0:
            pool.cap(self._keys.codes(pool.offsets), config.key_share)
        if config.hard_share > 0:
            # Once a run, and kept in its checkpoints: taken up again it must draw the same.
            state.hard = state.hard or hardness(engine, remembered, self._schema, self._load_model)
            pool.weigh(state.hard.weights(pool.offsets, config.hard_share))

    def _spare(self, pool: BatchPool, state: LearnerState) -> NDArray[np.int64]:
        if not self._config.patience:
            return np.empty(0, np.int64)
        spared = validation(pool.offsets)
        pool.spare(spared)
        pool.exclude(set(state.excluded))
        return np.flatnonzero(spared)

    def _add_pseudo_labels(self, pool: BatchPool, state: LearnerState) -> None:
        """Samples that the champion is sure of, where wanted."""
        folder = self._champion()
        if self._unlabelled is None or self._pseudo_share <= 0:
            return
        if state.pseudo is None:
            state.pseudo = PseudoLabels()
            if folder is not None:
                state.pseudo = pseudo_labels(self._load_model(model_in(folder)), self._unlabelled)
        rows = self._unlabelled.read(state.pseudo.offsets)
        there = np.isin(state.pseudo.offsets, rows.offsets)
        count = round(self._config.batch * self._pseudo_share)
        pool.add(rows.offsets, rows.x, self._labels_for(state.pseudo.y[there]), count)
