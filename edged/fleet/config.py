"""The configuration of a coordinator, which is a file of its own. Rules take its sections as they are."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from edged.config.mqtt import MqttConfig
from edged.config.problems import all_problems
from edged.config.serving import LogConfig
from edged.config.values import AnyPath, Count, Duration, Name, Section, Share, Size
from edged.config.yaml_file import read_yaml
from edged.domain.federated.messages import DeviceState, RoundSettings

HINT = "docs/fleet-reference.md lists every key"
IN_FLIGHT = 256
"""Messages that the broker may hand over before the first is durable; they bound the memory."""
CANARIES = "canaries"


class RoundSection(Section):
    """Size and duration of a round."""

    devices: Count = Field(10, description="updates that a round wants")
    quorum: Share = Field(0.6, description="share of `devices` with which it closes at its deadline")
    deadline: Duration = Field(3600.0, gt=0, description="from opening to closing")
    window: Duration = Field(60.0, description="over which devices spread what they send")
    every: Duration = Field(0.0, description="from the end of a round to the next")
    rounds: int | None = Field(
        None, ge=1, description="after so many the coordinator ends; never when absent"
    )

    @model_validator(mode="after")
    def _in_time(self) -> RoundSection:
        if self.window >= self.deadline:
            raise ValueError(
                f"devices send within {self.window:g} s, but the round closes after {self.deadline:g} s:"
                " lower window, or raise deadline"
            )
        return self

    @property
    def least(self) -> int:
        """Minimum number of updates to close a round."""
        return max(1, math.ceil(self.quorum * self.devices))


class ChooseSection(Section):
    """Which devices a round selects."""

    patience: Duration = Field(60.0, description="for more than a quorum of such devices to appear")
    everyone: bool = Field(False, description="all that listen; nothing below counts then")
    min_samples: int = Field(50, ge=0, description="new labelled samples that a device must have")
    max_age: Duration = Field(3600.0, gt=0, description="since its last message")
    idle: bool = Field(True, description="it has nothing to train for itself")


class TrainSection(Section):
    """Training of devices in a round."""

    epochs: int | None = Field(None, ge=1, description="passes over the device's data; 1 without `steps`")
    steps: int | None = Field(None, ge=1, description="steps, instead of epochs")
    learning_rate: float = Field(1e-3, gt=0, description="of the device's optimizer")
    batch_size: int = Field(32, ge=1, le=65536, description="rows of a step")
    clip_norm: float = Field(1.0, gt=0, description="largest L2 norm of an update")

    @model_validator(mode="after")
    def _one_of_both(self) -> TrainSection:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give either epochs or steps")
        return self


class ReduceSection(Section):
    """Aggregation of updates to one model."""

    how: Literal["mean", "trimmed_mean", "median"] = Field("mean", description="of all updates")
    trim: float = Field(0.1, ge=0, lt=0.5, description="share cut at either end by trimmed_mean")


class GateSection(Section):
    """When the model of a round becomes the fleet's; numbers are in units of the median loss before."""

    evaluate: bool = Field(True, description="false: always, and at once")
    mean: float = Field(0.02, description="by so much devices may lose in the mean")
    worst: float = Field(0.25, description="and the worst of them")
    reports: Share = Field(0.5, description="of the devices asked that must report")
    stages: list[Share] = Field(
        [0.1, 1.0], min_length=1, description="shares that try it, one after the other"
    )
    wait: Duration = Field(600.0, gt=0, description="for the reports of a share, at most")

    @model_validator(mode="after")
    def _growing(self) -> GateSection:
        if any(a >= b for a, b in zip(self.stages, self.stages[1:], strict=False)) or self.stages[-1] != 1.0:
            raise ValueError("stages grow, and the last is 1.0")
        return self


class CanariesSection(Section):
    """Devices that try each model first: all that is given must fit."""

    devices: list[str] = Field([], description='patterns of device names, any of them, such as ["press-*"]')
    tags: list[Name] = Field([], description="tags that a device must have, all of them (`fleet.tags` there)")

    @model_validator(mode="after")
    def _of_some(self) -> CanariesSection:
        if not (self.devices or self.tags):
            raise ValueError("a group of all devices is the fleet: give devices or tags")
        return self

    def includes(self, state: DeviceState) -> bool:
        """Return whether a device is one of them."""
        named = not self.devices or any(fnmatchcase(state.device, pattern) for pattern in self.devices)
        return named and set(self.tags) <= set(state.tags)


