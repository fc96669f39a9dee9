"""Sections `report` and `log`: what is said over MQTT and on stderr."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edged.config.values import Duration, Section, Size


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
