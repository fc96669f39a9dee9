"""Sections `model` and `training`: what is trained, when, how, and what forbids it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PrivateAttr,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from edged.config.values import (
    Constants,
    Duration,
    FilePath,
    Providers,
    Schedule,
    Section,
    Share,
    Size,
    all_defaults,
)
from edged.domain.training.guards import GuardRules
from edged.domain.training.optimizers import OPTIMIZERS, OPTIONS, misfit


class OptimizerConfig(Section):
    """Optimizer of the network that edged builds without a bundle; `optimizer: sgd` gives only the name."""

    name: Literal["adamw", "adamw_pytorch", "sgd", "sgd_momentum"] = Field(
        "adamw", description="name of the optimizer (docs/losses.md)"
    )
    weight_decay: float | None = Field(
        None,
        ge=0,
        le=100,
        description="factor of each weight, times the learning rate, that a step subtracts; when absent,"
        " 0.15 for an mlp with classes and AdamW, else the optimizer's default",
    )
    clip_norm: float = Field(0.0, ge=0, description="maximum gradient norm; 0: unlimited")
    momentum: float | None = Field(None, ge=0, lt=1, description="for sgd_momentum; 0.9 when absent")

    @model_validator(mode="before")
    @classmethod
    def _named_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _fits(self) -> OptimizerConfig:
        if problem := misfit([self.name], self.options):
            raise ValueError(problem)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A mapping, or the name alone."""
        return {"anyOf": [handler(schema), {"enum": list(OPTIMIZERS)}]}

    @property
    def options(self) -> dict[str, float | None]:
        """What the optimizer takes; None stands for its own."""
        return {option: getattr(self, option) for option in OPTIONS}


class ModelConfig(Section):
    """The bundle, or the network to build without one."""

    bundle: FilePath | None = Field(
        None,
        description="directory from `edged artifacts build`, or file from `edged artifacts pack`; edged"
        " builds one when absent",
    )
    keys: list[FilePath] = Field(
        [],
        description="public keys (from `edged keys new`); if set, one of them must have signed the bundle",
    )
    optimizer: OptimizerConfig = all_defaults()
    network: Literal["mlp", "cnn1d", "gru"] | None = Field(
        None,
        description="kind of network that edged builds without a bundle; when absent, cnn1d for windows, two"
        " experts for classes (one also sees context), else mlp; always an autoencoder for a"
        " reconstruction",
    )
    head: Literal["ridge", "none"] | None = Field(
        None,
        description="ridge: mix the network with a closed-form classifier that learns from each label at"
        " once; when absent, only with the two experts that edged builds",
    )
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] | None = Field(
        None,
        description="hidden layers of the network that edged builds without a bundle; when absent, one of"
        " 256 (half as wide in the second of two experts), 32 and 32 filters (cnn1d), 64 units (gru),"
        " or 64 and a code of 32 for a reconstruction",
    )

    @model_validator(mode="after")
    def _something_signed(self) -> ModelConfig:
        if self.keys and self.bundle is None:
            raise ValueError("keys verify a signed bundle: name it in bundle")
        return self


FULL_CHARGE = 100
_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)")


def _span(value: str) -> str:
    found = _SPAN.fullmatch(value.strip())
    if found is None or found.group(1, 2) == found.group(3, 4):
        raise ValueError(f'{value!r} is not a time span: write it like "22:00-06:00"')
    return value


DaySpan = Annotated[str, AfterValidator(_span)]


def _charge(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, int | float) and 0 < value <= FULL_CHARGE):
        return value
    raise ValueError(f"expected true, false or a charge above 0 and up to 100 percent, got {value!r}")


def minutes(span: str) -> tuple[int, int]:
    """Beginning and end of a span of the day, in minutes.

    >>> minutes("22:00-06:30")
    (1320, 390)
    """
    begin, end = (part.split(":") for part in span.split("-"))
    return int(begin[0]) * 60 + int(begin[1]), int(end[0]) * 60 + int(end[1])


@dataclass(frozen=True)
class TrainingConstants:
    """Values of `TrainingConfig` without a key; durations in seconds."""

    seed: int = 0  # of everything random in training
    steps_per: int = 100  # new samples for which a run makes `steps` optimizer steps
    max_steps: int = 5000  # of one run
    recent: int = 2000  # samples of the short memory; a drift shortens it
    recent_share: float = 0.25  # of samples from the short memory in a batch
    key_share: float = 0.5  # of a batch that one key can fill, if there are enough keys
    average: float = 0.97  # decay per step of the averaged weights, which reach some 30 steps back
    half_life: int = 1000  # of the running standardisation, in labelled samples
    checkpoint_every: int = 500  # steps within a run
    resident: float = 60.0  # an idle trainer process stays; 0: it exits after each run
    timeout: float = 600.0  # a run without progress for this long is stopped
    retry_after: float = 10.0  # pause after a failed run; doubles with each further failure, up to an hour
    max_failures: int = 3  # in a row pause training until a command `train`; 0: never


