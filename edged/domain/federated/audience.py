"""Whom a round is for: the devices of a group, at hours of their own day, within a budget of bytes.

Coordinator and device read the same rules from the round, so both know which group a device belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Annotated

from edged.domain.json_fields import Count, JsonFields, Name, ShortText, ShortTexts, read_dataclass
from edged.domain.training.guards import is_quiet

DAY_SECONDS = 86_400
BUDGET_USED = "budget of bytes for today used"
"""What a device says of itself in `why_not` that may neither fetch nor send until tomorrow."""
MINUTES = 1440
Minute = Annotated[int, partial(JsonFields.count, most=MINUTES - 1)]


@dataclass(frozen=True)
class DeviceFacts:
    """What rules of groups ask about a device."""

    device: str
    tags: tuple[str, ...] = ()
    arch: str = ""  # of its processor, such as aarch64
    version: str = ""  # of edged


@dataclass(frozen=True)
class GroupRule:
    """Which devices form a group: all that is given must fit.

    >>> rule = GroupRule("hall", devices=("press-*",), tags=("hall-2",))
    >>> rule.includes(DeviceFacts("press-7", ("hall-2", "spare"))), rule.includes(DeviceFacts("press-7"))
    (True, False)
    """

    name: Name
    devices: ShortTexts = ()  # patterns of names, any of them
    tags: ShortTexts = ()  # all of them
    arch: ShortText = ""  # pattern
    version: ShortText = ""  # pattern

    def includes(self, facts: DeviceFacts) -> bool:
        """Whether a device belongs to the group."""
        return (
            (not self.devices or any(fnmatchcase(facts.device, pattern) for pattern in self.devices))
            and set(self.tags) <= set(facts.tags)
            and fnmatchcase(facts.arch, self.arch or "*")
            and fnmatchcase(facts.version, self.version or "*")
        )


def group_of(rules: Iterable[GroupRule], facts: DeviceFacts) -> str:
    """The name of the first group that includes a device; empty when none does."""
    return next((rule.name for rule in rules if rule.includes(facts)), "")


@dataclass(frozen=True)
class Hours:
    """A span of the day in minutes of local time, from `start` until `end`; it may pass midnight."""

    start: Minute
    end: Minute

    def __str__(self) -> str:
        return "-".join(f"{at // 60:02}:{at % 60:02}" for at in (self.start, self.end))

    def include(self, now: float, offset: int) -> bool:
        """Whether `now`, in seconds since the epoch, lies in them, `offset` minutes east of UTC.

        >>> night = Hours(22 * 60, 6 * 60)
        >>> night.include(12 * 3600.0, 0), night.include(12 * 3600.0, 11 * 60), str(night)
        (False, True, '22:00-06:00')
        """
        return is_quiet((self.start, self.end), int(now // 60 + offset) % MINUTES)


def _rules(values: JsonFields, name: str) -> tuple[GroupRule, ...]:
    return tuple(read_dataclass(GroupRule, one) for one in values.each(name))


@dataclass(frozen=True)
class Audience:
    """The group that a round is for, and when its devices train and fetch models."""

    group: ShortText = ""  # empty: devices that belong to none of `groups`
    groups: Annotated[tuple[GroupRule, ...], _rules] = ()  # those that have a model of their own
    hours: Hours | None = None  # None: at any time
    daily_bytes: Count = 0  # that a device may fetch and send a day (UTC); 0: any number

    def includes(self, facts: DeviceFacts) -> bool:
        """Whether the round is for a device."""
        return group_of(self.groups, facts) == self.group


def outside(hours: Hours | None, now: float, offset: int) -> str:
    """Why a device takes no part at this moment, in words; empty when it may."""
    if hours is None or hours.include(now, offset):
        return ""
    return f"outside of the hours {hours} of its day"
