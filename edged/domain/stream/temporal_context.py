"""How a sample differs from earlier ones of its key: columns that a network sees beside its features."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.schema import Schema

MOST_KEYS = 4096  # whose means are known, those heard last
RECENT = 20_000  # samples among which a restart looks for the newest of each key
FAR = 12.0  # times the usual distance from the slowest mean: beyond, a value moves means as if it were there
ENOUGH = 20  # samples that tell what is usual
_HALF_LIFE = 1000.0  # of what is usual, in samples of all keys
_CHUNK = 64  # samples of a key that are put beside their means at once
_LARGEST = float(np.finfo(np.float32).max)


def pad(x: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Rows `(n, d)` in `width` columns: without context they are as usual as can be, so it is 0.

    Rows that are wider lose what is too much.

    >>> pad(np.ones((1, 2), np.float32), 4).tolist()
    [[1.0, 1.0, 0.0, 0.0]]
    """
    if x.shape[1] == width:
        return x
    made = np.zeros((len(x), width), np.float32)
    made[:, : x.shape[1]] = x[:, :width]
    return made


class TemporalContext:
    """Differences of samples from the running means of earlier samples of the same key.

    For each half-life h, in samples, the mean m of the `width` features follows
    m ← m + (1 − 2^(−1/h))·(x − m). Samples count in the order in which they come; the first one of a key
    differs from nothing. The newest sample and its differences give the means, so a restart needs the sample
    log alone. What one value can change is bounded, once it is known how far values of all keys usually are
    from the slowest mean: a glitch does not make all that follows look unusual.
    """

    def __init__(self, half_lives: Sequence[float], width: int) -> None:
        self._width = width
        decay = 0.5 ** (1 / np.asarray(half_lives, np.float64))
        self._gain = (1 - decay)[:, None]
        rows = np.arange(_CHUNK + 1)
        power = rows[:, None] - 1 - rows[None, :-1]
        # Row k of a chunk: what is left of the mean before it, and how much each row before k counts.
        self._left = (decay[:, None] ** rows)[:, :, None]
        self._weights = np.where(power >= 0, decay[:, None, None] ** np.maximum(power, 0), 0) * (
            1 - decay[:, None, None]
        )
        self._slowest = int(np.argmax(half_lives))
        self._count = 0
        self._usual = np.zeros(width)
        self._far = np.full(width, np.inf)
        self._all_moved = False
        self._means: OrderedDict[str, NDArray[np.float64]] = OrderedDict()

    @classmethod
    def of(cls, schema: Schema) -> TemporalContext | None:
        """The context that the model of a stream sees; None for one that sees none."""
        return cls(schema.context, schema.measured) if schema.context else None

    def extend(self, keys: Sequence[str], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Put its context beside each of the samples `x` `(n, d)`, which follow those of earlier calls.

        Returns
        -------
        `(n, d·(1 + h))` float32: the features, then for each half-life the differences from its means.
        """
        made = np.empty((len(x), self._width * (1 + len(self._gain))), np.float32)
        made[:, : self._width] = x
        if len(x) == 1:
            made[:, self._width :] = self._differences(keys[0], x.astype(np.float64))
            self._drop_keys()
            return made
        places: dict[str, list[int]] = {}
        for place, key in enumerate(keys):
            places.setdefault(key, []).append(place)
        for key, rows in places.items():
            for start in range(0, len(rows), _CHUNK):
                part = rows[start : start + _CHUNK]
                made[part, self._width :] = self._differences(key, x[part].astype(np.float64))
        self._drop_keys()
        return made

    def _drop_keys(self) -> None:
        while len(self._means) > MOST_KEYS:
            self._means.popitem(last=False)

    def _differences(self, key: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """`(n, h·d)` for `n` samples of a key, up to a chunk of them; its means move on."""
        means, n = self._means.pop(key, None), len(x)
        if means is None:
            means = np.repeat(x[:1], len(self._gain), axis=0)
        if n == 1:
            found = x - means
            size, moved = np.abs(found[self._slowest]), found
            if self._count >= ENOUGH and (size > self._far).any():
                size = np.minimum(size, self._far)
                moved = means[self._slowest] + np.copysign(size, found[self._slowest]) - means
            moved = self._gain * moved
            moved += means
            self._means[key] = moved
        else:
            near = self._bounded(x, means[self._slowest])
            before = self._left[:, : n + 1] * means[:, None] + self._weights[:, : n + 1, :n] @ near
            found = (x - before[:, :n]).transpose(1, 0, 2)
            self._means[key] = np.ascontiguousarray(before[:, n])
            sizes = np.abs(found[:, self._slowest])
            if self._count >= ENOUGH:
                np.minimum(sizes, self._far, out=sizes)
            size = sizes.mean(axis=0)
        self._follow(size, n)
        found = np.maximum(found.reshape(n, -1), -_LARGEST)  # np.clip takes longer for a row
        return np.asarray(np.minimum(found, _LARGEST, out=found))

    def _bounded(self, x: NDArray[np.float64], mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """The samples with values no further from a mean than `FAR`; of features that never moved all."""
        if self._count < ENOUGH:
            return x
        return np.asarray(np.minimum(np.maximum(x, mean - self._far), mean + self._far))

    def _follow(self, size: NDArray[np.float64], n: int) -> None:
        """Learn what is usual from the mean distance `(d,)` of `n` samples to the slowest mean."""
        self._count += n
        size = size - self._usual
        size *= max(1 - 0.5 ** (n / _HALF_LIFE), n / self._count)
        self._usual += size
        self._far = FAR * self._usual
        if not self._all_moved or self._count % 1024 < n:  # what never moves again comes to 0 in the end
            self._all_moved = bool(self._usual.all())
            self._far[self._usual == 0] = np.inf

    def restore(self, keys: Sequence[str], x: NDArray[np.float32]) -> None:
        """Go on from samples `(n, d·(1 + h))`, one of each key, as if they had come last."""
        self._means.clear()
        for key, row in zip(keys[-MOST_KEYS:], x[-MOST_KEYS:].astype(np.float64), strict=True):
            found = row[self._width :].reshape(len(self._gain), self._width)
            self._means[key] = row[: self._width] - found + self._gain * found
