"""What counts as unusual and when it is an alarm, and what is said of samples and alarms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message


@dataclass(frozen=True)
class AnomalyRules:
    """What counts as unusual, and when it is an alarm.

    `rate` is the share of normal samples whose score may pass the threshold. `calibrate` normal scores are
    awaited before there is one, at most `level` and `window`. It follows the mean of the newest `level`
    normal scores and the spread of the newest `window`. An alarm of a key begins when `raise_after` of its
    newest `of` samples are unusual, and is the new normal after `accept_after` seconds, None for never.
    """

    rate: float = 1e-3
    calibrate: int = 100
    window: int = 2000
    level: int = 400
    raise_after: int = 5
    of: int = 10
    accept_after: float | None = None


@dataclass(frozen=True)
class AlarmChange:
    """An alarm of one key begins (`until` None) or ends.

    `offset` is that of the sample that showed it, `first` that of its first unusual one; `since` and `until`
    are the event times of its first and last unusual ones; `peak` is the highest score in multiples of the
    threshold; `samples` how many it has had.
    """

    key: str
    offset: int
    first: int
    since: float
    until: float | None
    samples: int
    peak: float
    accepted: bool = False

    def as_dict(self) -> JsonObject:
        """Return the fields of the event `anomaly`."""
        fields: dict[str, Any] = {"key": self.key, "state": "start" if self.until is None else "end"}
        fields |= {"offset": self.offset, "since": self.since}
        if self.until is not None:
            fields |= {"until": self.until, "samples": self.samples, "accepted": self.accepted}
        return fields | {"peak": round(self.peak, 3)}


@dataclass(frozen=True)
class AnomalyVerdicts:
    """What was found of a batch: `flagged` `(n,)` bool, unusual or within an alarm; alarms that changed."""

    flagged: NDArray[np.bool_]
    changes: list[AlarmChange]


@dataclass(frozen=True)
class AlarmFigures(Message):
    """Threshold (None while it is calibrated), samples and alarms so far, and keys whose alarm stands."""

    threshold: float | None
    flagged: int
    alarms: int
    standing: tuple[str, ...]
