"""What a run draws its batches from: new and remembered samples, and how often each of them is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.training.batch_pool import BatchPool, Remembered
from edged.domain.training.caches import KeyCache, RowCache

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from edged.config import TrainingConfig
    from edged.domain.protocols import Samples
    from edged.domain.stream.sample import Window
    from edged.domain.training.learner_state import LearnerState


class BatchSampler:
    """Makes the pool of each run."""

    def __init__(
        self,
        *,
        config: TrainingConfig,
        samples: Samples,
        labels_for: Callable[[NDArray[np.float32]], NDArray[Any]],
    ) -> None:
        self._config, self._samples, self._labels_for = config, samples, labels_for
        self._rows, self._keys = RowCache(samples), KeyCache(samples)

    def remembered(self, state: LearnerState) -> Window:
        """The rows of what is remembered."""
        return self._rows.rows(state.remembered(), self._samples.relabelled())

    def pool(self, new: Window, remembered: Window, state: LearnerState) -> BatchPool:
        """The pool of a run."""
        parts = Remembered(remembered, state.recent.ids, state.memory.ids)
        pool = BatchPool(new, parts, self._labels_for, set(state.excluded))
        if self._config.key_share < 1.0:
            pool.cap(self._keys.codes(pool.offsets), self._config.key_share)
        return pool
