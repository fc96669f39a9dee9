"""The configuration of a coordinator, which is a file of its own. Rules take its sections as they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from edged.config.loader import read_yaml
from edged.config.mqtt import MqttConfig
from edged.config.problems import all_problems
from edged.config.serving import LogConfig
from edged.config.training import DaySpan, minutes
from edged.config.values import Count, Duration, FilePath, Name, Section, Share, Size
from edged.domain.federated.audience import Audience, GroupRule, Hours
from edged.domain.federated.masking import FEWEST
from edged.domain.federated.settings import Encoding, MaskSettings, RoundSettings
from edged.errors import ConfigError

HINT = "docs/fleet-reference.md lists every key"
IN_FLIGHT = 256
"""Messages that the broker may hand over before the first is durable: what bounds the memory."""
MOST_REPLIES = 1000
"""Devices of a round: a strategy holds the replies of all of them, 280 MB for 1,000 of 17,000 parameters."""

_ADAPTIVE = ("eta", "eta_l", "tau")
STRATEGIES: dict[str, tuple[str, ...]] = {
    "FedAvg": (),
    "FedProx": (),  # what devices do differently is train.proximal
    "FedAvgM": ("server_learning_rate", "server_momentum"),
    "FedAdagrad": _ADAPTIVE,
    "FedAdam": (*_ADAPTIVE, "beta_1", "beta_2"),
    "FedYogi": (*_ADAPTIVE, "beta_1", "beta_2"),
    "FedMedian": (),
    "FedTrimmedAvg": ("beta",),
    "Krum": ("num_malicious_nodes",),
    "MultiKrum": ("num_malicious_nodes", "num_nodes_to_select"),
    "Bulyan": ("num_malicious_nodes",),
}
"""By class, the arguments that the configuration may give."""


class RoundSection(Section):
    """How many devices make a round, and how long it takes."""

    kind: Literal["training", "statistics"] = Field(
        "training", description="statistics: devices send sums, from which the last layer is solved for"
    )
    devices: Count = Field(10, description="updates that a round wants")
    over: float = Field(1.25, ge=1, le=10, description="how many times as many devices are asked")
    quorum: Share = Field(0.6, description="share of `devices` with which it closes at its deadline")
    deadline: Duration = Field(3600.0, gt=0, description="from opening to closing")
    extensions: int = Field(
        2, ge=0, le=1000, description="how often a round without a quorum goes on for as long again"
    )
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
    max_age: Duration = Field(3600.0, gt=0, description="since it was last heard")
    idle: bool = Field(True, description="it has nothing to train for itself")
    charged: bool = Field(True, description="it has power")
    cool: bool = Field(True, description="it is not hot")


class TrainSection(Section):
    """How devices train in a round."""

    epochs: int | None = Field(None, ge=1, description="passes over the device's data; 1 without `steps`")
    steps: int | None = Field(None, ge=1, description="steps, instead of epochs")
    learning_rate: float = Field(1e-3, gt=0, description="of the device's optimizer")
    batch_size: int = Field(32, ge=1, le=65536, description="rows of a step")
    proximal: float = Field(0.0, ge=0, description="mu of FedProx: how strongly devices are held to the base")
    dynamic: float = Field(
        0.0,
        ge=0,
        description="alpha of FedDyn: devices whose data differ come closer to one training on all data",
    )
    clip_norm: float = Field(1.0, gt=0, description="largest L2 norm of an update")
    noise: float = Field(0.0, ge=0, description="Gaussian noise on an update, in units of clip_norm")
    own_noise: float = Field(
        0.0, ge=0, description="the most that devices may add which insist on more noise than that"
    )
    dtype: Literal["int8", "float16", "float32"] = Field("int8", description="numbers of an update")
    step: float = Field(
        0.0, ge=0, le=4, description="step of int8 values, as in weights.step; 0 is the finest"
    )
    personal: list[str] = Field([], description="patterns of parameters that never leave a device")

    @model_validator(mode="after")
    def _one_of_both(self) -> TrainSection:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give either epochs or steps")
        return self


class AdmitSection(Section):
    """What is plausible in an update; all else is refused."""

    max_samples: Count = Field(10_000, description="that a device counts for at most, however many it has")
    max_norm: float = Field(3.0, ge=1, description="norms up to so many times clip_norm are clipped")
    staleness: int = Field(
        2, ge=0, le=100, description="rounds after its own in which an update still counts"
    )


class ReduceSection(Section):
    """How updates become one model."""

    how: Literal["mean", "trimmed_mean", "median", "flower"] = Field("mean", description="of all updates")
    trim: float = Field(0.1, ge=0, lt=0.5, description="share cut at either end by trimmed_mean")
    opposed: Literal["count", "leave_out"] = Field(
        "count",
        description="devices that have pointed against the others so far, with trimmed_mean and median",
    )
    discount: float = Field(0.5, ge=0, description="late updates count (1 + rounds late) ** -discount")
    rate: float = Field(1.0, gt=0, le=10, description="of the aggregate that the model takes")
    strategy: str = Field("", description="with `how: flower`, a class of flwr.serverapp.strategy")
    options: dict[str, float] = Field({}, description="arguments of that class")

    @model_validator(mode="after")
    def _known(self) -> ReduceSection:
        if self.opposed == "leave_out" and self.how not in ("trimmed_mean", "median"):
            raise ValueError("opposed: leave_out is for trimmed_mean and median")
        if self.how != "flower":
            if self.strategy or self.options:
                raise ValueError("strategy and options are for `how: flower`")
        elif problem := _problem_of(self.strategy, self.options):
            raise ValueError(problem)
        return self


def _problem_of(strategy: str, options: Mapping[str, float]) -> str:
    """What is wrong with a strategy and its options, in words; empty when nothing is.

    >>> _problem_of("FedAdam", {"eta": 0.1}), _problem_of("FedAvg", {"beta": 0.1})
    ('', 'FedAvg has no option beta')
    """
    if strategy not in STRATEGIES:
        return f"{strategy or 'no name'} is none of the strategies {', '.join(STRATEGIES)}"
    wrong = [name for name in options if name not in STRATEGIES[strategy]]
    return f"{strategy} has no option {wrong[0]}" if wrong else ""


class StatisticsSection(Section):
    """How the last layer is solved for, with `round.kind: statistics`; of two experts that of each."""

    weight: str = Field("", description="parameter with its weights; the last layer's by name when absent")
    bias: str = Field("", description="parameter with its bias")
    units: int | None = Field(
        None, ge=1, le=512, description="inputs of a layer that count at most; null: as many as 200 kB allow"
    )
    penalty: float = Field(10.0, gt=0, description="of the squared weights of standardised inputs")
    sharpness: float = Field(
        10.0, gt=0, description="what scores of classes, from 0 to 1, are multiplied with to be logits"
    )

    @model_validator(mode="after")
    def _both(self) -> StatisticsSection:
        if bool(self.weight) != bool(self.bias):
            raise ValueError("name both weight and bias, or none of them")
        return self


class MasksSection(Section):
    """Whether updates come under masks, so that the coordinator knows only their sum."""

    enabled: bool = Field(False, description="devices mask what they send; only its sum is known")
    wait: Duration = Field(
        60.0, gt=0, description="for keys of devices, for their shares, and for their answers, each at most"
    )


class GateSection(Section):
    """When the model of a round becomes the fleet's; numbers are in units of the median loss before."""

    evaluate: bool = Field(True, description="false: always, and at once")
    mean: float = Field(0.02, description="by so much devices may lose in the mean")
    worst: float = Field(0.25, description="and the worst of them")
    share: float = Field(0.1, ge=0, lt=0.5, description="of devices that are cut, and may be worse than that")
    reports: Share = Field(0.5, description="of the devices asked that must report")
    stages: list[Share] = Field(
        [0.1, 1.0], min_length=1, description="shares that try it, one after the other"
    )
    least: Count = Field(5, description="devices of a share at least, as far as there are so many")
    wait: Duration = Field(600.0, gt=0, description="for the reports of a share, at most")

    @model_validator(mode="after")
    def _growing(self) -> GateSection:
        if any(a >= b for a, b in zip(self.stages, self.stages[1:], strict=False)) or self.stages[-1] != 1.0:
            raise ValueError("stages grow, and the last is 1.0")
        return self


