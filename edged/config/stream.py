"""Section `stream`: where samples come from, what they mean, windows and payload formats."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from edged.config.values import Count, Duration, Filter, Names, Section, Size, number_or_names, unique
from edged.domain.stream.admission import AdmissionRules
from edged.domain.stream.schema import Schema
from edged.domain.stream.windowing import WindowRules

WIDEST = 100_000  # numbers in a sample


GAP_SHARE = 0.25  # of a window, when no max_gap is given
SHORTEST_GAP = 4  # readings, in windows of few


class WindowConfig(Section):
    """Samples that are windows of readings, one key at a time; without it every reading is a sample."""

    size: int = Field(ge=2, le=65_536, description="readings in a window")
    stride: int | None = Field(
        None, ge=1, le=65_536, description="readings from one window to the next; half of size when absent"
    )
    rate: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="readings a second in a window, interpolated from those that come; without it they are"
        " taken as they come",
    )
    max_gap: Duration | None = Field(
        None,
        gt=0,
        description="a longer break between two readings begins a new window; with rate a quarter of a window"
        " when absent, else none is too long",
    )
    label: Literal["last", "majority"] = Field(
        "last", description="which of the labels in a window is its own: the newest, or the most frequent"
    )
    max_keys: int = Field(256, ge=1, le=10_000, description="keys with an open window, those heard last")

    @model_validator(mode="after")
    def _gap_within_a_window(self) -> WindowConfig:
        if self.rate is None or self.max_gap is None:
            return self
        if self.max_gap * self.rate > self.size:
            raise ValueError(
                f"max_gap {self.max_gap:g} s is longer than a window of {self.size / self.rate:g} s:"
                " it would be made up from end to end"
            )
        if self.max_gap * self.rate < 1:
            raise ValueError(
                f"max_gap {self.max_gap:g} s is shorter than the time from one reading to the next at"
                f" {self.rate:g} a second: no window would ever be whole"
            )
        return self

    def rules(self) -> WindowRules:
        """How windows are cut."""
        gap = self.max_gap
        if gap is None and self.rate is not None:
            gap = max(min(SHORTEST_GAP, self.size), GAP_SHARE * self.size) / self.rate
        stride = self.stride or max(1, self.size // 2)
        return WindowRules(self.size, stride, self.rate, gap, self.label, self.max_keys)


class StreamConfig(Section):
    """Where samples come from and what they mean."""

    topic: Filter | Annotated[list[Filter], Field(min_length=1)] = Field(
        "sensors/#", description="topic filter(s), wildcards allowed"
    )
    codec: Literal[
        "json", "cbor", "msgpack", "influx", "senml", "float32", "float16", "int16", "csv", "sparkplug"
    ] = Field("json", description="how the payload is written, see docs/codecs.md")
    records: str | None = Field(
        None,
        description="JSON path of a list whose items are messages of their own, such as metrics for batches"
        " of Telegraf; a message that is an array needs none",
    )
    compression: Literal["none", "zstd", "gzip", "auto"] = Field(
        "none", description="of payloads; auto: each one's first bytes say whether and how"
    )
    byte_order: Literal["little", "big"] = Field(
        "little", description="of raw arrays: float32, float16, int16"
    )
    columns: Names | None = Field(
        None,
        description="columns of a CSV line: names of features, of key, ts, id and label, and of what is"
        " passed over; `x` stands for all features without names; the features in their order when absent",
    )
    delimiter: Literal[",", ";", "tab", "|"] = Field(",", description="between the columns of a CSV line")
    features: Annotated[Count | Names, BeforeValidator(number_or_names)] = Field(
        description="a number n: the field `x` is an array of n numbers; or JSON paths in model input order"
    )
    units: list[str] | None = Field(
        None,
        description="units of the features, in their order: a bundle that was made for others is refused",
    )
    target_units: list[str] | None = Field(None, description="units of the targets of a regression, likewise")
    window: WindowConfig | None = Field(
        None, description="samples are sliding windows of readings; every reading is one when absent"
    )
    task: Literal["classify", "regress", "reconstruct", "forecast"] | None = Field(
        None, description="classify when classes are given; else taken from target, else regress"
    )
    classes: (
        Annotated[
            Annotated[int, Field(ge=2)] | Annotated[Names, Field(min_length=2)],
            BeforeValidator(number_or_names),
        ]
        | None
    ) = Field(
        None,
        description="their number or names, in model output order; those still to come count, too: a label"
        " outside them goes to the quarantine, its sample stays",
    )
    targets: int = Field(1, ge=1, description="width of a regression target")
    target_max: float | None = Field(
        None, description="larger regression targets count as this: for a remaining life that is far away"
    )
    label: str | None = Field(None, description="JSON path of the label in the sample's message")
    label_topic: Filter | None = Field(None, description="topic filter on which labels come by themselves")
    join: Literal["id", "key_time"] = Field(
        "id",
        description="how a label on label_topic finds its sample: by the sender's id or that of a prediction,"
        " or by key and time",
    )
    join_tolerance: Duration = Field(0.5, description="largest distance of times for join: key_time")
    join_expiry: Duration | None = Field(
        None,
        gt=0,
        description="a label on label_topic that comes longer after its sample goes to the quarantine; when"
        " absent it is joined as long as the sample is stored",
    )
    target: Literal["reconstruct", "forecast"] | None = Field(
        None, description="labels made from the stream itself"
    )
    forecast: Annotated[list[int | str], Field(min_length=1), AfterValidator(unique)] | None = Field(
        None, description="features to forecast (names or positions); the first one when absent"
    )
    horizon: int = Field(1, ge=1, description="how many samples of the same key ahead a forecast looks")
    key: str | None = Field(
        None, description="JSON path of the key, or topic:N for the N-th topic level; whole topic when absent"
    )
    ts: str | None = Field(
        None,
        description="JSON path of the event time (Unix seconds, milli-, micro- or nanoseconds, or ISO 8601)",
    )
    id: str | None = Field(None, description="JSON path of the sender's sample id")
    max_rate: float | None = Field(
        None, gt=0, description="messages a second over all; beyond it the broker is made to wait"
    )
    key_rate: float | None = Field(
        None, gt=0, description="samples a second of one key; beyond it they are counted and dropped"
    )
    key_burst: int | None = Field(
        None, ge=1, description="samples of one key at once; 10 seconds' worth when absent"
    )
    max_skew: Duration | None = Field(
        86400.0, description="event times further ahead of the arrival are replaced by it; null for never"
    )
    max_late: Duration | None = Field(
        None, description="event times further behind the arrival are replaced by it", gt=0
    )
    stuck_after: int = Field(
        500,
        ge=0,
        description="readings without a change after which a sensor is told to be stuck; 0 for never",
    )
    max_relabels: int = Field(
        3, ge=0, description="a sample whose label changes more often is learned from no more"
    )
    max_payload: Size = Field(
        64 * 1024, description="larger messages, or such as inflate to more, are quarantined unparsed", ge=16
    )

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
        if self.target_max is not None and task != "regress":
            raise ValueError("target_max is for task regress only")
        if self.forecast is not None and task != "forecast":
            raise ValueError("forecast is for task forecast only")
        self._check_units(task)
        self._check_window(task)
        check_codec(self)
        self.forecast_columns  # noqa: B018  a wrong name or position must be refused here, with its key
        return self

    def _check_units(self, task: str) -> None:
        if self.units is not None and len(self.units) != self.width:
            raise ValueError(f"units: {len(self.units)} units, and {self.width} features: name one for each")
        if self.target_units is not None and (task != "regress" or len(self.target_units) != self.targets):
            raise ValueError("target_units are for task regress, one for each of its targets")

    @property
    def window_rules(self) -> WindowRules | None:
        """How windows are cut; None where every reading is a sample."""
        return None if self.window is None else self.window.rules()

    def _check_window(self, task: str) -> None:
        if self.window is None:
            return
        if self.width * self.window.size > WIDEST:
            raise ValueError(
                f"windows of {self.window.size} x {self.width} numbers are too large: at most {WIDEST:,}"
            )
        if self.window.label == "majority" and task != "classify":
            raise ValueError("window.label majority is about classes: with numbers use last")

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
        """Numbers in one reading."""
        return self.features if isinstance(self.features, int) else len(self.features)

    @property
    def steps(self) -> int:
        """Readings in a sample."""
        return 1 if self.window is None else self.window.size

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
        """Feature positions that a forecast predicts; of a window those of its last reading."""
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
        return tuple((self.steps - 1) * self.width + column for column in columns)

    def admission_rules(self) -> AdmissionRules:
        """What the stream is guarded against."""
        return AdmissionRules(
            self.max_rate,
            self.key_rate,
            self.key_burst,
            self.max_skew,
            self.max_late,
            self.stuck_after or None,
        )

    def to_schema(self) -> Schema:
        """The stream's schema for the domain."""
        task = self.resolved_task
        classes: tuple[str, ...] = ()
        if isinstance(self.classes, int):
            classes = tuple(str(i) for i in range(self.classes))
        elif self.classes is not None:
            classes = tuple(self.classes)
        width = self.width * self.steps
        targets = {"classify": 1, "reconstruct": width, "forecast": len(self.forecast_columns)}.get(
            task, self.targets
        )
        units = (tuple(self.units or ()), tuple(self.target_units or ()))
        return Schema(self.names, width, task, classes, targets, self.steps, self.target_max, *units)


