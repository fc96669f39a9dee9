"""Section `commands`: who may steer this device, and which commands are carried out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from edged.config.values import Duration, Section, unique

DANGEROUS = ["wipe", "bundle.install", "config.set"]
CommandName = Annotated[str, Field(pattern=r"^[a-z]+(\.[a-z]+)*$")]


class CommandsConfig(Section):
    """Who may steer this device over MQTT, and which commands are carried out."""

    max_age: Duration | None = Field(
        86400.0, gt=0, description="a command whose `ts` is older is refused; null for any age"
    )
    rate: float = Field(50.0, gt=0, le=10_000, description="commands a second; what exceeds it is refused")
    burst: int = Field(200, ge=1, le=100_000, description="commands that may come at once")
    keep: int = Field(
        1000, ge=10, le=1_000_000, description="commands that are remembered, so that none is done twice"
    )
    keep_for: Duration = Field(30 * 86400.0, gt=0, description="how long they are remembered")
    keys: list[Path] = Field(
        [], description="public keys (made by `edged keys new`) whose signatures on commands count"
    )
    require_signed: Literal["all"] | Annotated[list[CommandName], AfterValidator(unique)] = Field(
        DANGEROUS,
        description="commands that are refused without a signature, once there are keys",
    )
    signed_window: Duration = Field(
        300.0, gt=0, description="how far the time of a signed command may be from this device's clock"
    )

    @model_validator(mode="after")
    def _somebody_who_can(self) -> CommandsConfig:
        if not self.keys and self.require_signed not in (DANGEROUS, []):
            raise ValueError("require_signed without keys would refuse everybody: name public keys in keys")
        return self

    @property
    def must_be_signed(self) -> frozenset[str] | None:
        """Names of commands that need a signature; None for all."""
        if not self.keys:
            return frozenset()
        return None if self.require_signed == "all" else frozenset(self.require_signed)