class GroupSection(Section):
    """Devices that form a group: all that is given must fit."""

    devices: list[str] = Field([], description='patterns of device names, any of them, such as ["press-*"]')
    tags: list[Name] = Field([], description="tags that a device must have, all of them (`fleet.tags` there)")
    arch: str = Field("", description="pattern of its processor, such as aarch64")
    version: str = Field("", description='pattern of its version of edged, such as "0.4.*"')
    own_model: bool = Field(False, description="it has rounds and a model of its own, begun from the fleet's")

    @model_validator(mode="after")
    def _of_somebody(self) -> GroupSection:
        if not (self.devices or self.tags or self.arch or self.version):
            raise ValueError("a group of all devices is the fleet: give devices, tags, arch or version")
        return self

    def rule(self, name: str) -> GroupRule:
        """The rule as devices receive it."""
        return GroupRule(name, tuple(self.devices), tuple(self.tags), self.arch, self.version)


class RolloutSection(Section):
    """How the model of a round spreads, stage by stage; every device that is there tries it."""

    canaries: str = Field("", description="name of the group that tries each model first")
    rate: float | None = Field(
        None, gt=0, description="devices an hour that get the model; null: a stage at once"
    )
    abort: Share | None = Field(
        None,
        description="share of devices for which it is worse, or which send no report, beyond which it ends at"
        " once; null: each stage decides by the gate alone",
    )
    approval: Literal["never", "first", "each"] = Field(
        "never", description="after which stages it waits for `edged fleet rollout approve`"
    )
    hours: DaySpan | None = Field(
        None, description="when devices train and fetch, in their own zone, such as 22:00-06:00; null: always"
    )
    device_bytes: Size | None = Field(None, gt=0, description="that a device fetches and sends a day")
    fleet_bytes: Size | None = Field(None, gt=0, description="that all devices together fetch and send a day")

    @property
    def tried(self) -> str:
        """The first key here that has a meaning only where devices try models; empty for none."""
        keys = ("canaries", "rate", "abort", "fleet_bytes")
        found = [key for key in keys if getattr(self, key)] + ["approval"] * (self.approval != "never")
        return found[0] if found else ""


