"""The configuration's sections, checked by pydantic, with defaults that work.

`edged.configfile` reads them from YAML.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from edged.domain.schema import Schema

_SIZES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
}
_SPANS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LARGEST_QUANTITY = 2**53
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*$")


def parse_size(value: Any) -> int:
    """Bytes from `512MiB`, `1.5 GB` or a plain number.

    >>> parse_size("2KiB")
    2048
    """
    return int(_quantity(value, _SIZES, "a size such as 512MiB"))


def parse_duration(value: Any) -> float:
    """Seconds from `6h`, `90s`, `250ms` or a plain number.

    >>> parse_duration("1.5h")
    5400.0
    """
    return float(_quantity(value, _SPANS | {"": 1.0}, "a duration such as 6h, 15m or 30s"))


def _quantity(value: Any, units: dict[str, Any], example: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number, unit = value, ""
    else:
        match = _QUANTITY.match(str(value))
        if match is None or match[2].lower() not in units:
            raise ValueError(f"expected {example}, got {str(value)[:40]!r}")
        number, unit = float(match[1]), match[2].lower()
    if not 0 <= number <= LARGEST_QUANTITY:
        raise ValueError(f"expected {example}, got {str(value)[:40]!r}")
    return number * float(units[unit])


def _crontab(value: str) -> str:
    from apscheduler.triggers.cron import CronTrigger

    try:
        CronTrigger.from_crontab(value)
    except ValueError as problem:
        raise ValueError(f"expected five crontab fields such as '0 3 * * *': {problem}") from problem
    return value


def _topic_filter(value: str) -> str:
    levels = value.split("/")
    if not value or "#" in levels[:-1] or any(len(level) > 1 and set(level) & set("#+") for level in levels):
        raise ValueError(f"{value!r} is no topic filter: `#` may only be the last level, `+` a whole level")
    return value


def _unique(names: list[Any]) -> list[Any]:
    if len(set(names)) != len(names):
        raise ValueError("a name is there twice")
    return names


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _number_or_names(value: Any) -> Any:
    names = (
        isinstance(value, list)
        and value
        and all(isinstance(item, str | int) and not isinstance(item, bool) for item in value)
    )
    if names:
        return _unique(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, list) and any(isinstance(item, bool) for item in value):
        raise ValueError("YAML reads yes, no, on and off as true and false: put the names in quotes")
    raise ValueError("expected a number or a list of names")


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Cron = Annotated[str, AfterValidator(_crontab)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Filter = Annotated[str, AfterValidator(_topic_filter)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_unique)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Cpu = Annotated[int, Field(ge=0, lt=4096)]
Provider = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+ExecutionProvider$")]
Providers = Annotated[list[Provider], Field(min_length=1), BeforeValidator(_listed), AfterValidator(_unique)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False, coerce_numbers_to_str=True
    )


class DeviceConfig(Section):
    """Who this device is."""

    id: Name = Field(description="name of this device: part of every topic and of the client id")


class TlsConfig(Section):
    """Transport security; a section that is present turns TLS on."""

    ca_file: Path | None = Field(None, description="CA certificates; the system's when absent")
    cert_file: Path | None = Field(None, description="client certificate")
    key_file: Path | None = Field(None, description="key of the client certificate")
    insecure: bool = Field(False, description="do not verify the broker's host name (testing only)")

    @model_validator(mode="after")
    def _pair(self) -> TlsConfig:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: give both or neither")
        return self


class MqttConfig(Section):
    """The broker and how to speak with it."""

    host: str = Field("localhost", min_length=1, description="name or address of the broker")
    port: int = Field(1883, ge=1, le=65535, description="port of the broker; 8883 is usual with TLS")
    protocol: Literal["5", "3.1.1"] = Field("5", description="MQTT version")
    username: str | None = Field(None, description="user name at the broker")
    password_file: Path | None = Field(None, description="file whose first line is the password")
    tls: TlsConfig | None = None
    keepalive: Duration = Field(30.0, description="seconds between pings", gt=0, le=65535)
    root: str = Field("edged", description="first level of all topics of edged", pattern=r"^[^#+\s]+$")
    client_id: str | None = Field(None, description="edged-<device id> when absent")
    session_expiry: Duration = Field(7 * 86400.0, description="how long the broker keeps messages for us")
    receive_maximum: int = Field(
        2000, ge=1, le=65535, description="unacknowledged messages in flight (MQTT 5)"
    )
    reconnect_max: Duration = Field(60.0, description="longest pause between two attempts to connect", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _protocol_as_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("protocol"), int | float):
            data = {**data, "protocol": f"{data['protocol']:g}"}
        return data


class StreamConfig(Section):
    """Where samples come from and what they mean."""

    topic: Filter | Annotated[list[Filter], Field(min_length=1)] = Field(
        "sensors/#", description="topic filter(s), wildcards allowed"
    )
    codec: Literal["json"] = Field("json", description="how the payload is written")
    features: Annotated[Count | Names, BeforeValidator(_number_or_names)] = Field(
        description="a number n: the field `x` is an array of n numbers; or JSON paths in model input order"
    )
    task: Literal["classify", "regress", "reconstruct", "forecast"] | None = Field(
        None, description="classify when classes are given; else taken from target, else regress"
    )
    classes: (
        Annotated[
            Annotated[int, Field(ge=2)] | Annotated[Names, Field(min_length=2)],
            BeforeValidator(_number_or_names),
        ]
        | None
    ) = Field(None, description="their number or names, in model output order")
    targets: int = Field(1, ge=1, description="width of a regression target")
    label: str | None = Field(None, description="JSON path of the label in the sample's message")
    label_topic: Filter | None = Field(None, description="topic filter on which labels come by themselves")
    join: Literal["id", "key_time"] = Field("id", description="how a label on label_topic finds its sample")
    join_tolerance: Duration = Field(0.5, description="largest distance of times for join: key_time")
    target: Literal["reconstruct", "forecast"] | None = Field(
        None, description="labels made from the stream itself"
    )
    forecast: Annotated[list[int | str], Field(min_length=1), AfterValidator(_unique)] | None = Field(
        None, description="features to forecast (names or positions); the first one when absent"
    )
    horizon: int = Field(1, ge=1, description="how many samples of the same key ahead a forecast looks")
    key: str | None = Field(
        None, description="JSON path of the key, or topic:N for the N-th topic level; whole topic when absent"
    )
    ts: str | None = Field(
        None, description="JSON path of the event time (Unix seconds or milliseconds, or ISO 8601)"
    )
    id: str | None = Field(None, description="JSON path of the sender's sample id")
    max_payload: Size = Field(64 * 1024, description="larger messages are quarantined unparsed", ge=16)

    @model_validator(mode="after")
    def _combinations(self) -> StreamConfig:
        task = self.resolved_task
        if self.task is not None and self.target is not None and self.task != self.target:
            raise ValueError(f"task {self.task} and target {self.target} contradict each other: keep one")
        if task == "classify" and self.classes is None:
            raise ValueError("task classify needs classes: their number or a list of names")
        if task != "classify" and self.classes is not None:
            raise ValueError(f"classes make no sense with task {task}: remove them or set task: classify")
        if task in ("reconstruct", "forecast") and (self.label or self.label_topic):
            raise ValueError(f"task {task} makes its own labels: remove label and label_topic")
        if self.forecast is not None and task != "forecast":
            raise ValueError("forecast is for task forecast only")
        self.forecast_columns  # noqa: B018  a wrong name or position must be refused here, with its key
        return self

    @property
    def resolved_task(self) -> Literal["classify", "regress", "reconstruct", "forecast"]:
        """The task, derived where it is not given."""
        if self.task is not None:
            return self.task
        if self.target is not None:
            return self.target
        return "classify" if self.classes is not None else "regress"

    @property
    def width(self) -> int:
        """Number of features."""
        return self.features if isinstance(self.features, int) else len(self.features)

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names, empty for a positional array."""
        return () if isinstance(self.features, int) else tuple(self.features)

    @property
    def topics(self) -> list[str]:
        """The topic filters as a list."""
        return [self.topic] if isinstance(self.topic, str) else list(self.topic)

    @property
    def forecast_columns(self) -> tuple[int, ...]:
        """Feature positions that a forecast predicts."""
        if self.resolved_task != "forecast":
            return ()
        columns = []
        for item in self.forecast if self.forecast is not None else [0]:
            if isinstance(item, str):
                if item not in self.names:
                    raise ValueError(f"forecast: {item!r} is no feature")
                columns.append(self.names.index(item))
            elif 0 <= item < self.width:
                columns.append(item)
            else:
                raise ValueError(f"forecast: position {item} is outside 0..{self.width - 1}")
        return tuple(columns)

    def to_schema(self) -> Schema:
        """The stream's schema for the domain."""
        task = self.resolved_task
        classes: tuple[str, ...] = ()
        if isinstance(self.classes, int):
            classes = tuple(str(i) for i in range(self.classes))
        elif self.classes is not None:
            classes = tuple(self.classes)
        targets = {"classify": 1, "reconstruct": self.width, "forecast": len(self.forecast_columns)}.get(
            task, self.targets
        )
        return Schema(self.names, self.width, task, classes, targets)


