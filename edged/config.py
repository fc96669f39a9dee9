"""The configuration: YAML checked by pydantic, with defaults that work.

`load` reads a file, applies environment overrides (`EDGED_MQTT__HOST=...`), and raises ConfigError
naming file, line, key and remedy. Relative paths are relative to the configuration file.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from edged.domain.schema import Schema
from edged.errors import ConfigError

ENV_PREFIX = "EDGED_"

_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SPANS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
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
        number, unit = float(value), ""
    else:
        match = _QUANTITY.match(str(value))
        if match is None or match[2].lower() not in units:
            raise ValueError(f"expected {example}, got {value!r}")
        number, unit = float(match[1]), match[2].lower()
    if number < 0:
        raise ValueError(f"expected {example}, got a negative one")
    return number * float(units[unit])


def _crontab(value: str | None) -> str | None:
    if value is not None and len(value.split()) != 5:
        raise ValueError("expected five crontab fields such as '0 3 * * *'")
    return value


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Cron = Annotated[str, AfterValidator(_crontab)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A part of the configuration: unknown keys are errors, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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

    host: str = Field("localhost", min_length=1)
    port: int = Field(1883, ge=1, le=65535)
    protocol: Literal["5", "3.1.1"] = Field("5", description="MQTT version")
    username: str | None = None
    password_file: Path | None = Field(None, description="file whose first line is the password")
    tls: TlsConfig | None = None
    keepalive: Duration = Field(30.0, description="seconds between pings", gt=0, le=65535)
    root: str = Field("edged", description="first level of all topics of edged", pattern=r"^[^#+\s]+$")
    client_id: str | None = Field(None, description="edged-<device id> when absent")
    session_expiry: Duration = Field(7 * 86400.0, description="how long the broker keeps messages for us")
    receive_maximum: int = Field(2000, ge=1, le=65535, description="unacknowledged messages in flight (MQTT 5)")
    reconnect_max: Duration = Field(60.0, description="longest pause between two attempts to connect", ge=1)

    @model_validator(mode="before")
    @classmethod
    def _protocol_as_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("protocol"), int | float):
            data = {**data, "protocol": f"{data['protocol']:g}"}
        return data


class StreamConfig(Section):
    """Where samples come from and what they mean."""

    topic: str | list[str] = Field("sensors/#", description="topic filter(s), wildcards allowed")
    codec: Literal["json"] = "json"
    features: Annotated[int, Field(ge=1, le=100_000)] | Annotated[list[str], Field(min_length=1)] = Field(
        description="a number n: the field `x` holds an array of n numbers; or JSON paths in model input order"
    )
    task: Literal["classify", "regress", "reconstruct", "forecast"] | None = Field(
        None, description="classify when classes are given; else taken from target, else regress"
    )
    classes: Annotated[int, Field(ge=2)] | Annotated[list[str], Field(min_length=2)] | None = Field(
        None, description="their number or names, in model output order"
    )
    targets: int = Field(1, ge=1, description="width of a regression target")
    label: str | None = Field(None, description="JSON path of the label in the sample's message")
    label_topic: str | None = Field(None, description="topic filter on which labels come by themselves")
    join: Literal["id", "key_time"] = Field("id", description="how a label on label_topic finds its sample")
    join_tolerance: Duration = Field(0.5, description="largest distance of times for join: key_time")
    target: Literal["reconstruct", "forecast"] | None = Field(
        None, description="labels made from the stream itself"
    )
    forecast: list[str] | list[int] | None = Field(
        None, description="features to forecast (names or positions); the first one when absent"
    )
    horizon: int = Field(1, ge=1, description="how many samples of the same key ahead a forecast looks")
    key: str | None = Field(None, description="JSON path of the key, or topic:N for the N-th topic level; whole topic when absent")
    ts: str | None = Field(None, description="JSON path of the event time (Unix seconds or milliseconds, or ISO 8601)")
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
        if isinstance(self.features, list) and len(set(self.features)) != len(self.features):
            raise ValueError("features holds a name twice")
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

    def schema(self) -> Schema:
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

    bundle: Path | None = Field(None, description="directory made by `edged artifacts build`; built when absent")
    hidden: list[int] = Field([64, 32], description="hidden layers of the network that is built without a bundle")


class TrainingConfig(Section):
    """When and how to learn."""

    engine: Literal["auto", "native", "portable"] = "auto"
    enabled: bool = True
    every: Duration | None = Field(6 * 3600.0, description="interval between scheduled runs; null for none")
    cron: Cron | None = Field(None, description="crontab fields for scheduled runs, instead of every")
    min_new_samples: int = Field(100, ge=1, description="scheduled runs with fewer new labelled samples are skipped")
    new_labels: int | None = Field(100, ge=1, description="train as soon as this many labels are new; null for never")
    cooldown: Duration = Field(0.0, description="shortest pause between the end of a run and the next")
    batch: int = Field(64, ge=1, le=65536)
    steps: int = Field(50, ge=1, description="optimizer steps for each `steps_per` new samples")
    steps_per: int = Field(100, ge=1)
    max_steps: int = Field(2000, ge=1, description="upper bound of steps in one run")
    accumulate: int = Field(1, ge=1, description="batches whose gradients are added up for one update")
    learning_rate: float = Field(1e-3, gt=0, lt=10)
    schedule: Literal["constant", "linear"] = "constant"
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    window: int = Field(20_000, ge=1, description="new samples read for one run at most; the newest are kept")
    replay: int = Field(5000, ge=0, description="size of the replay memory in samples")
    new_share: Share = Field(0.25, description="share of new samples in a batch; the rest is replayed")
    restandardise: bool = Field(True, description="let the input standardisation follow slow drift")
    half_life: int = Field(1000, ge=1, description="half-life of the running standardisation, in samples")
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints within a run")
    keep_checkpoints: int = Field(3, ge=1)
    resident: Duration = Field(60.0, description="how long an idle trainer process stays; 0 ends it after each run")
    timeout: Duration = Field(3600.0, description="a run without progress for this long is stopped", gt=0)
    threads: int = Field(1, ge=1, le=256)
    nice: int = Field(10, ge=0, le=19)
    affinity: list[int] | None = Field(None, description="CPUs the trainer may use; all when absent")
    memory_limit: Size | None = Field(None, description="address space of the trainer", ge=64 * 1024**2)
    seed: int = 0

    @model_validator(mode="after")
    def _combinations(self) -> TrainingConfig:
        if self.cron is not None and "every" in self.model_fields_set and self.every is not None:
            raise ValueError("every and cron exclude each other: keep one")
        if self.replay == 0 and "new_share" in self.model_fields_set and self.new_share < 1:
            raise ValueError("new_share below 1 needs a replay memory: set replay above 0")
        return self


class GateConfig(Section):
    """When a candidate may become champion, and when it must go again."""

    holdout: Annotated[float, Field(gt=0.0, le=0.5)] = Field(0.1, description="share of samples kept for judging, never trained on")
    recent: int = Field(200, ge=1, description="newest labelled holdout samples that decide")
    min_holdout: int = Field(20, ge=1, description="with fewer labelled holdout samples a candidate is refused")
    min_gain: float = Field(0.0, description="what the candidate must be better by on the newest holdout")
    max_regret: float = Field(0.02, ge=0.0, description="what it may lose on the older holdout")
    tolerance: float = Field(1e-4, gt=0, description="largest difference to the trainer's own outputs")
    latency: Duration = Field(0.05, gt=0, description="largest time for one prediction of a candidate")
    probation: int = Field(200, ge=0, description="labelled predictions watched after a swap; 0 for none")
    probation_drop: float = Field(0.1, ge=0, description="fall of live quality that rolls back")


class ServingConfig(Section):
    """How predictions are made and published."""

    publish: bool = True
    qos: Literal[0, 1] = 0
    batch: int = Field(256, ge=1, description="samples in one micro-batch at most")
    threads: int = Field(1, ge=1, le=256)
    remember: int = Field(100_000, ge=1, description="predictions kept in memory until their labels come")


class StorageConfig(Section):
    """What survives on this disk."""

    dir: Path = Path("./state")
    max_bytes: Size = Field(512 * 1024**2, ge=1024**2, description="cap of the sample log")
    max_age: Duration | None = Field(None, description="samples older than this are evicted", gt=0)
    commit_rows: int = Field(1000, ge=1, description="messages in one group commit at most")
    commit_delay: Duration = Field(0.005, ge=0, le=1, description="how long a commit waits for company")
    quarantine_rows: int = Field(1000, ge=1, description="rejected messages that are kept")
    keep_models: int = Field(10, ge=2)


class ReportConfig(Section):
    """What is reported over MQTT."""

    every: Duration = Field(10.0, gt=0, description="interval of metrics")
    weights: bool = Field(False, description="publish the weights after each promotion")
    chunk: Size = Field(96 * 1024, ge=1024, description="bytes of one message of weights")


class LogConfig(Section):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = Field("auto", description="auto: console on a terminal, else JSON")


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

    @property
    def topic_root(self) -> str:
        """`<root>/<device>`: what every topic of this device begins with."""
        return f"{self.mqtt.root}/{self.device.id}"


_PATHS = (("model", "bundle"), ("storage", "dir"), ("mqtt", "password_file"),
          ("mqtt", "tls", "ca_file"), ("mqtt", "tls", "cert_file"), ("mqtt", "tls", "key_file"))  # fmt: skip
_MUST_EXIST = tuple(path for path in _PATHS if path[-1] != "dir")


def load(path: Path, environ: dict[str, str] | None = None) -> Config:
    """Read, override and validate the configuration in `path`.

    Raises
    ------
    ConfigError
        With file, line and key of the first problem and what would be right.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ConfigError(
            f"cannot read the configuration: {problem.strerror}",
            where=str(path),
            remedy="name an existing YAML file",
        ) from problem
    except UnicodeDecodeError as problem:
        raise ConfigError("the configuration is not UTF-8 text", where=str(path)) from problem
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        what = getattr(problem, "problem", None) or "cannot be parsed"
        raise ConfigError(f"not valid YAML: {what}", where=f"{path}{line}") from problem
    if not isinstance(data, dict):
        raise ConfigError(
            "the configuration must be a mapping",
            where=str(path),
            remedy="begin with `device: {id: ...}`",
        )
    _refuse_duplicates(root, path)
    overridden = _apply_environment(data, dict(os.environ) if environ is None else environ)
    _resolve_paths(data, path.resolve().parent)
    try:
        config = Config.model_validate(data)
    except ValidationError as problem:
        raise _first_problem(problem, path, root, overridden) from None
    _check_files(config, path, root)
    return config


