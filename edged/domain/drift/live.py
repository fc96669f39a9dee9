"""What is watched of a model that serves: its errors, how sure it is, and what it is fed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.drift.adwin_correlated import CorrelatedADWIN
from edged.domain.drift.inputs import InputDrift, InputRules
from edged.domain.drift.signals import Cooldown, unreadable
from edged.domain.drift.stream_watch import StreamWatch, bounded, error_watch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edged.domain.drift.signals import DriftSignal


def confidence_watch(cooldown: Cooldown | None = None) -> StreamWatch:
    """Watches the probability of the predicted class, `Predictions.confidence` `(n,)`.

    ADWIN in both directions: confidence falls where inputs become foreign to the model, and rises
    where a sensor sticks or saturates. It sees neither a change of labels alone nor one far from
    the decision boundary, and it may see a mere change of class shares: take its drift as a reason
    to ask for labels or to look closer, not as proof that the model has become worse.

    References
    ----------
    T. S. Sethi, M. Kantardzic: On the reliable detection of concept drift from streaming unlabeled
    data. Expert Systems with Applications 82 (2017), for the idea of watching how sure a model is;
    P. Lindstrom, B. Mac Namee, S. J. Delany: Drift detection using uncertainty distribution
    divergence. Evolving Systems 4 (2013).
    """
    return StreamWatch("confidence", CorrelatedADWIN(mode="both"), cooldown)


FIRST = 200  # errors of which the mean is what is to be expected


WIDE = 16  # features, from which on inputs are tested more seldom: a test costs 0.1 ms for each


def _input_rules(features: int) -> InputRules:
    return InputRules() if features <= WIDE else InputRules(stride=512)


@dataclass(frozen=True)
class DriftRules:
    """What is watched and how; `delta` is the confidence of the errors' detector, `cooldown` in samples."""

    delta: float | None = None
    cooldown: int = 2000
    errors: bool = True
    confidence: bool = True
    inputs: bool = True


class LiveDrift:
    """Watches what is served.

    Errors are watched whichever version made them: a swap is no drift, and hides none, as only a rise is
    one. How sure a model is belongs to that model, so the watch begins anew with every version.

    Errors of classes are 0 or 1. Others have no bound: they are set in relation to the mean of the first
    `FIRST` ones, which are not watched themselves. Both watches share one cool-down, so that a change that
    both of them see is one signal. Inputs have a cool-down of their own: what moved there matters even
    where no model has suffered from it yet.

    Parameters
    ----------
    classes
        Whether errors are 0 or 1.
    features
        Width of the inputs; 0 where they are not watched.
    rules
        What is watched; everything when absent.
    """

    def __init__(self, *, classes: bool, features: int = 0, rules: DriftRules | None = None) -> None:
        self.rules = rules = DriftRules() if rules is None else rules
        self._features = features
        cooldown = Cooldown(rules.cooldown)
        self._errors = error_watch(cooldown, rules.delta)
        self._confidence = confidence_watch(cooldown)
        self._inputs = InputDrift(features, _input_rules(features)) if features and rules.inputs else None
        self._first: list[float] | None = None if classes else []
        self._expected = 0.0
        self._version: int | None = None
        self.signals = 0
        self.last: DriftSignal | None = None
        self.last_inputs: DriftSignal | None = None
        self._new: list[DriftSignal] = []

    def confidence(self, values: NDArray[np.float32], offsets: NDArray[np.int64], version: int) -> None:
        """Take in how sure predictions `(n,)` of a version were."""
        if not self.rules.confidence:
            return
        if version != self._version:
            self._version = version
            self._confidence.reset()
        self._add(self._confidence.update(values, offsets))

    def errors(self, values: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
        """Take in errors `(n,)` of predictions whose labels have come."""
        if not self.rules.errors:
            return
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

    def state(self) -> dict[str, Any]:
        """State as JSON values: `restore` goes on where this was."""
        return {
            "rules": self._told_rules(),
            "features": self._features,
            "errors": self._errors.state(),
            "confidence": self._confidence.state(),
            "inputs": None if self._inputs is None else self._inputs.state(),
            "first": self._first,
            "expected": self._expected,
            "version": self._version,
        }

    def _told_rules(self) -> dict[str, Any]:
        """The rules with the name of the errors' detector: earlier versions had others to choose from."""
        return asdict(self.rules) | {"detector": self._errors.detector.name}

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on from what `state` gave; False, and nothing changed, where the rules or the stream are others.

        Raises
        ------
        CorruptError
            When it cannot be read; nothing is changed then.
        """
        try:
            kept = [
                state[name] for name in ("errors", "confidence", "inputs", "first", "expected", "version")
            ]
            alike = (state["rules"], state["features"]) == (self._told_rules(), self._features)
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