class MetricsSection(Section):
    """Where Prometheus finds the metrics of the coordinator."""

    listen: str | None = Field(
        None, description="address and port on this machine, such as 127.0.0.1:9464; null: off"
    )

    @field_validator("listen")
    @classmethod
    def _here(cls, value: str | None) -> str | None:
        from edged.fleet.page.server import loopback

        try:
            if value is not None:
                loopback(value)
        except ConfigError:
            raise ValueError(
                f"{value!r} is no address and port of this machine: write 127.0.0.1:9464, and let a proxy"
                " with TLS answer others"
            ) from None
        return value


class CoordinatorConfig(Section):
    """The whole configuration of a coordinator."""

    fleet: Name = Field(description="name of the fleet: a level of every topic, edged/fl/<fleet>/...")
    model: FilePath = Field(description="what the first round begins with: a bundle, or a safetensors file")
    bundle: str = Field("", description="fingerprint of the devices' bundle, where `model` is not one itself")
    dir: FilePath = Field(Path("fleet"), description="where everything is kept that must survive a power cut")
    key: FilePath | None = Field(
        None, description="private key (made by `edged keys new`) that signs rounds and receipts"
    )
    keep: int = Field(8, ge=2, le=1000, description="models that are kept")
    mqtt: MqttConfig = MqttConfig()
    round: RoundSection = RoundSection()
    choose: ChooseSection = ChooseSection()
    train: TrainSection = TrainSection()
    admit: AdmitSection = AdmitSection()
    reduce: ReduceSection = ReduceSection()
    statistics: StatisticsSection = StatisticsSection()
    masks: MasksSection = MasksSection()
    gate: GateSection = GateSection()
    groups: dict[Name, GroupSection] = Field({}, max_length=100, description="groups of devices by name")
    rollout: RolloutSection | None = Field(
        None, description="how models spread; without it a stage of `gate` is told at once"
    )
    metrics: MetricsSection = MetricsSection()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _flower(self) -> CoordinatorConfig:
        if self.reduce.how == "flower" and self.round.devices > MOST_REPLIES:
            raise ValueError(
                f"a strategy of Flower holds all replies in memory: round.devices is at most {MOST_REPLIES}"
                " with reduce.how flower; mean, trimmed_mean and median take any number"
            )
        if self.reduce.how == "flower" and self.train.dynamic:
            raise ValueError(
                "train.dynamic needs a reduce.how of edged's own; Flower's strategies know nothing of it"
            )
        return self

    @model_validator(mode="after")
    def _sums(self) -> CoordinatorConfig:
        """Refuse what would have no effect on sums."""
        if self.round.kind == "training":
            return self
        train, reduce = self.train, self.reduce
        wrong = {
            "train.noise": train.noise, "train.own_noise": train.own_noise, "train.personal": train.personal,
            "train.dynamic": train.dynamic, "train.proximal": train.proximal,
            "reduce.how": reduce.how != "mean", "reduce.rate": reduce.rate != 1.0,
        }  # fmt: skip
        if found := [name for name, value in wrong.items() if value]:
            raise ValueError(
                f"{found[0]} is for rounds of training, and has no effect on sums: remove it, or set"
                " round.kind to training"
            )
        return self

    @model_validator(mode="after")
    def _only_a_sum(self) -> CoordinatorConfig:
        """Refuse what needs to see the update of one device, where only their sum is known."""
        reduce = self.reduce
        if not self.masks.enabled:
            return self
        if reduce.how != "mean":
            raise ValueError(
                f"reduce.how: {reduce.how} looks at each update, and under masks only their sum is known:"
                " take mean, or set masks.enabled to false"
            )
        if self.train.dynamic:
            raise ValueError("train.dynamic does not go with masks.enabled: remove one of them")
        if self.round.least < FEWEST:
            raise ValueError(
                f"{self.round.least} devices are a quorum, and a sum of fewer than {FEWEST} hides no device:"
                " raise round.devices or round.quorum"
            )
        return self

    @model_validator(mode="after")
    def _stages_for_a_rollout(self) -> CoordinatorConfig:
        if self.rollout is not None and (problem := self._problem_of_rollout(self.rollout)):
            raise ValueError(problem)
        return self

    def _problem_of_rollout(self, rollout: RolloutSection) -> str:
        canaries = rollout.canaries
        if canaries and canaries not in self.groups:
            return f"rollout.canaries: no group {canaries} in groups ({', '.join(self.groups) or 'none'})"
        if canaries and self.groups[canaries].own_model:
            return f"rollout.canaries: group {canaries} has a model of its own: set own_model to false"
        if rollout.tried and not self.gate.evaluate:
            return f"rollout.{rollout.tried} needs devices that try models: set gate.evaluate to true"
        if rollout.approval != "never" and not canaries and len(self.gate.stages) < 2:
            return "rollout.approval needs a stage before the last: name canaries, or more gate.stages"
        if rollout.fleet_bytes and self.choose.everyone:
            return "rollout.fleet_bytes needs rounds that choose devices: set choose.everyone to false"
        return ""

    def audience(self, group: str = "") -> Audience:
        """Whom the rounds of a group are for; those of the fleet when it is empty."""
        rollout = self.rollout or RolloutSection()
        own = tuple(section.rule(name) for name, section in self.groups.items() if section.own_model)
        hours = None if rollout.hours is None else Hours(*minutes(rollout.hours))
        return Audience(group, own, hours, rollout.device_bytes or 0)

    @property
    def settings(self) -> RoundSettings:
        """Training settings as devices receive them."""
        train, masks = self.train, None
        encoding = Encoding(train.dtype, train.step)
        if self.masks.enabled:
            encoding, masks = Encoding("float32"), MaskSettings(self.admit.max_samples)
        epochs = 1 if train.steps is None and train.epochs is None else train.epochs
        return RoundSettings(
            epochs, train.steps, train.learning_rate, train.batch_size, train.proximal, train.clip_norm,
            train.noise, encoding, tuple(train.personal), self.gate.evaluate,
            train.dynamic, train.own_noise, masks=masks,
        )  # fmt: skip

    @property
    def stages(self) -> list[float | str]:
        """Shares of devices, or a group of them, that try a model; none: it is the fleet's at once."""
        canaries = [self.rollout.canaries] if self.rollout is not None and self.rollout.canaries else []
        return [*canaries, *self.gate.stages] if self.gate.evaluate else []

    @property
    def broker(self) -> MqttConfig:
        """The section `mqtt`, with few messages in flight."""
        return self.mqtt.with_constants(receive_maximum=IN_FLIGHT)


def load(path: Path) -> CoordinatorConfig:
    """Read and validate the file at `path`; relative paths are relative to it.

    Raises ConfigError with file, line and key of the first problem and what would be right.
    """
    root, data = read_yaml(
        path, "the fleet's configuration", "begin with `fleet: plant` and `model: ./bundle`"
    )
    data.setdefault("dir", "fleet")
    try:
        return CoordinatorConfig.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as problem:
        raise all_problems(problem, path, root, {}, CoordinatorConfig, HINT) from None
