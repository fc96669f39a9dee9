"""Thresholds that normal scores pass with a given probability, though few or none of them have."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import quantiles
from edged.domain.json_fields import JsonObject

PEAKS = 200  # largest scores that the tail is fitted to, at most
SHARE = 0.1  # ... and at most this part of all
FEWEST = 20
REFIT = 50  # scores between two fits
STORED = 5000  # scores that a restart goes on from, at most
OUTLYING = 20.0  # median excesses, about 14 mean ones: one in a million scores with an exponential tail
SHAPE = 0.5  # the shape is kept within plus and minus this: few peaks say little of it


def tail_threshold(scores: NDArray[np.float64], rate: float) -> float:
    """The value that a share `rate` of all scores like these exceeds.

    The scores beyond a high quantile are fitted by a generalised Pareto distribution, whose tail reaches
    further than the largest one seen (peaks over threshold). Where the quantile lies within them, the
    result is close to it.

    `scores` `(n,)`, at least 50, are those of normal samples; `rate` is the wanted share of false alarms,
    above 0 and below 0.1. The threshold is in the unit of the scores, and never below the high quantile.

    Source: Siffer, Fouque, Termier, Largouët: "Anomaly detection in streams with extreme value theory", KDD
    2017 (SPOT). The shape is found by probability-weighted moments (Hosking & Wallis, "Parameter and quantile
    estimation for the generalized Pareto distribution", Technometrics 1987), not by maximum likelihood: they
    need no search, and do better with few peaks. Peaks far beyond the others are left out first.

    >>> exponential = -np.log(1 - (np.arange(1000) + 0.5) / 1000)
    >>> round(tail_threshold(exponential, 0.0001)), round(-np.log(0.0001))
    (9, 9)
    """
    level, excess, n = _tail(np.sort(scores))
    shape, scale = _fit(excess)
    if scale <= 0.0:
        return level
    beyond = rate * n / len(excess)
    if abs(shape) < 1e-6:
        return level - scale * float(np.log(beyond))
    return level + scale / shape * float(beyond**-shape - 1.0)


def _tail(ordered: NDArray[np.float64]) -> tuple[float, NDArray[np.float64], int]:
    """A high quantile of rising scores, the excesses over it `(k,)`, and how many scores were looked at.

    Scores that no tail reaches are left out: anomalies that came before there was a threshold.
    """
    while True:
        peaks = int(np.clip(SHARE * len(ordered), FEWEST, PEAKS))
        level = float(ordered[-peaks - 1])
        excess = ordered[-peaks:] - level
        usual = excess <= OUTLYING * float(quantiles(excess, [0.5])[0])
        if usual.all() or excess[peaks // 2] <= 0.0 or len(ordered) <= 2 * peaks:
            return level, excess, len(ordered)
        ordered = ordered[: len(ordered) - int((~usual).sum())]


def _fit(excess: NDArray[np.float64]) -> tuple[float, float]:
    """Shape and scale of excesses `(k,)`, rising; scale 0 where they are all alike."""
    k = len(excess)
    mean = float(excess.mean())
    plotting = (np.arange(1, k + 1) - 0.35) / k
    weighted = float((excess * (1.0 - plotting)).mean())
    rest = mean - 2.0 * weighted
    if mean <= 1e-12 or rest <= 1e-12 * mean:
        return 0.0, mean if mean > 1e-12 else 0.0
    shape = float(np.clip(2.0 - mean / rest, -SHAPE, SHAPE))
    # With the shape given, the mean of the excesses determines the scale.
    return shape, mean * (1.0 - shape)


class SpotThreshold:
    """The newest scores of normal samples, and a threshold that follows them.

    It lies above the mean of the newest `level` scores, as far as the tail of the newest `window` distances
    from that mean asks for: so it follows slow change (DSPOT, Siffer et al. 2017).

    `rate`: share of false alarms, see `tail_threshold`. `calibrate`: scores before there is a threshold; at
    most `level`. `window` and `level`: how many scores are kept, see above.
    """

    def __init__(self, rate: float, calibrate: int, window: int, level: int) -> None:
        self._rate = rate
        self._calibrate = calibrate
        self._level: deque[float] = deque(maxlen=level)
        self._above: deque[float] = deque(maxlen=window)
        self._mean = 0.0
        self._tail = 0.0
        self._unfitted = 0
        self.threshold: float | None = None

    def restart(self) -> None:
        """Forget them: other scores are normal from now on."""
        self._level.clear()
        self._above.clear()
        self.threshold = None

    def add(self, scores: NDArray[np.float64]) -> None:
        """Take in scores `(n,)`, all finite, oldest first."""
        if len(scores) == 0:
            return
        if self.threshold is not None:
            self._above.extend((scores - self._mean).tolist())
        self._level.extend(scores.tolist())
        self._mean = sum(self._level) / len(self._level)
        self._unfitted += len(scores)
        if self.threshold is None and len(self._level) < self._calibrate:
            return
        if self.threshold is None:
            self._above.extend(value - self._mean for value in self._level)
        if self.threshold is None or self._unfitted >= REFIT:
            self._tail, self._unfitted = tail_threshold(np.array(self._above), self._rate), 0
        self.threshold = self._mean + self._tail

    def state(self) -> JsonObject:
        """What a restart goes on from, ready for JSON."""
        return {name: [float(f"{v:.6g}") for v in list(values)[-STORED:]]
                for name, values in (("level", self._level), ("above", self._above))}  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises LookupError, TypeError or ValueError when it is something else; nothing is changed then.
        """
        level, above = ([float(v) for v in state[name]] for name in ("level", "above"))
        tail = tail_threshold(np.array(above), self._rate) if above else 0.0
        self._level.extend(level)
        self._above.extend(above)
        self._mean, self._tail = sum(level) / max(1, len(level)), tail
        self.threshold = self._mean + tail if above else None
