"""Section `stream.window`: samples that are windows of readings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from edged.config.values import Duration, Section
from edged.domain.stream.windowing import WindowRules

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
        return WindowRules(
            size=self.size,
            stride=stride,
            rate=self.rate,
            max_gap=gap,
            label=self.label,
            most_keys=self.max_keys,
        )
