"""Sections `model` and `training`: what is trained, when, how, and what forbids it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from edged.config.values import Cpu, Cron, Duration, FilePath, Providers, Section, Share, Size
from edged.domain.training.guards import GuardRules
from edged.domain.training.optimizers import OPTIMIZERS, OPTIONS, misfit

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class OptimizerConfig(Section):
    """The optimizer of the network that is built without a bundle; `optimizer: sgd` is short for its name."""

    name: Literal["adamw", "adamw_pytorch", "sgd", "sgd_momentum"] = Field(
        "adamw", description="of the optimizer (docs/losses.md)"
    )
    weight_decay: float | None = Field(
        None,
        ge=0,
        le=100,
        description="a step takes this times the learning rate off each weight; without it 0.15 for classes"
        " from an mlp by AdamW, else the optimizer's own",
    )
    clip_norm: float = Field(0.0, ge=0, description="largest gradient norm; 0 for any")
    beta1: float | None = Field(None, ge=0, lt=1, description="of both forms of AdamW; 0.9 when absent")
    beta2: float | None = Field(None, gt=0, lt=1, description="of both forms of AdamW; 0.999 when absent")
    epsilon: float | None = Field(
        None, gt=0, description="of AdamW; 1e-6, and 1e-8 for adamw_pytorch, when absent"
    )
    bias_correction: bool | None = Field(None, description="of adamw; true when absent")
    momentum: float | None = Field(None, ge=0, lt=1, description="of sgd_momentum; 0.9 when absent")
    dampening: float | None = Field(None, ge=0, lt=1, description="of sgd_momentum; 0 when absent")
    nesterov: bool | None = Field(
        None, description="Nesterov's form of sgd_momentum, which takes no dampening; false when absent"
    )

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
    """The bundle, or how to make one when none is given."""

    bundle: FilePath | None = Field(
        None,
        description="directory made by `edged artifacts build`, or the file that `pack` makes of it; built"
        " when absent",
    )
    keys: list[FilePath] = Field(
        [],
        description="public keys (made by `edged keys new`); with them the bundle must be signed by one"
        " of them, and whole",
    )
    label_smoothing: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="of the loss of a network that is built for classes without a bundle: a label counts as"
        " its class with all but this, which all classes share; without it 0.1 for experts or an mlp, else 0",
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    network: Literal["mlp", "cnn1d", "gru"] | None = Field(
        None,
        description="kind of the network that is built without a bundle; when absent, for windows a cnn1d,"
        " for classes two experts, one of which sees samples beside earlier ones, else an mlp; a"
        " reconstruction's is an autoencoder",
    )
    head: Literal["ridge", "none"] | None = Field(
        None,
        description="a closed-form classifier that learns from each label at once and is mixed with the"
        " network; when absent, beside the two experts that are built without a bundle",
    )
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] | None = Field(
        None,
        description="hidden layers of the network that is built without a bundle; without them one of 256,"
        " of two experts half as wide in the second,"
        " 32 and 32 filters (cnn1d), 64 units (gru), or 64 and a code of 32 for a reconstruction",
    )
    per: Literal["stream", "key"] = Field(
        "stream",
        description="key: a key with enough labels gets its own model, which starts from the stream's",
    )
    own_after: int = Field(
        200,
        ge=20,
        description="labels after which a key gets its own model, of at least two classes and two of each",
    )
    keep: int = Field(
        100,
        ge=1,
        description="models of keys in memory; those not used for longest are unloaded, and loaded again when"
        " a sample of their key comes, which the stream's model answers meanwhile",
    )

    @model_validator(mode="after")
    def _something_signed(self) -> ModelConfig:
        if self.keys and self.bundle is None:
            raise ValueError("keys are for a bundle that was signed elsewhere: name it in bundle")
        return self


_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)")


def _span(value: str) -> str:
    found = _SPAN.fullmatch(value.strip())
    if found is None or found.group(1, 2) == found.group(3, 4):
        raise ValueError(f'{value!r} is no span of the day: write it like "22:00-06:00"')
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
    """What holds training back. A command trains in spite of it."""

    quiet: DaySpan | None = Field(
        None, description='hours of local time without training, such as "22:00-06:00"'
    )
    max_temperature: float | None = Field(
        90.0, description="no run starts while the hottest thermal zone is above, in °C; null: unlimited"
    )
    wait_throttled: bool = Field(
        True,
        description="no run starts, and a run slows down, while the board is throttled or its supply is low",
    )
    mains_only: bool = Field(False, description="no run starts on battery")
    min_battery: float | None = Field(
        None, ge=0, le=100, description="no run starts on a battery with less charge, in percent"
    )
    max_load: float | None = Field(
        None, gt=0, description="no run starts while the load over one minute, per CPU, is above"
    )
    max_write_rate: Size | None = Field(
        4096,
        ge=1,
        description="bytes a second that training writes to flash in the long run (4 KiB: 354 MB a day),"
        " beyond the first 4 MiB after a start: runs wait for it, but for those after a drift or a fall of"
        " quality; null for any",
    )
    serving_p99: Duration | None = Field(
        None,
        gt=0,
        description="training slows down, and in the end stops, while 1 % of predictions take longer",
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
    """When and how to learn."""

    engine: Literal["auto", "native", "portable"] = Field(
        "auto", description="what executes training steps; auto takes the one measured faster here"
    )
    provider: Providers = Field(
        ["CPUExecutionProvider"],
        description="what the portable engine runs on, by onnxruntime's names, the preferred first",
    )
    enabled: bool = Field(True, description="false: serve and collect only, train on command")
    every: Duration | None = Field(6 * 3600.0, description="interval between scheduled runs; null for none")
    cron: Cron | None = Field(None, description="crontab fields for scheduled runs, instead of every")
    min_new_samples: int = Field(
        40,
        ge=1,
        description="scheduled runs with fewer new labelled samples are skipped; 400 for a reconstruction"
        " when absent",
    )
    new_labels: int | None = Field(
        None,
        ge=0,
        description="train as soon as this many labels are new; min_new_samples when absent, 0 for never",
    )
    scarce_labels: bool = Field(
        True,
        description="where few samples get labels: half of new_labels start a run once four times as many"
        " samples have come, and a run makes up to four times the steps",
    )
    cooldown: Duration = Field(0.0, description="shortest pause between the end of a run and the next")
    batch: int = Field(64, ge=1, le=65536, description="samples in one training batch")
    steps: int = Field(50, ge=1, description="optimizer steps for each `steps_per` new samples")
    steps_per: int = Field(100, ge=1, description="see steps")
    max_steps: int = Field(5000, ge=1, description="upper bound of steps in one run")
    accumulate: int = Field(1, ge=1, description="batches whose gradients are added up for one update")
    learning_rate: float = Field(1e-3, gt=0, lt=10, description="of the optimizer")
    schedule: Literal["constant", "linear"] = Field(
        "constant", description="learning rate within a run: constant, or falling to 0 at its end"
    )
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    window: int = Field(20_000, ge=1, description="new samples read for one run at most; the newest are kept")
    replay: int = Field(
        5000, ge=0, description="size of the replay memory in samples, drawn evenly from all that was learned"
    )
    recent: int = Field(
        2000,
        ge=0,
        description="the newest samples learned before, a short memory beside it; no larger than replay, and"
        " no older than 1.5 times as many where few samples get labels; a drift shortens it to 200",
    )
    new_share: Share = Field(
        0.25,
        description="share of new samples in a batch; the rest is remembered. When absent, runs of a stream"
        " of classes take less while fewer than 15 % of its answers are wrong, 0.075 when none is",
    )
    recent_share: Share = Field(0.25, description="share of the short memory in a batch")
    average: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="share of the long average of the weights that is left after a step; it is exported while"
        " it does better on new labels than the short one (0.97), which else is; 0 exports the weights"
        " themselves",
    )
    balance: bool = Field(
        False,
        description="keep as many samples of each class in the replay memory as there are, up to equal"
        " shares: better on rare classes, a little worse in all",
    )
    guide: Literal["none", "l2sp", "ewc", "distill"] = Field(
        "none",
        description="holds a run near the champion: to its weights (l2sp), the more the more they matter"
        " (ewc), or to its answers (distill); the portable engine only",
    )
    guide_weight: float = Field(
        0.01, ge=0, lt=1e6, description="how much the guide counts beside the labels; about 1 for distill"
    )
    challenger: Literal["auto", "off"] = Field(
        "off",
        description="auto: after a severe drift a fresh start learns beside, from new labels alone, and takes"
        " over once it is better beyond chance; not beside a guide, and not where samples label themselves",
    )
    challenger_rise: float = Field(
        0.5, gt=0, description="a drift is severe when live errors are larger than before by this share"
    )
    key_share: Share = Field(
        0.5,
        description="of a batch, what one key may fill on average, where there are keys enough; 1 for all",
    )
    restandardise: bool = Field(True, description="let the input standardisation follow slow drift")
    half_life: int = Field(
        1000, ge=1, description="half-life of the running standardisation, in labelled samples"
    )
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints within a run")
    keep_checkpoints: int = Field(3, ge=1, description="generations of checkpoints that are kept")
    resident: Duration = Field(
        60.0, description="how long an idle trainer process stays; 0 ends it after each run"
    )
    timeout: Duration = Field(600.0, description="a run without progress for this long is stopped", gt=0)
    retry_after: Duration = Field(
        10.0, gt=0, description="pause after a failed run; doubled by each further failure, at most an hour"
    )
    max_failures: int = Field(
        3, ge=0, description="failed runs in a row that pause training until a command `train`; 0 for none"
    )
    threads: int = Field(
        1,
        ge=1,
        le=256,
        description="threads of one training step, at most, and no more than there are processors for;"
        " networks of this size gain nothing from a second one",
    )
    nice: int = Field(10, ge=0, le=19, description="lowers the trainer's priority")
    scheduling: Literal["normal", "idle"] = Field(
        "normal",
        description="idle lets the trainer run only where no other process wants the processor: answers do"
        " not wait for it, and on a machine that is always busy it hardly gets on",
    )
    affinity: Annotated[list[Cpu], Field(min_length=1)] | Literal["all"] | None = Field(
        None,
        description="CPUs the trainer may use; when absent the small ones where there are small and big ones,"
        " else all",
    )
    memory_limit: Size | None = Field(None, description="address space of the trainer", ge=64 * 1024**2)
    memory_max: Size | None = Field(
        None,
        description="memory of the trainer where systemd lends edged its control group; half of the machine's"
        " when absent",
        ge=64 * 1024**2,
    )
    seed: int = Field(0, ge=0, description="everything random in training follows from it")

    @model_validator(mode="after")
    def _combinations(self) -> TrainingConfig:
        if self.cron is not None and "every" in self.model_fields_set and self.every is not None:
            raise ValueError("every and cron exclude each other: keep one")
        if self.replay == 0 and "new_share" in self.model_fields_set and self.new_share < 1:
            raise ValueError("new_share below 1 needs a replay memory: set replay above 0")
        if self.guide != "none" and self.engine == "native":
            raise ValueError(f"guide {self.guide} is known to the portable engine only: set engine: portable")
        if "recent_share" in self.model_fields_set and self.new_share + self.recent_share > 1:
            raise ValueError("new_share and recent_share are parts of one batch: together at most 1")
        return self
