"""Sections `commands`, `install` and `weights`: who may control this device, and what may be sent to it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from edged.config.values import Duration, FilePath, Filter, Section, Size, unique
from edged.domain.messages.requests import READS, REQUESTS

EARLIER_DEFAULT = ["wipe", "bundle.install", "config.set"]
ALWAYS_SIGNED = {"keys.rotate", "keys.revoke"}
CommandName = Annotated[str, Field(pattern=r"^[a-z]+(\.[a-z]+)*$")]

CommandNames = Annotated[list[CommandName], AfterValidator(unique)]


class CommandsConfig(Section):
    """Who may control this device over MQTT, and which commands it accepts."""

    max_age: Duration | None = Field(
        86400.0, gt=0, description="a command whose `ts` is older is refused; null for any age"
    )
    rate: float = Field(
        50.0,
        gt=0,
        le=10_000,
        description="commands per second of each key, of HTTP, and of all that is unsigned; what exceeds it"
        " is refused",
    )
    burst: int = Field(200, ge=1, le=100_000, description="commands that may come at once")
    keep: int = Field(
        1000, ge=10, le=1_000_000, description="commands that are remembered, so that none is done twice"
    )
    keep_for: Duration = Field(30 * 86400.0, gt=0, description="how long they are remembered")
    keys: list[FilePath] = Field(
        [], description="public keys (made by `edged keys new`) whose signatures on commands count"
    )
    require_signed: Literal["all", "changes"] | CommandNames = Field(
        "changes",
        description="commands that are refused without a signature, once there are keys; changes: every"
        " command but those that only read",
    )
    signed_window: Duration = Field(
        300.0, gt=0, description="how far the time of a signed command may be from this device's clock"
    )
    answer_to: list[Filter] = Field(
        [],
        description="topics outside the device's own response/ on which a requester may have the answer (MQTT"
        " 5 response topic)",
    )

    @model_validator(mode="after")
    def _somebody_who_can(self) -> CommandsConfig:
        if not self.keys and self.require_signed not in ("changes", EARLIER_DEFAULT, []):
            raise ValueError("require_signed without keys would refuse everybody: name public keys in keys")
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


LOOPBACK = (
    "http://127.0.0.1:",
    "http://127.0.0.1/",
    "http://localhost:",
    "http://localhost/",
    "http://[::1]",
)


class InstallConfig(Section):
    """Bundles and models that come over the network (commands `bundle.install`, `model.install`)."""

    accept: bool = Field(
        False, description="take bundles and models with the commands `bundle.install` and `model.install`"
    )
    urls: list[str] = Field(
        [],
        description="prefixes of addresses that bundles may be fetched from; https, with a path: "
        "`https://fleet.example/bundles/`",
    )
    max_bytes: Size = Field(32 * 1024**2, ge=1024, description="cap of one bundle, also unpacked")
    timeout: Duration = Field(
        60.0,
        gt=0,
        description="of fetching a bundle, and of each wait within; and of opening a bundle or model for the"
        " first time, where processor time counts, too",
    )
    memory_limit: Size = Field(
        512 * 1024**2,
        ge=128 * 1024**2,
        description="what the process may allocate that opens a bundle or model for the first time, the"
        " configured one too, besides 16 times its size",
    )

    @field_validator("urls")
    @classmethod
    def _safe(cls, urls: list[str]) -> list[str]:
        for url in urls:
            scheme, _, rest = url.partition("://")
            if scheme != "https" and not url.startswith(LOOPBACK):
                raise ValueError(f"{url!r} is neither https nor on this machine")
            if "/" not in rest:
                raise ValueError(f"{url!r} would also allow hosts that start like it: end it with /")
        return urls


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
        3600.0, gt=0, description="an incoming transfer without a chunk for so long is discarded"
    )