def from_json(text: str) -> Config:
    """The configuration from its own JSON form, as handed to the trainer process."""
    try:
        return Config.model_validate_json(text)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise ConfigError(first["msg"], where=".".join(map(str, first["loc"]))) from None


def _refuse_duplicates(node: Any, path: Path) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            raise ConfigError("this key is given twice", where=f"{path}:{key.start_mark.line + 1}: {key.value}",
                              remedy="remove one of them")  # fmt: skip
        seen.add(key.value)
        _refuse_duplicates(value, path)


def _apply_environment(data: dict[str, Any], environ: dict[str, str]) -> dict[str, str]:
    overridden: dict[str, str] = {}
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX) or "__" not in name:
            continue
        keys = name[len(ENV_PREFIX) :].lower().split("__")
        section = data
        for key in keys[:-1]:
            inner = section.get(key)
            if not isinstance(inner, dict):
                inner = {}
                section[key] = inner
            section = inner
        try:
            section[keys[-1]] = yaml.safe_load(environ[name])
        except yaml.YAMLError:
            section[keys[-1]] = environ[name]
        overridden[".".join(keys)] = name
    return overridden


def _resolve_paths(data: dict[str, Any], base: Path) -> None:
    for keys in _PATHS:
        section: Any = data
        for key in keys[:-1]:
            section = section.get(key) if isinstance(section, dict) else None
        if isinstance(section, dict) and isinstance(section.get(keys[-1]), str):
            section[keys[-1]] = str(base / Path(section[keys[-1]]).expanduser())
    storage = data.setdefault("storage", {})
    if isinstance(storage, dict):
        storage.setdefault("dir", str(base / "state"))


