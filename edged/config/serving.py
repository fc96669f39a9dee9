"""Sections `serving` and `report`: how predictions and metrics are published."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edged.config.values import Duration, Providers, Section, Size


class ServingConfig(Section):
    """How predictions are made and published."""

    publish: bool = Field(True, description="publish predictions over MQTT")
    qos: Literal[0, 1] = Field(0, description="of published predictions")
    must_deliver: bool = Field(
        False,
        description="predictions wait in the outbox until the broker has them, at QoS 1 whatever qos says",
    )
    batch: int = Field(256, ge=1, description="samples in one micro-batch at most")
    threads: int = Field(
        1, ge=1, le=256, description="threads of one prediction, no more than there are processors for"
    )
    provider: Providers = Field(
        ["CPUExecutionProvider"],
        description="what predictions run on, by onnxruntime's names, the preferred first",
    )
    quantise: Literal["none", "int8"] = Field(
        "none",
        description="int8: models are served with 8-bit weights where that form passes the gate too, else as"
        " float32; needs a bundle built with --int8",
    )
    coverage: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="share of predictions whose `set` contains the truth: classes, or an interval of each"
        " target; with a set that is not a single class comes no label",
    )
    min_confidence: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="least confidence of a label; below it `label` is null: the sample is taken for none of"
        " the classes",
    )
    remember: int = Field(20_000, ge=1, description="predictions kept in memory until their labels come")


class ReportConfig(Section):
    """What is reported over MQTT."""

    every: Duration = Field(10.0, gt=0, description="interval of metrics")
    weights: bool = Field(False, description="publish the weights after each promotion")
    chunk: Size = Field(96 * 1024, ge=1024, description="bytes of one message of weights")


class LogConfig(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else JSON"
    )
