"""Section `serving`: how predictions are made and published."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edged.config.values import Providers, Section


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
    remember: int = Field(20_000, ge=1, description="predictions kept in memory until their labels come")
