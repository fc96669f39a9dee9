"""What a joined sample is made of: its features, when it is made, and what stands for missing values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Time = Literal["hour_of_day", "day_of_week"]
Change = Literal["difference", "rate", "log"]


@dataclass(frozen=True)
class FeatureRule:
    """One feature: of messages, or with `time` of the sample's local time (two columns, sine and cosine).

    A value older than `max_age` seconds is missing. `change`: the difference to the key's previous sample,
    the same for each second, or the natural logarithm.
    """

    name: str
    time: Time | None = None
    max_age: float | None = None
    change: Change | None = None


@dataclass(frozen=True)
class JoinRules:
    """How samples are made of the newest values of a key.

    A sample is made with every message that brings a value; with `trigger` only where it brings this
    feature (a position among those of messages); with `period` by the clock, each so many seconds.
    `fill` stands for missing values; `flags` adds a column for each feature of messages that says which.
    """

    features: tuple[FeatureRule, ...]
    trigger: int | None = None
    period: float | None = None
    fill: Literal["last", "mean"] = "last"
    flags: bool = False

    @property
    def measured(self) -> tuple[FeatureRule, ...]:
        """The features that messages bring."""
        return tuple(rule for rule in self.features if rule.time is None)