class RolloutSection(Section):
    """Rollout of a round's model over the stages of `gate`."""

    canaries: CanariesSection | None = Field(
        None, description="a stage before those of `gate`: devices that try each model first"
    )
    approval: Literal["never", "first", "each"] = Field(
        "never", description="after which stages it waits for `edged fleet round approve`"
    )
    device_bytes: Size | None = Field(None, gt=0, description="that a device fetches and sends a day")


class CoordinatorConfig(Section):
    """The whole configuration of a coordinator."""

    fleet: Name = Field(description="name of the fleet: a level of every topic, edged/fl/<fleet>/...")
    model: AnyPath = Field(description="what the first round begins with: a bundle, or a safetensors file")
    bundle: str = Field("", description="fingerprint of the devices' bundle, where `model` is not one itself")
    dir: AnyPath = Field(Path("fleet"), description="where everything is kept that must survive a power cut")
    key: AnyPath | None = Field(
        None, description="private key (made by `edged keys new`) that signs rounds and receipts"
    )
    keep: int = Field(8, ge=2, le=1000, description="models that are kept")
    mqtt: MqttConfig = MqttConfig()
    round: RoundSection = RoundSection()
    choose: ChooseSection = ChooseSection()
    train: TrainSection = TrainSection()
    reduce: ReduceSection = ReduceSection()
    gate: GateSection = GateSection()
    rollout: RolloutSection = RolloutSection()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _stages_for_a_rollout(self) -> CoordinatorConfig:
        rollout = self.rollout
        tried = [key for key in (CANARIES, "approval") if getattr(rollout, key) not in (None, "never")]
        if tried and not self.gate.evaluate:
            raise ValueError(f"rollout.{tried[0]} needs devices that try models: set gate.evaluate to true")
        if rollout.approval != "never" and len(self.stages) < 2:
            raise ValueError(
                "rollout.approval needs a stage before the last: name canaries, or more gate.stages"
            )
        return self

    @property
    def settings(self) -> RoundSettings:
        """Training settings as devices receive them."""
        train = self.train
        epochs = 1 if train.steps is None and train.epochs is None else train.epochs
        return RoundSettings(
            epochs, train.steps, train.learning_rate, train.batch_size, train.clip_norm, self.gate.evaluate
        )

    @property
    def stages(self) -> list[float | Literal["canaries"]]:
        """Shares of devices, or the canaries, that try a model; none: it is the fleet's at once."""
        if not self.gate.evaluate:
            return []
        return [*([] if self.rollout.canaries is None else [CANARIES]), *self.gate.stages]  # type: ignore[list-item]

    def stage_name(self, stage: int) -> str:
        """Name a stage for people."""
        found = self.stages[stage] if stage < len(self.stages) else 1.0
        return found if isinstance(found, str) else f"{found * 100:g} % of devices"

    def waits_for_approval(self, stage: int) -> bool:
        """Return whether an operator decides after this stage, which has agreed."""
        approval, last = self.rollout.approval, len(self.stages) - 1
        return stage < last and (approval == "each" or (approval == "first" and stage == 0))

    @property
    def broker(self) -> MqttConfig:
        """The section `mqtt`, with few messages in flight."""
        return self.mqtt.with_constants(receive_maximum=IN_FLIGHT)


def load(path: Path) -> CoordinatorConfig:
    """Read and validate the file at `path`; relative paths are relative to it.

    Raises ConfigError with file, line and key of the first problem and what would be right.
    """
    places, data = read_yaml(
        path, "the fleet's configuration", "begin with `fleet: plant` and `model: ./bundle`"
    )
    data.setdefault("dir", "fleet")
    try:
        return CoordinatorConfig.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as problem:
        raise all_problems(problem, places, CoordinatorConfig, HINT) from None
