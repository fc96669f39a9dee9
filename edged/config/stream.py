"""Section `stream`: where samples come from, what they mean, windows and payload formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from edged.config.features import (
    TOLERANCE,
    FeatureConfig,
    FixedKey,
    LabelConfig,
    MissingConfig,
    TaskConfig,
    number_or_features,
)
from edged.config.formats import check_codec, check_joined, check_keys
from edged.config.values import (
    OPEN,
    Constants,
    Count,
    Duration,
    Filter,
    Names,
    Section,
    Size,
    number_or_names,
    parse_duration,
)
from edged.domain.stream.admission import AdmissionRules
from edged.domain.stream.joining import JoinRules
from edged.domain.stream.open_classes import OpenClasses
from edged.domain.stream.schema import Schema
from edged.domain.stream.windowing import WindowRules

WIDEST = 100_000  # numbers in a sample
MOST_CLASSES = 16  # that may come, where it is not said how many


MAX_WINDOW_KEYS = 256  # with an open window; the most recent ones are kept
GAP_SHARE = 0.25  # of a window, when no max_gap is given
SHORTEST_GAP = 4  # readings, in windows of few


class WindowConfig(Section):
    """Samples that are windows of readings of one key; without this section every reading is a sample."""

    size: int = Field(ge=2, le=65_536, description="readings in a window")
    stride: int | None = Field(
        None, ge=1, le=65_536, description="readings from one window to the next; half of size when absent"
    )
    rate: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="readings per second in a window, interpolated from those received; readings as received"
        " when absent",
    )
    max_gap: Duration | None = Field(
        None,
        gt=0,
        description="a longer break between two readings starts a new window; when absent, a quarter of a"
        " window with rate, else unlimited",
    )
    label: Literal["last", "majority"] = Field(
        "last", description="label of a window: the newest in it, or the most frequent"
    )

    @model_validator(mode="after")
    def _gap_within_a_window(self) -> WindowConfig:
        if self.rate is None or self.max_gap is None:
            return self
        if self.max_gap * self.rate > self.size:
            raise ValueError(
                f"max_gap {self.max_gap:g} s is longer than a window of {self.size / self.rate:g} s:"
                " the whole window would be interpolated"
            )
        if self.max_gap * self.rate < 1:
            raise ValueError(
                f"max_gap {self.max_gap:g} s is shorter than the time from one reading to the next at"
                f" {self.rate:g} a second: no window would ever be complete"
            )
        return self

    def rules(self) -> WindowRules:
        """Return the rules by which windows are cut."""
        from edged.domain.stream.windowing import WindowRules  # most streams have no windows

        gap = self.max_gap
        if gap is None and self.rate is not None:
            gap = max(min(SHORTEST_GAP, self.size), GAP_SHARE * self.size) / self.rate
        stride = self.stride or max(1, self.size // 2)
        return WindowRules(self.size, stride, self.rate, gap, self.label, MAX_WINDOW_KEYS)


@dataclass(frozen=True)
class StreamConstants:
    """Values of `StreamConfig` without a key."""

    max_skew: float = 86400.0  # seconds; event times further ahead of the arrival are replaced by it
    key_burst: int | None = None  # samples of one key at once; None: those of 10 seconds
    stuck_after: int = 500  # readings without a change before a sensor counts as stuck
    max_relabels: int = 3  # label changes of a sample; after more it is not learned from


class StreamConfig(Section, Constants[StreamConstants]):
    """Where samples come from and what they mean.

    Copies share classes that come and go.
    """

    _constants: StreamConstants = PrivateAttr(StreamConstants())
    _open: OpenClasses | None = PrivateAttr(None)
    topic: Filter | Annotated[list[Filter], Field(min_length=1)] = Field(
        "sensors/#", description="topic filter(s), wildcards allowed"
    )
    codec: Literal[
        "json", "cbor", "msgpack", "influx", "senml", "float32", "float16", "int16", "csv", "sparkplug"
    ] = Field("json", description="how the payload is written, see docs/codecs.md")
    records: str | None = Field(
        None,
        description="JSON path of a list whose items are separate messages, such as metrics for Telegraf's"
        " batches; not needed for a message that is an array",
    )
    byte_order: Literal["little", "big"] = Field(
        "little", description="byte order of raw arrays: float32, float16, int16"
    )
    columns: Names | None = Field(
        None,
        description="columns of a CSV line: features, key, ts, id and label; other names are ignored; `x`"
        " stands for all unnamed features; the features in their order when absent",
    )
    delimiter: Literal[",", ";", "tab", "|"] = Field(
        ",", description="separator of the columns of a CSV line"
    )
    features: Annotated[
        Count | Annotated[list[str | FeatureConfig], Field(min_length=1)], BeforeValidator(number_or_features)
    ] = Field(
        description="a number n: the field `x` is an array of n numbers; JSON paths in model input order; or"
        " mappings for features with their own topic or rules: docs/inputs.md"
    )
    sample: str | float | None = Field(
        None,
        description="what makes a sample of the newest values of a key: each (each message with a feature),"
        " the name of a feature, or a duration (by the clock); each when absent",
    )
    missing: MissingConfig | None = Field(
        None,
        description="how to fill missing values; without it a message must have every feature named by text",
    )
    units: list[str] | None = Field(
        None,
        description="units of the features, in their order: edged rejects a bundle built for other units",
    )
    target_units: list[str] | None = Field(None, description="units of the targets of a regression, likewise")
    context: Annotated[list[Annotated[float, Field(gt=0, le=1e6)]], Field(max_length=8)] | None = Field(
        None,
        description="half-lives, in samples, of running means of earlier samples of the same key: the model"
        " also sees how a sample differs from them; []: none; those of the bundle when absent",
    )
    window: WindowConfig | None = Field(
        None, description="samples are sliding windows of readings; every reading is one when absent"
    )
    task: Literal["classify", "regress", "reconstruct", "forecast"] | TaskConfig | None = Field(
        None,
        description="reconstruct and forecast make labels from the samples; forecast alone predicts the first"
        " feature, one sample ahead; when absent, classify with classes, else regress",
    )
    classes: (
        Annotated[
            Annotated[int, Field(ge=2)] | Annotated[Names, Field(min_length=2)] | Literal["open"],
            BeforeValidator(number_or_names),
        ]
        | None
    ) = Field(
        None,
        description="number or names of the classes, in model output order, future ones included: other"
        " labels go to the quarantine, their samples are kept. open: labels create the classes",
    )
    max_classes: int | None = Field(
        None,
        ge=2,
        le=1000,
        description="outputs of the network: labels with new names create classes while an output is free,"
        " and class.add, class.remove and class.merge change them; when absent, 16 with classes: open,"
        " else only those in classes",
    )
    targets: int = Field(1, ge=1, description="number of values in a regression target")
    target_max: float | None = Field(
        None,
        description="upper bound of regression targets, such as for a long remaining life; larger ones"
        " count as this",
    )
    label: str | LabelConfig | None = Field(
        None,
        description="JSON path of the label in the sample's message; or a mapping for labels that come by"
        " themselves or hold: docs/inputs.md",
    )
    key: str | FixedKey | None = Field(
        None,
        description="JSON path of the key, topic:N for the N-th topic level, or {fixed: text}; the whole"
        " topic when absent",
    )
    ts: str | None = Field(
        None,
        description="JSON path of the event time (Unix seconds, milli-, micro- or nanoseconds, or ISO 8601)",
    )
    id: str | None = Field(None, description="JSON path of the sender's sample id")
    max_rate: float | None = Field(
        None, gt=0, description="maximum messages per second; beyond it edged delays acknowledgements"
    )
    key_rate: float | None = Field(
        None, gt=0, description="maximum samples per second of one key; edged counts and drops the excess"
    )
    max_payload: Size = Field(
        64 * 1024,
        description="maximum size of a message; larger ones go to the quarantine unparsed",
        ge=16,
    )

    @model_validator(mode="after")
    def _combinations(self) -> StreamConfig:
        task = self.resolved_task
        if task == "classify" and self.classes is None:
            raise ValueError("task classify needs classes: their number or a list of names")
        if task != "classify" and self.classes is not None:
            raise ValueError(f"classes make no sense with task {task}: remove them or set task: classify")
        self._check_open(task)
        if task in ("reconstruct", "forecast") and self.label:
            raise ValueError(f"task {task} makes its own labels: remove label")
        if self.target_max is not None and task != "regress":
            raise ValueError("target_max is for task regress only")
        self._check_units(task)
        self._check_window(task)
        if self.joined:
            check_joined(self)
        if self.joined or self.near_label is not None:
            check_keys(self)
        check_codec(self)
        self.forecast_columns  # noqa: B018  a wrong name or position must be refused here, with its key
        return self

    def _check_open(self, task: str) -> None:
        if self.max_classes is None and self.classes != OPEN:
            return
        if task != "classify":
            raise ValueError("max_classes is for task classify only")
        most = self.max_classes or MOST_CLASSES
        if most < len(self._class_names):
            raise ValueError(f"max_classes {most}: classes has {len(self._class_names)}")
        self._open = OpenClasses(self._class_names, most)

    def _check_units(self, task: str) -> None:
        if self.units is not None and (self.joined or len(self.units) != self.width):
            what = f"{len(self.units)} units, and {self.width} features: name one for each"
            raise ValueError(f"units: {'give each feature its own unit' if self.joined else what}")
        if self.target_units is not None and (task != "regress" or len(self.target_units) != self.targets):
            raise ValueError("target_units are for task regress, one for each of its targets")

    @property
    def window_rules(self) -> WindowRules | None:
        """How windows are cut; None where every reading is a sample."""
        return None if self.window is None else self.window.rules()

    def _check_window(self, task: str) -> None:
        if self.context and (self.window is not None or task == "reconstruct"):
            raise ValueError("context is not available with windows or task reconstruct: remove it")
        if self.window is None:
            return
        if self.width * self.window.size > WIDEST:
            raise ValueError(
                f"windows of {self.window.size} x {self.width} numbers are too large: at most {WIDEST:,}"
            )
        if self.window.label == "majority" and task != "classify":
            raise ValueError("window.label majority needs classes: use last for numbers")

    @property
    def resolved_task(self) -> Literal["classify", "regress", "reconstruct", "forecast"]:
        """The task, derived where it is not given."""
        if isinstance(self.task, TaskConfig):
            return "forecast"
        if self.task is not None:
            return self.task
        return "classify" if self.classes is not None else "regress"

    @property
    def joined(self) -> bool:
        """Whether samples are made of several messages, or of values that may be missing."""
        mapped = any(isinstance(feature, FeatureConfig) for feature in self._listed_features())
        beside = self.near_label is not None and self.near_label.topic is None
        return mapped or beside or self.sample is not None or self.missing is not None

    def _listed_features(self) -> list[str | FeatureConfig]:
        return [] if isinstance(self.features, int) else self.features

    @property
    def _features(self) -> tuple[FeatureConfig, ...]:
        """The named features, plain names too."""
        named = (FeatureConfig(name=one) if isinstance(one, str) else one for one in self._listed_features())
        return tuple(named)

    @property
    def measured(self) -> tuple[FeatureConfig, ...]:
        """The features that messages bring, in order."""
        return tuple(feature for feature in self._features if feature.time is None)

    @property
    def key_spec(self) -> str | None:
        """The JSON path or topic level of the key; None for the whole topic, or one that is fixed."""
        return self.key if isinstance(self.key, str) else None

    @property
    def near_label(self) -> LabelConfig | None:
        """Labels that hold, or belong to the sample nearest in time; None where there are none such."""
        mapped = isinstance(self.label, LabelConfig) and self.label.join is None
        return self.label if mapped else None  # type: ignore[return-value]  # it is a mapping then

    @property
    def matched_label(self) -> LabelConfig | None:
        """Labels on a topic of their own that name their sample; None where there are none such."""
        mapped = isinstance(self.label, LabelConfig) and self.label.join is not None
        return self.label if mapped else None  # type: ignore[return-value]  # it is a mapping then

    @property
    def join_tolerance(self) -> float:
        """Seconds between a sample and a label that is matched by time."""
        return self.label.tolerance if isinstance(self.label, LabelConfig) else TOLERANCE

    @property
    def join_expiry(self) -> float | None:
        """Seconds after its sample within which a label counts; None for ever."""
        return self.label.expiry if isinstance(self.label, LabelConfig) else None

    @property
    def label_path(self) -> str | None:
        """JSON path of a label in its sample's message; None where there is none."""
        if self.matched_label is not None:
            return self.matched_label.path
        return self.label if isinstance(self.label, str) else None

    @property
    def width(self) -> int:
        """Number of channels of a reading."""
        return self.features if isinstance(self.features, int) else len(self.names)

    @property
    def steps(self) -> int:
        """Number of readings in a sample."""
        return 1 if self.window is None else self.window.size

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers in one reading, empty for a positional array; flags of missing values last."""
        columns = [column for feature in self._features for column in feature.columns]
        return (*columns, *(f"{feature.name}.missing" for feature in self._flagged))

    @property
    def _flagged(self) -> tuple[FeatureConfig, ...]:
        return self.measured if self.missing is not None and self.missing.flags else ()

    @property
    def watched(self) -> int:
        """How many of the numbers in a reading are no flags; they come first."""
        return self.width - len(self._flagged)

    @property
    def topics(self) -> list[str]:
        """The topic filters of samples as a list."""
        return [self.topic] if isinstance(self.topic, str) else list(self.topic)

    @property
    def label_filter(self) -> str | None:
        """The topic filter on which labels come by themselves; None where they come with samples."""
        return self.label.topic if isinstance(self.label, LabelConfig) else None

    @property
    def all_topics(self) -> list[str]:
        """The topic filters of samples, of features and of labels."""
        own = [feature.topic for feature in self._features]
        needed = self.topics if self._needs_main_topic else []
        return list(dict.fromkeys([*needed, *(topic for topic in [*own, self.label_filter] if topic)]))

    @property
    def _needs_main_topic(self) -> bool:
        named = self.near_label is not None and self.near_label.topic is None
        return named or not self.joined or any(feature.topic is None for feature in self.measured)

    def join_rules(self) -> JoinRules:
        """How samples are made of several messages."""
        missing = self.missing or MissingConfig()
        names = [feature.name for feature in self.measured]
        rules = tuple(feature.rule() for feature in self._features)
        trigger = names.index(self.sample) if isinstance(self.sample, str) and self.sample in names else None
        clock = None if trigger is not None or self.sample in (None, "each") else parse_duration(self.sample)
        return JoinRules(rules, trigger, clock, missing.fill, missing.flags)

    @property
    def horizon(self) -> int:
        """Samples of the same key that a forecast looks ahead."""
        return self.task.forecast.horizon if isinstance(self.task, TaskConfig) else 1

    @property
    def forecast_columns(self) -> tuple[int, ...]:
        """Feature positions that a forecast predicts; of a window those of its last reading."""
        if self.resolved_task != "forecast":
            return ()
        columns = []
        for item in (self.task.forecast.of if isinstance(self.task, TaskConfig) else None) or [0]:
            if isinstance(item, str):
                if item not in self.names:
                    raise ValueError(f"task.forecast.of: {item!r} is not a feature")
                columns.append(self.names.index(item))
            elif 0 <= item < self.width:
                columns.append(item)
            else:
                raise ValueError(f"task.forecast.of: position {item} is outside 0..{self.width - 1}")
        return tuple((self.steps - 1) * self.width + column for column in columns)

    def admission_rules(self) -> AdmissionRules:
        """Return the rules of admission control."""
        return AdmissionRules(
            self.max_rate,
            self.key_rate,
            self.constants.key_burst,
            self.constants.max_skew,
            self.constants.stuck_after or None,
        )

    def with_context(self, half_lives: Sequence[float]) -> StreamConfig:
        """The stream as a model with this context sees it."""
        return self.model_copy(update={"context": list(half_lives)})

    def to_schema(self) -> Schema:
        """The stream's schema for the domain."""
        task = self.resolved_task
        classes = self._class_names if self._open is None else self._open
        context = tuple(self.context or ())
        width = self.width * self.steps * (1 + len(context))
        targets = {"classify": 1, "reconstruct": width, "forecast": len(self.forecast_columns)}.get(
            task, self.targets
        )
        units = (tuple(self.units or self._own_units()), tuple(self.target_units or ()))
        shape = (self.steps, self.target_max, *units, context, self.forecast_columns)
        return Schema(self.names, width, task, classes, targets, *shape)

    @property
    def _class_names(self) -> tuple[str, ...]:
        """The classes of the configuration."""
        if isinstance(self.classes, int):
            return tuple(str(i) for i in range(self.classes))
        return tuple(self.classes) if isinstance(self.classes, list) else ()

    def _own_units(self) -> tuple[str, ...]:
        """Units that features give by themselves, an empty text for a column without one."""
        units = [feature.unit or "" for feature in self._features for _ in feature.columns]
        return (*units, *("" for _ in self._flagged)) if any(units) else ()
