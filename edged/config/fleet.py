"""Section `fleet`: rounds in which many devices improve one model."""

from __future__ import annotations

from pydantic import Field, model_validator

from edged.config.values import Duration, FilePath, Name, Section, Share, Size


class FleetConfig(Section):
    """How this device takes part in a fleet; off when absent."""

    name: Name = Field(description="name of the fleet: its topics start with <mqtt.root>/fl/<name>")
    stream: str | None = Field(
        None, description="with several streams: the one whose model the fleet improves"
    )
    tags: list[Name] = Field(
        [],
        max_length=16,
        description="words from which the coordinator forms groups, such as [hall-2, spare]",
    )
    flower: bool = Field(
        False, description="receive rounds from Flower's SuperNode over web.unix_socket instead of MQTT"
    )
    keys: list[FilePath] = Field(
        [],
        description="public keys of the coordinator (from `edged keys new`): edged ignores rounds and"
        " receipts signed by none of them",
    )
    train: bool = Field(True, description="train in rounds and send updates; false: only receive models")
    adopt: bool = Field(
        True,
        description="make the fleet's models candidates, mixed with the device's own in the share that is"
        " best on its holdout; false: only evaluate them",
    )
    min_new_samples: int = Field(
        1, ge=0, description="minimum new labelled samples since the device last took part in a round"
    )
    budget: Duration = Field(
        300.0, gt=0, description="maximum training time in one round; it limits the steps"
    )
    personal: list[str] = Field(
        [],
        description="name patterns of parameters that never leave the device, in addition to those of the"
        ' round, such as ["head.*"]',
    )
    clip_norm: float | None = Field(
        None, gt=0, description="maximum L2 norm of an update; the round's bound when absent or smaller"
    )
    noise: float = Field(
        0.0,
        ge=0,
        le=1000,
        description="minimum standard deviation of the Gaussian noise in an update, in units of its bound; a"
        " round can require more",
    )
    epsilon: float | None = Field(
        None,
        gt=0,
        description="privacy budget of all updates together; the device sends no update that would exceed"
        " it; null: no budget",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of the privacy budget")
    masked: bool = Field(
        False,
        description="take part only in rounds in which the coordinator sees just the sum of all updates",
    )
    report: bool = Field(
        True, description="report losses and metrics on the device's holdout to the coordinator"
    )
    state_every: Duration = Field(
        60.0,
        gt=0,
        description="interval of the message on state/<device>; changes are published at once",
    )
    resend: Duration = Field(
        30.0,
        gt=0,
        description="pause before an update without a receipt is sent again; further pauses are longer",
    )
    spread: Share = Field(0.5, description="random variation of the pauses between attempts, as a share")
    max_bytes: Size = Field(64 * 1024**2, ge=1024, description="maximum size of the fleet's model as sent")

    @model_validator(mode="after")
    def _keys_without_flower(self) -> FleetConfig:
        if self.flower and self.keys:
            raise ValueError(
                "rounds from Flower are not signed, the SuperLink authenticates its nodes: remove keys"
            )
        if self.flower and self.masked:
            raise ValueError("rounds from Flower have no masks: remove masked, or flower")
        return self

    @model_validator(mode="after")
    def _noise_for_a_budget(self) -> FleetConfig:
        if self.epsilon is not None and self.noise == 0:
            raise ValueError("epsilon needs noise: without it one update exceeds any budget")
        return self