class TrainingConfig(Section, Constants[TrainingConstants]):
    """When and how edged trains."""

    _constants: TrainingConstants = PrivateAttr(TrainingConstants())

    enabled: bool = Field(True, description="false: only serve and collect samples; train on command")
    every: Schedule | None = Field(
        6 * 3600.0,
        description='scheduled runs: the interval, or crontab fields such as "0 3 * * *" in local time; null:'
        " none",
    )
    new_labels: int | None = Field(
        None,
        ge=0,
        description="new labels that start a run, and with which a scheduled run is worth it; 40 when absent,"
        " 400 for a reconstruction. After four times as many samples, half as many labels start a run."
        " 0: only the schedule, with any new label (400 for a reconstruction), and drifts start runs",
    )
    quiet: DaySpan | None = Field(
        None, description='hours of local time without training, such as "22:00-06:00"'
    )
    max_temperature: float | None = Field(
        90.0, description="no run starts while the hottest thermal zone exceeds this, in °C; null: unlimited"
    )
    on_battery: Annotated[bool | float, BeforeValidator(_charge)] = Field(
        True,
        description="whether runs start on battery; a number: only with at least this charge, in percent",
    )
    daily_minutes: float | None = Field(None, ge=0, description="maximum minutes of training per day")
    max_write_rate: Size | None = Field(
        4096,
        ge=1,
        description="average flash bytes per second that training can write (4 KiB: 354 MB per day), after"
        " the first 4 MiB since startup; runs wait for it, except after a drift or a quality drop;"
        " null: unlimited",
    )
    serving_p99: Duration | None = Field(
        None,
        gt=0,
        description="training slows down, and finally stops, while 1 % of predictions take longer",
    )
    engine: Literal["portable", "native"] = Field(
        "portable", description="engine of training steps; native needs onnxruntime-training"
    )
    provider: Providers = Field(
        ["CPUExecutionProvider"],
        description="execution providers of the portable engine, by onnxruntime's names, in order of"
        " preference",
    )
    priority: Literal["low", "idle"] = Field(
        "low",
        description="CPU time of the trainer; low: nice 10; idle: only while no other process needs the CPU:"
        " predictions never wait for it, but on a busy machine it makes little progress",
    )
    memory: Size | None = Field(
        None,
        ge=64 * 1024**2,
        description="maximum memory of the trainer: of its control group if systemd delegates edged's (half"
        " of the machine's when absent), else of its address space (unlimited when absent)",
    )
    batch: int = Field(64, ge=1, le=65536, description="samples in one training batch")
    steps: int = Field(50, ge=1, description="optimizer steps per 100 new samples, up to 5,000 in one run")
    accumulate: int = Field(1, ge=1, description="batches whose gradients are added for one update")
    learning_rate: float = Field(1e-3, gt=0, lt=10, description="learning rate of the optimizer")
    schedule: Literal["constant", "linear"] = Field(
        "constant", description="learning rate within a run: constant, or falling linearly to 0"
    )
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    window: int = Field(
        20_000, ge=1, description="maximum number of new samples in one run; the newest are used"
    )
    replay: int = Field(
        5000, ge=0, description="size of the replay memory: samples drawn evenly from everything learned"
    )
    new_share: Share = Field(
        0.25,
        description="share of new samples in a batch; the rest comes from memory. When absent, runs with"
        " classes use less while fewer than 15 % of predictions are wrong, down to 0.075 at none",
    )

    def guard_rules(self) -> GuardRules:
        """Return the rules of the training guards; the command `train` ignores them."""
        return GuardRules(
            quiet=None if self.quiet is None else minutes(self.quiet),
            max_temperature=self.max_temperature,
            min_battery=None if isinstance(self.on_battery, bool) else self.on_battery,
            mains_only=self.on_battery is False,
            serving_p99=self.serving_p99,
            max_minutes=self.daily_minutes,
            write_rate=self.max_write_rate,
        )

    @model_validator(mode="after")
    def _combinations(self) -> TrainingConfig:
        if self.replay == 0 and "new_share" in self.model_fields_set and self.new_share < 1:
            raise ValueError("new_share below 1 needs a replay memory: set replay above 0")
        return self
