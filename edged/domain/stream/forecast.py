"""Labels of a forecast: the stream's own future."""

from __future__ import annotations

import collections

from edged.domain.stream.sample import Batch, LabelUpdate, LabelValue

MOST_KEYS = 10_000


class Forecast:
    """Makes the label of a sample from the features `columns` of the same key's, `horizon` samples later.

    Of more keys than `MOST_KEYS` those that were heard last are followed.
    """

    def __init__(self, columns: tuple[int, ...], horizon: int) -> None:
        self._columns = list(columns)
        self._waiting: dict[str, collections.deque[int]] = {}
        self._horizon = horizon

    def update(self, batch: Batch) -> list[LabelUpdate]:
        """Labels for the samples whose future has now come."""
        updates = []
        values = batch.x[:, self._columns].tolist()
        for key, offset, ts, value in zip(
            batch.keys, batch.offsets.tolist(), batch.ts.tolist(), values, strict=True
        ):
            waiting = self._waiting.pop(key, None) or collections.deque()
            self._waiting[key] = waiting  # those heard last are at the end
            if len(self._waiting) > MOST_KEYS:
                del self._waiting[next(iter(self._waiting))]
            if len(waiting) == self._horizon:
                label: LabelValue = value[0] if len(value) == 1 else tuple(value)
                updates.append(LabelUpdate(waiting.popleft(), label, ts))
            waiting.append(offset)
        return updates