OBJECTS = ("json", "cbor", "msgpack")  # formats of objects with lists in them
ARRAYS = ("float32", "float16", "int16")
TIMED = ("senml", "sparkplug")  # formats whose fields have names and times of their own
POSITIONAL = "x"


def check_codec(stream: StreamConfig) -> None:
    """Refuse settings that the stream's format has no use for.

    Raises ValueError naming the setting and what to do.
    """
    codec = stream.codec
    if codec in ARRAYS:
        _check_array(stream)
    elif stream.byte_order != "little":
        raise ValueError(f"byte_order is for raw arrays: remove it with codec {codec}")
    if codec in TIMED:
        if not stream.names:
            raise ValueError(f"codec {codec} has named fields: list the names as features")
        if stream.ts is not None:
            raise ValueError(f"codec {codec} carries the time itself: remove ts")
    if codec == "sparkplug" and not all("spBv1.0/" in topic for topic in stream.topics):
        raise ValueError("codec sparkplug: topic must be of spBv1.0, such as spBv1.0/plant/+/line-1/#")
    if stream.records is not None and codec not in OBJECTS:
        raise ValueError(f"records is for codecs {', '.join(OBJECTS)}: remove it with codec {codec}")
    if codec == "csv":
        _check_columns(stream)
    elif stream.columns is not None or stream.delimiter != ",":
        raise ValueError(f"columns and delimiter are for codec csv: remove them with codec {codec}")


def _check_array(stream: StreamConfig) -> None:
    fields = {"label": stream.label, "ts": stream.ts, "id": stream.id, "key": stream.key}
    for name, value in fields.items():
        if value is not None and not (name == "key" and value.startswith("topic:")):
            hint = "use topic:N" if name == "key" else "remove it"
            raise ValueError(f"codec {stream.codec} has numbers only, no field for {name}: {hint}")
    if stream.compression == "auto":
        raise ValueError(
            f"compression auto cannot be told from raw {stream.codec} numbers: name one, or none"
        )


def _check_columns(stream: StreamConfig) -> None:
    columns = stream.columns or list(stream.names) or [POSITIONAL]
    wanted = {**dict.fromkeys(stream.names or (POSITIONAL,), "features")}
    for name in ("label", "ts", "id", "key"):
        value = getattr(stream, name)
        if value is not None and not (name == "key" and value.startswith("topic:")):
            wanted[value] = name
    for column, what in wanted.items():
        if column not in columns:
            raise ValueError(f"{what}: {column!r} is no column of codec csv: name it in columns")