class ModelConfig(Section):
    """The bundle, or how to make one when none is given."""

    bundle: Path | None = Field(
        None, description="directory made by `edged artifacts build`; built when absent"
    )
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] = Field(
        [64, 32], description="hidden layers of the network that is built without a bundle"
    )


class TrainingConfig(Section):
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
        100, ge=1, description="scheduled runs with fewer new labelled samples are skipped"
    )
    new_labels: int | None = Field(
        None,
        ge=0,
        description="train as soon as this many labels are new; min_new_samples when absent, 0 for never",
    )
    cooldown: Duration = Field(0.0, description="shortest pause between the end of a run and the next")
    batch: int = Field(64, ge=1, le=65536, description="samples in one training batch")
    steps: int = Field(50, ge=1, description="optimizer steps for each `steps_per` new samples")
    steps_per: int = Field(100, ge=1, description="see steps")
    max_steps: int = Field(2000, ge=1, description="upper bound of steps in one run")
    accumulate: int = Field(1, ge=1, description="batches whose gradients are added up for one update")
    learning_rate: float = Field(1e-3, gt=0, lt=10, description="of the optimizer")
    schedule: Literal["constant", "linear"] = Field(
        "constant", description="learning rate within a run: constant, or falling to 0 at its end"
    )
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    window: int = Field(20_000, ge=1, description="new samples read for one run at most; the newest are kept")
    replay: int = Field(5000, ge=0, description="size of the replay memory in samples")
    new_share: Share = Field(0.25, description="share of new samples in a batch; the rest is replayed")
    restandardise: bool = Field(True, description="let the input standardisation follow slow drift")
    half_life: int = Field(1000, ge=1, description="half-life of the running standardisation, in samples")
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints within a run")
    keep_checkpoints: int = Field(3, ge=1, description="generations of checkpoints that are kept")
    resident: Duration = Field(
        60.0, description="how long an idle trainer process stays; 0 ends it after each run"
    )
    timeout: Duration = Field(3600.0, description="a run without progress for this long is stopped", gt=0)
    threads: int = Field(1, ge=1, le=256, description="threads of one training step")
    nice: int = Field(10, ge=0, le=19, description="lowers the trainer's priority")
    affinity: Annotated[list[Cpu], Field(min_length=1)] | None = Field(
        None, description="CPUs the trainer may use; all when absent"
    )
    memory_limit: Size | None = Field(None, description="address space of the trainer", ge=64 * 1024**2)
    seed: int = Field(0, ge=0, description="everything random in training follows from it")

    @model_validator(mode="after")
    def _combinations(self) -> TrainingConfig:
        if self.cron is not None and "every" in self.model_fields_set and self.every is not None:
            raise ValueError("every and cron exclude each other: keep one")
        if self.replay == 0 and "new_share" in self.model_fields_set and self.new_share < 1:
            raise ValueError("new_share below 1 needs a replay memory: set replay above 0")
        return self


