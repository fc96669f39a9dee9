"""The words of drift detection: levels, the signal, and that one change gives one signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message


class Level(IntEnum):
    """How far a detector goes: at a warning collect, at a drift act."""

    NONE = 0
    WARNING = 1
    DRIFT = 2


# Bound once: an attribute of an enumeration is slow to look up on Python 3.10.
NONE, WARNING, DRIFT = Level.NONE, Level.WARNING, Level.DRIFT


@dataclass(frozen=True)
class FeatureShift(Message):
    """How one input feature, a position or its name, moved between the reference and the recent window."""

    feature: int | str
    level: Level
    distance: float
    p_value: float
    psi: float

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return {
            "feature": self.feature,
            "level": self.level.name.lower(),
            "ks": round(self.distance, 4),
            "p": float(f"{self.p_value:.3g}"),
            "psi": round(self.psi, 4),
        }

    @classmethod
    def from_json(cls, values: object) -> FeatureShift:
        """Read what `to_json` gives, with its rounded figures."""
        given = _with_level(values)
        return super().from_json({**given, "distance": given.get("ks"), "p_value": given.get("p")})


@dataclass(frozen=True)
class DriftSignal(Message):
    """Warning or drift: which detector, on what, how strong, where in the stream.

    `source` is "error", "confidence" or "inputs"; `features` holds, for inputs, those that moved,
    the most moved first.
    """

    level: Level
    detector: str
    source: str
    statistic: float
    threshold: float
    offset: int
    features: tuple[FeatureShift, ...] = ()

    def named(self, names: Sequence[str]) -> DriftSignal:
        """Return it with the `names` of the stream's features, where it has any."""
        features = (replace(shift, feature=names[int(shift.feature)]) for shift in self.features)
        return replace(self, features=tuple(features)) if names else self

    def to_json(self) -> JsonObject:
        """Return the fields of the contract."""
        return {
            **super().to_json(),
            "level": self.level.name.lower(),
            "statistic": round(self.statistic, 6),
            "threshold": round(self.threshold, 6),
        }

    @classmethod
    def from_json(cls, values: object) -> DriftSignal:
        """Read what `to_json` gives, with its rounded figures."""
        return super().from_json(_with_level(values))


def _with_level(values: object) -> dict[str, object]:
    given = dict(values) if isinstance(values, dict) else {}
    return {**given, "level": Level.__members__.get(str(given.get("level", "")).upper())}


BEFORE_ALL = -(2**62)


@dataclass
class Cooldown(Message):
    """Lets a level pass once, then holds its like back for `quiet` samples.

    A drift is followed by silence of that length. A warning passes when the last one, passed or
    held back, is that long ago: a long warning zone is one warning. A drift after a warning always
    passes. Several detectors may share one cool-down, so that what all of them see is one signal.

    >>> cooldown = Cooldown(100)
    >>> [int(cooldown.passed(Level.DRIFT, at)) for at in (0, 50, 99, 100)]
    [2, 0, 0, 2]
    """

    quiet: int = 2000
    drift_at: int = BEFORE_ALL
    warning_at: int = BEFORE_ALL

    def passed(self, level: Level, position: int) -> Level:
        """`level` where it is news at `position` (offset, or count of samples), else NONE."""
        if level is NONE or position - self.drift_at < self.quiet:
            return NONE
        if level is DRIFT:
            self.drift_at = position
            return DRIFT
        last, self.warning_at = self.warning_at, max(self.warning_at, position)
        return WARNING if position - last >= self.quiet else NONE
