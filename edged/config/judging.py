"""Sections `gate`, `anomaly`, `drift` and `labels`: how models, samples and labels are judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from edged.config.values import Constants, Duration, Section, Share
from edged.domain.drift.live import DriftRules
from edged.domain.stream.anomaly import AnomalyRules


@dataclass(frozen=True)
class GateConstants:
    """Values of `GateConfig` without a key; durations in seconds."""

    recent: int = 60  # newest labelled holdout samples that decide, the newer half first
    significance: float = 0.1  # a candidate is rejected if its losses are chance with a lower probability
    max_regret: float = 0.02  # loss on earlier labels, beyond chance and the candidate's gain
    tolerance: float = 1e-4  # difference from the trainer's outputs
    latency: float = 0.05  # of one prediction of a candidate
    timeout: float = 60.0  # to verify, to evaluate and to load a candidate, each
    probation_time: float = 7 * 86400.0  # longest probation with too few labels; the model stays unproven


class GateConfig(Section, Constants[GateConstants]):
    """When a candidate becomes champion, and when edged rolls it back."""

    _constants: GateConstants = PrivateAttr(GateConstants())

    holdout: Annotated[float, Field(gt=0.0, le=0.5)] = Field(
        0.05, description="share of samples kept for evaluation, never trained on"
    )
    min_holdout: int = Field(
        5,
        ge=1,
        description="labelled holdout samples below which a candidate is rejected, unless it is the first"
        " trained model",
    )
    min_gain: float = Field(
        0.0,
        description="above 0: minimum gain of the candidate; below 0: loss beyond chance that is tolerated",
    )
    probation: int = Field(
        200, ge=0, description="labelled predictions watched after a swap; 0: no probation"
    )
    probation_drop: float = Field(0.1, ge=0, description="drop of live quality that causes a rollback")


_RULES = {
    "low": AnomalyRules(rate=1e-4, raise_after=7),
    "normal": AnomalyRules(),
    "high": AnomalyRules(rate=5e-3, raise_after=3),
}
"""By sensitivity. docs/mqtt.md states the false alarms of each, and a test measures them."""


class AnomalyConfig(Section):
    """What counts as unusual, and what raises an alarm; for streams with `task: reconstruct`."""

    sensitivity: Literal["low", "normal", "high"] = Field(
        "normal",
        description="low: 1 in 10,000 normal samples counts as unusual, and 7 unusual ones among the newest"
        " 10 of a key start an alarm; normal: 1 in 1,000, and 5 of 10; high: 5 in 1,000, and 3 of 10",
    )
    accept_after: Duration | None = Field(
        None,
        gt=0,
        description="duration after which an alarm becomes the new normal; null: only by the command"
        " `accept`",
    )

    def rules(self) -> AnomalyRules:
        """Return the rules for the anomaly detector."""
        return replace(_RULES[self.sensitivity], accept_after=self.accept_after)


_DELTAS = {"low": 0.0002, "normal": 0.002, "high": 0.02}
"""Confidence of the detector of errors by sensitivity; normal is that of the literature."""


class DriftConfig(Section):
    """How sensitively edged watches errors, confidence and inputs for drift."""

    sensitivity: Literal["low", "normal", "high"] = Field(
        "normal",
        description="of the watch over the errors of labelled predictions; low: fewer false alarms, and a"
        " drift is reported later; high: the reverse",
    )

    def rules(self) -> DriftRules:
        """Return the rules for the drift detectors."""
        return DriftRules(_DELTAS[self.sensitivity])


@dataclass(frozen=True)
class LabelsConstants:
    """Values of `LabelsConfig` without a key."""

    request_random: float = 0.3  # share of the requests that is drawn at random


class LabelsConfig(Section, Constants[LabelsConstants]):
    """Label requests, for streams whose samples do not bring labels."""

    _constants: LabelsConstants = PrivateAttr(LabelsConstants())

    request_share: Share = Field(
        0.0, description="label requests per sample (event `label_requested`); 0: no requests"
    )
    requests_per_day: int | None = Field(None, ge=1, description="maximum requests within 24 hours")
