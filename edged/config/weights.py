"""Section `weights`: updates of weights that leave the device, and those that come in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edged.config.values import Duration, Section, Size


class WeightsConfig(Section):
    """How updates of weights are made, and which are taken from elsewhere."""

    mode: Literal["full", "delta"] = Field(
        "full", description="full: all parameters; delta: the difference to a base"
    )
    dtype: Literal["float32", "float16", "int8"] = Field(
        "float32", description="numbers of an update; int8 has a scale for each row or tensor"
    )
    step: float = Field(
        0.5,
        ge=0,
        le=4,
        description="step of int8 differences in units of the root mean square of each tensor: a coarse one"
        " compresses further; 0 takes the finest of 8 bits; what is rounded away is added to the next one",
    )
    base: Literal["last", "bundle"] = Field(
        "last",
        description="what differences are to: last: what receivers hold after the update before, of which the"
        " first is whole; bundle: the bundle's own weights, so that each stands for itself",
    )
    every: Duration = Field(
        0.0, ge=0, description="publish the champion's weights at this interval if they are new; 0: never"
    )
    accept: bool = Field(True, description="take weights that come in with the command `weights.apply`")
    max_bytes: Size = Field(64 * 1024**2, ge=1024, description="cap of one incoming transfer, also unpacked")
    expire: Duration = Field(
        3600.0, gt=0, description="an incoming transfer without news is given up after it"
    )
