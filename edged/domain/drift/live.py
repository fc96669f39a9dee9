"""What is watched of a model that serves: its errors, how sure it is, and what it is fed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.inputs import InputDrift, InputRules
from edged.domain.drift.signals import NONE, Cooldown, DriftSignal
from edged.domain.json_fields import JsonObject
from edged.errors import CorruptError, TrainingError

FIRST = 200  # errors of which the mean is what is to be expected
WIDE = 16  # features, from which on inputs are tested more seldom: a test costs 0.1 ms for each


@dataclass(frozen=True)
class DriftRules:
    """Confidence `delta` of the errors' detector, and samples without another report after a drift."""

    delta: float = 0.002
    cooldown: int = 2000


class StreamWatch:
    """Feeds a detector with "error" or "confidence" and turns its levels into signals, each change into one.

    Watches may share a cool-down.
    """

    def __init__(self, source: str, detector: ADWIN, cooldown: Cooldown) -> None:
        self.source = source
        self.detector = detector
        self.cooldown = cooldown

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


class LiveDrift:
    """Watches what is served.

    Errors are watched whichever version made them: a swap is no drift, and hides none, as only a rise is
    one: a model that has become better is no reason to train.

    Confidence, the probability of the predicted class, is watched in both directions: it falls where inputs
    become foreign to the model, and rises where a sensor sticks or saturates. It sees neither a change of
    labels alone nor one far from the decision boundary, and it may see a mere change of class shares: its
    drift is a reason to look closer, not a proof that the model has become worse. It belongs to a model, so
    the watch begins again with every version.

    Errors of classes are 0 or 1. Others have no bound: they are set in relation to the mean of the first
    `FIRST` ones, which are not watched themselves. Both watches share one cool-down, so that a change that
    both of them see is one signal. Inputs have a cool-down of their own: what moved there matters even
    where no model has suffered from it yet; `features` is their width, 0 where they are not watched.

    Source: T. S. Sethi, M. Kantardzic: On the reliable detection of concept drift from streaming unlabeled
    data. Expert Systems with Applications 82 (2017), for the idea of watching how sure a model is;
    P. Lindstrom, B. Mac Namee, S. J. Delany: Drift detection using uncertainty distribution
    divergence. Evolving Systems 4 (2013).
    """

    def __init__(self, *, classes: bool, features: int = 0, rules: DriftRules | None = None) -> None:
        self.rules = rules = DriftRules() if rules is None else rules
        self._features = features
        cooldown = Cooldown(rules.cooldown)
        self._errors = StreamWatch("error", ADWIN(rules.delta, rises_only=True), cooldown)
        self._confidence = StreamWatch("confidence", ADWIN(), cooldown)
        self._inputs = self._input_drift()
        self._first: list[float] | None = None if classes else []
        self._expected = 0.0
        self._version: int | None = None
        self.signals = 0
        self.last: DriftSignal | None = None
        self.last_inputs: DriftSignal | None = None
        self._new: list[DriftSignal] = []

    def _input_drift(self) -> InputDrift | None:
        rules = InputRules() if self._features <= WIDE else InputRules(stride=512)
        return InputDrift(self._features, rules) if self._features else None

    def confidence(self, values: NDArray[np.float32], offsets: NDArray[np.int64], version: int) -> None:
        """Take in how sure predictions `(n,)` of a version were."""
        if version != self._version:
            self._version = version
            self._confidence.detector.reset()
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
        """Return the state as JSON values, for `restore`."""
        return {
            "rules": asdict(self.rules),
            "features": self._features,
            "errors": self._errors.detector.to_json(),
            "confidence": self._confidence.detector.to_json(),
            "cooldown": self._errors.cooldown.to_json(),
            "inputs": None if self._inputs is None else self._inputs.state(),
            "first": self._first,
            "expected": self._expected,
            "version": self._version,
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Continue from what `state` returned; False, and nothing changed, if the rules or the stream differ.

        Raises CorruptError when it cannot be read; nothing is changed then.
        """
        try:
            alike = (state["rules"], state["features"]) == (asdict(self.rules), self._features)
            if not alike or (state["first"] is None) != (self._first is None):
                return False
            errors, confidence = (ADWIN.from_json(state[name]) for name in ("errors", "confidence"))
            cooldown, inputs = Cooldown.from_json(state["cooldown"]), self._input_drift()
            if inputs is not None:
                inputs.restore(state["inputs"])
            first = None if state["first"] is None else [float(v) for v in state["first"]]
            expected = float(state["expected"])
            version = None if state["version"] is None else int(state["version"])
        except (LookupError, TypeError, ValueError, TrainingError) as problem:
            raise CorruptError(
                f"this is not the state of drift detectors: {problem}", where="drift"
            ) from problem
        self._errors = StreamWatch("error", errors, cooldown)
        self._confidence = StreamWatch("confidence", confidence, cooldown)
        self._inputs, self._first, self._expected, self._version = inputs, first, expected, version
        return True
