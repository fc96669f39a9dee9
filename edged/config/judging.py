"""Sections `gate`, `anomaly`, `drift` and `labels`: how models, samples and labels are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from edged.config.values import Duration, Section, Share
from edged.domain.drift.adwin import WARNING_DELTA
from edged.domain.drift.live import DriftRules
from edged.domain.stream.anomaly_rules import AnomalyRules


class GateConfig(Section):
    """When a candidate becomes champion, and when edged rolls it back."""

    holdout: Annotated[float, Field(gt=0.0, le=0.5)] = Field(
        0.05, description="share of samples kept for evaluation, never trained on"
    )
    recent: int = Field(
        60, ge=1, description="number of newest labelled holdout samples that decide, the newer half first"
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
    significance: float = Field(
        0.1,
        gt=0,
        le=0.5,
        description="significance level: a candidate is rejected if the probability that its losses are"
        " chance is lower",
    )
    max_regret: float = Field(
        0.02,
        ge=0.0,
        description="maximum loss on each earlier regime, beyond chance and the candidate's gain",
    )
    recall: bool = Field(
        True,
        description="try the models of earlier regimes on the newest labels, in case a regime has returned",
    )
    tolerance: float = Field(1e-4, gt=0, description="maximum difference from the trainer's outputs")
    latency: Duration = Field(0.05, gt=0, description="maximum time of one prediction of a candidate")
    timeout: Duration = Field(
        60.0, gt=0, description="maximum time to verify, to evaluate and to load a candidate, each"
    )
    probation: int = Field(
        200, ge=0, description="labelled predictions watched after a swap; 0: no probation"
    )
    probation_drop: float = Field(0.1, ge=0, description="drop of live quality that causes a rollback")
    probation_time: Duration = Field(
        7 * 86400.0,
        gt=0,
        description="maximum duration of a probation with too few labels; the model stays unproven",
    )


_RULES = {
    "low": AnomalyRules(rate=1e-4, raise_after=7),
    "normal": AnomalyRules(),
    "high": AnomalyRules(rate=5e-3, raise_after=3),
}
"""By sensitivity. docs/mqtt.md states the false alarms of each, and a test measures them."""


class AnomalyConfig(Section):
    """What counts as unusual, and what raises an alarm; for streams with `target: reconstruct`."""

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


class DriftConfig(Section):
    """What edged watches for drift, and how sensitively."""

    errors: bool = Field(True, description="watch the errors of labelled predictions")
    confidence: bool = Field(True, description="watch the confidence of predictions (classes only)")
    inputs: bool = Field(True, description="compare each feature with its own past")
    delta: float | None = Field(
        None,
        gt=0,
        le=WARNING_DELTA,
        description="delta of the error detector, at most 0.02: smaller is less sensitive; 0.002 when absent",
    )
    cooldown: int = Field(2000, ge=0, description="samples after a drift without another report")

    train: bool = Field(
        True, description="a drift of the errors or a sudden drop of live quality starts a run"
    )

    def rules(self) -> DriftRules:
        """Return the rules for the drift detectors."""
        return DriftRules(self.delta, self.cooldown, self.errors, self.confidence, self.inputs)


class LabelsConfig(Section):
    """Label requests, for streams whose samples do not bring labels."""

    request_share: Share = Field(
        0.0, description="label requests per sample (event `label_requested`); 0: no requests"
    )
    request_random: Share = Field(0.3, description="share of the requests that is drawn at random")
    requests_per_day: int | None = Field(None, ge=1, description="maximum requests within 24 hours")
