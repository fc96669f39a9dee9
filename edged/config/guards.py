"""What holds training back; part of section `training`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from edged.config.values import Duration, Section, Size
from edged.domain.training.guards import GuardRules

_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)")


def _span(value: str) -> str:
    found = _SPAN.fullmatch(value.strip())
    if found is None or found.group(1, 2) == found.group(3, 4):
        raise ValueError(f'{value!r} is no span of the day: write it like "22:00-06:00"')
    return value


def minutes(span: str) -> tuple[int, int]:
    """Beginning and end of a span of the day, in minutes.

    >>> minutes("22:00-06:30")
    (1320, 390)
    """
    begin, end = (part.split(":") for part in span.split("-"))
    return int(begin[0]) * 60 + int(begin[1]), int(end[0]) * 60 + int(end[1])


class GuardsConfig(Section):
    """What holds training back. A command trains in spite of it."""

    quiet: Annotated[str, AfterValidator(_span)] | None = Field(
        None, description='hours of local time without training, such as "22:00-06:00"'
    )
    max_temperature: float | None = Field(
        90.0, description="no run begins while the hottest thermal zone is above, in °C; null for any"
    )
    wait_throttled: bool = Field(
        True,
        description="no run begins, and one under way slows down, while the board says that its processor is"
        " throttled or its supply too low; boards that do not tell never wait",
    )
    mains_only: bool = Field(False, description="no run begins on battery")
    min_battery: float | None = Field(
        None, ge=0, le=100, description="no run begins on a battery with less charge, in percent"
    )
    max_load: float | None = Field(
        None, gt=0, description="no run begins while the load over one minute, a processor, is above"
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
    max_runs_per_day: int | None = Field(None, ge=0, description="runs a day at most")
    max_minutes_per_day: float | None = Field(None, ge=0, description="minutes of training a day at most")

    def guard_rules(self) -> GuardRules:
        """For the guards."""
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
