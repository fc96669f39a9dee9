"""A detector on a named stream of readings, cooled down: readings in, signals out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.drift.adwin_correlated import CorrelatedADWIN
from edged.domain.drift.signals import NONE, Cooldown, DriftSignal, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edged.domain.drift.adwin import ADWIN


class StreamWatch:
    """Feeds a detector and turns its levels into signals, each change into one.

    Parameters
    ----------
    source
        What is watched: "error" or "confidence".
    detector
        Takes in the readings.
    cooldown
        Its own, or one shared with other watches.
    """

    def __init__(self, source: str, detector: ADWIN, cooldown: Cooldown | None = None) -> None:
        self.source = source
        self.detector = detector
        self.cooldown = Cooldown() if cooldown is None else cooldown

    def update(self, values: NDArray[np.floating[Any]], offsets: NDArray[np.int64]) -> list[DriftSignal]:
        """Take in readings `(n,)` of the samples at `offsets` `(n,)`, oldest first."""
        signals = []
        for value, offset in zip(values.tolist(), offsets.tolist(), strict=True):
            level = self.detector.update(value)
            if level is not NONE:
                level = self.cooldown.passed(level, offset)
            if level is not NONE:
                signals.append(
                    DriftSignal(
                        level,
                        self.detector.name,
                        self.source,
                        self.detector.statistic,
                        self.detector.threshold,
                        offset,
                    )
                )
        return signals

    def reset(self) -> None:
        """Another model is served: its readings are another stream. The cool-down goes on."""
        self.detector.reset()

    def state(self) -> dict[str, Any]:
        """State as JSON values."""
        return {"source": self.source, "detector": self.detector.state(), "cooldown": self.cooldown.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], cooldown: Cooldown | None = None) -> StreamWatch:
        """The daemon's watch that gave `state`; pass `cooldown` where it is shared. Raises CorruptError."""
        parts = [state.get("source"), state.get("detector"), state.get("cooldown")]
        if not (isinstance(parts[0], str) and isinstance(parts[1], dict) and isinstance(parts[2], dict)):
            raise unreadable("watch", "source, detector or cooldown is missing")
        own = Cooldown.from_state(state["cooldown"]) if cooldown is None else cooldown
        return cls(state["source"], CorrelatedADWIN.from_state(state["detector"]), own)


def default_detector(delta: float | None = None) -> CorrelatedADWIN:
    """The daemon's detector on an error stream within 0 and 1: ADWIN for errors that come in bursts.

    Parameters are the literature's, but for `delta` where it is given, the confidence, and for `mode`: a
    model that has become better is no reason to train. Measured by `benchmarks/drift.py` (20 streams a
    figure): false alarms per 50,000 stationary errors of a rate, independent or in bursts of 5 on the mean;
    median delay, in readings, after the (independent) errors change their rate:

    ================== ===== ===== ===== ===== ===== ====== =========== ===========
    detector             1 %   5 %  10 %  30 %  50 % bursts  10 -> 20 %  10 -> 40 %
    ================== ===== ===== ===== ===== ===== ====== =========== ===========
    this one               0     0     0     0     0    0.1         344          72
    `ADWIN(mode="up")`     0     0     0  0.05     0     46         312          56
    ================== ===== ===== ===== ===== ===== ====== =========== ===========

    ADWIN takes bursts for drifts, and errors on sensor streams come in bursts. Knowing better costs 10 to
    30 % of delay. An update takes 0.8 µs. Decision 16 names the detectors that do worse.

    Raises
    ------
    ConfigError
        When `delta` is above the confidence of the warning level, 0.02, or not above 0.
    """
    return CorrelatedADWIN(mode="up") if delta is None else CorrelatedADWIN(delta, mode="up")


def error_watch(cooldown: Cooldown | None = None, delta: float | None = None) -> StreamWatch:
    """The daemon's watch over errors within 0 and 1, with the default detector."""
    return StreamWatch("error", default_detector(delta), cooldown)


def bounded(errors: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """Errors >= 0 `(n,)` of values brought into [0, 1): e / (e + reference).

    Detectors with Hoeffding-like bounds need bounded readings. `reference` is the error to expect,
    such as the champion's mean error on its holdout, and becomes 0.5; it must stay the same while
    the champion does, or the change would be scaled away. NaN stays NaN.

    >>> bounded(np.array([0.0, 2.0, 6.0]), reference=2.0).tolist()
    [0.0, 0.5, 0.75]
    """
    size = np.abs(errors)
    size = np.where(np.isfinite(size), size, np.nan)
    return size / (size + max(reference, float(np.finfo(np.float64).tiny)))
