"""Section `fleet`: rounds in which many devices improve one model."""

from __future__ import annotations

from pydantic import Field, model_validator

from edged.config.values import Duration, FilePath, Name, Section


class FleetConfig(Section):
    """How this device takes part in a fleet; off when absent."""

    name: Name | None = Field(
        None,
        description="name of the fleet: its topics start with <mqtt.root>/fl/<name>; required unless"
        " flower is set",
    )
    stream: str | None = Field(
        None, description="with several streams: the one whose model the fleet improves"
    )
    tags: list[Name] = Field(
        [], max_length=16, description="words by which the coordinator chooses canaries, such as [hall-2]"
    )
    flower: bool = Field(
        False, description="take part in rounds of Flower over web.unix_socket instead of MQTT"
    )
    keys: list[FilePath] = Field(
        [],
        description="public keys of the coordinator (from `edged keys new`): edged ignores rounds and"
        " receipts signed by none of them",
    )
    train: bool = Field(True, description="train in rounds and send updates; false: only receive models")
    budget: Duration = Field(
        300.0, gt=0, description="maximum training time in one round; it limits the steps"
    )

    @model_validator(mode="after")
    def _name_or_flower(self) -> FleetConfig:
        if not self.flower and self.name is None:
            raise ValueError("name is missing: give the fleet's name, or set flower for rounds of Flower")
        unused = self.model_fields_set & {"name", "tags", "keys"}
        if self.flower and unused:
            raise ValueError(f"with flower, the SuperLink addresses devices: remove {min(unused)}")
        return self
