"""One change gives one signal."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from edged.domain.drift.signals import DRIFT, NONE, WARNING, Level, require, unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping

BEFORE_ALL = -(2**62)


@dataclass(slots=True)
class Cooldown:
    """Lets a level pass once, then holds its like back for `quiet` samples.

    A drift is followed by silence of that length. A warning passes when the last one, passed or
    held back, is that long ago: a long warning zone is one warning. A drift after a warning always
    passes. Several detectors may share one cool-down, so that what all of them see is one signal.

    Examples
    --------
    >>> cooldown = Cooldown(100)
    >>> [int(cooldown.passed(Level.DRIFT, at)) for at in (0, 50, 99, 100)]
    [2, 0, 0, 2]
    """

    quiet: int = 2000
    drift_at: int = BEFORE_ALL
    warning_at: int = BEFORE_ALL

    def __post_init__(self) -> None:
        require(self.quiet >= 0, "cooldown", "quiet >= 0")

    def passed(self, level: Level, position: int) -> Level:
        """`level` where it is news at `position` (offset, or count of samples), else NONE."""
        if level is NONE or position - self.drift_at < self.quiet:
            return NONE
        if level is DRIFT:
            self.drift_at = position
            return DRIFT
        last, self.warning_at = self.warning_at, max(self.warning_at, position)
        return WARNING if position - last >= self.quiet else NONE

    def state(self) -> dict[str, int]:
        """Parameters and state as JSON values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Cooldown:
        """The cool-down that gave `state`; CorruptError when it is not one."""
        names = [field.name for field in fields(cls)]
        if not all(type(state.get(name)) is int for name in names):
            raise unreadable("cooldown", f"{', '.join(names)} must be whole numbers")
        return cls(**{name: state[name] for name in names})
