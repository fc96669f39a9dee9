"""What an evaluation has found: `report.json` is these classes as JSON, and the page shows them.

Rows are positions in the recorded stream, from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edged.domain.drift.signals import DriftSignal
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message, SparseMessage

Scores = Mapping[str, float]
"""Figures by name, such as `accuracy` or `mae`."""

# ---- anomalies -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedAlarm(SparseMessage):
    """An alarm of a key: raised at `row`, `first` unusual row, `end` row (None while it stands).

    `peak` is the highest score in multiples of the threshold; `accepted` is None while the alarm stands.
    """

    key: str
    row: int
    first: int
    end: int | None
    peak: float
    accepted: bool | None = None


@dataclass(frozen=True)
class DetectionFigures(Message):
    """Alarms, how many rows were set aside, and the threshold at the end; None where there was none."""

    alarms: tuple[RecordedAlarm, ...]
    flagged: int
    threshold: float | None


@dataclass(frozen=True)
class AnomalyFigures(Message):
    """What the adapted model has detected, and what the frozen one would have."""

    adapted: DetectionFigures
    frozen: DetectionFigures

    def to_json(self) -> JsonObject:
        """Return the figures of the adapted model, with those of the other as `frozen`."""
        return {**self.adapted.to_json(), "frozen": self.frozen.to_json()}


@dataclass(frozen=True)
class AlarmCurves(Message):
    """Highest score of each window by both models, in multiples of the threshold of its time.

    `starts` and `ends` are first and last row of each window, `truth` those of each recorded anomaly.
    """

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    truth: tuple[tuple[int, int], ...]
    adapted: tuple[float, ...]
    frozen: tuple[float, ...]


# ---- the report ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PromiseFigures(Message):
    """How often sets contained the truth: promised and true share, size, share of empty sets.

    `size` is a number of classes, or a width for each target.
    """

    promised: float
    covered: float
    size: float | tuple[float, ...]
    empty: float


@dataclass(frozen=True)
class DriftFigures(SparseMessage):
    """A drift signal, and the features that have moved as far as it says; None where none has."""

    offset: int
    detector: str
    level: str
    source: str
    features: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class EvaluationReport(SparseMessage):
    """The figures of an evaluation; `metric` is that of the adapted model. None: not measured."""

    samples: int
    scored: int
    quarantined: int
    warnings: tuple[str, ...]
    metric: Scores
    frozen: Scores
    no_change: Scores
    experts: Mapping[str, Scores]
    calibration_error: float | None
    coverage: PromiseFigures | None
    windows: tuple[float, ...]
    trainings: int
    promotions: int
    rejections: int
    rollbacks: int
    drifts: tuple[DriftFigures, ...]
    labels_used: int
    anomaly: AnomalyFigures | None
    forgetting: float | None
    engine: str | None
    train_seconds: float
    seconds: float = 0.0
    peak_rss_mb: float = 0.0
    readings: Mapping[str, int] | None = None  # that windows were cut from; None without windows


# ---- the course ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class QualityCurves(Message):
    """Quality of each line (`adapted`, `frozen`, `no_change`) in windows: their first and last rows."""

    starts: tuple[int, ...]
    ends: tuple[int, ...]
    lines: Mapping[str, Sequence[float]]

    def to_json(self) -> JsonObject:
        """Return the windows, with each line by its name."""
        lines = {name: [*values] for name, values in self.lines.items()}
        return {"starts": [*self.starts], "ends": [*self.ends], **lines}


@dataclass(frozen=True)
class FoundAgain(Message):
    """Recall and precision of a class; None where the class or such an answer never occurred."""

    recall: float | None
    precision: float | None


@dataclass(frozen=True)
class ClassFigures(Message):
    """One class: its samples, and how they were found."""

    name: str
    samples: int
    adapted: FoundAgain
    frozen: FoundAgain

    def to_json(self) -> JsonObject:
        """Return the fields, the name as `class`."""
        return {"class": self.name, **self.without("name")}


@dataclass(frozen=True)
class ModelSwap(Message):
    """From this sample on, this version answers."""

    sample: int
    version: int


@dataclass(frozen=True)
class CandidateOutcome(Message):
    """What became of a candidate (`promoted`, `refused`), or a rollback (`rolled back`), at a sample."""

    sample: int
    outcome: str
    version: int | None
    reasons: tuple[str, ...]
    numbers: Mapping[str, float]
    forgets: bool


@dataclass(frozen=True)
class EvaluationHistory(Message):
    """How an evaluation went over time; `figure` names what `curves` show, `alarms` are of detectors."""

    task: str
    figure: str
    pretrain: int
    delay: int
    label_rate: float
    seed: int
    curves: QualityCurves
    per_class: tuple[ClassFigures, ...]
    alarms: AlarmCurves | None
    swaps: tuple[ModelSwap, ...]
    verdicts: tuple[CandidateOutcome, ...]
    drifts: tuple[DriftSignal, ...]


# ---- comparisons ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankedConfiguration(Message):
    """The metric of a configuration, and its difference to the best one with the 95 % interval.

    `found` is `best`, `worse`, or `no difference found` where the interval includes zero.
    """

    rank: int
    name: str
    value: float
    difference: float
    low: float
    high: float
    found: str


@dataclass(frozen=True)
class EvaluationComparison(Message):
    """Configurations from the best to the worst by `metric`, and the report of each."""

    metric: str
    higher_is_better: bool
    ranking: tuple[RankedConfiguration, ...]
    reports: Mapping[str, EvaluationReport]
