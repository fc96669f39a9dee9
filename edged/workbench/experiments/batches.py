"""Which samples make a batch: all of them shuffled, or in the order of time with earlier ones replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Rows = NDArray[np.int64]


class Batches:
    """Batches of `size` row numbers, epoch by epoch, from the rows of the training part in order of time.

    An epoch has as many steps as there are whole batches of the rows. Without `replay` they are shuffled
    anew in each. With it an epoch is a stretch of the stream, a share `replay` of each of its batches is
    drawn evenly from the stretches before: what a device does that keeps a replay memory.

    Raises
    ------
    TrainingError
        When there are more stretches than samples.
    """

    def __init__(
        self, rows: Rows, size: int, epochs: int, replay: float | None, rng: np.random.Generator
    ) -> None:
        if replay is not None and epochs > len(rows):
            raise TrainingError(f"{len(rows)} samples cannot be cut into {epochs} stretches", where="epochs")
        self._rows, self._size, self._rng = rows, min(size, len(rows)), rng
        self._replay = replay
        self._stretches = [rows] * epochs if replay is None else np.array_split(rows, epochs)
        self.steps = len(rows) // self._size

    def epoch(self, number: int) -> Iterator[Rows]:
        """The batches of the epoch of this number, counted from 0."""
        fresh = self._endless(self._stretches[number])
        for _ in range(self.steps):
            old = 0 if self._replay is None or number == 0 else round(self._replay * self._size)
            new = np.array([next(fresh) for _ in range(self._size - old)], np.int64)
            yield np.concatenate([new, self._earlier(number, old)]) if old else new

    def _earlier(self, number: int, count: int) -> Rows:
        before = sum(len(stretch) for stretch in self._stretches[:number])
        return np.asarray(self._rows[self._rng.integers(before, size=count)])

    def _endless(self, rows: Rows) -> Iterator[np.int64]:
        """All of them in random order, again and again."""
        while True:
            yield from self._rng.permutation(rows)