def _first_problem(
    problem: ValidationError, path: Path, root: Any, overridden: dict[str, str]
) -> ConfigError:
    first = min(problem.errors(), key=lambda e: (e["type"] != "extra_forbidden", len(e["loc"])))
    keys = [str(part) for part in first["loc"]]
    keys = _without_union_tags(keys, root)
    dotted = ".".join(keys)
    where = f"environment variable {overridden[dotted]}" if dotted in overridden else _located(path, root, keys)
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return ConfigError("this key is required", where=f"{_located(path, root, keys[:-1])}: {dotted}".replace(
            f"{'.'.join(keys[:-1])}: {dotted}", dotted), remedy=_example(dotted))  # fmt: skip
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(keys[-1], _known_keys(keys[:-1]), n=1)
        remedy = f"did you mean {near[0]}?" if near else "known here: " + ", ".join(_known_keys(keys[:-1]))
        return ConfigError("unknown key", where=where, remedy=remedy)
    return ConfigError(what, where=where, remedy="`edged config schema` lists every key")


def _without_union_tags(keys: list[str], root: Any) -> list[str]:
    """Drop the parts that pydantic adds for the members of a union: they are no keys of the file."""
    kept: list[str] = []
    model: Any = Config
    for key in keys:
        fields = getattr(model, "model_fields", None)
        if fields is None:
            break
        kept.append(key)
        if key not in fields:
            break
        annotation = fields[key].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)
    return kept


def _known_keys(keys: list[str]) -> list[str]:
    model: Any = Config
    for key in keys:
        annotation = model.model_fields[key].annotation
        options = [annotation, *getattr(annotation, "__args__", ())]
        model = next((o for o in options if isinstance(o, type) and issubclass(o, Section)), None)
        if model is None:
            return []
    return list(model.model_fields)


def _located(path: Path, root: Any, keys: list[str]) -> str:
    node, line = root, None
    for key in keys:
        found = None
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == key), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    place = f"{path}:{line}" if line is not None else str(path)
    return f"{place}: {'.'.join(keys)}" if keys else place


def _example(dotted: str) -> str:
    examples = {
        "device": "add `device: {id: press-7}`",
        "device.id": "add `id: press-7`",
        "stream": "add `stream: {topic: sensors/#, features: [temp, vib]}`",
        "stream.features": "add `features: [temp, vib]` or `features: 8`",
    }
    return examples.get(dotted, "`edged config schema` lists every key")


def _check_files(config: Config, path: Path, root: Any) -> None:
    for keys in _MUST_EXIST:
        value: Any = config
        for key in keys:
            value = getattr(value, key, None)
        if isinstance(value, Path) and not value.exists():
            remedy = "build one with `edged artifacts build`" if keys[-1] == "bundle" else "create it or correct the path"
            raise ConfigError(f"{value} does not exist", where=_located(path, root, list(keys)), remedy=remedy)