class GateConfig(Section):
    """When a candidate may become champion, and when it must go again."""

    holdout: Annotated[float, Field(gt=0.0, le=0.5)] = Field(
        0.1, description="share of samples kept for judging, never trained on"
    )
    recent: int = Field(200, ge=1, description="newest labelled holdout samples that decide")
    min_holdout: int = Field(
        20, ge=1, description="with fewer labelled holdout samples a candidate is refused"
    )
    min_gain: float = Field(0.0, description="what the candidate must be better by on the newest holdout")
    max_regret: float = Field(0.02, ge=0.0, description="what it may lose on the older holdout")
    tolerance: float = Field(1e-4, gt=0, description="largest difference to the trainer's own outputs")
    latency: Duration = Field(0.05, gt=0, description="largest time for one prediction of a candidate")
    probation: int = Field(200, ge=0, description="labelled predictions watched after a swap; 0 for none")
    probation_drop: float = Field(0.1, ge=0, description="fall of live quality that rolls back")


class ServingConfig(Section):
    """How predictions are made and published."""

    publish: bool = Field(True, description="publish predictions over MQTT")
    qos: Literal[0, 1] = Field(0, description="of published predictions")
    batch: int = Field(256, ge=1, description="samples in one micro-batch at most")
    threads: int = Field(1, ge=1, le=256, description="threads of one prediction")
    provider: Providers = Field(
        ["CPUExecutionProvider"],
        description="what predictions run on, by onnxruntime's names, the preferred first",
    )
    remember: int = Field(20_000, ge=1, description="predictions kept in memory until their labels come")


