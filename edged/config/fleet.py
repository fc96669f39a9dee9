"""Section `fleet`: rounds in which many devices improve one model."""

from __future__ import annotations

from pydantic import Field, model_validator

from edged.config.values import Duration, FilePath, Name, Section, Share, Size


class FleetConfig(Section):
    """How this device takes part in a fleet that learns together; without the section it does not."""

    name: Name = Field(description="of the fleet: its topics start with <mqtt.root>/fl/<name>")
    stream: str | None = Field(
        None, description="with several streams: name of the one whose model the fleet improves"
    )
    tags: list[Name] = Field(
        [], max_length=16, description="words by which the coordinator forms groups, such as [hall-2, spare]"
    )
    flower: bool = Field(
        False, description="rounds come from Flower's SuperNode over web.unix_socket, and not over MQTT"
    )
    keys: list[FilePath] = Field(
        [],
        description="public keys of the coordinator (made by `edged keys new`): rounds and receipts that none"
        " of them has signed are ignored",
    )
    train: bool = Field(True, description="train in rounds and send updates; false: only take its models")
    adopt: bool = Field(
        True,
        description="make the fleet's models candidates, mixed with the device's own in the proportion that"
        " is best on its holdout; false: evaluate them only",
    )
    min_new_samples: int = Field(
        1, ge=0, description="labelled samples that must be new since the device last took part in a round"
    )
    budget: Duration = Field(
        300.0, gt=0, description="time for training in one round; the steps that it allows are made"
    )
    personal: list[str] = Field(
        [],
        description="patterns of the names of parameters that never leave the device, beside those of the"
        ' rounds; such as ["head.*"]',
    )
    clip_norm: float | None = Field(
        None, gt=0, description="largest L2 norm of an update; the round's own bound when absent or smaller"
    )
    noise: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="least standard deviation of the Gaussian noise in an update, in units of its bound; a"
        " round may ask for more",
    )
    epsilon: float | None = Field(
        None,
        gt=0,
        description="privacy budget of all updates together: none is made that would pass it; null keeps no"
        " budget",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta that goes with epsilon")
    masked: bool = Field(
        False,
        description="take part only in rounds whose coordinator sees nothing but the sum of all updates",
    )
    report: bool = Field(
        True, description="report losses and metrics on the own holdout to the coordinator of the fleet"
    )
    state_every: Duration = Field(
        60.0,
        gt=0,
        description="interval of the device's state on state/<device>; changes are published at once",
    )
    resend: Duration = Field(
        30.0,
        gt=0,
        description="an update without receipt is sent again after it, then after ever longer pauses",
    )
    spread: Share = Field(0.5, description="share by which pauses between attempts vary at random")
    max_bytes: Size = Field(64 * 1024**2, ge=1024, description="cap of the fleet's model as it is sent")

    @model_validator(mode="after")
    def _keys_without_flower(self) -> FleetConfig:
        if self.flower and self.keys:
            raise ValueError("rounds from Flower are not signed: its SuperLink knows its nodes; remove keys")
        if self.flower and self.masked:
            raise ValueError("rounds from Flower come without masks: remove masked, or flower")
        return self

    @model_validator(mode="after")
    def _noise_for_a_budget(self) -> FleetConfig:
        if self.epsilon is not None and self.noise == 0:
            raise ValueError("epsilon needs noise: without it no budget lasts for one update")
        return self
