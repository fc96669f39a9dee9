"""Label requests: the samples whose labels would teach most are offered on MQTT."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edged.clock import Clock
from edged.device.events import Events
from edged.domain.events import LabelRequested
from edged.domain.judging.predictions import Predictions
from edged.domain.labels.label_requests import LabelRequests
from edged.domain.stream.sample import Batch
from edged.domain.stream.schema import Schema

MOST_VALUES = 64  # features shown in a request


class LabelRequester:
    """Asks for labels of samples that have been answered and came without one.

    `rule` chooses; a request is the event `label_requested`.
    """

    def __init__(
        self,
        rule: LabelRequests,
        schema: Schema,
        clock: Clock,
        events: Events,
    ) -> None:
        self._rule = rule
        self._schema = schema
        self._clock = clock
        self._events = events
        self._recent: deque[tuple[Batch, int, str, Predictions, int]] = deque()

    @property
    def requested(self) -> int:
        """Number of requests since startup."""
        return self._rule.requested

    def answered(self, batch: Batch, part: slice, ids: Sequence[str], made: Predictions) -> None:
        """The model has answered these samples of a batch."""
        if not self._rule.active:
            return
        chosen = self._rule.choose(made, batch.x[part], self._clock.monotonic())
        places = range(*part.indices(len(batch)))
        self._recent.extend((batch, place, ids[i], made, i) for i, place in enumerate(places))
        if chosen:
            wanted = set(chosen)
            for one in self._recent:
                if int(one[0].offsets[one[1]]) not in wanted:
                    continue
                if one[0].labels[one[1]] is None:
                    self._events.event(self._request(*one))
                else:
                    self._rule.refund()
        while len(self._recent) > self._rule.waiting:
            self._recent.popleft()

    def _request(self, batch: Batch, place: int, sample_id: str, made: Predictions, i: int) -> LabelRequested:
        values = batch.x[place, : min(MOST_VALUES, self._schema.measured)]
        random = int(batch.offsets[place]) in self._rule.at_random
        answer: str | tuple[float, ...] = _shown(made.answers[i])
        confidence, promised, classes = None, None, self._schema.classes
        if made.confidence is not None:
            answer = classes[int(made.answers[i, 0])]
            confidence = round(float(made.confidence[i]), 4)
            if made.promise is not None:
                promised = tuple(classes[at] for at in made.promise.classes(i))
        return LabelRequested(
            sample_id, batch.keys[place], float(batch.ts[place]), _shown(values), made.version, random,
            answer, confidence, promised,
        )  # fmt: skip


def _shown(values: NDArray[np.float32]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values.tolist())
