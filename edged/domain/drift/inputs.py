"""Drift of the inputs, without labels: each feature's recent window against its reference."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edged.domain.arrays import Floats, Ints
from edged.domain.drift.signals import (
    DRIFT,
    NONE,
    WARNING,
    Cooldown,
    DriftSignal,
    FeatureShift,
    Level,
)
from edged.domain.drift.two_sample import Cells, correlation_time, holm, ks_distance, ks_p_value
from edged.domain.json_fields import JsonObject

# Significance, low because the test is repeated every `stride` rows: 390 times in 50,000 rows; and index.
ALPHA, WARNING_ALPHA = 1e-4, 1e-3
PSI, WARNING_PSI = 0.25, 0.1
FEWEST = 30  # finite readings of a feature, below which it is not tested


@dataclass(frozen=True)
class InputRules:
    """Windows in rows: of the reference, of the newest, and between two tests."""

    reference: int = 1024
    recent: int = 512
    stride: int = 128


def _level(p_value: float, psi: float) -> Level:
    """The level of one feature, given its corrected p-value."""
    if p_value < ALPHA and psi >= PSI:
        return DRIFT
    return WARNING if p_value < WARNING_ALPHA and psi >= WARNING_PSI else NONE


class _Feature:
    """The reference of one feature, prepared; `(n,)` readings in order of time."""

    def __init__(self, values: Floats) -> None:
        finite = values[np.isfinite(values)]
        self.usable = len(finite) >= FEWEST
        if self.usable:
            self._time = correlation_time(finite)
            self._sorted = np.sort(finite)
            self.cells = Cells(self._sorted)

    def distance(self, recent: Floats) -> tuple[float, float]:
        """Kolmogorov-Smirnov distance from sorted readings `(m,)`, and its p-value."""
        distance = ks_distance(self._sorted, recent)
        return distance, ks_p_value(distance, len(self._sorted) / self._time, len(recent) / self._time)


class InputDrift:
    """Watches `d` input features; says which of them moved.

    A feature has moved when both hold: the distributions differ *significantly* (two-sample
    Kolmogorov-Smirnov test, Holm's correction for the number of features, sizes corrected for the
    correlation of neighbouring rows) and *much* (population stability index). The test alone would
    report trifles on large windows, the index alone chance on small ones.

    The first `reference` rows are the reference; when the newest `recent` rows are there, they are
    compared every `stride` rows. After a drift the rows that
    follow become the new reference, so one change gives one signal. A NaN counts for nothing, in
    its own feature alone. How rows are split into calls makes no difference.

    Source: D. Kifer, S. Ben-David, J. Gehrke: Detecting change in data streams. VLDB 2004 (two windows).
    S. Rabanser, S. Günnemann, Z. Lipton: Failing loudly: an empirical study of methods for detecting
    dataset shift. NeurIPS 2019 (one test a feature with correction). See `two_sample` for the rest.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(4000, 3)).astype(np.float32)
    >>> x[2000:, 1] += 1.5
    >>> signals = InputDrift(3).update(x, np.arange(4000))
    >>> [(s.level.name, s.offset, [f.feature for f in s.features]) for s in signals]
    [('DRIFT', 2175, [1])]
    """

    name = "ks_psi"

    def __init__(self, features: int, rules: InputRules | None = None) -> None:
        self.features = features
        self.rules = InputRules() if rules is None else rules
        self._reference = np.zeros((self.rules.reference, features), np.float32)
        self._recent = np.zeros((self.rules.recent, features), np.float32)
        self._cooldown = Cooldown(self.rules.reference)
        self._prepared: list[_Feature] = []
        self._gathered = 0
        self._seen = 0

    def reset(self) -> None:
        """Gather a new reference from the rows to come."""
        self._gathered = self._seen = 0
        self._prepared = []

    def update(self, rows: Floats, offsets: Ints) -> list[DriftSignal]:
        """Take in rows `(n, d)` of the samples at `offsets` `(n,)`, oldest first."""
        signals, start = [], 0
        while start < len(rows):
            if self._gathered < self.rules.reference:
                start += self._gather(rows[start:])
                continue
            start += self._fill(rows[start:])
            if self._due():
                signal = self._test(int(offsets[start - 1]))
                if signal is not None:
                    signals.append(signal)
        return signals

    def _gather(self, rows: Floats) -> int:
        """Take rows into the reference; how many."""
        added = rows[: self.rules.reference - self._gathered]
        self._reference[self._gathered : self._gathered + len(added)] = added
        self._gathered += len(added)
        if self._gathered == self.rules.reference:
            self._prepared = [_Feature(self._reference[:, i]) for i in range(self.features)]
        return len(added)

    def _fill(self, rows: Floats) -> int:
        """Take rows into the recent window, at most up to the next test; how many."""
        added = rows[: self.rules.stride - self._seen % self.rules.stride]
        places = (self._seen + np.arange(len(added))) % self.rules.recent
        self._recent[places] = added
        self._seen += len(added)
        return len(added)

    def _due(self) -> bool:
        return self._seen >= self.rules.recent and self._seen % self.rules.stride == 0

    def _test(self, offset: int) -> DriftSignal | None:
        shifts = self.compare()
        level = max((shift.level for shift in shifts), default=NONE)
        level = self._cooldown.passed(level, offset)
        if level is NONE:
            return None
        if level is DRIFT:
            self.reset()
        first = shifts[0]
        return DriftSignal(level, self.name, "inputs", first.psi, PSI, offset, shifts)

    def compare(self) -> tuple[FeatureShift, ...]:
        """The features that have moved between reference and recent window, most moved first."""
        window = self._recent[: min(self._seen, self.rules.recent)]
        columns = np.sort(np.where(np.isfinite(window), window, np.float32("nan")).T, axis=1)  # NaN last
        counts = np.isfinite(columns).sum(axis=1).tolist()
        tested = [i for i, f in enumerate(self._prepared) if f.usable and counts[i] >= FEWEST]
        if not tested:
            return ()
        found = [self._prepared[i].distance(columns[i, : counts[i]]) for i in tested]
        corrected = holm(np.array([p for _, p in found])).tolist()
        moved = [
            self._shift(i, distance, p, columns[i, : counts[i]])
            for i, (distance, _), p in zip(tested, found, corrected, strict=True)
            if p < WARNING_ALPHA
        ]
        return tuple(sorted((m for m in moved if m.level is not NONE), key=lambda m: (-m.level, -m.psi)))

    def _shift(self, feature: int, distance: float, p_value: float, recent: Floats) -> FeatureShift:
        psi = self._prepared[feature].cells.psi(recent)
        return FeatureShift(feature, _level(p_value, psi), distance, p_value, psi)

    def state(self) -> JsonObject:
        """Return the state as JSON values; the windows as base64 of little-endian float32."""
        held = min(self._seen, self.rules.recent)
        return {
            "reference": _encoded(self._reference[: self._gathered]),
            "recent": _encoded(self._recent[:held]),
            "seen": self._seen,
            "cooldown": self._cooldown.to_json(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state` returned, in a detector of the same features and rules.

        Raises LookupError, TypeError, ValueError or TrainingError when it is something else; the detector
        must not be used then.
        """
        reference, recent = (_decoded(state[name], self.features) for name in ("reference", "recent"))
        seen = int(state["seen"])
        if len(reference) > self.rules.reference or len(recent) != min(seen, self.rules.recent):
            raise ValueError("windows of another size")
        self._cooldown = Cooldown.from_json(state["cooldown"])
        self._gather(reference)
        self._recent[: len(recent)] = recent
        self._seen = seen


def _encoded(rows: Floats) -> str:
    return base64.b64encode(rows.astype("<f4").tobytes()).decode()


def _decoded(text: str, features: int) -> Floats:
    return (
        np.frombuffer(base64.b64decode(text, validate=True), "<f4").reshape(-1, features).astype(np.float32)
    )