class StorageConfig(Section):
    """What survives on this disk."""

    dir: Path = Field(Path("./state"), description="state directory")
    max_bytes: Size = Field(512 * 1024**2, ge=1024**2, description="cap of the sample log")
    max_age: Duration | None = Field(None, description="samples older than this are evicted", gt=0)
    commit_rows: int = Field(1000, ge=1, description="messages in one group commit at most")
    commit_delay: Duration = Field(0.005, ge=0, le=1, description="how long a commit waits for company")
    quarantine_rows: int = Field(1000, ge=1, description="rejected messages that are kept")
    keep_models: int = Field(10, ge=2, description="models kept in the registry")


class ReportConfig(Section):
    """What is reported over MQTT."""

    every: Duration = Field(10.0, gt=0, description="interval of metrics")
    weights: bool = Field(False, description="publish the weights after each promotion")
    chunk: Size = Field(96 * 1024, ge=1024, description="bytes of one message of weights")


class LogConfig(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least level that is logged"
    )
    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: console on a terminal, else JSON"
    )


class Config(Section):
    """The whole configuration of one device."""

    device: DeviceConfig
    mqtt: MqttConfig = MqttConfig()
    stream: StreamConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    gate: GateConfig = GateConfig()
    serving: ServingConfig = ServingConfig()
    storage: StorageConfig = StorageConfig()
    report: ReportConfig = ReportConfig()
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _not_its_own_messages(self) -> Config:
        for name in self.stream.topics:
            first = name.split("/")[0]
            if first == "#" or name in (f"{self.mqtt.root}/#", f"{self.topic_root}/#"):
                raise ValueError(
                    f"stream.topic {name!r} covers what edged itself publishes: name the sensors' own level"
                )
        return self

    @property
    def topic_root(self) -> str:
        """`<root>/<device>`: what every topic of this device begins with."""
        return f"{self.mqtt.root}/{self.device.id}"
