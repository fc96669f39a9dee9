"""Rows that want a prediction and are no samples of the stream: nothing is learned from or judged by them."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edged.domain.judging.predictions import Predictions
    from edged.errors import EdgedError


@dataclass(eq=False, slots=True)
class InferenceRequest:
    """Rows `x` `(n, d)` float32, asked at `received` (monotonic seconds).

    `version` is that of the model that shall answer, None for the champion. `made` has the answer, of which
    `rows` are those of this question; or `problem` says why there is none. `asker` belongs to who asks.
    """

    x: NDArray[np.float32]
    received: float
    version: int | None = None
    asker: Any = None
    made: Predictions | None = None
    rows: slice = field(default_factory=lambda: slice(0))
    problem: EdgedError | None = None


class InferenceRequests:
    """Questions that wait; any thread may add, one takes."""

    def __init__(self) -> None:
        self._waiting: collections.deque[InferenceRequest] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, requests: Sequence[InferenceRequest]) -> None:
        """Append requests to the queue."""
        self._waiting.extend(requests)

    def pop(self, rows: int) -> list[InferenceRequest]:
        """The oldest ones for the same model, together of at most so many rows, but one at least.

        >>> waiting = InferenceRequests()
        >>> waiting.add([InferenceRequest(np.zeros((2, 1)), 0.0, version) for version in (None, None, 3)])
        >>> len(waiting.pop(8)), len(waiting.pop(8)), len(waiting.pop(8))
        (2, 1, 0)
        """
        waiting, popped = self._waiting, list[InferenceRequest]()
        while waiting:
            first = waiting[0]
            rows -= len(first.x)
            if popped and (rows < 0 or first.version != popped[0].version):
                break
            popped.append(waiting.popleft())
        return popped
