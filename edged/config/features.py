"""Features that come from messages of their own, how a sample is made of them, and labels that come alone."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from edged.config.values import OPEN, Duration, Filter, Section, number_or_names, unique
from edged.domain.stream.joining import FeatureRule

TOLERANCE = 0.5  # seconds between a label and its sample
_YAML_WORDS = {True: ("true", "on", "yes"), False: ("false", "off", "no")}


def _words(value: Any) -> Any:
    """Keys as lower-case words; YAML has read `on`, `yes` and `true` as one value before this sees them."""
    if not isinstance(value, dict):
        return value
    words: dict[str, Any] = {}
    for key, number in value.items():
        names = _YAML_WORDS[key] if isinstance(key, bool) else (str(key).lower(),)
        words |= dict.fromkeys(names, number)
    return words


class FeatureConfig(Section):
    """One feature: the source of its value, and how to convert it."""

    name: str = Field(min_length=1, max_length=256, description="name in the sample")
    topic: Filter | None = Field(
        None, description="topic filter of the messages that contain it; stream.topic when absent"
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="JSON path of the value; when absent, the name, or with a topic the whole payload",
    )
    key: str | None = Field(
        None, description="as stream.key, for messages with this feature; stream.key when absent"
    )
    values: Annotated[dict[str, float], BeforeValidator(_words)] | None = Field(
        None, min_length=1, description="numbers for words in any case, such as {open: 1, closed: 0}"
    )
    max_age: Duration | None = Field(
        None, gt=0, description="older values count as missing; unlimited when absent"
    )
    unit: str | None = Field(None, description="unit: edged rejects a bundle built for another one")
    time: Literal["hour_of_day", "day_of_week"] | None = Field(
        None, description="derive the feature from the sample's local time: two columns, sine and cosine"
    )
    change: Literal["difference", "rate", "log"] | None = Field(
        None,
        description="difference: from the value in the key's previous sample; rate: the difference per"
        " second; log: natural logarithm, missing if undefined",
    )

    @model_validator(mode="after")
    def _of_messages_or_of_time(self) -> FeatureConfig:
        given = [key for key in ("topic", "path", "key", "values", "max_age", "change") if getattr(self, key)]
        if self.time is not None and given:
            raise ValueError(f"{self.name} is derived from the time, not from a message: remove {given[0]}")
        return self

    @property
    def field_path(self) -> str | None:
        """JSON path of the value; None where the payload is the value."""
        return self.path or (self.name if self.topic is None else None)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers that it puts into a sample."""
        return (self.name,) if self.time is None else (f"{self.name}.sin", f"{self.name}.cos")

    def rule(self) -> FeatureRule:
        """Return the rule that derives the feature of a sample."""
        return FeatureRule(self.name, self.time, self.max_age, self.change)


class MissingConfig(Section):
    """Substitutes for missing values: absent, null, `unavailable`, NaN or too old."""

    fill: Literal["last", "mean"] = Field(
        "last", description="the key's last value, or the mean of all its values"
    )
    flags: bool = Field(
        False,
        description="add a column NAME.missing per feature in messages: 1 if its value is filled in; samples"
        " then start before every feature has a value",
    )


class FixedKey(Section):
    """One key for all messages of the stream."""

    fixed: str = Field(min_length=1, max_length=256, description="the key")


class LabelConfig(Section):
    """Labels in separate messages, or labels that hold until they change."""

    topic: Filter | None = Field(None, description="topic filter of the labels; stream.topic when absent")
    path: str | None = Field(
        None,
        min_length=1,
        description="JSON path of the label; when absent, the whole payload, such as worn, or with join the"
        " field `label`",
    )
    key: str | None = Field(None, description="as stream.key, for labels; stream.key when absent")
    hold: bool = Field(
        False,
        description="true: a label applies to every sample of its key until the next one; off, none, null,"
        " unknown or unavailable ends it, unless a class has that name. false: it applies to the"
        " sample nearest in time",
    )
    join: Literal["id", "key_time"] | None = Field(
        None,
        description="how a label on topic names its sample: by the id of the sender or the prediction, or by"
        " fields key and ts; by its own time and stream.key when absent",
    )
    tolerance: Duration = Field(
        TOLERANCE, description="maximum time difference between a label and its sample, unless by id"
    )
    expiry: Duration | None = Field(
        None,
        gt=0,
        description="labels that arrive longer after their sample go to the quarantine; when absent, labels"
        " match as long as the sample is stored",
    )

    @model_validator(mode="after")
    def _somewhere(self) -> LabelConfig:
        if self.topic is None and (self.path is None or self.join is not None):
            raise ValueError("a label needs topic, or path if it is in the messages of stream.topic")
        if self.join is not None and (self.hold or self.key is not None):
            raise ValueError(f"labels with join: {self.join} name their sample: remove hold and key")
        return self


class ForecastConfig(Section):
    """What a forecast predicts, and how far ahead."""

    of: Annotated[list[int | str], Field(min_length=1), AfterValidator(unique)] | None = Field(
        None, description="features to forecast (names or positions); the first one when absent"
    )
    horizon: int = Field(1, ge=1, description="samples of the same key that a forecast looks ahead")


class TaskConfig(Section):
    """A forecast of certain features, or further ahead than one sample."""

    forecast: ForecastConfig


def number_or_features(value: Any) -> Any:
    """Let a number or a list of names and mappings pass; no name twice."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        names = [item.get("name") if isinstance(item, dict) else item for item in value]
        number_or_names([name for name in names if name is not None] or ["x"])
        return value
    if value == OPEN or isinstance(value, bool):
        raise ValueError(f"expected a number, or a list of names and mappings, got {value!r}")
    return number_or_names(value)
