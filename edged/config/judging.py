"""Sections `gate`, `anomaly`, `drift` and `labels`: how models, samples and labels are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from edged.config.values import Duration, Section, Share
from edged.domain.drift.adwin import WARNING_DELTA
from edged.domain.drift.live import DriftRules
from edged.domain.stream.anomaly import AnomalyRules


class GateConfig(Section):
    """When a candidate may become champion, and when it must go again."""

    holdout: Annotated[float, Field(gt=0.0, le=0.5)] = Field(
        0.05, description="share of samples kept for judging, never trained on"
    )
    recent: int = Field(
        60, ge=1, description="newest labelled holdout samples that decide, the newer half of them first"
    )
    min_holdout: int = Field(
        5,
        ge=1,
        description="with fewer labelled holdout samples a candidate is refused, unless nothing was trained"
        " yet",
    )
    min_gain: float = Field(
        0.0,
        description="above 0: what the candidate must be better by; below: what it may lose beyond chance",
    )
    significance: float = Field(
        0.1,
        gt=0,
        le=0.5,
        description="a candidate is refused when chance explains its losses with less probability than this",
    )
    max_regret: float = Field(
        0.02, ge=0.0, description="what it may lose on each earlier regime, beyond chance and its gain"
    )
    recall: bool = Field(
        True, description="try the models of earlier regimes on the newest labels: one of them may be back"
    )
    tolerance: float = Field(1e-4, gt=0, description="largest difference to the trainer's own outputs")
    latency: Duration = Field(0.05, gt=0, description="largest time for one prediction of a candidate")
    suspect_labels: bool = Field(
        True,
        description="refuse candidates and pause training while no model can explain the labels;"
        " set falsified labels aside",
    )
    timeout: Duration = Field(
        60.0, gt=0, description="longest time for verifying, for judging and for loading a candidate"
    )
    probation: int = Field(200, ge=0, description="labelled predictions watched after a swap; 0 for none")
    probation_drop: float = Field(0.1, ge=0, description="fall of live quality that rolls back")
    probation_time: Duration = Field(
        7 * 86400.0, gt=0, description="a probation for which too few labels come ends after this, unproven"
    )


_RULES = {
    "low": AnomalyRules(rate=1e-4, raise_after=7),
    "normal": AnomalyRules(),
    "high": AnomalyRules(rate=5e-3, raise_after=3),
}
"""By sensitivity. docs/mqtt.md states the false alarms of each, and a test measures them."""


class AnomalyConfig(Section):
    """What counts as unusual, and when it is an alarm; for streams with `target: reconstruct`."""

    sensitivity: Literal["low", "normal", "high"] = Field(
        "normal",
        description="low: 1 in 10,000 normal samples may look unusual, and an alarm starts with 7 unusual"
        " ones among the newest 10 of a key; normal: 1 in 1,000, and 5 of 10; high: 5 in 1,000, and 3 of 10",
    )
    accept_after: Duration | None = Field(
        None,
        gt=0,
        description="an alarm that has stood for this long becomes the new normal; null: until the command"
        " `accept`",
    )

    def rules(self) -> AnomalyRules:
        """Return the rules for the anomaly detector."""
        return replace(_RULES[self.sensitivity], accept_after=self.accept_after)


class DriftConfig(Section):
    """What is watched for drift, and how sensitively."""

    errors: bool = Field(True, description="watch the errors of predictions whose labels have come")
    confidence: bool = Field(True, description="watch how sure predictions are; for classes")
    inputs: bool = Field(True, description="watch each feature against its own past")
    delta: float | None = Field(
        None,
        gt=0,
        le=WARNING_DELTA,
        description="confidence of the errors' detector, at most 0.02: smaller is quieter; else 0.002",
    )
    cooldown: int = Field(
        2000, ge=0, description="samples of silence after a drift, so edged reports it once"
    )

    train: bool = Field(
        True, description="a drift of the errors, or a sudden fall of live quality, starts a run"
    )

    def rules(self) -> DriftRules:
        """Return the rules for the drift detectors."""
        return DriftRules(self.delta, self.cooldown, self.errors, self.confidence, self.inputs)


class LabelsConfig(Section):
    """Which labels the device asks for, where they do not come by themselves."""

    request_share: Share = Field(
        0.0, description="label requests per sample (event `label_requested`); 0 for none"
    )
    request_random: Share = Field(0.3, description="part of the requests that is drawn at random")
    requests_per_day: int | None = Field(None, ge=1, description="most requests within 24 hours")
