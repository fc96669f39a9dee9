"""Sections `commands`, `install` and `weights`: who may control this device, and what may be sent to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from edged.config.values import Constants, Duration, FilePath, Filter, Section, Size, unique
from edged.domain.messages.requests import READS, REQUESTS

ALWAYS_SIGNED = {"keys.rotate", "keys.revoke"}
CommandName = Annotated[str, Field(pattern=r"^[a-z]+(\.[a-z]+)*$")]

CommandNames = Annotated[list[CommandName], AfterValidator(unique)]


class CommandsConfig(Section):
    """Who may control this device over MQTT, and which commands it accepts."""

    max_age: Duration | None = Field(
        86400.0, gt=0, description="edged refuses commands whose `ts` is older; null: any age"
    )
    keys: list[FilePath] = Field([], description="public keys (from `edged keys new`) that sign commands")
    require_signed: Literal["all", "changes"] | CommandNames = Field(
        "changes",
        description="commands that need a signature if there are keys; changes: all except those that only"
        " read",
    )
    answer_to: list[Filter] = Field(
        [],
        description="topics outside the device's response/ that requesters can name as response topic (MQTT"
        " 5)",
    )

    @model_validator(mode="after")
    def _somebody_who_can(self) -> CommandsConfig:
        if not self.keys and self.require_signed not in ("changes", []):
            raise ValueError(
                "require_signed without keys would refuse every command: name public keys in keys"
            )
        return self

    def unsigned(self, *, token: bool = False) -> frozenset[str]:
        """Commands that need no signature; with `token` those that came with the scope control of HTTP.

        The scope is accepted in place of a signature unless `require_signed` names the command, or all; never
        for commands about keys.
        """
        if not self.keys:
            return frozenset(REQUESTS)
        every = frozenset(REQUESTS) - ALWAYS_SIGNED
        if self.require_signed == "changes":
            return every if token else READS
        return frozenset() if self.require_signed == "all" else every - frozenset(self.require_signed)


@dataclass(frozen=True)
class InstallConstants:
    """Values of `InstallConfig` without a key.

    They bound the process that opens a bundle or model for the first time, the configured one too.
    """

    timeout: float = 60.0  # seconds, and CPU seconds
    memory_limit: int = 512 * 1024**2  # bytes, to which 16 times the size of the file is added


class InstallConfig(Section, Constants[InstallConstants]):
    """Bundles and models from the network (`bundle.install`, `model.install`); refused when absent."""

    _constants: InstallConstants = PrivateAttr(InstallConstants())

    max_bytes: Size = Field(32 * 1024**2, ge=1024, description="maximum size of one bundle, also unpacked")


@dataclass(frozen=True)
class WeightsConstants:
    """Values of `WeightsConfig` without a key."""

    chunk: int = 96 * 1024  # bytes of one message: brokers' usual limits begin at 128 KiB


class WeightsConfig(Section, Constants[WeightsConstants]):
    """When edged publishes its weights and how it codes them, and whether it accepts others."""

    _constants: WeightsConstants = PrivateAttr(WeightsConstants())

    every: Duration | None = Field(
        None,
        description="interval at which edged publishes the champion's weights if they are new; 0: after each"
        " promotion; never when absent",
    )
    dtype: Literal["float32", "int8"] = Field(
        "float32",
        description="number format of published weights; int8, for metered links, takes a quarter of the"
        " bytes and has a scale per row or tensor",
    )
    accept: bool = Field(True, description="accept the command `weights.apply`")
