"""Sections `serving` and `report`: how predictions and metrics are published."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edged.config.values import Duration, Providers, Section, Size


class ServingConfig(Section):
    """How edged predicts and publishes."""

    publish: bool = Field(True, description="publish predictions over MQTT")
    qos: Literal[0, 1] = Field(0, description="QoS of published predictions")
    must_deliver: bool = Field(
        False,
        description="predictions wait in the outbox until the broker has them, always at QoS 1",
    )
    batch: int = Field(256, ge=1, description="maximum samples in one micro-batch")
    threads: int = Field(
        1, ge=1, le=256, description="maximum threads of one prediction, limited by the CPUs"
    )
    provider: Providers = Field(
        ["CPUExecutionProvider"],
        description="execution providers of predictions, by onnxruntime's names, in order of preference",
    )
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of predictions whose `set` contains the truth: classes, or an interval per"
        " target; `label` is null unless the set is a single class",
    )
    min_confidence: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="minimum confidence of a label; below it `label` is null",
    )
    remember: int = Field(20_000, ge=1, description="predictions kept in memory until their labels come")


class ReportConfig(Section):
    """What edged reports over MQTT."""

    every: Duration = Field(10.0, gt=0, description="interval of metrics")
    weights: bool = Field(False, description="publish the weights after each promotion")
    chunk: Size = Field(96 * 1024, ge=1024, description="maximum size of one message of weights")


class LogConfig(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum level that is logged"
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else JSON"
    )
