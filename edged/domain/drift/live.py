"""What is watched of a model that serves: its errors, how sure it is, and what it is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.drift.adwin import ADWIN, CorrelatedADWIN
from edged.domain.drift.inputs import InputDrift, InputRules
from edged.domain.drift.signals import NONE, Cooldown, DriftSignal, unreadable
from edged.domain.json_fields import JsonObject

FIRST = 200  # errors of which the mean is what is to be expected
WIDE = 16  # features, from which on inputs are tested more seldom: a test costs 0.1 ms for each


class StreamWatch:
    """Feeds a detector with "error" or "confidence" and turns its levels into signals, each change into one.

    The cool-down is its own, or one shared with other watches.
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
                found = self.detector
                signals.append(
                    DriftSignal(level, found.name, self.source, found.statistic, found.threshold, offset)
                )
        return signals

    def reset(self) -> None:
        """Another model is served: its readings are another stream. The cool-down goes on."""
        self.detector.reset()

    def state(self) -> JsonObject:
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
    model that has become better is no reason to train. Measured on synthetic streams (20 streams a
    figure): false alarms per 50,000 stationary errors of a rate, independent or in bursts of 5 on the mean;
    median delay, in readings, after the (independent) errors change their rate:

    ================== ===== ===== ===== ===== ===== ====== =========== ===========
    detector             1 %   5 %  10 %  30 %  50 % bursts  10 -> 20 %  10 -> 40 %
    ================== ===== ===== ===== ===== ===== ====== =========== ===========
    this one               0     0     0     0     0    0.1         344          72
    `ADWIN(mode="up")`     0     0     0  0.05     0     46         312          56
    ================== ===== ===== ===== ===== ===== ====== =========== ===========

    ADWIN takes bursts for drifts, and errors on sensor streams come in bursts. Knowing better costs 10 to
    30 % of delay. An update takes 0.8 µs. Decision 16 names the detectors that do worse. Raises ConfigError
    when `delta` is above the confidence of the warning level, 0.02, or not above 0.
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


def confidence_watch(cooldown: Cooldown | None = None) -> StreamWatch:
    """Watches the probability of the predicted class, `Predictions.confidence` `(n,)`.

    ADWIN in both directions: confidence falls where inputs become foreign to the model, and rises
    where a sensor sticks or saturates. It sees neither a change of labels alone nor one far from
    the decision boundary, and it may see a mere change of class shares: take its drift as a reason
    to ask for labels or to look closer, not as proof that the model has become worse.

    Source: T. S. Sethi, M. Kantardzic: On the reliable detection of concept drift from streaming unlabeled
    data. Expert Systems with Applications 82 (2017), for the idea of watching how sure a model is;
    P. Lindstrom, B. Mac Namee, S. J. Delany: Drift detection using uncertainty distribution
    divergence. Evolving Systems 4 (2013).
    """
    return StreamWatch("confidence", CorrelatedADWIN(mode="both"), cooldown)


@dataclass(frozen=True)
class DriftRules:
    """Confidence `delta` of the errors' detector, and samples without another report after a drift."""

    delta: float | None = None
    cooldown: int = 2000


class LiveDrift:
    """Watches what is served.

    Errors are watched whichever version made them: a swap is no drift, and hides none, as only a rise is
    one. How sure a model is belongs to that model, so the watch begins anew with every version.

    Errors of classes are 0 or 1. Others have no bound: they are set in relation to the mean of the first
    `FIRST` ones, which are not watched themselves. Both watches share one cool-down, so that a change that
    both of them see is one signal. Inputs have a cool-down of their own: what moved there matters even
    where no model has suffered from it yet; `features` is their width, 0 where they are not watched.
    """

    def __init__(self, *, classes: bool, features: int = 0, rules: DriftRules | None = None) -> None:
        self.rules = rules = DriftRules() if rules is None else rules
        self._features = features
        cooldown = Cooldown(rules.cooldown)
        self._errors = error_watch(cooldown, rules.delta)
        self._confidence = confidence_watch(cooldown)
        inputs = InputRules() if features <= WIDE else InputRules(stride=512)
        self._inputs = InputDrift(features, inputs) if features else None
        self._first: list[float] | None = None if classes else []
        self._expected = 0.0
        self._version: int | None = None
        self.signals = 0
        self.last: DriftSignal | None = None
        self.last_inputs: DriftSignal | None = None
        self._new: list[DriftSignal] = []

    def confidence(self, values: NDArray[np.float32], offsets: NDArray[np.int64], version: int) -> None:
        """Take in how sure predictions `(n,)` of a version were."""
        if version != self._version:
            self._version = version
            self._confidence.reset()
        self._add(self._confidence.update(values, offsets))

    def errors(self, values: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
        """Take in errors `(n,)` of predictions whose labels have come."""
        if self._first is not None:
            values, offsets = self._set_in_relation(values, offsets)
        self._add(self._errors.update(values, offsets))

    def inputs(self, x: NDArray[np.float32], offsets: NDArray[np.int64]) -> None:
        """Take in inputs `(n, d)` that were predicted."""
        if self._inputs is not None:
            self._add(self._inputs.update(x, offsets))

    def _set_in_relation(
        self, values: NDArray[np.float64], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        first = self._first or []
        missing = max(0, FIRST - len(first))
        if missing:
            first += values[np.isfinite(values)][:missing].tolist()
            self._first = first
            if len(first) < FIRST:
                return values[:0], offsets[:0]
            self._expected = float(np.mean(first))
            values, offsets = values[missing:], offsets[missing:]
        return bounded(values, self._expected), offsets

    def _add(self, signals: list[DriftSignal]) -> None:
        for signal in signals:
            self.signals += 1
            self.last = signal
            if signal.source == "inputs":
                self.last_inputs = signal
            self._new.append(signal)

    def pop_signals(self) -> list[DriftSignal]:
        """Return and remove the signals since the last call."""
        new, self._new = self._new, []
        return new

    # ---- across a restart --------------------------------------------------------------------

    def state(self) -> JsonObject:
        """State as JSON values: `restore` goes on where this was."""
        return {
            "rules": asdict(self.rules),
            "features": self._features,
            "errors": self._errors.state(),
            "confidence": self._confidence.state(),
            "inputs": None if self._inputs is None else self._inputs.state(),
            "first": self._first,
            "expected": self._expected,
            "version": self._version,
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on from what `state` gave; False, and nothing changed, where the rules or the stream are others.

        Raises CorruptError when it cannot be read; nothing is changed then.
        """
        try:
            kept = [
                state[name] for name in ("errors", "confidence", "inputs", "first", "expected", "version")
            ]
            alike = (state["rules"], state["features"]) == (asdict(self.rules), self._features)
            if not alike or (kept[3] is None) != (self._first is None):
                return False
            cooldown = Cooldown.from_state(kept[0]["cooldown"])
            errors = StreamWatch.from_state(kept[0], cooldown)
            confidence = StreamWatch.from_state(kept[1], cooldown)
            inputs = None if self._inputs is None else InputDrift.from_state(kept[2])
            first = None if kept[3] is None else [float(v) for v in kept[3]]
            expected, version = float(kept[4]), None if kept[5] is None else int(kept[5])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise unreadable("live", str(problem)) from problem
        self._errors, self._confidence, self._inputs = errors, confidence, inputs
        self._first, self._expected, self._version = first, expected, version
        return True
