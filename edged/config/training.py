"""Sections `model` and `training`: what is trained, when, how, and what forbids it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from edged.config.values import Cpu, Cron, Duration, FilePath, Providers, Section, Share, Size, all_defaults
from edged.domain.training.guards import GuardRules
from edged.domain.training.optimizers import OPTIMIZERS, OPTIONS, misfit

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


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
    label_smoothing: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="label smoothing of the loss of a network for classes that edged builds: the share of"
        " each label that is spread over all classes; when absent, 0.1 for experts or an mlp, else 0",
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


_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)")


def _span(value: str) -> str:
    found = _SPAN.fullmatch(value.strip())
    if found is None or found.group(1, 2) == found.group(3, 4):
        raise ValueError(f'{value!r} is not a time span: write it like "22:00-06:00"')
    return value


DaySpan = Annotated[str, AfterValidator(_span)]


def minutes(span: str) -> tuple[int, int]:
    """Beginning and end of a span of the day, in minutes.

    >>> minutes("22:00-06:30")
    (1320, 390)
    """
    begin, end = (part.split(":") for part in span.split("-"))
    return int(begin[0]) * 60 + int(begin[1]), int(end[0]) * 60 + int(end[1])


class GuardsConfig(Section):
    """Guards that block training. The command `train` ignores them."""

    quiet: DaySpan | None = Field(
        None, description='hours of local time without training, such as "22:00-06:00"'
    )
    max_temperature: float | None = Field(
        90.0, description="no run starts while the hottest thermal zone exceeds this, in °C; null: unlimited"
    )
    wait_throttled: bool = Field(
        True,
        description="no run starts, and a current run slows down, while the board is throttled or"
        " undervolted",
    )
    mains_only: bool = Field(False, description="no run starts on battery")
    min_battery: float | None = Field(
        None, ge=0, le=100, description="no run starts on battery with less charge than this, in percent"
    )
    max_load: float | None = Field(
        None, gt=0, description="no run starts while the one-minute load per CPU exceeds this"
    )
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
    max_runs_per_day: int | None = Field(None, ge=0, description="maximum runs per day")
    max_minutes_per_day: float | None = Field(None, ge=0, description="maximum minutes of training per day")

    def guard_rules(self) -> GuardRules:
        """Return the rules for the training guards."""
        return GuardRules(
            quiet=None if self.quiet is None else minutes(self.quiet),
            max_temperature=self.max_temperature,
            min_battery=self.min_battery,
            mains_only=self.mains_only,
            max_load=self.max_load,
            serving_p99=self.serving_p99,
            max_runs=self.max_runs_per_day,
            max_minutes=self.max_minutes_per_day,
            throttled=self.wait_throttled,
            write_rate=self.max_write_rate,
        )


class TrainingConfig(GuardsConfig):
    """When and how edged trains."""

    engine: Literal["portable", "native"] = Field(
        "portable", description="engine of training steps; native needs onnxruntime-training"
    )
    provider: Providers = Field(
        ["CPUExecutionProvider"],
        description="execution providers of the portable engine, by onnxruntime's names, in order of"
        " preference",
    )
    enabled: bool = Field(True, description="false: only serve and collect samples; train on command")
    every: Duration | None = Field(
        6 * 3600.0, description="interval between scheduled runs; null: no scheduled runs"
    )
    cron: Cron | None = Field(None, description="crontab fields for scheduled runs, instead of every")
    min_new_samples: int = Field(
        40,
        ge=1,
        description="new labelled samples below which a scheduled run is skipped; 400 for a reconstruction"
        " when absent",
    )
    new_labels: int | None = Field(
        None,
        ge=0,
        description="new labels that start a run; min_new_samples when absent; 0: never",
    )
    scarce_labels: bool = Field(
        True,
        description="if few samples get labels, half of new_labels start a run after four times as many"
        " samples, and a run makes up to four times the steps",
    )
    cooldown: Duration = Field(0.0, description="minimum pause between two runs")
    batch: int = Field(64, ge=1, le=65536, description="samples in one training batch")
    steps: int = Field(50, ge=1, description="optimizer steps per `steps_per` new samples")
    steps_per: int = Field(100, ge=1, description="new samples for which a run makes `steps` optimizer steps")
    max_steps: int = Field(5000, ge=1, description="maximum steps in one run")
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
    recent: int = Field(
        2000,
        ge=0,
        description="size of the short memory: the newest samples learned before, at most replay; with few"
        " labels, none older than 1.5 times as many samples; a drift shortens it to 200",
    )
    new_share: Share = Field(
        0.25,
        description="share of new samples in a batch; the rest comes from memory. When absent, runs with"
        " classes use less while fewer than 15 % of predictions are wrong, down to 0.075 at none",
    )
    recent_share: Share = Field(0.25, description="share of samples from the short memory in a batch")
    average: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="decay per step of the long average of the weights; edged exports it while it is better"
        " on new labels than the short average (0.97), else the short one; 0: exports the weights"
        " themselves",
    )
    key_share: Share = Field(
        0.5,
        description="average share of a batch that one key can fill, if there are enough keys; 1: unlimited",
    )
    restandardise: bool = Field(True, description="let the input standardisation follow slow drift")
    half_life: int = Field(
        1000, ge=1, description="half-life of the running standardisation, in labelled samples"
    )
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints within a run")
    keep_checkpoints: int = Field(3, ge=1, description="number of checkpoint generations to keep")
    resident: Duration = Field(
        60.0, description="how long an idle trainer process stays; 0: it exits after each run"
    )
    timeout: Duration = Field(600.0, description="a run without progress for this long is stopped", gt=0)
    retry_after: Duration = Field(
        10.0, gt=0, description="pause after a failed run; doubles with each further failure, up to an hour"
    )
    max_failures: int = Field(
        3, ge=0, description="failed runs in a row that pause training until a command `train`; 0: never"
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="maximum threads of one training step, limited by the CPUs; small networks gain nothing"
        " from a second one",
    )
    nice: int = Field(10, ge=0, le=19, description="nice value of the trainer")
    scheduling: Literal["normal", "idle"] = Field(
        "normal",
        description="idle: the trainer runs only while no other process needs the CPU; predictions never"
        " wait for it, but on a busy machine it makes little progress",
    )
    affinity: Annotated[list[Cpu], Field(min_length=1)] | Literal["all"] | None = Field(
        None,
        description="CPUs that the trainer uses; when absent, the small ones of a big.LITTLE CPU, else all",
    )
    memory_limit: Size | None = Field(
        None, description="maximum address space of the trainer", ge=64 * 1024**2
    )
    memory_max: Size | None = Field(
        None,
        description="maximum memory of the trainer if systemd delegates edged's control group; half of the"
        " machine's when absent",
        ge=64 * 1024**2,
    )
    seed: int = Field(0, ge=0, description="seed of everything random in training")

    @model_validator(mode="after")
    def _combinations(self) -> TrainingConfig:
        if self.cron is not None and "every" in self.model_fields_set and self.every is not None:
            raise ValueError("every and cron exclude each other: keep one")
        if self.replay == 0 and "new_share" in self.model_fields_set and self.new_share < 1:
            raise ValueError("new_share below 1 needs a replay memory: set replay above 0")
        if "recent_share" in self.model_fields_set and self.new_share + self.recent_share > 1:
            raise ValueError("new_share and recent_share are parts of one batch: together at most 1")
        return self
