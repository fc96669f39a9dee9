"""Sections `serving` and `report`: how predictions and metrics are published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PrivateAttr

from edged.config.values import Constants, Duration, Providers, Section


@dataclass(frozen=True)
class ServingConstants:
    """Values of `ServingConfig` without a key."""

    batch: int = 256  # samples that are predicted together
    qos: int = 0  # of published predictions; those that must be delivered have 1
    remember: int = 20_000  # predictions kept in memory until their labels come


class ServingConfig(Section, Constants[ServingConstants]):
    """How edged predicts and publishes."""

    _constants: ServingConstants = PrivateAttr(ServingConstants())

    publish: bool = Field(True, description="publish predictions over MQTT")
    must_deliver: bool = Field(
        False,
        description="predictions wait in the outbox until the broker has them, and have QoS 1 instead of 0",
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


class ReportConfig(Section):
    """What edged reports over MQTT."""

    every: Duration = Field(10.0, gt=0, description="interval of metrics")


class LogConfig(Section):
    """The log on stderr: lines for people on a terminal, else JSON."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="minimum level that is logged"
    )
